/* SPDX-License-Identifier: Apache-2.0
 * A persistent team of worker threads that runs one function on all members at once. The caller of
 * spl_team_run is member 0. Workers spin for a moment between runs, then park. Inside a run the members
 * walk through stages together: they share a stage's units by spl_team_take and end it by
 * spl_team_finish. A stage is over when its units are done, not when all members have come by: a member
 * whose core was taken away holds up the others only with the piece it has in hand.
 *
 * A team with a member for every processor the process may run on keeps each member on its own one (Linux). Left to the
 * scheduler, one busy program is enough to put two members on one core and leave the other core to the program: 1.8
 * times the quiet step on two cores, 1.5 when pinned. */
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

/* Runs fn(arg, member) on all members and returns when all have finished. One caller at a time; the calling thread may
 * be pinned by it until the team is destroyed. */
void spl_team_run(spl_team *team, void (*fn)(void *arg, uint32_t member), void *arg);

/* Lets the calling thread run wherever the process may. A thread started by a pinned one inherits its processor. */
void spl_unpin_thread(void);

/* One stage of a run; starts as zeroes. */
typedef struct spl_share {
    atomic_uint n_done; /* units computed so far */
} spl_share;

/* The next range of units of a stage for `member`, or false when all are taken. Every member takes from its own part
 * of the units first, in order, so that memory is read in order, and then helps the others with what is left of
 * theirs. Pieces are up to 4 `grain` units long and shrink to `grain` towards the end of a part. Stages of a run are
 * numbered in ascending order, each with one n_units and grain (at least 1) for all members. Which member computes
 * a unit never changes its result. */
bool spl_team_take(spl_team *team, uint32_t stage, uint32_t member, uint32_t n_units, uint32_t grain, uint32_t *begin,
                   uint32_t *end);

/* Reports the n_mine units that the caller has computed since spl_team_take and returns when all n_units of the stage
 * are; what the others wrote for them is visible then. A member may come here after the others have gone on. */
void spl_team_finish(spl_team *team, spl_share *share, uint32_t n_mine, uint32_t n_units);

/* Threads that make sense here: online processors this process may run on, capped by the cgroup's cpu
 * quota (rounded up), at least 1. */
uint32_t spl_usable_cores(void);

#endif
