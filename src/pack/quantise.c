/* SPDX-License-Identifier: Apache-2.0
 * Loops are written over fixed small arrays so that the compiler vectorises them; each result is
 * still the plain IEEE one, bit for bit. */
#include "pack/quantise.h"

#include <math.h>
#include <string.h>

#include "base/bytes.h"
#include "model/geometry.h"
#include "model/layout.h"

enum { LANES = 16 };

/* Smallest value, and largest value clamped at zero from below. */
static void range_of_group(const float *w, float *lowest, float *highest) {
    float lo[LANES], hi[LANES];
    for (int j = 0; j < LANES; j++) {
        lo[j] = w[j];
        hi[j] = 0.0f;
    }
    for (int i = 0; i < SPL_GROUP; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            float v = w[i + j];
            lo[j] = v < lo[j] ? v : lo[j];
            hi[j] = v > hi[j] ? v : hi[j];
        }
    }
    for (int j = 1; j < LANES; j++) {
        if (lo[j] < lo[0]) lo[0] = lo[j];
        if (hi[j] > hi[0]) hi[0] = hi[j];
    }
    *lowest = lo[0];
    *highest = hi[0];
}

static bool group_is_finite(const float *w) {
    int32_t most[LANES] = {0};
    for (int i = 0; i < SPL_GROUP; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            int32_t magnitude = (int32_t)(spl_bits_from_f32(w[i + j]) & 0x7fffffffu);
            most[j] = magnitude > most[j] ? magnitude : most[j];
        }
    }
    for (int j = 0; j < LANES; j++) {
        if (most[j] >= 0x7f800000) return false;
    }
    return true;
}

/* Codes of one group. Values below 0 and above the top round to the clamped ends either way, so
 * clamping comes first; what is left is non-negative, where half away from zero is "add one when
 * the fraction is at least a half". */
static void codes_of_group(const float *w, float scale, float bias, float top, uint8_t codes[SPL_GROUP]) {
    for (int i = 0; i < SPL_GROUP; i++) {
        float x = (w[i] - bias) / scale;
        x = x > 0.0f ? x : 0.0f;
        x = x < top ? x : top;
        int32_t whole = (int32_t)x;
        float fraction = x - (float)whole;
        codes[i] = (uint8_t)(whole + (fraction >= 0.5f));
    }
}

bool spl_quantise_row(const float *w, uint32_t cols, unsigned bits, uint8_t *codes, uint16_t *scales,
                      uint16_t *biases) {
    const float top = bits == 4 ? 15.0f : 255.0f;
    for (uint32_t g = 0; g < cols / SPL_GROUP; g++, w += SPL_GROUP) {
        uint8_t q[SPL_GROUP];
        float lo, hi;
        if (!group_is_finite(w)) return false;
        range_of_group(w, &lo, &hi);
        bool low_edge = fabsf(lo) > fabsf(hi);
        float scale = (hi - lo) / top;
        if (!(scale > 1e-7f)) scale = 1e-7f;
        if (!low_edge) scale = -scale;
        float edge = low_edge ? lo : hi, bias = 0.0f;
        float steps = roundf(edge / scale);
        if (steps != 0.0f) {
            scale = edge / steps;
            bias = edge;
        }
        codes_of_group(w, scale, bias, top, q);
        scales[g] = spl_bf16_from_f32(scale);
        biases[g] = spl_bf16_from_f32(bias);
        if (bits == 8) {
            memcpy(codes + (size_t)g * SPL_GROUP, q, SPL_GROUP);
        } else {
            uint8_t *to = codes + (size_t)g * (SPL_GROUP / 2);
            for (int i = 0; i < SPL_GROUP / 2; i++) to[i] = (uint8_t)(q[2 * i] | q[2 * i + 1] << 4);
        }
        /* An overflow of hi - lo, or of the rounding to bf16, is the one way left to an infinity. */
        if ((scales[g] & 0x7f80u) == 0x7f80u || (biases[g] & 0x7f80u) == 0x7f80u) return false;
    }
    return true;
}

/* Four nibbles in the low half of v to the low nibbles of four bytes. */
static inline uint32_t spread_nibbles(uint32_t v) {
    v = (v | v << 8) & 0x00ff00ffu;
    return (v | v << 4) & 0x0f0f0f0fu;
}

static void tile_codes_q4(const uint8_t *codes, size_t row_bytes, uint8_t *tile) {
    for (int r = 0; r < SPL_ROWS_PER_TILE; r++) {
        const uint8_t *row = codes + (size_t)r * row_bytes;
        for (int j = 0; j < 8; j++) {
            uint32_t word = spl_load_u32(row + 4 * j);
            spl_store_u32(tile + 64 + 64 * j + 4 * r, spread_nibbles(word & 0xffffu) | spread_nibbles(word >> 16) << 4);
        }
    }
}

static void tile_codes_q8(const uint8_t *codes, size_t row_bytes, uint8_t *tile) {
    for (int r = 0; r < SPL_ROWS_PER_TILE; r++) {
        const uint8_t *row = codes + (size_t)r * row_bytes;
        for (int j = 0; j < 16; j++) memcpy(tile + 64 + 64 * j + 4 * r, row + 4 * j, 4);
    }
}

void spl_tile_panel(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases, uint32_t cols, unsigned bits,
                    uint8_t *panel) {
    uint32_t groups = cols / SPL_GROUP;
    size_t row_bytes = (size_t)cols * bits / 8, group_bytes = SPL_GROUP * bits / 8;
    size_t tile_bytes = bits == 4 ? SPL_Q4_TILE_BYTES : SPL_Q8_TILE_BYTES;
    for (uint32_t g = 0; g < groups; g++, panel += tile_bytes) {
        for (uint32_t r = 0; r < SPL_ROWS_PER_TILE; r++) {
            spl_store_u16(panel + 2 * r, scales[r * groups + g]);
            spl_store_u16(panel + 32 + 2 * r, biases[r * groups + g]);
        }
        if (bits == 4) {
            tile_codes_q4(codes + g * group_bytes, row_bytes, panel);
        } else {
            tile_codes_q8(codes + g * group_bytes, row_bytes, panel);
        }
    }
}

void spl_widen_bf16(const uint8_t *from, size_t n, float *to) {
    for (size_t i = 0; i < n; i++) to[i] = spl_f32_from_bf16(spl_load_u16(from + 2 * i));
}
void spl_widen_f16(const uint8_t *from, size_t n, float *to) {
    for (size_t i = 0; i < n; i++) to[i] = spl_f32_from_f16(spl_load_u16(from + 2 * i));
}
void spl_widen_f32(const uint8_t *from, size_t n, float *to) {
    for (size_t i = 0; i < n; i++) to[i] = spl_f32_from_bits(spl_load_u32(from + 4 * i));
}
