/* SPDX-License-Identifier: Apache-2.0
 * The tokenizer on small vocabularies: merge order, added tokens, what the pattern splits, hostile
 * files, wrong UTF-8, and runs of one letter in linear time. */
#include "test_text_support.h"

#include <pthread.h>
#include <stdbool.h>

#include "base/clock.h"

static const char *const merges[] = {"a b", "b c", "ab c", "a a", "aa aa", "\xc4\xa0 a", "o r", NULL};

/* Encodes and compares with ids, ended by -1. */
static void expect(const spl_tokenizer *t, const char *text, bool added, const int *ids) {
    spl_error err;
    spl_token_list list = {0};
    if (spl_tokenizer_encode(t, text, strlen(text), added, &list, &err) != SPL_OK) fail_msg("%s", err.text);
    size_t n = 0;
    for (; ids[n] >= 0; n++) {
        if (n >= list.n_ids || list.ids[n] != (uint32_t)ids[n])
            fail_msg("'%s': token %zu is %d, expected %d", text, n, n < list.n_ids ? (int)list.ids[n] : -1, ids[n]);
    }
    assert_int_equal(list.n_ids, n);
    spl_token_list_free(&list);
}

#define IDS(...) ((const int[]){__VA_ARGS__, -1})

static void test_merge_order(void **state) {
    (void)state;
    spl_tokenizer *t = small_tokenizer(merges);
    expect(t, "abc", true, IDS(258)); /* ab before bc, then abc */
    expect(t, "bc", true, IDS(257));
    expect(t, "aaab", true, IDS(259, 256));      /* a b has the lower rank */
    expect(t, "aaaaa", true, IDS(260, 'a'));     /* equal ranks: leftmost first */
    expect(t, "x a", true, IDS('x', 261));       /* the space joins the word */
    expect(t, "1or2", true, IDS('1', 262, '2')); /* numbers stand alone */
    expect(t, "", true, (const int[]){-1});
    assert_int_equal(spl_tokenizer_n_tokens(t), ADDED_FIRST + 3);
    spl_tokenizer_close(t);
}

static void test_added_tokens(void **state) {
    (void)state;
    spl_tokenizer *t = small_tokenizer(merges);
    expect(t, "a<|im_end|>bc", true, IDS('a', ADDED_FIRST, 257));
    expect(t, "<think>>>", true, IDS(ADDED_FIRST + 2, '>')); /* the longest wins */
    expect(t, "<think<think>", true, IDS('<', 't', 'h', 'i', 'n', 'k', ADDED_FIRST + 1));
    expect(t, "<think>", false, IDS('<', 't', 'h', 'i', 'n', 'k', '>'));
    uint32_t id;
    size_t n;
    bool special;
    assert_true(spl_tokenizer_find(t, "<think>", &id));
    assert_int_equal(id, ADDED_FIRST + 1);
    assert_false(spl_tokenizer_find(t, "abc", &id));
    assert_memory_equal(spl_tokenizer_bytes(t, ADDED_FIRST, &n, &special), "<|im_end|>", 10);
    assert_true(n == 10 && special);
    assert_memory_equal(spl_tokenizer_bytes(t, 261, &n, &special), " a", 2);
    assert_true(n == 2 && !special);
    assert_null(spl_tokenizer_bytes(t, 999, &n, &special));
    assert_null(spl_tokenizer_bytes(t, UINT32_MAX, &n, NULL));
    spl_tokenizer_close(t);
}

static void test_normalisation(void **state) {
    (void)state;
    spl_tokenizer *t = small_tokenizer(merges);
    expect(t, "e\xcc\x81", true, IDS(0xc3, 0xa9));    /* composed */
    expect(t, "\xe2\x84\xab", true, IDS(0xc3, 0x85)); /* the Angstrom sign becomes a letter */
    expect(t, "<|im_end|>\xcc\x81", true, IDS(ADDED_FIRST, 0xcc, 0x81));
    spl_tokenizer_close(t);
}

