/* SPDX-License-Identifier: Apache-2.0
 * What the benchmarks conclude from what they see: medians, roofs, the rules that judge an answer, prompt files,
 * addresses. The measurements themselves are tested from outside, in tests/bench. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench_generate.h"
#include "bench/bench_http.h"
#include "bench/bench_quality.h"
#include "bench/roof.h"

static bool near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void samples_have_a_median(void **state) {
    (void)state;
    spl_samples s = {0};
    assert_true(spl_samples_median(&s) == 0);
    const double values[] = {5, 1, 4, 2};
    for (size_t i = 0; i < SPL_COUNT(values); i++) spl_samples_add(&s, values[i]);
    assert_true(near(spl_samples_median(&s), 3));
    spl_samples_add(&s, 100);
    assert_true(near(spl_samples_median(&s), 4));
    assert_true(near(spl_samples_quantile(&s, 0.99), 100));
    assert_true(near(spl_samples_quantile(&s, 0.2), 1));
    spl_bench_json j = {0};
    spl_put_samples(&j, "t", &s);
    assert_true(near(json_real_value(json_object_get(j.object, "t_min")), 1));
    assert_true(near(json_real_value(json_object_get(j.object, "t_max")), 100));
    assert_true(near(json_real_value(json_object_get(j.object, "t_spread")), 99.0 / 4));
    json_decref(j.object);
}

static void the_roof_is_the_slower_of_both(void **state) {
    (void)state;
    spl_roof_rates rates = {.read_gb = 10, .int8_gmac = 500};
    assert_true(near(spl_roof_seconds(&rates, 10000000000, 1000000000), 1));
    assert_true(near(spl_roof_seconds(&rates, 1000000000, 500000000000), 1));
}

static void a_roof_reads_what_it_is_given(void **state) {
    (void)state;
    spl_error err;
    spl_team *team = NULL;
    static spl_roof roof;
    spl_roof_rates r;
    size_t n = SPL_ROOF_LEAST_BYTES;
    void *mapping;
    size_t mapped_bytes;
    const uint8_t *memory = spl_bench_map(n, &mapping, &mapped_bytes); /* untouched: one page of zeroes everywhere */
    assert_non_null(memory);
    assert_int_equal(spl_team_create(&team, 2, spl_set_ftz, &err), SPL_OK);
    assert_int_equal(spl_roof_open(&roof, team, SPL_TIER_REF, (spl_roof_memory){memory, n}, 0, &err), SPL_OK);
    assert_ptr_equal(roof.memory.data, memory);
    assert_null(roof.mapping);
    spl_roof_take_due(&roof);
    spl_roof_take_due(&roof); /* not due yet */
    assert_int_equal(roof.n, 1);
    spl_roof_take(&roof);
    r = spl_roof_result(&roof);
    assert_true(r.read_bytes == n && r.vector_gmac == 0);
    assert_true(0 < r.read_gb_min && r.read_gb_min <= r.read_gb && r.read_gb <= r.read_gb_max);
    assert_true(near(r.read_gb, (r.read_gb_min + r.read_gb_max) / 2)); /* of two readings */
    assert_true(0 < r.int8_gmac_min && r.int8_gmac <= r.int8_gmac_max);
    spl_roof_close(&roof);
    spl_bench_unmap(mapping, mapped_bytes);

    uint8_t little[64]; /* too little to say anything: a buffer of its own */
    assert_int_equal(spl_roof_open(&roof, team, SPL_TIER_REF, (spl_roof_memory){little, 64}, 1 << 20, &err), SPL_OK);
    assert_true(roof.memory.data != little && roof.memory.n_bytes == 1 << 20);
    spl_roof_close(&roof);
    spl_team_destroy(team);
}

