/* SPDX-License-Identifier: Apache-2.0
 * The 4-bit linear on AMX. A group of a panel, unpacked, is 64 inputs x 16 outputs, just the second operand of a tile
 * product; a block of up to 16 activation rows is the first. The exact sums go through L1 to the fp32 accumulators,
 * and that, four vector operations a row and group, sets the pace. Up to 32 rows stream (stream_amx.h); more share
 * unpacked groups (share_amx.h).
 *
 * tdpbsud adds exactly, so the result agrees with ref by the order of the epilogue alone. Numbers:
 * bench/EXPERIMENTS.tsv. */
#ifndef SPL_KERNELS_LINEAR_AMX_H
#define SPL_KERNELS_LINEAR_AMX_H

#include <immintrin.h>

#include "kernels/x86/share_amx.h"

static void amx_configure(uint32_t n_rows) {
    static const uint8_t rest = 1u << 2 | 1u << 3;
    if (n_rows <= STREAM_MAX_ROWS)
        stream_configure(n_rows);
    else
        amx_shape(SPL_Q8_BLOCK_ROWS, n_rows % SPL_Q8_BLOCK_ROWS ? n_rows % SPL_Q8_BLOCK_ROWS : SPL_Q8_BLOCK_ROWS, rest);
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
    uint32_t n_blocks = (x->n_rows + SPL_Q8_BLOCK_ROWS - 1) / SPL_Q8_BLOCK_ROWS, slab = share_slab(x);
    amx_configure(x->n_rows);
    for (uint32_t first = 0; first < n_blocks; first += slab) {
        uint32_t last = n_blocks - first < slab ? n_blocks : first + slab;
        for (uint32_t p = job->panel_begin; p < job->panel_end; p += 2) {
            amx_sums acc[SHARE_BLOCKS];
            const uint8_t *first_panel = job->w + p * panel_bytes;
            const uint8_t *const pair[2] = {first_panel, first_panel + (job->panel_end - p > 1 ? panel_bytes : 0)};
            if (x->n_rows <= STREAM_MAX_ROWS)
                stream_pair(pair, x, &reach, acc);
            else
                share_pair(pair, x, first, last, acc);
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
