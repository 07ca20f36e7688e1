/* SPDX-License-Identifier: Apache-2.0
 * Locking by mlock2(MLOCK_ONFAULT) and mlock. */
#include "base/memory_lock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

static const char *size_text(uint64_t n_bytes, char out[32]) {
    bool large = n_bytes >= 1000000000;
    (void)snprintf(out, 32, large ? "%.2f GB" : "%.2f MB", (double)n_bytes * (large ? 1e-9 : 1e-6));
    return out;
}

static spl_status refuse(int errno_value, uint64_t n_bytes, const char *what, spl_error *err) {
    struct rlimit limit;
    char size[32], allowed[32];
    (void)size_text(n_bytes, size);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < n_bytes)
        return spl_fail(err, SPL_E_LIMIT,
                        "cannot lock %s of %s in memory: this process may lock %s; raise the limit with `ulimit -l "
                        "unlimited` or LimitMEMLOCK=infinity in the systemd unit, or do without the lock",
                        what, size, size_text(limit.rlim_cur, allowed));
    return spl_fail(err, SPL_E_LIMIT,
                    "cannot lock %s of %s in memory: %s; free memory, raise the limits (`ulimit -l unlimited`, "
                    "LimitMEMLOCK=infinity and MemoryMax= in the systemd unit), or do without the lock",
                    what, size, strerror(errno_value));
}

static uint64_t total_of(const spl_map *maps, uint32_t n) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) total += maps[i].n_bytes;
    return total;
}

spl_status spl_lock_prepare(const spl_map *maps, uint32_t n, const char *what, spl_error *err) {
#ifdef MLOCK_ONFAULT
    for (uint32_t i = 0; i < n; i++) {
        if (maps[i].n_bytes == 0 || mlock2(maps[i].data, maps[i].n_bytes, MLOCK_ONFAULT) == 0) continue;
        if (errno == ENOSYS || errno == EINVAL) return SPL_OK; /* an older kernel: step two decides */
        return refuse(errno, total_of(maps, n), what, err);
    }
    return SPL_OK;
#else
    return spl_lock_finish(maps, n, what, err);
#endif
}

spl_status spl_lock_finish(const spl_map *maps, uint32_t n, const char *what, spl_error *err) {
    for (uint32_t i = 0; i < n; i++) {
        if (maps[i].n_bytes > 0 && mlock(maps[i].data, maps[i].n_bytes) != 0)
            return refuse(errno, total_of(maps, n), what, err);
    }
    return SPL_OK;
}
