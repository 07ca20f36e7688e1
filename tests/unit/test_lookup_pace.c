/* SPDX-License-Identifier: Apache-2.0
 * Prompt lookup against a plain search, and the policy that chooses how many rows to verify: it must never settle on
 * something slower than plain decoding, and must find drafting again when it pays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/lookup.h"
#include "engine/pace.h"

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static uint32_t suffix_of(const uint32_t *t, uint32_t n, uint32_t at) {
    uint32_t same = 0;
    while (same < SPL_LOOKUP_LONGEST && same < at && t[at - 1 - same] == t[n - 1 - same]) same++;
    return same;
}

/* Length of the longest suffix among the newest occurrences of the last gram, else of the last pair, by looking
 * everywhere. */
static uint32_t match_plainly(const uint32_t *t, uint32_t n) {
    uint32_t best = 0, tries = 0;
    for (uint32_t at = n - 1; at >= 2; at--) {
        uint32_t same = suffix_of(t, n, at);
        if (same >= 2 && same > best) best = same;
        if (same >= SPL_LOOKUP_GRAM && ++tries == SPL_LOOKUP_TRIES) break;
    }
    return best;
}

static spl_lookup_kind kind_of(uint32_t match) {
    return match < 3 ? SPL_LOOKUP_GUESS : match == 3 ? SPL_LOOKUP_SHORT : SPL_LOOKUP_LONG;
}

static void lookup_finds_what_search_finds(void **state) {
    (void)state;
    enum { N = 3000 };
    static uint32_t text[N];
    void *memory = malloc(spl_lookup_bytes(N));
    uint64_t seed = 11;
    uint32_t n_found = 0, n_lost = 0;
    spl_lookup l;
    assert_non_null(memory);
    for (uint32_t round = 0; round < 20; round++) {
        spl_lookup_init(&l, memory, N);
        for (uint32_t i = 0; i < N; i++) {
            text[i] = next_random(&seed) % (2 + round * 3);
            spl_lookup_push(&l, text[i]);
            if (i % 7 || i < 8) continue;
            uint32_t out[7], n = i + 1, expected = match_plainly(text, n);
            spl_lookup_kind kind;
            spl_lookup fresh = l; /* so that no copy is followed: the search alone */
            if (spl_lookup_find(&fresh, out, 7, &kind) == 0) {
                n_lost += expected != 0;
                continue;
            }
            uint32_t match = suffix_of(text, n, fresh.guess);
            for (uint32_t k = 0; k < 7; k++)
                assert_int_equal(out[k], fresh.guess + k < n ? text[fresh.guess + k] : out[fresh.guess + k - n]);
            assert_true(fresh.guess < n && match >= 2 && match <= expected);
            assert_int_equal(kind, kind_of(match));
            n_lost += match < expected; /* another gram or pair has the slot; rare */
            n_found++;
        }
    }
    assert_true(n_found > 5000);
    assert_true(n_lost * 100 < n_found);
    free(memory);
}

enum { SMALL = 512 };

typedef struct small_text {
    uint32_t memory[4096];
    spl_lookup l;
} small_text;

static void small_start(small_text *t) {
    assert_true(spl_lookup_bytes(SMALL) <= sizeof t->memory);
    spl_lookup_init(&t->l, t->memory, SMALL);
}

/* Appends n tokens first, first + 1, ... as a decoding lane does: a look before every token. */
static void write_run(small_text *t, uint32_t first, uint32_t n) {
    uint32_t out[7];
    spl_lookup_kind kind;
    for (uint32_t i = 0; i < n; i++) {
        (void)spl_lookup_find(&t->l, out, 7, &kind);
        spl_lookup_push(&t->l, first + i);
    }
}

static void read_run(small_text *t, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) spl_lookup_push(&t->l, first + i);
}

/* First token proposed, 0: none. */
static uint32_t proposed(small_text *t, spl_lookup_kind *kind) {
    uint32_t out[7], again[7];
    spl_lookup_kind same;
    uint32_t n = spl_lookup_find(&t->l, out, 7, kind);
    assert_int_equal(spl_lookup_find(&t->l, again, 7, &same), n); /* looking changes nothing */
    if (n == 0) return 0;
    assert_int_equal(same, *kind);
    assert_memory_equal(out, again, sizeof out);
    return out[0];
}

