/* SPDX-License-Identifier: Apache-2.0
 * Loops over panels and row tiles around an ISA file's panel_rows(panel, x, tile, reach, n_rows, acc), which is always
 * inlined: blocks of panels stay in L2 while all row tiles pass, outputs past n_out are never written. */
#ifndef SPL_KERNELS_LINEAR_DRIVE_BODY_H
#define SPL_KERNELS_LINEAR_DRIVE_BODY_H

#include "kernels/body/linear_body.h"
#include "kernels/body/v16_body.h"

enum {
    DRIVE_L2_BYTES = 512 * 1024,
    DRIVE_MAX_PANELS = 8,
    DRIVE_NEAR_BYTES = 4 * SPL_Q4_TILE_BYTES,
    DRIVE_FAR_BYTES = 64 * 1024
};

static inline uint32_t drive_block(size_t panel_bytes, uint32_t n_tiles) {
    if (n_tiles == 1) return 1;
    size_t n = DRIVE_L2_BYTES / panel_bytes;
    return n < 1 ? 1 : n > DRIVE_MAX_PANELS ? DRIVE_MAX_PANELS : (uint32_t)n;
}

/* One function per row count, so that the accumulators are registers. */
#define SPL_GEN_PANEL(M)                                                                                               \
    static void panel_rows_m##M(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, const spl_reach *reach,        \
                                float acc[SPL_TILE_M][SPL_ROWS_PER_TILE]) {                                            \
        panel_rows(panel, x, t, reach, M, acc);                                                                        \
    }
SPL_GEN_PANEL(1)
SPL_GEN_PANEL(2)
SPL_GEN_PANEL(3)
SPL_GEN_PANEL(4)
SPL_GEN_PANEL(5)
SPL_GEN_PANEL(6)
SPL_GEN_PANEL(7)
SPL_GEN_PANEL(8)
#undef SPL_GEN_PANEL

static SPL_ALWAYS_INLINE void run_panel(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, const spl_reach *reach,
                                        uint32_t n, float acc[SPL_TILE_M][SPL_ROWS_PER_TILE]) {
    switch (n) {
    case 1: panel_rows_m1(panel, x, t, reach, acc); break;
    case 2: panel_rows_m2(panel, x, t, reach, acc); break;
    case 3: panel_rows_m3(panel, x, t, reach, acc); break;
    case 4: panel_rows_m4(panel, x, t, reach, acc); break;
    case 5: panel_rows_m5(panel, x, t, reach, acc); break;
    case 6: panel_rows_m6(panel, x, t, reach, acc); break;
    case 7: panel_rows_m7(panel, x, t, reach, acc); break;
    default: panel_rows_m8(panel, x, t, reach, acc); break;
    }
}

/* Rows of 16 results to y, the last panel cut. */
static SPL_ALWAYS_INLINE void drive_store(float *y, size_t stride, uint32_t n, uint32_t n_out, bool add,
                                          float acc[SPL_TILE_M][SPL_ROWS_PER_TILE]) {
    for (uint32_t m = 0; m < n; m++, y += stride) {
        if (n_out == SPL_ROWS_PER_TILE) {
            v16 v = v16_load(acc[m]);
            v16_store(y, add ? v16_add(v16_load(y), v) : v);
        } else
            for (uint32_t r = 0; r < n_out; r++) y[r] = add ? y[r] + acc[m][r] : acc[m][r];
    }
}

static SPL_ALWAYS_INLINE void drive_max(const spl_linear_args *a, uint32_t t, uint32_t p, uint32_t n,
                                        float acc[SPL_TILE_M][SPL_ROWS_PER_TILE]) {
    v16 y[SPL_TILE_M];
    for (uint32_t m = 0; m < n; m++) y[m] = v16_load(acc[m]);
    v16_panel_max(y, n, spl_outputs_of_panel(a->n_out, p), a->max + t * SPL_TILE_M * a->max_stride + p, a->max_stride);
}

static void drive_linear_q4(const spl_linear_args *a) {
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    uint32_t n_tiles = (a->x.n_rows + SPL_TILE_M - 1) / SPL_TILE_M, block = drive_block(panel_bytes, n_tiles);
    spl_reach reach = spl_reach_or(a->reach, DRIVE_NEAR_BYTES, DRIVE_FAR_BYTES, DRIVE_NEAR_BYTES);
    for (uint32_t first = a->panel_begin; first < a->panel_end; first += block) {
        uint32_t last = a->panel_end - first < block ? a->panel_end : first + block;
        for (uint32_t t = 0; t < n_tiles; t++)
            for (uint32_t p = first; p < last; p++) {
                float acc[SPL_TILE_M][SPL_ROWS_PER_TILE];
                uint32_t n = spl_rows_of_tile(&a->x, t);
                run_panel(a->w + p * panel_bytes, &a->x, t, &reach, n, acc);
                if (a->max) drive_max(a, t, p, n, acc);
                if (!a->y) continue;
                drive_store(a->y + t * SPL_TILE_M * a->y_stride + (size_t)p * SPL_ROWS_PER_TILE, a->y_stride, n,
                            spl_outputs_of_panel(a->n_out, p), a->add, acc);
            }
    }
}

static void drive_gate_up_q4(const spl_gate_up_args *a) {
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    uint32_t n_tiles = (a->x.n_rows + SPL_TILE_M - 1) / SPL_TILE_M, block = drive_block(2 * panel_bytes, n_tiles);
    spl_reach reach = spl_reach_or(a->reach, DRIVE_NEAR_BYTES, DRIVE_FAR_BYTES, DRIVE_NEAR_BYTES);
    const uint32_t end = a->group_end * SPL_GROUP_PAIRS;
    for (uint32_t first = a->group_begin * SPL_GROUP_PAIRS; first < end; first += block) {
        uint32_t last = end - first < block ? end : first + block;
        for (uint32_t t = 0; t < n_tiles; t++)
            for (uint32_t p = first; p < last; p++) {
                float gate[SPL_TILE_M][SPL_ROWS_PER_TILE], up[SPL_TILE_M][SPL_ROWS_PER_TILE];
                const uint8_t *pair = a->w + 2 * p * panel_bytes;
                uint32_t n = spl_rows_of_tile(&a->x, t);
                run_panel(pair, &a->x, t, &reach, n, gate);
                run_panel(pair + panel_bytes, &a->x, t, &reach, n, up);
                for (uint32_t m = 0; m < n; m++)
                    v16_gate_up_row(a, t * SPL_TILE_M + m, p, v16_load(gate[m]), v16_load(up[m]));
            }
    }
}

#endif
