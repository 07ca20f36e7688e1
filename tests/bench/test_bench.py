# SPDX-License-Identifier: Apache-2.0
"""`splash bench`: every kind gives one JSON object whose figures agree with each other and with `splash explain`.
Toy shapes with random weights, and the nano model when it is there. Nothing here judges a speed."""

import json
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPLASH = ROOT / os.environ.get("BUILD", "build") / "splash"
NANO = ROOT / "models" / "nano"
needs_nano = pytest.mark.skipif(not (NANO / "manifest.json").exists(), reason="models/nano is not packed")
TOY = ["--model", "toy", "--random-weights", "--threads", "2"]


def run(*arguments, env=None):
    return subprocess.run([SPLASH, "bench", *map(str, arguments)], capture_output=True, text=True, timeout=600, env=env)


def bench(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # exactly one object: json.loads refuses trailing text


def refused(code, *arguments, env=None):
    done = run(*arguments, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    return done.stderr


def check_common(r, kind):
    assert r["kind"] == kind
    assert "core" in r["machine"]
    assert r["cpu_tier"] in ("ref", "avx2", "avxvnni", "avx512vnni", "amx", "neon", "neon_dotprod", "neon_i8mm")
    assert r["threads"] >= 1
    assert r["commit"]
    assert r["load_average"] >= 0


def check_rates(r):
    for key in ("read_gb_per_second", "int8_gmac_per_second"):
        assert 0 < r[key + "_min"] <= r[key] <= r[key + "_max"]
    assert r["read_bytes"] >= 1 << 30
    assert ("int8_vector_gmac_per_second" in r) == (r["cpu_tier"] == "amx")
    assert 0 < r.get("int8_vector_gmac_per_second", 1) < r["int8_gmac_per_second"] * 2


def check_samples(r, key):
    assert 0 < r[key + "_min"] <= r[key] <= r[key + "_max"]
    assert r[key + "_spread"] == pytest.approx((r[key + "_max"] - r[key + "_min"]) / r[key], rel=1e-6, abs=2e-8)  # nine digits are printed


def check_roof(r, seconds, n_bytes, macs):
    read, int8 = r["read_gb_per_second"] * 1e9, r["int8_gmac_per_second"] * 1e9
    assert r["roof_seconds"] == pytest.approx(max(n_bytes / read, macs / int8), rel=1e-6)
    assert r["roof_fraction"] == pytest.approx(r["roof_seconds"] / seconds, rel=1e-6)


def check_stages(r, n_bytes, macs):
    stages = r["stages"]
    assert sum(s["share"] for s in stages) == pytest.approx(1)
    assert sum(s["bytes"] for s in stages) == n_bytes
    assert sum(s["macs"] for s in stages) == macs
    for s in stages:
        assert s["count"] > 0 and s["seconds"] >= 0
        assert s["gb_per_second"] == pytest.approx(s["bytes"] * 1e-9 / s["seconds"] if s["seconds"] else 0)


def test_roof():
    r = bench("roof")
    check_common(r, "roof")
    check_rates(r)


@pytest.mark.parametrize("options", [["--draft"], ["--draft", "--lanes", "3", "--context", "100"],
                                     ["--rows", "1", "--context", "40"], ["--rows", "4", "--lanes", "2"]])
def test_step(options):
    r = bench("step", *TOY, "--seconds", "0.05", *options)
    check_common(r, "step")
    check_rates(r)
    check_samples(r, "step_seconds")
    check_roof(r, r["step_seconds"], r["step_bytes"], r["step_macs"])
    check_stages(r, r["step_bytes"], r["step_macs"])
    assert r["draft"] == ("--draft" in options)
    assert r["steps"] >= 5
    assert r["context_tokens"] == max([8] + [int(b) for a, b in zip(options, options[1:]) if a == "--context"])
    assert 1 <= r["tau"] <= r["rows"]
    assert r["tau_source"] == "accepted"
    assert r["tokens_per_second"] == pytest.approx(r["tau"] * r["lanes"] / r["step_seconds"], rel=1e-6)
    names = [s["op"] for s in r["stages"]]
    assert ("draft.walk" in names) == ("--draft" in options)
    assert "accept" in names


def test_step_bytes_are_those_of_explain():
    r = bench("step", *TOY, "--draft", "--lanes", "2", "--context", "64", "--seconds", "0.05")
    done = subprocess.run([SPLASH, "explain", "--model", "toy", "--json", "--lanes", "2", "--context", "64"],
                          capture_output=True, text=True, timeout=60)
    assert r["step_bytes"] == json.loads(done.stdout)["this_engine"]["at"]["step_bytes"]


@pytest.mark.parametrize("tau", [1, 2.5, 4.8, 8])
def test_step_with_assumed_acceptance(tau):
    r = bench("step", *TOY, "--draft", "--context", "64", "--seconds", "0.1", "--synthetic-acceptance", tau)
    assert r["tau_source"] == "synthetic"
    assert r["tau"] == pytest.approx(tau, abs=1 / r["steps"])
    assert r["tokens_per_second"] == pytest.approx(r["tau"] / r["step_seconds"], rel=1e-6)


def test_step_refuses_what_cannot_be():
    assert "8" in refused(1, "step", *TOY, "--rows", "9")
    assert "4" in refused(1, "step", *TOY, "--lanes", "5")
    assert "positions" in refused(1, "step", *TOY, "--context", "4096")
    assert "retains" in refused(1, "step", *TOY, "--rows", "4", "--synthetic-acceptance", "4.8")
    assert "no draft" in refused(1, "step", "--model", "toy-ratio3", "--random-weights", "--draft")
    assert "no geometry" in refused(1, "step", "--model", "nothing", "--random-weights")
    assert "limit" in refused(1, "step", *TOY, "--max-memory", "1M")


@pytest.mark.parametrize("options", [[], ["--draft"]])
def test_prefill(options):
    r = bench("prefill", *TOY, "--tokens", "300", "--seconds", "0.05", *options)
    check_common(r, "prefill")
    check_rates(r)
    check_samples(r, "prefill_seconds")
    check_samples(r, "tokens_per_second")
    assert r["tokens_per_second_max"] == pytest.approx(300 / r["prefill_seconds_min"], rel=1e-6)
    assert r["roof_fraction"] == pytest.approx(r["roof_seconds"] / r["prefill_seconds"], rel=1e-6)
    assert r["roof_tokens_per_second"] == pytest.approx(300 / r["roof_seconds"], rel=1e-6)
    if r["cpu_tier"] == "amx":
        vector = r["prefill_macs"] / (r["int8_vector_gmac_per_second"] * 1e9)
        assert r["of_int8_vector"] == pytest.approx(vector / r["prefill_seconds"], rel=1e-6)
    assert r["prefill_bytes"] > r["weight_bytes"]  # two chunks read the layers twice
    assert sum(s["share"] for s in r["stages"]) == pytest.approx(1)


PROMPTS = [{"id": "loop", "prompt": "abcabcabcabcabcabcabc"}, {"turns": ["hello hello", "once more"], "id": 7},
           {"question": "what?"}, {"prompt": "def f(x):\n", "raw": True}]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps(p) + "\n" for p in PROMPTS))
    return path


