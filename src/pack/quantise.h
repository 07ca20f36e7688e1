/* SPDX-License-Identifier: Apache-2.0
 * The affine group-64 rule (round half away from zero, high end clamped at zero) and the r16 tile
 * order. Rows in between use the common row form: codes of a row in input order (two per byte,
 * even input in the low nibble; or one byte each at 8 bits), then bf16 scales, then bf16 biases.
 * Rule and tiles: docs/FORMATS.md. Requires IEEE division; built without fast-math. */
#ifndef SPL_PACK_QUANTISE_H
#define SPL_PACK_QUANTISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Quantises one row of `cols` floats (a multiple of 64) at 4 or 8 bits.
 * codes: [cols * bits / 8] bytes; scales, biases: [cols / 64] bf16.
 * Returns false, leaving the outputs unspecified, when a value is not finite. */
bool spl_quantise_row(const float *w, uint32_t cols, unsigned bits, uint8_t *codes, uint16_t *scales, uint16_t *biases);

/* Sixteen rows of the row form to one panel of tiles: 576 (4 bits) or 1088 (8 bits) bytes per group.
 * codes [16][cols * bits / 8], scales and biases [16][cols / 64], panel [cols / 64][tile bytes]. */
void spl_tile_panel(const uint8_t *codes, const uint16_t *scales, const uint16_t *biases, uint32_t cols, unsigned bits,
                    uint8_t *panel);

/* Values of stored types widened to fp32; `from` may be unaligned. */
void spl_widen_bf16(const uint8_t *from, size_t n, float *to);
void spl_widen_f16(const uint8_t *from, size_t n, float *to);
void spl_widen_f32(const uint8_t *from, size_t n, float *to);

#endif
