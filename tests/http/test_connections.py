# SPDX-License-Identifier: Apache-2.0
"""What happens on the wire: disconnects, slow readers, keep-alive, pipelining, chunked uploads, limits, queues."""
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from conftest import post_raw, read_response, user, wait_for

CHAT = "/v1/chat/completions"


def cancelled(server):
    return server.status()["requests"]["cancelled"]


def idle(server):
    s = server.status()
    return s["requests"]["running"] == 0 and s["requests"]["waiting"] == 0 and s["http"]["requests"]["active"] == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase, content", [("prefill", "[[prefill_ms=8000]]"), ("decode", "[[n=400 token_ms=20]]")])
@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
def test_disconnect_cancels_within_250_ms(server, stream, phase, content, how):
    times = []
    with server.http() as http:  # one connection, so that looking costs little
        for _ in range(3):  # a busy machine may delay one of them
            before = cancelled(server)
            s = server.connect()
            s.sendall(post_raw(CHAT, {"messages": user(content), "stream": stream}))
            wait_for(lambda: http.get("/status").json()["requests"]["running"] == 1)
            time.sleep(0.15)
            if how == "reset":
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            begin = time.monotonic()
            if how == "half-close":
                s.shutdown(socket.SHUT_WR)
            else:
                s.close()
            wait_for(lambda: http.get("/status").json()["requests"]["cancelled"] == before + 1)
            times.append(time.monotonic() - begin)
            wait_for(lambda: idle(server))
            s.close()
            if times[-1] < 0.25:
                break
    print(f"{how} in {phase}: cancelled after {[round(t * 1000) for t in times]} ms")
    assert min(times) < 0.25


def test_disconnect_in_the_queue(server):
    before = cancelled(server)
    first = [server.connect() for _ in range(2)]
    for s in first:
        s.sendall(post_raw(CHAT, {"messages": user("[[prefill_ms=5000]]")}))
    wait_for(lambda: server.status()["requests"]["running"] == 2)
    third = server.connect()
    third.sendall(post_raw(CHAT, {"messages": user("x")}))
    wait_for(lambda: server.status()["requests"]["waiting"] == 1)
    third.close()
    assert wait_for(lambda: cancelled(server) == before + 1) < 0.25
    for s in first:
        s.close()
    wait_for(lambda: idle(server))


def test_disconnects_leave_nothing_behind(server):
    fds = len(__import__("os").listdir(f"/proc/{server.process.pid}/fd"))
    for _ in range(100):
        s = server.connect()
        s.sendall(post_raw(CHAT, {"messages": user("[[prefill_ms=2000]]"), "stream": True}))
        s.close()
    wait_for(lambda: idle(server), 10)
    wait_for(lambda: len(__import__("os").listdir(f"/proc/{server.process.pid}/fd")) <= fds + 2)


def test_keep_alive_comment_and_chunk(server):
    with server.connect() as s:
        s.sendall(post_raw(CHAT, {"messages": user("[[n=2 token_ms=2500]]"), "stream": True}))
        status, headers, body = read_response(s.makefile("rb"))
    events = body.decode().split("\n\n")
    empty = [e for e in events if '"delta":{},"finish_reason":null' in e]
    assert status == 200 and len(empty) == 2 and "[DONE]" in body.decode()


def test_keep_alive_while_queued(server):
    holders = [server.connect() for _ in range(2)]
    for h in holders:
        h.sendall(post_raw(CHAT, {"messages": user("[[prefill_ms=5000]]")}))
    wait_for(lambda: server.status()["requests"]["running"] == 2)
    with server.connect() as s:
        s.sendall(post_raw(CHAT, {"messages": user("late"), "stream": True}))
        begin = time.monotonic()
        f = s.makefile("rb")
        assert b"200" in f.readline()
        assert 1.5 < time.monotonic() - begin < 3
        while f.readline().strip():
            pass
        f.readline()
        assert f.readline().startswith(b": ")
    for h in holders:
        h.close()
    wait_for(lambda: idle(server))


def test_connection_is_kept(server):
    with server.connect() as s:
        f = s.makefile("rb")
        for i in range(5):
            s.sendall(post_raw(CHAT, {"messages": user(f"number {i}")}))
            status, headers, body = read_response(f)
            assert status == 200 and headers.get("connection") != "close"
            assert json.loads(body)["choices"][0]["message"]["content"] == f"number {i}"
        s.sendall(post_raw(CHAT, b"nope"))
        assert read_response(f)[0] == 400
        s.sendall(post_raw(CHAT, {"messages": user("after the error"), "stream": True}))
        assert read_response(f)[0] == 200
        s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_response(f)[0] == 200


def test_pipelining(server):
    with server.connect() as s:
        f = s.makefile("rb")
        s.sendall(b"".join(post_raw(CHAT, {"messages": user(f"p{i} [[prefill_ms=50 n=1 word=w{i}]]"), "stream": i % 2 == 1}) for i in range(4)) +
                  b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for i in range(4):
            status, headers, body = read_response(f)
            assert status == 200 and f"w{i}".encode() in body
        assert read_response(f)[2] == b'{"status":"ok"}'


def test_http_1_0(server):
    with server.connect() as s:
        body = json.dumps({"messages": user("old"), "stream": True}).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        text = s.makefile("rb").read()
    assert b" 200 " in text.split(b"\r\n")[0] and b"chunked" not in text.lower() and text.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_chunked_upload(server, size):
    body = json.dumps({"messages": user("in pieces")}).encode()
    with server.connect() as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(0, len(body), size):
            piece = body[i:i + size]
            s.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        s.sendall(b"0\r\n\r\n")
        status, _, text = read_response(s.makefile("rb"))
    assert status == 200 and b"in pieces" in text


def test_body_limits(start):
    s = start("--max-request-size", "64K")
    fits = json.dumps({"content": "x" * 60000})
    assert httpx.post(s.url + "/tokenize", content=fits, headers={"content-type": "application/json"}).status_code == 200
    for n in (70_000, 5_000_000):
        r = httpx.post(s.url + "/tokenize", content=b"x" * n, headers={"content-type": "application/json"})
        assert r.status_code == 413 and r.json()["error"]["code"] == "request_too_large"
        assert str(n) in r.json()["error"]["message"] and "65536" in r.json()["error"]["message"]
    pieces = (b"x" * 10000 for _ in range(20))
    r = httpx.post(s.url + "/tokenize", content=pieces, headers={"content-type": "application/json"})
    assert r.status_code == 413 and "65536" in r.json()["error"]["message"]
    assert httpx.get(s.url + "/health").status_code == 200


def test_expect_100_continue(start):
    s = start("--max-request-size", "1K")
    for n, first in ((200, 100), (2000, 413)):
        with s.connect() as c:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
                      b"Content-Length: %d\r\n\r\n" % n)
            assert int(c.makefile("rb").readline().split()[1]) == first


