/* SPDX-License-Identifier: Apache-2.0
 * AMX tiles and the one GFNI operation that goes with them. A row has 64 bytes; tiles 6 and 7 have 16 rows, the others
 * what was configured last. They are registers of the calling thread: configure before use, release after.
 * SPL_EMULATE_AMX computes the same from AVX-512, for tests. */
#ifndef SPL_KERNELS_TILES_AMX_H
#define SPL_KERNELS_TILES_AMX_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

#ifndef SPL_EMULATE_AMX
typedef struct tile_config {
    _Alignas(64) uint8_t palette;
    uint8_t start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Tiles 0 .. 5: `rest` rows where the bit of the tile is set in `which`, else `rows`. */
static inline void tiles_configure(uint32_t rows, uint32_t rest, uint8_t which) {
    tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = (uint8_t)(i >= 6 ? 16 : which >> i & 1 ? rest : rows);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}
static inline void tiles_release(void) { __asm__ volatile("tilerelease"); }

/* The intrinsics of gcc 12 do not say that a tile load reads memory. */
#define TILE_LOAD(tile, base)                                                                                          \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(base), "r"((size_t)64) : "memory")
#define TILE_STORE(tile, base)                                                                                         \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(base), "r"((size_t)64) : "memory")
/* sum[row][column] = the 64 products of row's signed bytes with column's unsigned ones, b[i / 4][4 * column + i % 4] */
#define TILE_PRODUCT(sum, a, b)                                                                                        \
    __asm__ volatile("tilezero %%tmm" #sum "\n\ttdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : :)

/* The high halves of bytes: a bit matrix moves bits 4 .. 7 down, in one operation where a shift needs a mask too. */
static SPL_ALWAYS_INLINE __m512i high_halves(__m512i w) {
    return _mm512_gf2p8affine_epi64_epi8(w, _mm512_set1_epi64(0x1020408000000000), 0);
}
#else
#include <string.h>

static _Thread_local struct {
    __m512i row[8][16];
    uint32_t rows[8];
} emulated_tiles;

static inline void tiles_configure(uint32_t rows, uint32_t rest, uint8_t which) {
    memset(&emulated_tiles, 0, sizeof emulated_tiles);
    for (int i = 0; i < 8; i++) emulated_tiles.rows[i] = i >= 6 ? 16 : which >> i & 1 ? rest : rows;
}
static inline void tiles_release(void) { memset(&emulated_tiles, 0, sizeof emulated_tiles); }
static inline void emulate_load(int tile, const void *base) {
    memcpy(emulated_tiles.row[tile], base, emulated_tiles.rows[tile] * sizeof(__m512i));
}
static inline void emulate_store(int tile, void *base) {
    memcpy(base, emulated_tiles.row[tile], emulated_tiles.rows[tile] * sizeof(__m512i));
}
static inline void emulate_product(int sum, int a, int b) {
    for (uint32_t r = 0; r < emulated_tiles.rows[a]; r++) {
        int32_t four[16];
        __m512i total = _mm512_setzero_si512();
        memcpy(four, &emulated_tiles.row[a][r], sizeof four);
        for (int i = 0; i < 16; i++)
            total = _mm512_dpbusd_epi32(total, emulated_tiles.row[b][i], _mm512_set1_epi32(four[i]));
        emulated_tiles.row[sum][r] = total;
    }
}
#define TILE_LOAD(tile, base) emulate_load(tile, base)
#define TILE_STORE(tile, base) emulate_store(tile, base)
#define TILE_PRODUCT(sum, a, b) emulate_product(sum, a, b)

static SPL_ALWAYS_INLINE __m512i high_halves(__m512i w) {
    return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
}
#endif

#endif
