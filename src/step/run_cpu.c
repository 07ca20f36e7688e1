/* SPDX-License-Identifier: Apache-2.0
 * The CPU interpreter of an op list. All members of the team walk the list together: each op is cut
 * into units (rows, panels, heads of a lane), members take ranges of them, and an op ends when its units are done.
 * Which member computes a unit never shows in the result. */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/huge_pages.h"
#include "sample/rank.h"
#include "step/run.h"

static size_t scratch_bytes_of(const spl_geometry *g, uint32_t max_rows) {
    size_t group =
        (size_t)(max_rows > SPL_MAX_DECODE_ROWS ? max_rows : SPL_MAX_DECODE_ROWS) * SPL_GROUP * sizeof(float);
    size_t attend = spl_attend_scratch_bytes(g->n_q_heads, g->n_kv_heads, g->head_dim);
    size_t scan = spl_gdn_scratch_bytes(g->gdn_head_dim);
    size_t draft = spl_draft_scratch_bytes(g);
    size_t most = attend > scan ? attend : scan;
    if (most < group) most = group; /* what a member has of gate and up before it is quantised */
    return (size_t)spl_round_up(most > draft ? most : draft, 4096);
}

static size_t part_slot_floats(const spl_geometry *g) { return g->n_q_heads * SPL_ATTEND_PART_FLOATS(g->head_dim); }
static size_t parts_bytes_of(const spl_geometry *g) {
    return (size_t)SPL_PART_SLOTS * part_slot_floats(g) * sizeof(float);
}

uint64_t spl_pending_bytes(const spl_geometry *g, uint32_t n_layers) {
    uint64_t gdn = 0;
    for (uint32_t i = 0; i < n_layers; i++) gdn += !spl_layer_is_attention(g, i);
    uint64_t row = 3ull * spl_gdn_channels(g) + 4ull * g->gdn_value_heads;
    return spl_round_up(gdn * SPL_BLOCK_ROWS * row * sizeof(float), SPL_CACHE_LINE);
}

void spl_pending_place(spl_pending *out, void *memory, const spl_geometry *g, uint32_t n_layers) {
    uint64_t gdn = 0;
    for (uint32_t i = 0; i < n_layers; i++) gdn += !spl_layer_is_attention(g, i);
    size_t rows = (size_t)(gdn * SPL_BLOCK_ROWS), channels = spl_gdn_channels(g), heads = g->gdn_value_heads;
    float *at = memory;
    out->inputs = at;
    at += rows * channels;
    for (int half = 0; half < 2; half++) {
        out->mixed[half] = at;
        at += rows * channels;
    }
    for (int half = 0; half < 2; half++) {
        out->decay[half] = at;
        at += rows * heads;
        out->beta[half] = at;
        at += rows * heads;
    }
    out->half = 0;
}

static float *rows_at(const spl_step *s, uint64_t offset) { return spl_rows_at(s, offset); }

uint32_t spl_rows_of(const spl_step *s, spl_rows rows) {
    switch (rows) {
    case SPL_ROWS_BATCH: return s->batch->n_rows;
    case SPL_ROWS_LOGITS: return s->batch->lanes ? s->batch->n_rows : s->batch->n_logit_rows;
    case SPL_ROWS_BLOCK: return s->n_block_rows;
    case SPL_ROWS_CONTEXT: return s->n_context_rows;
    case SPL_ROWS_BLOCK_CONTEXT: return s->n_block_rows + s->n_context_rows;
    }
    return 0;
}

static uint32_t rows_of(const spl_step *s, const spl_op *op) { return spl_rows_of(s, (spl_rows)op->rows); }

/* The first rows of the q8 block at `in`, which was made for op->in_rows rows. */
static spl_q8_rows q8_of(const spl_step *s, const spl_op *op) {
    spl_q8_rows x = spl_q8_at(s->arena + op->in, spl_rows_of(s, (spl_rows)op->in_rows), op->k);
    x.n_rows = rows_of(s, op);
    return x;
}

static const void *weight_at(const spl_step *s, const spl_op *op) {
    const uint8_t *w = s->weights[op->file].data[op->weight];
    return w + (size_t)op->panel_begin * (op->k / SPL_GROUP) * SPL_Q4_TILE_BYTES;
}

/* ---- one function per op: units [begin, end) ------------------------------------------------ */

static void run_rope(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    uint32_t n_pairs = s->g->rotary_dims / 2;
    for (uint32_t i = 0; i < s->batch->n_segments; i++) {
        const spl_segment *seg = &s->batch->segments[i];
        for (uint32_t r = 0; r < seg->n_rows; r++) {
            uint32_t row = seg->row_begin + r;
            if (row < begin || row >= end) continue;
            spl_rope_row(rows_at(s, op->out) + (size_t)row * n_pairs, rows_at(s, op->out2) + (size_t)row * n_pairs,
                         s->inverse_frequency, n_pairs, seg->position + r);
        }
    }
}

static void run_embed(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    s->k.embed_rows(&(spl_embed_args){.table = weight_at(s, op),
                                      .tokens = (const uint32_t *)(const void *)(s->arena + op->in),
                                      .y = rows_at(s, op->out),
                                      .k = op->k,
                                      .row_begin = begin,
                                      .row_end = end});
}

