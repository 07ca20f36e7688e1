/* SPDX-License-Identifier: Apache-2.0
 * Integer products of attention on NEON. With dot products: the two 7-bit planes of the codes, by lane; without: one
 * int16 code against keys and values widened to 16 bits. Keys lose their 128 on the way in. */
#ifndef SPL_KERNELS_ATTEND_NEON_H
#define SPL_KERNELS_ATTEND_NEON_H

#include <arm_neon.h>

#include "kernels/body/math_body.h"

enum { ATTEND_KEY_BIAS = 0 };

static SPL_ALWAYS_INLINE int8x16_t signed_keys(const uint8_t *p) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p), vdupq_n_u8(128)));
}

#if defined(SPL_NEON_DOTPROD)
static SPL_ALWAYS_INLINE void attend_put_codes(uint8_t *dst, uint32_t n, uint32_t i, v16i code) {
    v16i high, low;
    for (int j = 0; j < 4; j++) {
        high.v[j] = vshrq_n_s32(code.v[j], 7);
        low.v[j] = vandq_s32(code.v[j], vdupq_n_s32(127));
    }
    v16i_store_bytes(dst + i, high);
    v16i_store_bytes(dst + n + i, low);
}
static SPL_ALWAYS_INLINE int32x4_t join_planes(int32x4_t high, int32x4_t low) {
    return vaddq_s32(vshlq_n_s32(high, 7), low);
}

#define ATTEND_LANE(load, lane)                                                                                        \
    for (int c = 0; c < 4; c++) {                                                                                      \
        int8x16_t x = (load);                                                                                          \
        for (int v = 0; v < n_q; v++) {                                                                                \
            high[v][c] = vdotq_laneq_s32(high[v][c], x, code_high[v], lane);                                           \
            low[v][c] = vdotq_laneq_s32(low[v][c], x, code_low[v], lane);                                              \
        }                                                                                                              \
    }

/* 16 tokens from `token` on for one or two vectors. */
static SPL_ALWAYS_INLINE void scores_of_16(const int n_q, const uint8_t *k, const uint8_t *next, const uint8_t *q,
                                           uint32_t d, uint32_t token, int32_t dot[][SPL_PAGE_TOKENS]) {
    int32x4_t high[2][4], low[2][4];
    for (int v = 0; v < n_q; v++)
        for (int c = 0; c < 4; c++) high[v][c] = low[v][c] = vdupq_n_s32(0);
    for (uint32_t i = 0; i < d; i += 16) {
        int8x16_t code_high[2], code_low[2];
        for (int v = 0; v < n_q; v++) {
            code_high[v] = vld1q_s8((const int8_t *)q + (size_t)v * 2 * d + i);
            code_low[v] = vld1q_s8((const int8_t *)q + (size_t)v * 2 * d + d + i);
        }
        const uint8_t *at = k + (size_t)i * SPL_PAGE_TOKENS + 4 * token;
        for (size_t line = 0; line < 4; line++)
            SPL_PREFETCH_T1(next + (size_t)i * SPL_PAGE_TOKENS + 4 * token + 128 * line);
        ATTEND_LANE(signed_keys(at + 16 * c), 0)
        ATTEND_LANE(signed_keys(at + 128 + 16 * c), 1)
        ATTEND_LANE(signed_keys(at + 256 + 16 * c), 2)
        ATTEND_LANE(signed_keys(at + 384 + 16 * c), 3)
    }
    for (int v = 0; v < n_q; v++)
        for (int c = 0; c < 4; c++) vst1q_s32(dot[v] + token + 4 * c, join_planes(high[v][c], low[v][c]));
}

