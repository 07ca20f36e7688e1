# SPDX-License-Identifier: Apache-2.0
"""The same server on the real engine and the model that comes with it. Runs when SPLASH_REAL names the program;
SPLASH_REAL_MODEL may name another package."""
import json
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import REAL, ROOT, Server, post_raw, read_response, user, wait_for

MODEL_ARGS = ["--model", os.environ["SPLASH_REAL_MODEL"]] if os.environ.get("SPLASH_REAL_MODEL") else []
pytestmark = [
    pytest.mark.real, pytest.mark.skipif(not REAL, reason="SPLASH_REAL is not set"),
    pytest.mark.skipif(not MODEL_ARGS and not (ROOT / "models/nano/manifest.json").exists(), reason="there is no model")]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GREEDY = {"temperature": 0, "max_tokens": 40, "chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def real():
    s = Server(REAL, [*MODEL_ARGS, "--max-context", "32K"])
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def http(real):
    with httpx.Client(base_url=real.url, timeout=120) as c:
        yield c


def chat(http, content, **kw):
    r = http.post(CHAT, json={"messages": user(content), **GREEDY, **kw})
    assert r.status_code == 200, r.text
    return r.json()


def text(reply):
    m = reply["choices"][0]["message"]
    return (m.get("reasoning_content") or "") + "|" + (m["content"] or "")


def stream(http, path, body):
    with http.stream("POST", path, json={**body, "stream": True, "stream_options": {"include_usage": True}}) as r:
        assert r.status_code == 200
        events = [l[6:] for l in r.iter_lines() if l.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(e) for e in events[:-1]]


def test_prompt_is_what_the_template_says(http):
    messages = [{"role": "system", "content": "Be brief."}, *user("Say hello to the world.")]
    prompt = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    n = len(http.post("/tokenize", json={"content": prompt}).json()["tokens"])
    r = http.post(CHAT, json={"messages": messages, "max_tokens": 1}).json()
    assert r["usage"]["prompt_tokens"] == n and r["usage"]["completion_tokens"] == 1 and r["choices"][0]["finish_reason"] == "length"
    ids = http.post("/tokenize", json={"content": prompt}).json()
    assert http.post("/detokenize", json=ids).json()["content"] == prompt


def test_later_system_message(http):
    """Some agents put a system message behind the first user message; the published templates refuse that."""
    messages = [{"role": "system", "content": "A"}, *user("B"), {"role": "system", "content": "C"}]
    prompt = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert "<|im_start|>user\nB<|im_end|>\n<|im_start|>system\nC<|im_end|>\n<|im_start|>assistant\n" in prompt
    assert http.post(CHAT, json={"messages": messages, "max_tokens": 2}).status_code == 200


def test_greedy_repeats_and_streams_the_same(http):
    first, second = chat(http, "What is a list?"), chat(http, "What is a list?")
    assert text(first) == text(second) and first["usage"]["completion_tokens"] == second["usage"]["completion_tokens"]
    chunks = stream(http, CHAT, {"messages": user("What is a list?"), **GREEDY})
    deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"]]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) + "|" + "".join(d.get("content") or "" for d in deltas) == text(first)
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == first["usage"]["completion_tokens"] and usage["prompt_tokens"] == first["usage"]["prompt_tokens"]


def test_a_request_does_not_depend_on_its_neighbours(http, real):
    prompts = [f"Tell me about the number {i} in a few words." for i in range(8)]
    alone = [text(chat(http, p)) for p in prompts]

    def ask(p):
        with httpx.Client(base_url=real.url, timeout=120) as c:
            return text(chat(c, p))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_seed(http):
    body = {"prompt": "The weather today is", "max_tokens": 24, "temperature": 1.0, "top_k": 0, "top_p": 1, "ignore_eos": True}
    texts = [http.post(TEXT, json={**body, "seed": s}).json()["choices"][0]["text"] for s in (1, 1, 2, 3, 4)]
    assert texts[0] == texts[1] and len(set(texts)) > 1


def test_logprobs(http):
    r = http.post(TEXT, json={"prompt": "def main():", "max_tokens": 8, "temperature": 0, "logprobs": 5, "ignore_eos": True}).json()
    lp = r["choices"][0]["logprobs"]
    assert len(lp["tokens"]) == 8
    for token, value, top in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]):
        assert value <= 0 and value == max(top.values()) and token in top
        assert list(top.values()) == sorted(top.values(), reverse=True)
    r = chat(http, "Hi", logprobs=True, top_logprobs=3, max_tokens=5)
    entries = (r["choices"][0].get("logprobs") or {})
    n = len(entries.get("content", [])) + len(entries.get("reasoning_content", []))
    assert r["usage"]["completion_tokens"] - 1 <= n <= r["usage"]["completion_tokens"]


