/* SPDX-License-Identifier: Apache-2.0
 * Speculative acceptance: the rules against a plain second reading of them, and the output law. The law is tested on
 * a Markov chain: text produced by drafted steps must have the joint distribution of text drawn token by token.
 * The same test with a wrong q, without the residual, or with a non-strict law must fail, and is shown to. */
#include "test_sample_support.h"

#include "sample/accept.h"
#include "sample/penalties.h"
#include "sample/sample.h"

/* ---- rules ---------------------------------------------------------------------------------------- */

typedef struct rows {
    uint32_t vocab, n_proposals;
    float p[8][64];
    uint32_t ids[8][64], q_ids[7][16];
    float q[7][16];
    spl_dist dist[8];
    spl_proposal proposals[7];
    double uniforms[SPL_N_UNIFORMS];
} rows;

static double random_simplex(test_random *r, float *p, uint32_t n, double spread) {
    double w[64], total = 0.0, sum = 0.0;
    for (uint32_t i = 0; i < n; i++) total += w[i] = exp(spread * random_normal(r)) * (random_below(r, 4) != 0);
    if (!(total > 0.0)) total = w[0] = 1.0;
    for (uint32_t i = 0; i < n; i++) sum += (double)(p[i] = (float)(w[i] / total));
    return sum;
}

static void make_rows(rows *x, test_random *r) {
    x->vocab = 17 + random_below(r, 48), x->n_proposals = random_below(r, 8);
    spl_rng_step(&r->rng, x->uniforms);
    double spread = random_below(r, 2) ? 2.0 : 8.0; /* wide: one token has most of the mass and chains get long */
    for (uint32_t i = 0; i <= x->n_proposals; i++) {
        double sum = random_simplex(r, x->p[i], x->vocab, spread);
        x->dist[i] = (spl_dist){x->vocab, NULL, x->p[i], sum};
        if (random_below(r, 2)) continue;
        uint32_t n = 0; /* the same, sparse */
        for (uint32_t t = 0; t < x->vocab; t++)
            if (x->p[i][t] > 0.0f) x->ids[i][n] = t, x->p[i][n++] = x->p[i][t];
        x->dist[i] = (spl_dist){n, x->ids[i], x->p[i], sum};
    }
    for (uint32_t i = 0; i < x->n_proposals; i++) {
        uint32_t start = random_below(r, x->vocab), n = 1 + random_below(r, 16);
        for (uint32_t j = 0; j < n; j++) x->q_ids[i][j] = (start + j * 7 + 1) % x->vocab;
        uint32_t m = n;
        for (uint32_t j = 1; j < n; j++) /* distinct only */
            for (uint32_t k = 0; k < j && m == n; k++)
                if (x->q_ids[i][k] == x->q_ids[i][j]) m = j;
        random_simplex(r, x->q[i], m, 2.0);
        x->proposals[i] = (spl_proposal){x->q_ids[i][random_below(r, m)], m, x->q_ids[i], x->q[i]};
        if (random_below(r, 3) == 0) x->proposals[i].n_q = 0;
        if (spread > 2.0 || random_below(r, 2)) {
            double best = -1.0;
            for (uint32_t t = 0; t < x->vocab; t++)
                if ((double)spl_dist_p(&x->dist[i], t) > best)
                    best = (double)spl_dist_p(&x->dist[i], t), x->proposals[i].token = t;
        }
    }
}

static double q_of(const spl_proposal *d, uint32_t token) {
    if (d->n_q == 0) return token == d->token;
    for (uint32_t j = 0; j < d->n_q; j++)
        if (d->ids[j] == token) return (double)d->q[j];
    return 0.0;
}

static uint32_t plain_draw(const double *weight, uint32_t n, double u, bool *any) {
    double total = 0.0, cumulative = 0.0;
    uint32_t last = 0;
    *any = false;
    for (uint32_t t = 0; t < n; t++) total += weight[t];
    for (uint32_t t = 0; t < n; t++) {
        if (!(weight[t] > 0.0)) continue;
        last = t, *any = true, cumulative += weight[t];
        if (cumulative > u * total) break;
    }
    return last;
}

