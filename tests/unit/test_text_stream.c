/* SPDX-License-Identifier: Apache-2.0
 * Streaming text: UTF-8 repair, the detokenizer (against Python's "replace", byte by byte), and the
 * stop-string scanner (against a plain search, for every way of cutting the text). */
#include "test_text_support.h"

#include "text/detokenizer.h"
#include "text/stop_text.h"

static const struct {
    const char *bytes;
    const char *text; /* bytes.decode(errors="replace") in Python */
} broken[] = {
    {"abc", "abc"},
    {"\xc3\xa9", "\xc3\xa9"},
    {"\xc3", "\xef\xbf\xbd"},
    {"\xc3(", "\xef\xbf\xbd("},
    {"\x80\x81", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xe2\x82", "\xef\xbf\xbd"},
    {"\xe2\x82x", "\xef\xbf\xbdx"},
    {"\xe2\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
    {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
    {"\xf0\x9f\x98", "\xef\xbf\xbd"},
    {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
    {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf0\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xff"
     "a\xfe",
     "\xef\xbf\xbd"
     "a\xef\xbf\xbd"},
    {"\xe0\x9f\xbf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xe0\xa0", "\xef\xbf\xbd"},
};

static void expect_text(const spl_buf *out, const char *text) {
    assert_int_equal(out->n_bytes, strlen(text));
    assert_memory_equal(out->data, text, out->n_bytes);
}

static void test_sanitise(void **state) {
    (void)state;
    for (size_t i = 0; i < SPL_COUNT(broken); i++) {
        spl_buf out;
        size_t bad;
        spl_buf_init(&out, 1000);
        assert_int_equal(spl_utf8_sanitise(&out, broken[i].bytes, strlen(broken[i].bytes)), SPL_OK);
        expect_text(&out, broken[i].text);
        assert_true(spl_utf8_valid(out.data, out.n_bytes, &bad));
        spl_buf_free(&out);
    }
}

/* In the small tokenizer a token is a byte, so each case arrives in pieces of one byte. */
static void test_detokenizer_bytes(void **state) {
    (void)state;
    spl_tokenizer *t = small_tokenizer(NULL);
    for (size_t i = 0; i < SPL_COUNT(broken); i++) {
        spl_detokenizer d;
        spl_buf out;
        spl_buf_init(&out, 1000);
        spl_detokenizer_init(&d, t, false);
        for (const char *p = broken[i].bytes; *p; p++) {
            size_t bad;
            assert_int_equal(spl_detokenizer_push(&d, (uint8_t)*p, &out), SPL_OK);
            assert_true(spl_utf8_valid(out.data, out.n_bytes, &bad));
        }
        assert_int_equal(spl_detokenizer_flush(&d, &out), SPL_OK);
        expect_text(&out, broken[i].text);
        spl_buf_free(&out);
    }
    spl_tokenizer_close(t);
}

static void test_detokenizer_state(void **state) {
    (void)state;
    spl_tokenizer *t = small_tokenizer(NULL);
    spl_detokenizer d;
    spl_buf out;
    spl_buf_init(&out, 1000);
    spl_detokenizer_init(&d, t, true);
    assert_int_equal(spl_detokenizer_push(&d, 0xc3, &out), SPL_OK);
    assert_int_equal(out.n_bytes, 0);
    spl_detokenizer saved = d;
    assert_int_equal(spl_detokenizer_push(&d, 'x', &out), SPL_OK);
    expect_text(&out, "\xef\xbf\xbdx");
    d = saved; /* roll back and take the other branch */
    spl_buf_reset(&out);
    assert_int_equal(spl_detokenizer_push(&d, ADDED_FIRST, &out), SPL_OK); /* special: hidden */
    assert_int_equal(spl_detokenizer_push(&d, 999, &out), SPL_OK);         /* names no token */
    assert_int_equal(spl_detokenizer_push(&d, 0xa9, &out), SPL_OK);
    assert_int_equal(spl_detokenizer_push(&d, ADDED_FIRST + 1, &out), SPL_OK);
    expect_text(&out, "\xc3\xa9<think>");
    spl_buf_reset(&out);
    d.skip_special = false;
    assert_int_equal(spl_detokenizer_push(&d, ADDED_FIRST, &out), SPL_OK);
    expect_text(&out, "<|im_end|>");
    /* A full buffer leaves the state alone. */
    spl_buf tight;
    spl_buf_init(&tight, 2);
    saved = d;
    assert_int_equal(spl_detokenizer_push(&d, ADDED_FIRST + 1, &tight), SPL_E_LIMIT);
    assert_int_equal(d.n_pending, saved.n_pending);
    spl_buf_free(&tight);
    spl_buf_free(&out);
    spl_tokenizer_close(t);
}

/* Where the scanner must stop: the first byte at which some string is complete, the longest of these. */
static int plain_search(const char *text, const char *const *strings, size_t n, size_t *cut) {
    for (size_t end = 1; end <= strlen(text); end++) {
        int best = -1;
        for (size_t s = 0; s < n; s++) {
            size_t length = strlen(strings[s]);
            if (length <= end && memcmp(text + end - length, strings[s], length) == 0 &&
                (best < 0 || length > strlen(strings[best])))
                best = (int)s;
        }
        if (best >= 0) {
            *cut = end - strlen(strings[best]);
            return best;
        }
    }
    *cut = strlen(text);
    return -1;
}

/* Feeds `text` in chunks of `step` bytes and compares with the plain search. */
static void check_stop(const spl_stop_set *set, const char *const *strings, size_t n, const char *text, size_t step) {
    spl_stop_state s = {0};
    spl_buf out;
    size_t cut;
    size_t used;
    int match = -1;
    int expected = plain_search(text, strings, n, &cut);
    spl_buf_init(&out, 10000);
    for (size_t at = 0; match < 0 && at < strlen(text); at += step) {
        size_t left = strlen(text) - at;
        match = spl_stop_feed(set, &s, text + at, left < step ? left : step, &out, &used);
        if (match < 0) assert_int_equal(out.n_bytes + spl_stop_held(set, &s), at + (left < step ? left : step));
    }
    assert_int_equal(spl_stop_flush(set, &s, &out), SPL_OK);
    assert_int_equal(match, expected);
    assert_int_equal(out.n_bytes, cut);
    if (cut) assert_memory_equal(out.data, text, cut);
    assert_int_equal(spl_stop_feed(set, &s, "x", 1, &out, &used), -1);
    spl_buf_free(&out);
}

static void test_stop_strings(void **state) {
    (void)state;
    static const char *const sets[][4] = {
        {"stop", NULL, NULL, NULL},   {"abcd", "bc", NULL, NULL},      {"aab", "ab", "b", NULL},
        {"abab", "baba", "bb", NULL}, {"\n\n", "###", "END", NULL},    {"\xc3\xa9", "\xe2\x82\xac", NULL, NULL},
        {"aaa", "aaaa", NULL, NULL},  {"ababac", "abac", "xab", NULL},
    };
    static const char *const texts[] = {
        "",          "stop",     "nonstop",   "sto",    "stostop",           "abcd",     "xabcx", "aaaaab",
        "ababab",    "bbaababa", "a\nb\n\nc", "##END#", "E\xc3\xa8\xc3\xa9", "\xe2\x82", "aaaaa", "abababac",
        "xxababacab"};
    for (size_t i = 0; i < SPL_COUNT(sets); i++) {
        spl_error err;
        spl_stop_set *set;
        size_t n = 0;
        while (n < 4 && sets[i][n]) n++;
        assert_int_equal(spl_stop_set_new(&set, sets[i], n, &err), SPL_OK);
        for (size_t k = 0; k < SPL_COUNT(texts); k++) {
            for (size_t step = 1; step < 12; step++) check_stop(set, sets[i], n, texts[k], step);
        }
        spl_stop_set_free(set);
    }
}

/* All texts of length 10 over two letters, against sets of random strings over the same letters. */
static void test_stop_exhaustive(void **state) {
    (void)state;
    uint32_t random = 1;
    for (int round = 0; round < 40; round++) {
        char store[5][8];
        const char *strings[5];
        for (int s = 0; s < 5; s++) {
            random = random * 1664525u + 1013904223u;
            size_t length = 1 + (random >> 8) % 6;
            for (size_t i = 0; i < length; i++) store[s][i] = (char)('a' + (random >> (16 + i) & 1));
            store[s][length] = '\0';
            strings[s] = store[s];
            for (int o = 0; o < s; o++) { /* equal strings would make the index ambiguous */
                if (strcmp(strings[o], strings[s]) == 0) memcpy(store[s], "qqq", 4);
            }
        }
        spl_error err;
        spl_stop_set *set;
        size_t n = strcmp(strings[4], "qqq") == 0 ? 4 : 5;
        assert_int_equal(spl_stop_set_new(&set, strings + 2, n - 2, &err), SPL_OK);
        for (unsigned bits = 0; bits < 1024; bits++) {
            char text[11];
            for (int i = 0; i < 10; i++) text[i] = (char)('a' + (bits >> i & 1));
            text[10] = '\0';
            size_t cut;
            spl_buf out;
            spl_stop_state s = {0};
            int match = -1;
            spl_buf_init(&out, 100);
            for (size_t at = 0; match < 0 && at < 10; at++) {
                size_t used;
                match = spl_stop_feed(set, &s, text + at, 1, &out, &used);
            }
            (void)spl_stop_flush(set, &s, &out);
            int expected = plain_search(text, strings + 2, n - 2, &cut);
            assert_int_equal(out.n_bytes, cut);
            assert_true((match < 0) == (expected < 0));
            if (match >= 0) assert_string_equal(strings[2 + match], strings[2 + expected]);
            spl_buf_free(&out);
        }
        spl_stop_set_free(set);
    }
}

static void test_stop_limits(void **state) {
    (void)state;
    spl_error err;
    spl_stop_set *set;
    const char *many[SPL_STOP_MAX_STRINGS + 1];
    for (size_t i = 0; i < SPL_COUNT(many); i++) many[i] = "x";
    assert_int_equal(spl_stop_set_new(&set, many, SPL_COUNT(many), &err), SPL_E_INVALID);
    const char *empty = "";
    assert_int_equal(spl_stop_set_new(&set, &empty, 1, &err), SPL_E_INVALID);
    assert_int_equal(spl_stop_set_new(&set, NULL, 0, &err), SPL_OK);
    assert_null(set);
    spl_stop_state s = {0};
    spl_buf out;
    size_t used;
    spl_buf_init(&out, 10);
    assert_int_equal(spl_stop_feed(NULL, &s, "abc", 3, &out, &used), -1);
    expect_text(&out, "abc");
    spl_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sanitise),          cmocka_unit_test(test_detokenizer_bytes),
        cmocka_unit_test(test_detokenizer_state), cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_stop_exhaustive),   cmocka_unit_test(test_stop_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
