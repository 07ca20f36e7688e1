/* SPDX-License-Identifier: Apache-2.0
 * The weight exp(x) of a logit x <= 0 below the maximum, without libm and without fused multiply-add, so that its
 * bits are the same everywhere and compilers vectorise it with baseline flags. Private to this folder.
 * Error: below 2 ulp on (-70, 0]; exp(0) is exactly 1; at and below -70 the weight is 0, which keeps every
 * probability a normal float (e^-70 / 2^18 > 2^-126) and costs at most 2^18 e^-70 < 1e-24 of mass. */
#ifndef SPL_SAMPLE_WEIGHT_H
#define SPL_SAMPLE_WEIGHT_H

#include <stdint.h>
#include <string.h>

#include "base/compiler.h"

/* x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, the first exact under n; polynomial of degree 6 in r. */
static SPL_ALWAYS_INLINE float spl_weight(float x) {
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float c = x > -70.0f ? x : -70.0f;
    float n = (c * 1.44269504f + round) - round;
    float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    float y = 0.00139411609f;
    y = y * r + 0.00837516785f;
    y = y * r + 0.0416663513f;
    y = y * r + 0.166664153f;
    y = y * r + 0.5f;
    y = y * r + 1.0f;
    y = y * r + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x > -70.0f ? y * scale : 0.0f;
}

/* The weight of logit z in a row whose largest is max. */
static SPL_ALWAYS_INLINE float spl_weight_of(float z, float max, float temperature) {
    return spl_weight((z - max) / temperature);
}

/* Sum in double over 16 virtual lanes: lane j adds the elements i with i % 16 == j in ascending order, then lanes
 * j and j + 8, + 4, + 2, + 1 are added. */
double spl_sum(const float *x, uint32_t n);

/* The same sum over the weights of a row, without storing them. */
double spl_weight_sum(const float *logits, uint32_t n, float max, float temperature);

#endif
