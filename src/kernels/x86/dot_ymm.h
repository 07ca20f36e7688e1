/* SPDX-License-Identifier: Apache-2.0
 * 256-bit dot products: sum + 4 unsigned x signed bytes (AVX-VNNI only) and sum + 2 signed 16-bit products (both
 * tiers). SPL_EMULATE_VNNI builds the AVX-VNNI instructions from AVX2 ones, exactly, for tests. */
#ifndef SPL_KERNELS_DOT_YMM_H
#define SPL_KERNELS_DOT_YMM_H

#include <immintrin.h>

#include "base/compiler.h"

#if defined(SPL_YMM_VNNI) && !defined(SPL_EMULATE_VNNI)
static SPL_ALWAYS_INLINE __m256i dot_ymm(__m256i sum, __m256i a, __m256i b) {
    return _mm256_dpbusd_avx_epi32(sum, a, b);
}
static SPL_ALWAYS_INLINE __m256i dot16_ymm(__m256i sum, __m256i a, __m256i b) {
    return _mm256_dpwssd_avx_epi32(sum, a, b);
}
#else
#ifdef SPL_YMM_VNNI
/* Even and odd bytes apart, widened to 16 bits: nothing saturates. */
static SPL_ALWAYS_INLINE __m256i dot_ymm(__m256i sum, __m256i a, __m256i b) {
    __m256i a0 = _mm256_and_si256(a, _mm256_set1_epi16(255)), a1 = _mm256_srli_epi16(a, 8);
    __m256i b0 = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8), b1 = _mm256_srai_epi16(b, 8);
    return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(a0, b0), _mm256_madd_epi16(a1, b1)));
}
#endif
static SPL_ALWAYS_INLINE __m256i dot16_ymm(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}
#endif

#endif
