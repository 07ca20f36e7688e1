/* SPDX-License-Identifier: Apache-2.0
 * Builds the target model's op list; reads like the recipe of docs/MATH.md. Buffers are planned by
 * hand: hidden (residual stream), one q8 block, the packed mixer input, the mixer's output rows, the
 * FFN rows and the logits. Regions that are never live together share bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "model/weights.h"
#include "sample/distribution.h"
#include "sample/rank.h"
#include "step/builder.h"

const char *spl_op_name(spl_op_kind kind) {
    static const char *const names[SPL_N_OPS] = {
#define X(id, text) text,
        SPL_OPS(X)
#undef X
    };
    return kind < SPL_N_OPS ? names[kind] : "unknown";
}

spl_op *spl_push(spl_builder *b, spl_op_kind kind, uint32_t layer, spl_rows rows) {
    static spl_op sink; /* written when memory ran out; the list is dropped then */
    spl_op_list *l = b->list;
    if (l->n_ops == b->capacity) {
        uint32_t grown = b->capacity ? b->capacity * 2 : 256;
        spl_op *ops = realloc(l->ops, grown * sizeof *ops);
        if (!ops) {
            b->status = SPL_E_NOMEM;
            return &sink;
        }
        l->ops = ops;
        b->capacity = grown;
    }
    spl_op *op = &l->ops[l->n_ops++];
    memset(op, 0, sizeof *op);
    op->kind = (uint16_t)kind;
    op->layer = (uint16_t)layer;
    op->rows = op->in_rows = (uint8_t)rows;
    op->file = (uint8_t)b->file;
    op->weight = SPL_NO_WEIGHT;
    return op;
}

static uint32_t weight_of(const spl_builder *b, spl_file_id file, spl_tensor_role role, uint32_t layer) {
    for (uint32_t i = 0; i < b->n_specs[file]; i++) {
        if (b->specs[file][i].role == role && b->specs[file][i].layer == layer) return i;
    }
    return SPL_NO_WEIGHT;
}

const spl_tensor_spec *spl_uses(spl_builder *b, spl_op *op, spl_tensor_role role, bool main_weight) {
    static const spl_tensor_spec none; /* the list is dropped then */
    uint32_t i = weight_of(b, (spl_file_id)op->file, role, op->layer);
    if (i == SPL_NO_WEIGHT) {
        b->status = SPL_E_INTERNAL;
        return &none;
    }
    const spl_tensor_spec *t = &b->specs[op->file][i];
    op->weight_bytes += t->bytes;
    if (main_weight) op->weight = i;
    return t;
}

spl_op *spl_push_norm(spl_builder *b, uint32_t layer, spl_tensor_role role, uint64_t in, uint64_t copy, spl_rows rows) {
    spl_op *op = spl_push(b, SPL_OP_NORM, layer, rows);
    op->k = b->g->hidden;
    op->in = in;
    op->out = b->q8;
    op->out2 = copy == SPL_NO_COPY && b->list->oracle ? b->q8 : copy;
    (void)spl_uses(b, op, role, true);
    return op;
}

void spl_push_quantise(spl_builder *b, uint32_t layer, uint64_t in, uint32_t k, spl_rows rows) {
    if (b->list->oracle) return; /* the oracle's linear reads the fp32 rows themselves */
    spl_op *op = spl_push(b, SPL_OP_QUANTISE, layer, rows);
    op->k = k;
    op->in = in;
    op->out = b->q8;
}

spl_op *spl_push_linear(spl_builder *b, spl_op_kind kind, uint32_t layer, spl_tensor_role role, uint64_t rows_in,
                        uint64_t out, spl_rows rows) {
    spl_op *op = spl_push(b, kind, layer, rows);
    op->in = b->list->oracle ? rows_in : b->q8;
    op->out = out;
    const spl_tensor_spec *t = spl_uses(b, op, role, true);
    op->k = t->cols;
    op->n_out = kind == SPL_OP_GATE_UP ? t->rows / 2 : t->rows;
    op->y_stride = op->n_out;
    op->out2 = SPL_NO_COPY;
    return op;
}

