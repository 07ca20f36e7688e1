/* SPDX-License-Identifier: Apache-2.0
 * A model with random weights and everything a step of it needs, for four lanes: pages, states, pending rows and, with
 * a draft, rings and features. What cannot be made fails the test. */
#ifndef SPL_TESTS_STEP_RIG_H
#define SPL_TESTS_STEP_RIG_H

#include "cache/page_pool.h"
#include "step/step.h"

typedef struct rig_options {
    const char *geometry;
    uint64_t seed;        /* of the weights */
    bool with_draft;      /* weights for one; used only when step.draft */
    uint32_t n_threads;   /* 0: 1 */
    uint32_t lane_tokens; /* pages of each lane */
    spl_step_config step; /* rows, logit rows, capture, decode, draft, oracle; the rest is filled in */
} rig_options;

typedef struct rig {
    const spl_geometry *g;
    spl_package *package;
    spl_team *team;
    spl_kernels kernels;
    spl_step *step;
    spl_page_pool pool;
    spl_page_table tables[SPL_MAX_LANES];
    float *cells[SPL_MAX_LANES];
    size_t cell_bytes;
    spl_pending pending[SPL_MAX_LANES];
    void *pending_memory[SPL_MAX_LANES];
    uint8_t *rings[SPL_MAX_LANES];  /* NULL without a draft */
    float *features[SPL_MAX_LANES]; /* [SPL_BLOCK_ROWS][captured width], NULL without a draft */
} rig;

/* SPL_TEST_TIER names one; SPL_N_TIERS, the best, otherwise. */
spl_tier rig_tier(void);

void rig_open(rig *r, const rig_options *o);
void rig_close(rig *r);

/* Zeroed, 64-aligned; free() it. */
void *rig_aligned(size_t n_bytes);

/* n_rows rows of a lane, all committed. */
spl_segment rig_segment(rig *r, uint32_t lane, uint32_t row_begin, uint32_t n_rows, uint32_t position);

#endif
