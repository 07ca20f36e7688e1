# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints as the family publishes them: config.json and bf16 model.safetensors."""

import json

import torch
from safetensors.torch import save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

import shapes


def _value(name, shape, generator):
    """Sane but far from an untrained start: no norm is neutral, no two heads decay alike."""

    def normal(deviation, mean=0.0):
        return mean + deviation * torch.randn(shape, generator=generator)

    def uniform(low, high):
        return low + (high - low) * torch.rand(shape, generator=generator)

    if name.endswith("A_log"):
        return uniform(0.02, 12.0).log()
    if name.endswith("dt_bias"):
        return uniform(-4.0, 1.0)
    if name.endswith("conv1d.weight"):
        return normal(0.5)
    if name.endswith("linear_attn.norm.weight"):
        return normal(0.2, 1.0)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return normal(0.2, 0.4)  # attention with clear favourites
    if name.endswith("norm.weight"):
        return normal(0.2)
    if name.endswith("embed_tokens.weight"):
        return normal(0.5)
    if name == "lm_head.weight":
        return normal(2.5 / shape[1] ** 0.5)
    return normal(1.0 / shape[1] ** 0.5)


def write(folder, shape, seed):
    """Writes a checkpoint of one of the test shapes with random weights."""
    folder.mkdir(parents=True)
    kept = {k: v for k, v in shapes.text_config(shape).items() if k not in ("dtype", "model_type")}
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**kept))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, tensor in model.state_dict().items():
        published = name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        tensors[published] = _value(name, tuple(tensor.shape), generator).to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(shapes.config(shape), indent=1))
