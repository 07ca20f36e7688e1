/* SPDX-License-Identifier: Apache-2.0
 * Two panels at once for eight rows and more: 16 int32 accumulators, twice the chains of one panel, stay in registers,
 * the fp32 ones in L1. With many rows a broadcast of 4 inputs serves two products: loads, not products, would set the
 * pace. With eight it stays part of the product's operand, one instruction less. From nine rows on, groups are unpacked
 * to bytes in L1, and all rows share that; just sixteen are better off as two row tiles over one panel. */
#ifndef SPL_KERNELS_LINEAR_PAIR_AVX512_H
#define SPL_KERNELS_LINEAR_PAIR_AVX512_H

#include <immintrin.h>

#include "kernels/x86/linear_parts_avx512.h"

enum {
    PAIR_MAX_TILES = 32 /* row tiles that share an unpack */
};

/* What one pair of panels gives for up to 8 rows: [panel][row][output]. */
typedef struct pair_sums {
    __m512 v[2][SPL_TILE_M];
} pair_sums;

static SPL_ALWAYS_INLINE __m512i four_inputs(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_set1_epi32(v);
}

static SPL_ALWAYS_INLINE void pair_dot(__m512i dot[2][SPL_TILE_M], __m512i a, __m512i b, const int8_t *q, const int M) {
    for (int m = 0; m < M; m++) {
        __m512i x = four_inputs(q + m * SPL_GROUP);
        dot[0][m] = dot_bytes(dot[0][m], a, x);
        dot[1][m] = dot_bytes(dot[1][m], b, x);
    }
}

static SPL_ALWAYS_INLINE void pair_add(pair_sums *acc, const __m512i dot[2][SPL_TILE_M], const __m512 scale[2],
                                       const __m512 bias[2], const float *dx, const float *sx, const int M) {
    for (int m = 0; m < M; m++) {
        __m512 d = _mm512_set1_ps(dx[m]), s = _mm512_set1_ps(sx[m]);
        for (int p = 0; p < 2; p++) acc->v[p][m] = add_group(acc->v[p][m], dot[p][m], scale[p], bias[p], d, s);
    }
}

static SPL_ALWAYS_INLINE void pair_scales(const uint8_t *const panel[2], __m512 scale[2], __m512 bias[2]) {
    for (int p = 0; p < 2; p++) {
        scale[p] = widen_bf16(panel[p]);
        bias[p] = widen_bf16(panel[p] + 32);
    }
}

/* Line `offset` of what comes `near` and `far` bytes on. */
static SPL_ALWAYS_INLINE void panel_prefetch(const uint8_t *panel, size_t near, size_t far, size_t offset) {
    _mm_prefetch((const char *)((uintptr_t)panel + near + offset), _MM_HINT_T0);
    _mm_prefetch((const char *)((uintptr_t)panel + far + offset), _MM_HINT_T1);
}
static SPL_ALWAYS_INLINE void pair_prefetch(const uint8_t *const panel[2], size_t near, size_t far, size_t offset) {
    for (int p = 0; p < 2; p++) panel_prefetch(panel[p], near, far, offset);
}

/* Products of both panels, each with the broadcast in its operand. */
static SPL_ALWAYS_INLINE void pair_dot_folded(__m512i dot[2][SPL_TILE_M], __m512i a, __m512i b, const int8_t *q) {
    for (int m = 0; m < SPL_TILE_M; m++) {
        dot[0][m] = dot_inputs(dot[0][m], a, q + m * SPL_GROUP);
        dot[1][m] = dot_inputs(dot[1][m], b, q + m * SPL_GROUP);
    }
}

/* Code line j of both panels, in registers only. */
static SPL_ALWAYS_INLINE void pair_line(const uint8_t *const panel[2], const int8_t *q, const int j, size_t near,
                                        size_t far, __m512i dot[2][SPL_TILE_M]) {
    const __m512i low = _mm512_set1_epi8(15);
    __m512i a = _mm512_load_si512((const void *)(panel[0] + 64 + 64 * j));
    __m512i b = _mm512_load_si512((const void *)(panel[1] + 64 + 64 * j));
    pair_prefetch(panel, near, far, 64 + 64 * (size_t)j);
    pair_dot_folded(dot, _mm512_and_si512(a, low), _mm512_and_si512(b, low), q + 8 * j);
    a = _mm512_and_si512(_mm512_srli_epi16(a, 4), low);
    b = _mm512_and_si512(_mm512_srli_epi16(b, 4), low);
    pair_dot_folded(dot, a, b, q + 8 * j + 4);
}

