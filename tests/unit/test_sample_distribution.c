/* SPDX-License-Identifier: Apache-2.0
 * The target distribution against sorting everything in double; the two ways against each other, bit for bit;
 * broken rows; the cost of a row of the real vocabulary (printed, not judged). */
#include "test_sample_support.h"

#include "base/clock.h"
#include "kernels/kernels.h"
#include "sample/rank.h"
#include "sample/weight.h"

typedef struct test_case {
    uint32_t vocab;
    float *logits;
    spl_sampling sampling;
    spl_bias bias[8];
    size_t n_bias;
    uint32_t prompt[64], output[64];
    size_t n_prompt, n_output;
    spl_penalties penalties;
    void *penalty_memory;
} test_case;

static void random_row(test_random *r, float *logits, uint32_t n) {
    uint32_t style = random_below(r, 7);
    float scale = (float)pow(10.0, random_unit(r) * 2.5 - 1.0), level = (float)random_normal(r);
    for (uint32_t i = 0; i < n; i++) {
        float z = (float)random_normal(r) * scale;
        if (style == 1) z = rintf((float)random_normal(r) * 2.0f) * 0.5f; /* ties, and both zeros */
        if (style == 2) z = level;
        if (style == 3 && random_below(r, 3) && i) z = -INFINITY;
        if (style == 4) z = (float)i * (i & 1 ? 1e-6f : -1e-6f);
        if (style == 5) z *= 1e36f;
        logits[i] = z;
    }
}

static uint32_t pick(test_random *r, const uint32_t *from, uint32_t n) { return from[random_below(r, n)]; }

static void make_case(test_case *c, test_random *r) {
    static const uint32_t vocabs[] = {1, 2, 3, 63, 64, 65, 255, 256, 257, 511, 513, 1023, 1500, 3001};
    static const float top_ps[] = {1.0f, 1.0f, 0.95f, 0.9f, 0.5f, 0.1f, 1e-6f};
    static const float min_ps[] = {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f};
    static const float temperatures[] = {0.0f, 0.001f, 0.01f, 0.1f, 0.6f, 0.7f, 1.0f, 1.0f, 1.3f, 2.0f};
    static const float repetitions[] = {1.0f, 1.1f, 0.5f, 3.0f};
    memset(c, 0, sizeof *c);
    c->vocab = pick(r, vocabs, SPL_COUNT(vocabs));
    c->logits = must_alloc(c->vocab * sizeof(float));
    random_row(r, c->logits, c->vocab);
    const int32_t top_ks[] = {
        0, -1, 1, 2, 5, 20, 40, 63, 64, 65, 66, 100, (int32_t)c->vocab - 1, (int32_t)c->vocab + 5};
    c->sampling = (spl_sampling){.temperature = temperatures[random_below(r, SPL_COUNT(temperatures))],
                                 .top_k = top_ks[random_below(r, SPL_COUNT(top_ks))],
                                 .top_p = top_ps[random_below(r, SPL_COUNT(top_ps))],
                                 .min_p = min_ps[random_below(r, SPL_COUNT(min_ps))],
                                 .repetition_penalty = 1.0f};
    c->penalty_memory = must_alloc(spl_penalties_bytes(128, c->vocab));
    spl_penalties_init(&c->penalties, c->penalty_memory, 128, c->vocab);
    if (random_below(r, 3) == 0) {
        c->sampling.repetition_penalty = repetitions[random_below(r, SPL_COUNT(repetitions))];
        c->sampling.presence_penalty = (float)(random_unit(r) * 4.0 - 2.0);
        c->sampling.frequency_penalty = (float)(random_unit(r) * 4.0 - 2.0);
        c->n_prompt = random_below(r, 64), c->n_output = random_below(r, 64);
    }
    for (size_t i = 0; i < c->n_prompt; i++) c->prompt[i] = random_below(r, c->vocab);
    for (size_t i = 0; i < c->n_output; i++) {
        c->output[i] = random_below(r, random_below(r, 2) || c->vocab < 5 ? c->vocab : 5);
        assert_int_equal(spl_penalties_push(&c->penalties, c->output[i], NULL), SPL_OK);
    }
    assert_int_equal(spl_penalties_add_prompt(&c->penalties, c->prompt, c->n_prompt, NULL), SPL_OK);
    if (random_below(r, 4) == 0 && c->vocab > 8) {
        c->n_bias = 1 + random_below(r, 8);
        for (size_t i = 0; i < c->n_bias; i++)
            c->bias[i] =
                (spl_bias){random_below(r, c->vocab), random_below(r, 3) ? (float)random_normal(r) * 5 : -100.0f};
    }
}

