/* SPDX-License-Identifier: Apache-2.0
 * The 4-bit linear on AVX-512 VNNI. A register holds 16 rows x 4 inputs, activations enter as 4-byte
 * broadcasts, so there is no shuffle and no horizontal sum. Up to 8 rows share one unpack: 8 int32 and 8 fp32
 * accumulators, two code registers, scale and bias fit in 32 registers; 16 rows would not.
 *
 * Streaming: hardware prefetchers idle while the core computes, so every tile asks for the one 4 tiles ahead
 * (L1) and for the lines 64 KiB ahead (L2); numbers in bench/EXPERIMENTS.tsv. */
#ifndef SPL_KERNELS_LINEAR_AVX512_H
#define SPL_KERNELS_LINEAR_AVX512_H

#include <immintrin.h>

#include "kernels/body/linear_body.h"
#include "kernels/body/v16_body.h"
#include "kernels/x86/dot_avx512.h"

enum {
    SINGLE_BYTES = 8 * 1024,
    NEAR_BYTES = 4 * SPL_Q4_TILE_BYTES,
    FAR_BYTES = 64 * 1024,
    L2_PANEL_BYTES = 512 * 1024
};

static SPL_ALWAYS_INLINE __m512 widen_bf16(const uint8_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256((const void *)p)), 16));
}
/* Lines to come, `near` bytes on in this stream and `ahead` in whatever is needed later. Addresses may lie past the
 * matrix: a prefetch never faults. With one row the core waits for memory anyway and only a longer reach helps
 * (8 KiB into L1: +15 %); with two, any request costs more than it brings. */
static SPL_ALWAYS_INLINE void prefetch_line(const uint8_t *p, size_t near, uintptr_t ahead, const int M,
                                            const bool far) {
    if (M != 2) _mm_prefetch((const char *)((uintptr_t)p + near), _MM_HINT_T0);
    if (M > 2 && far) _mm_prefetch((const char *)ahead, _MM_HINT_T1);
}

/* Code line j of a tile: inputs 8 j .. 8 j + 7 of 16 rows. All rows take the low codes, then all the high
 * ones, so that neighbouring instructions do not wait for each other. */
static SPL_ALWAYS_INLINE void tile_line_avx512(const uint8_t *tile, const int8_t *q, const int j, const int M,
                                               const int chains, size_t near, uintptr_t ahead, const bool far,
                                               __m512i part[4][SPL_TILE_M]) {
    const __m512i low = _mm512_set1_epi8(15);
    const uint8_t *line = tile + 64 + 64 * j;
    const int a = 2 * j % chains, b = (2 * j + 1) % chains;
    prefetch_line(line, near, ahead + 64 + 64 * (uintptr_t)j, M, far);
    __m512i w = _mm512_load_si512((const void *)line);
    __m512i lo = _mm512_and_si512(w, low), hi = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
    for (int m = 0; m < M; m++) part[a][m] = dot_inputs(part[a][m], lo, q + m * SPL_GROUP + 8 * j);
    for (int m = 0; m < M; m++) part[b][m] = dot_inputs(part[b][m], hi, q + m * SPL_GROUP + 8 * j + 4);
}

/* Exact sums of one tile for rows 0 .. M - 1; `chains` accumulators a row hide the latency when M is small. The
 * lines are written out: a loop costs register copies. */
static SPL_ALWAYS_INLINE void tile_dot_avx512(const uint8_t *tile, const int8_t *q, const int M, const int chains,
                                              size_t near, uintptr_t ahead, const bool far, __m512i sum[SPL_TILE_M]) {
    __m512i part[4][SPL_TILE_M];
    for (int c = 0; c < chains; c++)
        for (int m = 0; m < M; m++) part[c][m] = _mm512_setzero_si512();
    tile_line_avx512(tile, q, 0, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 1, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 2, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 3, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 4, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 5, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 6, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 7, M, chains, near, ahead, far, part);
    for (int m = 0; m < M; m++) {
        sum[m] = part[0][m];
        for (int c = 1; c < chains; c++) sum[m] = _mm512_add_epi32(sum[m], part[c][m]);
    }
}

/* One panel, one tile of M rows, all groups. */
static SPL_ALWAYS_INLINE void panel_avx512(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, const int M,
                                           const int chains, size_t near, uintptr_t ahead, const bool far,
                                           __m512 acc[SPL_TILE_M]) {
    size_t groups = x->k / SPL_GROUP;
    const int8_t *q = x->q + (size_t)t * SPL_TILE_M * x->k;
    const float *scale = x->scale + t * SPL_TILE_M * groups, *sum = x->sum + t * SPL_TILE_M * groups;
    for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps();
    for (size_t g = 0; g < groups; g++) {
        __m512i dot[SPL_TILE_M];
        prefetch_line(panel, near, ahead, M, far);
        tile_dot_avx512(panel, q, M, chains, near, ahead, far, dot);
        __m512 ws = widen_bf16(panel), wb = widen_bf16(panel + 32);
        for (int m = 0; m < M; m++) {
            acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[m]), _mm512_mul_ps(ws, _mm512_set1_ps(scale[m])), acc[m]);
            acc[m] = _mm512_fmadd_ps(wb, _mm512_set1_ps(sum[m]), acc[m]);
        }
        panel += SPL_Q4_TILE_BYTES;
        ahead += SPL_Q4_TILE_BYTES;
        q += M * SPL_GROUP;
        scale += M;
        sum += M;
    }
}

