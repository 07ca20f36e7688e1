/* SPDX-License-Identifier: Apache-2.0
 * See kernel_test.h. */
#include "tests/support/kernel_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "model/layout.h"
#include "tests/support/check.h"
#include "tests/support/emulated.h"

uint64_t kt_next(kt_random *r) {
    uint64_t z = (r->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
uint32_t kt_below(kt_random *r, uint32_t n) { return (uint32_t)((kt_next(r) >> 32) * n >> 32); }
float kt_uniform(kt_random *r, float low, float high) {
    return low + (high - low) * (float)(kt_next(r) >> 40) * 0x1p-24f;
}
float kt_normal(kt_random *r) {
    float sum = -6.0f;
    for (int i = 0; i < 12; i++) sum += kt_uniform(r, 0.0f, 1.0f);
    return sum;
}
void kt_fill_normal(kt_random *r, float *x, size_t n, float sigma) {
    for (size_t i = 0; i < n; i++) x[i] = sigma * kt_normal(r);
}

/* Before the data: the raw pointer and the size, then the guard. */
enum { GUARD = 64, HEAD = 256 };

void *kt_alloc(size_t n, size_t skew) {
    uint8_t *raw = aligned_alloc(64, (n + HEAD + GUARD + skew + 63) / 64 * 64);
    assert_non_null(raw);
    uint8_t *p = raw + HEAD + skew;
    memset(raw, 0x5c, HEAD + skew);
    memset(p, 0xa5, n);
    memset(p + n, 0x5c, GUARD);
    uint64_t head[2] = {(uint64_t)(uintptr_t)raw, n};
    memcpy(p - GUARD - sizeof head, head, sizeof head);
    return p;
}
static void head_of(const void *p, uint64_t head[2]) { memcpy(head, (const uint8_t *)p - GUARD - 16, 16); }
bool kt_guards_intact(const void *p) {
    uint64_t head[2];
    head_of(p, head);
    const uint8_t *b = p;
    for (int i = 0; i < GUARD; i++)
        if (b[-1 - i] != 0x5c || b[head[1] + (size_t)i] != 0x5c) return false;
    return true;
}
void kt_free(void *p) {
    if (!p) return;
    uint64_t head[2];
    head_of(p, head);
    free((void *)(uintptr_t)head[0]);
}

static kt_table_entry tables[SPL_N_TIERS + 2];
static size_t n_tables;
static spl_kernels ref_table;

static void add_table(const char *name, const spl_kernels *k) {
    const char *only = getenv("SPL_TEST_TIER");
    if (only && strcmp(only, name) != 0) return;
    tables[n_tables].name = name;
    tables[n_tables++].kernels = *k;
}
static void fill_tables(void) {
    if (ref_table.linear_q4) return;
    spl_set_ftz();
    spl_error err;
    assert_int_equal(spl_kernels_select(&ref_table, SPL_TIER_REF, &err), SPL_OK);
    for (int t = 0; t < SPL_N_TIERS; t++) {
        spl_kernels k;
        if (!(spl_cpu_tiers() >> t & 1u)) continue;
        assert_int_equal(spl_kernels_select(&k, (spl_tier)t, &err), SPL_OK);
        add_table(spl_tier_name((spl_tier)t), &k);
    }
#if defined(__x86_64__)
    if (spl_cpu_tiers() >> SPL_TIER_AVX2 & 1u) {
        spl_kernels k;
        assert_int_equal(spl_kernels_select(&k, SPL_TIER_AVX2, &err), SPL_OK);
        spl_kernels_fill_avxvnni_emulated(&k);
        add_table("avxvnni_emulated", &k);
    }
    if (spl_cpu_tiers() >> SPL_TIER_AVX512VNNI & 1u) {
        spl_kernels k;
        assert_int_equal(spl_kernels_select(&k, SPL_TIER_AVX512VNNI, &err), SPL_OK);
        spl_kernels_fill_amx_emulated(&k);
        add_table("amx_emulated", &k);
    }
#endif
    if (n_tables == 0) {
        const char *only = getenv("SPL_TEST_TIER");
        printf("this processor does not run the tier SPL_TEST_TIER=%s\n", only ? only : "");
        exit(1);
    }
}
const kt_table_entry *kt_table(size_t index) {
    fill_tables();
    return index < n_tables ? &tables[index] : NULL;
}
const spl_kernels *kt_ref(void) {
    fill_tables();
    return &ref_table;
}

static void fill_row(kt_random *r, float *x, size_t k, kt_rows kind) {
    for (size_t i = 0; i < k; i++) switch (kind) {
        case KT_ROWS_EXTREME: x[i] = kt_next(r) & 1 && (i & 64) ? -3.5f : 3.5f; break;
        case KT_ROWS_ZERO: x[i] = i & 1 ? -0.0f : 0.0f; break;
        case KT_ROWS_HUGE: x[i] = kt_normal(r) * 1e30f; break;
        case KT_ROWS_TINY: x[i] = kt_normal(r) * (i & 64 ? 1e-31f : i & 128 ? 1e-40f : 1e-30f); break;
        default: x[i] = kt_normal(r) * (kt_below(r, 40) == 0 ? 9.0f : 1.0f); break;
        }
}
void kt_fill_rows(kt_random *r, float *x, size_t n_rows, size_t k, kt_rows kind) {
    for (size_t m = 0; m < n_rows; m++)
        fill_row(r, x + m * k, k, kind == KT_ROWS_MIXED ? (kt_rows)(m % KT_ROWS_MIXED) : kind);
}

uint8_t *kt_q4_matrix(kt_random *r, uint32_t rows, uint32_t k, bool extreme) {
    size_t n = spl_tensor_bytes(SPL_ENC_Q4G64_R16, rows, k, 1);
    uint8_t *w = kt_alloc(n, 0);
    for (size_t t = 0; t < n / SPL_Q4_TILE_BYTES; t++) {
        uint8_t *tile = w + t * SPL_Q4_TILE_BYTES;
        for (int i = 0; i < SPL_ROWS_PER_TILE; i++) {
            float scale = kt_uniform(r, 0.001f, 0.02f) * (kt_below(r, 8) == 0 ? -1.0f : 1.0f);
            spl_store_u16(tile + 2 * i, spl_bf16_from_f32(scale));
            spl_store_u16(tile + 32 + 2 * i, spl_bf16_from_f32(scale * kt_uniform(r, -9.0f, -6.0f)));
        }
        for (int i = 64; i < SPL_Q4_TILE_BYTES; i++) tile[i] = extreme ? 0xff : (uint8_t)kt_next(r);
    }
    return w;
}
void kt_q4_weight(const uint8_t *w, uint32_t k, uint32_t row, uint32_t col, int *code, double *scale, double *bias) {
    const uint8_t *tile = w + ((size_t)(row / 16) * (k / 64) + col / 64) * 576;
    uint32_t r = row % 16, c = col % 64;
    uint8_t pair = tile[64 + 64 * (c / 8) + 4 * r + c % 4];
    *code = c % 8 < 4 ? pair & 15 : pair >> 4;
    *scale = spl_f32_from_bf16(spl_load_u16(tile + 2 * r));
    *bias = spl_f32_from_bf16(spl_load_u16(tile + 32 + 2 * r));
}

size_t kt_q8_at(uint32_t n_rows, uint32_t k, uint32_t row, uint32_t group) {
    uint32_t block = row / 16, r_b = n_rows - 16 * block < 16 ? n_rows - 16 * block : 16;
    return (size_t)16 * block * (k / 64) + (size_t)group * r_b + row % 16;
}

spl_q8_rows kt_quantised(const spl_kernels *kernels, const float *x, uint32_t n_rows, uint32_t k) {
    void *memory = kt_alloc(spl_q8_bytes(n_rows, k), 0);
    spl_quantise_args a = {.x = x, .x_stride = k, .q8 = spl_q8_at(memory, n_rows, k), .row_end = n_rows};
    kernels->quantise(&a);
    assert_true(kt_guards_intact(memory));
    return a.q8;
}

void kt_assert_same(const char *what, const float *a, const float *b, size_t n) {
    if (memcmp(a, b, n * sizeof *a) == 0) return;
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("%s: element %zu of %zu: %.9g (%08x) expected, %.9g (%08x) found\n", what, i, n, (double)a[i],
                     spl_bits_from_f32(a[i]), (double)b[i], spl_bits_from_f32(b[i]));
}