/* All proposals are tested first, then the result is cut: how the rules are written down. */
static void plain_rules(const rows *x, const spl_accept_limits *l, uint32_t tokens[8], uint32_t *accepted,
                        uint32_t *retained) {
    double w[64];
    bool any;
    uint32_t n = 0;
    for (; n < x->n_proposals; n++) {
        const spl_proposal *d = &x->proposals[n];
        if (!(x->uniforms[8 + n] * q_of(d, d->token) < (double)spl_dist_p(&x->dist[n], d->token))) break;
        tokens[n] = d->token;
    }
    *accepted = n;
    for (uint32_t t = 0; t < x->vocab; t++) {
        w[t] = (double)spl_dist_p(&x->dist[n], t);
        if (n < x->n_proposals) w[t] = fmax(w[t] - q_of(&x->proposals[n], t), 0.0);
    }
    tokens[n] = plain_draw(w, x->vocab, x->uniforms[15], &any);
    if (!any) {
        for (uint32_t t = 0; t < x->vocab; t++) w[t] = (double)spl_dist_p(&x->dist[n], t);
        tokens[n] = plain_draw(w, x->vocab, x->uniforms[15], &any);
    }
    *retained = n + 1 < l->max_retained ? n + 1 : l->max_retained;
    for (uint32_t i = 0; i < *retained; i++)
        for (uint32_t s = 0; s < l->n_stop_tokens; s++)
            if (tokens[i] == l->stop_tokens[s]) *retained = i + 1;
}

static void rules_of_a_sampled_step(void **state) {
    (void)state;
    test_random r = {{41, 0}};
    uint32_t seen[9] = {0}, n_stopped = 0;
    static rows x;
    for (uint32_t round = 0; round < 50000; round++) {
        make_rows(&x, &r);
        uint32_t stops[2] = {random_below(&r, x.vocab), random_below(&r, x.vocab)}, tokens[8], accepted, retained;
        spl_accept_limits l = {1 + random_below(&r, x.n_proposals + 1), stops, random_below(&r, 3)};
        if (random_below(&r, 2)) l.max_retained = x.n_proposals + 1;
        plain_rules(&x, &l, tokens, &accepted, &retained);
        spl_accept a;
        assert_int_equal(spl_accept_begin(&a, x.proposals, x.n_proposals, x.uniforms, &l, NULL), SPL_OK);
        while (!a.done) spl_accept_row(&a, &x.dist[a.row]);
        assert_int_equal(a.retained, retained);
        assert_memory_equal(a.tokens, tokens, retained * sizeof *tokens);
        assert_int_equal(a.next_anchor, tokens[retained - 1]);
        assert_int_equal(a.n_accepted, accepted < retained - 1 ? accepted : retained - 1);
        bool stop = false;
        for (uint32_t s = 0; s < l.n_stop_tokens; s++) stop |= stops[s] == a.next_anchor;
        assert_int_equal(a.stopped, stop);
        seen[retained]++, n_stopped += stop;
    }
    for (uint32_t i = 1; i <= 8; i++) assert_true(seen[i] > 100);
    assert_true(n_stopped > 1000);
}

static void rules_of_a_greedy_step(void **state) {
    (void)state;
    test_random r = {{42, 0}};
    for (uint32_t round = 0; round < 20000; round++) {
        uint32_t n = random_below(&r, 8), best[8], stop = random_below(&r, 6), accepted = 0;
        spl_proposal proposals[7] = {{0}};
        for (uint32_t i = 0; i < 8; i++) best[i] = random_below(&r, 6);
        for (uint32_t i = 0; i < n; i++) proposals[i].token = random_below(&r, 5) ? best[i] : random_below(&r, 6);
        while (accepted < n && proposals[accepted].token == best[accepted]) accepted++;
        spl_accept_limits l = {1 + random_below(&r, n + 1), &stop, random_below(&r, 2)};
        uint32_t retained = accepted + 1 < l.max_retained ? accepted + 1 : l.max_retained;
        for (uint32_t i = 0; i < retained; i++)
            if (l.n_stop_tokens && best[i] == stop) retained = i + 1;
        spl_accept a;
        assert_int_equal(spl_accept_begin(&a, proposals, n, NULL, &l, NULL), SPL_OK);
        while (!a.done) spl_accept_row_greedy(&a, best[a.row]);
        assert_int_equal(a.retained, retained);
        assert_memory_equal(a.tokens, best, retained * sizeof *best);
        assert_int_equal(a.n_accepted, retained - 1);
        assert_int_equal(a.next_anchor, best[retained - 1]);
    }
}

