# SPDX-License-Identifier: Apache-2.0
"""A second opinion: the oracle tier against llama.cpp on the same weights as an F32 GGUF."""

import subprocess

import numpy as np
import pytest

import gguf
import llama
import shapes

LIMIT = 1e-3


@pytest.fixture(scope="session")
def llama_logits(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    command = llama.build(folder)

    def run(model, tokens, chunk):
        gguf.write(folder / "model.gguf", model.weights, model.config)
        np.asarray(tokens, "<u4").tofile(folder / "tokens")
        files = [folder / "model.gguf", folder / "tokens", folder / "logits"]
        done = subprocess.run([*command, *files, str(chunk)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return np.fromfile(folder / "logits", "<f4").reshape(len(tokens), -1)

    return run


def test_head_order():
    """Three value heads per key head: position p holds a head of key head p mod 2."""
    assert gguf.tiled_heads(2, 6) == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("shape", [*shapes.TOYS, "nano"])
def test_logits(engine, models, llama_logits, shape):
    model = models(shape)
    tokens = model.tokens(120)
    ours = engine.logits(model.package, tokens, chunk=40)
    for chunk in (1, 64):
        theirs = llama_logits(model, tokens, chunk)
        worst = np.abs(ours - theirs).max()
        print(f"{shape}, chunks of {chunk}: largest difference {worst:.2e}, deviation {theirs.std():.2f}")
        assert 1.0 < theirs.std() < 5.0
        assert worst <= LIMIT
