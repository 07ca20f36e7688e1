/* SPDX-License-Identifier: Apache-2.0
 * What the linears of the avx512vnni and amx tiers are made of. A register holds 16 rows x 4 inputs; activations
 * enter as 4-byte broadcasts, so there is no shuffle and no horizontal sum. */
#ifndef SPL_KERNELS_LINEAR_PARTS_AVX512_H
#define SPL_KERNELS_LINEAR_PARTS_AVX512_H

#include <immintrin.h>

#include "kernels/body/linear_body.h"
#include "kernels/body/v16_body.h"
#include "kernels/x86/dot_avx512.h"

static SPL_ALWAYS_INLINE __m512 widen_bf16(const uint8_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256((const void *)p)), 16));
}

/* What a group adds to a row: dot * (scale * dx), then bias * sx. */
static SPL_ALWAYS_INLINE __m512 add_group(__m512 acc, __m512i dot, __m512 scale, __m512 bias, __m512 dx, __m512 sx) {
    return _mm512_fmadd_ps(bias, sx, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scale, dx), acc));
}

/* Lines to come, `near` bytes on in this stream and `ahead` in whatever is needed later. Addresses may lie past the
 * matrix: a prefetch never faults. */
static SPL_ALWAYS_INLINE void prefetch_line(const uint8_t *p, size_t near, uintptr_t ahead, const bool far) {
    _mm_prefetch((const char *)((uintptr_t)p + near), _MM_HINT_T0);
    if (far) _mm_prefetch((const char *)ahead, _MM_HINT_T1);
}

/* Where work on pairs of panels asks for weights: in this panel, or, beyond its end, in the same one of the next pair
 * or the one after it (small matrices would need more; they are in the cache). */
static SPL_ALWAYS_INLINE size_t pair_ahead(size_t at, size_t reach, size_t panel_bytes) {
    size_t there = at + reach;
    return there < panel_bytes ? reach : there < 2 * panel_bytes ? reach + panel_bytes : reach + 2 * panel_bytes;
}

/* Code line j of a tile: inputs 8 j .. 8 j + 7 of 16 rows. All rows take the low codes, then all the high
 * ones, so that neighbouring instructions do not wait for each other. */
static SPL_ALWAYS_INLINE void tile_line_avx512(const uint8_t *tile, const int8_t *q, const int j, const int M,
                                               const int chains, size_t near, uintptr_t ahead, const bool far,
                                               __m512i part[4][SPL_TILE_M]) {
    const __m512i low = _mm512_set1_epi8(15);
    const uint8_t *line = tile + 64 + 64 * j;
    const int a = 2 * j % chains, b = (2 * j + 1) % chains;
    prefetch_line(line, near, ahead + 64 + 64 * (uintptr_t)j, far);
    __m512i w = _mm512_load_si512((const void *)line);
    __m512i lo = _mm512_and_si512(w, low), hi = _mm512_and_si512(_mm512_srli_epi16(w, 4), low);
    for (int m = 0; m < M; m++) part[a][m] = dot_inputs(part[a][m], lo, q + m * SPL_GROUP + 8 * j);
    for (int m = 0; m < M; m++) part[b][m] = dot_inputs(part[b][m], hi, q + m * SPL_GROUP + 8 * j + 4);
}

/* `chains` accumulators a row hide the latency when there are few rows. */
static SPL_ALWAYS_INLINE void chains_clear(const int M, const int chains, __m512i part[4][SPL_TILE_M]) {
    for (int c = 0; c < chains; c++)
        for (int m = 0; m < M; m++) part[c][m] = _mm512_setzero_si512();
}
static SPL_ALWAYS_INLINE void chains_total(const int M, const int chains, __m512i part[4][SPL_TILE_M],
                                           __m512i sum[SPL_TILE_M]) {
    for (int m = 0; m < M; m++) {
        sum[m] = part[0][m];
        for (int c = 1; c < chains; c++) sum[m] = _mm512_add_epi32(sum[m], part[c][m]);
    }
}

/* Exact sums of one tile for rows 0 .. M - 1. The lines are written out: a loop costs register copies. */
static SPL_ALWAYS_INLINE void tile_dot_avx512(const uint8_t *tile, const int8_t *q, const int M, const int chains,
                                              size_t near, uintptr_t ahead, const bool far, __m512i sum[SPL_TILE_M]) {
    __m512i part[4][SPL_TILE_M];
    chains_clear(M, chains, part);
    tile_line_avx512(tile, q, 0, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 1, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 2, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 3, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 4, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 5, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 6, M, chains, near, ahead, far, part);
    tile_line_avx512(tile, q, 7, M, chains, near, ahead, far, part);
    chains_total(M, chains, part, sum);
}

enum { PAIR_GROUPS = 8 /* groups unpacked at once: 18 KiB of L1 */ };

/* One group of two panels. */
typedef struct pair_group {
    _Alignas(64) uint8_t code[2][SPL_GROUP / 4][64]; /* [panel][4 inputs][16 rows x 4 inputs] */
    __m512 scale[2], bias[2];
} pair_group;