def check_accept(r):
    check_common(r, "accept")
    check_rates(r)
    assert r["tau"] == pytest.approx(1 + r["accepted"] / r["steps"])
    assert r["accept_rate"] == pytest.approx(r["accepted"] / r["proposed"] if r["proposed"] else 0)
    assert r["tokens"] >= r["steps"]
    for key in ("steps", "proposed", "accepted"):
        assert sum(p[key] for p in r["per_prompt"]) * r["passes"] == r[key]
    assert r["by_draft"]["proposed"] + r["by_lookup"]["proposed"] == r["proposed"]
    assert r["by_draft"]["accepted"] + r["by_lookup"]["accepted"] == r["accepted"]
    drafted = [p["drafted"] for p in r["per_position"]]
    accepted = [p["accepted"] for p in r["per_position"]]
    assert [p["position"] for p in r["per_position"]] == [1, 2, 3, 4, 5, 6, 7]
    assert drafted == sorted(drafted, reverse=True) and accepted == sorted(accepted, reverse=True)
    assert sum(drafted) == r["by_draft"]["proposed"] and sum(accepted) == r["by_draft"]["accepted"]
    for key in ("tokens_per_second", "plain_tokens_per_second", "prefill_tokens_per_second"):
        check_samples(r, key)


def test_accept_with_a_random_draft(prompts):
    # Fixed rows: what is proposed then does not depend on measured times, so every pass does the same.
    r = bench("accept", *TOY, "--draft", "--prompts", prompts, "--max-tokens", "20", "--rows", "8")
    check_accept(r)
    assert r["passes"] == 2 and r["prompts"] == 4
    assert r["proposed"] > 0
    assert r["greedy_identical"] is True and r["prompts_that_differ"] == 0
    assert [p["id"] for p in r["per_prompt"]] == ["loop", "7", "3", "4"]
    assert [p["tokens"] for p in r["per_prompt"]] == [19, 38, 19, 19]  # the first token of an answer is prefill's