static void run_norm(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    spl_norm_args a = {.x = rows_at(s, op->in),
                       .x_stride = op->k,
                       .weight = weight_at(s, op),
                       .eps = op->file == SPL_FILE_DRAFT ? s->g->draft->rms_eps : s->g->rms_eps,
                       .k = op->k,
                       .row_begin = begin,
                       .row_end = end};
    /* Context rows come to lie behind the block rows. */
    size_t shift = op->rows == SPL_ROWS_CONTEXT ? (size_t)s->n_block_rows * op->k : 0;
    if (op->out2 != SPL_NO_COPY) a.y = rows_at(s, op->out2) + shift;
    if (!s->list->oracle && op->out != SPL_NO_COPY) a.q8 = spl_q8_at(s->arena + op->out, rows_of(s, op), op->k);
    s->k.rms_norm(&a);
}

static void run_quantise(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    s->k.quantise(&(spl_quantise_args){.x = rows_at(s, op->in),
                                       .x_stride = op->k,
                                       .q8 = spl_q8_at(s->arena + op->out, rows_of(s, op), op->k),
                                       .row_begin = begin,
                                       .row_end = end});
}

static float *max_of(const spl_step *s, const spl_op *op) {
    return op->out2 == SPL_NO_COPY ? NULL : rows_at(s, op->out2);
}

static void run_linear_f32(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    spl_linear_f32_args a = {.w = weight_at(s, op),
                             .n_out = op->n_out,
                             .k = op->k,
                             .x = rows_at(s, op->in),
                             .n_rows = rows_of(s, op),
                             .y = rows_at(s, op->out),
                             .y_stride = op->y_stride,
                             .max = max_of(s, op),
                             .max_stride = spl_rank_panels(op->n_out),
                             .add = op->add != 0,
                             .panel_begin = begin,
                             .panel_end = end};
    if (op->kind == SPL_OP_GATE_UP) {
        s->k.gate_up_f32(&a);
    } else {
        s->k.linear_f32(&a);
    }
}

static bool read_late(const spl_step *s, const spl_op *op) {
    return spl_outputs_read_late((uint64_t)op->k * op->n_out, rows_of(s, op));
}

static bool writes_out(const spl_step *s, const spl_op *op) {
    return s->keeps_logits || op != &s->list->ops[s->list->head];
}

/* Units are groups of outputs, for they are quantised together; the oracle's are pairs of panels. */
static void run_gate_up(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end, uint32_t member) {
    if (s->list->oracle) {
        run_linear_f32(s, op, begin, end);
        return;
    }
    s->k.gate_up_q4(&(spl_gate_up_args){.w = weight_at(s, op),
                                        .n_out = op->n_out,
                                        .x = q8_of(s, op),
                                        .y = spl_q8_at(s->arena + op->out, rows_of(s, op), op->n_out),
                                        .scratch = (float *)(void *)(s->scratch + member * s->scratch_bytes),
                                        .group_begin = begin,
                                        .group_end = end,
                                        .reach = s->knobs.reach});
}

static void run_linear(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    if (s->list->oracle) {
        run_linear_f32(s, op, begin, end);
        return;
    }
    s->k.linear_q4(&(spl_linear_args){.w = weight_at(s, op),
                                      .n_out = op->n_out,
                                      .x = q8_of(s, op),
                                      .y = writes_out(s, op) ? rows_at(s, op->out) : NULL,
                                      .y_stride = op->y_stride,
                                      .max = max_of(s, op),
                                      .max_stride = spl_rank_panels(op->n_out),
                                      .add = op->add != 0,
                                      .read_late = read_late(s, op),
                                      .panel_begin = begin,
                                      .panel_end = end,
                                      .reach = s->knobs.reach});
}

void spl_run_head_panel(const spl_step *s, uint32_t row, uint32_t panel, float logits[SPL_ROWS_PER_TILE]) {
    const spl_op *op = &s->list->ops[s->list->head];
    float y[SPL_MAX_DECODE_ROWS][SPL_ROWS_PER_TILE];
    size_t panel_bytes = op->k / SPL_GROUP * (size_t)SPL_Q4_TILE_BYTES;
    spl_linear_args a = {.w = (const uint8_t *)weight_at(s, op) + panel * panel_bytes,
                         .n_out = op->n_out - panel * SPL_ROWS_PER_TILE,
                         .x = q8_of(s, op),
                         .y = y[0],
                         .y_stride = SPL_ROWS_PER_TILE,
                         .panel_end = 1,
                         .reach = s->knobs.reach};
    a.x.n_rows = row + 1;
    s->k.linear_q4(&a);
    memcpy(logits, y[row], sizeof y[row]);
}

static void run_attn_prepare(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    const spl_geometry *g = s->g;
    const spl_layer_tensors *t = &s->layers[op->layer];
    s->k.attn_prepare(&(spl_attn_prepare_args){.in = rows_at(s, op->in),
                                               .in_stride = spl_attention_in_width(g),
                                               .q_norm = t->q_norm,
                                               .k_norm = t->k_norm,
                                               .cos = rows_at(s, s->list->cos),
                                               .sin = rows_at(s, s->list->sin),
                                               .q = rows_at(s, op->out),
                                               .k = rows_at(s, op->out2),
                                               .n_q_heads = g->n_q_heads,
                                               .n_kv_heads = g->n_kv_heads,
                                               .head_dim = g->head_dim,
                                               .rotary_dims = g->rotary_dims,
                                               .eps = g->rms_eps,
                                               .row_begin = begin,
                                               .row_end = end});
}

static spl_kv_view kv_view(const spl_step *s, const spl_op *op, const spl_segment *seg) {
    const spl_geometry *g = s->g;
    size_t block = spl_kv_block_bytes(g->head_dim, s->list->oracle);
    return (spl_kv_view){.pool = s->batch->kv_pool,
                         .page_table = seg->page_table,
                         .page_stride = s->batch->page_stride,
                         .layer_offset = spl_attention_index(g, op->layer) * g->n_kv_heads * block,
                         .n_kv_heads = g->n_kv_heads,
                         .head_dim = g->head_dim};
}