/* The high halves of bytes. With GFNI a bit matrix moves bits 4 .. 7 down, in one operation where a shift needs a mask
 * too. */
static SPL_ALWAYS_INLINE __m512i high_halves(__m512i w) {
#ifdef __GFNI__
    return _mm512_gf2p8affine_epi64_epi8(w, _mm512_set1_epi64(0x1020408000000000), 0);
#else
    return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
#endif
}

/* The tile of panel p: its scales and biases, and its code line j. */
static SPL_ALWAYS_INLINE void pair_unpack_scales(const uint8_t *tile, const int p, pair_group *out) {
    out->scale[p] = widen_bf16(tile);
    out->bias[p] = widen_bf16(tile + 32);
}
static SPL_ALWAYS_INLINE void pair_unpack_line(const uint8_t *tile, const int p, const int j, pair_group *out) {
    const __m512i w = _mm512_load_si512((const void *)(tile + 64 + 64 * j));
    _mm512_store_si512(out->code[p][2 * j], _mm512_and_si512(w, _mm512_set1_epi8(15)));
    _mm512_store_si512(out->code[p][2 * j + 1], high_halves(w));
}
static SPL_ALWAYS_INLINE void pair_unpack(const uint8_t *tile, const int p, pair_group *out) {
    for (int j = 0; j < 8; j++) pair_unpack_line(tile, p, j, out);
    pair_unpack_scales(tile, p, out);
}

/* Weights of two panels wanted soon: a run of lines each, some of which every group of work asks for. */
typedef struct pair_stream {
    const uint8_t *panel[2];
    size_t at, n_bytes;
    uint32_t lines_per_group;
    size_t q_ahead; /* bytes from a row tile's activations to those of the next one */
} pair_stream;

static SPL_ALWAYS_INLINE void pair_ask(pair_stream *s) {
    for (uint32_t i = 0; i < s->lines_per_group && s->at < s->n_bytes; i++, s->at += 64)
        for (int p = 0; p < 2; p++) _mm_prefetch((const char *)((uintptr_t)s->panel[p] + s->at), _MM_HINT_T1);
}

/* Unpacks groups g .. g + n - 1 of the `groups` of two panels. Returns the `after` groups that come after them, or at
 * the end of the panels the next pair's first ones, for n_units passes of n groups to ask for. */
static SPL_ALWAYS_INLINE pair_stream pair_unpack_groups(const uint8_t *const panels[2], uint32_t groups, uint32_t g,
                                                        uint32_t n, uint32_t after, uint32_t n_units, pair_group *w) {
    const size_t panel_bytes = (size_t)groups * SPL_Q4_TILE_BYTES, at = (size_t)g * SPL_Q4_TILE_BYTES;
    const size_t then = at + n * SPL_Q4_TILE_BYTES;
    pair_stream next = {.n_bytes = (size_t)after * SPL_Q4_TILE_BYTES,
                        .lines_per_group = (SPL_Q4_TILE_BYTES / 64 + n_units - 1) / n_units};
    for (int p = 0; p < 2; p++) next.panel[p] = panels[p] + (then < panel_bytes ? then : 2 * panel_bytes);
    for (uint32_t i = 0; i < n; i++)
        for (int p = 0; p < 2; p++) pair_unpack(panels[p] + at + i * SPL_Q4_TILE_BYTES, p, &w[i]);
    return next;
}

/* A line of outputs; `late`: past the caches, where it is a whole one. */
static SPL_ALWAYS_INLINE void output_store(float *y, __mmask16 mask, __m512 v, bool late) {
    if (late && mask == 0xffff && (uintptr_t)y % 64 == 0)
        _mm512_stream_ps(y, v);
    else
        _mm512_mask_storeu_ps(y, mask, v);
}

/* What goes past the caches is not ordered with other stores: before anyone is told that the outputs are there. */
static SPL_ALWAYS_INLINE void outputs_finish(bool late) {
    if (late) _mm_sfence();
}

/* Results of tile t for panel p to y, the largest ones to max. */
static void linear_store(const spl_linear_args *a, uint32_t t, uint32_t p, const __m512 *acc) {
    const uint32_t n = spl_rows_of_tile(&a->x, t), n_out = spl_outputs_of_panel(a->n_out, p);
    if (a->max) v16_panel_max(acc, n, n_out, a->max + t * SPL_TILE_M * a->max_stride + p, a->max_stride);
    if (!a->y) return;
    __mmask16 mask = v16_first(n_out);
    float *y = a->y + t * SPL_TILE_M * a->y_stride + (size_t)p * SPL_ROWS_PER_TILE;
    for (uint32_t m = 0; m < n; m++, y += a->y_stride) {
        __m512 v = a->add ? _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), acc[m]) : acc[m];
        output_store(y, mask, v, a->read_late && !a->add);
    }
}

/* Pair p for the rows of tile t. */
static void gate_up_store(const spl_gate_up_args *a, uint32_t t, uint32_t p, const __m512 *gate, const __m512 *up) {
    for (uint32_t m = 0; m < spl_rows_of_tile(&a->x, t); m++) v16_gate_up_row(a, t * SPL_TILE_M + m, p, gate[m], up[m]);
}

#endif
