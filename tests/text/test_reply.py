# SPDX-License-Identifier: Apache-2.0
"""The reply reader: any way of cutting the text gives the same result, values take the type that the
schema asks for, and arguments are JSON."""
import json
import random

import pytest

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "$defs": {"num": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}},
                "properties": {
                    "string": {"type": "string"},
                    "integer": {"type": "integer"},
                    "number": {"type": "number"},
                    "boolean": {"type": "boolean"},
                    "array": {"type": "array"},
                    "object": {"type": "object"},
                    "null": {"type": "null"},
                    "string_null": {"type": ["string", "null"]},
                    "integer_null": {"type": ["integer", "null"]},
                    "string_number": {"anyOf": [{"type": "string"}, {"type": "number"}]},
                    "string_integer": {"type": ["string", "integer"]},
                    "string_boolean": {"type": ["string", "boolean"]},
                    "string_object": {"oneOf": [{"type": "string"}, {"type": "object"}]},
                    "choice": {"enum": [1, 2, "x"]},
                    "constant": {"const": 5},
                    "narrowed": {"type": ["string", "integer"], "allOf": [{"type": "integer"}]},
                    "reference": {"$ref": "#/$defs/num"},
                    "loop": {"$ref": "#/$defs/loop"},
                    "open": {},
                    "true": True,
                },
            },
        },
    }
]


def call(name, parameters):
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def read(tool, chunks, **options):
    answer = tool.ask(op="reply", chunks=list(chunks), **options)
    assert answer["status"] == 0
    result = {"reasoning": "", "content": "", "calls": []}
    for kind, index, value in answer["deltas"]:
        if kind in ("reasoning", "content"):
            result[kind] += value
        elif kind == "call":
            assert index == len(result["calls"])
            result["calls"].append([value, "", None])
        elif kind == "arguments":
            assert 0 < len(value.encode()) <= 16384 and index == len(result["calls"]) - 1
            result["calls"][index][1] += value
        else:
            result["calls"][index][2] = value
    return result


CASES = [
    # name, value text, expected JSON value
    ("string", "123", "123"), ("string", "true", "true"), ("string", " x \n", " x \n"), ("string", "", ""),
    ("string", "\"q\" \\ \t\u0001 \u00e9\U0001f600", "\"q\" \\ \t\u0001 \u00e9\U0001f600"),
    ("integer", " 12 ", 12), ("integer", "4.5", 4.5), ("integer", "012", "012"), ("integer", "+5", "+5"),
    ("integer", "1_000", "1_000"), ("integer", "True", "True"), ("integer", "123456789012345678901234567890", 123456789012345678901234567890),
    ("number", "1e3", 1000), ("number", "NaN", "NaN"), ("number", "inf", "inf"), ("number", "1e999", "1e999"), ("number", "-0.5", -0.5),
    ("boolean", "True", True), ("boolean", " False ", False), ("boolean", "TRUE", "TRUE"), ("boolean", "true", True),
    ("array", "\"x\"", "x"), ("array", "[1, \"\\u00e9\\ud83d\\ude00\", {\"a\": null}]", [1, "\u00e9\U0001f600", {"a": None}]),
    ("array", "[1,]", "[1,]"), ("array", "[\"\\ud83d\"]", "[\"\\ud83d\"]"), ("array", "[" * 200 + "]" * 200, "[" * 200 + "]" * 200),
    ("object", "{\"a\": {\"b\": []}}", {"a": {"b": []}}), ("object", "{'a': 1}", "{'a': 1}"), ("object", "{}", {}),
    ("null", "None", None), ("null", "null", None),
    ("string_null", "null", None), ("string_null", "None", "None"), ("integer_null", "None", None),
    ("string_number", "12:00", "12:00"), ("string_number", "12", 12), ("string_integer", "0800", "0800"),
    ("string_boolean", "1", "1"), ("string_boolean", "True", "True"), ("string_boolean", "true", True),
    ("string_object", "{\"a\":1}", {"a": 1}), ("string_object", "123", "123"),
    ("choice", "1", 1), ("choice", "x", "x"), ("constant", "5", 5), ("narrowed", "7", 7), ("reference", "7", 7),
    ("reference", "x", "x"), ("loop", "7", 7),
    ("open", "7", 7), ("open", "seven", "seven"), ("open", "True", "True"), ("open", "\"x\"", "\"x\""), ("open", " x ", " x "),
    ("true", "[1]", [1]), ("undeclared", "null", None), ("undeclared", "", ""),
]


@pytest.mark.parametrize("name,text,value", CASES)
def test_values(tool, name, text, value):
    result = read(tool, [call("f", [(name, text)])], tools=TOOLS)
    assert len(result["calls"]) == 1 and result["content"] == ""
    got_name, arguments, complete = result["calls"][0]
    assert got_name == "f" and complete is True
    parsed = json.loads(arguments)
    assert parsed == {name: value} and type(parsed[name]) in (type(value), float if isinstance(value, int) else type(value))
    if isinstance(value, bool):
        assert parsed[name] is value