/* The way to read with the best median counts, not the best single reading. */
static void the_best_way_to_read_counts(void **state) {
    (void)state;
    static spl_roof roof = {.n = 3,
                            .memory.n_bytes = 5,
                            .read = {{10, 90, 11}, {20, 19, 21}, {1, 2, 3}},
                            .dot = {7, 5, 6},
                            .vector = {1, 3, 2}};
    spl_roof_rates r = spl_roof_result(&roof);
    assert_true(r.read_gb == 20 && r.read_gb_min == 19 && r.read_gb_max == 21);
    assert_true(r.int8_gmac == 6 && r.int8_gmac_min == 5 && r.int8_gmac_max == 7 && r.vector_gmac == 2);
    json_t *j = json_object();
    assert_true(spl_roof_put(j, &r));
    assert_int_equal(json_integer_value(json_object_get(j, "read_bytes")), 5);
    assert_true(near(json_real_value(json_object_get(j, "read_gb_per_second")), 20));
    json_decref(j);
}

static void completions_end_where_the_definition_ends(void **state) {
    (void)state;
    static const struct {
        const char *text, *kept;
    } cases[] = {{"    return 1\n", "    return 1\n"},
                 {"    return 1\nprint(f())\n", "    return 1\n"},
                 {"    return 1\n\n\ndef g():\n    pass\n", "    return 1\n\n\n"},
                 {"    x = [\n        1,\n]\n    return x", "    x = [\n        1,\n]\n    return x"},
                 {"# a note\n    return 1\nif x:\n", "# a note\n    return 1\n"},
                 {"def g():", ""},
                 {"", ""}};
    for (size_t i = 0; i < SPL_COUNT(cases); i++) {
        size_t n = spl_quality_cut(cases[i].text, strlen(cases[i].text));
        assert_int_equal(n, strlen(cases[i].kept));
        assert_memory_equal(cases[i].text, cases[i].kept, n);
    }
}

static void code_is_the_first_fenced_block(void **state) {
    (void)state;
    static const struct {
        const char *answer, *code;
    } cases[] = {{"Here:\n```python\nx = 1\n```\nand\n```\ny\n```", "x = 1\n"},
                 {"```\nx = 1", "x = 1"},
                 {"def f():\n    return 1\n", "def f():\n    return 1\n"},
                 {"a ``` b", "a ``` b"}};
    for (size_t i = 0; i < SPL_COUNT(cases); i++) {
        size_t n;
        const char *code = spl_quality_code(cases[i].answer, &n);
        assert_int_equal(n, strlen(cases[i].code));
        assert_memory_equal(code, cases[i].code, n);
    }
}

static void the_last_integer_counts(void **state) {
    (void)state;
    assert_true(spl_quality_last_integer_is("9 + 2 = 11.", "11"));
    assert_true(spl_quality_last_integer_is("it is -3", "-3"));
    assert_true(spl_quality_last_integer_is("011", "11"));
    assert_false(spl_quality_last_integer_is("11, or 12", "11"));
    assert_false(spl_quality_last_integer_is("111", "11"));
    assert_false(spl_quality_last_integer_is("no number", "0"));
    assert_false(spl_quality_last_integer_is("1", NULL));
}

static void python_decides(void **state) {
    (void)state;
    static const struct {
        const char *source;
        bool good;
    } cases[] = {{"def f():\n    return 1\n", true},
                 {"class A:\n    x = 1\n", true},
                 {"def f():\n    \"\"\"Only words.\"\"\"\n", false},
                 {"x = 1\n", false},
                 {"", false},
                 {"def f(:\n    return 1\n", false},
                 {"The answer is\n", false}};
    spl_error err;
    for (size_t i = 0; i < SPL_COUNT(cases); i++) {
        bool good = !cases[i].good;
        assert_int_equal(spl_quality_parses(cases[i].source, strlen(cases[i].source), &good, &err), SPL_OK);
        assert_int_equal(good, cases[i].good);
    }
    char *path = strdup(getenv("PATH"));
    assert_int_equal(setenv("PATH", "/nonexistent", 1), 0);
    bool good;
    assert_int_equal(spl_quality_parses("", 0, &good, &err), SPL_E_NOTFOUND);
    assert_non_null(strstr(err.text, "python3"));
    assert_int_equal(setenv("PATH", path, 1), 0);
    free(path);
}