static void kv_store_segment(const spl_step *s, const spl_op *op, const spl_segment *seg, uint32_t begin,
                             uint32_t end) {
    const spl_geometry *g = s->g;
    size_t stride = spl_attention_in_width(g), kv_width = spl_kv_width(g);
    spl_kv_store_args a = {.kv = kv_view(s, op, seg),
                           .k = rows_at(s, op->out2) + seg->row_begin * kv_width,
                           .v = rows_at(s, op->in) + seg->row_begin * stride + 2 * spl_q_width(g) + kv_width,
                           .k_stride = kv_width,
                           .v_stride = stride,
                           .position = seg->position,
                           .n_rows = seg->n_rows,
                           .head_begin = begin,
                           .head_end = end};
    (s->list->oracle ? s->k.kv_store_f32 : s->k.kv_store_i8)(&a);
}

/* Decides which histories are shared by splits: those of runs of few rows, while there are slots. */
static void place_parts(spl_step *s) {
    const spl_batch *b = s->batch;
    uint32_t used = 0;
    for (uint32_t i = 0; i < SPL_MAX_LANES; i++) s->part_begin[i] = SPL_NO_PARTS;
    if (s->list->oracle || b->n_rows > SPL_MAX_DECODE_ROWS || b->n_segments > SPL_MAX_LANES) return;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const spl_segment *seg = &b->segments[i];
        uint32_t n_splits = spl_attend_splits(seg->position, seg->n_rows);
        if (n_splits < 2 || n_splits > (SPL_PART_SLOTS - used) / seg->n_rows) continue;
        s->part_begin[i] = used;
        used += n_splits * seg->n_rows;
    }
}

static float *parts_of(const spl_step *s, const spl_segment *seg) {
    size_t i = (size_t)(seg - s->batch->segments);
    if (i >= SPL_MAX_LANES || s->part_begin[i] == SPL_NO_PARTS) return NULL;
    return s->parts + s->part_begin[i] * part_slot_floats(s->g);
}

/* ATTEND and ATTEND_MERGE; the latter has its gates and output in the same places. */
static void attend_segment(const spl_step *s, const spl_op *op, const spl_segment *seg, uint32_t begin, uint32_t end,
                           uint32_t member) {
    const spl_geometry *g = s->g;
    size_t stride = spl_attention_in_width(g), q_width = spl_q_width(g);
    spl_attend_args a = {.kv = kv_view(s, op, seg),
                         .q = rows_at(s, op->in) + seg->row_begin * q_width,
                         .q_stride = q_width,
                         .gate = rows_at(s, op->scratch) + seg->row_begin * stride,
                         .gate_stride = stride,
                         .y = rows_at(s, op->out) + seg->row_begin * q_width,
                         .parts = parts_of(s, seg),
                         .n_q_heads = g->n_q_heads,
                         .position = seg->position,
                         .n_rows = seg->n_rows,
                         .unit_begin = begin,
                         .unit_end = end,
                         .scratch = s->scratch + member * s->scratch_bytes};
    if (op->kind == SPL_OP_ATTEND_MERGE) {
        s->k.attend_merge(&a);
    } else {
        (s->list->oracle ? s->k.attend_f32 : s->k.attend_i8)(&a);
    }
}

/* Where the GDN front of a segment's rows goes: the arena, or the pending buffer's other half when the
 * rows wait for their acceptance. */
typedef struct gdn_rows {
    float *mixed, *decay, *beta;
} gdn_rows;

static gdn_rows gdn_rows_of(const spl_step *s, const spl_op *op, const spl_segment *seg, uint64_t mixed_offset) {
    const spl_geometry *g = s->g;
    size_t channels = spl_gdn_channels(g), heads = g->gdn_value_heads;
    if (seg->n_commit < seg->n_rows) {
        size_t layer = (size_t)spl_gdn_index(g, op->layer) * SPL_BLOCK_ROWS;
        const spl_pending *p = seg->pending;
        uint32_t half = p->half ^ 1u;
        return (gdn_rows){p->mixed[half] + layer * channels, p->decay[half] + layer * heads,
                          p->beta[half] + layer * heads};
    }
    float *gates = rows_at(s, op->out2);
    return (gdn_rows){rows_at(s, mixed_offset) + seg->row_begin * channels, gates + seg->row_begin * heads,
                      gates + (s->list->max_rows + seg->row_begin) * heads};
}

static float *window_of(const spl_step *s, const spl_op *op, const spl_segment *seg) {
    const spl_geometry *g = s->g;
    size_t states = (size_t)spl_gdn_index(g, s->n_layers) * g->gdn_value_heads * g->gdn_head_dim * g->gdn_head_dim;
    return seg->cell + states + (size_t)spl_gdn_index(g, op->layer) * (SPL_CONV_TAPS - 1) * spl_gdn_channels(g);
}

/* window = rows n .. n + 2 of (window ++ rows) for channels [begin, end); ascending, so in place is safe. */
static void slide_window(float *window, const float *rows, size_t row_stride, size_t channels, uint32_t n, size_t begin,
                         size_t end) {
    if (n == 0) return;
    for (uint32_t j = 0; j < SPL_CONV_TAPS - 1; j++) {
        uint32_t from = n + j;
        const float *source =
            from < SPL_CONV_TAPS - 1 ? window + from * channels : rows + (from - (SPL_CONV_TAPS - 1)) * row_stride;
        memmove(window + j * channels + begin, source + begin, (end - begin) * sizeof(float));
    }
}

