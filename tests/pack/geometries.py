# SPDX-License-Identifier: Apache-2.0
"""Shapes of the registered models, for writing checkpoints without the engine. test_pack.py compares
every number with the compiled registry."""

DRAFT_COMMON = dict(n_q_heads=32, n_kv_heads=8, head_dim=128, window_tokens=2048, block_rows=8, conv_group=16,
                    conv_taps=2, selector_rank=256, selector_top_k=16, rope_theta=1e7, rms_eps=1e-6)
TOY_DRAFT = dict(DRAFT_COMMON, n_layers=2, hidden=128, ffn_width=192, n_q_heads=4, n_kv_heads=2, head_dim=32,
                 window_tokens=64, selector_rank=64, mask_token=506, capture=[1, 4, 6])
DENSE = dict(n_experts=0, experts_per_token=0, expert_width=0, shared_expert_width=0, rms_eps=1e-6, rope_theta=1e7,
             attention_interval=4)

TOY = dict(DENSE, n_layers=8, hidden=128, vocab=512, n_q_heads=4, n_kv_heads=2, head_dim=32, rotary_dims=8,
           mrope_section=[2, 1, 1], gdn_key_heads=2, gdn_value_heads=4, gdn_head_dim=32, ffn_width=192,
           max_positions=4096, stop_tokens=[480, 482], image_token=492, draft=TOY_DRAFT)

GEOMETRIES = {
    "qwen3.8-27b": dict(
        DENSE, n_layers=64, hidden=5120, vocab=248320, n_q_heads=24, n_kv_heads=4, head_dim=256, rotary_dims=64,
        mrope_section=[11, 11, 10], gdn_key_heads=16, gdn_value_heads=48, gdn_head_dim=128, ffn_width=17408,
        max_positions=262144, stop_tokens=[248044, 248046], image_token=248056,
        draft=dict(DRAFT_COMMON, n_layers=5, hidden=5120, ffn_width=17408, mask_token=248070,
                   capture=[5, 19, 33, 47, 61])),
    "qwen3.6-35b-a3b": dict(
        DENSE, n_layers=40, hidden=2048, vocab=248320, n_q_heads=16, n_kv_heads=2, head_dim=256, rotary_dims=64,
        mrope_section=[11, 11, 10], gdn_key_heads=16, gdn_value_heads=32, gdn_head_dim=128, ffn_width=0,
        n_experts=256, experts_per_token=8, expert_width=512, shared_expert_width=512, max_positions=262144,
        stop_tokens=[248044, 248046], image_token=248056,
        draft=dict(DRAFT_COMMON, n_layers=6, hidden=2048, ffn_width=6144, mask_token=248077,
                   capture=[1, 6, 11, 16, 22, 27, 32, 37])),
    "nano": dict(
        DENSE, n_layers=8, hidden=256, vocab=8192, n_q_heads=4, n_kv_heads=2, head_dim=64, rotary_dims=16,
        mrope_section=[3, 3, 2], gdn_key_heads=2, gdn_value_heads=4, gdn_head_dim=64, ffn_width=768,
        max_positions=65536, stop_tokens=[8159, 8161], image_token=8171,
        draft=dict(DRAFT_COMMON, n_layers=2, hidden=256, ffn_width=768, n_q_heads=4, n_kv_heads=2, head_dim=64,
                   selector_rank=64, mask_token=8185, capture=[1, 4, 6])),
    "toy": TOY,
    "toy-ratio3": dict(
        DENSE, n_layers=4, hidden=192, vocab=512, n_q_heads=6, n_kv_heads=1, head_dim=64, rotary_dims=16,
        mrope_section=[3, 3, 2], rope_theta=1e6, gdn_key_heads=1, gdn_value_heads=3, gdn_head_dim=64, ffn_width=320,
        max_positions=4096, stop_tokens=[480], image_token=512),
    "toy-even": dict(
        DENSE, n_layers=6, hidden=64, vocab=512, attention_interval=2, n_q_heads=2, n_kv_heads=2, head_dim=128,
        rotary_dims=32, mrope_section=[6, 5, 5], rope_theta=1e4, gdn_key_heads=2, gdn_value_heads=2, gdn_head_dim=128,
        ffn_width=128, max_positions=4096, stop_tokens=[480], image_token=512),
    "toy-moe": dict(TOY, ffn_width=0, n_experts=16, experts_per_token=2, expert_width=64, shared_expert_width=64),
}


def is_attention(g, layer):
    return (layer + 1) % g["attention_interval"] == 0


