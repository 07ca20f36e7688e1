# SPDX-License-Identifier: Apache-2.0
"""How many tokens a step of the embedded model yields: the engine's count beside a PyTorch simulation.

The simulation takes target and draft out of the shipped package (the independent reader of tests/pack),
dequantised, decodes greedily in fp32 and walks the proposals of train/draft.py along the answers. The engine
decodes with int8 activations, int8 KV and an int8 ring, so single steps differ; the means must not."""

import json
import os
import subprocess
import sys

import pytest
import torch

from conftest import ROOT

sys.path[:0] = [str(ROOT / "train"), str(ROOT / "tests" / "pack")]
import dflash2  # noqa: E402
import draft  # noqa: E402
import model  # noqa: E402
import package_reader  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

NANO = ROOT / "models" / "nano"
NEW = 128


def tensors(state):
    return {name: torch.from_numpy(value.copy()) for name, value in state.items()}


@pytest.fixture(scope="module")
def pair():
    """(target, draft, tokenizer) with the values of the package."""
    package = package_reader.Package(NANO)
    net = model.build()
    net.load_state_dict(tensors(package.published_state("model.")))
    speculator = dflash2.DFlash2()
    speculator.load_state_dict(tensors(package.published_draft_state()))
    return net.eval(), speculator.eval(), Tokenizer.from_file(str(NANO / "tokenizer.json"))


@pytest.mark.parametrize("prompts", ["nano-python", "nano-copy"])
def test_engine_accepts_what_the_simulation_accepts(pair, prompts):
    net, speculator, tokenizer = pair
    path = ROOT / "bench" / "prompts" / f"{prompts}.jsonl"
    expected, _ = draft.tau(speculator, net, draft.prompt_answers(net, tokenizer, path, NEW))
    program = ROOT / os.environ.get("SPLASH_BUILD", "build") / "splash"
    done = subprocess.run([program, "bench", "accept", "--model", NANO, "--prompts", path, "--rows", "8", "--no-lookup",
                           "--max-tokens", str(NEW), "--repeat", "1", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["tau"]
    print(f"{prompts}: engine {found:.3f}, simulation {expected:.3f}")
    assert abs(found / expected - 1) <= 0.02
