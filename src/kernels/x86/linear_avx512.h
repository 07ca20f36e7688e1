/* SPDX-License-Identifier: Apache-2.0
 * The 4-bit linear on AVX-512 VNNI. A register holds 16 rows x 4 inputs, activations enter as 4-byte
 * broadcasts, so there is no shuffle and no horizontal sum. Up to 7 rows go panel by panel, with all accumulators
 * in registers; more go by pairs of panels (linear_pair_avx512.h).
 *
 * Streaming: hardware prefetchers idle while the core computes, so every tile asks for the one 4 tiles ahead
 * (L1) and for the lines 64 KiB ahead (L2); numbers in bench/EXPERIMENTS.tsv. With one or two rows the core waits for
 * memory anyway and only a longer reach into L1 helps (8 KiB: +15 % with one, +36 % with two). */
#ifndef SPL_KERNELS_LINEAR_AVX512_H
#define SPL_KERNELS_LINEAR_AVX512_H

#include <immintrin.h>

#include "kernels/x86/linear_pair_avx512.h"

enum { SINGLE_BYTES = 8 * 1024, NEAR_BYTES = 4 * SPL_Q4_TILE_BYTES, FAR_BYTES = 64 * 1024 };

/* One panel, one tile of M rows, all groups. */
static SPL_ALWAYS_INLINE void panel_avx512(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, const int M,
                                           const int chains, size_t near, uintptr_t ahead, const bool far,
                                           __m512 acc[SPL_TILE_M]) {
    size_t groups = x->k / SPL_GROUP;
    spl_q8_cursor c = spl_q8_row(x, t * SPL_TILE_M);
    for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps();
    for (size_t g = 0; g < groups; g++) {
        __m512i dot[SPL_TILE_M];
        prefetch_line(panel, near, ahead, far);
        tile_dot_avx512(panel, c.q, M, chains, near, ahead, far, dot);
        __m512 ws = widen_bf16(panel), wb = widen_bf16(panel + 32);
        for (int m = 0; m < M; m++) {
            acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[m]), _mm512_mul_ps(ws, _mm512_set1_ps(c.scale[m])), acc[m]);
            acc[m] = _mm512_fmadd_ps(wb, _mm512_set1_ps(c.sum[m]), acc[m]);
        }
        panel += SPL_Q4_TILE_BYTES;
        ahead += SPL_Q4_TILE_BYTES;
        spl_q8_next(&c);
    }
}

/* One function per row count, so that the accumulators are registers. `ahead`: where to prefetch into L2, or 0. */
#define SPL_GEN_PANEL(M, CHAINS)                                                                                       \
    static void panel_m##M##_avx512(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, size_t near,               \
                                    uintptr_t ahead, __m512 *acc) {                                                    \
        if (M > 2 && ahead)                                                                                            \
            panel_avx512(panel, x, t, M, CHAINS, near, ahead, true, acc);                                              \
        else                                                                                                           \
            panel_avx512(panel, x, t, M, CHAINS, near, 0, false, acc);                                                 \
    }
SPL_GEN_PANEL(1, 4)
SPL_GEN_PANEL(2, 4)
SPL_GEN_PANEL(3, 2)
SPL_GEN_PANEL(4, 2)
SPL_GEN_PANEL(5, 2)
SPL_GEN_PANEL(6, 1)
SPL_GEN_PANEL(7, 1)
SPL_GEN_PANEL(8, 1)
#undef SPL_GEN_PANEL

typedef void (*panel_fn)(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, size_t near, uintptr_t ahead,
                         __m512 *acc);
static const panel_fn panel_table[SPL_TILE_M] = {panel_m1_avx512, panel_m2_avx512, panel_m3_avx512, panel_m4_avx512,
                                                 panel_m5_avx512, panel_m6_avx512, panel_m7_avx512, panel_m8_avx512};

/* Row tiles [first, last) over a pair of panels. */
static void pair_run(const uint8_t *const panels[2], const spl_q8_rows *x, uint32_t first, uint32_t last,
                     const spl_reach *reach, pair_sums acc[PAIR_MAX_TILES]) {
    bool full = spl_rows_of_tile(x, last - 1) == SPL_TILE_M;
    if (last - first == 1 && full) {
        pair_eight_rows(panels, x, first, reach->near_bytes, reach->far_bytes, acc);
    } else if (last - first == 2 && full) {
        for (int p = 0; p < 2; p++) panel_block(panels[p], x, first, p, reach->near_bytes, reach->far_bytes, acc);
    } else
        pair_tiles(panels, x, first, last, acc);
}