static void bad_counts_are_refused(void **state) {
    (void)state;
    spl_proposal proposals[8] = {{0}};
    spl_accept a;
    spl_error err;
    spl_accept_limits l = {1, NULL, 0};
    assert_int_equal(spl_accept_begin(&a, proposals, 8, NULL, &l, &err), SPL_E_INVALID);
    l.max_retained = 0;
    assert_int_equal(spl_accept_begin(&a, proposals, 7, NULL, &l, &err), SPL_E_INVALID);
    l.max_retained = 9;
    assert_int_equal(spl_accept_begin(&a, proposals, 7, NULL, &l, &err), SPL_E_INVALID);
    l.max_retained = 8, proposals[6].n_q = 17;
    assert_int_equal(spl_accept_begin(&a, proposals, 7, NULL, &l, &err), SPL_E_INVALID);
}

/* The test is strict: a token the target never emits stays out even when the uniform is 0. */
static void an_impossible_proposal_is_rejected(void **state) {
    (void)state;
    const float p[] = {0.0f, 1.0f}, q[] = {1.0f};
    const uint32_t id = 0;
    const double u[SPL_N_UNIFORMS] = {0};
    spl_dist d = {2, NULL, p, 1.0};
    spl_proposal proposals[] = {{0, 1, &id, q}, {.token = 0}};
    spl_accept_limits l = {2, NULL, 0};
    for (uint32_t i = 0; i < 2; i++) {
        spl_accept a;
        assert_int_equal(spl_accept_begin(&a, &proposals[i], 1, u, &l, NULL), SPL_OK);
        spl_accept_row(&a, &d);
        assert_true(a.done && a.retained == 1 && a.n_accepted == 0 && a.next_anchor == 1);
    }
}

/* p == q everywhere: nothing is left of the residual, p itself is drawn from. */
static void an_empty_residual_falls_back(void **state) {
    (void)state;
    const float p[] = {0.25f, 0.75f};
    const uint32_t ids[] = {0, 1};
    spl_dist d = {2, NULL, p, 1.0};
    spl_proposal same = {1, 2, ids, p};
    assert_int_equal(spl_residual_draw(&d, &same, 0.2), 0);
    assert_int_equal(spl_residual_draw(&d, &same, 0.3), 1);
    const float one[] = {1.0f};
    spl_dist sure = {1, ids + 1, one, 1.0};
    spl_proposal certain = {.token = 1};
    assert_int_equal(spl_residual_draw(&sure, &certain, 0.9), 1);
}

/* ---- law -------------------------------------------------------------------------------------------- */

enum { STATES = 6, LENGTH = 3, PROPOSALS = 2, CELLS = STATES * STATES * STATES, N_TEXTS = 200000 };
typedef enum flaw { FLAW_NONE, FLAW_WRONG_Q, FLAW_NO_RESIDUAL, FLAW_ACCEPT_ALL } flaw;

typedef struct chain {
    float target[STATES][STATES], draft[STATES][STATES];
    uint32_t ids[STATES];
    bool computed; /* proposals are computed, not drawn */
    bool sparse;
} chain;

static void make_chain(chain *c, test_random *r) {
    for (uint32_t i = 0; i < STATES; i++) {
        random_simplex(r, c->target[i], STATES, 2.0);
        random_simplex(r, c->draft[i], STATES, 2.0);
        c->ids[i] = i;
    }
}

