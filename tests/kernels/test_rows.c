/* SPDX-License-Identifier: Apache-2.0
 * Row operations: norm, quantisation, token rows, attention input rows, largest logit. ref against double
 * precision; tiers EXACT against ref, because every sum has a written order. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "tests/support/check.h"
#include "tests/support/kernel_test.h"

static void assert_same_q8(const char *what, const spl_q8_rows *a, const spl_q8_rows *b) {
    size_t groups = (size_t)a->n_rows * a->k / 64;
    kt_assert_same(what, a->scale, b->scale, groups);
    kt_assert_same(what, a->sum, b->sum, groups);
    for (size_t i = 0; i < groups * 64; i++)
        if (a->q[i] != b->q[i]) fail_msg("%s: code %zu: %d expected, %d found\n", what, i, a->q[i], b->q[i]);
}

static void quantise_follows_the_formula(void **state) {
    (void)state;
    kt_random r = {1};
    for (uint32_t m = 1; m < 20; m++) {
        uint32_t k = 64 * (1 + m % 4);
        float *x = kt_alloc((size_t)m * k * sizeof(float), 0);
        kt_fill_rows(&r, x, m, k, KT_ROWS_MIXED);
        spl_q8_rows q = kt_quantised(kt_ref(), x, m, k);
        for (uint32_t row = 0; row < m; row++)
            for (uint32_t g = 0; g < k / 64; g++) {
                const float *v = x + (size_t)row * k + g * 64;
                float amax = 0;
                int codes = 0;
                for (int i = 0; i < 64; i++) amax = fmaxf(amax, fabsf(v[i]));
                size_t at = kt_q8_at(m, k, row, g);
                bool zero = amax < 0x1p-100f;
                assert_true(q.scale[at] == (zero ? 0.0f : amax / 127.0f));
                for (int i = 0; i < 64; i++) {
                    int code = q.q[at * 64 + (size_t)i];
                    assert_true(code >= -127 && code <= 127);
                    assert_int_equal(code, zero ? 0 : (int)nearbyintf(v[i] * (127.0f / amax)));
                    codes += code;
                }
                assert_true(q.sum[at] == (float)codes * q.scale[at]);
            }
        for (size_t t = 0; kt_table(t); t++) {
            spl_q8_rows other = kt_quantised(&kt_table(t)->kernels, x, m, k);
            assert_same_q8(kt_table(t)->name, &q, &other);
            kt_free(other.q);
        }
        kt_free(q.q);
        kt_free(x);
    }
}

static void norm_follows_the_formula(void **state) {
    (void)state;
    kt_random r = {2};
    for (uint32_t m = 1; m < 18; m++) {
        uint32_t k = 64 * (1 + kt_below(&r, 12)), stride = k + kt_below(&r, 9);
        if (m == 9) k = 5120, stride = 5121;
        float *x = kt_alloc((size_t)m * stride * sizeof(float), 4), *w = kt_alloc(k * sizeof(float), 4);
        float *y = kt_alloc((size_t)m * k * sizeof(float), 4), *y2 = kt_alloc((size_t)m * k * sizeof(float), 4);
        kt_fill_rows(&r, x, 1, (size_t)m * stride, m % 5 == 4 ? KT_ROWS_TINY : KT_ROWS_NORMAL);
        kt_fill_normal(&r, w, k, 1.0f);
        void *memory[2] = {kt_alloc(spl_q8_bytes(m, k), 0), kt_alloc(spl_q8_bytes(m, k), 0)};
        spl_norm_args a = {.x = x,
                           .x_stride = stride,
                           .weight = w,
                           .eps = 1e-6f,
                           .y = y,
                           .q8 = spl_q8_at(memory[0], m, k),
                           .k = k,
                           .row_end = m};
        kt_ref()->rms_norm(&a);
        for (uint32_t row = 0; row < m; row++) {
            double ss = 0;
            for (uint32_t i = 0; i < k; i++) ss += (double)x[row * stride + i] * (double)x[row * stride + i];
            double f = 1 / sqrt(ss / k + 1e-6);
            for (uint32_t i = 0; i < k; i++) {
                double v = (double)x[row * stride + i] * f * (double)w[i];
                assert_true(fabs(v - (double)y[row * k + i]) <= 1e-5 * fabs(v) + 1e-36);
            }
        }
        for (size_t t = 0; kt_table(t); t++) {
            spl_norm_args b = a;
            uint32_t cut = kt_below(&r, m + 1);
            b.y = y2, b.q8 = spl_q8_at(memory[1], m, k);
            b.row_begin = cut;
            kt_table(t)->kernels.rms_norm(&b);
            b.row_begin = 0, b.row_end = cut;
            kt_table(t)->kernels.rms_norm(&b);
            kt_assert_same(kt_table(t)->name, y, y2, (size_t)m * k);
            assert_same_q8(kt_table(t)->name, &a.q8, &b.q8);
            memset(memory[1], 0xa5, spl_q8_bytes(m, k));
            b.y = NULL, b.row_end = m; /* codes alone */
            kt_table(t)->kernels.rms_norm(&b);
            assert_same_q8(kt_table(t)->name, &a.q8, &b.q8);
            b.y = y2, b.q8.q = NULL; /* rows alone */
            memset(y2, 0, (size_t)m * k * sizeof(float));
            kt_table(t)->kernels.rms_norm(&b);
            kt_assert_same(kt_table(t)->name, y, y2, (size_t)m * k);
            assert_true(kt_guards_intact(y2) && kt_guards_intact(memory[1]));
        }
        kt_free(x), kt_free(w), kt_free(y), kt_free(y2), kt_free(memory[0]), kt_free(memory[1]);
    }
}

