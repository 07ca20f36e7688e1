/* SPDX-License-Identifier: Apache-2.0
 * The 4-bit linear on NEON. A register holds 4 rows x 4 inputs; codes 0 .. 15 are valid signed bytes. Three ways to
 * the same exact sums: sdot with the activations by lane (SPL_NEON_DOTPROD), smmla on 2 rows x 8 inputs by
 * 2 tokens (SPL_NEON_I8MM), and byte products added in 16 bits.
 *
 * 16-bit additions: a lane adds 16 products of at most 15 * 127, at most 30,480: no saturation in a group of 64. */
#ifndef SPL_KERNELS_LINEAR_NEON_H
#define SPL_KERNELS_LINEAR_NEON_H

#include <arm_neon.h>

#include "kernels/body/linear_body.h"

static SPL_ALWAYS_INLINE float32x4_t neon_bf16(const uint8_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

/* acc[16] of one token: code term, then bias term. */
static SPL_ALWAYS_INLINE void neon_epilogue(const uint8_t *tile, const int32x4_t sum[4], float dx, float sx,
                                            float *acc) {
    for (int i = 0; i < 4; i++) {
        float32x4_t ws = neon_bf16(tile + 8 * i), wb = neon_bf16(tile + 32 + 8 * i), y = vld1q_f32(acc + 4 * i);
        y = vfmaq_f32(y, vcvtq_f32_s32(sum[i]), vmulq_n_f32(ws, dx));
        vst1q_f32(acc + 4 * i, vfmaq_n_f32(y, wb, sx));
    }
}

static SPL_ALWAYS_INLINE int8x16_t neon_low(uint8x16_t w) { return vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15))); }
static SPL_ALWAYS_INLINE int8x16_t neon_high(uint8x16_t w) { return vreinterpretq_s8_u8(vshrq_n_u8(w, 4)); }

#if defined(SPL_NEON_DOTPROD)
enum { NEON_TOKENS = 4 };
/* Lines j and j + 1: the 16 inputs of a register serve four products. */
#define NEON_LINE(line, lane)                                                                                          \
    for (int r = 0; r < 4; r++) {                                                                                      \
        uint8x16_t w = vld1q_u8((line) + 16 * r);                                                                      \
        int8x16_t lo = neon_low(w), hi = neon_high(w);                                                                 \
        for (int m = 0; m < n; m++) {                                                                                  \
            sum[m][r] = vdotq_laneq_s32(sum[m][r], lo, x[m], lane);                                                    \
            sum[m][r] = vdotq_laneq_s32(sum[m][r], hi, x[m], (lane) + 1);                                              \
        }                                                                                                              \
    }
static SPL_ALWAYS_INLINE void neon_sums(const uint8_t *tile, const int8_t *q, const int n, int32x4_t sum[][4]) {
    for (int m = 0; m < n; m++)
        for (int r = 0; r < 4; r++) sum[m][r] = vdupq_n_s32(0);
    for (int j = 0; j < 8; j += 2) {
        int8x16_t x[NEON_TOKENS];
        for (int m = 0; m < n; m++) x[m] = vld1q_s8(q + m * SPL_GROUP + 8 * j);
        NEON_LINE(tile + 64 + 64 * j, 0)
        NEON_LINE(tile + 128 + 64 * j, 2)
    }
}
#undef NEON_LINE
#else
enum { NEON_TOKENS = 2 };
static SPL_ALWAYS_INLINE int8x8_t neon_four_inputs(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, sizeof v);
    return vreinterpret_s8_s32(vdup_n_s32(v));
}
static SPL_ALWAYS_INLINE void neon_sums(const uint8_t *tile, const int8_t *q, const int n, int32x4_t sum[][4]) {
    int16x8_t part[NEON_TOKENS][8]; /* 2 rows x 4 inputs */
    for (int m = 0; m < n; m++)
        for (int r = 0; r < 8; r++) part[m][r] = vdupq_n_s16(0);
    for (int j = 0; j < 8; j++) {
        const uint8_t *line = tile + 64 + 64 * j;
        int8x8_t x0[NEON_TOKENS], x1[NEON_TOKENS];
        for (int m = 0; m < n; m++) {
            x0[m] = neon_four_inputs(q + m * SPL_GROUP + 8 * j);
            x1[m] = neon_four_inputs(q + m * SPL_GROUP + 8 * j + 4);
        }
        for (int r = 0; r < 4; r++) {
            uint8x16_t w = vld1q_u8(line + 16 * r);
            int8x16_t lo = neon_low(w), hi = neon_high(w);
            for (int m = 0; m < n; m++) {
                part[m][2 * r] = vmlal_s8(part[m][2 * r], vget_low_s8(lo), x0[m]);
                part[m][2 * r + 1] = vmlal_s8(part[m][2 * r + 1], vget_high_s8(lo), x0[m]);
                part[m][2 * r] = vmlal_s8(part[m][2 * r], vget_low_s8(hi), x1[m]);
                part[m][2 * r + 1] = vmlal_s8(part[m][2 * r + 1], vget_high_s8(hi), x1[m]);
            }
        }
    }
    for (int m = 0; m < n; m++)
        for (int r = 0; r < 4; r++)
            sum[m][r] = vpaddq_s32(vpaddlq_s16(part[m][2 * r]), vpaddlq_s16(part[m][2 * r + 1]));
}
#endif