static void lookup_ignores_itself_and_its_capacity(void **state) {
    (void)state;
    uint32_t out[7];
    spl_lookup_kind kind;
    small_text t;
    small_start(&t);
    for (uint32_t i = 1; i < 6; i++) {
        spl_lookup_push(&t.l, i);
        assert_int_equal(proposed(&t, &kind), 0); /* nothing repeats */
    }
    read_run(&t, 1, 3);
    assert_int_equal(proposed(&t, &kind), 4);
    assert_int_equal(kind, SPL_LOOKUP_SHORT);
    write_run(&t, 4, 1);
    assert_int_equal(proposed(&t, &kind), 5);
    assert_int_equal(kind, SPL_LOOKUP_COPY);
    for (uint32_t i = 0; i < 2 * SMALL; i++) {
        (void)spl_lookup_find(&t.l, out, 7, &kind);
        spl_lookup_push(&t.l, 9);
    }
    assert_int_equal(t.l.n_tokens, SMALL);
}

/* A loop is proposed beyond the end of the text. */
static void lookup_goes_on_with_what_repeats(void **state) {
    (void)state;
    for (uint32_t period = 1; period <= 9; period++) {
        small_text t;
        uint32_t out[7];
        spl_lookup_kind kind;
        small_start(&t);
        read_run(&t, 1, period);
        read_run(&t, 1, period);
        read_run(&t, 1, period);
        assert_int_equal(spl_lookup_find(&t.l, out, 7, &kind), 7);
        for (uint32_t i = 0; i < 7; i++) assert_int_equal(out[i], 1 + i % period);
    }
}

/* More newer decoys than are tried: a search goes astray, the copy in progress does not. */
static void lookup_follows_a_copy_without_a_search(void **state) {
    (void)state;
    small_text t;
    spl_lookup_kind kind;
    for (int following = 0; following < 2; following++) {
        small_start(&t);
        read_run(&t, 100, 20);
        for (uint32_t i = 0; i < SPL_LOOKUP_TRIES; i++) {
            read_run(&t, 110, 3);
            read_run(&t, 300 + i, 1);
        }
        read_run(&t, 105, 2);
        if (following) {
            write_run(&t, 107, 6);
            assert_int_equal(proposed(&t, &kind), 113);
            assert_int_equal(kind, SPL_LOOKUP_COPY);
        } else {
            read_run(&t, 107, 6);
            assert_int_equal(proposed(&t, &kind), 300 + SPL_LOOKUP_TRIES - 1);
            assert_int_equal(kind, SPL_LOOKUP_SHORT);
        }
    }
}

/* A copy of 100, 101, ... is left behind 109 for n_written other tokens and goes on with token `back`. */
static uint32_t behind_change(uint32_t n_written, uint32_t back, spl_lookup_kind *kind) {
    small_text t;
    small_start(&t);
    read_run(&t, 100, 80);
    read_run(&t, 100, 2);
    write_run(&t, 102, 8);
    assert_int_equal(proposed(&t, kind), 110);
    assert_int_equal(*kind, SPL_LOOKUP_COPY);
    write_run(&t, 900, n_written);
    if (n_written > 0) assert_int_equal(proposed(&t, kind), 0);
    write_run(&t, back, 1);
    uint32_t next = proposed(&t, kind);
    if (next > 0) {
        spl_lookup_kind then;
        write_run(&t, next, 1);
        assert_int_equal(proposed(&t, &then), next + 1);
        assert_int_equal(then, SPL_LOOKUP_COPY);
    }
    return next;
}

static void lookup_finds_the_copy_behind_a_change(void **state) {
    (void)state;
    spl_lookup_kind kind;
    static const struct {
        uint32_t n_written, back;
    } changes[] = {{1, 111}, {1, 112}, {3, 111}, {1, 110}, {5, 110}, {0, 112}, {0, 141}, {15, 118}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        assert_int_equal(behind_change(changes[i].n_written, changes[i].back, &kind), changes[i].back + 1);
        assert_int_equal(kind, SPL_LOOKUP_GUESS); /* one token is not much */
    }
    assert_int_equal(behind_change(SPL_LOOKUP_LOST, 110, &kind), 0);       /* given up */
    assert_int_equal(behind_change(0, 110 + SPL_LOOKUP_WINDOW, &kind), 0); /* too far */
    assert_int_equal(behind_change(0, 109 + SPL_LOOKUP_WINDOW, &kind), 110 + SPL_LOOKUP_WINDOW);
}

