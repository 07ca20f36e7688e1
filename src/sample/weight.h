/* SPDX-License-Identifier: Apache-2.0
 * The weight exp(x) of a logit x <= 0 below the maximum, without libm and without fused multiply-add, so that its
 * bits are the same everywhere and compilers vectorise it with baseline flags. Private to this folder.
 * Error: below 2 ulp where it is not 0; exp(0) is exactly 1. Below about 2^-100.5 of the maximum (x < -69.66) the
 * weight is 0, which keeps every probability a normal float and costs less than 2^-82 of mass. */
#ifndef SPL_SAMPLE_WEIGHT_H
#define SPL_SAMPLE_WEIGHT_H

#include <stdint.h>
#include <string.h>

#include "base/compiler.h"

/* exp(c) for c in [-70, 0]: c = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, the first exact under n;
 * polynomial of degree 6 in r. A mask, not a branch, makes the small ones 0: branches stop the vectoriser. */
static SPL_ALWAYS_INLINE float spl_weight_clamped(float c) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float n = (c * 1.44269504f + round) - round;
    float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    float y = 0.00139411609f;
    y = y * r + 0.00837516785f;
    y = y * r + 0.0416663513f;
    y = y * r + 0.166664153f;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    int32_t exponent = (int32_t)n;
    uint32_t bits = (uint32_t)(exponent + 127) << 23 & (0u - (uint32_t)(exponent > -101));
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return y * scale;
}

static SPL_ALWAYS_INLINE float spl_weight_argument(float z, float max, float temperature) {
    float x = (z - max) / temperature;
    return x > -70.0f ? x : -70.0f;
}

/* The weight of logit z (finite or -inf) in a row whose largest is max. */
static SPL_ALWAYS_INLINE float spl_weight_of(float z, float max, float temperature) {
    return spl_weight_clamped(spl_weight_argument(z, max, temperature));
}

/* w[i] = spl_weight_of(z[i], max, temperature), the same bits. */
void spl_weights(float *w, const float *z, uint32_t n, float max, float temperature);

/* Sum in double over 64 virtual lanes: lane j adds the elements i with i % 64 == j in ascending order, then lanes
 * j and j + 32, + 16, + 8, + 4, + 2, + 1 are added. */
double spl_sum(const float *x, uint32_t n);

/* The same sum over the weights of a row, without storing them. */
double spl_weight_sum(const float *logits, uint32_t n, float max, float temperature);

#endif
