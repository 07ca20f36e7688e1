/* SPDX-License-Identifier: Apache-2.0
 * The 4-bit linear and the SwiGLU pair. ref against a double-precision formula with the rounding bound of
 * its 2 k/64 fused steps; every tier EXACT against ref: the integer sums are exact and the epilogue's
 * order is written down. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/layout.h"
#include "tests/support/check.h"
#include "tests/support/kernel_test.h"

typedef struct problem {
    uint32_t m, k, n_out; /* n_out counts pair channels for gate_up */
    uint8_t *w;
    float *x;
    spl_q8_rows q8;
    size_t y_stride;
} problem;

static problem make_problem(kt_random *r, uint32_t m, uint32_t k, uint32_t n_out, kt_rows kind, bool extreme,
                            bool pairs) {
    if (pairs) n_out = (n_out + 63) / 64 * 64;
    problem p = {.m = m, .k = k, .n_out = n_out, .y_stride = n_out + kt_below(r, 5)};
    p.w = kt_q4_matrix(r, pairs ? 2 * n_out : n_out, k, extreme);
    p.x = kt_alloc((size_t)m * k * sizeof(float), 0);
    kt_fill_rows(r, p.x, m, k, kind);
    p.q8 = kt_quantised(kt_ref(), p.x, m, k);
    return p;
}
static void free_problem(problem *p) {
    kt_free(p->w);
    kt_free(p->x);
    kt_free(p->q8.q);
}

static uint32_t panels_of(const problem *p) { return (p->n_out + 15) / 16; }
static size_t y_floats(const problem *p) { return (size_t)(p->m - 1) * p->y_stride + p->n_out; }

/* Gate and up, in two calls; y[m][n] becomes what the codes stand for. */
static void run_pairs(const spl_kernels *kernels, const problem *p, uint32_t cut, spl_reach reach, float *y) {
    uint8_t *memory = kt_alloc(spl_q8_bytes(p->m, p->n_out), 0);
    float *scratch = kt_alloc((size_t)p->m * 64 * sizeof(float), 0);
    spl_gate_up_args a = {.w = p->w,
                          .n_out = p->n_out,
                          .x = p->q8,
                          .y = spl_q8_at(memory, p->m, p->n_out),
                          .scratch = scratch,
                          .reach = reach};
    uint32_t groups = p->n_out / 64, middle = groups * cut / 4;
    a.group_begin = middle, a.group_end = groups;
    if (middle < groups) kernels->gate_up_q4(&a);
    a.group_begin = 0, a.group_end = middle;
    if (middle > 0) kernels->gate_up_q4(&a);
    assert_true(kt_guards_intact(memory) && kt_guards_intact(scratch));
    for (uint32_t m = 0; m < p->m; m++)
        for (uint32_t g = 0; g < groups; g++) {
            size_t at = kt_q8_at(p->m, p->n_out, m, g);
            int32_t total = 0;
            for (uint32_t i = 0; i < 64; i++) {
                total += a.y.q[at * 64 + i];
                y[m * p->y_stride + g * 64 + i] = (float)a.y.q[at * 64 + i] * a.y.scale[at];
            }
            if (isfinite(a.y.scale[at])) {
                assert_true(a.y.sum[at] == (float)total * a.y.scale[at]);
            } else
                for (uint32_t i = 0; i < 64; i++) y[m * p->y_stride + g * 64 + i] = INFINITY; /* codes mean nothing */
        }
    kt_free(memory), kt_free(scratch);
}

