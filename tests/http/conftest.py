# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the HTTP and command-line tests. SPLASH_FAKE names the program on the scripted engine (default:
build/tests/http/splash_fake), SPLASH_REAL, when set, the real one: tests marked `real` run only then."""
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = os.environ.get("SPLASH_FAKE", str(ROOT / "build/tests/http/splash_fake"))
REAL = os.environ.get("SPLASH_REAL")


def pytest_configure(config):
    config.addinivalue_line("markers", "real: needs SPLASH_REAL")


class Server:
    """A running `splash serve`."""

    def __init__(self, program, args=(), env=None, cwd=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SPLASH_")}
        environment.update(env or {})
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment, cwd=cwd)
        line = self.process.stdout.readline()
        match = re.fullmatch(r"Ready · (.+) · context (\S+) · http://\S+:(\d+)\n", line)
        if not match:
            self.process.kill()
            raise RuntimeError(f"not ready: {line!r} {self.process.stderr.read()!r}")
        self.model, self.context, self.port = match[1], match[2], int(match[3])
        self.url = f"http://127.0.0.1:{self.port}"
        os.set_blocking(self.process.stderr.fileno(), False)

    def client(self, **kw):
        kw.setdefault("api_key", "local")
        return openai.OpenAI(base_url=self.url + "/v1", max_retries=0, **kw)

    def http(self, **kw):
        return httpx.Client(base_url=self.url, timeout=30, **kw)

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def status(self):
        return httpx.get(self.url + "/status", timeout=10).json()

    def stop(self, how=signal.SIGTERM, timeout=20):
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture(scope="session")
def fake_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake-model")
    (folder / "fake.manifest").write_text("")
    return str(folder)


@pytest.fixture
def start(fake_model):
    """Starts servers that end with the test."""
    servers = []

    def go(*args, env=None):
        server = Server(FAKE, ["--model", fake_model, *args], env)
        servers.append(server)
        return server

    yield go
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="session")
def server(fake_model):
    """One server shared by the tests that leave nothing behind."""
    s = Server(FAKE, ["--model", fake_model])
    yield s
    assert s.process.poll() is None, "the server died: " + (s.process.stderr.read() or "")
    assert s.stop() == 0


def user(text):
    return [{"role": "user", "content": text}]


def post_raw(path, body, extra="", host="127.0.0.1"):
    """Bytes of a POST; `extra` is header lines ending in CRLF."""
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def read_response(sock_file):
    """(status, headers, body) of one response with Content-Length or chunked encoding."""
    line = sock_file.readline()
    if not line:
        return None
    status = int(line.split()[1])
    headers = {}
    while (h := sock_file.readline().strip()):
        key, _, value = h.partition(b":")
        headers[key.decode().lower()] = value.strip().decode()
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while (n := int(sock_file.readline(), 16)):
            body += sock_file.read(n)
            sock_file.readline()
        sock_file.readline()
    else:
        body = sock_file.read(int(headers.get("content-length", 0)))
    return status, headers, body


def wait_for(condition, timeout=5.0, step=0.005):
    """Seconds until condition() was true."""
    begin = time.monotonic()
    while time.monotonic() - begin < timeout:
        if condition():
            return time.monotonic() - begin
        time.sleep(step)
    raise AssertionError("condition not met in time")