static void token_rows(void **state) {
    (void)state;
    kt_random r = {3};
    enum { VOCAB = 20, K = 192, ROWS = 7, ROW_BYTES = K / 2 + K / 64 * 4 };
    uint8_t *table = kt_alloc(VOCAB * ROW_BYTES, 1);
    uint32_t tokens[ROWS];
    for (int t = 0; t < VOCAB; t++) {
        uint8_t *row = table + t * ROW_BYTES;
        for (int i = 0; i < K / 2; i++) row[i] = (uint8_t)kt_next(&r);
        for (int i = 0; i < K / 64 * 2; i++) spl_store_u16(row + K / 2 + 2 * i, spl_bf16_from_f32(kt_normal(&r)));
    }
    for (int i = 0; i < ROWS; i++) tokens[i] = kt_below(&r, VOCAB);
    for (size_t t = 0; kt_table(t); t++) {
        float *y = kt_alloc(ROWS * K * sizeof(float), 4);
        spl_embed_args a = {.table = table, .tokens = tokens, .y = y, .k = K, .row_begin = 3, .row_end = ROWS};
        kt_table(t)->kernels.embed_rows(&a);
        a.row_begin = 0, a.row_end = 3;
        kt_table(t)->kernels.embed_rows(&a);
        assert_true(kt_guards_intact(y));
        for (uint32_t m = 0; m < ROWS; m++)
            for (uint32_t i = 0; i < K; i++) {
                const uint8_t *row = table + tokens[m] * ROW_BYTES;
                int code = i & 1 ? row[i / 2] >> 4 : row[i / 2] & 15;
                float s = spl_f32_from_bf16(spl_load_u16(row + K / 2 + i / 64 * 2));
                float b = spl_f32_from_bf16(spl_load_u16(row + K / 2 + K / 64 * 2 + i / 64 * 2));
                float product = s * (float)code;
                assert_true(y[m * K + i] == product + b);
            }
        kt_free(y);
    }
    kt_free(table);
}

