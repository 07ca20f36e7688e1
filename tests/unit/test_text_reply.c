/* SPDX-License-Identifier: Apache-2.0
 * The reply reader in C: each reply is fed whole and byte by byte and written out as one line, and both must equal the
 * expected line. Types of values are compared with the table in tests/text/test_reply.py as well. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/dynbuf.h"
#include "text/reply_parser.h"
#include "text/tool_value.h"

/* R and C stand for reasoning and content, N for a call's name, A for arguments, E or U for a finished or unfinished
 * call; pieces of one kind are joined. */
typedef struct record {
    spl_buf line;
    char last;
    int left; /* deltas until the receiver fails; negative: never */
} record;

static spl_status receive(void *context, const spl_reply_delta *d) {
    record *r = context;
    if (r->left == 0) return SPL_E_CANCELLED;
    r->left--;
    char kind = "RCNAE"[d->kind];
    if (kind == 'E' && !d->complete) kind = 'U';
    if (kind != r->last || kind == 'N') (void)spl_buf_printf(&r->line, "|%c:", kind);
    r->last = kind;
    return d->n_bytes ? spl_buf_append(&r->line, d->text, d->n_bytes) : r->line.status;
}

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"}}}}}]";

enum { THINK = 1, CUT = 2, NO_CALLS = 4 };

static void check(const char *text, int flags, const char *expected) {
    json_t *tools = json_loads(tools_text, 0, NULL);
    for (size_t step = 1; step < 100000; step *= 7) {
        spl_error err;
        spl_reply_parser *p;
        record r = {.left = -1};
        spl_reply_options options = {flags & THINK, !(flags & NO_CALLS), tools};
        spl_buf_init(&r.line, 1 << 20);
        assert_int_equal(spl_reply_new(&p, &options, receive, &r, &err), SPL_OK);
        for (size_t at = 0; at < strlen(text); at += step) {
            size_t left = strlen(text) - at;
            assert_int_equal(spl_reply_feed(p, text + at, left < step ? left : step), SPL_OK);
        }
        assert_int_equal(spl_reply_finish(p, flags & CUT), SPL_OK);
        assert_string_equal(r.line.data ? r.line.data : "", expected);
        spl_reply_free(p);
        spl_buf_free(&r.line);
    }
    json_decref(tools);
}

#define CALL(body) "<tool_call>\n<function=f>\n" body "</function>\n</tool_call>"
#define P(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"

static void test_text(void **state) {
    (void)state;
    check("", 0, "");
    check("hello", 0, "|C:hello");
    check("\n\n hello \n", 0, "|C:hello \n");
    check("why\n\n because\n</think>\n\nanswer", THINK, "|R:why\n\n because|C:answer");
    check("only thinking", THINK, "|R:only thinking");
    check("  \n</think>x", THINK, "|C:x");
    check("a</think>b</think>c", THINK, "|R:a|C:bc");
    check("a </thin b", THINK, "|R:a </thin b");
    check("a < b", 0, "|C:a < b");
    check("a </thin", THINK, "|R:a </thin");
    check("a <", 0, "|C:a <");
    check("a <tool_call>\n<func", 0, "|C:a <tool_call>\n<func");
}

static void test_calls(void **state) {
    (void)state;
    check(CALL(""), 0, "|N:f|A:{}|E:");
    check("Look.\n\n" CALL(P("s", "x") P("i", "5")) "\n", 0, "|C:Look.|N:f|A:{\"s\":\"x\",\"i\":5}|E:");
    check(CALL("") "\n" CALL(""), 0, "|N:f|A:{}|E:|N:f|A:{}|E:");
    check("r</think>\n\n" CALL(P("b", "True")), THINK, "|R:r|N:f|A:{\"b\":true}|E:");
    check("r\n" CALL(P("b", "no")), THINK, "|R:r|N:f|A:{\"b\":\"no\"}|E:");
    check("r\n" CALL("") "x", THINK, "|R:r|N:f|A:{}|E:|C:x");
    check(CALL("") " tail ", 0, "|N:f|A:{}|E:|C:tail ");
    check("a \n" CALL("") "\n b", 0, "|C:a|N:f|A:{}|E:|C: \n\n b");
    check(CALL(P("s", "one\n\ntwo\n")), 0, "|N:f|A:{\"s\":\"one\\n\\ntwo\\n\"}|E:");
    check(CALL(P("s", "</parameter>\n<x>\n</function>")), 0, "|N:f|A:{\"s\":\"</parameter>\\n<x>\\n</function>\"}|E:");
    check(CALL(P("s", "1") P("s", "2")), 0, "|N:f|A:{\"s\":\"1\"}|E:");
    check("<tool_call>\n<function=other>\n" P("z", "[1, 2]") "</tool_call>x", 0, "|N:other|A:{\"z\":[1,2]}|E:|C:x");
}

