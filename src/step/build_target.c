/* SPDX-License-Identifier: Apache-2.0
 * Builds the target model's op list; reads like the recipe of docs/MATH.md. Buffers are planned by
 * hand: hidden (residual stream), one q8 block, the packed mixer input, the mixer's output rows, the
 * FFN rows and the logits. Regions that are never live together share bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "kernels/kernels.h"
#include "model/weights.h"
#include "step/op.h"

const char *spl_op_name(spl_op_kind kind) {
    static const char *const names[SPL_N_OPS] = {
#define X(id, text) text,
        SPL_OPS(X)
#undef X
    };
    return kind < SPL_N_OPS ? names[kind] : "unknown";
}

typedef struct builder {
    const spl_geometry *g;
    uint32_t n_layers;
    spl_op_list *list;
    spl_tensor_spec *specs; /* layout order; the index is the weight index */
    uint32_t n_specs, capacity;
    spl_status status;
    uint64_t q8, packed, mixed, queries, keys, gates, wide, gathered;
} builder;

static spl_op *push(builder *b, spl_op_kind kind, uint32_t layer) {
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
    op->weight = SPL_NO_WEIGHT;
    return op;
}

static uint32_t weight_of(const builder *b, spl_tensor_role role, uint32_t layer) {
    for (uint32_t i = 0; i < b->n_specs; i++) {
        if (b->specs[i].role == role && b->specs[i].layer == layer) return i;
    }
    return SPL_NO_WEIGHT;
}

/* Adds a tensor's bytes to an op and makes it the op's main weight when `main`. */
static void uses(builder *b, spl_op *op, spl_tensor_role role, bool main_weight) {
    uint32_t i = weight_of(b, role, op->layer);
    if (i == SPL_NO_WEIGHT) {
        b->status = SPL_E_INTERNAL;
        return;
    }
    op->weight_bytes += b->specs[i].bytes;
    if (main_weight) op->weight = i;
}

static spl_op *norm(builder *b, uint32_t layer, spl_tensor_role role, uint64_t in, spl_rows rows) {
    spl_op *op = push(b, SPL_OP_NORM, layer);
    op->rows = (uint8_t)rows;
    op->k = b->g->hidden;
    op->in = in;
    op->out = b->q8;
    uses(b, op, role, true);
    return op;
}

static void quantise(builder *b, uint32_t layer, uint64_t in, uint32_t k) {
    if (b->list->oracle) return; /* the oracle's linear reads the fp32 rows themselves */
    spl_op *op = push(b, SPL_OP_QUANTISE, layer);
    op->k = k;
    op->in = in;
    op->out = b->q8;
}

/* `rows_in` is where the fp32 rows lie; the oracle reads them, the int8 path reads the q8 block. */
static spl_op *linear(builder *b, spl_op_kind kind, uint32_t layer, spl_tensor_role role, uint64_t rows_in,
                      uint64_t out) {
    spl_op *op = push(b, kind, layer);
    op->in = b->list->oracle ? rows_in : b->q8;
    op->out = out;
    uses(b, op, role, true);
    if (op->weight != SPL_NO_WEIGHT) {
        const spl_tensor_spec *t = &b->specs[op->weight];
        op->k = t->cols;
        op->n_out = kind == SPL_OP_GATE_UP ? t->rows / 2 : t->rows;
    }
    return op;
}

static void build_attention(builder *b, uint32_t layer) {
    const spl_geometry *g = b->g;
    (void)linear(b, SPL_OP_LINEAR, layer, SPL_T_ATTN_IN, b->q8, b->packed);
    spl_op *op = push(b, SPL_OP_ATTN_PREPARE, layer);
    op->in = b->packed;
    op->out = b->queries;
    op->out2 = b->keys;
    uses(b, op, SPL_T_Q_NORM, false);
    uses(b, op, SPL_T_K_NORM, false);
    op = push(b, SPL_OP_KV_STORE, layer);
    op->in = b->packed;
    op->out2 = b->keys;
    op = push(b, SPL_OP_ATTEND, layer);
    op->in = b->queries;
    op->scratch = b->packed; /* the gates */
    op->out = b->mixed;
    op->kv_bytes_per_token =
        (uint32_t)(g->n_kv_heads * spl_kv_block_bytes(g->head_dim, b->list->oracle) / SPL_PAGE_TOKENS);
    quantise(b, layer, b->mixed, spl_q_width(g));
    op = linear(b, SPL_OP_LINEAR, layer, SPL_T_ATTN_OUT, b->mixed, b->list->hidden);
    op->add = 1;
}