static void free_case(test_case *c) { free(c->logits), free(c->penalty_memory); }

static spl_dist_input input_of(const test_case *c) {
    return (spl_dist_input){.logits = c->logits,
                            .vocab = c->vocab,
                            .row = 3,
                            .sampling = &c->sampling,
                            .bias = c->bias,
                            .n_bias = c->n_bias,
                            .penalties = &c->penalties};
}

static void check_form(const spl_dist *d, uint32_t vocab) {
    double sum = 0.0;
    assert_true(d->n >= 1 && d->n <= vocab);
    if (!d->ids) assert_int_equal(d->n, vocab);
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->ids) {
            assert_true(d->ids[i] < vocab && d->p[i] > 0.0f);
            assert_true(i == 0 || d->ids[i] > d->ids[i - 1]);
        }
        assert_true(d->p[i] == 0.0f || d->p[i] >= FLT_MIN);
        sum += (double)d->p[i];
    }
    assert_true(fabs(sum - 1.0) < 2e-7);
    assert_true(fabs(sum - d->sum) < 1e-12);
}

static bool same_bits(const spl_dist *a, const spl_dist *b) {
    return a->n == b->n && !a->ids == !b->ids && memcmp(a->p, b->p, a->n * sizeof(float)) == 0 &&
           (!a->ids || memcmp(a->ids, b->ids, a->n * sizeof(uint32_t)) == 0) && a->sum == b->sum;
}

static void agrees_with_sorting_in_double(void **state) {
    (void)state;
    test_random r = {{21, 0}};
    uint32_t n_near = 0, n_cases = 6000;
    double worst = 0.0;
    double *p = must_alloc(3001 * sizeof *p);
    for (uint32_t i = 0; i < n_cases; i++) {
        test_case c;
        make_case(&c, &r);
        size_t n_bytes = spl_dist_scratch_bytes(c.vocab);
        uint8_t *scratch = must_alloc(n_bytes + 64), *other = must_alloc(n_bytes + 64);
        memset(scratch, 0xff, n_bytes + 64), memset(other, 0x5a, n_bytes + 64);
        spl_dist_input in = input_of(&c);
        spl_dist d, general;
        spl_error err = {.text = ""};
        reference_input ref = {c.logits, c.vocab,  c.sampling, c.bias,    c.n_bias,
                               c.prompt, c.output, c.n_prompt, c.n_output};
        double margin;
        if (spl_dist_build(&d, &in, scratch, &err) < 0) fail_msg("%s", err.text);
        assert_int_equal(spl_dist_build_general(&general, &in, other, &err), SPL_OK);
        assert_true(same_bits(&d, &general));
        for (uint32_t g = 0; g < 64; g++) assert_true(scratch[n_bytes + g] == 0xff && other[n_bytes + g] == 0x5a);
        check_form(&d, c.vocab);
        reference_distribution(&ref, p, &margin);
        bool near = margin < 1e-5; /* fp32 may cut the other way */
        n_near += near;
        for (uint32_t t = 0; t < c.vocab && !near; t++) {
            double got = (double)spl_dist_p(&d, t), off = fabs(got - p[t]);
            if (p[t] < 1e-28)
                assert_true(got < 2e-28);
            else
                worst = fmax(worst, off / p[t]);
            if (p[t] >= 1e-28 && off > 1e-5 * p[t])
                fail_msg("case %u: token %u of %u has %g, expected %g (top_k %d, top_p %g, min_p %g)", i, t, c.vocab,
                         got, p[t], (int)c.sampling.top_k, (double)c.sampling.top_p, (double)c.sampling.min_p);
        }
        free_case(&c), free(scratch), free(other);
    }
    printf("%u cases, %u too near to a cut to judge, largest relative error %.2g\n", n_cases, n_near, worst);
    assert_true(n_near < n_cases / 20);
    free(p);
}

