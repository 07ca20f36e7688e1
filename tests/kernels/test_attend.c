/* SPDX-License-Identifier: Apache-2.0
 * KV store and attention, causal or of a block over a window. The int8 path against a double-precision softmax over the
 * values that the stored codes stand for, within the error of 8-bit queries and weights; tiers EXACT against ref in the
 * output and in the bytes of the cache; a row's bits independent of the rows beside it and of how its history was
 * shared. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"
#include "tests/support/kernel_test.h"

enum { LAYER_OFFSET = 128 };

typedef struct scene {
    uint32_t nq, nk, d, n_tokens, n_pages, width, q_stride, window, first;
    bool ring; /* n_pages in a ring; no gates then */
    size_t page_stride;
    uint32_t *page_table;
    float *k, *v, *q, *gate; /* for every position */
} scene;

static scene make_scene(kt_random *r, uint32_t nq, uint32_t nk, uint32_t d, uint32_t n_tokens, float sharpness) {
    scene s = {.nq = nq, .nk = nk, .d = d, .n_tokens = n_tokens, .n_pages = (n_tokens + 31) / 32, .width = nk * d};
    s.q_stride = nq * d + 3;
    s.page_stride = LAYER_OFFSET + nk * spl_kv_block_bytes(d, true) + 64;
    s.page_table = kt_alloc(s.n_pages * sizeof(uint32_t), 0);
    for (uint32_t i = 0; i < s.n_pages; i++) s.page_table[i] = s.n_pages - 1 - i;
    s.k = kt_alloc(n_tokens * s.width * sizeof(float), 4);
    s.v = kt_alloc(n_tokens * s.width * sizeof(float), 4);
    s.q = kt_alloc((size_t)n_tokens * s.q_stride * sizeof(float), 4);
    s.gate = kt_alloc((size_t)n_tokens * nq * 2 * d * sizeof(float), 4);
    kt_fill_normal(r, s.k, n_tokens * s.width, 1.0f);
    kt_fill_normal(r, s.v, n_tokens * s.width, 1.0f);
    kt_fill_normal(r, s.q, (size_t)n_tokens * s.q_stride, sharpness);
    kt_fill_normal(r, s.gate, (size_t)n_tokens * nq * 2 * d, 2.0f);
    for (uint32_t t = 0; t < n_tokens; t += 37) memset(s.v + t * s.width, 0, d * sizeof(float));
    return s;
}
/* The last 8 tokens are a block that sees itself and a window of what came before, kept in a ring. */
static scene make_window(kt_random *r, const uint32_t shape[6], float sharpness) {
    scene s = make_scene(r, shape[0], shape[1], shape[2], shape[4] + 8, sharpness);
    s.window = shape[3];
    s.first = shape[5];
    s.ring = true;
    s.n_pages = (s.window + 7 + 31) / 32;
    return s;
}
static void free_scene(scene *s) {
    kt_free(s->page_table), kt_free(s->k), kt_free(s->v), kt_free(s->q), kt_free(s->gate);
}
static spl_kv_view view_of(const scene *s, uint8_t *pool) {
    spl_kv_view v = {.pool = pool,
                     .page_table = s->ring ? NULL : s->page_table,
                     .ring_pages = s->n_pages,
                     .page_stride = s->page_stride,
                     .layer_offset = LAYER_OFFSET,
                     .n_kv_heads = s->nk,
                     .head_dim = s->d};
    return v;
}

/* A pool with all tokens stored, in uneven pieces. */
static uint8_t *store(const spl_kernels *kernels, const scene *s, bool f32, kt_random *r) {
    uint8_t *pool = kt_alloc(s->n_pages * s->page_stride, 0);
    for (uint32_t at = 0; at < s->n_tokens;) {
        uint32_t n = 1 + kt_below(r, 50);
        if (n > s->n_tokens - at) n = s->n_tokens - at;
        spl_kv_store_args a = {.kv = view_of(s, pool),
                               .k = s->k + at * s->width,
                               .v = s->v + at * s->width,
                               .k_stride = s->width,
                               .v_stride = s->width,
                               .position = at,
                               .n_rows = n};
        for (uint32_t h = 0; h < s->nk; h++) {
            a.head_begin = h, a.head_end = h + 1;
            (f32 ? kernels->kv_store_f32 : kernels->kv_store_i8)(&a);
        }
        at += n;
    }
    assert_true(kt_guards_intact(pool));
    return pool;
}