def test_logit_bias(http):
    body = {"prompt": "One two three", "max_tokens": 1, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    free = http.post(TEXT, json=body).json()["choices"][0]["logprobs"]["tokens"][0]
    ids = http.post("/tokenize", json={"content": free}).json()["tokens"]
    if len(ids) == 1:
        banned = http.post(TEXT, json={**body, "logit_bias": {str(ids[0]): -100}}).json()["choices"][0]["logprobs"]["tokens"][0]
        assert banned != free
    want = http.post("/tokenize", json={"content": " Q"}).json()["tokens"][0]
    forced = http.post(TEXT, json={**body, "logit_bias": {str(want): 100}}).json()["choices"][0]["text"]
    assert forced == http.post("/detokenize", json={"tokens": [want]}).json()["content"]


def test_stop(http):
    body = {"prompt": "Count: one two three four", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    whole = http.post(TEXT, json=body).json()["choices"][0]["text"]
    assert len(whole) > 6
    stop = whole[4:6]
    r = http.post(TEXT, json={**body, "stop": stop}).json()["choices"][0]
    assert r["text"] == whole[:whole.index(stop)] and r["finish_reason"] == "stop"
    pieces = [c["choices"][0]["text"] for c in stream(http, TEXT, {**body, "stop": stop}) if c["choices"]]
    assert "".join(pieces) == r["text"]


@pytest.mark.parametrize("top_k", [-1, 0, 1, 5, 1000000])
def test_top_k(http, top_k):
    r = http.post(TEXT, json={"prompt": "x", "max_tokens": 4, "top_k": top_k, "temperature": 0.8})
    assert r.status_code == 200 and r.json()["usage"]["completion_tokens"] >= 1
    if top_k == 1:
        greedy = http.post(TEXT, json={"prompt": "x", "max_tokens": 4, "temperature": 0}).json()
        assert r.json()["choices"][0]["text"] == greedy["choices"][0]["text"]


def test_context(http):
    r = http.post(TEXT, json={"prompt": "word " * 40000, "max_tokens": 4})
    assert r.status_code == 400 and r.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("streamed", [False, True])
def test_disconnect_in_prefill_cancels_within_250_ms(real, http, streamed):
    times = []
    for i in range(3):
        before = http.get("/status").json()["requests"]["cancelled"]
        s = real.connect()
        s.sendall(post_raw(CHAT, {"messages": user(f"{i} {streamed} " + "many different words " * 9000), "stream": streamed}))
        wait_for(lambda: http.get("/status").json()["requests"]["running"] == 1, 20)
        time.sleep(0.2)
        begin = time.monotonic()
        s.close()
        wait_for(lambda: http.get("/status").json()["requests"]["cancelled"] == before + 1)
        times.append(time.monotonic() - begin)
        if times[-1] < 0.25:
            break
    print(f"cancelled after {[round(t * 1000) for t in times]} ms")
    assert min(times) < 0.25
    wait_for(lambda: http.get("/status").json()["requests"]["running"] == 0)
    assert chat(http, "Still there?")["usage"]["completion_tokens"] > 0


def test_progress(http):
    chunks = stream(http, CHAT, {"messages": user("progress " * 3000), "return_progress": True, "max_tokens": 1})
    progress = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
    assert len(progress) >= 2 and [p["processed"] for p in progress] == sorted(p["processed"] for p in progress)
    assert progress[-1]["processed"] <= progress[-1]["total"] == chunks[-1]["usage"]["prompt_tokens"]


def test_openai_client(real):
    client = real.client()
    model = client.models.list().data[0].id
    r = client.chat.completions.create(model=model, messages=user("Hello"), max_tokens=8, seed=1)
    assert r.model == model and r.usage.completion_tokens <= 8
    parts = list(client.chat.completions.create(model=model, messages=user("Hello"), max_tokens=8, seed=1, stream=True))
    assert parts[-1].choices[0].finish_reason in ("stop", "length")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=user("x"))


def test_anthropic_client(real):
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=real.url, api_key="x", max_retries=0) as client:
        model = real.status()["instance"]["model"]
        n = client.messages.count_tokens(model=model, messages=user("Hello")).input_tokens
        r = client.messages.create(model=model, max_tokens=8, messages=user("Hello"))
        assert r.usage.input_tokens + (r.usage.cache_read_input_tokens or 0) == n and r.usage.output_tokens <= 8
        with client.messages.stream(model=model, max_tokens=8, messages=user("Hello")) as s:
            assert s.get_final_message().stop_reason in ("end_turn", "max_tokens")


