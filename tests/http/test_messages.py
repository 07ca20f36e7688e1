# SPDX-License-Identifier: Apache-2.0
"""Anthropic Messages through the real anthropic client, on the scripted engine."""
import json

import anthropic
import httpx
import pytest

from conftest import user, wait_for

MODEL = "fake/model"
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
BASE = {"model": MODEL, "max_tokens": 100, "messages": user("hi")}


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as c:
        yield c


@pytest.fixture(scope="module")
def http(server):
    with server.http() as c:
        yield c


def create(client, content="hi", **kw):
    return client.messages.create(**{**BASE, "messages": user(content), **kw})


def prompt_of(http, **body):
    """The prompt a Messages request is rendered to: the scripted engine echoes what it is asked to continue."""
    return http.post("/v1/messages", json={**BASE, **body}).json()


def test_reply(client):
    r = create(client, "Hällo")
    assert r.id.startswith("msg_") and r.role == "assistant" and r.model == MODEL
    assert [b.type for b in r.content] == ["text"] and r.content[0].text == "Hällo"
    assert r.stop_reason == "end_turn" and r.stop_sequence is None
    assert r.usage.output_tokens == 5 and r.usage.input_tokens > 5 and r.usage.cache_read_input_tokens == 0
    assert r._request_id.startswith("req_")


def test_cached(client):
    r = create(client, "[[n=1 cached=7]]")
    assert r.usage.cache_read_input_tokens == 7
    assert r.usage.input_tokens + 7 == client.messages.count_tokens(model=MODEL, messages=user("[[n=1 cached=7]]")).input_tokens


def test_stream(client):
    with client.messages.stream(**{**BASE, "messages": user("Grüße 🎉")}) as s:
        kinds = [e.type for e in s]
        final = s.get_final_message()
    assert final.content[0].text == "Grüße 🎉" and final.stop_reason == "end_turn" and final.usage.output_tokens == 7
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


