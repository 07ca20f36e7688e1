/* SPDX-License-Identifier: Apache-2.0
 * vpmaddubsw and a 16-bit addition: 32 products each, before any widening. */
#include "bench/roof.h"

#if defined(__x86_64__)
#include <immintrin.h>

typedef __m256i roof_vec;
static SPL_ALWAYS_INLINE roof_vec roof_load(const uint8_t *p) { return _mm256_loadu_si256((const void *)p); }
static SPL_ALWAYS_INLINE roof_vec roof_dot(roof_vec sum, roof_vec a, roof_vec b) {
    /* the operand depends on the sum, else equal products would be computed once */
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, _mm256_xor_si256(b, sum)));
}
static SPL_ALWAYS_INLINE uint64_t roof_total(roof_vec v) {
    int32_t lane[8];
    _mm256_storeu_si256((void *)lane, v);
    return (uint64_t)lane[0] + (uint64_t)lane[3] + (uint64_t)lane[7];
}

#include "bench/body/roof_body.h"

uint64_t spl_roof_dots_avx2(const uint8_t *bytes, uint64_t rounds) { return roof_rounds(bytes, rounds); }
#endif