static void test_wrong_utf8(void **state) {
    (void)state;
    static const struct {
        const char *text;
        const char *where;
    } bad[] = {{"ab\x80", "byte 2"},       {"\xc0\x80", "byte 0"},         {"a\xe2\x82", "byte 1"},
               {"\xed\xa0\x80", "byte 0"}, {"\xf4\x90\x80\x80", "byte 0"}, {"\xf8\x88\x80\x80\x80", "byte 0"},
               {"12345678\xff", "byte 8"}};
    spl_tokenizer *t = small_tokenizer(merges);
    spl_token_list list = {0};
    for (size_t i = 0; i < SPL_COUNT(bad); i++) {
        spl_error err;
        assert_int_equal(spl_tokenizer_encode(t, bad[i].text, strlen(bad[i].text), true, &list, &err), SPL_E_FORMAT);
        assert_non_null(strstr(err.text, bad[i].where));
        assert_int_equal(list.n_ids, 0);
    }
    spl_token_list_free(&list);
    spl_tokenizer_close(t);
}

/* A megabyte of one piece takes a fraction of a second; quadratic code takes hours. The limit leaves room for
 * sanitizers on a busy machine. */
static void test_long_runs(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    static const char *const units[] = {"a", " ", "\n", "=", "\xcc\x81", "\xcc\x96\xcc\x81", "ab", "<|im_end|", "'"};
    spl_tokenizer *t = small_tokenizer(merges);
    char *text = malloc(N);
    assert_non_null(text);
    for (size_t u = 0; u < SPL_COUNT(units); u++) {
        spl_error err;
        spl_token_list list = {0};
        size_t length = strlen(units[u]);
        size_t n = N / length * length;
        for (size_t i = 0; i < n; i++) text[i] = units[u][i % length];
        uint64_t start = spl_now_ns();
        assert_int_equal(spl_tokenizer_encode(t, text, n, true, &list, &err), SPL_OK);
        assert_true(spl_now_ns() - start < UINT64_C(120000000000));
        size_t total = 0;
        for (size_t i = 0; i < list.n_ids; i++) {
            size_t bytes;
            assert_non_null(spl_tokenizer_bytes(t, list.ids[i], &bytes, NULL));
            total += bytes;
        }
        assert_int_equal(total, n);
        if (u == 0) assert_int_equal(list.n_ids, N / 4);
        spl_token_list_free(&list);
    }
    free(text);
    spl_tokenizer_close(t);
}

/* The order of marks must be right, not only fast: half a megabyte above, half below, sorted by class. */
static void test_mark_order(void **state) {
    (void)state;
    enum { HALF = 100000 };
    spl_tokenizer *t = small_tokenizer(NULL);
    char *text = malloc(4 * HALF + 1);
    assert_non_null(text);
    text[0] = 'q';
    for (size_t i = 0; i < HALF; i++) {
        memcpy(text + 1 + 2 * i, "\xcc\x81", 2);
        memcpy(text + 1 + 2 * (HALF + i), "\xcc\x96", 2);
    }
    spl_error err;
    spl_token_list list = {0};
    assert_int_equal(spl_tokenizer_encode(t, text, 4 * HALF + 1, true, &list, &err), SPL_OK);
    assert_int_equal(list.n_ids, 4 * HALF + 1);
    for (size_t i = 0; i < HALF; i++) {
        assert_int_equal(list.ids[2 + 2 * i], 0x96);
        assert_int_equal(list.ids[2 + 2 * (HALF + i)], 0x81);
    }
    spl_token_list_free(&list);
    free(text);
    spl_tokenizer_close(t);
}

static void test_merges_as_pairs(void **state) {
    (void)state;
    json_t *document = small_document(merges);
    json_t *model = json_object_get(document, "model");
    json_t *pairs = json_pack("[[s,s],[s,s]]", "a", "b", "ab", "c");
    json_object_set_new(model, "merges", pairs);
    spl_error err;
    spl_tokenizer *t;
    assert_int_equal(small_load(document, NULL, &t, &err), SPL_OK);
    expect(t, "abc", true, IDS(258));
    expect(t, "bc", true, IDS('b', 'c'));
    spl_tokenizer_close(t);
}

