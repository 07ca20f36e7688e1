/* SPDX-License-Identifier: Apache-2.0
 * Private to src/step: the state of a list being built and the helpers that both halves, target and draft,
 * push ops with. */
#ifndef SPL_STEP_BUILDER_H
#define SPL_STEP_BUILDER_H

#include "step/op.h"

typedef struct spl_builder {
    const spl_geometry *g;
    uint32_t n_layers;
    spl_op_list *list;
    spl_tensor_spec *specs[SPL_N_FILES]; /* layout order; the index is the weight index */
    uint32_t n_specs[SPL_N_FILES], capacity;
    spl_file_id file; /* whose weights the next ops name */
    spl_status status;
    uint64_t q8, packed, mixed, queries, keys, gates, wide, gathered;                      /* target regions */
    uint64_t block_norm, block_dyn, block_x, block_qkv, block_attn, block_sub, block_wide; /* draft regions */
} spl_builder;

spl_op *spl_push(spl_builder *b, spl_op_kind kind, uint32_t layer, spl_rows rows);
/* Adds a tensor's bytes to an op and makes it the op's weight when `main_weight`. */
const spl_tensor_spec *spl_uses(spl_builder *b, spl_op *op, spl_tensor_role role, bool main_weight);
/* NORM of f32 rows at `in`: quantised rows at b->q8, and f32 rows at `copy` when it is not SPL_NO_COPY. */
spl_op *spl_push_norm(spl_builder *b, uint32_t layer, spl_tensor_role role, uint64_t in, uint64_t copy, spl_rows rows);
void spl_push_quantise(spl_builder *b, uint32_t layer, uint64_t in, uint32_t k, spl_rows rows);
/* `rows_in` is where the fp32 rows lie; the oracle reads them, the int8 path reads the q8 block. */
spl_op *spl_push_linear(spl_builder *b, spl_op_kind kind, uint32_t layer, spl_tensor_role role, uint64_t rows_in,
                        uint64_t out, spl_rows rows);
/* Of what GATE_UP writes: a q8 block, or the oracle's f32 rows. */
uint64_t spl_wide_bytes(const spl_op_list *list, uint64_t n_rows, uint32_t width);
/* Reserves bytes of the arena, 64-aligned. */
uint64_t spl_take(spl_op_list *list, uint64_t n_bytes);

/* build_draft.c */
void spl_plan_draft(spl_builder *b);    /* reserves the draft's regions */
void spl_build_draft(spl_builder *b);   /* block and context rows, head, selector, walk */
void spl_build_context(spl_builder *b); /* context rows alone, after a prefill chunk */

#endif
