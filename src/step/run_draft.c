/* SPDX-License-Identifier: Apache-2.0
 * The draft's ops, the selector's walk and acceptance, run by the interpreter of run_cpu.c. Proposals and
 * results live in the batch's decode lanes; nothing here outlasts the run but the rings. */
#include <math.h>
#include <string.h>

#include "base/bytes.h"
#include "sample/rank.h"
#include "sample/sample.h"
#include "step/run.h"

size_t spl_draft_scratch_bytes(const spl_geometry *g) {
    if (!g->draft) return 0;
    size_t attend = spl_attend_scratch_bytes(g->draft->n_q_heads, g->draft->n_kv_heads, g->draft->head_dim);
    size_t ranks = spl_rank_blocks(g->vocab) * sizeof(float);
    return attend > ranks ? attend : ranks;
}

static uint32_t q_width(const spl_draft_geometry *d) { return d->n_q_heads * d->head_dim; }
static uint32_t qkv_width(const spl_draft_geometry *d) { return (d->n_q_heads + 2 * d->n_kv_heads) * d->head_dim; }

void spl_draft_begin(spl_step *s) {
    const spl_batch *b = s->batch;
    s->n_block_rows = s->n_context_rows = 0;
    if (s->list->max_context_rows == 0) return;
    for (uint32_t i = 0; i < b->n_segments; i++) {
        const spl_segment *seg = &b->segments[i];
        if (b->lanes) {
            const spl_decode_lane *lane = &b->lanes[i];
            if (lane->drafts) s->block_segment[s->n_block_rows / SPL_BLOCK_ROWS] = i;
            if (lane->drafts) s->n_block_rows += SPL_BLOCK_ROWS;
            for (uint32_t r = 0; r < lane->n_context; r++)
                s->context[s->n_context_rows++] = (spl_context_row){lane->context + (size_t)r * s->list->captured_width,
                                                                    seg->ring, seg->position - lane->n_context + r};
        } else if (seg->ring) {
            for (uint32_t r = 0; r < seg->n_rows; r++)
                s->context[s->n_context_rows++] = (spl_context_row){NULL, seg->ring, seg->position + r};
        }
    }
}

/* ---- rows ----------------------------------------------------------------------------------- */

static void run_rows(const spl_step *s, uint32_t begin, uint32_t end) {
    const spl_draft_geometry *d = s->g->draft;
    uint32_t *tokens = (uint32_t *)(void *)(s->arena + s->list->draft_tokens), half = d->head_dim / 2;
    for (uint32_t row = begin; row < end; row++) {
        uint32_t position;
        if (row < s->n_block_rows) {
            uint32_t r = row % SPL_BLOCK_ROWS;
            const spl_segment *seg = &s->batch->segments[s->block_segment[row / SPL_BLOCK_ROWS]];
            tokens[row] = r == 0 ? s->batch->tokens[seg->row_begin] : d->mask_token;
            position = seg->position + r;
        } else {
            const spl_context_row *c = &s->context[row - s->n_block_rows];
            size_t width = s->list->captured_width;
            if (c->features)
                memcpy(spl_rows_at(s, s->list->draft_features) + (row - s->n_block_rows) * width, c->features,
                       width * sizeof(float));
            position = c->position;
        }
        spl_rope_row(spl_rows_at(s, s->list->draft_cos) + (size_t)row * half,
                     spl_rows_at(s, s->list->draft_sin) + (size_t)row * half, s->draft_frequency, half, position);
    }
}

static void run_conv(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    const spl_draft_geometry *d = s->g->draft;
    uint32_t groups = d->hidden / d->conv_group;
    const float *base = s->weights[SPL_FILE_DRAFT].data[op->weight];
    s->k.draft_conv(
        &(spl_draft_conv_args){.x = spl_rows_at(s, op->in),
                               .base = base + (size_t)op->side * d->conv_taps * d->hidden,
                               .dyn = spl_rows_at(s, op->scratch) + (size_t)op->side * d->conv_taps * groups,
                               .dyn_stride = 2 * (size_t)d->conv_taps * groups,
                               .y = spl_rows_at(s, op->out),
                               .add = op->side == 1,
                               .hidden = d->hidden,
                               .group = d->conv_group,
                               .taps = d->conv_taps,
                               .row_begin = begin,
                               .row_end = end});
}