static spl_dist row_after(const chain *c, uint32_t token) {
    spl_dist d = {STATES, c->sparse ? c->ids : NULL, c->target[token], 0.0};
    for (uint32_t i = 0; i < STATES; i++) d.sum += (double)d.p[i];
    return d;
}

/* One drafted step from `anchor`; appends what it yields to text. */
static uint32_t drafted_step(const chain *c, uint32_t anchor, spl_rng *rng, flaw f, uint32_t *text, uint32_t room) {
    static const float flat[STATES] = {0.3f, 0.1f, 0.1f, 0.2f, 0.2f, 0.1f};
    double u[SPL_N_UNIFORMS];
    spl_rng_step(rng, u);
    spl_proposal proposals[PROPOSALS];
    uint32_t previous = anchor;
    for (uint32_t i = 0; i < PROPOSALS; i++) {
        spl_dist q = {STATES, NULL, c->draft[previous], 1.0};
        proposals[i] = (spl_proposal){spl_dist_draw(&q, u[SPL_UNIFORM_DRAFT + i]), STATES, c->ids, c->draft[previous]};
        if (c->computed) proposals[i] = (spl_proposal){.token = (previous * 2 + 1) % STATES};
        previous = proposals[i].token;
        if (f == FLAW_WRONG_Q) proposals[i].q = flat;
        if (f == FLAW_ACCEPT_ALL) u[SPL_UNIFORM_ACCEPT + i] = 0.0;
    }
    spl_accept_limits l = {room < PROPOSALS + 1 ? room : PROPOSALS + 1, NULL, 0};
    spl_accept a;
    assert_int_equal(spl_accept_begin(&a, proposals, PROPOSALS, u, &l, NULL), SPL_OK);
    while (!a.done) {
        uint32_t row = a.row;
        spl_dist d = row_after(c, row ? proposals[row - 1].token : anchor);
        spl_accept_row(&a, &d);
        if (f == FLAW_NO_RESIDUAL && row < PROPOSALS && a.tokens[row] != proposals[row].token)
            a.tokens[row] = a.next_anchor = spl_dist_draw(&d, u[SPL_UNIFORM_FINAL]);
    }
    memcpy(text, a.tokens, a.retained * sizeof *text);
    return a.retained;
}

static double law_score(const chain *c, flaw f, uint64_t seed) {
    static uint32_t counts[CELLS];
    static double p[CELLS];
    memset(counts, 0, sizeof counts);
    spl_rng rng = {seed, 0};
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        uint32_t text[LENGTH], n = 0, anchor = 0;
        while (n < LENGTH) {
            n += drafted_step(c, anchor, &rng, f, text + n, LENGTH - n);
            anchor = text[n - 1];
        }
        counts[(text[0] * STATES + text[1]) * STATES + text[2]]++;
    }
    for (uint32_t i = 0; i < CELLS; i++) {
        uint32_t a = i / (STATES * STATES), b = i / STATES % STATES, d = i % STATES;
        p[i] = (double)c->target[0][a] * (double)c->target[a][b] * (double)c->target[b][d];
    }
    return chi_square_z(counts, p, CELLS, N_TEXTS);
}

static void drafted_text_follows_the_target(void **state) {
    (void)state;
    test_random r = {{43, 0}};
    for (uint32_t i = 0; i < 6; i++) {
        chain c = {.computed = i % 3 == 2, .sparse = i & 1};
        make_chain(&c, &r);
        double s = law_score(&c, FLAW_NONE, 100 + i);
        printf("chain %u (%s, %s): z %+.2f\n", i, c.computed ? "computed" : "drawn", c.sparse ? "sparse" : "dense", s);
        assert_true(s < 4.0 && s > -4.0);
    }
}

static void a_wrong_rule_is_seen(void **state) {
    (void)state;
    test_random r = {{43, 0}};
    chain c = {0};
    make_chain(&c, &r);
    double q = law_score(&c, FLAW_WRONG_Q, 1), n = law_score(&c, FLAW_NO_RESIDUAL, 1),
           a = law_score(&c, FLAW_ACCEPT_ALL, 1);
    printf("wrong q z %.1f, no residual z %.1f, all accepted z %.1f\n", q, n, a);
    assert_true(q > 10.0 && n > 10.0 && a > 10.0);
}

