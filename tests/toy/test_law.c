/* SPDX-License-Identifier: Apache-2.0
 * The output law of whole decode steps, drafts included, on a tiny random model: first and second tokens of 100,000
 * steps against the exact distributions, by chi-square with fixed seeds, for truncated, untruncated and penalised
 * sampling. A control that takes the draft's word without the acceptance test must fail. And states: after every
 * number of retained rows the lane equals a fresh one over the same tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "sample/sample.h"
#include "tests/support/step_rig.h"

enum { MAX_VOCAB = 512, N_PROMPT = 13, MANY_DRAWS = 100000, FEW_DRAWS = 12000, CONTEXT = 128 };

/* 100,000 draws on the best tier; the bits are equal on the others, and sanitised builds are slow. */
static uint32_t draws_under_test(void) {
    spl_kernels best;
    spl_error err;
    assert_int_equal(spl_kernels_select(&best, SPL_N_TIERS, &err), SPL_OK);
    spl_tier tier = rig_tier();
#ifdef SPL_DEBUG
    (void)tier;
    return FEW_DRAWS;
#else
    return tier == SPL_N_TIERS || tier == best.tier ? MANY_DRAWS : FEW_DRAWS;
#endif
}

static void open_toy(rig *r, const char *id) {
    rig_open(r, &(rig_options){.geometry = id,
                               .seed = 3,
                               .with_draft = true,
                               .lane_tokens = CONTEXT,
                               .step = {.max_rows = 32, .max_logit_rows = 32, .decode = true, .draft = true}});
    assert_true(r->g->vocab <= MAX_VOCAB);
}

static void prefill(rig *r, uint32_t lane, const uint32_t *tokens, uint32_t n) {
    spl_error err;
    spl_segment seg = rig_segment(r, lane, 0, n, 0);
    uint32_t last = n - 1;
    spl_batch batch = {.tokens = tokens,
                       .n_rows = n,
                       .segments = &seg,
                       .n_segments = 1,
                       .logit_rows = &last,
                       .n_logit_rows = 1,
                       .kv_pool = r->pool.memory,
                       .page_stride = r->pool.page_bytes};
    if (spl_step_run(r->step, &batch, &err) != SPL_OK) fail_msg("%s", err.text);
}

static void decode(rig *r, const uint32_t *tokens, const spl_segment *segments, spl_decode_lane *lanes, uint32_t n) {
    spl_error err;
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < n; i++) n_rows += segments[i].n_rows;
    spl_batch batch = {.tokens = tokens,
                       .n_rows = n_rows,
                       .segments = segments,
                       .n_segments = n,
                       .kv_pool = r->pool.memory,
                       .page_stride = r->pool.page_bytes,
                       .lanes = lanes};
    if (spl_step_run(r->step, &batch, &err) != SPL_OK) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < n; i++) {
        if (lanes[i].status != SPL_OK) fail_msg("%s", lanes[i].error.text);
    }
}

static void fill_prompt(uint32_t *tokens, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) tokens[i] = (i * 37 + 11) % 99;
}

/* ---- the law -------------------------------------------------------------------------------- */

/* (chi-square - degrees) / sqrt(2 degrees); cells expecting fewer than 8 are pooled. */
static double chi_z(const uint32_t *seen, const double *p, uint32_t n_cells, uint32_t n) {
    double chi = 0, pooled_p = 0, pooled_seen = 0;
    uint32_t cells = 0;
    for (uint32_t i = 0; i < n_cells; i++) {
        double expected = p[i] * n;
        if (expected < 8) {
            pooled_p += p[i];
            pooled_seen += seen[i];
            continue;
        }
        chi += (seen[i] - expected) * (seen[i] - expected) / expected;
        cells++;
    }
    if (pooled_p * n > 0.5) {
        chi += (pooled_seen - pooled_p * n) * (pooled_seen - pooled_p * n) / (pooled_p * n);
        cells++;
    } else if (pooled_seen > 8) {
        return 1e9; /* tokens that cannot be */
    }
    double degrees = cells > 1 ? cells - 1 : 1;
    return (chi - degrees) / sqrt(2 * degrees);
}

