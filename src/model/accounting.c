/* SPDX-License-Identifier: Apache-2.0
 * Both views walk the one tensor list of layout.c; the published view stores the same tensors at
 * other widths. The vision tower, which the list does not hold yet, is summed from its sizes. */
#include "model/accounting.h"

#include <string.h>

#include "base/bytes.h"
#include "model/layout.h"

enum {
    PUBLISHED_GDN_ALIGNMENT = 256, /* rows of a GDN input projection are padded to whole 256-row tiles */
    PUBLISHED_SMALL_BYTES = 2,     /* norms, convolution, time bias, codebooks: bf16 */
    PUBLISHED_DECAY_BYTES = 4      /* -exp(A_log) keeps fp32 */
};

/* 4-bit codes plus a bf16 scale and a bf16 bias per 64 inputs: 9 bytes for 16 weights. */
static uint64_t published_q4_bytes(uint64_t weights) { return weights / 16 * 9; }
/* 8-bit codes with the same scale and bias: 17 bytes for 16 weights. */
static uint64_t published_q8_bytes(uint64_t weights) { return weights / 16 * 17; }

static uint64_t published_tensor(const spl_tensor_spec *t, uint64_t *weights) {
    uint64_t rows = t->role == SPL_T_GDN_IN ? spl_round_up(t->rows, PUBLISHED_GDN_ALIGNMENT) : t->rows;
    *weights = rows * t->cols * t->n_experts;
    switch (t->encoding) {
    case SPL_ENC_Q4G64_R16:
    case SPL_ENC_Q4G64_ROW: return published_q4_bytes(*weights);
    case SPL_ENC_Q8G64_R16: return published_q8_bytes(*weights);
    default: return *weights * (t->role == SPL_T_GDN_DECAY ? PUBLISHED_DECAY_BYTES : PUBLISHED_SMALL_BYTES);
    }
}

static uint64_t engine_tensor(const spl_tensor_spec *t, uint64_t *weights) {
    *weights = (uint64_t)t->rows * t->cols * t->n_experts;
    return t->bytes;
}

/* Parameters of the tower with every linear's bias, two-parameter LayerNorms and the padded MLP. */
static uint64_t vision_parameters(const spl_vision_geometry *v) {
    uint64_t h = v->hidden, f = v->ffn_width_padded, merged = h * v->merge * v->merge;
    uint64_t patch_values = (uint64_t)v->patch * v->patch * v->temporal_patch * v->channels;
    uint64_t patch_embed = patch_values * h + h;
    uint64_t positions = v->n_positions * h;
    uint64_t attention = (3 * h * h + 3 * h) + (h * h + h);
    uint64_t mlp = (f * h + f) + (h * f + h);
    uint64_t block = attention + mlp + 2 * (2 * h);
    uint64_t merger = 2 * h + (merged * merged + merged) + (v->out_hidden * merged + v->out_hidden);
    return patch_embed + positions + v->n_blocks * block + merger;
}

static void sum_files(const spl_geometry *g, uint32_t n_layers,
                      uint64_t (*bytes_of)(const spl_tensor_spec *, uint64_t *), spl_accounting *out) {
    spl_tensor_spec t;
    uint64_t weights;
    for (uint32_t i = 0; spl_layout_tensor(g, SPL_FILE_TARGET, n_layers, i, &t); i++) {
        uint64_t bytes = bytes_of(&t, &weights);
        out->parameters += weights;
        out->target_bytes += bytes;
        if (t.role == SPL_T_EMBED) out->embed_bytes += bytes;
        if (t.role == SPL_T_HEAD) out->head_bytes += bytes;
        if (t.order == SPL_ORDER_EXPERTS) out->expert_bytes += bytes;
    }
    for (uint32_t i = 0; spl_layout_tensor(g, SPL_FILE_DRAFT, n_layers, i, &t); i++) {
        uint64_t bytes = bytes_of(&t, &weights);
        out->draft_bytes += bytes;
        out->draft_parameters += weights;
        if (t.role == SPL_T_DRAFT_PREDECESSOR || t.role == SPL_T_DRAFT_SUCCESSOR) out->codebook_bytes += bytes;
    }
}

