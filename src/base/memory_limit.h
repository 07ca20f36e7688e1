/* SPDX-License-Identifier: Apache-2.0
 * How much memory this process may still take, as the operating system tells it: free memory of the
 * machine, lowered by every control group (v1 or v2) the process stands in. Reclaimable file pages
 * count as free: mapped weights live there. */
#ifndef SPL_BASE_MEMORY_LIMIT_H
#define SPL_BASE_MEMORY_LIMIT_H

#include <stdint.h>

#include "base/status.h"

typedef struct spl_memory_room {
    uint64_t machine_bytes;   /* MemAvailable; on macOS the installed memory */
    uint64_t group_bytes;     /* the tightest control group's limit minus what it cannot give back */
    uint64_t available_bytes; /* the smaller of the two */
} spl_memory_room;

/* `root` is put in front of /proc and /sys: "" for this machine, a folder in tests (ignored on macOS).
 * group_bytes is UINT64_MAX without a limit. Errors: SPL_E_UNSUPPORTED when the system says nothing. */
spl_status spl_memory_room_get(const char *root, spl_memory_room *out, spl_error *err);

#endif