static void gdn_prepare_segment(const spl_step *s, const spl_op *op, const spl_segment *seg, uint32_t begin,
                                uint32_t end) {
    const spl_geometry *g = s->g;
    const spl_layer_tensors *t = &s->layers[op->layer];
    size_t channels = spl_gdn_channels(g), d = g->gdn_head_dim;
    float *window = window_of(s, op, seg);
    if (seg->n_pending > 0) {
        const float *inputs = seg->pending->inputs + (size_t)spl_gdn_index(g, op->layer) * SPL_BLOCK_ROWS * channels;
        slide_window(window, inputs, channels, channels, seg->n_pending, begin * d, end * d);
    }
    gdn_rows rows = gdn_rows_of(s, op, seg, op->out);
    s->k.gdn_prepare(&(spl_gdn_prepare_args){.in = rows_at(s, op->in) + seg->row_begin * (size_t)spl_gdn_in_width(g),
                                             .in_stride = spl_gdn_in_width(g),
                                             .window = window,
                                             .conv = t->conv,
                                             .a_neg = t->decay,
                                             .dt_bias = t->dt_bias,
                                             .mixed = rows.mixed,
                                             .decay = rows.decay,
                                             .beta = rows.beta,
                                             .key_heads = g->gdn_key_heads,
                                             .value_heads = g->gdn_value_heads,
                                             .head_dim = g->gdn_head_dim,
                                             .n_rows = seg->n_rows,
                                             .unit_begin = begin,
                                             .unit_end = end});
}

static void gdn_scan_segment(const spl_step *s, const spl_op *op, const spl_segment *seg, uint32_t begin, uint32_t end,
                             uint32_t member, uint64_t packed) {
    const spl_geometry *g = s->g;
    size_t channels = spl_gdn_channels(g), heads = g->gdn_value_heads, d = g->gdn_head_dim;
    size_t layer = spl_gdn_index(g, op->layer);
    gdn_rows rows = gdn_rows_of(s, op, seg, op->in);
    spl_gdn_scan_args a = {.state = seg->cell + layer * heads * d * d,
                           .n_pending = seg->n_pending,
                           .mixed = rows.mixed,
                           .decay = rows.decay,
                           .beta = rows.beta,
                           .out = rows_at(s, op->out) + seg->row_begin * heads * d,
                           .n_rows = seg->n_rows,
                           .n_commit = seg->n_commit,
                           .key_heads = g->gdn_key_heads,
                           .value_heads = g->gdn_value_heads,
                           .head_dim = g->gdn_head_dim,
                           .head_begin = begin,
                           .head_end = end,
                           .scratch = s->scratch + member * s->scratch_bytes};
    if (seg->n_pending > 0) {
        const spl_pending *p = seg->pending;
        a.pending_mixed = p->mixed[p->half] + layer * SPL_BLOCK_ROWS * channels;
        a.pending_decay = p->decay[p->half] + layer * SPL_BLOCK_ROWS * heads;
        a.pending_beta = p->beta[p->half] + layer * SPL_BLOCK_ROWS * heads;
    }
    s->k.gdn_scan(&a);
    /* The windows move on by the committed rows; the rest of the raw inputs wait with their rows. Head h
     * looks after its share of the channels. */
    size_t c0 = channels * begin / heads, c1 = channels * end / heads, stride = spl_gdn_in_width(g);
    const float *inputs = rows_at(s, packed) + seg->row_begin * stride;
    slide_window(window_of(s, op, seg), inputs, stride, channels, seg->n_commit, c0, c1);
    for (uint32_t r = seg->n_commit; r < seg->n_rows; r++) {
        float *kept = seg->pending->inputs + (layer * SPL_BLOCK_ROWS + r - seg->n_commit) * channels;
        memcpy(kept + c0, inputs + r * stride + c0, (c1 - c0) * sizeof(float));
    }
}

static void run_gdn_norm(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    const spl_geometry *g = s->g;
    s->k.gdn_norm(&(spl_gdn_norm_args){.out = rows_at(s, op->out),
                                       .z = rows_at(s, op->in) + spl_gdn_channels(g),
                                       .z_stride = spl_gdn_in_width(g),
                                       .weight = s->layers[op->layer].gdn_norm,
                                       .eps = g->rms_eps,
                                       .value_heads = g->gdn_value_heads,
                                       .head_dim = g->gdn_head_dim,
                                       .row_begin = begin,
                                       .row_end = end});
}

static void run_capture(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    size_t width = s->list->captured_width, slot = (size_t)op->capture * op->k;
    for (uint32_t i = 0; i < s->batch->n_segments; i++) {
        const spl_segment *seg = &s->batch->segments[i];
        for (uint32_t r = 0; r < seg->n_rows; r++) {
            uint32_t row = seg->row_begin + r;
            if (row < begin || row >= end) continue;
            float *to = seg->features ? seg->features + r * width : rows_at(s, op->out) + row * width;
            memcpy(to + slot, rows_at(s, op->in) + (size_t)row * op->k, op->k * sizeof(float));
        }
    }
}

static void run_gather(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; i++) {
        size_t row = s->batch->lanes ? i : s->batch->logit_rows[i];
        memcpy(rows_at(s, op->out) + (size_t)i * op->k, rows_at(s, op->in) + row * op->k, op->k * sizeof(float));
    }
}

/* ---- the walk ------------------------------------------------------------------------------- */