static void build_gdn(builder *b, uint32_t layer) {
    const spl_geometry *g = b->g;
    uint64_t state = (uint64_t)g->gdn_value_heads * g->gdn_head_dim * g->gdn_head_dim * sizeof(float);
    uint64_t window = (uint64_t)(SPL_CONV_TAPS - 1) * spl_gdn_channels(g) * sizeof(float);
    (void)linear(b, SPL_OP_LINEAR, layer, SPL_T_GDN_IN, b->q8, b->packed);
    spl_op *op = push(b, SPL_OP_GDN_PREPARE, layer);
    op->in = b->packed;
    op->out = b->mixed;
    op->out2 = b->gates;
    op->lane_bytes = 2 * window;
    uses(b, op, SPL_T_GDN_CONV, false);
    uses(b, op, SPL_T_GDN_DECAY, false);
    uses(b, op, SPL_T_GDN_DT_BIAS, false);
    op = push(b, SPL_OP_GDN_SCAN, layer);
    op->in = b->mixed;
    op->out2 = b->gates;
    op->out = b->queries;
    op->lane_bytes = 2 * state;
    op = push(b, SPL_OP_GDN_NORM, layer);
    op->in = b->packed; /* z */
    op->out = b->queries;
    uses(b, op, SPL_T_GDN_NORM, true);
    quantise(b, layer, b->queries, spl_gdn_value_width(g));
    op = linear(b, SPL_OP_LINEAR, layer, SPL_T_GDN_OUT, b->queries, b->list->hidden);
    op->add = 1;
}

static void build_layer(builder *b, uint32_t layer, bool capture) {
    const spl_geometry *g = b->g;
    (void)norm(b, layer, SPL_T_INPUT_NORM, b->list->hidden, SPL_ROWS_BATCH);
    if (spl_layer_is_attention(g, layer)) {
        build_attention(b, layer);
    } else {
        build_gdn(b, layer);
    }
    (void)norm(b, layer, SPL_T_POST_NORM, b->list->hidden, SPL_ROWS_BATCH);
    (void)linear(b, SPL_OP_GATE_UP, layer, SPL_T_GATE_UP, b->q8, b->wide);
    quantise(b, layer, b->wide, g->ffn_width);
    spl_op *op = linear(b, SPL_OP_LINEAR, layer, SPL_T_DOWN, b->wide, b->list->hidden);
    op->add = 1;
    for (uint32_t i = 0; capture && i < g->draft->n_capture; i++) {
        if (g->draft->capture[i] != layer) continue;
        op = push(b, SPL_OP_CAPTURE, layer);
        op->in = b->list->hidden;
        op->out = b->list->captured;
        op->capture = (uint8_t)i;
        op->k = g->hidden;
    }
}

