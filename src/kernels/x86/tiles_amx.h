/* SPDX-License-Identifier: Apache-2.0
 * AMX tiles. Tiles are registers of the calling thread: configure before use, release after. SPL_EMULATE_AMX computes
 * the same from AVX-512, for tests. */
#ifndef SPL_KERNELS_TILES_AMX_H
#define SPL_KERNELS_TILES_AMX_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64, N_TILES = 8 };

/* Of every tile; all tiles are zero afterwards. */
typedef struct tile_shapes {
    uint8_t rows[N_TILES], row_bytes[N_TILES];
} tile_shapes;

/* TILE_LOAD(tile, base, stride), TILE_STORE(tile, base, stride): row r at base + r * stride.
 * TILE_PRODUCT_SU(sum, a, b): sum[row][column] += the products of row's signed bytes of a with column's unsigned ones
 * of b, b[i / 4][4 * column + i % 4]; TILE_PRODUCT_US: a unsigned, b signed. */
#ifndef SPL_EMULATE_AMX
static inline void tiles_configure(const tile_shapes *shapes) {
    struct {
        _Alignas(64) uint8_t palette;
        uint8_t start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < N_TILES; i++) {
        c.row_bytes[i] = shapes->row_bytes[i];
        c.rows[i] = shapes->rows[i];
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}
static inline void tiles_release(void) { __asm__ volatile("tilerelease"); }

/* The intrinsics of gcc 12 do not say that a tile load reads memory. */
#define TILE_LOAD(tile, base, stride)                                                                                  \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(base), "r"((size_t)(stride)) : "memory")
#define TILE_STORE(tile, base, stride)                                                                                 \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(base), "r"((size_t)(stride)) : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)
#define TILE_PRODUCT_SU(sum, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : :)
#define TILE_PRODUCT_US(sum, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : :)

#else
#include <stdbool.h>
#include <string.h>

static _Thread_local struct {
    __m512i row[N_TILES][TILE_ROWS];
    tile_shapes shapes;
} emulated_tiles;

static inline void tiles_configure(const tile_shapes *shapes) {
    memset(&emulated_tiles, 0, sizeof emulated_tiles);
    emulated_tiles.shapes = *shapes;
}
static inline void tiles_release(void) { memset(&emulated_tiles, 0, sizeof emulated_tiles); }
static inline void emulate_load(int tile, const void *base, size_t stride) {
    memset(emulated_tiles.row[tile], 0, sizeof emulated_tiles.row[tile]);
    for (size_t r = 0; r < emulated_tiles.shapes.rows[tile]; r++)
        memcpy(&emulated_tiles.row[tile][r], (const uint8_t *)base + r * stride, emulated_tiles.shapes.row_bytes[tile]);
}
static inline void emulate_store(int tile, void *base, size_t stride) {
    for (size_t r = 0; r < emulated_tiles.shapes.rows[tile]; r++)
        memcpy((uint8_t *)base + r * stride, &emulated_tiles.row[tile][r], emulated_tiles.shapes.row_bytes[tile]);
}
static inline void emulate_product(int sum, int a, int b, bool a_signed) {
    for (uint32_t r = 0; r < emulated_tiles.shapes.rows[a]; r++) {
        int32_t four[TILE_ROW_BYTES / 4];
        __m512i total = emulated_tiles.row[sum][r];
        memcpy(four, &emulated_tiles.row[a][r], sizeof four);
        for (int i = 0; i < emulated_tiles.shapes.row_bytes[a] / 4; i++) {
            __m512i x = _mm512_set1_epi32(four[i]), y = emulated_tiles.row[b][i];
            total = a_signed ? _mm512_dpbusd_epi32(total, y, x) : _mm512_dpbusd_epi32(total, x, y);
        }
        emulated_tiles.row[sum][r] = total;
    }
}
#define TILE_LOAD(tile, base, stride) emulate_load(tile, base, stride)
#define TILE_STORE(tile, base, stride) emulate_store(tile, base, stride)
#define TILE_ZERO(tile) memset(emulated_tiles.row[tile], 0, sizeof emulated_tiles.row[tile])
#define TILE_PRODUCT_SU(sum, a, b) emulate_product(sum, a, b, true)
#define TILE_PRODUCT_US(sum, a, b) emulate_product(sum, a, b, false)

#endif

#endif