def test_tools_do_not_break(http):
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    r = chat(http, "What is the weather in Ulm?", tools=[tool])
    for call in r["choices"][0]["message"].get("tool_calls", []):
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
    r = chat(http, "What is the weather in Ulm?", tools=[tool], tool_choice="none")
    assert "tool_calls" not in r["choices"][0]["message"]


def test_metrics_count(http):
    def values():
        return {s.name: s.value for f in text_string_to_metric_families(http.get("/metrics").text) for s in f.samples if not s.labels}
    before = values()
    usage = chat(http, "Count me.")["usage"]
    after = values()
    counted = after["splash_decode_output_tokens_total"] - before["splash_decode_output_tokens_total"]
    assert counted in (usage["completion_tokens"], usage["completion_tokens"] - 1)  # the first token may come out of prefill
    assert after["splash_prefill_input_tokens_total"] - before["splash_prefill_input_tokens_total"] == usage["prompt_tokens"]
    assert 0 <= after["splash_draft_acceptance_ratio"] <= 1 and after["splash_decode_tokens_per_second"] > 0


def test_drain():
    s = Server(REAL, [*MODEL_ARGS, "--max-context", "8K"])
    with s.connect() as c:
        c.sendall(post_raw(TEXT, {"prompt": "go on", "max_tokens": 1500, "ignore_eos": True, "stream": True}))
        wait_for(lambda: s.status()["requests"]["running"] == 1)
        s.process.send_signal(signal.SIGTERM)
        status, _, body = read_response(c.makefile("rb"))
    assert status == 200 and body.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in body
    assert s.process.wait(10) == 0


def test_hard_stop():
    s = Server(REAL, [*MODEL_ARGS, "--max-context", "8K"])
    with s.connect() as c:
        c.sendall(post_raw(TEXT, {"prompt": "go on", "max_tokens": 8000, "ignore_eos": True, "stream": True}))
        wait_for(lambda: s.status()["requests"]["running"] == 1)
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        s.process.send_signal(signal.SIGINT)
        assert s.process.wait(3) == 130


def test_run_command():
    def run(*args):
        return subprocess.run([REAL, "run", *MODEL_ARGS, "--max-context", "4K", *args], capture_output=True, text=True, timeout=120)
    r = run("--temperature", "0", "-n", "12", "--json", "--no-think", "Hello")
    d = json.loads(r.stdout)
    assert r.returncode == 0 and 0 < d["usage"]["completion_tokens"] <= 12
    assert json.loads(run("--temperature", "0", "-n", "12", "--json", "--no-think", "Hello").stdout)["content"] == d["content"]
    r = run("--temperature", "0", "-n", "12", "--no-think", "Hello")
    assert r.stdout.rstrip("\n") == d["content"].rstrip("\n") and re.search(r"tok/s", r.stderr)
