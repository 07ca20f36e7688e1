/* SPDX-License-Identifier: Apache-2.0
 * Up to 32 rows on AMX, the decode steps: two panels stream past the rows. While the tiles work on group g, group g + 2
 * is unpacked and the sums of g - 1 are scaled. Up to 3 rows go by vectors.
 *
 * Memory: these cores keep 16 lines on their way into L1, and far prefetches hold them too. So lines into L1 are asked
 * for a few tiles ahead, one with every line unpacked; far ones, into L2, only where a hardware prefetcher has to start
 * anew, on the heads of pages (with few rows everywhere: there is nothing to hold up). Two streams are faster than one,
 * and in turn by lines faster than by tiles. */
#ifndef SPL_KERNELS_STREAM_AMX_H
#define SPL_KERNELS_STREAM_AMX_H

#include <immintrin.h>

#include "kernels/x86/linear_parts_avx512.h"
#include "kernels/x86/tiles_amx.h"

enum {
    STREAM_LEAST_ROWS = 4, /* fewer go by vectors */
    STREAM_MAX_ROWS = 32,
    STREAM_NEAR_BYTES = 4 * SPL_Q4_TILE_BYTES,
    STREAM_FAR_BYTES = 4 * 1024,
    STREAM_EARLY = 2,   /* groups are unpacked so many before their product: a tile load waits for bytes that are still
                           in the store buffer, and they leave it only after all older work */
    STREAM_RING = 4,    /* unpacked groups */
    STREAM_PAGE = 4096, /* hardware prefetchers stop at its end */
    STREAM_HEAD = 512   /* bytes that start them again */
};

/* Tiles 6 and 7 take groups of weights; 0 .. 5 have `rest` rows where the bit of the tile is set in `which`, else
 * `rows`. */
static void amx_shape(uint32_t rows, uint32_t rest, uint8_t which) {
    tile_shapes shapes;
    for (int i = 0; i < N_TILES; i++) {
        shapes.rows[i] = (uint8_t)(i >= 6 ? SPL_GROUP / 4 : which >> i & 1 ? rest : rows);
        shapes.row_bytes[i] = TILE_ROW_BYTES;
    }
    tiles_configure(&shapes);
}

/* The exact sums of one group. */
#define AMX_PRODUCT(sums, rows, weights)                                                                               \
    do {                                                                                                               \
        TILE_ZERO(sums);                                                                                               \
        TILE_PRODUCT_SU(sums, rows, weights);                                                                          \
    } while (0)

/* Fp32 sums of up to 16 rows: [panel][row][output]. */
typedef struct amx_sums {
    __m512 v[2][SPL_Q8_BLOCK_ROWS];
} amx_sums;

/* Integer sums of one group and panel on their way from the tile to the vectors. */
typedef struct amx_exact {
    _Alignas(64) int32_t v[2][SPL_Q8_BLOCK_ROWS][SPL_ROWS_PER_TILE];
} amx_exact;

/* The accumulators have names: gcc 12 keeps an array of them in memory. */
#define AMX_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)

/* Scales the sums of one group and row, those of both panels. */
static SPL_ALWAYS_INLINE void amx_add(__m512 *first, __m512 *second, const int32_t *exact_first,
                                      const int32_t *exact_second, const pair_group *w, float dx, float sx) {
    const __m512 d = _mm512_set1_ps(dx), s = _mm512_set1_ps(sx);
    *first = add_group(*first, _mm512_load_si512(exact_first), w->scale[0], w->bias[0], d, s);
    *second = add_group(*second, _mm512_load_si512(exact_second), w->scale[1], w->bias[1], d, s);
}

/* Asks for weights to come: every line `near` bytes on, and `far` bytes on the heads of pages. More far ones, or many
 * at once, hold up what the core needs now. */
static SPL_ALWAYS_INLINE void amx_ask(const uint8_t *line, size_t near, size_t far) {
    uintptr_t there = (uintptr_t)line + far;
    _mm_prefetch((const char *)((uintptr_t)line + near), _MM_HINT_T0);
    if (there % STREAM_PAGE < STREAM_HEAD) _mm_prefetch((const char *)there, _MM_HINT_T1);
}

/* Group g of both panels, line by line in turn, and with every line taken a later one is asked for: requests at an even
 * pace come in faster than the same ones asked for by panels or between the sums. */
