/* SPDX-License-Identifier: Apache-2.0
 * tdpbsud: 16 x 16 x 64 products each, six independent sums. */
#include "bench/roof.h"

#if defined(__x86_64__)
#include "kernels/x86/tiles_amx.h"

uint64_t spl_roof_dots_amx(const uint8_t *bytes, uint64_t rounds) {
    _Alignas(64) int32_t sums[TILE_ROWS][TILE_ROW_BYTES / 4];
    tile_shapes shapes;
    uint64_t total = 0;
    for (int i = 0; i < N_TILES; i++) shapes.rows[i] = TILE_ROWS, shapes.row_bytes[i] = TILE_ROW_BYTES;
    tiles_configure(&shapes);
    TILE_LOAD(6, bytes, TILE_ROW_BYTES);
    TILE_LOAD(7, bytes, TILE_ROW_BYTES);
    for (uint64_t i = 0; i < rounds; i++) {
        TILE_PRODUCT_SU(0, 7, 6);
        TILE_PRODUCT_SU(1, 7, 6);
        TILE_PRODUCT_SU(2, 7, 6);
        TILE_PRODUCT_SU(3, 7, 6);
        TILE_PRODUCT_SU(4, 7, 6);
        TILE_PRODUCT_SU(5, 7, 6);
    }
    TILE_STORE(0, sums, TILE_ROW_BYTES);
    tiles_release();
    for (int r = 0; r < TILE_ROWS; r++) total += (uint64_t)sums[r][r];
    return total;
}
#endif