/* y starts as the pattern `old`; what lies between rows must keep it. `late`: aligned, and read late. */
static float *run_reaching(const spl_kernels *kernels, const problem *p, bool pairs, bool add, uint32_t cut,
                           spl_reach reach, bool late) {
    size_t n = y_floats(p);
    float *y = kt_alloc(n * sizeof(float), late ? 0 : 4);
    for (size_t i = 0; i < n; i++) y[i] = 0.25f * (float)(i % 17);
    uint32_t panels = panels_of(p), middle = panels * cut / 4;
    if (pairs) {
        run_pairs(kernels, p, cut, reach, y);
    } else {
        spl_linear_args a = {.w = p->w,
                             .n_out = p->n_out,
                             .x = p->q8,
                             .y = y,
                             .y_stride = p->y_stride,
                             .add = add,
                             .read_late = late,
                             .reach = reach};
        a.panel_begin = middle, a.panel_end = panels;
        if (middle < panels) kernels->linear_q4(&a);
        a.panel_begin = 0, a.panel_end = middle;
        if (middle > 0) kernels->linear_q4(&a);
    }
    assert_true(kt_guards_intact(y));
    for (size_t i = 0; i < n; i++)
        if (i % p->y_stride >= p->n_out) assert_true(y[i] == 0.25f * (float)(i % 17));
    return y;
}

static float *run(const spl_kernels *kernels, const problem *p, bool pairs, bool add, uint32_t cut) {
    return run_reaching(kernels, p, pairs, add, cut, (spl_reach){0}, false);
}

static void compare(kt_random *r, uint32_t m, uint32_t k, uint32_t n_out, kt_rows kind, bool extreme, bool pairs,
                    bool add) {
    problem p = make_problem(r, m, k, n_out, kind, extreme, pairs);
    float *expected = run(kt_ref(), &p, pairs, add, 0);
    for (size_t i = 0; kt_table(i); i++) {
        float *found = run(&kt_table(i)->kernels, &p, pairs, add, kt_below(r, 5));
        char what[128];
        snprintf(what, sizeof what, "%s %s m=%u k=%u n=%u rows=%d extreme=%d", kt_table(i)->name,
                 pairs ? "gate_up" : "linear", m, k, n_out, (int)kind, extreme);
        kt_assert_same(what, expected, found, y_floats(&p));
        kt_free(found);
    }
    kt_free(expected);
    free_problem(&p);
}

static void every_tier_equals_ref(void **state) {
    (void)state;
    kt_random r = {1};
    for (uint32_t m = 1; m <= 40; m++)
        for (int pairs = 0; pairs < 2; pairs++) {
            compare(&r, m, 64 * (1 + kt_below(&r, 5)), 1 + kt_below(&r, 100), KT_ROWS_NORMAL, false, pairs, m & 1);
            compare(&r, m, 64 * (1 + kt_below(&r, 3)), 16 * (1 + kt_below(&r, 4)), KT_ROWS_MIXED, m % 3 == 0, pairs,
                    m & 2);
        }
    for (uint32_t k = 64; k <= 1536; k += 64) compare(&r, 1 + k / 64 % 9, k, 33, KT_ROWS_NORMAL, false, k & 64, false);
    compare(&r, 8, 5120, 48, KT_ROWS_MIXED, false, false, true);
    compare(&r, 3, 17408, 32, KT_ROWS_NORMAL, false, false, true);
    for (int pairs = 0; pairs < 2; pairs++) /* more activations than share unpacked groups */
        compare(&r, 75, 17408, 33, KT_ROWS_NORMAL, false, pairs, true);
    compare(&r, 130, 256, 80, KT_ROWS_NORMAL, false, false, false);
    for (uint32_t k = 384; k <= 704; k += 64) /* whole blocks of rows, whole and broken runs of groups */
        compare(&r, 48 + k % 128, k, 40, KT_ROWS_MIXED, false, k % 128 > 0, true);
    compare(&r, 261, 128, 70, KT_ROWS_NORMAL, false, true, false);
    for (uint32_t m = 16; m <= 29; m += 13) /* more groups than are unpacked at once, whole and broken row tiles */
        for (uint32_t k = 512; k <= 1216; k += 352 / 64 * 64)
            for (int pairs = 0; pairs < 2; pairs++) compare(&r, m, k, 70, KT_ROWS_MIXED, false, pairs, true);
}

