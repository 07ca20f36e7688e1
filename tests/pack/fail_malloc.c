/* SPDX-License-Identifier: Apache-2.0
 * A preloaded library in which the FAIL_AT-th allocation of the program, or of libc on its behalf,
 * fails once. libcrypto and jansson are left alone: the start-up of the one and the string values of
 * the other do not survive a failure. With FAIL_COUNT set, the number of allocations goes to standard
 * error at exit. Linux with glibc. */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);

static struct { uintptr_t begin, end; } ranges[8];
static int n_ranges;
static long fail_at;
static atomic_long counted;

static int note_range(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    const char *name = info->dlpi_name;
    if (*name != '\0' && !strstr(name, "/libc.so")) return 0;
    for (int i = 0; i < info->dlpi_phnum && n_ranges < 8; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD || !(info->dlpi_phdr[i].p_flags & PF_X)) continue;
        ranges[n_ranges].begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        ranges[n_ranges++].end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    }
    return 0;
}

__attribute__((constructor)) static void start(void) {
    const char *at = getenv("FAIL_AT");
    fail_at = at ? atol(at) : -1;
    (void)dl_iterate_phdr(note_range, NULL);
}

__attribute__((destructor)) static void finish(void) {
    char line[32];
    if (!getenv("FAIL_COUNT")) return;
    int n = snprintf(line, sizeof line, "%ld\n", atomic_load(&counted));
    if (write(2, line, (size_t)n) != n) _exit(9);
}

static int fails(void *caller) {
    uintptr_t at = (uintptr_t)caller;
    for (int i = 0; i < n_ranges; i++) {
        if (at >= ranges[i].begin && at < ranges[i].end) {
            if (atomic_fetch_add(&counted, 1) + 1 != fail_at) return 0;
            errno = ENOMEM;
            return 1;
        }
    }
    return 0;
}

void *malloc(size_t n) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n); }
