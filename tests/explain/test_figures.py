# SPDX-License-Identifier: Apache-2.0
"""`splash explain` prints the published analysis of Qwen3.8-27B, number for number, and this engine's
own bytes beside it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPLASH = ROOT / os.environ.get("BUILD", "build") / "splash"


def run(*arguments):
    return subprocess.run([SPLASH, "explain", *arguments], capture_output=True, text=True, timeout=60)


def explain(*arguments):
    done = run("--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # exactly one object: json.loads refuses trailing text


@pytest.fixture(scope="module")
def q38():
    return explain("--model", "qwen3.8-27b")


PUBLISHED = {
    "accounting": "packed-q4",
    "parameters": 26_935_320_064,
    "target_bytes": 15_154_925_056,
    "draft_parameters": 1_924_404_480,
    "draft_bytes": 1_265_625_600,
    "vision_bytes": 927_434_752,
    "attention_input_width": 14_336,
    "gdn_input_width": 16_640,
    "state_bytes": 153_944_064,
    "kv_bytes_per_token": 33_280,
    "step_bytes": 16_728_438_784,
}


@pytest.mark.parametrize("field", PUBLISHED)
def test_published_figure(q38, field):
    assert q38[field] == PUBLISHED[field]


def test_published_shares(q38):
    assert round(100 * q38["head_share"], 2) == 8.55
    assert round(100 * q38["draft_share"], 2) == 7.57


def test_sixteen_contexts_of_32k(q38):
    assert round(16 * 32768 * q38["kv_bytes_per_token"] / 1e9, 2) == 17.45


@pytest.mark.parametrize("speed, bandwidth", [(74, 257.9), (144, 501.9)])
def test_needed_bandwidth(speed, bandwidth):
    o = explain("--model", "qwen3.8-27b", "--tokens-per-second", str(speed), "--tau", "4.80")
    assert o["needed_gb_per_second"] == pytest.approx(bandwidth, abs=0.06)


def test_roofs_at_307_gigabytes():
    o = explain("--model", "qwen3.8-27b", "--bandwidth", "307", "--tau", "4.80")
    assert round(o["draft_free_roof_tokens_per_second"], 1) == 20.8
    assert o["roof_tokens_per_second"] == pytest.approx(307e9 / 16_728_438_784 * 4.8, rel=1e-9)


def test_no_rate_unless_asked(q38):
    for field in ("roof_tokens_per_second", "needed_gb_per_second"):
        assert field not in q38


def test_this_engine_is_summed_from_its_stages(q38):
    engine = q38["this_engine"]
    stages = sum(s["weight_bytes"] + s["lane_bytes"] for s in engine["stages"])
    assert engine["step_bytes"] == stages
    assert sum(s["count"] for s in engine["stages"]) == engine["ops"]
    # Unpadded rows: 160 fewer per GDN layer; the window is fp32.
    assert engine["gdn_input_width"] == 16_480
    assert engine["parameters"] == PUBLISHED["parameters"] - 48 * 160 * 5120
    assert engine["state_bytes"] == PUBLISHED["state_bytes"] + 48 * 3 * 10_240 * 2


def test_mixture_of_experts_is_explained():
    o = explain("--model", "qwen3.6-35b-a3b")
    assert o["parameters"] == 34_672_407_168
    assert o["draft_bytes"] == 478_964_736
    assert o["kv_bytes_per_token"] == 10_400


def test_the_default_model_fits_here():
    o = explain()
    memory = o["memory"]
    assert o["model"] == "nano" or o["geometry"]["id"] == "nano"
    assert memory["fits"]
    parts = ("weight_bytes", "kv_bytes", "state_bytes", "arena_bytes", "logits_bytes", "other_bytes")
    assert memory["total_bytes"] == sum(memory[p] for p in parts) <= memory["limit_bytes"]
    assert o["kernels"]["tier"] == o["kernels"]["usable"][-1]


def test_an_unknown_model_is_one_line_on_stderr():
    done = run("--json", "--model", "qwen9")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "qwen9" in done.stderr and done.stderr.count("\n") == 1


def test_text_for_people():
    done = run("--model", "qwen3.8-27b")
    assert done.returncode == 0
    assert "16,728,438,784" in done.stdout or "16728438784" in done.stdout
