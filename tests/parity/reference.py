# SPDX-License-Identifier: Apache-2.0
"""The published implementation of the family (transformers) on given weights, evaluated in double.

In fp32 its own rounding reaches 4e-4 on 4,000 tokens, twice what the comparison allows. The classes widen
to float32 inside; here those widenings lead to float64. Rotary angles stay fp32 products, as they are part
of the model: at long positions their rounding shows."""

from contextlib import contextmanager

import torch
import transformers.models.qwen3_5.modeling_qwen3_5 as family
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig


class _Widened:
    """The torch module as the family's code sees it, float32 meaning float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextmanager
def _widened(on=True):
    before = family.torch, torch.Tensor.float
    family.torch, torch.Tensor.float = (_Widened(), torch.Tensor.double) if on else (torch, _NARROW)
    try:
        yield
    finally:
        family.torch, torch.Tensor.float = before


_NARROW = torch.Tensor.float


class _Rotary(family.Qwen3_5TextRotaryEmbedding):
    def forward(self, x, position_ids):
        with _widened(on=False):
            cos, sin = super().forward(x.to(torch.float32), position_ids)
        return cos.double(), sin.double()


def model_of(config, weights):
    """transformers' causal model of a text_config with every weight given, in double."""
    kept = {k: v for k, v in config.items() if k not in ("dtype", "model_type")}
    made = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**kept, attn_implementation="eager", dtype="float32")).eval()
    state = {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
    made.load_state_dict(state, strict=True)
    made.double()
    made.model.rotary_emb = _Rotary(made.config)
    return made


def _run(model, tokens, **options):
    with torch.no_grad(), _widened():
        return model(input_ids=torch.tensor([[int(t) for t in tokens]]), **options)


def logits(model, tokens):
    """[n][vocab] of one pass over all tokens."""
    out = _run(model, tokens).logits[0]
    assert out.dtype == torch.float64
    return out.numpy()


def hidden_after(model, tokens, layers):
    """[n][len(layers) * hidden]: outputs of the given layers side by side."""
    states = _run(model, tokens, output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1][0] for layer in layers], dim=1).numpy()
