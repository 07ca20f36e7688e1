# SPDX-License-Identifier: Apache-2.0
"""Rendering of conversations with chat_template.jinja and the mask of learned tokens."""

import json
import os

from jinja2.sandbox import ImmutableSandboxedEnvironment

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_template.jinja")


def _fail(message):
    raise ValueError(message)


def _environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)
    env.globals["raise_exception"] = _fail
    return env


TEMPLATE = _environment().from_string(open(PATH).read())


def render(messages, tools=None, prompt=False, thinking=True):
    """Text of a conversation; with prompt=True it ends where the assistant starts."""
    return TEMPLATE.render(messages=messages, tools=tools, add_generation_prompt=prompt, enable_thinking=thinking)


def learned_spans(text):
    """[(start, end)] of the characters the model learns: every assistant turn with its <|im_end|>."""
    opening, closing, spans, at = "<|im_start|>assistant\n", "<|im_end|>", [], 0
    while (start := text.find(opening, at)) >= 0:
        end = text.find(closing, start) + len(closing)
        spans.append((start + len(opening), end))
        at = end
    return spans


def self_check():
    """A few renderings written out by hand."""
    user, think = {"role": "user", "content": "hi"}, "<think>\n"
    assert render([user], prompt=True) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n" + think
    assert render([user], prompt=True, thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    said = {"role": "assistant", "reasoning_content": "r", "content": "a"}
    assert render([user, said]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\nr\n</think>\n\na<|im_end|>\n"
    assert "<|im_start|>assistant\na<|im_end|>\n" in render([user, said, user])
    calls = {"role": "assistant", "reasoning_content": "r", "content": None, "tool_calls": [
        {"function": {"name": "f", "arguments": {"a": "x", "b": 1, "c": True, "e": [1, "y"]}}}, {"name": "g", "arguments": {}}]}
    text = render([user, calls, {"role": "tool", "content": "out"}, {"role": "tool", "content": "out"}])
    assert text.endswith("<|im_start|>assistant\n<think>\nr\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\n1\n"
                         "</parameter>\n<parameter=c>\nTrue\n</parameter>\n<parameter=e>\n[1, \"y\"]\n</parameter>\n</function>\n</tool_call>\n"
                         "<tool_call>\n<function=g>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nout\n</tool_response>\n"
                         "<tool_response>\nout\n</tool_response><|im_end|>\n"), text
    assert render([{"role": "system", "content": ""}, user]).startswith("<|im_start|>system\n<|im_end|>\n")
    print("template: renderings agree")


if __name__ == "__main__":
    self_check()
