/* SPDX-License-Identifier: Apache-2.0
 * Draws against the law they must follow (chi-square with fixed seeds, with a control that must fail), and log
 * probabilities against long sums in double. */
#include "test_sample_support.h"

#include "sample/sample.h"

enum { VOCAB = 1237, N_DRAWS = 200000 };

typedef struct law {
    spl_sampling sampling;
    const uint32_t *output;
    size_t n_output;
} law;

static void make_row(float *z) {
    test_random r = {{31, 0}};
    for (uint32_t i = 0; i < VOCAB; i++) z[i] = (float)random_normal(&r) * 2.0f;
}

/* z-score of N_DRAWS draws under `drawn` against the law `claimed`. */
static double score(const law *drawn, const law *claimed, uint64_t seed) {
    float z[VOCAB];
    double *p = must_alloc(VOCAB * sizeof *p), margin;
    uint32_t *counts = calloc(VOCAB, sizeof *counts);
    uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(VOCAB)), *memory = must_alloc(spl_penalties_bytes(64, VOCAB));
    make_row(z);
    spl_penalties penalties;
    spl_penalties_init(&penalties, memory, 64, VOCAB);
    for (size_t i = 0; i < drawn->n_output; i++)
        assert_int_equal(spl_penalties_push(&penalties, drawn->output[i], NULL), SPL_OK);
    spl_dist_input in = {.logits = z, .vocab = VOCAB, .sampling = &drawn->sampling, .penalties = &penalties};
    spl_rng rng = {seed, 0};
    spl_dist d;
    assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
    for (uint32_t i = 0; i < N_DRAWS; i++) {
        uint32_t token = spl_dist_draw(&d, spl_rng_draw(&rng));
        assert_true(token < VOCAB);
        counts[token]++;
    }
    reference_input ref = {.logits = z,
                           .vocab = VOCAB,
                           .sampling = claimed->sampling,
                           .output = claimed->output,
                           .n_output = claimed->n_output};
    reference_distribution(&ref, p, &margin);
    double s = chi_square_z(counts, p, VOCAB, N_DRAWS);
    free(p), free(counts), free(scratch), free(memory);
    return s;
}

/* The likeliest tokens of the row, so that the penalties move mass. */
static const uint32_t output[] = {619, 619, 432, 722, 340, 340, 619, 364};
static const law laws[] = {
    {.sampling = {1.0f, 0, 1.0f, 0.0f, 0, 0, 1}},
    {.sampling = {0.7f, 20, 0.95f, 0.0f, 0, 0, 1}},
    {.sampling = {1.0f, 0, 1.0f, 0.02f, 0.7f, 0.4f, 1.3f}, .output = output, .n_output = SPL_COUNT(output)},
    {.sampling = {1.2f, 0, 0.9f, 0.0f, 0, 0, 1}},
    {.sampling = {1.0f, 200, 0.8f, 0.001f, 0, 0, 1}},
};

static void draws_follow_the_law(void **state) {
    (void)state;
    for (size_t i = 0; i < SPL_COUNT(laws); i++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            double s = score(&laws[i], &laws[i], seed);
            printf("law %zu seed %d: z %+.2f\n", i, (int)seed, s);
            assert_true(s < 4.0 && s > -4.0);
        }
    }
}

/* The test above must see a slightly wrong law. */
static void a_wrong_law_is_seen(void **state) {
    (void)state;
    law warmer = laws[0], longer = laws[1], unpenalised = laws[2];
    warmer.sampling.temperature = 1.03f;
    longer.sampling.top_k = 21, longer.sampling.top_p = 1.0f;
    unpenalised.n_output -= 2;
    double a = score(&warmer, &laws[0], 1), b = score(&longer, &laws[1], 1), c = score(&unpenalised, &laws[2], 1);
    printf("wrong laws: z %+.2f %+.2f %+.2f\n", a, b, c);
    assert_true(a > 6.0 && b > 6.0 && c > 6.0);
}

static void draws_at_the_edges(void **state) {
    (void)state;
    const float p[] = {0.0f, 0.25f, 0.0f, 0.5f, 0.25f, 0.0f};
    const uint32_t ids[] = {10, 11, 12, 13, 14, 15};
    spl_dist dense = {6, NULL, p, 1.0}, sparse = {6, ids, p, 1.0};
    static const struct {
        double u;
        uint32_t token;
    } draws[] = {{0.0, 1}, {0.2499, 1}, {0.25, 3}, {0.7499, 3}, {0.75, 4}, {1.0 - 0x1p-53, 4}};
    for (size_t i = 0; i < SPL_COUNT(draws); i++) {
        assert_int_equal(spl_dist_draw(&dense, draws[i].u), draws[i].token);
        assert_int_equal(spl_dist_draw(&sparse, draws[i].u), 10 + draws[i].token);
    }
    dense.sum = 1.001; /* no cumulative reaches the threshold: the last positive entry */
    assert_int_equal(spl_dist_draw(&dense, 0.9999), 4);
    assert_true(spl_dist_p(&dense, 3) == 0.5f && spl_dist_p(&dense, 6) == 0.0f);
    assert_true(spl_dist_p(&sparse, 13) == 0.5f && spl_dist_p(&sparse, 9) == 0.0f && spl_dist_p(&sparse, 16) == 0.0f);
}

