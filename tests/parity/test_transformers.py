# SPDX-License-Identifier: Apache-2.0
"""The oracle tier against transformers' own classes on the same dequantised weights."""

import numpy as np
import pytest
import torch
from transformers import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

import reference
import shapes

LIMIT = 2e-4
CHUNKS = (1, 3, 8, 31, 32, 64)  # token by token; below, at and across tiles and pages


def assert_close(got, want, what):
    assert np.isfinite(got).all() and got.shape == want.shape
    assert 1.0 < want.std() < 5.0, f"{what}: logits of deviation {want.std():.2f} prove little"
    worst = np.abs(got - want).max()
    print(f"{what}: largest difference {worst:.2e}, deviation of the logits {want.std():.2f}")
    assert worst <= LIMIT, what


@pytest.mark.parametrize("shape", shapes.TOYS)
def test_logits(engine, models, shape):
    model = models(shape)
    tokens = model.tokens(150)
    want = reference.logits(model.reference, tokens)
    for chunk in CHUNKS:
        assert_close(engine.logits(model.package, tokens, chunk=chunk), want, f"{shape}, chunks of {chunk}")


def test_logits_of_the_nano_shape(engine, models):
    """300 positions: ten pages, five chunks of the reference's recurrence."""
    model = models("nano")
    tokens = model.tokens(300)
    want = reference.logits(model.reference, tokens)
    for chunk in (1, 48):
        assert_close(engine.logits(model.package, tokens, chunk=chunk), want, f"nano, chunks of {chunk}")


def test_logits_at_long_positions(engine, models):
    """4,000 tokens, the toy's whole context: long histories, many splits, angles of thousands of turns."""
    model = models("toy")
    tokens = model.tokens(4000)
    want = reference.logits(model.reference, tokens)
    assert_close(engine.logits(model.package, tokens, chunk=256), want, "toy, 4,000 tokens")


@pytest.mark.parametrize("shape", sorted(shapes.CAPTURE))
def test_captured_rows(engine, models, shape):
    """The rows kept for the draft are the outputs of its tapped layers."""
    model = models(shape)
    tokens = model.tokens(70)
    want = reference.hidden_after(model.reference, tokens, shapes.CAPTURE[shape])
    _, got = engine.logits(model.package, tokens, chunk=9, captured=True)
    assert got.shape == want.shape
    worst = np.abs(got - want).max()
    print(f"{shape}: largest difference {worst:.2e}, deviation {want.std():.2f}")
    assert worst <= LIMIT


@pytest.mark.parametrize("shape", [*shapes.TOYS, "nano"])
def test_rotary(engine, shape):
    """Angles up to the family's longest context. The frequency is the same fp32 number up to one unit in the
    last place, which at position p turns the angle by p * frequency * 2^-23."""
    config = {k: v for k, v in shapes.text_config(shape).items() if k not in ("dtype", "model_type")}
    positions = [0, 1, 2, 31, 32, 1000, 4095, 29_999, 30_000, 65_535, 262_143]
    table = Qwen3_5TextRotaryEmbedding(Qwen3_5TextConfig(**config))
    frequency = table.inv_freq.numpy()
    pairs = len(frequency)
    cos, sin = table(torch.zeros(1, dtype=torch.float32), torch.tensor([[positions]]))
    got = engine.rotary(shape, positions)
    slack = 1e-6 + np.array(positions)[:, None] * frequency * 2.0**-23
    assert (np.abs(got[:, 0] - cos[0, :, :pairs].numpy()) <= slack).all()
    assert (np.abs(got[:, 1] - sin[0, :, :pairs].numpy()) <= slack).all()