/* The caller's distribution after `history` and `next`, as doubles. */
static void exact(rig *r, const float *logits, const spl_sampling *sampling, spl_penalties *penalties, double *p) {
    spl_error err;
    spl_dist d;
    void *scratch = rig_aligned(spl_dist_scratch_bytes(r->g->vocab));
    spl_dist_input in = {.logits = logits, .vocab = r->g->vocab, .sampling = sampling, .penalties = penalties};
    assert_int_equal(spl_dist_build(&d, &in, scratch, &err), SPL_OK);
    for (uint32_t i = 0; i < r->g->vocab; i++) p[i] = (double)spl_dist_p(&d, i) / d.sum;
    free(scratch);
}

static void check_law(const spl_sampling *sampling) {
    enum { LANES = SPL_MAX_LANES };
    static uint32_t first[MAX_VOCAB], guessed[MAX_VOCAB], second[MAX_VOCAB][MAX_VOCAB];
    static double p[MAX_VOCAB];
    uint32_t prompt[N_PROMPT], tokens[SPL_MAX_DECODE_ROWS] = {0}, n_accepted = 0;
    void *penalty_memory[LANES];
    spl_penalties penalties[LANES];
    spl_decode_lane lanes[LANES];
    spl_segment segments[LANES];
    bool penalised = spl_sampling_has_penalties(sampling);
    uint32_t n_draws = draws_under_test();
    spl_error err;
    rig r;
    open_toy(&r, "toy-tiny");
    fill_prompt(prompt, N_PROMPT);
    memset(first, 0, sizeof first);
    memset(guessed, 0, sizeof guessed);
    memset(second, 0, sizeof second);
    memset(lanes, 0, sizeof lanes);
    for (uint32_t i = 0; i < LANES; i++) {
        prefill(&r, i, prompt, N_PROMPT - 1);
        segments[i] = rig_segment(&r, i, i * 8, 8, N_PROMPT - 1);
        segments[i].n_commit = 0;
        segments[i].features = r.features[i];
        tokens[i * 8] = prompt[N_PROMPT - 1];
        penalty_memory[i] = rig_aligned(spl_penalties_bytes(CONTEXT, r.g->vocab));
    }
    for (uint32_t at = 0; at < n_draws; at += LANES) {
        for (uint32_t i = 0; i < LANES; i++) {
            spl_rng rng = {.seed = 99, .counter = (uint64_t)(at + i) * 16};
            lanes[i].drafts = true;
            lanes[i].sampling = sampling;
            lanes[i].limits.max_retained = 8;
            spl_rng_step(&rng, lanes[i].uniforms);
            if (penalised) {
                spl_penalties_init(&penalties[i], penalty_memory[i], CONTEXT, r.g->vocab);
                assert_int_equal(spl_penalties_add_prompt(&penalties[i], prompt, N_PROMPT, &err), SPL_OK);
                lanes[i].penalties = &penalties[i];
            }
        }
        decode(&r, tokens, segments, lanes, LANES);
        for (uint32_t i = 0; i < LANES; i++) {
            const spl_accept *a = &lanes[i].result;
            first[a->tokens[0]]++;
            guessed[lanes[i].proposals[0].token]++;
            if (a->retained >= 2) second[a->tokens[0]][a->tokens[1]]++;
            n_accepted += a->n_accepted;
        }
    }
    /* The exact laws, from a plain run of the same rows. */
    spl_segment seg = segments[0];
    spl_decode_lane plain = {.sampling = sampling, .limits = {.max_retained = 1}};
    seg.n_rows = 1;
    if (penalised) {
        spl_penalties_init(&penalties[0], penalty_memory[0], CONTEXT, r.g->vocab);
        assert_int_equal(spl_penalties_add_prompt(&penalties[0], prompt, N_PROMPT, &err), SPL_OK);
    }
    decode(&r, tokens, &seg, &plain, 1);
    exact(&r, spl_step_logits(r.step), sampling, penalised ? &penalties[0] : NULL, p);
    double z = chi_z(first, p, r.g->vocab, n_draws), control = chi_z(guessed, p, r.g->vocab, n_draws);
    print_message("first token z %.2f, draft taken at its word z %.1f, accepted %u of %u\n", z, control, n_accepted,
                  7 * n_draws);
    assert_true(fabs(z) < 3.1); /* p > 0.001 */
    assert_true(control > 20);
    assert_true(n_accepted > n_draws / 50);
    /* The commonest accepted first token and what followed it. */
    uint32_t best = 0, best_n = 0;
    for (uint32_t i = 0; i < r.g->vocab; i++) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < r.g->vocab; j++) n += second[i][j];
        if (n > best_n) best = i;
        if (n > best_n) best_n = n;
    }
    uint32_t two[2] = {prompt[N_PROMPT - 1], best};
    seg.n_rows = 2;
    plain.limits.max_retained = 1;
    plain.proposals[0].token = best;
    decode(&r, two, &seg, &plain, 1);
    if (penalised) assert_int_equal(spl_penalties_push(&penalties[0], best, &err), SPL_OK);
    exact(&r, spl_step_logits(r.step) + r.g->vocab, sampling, penalised ? &penalties[0] : NULL, p);
    z = chi_z(second[best], p, r.g->vocab, best_n);
    print_message("second token after %u: z %.2f over %u\n", best, z, best_n);
    assert_true(best_n > n_draws / 100);
    assert_true(fabs(z) < 3.1);
    for (uint32_t i = 0; i < LANES; i++) free(penalty_memory[i]);
    rig_close(&r);
}