def test_layout(tool):
    text = "\n\nthought one\n\ntwo\n</think>\n\nHello  world.\n\n" + call("f", [("string", "a"), ("integer", "1")]) + "\n" + call("g", []) + "\n"
    result = read(tool, [text], tools=TOOLS, thinking=True)
    assert result["reasoning"] == "thought one\n\ntwo"
    assert result["content"] == "Hello  world."
    assert result["calls"] == [["f", '{"string":"a","integer":1}', True], ["g", "{}", True]]


def test_no_calls_keeps_trailing_space(tool):
    assert read(tool, [" \n answer \n"], tools=TOOLS)["content"] == "answer \n"
    assert read(tool, ["a</think>b <think>"], tools=TOOLS)["content"] == "ab <think>"


def test_text_that_is_no_call(tool):
    for text in (
        "use <tool_call> tags", "<tool_call>\n{\"name\": 1}\n</tool_call>", "<tool_call>\n<function=", "<tool_call>\n<function=f",
        "<tool_call>\n<function=>\n</function>", "<tool_call>\n<function=f> x", "<tool_call>\n<function=a<b>\n", "<function=f>\n",
        "<tool_call>\n<function=" + "n" * 3000 + ">\n", "a <tool_call>\n<fun", "</thin", "<", "x <tool_call>\n<function=f></function>\n",
    ):
        for chunks in ([text], list(text)):
            result = read(tool, chunks, tools=TOOLS)
            assert result["content"] == text and result["calls"] == [], text
    whole = call("f", [("string", "x")])
    assert read(tool, [whole], tools=TOOLS, calls=False)["content"] == whole


def test_value_may_contain_tags(tool):
    inner = "</parameter>\n</think>\n<parameter=x>\n1\n</parameter>\n text\n</function>\n</tool_call>\n<tool_call>\n<function=h>\n"
    result = read(tool, [call("f", [("string", inner)])], tools=TOOLS)
    assert json.loads(result["calls"][0][1]) == {"string": inner}


def test_lenient_forms(tool):
    short = "<tool_call>\n<function=f>\n<parameter=string>\n</parameter>\n</function>"
    assert read(tool, [short], tools=TOOLS)["calls"] == [["f", '{"string":""}', True]]
    assert read(tool, ["<tool_call>\n<function= f >\n</tool_call>x"], tools=TOOLS) == {
        "reasoning": "", "content": "x", "calls": [["f", "{}", True]]}
    twice = call("f", [("string", "a"), ("string", "b"), ("integer", "1"), ("integer", "2")])
    assert read(tool, [twice], tools=TOOLS)["calls"][0][1] == '{"string":"a","integer":1}'
    assert read(tool, ["think\n" + call("f", [])], tools=TOOLS, thinking=True)["reasoning"] == "think"


def test_cut_and_unfinished(tool):
    start = "<tool_call>\n<function=f>\n<parameter=integer>\n1\n</parameter>\n<parameter=string>\nab\n"
    assert read(tool, [start], tools=TOOLS, cut=True)["calls"] == [["f", '{"integer":1,"string":"ab', False]]
    assert read(tool, [start], tools=TOOLS)["calls"] == [["f", '{"integer":1,"string":"ab"}', True]]
    start = "<tool_call>\n<function=f>\n<parameter=string>\nab\n</parameter>\n<parameter=integer>\n12"
    assert read(tool, [start], tools=TOOLS)["calls"] == [["f", '{"string":"ab"}', True]]
    closed = "<tool_call>\n<function=f>\n<parameter=integer>\n12\n</parameter>"
    for tail in ("", "\n", "\n</func", "\n</function>", "\n</function>\n</tool"):
        assert read(tool, [closed + tail], tools=TOOLS)["calls"] == [["f", '{"integer":12}', True]], tail


def test_long_string_fragments(tool):
    value = "\\" * 20000 + "\u00e9" * 20000 + "\u0001" * 9000 + "x" * 50000
    result = read(tool, [call("f", [("string", value)])], tools=TOOLS)
    assert json.loads(result["calls"][0][1]) == {"string": value}
    result = read(tool, [call("f", [("object", json.dumps({"a": value}))])], tools=TOOLS)
    assert json.loads(result["calls"][0][1]) == {"object": {"a": value}}


def test_every_cut_gives_the_same(tool):
    rng = random.Random(6)
    pieces = ["<tool_call>", "\n", "<function=", "f", ">", "<parameter=", "string", "integer", "</parameter>", "</function>", "</tool_call>",
              "</think>", "<think>", "x", " ", "12", "<", "\u00e9", ">\n", "\n</parameter>\n", call("f", [("string", "v"), ("open", "[1, 2]")]), "text"]
    for _ in range(1500):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 30)))
        options = {"tools": TOOLS, "thinking": rng.random() < 0.5, "cut": rng.random() < 0.5}
        whole = read(tool, [text], **options)
        assert read(tool, list(text), **options) == whole, text
        cuts, at = [], 0
        while at < len(text):
            step = rng.randint(1, 9)
            cuts.append(text[at : at + step])
            at += step
        assert read(tool, cuts, **options) == whole, text
        for name, arguments, complete in whole["calls"]:
            assert name and "\n" not in name
            if complete:
                assert isinstance(json.loads(arguments), dict)