/* Units of an op per segment (lane ops), or over the whole batch. */
typedef struct op_units {
    uint32_t n, grain; /* n: in all, or of a segment; 0: segment_units counts */
    bool by_segment;
} op_units;

static op_units units_of(const spl_step *s, const spl_op *op) {
    const spl_geometry *g = s->g;
    uint32_t rows = rows_of(s, op), chunk = s->knobs.panel_chunk ? s->knobs.panel_chunk : SPL_DEFAULT_PANEL_CHUNK;
    switch ((spl_op_kind)op->kind) {
    case SPL_OP_LINEAR:
        return (op_units){.n = rows ? (uint32_t)spl_div_up(op->n_out, SPL_ROWS_PER_TILE) : 0, .grain = chunk};
    case SPL_OP_GATE_UP: /* a group of outputs takes 8 panels */
        if (s->list->oracle)
            return (op_units){.n = rows ? (uint32_t)spl_div_up(op->n_out, SPL_ROWS_PER_TILE) : 0,
                              .grain = (chunk + 1) / 2};
        return (op_units){.n = rows ? op->n_out / SPL_GROUP : 0, .grain = (chunk + 7) / 8};
    case SPL_OP_KV_STORE: return (op_units){.n = g->n_kv_heads, .grain = 1, .by_segment = true};
    case SPL_OP_ATTEND:
    case SPL_OP_ATTEND_MERGE: return (op_units){.grain = 1, .by_segment = true};
    case SPL_OP_GDN_PREPARE:
        return (op_units){.n = 2 * g->gdn_key_heads + g->gdn_value_heads, .grain = 1, .by_segment = true};
    case SPL_OP_GDN_SCAN: return (op_units){.n = g->gdn_value_heads, .grain = 1, .by_segment = true};
    case SPL_OP_DRAFT_ATTEND: return (op_units){.n = rows / SPL_BLOCK_ROWS * g->draft->n_kv_heads, .grain = 1};
    case SPL_OP_DRAFT_WALK: return (op_units){.n = rows / SPL_BLOCK_ROWS, .grain = 1};
    case SPL_OP_ACCEPT: return (op_units){.n = s->batch->n_segments, .grain = 1};
    default: return (op_units){.n = rows, .grain = 1};
    }
}

static uint32_t segment_units(const spl_step *s, const spl_op *op, const op_units *u, const spl_segment *seg) {
    bool shared = op->kind == SPL_OP_ATTEND || op->kind == SPL_OP_ATTEND_MERGE ? parts_of(s, seg) != NULL : false;
    switch ((spl_op_kind)op->kind) {
    case SPL_OP_ATTEND:
        return spl_attend_blocks(seg->n_rows, s->g->n_kv_heads) *
               (shared ? spl_attend_splits(seg->position, seg->n_rows) : 1);
    case SPL_OP_ATTEND_MERGE: return shared ? seg->n_rows * s->g->n_q_heads : 0;
    default: return u->n;
    }
}

static void run_segment(const spl_step *s, const spl_op *op, const spl_segment *seg, uint32_t begin, uint32_t end,
                        uint32_t member) {
    switch ((spl_op_kind)op->kind) {
    case SPL_OP_KV_STORE: kv_store_segment(s, op, seg, begin, end); break;
    case SPL_OP_ATTEND:
    case SPL_OP_ATTEND_MERGE: attend_segment(s, op, seg, begin, end, member); break;
    case SPL_OP_GDN_PREPARE: gdn_prepare_segment(s, op, seg, begin, end); break;
    case SPL_OP_GDN_SCAN: gdn_scan_segment(s, op, seg, begin, end, member, (op - 1)->in); break;
    default: break;
    }
}

/* Units of all segments are numbered one after another; cuts a range back into segments. */
static void run_segments(const spl_step *s, const spl_op *op, const op_units *u, uint32_t begin, uint32_t end,
                         uint32_t member) {
    uint32_t first = 0;
    for (uint32_t i = 0; i < s->batch->n_segments && first < end; i++) {
        const spl_segment *seg = &s->batch->segments[i];
        uint32_t n = segment_units(s, op, u, seg);
        uint32_t from = begin > first ? begin - first : 0;
        uint32_t to = end - first < n ? end - first : n;
        if (from < to) run_segment(s, op, seg, from, to, member);
        first += n;
    }
}

static void run_range(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end, uint32_t member) {
    switch ((spl_op_kind)op->kind) {
    case SPL_OP_ROPE_TABLE: run_rope(s, op, begin, end); break;
    case SPL_OP_EMBED: run_embed(s, op, begin, end); break;
    case SPL_OP_NORM: run_norm(s, op, begin, end); break;
    case SPL_OP_QUANTISE: run_quantise(s, op, begin, end); break;
    case SPL_OP_LINEAR: run_linear(s, op, begin, end); break;
    case SPL_OP_GATE_UP: run_gate_up(s, op, begin, end, member); break;
    case SPL_OP_ATTN_PREPARE: run_attn_prepare(s, op, begin, end); break;
    case SPL_OP_GDN_NORM: run_gdn_norm(s, op, begin, end); break;
    case SPL_OP_CAPTURE: run_capture(s, op, begin, end); break;
    case SPL_OP_GATHER: run_gather(s, op, begin, end); break;
    default: spl_run_draft(s, op, begin, end, member); break;
    }
}

/* Where member 0 adds the time since it last looked; no watch, no clock. */
typedef struct op_watch {
    uint64_t *op_ns, then;
} op_watch;

