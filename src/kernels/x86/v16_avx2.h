/* SPDX-License-Identifier: Apache-2.0
 * v16 (see v16_avx512.h) as two 256-bit registers. */
#ifndef SPL_KERNELS_V16_AVX2_H
#define SPL_KERNELS_V16_AVX2_H

#include <immintrin.h>

#include "kernels/body/math_body.h"

typedef struct v16 {
    __m256 a, b;
} v16;
typedef struct v16i {
    __m256i a, b;
} v16i;
typedef v16 v16m; /* all bits of a lane set or clear */
enum { V16_SLICE = 1 };

static SPL_ALWAYS_INLINE v16 v16_of(__m256 a, __m256 b) {
    v16 r = {a, b};
    return r;
}
static SPL_ALWAYS_INLINE v16i v16i_of(__m256i a, __m256i b) {
    v16i r = {a, b};
    return r;
}
static SPL_ALWAYS_INLINE v16 v16_load(const float *p) { return v16_of(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
static SPL_ALWAYS_INLINE void v16_store(float *p, v16 v) {
    _mm256_storeu_ps(p, v.a);
    _mm256_storeu_ps(p + 8, v.b);
}
static SPL_ALWAYS_INLINE v16 v16_set1(float x) { return v16_of(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
static SPL_ALWAYS_INLINE v16 v16_add(v16 x, v16 y) { return v16_of(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
static SPL_ALWAYS_INLINE v16 v16_sub(v16 x, v16 y) { return v16_of(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
static SPL_ALWAYS_INLINE v16 v16_mul(v16 x, v16 y) { return v16_of(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
static SPL_ALWAYS_INLINE v16 v16_div(v16 x, v16 y) { return v16_of(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
static SPL_ALWAYS_INLINE v16 v16_fma(v16 x, v16 y, v16 z) {
    return v16_of(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
static SPL_ALWAYS_INLINE v16 v16_max(v16 x, v16 y) { return v16_of(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
static SPL_ALWAYS_INLINE v16 v16_abs(v16 v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return v16_of(_mm256_andnot_ps(sign, v.a), _mm256_andnot_ps(sign, v.b));
}
static SPL_ALWAYS_INLINE v16 v16_minus(v16 v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return v16_of(_mm256_xor_ps(sign, v.a), _mm256_xor_ps(sign, v.b));
}
static SPL_ALWAYS_INLINE v16m v16_less(v16 x, v16 y) {
    return v16_of(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ));
}
static SPL_ALWAYS_INLINE v16 v16_select(v16m m, v16 yes, v16 no) {
    return v16_of(_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b));
}
static SPL_ALWAYS_INLINE v16m v16_first(uint32_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), count = _mm256_set1_epi32(n > 16 ? 16 : (int)n);
    return v16_of(_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, lane)),
                  _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8)))));
}
static SPL_ALWAYS_INLINE float v16_tree(v16 v) {
    __m256 a = _mm256_add_ps(v.a, v.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
static SPL_ALWAYS_INLINE float v16_top(v16 v) {
    __m256 a = _mm256_max_ps(v.a, v.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}
static SPL_ALWAYS_INLINE void v16_top_4(const v16 v[4], float top[4]) {
    for (int i = 0; i < 4; i++) top[i] = v16_top(v[i]);
}

static SPL_ALWAYS_INLINE v16i v16i_set1(int32_t x) { return v16i_of(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
static SPL_ALWAYS_INLINE v16i v16i_load(const int32_t *p) {
    return v16i_of(_mm256_loadu_si256((const void *)p), _mm256_loadu_si256((const void *)(p + 8)));
}
static SPL_ALWAYS_INLINE v16i v16i_add(v16i x, v16i y) {
    return v16i_of(_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b));
}
static SPL_ALWAYS_INLINE v16i v16i_sub(v16i x, v16i y) {
    return v16i_of(_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b));
}
static SPL_ALWAYS_INLINE v16i v16i_half(v16i x) {
    return v16i_of(_mm256_srai_epi32(x.a, 1), _mm256_srai_epi32(x.b, 1));
}
static SPL_ALWAYS_INLINE int32_t v16i_total(v16i x) {
    __m256i a = _mm256_add_epi32(x.a, x.b);
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
static SPL_ALWAYS_INLINE v16 v16_power(v16i n) {
    const __m256i bias = _mm256_set1_epi32(127);
    return v16_of(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.a, bias), 23)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.b, bias), 23)));
}
static SPL_ALWAYS_INLINE v16 v16_raise(v16 p, v16i n) {
    return v16_of(_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.a), _mm256_slli_epi32(n.a, 23))),
                  _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.b), _mm256_slli_epi32(n.b, 23))));
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_1(v16 x) {
    __m256 a = _mm256_permute_ps(x.a, 0xb1), b = _mm256_permute_ps(x.b, 0xb1);
    return v16_of(_mm256_blend_ps(_mm256_add_ps(x.a, a), _mm256_sub_ps(a, x.a), 0xaa),
                  _mm256_blend_ps(_mm256_add_ps(x.b, b), _mm256_sub_ps(b, x.b), 0xaa));
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_2(v16 x) {
    __m256 a = _mm256_permute_ps(x.a, 0x4e), b = _mm256_permute_ps(x.b, 0x4e);
    return v16_of(_mm256_blend_ps(_mm256_add_ps(x.a, a), _mm256_sub_ps(a, x.a), 0xcc),
                  _mm256_blend_ps(_mm256_add_ps(x.b, b), _mm256_sub_ps(b, x.b), 0xcc));
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_4(v16 x) {
    __m256 a = _mm256_permute2f128_ps(x.a, x.a, 1), b = _mm256_permute2f128_ps(x.b, x.b, 1);
    return v16_of(_mm256_blend_ps(_mm256_add_ps(x.a, a), _mm256_sub_ps(a, x.a), 0xf0),
                  _mm256_blend_ps(_mm256_add_ps(x.b, b), _mm256_sub_ps(b, x.b), 0xf0));
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_8(v16 x) { return v16_of(_mm256_add_ps(x.a, x.b), _mm256_sub_ps(x.a, x.b)); }
static SPL_ALWAYS_INLINE v16i v16_bits(v16 v) { return v16i_of(_mm256_castps_si256(v.a), _mm256_castps_si256(v.b)); }
static SPL_ALWAYS_INLINE v16 v16_from_i32(v16i v) { return v16_of(_mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)); }
/* The 16 integers, which fit, as int16 in order. */
static SPL_ALWAYS_INLINE __m256i v16i_to_i16(v16i v) {
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(v.a, v.b), 0xd8);
}
static SPL_ALWAYS_INLINE void v16i_store_bytes(void *p, v16i v) {
    __m256i w = v16i_to_i16(v);
    _mm_storeu_si128(p, _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
typedef struct v16x4 {
    v16 v[4];
} v16x4;
/* Transposes 8 x 4 floats: tap j of 8 groups. */
static SPL_ALWAYS_INLINE void taps_of_8(const float *p, __m256 out[4]) {
    __m256 a = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 16), 1);
    __m256 b = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 4)), _mm_loadu_ps(p + 20), 1);
    __m256 c = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 8)), _mm_loadu_ps(p + 24), 1);
    __m256 d = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 12)), _mm_loadu_ps(p + 28), 1);
    __m256 ab0 = _mm256_unpacklo_ps(a, b), ab1 = _mm256_unpackhi_ps(a, b);
    __m256 cd0 = _mm256_unpacklo_ps(c, d), cd1 = _mm256_unpackhi_ps(c, d);
    out[0] = _mm256_shuffle_ps(ab0, cd0, 0x44);
    out[1] = _mm256_shuffle_ps(ab0, cd0, 0xee);
    out[2] = _mm256_shuffle_ps(ab1, cd1, 0x44);
    out[3] = _mm256_shuffle_ps(ab1, cd1, 0xee);
}
static SPL_ALWAYS_INLINE v16x4 v16_load_taps(const float *p) {
    __m256 low[4], high[4];
    taps_of_8(p, low);
    taps_of_8(p + 32, high);
    v16x4 r = {{v16_of(low[0], high[0]), v16_of(low[1], high[1]), v16_of(low[2], high[2]), v16_of(low[3], high[3])}};
    return r;
}
static SPL_ALWAYS_INLINE void v16_prefetch(const float *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#endif
