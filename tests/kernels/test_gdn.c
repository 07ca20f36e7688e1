/* SPDX-License-Identifier: Apache-2.0
 * Gated DeltaNet: front, recurrence with deferred commit, output norm. ref against the textbook recurrence in
 * double precision; tiers EXACT against ref; a verify step followed by a replay of its accepted rows leaves
 * the same bits as a prefill of those rows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/kernel_test.h"

typedef struct scene {
    uint32_t kh, vh, d, rows, channels, stride;
    float *in, *window, *conv, *a_neg, *dt_bias, *weight;
} scene;
typedef struct front {
    float *mixed, *decay, *beta;
} front;

static scene make_scene(kt_random *r, uint32_t kh, uint32_t vh, uint32_t d, uint32_t rows) {
    scene s = {.kh = kh, .vh = vh, .d = d, .rows = rows, .channels = (2 * kh + vh) * d};
    s.stride = s.channels + vh * d + 2 * vh + 3;
    s.in = kt_alloc(rows * s.stride * sizeof(float), 4);
    s.window = kt_alloc(3 * s.channels * sizeof(float), 4);
    s.conv = kt_alloc(4 * s.channels * sizeof(float), 4);
    s.a_neg = kt_alloc(vh * sizeof(float), 4);
    s.dt_bias = kt_alloc(vh * sizeof(float), 4);
    s.weight = kt_alloc(d * sizeof(float), 4);
    kt_fill_normal(r, s.in, rows * s.stride, 1.5f);
    kt_fill_normal(r, s.window, 3 * s.channels, 1.5f);
    kt_fill_normal(r, s.conv, 4 * s.channels, 0.5f);
    kt_fill_normal(r, s.weight, d, 1.0f);
    for (uint32_t h = 0; h < vh; h++) s.a_neg[h] = -kt_uniform(r, 0.01f, 1.0f), s.dt_bias[h] = kt_normal(r);
    return s;
}
static void free_scene(scene *s) {
    kt_free(s->in), kt_free(s->window), kt_free(s->conv), kt_free(s->a_neg), kt_free(s->dt_bias), kt_free(s->weight);
}
static front make_front(const scene *s) {
    front f = {kt_alloc(s->rows * s->channels * sizeof(float), 4), kt_alloc(s->rows * s->vh * sizeof(float), 4),
               kt_alloc(s->rows * s->vh * sizeof(float), 4)};
    return f;
}
static void free_front(front *f) { kt_free(f->mixed), kt_free(f->decay), kt_free(f->beta); }

static front prepare(const spl_kernels *k, const scene *s, uint32_t cut) {
    front f = make_front(s);
    spl_gdn_prepare_args a = {.in = s->in,
                              .in_stride = s->stride,
                              .window = s->window,
                              .conv = s->conv,
                              .a_neg = s->a_neg,
                              .dt_bias = s->dt_bias,
                              .mixed = f.mixed,
                              .decay = f.decay,
                              .beta = f.beta,
                              .key_heads = s->kh,
                              .value_heads = s->vh,
                              .head_dim = s->d,
                              .n_rows = s->rows,
                              .unit_begin = cut,
                              .unit_end = 2 * s->kh + s->vh};
    k->gdn_prepare(&a);
    a.unit_begin = 0, a.unit_end = cut;
    k->gdn_prepare(&a);
    assert_true(kt_guards_intact(f.mixed) && kt_guards_intact(f.decay) && kt_guards_intact(f.beta));
    return f;
}

/* Rows [pending_begin, row_begin) are folded in, rows [row_begin, row_end) run with n_commit. */
static float *scan(const spl_kernels *k, const scene *s, const front *f, float *state, uint32_t pending,
                   uint32_t row_begin, uint32_t row_end, uint32_t n_commit, uint32_t cut) {
    size_t n = (size_t)(row_end - row_begin) * s->vh * s->d;
    float *out = kt_alloc(n * sizeof(float), 4);
    void *scratch = kt_alloc(spl_gdn_scratch_bytes(s->d), 0);
    size_t p0 = row_begin - pending;
    spl_gdn_scan_args a = {.state = state,
                           .pending_mixed = f->mixed + p0 * s->channels,
                           .pending_decay = f->decay + p0 * s->vh,
                           .pending_beta = f->beta + p0 * s->vh,
                           .n_pending = pending,
                           .mixed = f->mixed + row_begin * s->channels,
                           .decay = f->decay + row_begin * s->vh,
                           .beta = f->beta + row_begin * s->vh,
                           .out = out,
                           .n_rows = row_end - row_begin,
                           .n_commit = n_commit,
                           .key_heads = s->kh,
                           .value_heads = s->vh,
                           .head_dim = s->d,
                           .head_begin = cut,
                           .head_end = s->vh,
                           .scratch = scratch};
    k->gdn_scan(&a);
    a.head_begin = 0, a.head_end = cut;
    k->gdn_scan(&a);
    assert_true(kt_guards_intact(out) && kt_guards_intact(scratch) && kt_guards_intact(state));
    kt_free(scratch);
    return out;
}
static float *new_state(const scene *s, uint64_t seed) {
    kt_random r = {seed};
    float *state = kt_alloc((size_t)s->vh * s->d * s->d * sizeof(float), 0);
    kt_fill_normal(&r, state, (size_t)s->vh * s->d * s->d, 0.1f);
    return state;
}

