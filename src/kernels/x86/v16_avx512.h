/* SPDX-License-Identifier: Apache-2.0
 * v16: the 16 virtual lanes of the rounding contract as one register. body/v16_body.h and the files above it
 * are written in these operations only; v16_avx2.h and arm/v16_neon.h give the same ones. */
#ifndef SPL_KERNELS_V16_AVX512_H
#define SPL_KERNELS_V16_AVX512_H

#include <immintrin.h>

#include "kernels/body/math_body.h"

typedef __m512 v16;
typedef __m512i v16i;
typedef __mmask16 v16m;
enum { V16_SLICE = 2 }; /* column vectors of one GDN slice: 16 KiB of state and four chains */

static SPL_ALWAYS_INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
static SPL_ALWAYS_INLINE void v16_store(float *p, v16 v) { _mm512_storeu_ps(p, v); }
static SPL_ALWAYS_INLINE v16 v16_set1(float x) { return _mm512_set1_ps(x); }
static SPL_ALWAYS_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
static SPL_ALWAYS_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
static SPL_ALWAYS_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
static SPL_ALWAYS_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
static SPL_ALWAYS_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
/* a > b ? a : b, hence b when a is NaN. */
static SPL_ALWAYS_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
static SPL_ALWAYS_INLINE v16 v16_abs(v16 v) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
}
static SPL_ALWAYS_INLINE v16 v16_minus(v16 v) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), _mm512_set1_epi32(INT32_MIN)));
}
static SPL_ALWAYS_INLINE v16m v16_less(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static SPL_ALWAYS_INLINE v16 v16_select(v16m m, v16 yes, v16 no) { return _mm512_mask_mov_ps(no, m, yes); }
/* Lanes 0 .. n - 1. */
static SPL_ALWAYS_INLINE v16m v16_first(uint32_t n) { return (v16m)(n >= 16 ? 0xffffu : (1u << n) - 1u); }
static SPL_ALWAYS_INLINE float v16_tree(v16 v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
static SPL_ALWAYS_INLINE float v16_top(v16 v) { return _mm512_reduce_max_ps(v); }
/* The largest lane of each of four. */
static SPL_ALWAYS_INLINE void v16_top_4(const v16 v[4], float top[4]) {
    v16 a = v16_max(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    v16 b = v16_max(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    v16 c = v16_max(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee)); /* 0 1 2 3 in every quarter */
    __m256 d = _mm256_max_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
    _mm_storeu_ps(top, _mm_max_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1)));
}

static SPL_ALWAYS_INLINE v16i v16i_set1(int32_t x) { return _mm512_set1_epi32(x); }
static SPL_ALWAYS_INLINE v16i v16i_load(const int32_t *p) { return _mm512_loadu_si512(p); }
static SPL_ALWAYS_INLINE v16i v16i_add(v16i a, v16i b) { return _mm512_add_epi32(a, b); }
static SPL_ALWAYS_INLINE v16i v16i_sub(v16i a, v16i b) { return _mm512_sub_epi32(a, b); }
static SPL_ALWAYS_INLINE int32_t v16i_total(v16i a) { return _mm512_reduce_add_epi32(a); }
static SPL_ALWAYS_INLINE v16i v16i_half(v16i a) { return _mm512_srai_epi32(a, 1); }
static SPL_ALWAYS_INLINE v16 v16_power(v16i n) { /* 2^n for -126 <= n <= 127 */
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
static SPL_ALWAYS_INLINE v16 v16_raise(v16 p, v16i n) { /* p 2^n through the exponent's bits */
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(n, 23)));
}
/* Lane j becomes x[j] + x[j ^ h], or x[j ^ h] - x[j] where j has the bit h. */
static SPL_ALWAYS_INLINE v16 v16_butterfly(v16 x, v16 other, __mmask16 upper) {
    return _mm512_mask_sub_ps(_mm512_add_ps(x, other), upper, other, x);
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_1(v16 x) { return v16_butterfly(x, _mm512_permute_ps(x, 0xb1), 0xaaaa); }
static SPL_ALWAYS_INLINE v16 v16_butterfly_2(v16 x) { return v16_butterfly(x, _mm512_permute_ps(x, 0x4e), 0xcccc); }
static SPL_ALWAYS_INLINE v16 v16_butterfly_4(v16 x) {
    return v16_butterfly(x, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_8(v16 x) {
    return v16_butterfly(x, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
}
static SPL_ALWAYS_INLINE v16i v16_bits(v16 v) { return _mm512_castps_si512(v); }
static SPL_ALWAYS_INLINE v16 v16_from_i32(v16i v) { return _mm512_cvtepi32_ps(v); }
/* Low bytes of the 16 integers. */
static SPL_ALWAYS_INLINE void v16i_store_bytes(void *p, v16i v) { _mm_storeu_si128(p, _mm512_cvtepi32_epi8(v)); }
/* Four values at p, p + 4, ... of each of 16 groups: element i of the result is p[4 i + tap]. */
typedef struct v16x4 {
    v16 v[4];
} v16x4;
static SPL_ALWAYS_INLINE v16x4 v16_load_taps(const float *p) {
    const __m512i even = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i odd = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
    __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16), c = _mm512_loadu_ps(p + 32),
           d = _mm512_loadu_ps(p + 48);
    __m512 ab01 = _mm512_permutex2var_ps(a, even, b), ab23 = _mm512_permutex2var_ps(a, odd, b);
    __m512 cd01 = _mm512_permutex2var_ps(c, even, d), cd23 = _mm512_permutex2var_ps(c, odd, d);
    v16x4 r = {{_mm512_shuffle_f32x4(ab01, cd01, 0x44), _mm512_shuffle_f32x4(ab01, cd01, 0xee),
                _mm512_shuffle_f32x4(ab23, cd23, 0x44), _mm512_shuffle_f32x4(ab23, cd23, 0xee)}};
    return r;
}
static SPL_ALWAYS_INLINE void v16_prefetch(const float *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#endif