def test_error_reaches_a_client_that_is_still_sending(start):
    s = start("--api-key", "k")
    r = httpx.post(s.url + CHAT, content=b"x" * 3_000_000, headers={"content-type": "application/json"})
    assert r.status_code == 401


def test_queue_limit_and_retry_after(start):
    s = start("--queue-size", "3")
    holders = [s.connect() for _ in range(3)]
    for h in holders:
        h.sendall(post_raw(CHAT, {"messages": user("[[prefill_ms=6000]]")}))
    wait_for(lambda: s.status()["http"]["requests"]["active"] == 3)
    for stream in (False, True):
        r = httpx.post(s.url + CHAT, json={"messages": user("x"), "stream": stream})
        assert r.status_code == 503 and r.headers["retry-after"] == "1"
        assert r.json()["error"]["code"] == "frontend_overloaded" and r.json()["error"]["type"] == "server_error"
    assert httpx.post(s.url + "/tokenize", json={"content": "x"}).status_code == 200
    assert httpx.get(s.url + "/health").status_code == 200
    for h in holders:
        h.close()
    wait_for(lambda: s.status()["http"]["requests"]["active"] == 0)
    assert httpx.post(s.url + CHAT, json={"messages": user("x")}).status_code == 200


def test_hundred_clients(server):
    def ask(i):
        with httpx.Client(timeout=60) as c:
            r = c.post(server.url + CHAT, json={"messages": user(f"[[n=5 token_ms=4 word=c{i}]]"), "stream": i % 2 == 0})
            return r.status_code, r.text, f"c{i}"

    with ThreadPoolExecutor(100) as pool:
        results = list(pool.map(ask, range(100)))
    served = [r for r in results if r[0] == 200]
    assert all(code in (200, 503) for code, _, _ in results) and len(served) >= 32
    for _, text, word in served:
        assert text.count(word) >= 1 and ("[DONE]" in text or "chat.completion" in text)
    wait_for(lambda: idle(server))


def test_slow_reader_stalls_nobody_and_is_bounded(server):
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", server.port))
    before = cancelled(server)
    slow.sendall(post_raw(CHAT, {"messages": user("[[n=8000 pad=8000 token_ms=1]]"), "stream": True}))  # 64 MB, nobody reads
    times = []
    for _ in range(10):
        begin = time.monotonic()
        assert httpx.post(server.url + CHAT, json={"messages": user("quick"), "stream": True}, timeout=10).status_code == 200
        times.append(time.monotonic() - begin)
    assert max(times) < 1.0
    wait_for(lambda: cancelled(server) == before + 1, 20)
    rss = int(next(l for l in open(f"/proc/{server.process.pid}/status") if l.startswith("VmRSS")).split()[1])
    assert rss < 200_000
    wait_for(lambda: idle(server))  # the connection is closed on our side without waiting for the reader
    slow.close()


def test_slow_but_steady_reader_gets_everything(server):
    with server.connect() as s:
        s.sendall(post_raw(CHAT, {"messages": user("[[n=300 token_ms=2]]"), "stream": True}))
        data = b""
        while b"[DONE]" not in data:
            piece = s.recv(512)
            assert piece
            data += piece
            time.sleep(0.001)
    assert data.count(b'"content":"word "') == 300


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0\0\0\0\r\n\r\n",
                                  b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                                  b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 30000 + b"\r\n"])
def test_junk_does_no_harm(server, junk):
    with server.connect() as s:
        s.settimeout(2)
        try:
            s.sendall(junk)
            s.shutdown(socket.SHUT_WR)
            s.recv(65536)
        except OSError:
            pass
    assert httpx.get(server.url + "/health").status_code == 200


def test_upload_broken_off(server):
    for _ in range(20):
        with server.connect() as s:
            s.sendall(post_raw(CHAT, {"messages": user("x" * 1000)})[:-200])
    wait_for(lambda: idle(server))
    assert server.status()["http"]["request_body_bytes"]["active"] == 0


def test_nobody_reads_stderr(start):
    s = start()  # its stderr is a pipe that nothing empties
    with s.http() as http:
        for _ in range(1500):
            assert http.get("/nope").status_code == 404


def test_status_answers_while_work_is_running(server):
    threads = [threading.Thread(target=httpx.post, args=(server.url + CHAT,), kwargs={"json": {"messages": user("[[n=50 token_ms=10]]")}, "timeout": 30})
               for _ in range(4)]
    for t in threads:
        t.start()
    times = []
    for _ in range(20):
        begin = time.monotonic()
        server.status()
        times.append(time.monotonic() - begin)
    for t in threads:
        t.join()
    assert sorted(times)[10] < 0.5
