/* SPDX-License-Identifier: Apache-2.0
 * The 4-bit linear on AMX. A group of a panel, unpacked, is 64 inputs x 16 outputs, just the second operand of a tile
 * product; a block of up to 16 activation rows is the first. The exact sums go through L1 to the fp32 accumulators,
 * and that, four vector operations a row and group, sets the pace. Up to 32 rows stream (stream_amx.h); more share
 * unpacked groups.
 *
 * tdpbsud adds exactly, so the result agrees with ref by the order of the epilogue alone. Numbers:
 * bench/EXPERIMENTS.tsv. */
#ifndef SPL_KERNELS_LINEAR_AMX_H
#define SPL_KERNELS_LINEAR_AMX_H

#include <immintrin.h>

#include "kernels/x86/stream_amx.h"

enum {
    AMX_SLAB_BYTES = 1280 * 1024, /* activations that share unpacked groups: they come from L2 each time */
    AMX_SLAB_BLOCKS = 16
};

#define AMX_TAKE(m) __m512 first##m = sums->v[0][m], second##m = sums->v[1][m];

/* n groups of two panels for a whole block: products of one group run while the sums of the one before are scaled.
 * Tiles as in a stream. */
static void amx_block(const pair_group *w, uint32_t n, spl_q8_cursor c, pair_stream *next, amx_sums *sums) {
    enum { M = SPL_Q8_BLOCK_ROWS, BLOCK_BYTES = M * SPL_GROUP }; /* of one group; the cursor's steps, but constant */
    amx_exact exact;
    AMX_EACH_ROW(AMX_TAKE)
    for (size_t g = 0; g <= n; g++) {
        if (g > 0) {
            TILE_STORE(0, exact.v[0], 64);
            TILE_STORE(1, exact.v[1], 64);
        }
        if (g < n) {
            TILE_LOAD(4, c.q + g * BLOCK_BYTES, 64);
            TILE_LOAD(6, w[g].code[0], 64);
            AMX_PRODUCT(0, 4, 6);
            TILE_LOAD(7, w[g].code[1], 64);
            AMX_PRODUCT(1, 4, 7);
            pair_ask(next);
        }
        if (g > 0) {
            const pair_group *before = &w[g - 1];
            const float *dx = c.scale + M * (g - 1), *sx = c.sum + M * (g - 1);
            AMX_EACH_ROW(AMX_ADD)
        }
    }
    AMX_EACH_ROW(AMX_GIVE)
}

/* The same for the rows that are left, through tiles 2, 3 and 6. */
static void amx_rest(const pair_group *w, uint32_t p, uint32_t n, spl_q8_cursor c, uint32_t n_rows, pair_stream *next,
                     __m512 *sums) {
    amx_exact exact;
    for (uint32_t g = 0; g < n; g++) {
        TILE_LOAD(6, w[g].code[p], 64);
        TILE_LOAD(3, c.q, 64);
        AMX_PRODUCT(2, 3, 6);
        pair_ask(next);
        TILE_STORE(2, exact.v[g % 2], 64);
        stream_add(exact.v[g % 2], &w[g], (int)p, c.scale, c.sum, n_rows, sums);
        spl_q8_next(&c);
    }
}

static uint32_t amx_blocks(const spl_q8_rows *x) { return (x->n_rows + SPL_Q8_BLOCK_ROWS - 1) / SPL_Q8_BLOCK_ROWS; }

/* Row blocks that share an unpack. */
static uint32_t amx_slab(const spl_q8_rows *x) {
    uint32_t n = AMX_SLAB_BYTES / (SPL_Q8_BLOCK_ROWS * x->k);
    return n < 2 ? 2 : n > AMX_SLAB_BLOCKS ? AMX_SLAB_BLOCKS : n;
}

static void amx_configure(uint32_t n_rows) {
    static const uint8_t rest = 1u << 2 | 1u << 3;
    if (n_rows <= STREAM_MAX_ROWS)
        stream_configure(n_rows);
    else
        amx_shape(SPL_Q8_BLOCK_ROWS, n_rows % SPL_Q8_BLOCK_ROWS ? n_rows % SPL_Q8_BLOCK_ROWS : SPL_Q8_BLOCK_ROWS, rest);
}

/* Row blocks [first, last) over two panels: groups are unpacked into L1, then all rows pass over them while the next
 * groups come from memory. */