static void build_attention(spl_builder *b, uint32_t layer) {
    const spl_geometry *g = b->g;
    (void)spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_ATTN_IN, b->q8, b->packed, SPL_ROWS_BATCH);
    spl_op *op = spl_push(b, SPL_OP_ATTN_PREPARE, layer, SPL_ROWS_BATCH);
    op->in = b->packed;
    op->out = b->queries;
    op->out2 = b->keys;
    (void)spl_uses(b, op, SPL_T_Q_NORM, false);
    (void)spl_uses(b, op, SPL_T_K_NORM, false);
    op = spl_push(b, SPL_OP_KV_STORE, layer, SPL_ROWS_BATCH);
    op->in = b->packed;
    op->out2 = b->keys;
    op = spl_push(b, SPL_OP_ATTEND, layer, SPL_ROWS_BATCH);
    op->in = b->queries;
    op->scratch = b->packed; /* the gates */
    op->out = b->mixed;
    op->kv_bytes_per_token =
        (uint32_t)(g->n_kv_heads * spl_kv_block_bytes(g->head_dim, b->list->oracle) / SPL_PAGE_TOKENS);
    op->kv_macs_per_token = 2 * g->n_q_heads * g->head_dim;
    if (!b->list->oracle) { /* the oracle takes every history whole */
        op = spl_push(b, SPL_OP_ATTEND_MERGE, layer, SPL_ROWS_BATCH);
        op->scratch = b->packed;
        op->out = b->mixed;
    }
    spl_push_quantise(b, layer, b->mixed, spl_q_width(g), SPL_ROWS_BATCH);
    op = spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_ATTN_OUT, b->mixed, b->list->hidden, SPL_ROWS_BATCH);
    op->add = 1;
}

static void build_gdn(spl_builder *b, uint32_t layer) {
    const spl_geometry *g = b->g;
    uint64_t state = (uint64_t)g->gdn_value_heads * g->gdn_head_dim * g->gdn_head_dim * sizeof(float);
    uint64_t window = (uint64_t)(SPL_CONV_TAPS - 1) * spl_gdn_channels(g) * sizeof(float);
    (void)spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_GDN_IN, b->q8, b->packed, SPL_ROWS_BATCH);
    spl_op *op = spl_push(b, SPL_OP_GDN_PREPARE, layer, SPL_ROWS_BATCH);
    op->in = b->packed;
    op->out = b->mixed;
    op->out2 = b->gates;
    op->lane_bytes = 2 * window;
    (void)spl_uses(b, op, SPL_T_GDN_CONV, false);
    (void)spl_uses(b, op, SPL_T_GDN_DECAY, false);
    (void)spl_uses(b, op, SPL_T_GDN_DT_BIAS, false);
    op = spl_push(b, SPL_OP_GDN_SCAN, layer, SPL_ROWS_BATCH);
    op->in = b->mixed;
    op->out2 = b->gates;
    op->out = b->queries;
    op->lane_bytes = 2 * state;
    op = spl_push(b, SPL_OP_GDN_NORM, layer, SPL_ROWS_BATCH);
    op->in = b->packed; /* z */
    op->out = b->queries;
    (void)spl_uses(b, op, SPL_T_GDN_NORM, true);
    spl_push_quantise(b, layer, b->queries, spl_gdn_value_width(g), SPL_ROWS_BATCH);
    op = spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_GDN_OUT, b->queries, b->list->hidden, SPL_ROWS_BATCH);
    op->add = 1;
}

static void build_layer(spl_builder *b, uint32_t layer, bool capture) {
    const spl_geometry *g = b->g;
    (void)spl_push_norm(b, layer, SPL_T_INPUT_NORM, b->list->hidden, SPL_NO_COPY, SPL_ROWS_BATCH);
    if (spl_layer_is_attention(g, layer)) {
        build_attention(b, layer);
    } else {
        build_gdn(b, layer);
    }
    (void)spl_push_norm(b, layer, SPL_T_POST_NORM, b->list->hidden, SPL_NO_COPY, SPL_ROWS_BATCH);
    (void)spl_push_linear(b, SPL_OP_GATE_UP, layer, SPL_T_GATE_UP, b->q8, b->wide, SPL_ROWS_BATCH);
    spl_op *op = spl_push_linear(b, SPL_OP_LINEAR, layer, SPL_T_DOWN, b->wide, b->list->hidden, SPL_ROWS_BATCH);
    op->in = b->wide;
    op->add = 1;
    for (uint32_t i = 0; capture && i < g->draft->n_capture; i++) {
        if (g->draft->capture[i] != layer) continue;
        op = spl_push(b, SPL_OP_CAPTURE, layer, SPL_ROWS_BATCH);
        op->in = b->list->hidden;
        op->out = b->list->captured;
        op->capture = (uint8_t)i;
        op->k = g->hidden;
    }
}

