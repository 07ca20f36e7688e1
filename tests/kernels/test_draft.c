/* SPDX-License-Identifier: Apache-2.0
 * The draft's own kernels: convolution and head rows. ref against double precision; tiers EXACT against ref. Its
 * attention: test_attend.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/kernel_test.h"

enum { HIDDEN = 96, TAPS = 2, ROWS = 16 };

/* Rows [5, ROWS), then the others, of a copy of y. */
static float *convolve(const spl_kernels *k, spl_draft_conv_args a, const float *y) {
    a.y = kt_alloc(ROWS * HIDDEN * sizeof(float), 4);
    memcpy(a.y, y, ROWS * HIDDEN * sizeof(float));
    a.row_begin = 5, a.row_end = ROWS;
    k->draft_conv(&a);
    a.row_begin = 0, a.row_end = 5;
    k->draft_conv(&a);
    assert_true(kt_guards_intact(a.y));
    return a.y;
}

static void convolution(void **state) {
    (void)state;
    kt_random r = {2};
    for (int i = 0; i < 4; i++) {
        uint32_t group = i & 1 ? 32 : 16, groups = HIDDEN / group, stride = TAPS * groups + 3;
        bool add = i >= 2;
        float x[ROWS * HIDDEN], base[TAPS * HIDDEN], dyn[ROWS * (TAPS * HIDDEN / 16 + 3)], old[ROWS * HIDDEN];
        kt_fill_normal(&r, x, SPL_COUNT(x), 1.0f);
        kt_fill_normal(&r, base, SPL_COUNT(base), 1.0f);
        kt_fill_normal(&r, dyn, SPL_COUNT(dyn), 1.0f);
        kt_fill_normal(&r, old, SPL_COUNT(old), 1.0f);
        spl_draft_conv_args a = {.x = x,
                                 .base = base,
                                 .dyn = dyn,
                                 .dyn_stride = stride,
                                 .add = add,
                                 .hidden = HIDDEN,
                                 .group = group,
                                 .taps = TAPS};
        float *y = convolve(kt_ref(), a, old);
        for (uint32_t m = 0; m < ROWS; m++)
            for (uint32_t c = 0; c < HIDDEN; c++) {
                double e = add ? (double)old[m * HIDDEN + c] : 0;
                for (uint32_t tap = 0; tap < TAPS && tap <= m % 8; tap++)
                    e += (double)x[(m - tap) * HIDDEN + c] *
                         ((double)base[tap * HIDDEN + c] + (double)dyn[m * stride + tap * groups + c / group]);
                assert_true(fabs(e - (double)y[m * HIDDEN + c]) < 2e-6 * (1 + fabs(e)));
            }
        for (size_t t = 0; kt_table(t); t++) {
            float *z = convolve(&kt_table(t)->kernels, a, old);
            kt_assert_same(kt_table(t)->name, y, z, ROWS * HIDDEN);
            kt_free(z);
        }
        kt_free(y);
    }
}

static void head_rows(void **state) {
    (void)state;
    kt_random r = {3};
    enum { NQ = 4, NK = 2, D = 32, N = 11, BLOCK = 8, STRIDE = (NQ + 2 * NK) * D + 3 };
    float in[N * STRIDE], qw[D], kw[D], c[N * D / 2], s[N * D / 2];
    kt_fill_normal(&r, in, SPL_COUNT(in), 1.0f);
    kt_fill_normal(&r, qw, D, 1.0f);
    kt_fill_normal(&r, kw, D, 1.0f);
    for (size_t i = 0; i < SPL_COUNT(c); i++) {
        float angle = kt_uniform(&r, 0, 6);
        c[i] = cosf(angle), s[i] = sinf(angle);
    }
    for (size_t t = 0; kt_table(t); t++) {
        float *y = kt_alloc(sizeof in, 4);
        memcpy(y, in, sizeof in);
        spl_draft_prepare_args a = {.qkv = y,
                                    .qkv_stride = STRIDE,
                                    .q_norm = qw,
                                    .k_norm = kw,
                                    .cos = c,
                                    .sin = s,
                                    .eps = 1e-6f,
                                    .n_block_rows = BLOCK,
                                    .n_q_heads = NQ,
                                    .n_kv_heads = NK,
                                    .head_dim = D,
                                    .row_end = N};
        kt_table(t)->kernels.draft_prepare(&a);
        assert_true(kt_guards_intact(y));
        for (uint32_t m = 0; m < N; m++)
            for (uint32_t i = 0; i < STRIDE; i++) {
                uint32_t h = i / D, e = i % D, p = e % (D / 2);
                double expected = (double)in[m * STRIDE + i];
                if (h < NQ + NK && (h >= NQ || m < BLOCK)) {
                    const float *x = in + m * STRIDE + h * D, *w = h < NQ ? qw : kw;
                    double ss = 0;
                    for (int j = 0; j < D; j++) ss += (double)x[j] * (double)x[j];
                    double f = 1 / sqrt(ss / D + 1e-6), co = (double)c[m * D / 2 + p], si = (double)s[m * D / 2 + p];
                    double A = (double)x[p] * f * (double)w[p], B = (double)x[p + D / 2] * f * (double)w[p + D / 2];
                    expected = e == p ? A * co - B * si : B * co + A * si;
                }
                assert_true(fabs(expected - (double)y[m * STRIDE + i]) < 1e-5 * (1 + fabs(expected)));
            }
        kt_free(y);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolution),
        cmocka_unit_test(head_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
