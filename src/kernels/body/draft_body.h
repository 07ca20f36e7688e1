/* SPDX-License-Identifier: Apache-2.0
 * Kernels that only the draft has: the two-tap grouped dynamic convolution, head norms with rotary over the
 * whole head, and attention of a block over its ring and itself. The draft may round as it likes (a wrong
 * guess costs time, never text), yet all tiers share these bodies and so agree. Formulas: docs/MATH.md. */
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

/* Running softmax of one query row over keys that come in any number. */
typedef struct spl_running {
    float max, sum;
} spl_running;

static inline void spl_draft_key(spl_running *run, float *acc, const float *q, const float *k, const float *v,
                                 uint32_t d, float scale) {
    float score = spl_lane_dot(q, k, d) * scale;
    if (score > run->max) {
        float shrink = spl_exp(run->max - score);
        for (uint32_t i = 0; i < d; i++) acc[i] *= shrink;
        run->sum *= shrink;
        run->max = score;
    }
    float w = spl_exp(score - run->max);
    run->sum += w;
    for (uint32_t i = 0; i < d; i++) acc[i] += w * v[i];
}

static inline void spl_widen_bf16(float *to, const uint16_t *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) to[i] = spl_f32_from_bf16(from[i]);
}

/* One KV head: all block rows and all query heads of its group. Context positions ascend, then the block. */
static void spl_body_draft_attend_head(const spl_draft_attend_args *a, uint32_t head) {
    uint32_t d = a->head_dim, per_kv = a->n_q_heads / a->n_kv_heads, kv_offset = a->n_q_heads * d;
    float scale = 1.0f / sqrtf((float)d), k[SPL_MAX_HEAD_DIM], v[SPL_MAX_HEAD_DIM];
    float *acc = a->scratch;
    spl_running run[SPL_BLOCK_ROWS * 16];
    uint32_t n_run = SPL_BLOCK_ROWS * per_kv;
    for (uint32_t i = 0; i < n_run; i++) run[i] = (spl_running){-INFINITY, 0.0f};
    memset(acc, 0, (size_t)n_run * d * sizeof(float));
    uint32_t first = a->position + 1 > a->window ? a->position + 1 - a->window : 0;
    if (first < a->ring_begin) first = a->ring_begin;
    for (uint32_t p = first; p < a->position; p++) {
        size_t slot = ((size_t)head * a->window + p % a->window) * d;
        spl_widen_bf16(k, a->ring_k + slot, d);
        spl_widen_bf16(v, a->ring_v + slot, d);
        for (uint32_t r = 0; r < SPL_BLOCK_ROWS && a->position + r - p < a->window; r++)
            for (uint32_t h = 0; h < per_kv; h++)
                spl_draft_key(&run[r * per_kv + h], acc + (r * per_kv + h) * (size_t)d,
                              a->qkv + r * a->qkv_stride + (head * per_kv + h) * (size_t)d, k, v, d, scale);
    }
    for (uint32_t b = 0; b < SPL_BLOCK_ROWS; b++) {
        const float *bk = a->qkv + b * a->qkv_stride + kv_offset + head * (size_t)d,
                    *bv = bk + a->n_kv_heads * (size_t)d;
        for (uint32_t r = 0; r < SPL_BLOCK_ROWS; r++)
            for (uint32_t h = 0; h < per_kv; h++)
                spl_draft_key(&run[r * per_kv + h], acc + (r * per_kv + h) * (size_t)d,
                              a->qkv + r * a->qkv_stride + (head * per_kv + h) * (size_t)d, bk, bv, d, scale);
    }
    for (uint32_t r = 0; r < SPL_BLOCK_ROWS; r++)
        for (uint32_t h = 0; h < per_kv; h++) {
            float *y = a->y + r * (size_t)kv_offset + (head * per_kv + h) * (size_t)d;
            float inverse = 1.0f / run[r * per_kv + h].sum;
            for (uint32_t i = 0; i < d; i++) y[i] = acc[(r * per_kv + h) * (size_t)d + i] * inverse;
        }
}

static void spl_body_draft_attend(const spl_draft_attend_args *a) {
    for (uint32_t head = a->head_begin; head < a->head_end; head++) spl_body_draft_attend_head(a, head);
}

#endif
