/* SPDX-License-Identifier: Apache-2.0
 * Token counts of a request: against plain counting, exact undo, refusals. */
#include "test_sample_support.h"

#include "sample/penalties.h"

typedef struct fixture {
    spl_penalties p;
    void *memory;
    size_t n_bytes;
} fixture;

static fixture make(uint32_t n_tokens, uint32_t vocab) {
    fixture f = {.n_bytes = spl_penalties_bytes(n_tokens, vocab)};
    f.memory = must_alloc(f.n_bytes);
    memset(f.memory, 0xa5, f.n_bytes);
    spl_penalties_init(&f.p, f.memory, n_tokens, vocab);
    return f;
}

static void counts_equal_plain_counting(void **state) {
    (void)state;
    test_random r = {{11, 0}};
    for (uint32_t round = 0; round < 200; round++) {
        uint32_t vocab = 1 + random_below(&r, 300), n_prompt = random_below(&r, 100), n_output = random_below(&r, 200);
        fixture f = make(n_prompt + n_output, vocab);
        uint32_t *count = calloc(vocab, sizeof *count), *prompt = calloc(vocab, sizeof *prompt);
        for (uint32_t i = 0; i < n_prompt; i++) {
            uint32_t t = random_below(&r, vocab);
            assert_int_equal(spl_penalties_add_prompt(&f.p, &t, 1, NULL), SPL_OK);
            prompt[t] = 1;
        }
        for (uint32_t i = 0; i < n_output; i++) {
            uint32_t t = random_below(&r, vocab);
            assert_int_equal(spl_penalties_push(&f.p, t, NULL), SPL_OK);
            count[t]++;
        }
        for (uint32_t t = 0; t < vocab; t++) {
            bool in_prompt;
            assert_int_equal(spl_penalties_count(&f.p, t, &in_prompt), count[t]);
            assert_int_equal(in_prompt, prompt[t]);
        }
        free(count), free(prompt), free(f.memory);
    }
}

static void rollback_restores_every_byte(void **state) {
    (void)state;
    test_random r = {{12, 0}};
    fixture f = make(4000, 700);
    uint8_t *before = must_alloc(f.n_bytes);
    uint32_t prompt[] = {1, 5, 5, 699, 0};
    assert_int_equal(spl_penalties_add_prompt(&f.p, prompt, SPL_COUNT(prompt), NULL), SPL_OK);
    for (uint32_t step = 0; step < 2000; step++) {
        uint32_t mark = f.p.n_output, n_entries = f.p.n_entries, n = random_below(&r, SPL_PENALTY_UNDO + 1);
        memcpy(before, f.memory, f.n_bytes);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(spl_penalties_push(&f.p, random_below(&r, step % 3 ? 700 : 4), NULL), SPL_OK);
        if (n) assert_memory_not_equal(before, f.memory, f.n_bytes);
        assert_int_equal(spl_penalties_rollback(&f.p, mark, NULL), SPL_OK);
        assert_memory_equal(before, f.memory, f.n_bytes);
        assert_int_equal(f.p.n_entries, n_entries);
        assert_int_equal(f.p.n_output, mark);
        assert_int_equal(spl_penalties_push(&f.p, random_below(&r, 700), NULL), SPL_OK);
    }
    free(before), free(f.memory);
}

static void refusals_change_nothing(void **state) {
    (void)state;
    spl_error err;
    fixture f = make(3, 100);
    for (uint32_t t = 10; t < 13; t++) assert_int_equal(spl_penalties_push(&f.p, t, &err), SPL_OK);
    assert_int_equal(spl_penalties_push(&f.p, 13, &err), SPL_E_LIMIT);
    assert_int_equal(spl_penalties_push(&f.p, 100, &err), SPL_E_INVALID);
    assert_string_equal(err.text, "token 100 is outside the vocabulary of 100");
    assert_int_equal(f.p.n_output, 3);
    for (uint32_t i = 0; i < 20; i++) assert_int_equal(spl_penalties_push(&f.p, 10, &err), SPL_OK);
    assert_int_equal(spl_penalties_rollback(&f.p, 24, &err), SPL_E_INTERNAL);
    assert_int_equal(spl_penalties_rollback(&f.p, 23 - SPL_PENALTY_UNDO - 1, &err), SPL_E_INTERNAL);
    assert_int_equal(spl_penalties_count(&f.p, 10, NULL), 21);
    assert_int_equal(spl_penalties_rollback(&f.p, 23 - SPL_PENALTY_UNDO, &err), SPL_OK);
    assert_int_equal(spl_penalties_count(&f.p, 10, NULL), 21 - SPL_PENALTY_UNDO);
    assert_int_equal(spl_penalties_rollback(&f.p, 23 - SPL_PENALTY_UNDO - 1, &err), SPL_E_INTERNAL);
    assert_int_equal(f.p.n_output, 23 - SPL_PENALTY_UNDO);
    /* prompt tokens end what can be taken back */
    uint32_t prompt = 11;
    assert_int_equal(spl_penalties_push(&f.p, 12, &err), SPL_OK);
    assert_int_equal(spl_penalties_add_prompt(&f.p, &prompt, 1, &err), SPL_OK);
    assert_int_equal(spl_penalties_rollback(&f.p, f.p.n_output - 1, &err), SPL_E_INTERNAL);
    free(f.memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_equal_plain_counting),
        cmocka_unit_test(rollback_restores_every_byte),
        cmocka_unit_test(refusals_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
