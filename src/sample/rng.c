/* SPDX-License-Identifier: Apache-2.0
 * Counter generator; see rng.h. The constants are SplitMix64's. */
#include "sample/rng.h"

uint64_t spl_rng_at(uint64_t seed, uint64_t counter) {
    uint64_t x = seed + counter * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

double spl_rng_draw(spl_rng *rng) { return spl_rng_uniform(spl_rng_at(rng->seed, ++rng->counter)); }

void spl_rng_step(spl_rng *rng, double uniforms[SPL_N_UNIFORMS]) {
    uniforms[SPL_UNIFORM_FIRST] = 0.0;
    for (uint32_t i = 1; i < SPL_N_UNIFORMS; i++) uniforms[i] = spl_rng_draw(rng);
}
