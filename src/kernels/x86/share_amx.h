/* SPDX-License-Identifier: Apache-2.0
 * More than 32 rows on AMX, the prompts: blocks of 16 rows share unpacked groups. While the sums of one block are
 * scaled the tiles work on the next one, so that neither waits for the other: what was just stored, by a tile or for
 * one, cannot be loaded before it has left the store buffer.
 *
 * What sets the pace: while tiles are in use, and for up to 3,000 cycles after, these processors multiply vectors on
 * one port instead of two (they add on both), and a row, panel and group takes four such operations. Next are the tile
 * instructions themselves, which keep the decoder busy for 8 cycles a load and 16 a store. */
#ifndef SPL_KERNELS_SHARE_AMX_H
#define SPL_KERNELS_SHARE_AMX_H

#include <immintrin.h>

#include "kernels/x86/stream_amx.h"

enum {
    SHARE_GROUPS = 4,               /* unpacked at once; with their sums, of two blocks, they stay in L1 */
    SHARE_BLOCKS = 16,              /* that share an unpack, */
    SHARE_SLAB_BYTES = 1280 * 1024, /* and their activations: they come from L2 each time */
    SHARE_HALF = SPL_Q8_BLOCK_ROWS / 2,
    SHARE_GROUP_BYTES = SPL_Q8_BLOCK_ROWS * SPL_GROUP /* of a block's activations */
};

/* Integer sums of some groups of one block. */
typedef struct share_exact {
    _Alignas(64) int32_t v[SHARE_GROUPS][2][SPL_Q8_BLOCK_ROWS][SPL_ROWS_PER_TILE];
} share_exact;

/* What a pass works on. */
typedef struct share_pass {
    const pair_group *w;
    const float *scale, *sum; /* of the activations whose sums are scaled, [group][16] */
    const share_exact *exact;
    amx_sums *sums;
    const int8_t *next; /* activations of the next block, or NULL */
    share_exact *next_exact;
    const int8_t *after; /* activations wanted after those */
} share_pass;

static SPL_ALWAYS_INLINE void share_product(const pair_group *w, const int8_t *q, const uint32_t g, const int p) {
    if (p == 0) {
        TILE_LOAD(4, q + g * SHARE_GROUP_BYTES, 64);
        TILE_LOAD(6, w[g].code[0], 64);
        AMX_PRODUCT(0, 4, 6);
    } else {
        TILE_LOAD(7, w[g].code[1], 64);
        AMX_PRODUCT(1, 4, 7);
    }
}
static SPL_ALWAYS_INLINE void share_store(share_exact *exact, const uint32_t g, const int p) {
    if (p == 0)
        TILE_STORE(0, exact->v[g][0], 64);
    else
        TILE_STORE(1, exact->v[g][1], 64);
}

/* Sums of n groups of a block. */
static void share_tiles(const pair_group *w, const int8_t *q, uint32_t n, share_exact *exact) {
    for (uint32_t g = 0; g < n; g++) {
        share_product(w, q, g, 0);
        share_product(w, q, g, 1);
        share_store(exact, g, 0);
        share_store(exact, g, 1);
    }
}

/* Four lines of the activations wanted later. */
static SPL_ALWAYS_INLINE void share_ask(const int8_t *after, const uint32_t i) {
    for (uint32_t j = 4 * i; j < 4 * i + 4; j++) _mm_prefetch((const char *)((uintptr_t)after + 64 * j), _MM_HINT_T0);
}

/* The accumulators have names, as in a stream. */
#define SHARE_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define SHARE_TAKE(m)                                                                                                  \
    __m512 first##m = pass->sums->v[0][SHARE_HALF * h + m], second##m = pass->sums->v[1][SHARE_HALF * h + m];
#define SHARE_GIVE(m) pass->sums->v[0][SHARE_HALF * h + m] = first##m, pass->sums->v[1][SHARE_HALF * h + m] = second##m;
#define SHARE_ADD(m) amx_add(&first##m, &second##m, exact[0][row + m], exact[1][row + m], w, dx[m], sx[m])

/* Group g for half h; meanwhile, if there is a next block, part k of its tile work: a panel of a group, whose sums are
 * stored with the part after it. */
#define SHARE_GROUP(g)                                                                                                 \
    if (g < n) {                                                                                                       \
        const uint32_t k = SHARE_GROUPS * h + g, row = SHARE_HALF * h;                                                 \
        const pair_group *w = &pass->w[g];                                                                             \
        const int32_t(*exact)[SPL_Q8_BLOCK_ROWS][SPL_ROWS_PER_TILE] = pass->exact->v[g];                               \
        const float *dx = pass->scale + SPL_Q8_BLOCK_ROWS * g + row, *sx = pass->sum + SPL_Q8_BLOCK_ROWS * g + row;    \
        if (next) share_product(pass->w, pass->next, k / 2, k % 2);                                                    \
        SHARE_ADD(0);                                                                                                  \
        SHARE_ADD(1);                                                                                                  \
        if (next) share_ask(pass->after, 2 * k);                                                                       \
        SHARE_ADD(2);                                                                                                  \
        SHARE_ADD(3);                                                                                                  \
        if (next && k) share_store(pass->next_exact, (k - 1) / 2, (k - 1) % 2);                                        \
        SHARE_ADD(4);                                                                                                  \
        SHARE_ADD(5);                                                                                                  \
        if (next) share_ask(pass->after, 2 * k + 1);                                                                   \
        SHARE_ADD(6);                                                                                                  \
        SHARE_ADD(7);                                                                                                  \
    }