/* How far ahead weights are asked for changes nothing, not even when it is far outside the matrix. */
static void reach_changes_nothing(void **state) {
    (void)state;
    static const spl_reach reaches[] = {{1, 1, 1}, {64, 1 << 20, 64}, {0xffffffffu, 0xffffffffu, 0xffffffffu}};
    kt_random r = {5};
    for (uint32_t m = 1; m <= 17; m++)
        for (int pairs = 0; pairs < 2; pairs++) {
            problem p = make_problem(&r, m, 256, 70, KT_ROWS_NORMAL, false, pairs);
            float *expected = run(kt_ref(), &p, pairs, false, 0);
            for (size_t i = 0; kt_table(i); i++)
                for (size_t k = 0; k < sizeof reaches / sizeof reaches[0]; k++) {
                    float *found = run_reaching(&kt_table(i)->kernels, &p, pairs, false, 2, reaches[k], false);
                    kt_assert_same("with another reach", expected, found, y_floats(&p));
                    kt_free(found);
                }
            kt_free(expected);
            free_problem(&p);
        }
}

/* Outputs that may go past the caches: whole lines, a last one that is broken, lines that lie across two, and sums. */
static void late_outputs_are_the_same(void **state) {
    (void)state;
    kt_random r = {6};
    for (uint32_t m = 1; m <= 40; m += m < 18 ? 1 : 7)
        for (int variant = 0; variant < 4; variant++) {
            bool add = variant == 2;
            problem p = make_problem(&r, m, 128, variant == 0 ? 80 : 70, KT_ROWS_NORMAL, false, false);
            p.y_stride = variant == 3 ? 71 : 96;
            float *expected = run_reaching(kt_ref(), &p, false, add, 0, (spl_reach){0}, true);
            for (size_t i = 0; kt_table(i); i++) {
                float *found = run_reaching(&kt_table(i)->kernels, &p, false, add, 2, (spl_reach){0}, true);
                kt_assert_same("late outputs", expected, found, y_floats(&p));
                kt_free(found);
            }
            kt_free(expected);
            free_problem(&p);
        }
}

/* Writes a scale of one output's first group. */
static void spoil(problem *p, uint32_t output, uint16_t bf16) {
    uint8_t *tile = p->w + output / 16 * ((size_t)p->k / 64 * SPL_Q4_TILE_BYTES);
    tile[2 * (output % 16)] = (uint8_t)bf16, tile[2 * (output % 16) + 1] = (uint8_t)(bf16 >> 8);
}

/* The largest of every 16 outputs, with these and without, whichever are whole, broken or not finite. */
static void maxima_follow_the_formula(void **state) {
    (void)state;
    kt_random r = {7};
    for (uint32_t m = 1; m <= 40; m++) {
        problem p =
            make_problem(&r, m, 64 * (1 + kt_below(&r, 9)), 1 + kt_below(&r, 100), KT_ROWS_NORMAL, false, false);
        if (m % 3 == 0) spoil(&p, kt_below(&r, p.n_out), m % 2 ? 0x7f80 : 0xff80);
        if (m % 7 == 0) spoil(&p, kt_below(&r, p.n_out), 0x7fc0);
        uint32_t n_panels = panels_of(&p), stride = n_panels + m % 2, n = (m - 1) * stride + n_panels;
        float *y = run(kt_ref(), &p, false, false, 0), *other = kt_alloc(y_floats(&p) * sizeof *other, 4);
        for (size_t i = 0; kt_table(i); i++)
            for (int without = 0; without < 2; without++) {
                float *max = kt_alloc(n * sizeof *max, 4);
                uint32_t middle = n_panels * (m % 4) / 4;
                spl_linear_args a = {
                    .w = p.w, .n_out = p.n_out, .x = p.q8, .y_stride = p.y_stride, .max_stride = stride};
                a.y = without ? NULL : other, a.max = max, a.read_late = m % 5 == 0;
                a.panel_begin = middle, a.panel_end = n_panels;
                if (middle < n_panels) kt_table(i)->kernels.linear_q4(&a);
                a.panel_begin = 0, a.panel_end = middle;
                if (middle > 0) kt_table(i)->kernels.linear_q4(&a);
                assert_true(kt_guards_intact(max) && kt_guards_intact(other));
                for (uint32_t row = 0; row < m; row++)
                    for (uint32_t panel = 0; panel < n_panels; panel++) {
                        float best = -INFINITY;
                        for (uint32_t o = 16 * panel; o < p.n_out && o < 16 * panel + 16; o++) {
                            float v = y[row * p.y_stride + o];
                            best = isnan(v) || v > best ? (isnan(v) ? INFINITY : v) : best;
                            if (!without && !isnan(v)) kt_assert_same("output", &v, &other[row * p.y_stride + o], 1);
                        }
                        kt_assert_same(kt_table(i)->name, &best, &max[row * stride + panel], 1);
                    }
                kt_free(max);
            }
        kt_free(y), kt_free(other);
        free_problem(&p);
    }
}