static void run_prepare(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    const spl_draft_geometry *d = s->g->draft;
    const spl_draft_tensors *t = &s->draft_layers[op->layer];
    s->k.draft_prepare(&(spl_draft_prepare_args){.qkv = spl_rows_at(s, op->out),
                                                 .qkv_stride = qkv_width(d),
                                                 .q_norm = t->q_norm,
                                                 .k_norm = t->k_norm,
                                                 .cos = spl_rows_at(s, s->list->draft_cos),
                                                 .sin = spl_rows_at(s, s->list->draft_sin),
                                                 .eps = d->rms_eps,
                                                 .n_block_rows = s->n_block_rows,
                                                 .n_q_heads = d->n_q_heads,
                                                 .n_kv_heads = d->n_kv_heads,
                                                 .head_dim = d->head_dim,
                                                 .row_begin = begin,
                                                 .row_end = end});
}

static spl_kv_view ring_view(const spl_step *s, const spl_op *op, uint8_t *ring) {
    const spl_draft_geometry *d = s->g->draft;
    spl_kv_view kv = {.pool = ring,
                      .ring_pages = spl_draft_ring_pages(s->g),
                      .page_stride = d->n_kv_heads * spl_kv_block_bytes(d->head_dim, s->list->oracle),
                      .n_kv_heads = d->n_kv_heads,
                      .head_dim = d->head_dim};
    kv.layer_offset = (size_t)op->layer * kv.ring_pages * kv.page_stride;
    return kv;
}

/* Keys and values of block and context rows into their lanes' rings. */
static void run_store(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end) {
    const spl_draft_geometry *d = s->g->draft;
    for (uint32_t row = begin; row < end; row++) {
        spl_kv_store_args a = {.n_rows = 1, .head_end = d->n_kv_heads};
        uint8_t *ring;
        if (row < s->n_block_rows) {
            const spl_segment *seg = &s->batch->segments[s->block_segment[row / SPL_BLOCK_ROWS]];
            ring = seg->ring;
            a.position = seg->position + row % SPL_BLOCK_ROWS;
        } else {
            const spl_context_row *c = &s->context[row - s->n_block_rows];
            /* In a run longer than the ring the last row of a slot keeps it, whoever writes first. */
            uint32_t later = row - s->n_block_rows + spl_draft_ring_pages(s->g) * SPL_PAGE_TOKENS;
            if (later < s->n_context_rows && s->context[later].ring == c->ring) continue;
            ring = c->ring;
            a.position = c->position;
        }
        a.kv = ring_view(s, op, ring);
        a.k = spl_rows_at(s, op->in) + (size_t)row * qkv_width(d) + q_width(d);
        a.v = a.k + d->n_kv_heads * d->head_dim;
        (s->list->oracle ? s->k.kv_store_f32 : s->k.kv_store_i8)(&a);
    }
}

/* Units are (drafting lane, KV head). */
static void run_attend(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end, uint32_t member) {
    const spl_draft_geometry *d = s->g->draft;
    for (uint32_t unit = begin; unit < end; unit++) {
        uint32_t block = unit / d->n_kv_heads, head = unit % d->n_kv_heads;
        const spl_segment *seg = &s->batch->segments[s->block_segment[block]];
        spl_attend_args a = {.kv = ring_view(s, op, seg->ring),
                             .q = spl_rows_at(s, op->in) + (size_t)block * SPL_BLOCK_ROWS * qkv_width(d),
                             .q_stride = qkv_width(d),
                             .y = spl_rows_at(s, op->out) + (size_t)block * SPL_BLOCK_ROWS * q_width(d),
                             .n_q_heads = d->n_q_heads,
                             .position = seg->position,
                             .n_rows = SPL_BLOCK_ROWS,
                             .unit_begin = head,
                             .unit_end = head + 1,
                             .window = d->window_tokens,
                             .first = seg->ring_begin,
                             .scratch = s->scratch + member * s->scratch_bytes};
        (s->list->oracle ? s->k.attend_f32 : s->k.attend_i8)(&a);
    }
}

/* ---- candidates and walk -------------------------------------------------------------------- */

