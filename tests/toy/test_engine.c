/* SPDX-License-Identifier: Apache-2.0
 * The engine through the public API, on toy shapes with random weights and token ids only: the same text alone
 * and among neighbours, at any thread count, chunking and lane; cancellation, deadlines, queue limit, context
 * limits, seeds, closing with work in flight. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "splash.h"

enum { MAX_OUT = 512, N_CLIENTS = 12 };

typedef struct reply {
    uint32_t tokens[MAX_OUT];
    uint32_t n, n_prefill;
    bool done, failed, started;
    splash_event last;
    float logprob_sum;
} reply;

static splash_engine *open_with(splash_options o) {
    splash_engine *e = NULL;
    splash_error err = {0};
    o.random_weights = true;
    o.cpu_tier = getenv("SPL_TEST_TIER");
    if (o.cpu_tier && !*o.cpu_tier) o.cpu_tier = NULL;
    o.memory_limit_bytes = (uint64_t)1 << 30;
    if (splash_open(&e, &o, &err) != SPLASH_OK) fail_msg("%s", err.text);
    return e;
}

static splash_engine *open_toy(const char *id, uint32_t n_threads, uint32_t context, uint32_t queue) {
    return open_with((splash_options){
        .model = id, .n_threads = n_threads, .context_tokens = context, .queue_limit = queue, .no_lookup = true});
}

static void fill_prompt(uint32_t *tokens, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) tokens[i] = (uint32_t)((i + 1) * (seed * 2u + 7919u) >> 3) % 480u;
}

static splash_request *submit(splash_engine *e, const uint32_t *tokens, size_t n, uint32_t max_new, reply *to,
                              const splash_prompt *base) {
    splash_request *r = NULL;
    splash_error err = {0};
    splash_prompt p = base ? *base : (splash_prompt){.sampling = {.top_p = 1, .repetition_penalty = 1}};
    p.tokens = tokens;
    p.n_tokens = n;
    p.max_new_tokens = max_new;
    p.ignore_eos = true;
    p.user = to;
    memset(to, 0, sizeof *to);
    if (splash_submit(e, &p, &r, &err) != SPLASH_OK) fail_msg("%s", err.text);
    return r;
}

/* Reads events until n requests have ended. */
static void drain(splash_engine *e, uint32_t n) {
    while (n > 0) {
        splash_event ev;
        assert_int_equal(splash_next_event(e, &ev, 20000), SPLASH_OK);
        assert_int_not_equal(ev.kind, SPLASH_EVENT_NONE);
        reply *to = ev.user;
        if (ev.kind == SPLASH_EVENT_STARTED) to->started = true;
        if (ev.kind == SPLASH_EVENT_PREFILL) to->n_prefill++;
        if (ev.kind == SPLASH_EVENT_TOKEN) {
            assert_true(to->n < MAX_OUT);
            to->tokens[to->n++] = ev.token;
            to->logprob_sum += ev.logprob;
        }
        if (ev.kind == SPLASH_EVENT_DONE || ev.kind == SPLASH_EVENT_FAILED) {
            to->done = true;
            to->failed = ev.kind == SPLASH_EVENT_FAILED;
            to->last = ev;
            n--;
        }
    }
}

static void neighbours_change_nothing(void **state) {
    (void)state;
    static reply alone[N_CLIENTS], together[N_CLIENTS];
    uint32_t prompt[N_CLIENTS][700];
    size_t length[N_CLIENTS];
    splash_engine *e = open_toy("toy", 1, 2048, 64);
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        length[i] = 1 + i * 61;
        fill_prompt(prompt[i], length[i], i);
        (void)submit(e, prompt[i], length[i], 20 + i, &alone[i], NULL);
        drain(e, 1);
        assert_false(alone[i].failed);
        assert_int_equal(alone[i].n, 20 + i);
        assert_int_equal(alone[i].last.finish, SPLASH_FINISH_LENGTH);
        assert_int_equal(alone[i].last.usage.prompt_tokens, length[i]);
        assert_int_equal(alone[i].last.usage.completion_tokens, 20 + i);
    }
    splash_close(&e);
    assert_null(e);
    for (uint32_t threads = 1; threads <= 2; threads++) {
        e = open_toy("toy", threads, 2048, 64);
        for (uint32_t i = 0; i < N_CLIENTS; i++) (void)submit(e, prompt[i], length[i], 20 + i, &together[i], NULL);
        drain(e, N_CLIENTS);
        for (uint32_t i = 0; i < N_CLIENTS; i++) {
            assert_int_equal(together[i].n, alone[i].n);
            assert_memory_equal(together[i].tokens, alone[i].tokens, alone[i].n * sizeof(uint32_t));
        }
        splash_close(&e);
    }
}

