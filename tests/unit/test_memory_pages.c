/* SPDX-License-Identifier: Apache-2.0
 * Locked memory and large pages, as the kernel sees them: what is locked counts as locked, a limit that is too low is
 * refused with its remedy before a page is read, and the advice about page sizes arrives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/huge_pages.h"
#include "base/memory_lock.h"
#include "splash.h"

/* The sanitizers' mlock does nothing, so what only it can do is not checked with them. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MLOCK_WORKS 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define MLOCK_WORKS 0
#endif
#endif
#ifndef MLOCK_WORKS
#define MLOCK_WORKS 1
#endif

enum { LIMIT_BYTES = 256 << 10, NOBODY = 65534 };

/* Runs `check` in a child that may lock 256 KiB and has no privileges; its result is the exit status. */
static int in_limited_child(int (*check)(void)) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit limit = {LIMIT_BYTES, LIMIT_BYTES};
        if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(90);
        if (geteuid() == 0 && (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)) _exit(91);
        _exit(check());
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static bool names_remedy(const char *text) { return strstr(text, "ulimit -l") && strstr(text, "LimitMEMLOCK"); }

#ifdef __linux__
static long locked_kilobytes(void) {
    char line[256];
    long n = -1;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return -1;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "VmLck:", 6) == 0) n = strtol(line + 6, NULL, 10);
    (void)fclose(f);
    return n;
}
static long resident_pages(void *data, size_t n_bytes) {
    unsigned char in[512];
    long n = 0;
    size_t pages = n_bytes / 4096;
    if (pages > sizeof in || mincore(data, n_bytes, in) != 0) return -1;
    for (size_t i = 0; i < pages; i++) n += in[i] & 1;
    return n;
}
#endif

static int check_ranges(void) {
    spl_error err = {0};
    size_t small = 64 << 10, large = 1 << 20;
    void *data = mmap(NULL, small + large, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return 1;
    spl_map good = {data, small}, bad[] = {good, {(uint8_t *)data + small, large}};
    /* The second of two is too much: refused at once, nothing of it read. */
    if (spl_lock_prepare(bad, 2, "the weights", &err) != SPL_E_LIMIT) return 2;
    if (!names_remedy(err.text) || !strstr(err.text, "1.11 MB") || !strstr(err.text, "0.26 MB")) return 3;
    (void)munlock(data, small);
    if (spl_lock_prepare(&good, 1, "the weights", &err) != SPL_OK) return 4;
#ifdef __linux__
    if (resident_pages(data, small + large) != 0) return 5;
    if (locked_kilobytes() != (long)(small >> 10)) return 6;
#endif
    if (spl_lock_finish(&good, 1, "the weights", &err) != SPL_OK) return 7;
    if (!MLOCK_WORKS) return 0;
#ifdef __linux__
    if (resident_pages(data, small) != (long)(small / 4096)) return 8;
    if (locked_kilobytes() != (long)(small >> 10)) return 9;
#endif
    return spl_lock_finish(bad, 2, "the weights", &err) == SPL_E_LIMIT && names_remedy(err.text) ? 0 : 10;
}

static void locks_keep_to_the_limit(void **state) {
    (void)state;
    assert_int_equal(in_limited_child(check_ranges), 0);
}

static splash_status open_toy(const char *id, bool lock, splash_error *err) {
    splash_engine *e = NULL;
    splash_options o = {.model = id,
                        .random_weights = true,
                        .random_draft = true,
                        .lock_weights = lock,
                        .n_threads = 1,
                        .context_tokens = 1024,
                        .memory_limit_bytes = 1 << 28};
    splash_status st = splash_open(&e, &o, err);
    splash_close(&e);
    return st;
}

static int check_engine(void) {
    splash_error err = {0};
    if (open_toy("toy", true, &err) != SPLASH_E_LIMIT || !names_remedy(err.text)) return 1;
    return open_toy("toy", false, &err) == SPLASH_OK ? 0 : 2;
}

static void an_engine_that_cannot_lock_does_not_start(void **state) {
    (void)state;
    assert_int_equal(in_limited_child(check_engine), 0);
}

/* "hg" or "nh" among the flags of the mapping that holds p; false when the kernel does not tell. */
static bool has_flag(const void *p, const char *flag) {
    char line[512];
    bool inside = false, found = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    if (!f) return false;
    while (fgets(line, sizeof line, f)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) inside = (uintptr_t)p >= begin && (uintptr_t)p < end;
        if (inside && strncmp(line, "VmFlags:", 8) == 0) found = strstr(line, flag) != NULL;
    }
    (void)fclose(f);
    return found;
}

static void advice_about_pages_arrives(void **state) {
    (void)state;
    size_t n = 8 * (size_t)SPL_HUGE_PAGE_BYTES;
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) != 0) skip();
    for (int huge = 0; huge < 2; huge++) {
        uint8_t *memory = spl_alloc_pages(n + 5000, huge);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % SPL_HUGE_PAGE_BYTES, 0);
        memset(memory, 1, n + 5000);
        assert_true(has_flag(memory, huge ? " hg" : " nh"));
        assert_false(has_flag(memory, huge ? " nh" : " hg"));
        free(memory);
    }
    void *small = spl_alloc_pages(100, true);
    assert_non_null(small);
    assert_int_equal((uintptr_t)small % 4096, 0);
    free(small);
    spl_advise_pages(&n, sizeof n, true); /* no whole page: nothing happens */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(locks_keep_to_the_limit),
                                       cmocka_unit_test(an_engine_that_cannot_lock_does_not_start),
                                       cmocka_unit_test(advice_about_pages_arrives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