/* The exact order of the ranks at a cut through ties, and the token that crosses top_p. */
static void ties_and_crossings(void **state) {
    (void)state;
    float z[300];
    uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(300));
    for (uint32_t i = 0; i < 300; i++) z[i] = i % 3 ? 1.0f : i % 2 ? -0.0f : 0.0f;
    spl_sampling s = {.temperature = 1.0f, .top_k = 5, .top_p = 1.0f, .repetition_penalty = 1.0f};
    spl_dist_input in = {.logits = z, .vocab = 300, .sampling = &s};
    spl_dist d;
    static const uint32_t first[] = {1, 2, 4, 5, 7};
    assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
    assert_int_equal(d.n, 5);
    assert_memory_equal(d.ids, first, sizeof first);
    s.top_k = 203; /* the 200 ones and three zeros */
    assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
    assert_int_equal(d.n, 203);
    assert_true(spl_dist_p(&d, 0) > 0.0f && spl_dist_p(&d, 3) > 0.0f && spl_dist_p(&d, 6) > 0.0f);
    assert_true(spl_dist_p(&d, 9) == 0.0f);
    for (uint32_t i = 0; i < 300; i++) z[i] = 0.25f;
    static const struct {
        int32_t top_k;
        float top_p;
        uint32_t n;
    } cuts[] = {{4, 0.5f, 3},   {4, 0.75f, 4},    {4, 0.49f, 2},  {4, 0.2f, 1},
                {0, 0.5f, 151}, {128, 0.25f, 33}, {128, 0.5f, 65}};
    for (size_t i = 0; i < SPL_COUNT(cuts); i++) {
        s.top_k = cuts[i].top_k, s.top_p = cuts[i].top_p;
        assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
        assert_int_equal(d.n, cuts[i].n);
        for (uint32_t j = 0; j < d.n; j++) assert_int_equal(d.ids[j], j);
    }
    s.temperature = 0.0f;
    z[77] = z[200] = 2.0f;
    assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
    assert_true(d.n == 1 && d.ids[0] == 77 && d.p[0] == 1.0f);
    free(scratch);
}

static void hand_worked_penalties(void **state) {
    (void)state;
    const float z[] = {2.0f, -1.0f, 3.0f, 0.5f};
    spl_sampling s = {.temperature = 0.0f,
                      .top_p = 1.0f,
                      .presence_penalty = 0.5f,
                      .frequency_penalty = 0.25f,
                      .repetition_penalty = 2.0f};
    uint8_t memory[512], *scratch = must_alloc(spl_dist_scratch_bytes(4));
    assert_true(spl_penalties_bytes(8, 4) <= sizeof memory);
    spl_penalties p;
    spl_penalties_init(&p, memory, 8, 4);
    const uint32_t prompt[] = {0, 1};
    assert_int_equal(spl_penalties_add_prompt(&p, prompt, 2, NULL), SPL_OK);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(spl_penalties_push(&p, 2, NULL), SPL_OK);
    /* 0: 2/2 = 1; 1: -1*2 = -2; 2: 3/2 - (0.25*3 + 0.5) = 0.25; 3: 0.5 */
    spl_dist_input in = {.logits = z, .vocab = 4, .sampling = &s, .penalties = &p};
    uint32_t token;
    assert_int_equal(spl_dist_argmax(&token, &in, scratch, NULL), SPL_OK);
    assert_int_equal(token, 0);
    const double w[] = {1.0, -2.0, 0.25, 0.5};
    s.temperature = 1.0f;
    spl_dist d;
    assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
    double sum = 0.0;
    for (uint32_t i = 0; i < 4; i++) sum += exp(w[i]);
    for (uint32_t i = 0; i < 4; i++) assert_true(fabs((double)spl_dist_p(&d, i) - exp(w[i]) / sum) < 1e-7);
    free(scratch);
}

