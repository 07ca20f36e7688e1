/* SPDX-License-Identifier: Apache-2.0
 * Toy shapes for tests: real code in well under a second. They differ in what can go wrong: key
 * heads below value heads (ratio 2 and 3), several layers of both kinds, rotary over part of the
 * head, head dims other than the real ones, widths that are not multiples of 16 rows. */
#ifndef SPL_MODEL_TOY_H
#define SPL_MODEL_TOY_H

#include "model/geometry.h"

enum { TOY_VOCAB = 512 };

static const spl_draft_geometry toy_draft = {
    .n_layers = 2,
    .hidden = 128,
    .ffn_width = 192,
    .n_q_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 32,
    .window_tokens = 64,
    .block_rows = SPL_BLOCK_ROWS,
    .conv_group = 16,
    .conv_taps = 2,
    .selector_rank = 64,
    .selector_top_k = 16,
    .mask_token = 506,
    .n_capture = 3,
    .capture = {1, 4, 6},
    .rope_theta = 1e7f,
    .rms_eps = 1e-6f,
};

/* 8 layers, value heads = 2 x key heads. */
static const spl_geometry toy_geometry = {
    .id = "toy",
    .display = "toy",
    .model_type = "qwen3_5_text",
    .chat_template = "qwen3.8",
    .test_only = true,
    .n_layers = 8,
    .hidden = 128,
    .vocab = TOY_VOCAB,
    .attention_interval = 4,
    .n_q_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 32,
    .rotary_dims = 8,
    .mrope_section = {2, 1, 1},
    .rope_theta = 1e7f,
    .rms_eps = 1e-6f,
    .gdn_key_heads = 2,
    .gdn_value_heads = 4,
    .gdn_head_dim = 32,
    .ffn_width = 192,
    .max_positions = 4096,
    .n_stop_tokens = 2,
    .stop_tokens = {480, 482},
    .image_token = 492,
    .draft = &toy_draft,
};

/* 4 layers, value heads = 3 x key heads as in the 27B, one KV head for six query heads. */
static const spl_geometry toy_ratio3_geometry = {
    .id = "toy-ratio3",
    .display = "toy-ratio3",
    .model_type = "qwen3_5_text",
    .chat_template = "qwen3.8",
    .test_only = true,
    .n_layers = 4,
    .hidden = 192,
    .vocab = TOY_VOCAB,
    .attention_interval = 4,
    .n_q_heads = 6,
    .n_kv_heads = 1,
    .head_dim = 64,
    .rotary_dims = 16,
    .mrope_section = {3, 3, 2},
    .rope_theta = 1e6f,
    .rms_eps = 1e-6f,
    .gdn_key_heads = 1,
    .gdn_value_heads = 3,
    .gdn_head_dim = 64,
    .ffn_width = 320,
    .max_positions = 4096,
    .n_stop_tokens = 1,
    .stop_tokens = {480},
    .image_token = TOY_VOCAB,
};

/* 6 layers with attention every second one, key heads = value heads, head dim 128. */
static const spl_geometry toy_even_geometry = {
    .id = "toy-even",
    .display = "toy-even",
    .model_type = "qwen3_5_text",
    .chat_template = "qwen3.5",
    .test_only = true,
    .n_layers = 6,
    .hidden = 64,
    .vocab = TOY_VOCAB,
    .attention_interval = 2,
    .n_q_heads = 2,
    .n_kv_heads = 2,
    .head_dim = 128,
    .rotary_dims = 32,
    .mrope_section = {6, 5, 5},
    .rope_theta = 1e4f,
    .rms_eps = 1e-6f,
    .gdn_key_heads = 2,
    .gdn_value_heads = 2,
    .gdn_head_dim = 128,
    .ffn_width = 128,
    .max_positions = 4096,
    .n_stop_tokens = 1,
    .stop_tokens = {480},
    .image_token = TOY_VOCAB,
};

/* 8 layers of experts: router at 8 bits, sixteen experts of which two run, a shared expert. */
static const spl_geometry toy_moe_geometry = {
    .id = "toy-moe",
    .display = "toy-moe",
    .model_type = "qwen3_5_moe_text",
    .chat_template = "qwen3.6",
    .test_only = true,
    .n_layers = 8,
    .hidden = 128,
    .vocab = TOY_VOCAB,
    .attention_interval = 4,
    .n_q_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 32,
    .rotary_dims = 8,
    .mrope_section = {2, 1, 1},
    .rope_theta = 1e7f,
    .rms_eps = 1e-6f,
    .gdn_key_heads = 2,
    .gdn_value_heads = 4,
    .gdn_head_dim = 32,
    .n_experts = 16,
    .experts_per_token = 2,
    .expert_width = 64,
    .shared_expert_width = 64,
    .max_positions = 4096,
    .n_stop_tokens = 2,
    .stop_tokens = {480, 482},
    .image_token = 492,
    .draft = &toy_draft,
};

#endif