/* Reads a prompts file with this content. */
static spl_status read_text(spl_bench_prompts *out, const char *text, uint32_t limit, spl_error *err) {
    char path[] = "/tmp/splash-prompts-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    spl_status st = spl_bench_prompts_read(out, path, limit, err);
    (void)unlink(path);
    return st;
}

static void prompts_come_in_three_shapes(void **state) {
    (void)state;
    static const char text[] = "{\"prompt\": \"a\", \"id\": \"x\", \"raw\": true}\n"
                               "{\"question\": \"b\", \"thinking\": false}\n\n"
                               "{\"turns\": [\"c\", \"d\"], \"id\": 7}";
    spl_bench_prompts p;
    spl_error err;
    assert_int_equal(read_text(&p, text, 0, &err), SPL_OK);
    assert_int_equal(p.n, 3);
    assert_string_equal(p.items[0].id, "x");
    assert_true(p.items[0].raw && p.items[0].thinking == -1);
    assert_string_equal(p.items[1].turns[0], "b");
    assert_string_equal(p.items[1].id, "2");
    assert_int_equal(p.items[1].thinking, 0);
    assert_int_equal(p.items[2].n_turns, 2);
    assert_string_equal(p.items[2].turns[1], "d");
    assert_string_equal(p.items[2].id, "7");
    spl_bench_prompts_free(&p);
    assert_int_equal(read_text(&p, text, 2, &err), SPL_OK);
    assert_int_equal(p.n, 2);
    spl_bench_prompts_free(&p);
    static const char *const bad[] = {"",
                                      "{\"prompt\": 1}",
                                      "[]",
                                      "{",
                                      "{\"turns\": []}",
                                      "{\"turns\": [\"a\", 1]}",
                                      "{\"turns\": [\"a\", \"b\"], \"raw\": true}"};
    for (size_t i = 0; i < SPL_COUNT(bad); i++) assert_int_equal(read_text(&p, bad[i], 0, &err), SPL_E_FORMAT);
    assert_int_equal(read_text(&p, "{\"prompt\": \"a\"}\n{\"prompt\": 2}\n", 0, &err), SPL_E_FORMAT);
    assert_non_null(strstr(err.text, "line 2"));
}

static void addresses_are_read(void **state) {
    (void)state;
    spl_http_address a;
    spl_error err;
    assert_int_equal(spl_http_address_read(&a, "http://127.0.0.1:8000/v1", &err), SPL_OK);
    assert_string_equal(a.host, "127.0.0.1");
    assert_string_equal(a.port, "8000");
    assert_int_equal(spl_http_address_read(&a, "http://[::1]:81", &err), SPL_OK);
    assert_string_equal(a.host, "::1");
    assert_string_equal(a.port, "81");
    assert_int_equal(spl_http_address_read(&a, "http://localhost", &err), SPL_OK);
    assert_string_equal(a.port, "80");
    static const char *const bad[] = {"",           "localhost:80", "https://a",         "http://",
                                      "http://:80", "http://a:",    "http://a:123456789"};
    for (size_t i = 0; i < SPL_COUNT(bad); i++)
        assert_int_equal(spl_http_address_read(&a, bad[i], &err), SPL_E_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_have_a_median),
        cmocka_unit_test(the_roof_is_the_slower_of_both),
        cmocka_unit_test(a_roof_reads_what_it_is_given),
        cmocka_unit_test(the_best_way_to_read_counts),
        cmocka_unit_test(completions_end_where_the_definition_ends),
        cmocka_unit_test(code_is_the_first_fenced_block),
        cmocka_unit_test(the_last_integer_counts),
        cmocka_unit_test(python_decides),
        cmocka_unit_test(prompts_come_in_three_shapes),
        cmocka_unit_test(addresses_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
