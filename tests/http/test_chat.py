# SPDX-License-Identifier: Apache-2.0
"""Chat and text completions through the real openai client, on the scripted engine."""
import json

import httpx
import openai
import pytest

from conftest import user

MODEL = "fake/model"
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def create(server, content, **kw):
    return server.client().chat.completions.create(model=MODEL, messages=user(content), **kw)


def dump(server, **kw):
    extra = {k: kw.pop(k) for k in list(kw) if k in ("top_k", "min_p", "repetition_penalty", "ignore_eos")}
    return json.loads(create(server, "[[dump]]", extra_body=extra, **kw).choices[0].message.content)


def test_echo_and_usage(server):
    r = create(server, "Hello wörld ✓")
    assert r.object == "chat.completion" and r.model == MODEL and r.id.startswith("chatcmpl-")
    assert r.choices[0].message.content == "Hello wörld ✓"
    assert r.choices[0].finish_reason == "stop"
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.completion_tokens == len("Hello wörld ✓")
    timings = r.model_extra["timings"]
    assert timings["draft_n"] == 7 * r.usage.completion_tokens
    assert timings["draft_n_accepted"] == 3 * r.usage.completion_tokens
    assert r.model_extra["metrics"]["cache"]["status"] == "miss"


def test_cached_tokens(server):
    with server.http() as http:
        r = http.post("/v1/chat/completions", json={"messages": user("[[n=1 cached=9]]")})
    assert r.headers["x-splash-cached-tokens"] == "9"
    assert r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 9
    assert r.json()["metrics"]["cache"] == {"status": "hit", "matched_tokens": 9}


