/* SPDX-License-Identifier: Apache-2.0
 * tdpbsud: 16 x 16 x 64 products each, six independent sums. */
#include "bench/roof.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* palette 1; 64 bytes a row and 16 rows in all eight tiles */
static const struct {
    _Alignas(64) uint8_t palette;
    uint8_t start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

uint64_t spl_roof_dots_amx(const uint8_t *bytes, uint64_t rounds) {
    _Alignas(64) int32_t sums[16][16];
    uint64_t total = 0;
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm6\n\ttileloadd (%0,%1,1), %%tmm7"
                     :
                     : "r"(bytes), "r"((size_t)64)
                     : "memory");
    for (uint64_t i = 0; i < rounds; i++)
        __asm__ volatile("tdpbsud %%tmm6, %%tmm7, %%tmm0\n\t"
                         "tdpbsud %%tmm6, %%tmm7, %%tmm1\n\t"
                         "tdpbsud %%tmm6, %%tmm7, %%tmm2\n\t"
                         "tdpbsud %%tmm6, %%tmm7, %%tmm3\n\t"
                         "tdpbsud %%tmm6, %%tmm7, %%tmm4\n\t"
                         "tdpbsud %%tmm6, %%tmm7, %%tmm5"
                         :
                         :);
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" : : "r"(sums), "r"((size_t)64) : "memory");
    __asm__ volatile("tilerelease");
    for (int r = 0; r < 16; r++) total += (uint64_t)sums[r][r];
    return total;
}
#endif