/* Penalties, cuts and drafting together: the law of two tokens equals token-by-token sampling of the same rows. */
static void drafted_text_with_penalties(void **state) {
    (void)state;
    enum { V = 12, N = 150000 };
    test_random r = {{44, 0}};
    float z[V + 1][V];
    const spl_sampling s = {0.9f, 8, 0.9f, 0.01f, 0.8f, 0.5f, 1.2f};
    static uint32_t counts[V * V];
    static double p[V * V];
    double first[V], second[V], margin;
    for (uint32_t i = 0; i <= V; i++)
        for (uint32_t t = 0; t < V; t++) z[i][t] = (float)random_normal(&r) * 1.5f;
    memset(counts, 0, sizeof counts);
    const uint32_t anchor = 2, q_ids[4] = {7, 2, 0, 9};
    const float q[4] = {0.4f, 0.3f, 0.2f, 0.1f};
    uint8_t *scratch = must_alloc(spl_dist_scratch_bytes(V)), *memory = must_alloc(spl_penalties_bytes(16, V));
    spl_penalties penalties;
    spl_penalties_init(&penalties, memory, 16, V);
    assert_int_equal(spl_penalties_push(&penalties, anchor, NULL), SPL_OK);
    spl_rng rng = {45, 0};
    for (uint32_t i = 0; i < N; i++) {
        double u[SPL_N_UNIFORMS];
        uint32_t text[2], n = 0;
        while (n < 2) {
            spl_rng_step(&rng, u);
            spl_dist draft = {4, q_ids, q, 1.0}, d;
            spl_proposal proposal = {spl_dist_draw(&draft, u[SPL_UNIFORM_DRAFT]), 4, q_ids, q};
            spl_accept_limits l = {2 - n, NULL, 0};
            spl_accept a;
            assert_int_equal(spl_accept_begin(&a, &proposal, 1, u, &l, NULL), SPL_OK);
            while (!a.done) {
                uint32_t previous = a.row ? proposal.token : n ? text[0] : V;
                spl_dist_input in = {.logits = z[previous], .vocab = V, .sampling = &s, .penalties = &penalties};
                assert_int_equal(spl_dist_build(&d, &in, scratch, NULL), SPL_OK);
                spl_accept_row(&a, &d);
                assert_int_equal(spl_penalties_push(&penalties, a.tokens[a.row - 1], NULL), SPL_OK);
            }
            for (uint32_t j = 0; j < a.retained; j++) text[n++] = a.tokens[j];
        }
        counts[text[0] * V + text[1]]++;
        assert_int_equal(spl_penalties_rollback(&penalties, 1, NULL), SPL_OK);
    }
    uint32_t output[2] = {anchor, 0};
    reference_input ref = {.logits = z[V], .vocab = V, .sampling = s, .output = output, .n_output = 1};
    reference_distribution(&ref, first, &margin);
    for (uint32_t t = 0; t < V; t++) {
        output[1] = t, ref.n_output = 2, ref.logits = z[t];
        reference_distribution(&ref, second, &margin);
        for (uint32_t k = 0; k < V; k++) p[t * V + k] = first[t] * second[k];
    }
    double score = chi_square_z(counts, p, V * V, N);
    printf("drafting with penalties: z %+.2f\n", score);
    assert_true(score < 4.0 && score > -4.0);
    free(scratch), free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_of_a_sampled_step),
        cmocka_unit_test(rules_of_a_greedy_step),
        cmocka_unit_test(bad_counts_are_refused),
        cmocka_unit_test(an_empty_residual_falls_back),
        cmocka_unit_test(an_impossible_proposal_is_rejected),
        cmocka_unit_test(drafted_text_follows_the_target),
        cmocka_unit_test(a_wrong_rule_is_seen),
        cmocka_unit_test(drafted_text_with_penalties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
