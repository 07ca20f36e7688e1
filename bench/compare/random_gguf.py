# SPDX-License-Identifier: Apache-2.0
"""Random models of a compiled-in geometry as GGUF v3 files in Q4_0, for llama.cpp: target (architecture "qwen35") and
draft (architecture "dflash"). Every matrix is Q4_0, small tensors are F32. Written as a stream: memory stays small.

Q4_0: 32 weights are one fp16 scale and 16 bytes of codes, weight = scale * (code - 8); 4.5 bits a weight, as ours.
A matrix is copied in runs from random places of a pool of random blocks, as our own random packages are."""

import struct
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "parity"))

import gguf  # noqa: E402

F32, Q4_0 = 0, 2
BLOCK_WEIGHTS, BLOCK_BYTES = 32, 18
POOL_BLOCKS = 1 << 18
RUN_BLOCKS = 1 << 12

# What `splash explain` does not print of the drafts (src/model/dflash2.h, nano.h).
_REAL = {
    "q_heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "window": 2048,
    "rank": 256,
    "top_k": 16,
    "group": 16,
    "taps": 2,
}
DRAFTS = {
    "qwen3.8-27b": {**_REAL, "ffn": 17408, "capture": [5, 19, 33, 47, 61], "mask": 248070},
    "nano": {
        **_REAL,
        "q_heads": 4,
        "kv_heads": 2,
        "head_dim": 64,
        "rank": 64,
        "ffn": 768,
        "capture": [1, 4, 6],
        "mask": 8185,
    },
}


def target_config(geometry, layers):
    """The text_config that tests/parity/gguf.py reads, from the geometry object of `splash explain --json`."""
    g = geometry
    interval = g["layers"] // g["attention_layers"]
    pairs = g["rotary_dims"] // 2
    section = [-(-pairs // 3), -(-(pairs - 1) // 3), pairs // 3]
    return {
        "num_hidden_layers": layers,
        "hidden_size": g["hidden"],
        "vocab_size": g["vocab"],
        "intermediate_size": g["ffn_width"],
        "max_position_embeddings": g["max_positions"],
        "num_attention_heads": g["q_heads"],
        "num_key_value_heads": g["kv_heads"],
        "head_dim": g["head_dim"],
        "partial_rotary_factor": g["rotary_dims"] / g["head_dim"],
        "linear_num_key_heads": g["gdn_key_heads"],
        "linear_num_value_heads": g["gdn_value_heads"],
        "linear_value_head_dim": g["gdn_head_dim"],
        "full_attention_interval": interval,
        "layer_types": ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)],
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1e7, "mrope_section": section},
    }


def target_tensors(c):
    """(name, type, shape with the inputs last)."""
    hidden, ffn, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    q, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    values, gdn_dim = c["linear_num_value_heads"], c["linear_value_head_dim"]
    channels = (2 * c["linear_num_key_heads"] + values) * gdn_dim
    yield "token_embd.weight", Q4_0, (vocab, hidden)
    yield "output_norm.weight", F32, (hidden,)
    yield "output.weight", Q4_0, (vocab, hidden)
    attention = [
        ("attn_q.weight", Q4_0, (2 * q * dim, hidden)),
        ("attn_k.weight", Q4_0, (kv * dim, hidden)),
        ("attn_v.weight", Q4_0, (kv * dim, hidden)),
        ("attn_output.weight", Q4_0, (hidden, q * dim)),
        ("attn_q_norm.weight", F32, (dim,)),
        ("attn_k_norm.weight", F32, (dim,)),
    ]
    delta = [
        ("attn_qkv.weight", Q4_0, (channels, hidden)),
        ("attn_gate.weight", Q4_0, (values * gdn_dim, hidden)),
        ("ssm_beta.weight", Q4_0, (values, hidden)),
        ("ssm_alpha.weight", Q4_0, (values, hidden)),
        ("ssm_conv1d.weight", F32, (channels, 4)),
        ("ssm_a", F32, (values,)),
        ("ssm_dt.bias", F32, (values,)),
        ("ssm_norm.weight", F32, (gdn_dim,)),
        ("ssm_out.weight", Q4_0, (hidden, values * gdn_dim)),
    ]
    both = [
        ("attn_norm.weight", F32, (hidden,)),
        ("post_attention_norm.weight", F32, (hidden,)),
        ("ffn_gate.weight", Q4_0, (ffn, hidden)),
        ("ffn_up.weight", Q4_0, (ffn, hidden)),
        ("ffn_down.weight", Q4_0, (hidden, ffn)),
    ]
    for layer, kind in enumerate(c["layer_types"]):
        for name, form, shape in (attention if kind == "full_attention" else delta) + both:
            yield f"blk.{layer}.{name}", form, shape