uint64_t spl_take(spl_op_list *l, uint64_t n_bytes) {
    uint64_t at = l->arena_bytes;
    l->arena_bytes = spl_round_up(at + n_bytes, SPL_CACHE_LINE);
    return at;
}

uint64_t spl_wide_bytes(const spl_op_list *l, uint64_t n_rows, uint32_t width) {
    return l->oracle ? n_rows * width * sizeof(float) : spl_q8_bytes(n_rows, width);
}

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Bytes of the shared q8 block (the oracle keeps the norm's f32 rows there). */
static uint64_t q8_bytes(const spl_builder *b) {
    const spl_geometry *g = b->g;
    const spl_op_list *l = b->list;
    uint64_t widest = max_u64(g->hidden, max_u64(spl_q_width(g), spl_gdn_value_width(g)));
    uint64_t rows = l->max_rows, block = l->max_block_rows + l->max_context_rows;
    uint64_t target = l->oracle ? rows * g->hidden * sizeof(float) : spl_q8_bytes(rows, widest);
    if (block == 0) return target;
    uint64_t inputs = max_u64(g->hidden, g->draft->n_q_heads * g->draft->head_dim);
    uint64_t draft = max_u64(spl_q8_bytes(block, inputs), spl_q8_bytes(l->max_context_rows, l->captured_width));
    return max_u64(target, l->oracle ? block * g->hidden * sizeof(float) : draft);
}

static void plan_arena(spl_builder *b) {
    const spl_geometry *g = b->g;
    spl_op_list *l = b->list;
    uint64_t rows = l->max_rows, f = sizeof(float);
    l->tokens = spl_take(l, rows * sizeof(uint32_t));
    l->cos = spl_take(l, rows * (g->rotary_dims / 2) * f);
    l->sin = spl_take(l, rows * (g->rotary_dims / 2) * f);
    l->hidden = spl_take(l, rows * g->hidden * f);
    b->q8 = spl_take(l, q8_bytes(b));
    b->packed = spl_take(l, rows * max_u64(spl_attention_in_width(g), spl_gdn_in_width(g)) * f);
    b->mixed = spl_take(l, rows * max_u64(spl_q_width(g), spl_gdn_channels(g)) * f);
    b->gates = spl_take(l, rows * 2 * g->gdn_value_heads * f);
    b->queries = spl_take(l, rows * max_u64(spl_q_width(g), spl_gdn_value_width(g)) * f);
    b->keys = spl_take(l, rows * spl_kv_width(g) * f);
    b->wide = spl_take(l, spl_wide_bytes(l, rows, g->ffn_width));
    b->gathered = spl_take(l, (uint64_t)l->max_logit_rows * g->hidden * f);
    l->logits = spl_take(l, (uint64_t)l->max_logit_rows * g->vocab * f);
    l->captured = spl_take(l, rows * l->captured_width * f);
    if (l->parts & SPL_LIST_ACCEPT) {
        l->panel_max = spl_take(l, (uint64_t)l->max_logit_rows * spl_rank_panels(g->vocab) * f);
        l->accept_scratch_bytes = spl_round_up(spl_dist_scratch_bytes(g->vocab), SPL_CACHE_LINE);
        l->accept_scratch = spl_take(l, SPL_MAX_LANES * l->accept_scratch_bytes);
    }
    if (l->max_block_rows + l->max_context_rows > 0) spl_plan_draft(b);
}

static void build_target(spl_builder *b) {
    const spl_geometry *g = b->g;
    spl_op_list *l = b->list;
    spl_op *op = spl_push(b, SPL_OP_ROPE_TABLE, SPL_NO_LAYER, SPL_ROWS_BATCH);
    op->out = l->cos;
    op->out2 = l->sin;
    op = spl_push(b, SPL_OP_EMBED, SPL_NO_LAYER, SPL_ROWS_BATCH);
    op->in = l->tokens;
    op->out = l->hidden;
    op->k = g->hidden;
    op->weight = weight_of(b, SPL_FILE_TARGET, SPL_T_EMBED, SPL_NO_LAYER); /* gathered, not streamed: no bytes */
    for (uint32_t layer = 0; layer < b->n_layers; layer++) build_layer(b, layer, l->captured_width > 0);
    op = spl_push(b, SPL_OP_GATHER, SPL_NO_LAYER, SPL_ROWS_LOGITS);
    op->in = l->hidden;
    op->out = b->gathered;
    op->k = g->hidden;
    (void)spl_push_norm(b, SPL_NO_LAYER, SPL_T_FINAL_NORM, b->gathered, SPL_NO_COPY, SPL_ROWS_LOGITS);
    op = spl_push_linear(b, SPL_OP_LINEAR, SPL_NO_LAYER, SPL_T_HEAD, b->q8, l->logits, SPL_ROWS_LOGITS);
    if (l->parts & SPL_LIST_ACCEPT) op->out2 = l->panel_max;
    l->head = (uint32_t)(op - l->ops);
}

/* Every stage of a step in its order; a list without a part leaves its stages out. */
static void build_all(spl_builder *b) {
    unsigned parts = b->list->parts;
    if (parts & SPL_LIST_DRAFT) spl_build_draft(b);
    b->file = SPL_FILE_TARGET;
    build_target(b);
    if (parts & SPL_LIST_CONTEXT) spl_build_context(b);
    if (parts & SPL_LIST_ACCEPT) (void)spl_push(b, SPL_OP_ACCEPT, SPL_NO_LAYER, SPL_ROWS_LOGITS);
}

static bool of_draft(spl_rows rows) { return rows >= SPL_ROWS_BLOCK; }

/* May this op begin a row that the op before has done while others of its rows are not? Both must go by rows, this one
 * must need no other row of that one (a convolution does, a gathered row may be any), and nothing may lie where it
 * writes that is still to be read; what is read between two norms or quantisations is read by linears. */
static bool can_join(const spl_op *before, const spl_op *op) {
    bool first = before->kind == SPL_OP_ROPE_TABLE || before->kind == SPL_OP_GDN_NORM ||
                 before->kind == SPL_OP_CAPTURE || before->kind == SPL_OP_GATHER || before->kind == SPL_OP_DRAFT_ROWS ||
                 before->kind == SPL_OP_DRAFT_CONV || before->kind == SPL_OP_DRAFT_PREPARE;
    bool either = before->kind == SPL_OP_EMBED || before->kind == SPL_OP_NORM || before->kind == SPL_OP_QUANTISE ||
                  before->kind == SPL_OP_DRAFT_STORE;
    bool second = op->kind == SPL_OP_EMBED || op->kind == SPL_OP_NORM || op->kind == SPL_OP_QUANTISE ||
                  op->kind == SPL_OP_DRAFT_STORE;
    bool same = before->rows == op->rows || (of_draft((spl_rows)before->rows) && of_draft((spl_rows)op->rows));
    return (first || either) && second && same;
}

static spl_status load_specs(spl_builder *b) {
    for (uint32_t file = SPL_FILE_TARGET; file <= SPL_FILE_DRAFT; file++) {
        uint32_t n = spl_layout_count(b->g, (spl_file_id)file, b->n_layers);
        b->n_specs[file] = n;
        b->specs[file] = calloc(n ? n : 1, sizeof *b->specs[file]);
        if (!b->specs[file]) return SPL_E_NOMEM;
        for (uint32_t i = 0; i < n; i++)
            (void)spl_layout_tensor(b->g, (spl_file_id)file, b->n_layers, i, &b->specs[file][i]);
    }
    return SPL_OK;
}

spl_status spl_op_list_build(spl_op_list *out, const spl_geometry *g, uint32_t n_layers, uint32_t max_rows,
                             uint32_t max_logit_rows, unsigned parts, bool oracle, spl_error *err) {
    memset(out, 0, sizeof *out);
    if (g->n_experts > 0)
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s is a mixture of experts; this version runs dense models only",
                        g->display);
    if (!g->draft) parts &= SPL_LIST_ACCEPT;
    if (g->draft && g->draft->hidden != g->hidden)
        return spl_fail(err, SPL_E_INVALID, "the draft of %s is %u wide; its target is %u", g->display,
                        g->draft->hidden, g->hidden);
    if (g->draft && (g->draft->selector_top_k > 16 || g->draft->selector_rank > SPL_MAX_SELECTOR_RANK ||
                     g->draft->n_q_heads > 16 * g->draft->n_kv_heads || g->draft->block_rows != SPL_BLOCK_ROWS))
        return spl_fail(err, SPL_E_UNSUPPORTED, "the draft of %s needs more candidates, rank or heads than planned for",
                        g->display);
    spl_builder b = {.g = g, .n_layers = n_layers == 0 || n_layers > g->n_layers ? g->n_layers : n_layers, .list = out};
    out->max_rows = max_rows;
    out->max_logit_rows = max_logit_rows;
    out->parts = parts;
    out->oracle = oracle;
    if (parts & SPL_LIST_DRAFT) out->max_block_rows = out->max_context_rows = SPL_MAX_DECODE_ROWS;
    if (parts & SPL_LIST_CONTEXT) out->max_context_rows = max_rows;
    if (parts & (SPL_LIST_CAPTURE | SPL_LIST_CONTEXT | SPL_LIST_DRAFT))
        out->captured_width = g->draft->n_capture * g->hidden;
    b.status = load_specs(&b);
    if (b.status == SPL_OK) {
        plan_arena(&b);
        build_all(&b);
        for (uint32_t i = 1; i < out->n_ops; i++) out->ops[i].joined = can_join(&out->ops[i - 1], &out->ops[i]);
    }
    for (uint32_t file = 0; file < SPL_N_FILES; file++) free(b.specs[file]);
    if (b.status == SPL_OK) return SPL_OK;
    spl_op_list_free(out);
    return spl_fail(err, b.status, "the op list of %s cannot be built: %s", g->display, spl_status_text(b.status));
}

