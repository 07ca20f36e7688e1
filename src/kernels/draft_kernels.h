/* SPDX-License-Identifier: Apache-2.0
 * Arguments of the draft's own kernels; the table of kernels.h holds them. Shapes as there. */
#ifndef SPL_KERNELS_DRAFT_KERNELS_H
#define SPL_KERNELS_DRAFT_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* y[r][c] (+)= sum over taps t of x[r - t][c] * (base[t][c] + dyn[r][t][c / group]); taps that reach before the
 * row's block of 8 are absent. */
typedef struct spl_draft_conv_args {
    const float *x;    /* [n_rows][hidden] */
    const float *base; /* [taps][hidden] */
    const float *dyn;  /* row r at dyn + r * dyn_stride: [taps][hidden / group] */
    size_t dyn_stride;
    float *y; /* [n_rows][hidden] */
    bool add;
    uint32_t hidden, group, taps, row_begin, row_end;
} spl_draft_conv_args;

/* Norm and rotary over the whole head of q and k, in place. Rows from n_block_rows on have no q. */
typedef struct spl_draft_prepare_args {
    float *qkv; /* [n_rows][qkv_stride]: q | k | v */
    size_t qkv_stride;
    const float *q_norm, *k_norm; /* [head_dim] */
    const float *cos, *sin;       /* [n_rows][head_dim / 2] */
    float eps;
    uint32_t n_block_rows, n_q_heads, n_kv_heads, head_dim, row_begin, row_end;
} spl_draft_prepare_args;

#endif