static SPL_ALWAYS_INLINE void stream_unpack(const uint8_t *const panels[2], size_t g, size_t panel_bytes,
                                            const spl_reach *reach, pair_group *out) {
    const size_t at = g * SPL_Q4_TILE_BYTES, near = pair_ahead(at, reach->near_bytes, panel_bytes),
                 far = pair_ahead(at, reach->far_bytes, panel_bytes);
    for (int line = 0; line < SPL_Q4_TILE_BYTES / 64; line++)
        for (int p = 0; p < 2; p++) {
            const uint8_t *tile = panels[p] + at;
            amx_ask(tile + 64 * line, near, far);
            if (line < 8) pair_unpack_line(tile, p, line, out);
        }
    for (int p = 0; p < 2; p++) pair_unpack_scales(panels[p] + at, p, out);
}

/* Where a group is unpacked while tiles work on group g; and the first ones, before there are any products. */
static SPL_ALWAYS_INLINE pair_group *stream_ahead(pair_group ring[STREAM_RING], size_t g) {
    return &ring[(g + STREAM_EARLY) % STREAM_RING];
}
static SPL_ALWAYS_INLINE void stream_begin(const uint8_t *const panels[2], size_t n_groups, const spl_reach *reach,
                                           pair_group ring[STREAM_RING]) {
    for (size_t g = 0; g < STREAM_EARLY && g < n_groups; g++)
        stream_unpack(panels, g, n_groups * SPL_Q4_TILE_BYTES, reach, &ring[g]);
}

/* Code line j of both panels. */
static SPL_ALWAYS_INLINE void few_line(const uint8_t *const tiles[2], const int8_t *q, const int j, const int M,
                                       const int chains, size_t near, size_t far, __m512i part[2][4][SPL_TILE_M]) {
    for (int p = 0; p < 2; p++)
        tile_line_avx512(tiles[p], q, j, M, chains, near, (uintptr_t)tiles[p] + far, true, part[p]);
}

/* Exact sums of a tile of each panel, line by line in turn; written out as in tile_dot_avx512. */
static SPL_ALWAYS_INLINE void few_dot(const uint8_t *const tiles[2], const int8_t *q, const int M, const int chains,
                                      size_t near, size_t far, __m512i dot[2][SPL_TILE_M]) {
    __m512i part[2][4][SPL_TILE_M];
    for (int p = 0; p < 2; p++) {
        chains_clear(M, chains, part[p]);
        prefetch_line(tiles[p], near, (uintptr_t)tiles[p] + far, true);
    }
    few_line(tiles, q, 0, M, chains, near, far, part);
    few_line(tiles, q, 1, M, chains, near, far, part);
    few_line(tiles, q, 2, M, chains, near, far, part);
    few_line(tiles, q, 3, M, chains, near, far, part);
    few_line(tiles, q, 4, M, chains, near, far, part);
    few_line(tiles, q, 5, M, chains, near, far, part);
    few_line(tiles, q, 6, M, chains, near, far, part);
    few_line(tiles, q, 7, M, chains, near, far, part);
    for (int p = 0; p < 2; p++) chains_total(M, chains, part[p], dot[p]);
}

/* Up to 3 rows: vectors, with `chains` accumulators a row and panel to hide their latency. */
static SPL_ALWAYS_INLINE void stream_few(const uint8_t *const panels[2], const spl_q8_rows *x, const int M,
                                         const int chains, size_t near_bytes, size_t far_bytes, amx_sums *sums) {
    const size_t panel_bytes = (size_t)x->k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    spl_q8_cursor c = spl_q8_row(x, 0);
    __m512 acc[2][SPL_TILE_M];
    for (int m = 0; m < M; m++) acc[0][m] = acc[1][m] = _mm512_setzero_ps();
    for (size_t at = 0; at < panel_bytes; at += SPL_Q4_TILE_BYTES) {
        const size_t near = pair_ahead(at, near_bytes, panel_bytes), far = pair_ahead(at, far_bytes, panel_bytes);
        __m512i dot[2][SPL_TILE_M];
        const uint8_t *const tiles[2] = {panels[0] + at, panels[1] + at};
        few_dot(tiles, c.q, M, chains, near, far, dot);
        for (int p = 0; p < 2; p++) {
            const __m512 scale = widen_bf16(panels[p] + at), bias = widen_bf16(panels[p] + at + 32);
            for (int m = 0; m < M; m++)
                acc[p][m] =
                    add_group(acc[p][m], dot[p][m], scale, bias, _mm512_set1_ps(c.scale[m]), _mm512_set1_ps(c.sum[m]));
        }
        spl_q8_next(&c);
    }
    for (int p = 0; p < 2; p++)
        for (int m = 0; m < M; m++) sums->v[p][m] = acc[p][m];
}

