/* SPDX-License-Identifier: Apache-2.0
 * Private to src/engine: a lane, one of four places where a request computes. A lane keeps its memory
 * (state cell, page table, penalty table) from one request to the next. */
#ifndef SPL_ENGINE_LANE_H
#define SPL_ENGINE_LANE_H

#include "cache/page_pool.h"
#include "engine/engine.h"
#include "engine/lookup.h"
#include "engine/pace.h"
#include "step/step.h"

typedef enum spl_phase { SPL_PHASE_FREE, SPL_PHASE_PREFILL, SPL_PHASE_DECODE } spl_phase;

typedef struct spl_lane {
    spl_phase phase;
    spl_request *request; /* NULL when free */
    spl_page_table pages;
    float *cell;         /* spl_state_cell_bytes */
    uint32_t n_tokens;   /* tokens in KV and state, the pending ones included */
    uint32_t next_token; /* the anchor: sampled and reported, not yet computed (decode) */
    spl_pending pending; /* rows of the last step that wait to be folded into the cell */
    uint32_t n_pending;
    uint8_t *ring;   /* the draft's context, NULL without a draft */
    float *features; /* [8][captured width]: tapped rows that are not in the ring yet */
    uint32_t n_features;
    spl_lookup lookup;
    spl_pace_rates rates;
    void *memory; /* behind pending, ring, features and lookup */
    uint32_t n_generated, max_generated;
    uint32_t reserved_pages;
    spl_rng rng;
    spl_penalties penalties; /* used when the request has any */
    bool has_penalties;
    void *penalty_memory;
    spl_usage usage;
    uint64_t started_ns, decode_started_ns;
} spl_lane;

#endif