def test_thinking(client):
    for stream in (False, True):
        kw = {"thinking": {"type": "adaptive"}, "messages": user("[[think=Hmm n=2]]")}
        if stream:
            with client.messages.stream(**{**BASE, **kw}) as s:
                r = s.get_final_message()
        else:
            r = client.messages.create(**{**BASE, **kw})
        assert [b.type for b in r.content] == ["thinking", "text"]
        assert r.content[0].thinking == "Hmm" and r.content[0].signature == "" and r.content[1].text == "word word "
    r = client.messages.create(**{**BASE, **kw, "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}})
    assert r.content[0].thinking == ""


def test_thinking_is_off_by_default(client):
    assert [b.type for b in create(client, "[[think=Hmm n=1]]").content] == ["text"]


def test_tools(client):
    content = '[[n=1 call=get_weather:{"city":"Ulm"} call=get_weather:{"city":"Köln"}]]'
    r = create(client, content, tools=[TOOL])
    assert [b.type for b in r.content] == ["text", "tool_use", "tool_use"] and r.stop_reason == "tool_use"
    assert r.content[1].input == {"city": "Ulm"} and r.content[1].name == "get_weather"
    assert r.content[1].id == f"call_{r.id.removeprefix('msg_')}_0"
    with client.messages.stream(**{**BASE, "messages": user(content), "tools": [TOOL]}) as s:
        f = s.get_final_message()
    assert [b.type for b in f.content] == ["text", "tool_use", "tool_use"] and f.content[2].input == {"city": "Köln"}


def test_one_tool(client):
    r = create(client, "[[n=1 token_ms=30 call=a:{} call=b:{}]]", tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [b.name for b in r.content if b.type == "tool_use"] == ["a"]


def test_stop_sequence(client):
    r = create(client, "one STOP two", stop_sequences=["STOP"])
    assert r.content[0].text == "one " and r.stop_reason == "stop_sequence" and r.stop_sequence == "STOP"


def test_limits(client, server):
    assert create(client, "[[n=9]]", max_tokens=2).stop_reason == "max_tokens"
    r = create(client, "[[n=5000 word=x]]", max_tokens=20000)
    assert r.stop_reason == "model_context_window_exceeded" and r.usage.input_tokens + r.usage.output_tokens == 4096
    with pytest.raises(anthropic.BadRequestError) as e:
        create(client, "x" * 5000)
    assert e.value.body["error"]["message"].startswith("prompt is too long: ") and " tokens > 4095 maximum" in str(e.value)


def test_empty_output_is_one_empty_block(client):
    r = create(client, "STOP", stop_sequences=["STOP"])
    assert [b.text for b in r.content] == [""]
    with client.messages.stream(**{**BASE, "messages": user("STOP"), "stop_sequences": ["STOP"]}) as s:
        assert [b.text for b in s.get_final_message().content] == [""]


def test_count_tokens(client):
    n = client.messages.count_tokens(model=MODEL, messages=user("hi")).input_tokens
    assert n == len("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n") - len("<|im_start|>") * 2 - len("<|im_end|>") + 3
    assert client.messages.count_tokens(model=MODEL, messages=user("x" * 9000)).input_tokens == n + 8998
    client.messages.count_tokens(model=MODEL, messages=user("hi") + [{"role": "assistant", "content": "pre"}])


def test_billing_header_does_not_reach_the_prompt(client):
    def count(nonce):
        return client.messages.count_tokens(model=MODEL, messages=user("hi"), system=[
            {"type": "text", "text": f"x-anthropic-billing-header: cch={nonce};"}, {"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": " kind."}]).input_tokens
    assert count("a") == count("bbbbbbbb") == client.messages.count_tokens(model=MODEL, messages=user("hi"), system="You are kind.").input_tokens


def test_like_an_agent(http):
    """The shape of a coding agent's request: many blocks, a late system message, tool results, unknown fields."""
    body = {**BASE, "stream": False, "max_tokens": 32000, "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                         {"role": "assistant", "content": [{"type": "thinking", "thinking": "T", "signature": ""}, {"type": "redacted_thinking", "data": "x"},
                                                           {"type": "text", "text": "c"}, {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Ulm"}}]},
                         {"role": "user", "content": [{"type": "text", "text": "d"}, {"type": "tool_result", "tool_use_id": "t1", "is_error": True,
                                                      "content": [{"type": "text", "text": "no"}]}]},
                         {"role": "system", "content": "late"}],
            "tools": [TOOL], "tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "metadata": {"user_id": "u"}, "betas": ["x"]}
    r = http.post("/v1/messages?beta=true", json=body, headers={"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"})
    assert r.status_code == 200, r.text
    assert r.headers["request-id"] == r.headers["x-request-id"]


@pytest.mark.parametrize("change, word", [
    ({"model": None}, "model"), ({"model": ""}, "model"), ({"model": 5}, "model"), ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"), ({"messages": None}, "messages"), ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
    ({"messages": user("x") + [{"role": "assistant", "content": "pre"}]}, "assistant"), ({"stream": None}, "stream"), ({"stream": 1}, "stream"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"), ({"messages": [{"role": "user", "content": [{"type": "magic"}]}]}, "magic"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"), ({"system": 5}, "system"), ({"system": [{"type": "image"}]}, "system"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"), ({"tools": [{"input_schema": {}}]}, "name"),
    ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "required"), ({"tool_choice": {"type": "x"}}, "tool_choice"), ({"thinking": {"type": "x"}}, "thinking"),
    ({"thinking": {"type": "disabled", "display": "omitted"}}, "display"), ({"thinking": {"type": "enabled", "display": "x"}}, "display"),
    ({"output_config": {"effort": "none"}}, "effort"), ({"output_config": {"format": {"type": "json_schema"}}}, "format"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"), ({"stop_sequences": [""]}, "stop_sequences"),
    ({"temperature": 3}, "temperature"), ({"top_k": "x"}, "top_k")])
def test_refusals(http, change, word):
    r = http.post("/v1/messages", json={**BASE, **change})
    assert r.status_code == 400, r.text
    body = r.json()
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error" and word in body["error"]["message"]


def test_dialect_of_other_errors(http, server):
    assert http.post("/v1/messages", json={**BASE, "model": "other"}).json()["error"]["type"] == "not_found_error"
    assert http.post("/v1/messages", content=b"{}", headers={"content-type": "text/plain"}).json()["type"] == "error"
    r = http.post("/v1/messages", json={**BASE, "messages": user("[[fail=internal fail_after=-1]]")})
    assert r.status_code == 500 and r.json()["error"]["type"] == "api_error"
    r = http.post("/v1/messages", json={**BASE, "messages": user("[[prefill_ms=2000]]"), "timeout": 0.1})
    assert r.status_code == 504 and r.json()["error"]["type"] == "timeout_error"


def test_failure_in_stream(http):
    with http.stream("POST", "/v1/messages", json={**BASE, "stream": True, "messages": user("[[n=9 fail=nomem fail_after=3]]")}) as r:
        lines = [l for l in r.iter_lines() if l]
    assert lines[-2] == "event: error" and json.loads(lines[-1][6:])["error"]["type"] == "overloaded_error"
    assert sum(l.startswith("event: error") for l in lines) == 1 and "event: message_stop" not in lines


def test_ping(http):
    with http.stream("POST", "/v1/messages", json={**BASE, "stream": True, "messages": user("[[prefill_ms=2500 n=1]]")}) as r:
        events = [l[7:] for l in r.iter_lines() if l.startswith("event: ")]
    assert events[:2] == ["message_start", "ping"] and events[-1] == "message_stop"


def test_progress(http):
    with http.stream("POST", "/v1/messages", json={**BASE, "stream": True, "return_progress": True, "messages": user("[[prefill_ms=300 n=1]]")}) as r:
        data = [json.loads(l[6:]) for l in r.iter_lines() if l.startswith("data: ")]
    assert len([d for d in data if d["type"] == "ping" and d["prompt_progress"]["total"] > 0]) == 3