def text_config(g, layers):
    """text_config of the published config.json."""
    moe = g["n_experts"] > 0
    config = {
        "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text", "dtype": "bfloat16",
        "num_hidden_layers": layers, "hidden_size": g["hidden"], "vocab_size": g["vocab"],
        "num_attention_heads": g["n_q_heads"], "num_key_value_heads": g["n_kv_heads"], "head_dim": g["head_dim"],
        "linear_num_key_heads": g["gdn_key_heads"], "linear_num_value_heads": g["gdn_value_heads"],
        "linear_key_head_dim": g["gdn_head_dim"], "linear_value_head_dim": g["gdn_head_dim"],
        "linear_conv_kernel_dim": 4, "full_attention_interval": g["attention_interval"],
        "layer_types": ["full_attention" if is_attention(g, n) else "linear_attention" for n in range(layers)],
        "attn_output_gate": True, "output_gate_type": "swish", "attention_bias": False, "attention_dropout": 0.0,
        "hidden_act": "silu", "rms_norm_eps": g["rms_eps"], "max_position_embeddings": g["max_positions"],
        "tie_word_embeddings": False, "initializer_range": 0.02, "mamba_ssm_dtype": "float32",
        "bos_token_id": g["stop_tokens"][0], "eos_token_id": g["stop_tokens"][0],
        "partial_rotary_factor": g["rotary_dims"] / g["head_dim"],
        "rope_parameters": {"rope_type": "default", "rope_theta": g["rope_theta"], "mrope_interleaved": True,
                            "mrope_section": g["mrope_section"],
                            "partial_rotary_factor": g["rotary_dims"] / g["head_dim"]},
    }
    if moe:
        config.update(num_experts=g["n_experts"], num_experts_per_tok=g["experts_per_token"],
                      moe_intermediate_size=g["expert_width"], shared_expert_intermediate_size=g["shared_expert_width"])
    else:
        config["intermediate_size"] = g["ffn_width"]
    return config


