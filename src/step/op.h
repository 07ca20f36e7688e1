/* SPDX-License-Identifier: Apache-2.0
 * The step as a program: a prebuilt list of fixed-size records, offsets instead of pointers, run by
 * the whole thread team with a barrier between records (src/step/run_cpu.c). The same list serves
 * prefill and decode: the rows, lanes and positions of a run come from its spl_batch. `splash
 * explain` prints the list; the bytes it carries add up to the geometry's formula. */
#ifndef SPL_STEP_OP_H
#define SPL_STEP_OP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "model/geometry.h"
#include "model/layout.h"

#define SPL_OPS(X)                                                                                                     \
    X(ROPE_TABLE, "rope.table")     /* cos, sin of every row's position */                                             \
    X(EMBED, "embed.rows")          /* hidden = table[token] */                                                        \
    X(NORM, "norm.rms")             /* in: hidden f32; out: q8 block or f32 rows (oracle) */                           \
    X(QUANTISE, "quantise")         /* in: f32 rows; out: q8 block */                                                  \
    X(LINEAR, "linear.q4")          /* in: q8 block or f32 rows; out: f32 rows, added when op.add */                   \
    X(GATE_UP, "linear.gate_up")    /* as LINEAR over panel pairs; out: silu(gate) * up */                             \
    X(ATTN_PREPARE, "attn.prepare") /* head norms and rotary; in: packed rows; out: q; out2: k */                      \
    X(KV_STORE, "attn.store")       /* rotated k and v of the rows into the lane's pages */                            \
    X(ATTEND, "attn.attend")        /* causal attention over the pages, output gate applied */                         \
    X(GDN_PREPARE, "gdn.prepare")   /* convolution, SiLU, l2 norms, gates */                                           \
    X(GDN_SCAN, "gdn.scan")         /* recurrence, folding in the pending rows first */                                \
    X(GDN_NORM, "gdn.norm")         /* gated norm per value head, in place */                                          \
    X(CAPTURE, "capture")           /* hidden rows of a tapped layer, for the draft */                                 \
    X(GATHER, "gather.rows")        /* rows whose logits are wanted */

typedef enum spl_op_kind {
#define X(id, text) SPL_OP_##id,
    SPL_OPS(X)
#undef X
        SPL_N_OPS
} spl_op_kind;
const char *spl_op_name(spl_op_kind kind);

/* Which rows an op runs over. */
typedef enum spl_rows { SPL_ROWS_BATCH, SPL_ROWS_LOGITS } spl_rows;

typedef struct spl_op {
    uint16_t kind;   /* spl_op_kind */
    uint16_t layer;  /* SPL_NO_LAYER for embedding and head */
    uint8_t rows;    /* spl_rows */
    uint8_t add;     /* LINEAR adds to its output (residual) */
    uint8_t capture; /* CAPTURE: slot among the tapped layers */
    uint8_t unused;
    uint32_t weight;                 /* index in the weight table, SPL_NO_WEIGHT if none; norms and small tensors of the
                                        layer are found through the layer's own table */
    uint32_t k, n_out;               /* LINEAR, GATE_UP: inputs, outputs; NORM, QUANTISE, EMBED: k values per row */
    uint64_t in, out, out2, scratch; /* byte offsets in the step arena */
    uint64_t weight_bytes;           /* streamed once per run, whatever the number of rows */
    uint64_t lane_bytes;             /* read and written once per lane: recurrent state, convolution window */
    uint32_t kv_bytes_per_token;     /* read per token of a lane's history */
} spl_op;

/* Offsets of the regions a caller looks at. */
typedef struct spl_op_list {
    spl_op *ops;
    uint32_t n_ops;
    uint32_t max_rows, max_logit_rows;
    bool oracle;
    uint64_t arena_bytes;                                /* 64-aligned; pointers never leave [0, arena_bytes) */
    uint64_t tokens, hidden, logits, cos, sin, captured; /* offsets */
    uint32_t captured_width;                             /* values per row, 0 without taps */
} spl_op_list;

/* Builds the target's list for at most max_rows rows and max_logit_rows logit rows. With `capture`, hidden
 * rows of the draft's tapped layers are kept. n_layers as in spl_layout_tensor. Only lists ops: weights are
 * not needed. Errors: SPL_E_UNSUPPORTED for mixtures of experts, SPL_E_NOMEM. */
spl_status spl_op_list_build(spl_op_list *out, const spl_geometry *g, uint32_t n_layers, uint32_t max_rows,
                             uint32_t max_logit_rows, bool capture, bool oracle, spl_error *err);
void spl_op_list_free(spl_op_list *list);

/* Bytes one run moves: every weight once, n_lanes states, the history of kv_tokens tokens per lane. */
uint64_t spl_op_list_step_bytes(const spl_op_list *list, uint32_t n_lanes, uint64_t kv_tokens);
/* Multiply-adds of the linear ops for n_rows rows, n_logit_rows of them with logits. */
uint64_t spl_op_list_step_macs(const spl_op_list *list, uint32_t n_rows, uint32_t n_logit_rows);

/* Bytes of a lane's recurrent state cell: S of every GDN layer, then the convolution windows. */
uint64_t spl_state_cell_bytes(const spl_geometry *g, uint32_t n_layers);
/* Bytes of one KV page over all attention layers and heads. */
uint64_t spl_kv_page_bytes(const spl_geometry *g, uint32_t n_layers, bool f32);

#endif
