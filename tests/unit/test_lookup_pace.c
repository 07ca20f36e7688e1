/* SPDX-License-Identifier: Apache-2.0
 * Prompt lookup against a plain search, and the policy that chooses how many rows to verify: it must never settle on
 * something slower than plain decoding, and must find drafting again when it pays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/lookup.h"
#include "engine/pace.h"

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* The newest earlier end of a repeated gram, by looking everywhere. */
static uint32_t find_plainly(const uint32_t *t, uint32_t n, uint32_t *match) {
    for (uint32_t at = n - 1; at >= SPL_LOOKUP_GRAM; at--) {
        uint32_t same = 0;
        while (same < SPL_LOOKUP_LONGEST && same < at && t[at - 1 - same] == t[n - 1 - same]) same++;
        if (same >= SPL_LOOKUP_GRAM) {
            *match = same;
            return at;
        }
    }
    return 0;
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
            uint32_t out[7], match, expected_match = 0;
            uint32_t n = spl_lookup_find(&l, out, 7, &match);
            uint32_t at = find_plainly(text, i + 1, &expected_match);
            if (n == 0) {
                n_lost += at != 0; /* a newer gram may have taken the slot; rare */
                continue;
            }
            n_found++;
            assert_int_not_equal(at, 0);
            assert_true(match >= SPL_LOOKUP_GRAM);
            assert_true(n == 7 || n == i + 1 - at || match != expected_match);
            if (match == expected_match) assert_memory_equal(out, text + at, n * sizeof *out);
        }
    }
    assert_true(n_found > 1500);
    assert_true(n_lost * 3 < n_found);
    free(memory);
}

static void lookup_ignores_itself_and_its_capacity(void **state) {
    (void)state;
    uint32_t memory[1024], out[7], match;
    spl_lookup l;
    assert_true(spl_lookup_bytes(16) <= sizeof memory);
    spl_lookup_init(&l, memory, 16);
    for (uint32_t i = 0; i < 5; i++) {
        spl_lookup_push(&l, i);
        assert_int_equal(spl_lookup_find(&l, out, 7, &match), 0); /* nothing repeats */
    }
    for (uint32_t i = 0; i < 3; i++) spl_lookup_push(&l, i);
    assert_int_equal(spl_lookup_find(&l, out, 7, &match), 5);
    assert_int_equal(match, 3);
    assert_int_equal(out[0], 3);
    for (uint32_t i = 0; i < 100; i++) spl_lookup_push(&l, 9);
    assert_int_equal(l.n_tokens, 16);
}

/* Plays a machine with given step times and acceptance; returns its speed over that of plain decoding. */
static double play(double row_cost, double draft_cost, double acceptance, uint32_t n_tokens, uint32_t *n_drafted) {
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
        while (accepted + 1 < c.n_rows && next_random(&seed) % 1000 < acceptance * 1000) accepted++;
        if (drafted) spl_pace_draft_result(&rates, c.n_rows - 1, accepted);
        *n_drafted += drafted;
        spl_pace_cost_add(&cost, drafted, c.n_rows, spent);
        seconds += spent;
        tokens += accepted + 1;
    }
    return tokens / seconds;
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

static void pace_takes_a_long_copy(void **state) {
    (void)state;
    spl_pace_cost cost = {0};
    spl_pace_rates rates;
    spl_pace_rates_init(&rates);
    for (uint32_t rows = 1; rows <= 8; rows++) spl_pace_cost_add(&cost, false, rows, 1 + 0.03 * rows);
    spl_pace_cost_add(&cost, true, 8, 1.5);
    spl_pace_offer offer = {.can_draft = true, .lookup_rows = 8, .lookup_match = 40, .max_rows = 8, .n_lanes = 1};
    spl_pace_choice c = spl_pace_choose(&rates, &cost, &offer);
    assert_int_equal(c.mode, SPL_PACE_LOOKUP);
    assert_int_equal(c.n_rows, 8);
    for (int i = 0; i < 100; i++) spl_pace_lookup_result(&rates, 40, 7, 0);
    c = spl_pace_choose(&rates, &cost, &offer);
    assert_int_not_equal(c.mode, SPL_PACE_LOOKUP);
    offer.max_rows = 1; /* no budget for guesses */
    assert_int_equal(spl_pace_choose(&rates, &cost, &offer).mode, SPL_PACE_PLAIN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_finds_what_search_finds),
        cmocka_unit_test(lookup_ignores_itself_and_its_capacity),
        cmocka_unit_test(pace_drafts_when_it_pays_and_only_then),
        cmocka_unit_test(pace_takes_a_long_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
