/* SPDX-License-Identifier: Apache-2.0
 * The draft's own kernels: convolution, head rows, attention of a block over its ring and itself. ref against
 * double precision; tiers EXACT against ref. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "tests/support/check.h"
#include "tests/support/kernel_test.h"

typedef struct scene {
    uint32_t nq, nk, d, window, position, ring_begin, stride;
    float *qkv;
    uint16_t *ring_k, *ring_v;
} scene;

static scene make_scene(kt_random *r, uint32_t nq, uint32_t nk, uint32_t d, uint32_t window, uint32_t position,
                        uint32_t ring_begin, float sharpness) {
    scene s = {nq, nk, d, window, position, ring_begin, (nq + 2 * nk) * d + 5, NULL, NULL, NULL};
    size_t ring = (size_t)nk * window * d;
    s.qkv = kt_alloc(8 * s.stride * sizeof(float), 4);
    s.ring_k = kt_alloc(ring * 2, 2);
    s.ring_v = kt_alloc(ring * 2, 2);
    kt_fill_normal(r, s.qkv, 8 * s.stride, sharpness);
    for (size_t i = 0; i < ring; i++) {
        s.ring_k[i] = spl_bf16_from_f32(kt_normal(r));
        s.ring_v[i] = spl_bf16_from_f32(kt_normal(r));
    }
    return s;
}
static void free_scene(scene *s) { kt_free(s->qkv), kt_free(s->ring_k), kt_free(s->ring_v); }

static float *attend(const spl_kernels *k, const scene *s, uint32_t cut) {
    float *y = kt_alloc((size_t)8 * s->nq * s->d * sizeof(float), 4);
    float *scratch = kt_alloc((size_t)8 * (s->nq / s->nk) * s->d * sizeof(float), 0);
    spl_draft_attend_args a = {.qkv = s->qkv,
                               .qkv_stride = s->stride,
                               .ring_k = s->ring_k,
                               .ring_v = s->ring_v,
                               .y = y,
                               .scratch = scratch,
                               .n_q_heads = s->nq,
                               .n_kv_heads = s->nk,
                               .head_dim = s->d,
                               .window = s->window,
                               .position = s->position,
                               .ring_begin = s->ring_begin,
                               .head_begin = cut,
                               .head_end = s->nk};
    k->draft_attend(&a);
    a.head_begin = 0, a.head_end = cut;
    k->draft_attend(&a);
    assert_true(kt_guards_intact(y) && kt_guards_intact(scratch));
    kt_free(scratch);
    return y;
}

static double formula(const scene *s, uint32_t row, uint32_t head, uint32_t dim) {
    uint32_t kv = head / (s->nq / s->nk);
    const float *q = s->qkv + row * s->stride + head * s->d;
    double sum = 0, acc = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t j = pass ? 0 : s->ring_begin; j < (pass ? 8 : s->position); j++) {
            if (!pass && s->position + row - j >= s->window) continue;
            size_t slot = ((size_t)kv * s->window + j % s->window) * s->d;
            const float *own = s->qkv + j % 8 * s->stride + (s->nq + kv) * s->d;
            double score = 0;
            for (uint32_t i = 0; i < s->d; i++)
                score += (double)q[i] * (double)(pass ? own[i] : spl_f32_from_bf16(s->ring_k[slot + i]));
            double w = exp(score / sqrt((double)s->d));
            sum += w;
            acc += w * (double)(pass ? own[s->nk * s->d + dim] : spl_f32_from_bf16(s->ring_v[slot + dim]));
        }
    return acc / sum;
}

static void attention(void **state) {
    (void)state;
    kt_random r = {1};
    static const uint32_t shapes[][6] = {/* q, kv, d, window, position, first position in the ring */
                                         {4, 2, 32, 64, 0, 0},     {4, 2, 32, 64, 1, 0},      {4, 2, 32, 64, 16, 0},
                                         {4, 2, 32, 64, 63, 0},    {4, 2, 32, 64, 64, 0},     {4, 2, 32, 64, 70, 0},
                                         {4, 2, 32, 64, 1000, 0},  {4, 2, 32, 64, 1000, 990}, {8, 2, 128, 96, 300, 0},
                                         {6, 1, 64, 64, 200, 150}, {5, 1, 48, 64, 77, 76},    {4, 1, 256, 64, 130, 0}};
    for (size_t i = 0; i < SPL_COUNT(shapes); i++)
        for (int sharp = 0; sharp < 2; sharp++) {
            const uint32_t *p = shapes[i];
            scene s = make_scene(&r, p[0], p[1], p[2], p[3], p[4], p[5], sharp ? 2.0f : 0.5f);
            uint32_t floor = p[4] + 1 > p[3] ? p[4] + 1 - p[3] : 0;
            if (s.ring_begin < floor) s.ring_begin = floor;
            float *y = attend(kt_ref(), &s, 0);
            for (uint32_t row = 0; row < 8; row++)
                for (uint32_t h = 0; h < s.nq; h++)
                    for (uint32_t d = 0; d < s.d; d += 7)
                        assert_true(fabs(formula(&s, row, h, d) - (double)y[(row * s.nq + h) * s.d + d]) < 1e-5);
            for (size_t t = 0; kt_table(t); t++) {
                float *z = attend(&kt_table(t)->kernels, &s, kt_below(&r, s.nk + 1));
                char what[64];
                snprintf(what, sizeof what, "%s shape %zu", kt_table(t)->name, i);
                kt_assert_same(what, y, z, (size_t)8 * s.nq * s.d);
                kt_free(z);
            }
            kt_free(y);
            free_scene(&s);
        }
}