/* Units [unit_begin, unit_end) of whole histories, or with `parts` of splits. */
static void attend_units(const spl_kernels *kernels, const scene *s, uint8_t *pool, bool f32, uint32_t position,
                         uint32_t rows, uint32_t unit_begin, uint32_t unit_end, float *parts, float *y) {
    void *scratch = kt_alloc(spl_attend_scratch_bytes(s->nq, s->nk, s->d), 0);
    spl_attend_args a = {.kv = view_of(s, pool),
                         .q = s->q + (size_t)position * s->q_stride,
                         .q_stride = s->q_stride,
                         .gate = s->ring ? NULL : s->gate + (size_t)position * s->nq * 2 * s->d,
                         .gate_stride = s->nq * 2 * s->d,
                         .y = y,
                         .parts = parts,
                         .n_q_heads = s->nq,
                         .position = position,
                         .n_rows = rows,
                         .unit_begin = unit_begin,
                         .unit_end = unit_end,
                         .window = s->window,
                         .first = s->first,
                         .scratch = scratch};
    (f32 ? kernels->attend_f32 : kernels->attend_i8)(&a);
    assert_true(kt_guards_intact(scratch));
    kt_free(scratch);
}
static void attend(const spl_kernels *kernels, const scene *s, uint8_t *pool, bool f32, uint32_t position,
                   uint32_t rows, float *y) {
    attend_units(kernels, s, pool, f32, position, rows, 0, spl_attend_blocks(rows, s->nk), NULL, y);
}

/* The same with the history cut into splits, their units in backward order or in two ranges, then merged. */
static void attend_shared(const spl_kernels *kernels, const scene *s, uint8_t *pool, uint32_t position, uint32_t rows,
                          bool backward, kt_random *r, float *y) {
    uint32_t n_splits = spl_attend_splits(position, rows), n = spl_attend_blocks(rows, s->nk) * n_splits;
    uint32_t cut = kt_below(r, n + 1), n_heads = rows * s->nq;
    float *parts = kt_alloc(n_heads * n_splits * SPL_ATTEND_PART_FLOATS(s->d) * sizeof(float), 0);
    for (uint32_t u = n; backward && u > 0; u--)
        attend_units(kernels, s, pool, false, position, rows, u - 1, u, parts, y);
    if (!backward) {
        attend_units(kernels, s, pool, false, position, rows, cut, n, parts, y);
        attend_units(kernels, s, pool, false, position, rows, 0, cut, parts, y);
    }
    cut = kt_below(r, n_heads + 1);
    for (int half = 0; half < 2; half++) {
        spl_attend_args a = {.kv = view_of(s, pool),
                             .gate = s->gate + (size_t)position * s->nq * 2 * s->d,
                             .gate_stride = s->nq * 2 * s->d,
                             .y = y,
                             .parts = parts,
                             .n_q_heads = s->nq,
                             .position = position,
                             .n_rows = rows,
                             .unit_begin = half ? 0 : cut,
                             .unit_end = half ? cut : n_heads};
        kernels->attend_merge(&a);
    }
    assert_true(kt_guards_intact(parts));
    kt_free(parts);
}

static bool sees(const scene *s, uint32_t position, uint32_t t) {
    if (!s->window) return t <= position;
    return t + 8 >= s->n_tokens || (t >= s->first && position - t < s->window);
}

/* Softmax in double over given keys and values; `k` and `v` are [n_tokens][width]. */
static double formula(const scene *s, const float *k, const float *v, uint32_t position, uint32_t head, uint32_t dim) {
    uint32_t kv = head / (s->nq / s->nk);
    const float *q = s->q + (size_t)position * s->q_stride + (size_t)head * s->d;
    double top = -INFINITY, sum = 0, acc = 0;
    double *score = malloc(s->n_tokens * sizeof(double));
    assert_non_null(score);
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        score[t] = 0;
        for (uint32_t i = 0; i < s->d; i++) score[t] += (double)q[i] * (double)k[t * s->width + kv * s->d + i];
        score[t] = sees(s, position, t) ? score[t] / sqrt((double)s->d) : -INFINITY;
        top = fmax(top, score[t]);
    }
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        double w = exp(score[t] - top);
        sum += w;
        acc += w * (double)v[t * s->width + kv * s->d + dim];
    }
    free(score);
    const float *gate = s->gate + ((size_t)position * s->nq + head) * 2 * s->d + s->d;
    return acc / sum / (s->ring ? 1 : 1 + exp(-(double)gate[dim]));
}

