/* SPDX-License-Identifier: Apache-2.0
 * Helpers of the kernel tests: seeded values, buffers between guard bytes, 4-bit matrices, and the list
 * of kernel tables to compare with ref. SPL_TEST_TIER=<name> restricts the list to one tier. */
#ifndef SPL_TESTS_KERNEL_TEST_H
#define SPL_TESTS_KERNEL_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

typedef struct kt_random {
    uint64_t state;
} kt_random;
uint64_t kt_next(kt_random *r);
uint32_t kt_below(kt_random *r, uint32_t n);
float kt_uniform(kt_random *r, float low, float high);
float kt_normal(kt_random *r);
void kt_fill_normal(kt_random *r, float *x, size_t n, float sigma);

/* n bytes, 64-aligned plus `skew`, between guard bytes; the contents start as 0xa5. Never NULL: a failed
 * allocation ends the test. */
void *kt_alloc(size_t n, size_t skew);
/* False when a guard byte changed. */
bool kt_guards_intact(const void *p);
void kt_free(void *p);

/* Tables under test: every tier this processor runs and, on x86, the AVX-VNNI bodies with the dot product
 * emulated, so that they are tested on processors without it. `kt_table` returns NULL past the end. */
typedef struct kt_table_entry {
    const char *name;
    spl_kernels kernels;
} kt_table_entry;
const kt_table_entry *kt_table(size_t index);
const spl_kernels *kt_ref(void);

typedef enum kt_rows {
    KT_ROWS_NORMAL,
    KT_ROWS_EXTREME, /* +-127 codes in every place: full-scale values of one magnitude */
    KT_ROWS_ZERO,
    KT_ROWS_HUGE,
    KT_ROWS_TINY,  /* denormals and values around the zero threshold */
    KT_ROWS_MIXED, /* one row of each kind in turn */
    KT_N_ROWS
} kt_rows;
void kt_fill_rows(kt_random *r, float *x, size_t n_rows, size_t k, kt_rows kind);

/* Random r16 tiles for rows x k; `extreme` sets every code to 15. */
uint8_t *kt_q4_matrix(kt_random *r, uint32_t rows, uint32_t k, bool extreme);
/* Weight parts read in the plainest way from the format's description. */
void kt_q4_weight(const uint8_t *w, uint32_t k, uint32_t row, uint32_t col, int *code, double *scale, double *bias);

/* A quantised block for x[n_rows][k] made by `k`. Free with kt_free(block.q). */
spl_q8_rows kt_quantised(const spl_kernels *kernels, const float *x, uint32_t n_rows, uint32_t k);
/* Where (row, group) of such a block lies, in groups, from the description of the format. */
size_t kt_q8_at(uint32_t n_rows, uint32_t k, uint32_t row, uint32_t group);

/* Byte comparison that names the first difference. */
void kt_assert_same(const char *what, const float *a, const float *b, size_t n);

#endif
