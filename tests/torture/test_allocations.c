/* SPDX-License-Identifier: Apache-2.0
 * Every allocation of opening, serving and closing fails once, and from there on. The library must answer with an
 * error or a failed request, never crash, hang or leak (leaks are told by the address sanitiser). The linker sends
 * the library's allocations here (--wrap); see the Makefile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "splash.h"
#include "text/chat_template.h"
#include "text/reply_parser.h"
#include "text/stop_text.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
int __real_posix_memalign(void **p, size_t alignment, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
int __wrap_posix_memalign(void **p, size_t alignment, size_t n);

static atomic_long left = -1; /* allocations that still succeed; negative: all do */
static atomic_bool for_good;  /* whether those after the failing one fail too */

static bool fails(void) {
    long now = atomic_load(&left);
    if (now < 0) return false;
    if (now > 0) {
        atomic_fetch_sub(&left, 1);
        return false;
    }
    if (!atomic_load(&for_good)) atomic_store(&left, -1);
    return true;
}

void *__wrap_malloc(size_t n) { return fails() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return fails() ? NULL : __real_realloc(p, n); }
int __wrap_posix_memalign(void **p, size_t alignment, size_t n) {
    return fails() ? ENOMEM : __real_posix_memalign(p, alignment, n);
}

/* Opens, runs two requests and closes; true when everything succeeded. */
static bool serve_once(void) {
    static const uint32_t prompt[] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2};
    const char *const stops[] = {"never"};
    splash_engine *e = NULL;
    splash_error err = {0};
    splash_options o = {.model = "toy-tiny",
                        .random_weights = true,
                        .random_draft = true,
                        .n_threads = 2,
                        .context_tokens = 1024,
                        .memory_limit_bytes = 1 << 28};
    splash_status st = splash_open(&e, &o, &err);
    if (st != SPLASH_OK) {
        assert_null(e);
        assert_int_equal(st, SPLASH_E_NOMEM);
        assert_true(err.text[0] != '\0');
        return false;
    }
    uint32_t expected = 0, n_failed = 0;
    for (uint32_t i = 0; i < 2; i++) {
        splash_request *r;
        splash_prompt p = {.tokens = prompt,
                           .n_tokens = 10,
                           .max_new_tokens = 9,
                           .ignore_eos = true,
                           .stop = stops,
                           .n_stop = 1,
                           .logprobs = true,
                           .n_top_logprobs = 2,
                           .chat = true,
                           .tools_json = "[]",
                           .sampling = {.temperature = (float)i, .top_p = 1, .repetition_penalty = 1.1f, .seed = 3}};
        st = splash_submit(e, &p, &r, &err);
        if (st == SPLASH_OK) expected++;
        if (st != SPLASH_OK) assert_int_equal(st, SPLASH_E_NOMEM);
        n_failed += st != SPLASH_OK;
    }
    while (expected > 0) {
        splash_event ev;
        assert_int_equal(splash_next_event(e, &ev, 20000), SPLASH_OK);
        assert_int_not_equal(ev.kind, SPLASH_EVENT_NONE);
        if (ev.kind == SPLASH_EVENT_FAILED) n_failed++;
        if (ev.kind == SPLASH_EVENT_DONE || ev.kind == SPLASH_EVENT_FAILED) expected--;
    }
    splash_close(&e);
    return n_failed == 0;
}

static void every_allocation_of_the_engine(void **state) {
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        long n = 0;
        uint32_t successes = 0;
        atomic_store(&for_good, mode == 1);
        for (; n < 3000 && successes < 3; n += n < 150 ? 1 : 7) {
            atomic_store(&left, n);
            bool good = serve_once();
            bool untouched = atomic_load(&left) > 0;
            atomic_store(&left, -1);
            successes = good && untouched ? successes + 1 : 0;
        }
        print_message("%ld allocations failed in turn, %s\n", n, mode ? "and all after them" : "one by one");
        assert_int_equal(successes, 3);
    }
}

static spl_status ignore_delta(void *context, const spl_reply_delta *delta) {
    (void)context;
    (void)delta;
    return SPL_OK;
}

/* The text side: templates, stop strings, replies. */
static bool render_once(json_t *messages, json_t *tools) {
    spl_error err;
    spl_chat_rendering out;
    spl_chat_options options = {.add_generation_prompt = true};
    spl_chat_rendering_init(&out);
    spl_status st = spl_chat_template_render(SPL_CHAT_QWEN3_8, messages, tools, &options, &out, &err);
    spl_chat_rendering_free(&out);
    if (st != SPL_OK) return false;
    static const char text[] =
        "think</think>\n\nx<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"
        "</tool_call>";
    const char *const strings[] = {"abc", "cde"};
    spl_stop_set *stops = NULL;
    spl_reply_parser *reply = NULL;
    spl_reply_options how = {.opens_thinking = true, .parse_calls = true, .tools = tools};
    st = spl_stop_set_new(&stops, strings, 2, &err);
    if (st == SPL_OK) st = spl_reply_new(&reply, &how, ignore_delta, NULL, &err);
    for (size_t i = 0; st == SPL_OK && i < sizeof text - 1; i++) st = spl_reply_feed(reply, text + i, 1);
    if (st == SPL_OK) st = spl_reply_finish(reply, false);
    spl_reply_free(reply);
    spl_stop_set_free(stops);
    return st == SPL_OK;
}

static void every_allocation_of_the_text_side(void **state) {
    (void)state;
    json_t *messages =
        json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "system", "content", "be brief", "role", "user", "content", "hello");
    json_t *tools = json_pack("[{s:s,s:{s:s,s:{s:s,s:{s:{s:s}}}}}]", "type", "function", "function", "name", "f",
                              "parameters", "type", "object", "properties", "a", "type", "integer");
    assert_non_null(messages);
    assert_non_null(tools);
    atomic_store(&for_good, false);
    long n = 0;
    for (bool good = false; !good; n++) {
        assert_true(n < 2000);
        atomic_store(&left, n);
        good = render_once(messages, tools) && atomic_load(&left) > 0;
        atomic_store(&left, -1);
    }
    assert_true(n > 5);
    json_decref(messages);
    json_decref(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_the_engine),
        cmocka_unit_test(every_allocation_of_the_text_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