static void broken_rows_are_refused(void **state) {
    (void)state;
    enum { N = 600 };
    float z[N];
    uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(N));
    const float broken[] = {NAN, -NAN, INFINITY};
    for (uint32_t i = 0; i < N; i++) z[i] = i % 5 ? (float)i : -INFINITY;
    spl_sampling settings[] = {{0, 0, 1, 0, 0, 0, 1}, {1, 20, 1, 0, 0, 0, 1}, {1, 0, 1, 0, 0, 0, 1}};
    for (uint32_t k = 0; k < 3; k++) {
        for (uint32_t i = 0; i < N; i++) {
            float kept = z[i];
            spl_dist_input in = {.logits = z, .vocab = N, .row = 5, .sampling = &settings[k]};
            spl_dist d;
            for (uint32_t b = 0; b < 3; b++) {
                spl_error err;
                z[i] = broken[b];
                assert_int_equal(spl_dist_build(&d, &in, scratch, &err), SPL_E_INTERNAL);
                assert_string_equal(err.text, "row 5 has a non-finite logit");
                z[i] = kept;
            }
            assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
        }
        float none[3] = {-INFINITY, -INFINITY, -INFINITY}, two[2] = {1, 2};
        spl_dist d;
        spl_error err;
        spl_dist_input in = {.logits = none, .vocab = 3, .row = 2, .sampling = &settings[k]};
        assert_int_equal(spl_dist_build(&d, &in, scratch, &err), SPL_E_INTERNAL);
        assert_string_equal(err.text, "row 2 has no finite logit");
        spl_bias never[] = {{0, -100.0f}, {1, -INFINITY}}, outside = {2, 1.0f}, infinite = {0, INFINITY};
        in = (spl_dist_input){.logits = two, .vocab = 2, .sampling = &settings[k], .bias = never, .n_bias = 2};
        assert_int_equal(spl_dist_build(&d, &in, scratch, &err), SPL_E_INVALID);
        in.bias = &outside, in.n_bias = 1;
        assert_int_equal(spl_dist_build(&d, &in, scratch, &err), SPL_E_INVALID);
        in.bias = &infinite;
        assert_int_equal(spl_dist_build(&d, &in, scratch, &err), SPL_E_INVALID);
    }
    free(scratch);
}

static void settings_are_checked(void **state) {
    (void)state;
    const spl_sampling good = {.temperature = 1, .top_k = -1, .top_p = 1, .repetition_penalty = 1};
    spl_error err;
    assert_int_equal(spl_sampling_check(&good, &err), SPL_OK);
    assert_false(spl_sampling_has_penalties(&good));
    spl_sampling bad[12];
    for (uint32_t i = 0; i < 12; i++) bad[i] = good;
    bad[0].temperature = -0.1f, bad[1].temperature = 2.1f, bad[2].temperature = NAN;
    bad[3].top_k = -2, bad[4].top_p = 0.0f, bad[5].top_p = 1.1f, bad[6].min_p = -0.1f, bad[7].min_p = 1.1f;
    bad[8].presence_penalty = 2.5f, bad[9].frequency_penalty = NAN;
    bad[10].repetition_penalty = 0.0f, bad[11].repetition_penalty = INFINITY;
    static const char *const names[] = {"temperature", "temperature", "temperature", "top_k",
                                        "top_p",       "top_p",       "min_p",       "min_p",
                                        "presence",    "frequency",   "repetition",  "repetition"};
    for (uint32_t i = 0; i < 12; i++) {
        assert_int_equal(spl_sampling_check(&bad[i], &err), SPL_E_INVALID);
        assert_non_null(strstr(err.text, names[i]));
    }
}

