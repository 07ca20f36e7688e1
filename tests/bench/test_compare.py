# SPDX-License-Identifier: Apache-2.0
"""bench/compare: the rule of its verdicts, the size and content of its files, and a whole run on nano.

BUILD names the build folder (default: build); `make` there first."""

import json
import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "compare"))

import compare  # noqa: E402
import llama_side  # noqa: E402
import random_gguf  # noqa: E402
import report  # noqa: E402
import whole  # noqa: E402

SPLASH = ROOT / os.environ.get("BUILD", "build") / "splash"


def explain(model):
    return compare.Splash(SimpleNamespace(splash=SPLASH, model=model)).explain()


# ---- the rule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ours, theirs, expected",
    [
        ([10, 10.1, 10], [5, 5.05, 5], "faster"),
        ([5, 5.05, 5], [10, 10.1, 10], "slower"),
        ([100, 101.5, 100], [100, 100, 100], "equal"),  # 1.5 %: below 2 %
        ([103, 101, 105], [100, 100, 100], "equal"),  # 3 %, but the spread is 4 %
        ([103, 103, 103.1], [100, 100, 100], "faster"),  # 3 %, hardly any spread
        ([300, 316, 300], [100, 100, 100], "inconclusive"),  # three times as fast, and still
        ([300, 300, 300], [100, 106, 100], "inconclusive"),
    ],
)
def test_verdict(ours, theirs, expected):
    assert compare.verdict(compare.summary(ours), compare.summary(theirs)) == expected


def test_order_and_speeds():
    """A B B A per round; a block of theirs counts with the median of its steps, speeds are work over time."""
    calls = []

    def ours():
        calls.append("A")
        return {"step_seconds": 0.5, "roof_seconds": 0.25}

    def theirs(steps):
        calls.append("B")
        return [2.0] * (steps - 1) + [50.0]

    m = compare.Measure("batch", "x", "rows/s", 8, ours, lambda r: r["step_seconds"], theirs)
    r = compare.result(m, *m.run(2))
    assert "".join(calls) == "ABBAABBA"
    assert (r["ours"]["median"], r["theirs"]["median"], r["roof"]) == (16, 4, 32)
    assert (r["ratio"], r["ours_of_roof"], r["verdict"]) == (4, 0.5, "faster")


def test_pattern_of_rows_that_stand():
    asked = []
    side = SimpleNamespace(_ask=lambda *words: asked.append(words))
    for tau in (1, 4.5, 4.8, 8):
        llama_side.Llama.verify(side, 4, tau)
    assert [(a, b) for _, _, a, b in asked] == [(1, 1), (5, 4), (5, 5), (8, 8)]


def test_whole_model():
    """Times 1 + L / 4: at 64 layers a step takes 17."""
    speeds = [{"s": 1 / (1 + layers / 4)} for layers in (8, 16)]
    assert whole.whole_speed(*speeds, (8, 16), 64, ("s", "s")) == pytest.approx(1 / 17)


# ---- the files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", sorted(random_gguf.DRAFTS))
def test_same_parameters(model):
    """All weights, small ones included, are as many as the engine counts in its own geometry."""
    told = explain(model)
    g = told["geometry"]
    target = random_gguf.target_tensors(random_gguf.target_config(g, g["layers"]))
    shape = random_gguf.DRAFTS[model], g["draft_layers"], g["hidden"], g["vocab"]
    draft = random_gguf.draft_tensors(*shape)
    count = [sum(int(np.prod(dims)) for _, _, dims in tensors) for tensors in (target, draft)]
    assert count == [told["this_engine"]["parameters"], told["this_engine"]["draft_parameters"]]


def q4_0(raw, shape):
    """Weights from the definition: per 32 an fp16 scale, then 16 bytes, low nibbles first."""
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, 18)
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    codes = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1).astype(np.float32) - 8
    return (scale * codes).reshape(shape)


