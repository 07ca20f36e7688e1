/* SPDX-License-Identifier: Apache-2.0
 * Proposing tokens changes no text: 200 prompts of 256 greedy tokens on the package that ships, written once plainly on
 * one thread and then with the draft, with prompt lookup and with both, by one to four lanes and one to three threads.
 * Among the prompts are hex dumps, whose proposals are mostly rejected, and slices of prose and code. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "splash.h"

enum { N_PROMPTS = 200, N_NEW = 256, SLICE_BYTES = 240, CONTEXT = 1536 };

static const char *const FILES[] = {"bench/prompts/python.jsonl", "bench/prompts/chat.jsonl",
                                    "bench/prompts/copy.jsonl", "bench/prompts/hex.jsonl",
                                    "models/nano/quality_prompts.jsonl"};

typedef struct prompt {
    uint32_t *tokens;
    size_t n_tokens;
    char id[64];
} prompt;

typedef struct answer {
    uint32_t tokens[N_NEW], n;
    splash_usage usage;
    bool busy;
} answer;

static prompt g_prompts[N_PROMPTS];
static answer g_plain[N_PROMPTS], g_answers[N_PROMPTS];

static splash_engine *open_nano(splash_options o) {
    splash_engine *e = NULL;
    splash_error err = {0};
    o.model = "models/nano";
    o.context_tokens = CONTEXT;
    o.memory_limit_bytes = (uint64_t)1 << 30;
    if (splash_open(&e, &o, &err) != SPLASH_OK) fail_msg("%s", err.text);
    return e;
}

static void add_text(const splash_engine *e, uint32_t at, const char *id, const char *text, size_t n_bytes) {
    splash_error err = {0};
    prompt *p = &g_prompts[at];
    (void)snprintf(p->id, sizeof p->id, "%s", id);
    if (splash_tokenize(e, text, n_bytes, true, &p->tokens, &p->n_tokens, &err) != SPLASH_OK) fail_msg("%s", err.text);
    assert_true(p->n_tokens > 0 && p->n_tokens + N_NEW < CONTEXT);
}

/* A prompt of a file: as it is when raw or the start of a function, else as a chat. */
static void add_row(const splash_engine *e, uint32_t at, const json_t *row) {
    const json_t *turns = json_object_get(row, "turns"); /* of a longer chat the first turn */
    const char *text = json_string_value(turns ? json_array_get(turns, 0) : json_object_get(row, "prompt")),
               *kind = json_string_value(json_object_get(row, "kind"));
    const char *id = json_string_value(json_object_get(row, "id"));
    assert_non_null(text);
    if (json_is_true(json_object_get(row, "raw")) || (kind && strcmp(kind, "python-completion") == 0)) {
        add_text(e, at, id, text, strlen(text));
        return;
    }
    json_t *request =
        json_pack("{s:[{s:s,s:s}],s:b}", "messages", "role", "user", "content", text, "add_generation_prompt", 1);
    json_t *thinking = json_object_get(row, "thinking");
    if (thinking) (void)json_object_set(request, "enable_thinking", thinking);
    char *body = json_dumps(request, 0), *rendered;
    size_t n_bytes;
    splash_error err = {0};
    if (splash_render_chat(e, body, strlen(body), &rendered, &n_bytes, NULL, &err) != SPLASH_OK)
        fail_msg("%s", err.text);
    add_text(e, at, id, rendered, n_bytes);
    free(rendered);
    free(body);
    json_decref(request);
}

static uint32_t add_file(const splash_engine *e, uint32_t at, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing", path);
    char line[8192];
    while (at < N_PROMPTS && fgets(line, sizeof line, f)) {
        json_t *row = json_loads(line, 0, NULL);
        if (!row) fail_msg("%s: a line is no JSON", path);
        add_row(e, at++, row);
        json_decref(row);
    }
    (void)fclose(f);
    return at;
}

static void read_prompts(const splash_engine *e) {
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) n = add_file(e, n, FILES[i]);
    static char text[16384];
    FILE *f = fopen("models/nano/heldout.txt", "rb");
    assert_non_null(f);
    size_t n_bytes = fread(text, 1, sizeof text, f);
    (void)fclose(f);
    assert_true(n < N_PROMPTS && n_bytes > 4096);
    size_t step = (n_bytes - SLICE_BYTES) / (N_PROMPTS - n);
    for (uint32_t i = 0; n < N_PROMPTS; n++, i++) {
        char id[64];
        (void)snprintf(id, sizeof id, "held-out text at byte %zu", i * step);
        add_text(e, n, id, text + i * step, SLICE_BYTES);
    }
}

