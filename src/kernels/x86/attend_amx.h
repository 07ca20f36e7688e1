/* SPDX-License-Identifier: Apache-2.0
 * Integer products of attention on AMX, for all vectors of a block at once (ATTEND_MANY of attend_v16_body.h). Pages
 * lie as tiles want them: 16 tokens x 64 dims of keys and 16 dims x 32 tokens of values are second operands as they
 * are, with a stride; 16 vectors of queries or weights are the first ones. Head dims that are no multiple of 64 go by
 * vector instructions, and so do few vectors. */
#ifndef SPL_KERNELS_ATTEND_AMX_H
#define SPL_KERNELS_ATTEND_AMX_H

#include "kernels/x86/attend_avx512.h"
#include "kernels/x86/tiles_amx.h"

#define ATTEND_MANY

enum { ATTEND_STEP_DIMS = 64, ATTEND_PAGES = SPL_ATTEND_TILE / SPL_PAGE_TOKENS };

/* Fewer vectors are as fast or faster by themselves. */
static SPL_ALWAYS_INLINE bool attend_many_fits(uint32_t n, uint32_t d) {
    return n >= TILE_ROWS && d % ATTEND_STEP_DIMS == 0;
}

/* Sets the tiles for n vectors; *ready: for how many they are set. Scores: sums in 0 and 1, queries in 4, keys in 6
 * and 7. Values: sums in 2, weights in 5, values in 3. */
static void attend_many_shape(uint32_t n, uint32_t *ready) {
    if (*ready == n) return;
    tile_shapes shapes;
    for (int i = 0; i < N_TILES; i++) {
        shapes.rows[i] = (uint8_t)(i >= 6 ? ATTEND_STEP_DIMS / 4 : i == 3 ? SPL_PAGE_TOKENS / 4 : n);
        shapes.row_bytes[i] = i == 5 ? SPL_PAGE_TOKENS : TILE_ROW_BYTES;
    }
    tiles_configure(&shapes);
    *ready = n;
}
static void attend_many_end(uint32_t *ready) {
    if (*ready) tiles_release();
    *ready = 0;
}

/* Lines [first, last) of the codes at `next`, asked for. */
static SPL_ALWAYS_INLINE void attend_ask(const uint8_t *next, uint32_t first, uint32_t last) {
    for (uint32_t line = first; line < last; line++) SPL_PREFETCH_T1(next + (size_t)line * 64);
}

/* dot[v][t] of the page at k for n vectors; the page at `next` is asked for meanwhile. */
static void attend_scores_many(uint32_t n, const uint8_t *k, const uint8_t *next, const uint8_t *q, uint32_t d,
                               int32_t *dot, uint32_t *ready) {
    uint32_t n_lines = d * SPL_PAGE_TOKENS / 64, n_units = (n + TILE_ROWS - 1) / TILE_ROWS * (d / ATTEND_STEP_DIMS);
    for (uint32_t v = 0, unit = 0; v < n; v += TILE_ROWS) {
        attend_many_shape(n - v < TILE_ROWS ? n - v : TILE_ROWS, ready);
        TILE_ZERO(0);
        TILE_ZERO(1);
        for (uint32_t i = 0; i < d; i += ATTEND_STEP_DIMS, unit++) {
            const uint8_t *keys = k + (size_t)i * SPL_PAGE_TOKENS;
            attend_ask(next, n_lines * unit / n_units, n_lines * (unit + 1) / n_units);
            TILE_LOAD(4, q + (size_t)v * d + i, d);
            TILE_LOAD(6, keys, 4 * SPL_PAGE_TOKENS);
            TILE_PRODUCT_SU(0, 4, 6);
            TILE_LOAD(7, keys + 64, 4 * SPL_PAGE_TOKENS);
            TILE_PRODUCT_SU(1, 4, 7);
        }
        TILE_STORE(0, dot + (size_t)v * SPL_ATTEND_TILE, SPL_ATTEND_TILE * sizeof *dot);
        TILE_STORE(1, dot + (size_t)v * SPL_ATTEND_TILE + 16, SPL_ATTEND_TILE * sizeof *dot);
    }
}

