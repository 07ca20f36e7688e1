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

/* Attention takes keys 16 at a time, ascending from the first position of the ring that is in reach, then the block's
 * own 8. Scores: fmaf ascending over dims, from 0, then times head_dim^-0.5; weights and their 16-lane sum against the
 * running maximum; acc = acc * exp(old - new), then fmaf over the 16 keys ascending. Lanes without a key weigh 0. */
enum { SPL_DRAFT_KEYS = SPL_LANES };

typedef struct spl_running {
    float max, sum;
} spl_running;

/* 16 keys and values in fp32; unused lanes are 0. */
typedef struct spl_draft_keys {
    float k[SPL_MAX_HEAD_DIM][SPL_DRAFT_KEYS]; /* by dim */
    float v[SPL_DRAFT_KEYS][SPL_MAX_HEAD_DIM];
    uint32_t n;
} spl_draft_keys;

/* Keys of the ring from `position` on. */
static void spl_draft_load_ring(const spl_draft_attend_args *a, uint32_t head, uint32_t position, uint32_t n,
                                spl_draft_keys *keys) {
    uint32_t d = a->head_dim;
    keys->n = n;
    for (uint32_t j = 0; j < n; j++) {
        size_t slot = ((size_t)head * a->window + (position + j) % a->window) * d;
        for (uint32_t i = 0; i < d; i++) keys->k[i][j] = spl_f32_from_bf16(a->ring_k[slot + i]);
        for (uint32_t i = 0; i < d; i++) keys->v[j][i] = spl_f32_from_bf16(a->ring_v[slot + i]);
    }
    for (uint32_t j = n; j < SPL_DRAFT_KEYS; j++) {
        for (uint32_t i = 0; i < d; i++) keys->k[i][j] = 0.0f;
        for (uint32_t i = 0; i < d; i++) keys->v[j][i] = 0.0f;
    }
}

/* The block's own keys. */
static void spl_draft_load_block(const spl_draft_attend_args *a, uint32_t head, spl_draft_keys *keys) {
    uint32_t d = a->head_dim;
    size_t k_at = (size_t)(a->n_q_heads + head) * d, v_at = k_at + (size_t)a->n_kv_heads * d;
    memset(keys, 0, sizeof *keys);
    keys->n = SPL_BLOCK_ROWS;
    for (uint32_t j = 0; j < SPL_BLOCK_ROWS; j++) {
        const float *row = a->qkv + j * a->qkv_stride;
        for (uint32_t i = 0; i < d; i++) keys->k[i][j] = row[k_at + i];
        memcpy(keys->v[j], row + v_at, d * sizeof(float));
    }
}

/* One query vector meets lanes [skip, keys->n). */
static inline void spl_draft_meet(spl_running *run, float *acc, const float *q, const spl_draft_keys *keys,
                                  uint32_t skip, uint32_t d) {
    float s[SPL_DRAFT_KEYS] = {0}, w[SPL_DRAFT_KEYS], scale = 1.0f / sqrtf((float)d), top = run->max;
    for (uint32_t i = 0; i < d; i++)
        for (int j = 0; j < SPL_DRAFT_KEYS; j++) s[j] = fmaf(q[i], keys->k[i][j], s[j]);
    for (uint32_t j = 0; j < SPL_DRAFT_KEYS; j++) {
        s[j] = s[j] * scale;
        top = j >= skip && j < keys->n && s[j] > top ? s[j] : top;
    }
    float f = spl_exp(run->max - top);
    for (uint32_t j = 0; j < SPL_DRAFT_KEYS; j++) w[j] = j >= skip && j < keys->n ? spl_exp(s[j] - top) : 0.0f;
    run->max = top;
    run->sum = run->sum * f + spl_lane_sum(w, SPL_DRAFT_KEYS);
    for (uint32_t i = 0; i < d; i++) acc[i] = acc[i] * f;
    for (int j = 0; j < SPL_DRAFT_KEYS; j++)
        for (uint32_t i = 0; i < d; i++) acc[i] = fmaf(w[j], keys->v[j][i], acc[i]);
}

/* All vectors of a KV head, which lie per_kv to a row: row r leaves out the lanes that have left its window. */
typedef void (*spl_draft_meet_all)(const spl_draft_attend_args *a, uint32_t head, spl_running *run,
                                   const spl_draft_keys *keys, const uint32_t skip[SPL_BLOCK_ROWS]);
static void spl_draft_meet_rows(const spl_draft_attend_args *a, uint32_t head, spl_running *run,
                                const spl_draft_keys *keys, const uint32_t skip[SPL_BLOCK_ROWS]) {
    uint32_t d = a->head_dim, per_kv = a->n_q_heads / a->n_kv_heads;
    for (uint32_t r = 0; r < SPL_BLOCK_ROWS; r++)
        for (uint32_t h = 0; h < per_kv && skip[r] < keys->n; h++)
            spl_draft_meet(&run[r * per_kv + h], a->scratch + (r * per_kv + h) * (size_t)d,
                           a->qkv + r * a->qkv_stride + (head * per_kv + h) * (size_t)d, keys, skip[r], d);
}

/* One KV head: all block rows and all query heads of its group. */
static SPL_ALWAYS_INLINE void spl_draft_attend_head(const spl_draft_attend_args *a, uint32_t head,
                                                    spl_draft_meet_all meet) {
    uint32_t d = a->head_dim, per_kv = a->n_q_heads / a->n_kv_heads, n_run = SPL_BLOCK_ROWS * per_kv;
    uint32_t skip[SPL_BLOCK_ROWS];
    spl_running run[SPL_BLOCK_ROWS * 16];
    spl_draft_keys keys;
    for (uint32_t i = 0; i < n_run; i++) run[i] = (spl_running){-INFINITY, 0.0f};
    memset(a->scratch, 0, (size_t)n_run * d * sizeof(float));
    uint32_t first = a->position + 1 > a->window ? a->position + 1 - a->window : 0;
    if (first < a->ring_begin) first = a->ring_begin;
    for (uint32_t p = first; p < a->position; p += SPL_DRAFT_KEYS) {
        spl_draft_load_ring(a, head, p, a->position - p < SPL_DRAFT_KEYS ? a->position - p : SPL_DRAFT_KEYS, &keys);
        for (uint32_t r = 0; r < SPL_BLOCK_ROWS; r++) {
            uint32_t reach = a->position + r + 1 > a->window ? a->position + r + 1 - a->window : 0; /* first in reach */
            skip[r] = reach > p ? reach - p : 0;
        }
        meet(a, head, run, &keys, skip);
    }
    memset(skip, 0, sizeof skip);
    spl_draft_load_block(a, head, &keys);
    meet(a, head, run, &keys, skip);
    for (uint32_t r = 0; r < SPL_BLOCK_ROWS; r++)
        for (uint32_t h = 0; h < per_kv; h++) {
            const float *acc = a->scratch + (r * per_kv + h) * (size_t)d;
            float *y = a->y + r * (size_t)a->n_q_heads * d + (head * per_kv + h) * (size_t)d;
            float inverse = 1.0f / run[r * per_kv + h].sum;
            for (uint32_t i = 0; i < d; i++) y[i] = acc[i] * inverse;
        }
}

static void spl_body_draft_attend(const spl_draft_attend_args *a) {
    for (uint32_t head = a->head_begin; head < a->head_end; head++) spl_draft_attend_head(a, head, spl_draft_meet_rows);
}

#endif
