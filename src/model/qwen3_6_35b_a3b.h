/* SPDX-License-Identifier: Apache-2.0
 * Qwen3.6-35B-A3B: the mixture-of-experts member. 40 layers, every fourth one gated attention; each
 * layer ends in 256 routed experts of which 8 run per token, plus one shared expert; DFlash 2 draft of
 * six layers. */
#ifndef SPL_MODEL_QWEN3_6_35B_A3B_H
#define SPL_MODEL_QWEN3_6_35B_A3B_H

#include "model/dflash2.h"
#include "model/vision.h"

enum {
    Q36_LAYERS = 40,
    Q36_HIDDEN = 2048,
    Q36_VOCAB = 248320, /* the same padded vocabulary as the dense member */
    Q36_Q_HEADS = 16,
    Q36_KV_HEADS = 2, /* eight query heads share one KV head: 10,400 KV bytes a token */
    Q36_HEAD_DIM = 256,
    Q36_ROTARY_DIMS = 64,
    Q36_Q_WIDTH = Q36_Q_HEADS * Q36_HEAD_DIM,
    Q36_KV_WIDTH = Q36_KV_HEADS * Q36_HEAD_DIM,
    Q36_ATTENTION_IN_WIDTH = 9216,
    Q36_GDN_KEY_HEADS = 16,
    Q36_GDN_VALUE_HEADS = 32, /* key head h serves value heads 2h and 2h + 1 */
    Q36_GDN_HEAD_DIM = 128,
    Q36_GDN_CHANNELS = 8192,
    Q36_GDN_IN_WIDTH = 12352, /* the published package pads it to 12544 */
    Q36_EXPERTS = 256,
    Q36_EXPERTS_PER_TOKEN = 8, /* their softmax weights are renormalised to sum to one */
    Q36_EXPERT_WIDTH = 512,
    Q36_SHARED_EXPERT_WIDTH = 512, /* runs for every token, scaled by a sigmoid gate */
    Q36_MAX_POSITIONS = 262144,
    Q36_END_OF_TEXT = 248044,
    Q36_IM_END = 248046,
    Q36_IMAGE_TOKEN = 248056,
    Q36_DRAFT_LAYERS = 6,
    Q36_DRAFT_FFN_WIDTH = 6144,
    Q36_DRAFT_MASK_TOKEN = 248077 /* a padding id without text */
};
_Static_assert(Q36_ATTENTION_IN_WIDTH == 2 * Q36_Q_WIDTH + 2 * Q36_KV_WIDTH, "query, output gate, key, value");
_Static_assert(Q36_GDN_CHANNELS == (2 * Q36_GDN_KEY_HEADS + Q36_GDN_VALUE_HEADS) * Q36_GDN_HEAD_DIM, "q, k, v");
_Static_assert(Q36_GDN_IN_WIDTH == Q36_GDN_CHANNELS + Q36_GDN_VALUE_HEADS * Q36_GDN_HEAD_DIM + 2 * Q36_GDN_VALUE_HEADS,
               "z as wide as v, one b and one a per value head");
_Static_assert((Q36_GDN_IN_WIDTH + 255) / 256 * 256 == 12544, "the published width");
_Static_assert(Q36_GDN_VALUE_HEADS % Q36_GDN_KEY_HEADS == 0 && Q36_Q_HEADS % Q36_KV_HEADS == 0, "whole head groups");
_Static_assert(Q36_HIDDEN % SPL_GROUP == 0 && Q36_EXPERT_WIDTH % SPL_GROUP == 0 && Q36_Q_WIDTH % SPL_GROUP == 0,
               "inputs come in quantisation groups");
_Static_assert(Q36_VOCAB % SPL_ROWS_PER_TILE == 0 && Q36_EXPERTS % SPL_ROWS_PER_TILE == 0, "whole panels");

static const spl_draft_geometry q36_draft = {
    DFLASH2_COMMON,
    .n_layers = Q36_DRAFT_LAYERS,
    .hidden = Q36_HIDDEN,
    .ffn_width = Q36_DRAFT_FFN_WIDTH,
    .mask_token = Q36_DRAFT_MASK_TOKEN,
    .n_capture = 8,
    .capture = {1, 6, 11, 16, 22, 27, 32, 37},
};

static const spl_vision_geometry q36_vision = VISION_TOWER(Q36_HIDDEN);

static const spl_geometry q36_geometry = {
    .id = "qwen3.6-35b-a3b",
    .display = "Qwen3.6-35B-A3B",
    .model_type = "qwen3_5_moe_text",
    .chat_template = "qwen3.6",
    .n_layers = Q36_LAYERS,
    .hidden = Q36_HIDDEN,
    .vocab = Q36_VOCAB,
    .attention_interval = 4,
    .n_q_heads = Q36_Q_HEADS,
    .n_kv_heads = Q36_KV_HEADS,
    .head_dim = Q36_HEAD_DIM,
    .rotary_dims = Q36_ROTARY_DIMS,
    .mrope_section = {11, 11, 10},
    .rope_theta = 1e7f,
    .rms_eps = 1e-6f,
    .gdn_key_heads = Q36_GDN_KEY_HEADS,
    .gdn_value_heads = Q36_GDN_VALUE_HEADS,
    .gdn_head_dim = Q36_GDN_HEAD_DIM,
    .n_experts = Q36_EXPERTS,
    .experts_per_token = Q36_EXPERTS_PER_TOKEN,
    .expert_width = Q36_EXPERT_WIDTH,
    .shared_expert_width = Q36_SHARED_EXPERT_WIDTH,
    .max_positions = Q36_MAX_POSITIONS,
    .n_stop_tokens = 2,
    .stop_tokens = {Q36_END_OF_TEXT, Q36_IM_END},
    .image_token = Q36_IMAGE_TOKEN,
    .draft = &q36_draft,
    .vision = &q36_vision,
};

#endif
