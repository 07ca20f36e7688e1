/* SPDX-License-Identifier: Apache-2.0
 * Memory that stays in memory: pages that the system may neither drop nor swap. Two steps, so that a limit that is too
 * low is told before anything is read, and reading can show its progress in between. Locks end with the mapping. */
#ifndef SPL_BASE_MEMORY_LOCK_H
#define SPL_BASE_MEMORY_LOCK_H

#include <stdint.h>

#include "base/file_map.h"

/* Step one: asks for the lock without reading the pages, where the system can (Linux); elsewhere as step two. `what`
 * names the contents of all `n` maps together. Errors: SPL_E_LIMIT with the size, the limit and the remedy. */
spl_status spl_lock_prepare(const spl_map *maps, uint32_t n, const char *what, spl_error *err);
/* Step two: brings in what is missing and locks it. Errors as above. */
spl_status spl_lock_finish(const spl_map *maps, uint32_t n, const char *what, spl_error *err);

#endif