static const uint32_t shapes[][3] = {{2, 4, 32}, {1, 3, 64}, {2, 2, 128}, {2, 6, 128}, {1, 1, 16}, {1, 2, 256}};

static void front_follows_the_formula(void **state) {
    (void)state;
    kt_random r = {1};
    for (size_t i = 0; i < SPL_COUNT(shapes); i++) {
        scene s = make_scene(&r, shapes[i][0], shapes[i][1], shapes[i][2], 6);
        front f = prepare(kt_ref(), &s, 0);
        double *c = malloc(s.channels * sizeof(double));
        assert_non_null(c);
        for (uint32_t m = 0; m < s.rows; m++) {
            for (uint32_t ch = 0; ch < s.channels; ch++) {
                double sum = 0;
                for (uint32_t tap = 0; tap < 4; tap++) {
                    int row = (int)(m + tap) - 3;
                    float u =
                        row < 0 ? s.window[(uint32_t)(row + 3) * s.channels + ch] : s.in[(uint32_t)row * s.stride + ch];
                    sum += (double)u * (double)s.conv[ch * 4 + tap];
                }
                c[ch] = sum / (1 + exp(-sum));
            }
            for (uint32_t head = 0; head < 2 * s.kh; head++) {
                double ss = 0;
                for (uint32_t j = 0; j < s.d; j++) ss += c[head * s.d + j] * c[head * s.d + j];
                double f2 = 1 / sqrt(ss + 1e-6) * (head < s.kh ? 1 / sqrt((double)s.d) : 1);
                for (uint32_t j = 0; j < s.d; j++) c[head * s.d + j] *= f2;
            }
            for (uint32_t ch = 0; ch < s.channels; ch++)
                assert_true(fabs(c[ch] - (double)f.mixed[m * s.channels + ch]) <= 3e-6 * (1 + fabs(c[ch])));
            for (uint32_t h = 0; h < s.vh; h++) {
                const float *gates = s.in + m * s.stride + s.channels + s.vh * s.d;
                double x = (double)gates[s.vh + h] + (double)s.dt_bias[h];
                double decay = exp((double)s.a_neg[h] * ((x > 0 ? x : 0) + log1p(exp(-fabs(x)))));
                assert_true(fabs(decay - (double)f.decay[m * s.vh + h]) <= 1e-6);
                assert_true(fabs(1 / (1 + exp(-(double)gates[h])) - (double)f.beta[m * s.vh + h]) <= 1e-6);
            }
        }
        for (size_t t = 0; kt_table(t); t++) {
            front g = prepare(&kt_table(t)->kernels, &s, kt_below(&r, 2 * s.kh + s.vh + 1));
            kt_assert_same(kt_table(t)->name, f.mixed, g.mixed, s.rows * s.channels);
            kt_assert_same(kt_table(t)->name, f.decay, g.decay, s.rows * s.vh);
            kt_assert_same(kt_table(t)->name, f.beta, g.beta, s.rows * s.vh);
            free_front(&g);
        }
        free(c);
        free_front(&f);
        free_scene(&s);
    }
}

