# SPDX-License-Identifier: Apache-2.0
"""The compiled-in test shapes as the published configuration spells them (src/model/toy.h, nano.h).

The packer compares every number with its own geometry, so a number that drifts apart fails there."""

INTERVALS = {"toy": 4, "toy-ratio3": 4, "toy-even": 2, "nano": 4}

_FIELDS = (
    "num_hidden_layers hidden_size vocab_size num_attention_heads num_key_value_heads head_dim rotary_dims "
    "mrope_section rope_theta linear_num_key_heads linear_num_value_heads linear_head_dim intermediate_size "
    "max_position_embeddings"
).split()
_ROWS = {
    "toy": (8, 128, 512, 4, 2, 32, 8, [2, 1, 1], 1e7, 2, 4, 32, 192, 4096),
    "toy-ratio3": (4, 192, 512, 6, 1, 64, 16, [3, 3, 2], 1e6, 1, 3, 64, 320, 4096),
    "toy-even": (6, 64, 512, 2, 2, 128, 32, [6, 5, 5], 1e4, 2, 2, 128, 128, 4096),
    "nano": (8, 256, 8192, 4, 2, 64, 16, [3, 3, 2], 1e7, 2, 4, 64, 768, 65536),
}
# Layers whose outputs the draft reads.
CAPTURE = {"toy": (1, 4, 6), "nano": (1, 4, 6)}
TOYS = ("toy", "toy-ratio3", "toy-even")


def text_config(shape):
    """The text_config object of config.json."""
    row = dict(zip(_FIELDS, _ROWS[shape]))
    interval = INTERVALS[shape]
    rotary = row.pop("rotary_dims")
    head_dim = row.pop("linear_head_dim")
    factor = rotary / row["head_dim"]
    rope = {
        "rope_type": "default",
        "rope_theta": row.pop("rope_theta"),
        "partial_rotary_factor": factor,
        "mrope_section": row.pop("mrope_section"),
        "mrope_interleaved": True,
    }
    layers = row["num_hidden_layers"]
    return {
        **row,
        "model_type": "qwen3_5_text",
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "output_gate_type": "swish",
        "full_attention_interval": interval,
        "layer_types": ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)],
        "partial_rotary_factor": factor,
        "rope_parameters": rope,
        "dtype": "bfloat16",
        "mamba_ssm_dtype": "float32",
    }


def config(shape):
    """The whole config.json."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "language_model_only": True,
        "text_config": text_config(shape),
    }
