/* SPDX-License-Identifier: Apache-2.0
 * The draft's part of the op list. Rows of its linears are the block rows (8 per drafting lane) followed by the
 * context rows: target features of the tokens retained by the step before, which enter the lanes' rings on the
 * way. Keys and values of both kinds come from one read of the weights. Formulas: docs/MATH.md. */
#include "base/bytes.h"
#include "kernels/kernels.h"
#include "step/builder.h"

static uint32_t q_width(const spl_builder *b) { return b->g->draft->n_q_heads * b->g->draft->head_dim; }
static uint32_t kv_width(const spl_builder *b) { return b->g->draft->n_kv_heads * b->g->draft->head_dim; }
static uint32_t dyn_width(const spl_builder *b) {
    return 2 * b->g->draft->conv_taps * (b->g->hidden / b->g->draft->conv_group);
}

void spl_plan_draft(spl_builder *b) {
    const spl_draft_geometry *d = b->g->draft;
    spl_op_list *l = b->list;
    uint64_t block = l->max_block_rows, both = block + l->max_context_rows, f = sizeof(float), hidden = b->g->hidden;
    l->draft_tokens = spl_take(l, block * sizeof(uint32_t));
    l->draft_cos = spl_take(l, both * (d->head_dim / 2) * f);
    l->draft_sin = spl_take(l, both * (d->head_dim / 2) * f);
    /* After a prefill chunk the features are the captured rows themselves. */
    l->draft_features =
        l->parts & SPL_LIST_CONTEXT ? l->captured : spl_take(l, l->max_context_rows * l->captured_width * f);
    l->draft_hidden = spl_take(l, block * hidden * f);
    b->block_norm = spl_take(l, block * hidden * f);
    b->block_dyn = spl_take(l, block * dyn_width(b) * f);
    b->block_x = spl_take(l, both * hidden * f);
    b->block_qkv = spl_take(l, both * (q_width(b) + 2 * kv_width(b)) * f);
    b->block_attn = spl_take(l, block * q_width(b) * f);
    b->block_sub = spl_take(l, both * hidden * f);
    b->block_wide = spl_take(l, spl_wide_bytes(l, block, d->ffn_width));
    l->draft_selector = spl_take(l, block * d->selector_rank * f);
    l->draft_candidates = spl_take(l, block * d->selector_top_k * sizeof(uint32_t));
    l->draft_scores = spl_take(l, block * d->selector_top_k * f);
}

/* c = norm(fc . features) of the context rows, to the rows after the block rows of block_x. */
static void build_features(spl_builder *b) {
    spl_push_quantise(b, SPL_NO_LAYER, b->list->draft_features, b->list->captured_width, SPL_ROWS_CONTEXT);
    (void)spl_push_linear(b, SPL_OP_LINEAR, SPL_NO_LAYER, SPL_T_DRAFT_CONTEXT, b->list->draft_features, b->block_sub,
                          SPL_ROWS_CONTEXT);
    spl_op *op = spl_push_norm(b, SPL_NO_LAYER, SPL_T_DRAFT_HIDDEN_NORM, b->block_sub, b->block_x, SPL_ROWS_CONTEXT);
    op->out = SPL_NO_COPY; /* quantised together with the block rows, layer by layer */
}

/* One read of a part of the fused q, k, v rows: outputs [begin, begin + n), to the same columns of block_qkv. */
static void push_qkv(spl_builder *b, uint32_t layer, uint32_t begin, uint32_t n, spl_rows rows) {
    spl_op *op = spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_DRAFT_QKV, b->block_x, b->block_qkv, rows);
    op->in_rows = SPL_ROWS_BLOCK_CONTEXT;
    op->panel_begin = (uint16_t)(begin / SPL_ROWS_PER_TILE);
    op->y_stride = op->n_out;
    op->weight_bytes = op->n_out ? op->weight_bytes / op->n_out * n : 0;
    op->n_out = n;
    op->out += begin * sizeof(float);
}

/* Head norms, rotary, and k and v of all rows into the rings. */
static void push_keys(spl_builder *b, uint32_t layer) {
    spl_op *op = spl_push(b, SPL_OP_DRAFT_PREPARE, layer, SPL_ROWS_BLOCK_CONTEXT);
    op->out = b->block_qkv;
    (void)spl_uses(b, op, SPL_T_DRAFT_Q_NORM, false);
    (void)spl_uses(b, op, SPL_T_DRAFT_K_NORM, false);
    op = spl_push(b, SPL_OP_DRAFT_STORE, layer, SPL_ROWS_BLOCK_CONTEXT);
    op->in = b->block_qkv;
}

static void push_conv(spl_builder *b, uint32_t layer, spl_tensor_role base, uint64_t in, uint64_t out, uint8_t side) {
    spl_op *op = spl_push(b, SPL_OP_DRAFT_CONV, layer, SPL_ROWS_BLOCK);
    op->in = in;
    op->scratch = b->block_dyn;
    op->out = out;
    op->side = side;
    (void)spl_uses(b, op, base, true);
    op->weight_bytes /= 2; /* one side of the two */
}

