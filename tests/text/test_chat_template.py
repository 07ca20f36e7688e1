# SPDX-License-Identifier: Apache-2.0
"""The chat templates against stored renderings (tests/golden/chat) and json.dumps."""
import json
import math
import random
import struct

import pytest

from conftest import ROOT

KINDS = ("qwen3.5", "qwen3.6", "qwen3.8")


def stored(kind):
    return json.loads((ROOT / f"tests/golden/chat/{kind}.json").read_text(encoding="ascii"))


@pytest.mark.parametrize("kind", KINDS)
def test_golden(tool, kind):
    cases = stored(kind)
    assert len({c["name"] for c in cases}) >= 60 and len(cases) >= 180
    for case in cases:
        request = {k: case[k] for k in ("kind", "messages", "tools", "options")}
        answer = tool.ask(op="render", **request)
        if "error" in case:
            assert case["error"] in answer.get("error", "(no error)"), (case["name"], case["options"], answer)
            assert "error" in answer
            continue
        assert answer.get("text") == case["expect"], (case["name"], case["options"], answer)
        raw = case["expect"].encode()
        for offset in answer["offsets"]:
            assert raw[offset:].startswith((b"<|image_pad|>", b"<|video_pad|>"))


@pytest.mark.parametrize("kind", KINDS)
def test_placeholders(tool, kind):
    """Every marker that stands for an item is reported, and none that only looks like one."""
    parts = [{"text": " \u00e9<|image_pad|>"}, {"type": "image"}, {"text": "x"}, {"type": "video"}, {"type": "image"}]
    answer = tool.ask(op="render", kind=kind, messages=[{"role": "user", "content": parts}], tools=None, options={})
    raw = answer["text"].encode()
    assert len(answer["offsets"]) == 3
    assert [raw[o : o + 13] for o in answer["offsets"]] == [b"<|image_pad|>", b"<|video_pad|>", b"<|image_pad|>"]
    assert raw[: answer["offsets"][0]].count(b"<|image_pad|>") == 1


def test_json_dumps(tool):
    rng = random.Random(1)
    values = [0.0, -0.0, 1e16, 1e15, 123456789012345.6, 1e-4, 1e-5, 5e-324, 1.7976931348623157e308, 0.1, 2.5, 1e22, 1e21]
    values += [2.0**k for k in range(-1070, 1020, 7)] + [10.0**k for k in range(-30, 30)]
    while len(values) < 4000:
        x = struct.unpack("<d", rng.randbytes(8))[0]
        if math.isfinite(x):
            values.append(x)
        values.append(round(rng.uniform(-1000, 1000), rng.randint(0, 6)))
    for x in values:
        assert tool.ask(op="float", value=x)["text"] == json.dumps(x), x
    nested = {"b": [1, {"a": None, "\u00e9": "\u2028\u007f\"\\/\b\f\n\r\t\u0000\u001f"}], "a": {}, "z": [], "n": -(2**63)}
    assert tool.ask(op="float", value=nested)["text"] == json.dumps(nested, ensure_ascii=False)