/* A step may write several tokens after one look: what was proposed counts for the first of them alone. */
static void lookup_forgets_a_guess(void **state) {
    (void)state;
    small_text t;
    spl_lookup_kind kind;
    small_start(&t);
    read_run(&t, 100, 10 + SPL_LOOKUP_WINDOW);
    read_run(&t, 100, 3);
    assert_int_equal(proposed(&t, &kind), 103);
    read_run(&t, 103, 1);
    read_run(&t, 900, 1);
    read_run(&t, 103, 1);
    assert_int_equal(proposed(&t, &kind), 0);
}

/* Behind a change the old copy wins over newer spans that match no better, and loses to one that does. */
static void lookup_prefers_the_copy_that_was_left(void **state) {
    (void)state;
    for (uint32_t longer = 0; longer < 2; longer++) {
        small_text t;
        spl_lookup_kind kind;
        small_start(&t);
        read_run(&t, 100, 40);
        read_run(&t, 900, longer); /* the decoy has what was put in, too */
        read_run(&t, 110, 3);
        read_run(&t, 500, 1);
        read_run(&t, 100, 2);
        write_run(&t, 102, 8);
        read_run(&t, 900, 1);
        read_run(&t, 110, 3);
        assert_int_equal(proposed(&t, &kind), longer ? 500 : 113);
        assert_int_equal(kind, longer ? SPL_LOOKUP_LONG : SPL_LOOKUP_SHORT);
    }
}

/* Seven looked-up tokens, the first n_right as they came, of n_known that came. */
static void see(spl_pace_rates *r, spl_lookup_kind kind, uint32_t n_proposed, uint32_t n_right, uint32_t n_known) {
    static const uint32_t proposed[7] = {1, 2, 3, 4, 5, 6, 7};
    uint32_t tokens[8];
    for (uint32_t i = 0; i < 8; i++) tokens[i] = i < n_right ? 1 + i : 99;
    spl_pace_lookup_result(r, kind, proposed, n_proposed, tokens, n_known);
}

/* Plays a machine with given step times and acceptance; returns its speed over that of plain decoding. The first
 * n_slow drafted steps take twice as long, as on a machine that somebody else keeps busy. */
static double play_from(uint32_t n_slow, double row_cost, double draft_cost, double acceptance, uint32_t n_tokens,
                        uint32_t *n_drafted) {
    static spl_pace_cost cost;
    spl_pace_rates rates;
    uint64_t seed = 5;
    double seconds = 0;
    uint32_t tokens = 0;
    memset(&cost, 0, sizeof cost);
    spl_pace_rates_init(&rates);
    *n_drafted = 0;
    while (tokens < n_tokens) {
        spl_pace_offer offer = {.can_draft = true, .lookup_rows = 1, .max_rows = 8, .n_lanes = 1};
        spl_pace_choice c = spl_pace_choose(&rates, &cost, &offer);
        bool drafted = c.mode == SPL_PACE_DRAFT;
        double spent = 1 + row_cost * (c.n_rows - 1) + (drafted ? draft_cost : 0);
        uint32_t accepted = 0;
        if (drafted && *n_drafted < n_slow) spent *= 2;
        while (accepted + 1 < c.n_rows && next_random(&seed) % 1000 < acceptance * 1000) accepted++;
        if (drafted) spl_pace_draft_result(&rates, c.n_rows - 1, accepted);
        *n_drafted += drafted;
        spl_pace_cost_add(&cost, drafted, c.n_rows, spent);
        spl_pace_step_result(&rates, &cost, drafted, c.n_rows, 1, spent, accepted + 1);
        seconds += spent;
        tokens += accepted + 1;
    }
    return tokens / seconds;
}

static double play(double row_cost, double draft_cost, double acceptance, uint32_t n_tokens, uint32_t *n_drafted) {
    return play_from(0, row_cost, draft_cost, acceptance, n_tokens, n_drafted);
}

