/* SPDX-License-Identifier: Apache-2.0
 * vpdpbusd on 256-bit registers: 32 products each. */
#include "bench/roof.h"

#if defined(__x86_64__)
#include <immintrin.h>

typedef __m256i roof_vec;
static SPL_ALWAYS_INLINE roof_vec roof_load(const uint8_t *p) { return _mm256_loadu_si256((const void *)p); }
static SPL_ALWAYS_INLINE roof_vec roof_dot(roof_vec sum, roof_vec a, roof_vec b) {
    return _mm256_dpbusd_avx_epi32(sum, a, b);
}
static SPL_ALWAYS_INLINE uint64_t roof_total(roof_vec v) {
    int32_t lane[8];
    _mm256_storeu_si256((void *)lane, v);
    return (uint64_t)lane[0] + (uint64_t)lane[3] + (uint64_t)lane[7];
}

#include "bench/body/roof_body.h"

uint64_t spl_roof_dots_avxvnni(const uint8_t *bytes, uint64_t rounds) { return roof_rounds(bytes, rounds); }
#endif