/* One function per row count, so that the accumulators are registers. `ahead`: where to prefetch into L2, or 0. */
#define SPL_GEN_PANEL(M, CHAINS)                                                                                       \
    static void panel_m##M##_avx512(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, size_t near,               \
                                    uintptr_t ahead, __m512 *acc) {                                                    \
        if (ahead)                                                                                                     \
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

/* How many panels stay in L2 while all row tiles pass over them. */
static inline uint32_t panels_per_block(size_t panel_bytes, uint32_t n_tiles) {
    if (n_tiles == 1) return 1;
    size_t n = L2_PANEL_BYTES / panel_bytes;
    return n < 1 ? 1 : n > 8 ? 8 : (uint32_t)n;
}

/* The first row tile streams the weights from memory; later ones find them in L2, and the last panel of their
 * block fetches the activations of the next tile, which L2 does not hold when there are many rows. */
static inline uintptr_t ahead_of(const uint8_t *panel, size_t far, const spl_q8_rows *x, uint32_t t, bool last_panel) {
    if (t == 0) return (uintptr_t)panel + far;
    return last_panel ? (uintptr_t)(x->q + (size_t)(t + 1) * SPL_TILE_M * x->k) : 0;
}

static void linear_q4_avx512(const spl_linear_args *a) {
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    uint32_t n_tiles = (a->x.n_rows + SPL_TILE_M - 1) / SPL_TILE_M, block = panels_per_block(panel_bytes, n_tiles);
    spl_reach reach = spl_reach_or(a->reach, NEAR_BYTES, FAR_BYTES, SINGLE_BYTES);
    for (uint32_t first = a->panel_begin; first < a->panel_end; first += block) {
        uint32_t last = a->panel_end - first < block ? a->panel_end : first + block;
        for (uint32_t t = 0; t < n_tiles; t++) {
            uint32_t n = spl_rows_of_tile(&a->x, t);
            size_t near = n == 1 ? reach.single_bytes : reach.near_bytes;
            for (uint32_t p = first; p < last; p++) {
                __m512 acc[SPL_TILE_M];
                __mmask16 mask = (__mmask16)(0xffffu >> (16 - spl_outputs_of_panel(a->n_out, p)));
                float *y = a->y + t * SPL_TILE_M * a->y_stride + (size_t)p * SPL_ROWS_PER_TILE;
                const uint8_t *panel = a->w + p * panel_bytes;
                panel_table[n - 1](panel, &a->x, t, near, ahead_of(panel, reach.far_bytes, &a->x, t, p + 1 == last),
                                   acc);
                for (uint32_t m = 0; m < n; m++, y += a->y_stride) {
                    __m512 v = a->add ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), acc[m]) : acc[m];
                    _mm512_mask_storeu_ps(y, mask, v);
                }
            }
        }
    }
}

static void gate_up_q4_avx512(const spl_gate_up_args *a) {
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    uint32_t n_tiles = (a->x.n_rows + SPL_TILE_M - 1) / SPL_TILE_M, block = panels_per_block(2 * panel_bytes, n_tiles);
    spl_reach reach = spl_reach_or(a->reach, NEAR_BYTES, FAR_BYTES, SINGLE_BYTES);
    for (uint32_t first = a->pair_begin; first < a->pair_end; first += block) {
        uint32_t last = a->pair_end - first < block ? a->pair_end : first + block;
        for (uint32_t t = 0; t < n_tiles; t++) {
            uint32_t n = spl_rows_of_tile(&a->x, t);
            size_t near = n == 1 ? reach.single_bytes : reach.near_bytes;
            for (uint32_t p = first; p < last; p++) {
                __m512 gate[SPL_TILE_M], up[SPL_TILE_M];
                const uint8_t *pair = a->w + 2 * p * panel_bytes;
                __mmask16 mask = (__mmask16)(0xffffu >> (16 - spl_outputs_of_panel(a->n_out, p)));
                float *y = a->y + t * SPL_TILE_M * a->y_stride + (size_t)p * SPL_ROWS_PER_TILE;
                const uint8_t *second = pair + panel_bytes;
                panel_table[n - 1](pair, &a->x, t, near, ahead_of(pair, reach.far_bytes, &a->x, t, false), gate);
                panel_table[n - 1](second, &a->x, t, near, ahead_of(second, reach.far_bytes, &a->x, t, p + 1 == last),
                                   up);
                for (uint32_t m = 0; m < n; m++, y += a->y_stride)
                    _mm512_mask_storeu_ps(y, mask, _mm512_mul_ps(v16_silu(gate[m]), up[m]));
            }
        }
    }
}

#endif
