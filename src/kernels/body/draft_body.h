/* SPDX-License-Identifier: Apache-2.0
 * Kernels that only the draft has: the two-tap grouped dynamic convolution, and head norms with rotary over the
 * whole head. The draft may round as it likes (a wrong guess costs time, never text), yet all tiers agree. Its
 * attention is the target's, with a window. Formulas: docs/MATH.md. */
#ifndef SPL_KERNELS_DRAFT_BODY_H
#define SPL_KERNELS_DRAFT_BODY_H

#include "kernels/body/rows_body.h"

static void spl_body_draft_conv(const spl_draft_conv_args *a) {
    uint32_t groups = a->hidden / a->group;
    for (uint32_t r = a->row_begin; r < a->row_end; r++) {
        uint32_t in_block = r % SPL_BLOCK_ROWS;
        const float *dyn = a->dyn + r * a->dyn_stride;
        float *y = a->y + (size_t)r * a->hidden;
        for (uint32_t g = 0; g < groups; g++) {
            for (uint32_t c = g * a->group; c < (g + 1) * a->group; c++) {
                float sum = a->add ? y[c] : 0.0f;
                for (uint32_t tap = 0; tap < a->taps && tap <= in_block; tap++)
                    sum += a->x[(size_t)(r - tap) * a->hidden + c] *
                           (a->base[tap * (size_t)a->hidden + c] + dyn[tap * groups + g]);
                y[c] = sum;
            }
        }
    }
}

/* Rows below n_block_rows have queries and keys, the context rows behind them keys only. In place. */
static void spl_body_draft_prepare(const spl_draft_prepare_args *a) {
    uint32_t d = a->head_dim, half = d / 2;
    float head[SPL_MAX_HEAD_DIM];
    for (uint32_t r = a->row_begin; r < a->row_end; r++) {
        float *row = a->qkv + r * a->qkv_stride;
        const float *c = a->cos + (size_t)r * half, *s = a->sin + (size_t)r * half;
        for (uint32_t h = r < a->n_block_rows ? 0 : a->n_q_heads; h < a->n_q_heads + a->n_kv_heads; h++) {
            const float *weight = h < a->n_q_heads ? a->q_norm : a->k_norm;
            spl_prepare_head(row + (size_t)h * d, weight, c, s, d, d, a->eps, head);
            memcpy(row + (size_t)h * d, head, d * sizeof(float));
        }
    }
}

#endif
