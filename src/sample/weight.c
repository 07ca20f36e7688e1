/* SPDX-License-Identifier: Apache-2.0
 * Rows of weights and their sums in the fixed order of weight.h. */
#include "sample/weight.h"

enum { LANES = 64, CHUNK = 256 };

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

/* Two passes over a chunk, since compilers split the clamped path off and then do not vectorise the rest. */
static void weigh_chunk(float *restrict w, const float *restrict z, uint32_t n, float max, float temperature) {
    for (uint32_t i = 0; i < n; i++) w[i] = spl_weight_argument(z[i], max, temperature);
    for (uint32_t i = 0; i < n; i++) w[i] = spl_weight_clamped(w[i]);
}

void spl_weights(float *w, const float *z, uint32_t n, float max, float temperature) {
    for (uint32_t at = 0; at < n; at += CHUNK)
        weigh_chunk(w + at, z + at, n - at < CHUNK ? n - at : CHUNK, max, temperature);
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
        weigh_chunk(w, logits + at, m, max, temperature);
        add_to_lanes(lane, w, m);
    }
    return fold(lane);
}
