# SPDX-License-Identifier: Apache-2.0
"""Every way to get a request wrong: exact status, code and shape, and the field is named."""
import json

import httpx
import openai
import pytest

from conftest import post_raw, read_response, user

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BASE = {CHAT: {"messages": user("hi")}, TEXT: {"prompt": "hi"}, "/tokenize": {"content": "x"}, "/detokenize": {"tokens": [97]},
        "/apply-template": {"messages": user("hi")}}
WRONG = {"null": None, "true": True, "string": "x", "number": 1.5, "integer": 7, "array": [1], "object": {"a": 1}, "negative": -3,
         "huge": 1e300}


def error_of(r, status, code="invalid_request_error"):
    assert r.status_code == status, r.text
    body = r.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "code"}
    assert body["error"]["code"] == code
    assert body["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert "\n" not in body["error"]["message"] and body["error"]["message"]
    return body["error"]["message"]


# Field -> the kinds of WRONG values that are in order for it; all others must give 400 (404 for model) and name it.
COMMON = {
    "model": {"null"}, "stream": {"null", "true"}, "stream_options": {"null", "object"}, "return_progress": {"null"},
    "timeout": {"null", "number", "integer", "huge"}, "priority": {"null"}, "seed": {"null", "integer"},
    "stop": {"null", "string"}, "logit_bias": {"null"}, "ignore_eos": {"null", "true"}, "n": {"null"},
    "temperature": {"null", "number"}, "top_p": {"null"}, "top_k": {"null", "integer"}, "min_p": {"null"},
    "presence_penalty": {"null", "number"}, "frequency_penalty": {"null", "number"},
    "repetition_penalty": {"null", "number", "integer"}, "max_tokens": {"null", "integer"}}
CHAT_ONLY = {
    "messages": set(), "max_completion_tokens": {"null", "integer"}, "logprobs": {"null", "true"}, "top_logprobs": {"null"},
    "tools": {"null"}, "tool_choice": {"null"}, "parallel_tool_calls": {"null", "true"}, "response_format": {"null"},
    "reasoning_effort": {"null"}, "chat_template_kwargs": {"null", "object"}, "preserve_thinking": {"null", "true"},
    "add_generation_prompt": {"null", "true"}}
TEXT_ONLY = {"prompt": {"string", "array"}, "logprobs": {"null", "integer"}, "suffix": {"null"}, "echo": {"null"},
             "best_of": {"null"}}
CASES = [(path, field, kind) for path, fields in ((CHAT, {**COMMON, **CHAT_ONLY}), (TEXT, {**COMMON, **TEXT_ONLY}))
         for field, fine in fields.items() for kind in WRONG]


@pytest.fixture(scope="module")
def http(server):
    with server.http() as client:
        yield client


@pytest.mark.parametrize("path, field, kind", CASES)
def test_wrong_types(http, path, field, kind):
    fine = {**COMMON, **(CHAT_ONLY if path == CHAT else TEXT_ONLY)}[field]
    body = {**BASE[path], "max_tokens": 1, field: WRONG[kind]}
    if field == "top_logprobs":
        body["logprobs"] = True
        fine = fine | {"integer"}
    r = http.post(path, json=body)
    if kind in fine:
        assert r.status_code == 200, r.text
    elif field == "model" and kind == "string":
        assert "'x'" in error_of(r, 404, "model_not_found")
    else:
        assert field in error_of(r, 400)


@pytest.mark.parametrize("field, value", [
    ("temperature", 2.01), ("temperature", -0.1), ("top_p", 0), ("top_p", 1.01), ("top_k", -2), ("min_p", -0.1), ("min_p", 1.1),
    ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0), ("seed", -1), ("seed", 2 ** 64),
    ("seed", 1.0), ("seed", "1"), ("n", 2), ("n", 0), ("max_tokens", 0), ("timeout", 0), ("timeout", -1), ("stop", ""),
    ("stop", ["a"] * 5), ("stop", ["a", ""]), ("stop", ["a", 1]), ("stop", "x" * 257), ("stop", "a\0b"),
    ("logit_bias", {"x": 1}), ("logit_bias", {"9999": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": "a"}), ("priority", "urgent")])
def test_out_of_range(http, field, value):
    for path in (CHAT, TEXT):
        assert field.split("_")[0] in error_of(http.post(path, json={**BASE[path], field: value}), 400)


def test_stream_options(http):
    assert "include_usage" in error_of(http.post(CHAT, json={**BASE[CHAT], "stream_options": {"include_usage": 1}}), 400)


@pytest.mark.parametrize("body, words", [
    ({"messages": []}, "messages"), ({"messages": [{"role": "assistant", "content": "x"}]}, "user"),
    ({"messages": [5]}, "messages[0]"), ({"messages": [{"content": "x"}]}, "role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "robot"), ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [{"role": "user", "content": None}]}, "content"), ({"messages": [{"role": "user", "content": 5}]}, "content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]}]}, "text only"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input_audio"),
    ({"messages": user("x") + [{"role": "assistant", "reasoning_content": 5}]}, "reasoning_content"),
    ({"messages": user("x") + [{"role": "assistant", "tool_calls": {}}]}, "tool_calls"),
    ({"messages": user("x") + [{"role": "assistant", "tool_calls": [{}]}]}, "tool_calls[0]"),
    ({"messages": user("x") + [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "nope"}}]}]}, "arguments"),
    ({"messages": user("x") + [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]}, "arguments"),
    ({"messages": user("x") + [{"role": "tool", "content": "x", "tool_call_id": 5}]}, "tool_call_id"),
    ({"messages": user("x"), "logprobs": False, "top_logprobs": 2}, "logprobs"),
    ({"messages": user("x"), "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"messages": user("x"), "return_progress": True}, "stream"),
    ({"messages": user("x"), "tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"messages": user("x"), "tools": [{"type": "function", "function": {"name": "bad name"}}]}, "name"),
    ({"messages": user("x"), "tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "parameters"),
    ({"messages": user("x"), "tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "strict"),
    ({"messages": user("x"), "tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "http://a"}}}]}, "$ref"),
    ({"messages": user("x"), "tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "twice"),
    ({"messages": user("x"), "tool_choice": "required"}, "tools"),
    ({"messages": user("x"), "tool_choice": "maybe"}, "tool_choice"),
    ({"messages": user("x"), "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, "required"),
    ({"messages": user("x"), "tools": [{"type": "function", "function": {"name": "f"}}],
      "tool_choice": {"type": "function", "function": {"name": "g"}}}, "'g'"),
    ({"messages": user("x"), "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": user("x"), "reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"messages": user("x"), "chat_template_kwargs": {"messages": []}}, "messages"),
    ({"messages": user("x"), "chat_template_kwargs": {"enable_thinking": "yes"}}, "enable_thinking")])
def test_chat_bodies(http, body, words):
    assert words in error_of(http.post(CHAT, json=body), 400)


@pytest.mark.parametrize("body", [
    {}, {"prompt": ""}, {"prompt": []}, {"prompt": ["a", "b"]}, {"prompt": [[1, 2]]}, {"prompt": [262]}, {"prompt": [-1]},
    {"prompt": [1, 2.5]}, {"prompt": "x", "suffix": "y"}, {"prompt": "x", "echo": True}, {"prompt": "x", "best_of": 2},
    {"prompt": "x", "logprobs": 21}])
def test_text_bodies(http, body):
    error_of(http.post(TEXT, json=body), 400)


@pytest.mark.parametrize("path, body", [
    ("/tokenize", {}), ("/tokenize", {"content": 5}), ("/tokenize", {"content": "x", "parse_special": False}),
    ("/tokenize", {"content": "x", "with_pieces": True}), ("/tokenize", {"content": "x", "add_special": 1}),
    ("/detokenize", {}), ("/detokenize", {"tokens": "x"}), ("/detokenize", {"tokens": [9999]}), ("/detokenize", {"tokens": [0xC3]}),
    ("/apply-template", {}), ("/apply-template", {"messages": []})])
def test_prompt_bodies(http, path, body):
    error_of(http.post(path, json=body), 400)


def test_unknown_fields_are_ignored(http):
    body = {"messages": user("x"), "user": "u", "metadata": {"a": 1}, "store": True, "service_tier": "auto", "functions": 5,
            "prompt_cache_key": "k", "made_up": [1, {"deep": None}]}
    assert http.post(CHAT, json=body).status_code == 200


def test_context_length(http, server):
    message = error_of(http.post(CHAT, json={"messages": user("x" * 5000)}), 400, "context_length_exceeded")
    assert "4096" in message
    for path in (CHAT, TEXT):
        error_of(http.post(path, json={**BASE[path], "max_tokens": 4096}), 400, "context_length_exceeded")
    with pytest.raises(openai.BadRequestError) as e:
        server.client().completions.create(model="fake/model", prompt="x" * 4096)
    assert e.value.code == "context_length_exceeded"
    assert len(http.post("/tokenize", json={"content": "x" * 5000}).json()["tokens"]) == 5000


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b"[1]", b'"x"', b"null", b'{"messages":[}', b'{"a":1,"a":2}', b"\xff\xfe\x00",
                                  b'{"messages":"\xc3"}', b"[" * 200 + b"]" * 200, b'{"a":' + b"[" * 128 + b"]" * 128 + b"}",
                                  b'{"a":1e999}'])
def test_malformed_json(http, body):
    error_of(http.post(CHAT, content=body, headers={"content-type": "application/json"}), 400)


def test_nesting_of_129_is_not(http):
    body = '{"messages":[{"role":"user","content":"x"}],"a":' + "[" * 128 + "]" * 128 + "}"
    assert "nests deeper" in error_of(http.post(CHAT, content=body, headers={"content-type": "application/json"}), 400)


def test_nesting_of_128_is_in_order(http):
    body = '{"messages":[{"role":"user","content":"x"}],"a":' + "[" * 127 + "]" * 127 + "}"
    assert http.post(CHAT, content=body, headers={"content-type": "application/json"}).status_code == 200


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_encodings(http, encoding):
    body = json.dumps({"messages": user("Größe 🎉")}, ensure_ascii=False).encode(encoding)
    r = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert r.json()["choices"][0]["message"]["content"] == "Größe 🎉"


@pytest.mark.parametrize("given, got", [(r"a\ud83d", "a\ufffd"), (r"\udc00b", "\ufffdb"), (r"\ud83d\ude00", "😀"), (r"\ud83dx\u0041", "\ufffdxA"),
                                        (r"\\ud83d", "\\ud83d"), (r"\ud83d\ud83d\ude00", "\ufffd😀")])
def test_lone_surrogates(http, given, got):
    body = '{"messages":[{"role":"user","content":"%s"}]}' % given
    r = http.post(CHAT, content=body.encode(), headers={"content-type": "application/json"})
    assert r.json()["choices"][0]["message"]["content"] == got


def test_big_integers_elsewhere(http):
    body = '{"messages":[{"role":"user","content":"x"}],"metadata":{"id":123456789012345678901234567890,"seed":18446744073709551615}}'
    assert http.post(CHAT, content=body, headers={"content-type": "application/json"}).status_code == 200


@pytest.mark.parametrize("kind, status", [
    ("application/json", 200), ("application/json; charset=utf-8", 200), ("application/vnd.x+json", 200), ("Application/JSON", 200),
    ("text/plain", 415), ("application/jsonx", 415), ("application/+json", 415), ("multipart/form-data; boundary=x", 415), (None, 415)])
def test_content_type(http, kind, status):
    r = http.post(CHAT, content=json.dumps(BASE[CHAT]).encode(), headers={"content-type": kind} if kind else {})
    assert r.status_code == status
    if status != 200:
        error_of(r, status)


@pytest.mark.parametrize("header", ["gzip", "br", "identity, gzip"])
def test_content_encoding(http, header):
    error_of(http.post(CHAT, json=BASE[CHAT], headers={"content-encoding": header}), 415)


def test_content_encoding_identity(http):
    assert http.post(CHAT, json=BASE[CHAT], headers={"content-encoding": "identity"}).status_code == 200


@pytest.mark.parametrize("method, path, status, code", [
    ("GET", "/nope", 404, "not_found"), ("POST", "/v1/embeddings", 404, "not_found"), ("GET", CHAT, 404, "not_found"),
    ("DELETE", "/v1/models", 404, "not_found"), ("GET", "/v1/models/", 404, "not_found"), ("PUT", CHAT, 501, "not_implemented"),
    ("PATCH", "/health", 501, "not_implemented"), ("GET", "/v1/models/nope/x", 404, "model_not_found")])
def test_routes(http, method, path, status, code):
    error_of(http.request(method, path, json={"a": 1} if method in ("POST", "PUT") else None), status, code)


@pytest.mark.parametrize("path", ["/v1//models", "/./v1/models", "/x/../v1/models", "/v1/%6dodels", "/v1/models?beta=true", "//v1/models",
                                  "/v1/models#x"])
def test_canonical_paths(server, path):
    with server.connect() as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert read_response(s.makefile("rb"))[0] == 200


@pytest.mark.parametrize("path", ["/v1/models%00x", "/" + "a" * 3000, "/v1/model", "/V1/models", "/../x"])
def test_paths_that_are_not(server, path):
    with server.connect() as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert read_response(s.makefile("rb"))[0] == 404


def test_index(http):
    r = http.get("/")
    assert r.status_code == 200 and "fake/model" in r.text and "/v1/chat/completions" in r.text
    assert http.head("/").status_code == 200  # some agents look here first


def test_head_and_options(http):
    r = http.head("/health")
    assert r.status_code == 200 and r.content == b""
    r = http.options(CHAT)
    assert r.status_code == 204 and r.headers["allow"] == "GET, HEAD, POST, DELETE, OPTIONS" and r.content == b""


def test_messages_dialect_of_errors(http):
    r = http.get("/v1/messages/nope")
    assert r.status_code == 404
    body = r.json()
    assert body["type"] == "error" and body["error"]["type"] == "not_found_error"


def test_framing(server):
    body = json.dumps(BASE[CHAT]).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    for extra, status in [("", 400), ("Content-Length: 0\r\n", 400), (f"Content-Length: {len(body)}\r\nContent-Length: {len(body)}\r\n", 400),
                          (f"Content-Length: {len(body)}\r\nTransfer-Encoding: chunked\r\n", 400)]:
        with server.connect() as s:
            s.sendall((head + extra + "\r\n").encode())
            response = read_response(s.makefile("rb"))
            assert response[0] == status and json.loads(response[2])["error"]["code"] == "invalid_request_error", extra


def test_invalid_utf8_in_messages_is_quoted_safely(http):
    r = http.post(CHAT, json={**BASE[CHAT], "model": "ü" * 150})
    error_of(r, 404, "model_not_found")
