/* SPDX-License-Identifier: Apache-2.0
 * madvise on Linux; nothing on other systems, whose kernels choose page sizes alone. */
#include "base/huge_pages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SMALL_PAGE_BYTES = 4096 };

void spl_advise_pages(const void *data, size_t n_bytes, bool huge) {
#if defined(MADV_HUGEPAGE) && defined(MADV_NOHUGEPAGE)
    uintptr_t mask = SPL_HUGE_PAGE_BYTES - 1, begin = ((uintptr_t)data + mask) & ~mask;
    uintptr_t end = ((uintptr_t)data + n_bytes) & ~mask;
    if (begin < end) (void)madvise((void *)begin, end - begin, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
    (void)data, (void)n_bytes, (void)huge;
#endif
}

void *spl_alloc_pages(size_t n_bytes, bool huge) {
    void *memory = NULL;
    bool large = n_bytes >= SPL_HUGE_PAGE_BYTES;
    if (posix_memalign(&memory, large ? SPL_HUGE_PAGE_BYTES : SMALL_PAGE_BYTES, n_bytes) != 0) return NULL;
    if (large) spl_advise_pages(memory, n_bytes, huge);
    return memory;
}

uint64_t spl_huge_page_bytes(void) {
    static const char *const keys[] = {"AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"};
    uint64_t kilobytes = 0, n;
    char line[256];
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f)) {
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            size_t length = strlen(keys[i]);
            if (strncmp(line, keys[i], length) == 0 && sscanf(line + length, "%" SCNu64, &n) == 1) kilobytes += n;
        }
    }
    (void)fclose(f);
    return kilobytes * 1024;
}