static void seeds_repeat_and_differ(void **state) {
    (void)state;
    static reply first, second, other;
    uint32_t prompt[9];
    splash_engine *e = open_toy("toy-even", 2, 1024, 8);
    splash_prompt p = {.logprobs = true, .n_top_logprobs = 3};
    p.sampling =
        (splash_sampling){.temperature = 1, .top_p = 0.95f, .top_k = 40, .repetition_penalty = 1.1f, .seed = 5};
    fill_prompt(prompt, 9, 3);
    (void)submit(e, prompt, 9, 60, &first, &p);
    (void)submit(e, prompt, 9, 60, &second, &p);
    p.sampling.seed = 6;
    (void)submit(e, prompt, 9, 60, &other, &p);
    drain(e, 3);
    assert_memory_equal(first.tokens, second.tokens, 60 * sizeof(uint32_t));
    assert_memory_not_equal(first.tokens, other.tokens, 60 * sizeof(uint32_t));
    assert_true(first.logprob_sum < 0);
    splash_close(&e);
}

static void cancel_ends_a_long_prefill(void **state) {
    (void)state;
    static reply long_one, short_one;
    uint32_t *prompt = calloc(4000, sizeof *prompt);
    splash_engine *e = open_toy("toy", 1, 4096, 8);
    fill_prompt(prompt, 4000, 1);
    splash_request *r = submit(e, prompt, 4000, 10, &long_one, NULL);
    (void)submit(e, prompt, 4, 4, &short_one, NULL);
    while (!long_one.started) {
        splash_event ev;
        assert_int_equal(splash_next_event(e, &ev, 20000), SPLASH_OK);
        if (ev.kind == SPLASH_EVENT_STARTED && ev.user == &long_one) long_one.started = true;
        assert_false(ev.kind == SPLASH_EVENT_DONE && ev.user == &long_one);
    }
    splash_cancel(e, r);
    while (!long_one.done) {
        splash_event ev;
        assert_int_equal(splash_next_event(e, &ev, 20000), SPLASH_OK);
        if (ev.kind != SPLASH_EVENT_DONE) continue;
        reply *to = ev.user;
        to->done = true;
        to->last = ev;
    }
    assert_int_equal(long_one.last.finish, SPLASH_FINISH_CANCELLED);
    assert_int_equal(long_one.n, 0);
    if (!short_one.done) drain(e, 1);
    splash_stats stats;
    splash_stats_get(e, &stats);
    assert_int_equal(stats.requests_cancelled, 1);
    assert_int_equal(stats.kv_pages_used, 0);
    free(prompt);
    splash_close(&e);
}

static void limits_are_named(void **state) {
    (void)state;
    static reply to[4];
    uint32_t prompt[1030] = {0};
    splash_error err;
    splash_request *r;
    splash_engine *e = open_toy("toy", 1, 1024, 1);
    splash_prompt p = {.tokens = prompt, .n_tokens = 1024, .sampling = {.top_p = 1, .repetition_penalty = 1}};
    assert_int_equal(splash_submit(e, &p, &r, &err), SPLASH_E_CONTEXT);
    assert_string_equal(err.text, "the prompt has 1024 tokens; the context of 1024 leaves room for 1023");
    p.n_tokens = 0;
    assert_int_equal(splash_submit(e, &p, &r, &err), SPLASH_E_INVALID);
    p.n_tokens = 3;
    prompt[1] = 512;
    assert_int_equal(splash_submit(e, &p, &r, &err), SPLASH_E_INVALID);
    assert_string_equal(err.text, "prompt token 1 is 512; the vocabulary has 512");
    prompt[1] = 0;
    p.sampling.top_p = 2;
    assert_int_equal(splash_submit(e, &p, &r, &err), SPLASH_E_INVALID);
    /* A full context ends by length, exactly at its end. */
    (void)submit(e, prompt, 1023, 0, &to[0], NULL);
    drain(e, 1);
    assert_int_equal(to[0].n, 1);
    assert_int_equal(to[0].last.finish, SPLASH_FINISH_LENGTH);
    /* One request waits at most: with the lanes full the second waiting one is refused. */
    splash_prompt slow = {.tokens = prompt, .n_tokens = 600, .max_new_tokens = 400, .ignore_eos = true};
    slow.sampling = (splash_sampling){.top_p = 1, .repetition_penalty = 1};
    uint32_t accepted = 0;
    splash_status st = SPLASH_OK;
    for (int i = 0; i < 50 && st == SPLASH_OK; i++) {
        slow.user = &to[1];
        st = splash_submit(e, &slow, &r, &err);
        accepted += st == SPLASH_OK;
    }
    assert_int_equal(st, SPLASH_E_BUSY);
    assert_true(accepted >= 1);
    splash_close(&e); /* with work in flight */
}

static void deadlines_fail_the_request(void **state) {
    (void)state;
    static reply to;
    splash_engine *e = open_toy("toy", 1, 4096, 4);
    splash_prompt p = {.deadline_ms = 30, .sampling = {.top_p = 1, .repetition_penalty = 1}};
    static uint32_t many[4000];
    (void)submit(e, many, 4000, 90, &to, &p);
    uint64_t begin = spl_now_ns();
    drain(e, 1);
    assert_true(to.failed);
    assert_int_equal(to.last.error.code, SPLASH_E_TIMEOUT);
    assert_true(spl_now_ns() - begin < 20000000000u);
    splash_close(&e);
}

