/* SPDX-License-Identifier: Apache-2.0
 * Integer products of attention on 256-bit registers: the 15-bit codes are one int16 each and meet keys and values
 * widened to 16 bits, two products an element pair. */
#ifndef SPL_KERNELS_ATTEND_YMM_H
#define SPL_KERNELS_ATTEND_YMM_H

#include "kernels/x86/dot_ymm.h"

enum { ATTEND_KEY_BIAS = 128 }; /* keys are multiplied as stored, unsigned */

static SPL_ALWAYS_INLINE void attend_put_codes(uint8_t *dst, uint32_t n, uint32_t i, v16i code) {
    (void)n;
    _mm256_storeu_si256((void *)(dst + 2 * (size_t)i), v16i_to_i16(code));
}
static SPL_ALWAYS_INLINE __m256i four_codes(const uint8_t *p) {
    int64_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi64x(v);
}
/* Element pairs of a and b summed: a's four, then b's four. */
static SPL_ALWAYS_INLINE __m256i pair_sums(__m256i a, __m256i b) {
    return _mm256_permute4x64_epi64(_mm256_hadd_epi32(a, b), 0xd8);
}

static SPL_ALWAYS_INLINE void attend_scores(const int n_q, const uint8_t *k, const uint8_t *next, const uint8_t *q,
                                            uint32_t d, int32_t dot[4][SPL_PAGE_TOKENS]) {
    for (uint32_t token = 0; token < SPL_PAGE_TOKENS; token += 8) {
        __m256i sum[4][2];
        for (int v = 0; v < n_q; v++) sum[v][0] = sum[v][1] = _mm256_setzero_si256();
        for (uint32_t i = 0; i < d; i += 4) {
            const uint8_t *at = k + (size_t)i * SPL_PAGE_TOKENS + 4 * token;
            __m256i k0 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)at));
            __m256i k1 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(at + 16)));
            if (token % 16 == 0) SPL_PREFETCH_T1(next + (size_t)i * SPL_PAGE_TOKENS + 4 * token);
            for (int v = 0; v < n_q; v++) {
                __m256i x = four_codes(q + (size_t)v * 2 * d + 2 * (size_t)i);
                sum[v][0] = dot16_ymm(sum[v][0], k0, x);
                sum[v][1] = dot16_ymm(sum[v][1], k1, x);
            }
        }
        for (int v = 0; v < n_q; v++) _mm256_storeu_si256((void *)(dot[v] + token), pair_sums(sum[v][0], sum[v][1]));
    }
}

static SPL_ALWAYS_INLINE void attend_values(const int n_q, const uint8_t *values, const uint8_t *next, const uint8_t *w,
                                            uint32_t d, const float *factor, const float *scale, float *acc) {
    for (uint32_t dim = 0; dim < d; dim += 8) {
        __m256i sum[4][2];
        for (int v = 0; v < n_q; v++) sum[v][0] = sum[v][1] = _mm256_setzero_si256();
        for (uint32_t group = 0; group < SPL_PAGE_TOKENS / 4; group++) {
            size_t at = 4 * ((size_t)group * d + dim);
            __m256i x0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(values + at)));
            __m256i x1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(values + at + 16)));
            if (dim % 16 == 0) SPL_PREFETCH_T1(next + at);
            for (int v = 0; v < n_q; v++) {
                __m256i c = four_codes(w + 64 * v + 8 * group);
                sum[v][0] = dot16_ymm(sum[v][0], x0, c);
                sum[v][1] = dot16_ymm(sum[v][1], x1, c);
            }
        }
        for (int v = 0; v < n_q; v++) {
            float *y = acc + (size_t)v * d + dim;
            __m256 old = _mm256_mul_ps(_mm256_loadu_ps(y), _mm256_set1_ps(factor[v]));
            __m256 s = _mm256_cvtepi32_ps(pair_sums(sum[v][0], sum[v][1]));
            _mm256_storeu_ps(y, _mm256_fmadd_ps(s, _mm256_set1_ps(scale[v]), old));
        }
    }
}

#endif
