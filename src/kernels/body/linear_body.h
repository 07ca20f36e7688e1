/* SPDX-License-Identifier: Apache-2.0
 * The 4-bit linear in plain C, and the oracle linear. The integer sum of a group is exact, so only the
 * epilogue fixes bits: the product scale * dx is rounded once, then two fmaf, code term first. Tile of
 * 16 rows x 64 inputs: docs/FORMATS.md. */
#ifndef SPL_KERNELS_LINEAR_BODY_H
#define SPL_KERNELS_LINEAR_BODY_H

#include "kernels/body/rows_body.h"
#include "model/layout.h"

/* The caller's reach, the tier's where the caller does not say. */
static inline spl_reach spl_reach_or(spl_reach asked, uint32_t near_bytes, uint32_t far_bytes, uint32_t single_bytes) {
    if (asked.near_bytes == 0) asked.near_bytes = near_bytes;
    if (asked.far_bytes == 0) asked.far_bytes = far_bytes;
    if (asked.single_bytes == 0) asked.single_bytes = single_bytes;
    return asked;
}

/* Codes of a tile as [input][row], scales and biases widened. */
typedef struct spl_tile {
    int16_t code[SPL_GROUP][SPL_ROWS_PER_TILE];
    float scale[SPL_ROWS_PER_TILE], bias[SPL_ROWS_PER_TILE];
} spl_tile;

static inline void spl_unpack_tile(const uint8_t *tile, spl_tile *out) {
    for (int r = 0; r < SPL_ROWS_PER_TILE; r++) {
        out->scale[r] = spl_f32_from_bf16(spl_load_u16(tile + 2 * r));
        out->bias[r] = spl_f32_from_bf16(spl_load_u16(tile + 32 + 2 * r));
    }
    for (int line = 0; line < 8; line++)
        for (int i = 0; i < 4; i++)
            for (int r = 0; r < SPL_ROWS_PER_TILE; r++) {
                uint8_t pair = tile[64 + 64 * line + 4 * r + i];
                out->code[8 * line + i][r] = pair & 15;
                out->code[8 * line + 4 + i][r] = pair >> 4;
            }
}

/* Exact sums of one group for one activation row. 16 products of at most 15 * 127 fit in 16 bits. */
static inline void spl_tile_dot(const spl_tile *tile, const int8_t *q, int32_t sum[SPL_ROWS_PER_TILE]) {
    for (int r = 0; r < SPL_ROWS_PER_TILE; r++) sum[r] = 0;
    for (int part = 0; part < SPL_GROUP; part += 16) {
        int16_t partial[SPL_ROWS_PER_TILE] = {0};
        for (int i = part; i < part + 16; i++) {
            int16_t x = q[i];
            for (int r = 0; r < SPL_ROWS_PER_TILE; r++) partial[r] = (int16_t)(partial[r] + tile->code[i][r] * x);
        }
        for (int r = 0; r < SPL_ROWS_PER_TILE; r++) sum[r] += partial[r];
    }
}

/* acc[m][16] of one panel for the rows of activation tile t. */
static inline void spl_panel_rows(const uint8_t *panel, const spl_q8_rows *x, uint32_t t, uint32_t n,
                                  float acc[SPL_TILE_M][SPL_ROWS_PER_TILE]) {
    size_t groups = x->k / SPL_GROUP;
    const spl_q8_cursor c = spl_q8_row(x, t * SPL_TILE_M);
    for (uint32_t m = 0; m < n; m++)
        for (int r = 0; r < SPL_ROWS_PER_TILE; r++) acc[m][r] = 0.0f;
    for (size_t g = 0; g < groups; g++) {
        spl_tile tile;
        spl_unpack_tile(panel + g * SPL_Q4_TILE_BYTES, &tile);
        for (uint32_t m = 0; m < n; m++) {
            int32_t dot[SPL_ROWS_PER_TILE];
            float dx = c.scale[g * c.scale_step + m], sx = c.sum[g * c.scale_step + m];
            spl_tile_dot(&tile, c.q + g * c.q_step + m * SPL_GROUP, dot);
            for (int r = 0; r < SPL_ROWS_PER_TILE; r++) {
                acc[m][r] = fmaf((float)dot[r], tile.scale[r] * dx, acc[m][r]);
                acc[m][r] = fmaf(tile.bias[r], sx, acc[m][r]);
            }
        }
    }
}

static inline uint32_t spl_rows_of_tile(const spl_q8_rows *x, uint32_t t) {
    uint32_t left = x->n_rows - t * SPL_TILE_M;
    return left < SPL_TILE_M ? left : SPL_TILE_M;
}
static inline uint32_t spl_outputs_of_panel(uint32_t n_out, uint32_t panel) {
    uint32_t left = n_out - panel * SPL_ROWS_PER_TILE;
    return left < SPL_ROWS_PER_TILE ? left : SPL_ROWS_PER_TILE;
}

static void spl_body_linear_q4(const spl_linear_args *a) {
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    for (uint32_t p = a->panel_begin; p < a->panel_end; p++) {
        uint32_t n_out = spl_outputs_of_panel(a->n_out, p);
        for (uint32_t t = 0; t * SPL_TILE_M < a->x.n_rows; t++) {
            float acc[SPL_TILE_M][SPL_ROWS_PER_TILE];
            uint32_t n = spl_rows_of_tile(&a->x, t);
            spl_panel_rows(a->w + p * panel_bytes, &a->x, t, n, acc);
            for (uint32_t m = 0; m < n; m++) {
                size_t row = t * SPL_TILE_M + m;
                if (a->max) a->max[row * a->max_stride + p] = spl_panel_max(acc[m], n_out);
                if (!a->y) continue;
                float *y = a->y + row * a->y_stride + (size_t)p * SPL_ROWS_PER_TILE;
                for (uint32_t r = 0; r < n_out; r++) y[r] = a->add ? y[r] + acc[m][r] : acc[m][r];
            }
        }
    }
}