static void weights_are_accurate(void **state) {
    (void)state;
    double worst = 0.0;
    float z[1000], w[1000];
    for (uint32_t i = 0; i < 2000000; i++) {
        float x = -69.6f * (float)i / 2000000.0f;
        double exact = exp((double)x);
        worst = fmax(worst, fabs((double)spl_weight_of(x, 0.0f, 1.0f) - exact) / exact);
    }
    printf("largest relative error of a weight %.3g\n", worst);
    assert_true(worst < 2e-7);
    assert_true(spl_weight_of(3.5f, 3.5f, 0.7f) == 1.0f);
    assert_true(spl_weight_of(-INFINITY, FLT_MAX, 1.0f) == 0.0f);
    assert_true(spl_weight_of(-FLT_MAX, FLT_MAX, 0.01f) == 0.0f);
    assert_true(spl_weight_of(-69.8f, 0.0f, 1.0f) == 0.0f);
    double sum = 0.0;
    for (uint32_t i = 0; i < 1000; i++) z[i] = -(float)i * 0.083f;
    for (uint32_t n = 0; n <= 1000; n += 37) {
        spl_weights(w, z, n, 0.0f, 0.9f);
        sum = 0.0;
        for (uint32_t i = 0; i < n; i++) {
            assert_true(w[i] == spl_weight_of(z[i], 0.0f, 0.9f));
            sum += (double)w[i];
        }
        assert_true(fabs(spl_sum(w, n) - sum) < 1e-12);
        assert_true(spl_weight_sum(z, n, 0.0f, 0.9f) == spl_sum(w, n));
    }
}

/* As the kernel table's linear keeps them. */
static void keep_maxima(const float *z, uint32_t vocab, float *panel_max) {
    for (uint32_t p = 0; p < spl_rank_panels(vocab); p++) {
        panel_max[p] = -INFINITY;
        for (uint32_t i = p * SPL_RANK_PANEL; i < vocab && i < (p + 1) * SPL_RANK_PANEL; i++) {
            if (isnan(z[i])) panel_max[p] = INFINITY;
            if (z[i] > panel_max[p]) panel_max[p] = z[i];
        }
    }
}

/* A row whose panel maxima were kept gives the same bits, tokens and errors; ties, few distinct values and rows with
 * nothing finite in most places among them. */
static void panel_maxima_change_nothing(void **state) {
    (void)state;
    enum { MAX = 5000, CASES = 3000 };
    float *z = must_alloc(MAX * sizeof *z), *panel_max = must_alloc(spl_rank_panels(MAX) * sizeof *panel_max);
    uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(MAX)), *other = must_alloc(spl_dist_scratch_bytes(MAX));
    uint32_t n_errors = 0;
    for (uint32_t c = 0; c < CASES; c++) {
        uint32_t vocab = 1 + (uint32_t)(spl_rng_at(78, c) % (c % 2 ? MAX : 600)), levels = c % 3 ? 0 : 1 + c % 40;
        for (uint32_t i = 0; i < vocab; i++) {
            double u = spl_rng_uniform(spl_rng_at(c, i));
            z[i] = (float)((levels ? floor(u * levels) / levels : u) * 30.0 - 15.0);
            if (c % 11 == 0 && i % 7) z[i] = -INFINITY;
        }
        if (c % 23 == 0) z[spl_rng_at(79, c) % vocab] = c % 2 ? NAN : INFINITY;
        spl_sampling s = {.temperature = c % 4 ? (float)(3 + c % 15) * 0.125f : 0.0f,
                          .top_k = (int32_t)(c % 5) * 16,
                          .top_p = c % 2 ? 0.9375f : 1.0f,
                          .min_p = c % 5 ? 0.0f : 0.0625f,
                          .repetition_penalty = 1.0f};
        spl_dist_input in = {.logits = z, .vocab = vocab, .row = 3, .sampling = &s}, kept = in;
        spl_bias bias = {c % vocab, 2.5f};
        if (c % 13 == 0) in.bias = kept.bias = &bias, in.n_bias = kept.n_bias = 1;
        keep_maxima(z, vocab, panel_max);
        kept.panel_max = panel_max;
        spl_dist a, b;
        spl_error err_a, err_b;
        spl_status st = spl_dist_build(&a, &in, scratch, &err_a);
        assert_int_equal(spl_dist_build(&b, &kept, other, &err_b), st);
        if (st == SPL_OK)
            assert_true(same_bits(&a, &b));
        else
            assert_string_equal(err_a.text, err_b.text);
        uint32_t best_a = 0, best_b = 0;
        st = spl_dist_argmax(&best_a, &in, scratch, &err_a);
        assert_int_equal(spl_dist_argmax(&best_b, &kept, other, &err_b), st);
        assert_int_equal(best_a, best_b);
        n_errors += st != SPL_OK;
    }
    assert_true(n_errors > CASES / 30);
    free(z), free(panel_max), free(scratch), free(other);
}