/* Hadamard transform over the largest power of two that divides the head, from its definition. */
static void transform(uint32_t d, const double *x, double *y) {
    uint32_t block = d & (0u - d);
    for (uint32_t i = 0; i < d; i++) {
        y[i] = 0;
        for (uint32_t j = 0; j < block; j++) {
            uint32_t common = i % block & j, sign = 0;
            for (; common; common &= common - 1) sign ^= 1;
            y[i] += (sign ? -1 : 1) * x[i / block * block + j];
        }
        y[i] /= sqrt((double)block);
    }
}

/* The values that int8 codes with one scale per token and head stand for. */
static float *rounded(const scene *s, const float *x) {
    float *y = kt_alloc(s->n_tokens * s->width * sizeof(float), 0);
    double a[SPL_MAX_HEAD_DIM], b[SPL_MAX_HEAD_DIM];
    for (uint32_t t = 0; t < s->n_tokens * s->nk; t++) {
        double amax = 0;
        for (uint32_t i = 0; i < s->d; i++) a[i] = (double)x[t * s->d + i];
        transform(s->d, a, b);
        for (uint32_t i = 0; i < s->d; i++) amax = fmax(amax, fabs(b[i]));
        for (uint32_t i = 0; i < s->d; i++) b[i] = amax > 0 ? nearbyint(b[i] * (127 / amax)) * (amax / 127) : 0;
        transform(s->d, b, a);
        for (uint32_t i = 0; i < s->d; i++) y[t * s->d + i] = (float)a[i];
    }
    return y;
}

static const float sharpness[] = {0.3f, 1.0f, 6.0f};

/* Rows at `position`, `step` and so on against the formula, `rows` at a time. */
static void compare_scene(scene *s, bool f32, int sharp, uint32_t position, uint32_t rows, uint32_t step,
                          kt_random *r) {
    double squares = 0, error = 0;
    uint8_t *pool = store(kt_ref(), s, f32, r);
    float *k = f32 ? s->k : rounded(s, s->k), *v = f32 ? s->v : rounded(s, s->v);
    for (; position + rows <= s->n_tokens; position += step) {
        float *y = kt_alloc((size_t)rows * s->nq * s->d * sizeof(float), 4);
        attend(kt_ref(), s, pool, f32, position, rows, y);
        assert_true(kt_guards_intact(y));
        for (uint32_t row = 0; row < rows; row++)
            for (uint32_t h = 0; h < s->nq; h++)
                for (uint32_t d = 0; d < s->d; d += 5) {
                    double e = formula(s, k, v, position + row, h, d), found = (double)y[(row * s->nq + h) * s->d + d];
                    squares += e * e;
                    error += (found - e) * (found - e);
                }
        kt_free(y);
    }
    /* an error of a score moves its weight in proportion, and grows with the length of q */
    double bound = f32 ? 1e-6 : sharp == 2 ? 0.03 : 0.008, relative = sqrt(error / squares);
    if (getenv("SPL_TEST_PRINT")) printf("%u tokens, sharp %d: relative error %.5f\n", s->n_tokens, sharp, relative);
    if (relative > bound) fail_msg("relative error %g, bound %g, %u tokens", relative, bound, s->n_tokens);
    if (!f32) kt_free(k), kt_free(v);
    kt_free(pool);
}

static const uint32_t windows[][6] = {/* q, kv, d, window, position, first token that is there */
                                      {4, 2, 32, 64, 0, 0},      {4, 2, 32, 64, 1, 0},     {4, 2, 32, 64, 63, 0},
                                      {4, 2, 32, 64, 64, 0},     {4, 2, 32, 64, 70, 0},    {4, 2, 32, 64, 1000, 0},
                                      {4, 2, 32, 64, 1000, 990}, {8, 2, 128, 96, 300, 0},  {6, 1, 64, 64, 200, 150},
                                      {5, 1, 48, 64, 77, 76},    {4, 1, 256, 32, 130, 0},  {2, 1, 16, 300, 440, 0},
                                      {4, 1, 32, 2048, 2500, 0}, {2, 1, 16, 2048, 2047, 9}};