void spl_op_list_free(spl_op_list *list) {
    free(list->ops);
    memset(list, 0, sizeof *list);
}

uint64_t spl_op_list_step_bytes(const spl_op_list *list, uint32_t n_lanes, uint64_t kv_tokens) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < list->n_ops; i++) {
        const spl_op *op = &list->ops[i];
        total +=
            op->weight_bytes + n_lanes * (op->lane_bytes + op->kv_bytes_per_token * spl_op_kv_tokens(op, kv_tokens));
    }
    return total;
}

uint64_t spl_op_list_step_macs(const spl_op_list *list, uint32_t n_rows, uint32_t n_logit_rows, uint32_t n_context) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < list->n_ops; i++) {
        const spl_op *op = &list->ops[i];
        const uint64_t rows[] = {[SPL_ROWS_BATCH] = n_rows,
                                 [SPL_ROWS_LOGITS] = n_logit_rows,
                                 [SPL_ROWS_BLOCK] = n_rows,
                                 [SPL_ROWS_CONTEXT] = n_context,
                                 [SPL_ROWS_BLOCK_CONTEXT] = (uint64_t)n_rows + n_context};
        if (op->kind == SPL_OP_LINEAR) total += rows[op->rows] * op->k * op->n_out;
        if (op->kind == SPL_OP_GATE_UP) total += rows[op->rows] * op->k * op->n_out * 2;
    }
    return total;
}

