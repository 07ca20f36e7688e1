/* SPDX-License-Identifier: Apache-2.0
 * Private to bench: decode steps on a rig, one at a time, as the engine dispatches them but with nothing around: draft,
 * verify, accept and the deferred commit, over and over at the same context. The rows that the step before retained
 * belong to the history, which therefore has 8 tokens at least. */
#ifndef SPL_BENCH_STEP_RUNS_H
#define SPL_BENCH_STEP_RUNS_H

#include "bench/bench_rig.h"

/* Settings, and sums over the counted steps. */
typedef struct spl_step_runs {
    uint32_t rows, lanes, context;           /* rows per lane */
    bool drafts;                             /* the rig has a draft and the steps use it */
    double synthetic_tau;                    /* 0: what the run accepts stands; else a pattern with this mean */
    uint64_t n_steps, n_retained, n_context; /* over steps and lanes */
    double owed;                             /* synthetic acceptance not yet handed out */
} spl_step_runs;

/* Runs one step; *seconds (may be NULL) is its time. `counted` adds it to the sums. */
spl_status spl_step_runs_one(spl_step_runs *m, spl_rig *r, bool counted, double *seconds, spl_error *err);

#endif