enum { SPL_GROUP_PAIRS = SPL_GROUP / SPL_ROWS_PER_TILE };

/* Where row m of pair p waits for the rest of its group. */
static inline float *spl_gate_up_at(const spl_gate_up_args *a, uint32_t m, uint32_t p) {
    return a->scratch + (size_t)m * SPL_GROUP + (size_t)(p % SPL_GROUP_PAIRS) * SPL_ROWS_PER_TILE;
}
static inline bool spl_gate_up_completes(uint32_t p) { return p % SPL_GROUP_PAIRS == SPL_GROUP_PAIRS - 1; }
/* Row m at the group of pair p. */
static inline spl_q8_cursor spl_gate_up_group(const spl_gate_up_args *a, uint32_t m, uint32_t p) {
    spl_q8_cursor c = spl_q8_row(&a->y, m);
    spl_q8_skip(&c, p / SPL_GROUP_PAIRS);
    return c;
}

static void spl_body_gate_up_q4(const spl_gate_up_args *a) {
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    for (uint32_t p = a->group_begin * SPL_GROUP_PAIRS; p < a->group_end * SPL_GROUP_PAIRS; p++) {
        const uint8_t *pair = a->w + 2 * p * panel_bytes;
        for (uint32_t t = 0; t * SPL_TILE_M < a->x.n_rows; t++) {
            float gate[SPL_TILE_M][SPL_ROWS_PER_TILE], up[SPL_TILE_M][SPL_ROWS_PER_TILE];
            uint32_t n = spl_rows_of_tile(&a->x, t);
            spl_panel_rows(pair, &a->x, t, n, gate);
            spl_panel_rows(pair + panel_bytes, &a->x, t, n, up);
            for (uint32_t m = 0; m < n; m++) {
                uint32_t row = t * SPL_TILE_M + m;
                float *y = spl_gate_up_at(a, row, p);
                for (uint32_t r = 0; r < SPL_ROWS_PER_TILE; r++) y[r] = spl_silu(gate[m][r]) * up[m][r];
                if (!spl_gate_up_completes(p)) continue;
                spl_q8_cursor c = spl_gate_up_group(a, row, p);
                spl_quantise_group(spl_gate_up_at(a, row, 0), c.q, c.scale, c.sum);
            }
        }
    }
}

/* Oracle: dequantised weights, fp32 inputs, double sum in ascending order. */
static inline void spl_panel_row_f32(const uint8_t *panel, uint32_t k, const float *x, double acc[SPL_ROWS_PER_TILE]) {
    for (int r = 0; r < SPL_ROWS_PER_TILE; r++) acc[r] = 0.0;
    for (size_t g = 0; g < k / SPL_GROUP; g++) {
        spl_tile tile;
        spl_unpack_tile(panel + g * SPL_Q4_TILE_BYTES, &tile);
        for (size_t i = 0; i < SPL_GROUP; i++)
            for (int r = 0; r < SPL_ROWS_PER_TILE; r++) {
                float w = tile.scale[r] * (float)tile.code[i][r] + tile.bias[r];
                acc[r] += (double)w * (double)x[g * SPL_GROUP + i];
            }
    }
}

static void spl_body_linear_f32(const spl_linear_f32_args *a) {
    size_t panel_bytes = (size_t)a->k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    for (uint32_t p = a->panel_begin; p < a->panel_end; p++)
        for (uint32_t m = 0; m < a->n_rows; m++) {
            double acc[SPL_ROWS_PER_TILE];
            float *y = a->y + m * a->y_stride + (size_t)p * SPL_ROWS_PER_TILE;
            uint32_t n_out = spl_outputs_of_panel(a->n_out, p);
            spl_panel_row_f32(a->w + p * panel_bytes, a->k, a->x + (size_t)m * a->k, acc);
            for (uint32_t r = 0; r < n_out; r++) y[r] = a->add ? y[r] + (float)acc[r] : (float)acc[r];
            if (a->max) a->max[m * a->max_stride + p] = spl_panel_max(y, n_out);
        }
}

static void spl_body_gate_up_f32(const spl_linear_f32_args *a) {
    size_t panel_bytes = (size_t)a->k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    for (uint32_t p = a->panel_begin; p < a->panel_end; p++)
        for (uint32_t m = 0; m < a->n_rows; m++) {
            double gate[SPL_ROWS_PER_TILE], up[SPL_ROWS_PER_TILE];
            float *y = a->y + m * a->y_stride + (size_t)p * SPL_ROWS_PER_TILE;
            const uint8_t *pair = a->w + 2 * p * panel_bytes;
            spl_panel_row_f32(pair, a->k, a->x + (size_t)m * a->k, gate);
            spl_panel_row_f32(pair + panel_bytes, a->k, a->x + (size_t)m * a->k, up);
            for (uint32_t r = 0; r < spl_outputs_of_panel(a->n_out, p); r++) {
                float v = (float)(gate[r] / (1.0 + exp(-gate[r])) * up[r]);
                y[r] = a->add ? y[r] + v : v;
            }
        }
}

#endif
