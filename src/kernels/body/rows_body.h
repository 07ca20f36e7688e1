/* SPDX-License-Identifier: Apache-2.0
 * Row operations: RMS norm, quantisation to int8 groups, token rows, attention input rows, and the
 * largest logit of a row. Every row is computed alone, so ranges never change bits. */
#ifndef SPL_KERNELS_ROWS_BODY_H
#define SPL_KERNELS_ROWS_BODY_H

#include "kernels/body/math_body.h"

/* One group of 64: codes at q, *scale = amax / 127, *sum = (sum of the codes) * *scale. What is not finite has codes
 * without meaning, which may wrap around. */
static inline void spl_quantise_group(const float *x, int8_t *q, float *scale, float *sum) {
    float amax = spl_max_abs(x, SPL_GROUP);
    bool zero = amax < spl_tiny_amax;
    float inverse = zero ? 0.0f : 127.0f / amax;
    uint32_t total = 0;
    for (int i = 0; i < SPL_GROUP; i++) {
        int32_t code = spl_round_i32(x[i] * inverse);
        q[i] = (int8_t)code;
        total += (uint32_t)code;
    }
    *scale = zero ? 0.0f : amax / 127.0f;
    *sum = (float)(int32_t)total * *scale;
}

/* Where row r of a q8 block starts, and the distance between its groups. */
typedef struct spl_q8_cursor {
    int8_t *q;
    float *scale, *sum;
    size_t q_step, scale_step;
} spl_q8_cursor;

static inline spl_q8_cursor spl_q8_row(const spl_q8_rows *rows, uint32_t r) {
    uint32_t first = r / SPL_Q8_BLOCK_ROWS * SPL_Q8_BLOCK_ROWS, left = rows->n_laid - first;
    size_t step = left < SPL_Q8_BLOCK_ROWS ? left : SPL_Q8_BLOCK_ROWS;
    size_t at = (size_t)first * (rows->k / SPL_GROUP) + (r - first);
    spl_q8_cursor c = {rows->q + at * SPL_GROUP, rows->scale + at, rows->sum + at, step * SPL_GROUP, step};
    return c;
}

/* On to the row's next group, or the n-th from here. */
static inline void spl_q8_skip(spl_q8_cursor *c, size_t n) {
    c->q += n * c->q_step;
    c->scale += n * c->scale_step;
    c->sum += n * c->scale_step;
}
static inline void spl_q8_next(spl_q8_cursor *c) { spl_q8_skip(c, 1); }

static inline void spl_quantise_row(const float *x, const spl_q8_rows *rows, uint32_t r) {
    spl_q8_cursor c = spl_q8_row(rows, r);
    for (size_t g = 0; g < rows->k / SPL_GROUP; g++)
        spl_quantise_group(x + g * SPL_GROUP, c.q + g * c.q_step, c.scale + g * c.scale_step, c.sum + g * c.scale_step);
}

static void spl_body_quantise(const spl_quantise_args *a) {
    for (uint32_t r = a->row_begin; r < a->row_end; r++) spl_quantise_row(a->x + r * a->x_stride, &a->q8, r);
}

static inline float spl_rms_factor(const float *x, uint32_t k, float eps) {
    return 1.0f / sqrtf(spl_lane_dot(x, x, k) / (float)k + eps);
}

static void spl_body_rms_norm(const spl_norm_args *a) {
    for (uint32_t r = a->row_begin; r < a->row_end; r++) {
        const float *x = a->x + r * a->x_stride;
        float f = spl_rms_factor(x, a->k, a->eps);
        if (a->y) {
            float *y = a->y + (size_t)r * a->k;
            for (uint32_t i = 0; i < a->k; i++) y[i] = (x[i] * f) * a->weight[i];
            if (a->q8.q) spl_quantise_row(y, &a->q8, r);
        } else if (a->q8.q) {
            spl_q8_cursor c = spl_q8_row(&a->q8, r);
            for (size_t g = 0; g < a->k / SPL_GROUP; g++) {
                float y[SPL_GROUP];
                for (size_t i = 0; i < SPL_GROUP; i++) y[i] = (x[g * SPL_GROUP + i] * f) * a->weight[g * SPL_GROUP + i];
                spl_quantise_group(y, c.q + g * c.q_step, c.scale + g * c.scale_step, c.sum + g * c.scale_step);
            }
        }
    }
}

static void spl_body_embed_rows(const spl_embed_args *a) {
    size_t groups = a->k / SPL_GROUP, row_bytes = a->k / 2 + groups * 4;
    for (uint32_t r = a->row_begin; r < a->row_end; r++) {
        const uint8_t *row = a->table + a->tokens[r] * row_bytes;
        const uint8_t *scales = row + a->k / 2, *biases = scales + groups * 2;
        float *y = a->y + (size_t)r * a->k;
        for (size_t g = 0; g < groups; g++) {
            float s = spl_f32_from_bf16(spl_load_u16(scales + 2 * g)),
                  b = spl_f32_from_bf16(spl_load_u16(biases + 2 * g));
            for (size_t i = 0; i < SPL_GROUP / 2; i++) {
                uint8_t pair = row[g * SPL_GROUP / 2 + i];
                y[g * SPL_GROUP + 2 * i] = s * (float)(pair & 15) + b;
                y[g * SPL_GROUP + 2 * i + 1] = s * (float)(pair >> 4) + b;
            }
        }
    }
}

/* One head: norm, then rotation of the pairs (i, i + rotary/2): two products and one sum each. */
static inline void spl_prepare_head(const float *x, const float *weight, const float *cos, const float *sin,
                                    uint32_t head_dim, uint32_t rotary, float eps, float *y) {
    float f = spl_rms_factor(x, head_dim, eps);
    uint32_t half = rotary / 2;
    for (uint32_t i = 0; i < head_dim; i++) y[i] = (x[i] * f) * weight[i];
    for (uint32_t i = 0; i < half; i++) {
        float a = y[i], b = y[i + half];
        y[i] = a * cos[i] - b * sin[i];
        y[i + half] = b * cos[i] + a * sin[i];
    }
}

static void spl_body_attn_prepare(const spl_attn_prepare_args *a) {
    uint32_t d = a->head_dim, half = a->rotary_dims / 2;
    for (uint32_t r = a->row_begin; r < a->row_end; r++) {
        const float *in = a->in + r * a->in_stride, *c = a->cos + (size_t)r * half, *s = a->sin + (size_t)r * half;
        for (uint32_t h = 0; h < a->n_q_heads; h++)
            spl_prepare_head(in + 2 * (size_t)h * d, a->q_norm, c, s, d, a->rotary_dims, a->eps,
                             a->q + ((size_t)r * a->n_q_heads + h) * d);
        const float *k = in + 2 * (size_t)a->n_q_heads * d;
        for (uint32_t h = 0; h < a->n_kv_heads; h++)
            spl_prepare_head(k + (size_t)h * d, a->k_norm, c, s, d, a->rotary_dims, a->eps,
                             a->k + ((size_t)r * a->n_kv_heads + h) * d);
    }
}

/* The largest of n outputs of a panel, as spl_linear_args says. */
static inline float spl_panel_max(const float *y, uint32_t n) {
    float best = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        float x = y[i] < INFINITY ? y[i] : INFINITY;
        best = x > best ? x : best;
    }
    return best + 0.0f;
}

#endif