/* Eight rows: nothing to share an unpack with. */
static void pair_eight_rows(const uint8_t *const panels[2], const spl_q8_rows *x, uint32_t t, size_t near_bytes,
                            size_t far_bytes, pair_sums *acc) {
    size_t groups = x->k / SPL_GROUP;
    spl_q8_cursor c = spl_q8_row(x, t * SPL_TILE_M);
    const uint8_t *panel[2] = {panels[0], panels[1]};
    memset(acc, 0, sizeof *acc);
    for (size_t g = 0; g < groups; g++) {
        const size_t at = g * SPL_Q4_TILE_BYTES, near = pair_ahead(at, near_bytes, groups * SPL_Q4_TILE_BYTES),
                     far = pair_ahead(at, far_bytes, groups * SPL_Q4_TILE_BYTES);
        __m512i dot[2][SPL_TILE_M];
        __m512 scale[2], bias[2];
        pair_prefetch(panel, near, far, 0);
        for (int m = 0; m < SPL_TILE_M; m++) dot[0][m] = dot[1][m] = _mm512_setzero_si512();
        pair_line(panel, c.q, 0, near, far, dot);
        pair_line(panel, c.q, 1, near, far, dot);
        pair_line(panel, c.q, 2, near, far, dot);
        pair_line(panel, c.q, 3, near, far, dot);
        pair_line(panel, c.q, 4, near, far, dot);
        pair_line(panel, c.q, 5, near, far, dot);
        pair_line(panel, c.q, 6, near, far, dot);
        pair_line(panel, c.q, 7, near, far, dot);
        pair_scales(panel, scale, bias);
        pair_add(acc, dot, scale, bias, c.scale, c.sum, SPL_TILE_M);
        for (int p = 0; p < 2; p++) panel[p] += SPL_Q4_TILE_BYTES;
        spl_q8_next(&c);
    }
}

/* Code line j of one panel for a block of 16 rows. Every product is a load of its own here, but 16 chains hide its
 * latency and the unpacked codes never leave the registers: 7 % faster than by way of L1. */
static SPL_ALWAYS_INLINE void block_line(const uint8_t *panel, const int8_t *q, const int j, size_t near, size_t far,
                                         __m512i dot[SPL_Q8_BLOCK_ROWS]) {
    const __m512i low = _mm512_set1_epi8(15);
    const size_t offset = 64 + 64 * (size_t)j;
    __m512i w = _mm512_load_si512((const void *)(panel + offset));
    __m512i lo = _mm512_and_si512(w, low), hi = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
    panel_prefetch(panel, near, far, offset);
    for (int m = 0; m < SPL_Q8_BLOCK_ROWS; m++) dot[m] = dot_inputs(dot[m], lo, q + m * SPL_GROUP + 8 * j);
    for (int m = 0; m < SPL_Q8_BLOCK_ROWS; m++) dot[m] = dot_inputs(dot[m], hi, q + m * SPL_GROUP + 8 * j + 4);
}

/* Sixteen rows, tiles t and t + 1 of one block, and one panel; to acc[0].v[p] and acc[1].v[p]. */
static void panel_block(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, const int p, size_t near, size_t far,
                        pair_sums acc[2]) {
    spl_q8_cursor c = spl_q8_row(x, t * SPL_TILE_M);
    for (int i = 0; i < 2; i++) memset(acc[i].v[p], 0, sizeof acc[i].v[p]);
    for (size_t g = 0; g < x->k / SPL_GROUP; g++, panel += SPL_Q4_TILE_BYTES) {
        __m512i dot[SPL_Q8_BLOCK_ROWS];
        panel_prefetch(panel, near, far, 0);
        for (int m = 0; m < SPL_Q8_BLOCK_ROWS; m++) dot[m] = _mm512_setzero_si512();
        block_line(panel, c.q, 0, near, far, dot);
        block_line(panel, c.q, 1, near, far, dot);
        block_line(panel, c.q, 2, near, far, dot);
        block_line(panel, c.q, 3, near, far, dot);
        block_line(panel, c.q, 4, near, far, dot);
        block_line(panel, c.q, 5, near, far, dot);
        block_line(panel, c.q, 6, near, far, dot);
        block_line(panel, c.q, 7, near, far, dot);
        __m512 scale = widen_bf16(panel), bias = widen_bf16(panel + 32);
        for (int m = 0; m < SPL_Q8_BLOCK_ROWS; m++) {
            __m512 *sum = &acc[m / SPL_TILE_M].v[p][m % SPL_TILE_M];
            *sum = add_group(*sum, dot[m], scale, bias, _mm512_set1_ps(c.scale[m]), _mm512_set1_ps(c.sum[m]));
        }
        spl_q8_next(&c);
    }
}