static void sum_state(const spl_geometry *g, uint32_t n_layers, uint64_t window_value_bytes, spl_accounting *out) {
    if (n_layers == 0 || n_layers > g->n_layers) n_layers = g->n_layers;
    uint64_t n_attention = n_layers / g->attention_interval, n_gdn = n_layers - n_attention;
    uint64_t head = (uint64_t)g->gdn_head_dim * g->gdn_head_dim * sizeof(float);
    out->recurrent_bytes = n_gdn * g->gdn_value_heads * head;
    out->window_bytes = n_gdn * (SPL_CONV_TAPS - 1) * spl_gdn_channels(g) * window_value_bytes;
    out->state_bytes = out->recurrent_bytes + out->window_bytes;
    /* One int8 code per value and one fp32 scale per head, for keys and for values. */
    out->kv_bytes_per_token = n_attention * 2 * g->n_kv_heads * (g->head_dim + sizeof(float));
}

/* Experts that n_rows rows read at most. */
static uint64_t routed_bytes(const spl_geometry *g, uint64_t expert_bytes, uint64_t n_rows) {
    if (g->n_experts == 0) return 0;
    uint64_t used = n_rows * g->experts_per_token;
    if (used > g->n_experts) used = g->n_experts;
    return expert_bytes / g->n_experts * used;
}

/* What a drafting step really reads of the draft: per proposal one predecessor row and the candidates'
 * successor rows of the codebooks, everything else whole. */
static uint64_t draft_read_bytes(const spl_geometry *g, const spl_accounting *a) {
    const spl_draft_geometry *d = g->draft;
    uint64_t rows = (uint64_t)(d->block_rows - 1) * (1 + d->selector_top_k);
    return a->draft_bytes - a->codebook_bytes + rows * d->selector_rank * sizeof(uint16_t);
}

/* Both step formulas: one row without a draft; a block with it, the head read a second time. */
static void set_steps(const spl_geometry *g, spl_accounting *out) {
    uint64_t always = out->target_bytes - out->embed_bytes - out->expert_bytes + 2 * out->state_bytes;
    out->draft_free_step_bytes = always + routed_bytes(g, out->expert_bytes, 1);
    if (!g->draft) return;
    out->streamed_step_bytes =
        always + routed_bytes(g, out->expert_bytes, g->draft->block_rows) + out->head_bytes + draft_read_bytes(g, out);
}

static void set_shares(uint64_t heads_read, uint64_t draft_read, spl_accounting *out) {
    if (out->step_bytes == 0) return;
    double step = (double)out->step_bytes;
    out->head_share = (double)(heads_read * out->head_bytes) / step;
    out->draft_share = (double)draft_read / step;
    out->state_share = 2.0 * (double)out->state_bytes / step;
}

void spl_account_published(const spl_geometry *g, spl_accounting *out) {
    memset(out, 0, sizeof *out);
    sum_files(g, 0, published_tensor, out);
    sum_state(g, 0, PUBLISHED_SMALL_BYTES, out);
    if (g->vision) out->vision_bytes = vision_parameters(g->vision) * PUBLISHED_SMALL_BYTES;
    out->attention_input_width = spl_attention_in_width(g);
    out->gdn_input_width = (uint32_t)spl_round_up(spl_gdn_in_width(g), PUBLISHED_GDN_ALIGNMENT);
    set_steps(g, out);
    /* The published step counts the codebooks whole. */
    out->step_bytes =
        g->draft ? out->streamed_step_bytes - draft_read_bytes(g, out) + out->draft_bytes : out->draft_free_step_bytes;
    set_shares(g->draft ? 2 : 1, out->draft_bytes, out);
}

void spl_account_engine(const spl_geometry *g, uint32_t n_layers, bool drafts, uint64_t step_bytes,
                        spl_accounting *out) {
    memset(out, 0, sizeof *out);
    sum_files(g, n_layers, engine_tensor, out);
    sum_state(g, n_layers, sizeof(float), out);
    out->attention_input_width = spl_attention_in_width(g);
    out->gdn_input_width = spl_gdn_in_width(g);
    set_steps(g, out);
    out->step_bytes = step_bytes;
    drafts = drafts && g->draft;
    if (drafts) { /* codes and scales as the target's; a block's first row stands in its own window */
        const spl_draft_geometry *d = g->draft;
        out->draft_kv_bytes_per_token = (uint64_t)d->n_layers * 2 * d->n_kv_heads * (d->head_dim + sizeof(float));
        out->draft_window_tokens = d->window_tokens - 1;
    }
    set_shares(drafts ? 2 : 1, drafts ? draft_read_bytes(g, out) : 0, out);
}

double spl_roof_tokens_per_second(uint64_t step_bytes, double bandwidth_gbs, double tau) {
    return step_bytes ? bandwidth_gbs * 1e9 / (double)step_bytes * tau : 0.0;
}

double spl_needed_gbs(uint64_t step_bytes, double tokens_per_second, double tau) {
    return tau > 0.0 ? tokens_per_second * (double)step_bytes / tau / 1e9 : 0.0;
}