static void compare_with_formula(bool f32) {
    kt_random r = {1};
    static const uint32_t shapes[][4] = {{4, 2, 32, 70},   {6, 1, 64, 33},   {2, 2, 128, 131},
                                         {12, 2, 256, 40}, {2, 1, 16, 2200}, {3, 1, 48, 50}};
    for (size_t i = 0; i < SPL_COUNT(shapes); i++)
        for (int sharp = 0; sharp < 3; sharp++) {
            scene s = make_scene(&r, shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], sharpness[sharp]);
            compare_scene(&s, f32, sharp, 0, 1, 1 + s.n_tokens / 7, &r);
            free_scene(&s);
        }
    for (size_t i = 0; i < SPL_COUNT(windows); i++)
        for (int sharp = 0; sharp < 3; sharp++) {
            scene s = make_window(&r, windows[i], sharpness[sharp]);
            compare_scene(&s, f32, sharp, s.n_tokens - 8, 8, 8, &r);
            free_scene(&s);
        }
}
static void int8_follows_the_formula(void **state) {
    (void)state;
    compare_with_formula(false);
}
static void oracle_follows_the_formula(void **state) {
    (void)state;
    compare_with_formula(true);
}

static void compare_tiers(kt_random *r, uint32_t nq, uint32_t nk, uint32_t d, uint32_t n_tokens, uint32_t rows,
                          float sharp) {
    scene s = make_scene(r, nq, nk, d, n_tokens, sharp);
    uint32_t position = n_tokens - rows;
    size_t n = (size_t)rows * nq * d;
    for (int f32 = 0; f32 < 2; f32++) {
        uint8_t *pool = store(kt_ref(), &s, f32, r);
        float *expected = kt_alloc(n * sizeof(float), 4);
        attend(kt_ref(), &s, pool, f32, position, rows, expected);
        for (size_t t = 0; kt_table(t); t++) {
            const spl_kernels *k = &kt_table(t)->kernels;
            uint8_t *own = store(k, &s, f32, r);
            assert_true(memcmp(own, pool, s.n_pages * s.page_stride) == 0);
            float *found = kt_alloc(n * sizeof(float), 4);
            uint32_t n_blocks = spl_attend_blocks(rows, nk), cut = kt_below(r, n_blocks + 1);
            attend_units(k, &s, own, f32, position, rows, 0, cut, NULL, found);
            attend_units(k, &s, own, f32, position, rows, cut, n_blocks, NULL, found);
            assert_true(kt_guards_intact(found));
            char what[96];
            snprintf(what, sizeof what, "%s q=%u kv=%u d=%u tokens=%u rows=%u", kt_table(t)->name, nq, nk, d, n_tokens,
                     rows);
            kt_assert_same(what, expected, found, n);
            for (int backward = 0; backward < 2 && !f32; backward++) {
                memset(found, 0, n * sizeof(float));
                attend_shared(k, &s, own, position, rows, backward, r, found);
                assert_true(kt_guards_intact(found));
                kt_assert_same("splits shared", expected, found, n);
            }
            /* the last row alone */
            attend(k, &s, own, f32, n_tokens - 1, 1, found);
            kt_assert_same("last row alone", expected + n - nq * d, found, nq * d);
            kt_free(found);
            kt_free(own);
        }
        kt_free(expected);
        kt_free(pool);
    }
    free_scene(&s);
}

