/* SPDX-License-Identifier: Apache-2.0
 * Sums over weights in the fixed order of weight.h. */
#include "sample/weight.h"

enum { LANES = 16, CHUNK = 256 };

static void add_to_lanes(double lane[LANES], const float *x, uint32_t n) {
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES)
        for (uint32_t j = 0; j < LANES; j++) lane[j] += (double)x[i + j];
    for (uint32_t j = 0; i + j < n; j++) lane[j] += (double)x[i + j];
}

static double fold(double lane[LANES]) {
    for (uint32_t half = LANES / 2; half; half /= 2)
        for (uint32_t j = 0; j < half; j++) lane[j] += lane[j + half];
    return lane[0];
}

double spl_sum(const float *x, uint32_t n) {
    double lane[LANES] = {0};
    add_to_lanes(lane, x, n);
    return fold(lane);
}

double spl_weight_sum(const float *logits, uint32_t n, float max, float temperature) {
    double lane[LANES] = {0};
    float w[CHUNK];
    for (uint32_t at = 0; at < n; at += CHUNK) { /* CHUNK is a multiple of LANES: lanes stay in step */
        uint32_t m = n - at < CHUNK ? n - at : CHUNK;
        for (uint32_t i = 0; i < m; i++) w[i] = spl_weight_of(logits[at + i], max, temperature);
        add_to_lanes(lane, w, m);
    }
    return fold(lane);
}