static void law_of_top_k_and_top_p(void **state) {
    (void)state;
    check_law(&(spl_sampling){.temperature = 1, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1});
}
static void law_untruncated(void **state) {
    (void)state;
    check_law(&(spl_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1});
}
static void law_of_min_p_and_penalties(void **state) {
    (void)state;
    check_law(&(spl_sampling){.temperature = 0.8f,
                              .top_p = 1,
                              .min_p = 0.02f,
                              .repetition_penalty = 1.2f,
                              .presence_penalty = 0.3f,
                              .frequency_penalty = 0.2f});
}

/* ---- states --------------------------------------------------------------------------------- */

/* One step of a lane: draft, or proposals that are known to be right for `accept` positions and wrong after. Returns
 * the tokens retained. */
static uint32_t step_with(rig *r, uint32_t lane, uint32_t position, uint32_t n_pending, uint32_t n_context,
                          const uint32_t *truth, uint32_t accept, bool drafts, uint32_t *out) {
    static const spl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    uint32_t tokens[8] = {truth[0]};
    spl_segment seg = rig_segment(r, lane, 0, 8, position);
    spl_decode_lane d = {.drafts = drafts, .sampling = &greedy, .limits = {.max_retained = 8}};
    seg.n_commit = 0;
    seg.n_pending = n_pending;
    seg.features = r->features[lane];
    d.context = n_context ? r->features[lane] : NULL;
    d.n_context = n_context;
    for (uint32_t i = 1; i < 8; i++) {
        tokens[i] = i <= accept ? truth[i] : (truth[i] + 1) % 90;
        d.proposals[i - 1].token = tokens[i];
    }
    decode(r, tokens, &seg, &d, 1);
    memcpy(out, d.result.tokens, sizeof d.result.tokens);
    r->pending[lane].half ^= 1u;
    return d.result.retained;
}

