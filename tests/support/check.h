/* SPDX-License-Identifier: Apache-2.0
 * cmocka, or with SPL_NO_CMOCKA a few lines that run the same test programs where cmocka does not exist
 * (cross builds under an emulator). Only what the kernel tests use. */
#ifndef SPL_TESTS_CHECK_H
#define SPL_TESTS_CHECK_H

#ifndef SPL_NO_CMOCKA
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#else
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(f)                                                                                            \
    { #f, f }
#define cmocka_run_group_tests(tests, setup, teardown) check_run(tests, (int)(sizeof(tests) / sizeof((tests)[0])))
#define assert_true(c) ((c) ? (void)0 : check_fail(__FILE__, __LINE__, #c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b) assert_true((a) == (b))
#define fail_msg(...) (printf(__VA_ARGS__), check_fail(__FILE__, __LINE__, "fail_msg"))

static inline void check_fail(const char *file, int line, const char *condition) {
    printf("\n%s:%d: %s\n", file, line, condition);
    exit(1);
}
static inline int check_run(const struct CMUnitTest *tests, int n) {
    for (int i = 0; i < n; i++) {
        tests[i].run(NULL);
        printf("[ OK ] %s\n", tests[i].name);
    }
    return 0;
}
#endif
#endif