/* A text of 256 tokens whose acceptance changes every few steps, often right after it was learnt. */
static double play_moody(spl_pace_cost *cost, double row_cost, double draft_cost, uint64_t *seed) {
    spl_pace_rates rates;
    double seconds = 0, acceptance = 0;
    uint32_t tokens = 0, left = 0;
    spl_pace_rates_init(&rates);
    while (tokens < 256) {
        if (left-- == 0) {
            left = next_random(seed) % 12;
            acceptance = next_random(seed) % 3 ? 0 : (double)(next_random(seed) % 1000) / 1000;
        }
        spl_pace_offer offer = {.can_draft = true,
                                .lookup_rows = next_random(seed) % 4 ? 1 : 8,
                                .lookup_kind = (spl_lookup_kind)(next_random(seed) % SPL_N_LOOKUP_KINDS),
                                .max_rows = 256 - tokens < 8 ? 256 - tokens : 8,
                                .n_lanes = 1};
        spl_pace_choice c = spl_pace_choose(&rates, cost, &offer);
        bool drafted = c.mode == SPL_PACE_DRAFT;
        double noise = 0.995 + (double)(next_random(seed) % 1000) / 1e5;
        double spent = (1 + row_cost * (c.n_rows - 1) + (drafted ? draft_cost : 0)) * noise;
        uint32_t accepted = 0;
        while (accepted + 1 < c.n_rows && next_random(seed) % 1000 < acceptance * 1000) accepted++;
        if (drafted) spl_pace_draft_result(&rates, c.n_rows - 1, accepted);
        if (c.mode == SPL_PACE_LOOKUP) see(&rates, offer.lookup_kind, c.n_rows - 1, accepted, accepted + 1);
        spl_pace_cost_add(cost, drafted, c.n_rows, spent);
        spl_pace_step_result(&rates, cost, drafted, c.n_rows, 1, spent, accepted + 1);
        seconds += spent;
        tokens += accepted + 1;
    }
    return tokens / seconds;
}

static void pace_never_loses_three_percent(void **state) {
    (void)state;
    uint64_t seed = 11;
    double worst = 9;
    for (int world = 0; world < 400; world++) {
        double row_cost = (double)(world % 20) * 0.03, draft_cost = (double)(world / 20) * 0.05;
        spl_pace_cost cost = {0};
        (void)play_moody(&cost, row_cost, draft_cost, &seed); /* meanwhile the engine learns what steps cost */
        for (int text = 0; text < 20; text++) worst = fmin(worst, play_moody(&cost, row_cost, draft_cost, &seed));
    }
    print_message("slowest of 8,000 texts: %.4f of plain decoding\n", worst);
    assert_true(worst > 0.97);
}

static void pace_drafts_when_it_pays_and_only_then(void **state) {
    (void)state;
    uint32_t n;
    assert_true(play(0.02, 0.1, 0.8, 4000, &n) > 2.8); /* the large model: rows are nearly free */
    assert_true(n > 500);
    assert_true(play(0.02, 0.1, 0.0, 4000, &n) > 0.97); /* hopeless text costs the probes only */
    assert_true(play(0.2, 0.5, 0.05, 4000, &n) > 0.97);
    assert_true(play(0.3, 0.3, 0.6, 4000, &n) > 0.97); /* dear rows: fewer of them, or none */
    assert_true(play(0.05, 0.2, 0.55, 4000, &n) > 1.2);
}

/* What a few disturbed steps said is soon looked at again. */
static void pace_recovers_from_a_bad_start(void **state) {
    (void)state;
    uint32_t n;
    assert_true(play(0.3, 0.9, 0.93, 1500, &n) > 1.4);
    for (uint32_t n_slow = 1; n_slow <= 4; n_slow++) assert_true(play_from(n_slow, 0.3, 0.9, 0.93, 1500, &n) > 1.1);
}

static void pace_takes_a_long_copy(void **state) {
    (void)state;
    spl_pace_cost cost = {0};
    spl_pace_rates rates;
    spl_pace_rates_init(&rates);
    for (uint32_t rows = 1; rows <= 8; rows++) spl_pace_cost_add(&cost, false, rows, 1 + 0.03 * rows);
    spl_pace_cost_add(&cost, true, 8, 1.5);
    spl_pace_offer offer = {
        .can_draft = true, .lookup_rows = 8, .lookup_kind = SPL_LOOKUP_COPY, .max_rows = 8, .n_lanes = 1};
    spl_pace_choice c = spl_pace_choose(&rates, &cost, &offer);
    assert_int_equal(c.mode, SPL_PACE_LOOKUP);
    assert_int_equal(c.n_rows, 8);
    for (int i = 0; i < 100; i++) see(&rates, SPL_LOOKUP_COPY, 7, 0, 1);
    c = spl_pace_choose(&rates, &cost, &offer);
    assert_int_not_equal(c.mode, SPL_PACE_LOOKUP);
    offer.max_rows = 1; /* no budget for guesses */
    assert_int_equal(spl_pace_choose(&rates, &cost, &offer).mode, SPL_PACE_PLAIN);
}

static void check_fixed(const spl_pace_rates *r, const spl_pace_offer *o, uint32_t rows, spl_pace_mode mode,
                        uint32_t expected) {
    spl_pace_choice c = spl_pace_choose_fixed(r, o, rows);
    assert_int_equal(c.mode, mode);
    assert_int_equal(c.n_rows, expected);
}