/* After every acceptance count the lane goes on exactly as one that never guessed: logits, KV, state, window, ring. */
static void states_after_every_acceptance(void **state) {
    (void)state;
    enum { N = 40 };
    rig r;
    uint32_t prompt[N_PROMPT], truth[N + 16], out[8];
    open_toy(&r, "toy");
    fill_prompt(prompt, N_PROMPT);
    /* Greedy text, one row at a time, on lane 0. */
    prefill(&r, 0, prompt, N_PROMPT - 1);
    truth[0] = prompt[N_PROMPT - 1];
    static const spl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    for (uint32_t i = 0; i < N + 15; i++) {
        spl_segment seg = rig_segment(&r, 0, 0, 1, N_PROMPT - 1 + i);
        spl_decode_lane d = {.sampling = &greedy, .limits = {.max_retained = 1}};
        decode(&r, truth + i, &seg, &d, 1);
        truth[i + 1] = d.result.tokens[0];
    }
    for (uint32_t accept = 0; accept <= 7; accept++) {
        /* Lane 1 guesses; its rejected rows must leave no trace. */
        memset(r.cells[1], 0, (size_t)spl_state_cell_bytes(r.g, 0));
        for (int lane = 1; lane <= 2; lane++) memset(r.rings[lane], 0, (size_t)spl_draft_ring_bytes(r.g, false));
        r.pending[1].half = 0;
        prefill(&r, 1, prompt, N_PROMPT - 1);
        uint32_t at = 0, n_pending = 0;
        while (at + 8 < N) {
            uint32_t retained =
                step_with(&r, 1, N_PROMPT - 1 + at, n_pending, n_pending, truth + at, accept, false, out);
            assert_int_equal(retained, accept + 1);
            assert_memory_equal(out, truth + at + 1, retained * sizeof(uint32_t));
            at += retained;
            n_pending = retained;
        }
        /* Fold what is pending by one plain row and compare with lane 2, prefilled over the same tokens. */
        spl_segment seg = rig_segment(&r, 1, 0, 1, N_PROMPT - 1 + at);
        spl_decode_lane d = {
            .sampling = &greedy, .limits = {.max_retained = 1}, .context = r.features[1], .n_context = n_pending};
        seg.n_pending = n_pending;
        seg.features = r.features[1];
        decode(&r, truth + at, &seg, &d, 1);
        memset(r.cells[2], 0, (size_t)spl_state_cell_bytes(r.g, 0));
        uint32_t all[64];
        memcpy(all, prompt, (N_PROMPT - 1) * sizeof(uint32_t));
        memcpy(all + N_PROMPT - 1, truth, (at + 1) * sizeof(uint32_t));
        uint32_t n_all = N_PROMPT + at;
        for (uint32_t from = 0; from < n_all; from += 20) {
            spl_error err;
            uint32_t n = n_all - from < 20 ? n_all - from : 20, last = n - 1;
            spl_segment fresh = rig_segment(&r, 2, 0, n, from);
            spl_batch batch = {.tokens = all + from,
                               .n_rows = n,
                               .segments = &fresh,
                               .n_segments = 1,
                               .logit_rows = &last,
                               .n_logit_rows = 1,
                               .kv_pool = r.pool.memory,
                               .page_stride = r.pool.page_bytes};
            assert_int_equal(spl_step_run(r.step, &batch, &err), SPL_OK);
        }
        assert_memory_equal(r.cells[1], r.cells[2], (size_t)spl_state_cell_bytes(r.g, 0));
        /* So do the rings, once the newest row, which waits in the features, has entered. */
        uint32_t next = d.result.tokens[0];
        seg = rig_segment(&r, 1, 0, 1, n_all);
        d = (spl_decode_lane){
            .sampling = &greedy, .limits = {.max_retained = 1}, .context = r.features[1], .n_context = 1};
        decode(&r, &next, &seg, &d, 1);
        assert_memory_equal(r.rings[1], r.rings[2], (size_t)spl_draft_ring_bytes(r.g, false));
    }
    rig_close(&r);
}