/* Integer sums of the pages of a tile: 16 vectors x 16 dims. */
typedef struct attend_sums {
    _Alignas(64) int32_t v[ATTEND_PAGES][TILE_ROWS][16];
} attend_sums;

/* Weighted sums of a tile for vectors whose weights lie a tile apart. */
typedef struct attend_average {
    const spl_attend_tile *tile;
    const uint8_t *w;
    uint32_t d;
    const float *factor;
    float (*scale)[ATTEND_PAGES], *acc;
    size_t stride;
} attend_average;

static SPL_ALWAYS_INLINE void attend_sum_pages(const attend_average *x, uint32_t v, uint32_t dim, attend_sums *sums) {
    const size_t values = (size_t)SPL_PAGE_TOKENS * x->d + 4 * (size_t)dim;
    const uint8_t *w = x->w + (size_t)v * SPL_ATTEND_TILE;
    for (uint32_t p = 0; p < x->tile->n_pages; p++) {
        TILE_LOAD(3, x->tile->block[p] + values, 4 * (size_t)x->d);
        TILE_LOAD(5, w + (size_t)p * SPL_PAGE_TOKENS, SPL_ATTEND_TILE);
        TILE_ZERO(2);
        TILE_PRODUCT_US(2, 5, 3);
        TILE_STORE(2, sums->v[p], TILE_ROW_BYTES);
    }
}

/* acc = acc * factor, then the pages in order. */
static SPL_ALWAYS_INLINE void attend_add_pages(const attend_average *x, uint32_t v, uint32_t dim, uint32_t n,
                                               const attend_sums *sums) {
    for (uint32_t i = 0; i < n; i++) {
        float *out = x->acc + (size_t)(v + i) * x->stride + dim;
        __m512 total = _mm512_mul_ps(_mm512_loadu_ps(out), _mm512_set1_ps(x->factor[v + i]));
        for (uint32_t p = 0; p < x->tile->n_pages; p++)
            total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums->v[p][i])),
                                    _mm512_set1_ps(x->scale[v + i][p]), total);
        _mm512_storeu_ps(out, total);
    }
}

/* Vectors [begin, end) in blocks of `rows`: the sums of one block are made while those of the block before are added.
 * Dims outermost, so that what is read again is in L1. */
static void attend_average_blocks(const attend_average *x, const uint8_t *const next[ATTEND_PAGES], uint32_t begin,
                                  uint32_t end, uint32_t rows) {
    const uint32_t n_lines = x->d * SPL_PAGE_TOKENS / 64;
    attend_sums sums[2];
    uint32_t turn = 0, last_v = 0, last_dim = 0;
    for (uint32_t dim = 0; dim < x->d; dim += 16) {
        for (uint32_t v = begin; v < end; v += rows, turn++) {
            attend_sum_pages(x, v, dim, &sums[turn % 2]);
            if (turn > 0) attend_add_pages(x, last_v, last_dim, rows, &sums[(turn + 1) % 2]);
            last_v = v;
            last_dim = dim;
        }
        for (uint32_t p = 0; p < ATTEND_PAGES; p++)
            if (next[p])
                attend_ask(next[p] + (size_t)SPL_PAGE_TOKENS * x->d, n_lines * dim / x->d, n_lines * (dim + 16) / x->d);
    }
    attend_add_pages(x, last_v, last_dim, rows, &sums[(turn + 1) % 2]);
}

static void attend_values_many(uint32_t n, const spl_attend_tile *tile, const uint8_t *const next[ATTEND_PAGES],
                               const uint8_t *w, uint32_t d, const float *factor, float scale[][ATTEND_PAGES],
                               float *acc, size_t stride, uint32_t *ready) {
    const attend_average x = {tile, w, d, factor, scale, acc, stride};
    const uint32_t whole = n / TILE_ROWS * TILE_ROWS;
    if (whole > 0) {
        attend_many_shape(TILE_ROWS, ready);
        attend_average_blocks(&x, next, 0, whole, TILE_ROWS);
    }
    if (whole < n) {
        static const uint8_t *const nothing[ATTEND_PAGES];
        attend_many_shape(n - whole, ready);
        attend_average_blocks(&x, whole > 0 ? nothing : next, whole, n, n - whole);
    }
}

#endif
