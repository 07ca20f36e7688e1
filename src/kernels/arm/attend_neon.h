/* SPDX-License-Identifier: Apache-2.0
 * Integer products of attention on NEON. With dot products: byte codes by lane, 16 accumulators for 4 vectors; keys
 * lose their 128 on the way in, values gain it, because weights are unsigned, and the weights' sum takes it out again.
 * Without: codes as int16 against keys and values widened to 16 bits. */
#ifndef SPL_KERNELS_ATTEND_NEON_H
#define SPL_KERNELS_ATTEND_NEON_H

#include <arm_neon.h>

#include "kernels/body/math_body.h"

enum { ATTEND_KEY_BIAS = 0, ATTEND_Q_BLOCK = 4 };

static SPL_ALWAYS_INLINE int8x16_t signed_keys(const uint8_t *p) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p), vdupq_n_u8(128)));
}
/* acc of 4 dims: fma(sum, scale, acc or acc * factor). */
static SPL_ALWAYS_INLINE void attend_add_4(float *y, int32x4_t sum, float scale, const bool first, float factor) {
    float32x4_t old = vld1q_f32(y);
    if (first) old = vmulq_n_f32(old, factor);
    vst1q_f32(y, vfmaq_n_f32(old, vcvtq_f32_s32(sum), scale));
}

#if defined(SPL_NEON_DOTPROD)
enum { ATTEND_CODE_BYTES = 1 };

static SPL_ALWAYS_INLINE void attend_put_query(uint8_t *dst, v16i code) { v16i_store_bytes(dst, code); }
static SPL_ALWAYS_INLINE void attend_put_weights(uint8_t *dst, v16i code) { v16i_store_bytes(dst, code); }

/* 16 tokens from `token` on. */
#define ATTEND_KEYS(lane)                                                                                              \
    for (int c = 0; c < 4; c++) {                                                                                      \
        int8x16_t x = signed_keys(at + 128 * (lane) + 16 * c);                                                         \
        for (int v = 0; v < n_q; v++) sum[v][c] = vdotq_laneq_s32(sum[v][c], x, code[v], lane);                        \
    }
static SPL_ALWAYS_INLINE void attend_scores(const int n_q, const uint8_t *k, const uint8_t *next, const uint8_t *q,
                                            uint32_t d, int32_t *dot) {
    for (uint32_t token = 0; token < SPL_PAGE_TOKENS; token += 16) {
        int32x4_t sum[4][4];
        for (int v = 0; v < n_q; v++)
            for (int c = 0; c < 4; c++) sum[v][c] = vdupq_n_s32(0);
        for (uint32_t i = 0; i < d; i += 16) {
            int8x16_t code[4];
            for (int v = 0; v < n_q; v++) code[v] = vld1q_s8((const int8_t *)q + (size_t)v * d + i);
            const uint8_t *at = k + (size_t)i * SPL_PAGE_TOKENS + 4 * token;
            for (size_t line = 0; line < 4; line++)
                SPL_PREFETCH_T1(next + (size_t)i * SPL_PAGE_TOKENS + 4 * token + 128 * line);
            ATTEND_KEYS(0)
            ATTEND_KEYS(1)
            ATTEND_KEYS(2)
            ATTEND_KEYS(3)
        }
        for (int v = 0; v < n_q; v++)
            for (int c = 0; c < 4; c++)
                vst1q_s32(dot + (size_t)v * SPL_ATTEND_TILE + token + 4 * (uint32_t)c, sum[v][c]);
    }
}
#undef ATTEND_KEYS

/* 16 dims and the tokens of half a page: 4 groups, one lane each. */
#define ATTEND_VALUES(lane)                                                                                            \
    for (int c = 0; c < 4; c++) {                                                                                      \
        uint8x16_t x = veorq_u8(vld1q_u8(at + (lane)*step + 16 * c), vdupq_n_u8(128));                                 \
        for (int v = 0; v < n_q; v++) sum[v][c] = vdotq_laneq_u32(sum[v][c], x, code[v], lane);                        \
    }