static void test_no_calls(void **state) {
    (void)state;
    check(CALL(""), NO_CALLS, "|C:" CALL(""));
    check("<tool_call>\n{}\n</tool_call>", 0, "|C:<tool_call>\n{}\n</tool_call>");
    check("<tool_call>\n<function=>\nx", 0, "|C:<tool_call>\n<function=>\nx");
    check("<tool_call>\n<function=f", 0, "|C:<tool_call>\n<function=f");
    check("t <tool_call>\n<function=a b>c", THINK, "|R:t <tool_call>\n<function=a b>c");
}

static void test_unfinished(void **state) {
    (void)state;
    check("<tool_call>\n<function=f>\n" P("i", "1") "<parameter=s>\nab", CUT, "|N:f|A:{\"i\":1,\"s\":\"ab|U:");
    check("<tool_call>\n<function=f>\n" P("i", "1") "<parameter=s>\nab", 0, "|N:f|A:{\"i\":1,\"s\":\"ab\"}|E:");
    check("<tool_call>\n<function=f>\n<parameter=i>\n12", CUT, "|N:f|A:{|U:");
    check("<tool_call>\n<function=f>\n<parameter=i>\n12\n</parameter>", 0, "|N:f|A:{\"i\":12}|E:");
    check("<tool_call>\n<function=f>\n<param", 0, "|N:f|A:{}|E:");
}

/* Whatever the receiver returns comes back, and nothing is delivered after it. */
static void test_receiver_failure(void **state) {
    (void)state;
    static const char text[] = "a</think>b" CALL(P("s", "x")) "c";
    for (int n = 0; n < 6; n++) {
        spl_error err;
        spl_reply_parser *p;
        record r = {.left = n};
        spl_reply_options options = {.opens_thinking = true, .parse_calls = true};
        spl_buf_init(&r.line, 1000);
        assert_int_equal(spl_reply_new(&p, &options, receive, &r, &err), SPL_OK);
        assert_int_equal(spl_reply_feed(p, text, strlen(text)), SPL_E_CANCELLED);
        assert_int_equal(spl_reply_feed(p, "more", 4), SPL_E_CANCELLED);
        assert_int_equal(spl_reply_finish(p, false), SPL_E_CANCELLED);
        assert_int_equal(r.left, 0);
        spl_reply_free(p);
        spl_buf_free(&r.line);
    }
}

static void test_minify(void **state) {
    (void)state;
    static const struct {
        const char *text;
        unsigned type;
        const char *out;
    } cases[] = {
        {" { \"a\" : [ 1 , 2.50 , -0 , 1E5 ] } ", SPL_TYPE_OBJECT, "{\"a\":[1,2.50,-0,1E5]}"},
        {"\"\\u00e9\\ud83d\\ude00\\u001f\\/\\n\"", SPL_TYPE_STRING, "\"\xc3\xa9\xf0\x9f\x98\x80\\u001f/\\n\""},
        {"12345678901234567890123", SPL_TYPE_NUMBER, "12345678901234567890123"},
        {"null", SPL_TYPE_NULL, "null"},
        {"false", SPL_TYPE_BOOLEAN, "false"},
        {"[]", SPL_TYPE_ARRAY, "[]"},
        {"", 0, ""},
        {" ", 0, ""},
        {"01", 0, ""},
        {"1.", 0, ""},
        {".5", 0, ""},
        {"1e", 0, ""},
        {"-", 0, ""},
        {"nul", 0, ""},
        {"[1 2]", 0, ""},
        {"{\"a\"}", 0, ""},
        {"{a:1}", 0, ""},
        {"\"\\ud800\"", 0, ""},
        {"\"\\udc00\"", 0, ""},
        {"\"a\nb\"", 0, ""},
        {"\"\\x\"", 0, ""},
        {"[1],", 0, ""},
        {"1e400", 0, ""},
        {"NaN", 0, ""},
        {"[", 0, ""},
        {"\"", 0, ""},
        {"\"\\u12\"", 0, ""},
        {"tru\0e", 0, ""},
    };
    for (size_t i = 0; i < SPL_COUNT(cases); i++) {
        spl_buf out;
        spl_buf_init(&out, 1000);
        (void)spl_buf_putc(&out, '.');
        unsigned type = spl_json_minify(&out, cases[i].text, strlen(cases[i].text));
        if (type != cases[i].type) fail_msg("%s: type %u", cases[i].text, type);
        assert_int_equal(out.n_bytes, strlen(cases[i].out) + 1);
        assert_memory_equal(out.data + 1, cases[i].out, out.n_bytes - 1);
        spl_buf_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_no_calls),
        cmocka_unit_test(test_unfinished),
        cmocka_unit_test(test_receiver_failure),
        cmocka_unit_test(test_minify),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