/* Reserves n bytes of the arena, 64-aligned. */
static uint64_t take(spl_op_list *l, uint64_t n_bytes) {
    uint64_t at = l->arena_bytes;
    l->arena_bytes = spl_round_up(at + n_bytes, SPL_CACHE_LINE);
    return at;
}

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void plan_arena(builder *b, bool capture) {
    const spl_geometry *g = b->g;
    spl_op_list *l = b->list;
    uint64_t rows = l->max_rows, f = sizeof(float);
    uint64_t widest = max_u64(max_u64(g->hidden, g->ffn_width), max_u64(spl_q_width(g), spl_gdn_value_width(g)));
    l->tokens = take(l, rows * sizeof(uint32_t));
    l->cos = take(l, rows * (g->rotary_dims / 2) * f);
    l->sin = take(l, rows * (g->rotary_dims / 2) * f);
    l->hidden = take(l, rows * g->hidden * f);
    b->q8 = take(l, l->oracle ? rows * g->hidden * f : spl_q8_bytes(rows, widest));
    b->packed = take(l, rows * max_u64(spl_attention_in_width(g), spl_gdn_in_width(g)) * f);
    b->mixed = take(l, rows * max_u64(spl_q_width(g), spl_gdn_channels(g)) * f);
    b->gates = take(l, rows * 2 * g->gdn_value_heads * f);
    b->queries = take(l, rows * max_u64(spl_q_width(g), spl_gdn_value_width(g)) * f);
    b->keys = take(l, rows * spl_kv_width(g) * f);
    b->wide = take(l, rows * g->ffn_width * f);
    b->gathered = take(l, (uint64_t)l->max_logit_rows * g->hidden * f);
    l->logits = take(l, (uint64_t)l->max_logit_rows * g->vocab * f);
    l->captured_width = capture ? g->draft->n_capture * g->hidden : 0;
    l->captured = take(l, rows * l->captured_width * f);
}

static void build_all(builder *b, bool capture) {
    const spl_geometry *g = b->g;
    spl_op_list *l = b->list;
    spl_op *op = push(b, SPL_OP_ROPE_TABLE, SPL_NO_LAYER);
    op->out = l->cos;
    op->out2 = l->sin;
    op = push(b, SPL_OP_EMBED, SPL_NO_LAYER);
    op->in = l->tokens;
    op->out = l->hidden;
    op->k = g->hidden;
    op->weight = weight_of(b, SPL_T_EMBED, SPL_NO_LAYER); /* gathered, not streamed: no weight bytes */
    for (uint32_t layer = 0; layer < b->n_layers; layer++) build_layer(b, layer, capture);
    op = push(b, SPL_OP_GATHER, SPL_NO_LAYER);
    op->rows = SPL_ROWS_LOGITS;
    op->in = l->hidden;
    op->out = b->gathered;
    op->k = g->hidden;
    (void)norm(b, SPL_NO_LAYER, SPL_T_FINAL_NORM, b->gathered, SPL_ROWS_LOGITS);
    op = linear(b, SPL_OP_LINEAR, SPL_NO_LAYER, SPL_T_HEAD, b->q8, l->logits);
    op->rows = SPL_ROWS_LOGITS;
}

spl_status spl_op_list_build(spl_op_list *out, const spl_geometry *g, uint32_t n_layers, uint32_t max_rows,
                             uint32_t max_logit_rows, bool capture, bool oracle, spl_error *err) {
    memset(out, 0, sizeof *out);
    if (g->n_experts > 0)
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s is a mixture of experts; this version runs dense models only",
                        g->display);
    builder b = {.g = g, .n_layers = n_layers == 0 || n_layers > g->n_layers ? g->n_layers : n_layers, .list = out};
    out->max_rows = max_rows;
    out->max_logit_rows = max_logit_rows;
    out->oracle = oracle;
    b.n_specs = spl_layout_count(g, SPL_FILE_TARGET, b.n_layers);
    b.specs = calloc(b.n_specs, sizeof *b.specs);
    if (!b.specs) return spl_fail(err, SPL_E_NOMEM, "no memory for the op list");
    for (uint32_t i = 0; i < b.n_specs; i++) (void)spl_layout_tensor(g, SPL_FILE_TARGET, b.n_layers, i, &b.specs[i]);
    capture = capture && g->draft != NULL;
    plan_arena(&b, capture);
    build_all(&b, capture);
    free(b.specs);
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
        total += op->weight_bytes + n_lanes * (op->lane_bytes + op->kv_bytes_per_token * kv_tokens);
    }
    return total;
}

uint64_t spl_op_list_step_macs(const spl_op_list *list, uint32_t n_rows, uint32_t n_logit_rows) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < list->n_ops; i++) {
        const spl_op *op = &list->ops[i];
        uint64_t rows = op->rows == SPL_ROWS_LOGITS ? n_logit_rows : n_rows;
        if (op->kind == SPL_OP_LINEAR) total += rows * op->k * op->n_out;
        if (op->kind == SPL_OP_GATE_UP) total += rows * op->k * op->n_out * 2;
    }
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