/* A row with a non-finite logit proposes nothing: its candidates keep a score of -inf. */
static void run_top(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end, uint32_t member) {
    uint32_t top_k = s->g->draft->selector_top_k, vocab = s->g->vocab;
    float *block_max = (float *)(void *)(s->scratch + member * s->scratch_bytes), max;
    for (uint32_t row = begin; row < end; row++) {
        if (row % SPL_BLOCK_ROWS == 0) continue;
        uint32_t *ids = (uint32_t *)(void *)(s->arena + s->list->draft_candidates) + (size_t)row * top_k;
        float *scores = spl_rows_at(s, s->list->draft_scores) + (size_t)row * top_k;
        const float *logits = spl_rows_at(s, op->in) + (size_t)row * vocab;
        const float *panel_max = spl_rows_at(s, s->list->panel_max) + row * spl_rank_panels(vocab);
        spl_ranked ranked = {.n = 0};
        if (spl_rank_scan_panels(panel_max, vocab, row, block_max, &max, NULL) == SPL_OK)
            spl_rank_top(&ranked, logits, vocab, block_max, panel_max, top_k);
        for (uint32_t i = 0; i < top_k; i++) {
            ids[i] = i < ranked.n ? ranked.id[i] : i; /* distinct and below the vocabulary in any case */
            scores[i] = i < ranked.n ? ranked.value[i] : -INFINITY;
        }
    }
}

/* sum over d of predecessor[a][d] * g[d] * successor[b][d], ascending. */
static float edge(const spl_step *s, const float *context, uint32_t b) {
    uint32_t rank = s->g->draft->selector_rank;
    const uint16_t *next = s->successor + (size_t)b * rank;
    float sum = 0.0f;
    for (uint32_t i = 0; i < rank; i++) sum += context[i] * spl_f32_from_bf16(next[i]);
    return sum;
}

/* Chooses among scored candidates; a sampled lane keeps q for the acceptance test. */
static uint32_t choose(spl_decode_lane *lane, uint32_t position, const float *scores, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        if (scores[i] > scores[best]) best = i;
    }
    float temperature = lane->sampling->temperature;
    lane->proposals[position].n_q = 0;
    if (temperature <= 0.0f || !(scores[best] > -INFINITY)) return best;
    double sum = 0, at = 0;
    float *q = lane->q[position];
    for (uint32_t i = 0; i < n; i++) {
        q[i] = expf((scores[i] - scores[best]) / temperature);
        sum += (double)q[i];
    }
    for (uint32_t i = 0; i < n; i++) q[i] = (float)((double)q[i] / sum);
    lane->proposals[position].n_q = n;
    lane->proposals[position].ids = lane->candidates[position];
    lane->proposals[position].q = q;
    double total = 0;
    for (uint32_t i = 0; i < n; i++) total += (double)q[i];
    uint32_t chosen = n - 1;
    for (uint32_t i = 0; i < n; i++) {
        at += (double)q[i];
        if (at > lane->uniforms[SPL_UNIFORM_DRAFT + position] * total) {
            chosen = i;
            break;
        }
    }
    while (chosen > 0 && !(q[chosen] > 0.0f)) chosen--; /* what was not drawable is not proposed */
    return chosen;
}

static void walk_lane(const spl_step *s, uint32_t block) {
    const spl_draft_geometry *d = s->g->draft;
    uint32_t index = s->block_segment[block], top_k = d->selector_top_k;
    const spl_segment *seg = &s->batch->segments[index];
    spl_decode_lane *lane = &s->batch->lanes[index];
    uint32_t *inputs = (uint32_t *)(void *)(s->arena + s->list->tokens) + seg->row_begin;
    uint32_t previous = inputs[0];
    float context[SPL_MAX_SELECTOR_RANK], scores[SPL_MAX_CANDIDATES];
    for (uint32_t r = 1; r < seg->n_rows; r++) {
        size_t row = (size_t)block * SPL_BLOCK_ROWS + r;
        const uint32_t *ids = (const uint32_t *)(const void *)(s->arena + s->list->draft_candidates) + row * top_k;
        const float *unary = spl_rows_at(s, s->list->draft_scores) + row * top_k;
        const float *selector = spl_rows_at(s, s->list->draft_selector) + row * d->selector_rank;
        const uint16_t *from = s->predecessor + (size_t)previous * d->selector_rank;
        for (uint32_t i = 0; i < d->selector_rank; i++) context[i] = spl_f32_from_bf16(from[i]) * selector[i];
        for (uint32_t i = 0; i < top_k; i++) scores[i] = unary[i] + edge(s, context, ids[i]);
        memcpy(lane->candidates[r - 1], ids, top_k * sizeof *ids);
        previous = ids[choose(lane, r - 1, scores, top_k)];
        lane->proposals[r - 1].token = inputs[r] = previous;
    }
}