static void look(op_watch *w, uint32_t op) {
    if (!w->op_ns) return;
    uint64_t now = spl_now_ns();
    w->op_ns[op] += now - w->then;
    w->then = now;
}

/* Joined ops are numbered by their rows: those of the batch, or the draft's block rows and then its context rows. */
static uint32_t joined_rows(const spl_step *s, const spl_op *op) {
    return op->rows < SPL_ROWS_BLOCK ? rows_of(s, op) : spl_rows_of(s, SPL_ROWS_BLOCK_CONTEXT);
}

/* Rows [begin, end) of n ops, one op after the other. */
static void run_joined(const spl_step *s, uint32_t first, uint32_t n, uint32_t begin, uint32_t end, uint32_t member,
                       op_watch *watch) {
    for (uint32_t i = first; i < first + n; i++) {
        const spl_op *op = &s->list->ops[i];
        uint32_t shift = op->rows == SPL_ROWS_CONTEXT ? s->n_block_rows : 0, rows = shift + rows_of(s, op);
        uint32_t from = begin > shift ? begin - shift : 0, to = (end < rows ? end : rows);
        to = to > shift ? to - shift : 0;
        if (from < to) run_range(s, op, from, to, member);
        look(watch, i);
    }
}

/* Units of an op that is joined with no other. */
static uint32_t count_units(const spl_step *s, const spl_op *op, const op_units *u) {
    uint32_t n = 0;
    for (uint32_t j = 0; u->by_segment && j < s->batch->n_segments; j++)
        n += segment_units(s, op, u, &s->batch->segments[j]);
    return u->by_segment ? n : u->n;
}

static void walk(void *arg, uint32_t member) {
    spl_step *s = arg;
    spl_set_ftz();
    op_watch watch = {.op_ns = member == 0 ? s->op_ns : NULL};
    if (watch.op_ns) watch.then = spl_now_ns();
    uint32_t n_joined;
    for (uint32_t i = 0; i < s->list->n_ops && i < atomic_load_explicit(&s->stop_at, memory_order_relaxed);
         i += n_joined) {
        const spl_op *op = &s->list->ops[i];
        for (n_joined = 1; i + n_joined < s->list->n_ops && op[n_joined].joined;) n_joined++;
        op_units u = units_of(s, op);
        uint32_t n = n_joined > 1 ? joined_rows(s, op) : count_units(s, op, &u), begin, end, n_mine = 0;
        for (; spl_team_take(s->team, i, member, n, u.grain, &begin, &end); n_mine += end - begin) {
            if (n_joined > 1) {
                run_joined(s, i, n_joined, begin, end, member, &watch);
            } else if (u.by_segment) {
                run_segments(s, op, &u, begin, end, member);
            } else {
                run_range(s, op, begin, end, member);
            }
        }
        /* The others may be ahead and stop later, or not at all: every member can end the list alone. */
        if (member == 0 && s->batch->abort && atomic_load_explicit(s->batch->abort, memory_order_relaxed))
            atomic_store_explicit(&s->stop_at, i + 1, memory_order_relaxed);
        spl_team_finish(s->team, &s->shares[i], n_mine, n);
        look(&watch, i + n_joined - 1);
    }
}

/* Rows, what is pending, and the memory that both need. */
static bool sound_segment(const spl_segment *seg) {
    bool deferred = seg->n_commit < seg->n_rows, pends = deferred || seg->n_pending > 0;
    return seg->n_rows > 0 && seg->n_commit <= seg->n_rows && seg->page_table && seg->cell &&
           seg->position <= UINT32_MAX - seg->n_rows && seg->n_pending <= SPL_BLOCK_ROWS &&
           seg->n_pending <= seg->position && (!deferred || (seg->n_commit == 0 && seg->n_rows <= SPL_BLOCK_ROWS)) &&
           (!pends || (seg->pending && seg->pending->half <= 1));
}

static bool sound_lane(const spl_step *s, const spl_segment *seg, const spl_decode_lane *lane) {
    bool rings = lane->drafts || lane->n_context > 0;
    for (uint32_t i = 0; !lane->drafts && i + 1 < seg->n_rows && i < SPL_MAX_PROPOSALS; i++) {
        const spl_proposal *p = &lane->proposals[i];
        if (p->n_q > SPL_MAX_CANDIDATES || (p->n_q > 0 && !(p->ids && p->q))) return false;
    }
    return seg->n_rows <= SPL_BLOCK_ROWS && lane->n_context <= SPL_BLOCK_ROWS && lane->n_context <= seg->position &&
           (lane->context || lane->n_context == 0) && (!rings || ((s->lists[1].parts & SPL_LIST_DRAFT) && seg->ring)) &&
           lane->sampling && (lane->bias || lane->n_bias == 0) && lane->limits.max_retained >= 1 &&
           lane->limits.max_retained <= seg->n_rows && (lane->limits.stop_tokens || lane->limits.n_stop_tokens == 0);
}

static spl_status check_segment(const spl_step *s, const spl_batch *b, uint32_t index, spl_error *err) {
    const spl_segment *seg = &b->segments[index];
    bool sound = sound_segment(seg);
    if (b->lanes) {
        sound = sound && sound_lane(s, seg, &b->lanes[index]);
    } else if (s->lists[0].parts & SPL_LIST_CONTEXT) {
        /* Context rows are the captured rows of the arena, one for one. */
        sound = sound && !(seg->ring && seg->features) && !seg->ring == !b->segments[0].ring;
    }
    return sound ? SPL_OK : spl_fail(err, SPL_E_INVALID, "segment %u of the batch is inconsistent", index);
}