static uint64_t fnv(uint64_t h, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ ((const uint8_t *)bytes)[i]) * UINT64_C(1099511628211);
    return h;
}

/* Compiler, flags and machine must not show: one hash over many distributions, written down. */
static void bits_are_the_same_everywhere(void **state) {
    (void)state;
    enum { MAX = 5000, CASES = 400 };
    uint64_t h = UINT64_C(14695981039346656037);
    float *z = must_alloc(MAX * sizeof *z);
    uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(MAX));
    for (uint32_t c = 0; c < CASES; c++) {
        uint32_t vocab = 1 + (uint32_t)(spl_rng_at(77, c) % MAX);
        for (uint32_t i = 0; i < vocab; i++)
            z[i] = (float)(spl_rng_uniform(spl_rng_at(c, i)) * 30.0 - 15.0) * (float)(1 + c % 7);
        spl_sampling s = {.temperature = (float)(3 + c % 15) * 0.125f,
                          .top_k = (int32_t)(c % 3) * 50 - 1,
                          .top_p = c % 2 ? 0.9375f : 1.0f,
                          .min_p = c % 5 ? 0.0f : 0.0625f,
                          .repetition_penalty = 1.0f};
        spl_dist_input in = {.logits = z, .vocab = vocab, .sampling = &s};
        spl_dist d;
        assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
        h = fnv(h, d.p, d.n * sizeof *d.p);
        if (d.ids) h = fnv(h, d.ids, d.n * sizeof *d.ids);
        h = fnv(h, &d.sum, sizeof d.sum);
    }
    if (h != UINT64_C(0x79d2703639b793ab)) fail_msg("hash is %016llx", (unsigned long long)h);
    free(z), free(scratch);
}

static void cost_of_a_row(void **state) {
    (void)state;
    enum { VOCAB = 248320, TRIES = 10 };
    test_random r = {{22, 0}};
    float *z = must_alloc(VOCAB * sizeof *z);
    for (uint32_t i = 0; i < VOCAB; i++) z[i] = (float)random_normal(&r) * 2.5f;
    uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(VOCAB));
    static const struct {
        const char *name;
        spl_sampling s;
    } settings[] = {{"greedy", {0, 0, 1, 0, 0, 0, 1}},
                    {"top_k 20", {1, 20, 1, 0, 0, 0, 1}},
                    {"top_k 20, top_p 0.95", {1, 20, 0.95f, 0, 0, 0, 1}},
                    {"untruncated", {1, 0, 1, 0, 0, 0, 1}},
                    {"top_p 0.95", {1, 0, 0.95f, 0, 0, 0, 1}},
                    {"min_p 0.05", {1, 0, 1, 0.05f, 0, 0, 1}},
                    {"top_k 1000", {1, 1000, 1, 0, 0, 0, 1}}};
    for (size_t i = 0; i < SPL_COUNT(settings); i++) {
        spl_dist_input in = {.logits = z, .vocab = VOCAB, .sampling = &settings[i].s};
        spl_dist d;
        uint64_t best = UINT64_MAX;
        for (uint32_t j = 0; j < TRIES; j++) {
            uint64_t start = spl_now_ns();
            assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
            uint64_t took = spl_now_ns() - start;
            best = took < best ? took : best;
        }
        printf("vocabulary %d, %-22s %8.1f us per row, %u entries\n", VOCAB, settings[i].name, (double)best / 1e3, d.n);
    }
    free(z), free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_accurate),         cmocka_unit_test(agrees_with_sorting_in_double),
        cmocka_unit_test(ties_and_crossings),           cmocka_unit_test(hand_worked_penalties),
        cmocka_unit_test(broken_rows_are_refused),      cmocka_unit_test(settings_are_checked),
        cmocka_unit_test(bits_are_the_same_everywhere), cmocka_unit_test(cost_of_a_row),
        cmocka_unit_test(panel_maxima_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