#define AMX_ZERO(m) __m512 first##m = _mm512_setzero_ps(), second##m = first##m;
#define AMX_ADD(m)                                                                                                     \
    if (m < M) amx_add(&first##m, &second##m, exact.v[0][m], exact.v[1][m], before, dx[m], sx[m]);
#define AMX_GIVE(m)                                                                                                    \
    if (m < M) sums->v[0][m] = first##m, sums->v[1][m] = second##m;

/* 4 to 16 rows. Tiles 0 and 6 hold what belongs to the first panel, 1 and 7 what belongs to the second, 4 the rows. */
static SPL_ALWAYS_INLINE void stream_block(const uint8_t *const panels[2], const spl_q8_rows *x, const int M,
                                           const spl_reach *reach, amx_sums *sums) {
    const size_t n = x->k / SPL_GROUP, panel_bytes = n * SPL_Q4_TILE_BYTES;
    pair_group ring[STREAM_RING];
    amx_exact exact;
    spl_q8_cursor c = spl_q8_row(x, 0);
    AMX_EACH_ROW(AMX_ZERO)
    stream_begin(panels, n, reach, ring);
    for (size_t g = 0; g <= n; g++) { /* sums are stored as late as their tile is wanted again */
        const pair_group *w = &ring[g % STREAM_RING];
        if (g < n) {
            TILE_LOAD(4, c.q + g * c.q_step, 64);
            TILE_LOAD(6, w->code[0], 64);
        }
        if (g > 0) TILE_STORE(0, exact.v[0], 64);
        if (g < n) AMX_PRODUCT(0, 4, 6);
        if (g + STREAM_EARLY < n) stream_unpack(panels, g + STREAM_EARLY, panel_bytes, reach, stream_ahead(ring, g));
        if (g < n) TILE_LOAD(7, w->code[1], 64);
        if (g > 0) TILE_STORE(1, exact.v[1], 64);
        if (g < n) AMX_PRODUCT(1, 4, 7);
        if (g > 0) {
            const pair_group *before = &ring[(g - 1) % STREAM_RING];
            const float *dx = c.scale + (g - 1) * c.scale_step, *sx = c.sum + (g - 1) * c.scale_step;
            AMX_EACH_ROW(AMX_ADD)
        }
    }
    AMX_EACH_ROW(AMX_GIVE)
}

/* Scales the sums of a block of n rows, the fp32 ones in memory. */
static SPL_ALWAYS_INLINE void stream_add(const int32_t exact[][SPL_ROWS_PER_TILE], const pair_group *w, const int p,
                                         const float *dx, const float *sx, const uint32_t n, __m512 *acc) {
    for (uint32_t m = 0; m < n; m++)
        acc[m] = add_group(acc[m], _mm512_load_si512(exact[m]), w->scale[p], w->bias[p], _mm512_set1_ps(dx[m]),
                           _mm512_set1_ps(sx[m]));
}

/* 17 to 32 rows, two blocks; to sums[0] and sums[1]. Tiles as with one block, and 2, 3 and 5 for the second block. */
static void stream_two_blocks(const uint8_t *const panels[2], const spl_q8_rows *x, const spl_reach *reach,
                              amx_sums sums[2]) {
    const size_t n = x->k / SPL_GROUP, panel_bytes = n * SPL_Q4_TILE_BYTES;
    const uint32_t rest = x->n_rows - SPL_Q8_BLOCK_ROWS;
    pair_group ring[STREAM_RING];
    amx_exact exact[2];
    const spl_q8_cursor c[2] = {spl_q8_row(x, 0), spl_q8_row(x, SPL_Q8_BLOCK_ROWS)};
    memset(sums, 0, 2 * sizeof *sums);
    stream_begin(panels, n, reach, ring);
    for (size_t g = 0; g <= n; g++) {
        const pair_group *w = &ring[g % STREAM_RING], *before = &ring[(g + STREAM_RING - 1) % STREAM_RING];
        const size_t a = (g - 1) * c[0].scale_step, b = (g - 1) * c[1].scale_step;
        if (g < n) {
            TILE_LOAD(4, c[0].q + g * c[0].q_step, 64);
            TILE_LOAD(6, w->code[0], 64);
        }
        if (g > 0) TILE_STORE(0, exact[0].v[0], 64);
        if (g < n) {
            AMX_PRODUCT(0, 4, 6);
            TILE_LOAD(7, w->code[1], 64);
        }
        if (g > 0) TILE_STORE(1, exact[0].v[1], 64);
        if (g < n) AMX_PRODUCT(1, 4, 7);
        if (g + STREAM_EARLY < n) stream_unpack(panels, g + STREAM_EARLY, panel_bytes, reach, stream_ahead(ring, g));
        for (int p = 0; p < 2 && g > 0; p++)
            stream_add(exact[0].v[p], before, p, c[0].scale + a, c[0].sum + a, SPL_Q8_BLOCK_ROWS, sums[0].v[p]);
        if (g < n) TILE_LOAD(5, c[1].q + g * c[1].q_step, 64);
        if (g > 0) TILE_STORE(2, exact[1].v[0], 64);
        if (g < n) AMX_PRODUCT(2, 5, 6);
        if (g > 0) TILE_STORE(3, exact[1].v[1], 64);
        if (g < n) AMX_PRODUCT(3, 5, 7);
        for (int p = 0; p < 2 && g > 0; p++)
            stream_add(exact[1].v[p], before, p, c[1].scale + b, c[1].sum + b, rest, sums[1].v[p]);
    }
}

/* One function per row count, so that the accumulators are registers. */
typedef void (*stream_fn)(const uint8_t *const panels[2], const spl_q8_rows *x, const spl_reach *reach, amx_sums *sums);
#define SPL_GEN_FEW(M, CHAINS, REACH)                                                                                  \
    static void stream_m##M(const uint8_t *const panels[2], const spl_q8_rows *x, const spl_reach *reach,              \
                            amx_sums *sums) {                                                                          \
        stream_few(panels, x, M, CHAINS, reach->REACH, reach->far_bytes, sums);                                        \
    }
