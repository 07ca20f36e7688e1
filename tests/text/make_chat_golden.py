# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/chat/*.json: conversations with what Jinja2 makes of them.

Usage: make_chat_golden.py FOLDER, where FOLDER holds the published template texts as qwen3.5.jinja,
qwen3.6.jinja and qwen3.8.jinja (see tests/golden/chat/README.md for where they come from). Rendering
is set up as Hugging Face's apply_chat_template does it.
"""
import json
import pathlib
import random
import sys

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

OUT = pathlib.Path(__file__).resolve().parents[1] / "golden/chat"

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
VIDEO = {"type": "video", "video": "clip.mp4"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather \"now\" for a city \u2013 caf\u00e9 \u4e2d\u6587 \U0001f600 <b>&'\t",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3, "maximum": 1e3}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    },
    {"type": "function", "function": {"name": "noop", "parameters": {}, "x": [1, 2.5, -0.0, None, True, [], {}]}},
]
ARGUMENTS = {
    "a": "x",
    "b": 1,
    "c": True,
    "d": None,
    "e": [1, "y"],
    "f": 1.0,
    "g": {"k": "v\n\"q\"", "\u00e9": [0.1, 1e-7, 1e22, 123456789012345680.0]},
    "h": "",
    "i": "line\n  two \n",
    "j": -3.25,
    "k": False,
    "l": 5e-324,
    "m": [],
    "n": {},
    "o": "\u0000\u0001\u001f\u007f\u2028",
}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def call(name, arguments, wrap=True):
    inner = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    return {"type": "function", "id": "call_1", "function": inner} if wrap else inner


def conversations():
    """Pairs of a name and the messages."""
    hi = user("hi")
    turns = [hi, assistant("a", reasoning_content="r"), user("again")]
    calls = [call("f", ARGUMENTS), call("g", {}), call("h", {"z": "1"}, wrap=False)]
    yield "hi", [hi]
    yield "system", [{"role": "system", "content": "  Be brief.\n"}, hi]
    yield "system empty", [{"role": "system", "content": " \n "}, hi]
    yield "system null", [{"role": "system", "content": None}, hi]
    yield "system missing", [{"role": "system"}, hi]
    yield "system list", [{"role": "system", "content": [{"type": "text", "text": "A"}, {"text": " B "}]}, hi]
    yield "system image", [{"role": "system", "content": [IMAGE]}, hi]
    yield "system video", [{"role": "system", "content": [VIDEO]}, hi]
    yield "system late", [hi, {"role": "system", "content": "late"}]
    yield "system twice", [{"role": "system", "content": "1"}, {"role": "system", "content": "2"}, hi]
    yield "system only", [{"role": "system", "content": "1"}]
    yield "turns", turns
    yield "turns empty reasoning", [hi, assistant("a", reasoning_content=""), user("b")]
    yield "turns no reasoning", [hi, assistant("a"), user("b"), assistant("c")]
    yield "turns null reasoning", [hi, assistant("a", reasoning_content=None), user("b")]
    yield "turns list reasoning", [hi, assistant("a", reasoning_content=["x"]), user("b")]
    yield "turns space reasoning", [hi, assistant("a", reasoning_content="\n\n r \u00a0\n"), user("b"), assistant("c", reasoning_content="s")]
    think = "<think>\nthought\n</think>\n\nanswer"
    yield "think in content", [hi, assistant(think), user("b"), assistant(think)]
    yield "think in content with field", [hi, assistant(think, reasoning_content="field")]
    yield "think twice", [hi, assistant("<think>a</think>b<think>\n\nc\n\n</think>\n\n d <think>e")]
    yield "think no open", [hi, assistant("thought\n</think>\nanswer")]
    yield "think only close", [hi, assistant("</think>")]
    yield "think nested", [hi, assistant("x<think>\ny<think>\n z\n\n</think>mid</think>\n\n\nend")]
    yield "think with image", [hi, assistant([{"text": "<think>t"}, IMAGE, {"text": "</think>\n\n"}, IMAGE, {"text": "end"}])]
    yield "calls", [hi, assistant("", reasoning_content="r", tool_calls=calls)]
    yield "calls with text", [hi, assistant("Let me look.", reasoning_content="r", tool_calls=calls[:1])]
    yield "calls null content", [hi, assistant(None, tool_calls=calls)]
    yield "calls missing content", [hi, {"role": "assistant", "tool_calls": calls}]
    yield "calls space content", [hi, assistant(" \n", tool_calls=calls[1:])]
    yield "calls think content", [hi, assistant("<think>t</think>\n", tool_calls=calls[1:])]
    yield "calls no arguments", [hi, assistant("", tool_calls=[call("f", None)])]
    yield "calls empty arguments", [hi, assistant("", tool_calls=[call("f", "")])]
    yield "calls string arguments", [hi, assistant("", tool_calls=[call("f", "{\"a\": 1}")])]
    yield "calls no name", [hi, assistant("", tool_calls=[{"function": {"arguments": {}}}])]
    yield "calls empty list", [hi, assistant("x", tool_calls=[])]
    yield "calls null", [hi, assistant("x", tool_calls=None)]
    yield "calls object", [hi, assistant("x", tool_calls={"a": 1})]
    out = {"role": "tool", "content": "out", "tool_call_id": "call_1"}
    yield "result", [hi, assistant("", tool_calls=calls[1:2]), out]
    yield "results", [hi, assistant("", tool_calls=calls, reasoning_content="r"), out, out]
    yield "results then text", [hi, assistant("", tool_calls=calls[1:]), out, out, assistant("done", reasoning_content="q"), user("b")]
    yield "result list", [hi, {"role": "tool", "content": [{"type": "text", "text": " out "}, IMAGE]}]
    yield "result first", [out, hi]
    yield "result only", [out]
    yield "result between", [hi, out, assistant("x"), out, user("y"), out]
    yield "result spaces", [hi, {"role": "tool", "content": "\n out\n\n"}, {"role": "tool", "content": None}]
    wrapped = user("<tool_response>\nx\n</tool_response>")
    yield "wrapped result", [hi, assistant("a", reasoning_content="r"), wrapped]
    yield "wrapped result spaces", [hi, assistant("a", reasoning_content="r"), user(" <tool_response>x</tool_response>\n")]
    yield "wrapped result half", [hi, assistant("a", reasoning_content="r"), user("<tool_response>x</tool_response> and")]
    yield "wrapped result only", [wrapped]
    yield "image", [user([IMAGE, {"type": "text", "text": "what"}])]
    yield "image kinds", [user([{"type": "image"}, {"image": "x"}, {"image_url": "y"}, {"text": "t", "image": 1}])]
    yield "images", [user([{"text": "  a "}, IMAGE, VIDEO]), assistant("b"), user([VIDEO, IMAGE, {"type": "text", "text": "c"}]), {"role": "tool", "content": [IMAGE]}]
    yield "image after space", [user([{"text": " \n\t"}, IMAGE, {"text": " \n"}])]
    yield "image in wrapped", [hi, user([{"text": "<tool_response>"}, IMAGE, {"text": "</tool_response>"}])]
    yield "video", [user([{"type": "video"}, {"type": "text", "text": "v"}])]
    yield "item unknown", [user([{"type": "audio", "audio": "x"}])]
    yield "item without text", [user([{"type": "text"}])]
    yield "content number", [user(5)]
    yield "content object", [user({"text": "x"})]
    yield "content true", [user(True)]
    yield "content null", [user(None)]
    yield "content empty list", [user([])]
    yield "role developer", [{"role": "developer", "content": "x"}, hi]
    yield "role missing", [{"content": "x"}, hi]
    yield "empty", []
    yield "assistant only", [assistant("x")]
    yield "assistant last", [hi, assistant("partial", reasoning_content="r")]
    yield "spaces", [user("\u00a0\u2003\u3000x\u0085\u001c\u001f"), assistant("\ufeffkeep\u200b"), user("\u180ey\u2028\u2029")]
    yield "unicode", [user("caf\u00e9 \u4e2d\u6587 \U0001f468\u200d\U0001f469 e\u0301 \u202eabc"), assistant("\u0623\u0647\u0644\u0627")]
    yield "tags in text", [user("<|im_end|>\n<|im_start|>system\n<think> {{ x }} {% if %}"), assistant("<|image_pad|>")]
    yield "long", [m for i in range(12) for m in (user(f"question {i}"), assistant(f"answer {i}", reasoning_content=f"why {i}"))] + [hi]


OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "enable_thinking": True, "reasoning_effort": "low"},
    {"add_generation_prompt": True, "enable_thinking": None, "preserve_thinking": None},
    {"add_generation_prompt": True, "reasoning_effort": "medium", "preserve_thinking": False},
    {"add_generation_prompt": True, "preserve_thinking": True, "add_vision_id": True},
    {"add_generation_prompt": True, "enable_thinking": False, "reasoning_effort": "nonsense"},
    {"add_generation_prompt": True, "reasoning_effort": "high"},
]


def cases():
    """Every conversation with three option sets, and with tools where that matters."""
    rng = random.Random(38)
    for name, messages in conversations():
        chosen = [OPTIONS[0], *rng.sample(OPTIONS[1:], 2)]
        if name in ("hi", "turns", "system", "think in content", "calls", "images", "results then text"):
            chosen = OPTIONS
        for options in chosen:
            tools = rng.choice([None, None, TOOLS, TOOLS[:1], []])
            yield {"name": name, "messages": messages, "tools": tools, "options": options}


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = raise_exception
    return env


def render(template, case):
    """The rendered text, or None and the error."""
    try:
        return template.render(messages=case["messages"], tools=case["tools"], **case["options"]), None
    except (jinja2.exceptions.UndefinedError, TypeError):
        return None, ""  # an accident of the template, not a complaint with words of its own
    except jinja2.exceptions.TemplateError as e:
        return None, e.message


def main():
    folder = pathlib.Path(sys.argv[1])
    for kind in ("qwen3.5", "qwen3.6", "qwen3.8"):
        template = environment().from_string((folder / f"{kind}.jinja").read_text(encoding="utf-8"))
        lines = []
        for case in cases():
            text, error = render(template, case)
            case["kind"] = kind
            case["expect" if error is None else "error"] = text if error is None else error
            lines.append(json.dumps(case, ensure_ascii=True))
        (OUT / f"{kind}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="ascii")
        print(kind, len(lines), "cases,", sum('"error": ' in line for line in lines), "errors")


if __name__ == "__main__":
    main()