static spl_status check_batch(const spl_step *s, const spl_batch *b, spl_error *err) {
    const spl_op_list *list = &s->lists[b->lanes != NULL];
    if (b->lanes && !s->has_decode) return spl_fail(err, SPL_E_INVALID, "the step was made without decode runs");
    uint32_t n_logit_rows = b->lanes ? b->n_rows : b->n_logit_rows;
    if (b->n_rows == 0 || b->n_rows > list->max_rows || n_logit_rows > list->max_logit_rows ||
        (b->lanes && b->n_segments > SPL_MAX_LANES))
        return spl_fail(err, SPL_E_INVALID, "a run of %u rows and %u logit rows exceeds the step's %u and %u",
                        b->n_rows, n_logit_rows, list->max_rows, list->max_logit_rows);
    for (uint32_t i = 0; i < b->n_rows; i++) {
        if (b->tokens[i] >= s->g->vocab)
            return spl_fail(err, SPL_E_INVALID, "token %u is outside the vocabulary of %u", b->tokens[i], s->g->vocab);
    }
    for (uint32_t i = 0; !b->lanes && i < b->n_logit_rows; i++) {
        if (b->logit_rows[i] >= b->n_rows)
            return spl_fail(err, SPL_E_INVALID, "logit row %u of %u", b->logit_rows[i], b->n_rows);
    }
    uint32_t covered = 0;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        if (b->segments[i].row_begin != covered || b->segments[i].n_rows > b->n_rows - covered)
            return spl_fail(err, SPL_E_INVALID, "segment %u of the batch is inconsistent", i);
        spl_status st = check_segment(s, b, i, err);
        if (st != SPL_OK) return st;
        covered += b->segments[i].n_rows;
    }
    if (covered != b->n_rows) return spl_fail(err, SPL_E_INVALID, "segments cover %u of %u rows", covered, b->n_rows);
    return SPL_OK;
}

/* Greedy lanes without penalties or biases look at panel maxima alone. */
static bool keeps_logits(const spl_step *s, const spl_batch *b) {
    bool keeps = !b->lanes || s->list->oracle;
    for (uint32_t i = 0; !keeps && i < b->n_segments; i++) {
        const spl_decode_lane *lane = &b->lanes[i];
        keeps = lane->keeps_logits || lane->sampling->temperature > 0.0f || lane->n_bias > 0 || lane->penalties;
    }
    return keeps;
}

spl_status spl_step_run(spl_step *s, const spl_batch *batch, spl_error *err) {
    spl_status st = check_batch(s, batch, err);
    if (st != SPL_OK) return st;
    s->batch = batch;
    s->list = &s->lists[batch->lanes != NULL];
    s->keeps_logits = keeps_logits(s, batch);
    place_parts(s);
    spl_draft_begin(s);
    memcpy(s->arena + s->list->tokens, batch->tokens, batch->n_rows * sizeof(uint32_t));
    memset(s->shares, 0, s->list->n_ops * sizeof *s->shares);
    atomic_store(&s->stop_at, UINT32_MAX);
    spl_team_run(s->team, walk, s);
    s->batch = NULL;
    if (atomic_load(&s->stop_at) < s->list->n_ops) return spl_fail(err, SPL_E_CANCELLED, "the run was cancelled");
    return SPL_OK;
}

float *spl_step_logits(spl_step *s) { return rows_at(s, (s->list ? s->list : &s->lists[0])->logits); }

const float *spl_step_captured(const spl_step *s) {
    return s->lists[0].captured_width ? rows_at(s, s->lists[0].captured) : NULL;
}

void spl_step_time_ops(spl_step *s, uint64_t *op_ns) { s->op_ns = op_ns; }

void spl_step_set_knobs(spl_step *s, const spl_knobs *knobs) { s->knobs = *knobs; }

const spl_op_list *spl_step_list(const spl_step *s) { return &s->lists[0]; }
const spl_op_list *spl_step_decode_list(const spl_step *s) { return s->has_decode ? &s->lists[1] : NULL; }

/* Both lists; the decode list is empty when not asked for. */
static spl_status build_lists(spl_op_list lists[2], const spl_step_config *c, uint32_t n_layers, spl_error *err) {
    unsigned parts = c->capture ? SPL_LIST_CAPTURE : SPL_LIST_TARGET;
    unsigned decode = SPL_LIST_ACCEPT;
    if (c->draft) {
        parts |= SPL_LIST_CONTEXT;
        decode |= SPL_LIST_DRAFT;
    }
    memset(lists, 0, 2 * sizeof *lists);
    spl_status st =
        spl_op_list_build(&lists[0], c->geometry, n_layers, c->max_rows, c->max_logit_rows, parts, c->oracle, err);
    if (st == SPL_OK && c->decode)
        st = spl_op_list_build(&lists[1], c->geometry, n_layers, SPL_MAX_DECODE_ROWS, SPL_MAX_DECODE_ROWS, decode,
                               c->oracle, err);
    return st;
}

static uint64_t arena_bytes_of(const spl_op_list lists[2]) {
    return lists[0].arena_bytes > lists[1].arena_bytes ? lists[0].arena_bytes : lists[1].arena_bytes;
}

spl_status spl_step_bytes(const spl_step_config *config, uint32_t n_layers, uint32_t n_threads, uint64_t *bytes,
                          spl_error *err) {
    spl_op_list lists[2];
    spl_status st = build_lists(lists, config, n_layers, err);
    if (st == SPL_OK)
        *bytes = arena_bytes_of(lists) + parts_bytes_of(config->geometry) +
                 (uint64_t)n_threads * scratch_bytes_of(config->geometry, config->max_rows);
    spl_op_list_free(&lists[0]);
    spl_op_list_free(&lists[1]);
    return st;
}