/* ---- acceptance ----------------------------------------------------------------------------- */

/* The best token of a row whose logits were not kept: those of its best panel are computed once more. */
static spl_status best_without_logits(const spl_step *s, const spl_dist_input *in, size_t row, uint32_t *token,
                                      spl_error *err) {
    float logits[SPL_ROWS_PER_TILE];
    uint32_t panel, i = 0;
    spl_status st = spl_best_panel(in->panel_max, in->vocab, in->row, &panel, err);
    if (st != SPL_OK) return st;
    spl_run_head_panel(s, (uint32_t)row, panel, logits);
    while (i + 1 < SPL_ROWS_PER_TILE && logits[i] != in->panel_max[panel]) i++;
    *token = panel * SPL_ROWS_PER_TILE + i;
    return SPL_OK;
}

static spl_status accept_rows(const spl_step *s, uint32_t index, spl_error *err) {
    const spl_segment *seg = &s->batch->segments[index];
    spl_decode_lane *lane = &s->batch->lanes[index];
    void *scratch = s->arena + s->list->accept_scratch + index * s->list->accept_scratch_bytes;
    bool greedy = lane->sampling->temperature <= 0.0f;
    spl_accept *a = &lane->result;
    spl_status st =
        spl_accept_begin(a, lane->proposals, seg->n_rows - 1, greedy ? NULL : lane->uniforms, &lane->limits, err);
    while (st == SPL_OK && !a->done) {
        size_t row = seg->row_begin + a->row;
        spl_dist_input in = {.logits = spl_rows_at(s, s->list->logits) + row * s->g->vocab,
                             .panel_max = spl_rows_at(s, s->list->panel_max) + row * spl_rank_panels(s->g->vocab),
                             .vocab = s->g->vocab,
                             .row = a->row,
                             .sampling = lane->sampling,
                             .bias = lane->bias,
                             .n_bias = lane->n_bias,
                             .penalties = lane->penalties};
        if (greedy) {
            uint32_t best;
            st = s->keeps_logits ? spl_dist_argmax(&best, &in, scratch, err)
                                 : best_without_logits(s, &in, row, &best, err);
            if (st == SPL_OK) spl_accept_row_greedy(a, best);
        } else {
            spl_dist target;
            st = spl_dist_build(&target, &in, scratch, err);
            if (st == SPL_OK) spl_accept_row(a, &target);
        }
        if (st == SPL_OK && lane->penalties) st = spl_penalties_push(lane->penalties, a->tokens[a->row - 1], err);
    }
    return st;
}

void spl_run_draft(const spl_step *s, const spl_op *op, uint32_t begin, uint32_t end, uint32_t member) {
    switch ((spl_op_kind)op->kind) {
    case SPL_OP_DRAFT_ROWS: run_rows(s, begin, end); break;
    case SPL_OP_DRAFT_CONV: run_conv(s, op, begin, end); break;
    case SPL_OP_DRAFT_PREPARE: run_prepare(s, op, begin, end); break;
    case SPL_OP_DRAFT_STORE: run_store(s, op, begin, end); break;
    case SPL_OP_DRAFT_ATTEND: run_attend(s, op, begin, end, member); break;
    case SPL_OP_DRAFT_TOP: run_top(s, op, begin, end, member); break;
    case SPL_OP_DRAFT_WALK:
        for (uint32_t block = begin; block < end; block++) walk_lane(s, block);
        break;
    case SPL_OP_ACCEPT:
        for (uint32_t i = begin; i < end; i++) s->batch->lanes[i].status = accept_rows(s, i, &s->batch->lanes[i].error);
        break;
    default: break;
    }
}
