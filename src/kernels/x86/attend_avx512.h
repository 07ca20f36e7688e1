/* SPDX-License-Identifier: Apache-2.0
 * Integer products of attention on AVX-512 VNNI: int8 queries against keys as stored, 8-bit weights against int8
 * values; 12 accumulators for 6 vectors, so that a register of keys or values serves 6 products, and 12 more for the
 * weighted sums of a tile. */
#ifndef SPL_KERNELS_ATTEND_AVX512_H
#define SPL_KERNELS_ATTEND_AVX512_H

#include "kernels/x86/dot_avx512.h"

enum { ATTEND_KEY_BIAS = 128 /* keys are multiplied as stored, unsigned */, ATTEND_Q_BLOCK = 6, ATTEND_CODE_BYTES = 1 };

static SPL_ALWAYS_INLINE void attend_put_query(uint8_t *dst, v16i code) { v16i_store_bytes(dst, code); }
static SPL_ALWAYS_INLINE void attend_put_weights(uint8_t *dst, v16i code) { v16i_store_bytes(dst, code); }

static SPL_ALWAYS_INLINE void attend_scores(const int n_q, const uint8_t *k, const uint8_t *next, const uint8_t *q,
                                            uint32_t d, int32_t *dot) {
    __m512i sum[6][2];
    for (int v = 0; v < n_q; v++) sum[v][0] = sum[v][1] = _mm512_setzero_si512();
    for (uint32_t i = 0; i < d; i += 4) {
        __m512i k0 = _mm512_loadu_si512(k + (size_t)i * SPL_PAGE_TOKENS);
        __m512i k1 = _mm512_loadu_si512(k + (size_t)i * SPL_PAGE_TOKENS + 64);
        SPL_PREFETCH_T1(next + (size_t)i * SPL_PAGE_TOKENS);
        SPL_PREFETCH_T1(next + (size_t)i * SPL_PAGE_TOKENS + 64);
        for (int v = 0; v < n_q; v++) {
            int32_t four;
            memcpy(&four, q + (size_t)v * d + i, 4);
            __m512i code = _mm512_set1_epi32(four);
            sum[v][0] = dot_bytes(sum[v][0], k0, code);
            sum[v][1] = dot_bytes(sum[v][1], k1, code);
        }
    }
    for (int v = 0; v < n_q; v++)
        for (int half = 0; half < 2; half++)
            _mm512_storeu_si512(dot + (size_t)v * SPL_ATTEND_TILE + 16 * half, sum[v][half]);
}

/* n_vec x 16 dims from `dim` on. */
static SPL_ALWAYS_INLINE void attend_value_dims(const int n_q, const int n_vec, const spl_attend_tile *tile,
                                                const uint8_t *w, uint32_t d, uint32_t dim, const float *factor,
                                                float scale[][SPL_ATTEND_TILE / SPL_PAGE_TOKENS], float *acc,
                                                size_t stride) {
    __m512 total[6][2];
    size_t values = (size_t)SPL_PAGE_TOKENS * d + 4 * (size_t)dim;
    for (int v = 0; v < n_q; v++)
        for (int c = 0; c < n_vec; c++)
            total[v][c] = _mm512_mul_ps(_mm512_loadu_ps(acc + (size_t)v * stride + dim + 16 * (uint32_t)c),
                                        _mm512_set1_ps(factor[v]));
    for (uint32_t p = 0; p < tile->n_pages; p++, w += SPL_PAGE_TOKENS) {
        const uint8_t *at = tile->block[p] + values, *next = tile->next[p] + values;
        __m512i sum[6][2];
        for (int v = 0; v < n_q; v++)
            for (int c = 0; c < n_vec; c++) sum[v][c] = _mm512_setzero_si512();
        for (int group = 0; group < SPL_PAGE_TOKENS / 4; group++, at += 4 * (size_t)d, next += 4 * (size_t)d) {
            __m512i x[2];
            for (int c = 0; c < n_vec; c++) {
                x[c] = _mm512_loadu_si512(at + 64 * c);
                SPL_PREFETCH_T1(next + 64 * c);
            }
            for (int v = 0; v < n_q; v++) {
                int32_t four;
                memcpy(&four, w + (size_t)v * SPL_ATTEND_TILE + 4 * group, 4);
                __m512i codes = _mm512_set1_epi32(four);
                for (int c = 0; c < n_vec; c++) sum[v][c] = dot_bytes(sum[v][c], codes, x[c]);
            }
        }
        for (int v = 0; v < n_q; v++)
            for (int c = 0; c < n_vec; c++)
                total[v][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[v][c]), _mm512_set1_ps(scale[v][p]), total[v][c]);
    }
    for (int v = 0; v < n_q; v++)
        for (int c = 0; c < n_vec; c++)
            _mm512_storeu_ps(acc + (size_t)v * stride + dim + 16 * (uint32_t)c, total[v][c]);
}

static SPL_ALWAYS_INLINE void attend_values(const int n_q, const spl_attend_tile *tile, const uint8_t *w, uint32_t d,
                                            uint32_t dim_begin, uint32_t dim_end, const float *factor,
                                            float scale[][SPL_ATTEND_TILE / SPL_PAGE_TOKENS], float *acc,
                                            size_t stride) {
    uint32_t dim = dim_begin;
    for (; dim + 32 <= dim_end; dim += 32) attend_value_dims(n_q, 2, tile, w, d, dim, factor, scale, acc, stride);
    if (dim < dim_end) attend_value_dims(n_q, 1, tile, w, d, dim, factor, scale, acc, stride);
}

#endif
