/* SPDX-License-Identifier: Apache-2.0
 * What the sampling tests share: random rows, a sort-everything reference of the target distribution in double, and a
 * chi-square test that gives a z-score. */
#ifndef SPL_TESTS_SAMPLE_SUPPORT_H
#define SPL_TESTS_SAMPLE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <float.h>
#include <math.h>

#include <cmocka.h>

#include "sample/distribution.h"
#include "sample/rng.h"

typedef struct test_random {
    spl_rng rng;
} test_random;

static inline double random_unit(test_random *r) { return spl_rng_draw(&r->rng); }
static inline uint32_t random_below(test_random *r, uint32_t n) { return (uint32_t)(random_unit(r) * n); }
static inline double random_normal(test_random *r) {
    double u = 1.0 - random_unit(r), v = random_unit(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

static inline void *must_alloc(size_t n_bytes) {
    void *p = aligned_alloc(64, (n_bytes + 64) / 64 * 64);
    if (!p) abort();
    return p;
}

/* ---- reference ---------------------------------------------------------------------------------- */

typedef struct reference_input {
    const float *logits;
    uint32_t vocab;
    spl_sampling sampling;
    const spl_bias *bias;
    size_t n_bias;
    const uint32_t *prompt, *output;
    size_t n_prompt, n_output;
} reference_input;

typedef struct reference_entry {
    float z;
    uint32_t id;
} reference_entry;

static inline int reference_compare(const void *a, const void *b) {
    const reference_entry *x = a, *y = b;
    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static inline float reference_clamp(float z) { return fminf(fmaxf(z, -FLT_MAX), FLT_MAX); }

static inline float reference_logit(const reference_input *in, uint32_t id) {
    const spl_sampling *s = &in->sampling;
    float z = in->logits[id];
    if (isinf(z)) return z;
    for (size_t i = 0; i < in->n_bias; i++) {
        if (in->bias[i].token != id) continue;
        if (in->bias[i].bias <= -100.0f) return -INFINITY;
        z = reference_clamp(z + in->bias[i].bias);
    }
    bool seen = false;
    uint32_t count = 0;
    for (size_t i = 0; i < in->n_prompt; i++) seen |= in->prompt[i] == id;
    for (size_t i = 0; i < in->n_output; i++) count += in->output[i] == id;
    if (seen || count) z = reference_clamp(z > 0.0f ? z / s->repetition_penalty : z * s->repetition_penalty);
    if (count) z = reference_clamp(z - (s->frequency_penalty * (float)count + s->presence_penalty));
    return z;
}

/* p[vocab]. *margin: how near, relative to the whole, the nearest cut was to falling the other way. */
static inline void reference_distribution(const reference_input *in, double *p, double *margin) {
    const spl_sampling *s = &in->sampling;
    uint32_t n = in->vocab;
    reference_entry *e = must_alloc(n * sizeof *e);
    double *w = must_alloc(n * sizeof *w), total = 0.0, kept = 0.0, before = 0.0;
    for (uint32_t i = 0; i < n; i++) e[i] = (reference_entry){reference_logit(in, i), i}, p[i] = 0.0;
    qsort(e, n, sizeof *e, reference_compare);
    *margin = 1.0;
    uint32_t k = s->top_k <= 0 || (uint32_t)s->top_k > n ? n : (uint32_t)s->top_k;
    double t = s->temperature < 0.01f ? 0.01f : (double)s->temperature;
    if (s->temperature == 0.0f) k = 1;
    for (uint32_t i = 0; i < n; i++) {
        w[i] = exp(((double)e[i].z - (double)e[0].z) / t);
        if (s->temperature == 0.0f) w[i] = 1.0;
        if (i >= k) w[i] = 0.0;
        if (i < k && s->min_p > 0.0f) *margin = fmin(*margin, fabs(w[i] / (double)s->min_p - 1.0) + (w[i] == 1.0));
        if (w[i] < (double)s->min_p) w[i] = 0.0;
        total += w[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!(w[i] > 0.0)) continue;
        bool keep = s->top_p >= 1.0f || before <= (double)s->top_p * total;
        /* exact sums of equal weights decide exactly on both sides */
        bool exact = w[i] == 1.0;
        if (s->top_p < 1.0f && !exact) *margin = fmin(*margin, fabs(before / total - (double)s->top_p));
        before += w[i];
        if (keep) p[e[i].id] = w[i], kept += w[i];
    }
    for (uint32_t i = 0; i < n; i++) p[i] /= kept;
    free(e);
    free(w);
}

/* ---- chi-square --------------------------------------------------------------------------------- */

/* z-score (Wilson-Hilferty) of counts[n] from n_draws draws against p[n]; cells expected below 10 are pooled. A draw
 * where p is 0 gives infinity. */
static inline double chi_square_z(const uint32_t *counts, const double *p, uint32_t n, double n_draws) {
    double x2 = 0.0, pooled = 0.0, pooled_count = 0.0;
    uint32_t cells = 0;
    for (uint32_t i = 0; i < n; i++) {
        double expected = p[i] * n_draws;
        if (p[i] == 0.0 && counts[i]) return INFINITY;
        if (expected < 10.0) {
            pooled += expected, pooled_count += counts[i];
            continue;
        }
        x2 += (counts[i] - expected) * (counts[i] - expected) / expected;
        cells++;
    }
    if (pooled >= 10.0) x2 += (pooled_count - pooled) * (pooled_count - pooled) / pooled, cells++;
    if (cells < 2) return 0.0;
    double k = cells - 1.0;
    return (cbrt(x2 / k) - (1.0 - 2.0 / (9.0 * k))) / sqrt(2.0 / (9.0 * k));
}

#endif
