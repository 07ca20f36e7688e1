# SPDX-License-Identifier: Apache-2.0
"""The command line on the scripted engine: usage errors, exit codes, what goes to stdout and what to stderr."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

FAKE = os.environ.get("SPLASH_FAKE", str(Path(__file__).resolve().parents[2] / "build/tests/http/splash_fake"))
COMMANDS = ["serve", "run", "chat", "pack", "verify", "explain", "bench", "tune", "claude", "opencode", "version"]


def run(*args, stdin="", env=None, **kw):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPLASH_")}
    environment.update(env or {})
    return subprocess.run([FAKE, *args], input=stdin, capture_output=True, text=True, timeout=60, env=environment, **kw)


def has_bench():
    return "bench " in run("--help").stdout


def test_no_arguments():
    r = run()
    assert r.returncode == 2 and r.stdout == "" and "usage" in r.stderr


def test_help():
    r = run("--help")
    assert r.returncode == 0 and r.stderr == ""
    for command in COMMANDS:
        assert command == "bench" or f"  {command} " in r.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(command):
    if command == "bench" and not has_bench():
        pytest.skip("not in this build")
    r = run(command, "--help")
    assert r.returncode == 0 and r.stdout.startswith(f"usage: splash {command}" if command not in ("claude", "opencode") else "usage: splash claude|opencode")
    assert r.stderr == ""


@pytest.mark.parametrize("args", [
    ["frobnicate"], ["serve", "--nope"], ["serve", "extra"], ["serve", "--port"], ["serve", "--port", "x"], ["serve", "--port", "70000"],
    ["serve", "--queue-size", "0"], ["serve", "--max-request-size", "12Q"], ["serve", "--request-timeout", "0"], ["serve", "--request-timeout", "-1s"],
    ["serve", "--api-key", ""], ["serve", "--api-key", "a b"], ["serve", "--served-model-name", "a b"], ["serve", "--announce-served-name"],
    ["serve", "--default-reasoning-effort", "extreme"], ["serve", "--quiet=yes"], ["serve", "--max-context", "99999999999"],
    ["run"], ["run", "a", "b"], ["run", "--temperature", "nan", "x"], ["run", "--seed", "-1", "x"], ["run", "-n", "x", "x"], ["run", "--raw", "--system", "s", "x"],
    ["pack"], ["pack", "src"], ["pack", "-o", "x"], ["pack", "a", "b", "-o", "x"], ["verify"], ["explain", "extra"], ["explain", "--tau", "x"],
    ["version", "x"], ["tune", "x"], ["tune", "--layers", "2"], ["tune", "--seconds", "0"], ["bench", "roof", "--busy", "1"], ["chat", "x"], ["claude", "--port", "0"], ["claude", "--port"]])
def test_usage_errors(args):
    r = run(*args)
    assert r.returncode == 2, r
    assert r.stdout == "" and r.stderr.startswith("splash: ")


@pytest.mark.parametrize("variable, value", [("SPLASH_PORT", "x"), ("SPLASH_PORT", "99999"), ("SPLASH_API_KEY", "a b")])
def test_bad_environment(variable, value):
    assert run("serve", env={variable: value}).returncode == 2


def test_version():
    assert re.fullmatch(r"splash \d+\.\d+\.\d+ \(\S+\)\n", run("version").stdout)
    assert run("--version").stdout == run("version").stdout
    assert set(json.loads(run("version", "--json").stdout)) == {"version", "commit"}


def test_run(fake_model):
    r = run("run", "--model", fake_model, "Hello wörld")
    assert r.returncode == 0 and r.stdout == "Hello wörld\n"
    assert re.search(r"prompt \d+ \(0 cached\) · new 11 · first token .* tok/s", r.stderr)
    assert run("run", "-m", fake_model, "-", stdin="from stdin").stdout == "from stdin\n"
    assert run("run", "-m", fake_model, "-n", "2", "[[n=9]]").stdout == "word word \n"
    assert "cut at the token limit" in run("run", "-m", fake_model, "-n2", "[[n=9]]").stderr
    assert run("run", "-m", fake_model, "--", "-dash").stdout == "-dash\n"


def test_run_settings(fake_model):
    d = json.loads(run("run", "-m", fake_model, "--temperature", "0.5", "--seed=18446744073709551615", "-n", "500", "[[dump]]").stdout)
    assert d["temperature"] == 0.5 and d["seed"] == "18446744073709551615" and d["max_new_tokens"] == 500 and d["chat"] is True
    d = json.loads(run("run", "-m", fake_model, "--raw", "[[dump]]").stdout)
    assert d["chat"] is False and d["n_prompt"] == len("[[dump]]") and d["temperature"] == 0.75
    plain = json.loads(run("run", "-m", fake_model, "[[dump]]").stdout)["n_prompt"]
    assert json.loads(run("run", "-m", fake_model, "--system", "abc", "[[dump]]").stdout)["n_prompt"] > plain


@pytest.mark.parametrize("command", ["run", "chat", "serve", "bench"])
def test_lock_is_offered(command):
    assert re.search(r"--mlock +keep the weights in memory, or refuse to start", run(command, "--help").stdout)


def test_lock_reaches_the_engine(fake_model):
    assert json.loads(run("run", "-m", fake_model, "[[dump]]").stdout)["lock_weights"] is False
    assert json.loads(run("run", "-m", fake_model, "--mlock", "[[dump]]").stdout)["lock_weights"] is True
    assert run("run", "--mlock=yes", "x").returncode == 2


def without_privileges():
    import resource
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


@pytest.mark.skipif("SPLASH_REAL" not in os.environ, reason="needs the real engine")
@pytest.mark.parametrize("args", [["serve", "--port", "0"], ["run", "x"], ["bench", "step"]])
def test_lock_beyond_the_limit_is_refused(args):
    model = ["--model", "toy", "--random-weights"]
    r = subprocess.run([os.environ["SPLASH_REAL"], *args, *model, "--mlock"], capture_output=True, text=True, timeout=60, preexec_fn=without_privileges)
    assert r.returncode == 1 and r.stdout == ""
    assert "MB" in r.stderr and "0.07 MB" in r.stderr and "ulimit -l unlimited" in r.stderr and "LimitMEMLOCK=infinity" in r.stderr


def test_tuning_is_looked_for_in_the_cache(fake_model, tmp_path):
    def asked(env, *args):
        r = run("run", "-m", fake_model, *args, "[[dump]]", env=env)
        return json.loads(r.stdout)["tuning_folder"], r.stderr
    cache = str(tmp_path / "cache")
    assert asked({"XDG_CACHE_HOME": cache})[0] == cache + "/splash/tuning"
    assert asked({"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path)})[0] in (f"{tmp_path}/.cache/splash/tuning", f"{tmp_path}/Library/Caches/splash/tuning")
    assert asked({"XDG_CACHE_HOME": "", "HOME": ""})[0] == ""
    assert asked({"XDG_CACHE_HOME": cache}, "--no-tuning")[0] == ""
    assert "Debug" not in asked({"SPLASH_DEBUG": "0"})[1]
    assert "Debug · opening" in asked({"SPLASH_DEBUG": "1"})[1]


def test_run_json(fake_model):
    r = run("run", "--model", fake_model, "--json", "hi")
    d = json.loads(r.stdout)
    assert d["content"] == "hi" and d["finish_reason"] == "stop" and d["usage"]["completion_tokens"] == 2
    assert r.stdout.count("\n") == 1


def test_run_failures(fake_model, tmp_path):
    r = run("run", "-m", fake_model, "[[fail=internal fail_after=2]]")
    assert r.returncode == 1 and "failed as told" in r.stderr
    r = run("run", "-m", str(tmp_path / "nothing"), "x")
    assert r.returncode == 1 and r.stdout == "" and "nothing" in r.stderr and "--random-weights" in r.stderr
    assert run("run", "-m", fake_model, "-", stdin="").returncode == 1
    assert run("run", "--random-weights", "x").returncode == 1
    assert run("run", "-m", fake_model, "x" * 5000).returncode == 1


def test_default_model_is_named_when_missing(tmp_path):
    copy = tmp_path / "bin" / "splash"
    copy.parent.mkdir()
    copy.write_bytes(Path(FAKE).read_bytes())
    copy.chmod(0o755)
    r = subprocess.run([copy, "run", "x"], capture_output=True, text=True)
    assert r.returncode == 1 and "models/nano" in r.stderr and "--model" in r.stderr
    nano = tmp_path / "models" / "nano"
    nano.mkdir(parents=True)
    (nano / "fake.manifest").write_text("")
    assert subprocess.run([copy, "run", "found"], capture_output=True, text=True).stdout == "found\n"
    (tmp_path / "models").rename(tmp_path / "elsewhere")
    share = tmp_path / "share" / "splash" / "models" / "nano"
    share.mkdir(parents=True)
    (share / "fake.manifest").write_text("")
    assert subprocess.run([copy, "run", "shared"], capture_output=True, text=True).stdout == "shared\n"


@pytest.mark.parametrize("how, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_run_interrupted(fake_model, how, code):
    p = subprocess.Popen([FAKE, "run", "-m", fake_model, "[[n=1000 token_ms=20]]"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.read(4) == "word"
    p.send_signal(how)
    assert p.wait(5) == code


def test_chat_from_a_pipe(fake_model):
    r = run("chat", "-m", fake_model, stdin="one\n/help\n/nope\n/reset\ntwo\n/exit\nnever\n")
    assert r.returncode == 0 and r.stdout == "one\ntwo\n"
    assert "/reset" in r.stderr and "no command /nope" in r.stderr and r.stderr.count("tok/s") == 2


def test_chat_keeps_the_conversation(fake_model):
    r = run("chat", "-m", fake_model, stdin="a\n[[dump]]\n")
    first = run("chat", "-m", fake_model, stdin="[[dump]]\n")
    assert json.loads(r.stdout.splitlines()[1])["n_prompt"] > json.loads(first.stdout)["n_prompt"]
    reset = run("chat", "-m", fake_model, stdin="a\n/reset\n[[dump]]\n")
    assert json.loads(reset.stdout.splitlines()[1])["n_prompt"] == json.loads(first.stdout)["n_prompt"]


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(FAKE, [FAKE, *args])
        self.seen = self.before = ""

    def until(self, text, timeout=10):
        end = time.monotonic() + timeout
        while text not in self.seen:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} not in {self.seen!r}"
            if select.select([self.fd], [], [], left)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    break
        assert text in self.seen, f"{text!r} not in {self.seen!r}"
        self.before, _, self.seen = self.seen.partition(text)

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_chat_on_a_terminal(fake_model):
    t = Terminal("chat", "-m", fake_model)
    t.until("> ")
    t.send("hello\r")
    t.until("hello\r\n")
    t.until("tok/s")
    t.until("> ")
    t.send("[[n=1000 token_ms=20]]\r")
    t.until("word word")
    t.send("\x03")  # Ctrl+C stops the answer, not the program
    t.until("stopped")
    t.until("> ")
    t.send("still here\r")
    t.until("still here\r\n")
    t.until("tok/s")
    t.until("> ")
    t.send("\x04")
    assert t.wait() == 0


@pytest.mark.parametrize("command", [["run", "hi"], ["serve", "--port", "0"]])
def test_a_slow_load_shows_a_bar_on_a_terminal(fake_model, monkeypatch, command):
    monkeypatch.setenv("FAKE_OPEN_MS", "700")
    t = Terminal(*command, "-m", fake_model)
    t.until("weights")
    t.until("MB/s")
    t.until("left")
    t.until("hi\r\n" if command[0] == "run" else "Ready")
    if command[0] == "serve":
        os.kill(t.pid, signal.SIGTERM)
    assert t.wait() == 0


def test_a_load_elsewhere_or_in_no_time_shows_none(fake_model):
    assert "MB/s" not in run("run", "-m", fake_model, "hi", env={"FAKE_OPEN_MS": "700"}).stderr
    t = Terminal("run", "-m", fake_model, "hi")
    t.until("tok/s")
    assert t.wait() == 0 and "MB/s" not in t.before


def test_interrupt_while_typing(fake_model):
    t = Terminal("chat", "-m", fake_model)
    t.until("> ")
    t.send("half a thou")
    t.until("half a thou")
    t.send("\x03")
    t.until("> ")
    t.send("[[dump]]\r")
    t.until('"n_prompt":')
    n = int(re.match(r"(\d+)", (t.until("tok/s"), t.before)[1])[1])
    t.send("\x04")
    assert t.wait() == 0
    assert n == json.loads(run("chat", "-m", fake_model, stdin="[[dump]]\n").stdout)["n_prompt"]


def test_paste_is_one_message(fake_model):
    t = Terminal("chat", "-m", fake_model)
    t.until("> ")
    t.send("first line\rsecond line\r[[dump]]\r")
    t.until('"n_prompt":')
    t.until("tok/s")
    pasted = t.before
    t.until("> ")
    t.send("/exit\r")
    assert t.wait() == 0
    single = json.loads(run("chat", "-m", fake_model, stdin="[[dump]]\n").stdout)["n_prompt"]
    assert int(re.match(r"(\d+)", pasted)[1]) == single + len("first line\nsecond line\n")  # one turn, not three


def test_pack_and_verify(tmp_path):
    source = tmp_path / "checkpoint"
    source.mkdir()
    (source / "config.json").write_text("{}")
    out = tmp_path / "package"
    r = run("pack", str(source), "-o", str(out))
    assert r.returncode == 0 and r.stdout == "" and "weights: " in r.stderr and "\r" not in r.stderr
    r = run("verify", str(out))
    assert r.returncode == 0 and str(out) in r.stdout
    assert json.loads(run("verify", "--json", str(out)).stdout) == {"ok": True}
    r = run("verify", "--json", str(source))
    assert r.returncode == 1 and json.loads(r.stdout) == {"ok": False} and "no package" in r.stderr
    assert run("pack", str(tmp_path / "none"), "-o", str(out)).returncode == 1


def test_pack_bar_on_a_terminal(tmp_path):
    source = tmp_path / "checkpoint"
    source.mkdir()
    (source / "config.json").write_text("{}")
    t = Terminal("pack", str(source), "-o", str(tmp_path / "package"))
    t.until("MB/s")
    t.until("left")
    t.until("100 %")
    assert t.wait() == 0


@pytest.mark.parametrize("how, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_pack_interrupted(tmp_path, how, code):
    source = tmp_path / "checkpoint"
    source.mkdir()
    (source / "config.json").write_text("{}")
    p = subprocess.Popen([FAKE, "pack", str(source), "-o", str(tmp_path / "package")], stderr=subprocess.PIPE, text=True)
    p.stderr.readline()
    p.send_signal(how)
    assert p.wait(5) == code and not (tmp_path / "package").exists()


def test_checkpoint_is_packed_into_the_cache_once(tmp_path):
    source = tmp_path / "tiny-model"
    source.mkdir()
    (source / "config.json").write_text("{}")
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    r = run("run", "-m", str(source), "hi", env=env)
    assert r.returncode == 0 and r.stdout == "hi\n" and "Packing" in r.stderr
    entries = list((tmp_path / "cache/splash/packages").iterdir())
    assert len(entries) == 1 and entries[0].name.startswith("tiny-model-")
    assert "Packing" not in run("run", "-m", str(source), "hi", env=env).stderr
    (source / "config.json").write_text("{ }")
    assert "Packing" in run("run", "-m", str(source), "hi", env=env).stderr
    r = run("run", "-m", str(source), "hi", env={"HOME": "", "XDG_CACHE_HOME": ""})
    assert r.returncode == 1 and "XDG_CACHE_HOME" in r.stderr


def test_explain(fake_model):
    r = run("explain", "--model", fake_model, "--json", "--tau", "4.5", "--lanes", "2")
    d = json.loads(r.stdout)
    assert d["tau"] == 4.5 and d["lanes"] == 2 and r.stdout.count("\n") == 1
    text = run("explain", "--model", "some-geometry").stdout
    assert "16,730,000,000 (16.730 GB)" in text and re.search(r"head share +4.25 %", text) and "tier" not in text.split("kernels")[0]


def test_launcher_without_server():
    r = run("claude", "--port", "1")
    assert r.returncode == 1 and "splash serve" in r.stderr


@pytest.mark.parametrize("tool", ["claude", "opencode"])
def test_launcher(start, tmp_path, tool):
    s = start("--api-key", "sesame")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / tool).write_text('#!/bin/sh\necho "args:$*"\nenv\n')
    (bin_folder / tool).chmod(0o755)
    path = f"{bin_folder}:{os.environ['PATH']}"
    assert "SPLASH_API_KEY" in run(tool, "--port", str(s.port), env={"PATH": path}).stderr
    r = run(tool, "--port", str(s.port), "-p", "do it", env={"PATH": path, "SPLASH_API_KEY": "sesame", "ANTHROPIC_API_KEY": "other"})
    assert r.returncode == 0, r.stderr
    env = dict(l.split("=", 1) for l in r.stdout.splitlines() if "=" in l)
    if tool == "claude":
        assert env["ANTHROPIC_BASE_URL"] == s.url and env["ANTHROPIC_AUTH_TOKEN"] == "sesame" and "ANTHROPIC_API_KEY" not in env
        assert env["ANTHROPIC_SMALL_FAST_MODEL"] == "fake/model" and env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "4096"
        assert r.stdout.startswith("args:--disallowedTools WebSearch --permission-mode default --model fake/model -p do it\n")
    else:
        c = json.loads(env["OPENCODE_CONFIG_CONTENT"])
        assert c["provider"]["splash"]["options"] == {"baseURL": s.url + "/v1", "apiKey": "sesame"}
        assert c["model"] == "splash/fake/model" and c["provider"]["splash"]["models"]["fake/model"]["limit"] == {"context": 4096, "output": 1024}
    r = run(tool, "--port", str(s.port), env={"PATH": "/nonexistent", "SPLASH_API_KEY": "sesame"})
    assert r.returncode == 1 and "npm install" in r.stderr