static void amx_share(const uint8_t *const panels[2], const spl_q8_rows *x, uint32_t first, uint32_t last,
                      amx_sums *acc) {
    uint32_t groups = x->k / SPL_GROUP;
    pair_group w[PAIR_GROUPS];
    memset(acc, 0, (last - first) * sizeof *acc);
    for (uint32_t g = 0; g < groups; g += PAIR_GROUPS) {
        uint32_t n = groups - g < PAIR_GROUPS ? groups - g : PAIR_GROUPS;
        pair_stream next = pair_unpack_groups(panels, groups, g, n, last - first, w);
        for (uint32_t b = first; b < last; b++) {
            uint32_t rows = x->n_rows - b * SPL_Q8_BLOCK_ROWS;
            spl_q8_cursor c = spl_q8_row(x, b * SPL_Q8_BLOCK_ROWS);
            spl_q8_skip(&c, g);
            if (rows >= SPL_Q8_BLOCK_ROWS)
                amx_block(w, n, c, &next, &acc[b - first]);
            else
                for (uint32_t p = 0; p < 2; p++) amx_rest(w, p, n, c, rows, &next, acc[b - first].v[p]);
        }
    }
}

/* Row blocks [first, last) over two panels; all of them where there are at most two. */
static void amx_pair(const uint8_t *const panels[2], const spl_q8_rows *x, uint32_t first, uint32_t last,
                     const spl_reach *reach, amx_sums *acc) {
    if (x->n_rows <= STREAM_MAX_ROWS)
        stream_pair(panels, x, reach, acc);
    else
        amx_share(panels, x, first, last, acc);
}

/* Pairs of panels, a last one without a partner being its own, and where their sums go. */
typedef struct amx_job {
    const uint8_t *w;
    const spl_q8_rows *x;
    spl_reach reach;
    uint32_t panel_begin, panel_end;
    const void *args;
    /* Row tile t of the pair at panel p: up to 8 rows from [0][..] and [1][..]. */
    void (*store)(const void *args, uint32_t t, uint32_t p, const __m512 *const sums[2]);
} amx_job;

static void amx_run(const amx_job *job) {
    const spl_q8_rows *x = job->x;
    const spl_reach reach = spl_reach_or(job->reach, STREAM_NEAR_BYTES, STREAM_FAR_BYTES, STREAM_NEAR_BYTES);
    size_t panel_bytes = (size_t)x->k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    uint32_t n_blocks = amx_blocks(x), slab = amx_slab(x);
    amx_configure(x->n_rows);
    for (uint32_t first = 0; first < n_blocks; first += slab) {
        uint32_t last = n_blocks - first < slab ? n_blocks : first + slab;
        for (uint32_t p = job->panel_begin; p < job->panel_end; p += 2) {
            amx_sums acc[AMX_SLAB_BLOCKS];
            const uint8_t *first_panel = job->w + p * panel_bytes;
            const uint8_t *const pair[2] = {first_panel, first_panel + (job->panel_end - p > 1 ? panel_bytes : 0)};
            amx_pair(pair, x, first, last, &reach, acc);
            for (uint32_t t = 2 * first; t < 2 * last && t * SPL_TILE_M < x->n_rows; t++) {
                const uint32_t row = t % 2 * SPL_TILE_M;
                const amx_sums *sums = &acc[t / 2 - first];
                job->store(job->args, t, p, (const __m512 *const[2]){sums->v[0] + row, sums->v[1] + row});
            }
        }
    }
    tiles_release();
}

static void amx_store_linear(const void *args, uint32_t t, uint32_t p, const __m512 *const sums[2]) {
    const spl_linear_args *a = args;
    linear_store(a, t, p, sums[0]);
    if (p + 1 < a->panel_end) linear_store(a, t, p + 1, sums[1]);
}
static void linear_q4_amx(const spl_linear_args *a) {
    amx_run(&(amx_job){a->w, &a->x, a->reach, a->panel_begin, a->panel_end, a, amx_store_linear});
    outputs_finish(a->read_late);
}

static void amx_store_gate_up(const void *args, uint32_t t, uint32_t p, const __m512 *const sums[2]) {
    gate_up_store(args, t, p / 2, sums[0], sums[1]);
}
static void gate_up_q4_amx(const spl_gate_up_args *a) {
    const uint32_t panels = 2 * SPL_GROUP_PAIRS;
    amx_run(&(amx_job){a->w, &a->x, a->reach, panels * a->group_begin, panels * a->group_end, a, amx_store_gate_up});
}

#endif
