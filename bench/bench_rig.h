/* SPDX-License-Identifier: Apache-2.0
 * Private to bench: one loaded model with the memory of its lanes, driven without an engine, so that a
 * step or a prefill chunk is all that is measured. */
#ifndef SPL_BENCH_BENCH_RIG_H
#define SPL_BENCH_BENCH_RIG_H

#include "bench/bench_internal.h"
#include "cache/page_pool.h"
#include "step/step.h"

enum { SPL_BENCH_CHUNK_ROWS = 256 }; /* rows of a prefill chunk, as the engine cuts them */

typedef struct spl_rig_lane {
    spl_page_table pages;
    float *cell;
    void *pending_memory;
    spl_pending pending;
    uint8_t *ring;       /* NULL without a draft */
    float *features;     /* [8][captured width] */
    uint32_t n_retained; /* rows of the last step that stand */
} spl_rig_lane;

typedef struct spl_rig {
    const spl_geometry *g;
    spl_package *package;
    uint32_t n_layers, n_lanes, n_threads;
    bool drafts, small_pages;
    spl_knobs knobs;
    spl_kernels kernels;
    spl_team *team;
    spl_step *step;
    spl_page_pool pool;
    spl_rig_lane lanes[SPL_MAX_LANES];
    spl_decode_lane decode[SPL_MAX_LANES];
} spl_rig;

/* Opens the model of `o` with n_lanes lanes of context_tokens tokens each. Histories, rings and states hold
 * values of ordinary size. Errors: SPL_E_LIMIT before anything large is touched when it would not fit. */
spl_status spl_rig_open(spl_rig *r, const spl_bench_options *o, uint32_t n_lanes, uint32_t context_tokens,
                        spl_error *err);
/* Another team of that many threads with a step over the same model and lanes; the caller's. */
spl_status spl_rig_make_crew(const spl_rig *r, uint32_t n_threads, spl_team **team, spl_step **step, spl_error *err);
void spl_rig_close(spl_rig *r); /* also after a failed open */

/* A roof over the model's weights, read by the rig's team; the caller's, until spl_rig_close_roof (accepts NULL).
 * Mapped weights should be in memory before it is read. Errors: SPL_E_NOMEM. */
spl_status spl_rig_open_roof(const spl_rig *r, spl_roof **out, spl_error *err);
void spl_rig_close_roof(spl_roof *roof);

/* Model, layers, weight bytes, draft. */
void spl_rig_put(spl_bench_json *j, const spl_rig *r);

/* Multiply-adds of one op of a run over that many rows. */
uint64_t spl_rig_op_macs(const spl_op *op, uint32_t kv_tokens, uint32_t n_rows, uint32_t n_logit_rows,
                         uint32_t n_context);

/* Time per kind of op: op_ns [list->n_ops] summed over n_runs runs, with the bytes and multiply-adds of one. */
json_t *spl_rig_stages(const spl_op_list *list, const uint64_t *op_ns, uint32_t n_runs, uint32_t n_lanes,
                       uint32_t kv_tokens, uint32_t n_rows, uint32_t n_logit_rows, uint32_t n_context);

/* A token for row i of a run, the same every time. */
uint32_t spl_rig_token(const spl_rig *r, uint32_t i);

#endif