static void convolution(void **state) {
    (void)state;
    kt_random r = {2};
    enum { HIDDEN = 96, GROUP = 16, TAPS = 2, ROWS = 16, DYN = TAPS * HIDDEN / GROUP + 3 };
    float x[ROWS * HIDDEN], base[TAPS * HIDDEN], dyn[ROWS * DYN], old[ROWS * HIDDEN];
    kt_fill_normal(&r, x, SPL_COUNT(x), 1.0f);
    kt_fill_normal(&r, base, SPL_COUNT(base), 1.0f);
    kt_fill_normal(&r, dyn, SPL_COUNT(dyn), 1.0f);
    kt_fill_normal(&r, old, SPL_COUNT(old), 1.0f);
    for (int add = 0; add < 2; add++)
        for (size_t t = 0; kt_table(t); t++) {
            float *y = kt_alloc(sizeof old, 4);
            memcpy(y, old, sizeof old);
            spl_draft_conv_args a = {.x = x,
                                     .base = base,
                                     .dyn = dyn,
                                     .dyn_stride = DYN,
                                     .y = y,
                                     .add = add,
                                     .hidden = HIDDEN,
                                     .group = GROUP,
                                     .taps = TAPS,
                                     .row_begin = 5,
                                     .row_end = ROWS};
            kt_table(t)->kernels.draft_conv(&a);
            a.row_begin = 0, a.row_end = 5;
            kt_table(t)->kernels.draft_conv(&a);
            assert_true(kt_guards_intact(y));
            for (uint32_t m = 0; m < ROWS; m++)
                for (uint32_t c = 0; c < HIDDEN; c++) {
                    double e = add ? (double)old[m * HIDDEN + c] : 0;
                    for (uint32_t tap = 0; tap < TAPS && tap <= m % 8; tap++)
                        e += (double)x[(m - tap) * HIDDEN + c] *
                             ((double)base[tap * HIDDEN + c] +
                              (double)dyn[m * DYN + tap * (HIDDEN / GROUP) + c / GROUP]);
                    assert_true(fabs(e - (double)y[m * HIDDEN + c]) < 2e-6 * (1 + fabs(e)));
                }
            kt_free(y);
        }
}

static void head_rows(void **state) {
    (void)state;
    kt_random r = {3};
    enum { NQ = 4, NK = 2, D = 32, ROWS = 11, BLOCK = 8, STRIDE = (NQ + 2 * NK) * D + 3 };
    float in[ROWS * STRIDE], qw[D], kw[D], c[ROWS * D / 2], s[ROWS * D / 2];
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
                                    .row_end = ROWS};
        kt_table(t)->kernels.draft_prepare(&a);
        assert_true(kt_guards_intact(y));
        for (uint32_t m = 0; m < ROWS; m++)
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
        cmocka_unit_test(attention),
        cmocka_unit_test(convolution),
        cmocka_unit_test(head_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
