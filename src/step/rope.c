/* SPDX-License-Identifier: Apache-2.0
 * Rotary angles. The frequencies are rounded to fp32 as the reference implementation does, because at
 * long positions that rounding is visible; cos and sin are those of the fp32 angle. */
#include <math.h>

#include "step/step.h"

void spl_rope_frequencies(float *inverse_frequency, uint32_t rotary_dims, float theta) {
    for (uint32_t i = 0; i < rotary_dims / 2; i++) {
        float exponent = (float)(2 * i) / (float)rotary_dims;
        inverse_frequency[i] = 1.0f / (float)pow((double)theta, (double)exponent);
    }
}

void spl_rope_row(float *cos_row, float *sin_row, const float *inverse_frequency, uint32_t n_pairs, uint32_t position) {
    for (uint32_t i = 0; i < n_pairs; i++) {
        double angle = (double)((float)position * inverse_frequency[i]);
        cos_row[i] = (float)cos(angle);
        sin_row[i] = (float)sin(angle);
    }
}