def test_accept_by_lookup_alone(prompts):
    r = bench("accept", "--model", "toy-even", "--random-weights", "--threads", "1", "--prompts", prompts,
              "--max-tokens", "200", "--rows", "4", "--repeat", "1", "--limit", "2")
    check_accept(r)
    assert r["draft"] is False and r["by_draft"]["proposed"] == 0
    assert r["prompts"] == 2
    assert r["greedy_identical"] is True


def test_accept_sampled_makes_no_claim_of_equality(prompts):
    r = bench("accept", *TOY, "--prompts", prompts, "--max-tokens", "8", "--temperature", "0.8", "--repeat", "1",
              "--limit", "1")
    assert r["temperature"] == 0.8
    assert "greedy_identical" not in r and "greedy_identical" not in r["per_prompt"][0]


def test_accept_refuses_bad_files(tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a"}\n{"text": "b"}\n')
    assert "line 2" in refused(1, "accept", *TOY, "--prompts", bad)
    assert "missing" in refused(1, "accept", *TOY, "--prompts", tmp_path / "missing")
    assert "--prompts" in refused(2, "accept", *TOY)
    assert "no benchmark" in refused(2, "quickly")
    assert "what to measure" in refused(2)
    assert "--random-weights" in refused(2, "step", "--model", "toy", "--layers", "2")


def test_own_prompts_are_well_formed():
    counts = {}
    for path in sorted((ROOT / "bench" / "prompts").glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        counts[path.stem] = len(rows)
        assert len({r["id"] for r in rows}) == len(rows)
        assert all(r.get("prompt") or r.get("turns") for r in rows)
    assert counts == {"chat": 20, "copy": 10, "hex": 10, "nano-copy": 10, "nano-python": 20, "nano-rename": 20,
                      "python": 20}


def test_text_says_the_same():
    done = run("roof")
    assert done.returncode == 0
    line = next(line for line in done.stdout.splitlines() if line.startswith("read gb per second"))
    median, low, high = (float(word.strip("(")) for word in line.replace(" to ", " ").replace(")", "").split()[4:7])
    assert 0 < low <= median <= high


def test_help_lists_the_kinds():
    done = run("--help")
    assert done.returncode == 0
    for kind in ("roof", "kernels", "step", "prefill", "accept", "nano-quality", "serve"):
        assert f"\n  {kind} " in done.stdout


# ---- serve ----------------------------------------------------------------------------------------


class Scripted:
    """A server that answers every request with the given bytes, in the given pieces."""

    def __init__(self, pieces):
        self.pieces, self.requests = pieces, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                peer, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(peer,), daemon=True).start()

    def answer(self, peer):
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = b""
            while b"\r\n\r\n" not in data:
                data += peer.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split()[0])
            while len(body) < length:
                body += peer.recv(65536)
            self.requests.append(json.loads(body))
            for piece in self.pieces:
                peer.sendall(piece)


def events(*items):
    return "".join(f"data: {i if isinstance(i, str) else json.dumps(i)}\n\n" for i in items).encode()