def test_stream_matches_whole(server):
    text = "Größe: 10 µm, 日本語, emoji 🎉 done"
    chunks = list(create(server, text, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
    assert chunks[0].choices[0].delta.role == "assistant"
    ends = [c for c in chunks if c.choices and c.choices[0].finish_reason]
    assert len(ends) == 1 and ends[0].choices[0].finish_reason == "stop"
    assert ends[0].model_extra["timings"]["predicted_n"] == len(text)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(text)
    assert len({c.id for c in chunks}) == 1


def test_stream_without_usage(server):
    chunks = list(create(server, "hi", stream=True))
    assert all(c.choices and c.usage is None for c in chunks)


def test_stream_headers(server):
    with server.http() as http, http.stream("POST", "/v1/chat/completions", json={"messages": user("hi"), "stream": True}) as r:
        assert r.headers["content-type"] == "text/event-stream"
        assert r.headers["cache-control"] == "no-cache" and r.headers["x-accel-buffering"] == "no"
        text = "".join(r.iter_text())
    assert text.endswith("data: [DONE]\n\n") and text.count("[DONE]") == 1


def test_stop(server):
    r = create(server, "one two three", stop=["three", "two"])
    assert r.choices[0].message.content == "one " and r.choices[0].finish_reason == "stop"
    assert create(server, "one two", stop="two").choices[0].message.content == "one "


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_length(server, field):
    r = create(server, "[[n=9]]", **{field: 4})
    assert r.choices[0].finish_reason == "length" and r.choices[0].message.content == "word " * 4


def test_max_completion_tokens_wins(server):
    assert create(server, "[[n=9]]", max_tokens=2, max_completion_tokens=3).usage.completion_tokens == 3


def test_defaults_and_sampling(server):
    d = dump(server)
    assert (d["temperature"], d["top_k"], d["top_p"], d["min_p"]) == (0.75, 20, 0.9375, 0)
    assert (d["presence_penalty"], d["frequency_penalty"], d["repetition_penalty"]) == (0, 0, 1)
    assert d["chat"] is True and d["thinking"] is False and d["max_new_tokens"] == 0
    d = dump(server, temperature=0.5, top_p=0.25, top_k=0, min_p=0.125, presence_penalty=-1.5, frequency_penalty=2,
             repetition_penalty=1.25, logit_bias={"65": -100, "66": 3.5}, ignore_eos=True)
    assert (d["temperature"], d["top_k"], d["top_p"], d["min_p"]) == (0.5, 0, 0.25, 0.125)
    assert (d["presence_penalty"], d["frequency_penalty"], d["repetition_penalty"]) == (-1.5, 2, 1.25)
    assert d["bias"] == {"65": -100, "66": 3.5} and d["ignore_eos"] is True


@pytest.mark.parametrize("asked, got", [(-1, -1), (0, 0), (1, 1), (50, 50), (10 ** 6, 10 ** 6), (10 ** 12, 2 ** 31 - 1)])
def test_top_k_any(server, asked, got):
    assert dump(server, top_k=asked)["top_k"] == got


def test_tiny_temperature_is_raised(server):
    assert dump(server, temperature=0.001)["temperature"] == pytest.approx(0.01)
    assert dump(server, temperature=0)["temperature"] == 0


@pytest.mark.parametrize("seed", [0, 7, 2 ** 63 - 1, 2 ** 63, 2 ** 64 - 1])
def test_seed(server, seed):
    assert dump(server, seed=seed)["seed"] == str(seed)


def test_random_seed_when_absent(server):
    assert len({dump(server)["seed"] for _ in range(4)}) == 4


def test_logprobs(server):
    r = create(server, "aé", logprobs=True, top_logprobs=2)
    content = r.choices[0].logprobs.content
    assert [c.token for c in content] == ["a", "�"]
    assert content[0].bytes == [97] and content[0].logprob == -0.5 - 0.125
    assert [t.token for t in content[0].top_logprobs] == ["a", "b"]
    assert content[1].bytes == [0xC3]
    chunks = list(create(server, "abc", logprobs=True, stream=True))
    streamed = [t.token for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert streamed == ["a", "b", "c"]
    assert create(server, "a").choices[0].logprobs is None


def test_reasoning_split(server):
    kw = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    r = create(server, "[[think=Hmm... n=2]]", logprobs=True, **kw)
    m = r.choices[0].message
    assert m.model_extra["reasoning_content"] == "Hmm..." and m.content == "word word "
    assert r.usage.completion_tokens_details.reasoning_tokens == 6
    assert len(r.choices[0].logprobs.content) == 2
    assert len(r.choices[0].logprobs.model_extra["reasoning_content"]) == 6
    chunks = list(create(server, "[[think=Hmm... n=2]]", stream=True, **kw))
    deltas = [c.choices[0].delta for c in chunks]
    assert "".join((d.model_extra or {}).get("reasoning_content") or "" for d in deltas) == "Hmm..."
    assert "".join(d.content or "" for d in deltas) == "word word "


@pytest.mark.parametrize("effort, sent, thinking", [
    ("none", None, False), ("low", "low", True), ("medium", "medium", True), ("xhigh", "xhigh", True),
    ("high", "xhigh", True), ("max", "xhigh", True), ("minimal", "low", True)])
def test_reasoning_effort(server, effort, sent, thinking):
    with server.http() as http:
        text = http.post("/apply-template", json={"messages": user("hi"), "reasoning_effort": effort}).json()["prompt"]
    assert (f"effort:{sent}\n" in text) if sent else ("effort:" not in text)
    assert text.endswith("<think>\n") is thinking


def test_tool_calls(server):
    r = create(server, '[[n=1 call=get_weather:{"city":"Ulm"} call=get_time:{}]]', tools=[TOOL])
    calls = r.choices[0].message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in calls] == [("get_weather", '{"city":"Ulm"}'), ("get_time", "{}")]
    assert [c.id for c in calls] == [f"call_{r.id.removeprefix('chatcmpl-')}_{i}" for i in (0, 1)]
    assert r.choices[0].finish_reason == "tool_calls" and r.choices[0].message.content == "word "


def test_tool_calls_streamed(server):
    stream = create(server, '[[n=1 call=get_weather:{"city":"Ulm"} call=get_time:{}]]', tools=[TOOL], stream=True)
    calls, finish = {}, None
    for chunk in stream:
        for c in chunk.choices[0].delta.tool_calls or []:
            calls.setdefault(c.index, ["", ""])
            calls[c.index][0] += c.function.name or ""
            calls[c.index][1] += c.function.arguments or ""
        finish = chunk.choices[0].finish_reason or finish
    assert calls == {0: ["get_weather", '{"city":"Ulm"}'], 1: ["get_time", "{}"]} and finish == "tool_calls"


def test_one_call_when_not_parallel(server):
    r = create(server, "[[n=1 token_ms=30 call=a:{} call=b:{} call=c:{}]]", tools=[TOOL], parallel_tool_calls=False)
    assert [c.function.name for c in r.choices[0].message.tool_calls] == ["a"]
    assert r.choices[0].finish_reason == "tool_calls"


def test_tool_choice_none(server):
    d = dump(server, tools=[TOOL], tool_choice="none")
    assert d["tools"] is False and d["bias"] == {"258": -100}
    assert dump(server, tools=[TOOL])["tools"] is True


def test_stop_is_allowed_without_callable_tools(server):
    create(server, "hi", tools=[TOOL], tool_choice="none", stop=["x"])
    with pytest.raises(openai.BadRequestError):
        create(server, "hi", tools=[TOOL], stop=["x"])


def test_history_reaches_the_template(server):
    messages = [
        {"role": "system", "content": "A"}, {"role": "developer", "content": [{"type": "text", "text": "B"}]},
        {"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
        {"role": "assistant", "content": None, "reasoning_content": "R", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 12345678901, "b": [1.5]}'}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": "  "}},
            {"id": "3", "type": "function", "function": {"name": "h", "arguments": '{"cut": "off he'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "result"}, {"role": "system", "content": "later"},
        {"role": "user", "content": "last"}]
    with server.http() as http:
        text = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert text.startswith("<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nxy<|im_end|>")
    assert '"arguments":{"a":12345678901,"b":[1.5]}' in text and '"name":"g","arguments":{}' in text
    assert '[Incomplete tool call, cut off by the token limit] {"name":"h","arguments":{"cut": "off he' in text
    assert "<reasoning R>" in text and "<|im_start|>system\nlater<|im_end|>" in text


def test_progress(server):
    with server.http() as http, http.stream("POST", "/v1/chat/completions", json={
            "messages": user("[[prefill_ms=300 n=1]]"), "stream": True, "return_progress": True}) as r:
        events = [json.loads(l[6:]) for l in r.iter_lines() if l.startswith("data: {")]
    progress = [e["prompt_progress"] for e in events if "prompt_progress" in e]
    assert len(progress) == 3 and progress[-1]["processed"] == progress[-1]["total"]


def test_completions(server):
    r = server.client().completions.create(model=MODEL, prompt="abc")
    assert r.object == "text_completion" and r.id.startswith("cmpl-") and r.choices[0].text == "abc"
    assert r.choices[0].logprobs is None and r.usage.prompt_tokens == 3
    r = server.client().completions.create(model=MODEL, prompt=[97, 98], max_tokens=5)
    assert r.choices[0].text == "ab"
    text = "".join(c.choices[0].text for c in server.client().completions.create(model=MODEL, prompt="stream me", stream=True))
    assert text == "stream me"


def test_completions_default_budget(server):
    r = server.client().completions.create(model=MODEL, prompt="[[n=40]]")
    assert r.usage.completion_tokens == 16 and r.choices[0].finish_reason == "length"


def test_completions_logprobs(server):
    r = server.client().completions.create(model=MODEL, prompt="aéb", logprobs=2)
    lp = r.choices[0].logprobs
    assert lp.tokens == ["a", "�", "b"] and lp.text_offset == [0, 1, 2]
    assert lp.token_logprobs[0] == -0.625 and list(lp.top_logprobs[0]) == ["a", "b"]


def test_models(server):
    assert [m.id for m in server.client().models.list()] == [MODEL]
    assert server.client().models.retrieve(MODEL).id == MODEL
    m = server.client().models.list().data[0]
    assert m.owned_by == "splash" and m.model_extra["context_length"] == 4096
    with pytest.raises(openai.NotFoundError):
        server.client().models.retrieve("other")


def test_aliases(start):
    s = start("--served-model-name", "local", "--served-model-name", "a/b", "--announce-served-name")
    assert [m.id for m in s.client().models.list()] == ["local", MODEL, "a/b"]
    for name in ("local", "a/b", MODEL):
        assert s.client().chat.completions.create(model=name, messages=user("x")).model == "local"
        assert s.client().models.retrieve(name).id == name


def test_tokenize(server):
    with server.http() as http:
        r = http.post("/tokenize", json={"content": "a<|im_end|>é"}).json()
        assert r == {"tokens": [97, 257, 0xC3, 0xA9]}
        assert http.post("/detokenize", json=r).json() == {"content": "a<|im_end|>é"}
        assert http.post("/tokenize", json={"content": "", "add_special": False}).json() == {"tokens": []}


def test_request_ids(server):
    with server.http() as http:
        r = http.post("/v1/chat/completions", json={"messages": user("x")}, headers={"x-request-id": "abc-1"})
        assert r.headers["x-request-id"] == "abc-1"
        assert http.get("/health").headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("code, status, name", [
    ("internal", 500, "internal_server_error"), ("nomem", 503, "resource_timeout"), ("limit", 400, "capacity_exhausted")])
def test_engine_failure_before_output(server, code, status, name):
    for stream in (False, True):
        r = httpx.post(server.url + "/v1/chat/completions", json={
            "messages": user(f"[[fail={code} fail_after=-1]]"), "stream": stream})
        assert r.status_code == status and r.json()["error"]["code"] == name
        assert r.json()["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")


def test_engine_failure_in_stream(server):
    with server.http() as http, http.stream("POST", "/v1/chat/completions", json={
            "messages": user("[[n=9 fail=internal fail_after=3]]"), "stream": True}) as r:
        assert r.status_code == 200
        events = [l[6:] for l in r.iter_lines() if l.startswith("data: ")]
    assert events[-1] == "[DONE]" and json.loads(events[-2])["error"]["code"] == "internal_server_error"
    assert sum("error" in json.loads(e) for e in events[:-1]) == 1


def test_timeout(server):
    r = httpx.post(server.url + "/v1/chat/completions", json={"messages": user("[[prefill_ms=3000]]"), "timeout": 0.2})
    assert r.status_code == 504 and r.json()["error"]["code"] == "request_timeout"
    with server.http() as http, http.stream("POST", "/v1/chat/completions", json={
            "messages": user("[[n=99 token_ms=50]]"), "timeout": 0.3, "stream": True}) as r:
        events = [l[6:] for l in r.iter_lines() if l.startswith("data: ")]
    assert json.loads(events[-2])["error"]["code"] == "request_timeout"
