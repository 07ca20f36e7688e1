# SPDX-License-Identifier: Apache-2.0
"""A model of the family as a GGUF v3 file of F32 tensors (architecture "qwen35").

Three conventions differ from the published checkpoint: norm multipliers are stored whole (weight + 1),
ssm_a is -exp(A_log), and value heads come in tiled order: position p holds head (p mod Hk) * r + p div Hk,
r = Hv / Hk, so that its key head is p mod Hk."""

import struct

import numpy as np

ALIGNMENT = 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


def _text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pair(key, kind, value):
    packed = {_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}
    head = _text(key) + struct.pack("<I", kind)
    if kind == _STRING:
        return head + _text(value)
    if kind == _ARRAY:
        element, items = value
        body = b"".join(_text(i) if element == _STRING else struct.pack(packed[element], i) for i in items)
        return head + struct.pack("<IQ", element, len(items)) + body
    return head + struct.pack(packed[kind], value)


def tiled_heads(key_heads, value_heads):
    """Published head at every tiled position."""
    ratio = value_heads // key_heads
    return [(p % key_heads) * ratio + p // key_heads for p in range(value_heads)]


def _tile_rows(matrix, heads, rows_per_head):
    blocks = matrix.reshape(len(heads), rows_per_head, -1)
    return blocks[heads].reshape(matrix.shape)


def _delta(w, c):
    prefix = "linear_attn."
    dim, key_heads = c["linear_value_head_dim"], c["linear_num_key_heads"]
    heads = tiled_heads(key_heads, c["linear_num_value_heads"])
    keys = 2 * key_heads * dim
    qkv, conv = w[prefix + "in_proj_qkv.weight"], w[prefix + "conv1d.weight"].reshape(-1, 4)
    out = w[prefix + "out_proj.weight"]
    return {
        "attn_qkv.weight": np.concatenate([qkv[:keys], _tile_rows(qkv[keys:], heads, dim)]),
        "attn_gate.weight": _tile_rows(w[prefix + "in_proj_z.weight"], heads, dim),
        "ssm_beta.weight": w[prefix + "in_proj_b.weight"][heads],
        "ssm_alpha.weight": w[prefix + "in_proj_a.weight"][heads],
        "ssm_conv1d.weight": np.concatenate([conv[:keys], _tile_rows(conv[keys:], heads, dim)]),
        "ssm_a": -np.exp(w[prefix + "A_log"].astype(np.float64))[heads],
        "ssm_dt.bias": w[prefix + "dt_bias"][heads],
        "ssm_norm.weight": w[prefix + "norm.weight"],
        "ssm_out.weight": out.reshape(out.shape[0], len(heads), dim)[:, heads].reshape(out.shape),
    }


def _attention(w):
    return {
        "attn_q.weight": w["self_attn.q_proj.weight"],
        "attn_k.weight": w["self_attn.k_proj.weight"],
        "attn_v.weight": w["self_attn.v_proj.weight"],
        "attn_output.weight": w["self_attn.o_proj.weight"],
        "attn_q_norm.weight": w["self_attn.q_norm.weight"] + 1,
        "attn_k_norm.weight": w["self_attn.k_norm.weight"] + 1,
    }


def _tensors(weights, c):
    yield "token_embd.weight", weights["model.embed_tokens.weight"]
    yield "output_norm.weight", weights["model.norm.weight"] + 1
    yield "output.weight", weights["lm_head.weight"]
    for layer, kind in enumerate(c["layer_types"]):
        prefix = f"model.layers.{layer}."
        w = {n[len(prefix) :]: v for n, v in weights.items() if n.startswith(prefix)}
        part = _attention(w) if kind == "full_attention" else _delta(w, c)
        part["attn_norm.weight"] = w["input_layernorm.weight"] + 1
        part["post_attention_norm.weight"] = w["post_attention_layernorm.weight"] + 1
        for name in ("gate", "up", "down"):
            part[f"ffn_{name}.weight"] = w[f"mlp.{name}_proj.weight"]
        for name, value in part.items():
            yield f"blk.{layer}.{name}", value


def _keys(c):
    a = "qwen35."
    rotary = int(c["head_dim"] * c["partial_rotary_factor"])
    heads, dim = c["linear_num_value_heads"], c["linear_value_head_dim"]
    numbers = {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.key_length": c["head_dim"],
        "attention.value_length": c["head_dim"],
        "rope.dimension_count": rotary,
        "full_attention_interval": c["full_attention_interval"],
        "ssm.conv_kernel": 4,
        "ssm.state_size": dim,
        "ssm.group_count": c["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * dim,
    }
    yield _pair("general.architecture", _STRING, "qwen35")
    for name, value in numbers.items():
        yield _pair(a + name, _U32, value)
    yield _pair(a + "attention.layer_norm_rms_epsilon", _F32, c["rms_norm_eps"])
    yield _pair(a + "rope.freq_base", _F32, c["rope_parameters"]["rope_theta"])
    sections = c["rope_parameters"]["mrope_section"] + [0]
    yield _pair(a + "rope.dimension_sections", _ARRAY, (_I32, sections))
    yield from _vocabulary(c["vocab_size"])


def _vocabulary(n):
    """Token ids are fed directly: any vocabulary of the right size will do."""
    names = [f"t{i}" for i in range(n)]
    names[:3] = ["a", "b", "ab"]
    yield _pair("tokenizer.ggml.model", _STRING, "gpt2")
    yield _pair("tokenizer.ggml.pre", _STRING, "qwen35")
    yield _pair("tokenizer.ggml.tokens", _ARRAY, (_STRING, names))
    yield _pair("tokenizer.ggml.token_type", _ARRAY, (_I32, [1] * len(names)))
    yield _pair("tokenizer.ggml.merges", _ARRAY, (_STRING, ["a b"]))
    yield _pair("tokenizer.ggml.eos_token_id", _U32, 0)
    yield _pair("tokenizer.ggml.padding_token_id", _U32, 0)


def _draft_tensors(weights, draft, g):
    yield "token_embd.weight", weights["model.embed_tokens.weight"]
    yield "output.weight", weights["lm_head.weight"]
    names = {
        "fc.weight": "fc.weight",
        "hidden_norm.weight": "enc.output_norm.weight",
        "norm.weight": "output_norm.weight",
        "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
        "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
        "candidate_selector.successor_codebook": "selector_successor.weight",
    }
    per_layer = {
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "ffn_norm.weight",
        "attention_conv.base_kernel": "attn_conv_base",
        "attention_conv.kernel_projection.weight": "attn_conv_proj.weight",
        "mlp_conv.base_kernel": "ffn_conv_base",
        "mlp_conv.kernel_projection.weight": "ffn_conv_proj.weight",
        "self_attn.o_proj.weight": "attn_output.weight",
        "self_attn.q_norm.weight": "attn_q_norm.weight",
        "self_attn.k_norm.weight": "attn_k_norm.weight",
    }
    per_layer.update({f"self_attn.{n}_proj.weight": f"attn_{n}.weight" for n in "qkv"})
    per_layer.update({f"mlp.{n}_proj.weight": f"ffn_{n}.weight" for n in ("gate", "up", "down")})
    for layer in range(g.layers):
        names.update({f"layers.{layer}.{k}": f"blk.{layer}.{v}" for k, v in per_layer.items()})
    assert names.keys() == draft.keys()
    for published, name in names.items():
        yield name, draft[published]


def _draft_keys(g, candidates):
    a = "dflash."
    numbers = {
        "block_count": g.layers,
        "context_length": 65536,
        "embedding_length": g.hidden,
        "feed_forward_length": g.intermediate,
        "attention.head_count": g.heads,
        "attention.head_count_kv": g.kv_heads,
        "attention.key_length": g.head_dim,
        "attention.value_length": g.head_dim,
        "rope.dimension_count": g.head_dim,
        "block_size": g.block,
        "conv_kernel_size": 2,
        "conv_group_size": g.group,
        "selector_rank": g.rank,
        "selector_top_k": candidates,
    }
    yield _pair("general.architecture", _STRING, "dflash")
    for name, value in numbers.items():
        yield _pair(a + name, _U32, value)
    yield _pair(a + "attention.layer_norm_rms_epsilon", _F32, g.eps)
    yield _pair(a + "rope.freq_base", _F32, g.theta)
    yield _pair(a + "attention.causal", _BOOL, False)
    # Inputs of the layers behind the tapped ones.
    yield _pair(a + "target_layers", _ARRAY, (_I32, [layer + 1 for layer in g.taps]))
    yield from _vocabulary(g.vocab)
    yield _pair("tokenizer.ggml.mask_token_id", _U32, g.mask_token)

def write(path, weights, config):
    """weights: fp32 arrays under the published names; config: the text_config."""
    _write(path, _keys(config), _tensors(weights, config))


def write_draft(path, weights, draft, g, candidates):
    """draft: fp32 arrays under the published names, with embedding and head out of `weights`. `candidates` may be
    below g.candidates: llama.cpp packs the selector's table into one hidden row."""
    assert candidates * (candidates + 1) <= g.hidden
    _write(path, _draft_keys(g, candidates), _draft_tensors(weights, draft, g))


def _write(path, pairs, tensors):
    pairs = list(pairs)
    tensors = [(n, np.ascontiguousarray(v, np.float32)) for n, v in tensors]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    offset = 0
    for name, value in tensors:
        dims = value.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, offset)
        offset += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGNMENT))
        for _, value in tensors:
            f.write(value.tobytes() + bytes(-value.nbytes % ALIGNMENT))
