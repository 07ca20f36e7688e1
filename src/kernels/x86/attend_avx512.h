/* SPDX-License-Identifier: Apache-2.0
 * Integer products of attention on AVX-512 VNNI: the two 7-bit planes of the 15-bit codes against int8 keys and
 * values, 16 accumulators for 4 vectors. */
#ifndef SPL_KERNELS_ATTEND_AVX512_H
#define SPL_KERNELS_ATTEND_AVX512_H

#include "kernels/x86/dot_avx512.h"

enum { ATTEND_KEY_BIAS = 128 }; /* keys are multiplied as stored, unsigned */

/* High plane at dst, low plane (0 .. 127) n bytes later. */
static SPL_ALWAYS_INLINE void attend_put_codes(uint8_t *dst, uint32_t n, uint32_t i, v16i code) {
    v16i_store_bytes(dst + i, _mm512_srai_epi32(code, 7));
    v16i_store_bytes(dst + n + i, _mm512_and_si512(code, _mm512_set1_epi32(127)));
}

static SPL_ALWAYS_INLINE __m512i join_planes(__m512i high, __m512i low) {
    return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
}

static SPL_ALWAYS_INLINE void attend_scores(const int n_q, const uint8_t *k, const uint8_t *next, const uint8_t *q,
                                            uint32_t d, int32_t dot[4][SPL_PAGE_TOKENS]) {
    __m512i high[4][2], low[4][2];
    for (int v = 0; v < n_q; v++)
        for (int half = 0; half < 2; half++) high[v][half] = low[v][half] = _mm512_setzero_si512();
    for (uint32_t i = 0; i < d; i += 4) {
        __m512i k0 = _mm512_loadu_si512(k + (size_t)i * SPL_PAGE_TOKENS);
        __m512i k1 = _mm512_loadu_si512(k + (size_t)i * SPL_PAGE_TOKENS + 64);
        SPL_PREFETCH_T1(next + (size_t)i * SPL_PAGE_TOKENS);
        SPL_PREFETCH_T1(next + (size_t)i * SPL_PAGE_TOKENS + 64);
        for (int v = 0; v < n_q; v++) {
            const int8_t *code = (const int8_t *)q + (size_t)v * 2 * d + i;
            high[v][0] = dot_inputs(high[v][0], k0, code);
            high[v][1] = dot_inputs(high[v][1], k1, code);
            low[v][0] = dot_inputs(low[v][0], k0, code + d);
            low[v][1] = dot_inputs(low[v][1], k1, code + d);
        }
    }
    for (int v = 0; v < n_q; v++)
        for (int half = 0; half < 2; half++)
            _mm512_storeu_si512(dot[v] + 16 * half, join_planes(high[v][half], low[v][half]));
}

/* n_vec x 16 dims from `dim` on. */
static SPL_ALWAYS_INLINE void attend_value_dims(const int n_q, const int n_vec, const uint8_t *values,
                                                const uint8_t *next, const uint8_t *w, uint32_t d, uint32_t dim,
                                                const float *factor, const float *scale, float *acc) {
    __m512i high[4][2], low[4][2];
    for (int v = 0; v < n_q; v++)
        for (int c = 0; c < n_vec; c++) high[v][c] = low[v][c] = _mm512_setzero_si512();
    for (int group = 0; group < SPL_PAGE_TOKENS / 4; group++) {
        __m512i x[2];
        for (int c = 0; c < n_vec; c++) {
            size_t at = 4 * ((size_t)group * d + dim + 16 * (uint32_t)c);
            x[c] = _mm512_loadu_si512(values + at);
            SPL_PREFETCH_T1(next + at);
        }
        for (int v = 0; v < n_q; v++) {
            int32_t four[2];
            memcpy(&four[0], w + 64 * v + 4 * group, 4);
            memcpy(&four[1], w + 64 * v + SPL_PAGE_TOKENS + 4 * group, 4);
            __m512i wh = _mm512_set1_epi32(four[0]), wl = _mm512_set1_epi32(four[1]);
            for (int c = 0; c < n_vec; c++) {
                high[v][c] = _mm512_dpbusd_epi32(high[v][c], wh, x[c]);
                low[v][c] = _mm512_dpbusd_epi32(low[v][c], wl, x[c]);
            }
        }
    }
    for (int v = 0; v < n_q; v++)
        for (int c = 0; c < n_vec; c++) {
            float *y = acc + (size_t)v * d + dim + 16 * (uint32_t)c;
            __m512 old = _mm512_mul_ps(_mm512_loadu_ps(y), _mm512_set1_ps(factor[v]));
            __m512 sum = _mm512_cvtepi32_ps(join_planes(high[v][c], low[v][c]));
            _mm512_storeu_ps(y, _mm512_fmadd_ps(sum, _mm512_set1_ps(scale[v]), old));
        }
}

static SPL_ALWAYS_INLINE void attend_values(const int n_q, const uint8_t *values, const uint8_t *next, const uint8_t *w,
                                            uint32_t d, const float *factor, const float *scale, float *acc) {
    uint32_t dim = 0;
    for (; dim + 32 <= d; dim += 32) attend_value_dims(n_q, 2, values, next, w, d, dim, factor, scale, acc);
    if (dim < d) attend_value_dims(n_q, 1, values, next, w, d, dim, factor, scale, acc);
}

#endif
