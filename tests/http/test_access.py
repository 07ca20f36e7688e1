# SPDX-License-Identifier: Apache-2.0
"""Host, Origin, CORS and key."""
import httpx
import pytest

from conftest import read_response, user

CHAT = "/v1/chat/completions"


def get(server, path="/v1/models", host="localhost", extra=""):
    with server.connect() as s:
        head = f"GET {path} HTTP/1.1\r\n" + (f"Host: {host}\r\n" if host is not None else "") + extra + "Connection: close\r\n\r\n"
        s.sendall(head.encode())
        return read_response(s.makefile("rb"))


@pytest.mark.parametrize("host, status", [
    ("localhost", 200), ("LOCALHOST:1", 200), ("localhost.", 200), ("127.0.0.1:8000", 200), ("[::1]", 200), ("[::1]:99", 200),
    ("evil.example", 403), ("evil.example:8000", 403), ("127.0.0.1.evil.example", 403), ("", 403), ("a b", 403), ("localhost:x", 403),
    ("localhost:70000", 403), (None, 403), ("[::1", 403), ("user@localhost", 403)])
def test_host(server, host, status):
    assert get(server, host=host)[0] == status
    assert get(server, "/health", host=host)[0] == status


def test_two_hosts(server):
    assert get(server, extra="Host: localhost\r\n")[0] == 403


def test_allowed_host(start):
    s = start("--allowed-host", "box.lan")
    assert get(s, host="box.lan:8000")[0] == 200
    assert get(s, host="other.lan")[0] == 403


def test_origin(start):
    s = start("--allowed-origin", "https://app.example")
    own = f"http://127.0.0.1:{s.port}"
    for origin, status, cors in [(own, 200, None), ("https://app.example", 200, "https://app.example"), ("https://app.example:444", 403, None),
                                 ("http://app.example", 403, None), ("null", 403, None), ("nonsense", 403, None), ("http://127.0.0.1:1", 403, None)]:
        r = httpx.get(s.url + "/v1/models", headers={"origin": origin})
        assert r.status_code == status, origin
        assert r.headers.get("access-control-allow-origin") == cors
        if cors:
            assert r.headers["vary"] == "Origin" and r.headers["access-control-expose-headers"] == "Retry-After, WWW-Authenticate"
    assert get(s, extra="Origin: https://app.example\r\nOrigin: https://app.example\r\n")[0] == 403


def test_preflight_and_errors_carry_cors(start):
    s = start("--allowed-origin", "https://app.example")
    r = httpx.options(s.url + CHAT, headers={"origin": "https://app.example", "access-control-request-method": "POST",
                                             "access-control-request-headers": "content-type, x-thing"})
    assert r.status_code == 204 and r.headers["access-control-allow-headers"] == "content-type, x-thing"
    assert r.headers["access-control-allow-methods"] == "GET, HEAD, POST, DELETE, OPTIONS" and r.headers["access-control-max-age"] == "600"
    r = httpx.post(s.url + CHAT, headers={"origin": "https://app.example"}, json={})
    assert r.status_code == 400 and r.headers["access-control-allow-origin"] == "https://app.example"
    with httpx.stream("POST", s.url + CHAT, headers={"origin": "https://app.example"}, json={"messages": user("x"), "stream": True}) as r:
        assert r.headers["access-control-allow-origin"] == "https://app.example"


def test_any_origin(start):
    s = start("--allowed-origin", "*")
    r = httpx.get(s.url + "/v1/models", headers={"origin": "null"})
    assert r.headers["access-control-allow-origin"] == "*" and "vary" not in r.headers
    s.process.terminate()
    s.process.wait()
    assert "Warning" in s.process.stderr.read()


@pytest.mark.parametrize("headers, status", [
    ({}, 401), ({"authorization": "Bearer sesame"}, 200), ({"authorization": "bearer sesame"}, 200), ({"x-api-key": "sesame"}, 200),
    ({"authorization": "Bearer sesame", "x-api-key": "sesame"}, 200), ({"authorization": "Bearer sesame", "x-api-key": "no"}, 401),
    ({"authorization": "Bearer sesamE"}, 401), ({"authorization": "sesame"}, 401), ({"authorization": "Bearer"}, 401),
    ({"authorization": "Bearer sesame1"}, 401), ({"authorization": "Basic sesame"}, 401), ({"x-api-key": "sesam"}, 401)])
def test_key(keyed, headers, status):
    for path in ("/v1/models", "/status", "/metrics", "/nope"):
        r = httpx.get(keyed.url + path, headers=headers)
        assert r.status_code == (404 if status == 200 and path == "/nope" else status), path
        if status == 401:
            assert r.json()["error"]["code"] == "authentication_error" and r.headers["www-authenticate"] == "Bearer"
    r = httpx.post(keyed.url + CHAT, headers=headers, json={"messages": user("x")})
    assert r.status_code == status


def test_public_paths(keyed):
    for path in ("/health", "/ready"):
        assert httpx.get(keyed.url + path).status_code == 200
    assert httpx.options(keyed.url + CHAT).status_code == 204
    assert httpx.get(keyed.url + "/health/../v1/models").status_code == 401
    assert httpx.post(keyed.url + "/v1/messages", json={}).json()["error"]["type"] == "authentication_error"


@pytest.fixture(scope="module")
def keyed(fake_model):
    from conftest import FAKE, Server
    s = Server(FAKE, ["--model", fake_model], {"SPLASH_API_KEY": "sesame"})
    yield s
    s.stop()