/* All codes 15 with all activations at +-127: the largest sums; an int16 overflow would show here. */
static void extremes_equal_ref(void **state) {
    (void)state;
    kt_random r = {2};
    for (int kind = 0; kind < KT_N_ROWS; kind++)
        for (uint32_t m = 1; m <= 33; m += 4)
            for (int extreme = 0; extreme < 2; extreme++) {
                compare(&r, m, 320, 40, (kt_rows)kind, extreme, false, false);
                compare(&r, m, 320, 40, (kt_rows)kind, extreme, true, false);
            }
}

static void formula(const problem *p, uint32_t m, uint32_t row, double *value, double *size) {
    uint32_t groups = p->k / 64;
    *value = *size = 0;
    for (uint32_t g = 0; g < groups; g++) {
        size_t at = kt_q8_at(p->m, p->k, m, g);
        double dot = 0, scale = 0, bias = 0, codes = 0;
        for (uint32_t i = 0; i < 64; i++) {
            int code;
            kt_q4_weight(p->w, p->k, row, g * 64 + i, &code, &scale, &bias);
            dot += code * p->q8.q[at * 64 + i];
            codes += p->q8.q[at * 64 + i];
        }
        double code_term = dot * scale * (double)p->q8.scale[at], bias_term = bias * (double)p->q8.sum[at];
        *value += code_term + bias_term;
        *size += fabs(code_term) + fabs(bias_term);
        assert_true(p->q8.sum[at] == (float)codes * p->q8.scale[at]);
    }
}

/* What rounding to codes adds: half of one, when the largest of the group is 127. */
static double half_code(const problem *p, const float *y, uint32_t m, uint32_t n) {
    const float *group = y + m * p->y_stride + n / 64 * 64;
    float most = 0;
    for (uint32_t i = 0; i < 64; i++)
        if (fabsf(group[i]) > most) most = fabsf(group[i]);
    return (double)most / 127 * 0.5 * (1 + 1e-5);
}

static void ref_follows_the_formula(void **state) {
    (void)state;
    kt_random r = {3};
    for (uint32_t m = 1; m <= 19; m += 3)
        for (int pairs = 0; pairs < 2; pairs++) {
            uint32_t k = 64 * (1 + m), n_out = 21 + m;
            problem p = make_problem(&r, m, k, n_out, KT_ROWS_NORMAL, false, pairs);
            float *y = run(kt_ref(), &p, pairs, false, 0);
            for (uint32_t i = 0; i < m; i++)
                for (uint32_t n = 0; n < n_out; n++) {
                    double v, size, bound = (2.0 * k / 64 + 1) * 0x1p-24, found = (double)y[i * p.y_stride + n];
                    if (pairs) {
                        double up, up_size;
                        formula(&p, i, n / 16 * 32 + n % 16, &v, &size);
                        formula(&p, i, n / 16 * 32 + 16 + n % 16, &up, &up_size);
                        double silu = v / (1 + exp(-v));
                        size = fabs(silu) * up_size + fabs(up) * size * 1.2 + fabs(silu * up) * 8;
                        v = silu * up;
                    } else
                        formula(&p, i, n, &v, &size);
                    assert_true(fabs(v - found) <= bound * size + (pairs ? half_code(&p, y, i, n) : 0) + 1e-30);
                }
            kt_free(y);
            free_problem(&p);
        }
}