static void submit(splash_engine *e, uint32_t at, answer *to) {
    splash_prompt p = {.tokens = g_prompts[at].tokens,
                       .n_tokens = g_prompts[at].n_tokens,
                       .max_new_tokens = N_NEW,
                       .ignore_eos = true,
                       .sampling = {.top_p = 1, .repetition_penalty = 1},
                       .user = to};
    splash_request *r = NULL;
    splash_error err = {0};
    memset(to, 0, sizeof *to);
    to->busy = true;
    if (splash_submit(e, &p, &r, &err) != SPLASH_OK) fail_msg("%s", err.text);
}

/* All prompts in order, `concurrent` of them at a time. */
static void run_all(splash_engine *e, answer *answers, uint32_t concurrent) {
    uint32_t next = 0, open = 0;
    while (next < N_PROMPTS || open > 0) {
        while (next < N_PROMPTS && open < concurrent) {
            submit(e, next, &answers[next]);
            next++;
            open++;
        }
        splash_event ev;
        assert_int_equal(splash_next_event(e, &ev, -1), SPLASH_OK);
        answer *a = ev.user;
        if (ev.kind == SPLASH_EVENT_FAILED) fail_msg("%s", ev.error.text);
        if (ev.kind == SPLASH_EVENT_TOKEN) {
            assert_true(a->n < N_NEW);
            a->tokens[a->n++] = ev.token;
        }
        if (ev.kind == SPLASH_EVENT_DONE) {
            a->usage = ev.usage;
            a->busy = false;
            open--;
        }
    }
}

static int set_up(void **state) {
    (void)state;
    splash_engine *e = open_nano((splash_options){.no_draft = true, .no_lookup = true, .n_threads = 1});
    read_prompts(e);
    run_all(e, g_plain, 1);
    splash_close(&e);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_PROMPTS; i++) free(g_prompts[i].tokens);
    return 0;
}

static void plain_answers_are_complete(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        assert_int_equal(g_plain[i].n, N_NEW);
        assert_int_equal(g_plain[i].usage.draft_tokens, 0);
    }
}

/* The same text, and proposals both taken and refused. */
static void check(splash_options o, uint32_t concurrent) {
    splash_engine *e = open_nano(o);
    run_all(e, g_answers, concurrent);
    splash_close(&e);
    uint64_t proposed = 0, accepted = 0, steps = 0;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        const answer *a = &g_answers[i], *b = &g_plain[i];
        uint32_t k = 0;
        while (k < a->n && k < b->n && a->tokens[k] == b->tokens[k]) k++;
        if (a->n != N_NEW || k < N_NEW)
            fail_msg("%s: token %u of %u differs with %u requests at a time, %u threads, fixed_rows %u",
                     g_prompts[i].id, k, a->n, concurrent, o.n_threads, o.fixed_rows);
        proposed += a->usage.draft_tokens;
        accepted += a->usage.draft_accepted;
        steps += a->usage.decode_steps;
    }
    print_message("%u at a time, %u threads: %llu steps, %llu of %llu proposals taken\n", concurrent, o.n_threads,
                  (unsigned long long)steps, (unsigned long long)accepted, (unsigned long long)proposed);
    assert_true(accepted > 0 && accepted < proposed);
}

static void draft_alone(void **state) {
    (void)state;
    check((splash_options){.n_threads = 2, .fixed_rows = 8, .no_lookup = true}, 1);
}
static void draft_by_two_lanes(void **state) {
    (void)state;
    check((splash_options){.n_threads = 1, .fixed_rows = 8, .no_lookup = true}, 2);
}
static void draft_and_lookup_by_three_lanes(void **state) {
    (void)state;
    check((splash_options){.n_threads = 3, .fixed_rows = 8}, 3);
}
static void draft_and_lookup_by_four_lanes(void **state) {
    (void)state;
    check((splash_options){.n_threads = 2, .fixed_rows = 8}, 4);
}
static void rows_chosen_by_cost(void **state) {
    (void)state;
    check((splash_options){.n_threads = 2}, 4);
}
static void rows_chosen_by_cost_alone(void **state) {
    (void)state;
    check((splash_options){.n_threads = 2}, 1);
}
static void lookup_alone(void **state) {
    (void)state;
    check((splash_options){.n_threads = 2, .fixed_rows = 8, .no_draft = true}, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_answers_are_complete),
        cmocka_unit_test(draft_alone),
        cmocka_unit_test(draft_by_two_lanes),
        cmocka_unit_test(draft_and_lookup_by_three_lanes),
        cmocka_unit_test(draft_and_lookup_by_four_lanes),
        cmocka_unit_test(rows_chosen_by_cost),
        cmocka_unit_test(rows_chosen_by_cost_alone),
        cmocka_unit_test(lookup_alone),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