uint64_t spl_op_list_attend_macs(const spl_op_list *list, uint64_t n_rows, uint64_t kv_tokens) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < list->n_ops; i++)
        total += n_rows * spl_op_kv_tokens(&list->ops[i], kv_tokens) * list->ops[i].kv_macs_per_token;
    return total;
}

/* Counts the layers of each kind among the first n_layers. */
static uint32_t count_layers(const spl_geometry *g, uint32_t n_layers, bool attention) {
    uint32_t n = 0;
    if (n_layers == 0 || n_layers > g->n_layers) n_layers = g->n_layers;
    for (uint32_t layer = 0; layer < n_layers; layer++) n += spl_layer_is_attention(g, layer) == attention;
    return n;
}

uint64_t spl_state_cell_bytes(const spl_geometry *g, uint32_t n_layers) {
    uint64_t state = (uint64_t)g->gdn_value_heads * g->gdn_head_dim * g->gdn_head_dim;
    uint64_t window = (uint64_t)(SPL_CONV_TAPS - 1) * spl_gdn_channels(g);
    return count_layers(g, n_layers, false) * (state + window) * sizeof(float);
}

uint64_t spl_kv_page_bytes(const spl_geometry *g, uint32_t n_layers, bool f32) {
    return (uint64_t)count_layers(g, n_layers, true) * g->n_kv_heads * spl_kv_block_bytes(g->head_dim, f32);
}

uint32_t spl_draft_ring_pages(const spl_geometry *g) {
    if (!g->draft) return 0;
    return (uint32_t)spl_div_up((uint64_t)g->draft->window_tokens - 1 + SPL_BLOCK_ROWS, SPL_PAGE_TOKENS);
}

uint64_t spl_draft_ring_bytes(const spl_geometry *g, bool f32) {
    const spl_draft_geometry *d = g->draft;
    if (!d) return 0;
    return (uint64_t)d->n_layers * spl_draft_ring_pages(g) * d->n_kv_heads * spl_kv_block_bytes(d->head_dim, f32);
}