SPL_GEN_FEW(1, 4, single_bytes)
SPL_GEN_FEW(2, 2, single_bytes)
SPL_GEN_FEW(3, 2, near_bytes)
#undef SPL_GEN_FEW
#define SPL_GEN_BLOCK(M)                                                                                               \
    static void stream_m##M(const uint8_t *const panels[2], const spl_q8_rows *x, const spl_reach *reach,              \
                            amx_sums *sums) {                                                                          \
        stream_block(panels, x, M, reach, sums);                                                                       \
    }
SPL_GEN_BLOCK(4)
SPL_GEN_BLOCK(5)
SPL_GEN_BLOCK(6)
SPL_GEN_BLOCK(7)
SPL_GEN_BLOCK(8)
SPL_GEN_BLOCK(9)
SPL_GEN_BLOCK(10)
SPL_GEN_BLOCK(11)
SPL_GEN_BLOCK(12)
SPL_GEN_BLOCK(13)
SPL_GEN_BLOCK(14)
SPL_GEN_BLOCK(15)
SPL_GEN_BLOCK(16)
#undef SPL_GEN_BLOCK
static const stream_fn stream_table[SPL_Q8_BLOCK_ROWS + 1] = {
    NULL,      stream_m1,  stream_m2,  stream_m3,  stream_m4,  stream_m5,  stream_m6,  stream_m7, stream_m8,
    stream_m9, stream_m10, stream_m11, stream_m12, stream_m13, stream_m14, stream_m15, stream_m16};

/* Sets the tiles for n_rows rows, if they go by tiles at all. */
static void stream_configure(uint32_t n_rows) {
    static const uint8_t second_block = 1u << 2 | 1u << 3 | 1u << 5;
    if (n_rows > SPL_Q8_BLOCK_ROWS)
        amx_shape(SPL_Q8_BLOCK_ROWS, n_rows - SPL_Q8_BLOCK_ROWS, second_block);
    else if (n_rows >= STREAM_LEAST_ROWS)
        amx_shape(n_rows, n_rows, 0);
}

/* All rows, at most 32, over two panels. */
static void stream_pair(const uint8_t *const panels[2], const spl_q8_rows *x, const spl_reach *reach,
                        amx_sums sums[2]) {
    if (x->n_rows > SPL_Q8_BLOCK_ROWS)
        stream_two_blocks(panels, x, reach, sums);
    else
        stream_table[x->n_rows](panels, x, reach, sums);
}

#endif
