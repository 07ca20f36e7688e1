/* SPDX-License-Identifier: Apache-2.0
 * Running the op list: a spl_step owns the arena and the list for one loaded model; a spl_batch says
 * which rows of which lanes a run computes. Pages, state cells and pending buffers belong to the
 * caller. A run allocates nothing, takes no lock and makes no system call. */
#ifndef SPL_STEP_STEP_H
#define SPL_STEP_STEP_H

#include "base/thread_team.h"
#include "kernels/kernels.h"
#include "model/weights.h"
#include "sample/accept.h"
#include "step/op.h"
#include "step/tuning.h"

/* Rows computed but not yet committed: what the next step needs to fold the retained ones into the state
 * while it has it in cache. One per decoding lane, spl_pending_bytes long; two halves alternate. */
typedef struct spl_pending {
    float *inputs;   /* [gdn layers][8][channels]: raw convolution inputs of the previous rows */
    float *mixed[2]; /* [gdn layers][8][channels]: q | k | v after convolution and norms */
    float *decay[2]; /* [gdn layers][8][value heads] */
    float *beta[2];  /* [gdn layers][8][value heads] */
    uint32_t half;   /* half that holds the previous rows */
} spl_pending;
uint64_t spl_pending_bytes(const spl_geometry *g, uint32_t n_layers);
/* Points *out into 64-aligned memory. */
void spl_pending_place(spl_pending *out, void *memory, const spl_geometry *g, uint32_t n_layers);

/* Consecutive rows of one lane. */
typedef struct spl_segment {
    uint32_t row_begin, n_rows; /* rows of the batch */
    uint32_t position;          /* of the first row: KV slot and rotary position */
    const uint32_t *page_table; /* covers position + n_rows tokens */
    float *cell;                /* spl_state_cell_bytes: S of all GDN layers, then all windows */
    spl_pending *pending;       /* NULL when every row commits at once and none is pending */
    uint32_t n_pending;         /* retained rows of the previous step, 0..8 */
    uint32_t n_commit;          /* n_rows: commit in this run; 0: the rows become pending (n_rows <= 8) */
    uint8_t *ring;              /* spl_draft_ring_bytes, 64-aligned, or NULL: no draft context is kept */
    uint32_t ring_begin;        /* positions before it are not in the ring; those of the rows on are scratch */
    float *features;            /* where the tapped rows go, [n_rows][captured_width]; NULL: the arena */
} spl_segment;

/* One lane of a decode run; lane i goes with segment i. Row 0 of the segment is the anchor, the rows behind it are the
 * proposals under test: given by the caller (prompt lookup), or filled in by the run when `drafts`. */
typedef struct spl_decode_lane {
    bool drafts;
    const float *context; /* [n_context][captured_width]: features of positions position - n_context .. - 1 */
    uint32_t n_context;   /* 0..8: rows that enter the ring in this run */
    const spl_sampling *sampling;
    const spl_bias *bias;
    uint32_t n_bias;
    spl_penalties *penalties; /* NULL: none; afterwards they count the retained tokens */
    double uniforms[SPL_N_UNIFORMS];
    bool keeps_logits; /* those of its rows are read after the run */
    spl_accept_limits limits;
    spl_proposal proposals[SPL_MAX_PROPOSALS]; /* n_rows - 1 of them */
    uint32_t candidates[SPL_MAX_PROPOSALS][SPL_MAX_CANDIDATES];
    float q[SPL_MAX_PROPOSALS][SPL_MAX_CANDIDATES];
    spl_accept result; /* valid when status is SPL_OK */
    spl_status status;
    spl_error error;
} spl_decode_lane;

typedef struct spl_batch {
    const uint32_t *tokens; /* [n_rows]; rows that the run drafts itself may hold anything below the vocabulary */
    uint32_t n_rows;
    const spl_segment *segments;
    uint32_t n_segments;
    const uint32_t *logit_rows; /* rows whose logits are wanted, ascending; ignored in a decode run: all rows */
    uint32_t n_logit_rows;
    uint8_t *kv_pool;
    size_t page_stride;
    spl_decode_lane *lanes;   /* [n_segments] makes this a decode run; NULL: the target pass alone */
    const atomic_bool *abort; /* NULL, or set by another thread to end the run early; looked at once per op */
} spl_batch;

typedef struct spl_step spl_step;

typedef struct spl_step_config {
    const spl_geometry *geometry;
    const spl_package *package;
    const spl_kernels *kernels;        /* copied */
    spl_team *team;                    /* borrowed */
    uint32_t max_rows, max_logit_rows; /* of runs without lanes */
    bool capture;                      /* keep the tapped rows of runs without lanes */
    bool decode;                       /* make the list for decode runs as well */
    bool draft;                        /* the package's draft: blocks in decode runs, rings in all runs */
    bool oracle;
    bool small_pages; /* ask for no large pages */
    spl_knobs knobs;
} spl_step_config;

/* Arena bytes plus per-thread scratch of a step, without making it: `config` without package, kernels and team. */
spl_status spl_step_bytes(const spl_step_config *config, uint32_t n_layers, uint32_t n_threads, uint64_t *bytes,
                          spl_error *err);

spl_status spl_step_create(spl_step **out, const spl_step_config *config, spl_error *err);
void spl_step_destroy(spl_step *s); /* accepts NULL */

/* Runs the list over the batch. Errors: SPL_E_INVALID for a batch that breaks the limits above or names a
 * token outside the vocabulary; nothing is computed then. SPL_E_CANCELLED when `abort` was seen: the lanes
 * of the batch are then in no defined state. */
spl_status spl_step_run(spl_step *s, const spl_batch *batch, spl_error *err);

/* Results of the last run: logits [n_logit_rows][vocab], after a decode run only if a lane asked for them; tapped
 * hidden rows [n_rows][captured_width] or NULL. */
float *spl_step_logits(spl_step *s);
const float *spl_step_captured(const spl_step *s);
const spl_op_list *spl_step_list(const spl_step *s);        /* runs without lanes */
const spl_op_list *spl_step_decode_list(const spl_step *s); /* decode runs; NULL without */

/* For benchmarks: from now on every run adds the nanoseconds of op i, waiting included, to op_ns[i]. The array has as
 * many entries as the list that is run; it stays the caller's. NULL: off again. Not during a run. */
void spl_step_time_ops(spl_step *s, uint64_t *op_ns);

/* Other choices of speed from now on. Not during a run. */
void spl_step_set_knobs(spl_step *s, const spl_knobs *knobs);

/* Rotary tables: cos and sin [rotary_dims/2] of one position (src/step/rope.c). */
void spl_rope_frequencies(float *inverse_frequency, uint32_t rotary_dims, float theta);
void spl_rope_row(float *cos_row, float *sin_row, const float *inverse_frequency, uint32_t n_pairs, uint32_t position);

#endif