/* Products of 4 inputs, those from 4 i on. */
static SPL_ALWAYS_INLINE void pair_step(const pair_group *w, const int i, const int8_t *q, const int M,
                                        __m512i dot[2][SPL_TILE_M]) {
    pair_dot(dot, _mm512_load_si512(w->code[0][i]), _mm512_load_si512(w->code[1][i]), q + 4 * i, M);
}

/* Groups from their bytes for M rows. The steps are written out: a loop costs register copies. */
static SPL_ALWAYS_INLINE void pair_rows(const pair_group *w, uint32_t n_groups, spl_q8_cursor c, const int M,
                                        pair_stream *next, pair_sums *acc) {
    for (uint32_t g = 0; g < n_groups; g++, w++) {
        __m512i dot[2][SPL_TILE_M];
        pair_ask(next);
        for (int m = 0; m < M; m++) /* row tiles lie far apart, no hardware prefetcher follows */
            _mm_prefetch((const char *)((uintptr_t)c.q + next->q_ahead + SPL_GROUP * (size_t)m), _MM_HINT_T0);
        for (int m = 0; m < M; m++) dot[0][m] = dot[1][m] = _mm512_setzero_si512();
        pair_step(w, 0, c.q, M, dot);
        pair_step(w, 1, c.q, M, dot);
        pair_step(w, 2, c.q, M, dot);
        pair_step(w, 3, c.q, M, dot);
        pair_step(w, 4, c.q, M, dot);
        pair_step(w, 5, c.q, M, dot);
        pair_step(w, 6, c.q, M, dot);
        pair_step(w, 7, c.q, M, dot);
        pair_step(w, 8, c.q, M, dot);
        pair_step(w, 9, c.q, M, dot);
        pair_step(w, 10, c.q, M, dot);
        pair_step(w, 11, c.q, M, dot);
        pair_step(w, 12, c.q, M, dot);
        pair_step(w, 13, c.q, M, dot);
        pair_step(w, 14, c.q, M, dot);
        pair_step(w, 15, c.q, M, dot);
        pair_add(acc, dot, w->scale, w->bias, c.scale, c.sum, M);
        spl_q8_next(&c);
    }
}

/* One function per row count, so that the accumulators are registers. */
#define SPL_GEN_ROWS(M)                                                                                                \
    static void pair_rows_m##M(const pair_group *w, uint32_t n_groups, const spl_q8_cursor *c, pair_stream *next,      \
                               pair_sums *acc) {                                                                       \
        pair_rows(w, n_groups, *c, M, next, acc);                                                                      \
    }
SPL_GEN_ROWS(1)
SPL_GEN_ROWS(2)
SPL_GEN_ROWS(3)
SPL_GEN_ROWS(4)
SPL_GEN_ROWS(5)
SPL_GEN_ROWS(6)
SPL_GEN_ROWS(7)
SPL_GEN_ROWS(8)
#undef SPL_GEN_ROWS

typedef void (*pair_rows_fn)(const pair_group *w, uint32_t n_groups, const spl_q8_cursor *c, pair_stream *next,
                             pair_sums *acc);
static const pair_rows_fn pair_rows_table[SPL_TILE_M] = {pair_rows_m1, pair_rows_m2, pair_rows_m3, pair_rows_m4,
                                                         pair_rows_m5, pair_rows_m6, pair_rows_m7, pair_rows_m8};

/* Row tiles [first, last), at most PAIR_MAX_TILES of them, over a pair of panels: some groups are unpacked into L1,
 * then all rows pass over them, while the next groups come from memory. */
static void pair_tiles(const uint8_t *const panels[2], const spl_q8_rows *x, uint32_t first, uint32_t last,
                       pair_sums acc[PAIR_MAX_TILES]) {
    uint32_t groups = x->k / SPL_GROUP, n_tiles = last - first;
    const size_t half = SPL_TILE_M * SPL_GROUP;
    pair_group w[PAIR_GROUPS];
    memset(acc, 0, n_tiles * sizeof *acc);
    for (uint32_t g = 0; g < groups; g += PAIR_GROUPS) {
        uint32_t n_groups = groups - g < PAIR_GROUPS ? groups - g : PAIR_GROUPS;
        pair_stream next = pair_unpack_groups(panels, groups, g, n_groups, PAIR_GROUPS, n_tiles, w);
        for (uint32_t t = first; t < last; t++) {
            spl_q8_cursor c = spl_q8_row(x, t * SPL_TILE_M);
            spl_q8_skip(&c, g);
            next.q_ahead = t & 1 ? (size_t)SPL_Q8_BLOCK_ROWS * x->k - half : half;
            pair_rows_table[spl_rows_of_tile(x, t) - 1](w, n_groups, &c, &next, &acc[t - first]);
        }
    }
}

#endif
