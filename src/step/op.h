/* SPDX-License-Identifier: Apache-2.0
 * The step as a program: a prebuilt list of fixed-size records, offsets instead of pointers, run by
 * the whole thread team, one record after the other, joined ones row by row (src/step/run_cpu.c). The same list serves
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
    X(ROPE_TABLE, "rope.table")  /* cos, sin of every row's position */                                                \
    X(EMBED, "embed.rows")       /* hidden = table[token] */                                                           \
    X(NORM, "norm.rms")          /* in: f32 rows; out: q8 block or f32 rows (oracle); out2: f32 rows too */            \
    X(QUANTISE, "quantise")      /* in: f32 rows; out: q8 block */                                                     \
    X(LINEAR, "linear.q4")       /* in: q8 block or f32 rows; out: f32 rows, added when op.add; out2: panel maxima */  \
    X(GATE_UP, "linear.gate_up") /* as LINEAR over panel pairs; out: q8 block (oracle: f32 rows) of silu(gate) * up */ \
    X(ATTN_PREPARE, "attn.prepare")   /* head norms and rotary; in: packed rows; out: q; out2: k */                    \
    X(KV_STORE, "attn.store")         /* rotated k and v of the rows into the lane's pages */                          \
    X(ATTEND, "attn.attend")          /* causal attention over the pages, output gate applied */                       \
    X(ATTEND_MERGE, "attn.merge")     /* histories shared by their splits: partial results to the output */            \
    X(GDN_PREPARE, "gdn.prepare")     /* convolution, SiLU, l2 norms, gates */                                         \
    X(GDN_SCAN, "gdn.scan")           /* recurrence, folding in the pending rows first */                              \
    X(GDN_NORM, "gdn.norm")           /* gated norm per value head, in place */                                        \
    X(CAPTURE, "capture")             /* hidden rows of a tapped layer, for the draft */                               \
    X(GATHER, "gather.rows")          /* rows whose logits are wanted */                                               \
    X(DRAFT_ROWS, "draft.rows")       /* tokens of the blocks, features of the context rows, their rotary tables */    \
    X(DRAFT_CONV, "draft.conv")       /* two-tap grouped dynamic convolution of block rows */                          \
    X(DRAFT_PREPARE, "draft.prepare") /* head norms and rotary of q and k, in place */                                 \
    X(DRAFT_STORE, "draft.store")     /* k and v of block and context rows into the lanes' rings */                    \
    X(DRAFT_ATTEND, "draft.attend")   /* block rows over ring and block */                                             \
    X(DRAFT_TOP, "draft.top")         /* best candidates of every proposal row */                                      \
    X(DRAFT_WALK, "draft.walk")       /* selector path per lane; proposals become the target's input rows */           \
    X(ACCEPT, "accept")               /* target distribution, acceptance, next anchor per lane */

typedef enum spl_op_kind {
#define X(id, text) SPL_OP_##id,
    SPL_OPS(X)
#undef X
        SPL_N_OPS
} spl_op_kind;
const char *spl_op_name(spl_op_kind kind);

/* Which rows an op runs over. */
typedef enum spl_rows {
    SPL_ROWS_BATCH,        /* rows of the target pass */
    SPL_ROWS_LOGITS,       /* rows whose logits are wanted */
    SPL_ROWS_BLOCK,        /* draft block rows, 8 per drafting lane */
    SPL_ROWS_CONTEXT,      /* retained rows whose features enter the draft's context; they follow the block rows */
    SPL_ROWS_BLOCK_CONTEXT /* both */
} spl_rows;

/* An output an op does not have. */
#define SPL_NO_COPY UINT64_MAX

typedef struct spl_op {
    uint16_t kind;                   /* spl_op_kind */
    uint16_t layer;                  /* SPL_NO_LAYER for embedding and head */
    uint8_t rows;                    /* spl_rows */
    uint8_t add;                     /* LINEAR adds to its output (residual) */
    uint8_t capture;                 /* CAPTURE: slot among the tapped layers */
    uint8_t file;                    /* spl_file_id of the weight */
    uint8_t in_rows;                 /* spl_rows that the q8 block at `in` was made for; its first rows are used */
    uint8_t side;                    /* DRAFT_CONV: 0 before the sublayer, 1 after it (added to out) */
    uint8_t joined;                  /* whoever has computed a row of the op before goes on with it here at once */
    uint16_t panel_begin;            /* LINEAR: first panel of the weight; n_out counts from there */
    uint32_t weight;                 /* index in the weight table, SPL_NO_WEIGHT if none; norms and small tensors of the
                                        layer are found through the layer's own table */
    uint32_t k, n_out;               /* LINEAR, GATE_UP: inputs, outputs; NORM, QUANTISE, EMBED: k values per row */
    uint32_t y_stride;               /* LINEAR, GATE_UP: values between output rows */
    uint64_t in, out, out2, scratch; /* byte offsets in the step arena */
    uint64_t weight_bytes;           /* streamed once per run, whatever the number of rows */
    uint64_t lane_bytes;             /* read and written once per lane: recurrent state, convolution window */
    uint32_t kv_bytes_per_token;     /* read per token of a lane's history */
    uint32_t kv_macs_per_token;      /* multiply-adds per row and token of its history */
    uint32_t kv_window;              /* tokens of the history that a row reaches; 0: all */
} spl_op;

