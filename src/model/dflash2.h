/* SPDX-License-Identifier: Apache-2.0
 * DFlash 2: what the drafts of the real models have in common. The draft owns no embedding and no
 * head; it works in the target's hidden width. Forward pass and selector: docs/MATH.md. */
#ifndef SPL_MODEL_DFLASH2_H
#define SPL_MODEL_DFLASH2_H

#include "model/geometry.h"

enum {
    DFLASH2_Q_HEADS = 32,
    DFLASH2_KV_HEADS = 8,
    DFLASH2_HEAD_DIM = 128, /* rotary covers the whole head, unlike the target's first quarter */
    DFLASH2_Q_WIDTH = DFLASH2_Q_HEADS * DFLASH2_HEAD_DIM,
    DFLASH2_KV_WIDTH = DFLASH2_KV_HEADS * DFLASH2_HEAD_DIM,
    DFLASH2_QKV_WIDTH = 6144,     /* rows of the packed projection */
    DFLASH2_WINDOW_TOKENS = 2048, /* sliding window of every layer = ring of context K/V */
    DFLASH2_CONV_TAPS = 2,        /* this row and the one before */
    DFLASH2_CONV_GROUP = 16,      /* channels that share one predicted tap */
    DFLASH2_SELECTOR_RANK = 256,  /* width of the two codebooks */
    DFLASH2_SELECTOR_TOP_K = 16   /* candidates per position that the walk chooses from */
};
_Static_assert(DFLASH2_QKV_WIDTH == DFLASH2_Q_WIDTH + 2 * DFLASH2_KV_WIDTH, "query, key, value; no output gate");
_Static_assert(DFLASH2_Q_HEADS % DFLASH2_KV_HEADS == 0, "whole query groups per KV head");
_Static_assert(DFLASH2_SELECTOR_RANK % SPL_GROUP == 0, "the selector's rows are inputs of a dot product in groups");
_Static_assert(DFLASH2_WINDOW_TOKENS % SPL_PAGE_TOKENS == 0, "the ring holds whole pages of tokens");

/* The members every draft shares; the including header adds layers, widths, taps and mask token. */
#define DFLASH2_COMMON                                                                                                 \
    .n_q_heads = DFLASH2_Q_HEADS, .n_kv_heads = DFLASH2_KV_HEADS, .head_dim = DFLASH2_HEAD_DIM,                        \
    .window_tokens = DFLASH2_WINDOW_TOKENS, .block_rows = SPL_BLOCK_ROWS, .conv_group = DFLASH2_CONV_GROUP,            \
    .conv_taps = DFLASH2_CONV_TAPS, .selector_rank = DFLASH2_SELECTOR_RANK, .selector_top_k = DFLASH2_SELECTOR_TOP_K,  \
    .rope_theta = 1e7f, .rms_eps = 1e-6f

#endif