/* 16 dims from `dim` on for one or two vectors. */
static SPL_ALWAYS_INLINE void values_of_16(const int n_q, const uint8_t *values, const uint8_t *next, const uint8_t *w,
                                           uint32_t d, uint32_t dim, const float *factor, const float *scale,
                                           float *acc) {
    int32x4_t high[2][4], low[2][4];
    for (int v = 0; v < n_q; v++)
        for (int c = 0; c < 4; c++) high[v][c] = low[v][c] = vdupq_n_s32(0);
    for (uint32_t half = 0; half < 2; half++) {
        int8x16_t code_high[2], code_low[2];
        for (int v = 0; v < n_q; v++) {
            code_high[v] = vld1q_s8((const int8_t *)w + 64 * v + 16 * half);
            code_low[v] = vld1q_s8((const int8_t *)w + 64 * v + SPL_PAGE_TOKENS + 16 * half);
        }
        size_t step = 4 * (size_t)d;
        const int8_t *at = (const int8_t *)values + 4 * half * step + 4 * (size_t)dim;
        for (size_t g = 0; g < 4; g++) SPL_PREFETCH_T1(next + (4 * half + g) * step + 4 * (size_t)dim);
        ATTEND_LANE(vld1q_s8(at + 16 * c), 0)
        ATTEND_LANE(vld1q_s8(at + step + 16 * c), 1)
        ATTEND_LANE(vld1q_s8(at + 2 * step + 16 * c), 2)
        ATTEND_LANE(vld1q_s8(at + 3 * step + 16 * c), 3)
    }
    for (int v = 0; v < n_q; v++)
        for (int c = 0; c < 4; c++) {
            float *y = acc + (size_t)v * d + dim + 4 * c;
            float32x4_t old = vmulq_n_f32(vld1q_f32(y), factor[v]);
            vst1q_f32(y, vfmaq_n_f32(old, vcvtq_f32_s32(join_planes(high[v][c], low[v][c])), scale[v]));
        }
}
#undef ATTEND_LANE
#else
static SPL_ALWAYS_INLINE void attend_put_codes(uint8_t *dst, uint32_t n, uint32_t i, v16i code) {
    (void)n;
    int16x8x2_t w = v16i_to_i16(code);
    vst1q_s16((int16_t *)(void *)(dst + 2 * (size_t)i), w.val[0]);
    vst1q_s16((int16_t *)(void *)(dst + 2 * (size_t)i + 16), w.val[1]);
}
static SPL_ALWAYS_INLINE int16x4_t four_codes(const uint8_t *p) { return vld1_s16((const int16_t *)(const void *)p); }
/* sum[e] += products of the four 4-element groups of x with code; element sums stay apart until the end. */
static SPL_ALWAYS_INLINE void add_products(int32x4_t sum[4], int8x16_t x, int16x4_t code) {
    int16x8_t a = vmovl_s8(vget_low_s8(x)), b = vmovl_s8(vget_high_s8(x));
    sum[0] = vmlal_s16(sum[0], vget_low_s16(a), code);
    sum[1] = vmlal_s16(sum[1], vget_high_s16(a), code);
    sum[2] = vmlal_s16(sum[2], vget_low_s16(b), code);
    sum[3] = vmlal_s16(sum[3], vget_high_s16(b), code);
}
static SPL_ALWAYS_INLINE int32x4_t group_totals(const int32x4_t s[4]) {
    return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
}
static SPL_ALWAYS_INLINE void scores_of_16(const int n_q, const uint8_t *k, const uint8_t *next, const uint8_t *q,
                                           uint32_t d, uint32_t token, int32_t dot[][SPL_PAGE_TOKENS]) {
    for (uint32_t c = 0; c < 4; c++) {
        int32x4_t sum[2][4];
        for (int v = 0; v < n_q; v++)
            for (int e = 0; e < 4; e++) sum[v][e] = vdupq_n_s32(0);
        for (uint32_t i = 0; i < d; i += 4) {
            size_t at = (size_t)i * SPL_PAGE_TOKENS + 4 * token + 16 * c;
            int8x16_t x = signed_keys(k + at);
            if (c == 0) SPL_PREFETCH_T1(next + at);
            for (int v = 0; v < n_q; v++) add_products(sum[v], x, four_codes(q + (size_t)v * 2 * d + 2 * (size_t)i));
        }
        for (int v = 0; v < n_q; v++) vst1q_s32(dot[v] + token + 4 * c, group_totals(sum[v]));
    }
}
static SPL_ALWAYS_INLINE void values_of_16(const int n_q, const uint8_t *values, const uint8_t *next, const uint8_t *w,
                                           uint32_t d, uint32_t dim, const float *factor, const float *scale,
                                           float *acc) {
    for (uint32_t c = 0; c < 4; c++) {
        int32x4_t sum[2][4];
        for (int v = 0; v < n_q; v++)
            for (int e = 0; e < 4; e++) sum[v][e] = vdupq_n_s32(0);
        for (uint32_t g = 0; g < SPL_PAGE_TOKENS / 4; g++) {
            size_t at = 4 * ((size_t)g * d + dim) + 16 * c;
            int8x16_t x = vld1q_s8((const int8_t *)values + at);
            if (c == 0) SPL_PREFETCH_T1(next + at);
            for (int v = 0; v < n_q; v++) add_products(sum[v], x, four_codes(w + 64 * v + 8 * g));
        }
        for (int v = 0; v < n_q; v++) {
            float *y = acc + (size_t)v * d + dim + 4 * c;
            float32x4_t old = vmulq_n_f32(vld1q_f32(y), factor[v]);
            vst1q_f32(y, vfmaq_n_f32(old, vcvtq_f32_s32(group_totals(sum[v])), scale[v]));
        }
    }
}
#endif

static SPL_ALWAYS_INLINE void attend_scores(const int n_q, const uint8_t *k, const uint8_t *next, const uint8_t *q,
                                            uint32_t d, int32_t dot[4][SPL_PAGE_TOKENS]) {
    for (uint32_t token = 0; token < SPL_PAGE_TOKENS; token += 16) {
        for (int v = 0; v + 2 <= n_q; v += 2) scores_of_16(2, k, next, q + (size_t)v * 2 * d, d, token, dot + v);
        if (n_q % 2) scores_of_16(1, k, next, q + (size_t)(n_q - 1) * 2 * d, d, token, dot + n_q - 1);
    }
}
static SPL_ALWAYS_INLINE void attend_values(const int n_q, const uint8_t *values, const uint8_t *next, const uint8_t *w,
                                            uint32_t d, const float *factor, const float *scale, float *acc) {
    for (uint32_t dim = 0; dim < d; dim += 16) {
        for (int v = 0; v + 2 <= n_q; v += 2)
            values_of_16(2, values, next, w + 64 * v, d, dim, factor + v, scale + v, acc + (size_t)v * d);
        if (n_q % 2)
            values_of_16(1, values, next, w + 64 * (n_q - 1), d, dim, factor + n_q - 1, scale + n_q - 1,
                         acc + (size_t)(n_q - 1) * d);
    }
}

#endif