static SPL_ALWAYS_INLINE void attend_page_values(const int n_q, const bool first, const uint8_t *values,
                                                 const uint8_t *next, const uint8_t *w, uint32_t d, uint32_t dim_begin,
                                                 uint32_t dim_end, const float *factor, const float *scale, float *acc,
                                                 size_t stride) {
    const size_t step = 4 * (size_t)d;
    int32x4_t excess[4]; /* 128 * sum of a vector's codes */
    for (int v = 0; v < n_q; v++) {
        const uint8_t *codes = w + (size_t)v * SPL_ATTEND_TILE;
        uint32_t total = vaddlvq_u8(vld1q_u8(codes)) + (uint32_t)vaddlvq_u8(vld1q_u8(codes + 16));
        excess[v] = vdupq_n_s32((int32_t)(128 * total));
    }
    for (uint32_t dim = dim_begin; dim < dim_end; dim += 16) {
        uint32x4_t sum[4][4];
        for (int v = 0; v < n_q; v++)
            for (int c = 0; c < 4; c++) sum[v][c] = vdupq_n_u32(0);
        for (uint32_t half = 0; half < 2; half++) {
            uint8x16_t code[4];
            for (int v = 0; v < n_q; v++) code[v] = vld1q_u8(w + (size_t)v * SPL_ATTEND_TILE + 16 * half);
            const uint8_t *at = values + 4 * half * step + 4 * (size_t)dim;
            for (size_t g = 0; g < 4; g++) SPL_PREFETCH_T1(next + (4 * half + g) * step + 4 * (size_t)dim);
            ATTEND_VALUES(0)
            ATTEND_VALUES(1)
            ATTEND_VALUES(2)
            ATTEND_VALUES(3)
        }
        for (int v = 0; v < n_q; v++)
            for (int c = 0; c < 4; c++)
                attend_add_4(acc + (size_t)v * stride + dim + 4 * (uint32_t)c,
                             vsubq_s32(vreinterpretq_s32_u32(sum[v][c]), excess[v]), scale[v], first, factor[v]);
    }
}
#undef ATTEND_VALUES
#else
enum { ATTEND_CODE_BYTES = 2 };

static SPL_ALWAYS_INLINE void attend_put_query(uint8_t *dst, v16i code) {
    int16x8x2_t w = v16i_to_i16(code);
    vst1q_s16((int16_t *)(void *)dst, w.val[0]);
    vst1q_s16((int16_t *)(void *)(dst + 16), w.val[1]);
}
static SPL_ALWAYS_INLINE void attend_put_weights(uint8_t *dst, v16i code) { attend_put_query(dst, code); }
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
static SPL_ALWAYS_INLINE void attend_scores(const int n_q, const uint8_t *k, const uint8_t *next, const uint8_t *q,
                                            uint32_t d, int32_t *dot) {
    for (uint32_t token = 0; token < SPL_PAGE_TOKENS; token += 4) {
        int32x4_t sum[4][4];
        for (int v = 0; v < n_q; v++)
            for (int e = 0; e < 4; e++) sum[v][e] = vdupq_n_s32(0);
        for (uint32_t i = 0; i < d; i += 4) {
            size_t at = (size_t)i * SPL_PAGE_TOKENS + 4 * token;
            int8x16_t x = signed_keys(k + at);
            if (token % 16 == 0) SPL_PREFETCH_T1(next + at);
            for (int v = 0; v < n_q; v++) add_products(sum[v], x, four_codes(q + 2 * ((size_t)v * d + i)));
        }
        for (int v = 0; v < n_q; v++) vst1q_s32(dot + (size_t)v * SPL_ATTEND_TILE + token, group_totals(sum[v]));
    }
}
static SPL_ALWAYS_INLINE void attend_page_values(const int n_q, const bool first, const uint8_t *values,
                                                 const uint8_t *next, const uint8_t *w, uint32_t d, uint32_t dim_begin,
                                                 uint32_t dim_end, const float *factor, const float *scale, float *acc,
                                                 size_t stride) {
    for (uint32_t dim = dim_begin; dim < dim_end; dim += 4) {
        int32x4_t sum[4][4];
        for (int v = 0; v < n_q; v++)
            for (int e = 0; e < 4; e++) sum[v][e] = vdupq_n_s32(0);
        for (uint32_t g = 0; g < SPL_PAGE_TOKENS / 4; g++) {
            size_t at = 4 * ((size_t)g * d + dim);
            int8x16_t x = vld1q_s8((const int8_t *)values + at);
            if (dim % 16 == 0) SPL_PREFETCH_T1(next + at);
            for (int v = 0; v < n_q; v++)
                add_products(sum[v], x, four_codes(w + 2 * ((size_t)v * SPL_ATTEND_TILE + 4 * g)));
        }
        for (int v = 0; v < n_q; v++)
            attend_add_4(acc + (size_t)v * stride + dim, group_totals(sum[v]), scale[v], first, factor[v]);
    }
}
#endif

#include "kernels/body/attend_pages_body.h"

#endif
