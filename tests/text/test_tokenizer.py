# SPDX-License-Identifier: Apache-2.0
"""Token for token against Hugging Face's tokenizers, with the real Qwen3.5 vocabulary."""
import json
import pathlib
import random
import unicodedata

import pytest
import sample_text
from tokenizers import AddedToken, Tokenizer

from conftest import ROOT, Tool

NANO = ROOT / "models/nano/tokenizer.json"


def reference_of(folder):
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = folder / "tokenizer_config.json"
    decoder = json.loads(config.read_text())["added_tokens_decoder"] if config.exists() else {}
    known = reference.get_added_tokens_decoder()
    for token_id in sorted(decoder, key=int):
        if int(token_id) not in known:
            fields = {k: v for k, v in decoder[token_id].items() if k != "content"}
            reference.add_tokens([AddedToken(decoder[token_id]["content"], **fields)])
            assert reference.token_to_id(decoder[token_id]["content"]) == int(token_id)
    return reference


@pytest.fixture(scope="session")
def reference(qwen_folder):
    return reference_of(qwen_folder)


def same(tool, reference, text):
    ours = tool.encode(text)
    theirs = reference.encode(text, add_special_tokens=False).ids
    if ours == theirs:
        return
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    near = reference.decode(theirs[max(at - 3, 0) : at + 8], skip_special_tokens=False)
    pytest.fail(f"token {at}: ours {ours[at:at + 8]}, reference {theirs[at:at + 8]}, near {near!r}, text {text[:200]!r}")


def test_known_vector(qwen_tool):
    assert qwen_tool.encode("Hello, world") == [9419, 11, 1814]


def test_mixed_megabyte(qwen_tool, reference):
    text = sample_text.mixed_text(1_500_000)
    assert len(text.encode()) >= 1_500_000
    for start in range(0, len(text), 100_000):
        same(qwen_tool, reference, text[start : start + 100_000])


def test_random_strings(qwen_tool, reference):
    count = 0
    for text in sample_text.random_strings(10_000, seed=20):
        same(qwen_tool, reference, text)
        count += 1
    assert count == 10_000


def test_every_old_code_point(qwen_tool, reference):
    codes = sample_text.assigned()
    for start in range(0, len(codes), 512):
        same(qwen_tool, reference, "".join(f"a{chr(c)}1 {chr(c)}\n" for c in codes[start : start + 512]))


def test_long_runs(qwen_tool, reference):
    for unit in ("a", " ", "\n", "=", "é", "中", "a ", " \n", "e\u0301", "\u0301", "0", "<|im_end|>"):
        same(qwen_tool, reference, "x" + unit * 3000 + "y")


def test_decoding(qwen_tool, reference):
    """Streamed pieces put together equal the reference's decoding of the whole list."""
    rng = random.Random(7)
    n_tokens = 248_077
    for _ in range(2000):
        ids = [rng.randrange(n_tokens) if rng.random() < 0.5 else rng.randrange(94, 256) for _ in range(rng.randint(1, 30))]
        for skip in (False, True):
            pieces = qwen_tool.ask(op="decode", ids=ids, skip_special=skip)["pieces"]
            assert "".join(pieces) == reference.decode(ids, skip_special_tokens=skip), ids


def test_round_trip(qwen_tool):
    for text in sample_text.random_strings(500, seed=3):
        ids = qwen_tool.encode(text)
        pieces = qwen_tool.ask(op="decode", ids=ids)["pieces"]
        assert "".join(pieces) == "".join(unicodedata.normalize("NFC", part) for part in [text]) or "<" in text


def test_added_tokens_can_be_text(qwen_tool, reference):
    for text in sample_text.LOOKALIKES:
        ids = qwen_tool.encode(text, added=False)
        assert max(ids) < 248_044
        assert "".join(qwen_tool.ask(op="decode", ids=ids)["pieces"]) == text


def test_normalisation(tool):
    rng = random.Random(5)
    groups = sample_text.classes()
    for _ in range(3000):
        codes = rng.choice(list(groups.values())) + groups["marks"][:200] + groups["hangul"]
        text = "".join(chr(rng.choice(codes)) for _ in range(rng.randint(1, 60)))
        assert tool.ask(op="nfc", text=text)["text"] == unicodedata.normalize("NFC", text), ascii(text)


@pytest.mark.parametrize("flags", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True},
                                   {"lstrip": True, "rstrip": True, "normalized": True}])
def test_added_token_flags(program, qwen_folder, tmp_path, flags):
    """Added tokens with every flag, over the first 3,000 tokens of the vocabulary."""
    document = json.loads((qwen_folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = document["model"]
    model["vocab"] = {k: v for k, v in model["vocab"].items() if v < 3000}
    model["merges"] = [m for m in model["merges"] if "".join(m) in model["vocab"] and set(m) <= set(model["vocab"])]
    extra = ["<mark>", "zqword", "zqwordy", "caf\u00e9", "cafe\u0301x", "<|im_", "<|im_start|>"]
    document["added_tokens"] = []
    for i, content in enumerate(extra):
        token = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
        token.update(flags if i < 6 else {}, id=3000 + i, content=content)
        document["added_tokens"].append(token)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(document))
    reference = Tokenizer.from_file(str(path))
    tool = Tool(path)
    rng = random.Random(11)
    marks = [*extra, " ", "  \n", "\u00a0", "a", "_", "\u0301", "1", ".", "cafe\u0301", "<|im_start|>", "\u200d", "\u24b6"]
    for _ in range(3000):
        same(tool, reference, "".join(rng.choice(marks) for _ in range(rng.randint(1, 12))))
    tool.close()


@pytest.mark.skipif(not NANO.exists(), reason="the embedded model's tokenizer is not there")
def test_nano(program):
    config = NANO.parent / "tokenizer_config.json"
    tool = Tool(NANO, *([config] if config.exists() else []))
    reference = reference_of(NANO.parent)
    for text in sample_text.random_strings(3000, seed=4):
        same(tool, reference, text)
    text = sample_text.mixed_text(1_000_000, seed=2)
    for start in range(0, len(text), 100_000):
        same(tool, reference, text[start : start + 100_000])
    tool.close()


def test_speed(qwen_tool, tmp_path, record_property):
    path = tmp_path / "ten_megabytes.txt"
    path.write_text(sample_text.mixed_text(10_000_000, seed=9), encoding="utf-8")
    answer = qwen_tool.ask(op="speed", path=str(path))
    rate = answer["bytes"] / answer["seconds"] / 1e6
    print(f"\ntokenised {answer['bytes']} bytes into {answer['tokens']} tokens: {rate:.1f} MB/s")
    assert answer["seconds"] < 30