/* A lane that drafts for real, with acceptance as it comes, writes greedy text. */
static void drafted_text_is_greedy_text(void **state) {
    (void)state;
    rig r;
    uint32_t prompt[N_PROMPT], truth[80], out[8];
    open_toy(&r, "toy-tiny");
    fill_prompt(prompt, N_PROMPT);
    prefill(&r, 0, prompt, N_PROMPT - 1);
    prefill(&r, 1, prompt, N_PROMPT - 1);
    truth[0] = prompt[N_PROMPT - 1];
    static const spl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    for (uint32_t i = 0; i < 60; i++) {
        spl_segment seg = rig_segment(&r, 0, 0, 1, N_PROMPT - 1 + i);
        spl_decode_lane d = {.sampling = &greedy, .limits = {.max_retained = 1}};
        decode(&r, truth + i, &seg, &d, 1);
        truth[i + 1] = d.result.tokens[0];
    }
    for (uint32_t at = 0, n_pending = 0; at < 50; at += n_pending) {
        uint32_t guess[8] = {truth[at]};
        n_pending = step_with(&r, 1, N_PROMPT - 1 + at, n_pending, n_pending, guess, 0, true, out);
        assert_memory_equal(out, truth + at + 1, n_pending * sizeof(uint32_t));
    }
    rig_close(&r);
}

/* Greedy lanes choose alike with their logits written and without; one that asks for logits, or samples, has those of
 * all lanes written. */
static void greedy_needs_no_logits(void **state) {
    (void)state;
    enum { LANES = SPL_MAX_LANES };
    static const spl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    static const spl_sampling sampled = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    static const char *const shapes[] = {"toy", "toy-tiny"};
    for (size_t shape = 0; shape < 2; shape++) {
        rig r;
        uint32_t prompt[N_PROMPT], tokens[SPL_MAX_DECODE_ROWS], expected[LANES][8];
        spl_decode_lane lanes[LANES];
        spl_segment segments[LANES];
        open_toy(&r, shapes[shape]);
        for (uint32_t i = 0; i < LANES; i++) {
            fill_prompt(prompt, N_PROMPT);
            prompt[0] += i;
            prefill(&r, i, prompt, N_PROMPT - 1);
            segments[i] = rig_segment(&r, i, i * 8, 8, N_PROMPT - 1);
            segments[i].n_commit = 0;
        }
        enum { KEPT, NONE, ONE_KEPT, ONE_SAMPLED, N_WAYS };
        for (int way = KEPT; way < N_WAYS; way++) {
            float *logits = spl_step_logits(r.step);
            for (size_t i = 0; i < (size_t)LANES * 8 * r.g->vocab; i++) logits[i] = 77.0f;
            memset(lanes, 0, sizeof lanes);
            for (uint32_t i = 0; i < LANES; i++) {
                bool samples = way == ONE_SAMPLED && i == 2;
                lanes[i] = (spl_decode_lane){.sampling = samples ? &sampled : &greedy, .limits = {.max_retained = 8}};
                lanes[i].keeps_logits = way == KEPT || (way == ONE_KEPT && i == 1);
                tokens[i * 8] = prompt[N_PROMPT - 1];
                for (uint32_t k = 1; k < 8; k++) /* guesses: after the first way, those that are right */
                    lanes[i].proposals[k - 1].token = tokens[i * 8 + k] = way == KEPT ? k : expected[i][0];
            }
            decode(&r, tokens, segments, lanes, LANES);
            logits = spl_step_logits(r.step);
            bool written = logits[0] != 77.0f;
            assert_true(written == (way != NONE));
            for (size_t i = 0; i < (size_t)LANES * 8 * r.g->vocab; i++) assert_true((logits[i] != 77.0f) == written);
            for (uint32_t i = 0; i < LANES; i++) {
                if (way == KEPT) expected[i][0] = lanes[i].result.tokens[0];
                if (way == NONE) memcpy(expected[i], lanes[i].result.tokens, sizeof expected[i]);
                if (way == NONE) assert_true(lanes[i].result.retained >= 2);
                if (way == ONE_SAMPLED && i == 2) continue;
                assert_memory_equal(expected[i], lanes[i].result.tokens, lanes[i].result.retained * sizeof(uint32_t));
            }
        }
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_after_every_acceptance), cmocka_unit_test(drafted_text_is_greedy_text),
        cmocka_unit_test(law_of_top_k_and_top_p),        cmocka_unit_test(law_untruncated),
        cmocka_unit_test(law_of_min_p_and_penalties),    cmocka_unit_test(greedy_needs_no_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