static void attention_rows(void **state) {
    (void)state;
    kt_random r = {4};
    static const uint32_t shapes[][4] = {{4, 2, 32, 8}, {6, 1, 64, 16}, {2, 2, 128, 32}, {6, 2, 256, 64}};
    for (size_t s = 0; s < SPL_COUNT(shapes); s++) {
        uint32_t nq = shapes[s][0], nk = shapes[s][1], d = shapes[s][2], rot = shapes[s][3], rows = 5;
        uint32_t width = 2 * nq * d + 2 * nk * d, stride = width + 3;
        float *in = kt_alloc(rows * stride * sizeof(float), 4), *qw = kt_alloc(d * sizeof(float), 4),
              *kw = kt_alloc(d * sizeof(float), 8);
        float *c = kt_alloc(rows * rot / 2 * sizeof(float), 4), *sn = kt_alloc(rows * rot / 2 * sizeof(float), 4);
        kt_fill_normal(&r, in, rows * stride, 2.0f);
        kt_fill_normal(&r, qw, d, 1.0f);
        kt_fill_normal(&r, kw, d, 1.0f);
        for (uint32_t i = 0; i < rows * rot / 2; i++) {
            float angle = kt_uniform(&r, 0, 6);
            c[i] = cosf(angle), sn[i] = sinf(angle);
        }
        float *q[2], *k[2];
        for (int i = 0; i < 2; i++) q[i] = kt_alloc(rows * nq * d * 4, 4), k[i] = kt_alloc(rows * nk * d * 4, 4);
        spl_attn_prepare_args a = {.in = in,
                                   .in_stride = stride,
                                   .q_norm = qw,
                                   .k_norm = kw,
                                   .cos = c,
                                   .sin = sn,
                                   .q = q[0],
                                   .k = k[0],
                                   .n_q_heads = nq,
                                   .n_kv_heads = nk,
                                   .head_dim = d,
                                   .rotary_dims = rot,
                                   .eps = 1e-6f,
                                   .row_end = rows};
        kt_ref()->attn_prepare(&a);
        for (uint32_t m = 0; m < rows; m++)
            for (uint32_t h = 0; h < nq + nk; h++) {
                const float *x = h < nq ? in + m * stride + 2 * h * d : in + m * stride + 2 * nq * d + (h - nq) * d;
                const float *w = h < nq ? qw : kw;
                const float *y = h < nq ? q[0] + (m * nq + h) * d : k[0] + (m * nk + h - nq) * d;
                double ss = 0;
                for (uint32_t i = 0; i < d; i++) ss += (double)x[i] * (double)x[i];
                double f = 1 / sqrt(ss / d + 1e-6);
                for (uint32_t i = 0; i < d; i++) {
                    double v = (double)x[i] * f * (double)w[i];
                    if (i < rot) {
                        uint32_t p = i % (rot / 2), lo = p, hi = p + rot / 2;
                        double co = (double)c[m * rot / 2 + p], si = (double)sn[m * rot / 2 + p];
                        double A = (double)x[lo] * f * (double)w[lo], B = (double)x[hi] * f * (double)w[hi];
                        v = i == lo ? A * co - B * si : B * co + A * si;
                    }
                    assert_true(fabs(v - (double)y[i]) <= 1e-5 * (1 + fabs(v)));
                }
            }
        for (size_t t = 0; kt_table(t); t++) {
            spl_attn_prepare_args b = a;
            b.q = q[1], b.k = k[1], b.row_begin = 2;
            kt_table(t)->kernels.attn_prepare(&b);
            b.row_begin = 0, b.row_end = 2;
            kt_table(t)->kernels.attn_prepare(&b);
            kt_assert_same(kt_table(t)->name, q[0], q[1], rows * nq * d);
            kt_assert_same(kt_table(t)->name, k[0], k[1], rows * nk * d);
            assert_true(kt_guards_intact(q[1]) && kt_guards_intact(k[1]));
        }
        for (int i = 0; i < 2; i++) kt_free(q[i]), kt_free(k[i]);
        kt_free(in), kt_free(qw), kt_free(kw), kt_free(c), kt_free(sn);
    }
}

static void tiers_have_names(void **state) {
    (void)state;
    assert_true(spl_cpu_tiers() & 1u << SPL_TIER_REF);
    for (int t = 0; t < SPL_N_TIERS; t++) {
        spl_tier found = SPL_N_TIERS;
        spl_kernels k;
        spl_error err = {0};
        assert_true(spl_tier_from_name(spl_tier_name((spl_tier)t), &found) && found == (spl_tier)t);
        bool usable = spl_cpu_tiers() >> t & 1u;
        assert_int_equal(spl_kernels_select(&k, (spl_tier)t, &err), usable ? SPL_OK : SPL_E_UNSUPPORTED);
        if (usable)
            assert_true(k.tier == (spl_tier)t);
        else
            assert_true(strstr(err.text, "usable: ref") != NULL);
    }
    spl_tier unused;
    assert_true(!spl_tier_from_name("mmx", &unused));
    spl_kernels best;
    assert_int_equal(spl_kernels_select(&best, SPL_N_TIERS, NULL), SPL_OK);
    for (uint32_t t = (uint32_t)best.tier + 1; t < SPL_N_TIERS; t++) assert_true(!(spl_cpu_tiers() >> t & 1u));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_have_names),         cmocka_unit_test(quantise_follows_the_formula),
        cmocka_unit_test(norm_follows_the_formula), cmocka_unit_test(token_rows),
        cmocka_unit_test(attention_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
