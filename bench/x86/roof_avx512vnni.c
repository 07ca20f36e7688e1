/* SPDX-License-Identifier: Apache-2.0
 * vpdpbusd on 512-bit registers: 64 products each. */
#include "bench/roof.h"

#if defined(__x86_64__)
#include <immintrin.h>

typedef __m512i roof_vec;
static SPL_ALWAYS_INLINE roof_vec roof_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
static SPL_ALWAYS_INLINE roof_vec roof_dot(roof_vec sum, roof_vec a, roof_vec b) {
    return _mm512_dpbusd_epi32(sum, a, b);
}
static SPL_ALWAYS_INLINE uint64_t roof_total(roof_vec v) { return (uint64_t)_mm512_reduce_add_epi32(v); }

#include "bench/body/roof_body.h"

uint64_t spl_roof_dots_avx512vnni(const uint8_t *bytes, uint64_t rounds) { return roof_rounds(bytes, rounds); }
#endif
