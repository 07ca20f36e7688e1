/* SPDX-License-Identifier: Apache-2.0
 * math_body.h and rows_body.h in v16 operations: the same steps in the same order, hence the same bits. The
 * including ISA file has included its v16_<isa>.h first. */
#ifndef SPL_KERNELS_V16_BODY_H
#define SPL_KERNELS_V16_BODY_H

#include "kernels/body/linear_body.h"

static SPL_ALWAYS_INLINE v16 v16_step(v16 p, v16 r, float c) { return v16_add(v16_mul(p, r), v16_set1(c)); }
static SPL_ALWAYS_INLINE v16i v16_round(v16 v) {
    return v16i_sub(v16_bits(v16_add(v, v16_set1(12582912.0f))), v16i_set1(0x4b400000));
}

static SPL_ALWAYS_INLINE v16 v16_exp(v16 x) {
    const v16 low = v16_set1(-87.33f), high = v16_set1(88.7228317f), magic = v16_set1(12582912.0f);
    v16m below = v16_less(x, low), above = v16_less(high, x);
    v16 c = v16_select(above, high, v16_select(below, low, x));
    v16 t = v16_step(c, v16_set1(1.44269504f), 12582912.0f);
    v16 n = v16_sub(t, magic);
    v16i i = v16i_sub(v16_bits(t), v16i_set1(0x4b400000)), half = v16i_half(i);
    v16 r = v16_sub(c, v16_mul(n, v16_set1(0.693359375f)));
    r = v16_sub(r, v16_mul(n, v16_set1(-2.12194440e-4f)));
    v16 p = v16_step(v16_set1(1.39411609e-3f), r, 8.37516785e-3f);
    p = v16_step(p, r, 4.16663513e-2f);
    p = v16_step(p, r, 0.166664153f);
    p = v16_step(p, r, 0.5f);
    p = v16_mul(p, v16_mul(r, r));
    p = v16_add(v16_add(p, r), v16_set1(1.0f));
    p = v16_mul(v16_mul(p, v16_power(half)), v16_power(v16i_sub(i, half)));
    p = v16_select(below, v16_set1(0.0f), p);
    return v16_select(above, v16_set1(INFINITY), p);
}
static SPL_ALWAYS_INLINE v16 v16_sigmoid(v16 x) {
    return v16_div(v16_set1(1.0f), v16_add(v16_set1(1.0f), v16_exp(v16_minus(x))));
}
static SPL_ALWAYS_INLINE v16 v16_silu(v16 x) { return v16_mul(x, v16_sigmoid(x)); }

static SPL_ALWAYS_INLINE float v16_dot(const float *x, const float *y, size_t n) {
    v16 sum = v16_set1(0.0f);
    for (size_t i = 0; i < n; i += 16) sum = v16_add(sum, v16_mul(v16_load(x + i), v16_load(y + i)));
    return v16_tree(sum);
}

/* One group of 64 held in four vectors. */
static SPL_ALWAYS_INLINE void v16_quantise_group(const v16 x[4], int8_t *q, float *scale, float *sum) {
    v16 top = v16_set1(0.0f);
    v16i total = v16i_set1(0);
    for (int i = 0; i < 4; i++) top = v16_max(v16_abs(x[i]), top);
    float amax = v16_top(top);
    bool zero = amax < spl_tiny_amax;
    v16 inverse = v16_set1(zero ? 0.0f : 127.0f / amax);
    for (int i = 0; i < 4; i++) {
        v16i code = v16_round(v16_mul(x[i], inverse));
        v16i_store_bytes(q + 16 * i, code);
        total = v16i_add(total, code);
    }
    *scale = zero ? 0.0f : amax / 127.0f;
    *sum = (float)v16i_total(total) * *scale;
}

static SPL_ALWAYS_INLINE void v16_quantise_64(const float *x, const spl_q8_cursor *c) {
    const v16 v[4] = {v16_load(x), v16_load(x + 16), v16_load(x + 32), v16_load(x + 48)};
    v16_quantise_group(v, c->q, c->scale, c->sum);
}

/* silu(gate) * up of one row of pair p; a group that is complete is quantised. */
static SPL_ALWAYS_INLINE void v16_gate_up_row(const spl_gate_up_args *a, uint32_t row, uint32_t p, v16 gate, v16 up) {
    v16_store(spl_gate_up_at(a, row, p), v16_mul(v16_silu(gate), up));
    if (!spl_gate_up_completes(p)) return;
    const spl_q8_cursor c = spl_gate_up_group(a, row, p);
    v16_quantise_64(spl_gate_up_at(a, row, 0), &c);
}

static void v16_quantise(const spl_quantise_args *a) {
    for (uint32_t r = a->row_begin; r < a->row_end; r++) {
        const float *x = a->x + r * a->x_stride;
        spl_q8_cursor c = spl_q8_row(&a->q8, r);
        for (size_t g = 0; g < a->q8.k / SPL_GROUP; g++, x += SPL_GROUP, spl_q8_next(&c)) v16_quantise_64(x, &c);
    }
}

static void v16_rms_norm(const spl_norm_args *a) {
    for (uint32_t r = a->row_begin; r < a->row_end; r++) {
        const float *x = a->x + r * a->x_stride, *w = a->weight;
        v16 f = v16_set1(1.0f / sqrtf(v16_dot(x, x, a->k) / (float)a->k + a->eps));
        float *y = a->y ? a->y + (size_t)r * a->k : NULL;
        spl_q8_cursor c = {0};
        if (a->q8.q) c = spl_q8_row(&a->q8, r);
        for (size_t g = 0; g < a->k / SPL_GROUP; g++) {
            v16 v[4];
            for (size_t i = 0; i < 4; i++) {
                size_t at = g * SPL_GROUP + 16 * i;
                v[i] = v16_mul(v16_mul(v16_load(x + at), f), v16_load(w + at));
                if (y) v16_store(y + at, v[i]);
            }
            if (a->q8.q)
                v16_quantise_group(v, c.q + g * c.q_step, c.scale + g * c.scale_step, c.sum + g * c.scale_step);
        }
    }
}

/* The largest of the first n_out outputs of n rows, as spl_linear_args says, to max, max + stride and so on. */
static SPL_ALWAYS_INLINE void v16_panel_max(const v16 *y, uint32_t n, uint32_t n_out, float *max, size_t stride) {
    const v16 above = v16_set1(INFINITY), none = v16_set1(-INFINITY);
    const v16m there = v16_first(n_out);
    for (uint32_t m = 0; m < n; m += 4) {
        v16 v[4];
        float top[4];
        for (uint32_t j = 0; j < 4; j++) {
            v16 x = y[m + j < n ? m + j : m];
            x = v16_select(there, v16_select(v16_less(x, above), x, above), none);
            v[j] = v16_add(x, v16_set1(0.0f));
        }
        v16_top_4(v, top);
        for (uint32_t j = 0; j < 4 && m + j < n; j++) max[(m + j) * stride] = top[j];
    }
}

#endif
