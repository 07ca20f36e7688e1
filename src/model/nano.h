/* SPDX-License-Identifier: Apache-2.0
 * nano: the embedded default model, a small hybrid of the family trained by train/. Two attention
 * layers (3 and 7), six GDN layers, untied embedding and head. Sizes are chosen so that a laptop
 * core trains it in hours and the package stays under 12 MB. */
#ifndef SPL_MODEL_NANO_H
#define SPL_MODEL_NANO_H

#include "model/geometry.h"

enum {
    NANO_HIDDEN = 256,
    NANO_VOCAB = 8192,
    NANO_Q_HEADS = 4,
    NANO_KV_HEADS = 2,
    NANO_HEAD_DIM = 64,
    NANO_FFN_WIDTH = 768,
    NANO_FIRST_ADDED_TOKEN = 8159 /* the family's 33 added tokens end the vocabulary */
};
_Static_assert(NANO_HIDDEN % SPL_GROUP == 0, "inputs come in quantisation groups");
_Static_assert(NANO_FIRST_ADDED_TOKEN + 33 == NANO_VOCAB, "33 added tokens");

static const spl_draft_geometry nano_draft = {
    .n_layers = 2,
    .hidden = NANO_HIDDEN,
    .ffn_width = 768,
    .n_q_heads = 4,
    .n_kv_heads = 2,
    .head_dim = 64,
    .window_tokens = 2048,
    .block_rows = SPL_BLOCK_ROWS,
    .conv_group = 16,
    .conv_taps = 2,
    .selector_rank = 64,
    .selector_top_k = 16,
    .mask_token = NANO_FIRST_ADDED_TOKEN + 26,
    .n_capture = 3,
    .capture = {1, 4, 6},
    .rope_theta = 1e7f,
    .rms_eps = 1e-6f,
};

static const spl_geometry nano_geometry = {
    .id = "nano",
    .display = "Splash nano",
    .model_type = "qwen3_5_text",
    .chat_template = "qwen3.5",
    .n_layers = 8,
    .hidden = NANO_HIDDEN,
    .vocab = NANO_VOCAB,
    .attention_interval = 4,
    .n_q_heads = NANO_Q_HEADS,
    .n_kv_heads = NANO_KV_HEADS,
    .head_dim = NANO_HEAD_DIM,
    .rotary_dims = 16,
    .mrope_section = {3, 3, 2},
    .rope_theta = 1e7f,
    .rms_eps = 1e-6f,
    .gdn_key_heads = 2,
    .gdn_value_heads = 4,
    .gdn_head_dim = 64,
    .ffn_width = NANO_FFN_WIDTH,
    .max_positions = 65536,
    .n_stop_tokens = 2,
    .stop_tokens = {NANO_FIRST_ADDED_TOKEN, NANO_FIRST_ADDED_TOKEN + 2},
    .image_token = NANO_FIRST_ADDED_TOKEN + 12,
    .draft = &nano_draft,
};

#endif