/* Row i of a run with m rows has the bits of the same row alone. */
static void rows_are_independent(void **state) {
    (void)state;
    kt_random r = {4};
    for (size_t t = 0; kt_table(t); t++)
        for (uint32_t m = 1; m <= 33; m += m < 9 ? 1 : 4) {
            problem p = make_problem(&r, m, 448, 35, KT_ROWS_MIXED, false, false);
            float *all = run(&kt_table(t)->kernels, &p, false, false, 0);
            for (uint32_t i = 0; i < m; i++) {
                problem one = p;
                one.m = 1;
                one.x = p.x + (size_t)i * p.k;
                one.q8 = kt_quantised(&kt_table(t)->kernels, one.x, 1, p.k);
                float *alone = run(&kt_table(t)->kernels, &one, false, false, 0);
                kt_assert_same("row alone", alone, all + i * p.y_stride, p.n_out);
                kt_free(alone);
                kt_free(one.q8.q);
            }
            kt_free(all);
            free_problem(&p);
        }
}

/* The first rows of a block that was made for more are the first rows of all. */
static void first_rows_of_a_larger_block(void **state) {
    (void)state;
    kt_random r = {6};
    for (uint32_t laid = 2; laid <= 50; laid += 1 + laid / 8)
        for (int pairs = 0; pairs < 2; pairs++) {
            problem p = make_problem(&r, laid, 576, 35, KT_ROWS_NORMAL, false, pairs);
            float *all = run(kt_ref(), &p, pairs, false, 0);
            for (size_t t = 0; kt_table(t); t++) {
                problem first = p;
                first.m = first.q8.n_rows = 1 + kt_below(&r, laid - 1);
                float *found = run(&kt_table(t)->kernels, &first, pairs, false, 0);
                kt_assert_same("first rows", all, found, y_floats(&first));
                kt_free(found);
            }
            kt_free(all);
            free_problem(&p);
        }
}

static void oracle_is_dequantised_product(void **state) {
    (void)state;
    kt_random r = {5};
    uint32_t m = 3, k = 192, n_out = 37;
    problem p = make_problem(&r, m, k, n_out, KT_ROWS_NORMAL, false, true);
    for (size_t t = 0; kt_table(t); t++) {
        float *y = kt_alloc((size_t)m * n_out * sizeof(float), 0), *z = kt_alloc((size_t)m * n_out * sizeof(float), 0);
        spl_linear_f32_args a = {.w = p.w,
                                 .n_out = n_out,
                                 .k = k,
                                 .x = p.x,
                                 .n_rows = m,
                                 .y = y,
                                 .y_stride = n_out,
                                 .panel_end = (n_out + 15) / 16};
        kt_table(t)->kernels.linear_f32(&a);
        a.y = z;
        kt_table(t)->kernels.gate_up_f32(&a);
        assert_true(kt_guards_intact(y) && kt_guards_intact(z));
        for (uint32_t i = 0; i < m; i++)
            for (uint32_t n = 0; n < n_out; n++) {
                double sum[3] = {0}, size = 0;
                uint32_t rows[3] = {n, n / 16 * 32 + n % 16, n / 16 * 32 + 16 + n % 16};
                for (int part = 0; part < 3; part++)
                    for (uint32_t c = 0; c < k; c++) {
                        int code;
                        double scale, bias;
                        kt_q4_weight(p.w, k, rows[part], c, &code, &scale, &bias);
                        double term = (scale * code + bias) * (double)p.x[(size_t)i * k + c];
                        sum[part] += term;
                        size += fabs(term);
                    }
                assert_true(fabs(sum[0] - (double)y[i * n_out + n]) <= 2e-7 * size);
                double pair = sum[1] / (1 + exp(-sum[1])) * sum[2];
                assert_true(fabs(pair - (double)z[i * n_out + n]) <= 2e-7 * size * (1 + fabs(sum[1]) + fabs(sum[2])));
            }
        kt_free(y);
        kt_free(z);
    }
    free_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ref_follows_the_formula),       cmocka_unit_test(every_tier_equals_ref),
        cmocka_unit_test(reach_changes_nothing),         cmocka_unit_test(late_outputs_are_the_same),
        cmocka_unit_test(maxima_follow_the_formula),     cmocka_unit_test(extremes_equal_ref),
        cmocka_unit_test(rows_are_independent),          cmocka_unit_test(first_rows_of_a_larger_block),
        cmocka_unit_test(oracle_is_dequantised_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