static void linear_single(const spl_linear_args *a, uint32_t t, uint32_t p, const spl_reach *reach) {
    __m512 acc[SPL_TILE_M];
    uint32_t n = spl_rows_of_tile(&a->x, t);
    const uint8_t *panel = a->w + p * ((size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES);
    panel_table[n - 1](panel, &a->x, t, n <= 2 ? reach->single_bytes : reach->near_bytes,
                       t == 0 ? (uintptr_t)panel + reach->far_bytes : 0, acc);
    linear_store(a, t, p, acc);
}

static void linear_pair(const spl_linear_args *a, uint32_t p, const spl_reach *reach) {
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    const uint8_t *const pair[2] = {a->w + p * panel_bytes, a->w + (p + 1) * panel_bytes};
    uint32_t n_tiles = (a->x.n_rows + SPL_TILE_M - 1) / SPL_TILE_M;
    for (uint32_t first = 0; first < n_tiles; first += PAIR_MAX_TILES) {
        uint32_t last = n_tiles - first < PAIR_MAX_TILES ? n_tiles : first + PAIR_MAX_TILES;
        pair_sums acc[PAIR_MAX_TILES];
        pair_run(pair, &a->x, first, last, reach, acc);
        for (uint32_t t = first; t < last; t++)
            for (uint32_t i = 0; i < 2; i++) linear_store(a, t, p + i, acc[t - first].v[i]);
    }
}

static void linear_q4_avx512(const spl_linear_args *a) {
    spl_reach reach = spl_reach_or(a->reach, NEAR_BYTES, FAR_BYTES, SINGLE_BYTES);
    uint32_t n_pairs = a->x.n_rows < SPL_TILE_M ? 0 : (a->panel_end - a->panel_begin) / 2;
    for (uint32_t i = 0; i < n_pairs; i++) linear_pair(a, a->panel_begin + 2 * i, &reach);
    for (uint32_t p = a->panel_begin + 2 * n_pairs; p < a->panel_end; p++)
        for (uint32_t t = 0; t * SPL_TILE_M < a->x.n_rows; t++) linear_single(a, t, p, &reach);
    outputs_finish(a->read_late);
}

/* Fewer than 8 rows. */
static void gate_up_single(const spl_gate_up_args *a, const uint8_t *const pair[2], uint32_t p,
                           const spl_reach *reach) {
    __m512 acc[2][SPL_TILE_M];
    size_t near = a->x.n_rows <= 2 ? reach->single_bytes : reach->near_bytes;
    for (int i = 0; i < 2; i++)
        panel_table[a->x.n_rows - 1](pair[i], &a->x, 0, near, (uintptr_t)pair[i] + reach->far_bytes, acc[i]);
    gate_up_store(a, 0, p, acc[0], acc[1]);
}

static void gate_up_pair(const spl_gate_up_args *a, const uint8_t *const pair[2], uint32_t p, const spl_reach *reach) {
    uint32_t n_tiles = (a->x.n_rows + SPL_TILE_M - 1) / SPL_TILE_M;
    for (uint32_t first = 0; first < n_tiles; first += PAIR_MAX_TILES) {
        uint32_t last = n_tiles - first < PAIR_MAX_TILES ? n_tiles : first + PAIR_MAX_TILES;
        pair_sums acc[PAIR_MAX_TILES];
        pair_run(pair, &a->x, first, last, reach, acc);
        for (uint32_t t = first; t < last; t++) gate_up_store(a, t, p, acc[t - first].v[0], acc[t - first].v[1]);
    }
}

static void gate_up_q4_avx512(const spl_gate_up_args *a) {
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    spl_reach reach = spl_reach_or(a->reach, NEAR_BYTES, FAR_BYTES, SINGLE_BYTES);
    for (uint32_t p = a->group_begin * SPL_GROUP_PAIRS; p < a->group_end * SPL_GROUP_PAIRS; p++) {
        const uint8_t *const pair[2] = {a->w + 2 * p * panel_bytes, a->w + (2 * p + 1) * panel_bytes};
        if (a->x.n_rows < SPL_TILE_M)
            gate_up_single(a, pair, p, &reach);
        else
            gate_up_pair(a, pair, p, &reach);
    }
}

#endif
