/* SPDX-License-Identifier: Apache-2.0
 * The tensor list of a geometry. A file is a walk: model-wide tensors first, then its layers in
 * order; the walk is recomputed on every query, which is cheap enough for load time. */
#include "model/layout.h"

#include <stdio.h>
#include <string.h>

#include "base/bytes.h"

const char *spl_encoding_name(spl_encoding encoding) {
    switch (encoding) {
    case SPL_ENC_Q4G64_R16: return "q4g64r16";
    case SPL_ENC_Q4G64_ROW: return "q4g64row";
    case SPL_ENC_Q8G64_R16: return "q8g64r16";
    case SPL_ENC_BF16: return "bf16";
    case SPL_ENC_F32: return "f32";
    case SPL_N_ENCODINGS: break;
    }
    return "unknown";
}

uint64_t spl_tensor_bytes(spl_encoding encoding, uint64_t rows, uint64_t cols, uint64_t n_experts) {
    uint64_t panels = spl_div_up(rows, SPL_ROWS_PER_TILE);
    uint64_t groups = cols / SPL_GROUP;
    switch (encoding) {
    case SPL_ENC_Q4G64_R16: return n_experts * panels * groups * SPL_Q4_TILE_BYTES;
    case SPL_ENC_Q8G64_R16: return n_experts * panels * groups * SPL_Q8_TILE_BYTES;
    case SPL_ENC_Q4G64_ROW: return n_experts * rows * (cols / 2 + groups * 4);
    case SPL_ENC_BF16: return n_experts * rows * cols * 2;
    case SPL_ENC_F32: return n_experts * rows * cols * 4;
    case SPL_N_ENCODINGS: break;
    }
    return 0;
}

uint64_t spl_tensor_alignment(spl_encoding encoding) {
    return encoding == SPL_ENC_BF16 || encoding == SPL_ENC_F32 ? SPL_SMALL_ALIGNMENT : SPL_MATRIX_ALIGNMENT;
}

/* One walk over a file's tensors; stops after `wanted` and keeps that one in *out. */
typedef struct walk {
    uint32_t wanted, seen;
    bool found;
    spl_file_id file;
    uint32_t layer;
    spl_tensor_spec *out;
} walk;

static const char *const role_names[SPL_N_TENSOR_ROLES] = {
#define X(id, text) text,
    SPL_TENSOR_ROLES(X)
#undef X
};

static void visit(walk *w, spl_tensor_role role, spl_encoding encoding, spl_order order, uint32_t rows, uint32_t cols,
                  uint32_t n_experts) {
    if (w->seen++ != w->wanted || w->found) return;
    w->found = true;
    if (!w->out) return;
    spl_tensor_spec *t = w->out;
    memset(t, 0, sizeof *t);
    t->role = role;
    t->file = w->file;
    t->encoding = encoding;
    t->order = order;
    t->layer = (uint16_t)w->layer;
    t->rows = rows;
    t->cols = cols;
    t->n_experts = n_experts;
    t->bytes = spl_tensor_bytes(encoding, rows, cols, n_experts);
    const char *file = w->file == SPL_FILE_TARGET ? "target" : w->file == SPL_FILE_DRAFT ? "draft" : "vision";
    if (w->layer == SPL_NO_LAYER) {
        (void)snprintf(t->name, sizeof t->name, "%s.%s", file, role_names[role]);
    } else {
        (void)snprintf(t->name, sizeof t->name, "%s.layers.%u.%s", file, w->layer, role_names[role]);
    }
}

static void q4(walk *w, spl_tensor_role role, uint32_t rows, uint32_t cols) {
    visit(w, role, SPL_ENC_Q4G64_R16, SPL_ORDER_PLAIN, rows, cols, 1);
}
static void f32(walk *w, spl_tensor_role role, uint32_t rows, uint32_t cols) {
    visit(w, role, SPL_ENC_F32, SPL_ORDER_PLAIN, rows, cols, 1);
}
static void pairs(walk *w, spl_tensor_role role, uint32_t width, uint32_t cols) {
    visit(w, role, SPL_ENC_Q4G64_R16, SPL_ORDER_GATE_UP, 2 * width, cols, 1);
}

static void walk_mixer(walk *w, const spl_geometry *g, uint32_t layer) {
    if (spl_layer_is_attention(g, layer)) {
        q4(w, SPL_T_ATTN_IN, spl_attention_in_width(g), g->hidden);
        f32(w, SPL_T_Q_NORM, 1, g->head_dim);
        f32(w, SPL_T_K_NORM, 1, g->head_dim);
        q4(w, SPL_T_ATTN_OUT, g->hidden, spl_q_width(g));
        return;
    }
    q4(w, SPL_T_GDN_IN, spl_gdn_in_width(g), g->hidden);
    f32(w, SPL_T_GDN_CONV, spl_gdn_channels(g), SPL_CONV_TAPS);
    f32(w, SPL_T_GDN_DECAY, 1, g->gdn_value_heads);
    f32(w, SPL_T_GDN_DT_BIAS, 1, g->gdn_value_heads);
    f32(w, SPL_T_GDN_NORM, 1, g->gdn_head_dim);
    q4(w, SPL_T_GDN_OUT, g->hidden, spl_gdn_value_width(g));
}