static void greedy_draws_no_number(void **state) {
    (void)state;
    float z[VOCAB];
    make_row(z);
    uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(VOCAB));
    spl_sampling s = {0, 20, 0.9f, 0, 0, 0, 1};
    spl_dist_input in = {.logits = z, .vocab = VOCAB, .sampling = &s};
    spl_rng rng = {5, 9};
    uint32_t token, best = 0;
    for (uint32_t i = 1; i < VOCAB; i++) best = z[i] > z[best] ? i : best;
    assert_int_equal(spl_sample_token(&token, &in, &rng, scratch, NULL), SPL_OK);
    assert_int_equal(token, best);
    assert_int_equal(rng.counter, 9);
    s.temperature = 1.0f;
    assert_int_equal(spl_sample_token(&token, &in, &rng, scratch, NULL), SPL_OK);
    assert_int_equal(rng.counter, 10);
    z[3] = NAN;
    assert_int_equal(spl_sample_token(&token, &in, &rng, scratch, NULL), SPL_E_INTERNAL);
    assert_int_equal(rng.counter, 10);
    free(scratch);
}

static void logprobs_of_the_raw_row(void **state) {
    (void)state;
    test_random r = {{33, 0}};
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t vocab = 1 + random_below(&r, 1500), n_top = random_below(&r, 21), token = random_below(&r, vocab);
        float *z = must_alloc(vocab * sizeof *z);
        reference_entry *e = must_alloc(vocab * sizeof *e);
        uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(vocab));
        uint32_t n_finite = 0;
        double sum = 0.0;
        for (uint32_t i = 0; i < vocab; i++) {
            z[i] = rintf((float)random_normal(&r) * 8.0f) * 0.5f;
            if (i && random_below(&r, 4) == 0) z[i] = -INFINITY;
            n_finite += isfinite(z[i]) != 0;
            e[i] = (reference_entry){z[i], i};
            sum += exp((double)z[i]);
        }
        qsort(e, vocab, sizeof *e, reference_compare);
        spl_logprobs got;
        assert_int_equal(spl_logprobs_of(&got, z, vocab, 0, token, n_top, scratch, NULL), SPL_OK);
        assert_int_equal(got.n_top, n_top < n_finite ? n_top : n_finite);
        assert_int_equal(got.chosen.token, token);
        double expected = (double)z[token] - log(sum);
        assert_true(isinf(expected) ? isinf(got.chosen.logprob)
                                    : fabs((double)got.chosen.logprob - expected) < 1e-6 * (1 + fabs(expected)));
        for (uint32_t i = 0; i < got.n_top; i++) {
            expected = (double)e[i].z - log(sum);
            assert_int_equal(got.top[i].token, e[i].id);
            assert_true(fabs((double)got.top[i].logprob - expected) < 1e-6 * (1 + fabs(expected)));
        }
        free(z), free(e), free(scratch);
    }
}

static void logprobs_refuse(void **state) {
    (void)state;
    float z[] = {1, 2, 3};
    uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(3));
    spl_logprobs out;
    spl_error err;
    assert_int_equal(spl_logprobs_of(&out, z, 3, 0, 3, 0, scratch, &err), SPL_E_INVALID);
    assert_int_equal(spl_logprobs_of(&out, z, 3, 0, 0, 21, scratch, &err), SPL_E_INVALID);
    z[1] = INFINITY;
    assert_int_equal(spl_logprobs_of(&out, z, 3, 4, 0, 1, scratch, &err), SPL_E_INTERNAL);
    assert_string_equal(err.text, "row 4 has a non-finite logit");
    z[0] = z[1] = z[2] = -INFINITY;
    assert_int_equal(spl_logprobs_of(&out, z, 3, 4, 0, 1, scratch, &err), SPL_E_INTERNAL);
    free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_law),    cmocka_unit_test(a_wrong_law_is_seen),
        cmocka_unit_test(draws_at_the_edges),      cmocka_unit_test(greedy_draws_no_number),
        cmocka_unit_test(logprobs_of_the_raw_row), cmocka_unit_test(logprobs_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