def published_config(g, layers):
    moe = g["n_experts"] > 0
    return {"architectures": ["Qwen3_5MoeForConditionalGeneration" if moe else "Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5_moe" if moe else "qwen3_5", "dtype": "bfloat16", "tie_word_embeddings": False,
            "text_config": text_config(g, layers)}


def draft_config(g):
    d = g["draft"]
    return {"architectures": ["DFlash2DraftModel"], "model_type": "qwen3", "dtype": "bfloat16",
            "num_hidden_layers": d["n_layers"], "hidden_size": d["hidden"], "vocab_size": g["vocab"],
            "intermediate_size": d["ffn_width"], "num_attention_heads": d["n_q_heads"],
            "num_key_value_heads": d["n_kv_heads"], "head_dim": d["head_dim"], "sliding_window": d["window_tokens"],
            "layer_types": ["sliding_attention"] * d["n_layers"], "is_causal": False, "attention_bias": False,
            "tie_word_embeddings": False, "rms_norm_eps": d["rms_eps"], "hidden_act": "silu",
            "num_target_layers": g["n_layers"],
            "rope_parameters": {"rope_type": "default", "rope_theta": d["rope_theta"]},
            "dflash_config": {"block_size": d["block_rows"], "conv_group_size": d["conv_group"],
                              "conv_kernel_size": d["conv_taps"], "selector_top_k": d["selector_top_k"],
                              "selector_rank": d["selector_rank"], "mask_token_id": d["mask_token"],
                              "target_layer_ids": d["capture"]}}


def matrices(g, layers):
    """[(published name without prefix, shape, bits)] of every quantised tensor, in published order."""
    h = g["hidden"]
    out = [("embed_tokens.weight", (g["vocab"], h), 4)]
    value = g["gdn_value_heads"] * g["gdn_head_dim"]
    channels = 2 * g["gdn_key_heads"] * g["gdn_head_dim"] + value
    q, kv = g["n_q_heads"] * g["head_dim"], g["n_kv_heads"] * g["head_dim"]
    for n in range(layers):
        p = f"layers.{n}."
        if is_attention(g, n):
            out += [(p + "self_attn.q_proj.weight", (2 * q, h), 4), (p + "self_attn.k_proj.weight", (kv, h), 4),
                    (p + "self_attn.v_proj.weight", (kv, h), 4), (p + "self_attn.o_proj.weight", (h, q), 4)]
        else:
            out += [(p + "linear_attn.in_proj_qkv.weight", (channels, h), 4),
                    (p + "linear_attn.in_proj_z.weight", (value, h), 4),
                    (p + "linear_attn.in_proj_b.weight", (g["gdn_value_heads"], h), 4),
                    (p + "linear_attn.in_proj_a.weight", (g["gdn_value_heads"], h), 4),
                    (p + "linear_attn.out_proj.weight", (h, value), 4)]
        if g["n_experts"] == 0:
            f = g["ffn_width"]
            out += [(p + "mlp.gate_proj.weight", (f, h), 4), (p + "mlp.up_proj.weight", (f, h), 4),
                    (p + "mlp.down_proj.weight", (h, f), 4)]
            continue
        e, f, s = g["n_experts"], g["expert_width"], g["shared_expert_width"]
        out += [(p + "mlp.gate.weight", (e, h), 8), (p + "mlp.switch_mlp.gate_proj.weight", (e, f, h), 4),
                (p + "mlp.switch_mlp.up_proj.weight", (e, f, h), 4),
                (p + "mlp.switch_mlp.down_proj.weight", (e, h, f), 4),
                (p + "mlp.shared_expert.gate_proj.weight", (s, h), 4),
                (p + "mlp.shared_expert.up_proj.weight", (s, h), 4),
                (p + "mlp.shared_expert.down_proj.weight", (h, s), 4), (p + "mlp.shared_expert_gate.weight", (1, h), 8)]
    return out + [("lm_head.weight", (g["vocab"], h), 4)]


def smalls(g, layers):
    """[(published name without prefix, length or shape, kind)]."""
    out = [("norm.weight", (g["hidden"],), "norm")]
    channels = (2 * g["gdn_key_heads"] + g["gdn_value_heads"]) * g["gdn_head_dim"]
    for n in range(layers):
        p = f"layers.{n}."
        out += [(p + "input_layernorm.weight", (g["hidden"],), "norm"),
                (p + "post_attention_layernorm.weight", (g["hidden"],), "norm")]
        if is_attention(g, n):
            out += [(p + "self_attn.q_norm.weight", (g["head_dim"],), "norm"),
                    (p + "self_attn.k_norm.weight", (g["head_dim"],), "norm")]
        else:
            out += [(p + "linear_attn.conv1d.weight", (channels, 1, 4), "conv"),
                    (p + "linear_attn.A_log", (g["gdn_value_heads"],), "a_log"),
                    (p + "linear_attn.dt_bias", (g["gdn_value_heads"],), "dt_bias"),
                    (p + "linear_attn.norm.weight", (g["gdn_head_dim"],), "plain")]
    return out


def draft_tensors(g):
    """[(name, shape, kind)] of a draft checkpoint; kind is matrix, codebook, base or plain."""
    d = g["draft"]
    h, f, q, kv = d["hidden"], d["ffn_width"], d["n_q_heads"] * d["head_dim"], d["n_kv_heads"] * d["head_dim"]
    rows = 2 * d["conv_taps"] * (h // d["conv_group"])
    out = [("fc.weight", (h, len(d["capture"]) * g["hidden"]), "matrix"), ("hidden_norm.weight", (h,), "plain"),
           ("norm.weight", (h,), "plain"), ("candidate_selector.hidden_projection.weight", (d["selector_rank"], h), "matrix"),
           ("candidate_selector.predecessor_codebook", (g["vocab"], d["selector_rank"]), "codebook"),
           ("candidate_selector.successor_codebook", (g["vocab"], d["selector_rank"]), "codebook")]
    for n in range(d["n_layers"]):
        p = f"layers.{n}."
        out += [(p + "input_layernorm.weight", (h,), "plain"),
                (p + "attention_conv.base_kernel", (2, d["conv_taps"], h), "base"),
                (p + "attention_conv.kernel_projection.weight", (rows, h), "matrix"),
                (p + "self_attn.q_proj.weight", (q, h), "matrix"), (p + "self_attn.k_proj.weight", (kv, h), "matrix"),
                (p + "self_attn.v_proj.weight", (kv, h), "matrix"), (p + "self_attn.o_proj.weight", (h, q), "matrix"),
                (p + "self_attn.q_norm.weight", (d["head_dim"],), "plain"),
                (p + "self_attn.k_norm.weight", (d["head_dim"],), "plain"),
                (p + "post_attention_layernorm.weight", (h,), "plain"),
                (p + "mlp_conv.base_kernel", (2, d["conv_taps"], h), "base"),
                (p + "mlp_conv.kernel_projection.weight", (rows, h), "matrix"),
                (p + "mlp.gate_proj.weight", (f, h), "matrix"), (p + "mlp.up_proj.weight", (f, h), "matrix"),
                (p + "mlp.down_proj.weight", (h, f), "matrix")]
    return out
