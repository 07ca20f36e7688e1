# SPDX-License-Identifier: Apache-2.0
"""Start, ready line, drain, signals, metrics."""
import re
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import FAKE, post_raw, read_response, user, wait_for

CHAT = "/v1/chat/completions"


def test_ready_line(start):
    s = start("--max-context", "32K")
    assert s.context == "32K" and s.model == "fake/model"
    assert s.status()["maximum_context_tokens"] == 32768
    assert start("--max-context", "1000").context == "1000"


def test_port_in_use(fake_model):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        r = subprocess.run([FAKE, "serve", "--model", fake_model, "--port", str(port)], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and r.stdout == ""
    lines = r.stderr.strip().split("\n")
    assert len(lines) == 1 and str(port) in lines[0] and "in use" in lines[0]


def test_bad_host(fake_model):
    r = subprocess.run([FAKE, "serve", "--model", fake_model, "--port", "0", "--host", "no.such.host.invalid"], capture_output=True, text=True, timeout=20)
    assert r.returncode == 1 and "--host" in r.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_drain(start, how):
    s = start()
    with s.connect() as c:
        c.sendall(post_raw(CHAT, {"messages": user("[[n=20 token_ms=50]]"), "stream": True}))
        wait_for(lambda: s.status()["requests"]["running"] == 1)
        s.process.send_signal(how)
        wait_for(lambda: httpx.get(s.url + "/health").status_code == 503)
        assert httpx.get(s.url + "/ready").json() == {"status": "unavailable"}
        r = httpx.post(s.url + CHAT, json={"messages": user("late")})
        assert r.status_code == 503 and r.json()["error"]["code"] == "server_shutdown" and r.headers["retry-after"] == "1"
        assert s.process.poll() is None
        status, _, body = read_response(c.makefile("rb"))
    assert status == 200 and body.count(b'"content":"word "') == 20 and body.endswith(b"data: [DONE]\n\n")
    assert s.process.wait(5) == 0
    assert "Stopping" in s.process.stderr.read()


@pytest.mark.parametrize("second, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_ends_at_once(start, second, code):
    s = start()
    with s.connect() as c:
        c.sendall(post_raw(CHAT, {"messages": user("[[prefill_ms=60000]]"), "stream": True}))
        wait_for(lambda: s.status()["requests"]["running"] == 1)
        s.process.send_signal(signal.SIGTERM)
        wait_for(lambda: httpx.get(s.url + "/health").status_code == 503)
        begin = time.monotonic()
        s.process.send_signal(second)
        assert s.process.wait(5) == code
        assert time.monotonic() - begin < 2


def test_idle_server_ends_at_once(start):
    s = start()
    with s.connect() as c:  # an idle connection does not hold it up
        c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_response(c.makefile("rb"))
        begin = time.monotonic()
        assert s.stop() == 0 and time.monotonic() - begin < 2


@pytest.mark.parametrize("how, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_while_loading(fake_model, how, code):
    p = subprocess.Popen([FAKE, "serve", "--model", fake_model, "--port", "0"], env={"FAKE_OPEN_MS": "20000"}, stderr=subprocess.PIPE, text=True)
    assert "Loading" in p.stderr.readline()
    time.sleep(0.2)
    p.send_signal(how)
    assert p.wait(5) == code


def test_restart_on_the_same_port(start, fake_model):
    s = start()
    httpx.post(s.url + CHAT, json={"messages": user("x")})
    port = s.port
    assert s.stop() == 0
    p = subprocess.Popen([FAKE, "serve", "--model", fake_model, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert p.stdout.readline().startswith("Ready")
    finally:
        p.terminate()
        p.wait()


def test_log_lines(start):
    s = start()
    httpx.post(s.url + CHAT, json={"messages": user("[[n=3 cached=2]]")})
    httpx.get(s.url + "/no%1bpe")
    assert s.stop() == 0
    log = s.process.stderr.read()
    assert re.search(r"^chat · stop · prompt \d+ \(2 cached\) · new 3 · ", log, re.M)
    assert re.search(r"^Error · not_found · GET /no", log, re.M) and "\x1b" not in log
    quiet = start("--quiet")
    httpx.get(quiet.url + "/nope")
    quiet.stop()
    assert "Error" not in quiet.process.stderr.read()


def families(server):
    r = httpx.get(server.url + "/metrics")
    assert r.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {f.name: f for f in text_string_to_metric_families(r.text)}


def values(fams):
    return {(s.name, tuple(s.labels.items())): s.value for f in fams.values() for s in f.samples}


def test_metrics(start):
    s = start()
    httpx.post(s.url + CHAT, json={"messages": user("[[n=8 token_ms=5 cached=3]]")})
    first = families(s)
    assert all(f.documentation and f.type in ("counter", "gauge", "histogram") for f in first.values())
    v = values(first)
    assert v["splash_info", (("runtime", "native"),)] == 1 and v["splash_ready", ()] == 1
    assert v["splash_drafted_tokens_total", ()] == 56 and v["splash_accepted_draft_tokens_total", ()] == 24
    assert 0 <= v["splash_draft_acceptance_ratio", ()] <= 1 and v["splash_draft_acceptance_ratio", ()] == pytest.approx(3 / 7)
    assert v["splash_cache_reused_tokens_total", ()] == 3 and v["splash_requests_completed_total", ()] == 1
    assert v["splash_output_interval_seconds_count", ()] == 7 and v["splash_http_ttft_seconds_count", ()] == 1
    assert v["vllm:num_requests_running", (("model_name", "fake/model"),)] == 0
    for f in first.values():
        if f.type == "histogram":
            counts = [x.value for x in f.samples if x.name.endswith("_bucket")]
            assert counts == sorted(counts) and len(counts) == 19
    for _ in range(3):
        httpx.post(s.url + CHAT, json={"messages": user("[[n=2]]")})
    second = families(s)
    later = values(second)
    for f in first.values():
        if f.type == "counter":
            for x in f.samples:
                assert later[x.name, tuple(x.labels.items())] >= x.value
    assert later["splash_requests_completed_total", ()] == 4


def test_status_shape(server):
    s = server.status()
    assert s["ready"] is True and s["instance"]["port"] == server.port and s["instance"]["model"] == "fake/model"
    assert s["http"]["requests"]["capacity"] == 32 and s["maximum_context_tokens"] == 4096
    assert s["memory_plan"]["total_bytes"] == 1200


def test_stop_with_many_suspended_connections(start):
    s = start("--queue-size", "40")
    conns = [s.connect() for _ in range(30)]
    for c in conns:
        c.sendall(post_raw(CHAT, {"messages": user("[[prefill_ms=60000]]"), "stream": True}))
    wait_for(lambda: s.status()["http"]["requests"]["active"] == 30)
    for c in conns:
        c.close()
    wait_for(lambda: s.status()["http"]["requests"]["active"] == 0)
    assert s.stop() == 0
