/* SPDX-License-Identifier: Apache-2.0
 * Scalar mathematics shared by all kernels, written so that a loop over it vectorises and every tier
 * computes the same bits: products and sums in the order written, no fused multiply-add unless the
 * text says fmaf. Included by every ISA file; all functions are static. Formulas: docs/MATH.md. */
#ifndef SPL_KERNELS_MATH_BODY_H
#define SPL_KERNELS_MATH_BODY_H

#include <math.h>
#include <string.h>

#include "base/bytes.h"
#include "kernels/kernels.h"

/* Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, for |x| < 2^22; the low
 * bits of the sum are the integer in two's complement. */
static const float spl_round_magic = 12582912.0f;

static inline int32_t spl_round_i32(float x) {
    uint32_t bits = spl_bits_from_f32(x + spl_round_magic) - 0x4b400000u;
    return (int32_t)bits;
}

/* exp(x) without fma: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial of degree 6 in r, scaled by 2^n in two
 * exact factors. 0 below -87.33 (the last normal results; no denormal is ever produced), +inf above
 * 88.7228, NaN stays NaN. Largest error 1.2 ulp; sigmoid 2.5, softplus 2.8 (tests/kernels/test_math). */
static inline float spl_exp(float x) {
    const float low = -87.33f, high = 88.7228317f;
    float c = x < low ? low : x;
    c = c > high ? high : c;
    float t = c * 1.44269504f + spl_round_magic;
    float n = t - spl_round_magic;
    uint32_t i = spl_bits_from_f32(t) - 0x4b400000u;
    float r = c - n * 0.693359375f; /* 9 bits of ln 2: the product is exact */
    r = r - n * -2.12194440e-4f;
    float p = 1.39411609e-3f;
    p = p * r + 8.37516785e-3f;
    p = p * r + 4.16663513e-2f;
    p = p * r + 0.166664153f;
    p = p * r + 0.5f;
    p = p * (r * r);
    p = (p + r) + 1.0f;
    uint32_t half = (uint32_t)((int32_t)i >> 1);
    float y = p * spl_f32_from_bits((half + 127u) << 23);
    y = y * spl_f32_from_bits((i - half + 127u) << 23);
    y = x < low ? 0.0f : y;
    return x > high ? INFINITY : y;
}

static inline float spl_sigmoid(float x) { return 1.0f / (1.0f + spl_exp(-x)); }
static inline float spl_silu(float x) { return x * spl_sigmoid(x); }

/* log(1 + e) for 0 <= e <= 1 as 2 atanh(e / (2 + e)); at most 2 ulp. */
static inline float spl_log1p_unit(float e) {
    float s = e / (2.0f + e), z = s * s;
    float p = 1.0f / 15.0f;
    p = p * z + 1.0f / 13.0f;
    p = p * z + 1.0f / 11.0f;
    p = p * z + 1.0f / 9.0f;
    p = p * z + 1.0f / 7.0f;
    p = p * z + 0.2f;
    p = p * z + 1.0f / 3.0f;
    return 2.0f * (s + s * (z * p));
}

/* max(x, 0) + log1p(exp(-|x|)) */
static inline float spl_softplus(float x) {
    float magnitude = x < 0.0f ? -x : x;
    float positive = x > 0.0f ? x : 0.0f;
    return positive + spl_log1p_unit(spl_exp(-magnitude));
}

/* The fixed tree over the 16 virtual lanes: j + 8, then + 4, + 2, + 1. */
static inline float spl_lane_tree(const float lane[SPL_LANES]) {
    float a[8], b[4];
    for (int j = 0; j < 8; j++) a[j] = lane[j] + lane[j + 8];
    for (int j = 0; j < 4; j++) b[j] = a[j] + a[j + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

/* The three below take n as a multiple of 16: row widths are multiples of 64, head dims of 16. */
static inline float spl_lane_dot(const float *x, const float *y, size_t n) {
    float lane[SPL_LANES] = {0};
    for (size_t i = 0; i < n; i += SPL_LANES)
        for (int j = 0; j < SPL_LANES; j++) lane[j] += x[i + (size_t)j] * y[i + (size_t)j];
    return spl_lane_tree(lane);
}

static inline float spl_lane_sum(const float *x, size_t n) {
    float lane[SPL_LANES] = {0};
    for (size_t i = 0; i < n; i += SPL_LANES)
        for (int j = 0; j < SPL_LANES; j++) lane[j] += x[i + (size_t)j];
    return spl_lane_tree(lane);
}

/* Largest magnitude; the order cannot matter. */
static inline float spl_max_abs(const float *x, size_t n) {
    float lane[SPL_LANES] = {0}, best = 0.0f;
    for (size_t i = 0; i < n; i += SPL_LANES)
        for (int j = 0; j < SPL_LANES; j++) {
            float a = fabsf(x[i + (size_t)j]);
            lane[j] = a > lane[j] ? a : lane[j];
        }
    for (int j = 0; j < SPL_LANES; j++) best = lane[j] > best ? lane[j] : best;
    return best;
}

/* Magnitudes below this count as zero when a scale is formed, so that limit / amax stays finite and no
 * denormal decides anything. */
static const float spl_tiny_amax = 0x1p-100f;

#endif