static void fixed_rows_go_to_the_better_source(void **state) {
    (void)state;
    spl_pace_rates rates;
    spl_pace_rates_init(&rates);
    spl_pace_offer offer = {
        .can_draft = true, .lookup_rows = 8, .lookup_kind = SPL_LOOKUP_COPY, .max_rows = 8, .n_lanes = 1};
    check_fixed(&rates, &offer, 8, SPL_PACE_LOOKUP, 8);
    check_fixed(&rates, &offer, 3, SPL_PACE_LOOKUP, 3);
    offer.lookup_kind = SPL_LOOKUP_GUESS;
    check_fixed(&rates, &offer, 8, SPL_PACE_DRAFT, 8);
    for (int i = 0; i < 60; i++) spl_pace_draft_result(&rates, 7, 0); /* even a guess is better than this draft */
    check_fixed(&rates, &offer, 8, SPL_PACE_LOOKUP, 8);
    for (int i = 0; i < 60; i++) spl_pace_draft_result(&rates, 7, 7);
    check_fixed(&rates, &offer, 8, SPL_PACE_DRAFT, 8);
    offer.max_rows = 5;
    check_fixed(&rates, &offer, 8, SPL_PACE_DRAFT, 5);
    offer.can_draft = false;
    check_fixed(&rates, &offer, 8, SPL_PACE_LOOKUP, 5);
    offer.lookup_rows = 1;
    check_fixed(&rates, &offer, 8, SPL_PACE_PLAIN, 1);
    offer.can_draft = true;
    offer.max_rows = 1;
    check_fixed(&rates, &offer, 8, SPL_PACE_PLAIN, 1);
}

/* Each kind learns for itself, the first proposal apart, and only from places whose token is known. */
static void lookup_chances_are_learnt_by_kind(void **state) {
    (void)state;
    spl_pace_rates start, r;
    spl_pace_rates_init(&start);
    r = start;
    see(&r, SPL_LOOKUP_SHORT, 0, 7, 8);
    see(&r, SPL_LOOKUP_SHORT, 7, 7, 0);
    assert_memory_equal(&r, &start, sizeof r);
    see(&r, SPL_LOOKUP_SHORT, 7, 1, 1); /* what would have come later nobody knows */
    see(&r, SPL_LOOKUP_LONG, 7, 0, 8);
    assert_true(r.lookup[SPL_LOOKUP_SHORT][0] > start.lookup[SPL_LOOKUP_SHORT][0]);
    assert_true(r.lookup[SPL_LOOKUP_LONG][0] < start.lookup[SPL_LOOKUP_LONG][0]);
    r.lookup[SPL_LOOKUP_SHORT][0] = start.lookup[SPL_LOOKUP_SHORT][0];
    r.lookup[SPL_LOOKUP_LONG][0] = start.lookup[SPL_LOOKUP_LONG][0];
    assert_memory_equal(&r, &start, sizeof r);
    see(&r, SPL_LOOKUP_COPY, 7, 1, 2);
    assert_true(r.lookup[SPL_LOOKUP_COPY][0] > start.lookup[SPL_LOOKUP_COPY][0]);
    assert_true(r.lookup[SPL_LOOKUP_COPY][1] < start.lookup[SPL_LOOKUP_COPY][1]);
    spl_pace_rates all = start;
    r = start;
    see(&r, SPL_LOOKUP_GUESS, 7, 3, 8); /* as bad as a refusal at the fourth place, not at each behind it */
    see(&all, SPL_LOOKUP_GUESS, 4, 3, 4);
    assert_memory_equal(&r, &all, sizeof r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_finds_what_search_finds),
        cmocka_unit_test(lookup_ignores_itself_and_its_capacity),
        cmocka_unit_test(lookup_goes_on_with_what_repeats),
        cmocka_unit_test(lookup_follows_a_copy_without_a_search),
        cmocka_unit_test(lookup_finds_the_copy_behind_a_change),
        cmocka_unit_test(lookup_forgets_a_guess),
        cmocka_unit_test(lookup_prefers_the_copy_that_was_left),
        cmocka_unit_test(pace_drafts_when_it_pays_and_only_then),
        cmocka_unit_test(pace_never_loses_three_percent),
        cmocka_unit_test(pace_recovers_from_a_bad_start),
        cmocka_unit_test(pace_takes_a_long_copy),
        cmocka_unit_test(fixed_rows_go_to_the_better_source),
        cmocka_unit_test(lookup_chances_are_learnt_by_kind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