static void walk_ffn(walk *w, const spl_geometry *g) {
    if (g->n_experts == 0) {
        pairs(w, SPL_T_GATE_UP, g->ffn_width, g->hidden);
        q4(w, SPL_T_DOWN, g->hidden, g->ffn_width);
        return;
    }
    visit(w, SPL_T_ROUTER, SPL_ENC_Q8G64_R16, SPL_ORDER_PLAIN, g->n_experts, g->hidden, 1);
    visit(w, SPL_T_EXPERT_GATE_UP, SPL_ENC_Q4G64_R16, SPL_ORDER_EXPERTS, 2 * g->expert_width, g->hidden, g->n_experts);
    visit(w, SPL_T_EXPERT_DOWN, SPL_ENC_Q4G64_R16, SPL_ORDER_EXPERTS, g->hidden, g->expert_width, g->n_experts);
    pairs(w, SPL_T_SHARED_GATE_UP, g->shared_expert_width, g->hidden);
    q4(w, SPL_T_SHARED_DOWN, g->hidden, g->shared_expert_width);
    visit(w, SPL_T_SHARED_GATE, SPL_ENC_Q8G64_R16, SPL_ORDER_PLAIN, 1, g->hidden, 1);
}

static void walk_target(walk *w, const spl_geometry *g, uint32_t n_layers) {
    w->layer = SPL_NO_LAYER;
    visit(w, SPL_T_EMBED, SPL_ENC_Q4G64_ROW, SPL_ORDER_PLAIN, g->vocab, g->hidden, 1);
    f32(w, SPL_T_FINAL_NORM, 1, g->hidden);
    q4(w, SPL_T_HEAD, g->vocab, g->hidden);
    for (w->layer = 0; w->layer < n_layers; w->layer++) {
        f32(w, SPL_T_INPUT_NORM, 1, g->hidden);
        walk_mixer(w, g, w->layer);
        f32(w, SPL_T_POST_NORM, 1, g->hidden);
        walk_ffn(w, g);
    }
}

static void walk_draft(walk *w, const spl_geometry *g) {
    const spl_draft_geometry *d = g->draft;
    if (!d) return;
    uint32_t q_width = d->n_q_heads * d->head_dim, kv_width = d->n_kv_heads * d->head_dim;
    uint32_t conv_rows = 2 * d->conv_taps * (d->hidden / d->conv_group);
    w->layer = SPL_NO_LAYER;
    q4(w, SPL_T_DRAFT_CONTEXT, d->hidden, d->n_capture * g->hidden);
    f32(w, SPL_T_DRAFT_HIDDEN_NORM, 1, d->hidden);
    f32(w, SPL_T_DRAFT_FINAL_NORM, 1, d->hidden);
    q4(w, SPL_T_DRAFT_SELECTOR, d->selector_rank, d->hidden);
    visit(w, SPL_T_DRAFT_PREDECESSOR, SPL_ENC_BF16, SPL_ORDER_PLAIN, g->vocab, d->selector_rank, 1);
    visit(w, SPL_T_DRAFT_SUCCESSOR, SPL_ENC_BF16, SPL_ORDER_PLAIN, g->vocab, d->selector_rank, 1);
    for (w->layer = 0; w->layer < d->n_layers; w->layer++) {
        f32(w, SPL_T_DRAFT_INPUT_NORM, 1, d->hidden);
        f32(w, SPL_T_DRAFT_ATTN_CONV_BASE, 2 * d->conv_taps, d->hidden);
        q4(w, SPL_T_DRAFT_ATTN_CONV_PROJ, conv_rows, d->hidden);
        q4(w, SPL_T_DRAFT_QKV, q_width + 2 * kv_width, d->hidden);
        f32(w, SPL_T_DRAFT_Q_NORM, 1, d->head_dim);
        f32(w, SPL_T_DRAFT_K_NORM, 1, d->head_dim);
        q4(w, SPL_T_DRAFT_ATTN_OUT, d->hidden, q_width);
        f32(w, SPL_T_DRAFT_POST_NORM, 1, d->hidden);
        f32(w, SPL_T_DRAFT_FFN_CONV_BASE, 2 * d->conv_taps, d->hidden);
        q4(w, SPL_T_DRAFT_FFN_CONV_PROJ, conv_rows, d->hidden);
        pairs(w, SPL_T_DRAFT_GATE_UP, d->ffn_width, d->hidden);
        q4(w, SPL_T_DRAFT_DOWN, d->hidden, d->ffn_width);
    }
}

static uint32_t walk_file(walk *w, const spl_geometry *g, spl_file_id file, uint32_t n_layers) {
    if (n_layers == 0 || n_layers > g->n_layers) n_layers = g->n_layers;
    w->file = file;
    if (file == SPL_FILE_TARGET) walk_target(w, g, n_layers);
    if (file == SPL_FILE_DRAFT) walk_draft(w, g);
    return w->seen;
}

bool spl_layout_tensor(const spl_geometry *g, spl_file_id file, uint32_t n_layers, uint32_t index,
                       spl_tensor_spec *out) {
    walk w = {.wanted = index, .out = out};
    (void)walk_file(&w, g, file, n_layers);
    return w.found;
}

uint32_t spl_layout_count(const spl_geometry *g, spl_file_id file, uint32_t n_layers) {
    walk w = {.wanted = UINT32_MAX};
    return walk_file(&w, g, file, n_layers);
}