static SPL_ALWAYS_INLINE void share_half(const share_pass *pass, const uint32_t h, const uint32_t n, const bool next) {
    SHARE_EACH_ROW(SHARE_TAKE)
    SHARE_GROUP(0)
    SHARE_GROUP(1)
    SHARE_GROUP(2)
    SHARE_GROUP(3)
    SHARE_EACH_ROW(SHARE_GIVE)
}

/* Scales the sums of a block while tiles work on the next one; and n groups of a block without a next one. */
static void share_both(const share_pass *pass) {
    share_half(pass, 0, SHARE_GROUPS, true);
    share_half(pass, 1, SHARE_GROUPS, true);
    share_store(pass->next_exact, SHARE_GROUPS - 1, 1);
}
static void share_last(const share_pass *pass, uint32_t n) {
    share_half(pass, 0, n, false);
    share_half(pass, 1, n, false);
}

/* Whole blocks n_blocks from `first` on in groups g .. g + n - 1, w those of two panels. */
static void share_blocks(const pair_group *w, const spl_q8_rows *x, uint32_t first, uint32_t n_blocks, uint32_t g,
                         uint32_t n, pair_stream *next, amx_sums *sums) {
    const size_t groups = x->k / SPL_GROUP, block = SPL_Q8_BLOCK_ROWS * groups; /* floats; times 64, codes */
    spl_q8_cursor c = spl_q8_row(x, first * SPL_Q8_BLOCK_ROWS);
    share_exact exact[2];
    spl_q8_skip(&c, g);
    share_tiles(w, c.q, n, &exact[0]);
    for (uint32_t b = 0; b < n_blocks; b++) {
        const size_t at = b * block;
        const bool last = b + 1 == n_blocks, wraps = b + 2 >= n_blocks;
        const share_pass pass = {.w = w,
                                 .scale = c.scale + at,
                                 .sum = c.sum + at,
                                 .exact = &exact[b % 2],
                                 .sums = &sums[b],
                                 .next = last ? NULL : c.q + (at + block) * SPL_GROUP,
                                 .next_exact = &exact[(b + 1) % 2],
                                 .after = c.q + (wraps ? n * SHARE_GROUP_BYTES : (at + 2 * block) * SPL_GROUP)};
        for (uint32_t i = 0; i < n; i++) pair_ask(next);
        if (!last && n == SHARE_GROUPS) {
            share_both(&pass);
            continue;
        }
        share_last(&pass, n);
        if (!last) share_tiles(w, pass.next, n, pass.next_exact);
    }
}

/* Groups of a block of fewer than 16 rows, through tiles 2, 3 and 6. */
static void share_rest(const pair_group *w, spl_q8_cursor c, uint32_t n, uint32_t n_rows, amx_sums *sums) {
    amx_exact exact;
    for (uint32_t g = 0; g < n; g++) {
        TILE_LOAD(3, c.q, 64);
        for (int p = 0; p < 2; p++) {
            TILE_LOAD(6, w[g].code[p], 64);
            AMX_PRODUCT(2, 3, 6);
            TILE_STORE(2, exact.v[p], 64);
        }
        for (int p = 0; p < 2; p++) stream_add(exact.v[p], &w[g], p, c.scale, c.sum, n_rows, sums->v[p]);
        spl_q8_next(&c);
    }
}

/* Blocks that share an unpack. */
static uint32_t share_slab(const spl_q8_rows *x) {
    uint32_t n = SHARE_SLAB_BYTES / (SPL_Q8_BLOCK_ROWS * x->k);
    return n < 2 ? 2 : n > SHARE_BLOCKS ? SHARE_BLOCKS : n;
}

/* Row blocks [first, last) over two panels: groups are unpacked into L1, then all rows pass over them while the next
 * groups come from memory. */
static void share_pair(const uint8_t *const panels[2], const spl_q8_rows *x, uint32_t first, uint32_t last,
                       amx_sums *sums) {
    const uint32_t groups = x->k / SPL_GROUP, rest = last * SPL_Q8_BLOCK_ROWS > x->n_rows ? 1 : 0,
                   n_blocks = last - first - rest;
    pair_group w[SHARE_GROUPS];
    memset(sums, 0, (last - first) * sizeof *sums);
    for (uint32_t g = 0; g < groups; g += SHARE_GROUPS) {
        uint32_t n = groups - g < SHARE_GROUPS ? groups - g : SHARE_GROUPS;
        pair_stream next = pair_unpack_groups(panels, groups, g, n, SHARE_GROUPS, n_blocks + rest, w);
        if (n_blocks) share_blocks(w, x, first, n_blocks, g, n, &next, sums);
        if (!rest) continue;
        spl_q8_cursor c = spl_q8_row(x, (last - 1) * SPL_Q8_BLOCK_ROWS);
        spl_q8_skip(&c, g);
        share_rest(w, c, n, x->n_rows % SPL_Q8_BLOCK_ROWS, &sums[n_blocks]);
    }
}

#endif