def test_file(tmp_path):
    tensors = [
        ("m", random_gguf.Q4_0, (300, 640)),
        ("norm.weight", random_gguf.F32, (5,)),
        ("n", random_gguf.Q4_0, (3, 64)),
    ]
    random_gguf.write(tmp_path / "f", [], tensors)
    raw = (tmp_path / "f").read_bytes()
    assert struct.unpack_from("<4sIQQ", raw) == (b"GGUF", 3, 3, 0)
    begin = len(raw) - (300 * 640 // 32 * 18 + 32 + 3 * 2 * 18 + 20)
    assert begin % 32 == 0
    m = q4_0(raw[begin : begin + 300 * 640 // 32 * 18], (300, 640))
    assert m.std() == pytest.approx(1 / np.sqrt(640), rel=0.05)
    assert np.abs(m.mean()) < 0.05 * m.std() + 0.5 * 0.217 * m.std()
    assert len(np.unique(m[:, 0])) > 200
    with pytest.raises(ValueError, match="no whole Q4_0 blocks"):
        random_gguf.write(tmp_path / "g", [], [("m", random_gguf.Q4_0, (2, 40))])


# ---- llama.cpp itself -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def side(tmp_path_factory):
    """A small target with a draft wide enough for llama.cpp."""
    folder = tmp_path_factory.mktemp("llama")
    geometry = {**explain("nano")["geometry"], "hidden": 320, "vocab": 2048}
    random_gguf.write_target(folder / "t.gguf", geometry, 4)
    random_gguf.write_draft(folder / "d.gguf", geometry)
    program, libraries = llama_side.build(folder)
    options = SimpleNamespace(threads=1, kv="q8_0", flash="on")
    llama = llama_side.Llama(program, libraries, folder / "t.gguf", folder / "d.gguf", 3 * 320, 256, options)
    yield llama
    llama.close()
    assert llama.process.returncode == 0


def test_commands(side):
    assert side.version
    side.fill(40)
    for times in (side.rows(1, 3), side.rows(8, 3), side.verify(3, 4.5), side.verify(3, 8), side.draft(3, 4.8)):
        assert len(times) == 3
        assert all(0 < t < 60 for t in times)
    assert len(side.prefill(100, 2)) == 2
    assert len(side.rows(8, 1)) == 1  # the filled context is found again
    for words in (("rows", 9, 1), ("prefill", 300, 1), ("fill", 250), ("nonsense",)):
        with pytest.raises(RuntimeError):
            side._ask(*words)


def test_run(tmp_path, capsys):
    """nano as a whole: too small and too short to mean anything, but complete."""
    words = [
        "--model",
        "nano",
        "--layers",
        "4",
        "--context",
        "32",
        "--tokens",
        "32",
        "--rounds",
        "1",
        "--seconds",
        "0.05",
    ]
    compare.main([*words, "--threads", "1", "--splash", str(SPLASH), "--scratch", str(tmp_path)])
    text = capsys.readouterr().out
    r = json.loads((tmp_path / "report.json").read_text())
    assert [m["name"] for m in r["measures"]] == ["decode", "batch", "prefill"]
    for m in r["measures"]:
        assert len(m["ours"]["blocks"]) == len(m["theirs"]["blocks"]) == 2
        assert m["roof"] > 0 and m["ours"]["median"] > 0 and m["theirs"]["median"] > 0
    assert r["order"] == "ABBA" and r["layers"] == 4 and r["layers_of_model"] == 8 and r["threads"] == 1
    assert "this narrow" in r["no_draft"] and r["no_draft"] in text
    assert (tmp_path / "report.md").read_text() == text
    assert (tmp_path / "report.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(tmp_path.glob("*.gguf"))
    assert report.markdown(r, "report.png") == text
    deeper = {**r, "layers": 8}
    assert whole.table(r, deeper).count("\n| ") == 1 + len(r["measures"])


def test_refusals(tmp_path, monkeypatch):
    words = ["--model", "nano", "--splash", str(SPLASH), "--scratch", str(tmp_path)]
    with pytest.raises(SystemExit, match="needs an attention layer"):
        compare.main([*words, "--layers", "3"])
    with pytest.raises(SystemExit):
        compare.main([*words, "--acceptance", "9"])
    monkeypatch.setattr(compare, "room", lambda needed: (_ for _ in ()).throw(SystemExit(f"{needed}")))
    with pytest.raises(SystemExit):
        compare.main([*words, "--layers", "8"])
    assert not list(tmp_path.iterdir())


def test_requirements():
    """The suite runs with what the tool asks for."""
    ours, theirs = (
        set((ROOT / folder / "requirements.txt").read_text().split()) for folder in ("tests/bench", "bench/compare")
    )
    assert theirs <= ours
