/* SPDX-License-Identifier: Apache-2.0
 * Integer products of attention on 256-bit registers. With AVX-VNNI: byte codes, 12 accumulators for 6 vectors.
 * Without: codes, keys and values as int16, two products an element pair, 8 accumulators for 4 vectors. */
#ifndef SPL_KERNELS_ATTEND_YMM_H
#define SPL_KERNELS_ATTEND_YMM_H

#include <string.h>

#include "kernels/x86/dot_ymm.h"

enum { ATTEND_KEY_BIAS = 128 }; /* keys are multiplied as stored, unsigned */

/* acc of 8 dims: fma(sum, scale, acc or acc * factor). */
static SPL_ALWAYS_INLINE void attend_add_8(float *y, __m256i sum, float scale, const bool first, float factor) {
    __m256 old = _mm256_loadu_ps(y);
    if (first) old = _mm256_mul_ps(old, _mm256_set1_ps(factor));
    _mm256_storeu_ps(y, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(scale), old));
}

#if defined(SPL_YMM_VNNI)
enum { ATTEND_Q_BLOCK = 6, ATTEND_CODE_BYTES = 1 };

static SPL_ALWAYS_INLINE void attend_put_query(uint8_t *dst, v16i code) { v16i_store_bytes(dst, code); }
static SPL_ALWAYS_INLINE void attend_put_weights(uint8_t *dst, v16i code) {
    __m256i w = v16i_to_i16(code);
    _mm_storeu_si128((void *)dst, _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
static SPL_ALWAYS_INLINE __m256i four_codes(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

static SPL_ALWAYS_INLINE void attend_scores(const int n_q, const uint8_t *k, const uint8_t *next, const uint8_t *q,
                                            uint32_t d, int32_t *dot) {
    for (uint32_t token = 0; token < SPL_PAGE_TOKENS; token += 16) {
        __m256i sum[6][2];
        for (int v = 0; v < n_q; v++) sum[v][0] = sum[v][1] = _mm256_setzero_si256();
        for (uint32_t i = 0; i < d; i += 4) {
            size_t at = (size_t)i * SPL_PAGE_TOKENS + 4 * token;
            __m256i k0 = _mm256_loadu_si256((const void *)(k + at));
            __m256i k1 = _mm256_loadu_si256((const void *)(k + at + 32));
            SPL_PREFETCH_T1(next + at);
            for (int v = 0; v < n_q; v++) {
                __m256i x = four_codes(q + (size_t)v * d + i);
                sum[v][0] = dot_ymm(sum[v][0], k0, x);
                sum[v][1] = dot_ymm(sum[v][1], k1, x);
            }
        }
        for (int v = 0; v < n_q; v++)
            for (int c = 0; c < 2; c++)
                _mm256_storeu_si256((void *)(dot + (size_t)v * SPL_ATTEND_TILE + token + 8 * (uint32_t)c), sum[v][c]);
    }
}

static SPL_ALWAYS_INLINE void attend_page_values(const int n_q, const bool first, const uint8_t *values,
                                                 const uint8_t *next, const uint8_t *w, uint32_t d, uint32_t dim_begin,
                                                 uint32_t dim_end, const float *factor, const float *scale, float *acc,
                                                 size_t stride) {
    for (uint32_t dim = dim_begin; dim < dim_end; dim += 16) {
        __m256i sum[6][2];
        for (int v = 0; v < n_q; v++) sum[v][0] = sum[v][1] = _mm256_setzero_si256();
        for (uint32_t group = 0; group < SPL_PAGE_TOKENS / 4; group++) {
            size_t at = 4 * ((size_t)group * d + dim);
            __m256i x0 = _mm256_loadu_si256((const void *)(values + at));
            __m256i x1 = _mm256_loadu_si256((const void *)(values + at + 32));
            SPL_PREFETCH_T1(next + at);
            for (int v = 0; v < n_q; v++) {
                __m256i codes = four_codes(w + (size_t)v * SPL_ATTEND_TILE + 4 * group);
                sum[v][0] = dot_ymm(sum[v][0], codes, x0);
                sum[v][1] = dot_ymm(sum[v][1], codes, x1);
            }
        }
        for (int v = 0; v < n_q; v++)
            for (int c = 0; c < 2; c++)
                attend_add_8(acc + (size_t)v * stride + dim + 8 * (uint32_t)c, sum[v][c], scale[v], first, factor[v]);
    }
}
#else
enum { ATTEND_Q_BLOCK = 4, ATTEND_CODE_BYTES = 2 };

static SPL_ALWAYS_INLINE void attend_put_query(uint8_t *dst, v16i code) {
    _mm256_storeu_si256((void *)dst, v16i_to_i16(code));
}
static SPL_ALWAYS_INLINE void attend_put_weights(uint8_t *dst, v16i code) { attend_put_query(dst, code); }
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
                                            uint32_t d, int32_t *dot) {
    for (uint32_t token = 0; token < SPL_PAGE_TOKENS; token += 8) {
        __m256i sum[4][2];
        for (int v = 0; v < n_q; v++) sum[v][0] = sum[v][1] = _mm256_setzero_si256();
        for (uint32_t i = 0; i < d; i += 4) {
            size_t at = (size_t)i * SPL_PAGE_TOKENS + 4 * token;
            __m256i k0 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(k + at)));
            __m256i k1 = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)(k + at + 16)));
            if (token % 16 == 0) SPL_PREFETCH_T1(next + at);
            for (int v = 0; v < n_q; v++) {
                __m256i x = four_codes(q + 2 * ((size_t)v * d + i));
                sum[v][0] = dot16_ymm(sum[v][0], k0, x);
                sum[v][1] = dot16_ymm(sum[v][1], k1, x);
            }
        }
        for (int v = 0; v < n_q; v++)
            _mm256_storeu_si256((void *)(dot + (size_t)v * SPL_ATTEND_TILE + token), pair_sums(sum[v][0], sum[v][1]));
    }
}

static SPL_ALWAYS_INLINE void attend_page_values(const int n_q, const bool first, const uint8_t *values,
                                                 const uint8_t *next, const uint8_t *w, uint32_t d, uint32_t dim_begin,
                                                 uint32_t dim_end, const float *factor, const float *scale, float *acc,
                                                 size_t stride) {
    for (uint32_t dim = dim_begin; dim < dim_end; dim += 8) {
        __m256i sum[4][2];
        for (int v = 0; v < n_q; v++) sum[v][0] = sum[v][1] = _mm256_setzero_si256();
        for (uint32_t group = 0; group < SPL_PAGE_TOKENS / 4; group++) {
            size_t at = 4 * ((size_t)group * d + dim);
            __m256i x0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(values + at)));
            __m256i x1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)(values + at + 16)));
            if (dim % 16 == 0) SPL_PREFETCH_T1(next + at);
            for (int v = 0; v < n_q; v++) {
                __m256i codes = four_codes(w + 2 * ((size_t)v * SPL_ATTEND_TILE + 4 * group));
                sum[v][0] = dot16_ymm(sum[v][0], x0, codes);
                sum[v][1] = dot16_ymm(sum[v][1], x1, codes);
            }
        }
        for (int v = 0; v < n_q; v++)
            attend_add_8(acc + (size_t)v * stride + dim, pair_sums(sum[v][0], sum[v][1]), scale[v], first, factor[v]);
    }
}
#endif

#include "kernels/body/attend_pages_body.h"

#endif