/* S = g S; m = S^T k; S += k beta (v - m); o = S^T q, in double. */
static void scan_follows_the_formula(void **unused) {
    (void)unused;
    kt_random r = {2};
    for (size_t i = 0; i < SPL_COUNT(shapes); i++) {
        scene s = make_scene(&r, shapes[i][0], shapes[i][1], shapes[i][2], 9);
        front f = prepare(kt_ref(), &s, 0);
        float *state = new_state(&s, 5);
        double *S = malloc((size_t)s.d * s.d * sizeof(double));
        assert_non_null(S);
        float *first = new_state(&s, 5);
        float *out = scan(kt_ref(), &s, &f, state, 2, 2, s.rows, s.rows - 2, 0);
        for (uint32_t h = 0; h < s.vh; h++) {
            for (uint32_t j = 0; j < s.d * s.d; j++) S[j] = (double)first[(size_t)h * s.d * s.d + j];
            for (uint32_t m = 0; m < s.rows; m++) {
                const float *q = f.mixed + m * s.channels + h / (s.vh / s.kh) * s.d, *k = q + s.kh * s.d;
                const float *v = f.mixed + m * s.channels + (2 * s.kh + h) * s.d;
                double g = (double)f.decay[m * s.vh + h], beta = (double)f.beta[m * s.vh + h];
                for (uint32_t j = 0; j < s.d; j++) {
                    double mem = 0, o = 0;
                    for (uint32_t n = 0; n < s.d; n++) S[n * s.d + j] *= g, mem += S[n * s.d + j] * (double)k[n];
                    double delta = ((double)v[j] - mem) * beta;
                    for (uint32_t n = 0; n < s.d; n++)
                        S[n * s.d + j] += (double)k[n] * delta, o += S[n * s.d + j] * (double)q[n];
                    if (m >= 2)
                        assert_true(fabs(o - (double)out[((m - 2) * s.vh + h) * s.d + j]) <= 4e-6 * (1 + fabs(o)));
                }
            }
            for (uint32_t j = 0; j < s.d * s.d; j++)
                assert_true(fabs(S[j] - (double)state[(size_t)h * s.d * s.d + j]) <= 4e-6 * (1 + fabs(S[j])));
        }
        free(S);
        kt_free(out), kt_free(state), kt_free(first);
        free_front(&f);
        free_scene(&s);
    }
}

static void every_tier_equals_ref(void **unused) {
    (void)unused;
    kt_random r = {3};
    for (size_t i = 0; i < SPL_COUNT(shapes); i++)
        for (int round = 0; round < 14; round++) {
            uint32_t rows = 1 + kt_below(&r, 20), pending = kt_below(&r, rows),
                     commit = kt_below(&r, rows - pending + 1);
            if (round == 0) commit = rows - pending;
            if (round == 1) commit = 0;
            scene s = make_scene(&r, shapes[i][0], shapes[i][1], shapes[i][2], rows);
            front f = prepare(kt_ref(), &s, 0);
            float *state = new_state(&s, 5);
            float *out = scan(kt_ref(), &s, &f, state, pending, pending, rows, commit, 0);
            for (size_t t = 0; kt_table(t); t++) {
                char what[96];
                snprintf(what, sizeof what, "%s shape=%zu rows=%u pending=%u commit=%u", kt_table(t)->name, i, rows,
                         pending, commit);
                float *state2 = new_state(&s, 5);
                float *out2 =
                    scan(&kt_table(t)->kernels, &s, &f, state2, pending, pending, rows, commit, kt_below(&r, s.vh + 1));
                kt_assert_same(what, out, out2, (size_t)(rows - pending) * s.vh * s.d);
                kt_assert_same(what, state, state2, (size_t)s.vh * s.d * s.d);
                kt_free(out2), kt_free(state2);
            }
            kt_free(out), kt_free(state);
            free_front(&f);
            free_scene(&s);
        }
}