/* Of a history of kv_tokens tokens, those that an op reads. */
static inline uint64_t spl_op_kv_tokens(const spl_op *op, uint64_t kv_tokens) {
    return op->kv_window && kv_tokens > op->kv_window ? op->kv_window : kv_tokens;
}

enum { SPL_MAX_SELECTOR_RANK = 1024 };

/* What a list holds beside the target pass. */
typedef enum spl_list_parts {
    SPL_LIST_TARGET = 0,
    SPL_LIST_CAPTURE = 1, /* hidden rows of the draft's tapped layers are kept */
    SPL_LIST_CONTEXT = 2, /* and enter the draft's rings at once (prefill) */
    SPL_LIST_ACCEPT = 4,  /* decode: rows are verified and accepted, up to 8 per lane */
    SPL_LIST_DRAFT = 8    /* decode: blocks are drafted first, the previous step's rows enter the rings */
} spl_list_parts;

/* Offsets of the regions a caller looks at. */
typedef struct spl_op_list {
    spl_op *ops;
    uint32_t n_ops;
    uint32_t max_rows, max_logit_rows;
    uint32_t max_block_rows, max_context_rows; /* of the draft; 0 without */
    unsigned parts;                            /* spl_list_parts */
    bool oracle;
    uint64_t arena_bytes;                                /* 64-aligned; pointers never leave [0, arena_bytes) */
    uint64_t tokens, hidden, logits, cos, sin, captured; /* offsets */
    uint64_t panel_max;      /* decode: largest logit of every 16, [logit or block rows][spl_rank_panels(vocab)] */
    uint32_t head;           /* op that writes the logits */
    uint32_t captured_width; /* values per row, 0 without taps */
    uint64_t draft_tokens, draft_cos, draft_sin, draft_features; /* block tokens; rotary of block and context rows */
    uint64_t draft_hidden, draft_candidates, draft_scores, draft_selector; /* [block rows][hidden | 16 | 16 | rank] */
    uint64_t accept_scratch;                                               /* [lanes][accept_scratch_bytes] */
    uint64_t accept_scratch_bytes;
} spl_op_list;

/* Builds a list for at most max_rows rows and max_logit_rows logit rows. Parts that need a draft are left out when
 * the geometry has none. n_layers as in spl_layout_tensor. Only lists ops: weights are not needed. Errors:
 * SPL_E_UNSUPPORTED for mixtures of experts, SPL_E_INVALID for a draft as wide as no target, SPL_E_NOMEM. */
spl_status spl_op_list_build(spl_op_list *out, const spl_geometry *g, uint32_t n_layers, uint32_t max_rows,
                             uint32_t max_logit_rows, unsigned parts, bool oracle, spl_error *err);
void spl_op_list_free(spl_op_list *list);

/* Bytes one run moves: every weight once, n_lanes states, the history of kv_tokens tokens per lane. */
uint64_t spl_op_list_step_bytes(const spl_op_list *list, uint32_t n_lanes, uint64_t kv_tokens);
/* Multiply-adds of the linear ops for n_rows rows, n_logit_rows of them with logits, and, in a list that drafts,
 * n_rows block rows and n_context context rows. */
uint64_t spl_op_list_step_macs(const spl_op_list *list, uint32_t n_rows, uint32_t n_logit_rows, uint32_t n_context);
/* Multiply-adds of attention, both products, for n_rows rows over kv_tokens tokens each. */
uint64_t spl_op_list_attend_macs(const spl_op_list *list, uint64_t n_rows, uint64_t kv_tokens);

/* Bytes of a lane's recurrent state cell: S of every GDN layer, then the convolution windows. */
uint64_t spl_state_cell_bytes(const spl_geometry *g, uint32_t n_layers);
/* A lane's draft ring: for every draft layer, KV pages that hold the window and the block beyond it, position p in page
 * p / SPL_PAGE_TOKENS % pages. Its bytes; both 0 without a draft. */
uint32_t spl_draft_ring_pages(const spl_geometry *g);
uint64_t spl_draft_ring_bytes(const spl_geometry *g, bool f32);
/* Bytes of one KV page over all attention layers and heads. */
uint64_t spl_kv_page_bytes(const spl_geometry *g, uint32_t n_layers, bool f32);

#endif
