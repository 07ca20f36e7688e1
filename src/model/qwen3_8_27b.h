/* SPDX-License-Identifier: Apache-2.0
 * Qwen3.8-27B: the dense hybrid the engine is built around. 64 layers, every fourth one gated
 * attention, the others Gated DeltaNet; untied embedding and head; DFlash 2 draft of five layers. */
#ifndef SPL_MODEL_QWEN3_8_27B_H
#define SPL_MODEL_QWEN3_8_27B_H

#include "model/dflash2.h"
#include "model/vision.h"

enum {
    Q38_LAYERS = 64,
    Q38_HIDDEN = 5120,
    Q38_VOCAB = 248320, /* padded to a multiple of 256 beyond the last id with text */
    Q38_Q_HEADS = 24,
    Q38_KV_HEADS = 4, /* six query heads share one KV head: 33,280 KV bytes a token instead of 199,680 */
    Q38_HEAD_DIM = 256,
    Q38_ROTARY_DIMS = 64, /* the first quarter of a head rotates, the rest carries no position */
    Q38_Q_WIDTH = Q38_Q_HEADS * Q38_HEAD_DIM,
    Q38_KV_WIDTH = Q38_KV_HEADS * Q38_HEAD_DIM,
    Q38_ATTENTION_IN_WIDTH = 14336, /* rows of the packed input projection */
    Q38_GDN_KEY_HEADS = 16,
    Q38_GDN_VALUE_HEADS = 48, /* key head h serves value heads 3h .. 3h + 2 */
    Q38_GDN_HEAD_DIM = 128,
    Q38_GDN_CHANNELS = 10240, /* q, k and v go through one convolution */
    Q38_GDN_IN_WIDTH = 16480, /* q | k | v | z | b | a; the published package pads it to 16640 */
    Q38_FFN_WIDTH = 17408,
    Q38_MAX_POSITIONS = 262144,
    Q38_END_OF_TEXT = 248044,
    Q38_IM_END = 248046,
    Q38_IMAGE_TOKEN = 248056,
    Q38_DRAFT_LAYERS = 5,
    Q38_DRAFT_FFN_WIDTH = 17408,
    Q38_DRAFT_MASK_TOKEN = 248070
};
_Static_assert(Q38_ATTENTION_IN_WIDTH == 2 * Q38_Q_WIDTH + 2 * Q38_KV_WIDTH, "query, output gate, key, value");
_Static_assert(Q38_GDN_CHANNELS == (2 * Q38_GDN_KEY_HEADS + Q38_GDN_VALUE_HEADS) * Q38_GDN_HEAD_DIM, "q, k, v");
_Static_assert(Q38_GDN_IN_WIDTH == Q38_GDN_CHANNELS + Q38_GDN_VALUE_HEADS * Q38_GDN_HEAD_DIM + 2 * Q38_GDN_VALUE_HEADS,
               "z as wide as v, one b and one a per value head");
_Static_assert((Q38_GDN_IN_WIDTH + 255) / 256 * 256 == 16640, "the published width");
_Static_assert(Q38_GDN_VALUE_HEADS % Q38_GDN_KEY_HEADS == 0 && Q38_Q_HEADS % Q38_KV_HEADS == 0, "whole head groups");
_Static_assert(Q38_HIDDEN % SPL_GROUP == 0 && Q38_FFN_WIDTH % SPL_GROUP == 0 && Q38_Q_WIDTH % SPL_GROUP == 0,
               "inputs come in quantisation groups");
_Static_assert(Q38_VOCAB % SPL_ROWS_PER_TILE == 0, "the head has whole panels");

static const spl_draft_geometry q38_draft = {
    DFLASH2_COMMON,
    .n_layers = Q38_DRAFT_LAYERS,
    .hidden = Q38_HIDDEN,
    .ffn_width = Q38_DRAFT_FFN_WIDTH,
    .mask_token = Q38_DRAFT_MASK_TOKEN,
    .n_capture = 5,
    .capture = {5, 19, 33, 47, 61},
};

static const spl_vision_geometry q38_vision = VISION_TOWER(Q38_HIDDEN);

static const spl_geometry q38_geometry = {
    .id = "qwen3.8-27b",
    .display = "Qwen3.8-27B",
    .model_type = "qwen3_5_text",
    .chat_template = "qwen3.8",
    .n_layers = Q38_LAYERS,
    .hidden = Q38_HIDDEN,
    .vocab = Q38_VOCAB,
    .attention_interval = 4,
    .n_q_heads = Q38_Q_HEADS,
    .n_kv_heads = Q38_KV_HEADS,
    .head_dim = Q38_HEAD_DIM,
    .rotary_dims = Q38_ROTARY_DIMS,
    .mrope_section = {11, 11, 10},
    .rope_theta = 1e7f,
    .rms_eps = 1e-6f,
    .gdn_key_heads = Q38_GDN_KEY_HEADS,
    .gdn_value_heads = Q38_GDN_VALUE_HEADS,
    .gdn_head_dim = Q38_GDN_HEAD_DIM,
    .ffn_width = Q38_FFN_WIDTH,
    .max_positions = Q38_MAX_POSITIONS,
    .n_stop_tokens = 2,
    .stop_tokens = {Q38_END_OF_TEXT, Q38_IM_END},
    .image_token = Q38_IMAGE_TOKEN,
    .draft = &q38_draft,
    .vision = &q38_vision,
};

#endif