/* Verify 8 rows without commit, then fold the first 5 in while running 3 more: equals a straight run of 8. */
static void replay_equals_prefill(void **unused) {
    (void)unused;
    kt_random r = {4};
    for (size_t t = 0; kt_table(t); t++) {
        const spl_kernels *k = &kt_table(t)->kernels;
        scene s = make_scene(&r, 1, 3, 64, 8);
        front f = prepare(k, &s, 0);
        float *straight = new_state(&s, 9), *deferred = new_state(&s, 9), *before = new_state(&s, 9);
        float *out = scan(k, &s, &f, straight, 0, 0, 8, 8, 0);
        float *verify = scan(k, &s, &f, deferred, 0, 0, 8, 0, 0);
        kt_assert_same("verify outputs", out, verify, 8 * s.vh * s.d);
        kt_assert_same("state untouched", before, deferred, s.vh * s.d * s.d);
        float *rest = scan(k, &s, &f, deferred, 5, 5, 8, 3, 0);
        kt_assert_same("outputs after replay", out + 5 * s.vh * s.d, rest, 3 * s.vh * s.d);
        kt_assert_same("state after replay", straight, deferred, s.vh * s.d * s.d);
        float *none = scan(k, &s, &f, before, 8, 8, 8, 0, 0); /* pending rows alone */
        kt_assert_same("pending alone", straight, before, s.vh * s.d * s.d);
        kt_free(straight), kt_free(deferred), kt_free(before), kt_free(out), kt_free(verify), kt_free(rest),
            kt_free(none);
        free_front(&f);
        free_scene(&s);
    }
}

static void gated_norm(void **unused) {
    (void)unused;
    kt_random r = {5};
    for (size_t i = 0; i < SPL_COUNT(shapes); i++) {
        scene s = make_scene(&r, shapes[i][0], shapes[i][1], shapes[i][2], 5);
        size_t n = s.rows * s.vh * s.d;
        float *start = kt_alloc(n * sizeof(float), 4), *expected = kt_alloc(n * sizeof(float), 4),
              *found = kt_alloc(n * sizeof(float), 4);
        kt_fill_normal(&r, start, n, 0.3f);
        memcpy(expected, start, n * sizeof(float));
        spl_gdn_norm_args a = {.out = expected,
                               .z = s.in + s.channels,
                               .z_stride = s.stride,
                               .weight = s.weight,
                               .eps = 1e-6f,
                               .value_heads = s.vh,
                               .head_dim = s.d,
                               .row_end = s.rows};
        kt_ref()->gdn_norm(&a);
        for (uint32_t m = 0; m < s.rows; m++)
            for (uint32_t h = 0; h < s.vh; h++) {
                double ss = 0;
                const float *o = start + (m * s.vh + h) * s.d;
                for (uint32_t j = 0; j < s.d; j++) ss += (double)o[j] * (double)o[j];
                for (uint32_t j = 0; j < s.d; j++) {
                    double z = (double)s.in[m * s.stride + s.channels + h * s.d + j];
                    double v = (double)o[j] / sqrt(ss / s.d + 1e-6) * (double)s.weight[j] * z / (1 + exp(-z));
                    assert_true(fabs(v - (double)expected[(m * s.vh + h) * s.d + j]) <= 2e-6 * (1 + fabs(v)));
                }
            }
        for (size_t t = 0; kt_table(t); t++) {
            memcpy(found, start, n * sizeof(float));
            spl_gdn_norm_args b = a;
            b.out = found, b.row_begin = 2;
            kt_table(t)->kernels.gdn_norm(&b);
            b.row_begin = 0, b.row_end = 2;
            kt_table(t)->kernels.gdn_norm(&b);
            kt_assert_same(kt_table(t)->name, expected, found, n);
            assert_true(kt_guards_intact(found));
        }
        kt_free(start), kt_free(expected), kt_free(found);
        free_scene(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(front_follows_the_formula),
        cmocka_unit_test(scan_follows_the_formula),
        cmocka_unit_test(every_tier_equals_ref),
        cmocka_unit_test(replay_equals_prefill),
        cmocka_unit_test(gated_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
