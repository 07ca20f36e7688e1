/* SPDX-License-Identifier: Apache-2.0
 * A persistent team of worker threads that runs one function on all members at once. The caller of
 * spl_team_run is member 0. Workers spin for a moment between runs, then park. Inside a run the
 * members meet at spin barriers and share work by spl_team_take. */
#ifndef SPL_BASE_THREAD_TEAM_H
#define SPL_BASE_THREAD_TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct spl_team spl_team;

/* Starts n_threads - 1 workers (1 <= n_threads <= 256). on_start, when not NULL, runs once on every worker
 * (and on the caller's thread at each run's first use it does not). */
spl_status spl_team_create(spl_team **out, uint32_t n_threads, void (*on_start)(void), spl_error *err);
void spl_team_destroy(spl_team *team); /* accepts NULL */
uint32_t spl_team_size(const spl_team *team);

/* Runs fn(arg, member) on all members and returns when all have finished. One caller at a time. */
void spl_team_run(spl_team *team, void (*fn)(void *arg, uint32_t member), void *arg);

/* All members of the current run meet here. */
void spl_team_barrier(spl_team *team);

/* Work sharing of n_units units: a static share first (locality), then the tail in small chunks from a
 * shared counter, so that one stolen core does not halve the speed. `stage` must start as zeroes. */
typedef struct spl_share {
    atomic_uint_fast32_t next; /* next unit of the dynamic tail, counted from its start */
} spl_share;
typedef struct spl_share_cursor {
    bool static_done;
} spl_share_cursor;

/* The next range for `member`, or false when nothing is left. Units come in multiples of `grain` where
 * possible. Which member computes a unit never changes its result. */
bool spl_team_take(spl_team *team, spl_share *share, spl_share_cursor *cursor, uint32_t member, uint32_t n_units,
                   uint32_t grain, uint32_t *begin, uint32_t *end);

/* Threads that make sense here: online processors this process may run on, capped by the cgroup's cpu
 * quota (rounded up), at least 1. */
uint32_t spl_usable_cores(void);

#endif
