/* SPDX-License-Identifier: Apache-2.0
 * The 4-bit linear on 256-bit registers, for AVX2 and AVX-VNNI. Sixteen registers allow 16 rows x 4 tokens of
 * integer sums; the fp32 sums of up to 8 tokens live in L1 and are touched once a group. SPL_YMM_VNNI selects
 * the dot-product instruction; without it byte products are added in 16 bits.
 *
 * 16-bit additions: a code is at most 15 and an input at most 127 in magnitude, so a pair sum is at most 3,810
 * and eight of them (four lines) at most 30,480: no saturation. Two widenings per group. A wider code breaks
 * this; tests/kernels/test_linear feeds the extreme rows. */
#ifndef SPL_KERNELS_LINEAR_YMM_H
#define SPL_KERNELS_LINEAR_YMM_H

#include <immintrin.h>

#include "kernels/body/linear_body.h"
#include "kernels/body/v16_body.h"
#include "kernels/x86/dot_ymm.h"

enum { YMM_TOKENS = 4 };

static SPL_ALWAYS_INLINE __m256i ymm_inputs(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm256_set1_epi32(v);
}
static SPL_ALWAYS_INLINE __m256 ymm_bf16(const uint8_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
#ifdef SPL_YMM_VNNI
static SPL_ALWAYS_INLINE __m256i ymm_accumulate(__m256i sum, __m256i w, __m256i q) { return dot_ymm(sum, w, q); }
static SPL_ALWAYS_INLINE __m256i ymm_widen(__m256i sum) { return sum; }
#else
static SPL_ALWAYS_INLINE __m256i ymm_accumulate(__m256i sum, __m256i w, __m256i q) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, q));
}
static SPL_ALWAYS_INLINE __m256i ymm_widen(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }
#endif

/* Code line j for both half panels. */
static SPL_ALWAYS_INLINE void ymm_line(const uint8_t *tile, const int8_t *q, const int j, const int n_tokens,
                                       __m256i part[YMM_TOKENS][2]) {
    const __m256i low = _mm256_set1_epi8(15);
    const uint8_t *line = tile + 64 + 64 * j;
    __m256i w0 = _mm256_loadu_si256((const void *)line), w1 = _mm256_loadu_si256((const void *)(line + 32));
    __m256i l0 = _mm256_and_si256(w0, low), l1 = _mm256_and_si256(w1, low);
    for (int m = 0; m < n_tokens; m++) {
        __m256i x = ymm_inputs(q + m * SPL_GROUP + 8 * j);
        part[m][0] = ymm_accumulate(part[m][0], l0, x);
        part[m][1] = ymm_accumulate(part[m][1], l1, x);
    }
    __m256i h0 = _mm256_and_si256(_mm256_srli_epi16(w0, 4), low), h1 = _mm256_and_si256(_mm256_srli_epi16(w1, 4), low);
    for (int m = 0; m < n_tokens; m++) {
        __m256i x = ymm_inputs(q + m * SPL_GROUP + 8 * j + 4);
        part[m][0] = ymm_accumulate(part[m][0], h0, x);
        part[m][1] = ymm_accumulate(part[m][1], h1, x);
    }
}

/* Four lines, 32 inputs: exact 32-bit sums added to sum. */
static SPL_ALWAYS_INLINE void ymm_half_tile(const uint8_t *tile, const int8_t *q, const int first, const int n_tokens,
                                            __m256i sum[YMM_TOKENS][2]) {
    __m256i part[YMM_TOKENS][2];
    for (int m = 0; m < n_tokens; m++) part[m][0] = part[m][1] = _mm256_setzero_si256();
    ymm_line(tile, q, first, n_tokens, part);
    ymm_line(tile, q, first + 1, n_tokens, part);
    ymm_line(tile, q, first + 2, n_tokens, part);
    ymm_line(tile, q, first + 3, n_tokens, part);
    for (int m = 0; m < n_tokens; m++)
        for (int half = 0; half < 2; half++) sum[m][half] = _mm256_add_epi32(sum[m][half], ymm_widen(part[m][half]));
}

/* One tile for tokens first .. first + n_tokens - 1 of a row tile: acc[token][16] += ... */
static SPL_ALWAYS_INLINE void ymm_tile(const uint8_t *tile, const int8_t *q, const float *scale, const float *sum_x,
                                       const int n_tokens, float acc[][SPL_ROWS_PER_TILE]) {
    __m256i sum[YMM_TOKENS][2];
    for (int m = 0; m < n_tokens; m++) sum[m][0] = sum[m][1] = _mm256_setzero_si256();
    ymm_half_tile(tile, q, 0, n_tokens, sum);
    ymm_half_tile(tile, q, 4, n_tokens, sum);
    for (int half = 0; half < 2; half++) {
        __m256 ws = ymm_bf16(tile + 16 * half), wb = ymm_bf16(tile + 32 + 16 * half);
        for (int m = 0; m < n_tokens; m++) {
            float *y = acc[m] + 8 * half;
            __m256 v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[m][half]), _mm256_mul_ps(ws, _mm256_set1_ps(scale[m])),
                                       _mm256_loadu_ps(y));
            _mm256_storeu_ps(y, _mm256_fmadd_ps(wb, _mm256_set1_ps(sum_x[m]), v));
        }
    }
}

/* One panel for the M rows of row tile t. */
static SPL_ALWAYS_INLINE void panel_rows(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, const spl_reach *reach,
                                         const int M, float acc[SPL_TILE_M][SPL_ROWS_PER_TILE]) {
    size_t groups = x->k / SPL_GROUP;
    spl_q8_cursor c = spl_q8_row(x, t * SPL_TILE_M);
    const int first = M < YMM_TOKENS ? M : YMM_TOKENS, rest = M - first;
    const size_t near = M == 1 ? reach->single_bytes : reach->near_bytes;
    memset(acc, 0, (size_t)M * sizeof acc[0]);
    for (size_t g = 0; g < groups; g++) {
        for (int line = 0; line < 9; line++) {
            _mm_prefetch((const char *)((uintptr_t)panel + near + 64 * (uintptr_t)line), _MM_HINT_T0);
            if (t == 0)
                _mm_prefetch((const char *)((uintptr_t)panel + reach->far_bytes + 64 * (uintptr_t)line), _MM_HINT_T1);
        }
        ymm_tile(panel, c.q, c.scale, c.sum, first, acc);
        if (rest > 0) ymm_tile(panel, c.q + first * SPL_GROUP, c.scale + first, c.sum + first, rest, acc + first);
        panel += SPL_Q4_TILE_BYTES;
        spl_q8_next(&c);
    }
}

#endif