/* ---- making and unmaking -------------------------------------------------------------------- */

static const float *small_tensor(const spl_package *package, spl_tensor_role role, uint32_t layer) {
    return spl_package_tensor(package, role, layer, NULL);
}

static void bind_layers(spl_step *s, const spl_package *package) {
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        spl_layer_tensors *t = &s->layers[layer];
        t->q_norm = small_tensor(package, SPL_T_Q_NORM, layer);
        t->k_norm = small_tensor(package, SPL_T_K_NORM, layer);
        t->conv = small_tensor(package, SPL_T_GDN_CONV, layer);
        t->decay = small_tensor(package, SPL_T_GDN_DECAY, layer);
        t->dt_bias = small_tensor(package, SPL_T_GDN_DT_BIAS, layer);
        t->gdn_norm = small_tensor(package, SPL_T_GDN_NORM, layer);
    }
    for (uint32_t layer = 0; s->draft_layers && layer < s->g->draft->n_layers; layer++) {
        s->draft_layers[layer].q_norm = small_tensor(package, SPL_T_DRAFT_Q_NORM, layer);
        s->draft_layers[layer].k_norm = small_tensor(package, SPL_T_DRAFT_K_NORM, layer);
    }
    s->predecessor = spl_package_tensor(package, SPL_T_DRAFT_PREDECESSOR, SPL_NO_LAYER, NULL);
    s->successor = spl_package_tensor(package, SPL_T_DRAFT_SUCCESSOR, SPL_NO_LAYER, NULL);
}

static void *aligned_zeroed(size_t n_bytes, bool huge) {
    void *memory = spl_alloc_pages(n_bytes, huge);
    if (memory) memset(memory, 0, n_bytes);
    return memory;
}

static spl_status allocate(spl_step *s, bool huge, spl_error *err) {
    uint64_t arena = arena_bytes_of(s->lists);
    uint32_t n_ops = s->lists[0].n_ops > s->lists[1].n_ops ? s->lists[0].n_ops : s->lists[1].n_ops;
    uint32_t n_context = s->lists[0].max_context_rows > s->lists[1].max_context_rows ? s->lists[0].max_context_rows
                                                                                     : s->lists[1].max_context_rows;
    bool draft = n_context > 0, good = true;
    s->layers = calloc(s->n_layers, sizeof *s->layers);
    s->shares = calloc(n_ops, sizeof *s->shares);
    s->inverse_frequency = calloc(s->g->rotary_dims / 2, sizeof(float));
    s->arena = aligned_zeroed((size_t)arena, huge);
    s->scratch = aligned_zeroed(s->scratch_bytes * spl_team_size(s->team), huge);
    s->parts = spl_alloc_pages(parts_bytes_of(s->g), huge); /* untouched until a history is shared */
    if (draft) {
        s->draft_layers = calloc(s->g->draft->n_layers, sizeof *s->draft_layers);
        s->draft_frequency = calloc(s->g->draft->head_dim / 2, sizeof(float));
        s->context = calloc(n_context, sizeof *s->context);
        good = s->draft_layers && s->draft_frequency && s->context;
    }
    good = good && s->parts;
    if (s->layers && s->shares && s->inverse_frequency && s->arena && s->scratch && good) return SPL_OK;
    return spl_fail(err, SPL_E_NOMEM, "no memory for the step arena of %llu bytes", (unsigned long long)arena);
}

spl_status spl_step_create(spl_step **out, const spl_step_config *config, spl_error *err) {
    *out = NULL;
    spl_step *s = calloc(1, sizeof *s);
    if (!s) return spl_fail(err, SPL_E_NOMEM, "no memory for the step");
    s->g = config->geometry;
    s->n_layers = spl_package_n_layers(config->package);
    s->k = *config->kernels;
    s->team = config->team;
    s->scratch_bytes = scratch_bytes_of(s->g, config->max_rows);
    s->has_decode = config->decode;
    s->knobs = config->knobs;
    spl_status st = build_lists(s->lists, config, s->n_layers, err);
    if (st == SPL_OK) st = spl_weights_bind(&s->weights[SPL_FILE_TARGET], config->package, SPL_FILE_TARGET, err);
    if (st == SPL_OK && config->draft)
        st = spl_weights_bind(&s->weights[SPL_FILE_DRAFT], config->package, SPL_FILE_DRAFT, err);
    if (st == SPL_OK) st = allocate(s, !config->small_pages, err);
    if (st != SPL_OK) {
        spl_step_destroy(s);
        return st;
    }
    bind_layers(s, config->package);
    spl_rope_frequencies(s->inverse_frequency, s->g->rotary_dims, s->g->rope_theta);
    if (s->draft_frequency) spl_rope_frequencies(s->draft_frequency, s->g->draft->head_dim, s->g->draft->rope_theta);
    *out = s;
    return SPL_OK;
}

void spl_step_destroy(spl_step *s) {
    if (!s) return;
    for (uint32_t i = 0; i < SPL_N_FILES; i++) spl_weights_free(&s->weights[i]);
    spl_op_list_free(&s->lists[0]);
    spl_op_list_free(&s->lists[1]);
    free(s->layers);
    free(s->draft_layers);
    free(s->shares);
    free(s->inverse_frequency);
    free(s->draft_frequency);
    free(s->context);
    free(s->arena);
    free(s->scratch);
    free(s->parts);
    free(s);
}