static void test_config_adds_tokens(void **state) {
    (void)state;
    spl_error err;
    spl_tokenizer *t;
    const char *config = "{\"added_tokens_decoder\": {\"1000\": {\"content\": \"<|im_end|>\", \"special\": true},"
                         "\"1003\": {\"content\": \"<|audio|>\", \"special\": true}}}";
    assert_int_equal(small_load(small_document(merges), config, &t, &err), SPL_OK);
    assert_int_equal(spl_tokenizer_n_tokens(t), 1004);
    expect(t, "<|audio|>", true, IDS(1003));
    spl_tokenizer_close(t);
    config = "{\"added_tokens_decoder\": {\"1000\": {\"content\": \"<|other|>\"}}}";
    assert_int_equal(small_load(small_document(merges), config, &t, &err), SPL_E_FORMAT);
    assert_non_null(strstr(err.text, "contradict"));
    assert_null(t);
    config = "{\"added_tokens_decoder\": {\"10x\": {\"content\": \"<|other|>\"}}}";
    assert_int_equal(small_load(small_document(merges), config, &t, &err), SPL_E_FORMAT);
    assert_int_equal(small_load(small_document(merges), "[]", &t, &err), SPL_E_FORMAT);
}

/* Sets one member, named by a path of keys and array indices with '/', to a JSON text. */
static void patch(json_t *document, const char *path, const char *value) {
    char key[64];
    json_t *at = document;
    for (;;) {
        size_t n = strcspn(path, "/");
        memcpy(key, path, n);
        key[n] = '\0';
        json_t *child = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
        if (!path[n]) break;
        at = child;
        path += n + 1;
    }
    json_t *item = json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(item);
    if (json_is_array(at))
        json_array_set_new(at, (size_t)atoi(key), item);
    else
        json_object_set_new(at, key, item);
}