def draft_tensors(d, n_layers, hidden, vocab):
    dim, q, kv = d["head_dim"], d["q_heads"], d["kv_heads"]
    taps = (hidden, 2 * d["taps"] * hidden // d["group"])
    yield "fc.weight", Q4_0, (hidden, len(d["capture"]) * hidden)
    yield "enc.output_norm.weight", F32, (hidden,)
    yield "output_norm.weight", F32, (hidden,)
    yield "selector_predecessor.weight", Q4_0, (vocab, d["rank"])
    yield "selector_successor.weight", Q4_0, (vocab, d["rank"])
    yield "selector_hidden.weight", Q4_0, (d["rank"], hidden)
    for layer in range(n_layers):
        for name, form, shape in [
            ("attn_norm.weight", F32, (hidden,)),
            ("attn_q.weight", Q4_0, (q * dim, hidden)),
            ("attn_k.weight", Q4_0, (kv * dim, hidden)),
            ("attn_v.weight", Q4_0, (kv * dim, hidden)),
            ("attn_output.weight", Q4_0, (hidden, q * dim)),
            ("attn_q_norm.weight", F32, (dim,)),
            ("attn_k_norm.weight", F32, (dim,)),
            ("ffn_norm.weight", F32, (hidden,)),
            ("ffn_gate.weight", Q4_0, (d["ffn"], hidden)),
            ("ffn_up.weight", Q4_0, (d["ffn"], hidden)),
            ("ffn_down.weight", Q4_0, (hidden, d["ffn"])),
            ("attn_conv_base", F32, (2, d["taps"], hidden)),
            ("attn_conv_proj.weight", Q4_0, taps[::-1]),
            ("ffn_conv_base", F32, (2, d["taps"], hidden)),
            ("ffn_conv_proj.weight", Q4_0, taps[::-1]),
        ]:
            yield f"blk.{layer}.{name}", form, shape


def draft_keys(d, n_layers, hidden, vocab):
    p = gguf._pair
    yield p("general.architecture", gguf._STRING, "dflash")
    for name, value in {
        "block_count": n_layers,
        "context_length": 262144,
        "embedding_length": hidden,
        "feed_forward_length": d["ffn"],
        "attention.head_count": d["q_heads"],
        "attention.head_count_kv": d["kv_heads"],
        "attention.key_length": d["head_dim"],
        "attention.value_length": d["head_dim"],
        "rope.dimension_count": d["head_dim"],
        "block_size": 8,
        "conv_kernel_size": d["taps"],
        "conv_group_size": d["group"],
        "selector_rank": d["rank"],
        "selector_top_k": d["top_k"],
    }.items():
        yield p("dflash." + name, gguf._U32, value)
    yield p("dflash.attention.layer_norm_rms_epsilon", gguf._F32, 1e-6)
    yield p("dflash.rope.freq_base", gguf._F32, 1e7)
    yield p("dflash.target_layers", gguf._ARRAY, (gguf._I32, [i + 1 for i in d["capture"]]))
    yield from _vocabulary(vocab)
    yield p("tokenizer.ggml.mask_token_id", gguf._U32, d["mask"])


def _vocabulary(vocab):
    """Token ids are fed directly: any vocabulary of the right size will do."""
    names = ["a", "b", "ab"] + [f"t{i}" for i in range(3, vocab)]
    yield gguf._pair("tokenizer.ggml.model", gguf._STRING, "gpt2")
    yield gguf._pair("tokenizer.ggml.pre", gguf._STRING, "qwen35")
    yield gguf._pair("tokenizer.ggml.tokens", gguf._ARRAY, (gguf._STRING, names))
    yield gguf._pair("tokenizer.ggml.token_type", gguf._ARRAY, (gguf._I32, [1] * vocab))
    yield gguf._pair("tokenizer.ggml.merges", gguf._ARRAY, (gguf._STRING, ["a b"]))
    yield gguf._pair("tokenizer.ggml.eos_token_id", gguf._U32, 0)
    yield gguf._pair("tokenizer.ggml.padding_token_id", gguf._U32, 0)


def tensor_bytes(form, shape):
    n = int(np.prod(shape))
    return 4 * n if form == F32 else n // BLOCK_WEIGHTS * BLOCK_BYTES


def n_parameters(tensors):
    """Weights of all matrices: what one counts as parameters, small vectors and convolution taps left out."""
    return sum(int(np.prod(shape)) for _, form, shape in tensors if form == Q4_0)


class Blocks:
    """Random Q4_0 blocks whose weights deviate by 1/sqrt(inputs), so that activations keep their size."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.pool = np.empty((POOL_BLOCKS + RUN_BLOCKS, BLOCK_BYTES), np.uint8)
        self.pool[:] = self.random.integers(0, 256, self.pool.shape, np.uint8)

    def write(self, file, shape):
        n_blocks = int(np.prod(shape)) // BLOCK_WEIGHTS
        jitter = self.random.uniform(0.75, 1.25, len(self.pool))
        scales = (jitter / (4.61 * np.sqrt(shape[-1]))).astype("<f2")
        self.pool[:, :2] = scales.view(np.uint8).reshape(-1, 2)
        for at in range(0, n_blocks, RUN_BLOCKS):
            begin = int(self.random.integers(0, POOL_BLOCKS))
            file.write(self.pool[begin : begin + min(RUN_BLOCKS, n_blocks - at)])


def _small(name, shape, random):
    """Values as trained models have them: multipliers about one, decays between 0.5 and 1."""
    if name.endswith("ssm_a"):
        return -random.uniform(0.1, 1.0, shape)
    if name.endswith("ssm_dt.bias"):
        return random.uniform(-4.0, -1.0, shape)
    if "conv" in name:
        return random.uniform(-0.5, 0.5, shape)
    return random.uniform(0.8, 1.2, shape)


def write(path, pairs, tensors, seed=1):
    """pairs: packed metadata; tensors: (name, type, shape)."""
    pairs, tensors = list(pairs), list(tensors)
    head = [b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)), *pairs]
    offset = 0
    for name, form, shape in tensors:
        if form == Q4_0 and shape[-1] % BLOCK_WEIGHTS:
            raise ValueError(f"{name}: {shape[-1]} inputs are no whole Q4_0 blocks")
        head.append(gguf._text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], form, offset))
        offset += -(-tensor_bytes(form, shape) // gguf.ALIGNMENT) * gguf.ALIGNMENT
    head = b"".join(head)
    blocks = Blocks(seed)
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % gguf.ALIGNMENT))
        for name, form, shape in tensors:
            if form == Q4_0:
                blocks.write(file, shape)
            else:
                file.write(_small(name, shape, blocks.random).astype("<f4").tobytes())
            file.write(bytes(-tensor_bytes(form, shape) % gguf.ALIGNMENT))


def write_target(path, geometry, layers):
    config = target_config(geometry, layers)
    tensors = list(target_tensors(config))
    write(path, gguf._keys(config), tensors)
    return sum(tensor_bytes(form, shape) for _, form, shape in tensors)


def write_draft(path, geometry):
    d = DRAFTS[geometry["id"]]
    words = d, geometry["draft_layers"], geometry["hidden"], geometry["vocab"]
    tensors = list(draft_tensors(*words))
    write(path, draft_keys(*words), tensors, seed=2)
    return sum(tensor_bytes(form, shape) for _, form, shape in tensors)