/* Law 1: text with drafting, with lookup, with any number of rows and lanes equals text without, token for token and
 * log probability for log probability; penalties, bias and a sampled request with one choice included. */
static void drafting_changes_nothing(void **state) {
    (void)state;
    enum { N = 8, OUT = 64 };
    static reply plain[N], other[N];
    uint32_t prompt[N][120];
    const struct splash_bias bias[] = {{7, 2.5f}, {9, -100}, {300, 1}};
    splash_prompt base[N];
    for (uint32_t i = 0; i < N; i++) {
        fill_prompt(prompt[i], 120, i);
        if (i & 1) memcpy(prompt[i] + 60, prompt[i], 60 * sizeof(uint32_t)); /* a copied span: lookup has work */
        base[i] = (splash_prompt){.logprobs = true, .sampling = {.top_p = 1, .repetition_penalty = 1}};
    }
    base[2].sampling.repetition_penalty = 1.3f;
    base[3].sampling.frequency_penalty = 0.2f;
    base[3].sampling.presence_penalty = 0.5f;
    base[4].logit_bias = bias;
    base[4].n_logit_bias = 3;
    base[5].sampling.temperature = 0.7f;
    base[5].sampling.top_k = 1;
    /* A bias that decides everything makes text that repeats: proposals from the context are accepted, and with a
     * penalty on top only some of them are. */
    const struct splash_bias strong[] = {{7, 90}, {9, 89}, {11, 88}, {13, 87.5f}};
    base[6].logit_bias = base[7].logit_bias = strong;
    base[6].n_logit_bias = base[7].n_logit_bias = 4;
    base[7].sampling.frequency_penalty = 0.4f;
    splash_engine *e = open_with((splash_options){.model = "toy", .n_threads = 1, .no_lookup = true});
    for (uint32_t i = 0; i < N; i++) (void)submit(e, prompt[i], 120, OUT, &plain[i], &base[i]);
    drain(e, N);
    splash_close(&e);
    const splash_options variants[] = {
        {.model = "toy", .n_threads = 1, .random_draft = true, .no_lookup = true, .fixed_rows = 8},
        {.model = "toy", .n_threads = 2, .random_draft = true, .fixed_rows = 8},
        {.model = "toy", .n_threads = 2, .random_draft = true, .fixed_rows = 3},
        {.model = "toy", .n_threads = 1, .random_draft = true},
        {.model = "toy", .n_threads = 1, .fixed_rows = 8},
        {.model = "toy", .n_threads = 2},
    };
    for (size_t v = 0; v < SPL_COUNT(variants); v++) {
        for (uint32_t together = 0; together < 2; together++) {
            e = open_with(variants[v]);
            for (uint32_t i = 0; i < N; i++) {
                (void)submit(e, prompt[i], 120, OUT, &other[i], &base[i]);
                if (!together) drain(e, 1);
            }
            if (together) drain(e, N);
            splash_stats stats;
            splash_stats_get(e, &stats);
            if (variants[v].random_draft) assert_true(stats.draft_tokens_total > 0);
            if (variants[v].fixed_rows && !variants[v].no_lookup) assert_true(stats.lookup_tokens_total > 0);
            if (variants[v].fixed_rows == 8 && !variants[v].no_lookup) assert_true(stats.lookup_accepted_total > 0);
            for (uint32_t i = 0; i < N; i++) {
                assert_false(other[i].failed);
                assert_int_equal(other[i].n, OUT);
                assert_memory_equal(other[i].tokens, plain[i].tokens, OUT * sizeof(uint32_t));
                assert_true(other[i].logprob_sum == plain[i].logprob_sum);
            }
            splash_close(&e);
        }
    }
}

static void *reader(void *arg) {
    splash_engine *e = arg;
    splash_event ev;
    splash_status st;
    while ((st = splash_next_event(e, &ev, -1)) == SPLASH_OK) {}
    return st == SPLASH_E_CANCELLED ? arg : NULL;
}

static void shutdown_wakes_the_reader(void **state) {
    (void)state;
    static reply to;
    uint32_t prompt[5] = {5, 4, 3, 2, 1};
    pthread_t thread;
    void *result = NULL;
    splash_engine *e = open_toy("toy", 2, 1024, 4);
    assert_int_equal(pthread_create(&thread, NULL, reader, e), 0);
    (void)submit(e, prompt, 5, 200, &to, NULL);
    splash_shutdown(e);
    splash_request *r;
    splash_error err;
    splash_prompt late = {.tokens = prompt, .n_tokens = 5, .sampling = {.top_p = 1, .repetition_penalty = 1}};
    assert_int_equal(splash_submit(e, &late, &r, &err), SPLASH_E_CANCELLED);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_non_null(result);
    splash_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_change_nothing), cmocka_unit_test(seeds_repeat_and_differ),
        cmocka_unit_test(drafting_changes_nothing),  cmocka_unit_test(cancel_ends_a_long_prefill),
        cmocka_unit_test(limits_are_named),          cmocka_unit_test(deadlines_fail_the_request),
        cmocka_unit_test(shutdown_wakes_the_reader),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