static void test_hostile_files(void **state) {
    (void)state;
    static const struct {
        const char *path, *value, *error;
        spl_status status;
    } cases[] = {
        {"version", "\"2.0\"", "version", SPL_E_UNSUPPORTED},
        {"version", "1", "version", SPL_E_UNSUPPORTED},
        {"normalizer", "{\"type\": \"NFKC\"}", "NFC", SPL_E_UNSUPPORTED},
        {"normalizer", "7", "NFC", SPL_E_UNSUPPORTED},
        {"pre_tokenizer", "null", "Sequence", SPL_E_UNSUPPORTED},
        {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "Isolated", SPL_E_UNSUPPORTED},
        {"pre_tokenizer/pretokenizers/0/pattern", "{\"Regex\": \"(a+)+$\"}", "pattern", SPL_E_UNSUPPORTED},
        {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \"a\"}", "pattern", SPL_E_UNSUPPORTED},
        {"pre_tokenizer/pretokenizers/1/use_regex", "true", "use_regex", SPL_E_UNSUPPORTED},
        {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space", SPL_E_UNSUPPORTED},
        {"decoder", "{\"type\": \"WordPiece\"}", "decoder", SPL_E_UNSUPPORTED},
        {"post_processor", "{\"type\": \"TemplateProcessing\"}", "post_processor", SPL_E_UNSUPPORTED},
        {"model", "[]", "model", SPL_E_FORMAT},
        {"model/type", "\"Unigram\"", "BPE", SPL_E_UNSUPPORTED},
        {"model/dropout", "0.1", "dropout", SPL_E_UNSUPPORTED},
        {"model/byte_fallback", "true", "byte_fallback", SPL_E_UNSUPPORTED},
        {"model/ignore_merges", "true", "ignore_merges", SPL_E_UNSUPPORTED},
        {"model/unk_token", "\"<unk>\"", "unk_token", SPL_E_UNSUPPORTED},
        {"model/continuing_subword_prefix", "\"##\"", "prefix", SPL_E_UNSUPPORTED},
        {"model/vocab", "{}", "entries", SPL_E_LIMIT},
        {"model/vocab", "{\"a\": 0}", "byte 0x00", SPL_E_FORMAT},
        {"model/vocab", "[]", "vocab", SPL_E_FORMAT},
        {"model/vocab/a", "-1", "non-negative", SPL_E_FORMAT},
        {"model/vocab/a", "1.5", "non-negative", SPL_E_FORMAT},
        {"model/vocab/a", "98", "two tokens", SPL_E_FORMAT},
        {"model/vocab/a", "4294967295", "too large", SPL_E_LIMIT},
        {"model/vocab/a", "1048576", "too large", SPL_E_LIMIT},
        {"model/vocab/", "3000", "0 bytes", SPL_E_LIMIT},
        {"model/merges", "{}", "merges", SPL_E_FORMAT},
        {"model/merges/0", "\"a  b\"", "one space", SPL_E_FORMAT},
        {"model/merges/0", "\"ab\"", "one space", SPL_E_FORMAT},
        {"model/merges/0", "\"a x\"", "vocab", SPL_E_FORMAT},
        {"model/merges/0", "\"zz a\"", "vocab", SPL_E_FORMAT},
        {"model/merges/0", "[\"a\"]", "pair", SPL_E_FORMAT},
        {"model/merges/0", "[\"a\", 1]", "pair", SPL_E_FORMAT},
        {"model/merges/0", "[\"a\", \"\"]", "vocab", SPL_E_FORMAT},
        {"model/merges/0", "[\"a\\u0000\", \"b\"]", "NUL", SPL_E_FORMAT},
        {"model/merges/0", "null", "pair", SPL_E_FORMAT},
        {"added_tokens", "{}", "array", SPL_E_FORMAT},
        {"added_tokens/0", "{}", "id", SPL_E_FORMAT},
        {"added_tokens/0/id", "1048576", "too large", SPL_E_LIMIT},
        {"added_tokens/0/id", "97", "vocabulary", SPL_E_FORMAT},
        {"added_tokens/0/id", "1001", "contradict", SPL_E_FORMAT},
        {"added_tokens/0/content", "\"\"", "content", SPL_E_FORMAT},
        {"added_tokens/0/content", "\"a\\u0000b\"", "content", SPL_E_FORMAT},
        {"added_tokens/0/content", "\"<think>\"", "contradict", SPL_E_FORMAT},
        {"added_tokens/0/content", "\"ab\"", "vocabulary", SPL_E_FORMAT},
        {"added_tokens/0/special", "1", "special", SPL_E_FORMAT},
    };
    for (size_t i = 0; i < SPL_COUNT(cases); i++) {
        spl_error err = {0};
        spl_tokenizer *t = NULL;
        json_t *document = small_document(merges);
        patch(document, cases[i].path, cases[i].value);
        spl_status st = small_load(document, NULL, &t, &err);
        if (st != cases[i].status || !strstr(err.text, cases[i].error) || t)
            fail_msg("%s = %s: status %d, '%s'", cases[i].path, cases[i].value, (int)st, err.text);
    }
    spl_error err;
    spl_tokenizer *t;
    static const char *const texts[] = {"", "[]", "{", "{\"version\": \"1.0\"}", "\xff", "{\"a\":1,\"a\":2}"};
    for (size_t i = 0; i < SPL_COUNT(texts); i++)
        assert_true(spl_tokenizer_parse(&t, texts[i], strlen(texts[i]), NULL, 0, &err) != SPL_OK && !t);
    assert_int_equal(spl_tokenizer_load(&t, "/nonexistent/tokenizer.json", NULL, &err), SPL_E_NOTFOUND);
}

enum { N_THREADS = 4, N_ROUNDS = 50 };

typedef struct worker {
    pthread_t thread;
    const spl_tokenizer *t;
    bool same;
} worker;

static void *encode_often(void *context) {
    static const char text[] = "abc aaa e\xcc\x81 <|im_end|> or 12\n\n  'll <think>";
    worker *w = context;
    spl_error err;
    spl_token_list first = {0};
    spl_token_list again = {0};
    w->same = spl_tokenizer_encode(w->t, text, sizeof text - 1, true, &first, &err) == SPL_OK;
    for (int i = 0; i < N_ROUNDS && w->same; i++) {
        again.n_ids = 0;
        w->same = spl_tokenizer_encode(w->t, text, sizeof text - 1, true, &again, &err) == SPL_OK &&
                  again.n_ids == first.n_ids && memcmp(again.ids, first.ids, first.n_ids * sizeof *first.ids) == 0;
    }
    spl_token_list_free(&first);
    spl_token_list_free(&again);
    return NULL;
}

/* One tokenizer, several threads; the thread sanitizer build watches. */
static void test_threads(void **state) {
    (void)state;
    spl_tokenizer *t = small_tokenizer(merges);
    worker workers[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        workers[i].t = t;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, encode_often, &workers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        assert_true(workers[i].same);
    }
    spl_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge_order),     cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_normalisation),   cmocka_unit_test(test_wrong_utf8),
        cmocka_unit_test(test_long_runs),       cmocka_unit_test(test_mark_order),
        cmocka_unit_test(test_merges_as_pairs), cmocka_unit_test(test_config_adds_tokens),
        cmocka_unit_test(test_hostile_files),   cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
