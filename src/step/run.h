/* SPDX-License-Identifier: Apache-2.0
 * Private to src/step: the step object, shared by the interpreter and the draft's ops. */
#ifndef SPL_STEP_RUN_H
#define SPL_STEP_RUN_H

#include "step/step.h"

/* Attention of few rows over a long history is shared by its splits: a slot holds what all query heads of one row have
 * of one split. 1,024 slots serve 4 lanes of 8 rows at 65,536 tokens each; a lane that finds no room is attended by
 * rows and heads alone, with the same bits. */
enum { SPL_PART_SLOTS = 1024 };
#define SPL_NO_PARTS UINT32_MAX

/* Small tensors of a target layer, resolved once. */
typedef struct spl_layer_tensors {
    const float *q_norm, *k_norm;                   /* attention */
    const float *conv, *decay, *dt_bias, *gdn_norm; /* GDN */
} spl_layer_tensors;

/* Small tensors of a draft layer. */
typedef struct spl_draft_tensors {
    const float *q_norm, *k_norm;
} spl_draft_tensors;

/* A context row of the run in progress. */
typedef struct spl_context_row {
    const float *features; /* NULL: they lie in the arena already */
    uint8_t *ring;
    uint32_t position;
} spl_context_row;

struct spl_step {
    const spl_geometry *g;
    uint32_t n_layers;
    spl_kernels k;
    spl_team *team;
    spl_weights weights[SPL_N_FILES];
    spl_op_list lists[2]; /* target pass; decode */
    bool has_decode;
    spl_knobs knobs;
    spl_layer_tensors *layers;
    spl_draft_tensors *draft_layers;
    const uint16_t *predecessor, *successor; /* codebooks [vocab][rank], bf16 */
    spl_share *shares;                       /* one per op of the longer list */
    float *inverse_frequency, *draft_frequency;
    uint8_t *arena;
    uint8_t *scratch; /* scratch_bytes per member */
    size_t scratch_bytes;
    float *parts;    /* partial results of attention: PART_SLOTS rows of q heads of splits */
    uint64_t *op_ns; /* NULL, or where member 0 adds the time of every op */

    /* of the run in progress */
    const spl_batch *batch;
    const spl_op_list *list;
    uint32_t part_begin[SPL_MAX_LANES]; /* first slot of a segment's partial results, SPL_NO_PARTS: whole histories */
    atomic_uint stop_at;                /* ops from here on are not run */
    bool keeps_logits;                  /* of the target's rows; else their panel maxima are all there is */
    uint32_t n_block_rows, n_context_rows;
    uint32_t block_segment[SPL_MAX_LANES]; /* segment of the i-th drafting lane */
    spl_context_row *context;              /* [n_context_rows] */
};

static inline float *spl_rows_at(const spl_step *s, uint64_t offset) { return (float *)(void *)(s->arena + offset); }
uint32_t spl_rows_of(const spl_step *s, spl_rows rows);

/* Logits of one panel of the head for a row, whose others are not kept. */
void spl_run_head_panel(const spl_step *s, uint32_t row, uint32_t panel, float logits[SPL_ROWS_PER_TILE]);

/* run_draft.c: units of the draft's ops and their ranges. */
void spl_run_draft(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end, uint32_t member);
size_t spl_draft_scratch_bytes(const spl_geometry *g);
/* Fills the block and context tables of the run in progress. */
void spl_draft_begin(spl_step *s);

#endif
