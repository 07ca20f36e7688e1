/* SPDX-License-Identifier: Apache-2.0
 * body/math_body.h on 16 lanes at a time: the same operations in the same order, hence the same bits. */
#ifndef SPL_KERNELS_MATH_AVX512_H
#define SPL_KERNELS_MATH_AVX512_H

#include <immintrin.h>

#include "kernels/body/math_body.h"

static SPL_ALWAYS_INLINE __m512 mul_add_avx512(__m512 a, __m512 b, float c) {
    return _mm512_add_ps(_mm512_mul_ps(a, b), _mm512_set1_ps(c));
}

static SPL_ALWAYS_INLINE __m512 exp_avx512(__m512 x) {
    const __m512 low = _mm512_set1_ps(-87.33f), high = _mm512_set1_ps(88.7228317f);
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    __mmask16 below = _mm512_cmp_ps_mask(x, low, _CMP_LT_OQ), above = _mm512_cmp_ps_mask(x, high, _CMP_GT_OQ);
    __m512 c = _mm512_mask_mov_ps(_mm512_mask_mov_ps(x, below, low), above, high);
    __m512 t = mul_add_avx512(c, _mm512_set1_ps(1.44269504f), 12582912.0f);
    __m512 n = _mm512_sub_ps(t, magic);
    __m512i i = _mm512_sub_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(0x4b400000));
    __m512 r = _mm512_sub_ps(c, _mm512_mul_ps(n, _mm512_set1_ps(0.693359375f)));
    r = _mm512_sub_ps(r, _mm512_mul_ps(n, _mm512_set1_ps(-2.12194440e-4f)));
    __m512 p = _mm512_set1_ps(1.39411609e-3f);
    p = mul_add_avx512(p, r, 8.37516785e-3f);
    p = mul_add_avx512(p, r, 4.16663513e-2f);
    p = mul_add_avx512(p, r, 0.166664153f);
    p = mul_add_avx512(p, r, 0.5f);
    p = _mm512_mul_ps(p, _mm512_mul_ps(r, r));
    p = _mm512_add_ps(_mm512_add_ps(p, r), _mm512_set1_ps(1.0f));
    const __m512i bias = _mm512_set1_epi32(127);
    __m512i half = _mm512_srai_epi32(i, 1);
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23)));
    p = _mm512_mul_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(i, half), bias), 23)));
    return _mm512_mask_mov_ps(_mm512_maskz_mov_ps((__mmask16)~below, p), above, _mm512_set1_ps(INFINITY));
}

static SPL_ALWAYS_INLINE __m512 sigmoid_avx512(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 minus = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000u)));
    return _mm512_div_ps(one, _mm512_add_ps(one, exp_avx512(minus)));
}
static SPL_ALWAYS_INLINE __m512 silu_avx512(__m512 x) { return _mm512_mul_ps(x, sigmoid_avx512(x)); }

/* The fixed tree: lanes j and j + 8, + 4, + 2, + 1. */
static SPL_ALWAYS_INLINE float lane_tree_avx512(__m512 v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    b = _mm_add_ss(b, _mm_shuffle_ps(b, b, 1));
    return _mm_cvtss_f32(b);
}

static SPL_ALWAYS_INLINE __m512 abs_avx512(__m512 v) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
}

#endif