/* n tokens of one tile, NEON_TOKENS at a time. */
static SPL_ALWAYS_INLINE void neon_tile(const uint8_t *tile, const int8_t *q, const float *dx, const float *sx,
                                        const int n, float acc[][SPL_ROWS_PER_TILE]) {
    int32x4_t sum[NEON_TOKENS][4];
    neon_sums(tile, q, n, sum);
    for (int m = 0; m < n; m++) neon_epilogue(tile, sum[m], dx[m], sx[m], acc[m]);
}

#if defined(SPL_NEON_I8MM)
/* Up to 8 tokens in pairs; a missing partner repeats the last token and its sums are dropped. */
static SPL_ALWAYS_INLINE void neon_tile_pairs(const uint8_t *tile, const int8_t *q, const float *dx, const float *sx,
                                              const int n, float acc[][SPL_ROWS_PER_TILE]) {
    const int pairs = (n + 1) / 2;
    for (int half = 0; half < 2; half++) {
        int32x4_t sum[4][4]; /* [token pair][row pair]: r0 a, r0 b, r1 a, r1 b */
        for (int p = 0; p < pairs; p++)
            for (int r = 0; r < 4; r++) sum[p][r] = vdupq_n_s32(0);
        for (int j = 0; j < 8; j++) {
            int8x16_t x[4], w[4];
            for (int p = 0; p < pairs; p++) {
                const int8_t *a = q + 2 * p * SPL_GROUP + 8 * j, *b = 2 * p + 1 < n ? a + SPL_GROUP : a;
                x[p] = vcombine_s8(vld1_s8(a), vld1_s8(b));
            }
            for (int r = 0; r < 2; r++) {
                uint8x16_t codes = vld1q_u8(tile + 64 + 64 * j + 32 * half + 16 * r);
                int32x4_t lo = vreinterpretq_s32_s8(neon_low(codes)), hi = vreinterpretq_s32_s8(neon_high(codes));
                w[2 * r] = vreinterpretq_s8_s32(vzip1q_s32(lo, hi));
                w[2 * r + 1] = vreinterpretq_s8_s32(vzip2q_s32(lo, hi));
            }
            for (int p = 0; p < pairs; p++)
                for (int r = 0; r < 4; r++) sum[p][r] = vmmlaq_s32(sum[p][r], w[r], x[p]);
        }
        for (int i = 0; i < 2; i++) {
            const uint8_t *params = tile + 16 * half + 8 * i;
            float32x4_t ws = neon_bf16(params), wb = neon_bf16(params + 32);
            for (int m = 0; m < n; m++) {
                int32x4_t a = sum[m / 2][2 * i], b = sum[m / 2][2 * i + 1];
                int32x4_t dot = m % 2 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);
                float *y = acc[m] + 8 * half + 4 * i;
                float32x4_t v = vfmaq_f32(vld1q_f32(y), vcvtq_f32_s32(dot), vmulq_n_f32(ws, dx[m]));
                vst1q_f32(y, vfmaq_n_f32(v, wb, sx[m]));
            }
        }
    }
}
#endif

static SPL_ALWAYS_INLINE void panel_rows(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, const spl_reach *reach,
                                         const int M, float acc[SPL_TILE_M][SPL_ROWS_PER_TILE]) {
    size_t groups = x->k / SPL_GROUP;
    spl_q8_cursor c = spl_q8_row(x, t * SPL_TILE_M);
    const size_t near = M == 1 ? reach->single_bytes : reach->near_bytes;
    memset(acc, 0, (size_t)M * sizeof acc[0]);
    for (size_t g = 0; g < groups; g++) {
        for (uintptr_t line = 0; line < 9; line++) { /* addresses past the matrix are only hints */
            SPL_PREFETCH_T0((const void *)((uintptr_t)panel + near + 64 * line));
            if (t == 0) SPL_PREFETCH_T1((const void *)((uintptr_t)panel + reach->far_bytes + 64 * line));
        }
#if defined(SPL_NEON_I8MM)
        if (M > 1)
            neon_tile_pairs(panel, c.q, c.scale, c.sum, M, acc);
        else
#endif
            for (int m = 0; m < M; m += NEON_TOKENS)
                neon_tile(panel, c.q + m * SPL_GROUP, c.scale + m, c.sum + m, M - m < NEON_TOKENS ? M - m : NEON_TOKENS,
                          acc + m);
        panel += SPL_Q4_TILE_BYTES;
        spl_q8_next(&c);
    }
}

#endif