static void every_tier_equals_ref(void **state) {
    (void)state;
    kt_random r = {3};
    for (uint32_t rows = 1; rows <= 20; rows++) {
        compare_tiers(&r, 4, 2, 64, rows + kt_below(&r, 90), rows, 1.0f);
        compare_tiers(&r, 6, 1, 64, rows + kt_below(&r, 90), rows, 3.0f);
    }
    compare_tiers(&r, 4, 2, 32, 77, 9, 1.0f);
    compare_tiers(&r, 2, 2, 128, 200, 8, 1.0f);
    compare_tiers(&r, 24, 4, 256, 70, 8, 1.0f);
    compare_tiers(&r, 12, 2, 256, 33, 33, 1.0f);
    compare_tiers(&r, 3, 3, 48, 40, 3, 1.0f);
    compare_tiers(&r, 6, 1, 64, 1024, 8, 0.5f);
    compare_tiers(&r, 6, 1, 64, 1029, 8, 0.5f);
    compare_tiers(&r, 2, 1, 32, 2 * SPL_ATTEND_SPLIT + 52, 12, 0.1f);
    /* rows on both sides of a split, a row that begins one, histories that end with one */
    compare_tiers(&r, 6, 1, 32, 2 * SPL_ATTEND_SPLIT + 3, 8, 1.0f);
    compare_tiers(&r, 6, 1, 64, 2 * SPL_ATTEND_SPLIT + 3, 8, 1.0f);
    compare_tiers(&r, 2, 2, 16, 2 * SPL_ATTEND_SPLIT, 20, 1.0f);
    compare_tiers(&r, 3, 1, 16, 3 * SPL_ATTEND_SPLIT + 1, 1, 1.0f);
    compare_tiers(&r, 2, 1, 32, 60, 40, 500.0f);
    compare_tiers(&r, 2, 1, 32, 60, 4, 1e-36f);
}

/* A block over its window, its ring stored and its heads computed by every tier. */
static void compare_window(kt_random *r, const uint32_t shape[6], float sharp) {
    scene s = make_window(r, shape, sharp);
    uint32_t position = s.n_tokens - 8;
    size_t n = (size_t)8 * s.nq * s.d;
    for (int f32 = 0; f32 < 2; f32++) {
        uint8_t *pool = store(kt_ref(), &s, f32, r);
        float *expected = kt_alloc(n * sizeof(float), 4), *found = kt_alloc(n * sizeof(float), 4);
        attend(kt_ref(), &s, pool, f32, position, 8, expected);
        for (size_t t = 0; kt_table(t); t++) {
            const spl_kernels *k = &kt_table(t)->kernels;
            uint8_t *own = store(k, &s, f32, r);
            assert_true(memcmp(own, pool, s.n_pages * s.page_stride) == 0);
            uint32_t cut = kt_below(r, s.nk + 1);
            memset(found, 0, n * sizeof(float));
            attend_units(k, &s, own, f32, position, 8, cut, s.nk, NULL, found);
            attend_units(k, &s, own, f32, position, 8, 0, cut, NULL, found);
            assert_true(kt_guards_intact(found));
            char what[96];
            snprintf(what, sizeof what, "%s window %u at %u", kt_table(t)->name, s.window, position);
            kt_assert_same(what, expected, found, n);
            kt_free(own);
        }
        kt_free(expected), kt_free(found), kt_free(pool);
    }
    free_scene(&s);
}

static void every_tier_equals_ref_in_windows(void **state) {
    (void)state;
    kt_random r = {4};
    for (size_t i = 0; i < SPL_COUNT(windows); i++) compare_window(&r, windows[i], 1.0f);
    for (int i = 0; i < 40; i++) {
        uint32_t window = 1 + kt_below(&r, 300), position = kt_below(&r, 700);
        uint32_t first = kt_below(&r, 4) ? 0 : kt_below(&r, position + 1);
        uint32_t shape[6] = {2 * (1 + kt_below(&r, 4)), 2, 16 * (1 + kt_below(&r, 8)), window, position, first};
        compare_window(&r, shape, 3.0f);
    }
    /* the window's first tokens in another split than its last row's, and a block on both sides of one */
    uint32_t edges[][6] = {{2, 1, 16, 64, SPL_ATTEND_SPLIT + 60, 0}, {2, 1, 16, 64, 2 * SPL_ATTEND_SPLIT - 3, 0}};
    for (size_t i = 0; i < SPL_COUNT(edges); i++) compare_window(&r, edges[i], 1.0f);
    uint32_t zero[6] = {2, 1, 16, 200, 300, 0};
    compare_window(&r, zero, 0.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(int8_follows_the_formula),
        cmocka_unit_test(oracle_follows_the_formula),
        cmocka_unit_test(every_tier_equals_ref),
        cmocka_unit_test(every_tier_equals_ref_in_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