def chunked(body, size):
    parts = [body[i:i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = events({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, {"choices": [{"delta": {"content": "a"}}]},
              {"choices": [{"delta": {"content": "b"}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]},
              {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}, "[DONE]")


@pytest.mark.parametrize("size, piece", [(10000, 10000), (7, 10000), (50, 1), (1, 3)])
def test_serve_reads_any_cut_of_a_reply(size, piece):
    wire = HEAD + chunked(BODY, size)
    server = Scripted([wire[i:i + piece] for i in range(0, len(wire), piece)])
    r = bench("serve", "--url", server.url, "--concurrency", "2", "--requests", "5", "--max-tokens", "9")
    check_common(r, "serve")
    check_rates(r)
    check_samples(r, "ttft_seconds")
    assert (r["concurrency"], r["requests"], r["prompt_tokens"], r["completion_tokens"]) == (2, 5, 25, 15)
    assert r["aggregate_tokens_per_second"] == pytest.approx(15 / r["wall_seconds"], rel=1e-6)
    assert len(server.requests) == 5
    request = server.requests[0]
    assert request["stream"] is True and request["max_tokens"] == 9 and request["temperature"] == 0
    assert request["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("wire, said", [
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot here!", "404: not here!"),
    (HEAD + chunked(events({"error": {"message": "too hot"}}), 99), "too hot"),
    (HEAD + chunked(events("{oops"), 99), "not valid JSON"),
    (HEAD + b"zz\r\n", "malformed chunk"),
    (HEAD + b"10\r\nabc", "ended in the middle"),
    (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
    (b"", "without a reply"),
])
def test_serve_says_what_is_wrong(wire, said):
    assert said in refused(1, "serve", "--url", Scripted([wire]).url, "--requests", "1")


def test_serve_without_a_server():
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    assert "cannot connect" in refused(1, "serve", "--url", f"http://127.0.0.1:{port}")
    assert "http://HOST:PORT" in refused(1, "serve", "--url", "here")


# ---- the small model ------------------------------------------------------------------------------


def test_quality_needs_python_and_known_kinds(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "1 + 1", "kind": "riddle"}\n')
    said = refused(1, "nano-quality", *TOY, "--prompts", path, env={**os.environ, "PATH": str(tmp_path)})
    assert "python3 is missing" in said
    assert "'kind' must be" in refused(1, "nano-quality", *TOY, "--prompts", path)


def test_quality_counts_what_it_says(tmp_path):
    # Random weights and no tokenizer: no text comes out, so nothing is good, and every row says so.
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "a", "prompt": "def f():\\n", "kind": "python-completion"}\n'
                    '{"id": "b", "prompt": "Write f.", "kind": "python-chat"}\n'
                    '{"id": "c", "prompt": "1 + 1?", "kind": "sum", "answer": "2"}\n')
    r = bench("nano-quality", *TOY, "--prompts", path, "--max-tokens", "4")
    check_common(r, "nano-quality")
    assert (r["python_prompts"], r["python_good"], r["sum_prompts"], r["sums_good"]) == (2, 0, 1, 0)
    assert r["python_parse_rate"] == 0 and r["sum_rate"] == 0
    assert [p["id"] for p in r["per_prompt"]] == ["a", "b", "c"]
    assert not any(p["good"] for p in r["per_prompt"])


@needs_nano
def test_nano_writes_python_and_adds():
    r = bench("nano-quality")
    assert r["prompts"] == 50
    good = sum(p["good"] for p in r["per_prompt"] if p["kind"] != "sum")
    assert r["python_parse_rate"] == pytest.approx(good / r["python_prompts"])
    assert r["python_parse_rate"] >= 0.8, [p for p in r["per_prompt"] if not p["good"]]
    assert r["sum_rate"] >= 0.8, [p for p in r["per_prompt"] if not p["good"]]


@needs_nano
@pytest.mark.parametrize("name", ["python", "chat", "copy", "hex"])
def test_nano_says_the_same_with_and_without_proposals(name):
    r = bench("accept", "--prompts", ROOT / "bench" / "prompts" / f"{name}.jsonl", "--max-tokens", "48", "--limit", "6",
              "--repeat", "1")
    check_accept(r)
    assert r["greedy_identical"] is True


@needs_nano
def test_nano_over_http():
    r = bench("serve", "--concurrency", "2", "--requests", "4", "--max-tokens", "8")
    assert 4 <= r["completion_tokens"] <= 32
    assert r["prompt_tokens"] > 0
    check_samples(r, "ttft_seconds")


def test_busy_neighbours():
    r = bench("step", *TOY, "--draft", "--busy", "1", "--seconds", "0.5")
    check_common(r, "step")
    check_samples(r, "step_seconds")
    check_samples(r, "busy_step_seconds")
    assert r["busy_threads"] == 1 and r["busy_steps"] >= 2 and r["busy_bar"] == 1.7
    assert r["busy_ratio"] == pytest.approx(r["busy_step_seconds"] / r["step_seconds"])
    assert "page_faults" not in r
    assert "works with step" in refused(2, "prefill", *TOY, "--busy", "1")
    assert "256" in refused(1, "step", *TOY, "--busy", "257")


def test_a_steady_step_takes_no_page_fault():
    r = bench("step", *TOY, "--draft", "--seconds", "0.5")
    assert r["disk_page_faults"] == 0
    assert r["page_faults"] < max(r["steps"], 64)  # a thread's first piece of an op may touch fresh stack, no more
    small = bench("step", *TOY, "--seconds", "0.1", "--no-huge-pages")
    assert small["huge_page_bytes"] == 0


def tune(*arguments, cache, code=0):
    env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run([SPLASH, "tune", "--model", "toy", "--random-weights", "--max-memory", "100M", "--seconds", "0.3", *arguments],
                          capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_tune(tmp_path):
    r = json.loads(tune("--json", "--dry-run", cache=tmp_path))
    assert r["kind"] == "tune" and r["path"] is None and list(tmp_path.iterdir()) == []
    assert r["measured_on"].startswith("toy") and r["model"] == r["measured_on"]
    assert r["default_over_tuned"] == pytest.approx(r["default_step_seconds"] / r["tuned_step_seconds"])
    assert r["within_bar"] == (r["default_over_tuned"] <= r["bar"] == 1.03)
    names = ["threads", "panel_chunk", "near_bytes", "far_bytes", "single_bytes"]
    for name in names:
        rows = [c for c in r["choices"] if c["choice"] == name]
        if name == "threads" and not rows:
            continue  # one core
        assert rows[0]["value"] == "default" and sum(c["chosen"] for c in rows) == 1 and len(rows) >= 2
        chosen = next(c for c in rows if c["chosen"])
        assert r["tuning"][name] == (0 if chosen["value"] == "default" else chosen["value"])
        assert all(c["rounds"] >= 3 and c["step_seconds"] > 0 for c in rows)
    steps = {(s["rows"], s["drafted"]) for s in r["model_steps"]}
    assert {(1, False), (8, False), (8, True)} <= steps and (1, True) not in steps


def test_tuning_is_stored_and_used(tmp_path):
    text = tune(cache=tmp_path)
    assert "default over tuned" in text
    (path,) = (tmp_path / "splash/tuning").iterdir()
    assert str(path) in text and path.name.endswith(".json")
    stored = json.loads(path.read_text())
    assert stored["format"] == 1 and len(stored["models"]) == 1
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "SPLASH_DEBUG": "1"}
    stored["panel_chunk"] = 7
    stored["models"].append({"model": "another", "steps": []})
    path.write_text(json.dumps(stored))
    assert json.loads(run("step", "--model", "toy", "--random-weights", "--seconds", "0.1", "--json", env=env).stdout)["tuned"] is True
    assert json.loads(run("step", "--model", "toy", "--random-weights", "--seconds", "0.1", "--json", "--no-tuning", env=env).stdout)["tuned"] is False
    tune(cache=tmp_path)
    assert [m["model"] for m in json.loads(path.read_text())["models"]] == ["another", stored["models"][0]["model"]]
    path.write_text("{")
    r = run("step", "--model", "toy", "--random-weights", "--seconds", "0.1", "--json", env=env)
    assert json.loads(r.stdout)["tuned"] is False and "Debug" in r.stderr and str(path) in r.stderr