static void build_attention(spl_builder *b, uint32_t layer) {
    const spl_draft_geometry *d = b->g->draft;
    spl_op_list *l = b->list;
    (void)spl_push_norm(b, layer, SPL_T_DRAFT_INPUT_NORM, l->draft_hidden, b->block_norm, SPL_ROWS_BLOCK);
    (void)spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_DRAFT_ATTN_CONV_PROJ, b->block_norm, b->block_dyn,
                          SPL_ROWS_BLOCK);
    push_conv(b, layer, SPL_T_DRAFT_ATTN_CONV_BASE, b->block_norm, b->block_x, 0);
    spl_push_quantise(b, layer, b->block_x, b->g->hidden, SPL_ROWS_BLOCK_CONTEXT);
    push_qkv(b, layer, 0, q_width(b), SPL_ROWS_BLOCK);
    push_qkv(b, layer, q_width(b), 2 * kv_width(b), SPL_ROWS_BLOCK_CONTEXT);
    push_keys(b, layer);
    spl_op *op = spl_push(b, SPL_OP_DRAFT_ATTEND, layer, SPL_ROWS_BLOCK);
    op->in = b->block_qkv;
    op->out = b->block_attn;
    op->kv_bytes_per_token = (uint32_t)(d->n_kv_heads * spl_kv_block_bytes(d->head_dim, l->oracle) / SPL_PAGE_TOKENS);
    op->kv_macs_per_token = 2 * d->n_q_heads * d->head_dim;
    op->kv_window = d->window_tokens - 1; /* the rows themselves count too */
    spl_push_quantise(b, layer, b->block_attn, q_width(b), SPL_ROWS_BLOCK);
    (void)spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_DRAFT_ATTN_OUT, b->block_attn, b->block_sub, SPL_ROWS_BLOCK);
    push_conv(b, layer, SPL_T_DRAFT_ATTN_CONV_BASE, b->block_sub, l->draft_hidden, 1);
}

static void build_ffn(spl_builder *b, uint32_t layer) {
    uint64_t hidden = b->list->draft_hidden;
    (void)spl_push_norm(b, layer, SPL_T_DRAFT_POST_NORM, hidden, b->block_norm, SPL_ROWS_BLOCK);
    (void)spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_DRAFT_FFN_CONV_PROJ, b->block_norm, b->block_dyn,
                          SPL_ROWS_BLOCK);
    push_conv(b, layer, SPL_T_DRAFT_FFN_CONV_BASE, b->block_norm, b->block_x, 0);
    spl_push_quantise(b, layer, b->block_x, b->g->hidden, SPL_ROWS_BLOCK);
    (void)spl_push_linear(b, SPL_OP_GATE_UP, layer, SPL_T_DRAFT_GATE_UP, b->block_x, b->block_wide, SPL_ROWS_BLOCK);
    spl_op *op =
        spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_DRAFT_DOWN, b->block_wide, b->block_sub, SPL_ROWS_BLOCK);
    op->in = b->block_wide;
    push_conv(b, layer, SPL_T_DRAFT_FFN_CONV_BASE, b->block_sub, hidden, 1);
}

/* The target's head over the block rows, candidates, and the selector's walk. */
static void build_proposals(spl_builder *b) {
    spl_op_list *l = b->list;
    const spl_draft_geometry *d = b->g->draft;
    (void)spl_push_norm(b, SPL_NO_LAYER, SPL_T_DRAFT_FINAL_NORM, l->draft_hidden, b->block_norm, SPL_ROWS_BLOCK);
    (void)spl_push_linear(b, SPL_OP_LINEAR, SPL_NO_LAYER, SPL_T_DRAFT_SELECTOR, b->block_norm, l->draft_selector,
                          SPL_ROWS_BLOCK);
    b->file = SPL_FILE_TARGET;
    spl_op *op = spl_push_linear(b, SPL_OP_LINEAR, SPL_NO_LAYER, SPL_T_HEAD, b->block_norm, l->logits, SPL_ROWS_BLOCK);
    op->out2 = l->panel_max;
    b->file = SPL_FILE_DRAFT;
    op = spl_push(b, SPL_OP_DRAFT_TOP, SPL_NO_LAYER, SPL_ROWS_BLOCK);
    op->in = l->logits;
    op = spl_push(b, SPL_OP_DRAFT_WALK, SPL_NO_LAYER, SPL_ROWS_BLOCK);
    /* Gathered rows of the codebooks: a predecessor and 16 successors for each of 7 positions. */
    op->lane_bytes = (uint64_t)(d->block_rows - 1) * (1 + d->selector_top_k) * d->selector_rank * sizeof(uint16_t);
}

void spl_build_draft(spl_builder *b) {
    spl_op_list *l = b->list;
    b->file = SPL_FILE_DRAFT;
    (void)spl_push(b, SPL_OP_DRAFT_ROWS, SPL_NO_LAYER, SPL_ROWS_BLOCK_CONTEXT);
    b->file = SPL_FILE_TARGET;
    spl_op *op = spl_push(b, SPL_OP_EMBED, SPL_NO_LAYER, SPL_ROWS_BLOCK);
    op->in = l->draft_tokens;
    op->out = l->draft_hidden;
    op->k = b->g->hidden;
    (void)spl_uses(b, op, SPL_T_EMBED, true);
    op->weight_bytes = 0; /* gathered, not streamed */
    b->file = SPL_FILE_DRAFT;
    build_features(b);
    for (uint32_t layer = 0; layer < b->g->draft->n_layers; layer++) {
        build_attention(b, layer);
        build_ffn(b, layer);
    }
    build_proposals(b);
}

void spl_build_context(spl_builder *b) {
    b->file = SPL_FILE_DRAFT;
    (void)spl_push(b, SPL_OP_DRAFT_ROWS, SPL_NO_LAYER, SPL_ROWS_BLOCK_CONTEXT);
    build_features(b);
    for (uint32_t layer = 0; layer < b->g->draft->n_layers; layer++) {
        spl_push_quantise(b, layer, b->block_x, b->g->hidden, SPL_ROWS_BLOCK_CONTEXT);
        push_qkv(b, layer, q_width(b), 2 * kv_width(b), SPL_ROWS_BLOCK_CONTEXT);
        push_keys(b, layer);
    }
}
