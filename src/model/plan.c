/* SPDX-License-Identifier: Apache-2.0
 * Order of claims on the limit: what is fixed (weights, arena, logits, threads, runtime), one state
 * cell per lane, pages for one full context (a chosen one leaves room for a few snapshots), snapshots
 * up to three quarters of what is left, pages for the other lanes. When four lanes leave no room for a
 * useful context, fewer are planned. */
#include "model/plan.h"

#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"
#include "model/accounting.h"
#include "model/layout.h"

enum {
    CONTEXT_STEP = 1024, /* a chosen context is a round number of tokens */
    KEPT_SNAPSHOTS = 4   /* a chosen context leaves room for these: without one no prefix is ever reused */
};

static uint64_t file_bytes(const spl_geometry *g, spl_file_id file, uint32_t n_layers) {
    spl_tensor_spec t;
    uint64_t at = SPL_FILE_HEADER_BYTES;
    for (uint32_t i = 0; spl_layout_tensor(g, file, n_layers, i, &t); i++) {
        at = spl_round_up(at, spl_tensor_alignment(t.encoding)) + t.bytes;
    }
    return spl_round_up(at, SPL_MATRIX_ALIGNMENT);
}

uint64_t spl_plan_weight_bytes(const spl_geometry *g, uint32_t n_layers, bool has_draft) {
    uint64_t bytes = file_bytes(g, SPL_FILE_TARGET, n_layers);
    if (has_draft && g->draft) bytes += file_bytes(g, SPL_FILE_DRAFT, n_layers);
    return bytes;
}

static uint64_t pages_of(uint64_t context_tokens) {
    return spl_div_up(context_tokens + SPL_PLAN_SPARE_TOKENS, SPL_PAGE_TOKENS);
}

/* Everything but pages and snapshots. */
static uint64_t fixed_bytes(const spl_plan *p, const spl_plan_request *r, uint32_t lanes) {
    return p->weight_bytes + p->arena_bytes + p->logits_bytes + p->other_bytes +
           lanes * (p->state_cell_bytes + r->lane_bytes);
}

/* What a chosen context leaves of the room: an eighth, or a few snapshots if those take at most half. */
static uint64_t reserve(const spl_plan *p, const spl_plan_request *r, uint64_t room) {
    uint32_t kept = r->snapshots < KEPT_SNAPSHOTS ? r->snapshots : KEPT_SNAPSHOTS;
    uint64_t cells = kept * p->state_cell_bytes / 3 * 4;
    if (cells > room / 2) cells = room / 2;
    return cells > room / 8 ? cells : room / 8;
}

/* Longest context whose pages fit into `room`, a round number where that loses little. */
static uint32_t choose_context(const spl_geometry *g, const spl_plan *p, uint64_t room) {
    if (p->kv_page_bytes == 0) return g->max_positions;
    uint64_t tokens = room / p->kv_page_bytes * SPL_PAGE_TOKENS;
    if (tokens < SPL_PLAN_SPARE_TOKENS) return 0;
    tokens -= SPL_PLAN_SPARE_TOKENS;
    if (tokens >= g->max_positions) return g->max_positions;
    return (uint32_t)(tokens > CONTEXT_STEP ? tokens / CONTEXT_STEP * CONTEXT_STEP : tokens);
}

static spl_status refuse(const spl_geometry *g, const spl_plan *p, const spl_plan_request *r, uint64_t needed,
                         spl_error *err) {
    const char *remedy = p->weight_bytes >= p->limit_bytes ? "free memory, raise the limit or take a smaller model"
                         : r->context_tokens               ? "ask for a shorter context, free memory or raise the limit"
                                                           : "free memory or raise the limit";
    return spl_fail(err, SPL_E_LIMIT,
                    "%s needs %" PRIu64 " bytes (weights %" PRIu64 ") and the memory limit is %" PRIu64 ": %s", g->id,
                    needed, p->weight_bytes, p->limit_bytes, remedy);
}

/* Snapshots and the other lanes' pages share what one lane's full context leaves. */
static void spend_rest(spl_plan *p, const spl_plan_request *r, uint64_t room) {
    uint64_t one = pages_of(p->context_tokens);
    room -= one * p->kv_page_bytes;
    p->snapshots = r->snapshots;
    if (p->state_cell_bytes && room / 4 * 3 / p->state_cell_bytes < r->snapshots) {
        p->snapshots = (uint32_t)(room / 4 * 3 / p->state_cell_bytes);
    }
    room -= p->snapshots * p->state_cell_bytes;
    uint64_t more = (p->max_lanes - 1) * one;
    if (p->kv_page_bytes && room / p->kv_page_bytes < more) more = room / p->kv_page_bytes;
    p->kv_pages = (uint32_t)(one + more);
}

static spl_status check_request(const spl_geometry *g, const spl_plan_request *r, spl_error *err) {
    if (r->context_tokens > g->max_positions) {
        return spl_fail(err, SPL_E_INVALID, "context of %" PRIu32 " tokens: %s has at most %" PRIu32, r->context_tokens,
                        g->id, g->max_positions);
    }
    if (r->max_lanes > SPL_MAX_LANES) {
        return spl_fail(err, SPL_E_INVALID, "%" PRIu32 " lanes: at most %d run together", r->max_lanes, SPL_MAX_LANES);
    }
    if (r->limit_bytes == 0) return spl_fail(err, SPL_E_INVALID, "the plan needs a memory limit");
    return SPL_OK;
}

static void set_fixed(const spl_geometry *g, const spl_plan_request *r, spl_plan *p) {
    spl_accounting a;
    spl_account_engine(g, r->n_layers, false, 0, &a);
    uint64_t token = a.kv_bytes_per_token; /* head_dim codes and a scale per head, or head_dim floats */
    if (r->f32_kv) token = token / (g->head_dim + sizeof(float)) * g->head_dim * sizeof(float);
    p->limit_bytes = r->limit_bytes;
    p->weight_bytes = spl_plan_weight_bytes(g, r->n_layers, r->has_draft);
    p->kv_page_bytes = token * SPL_PAGE_TOKENS;
    p->state_cell_bytes = r->state_cell_bytes ? r->state_cell_bytes : a.state_bytes;
    p->arena_bytes = r->arena_bytes;
    p->logits_bytes = r->logits_bytes;
    p->other_bytes = (uint64_t)r->n_threads * SPL_PLAN_THREAD_BYTES + SPL_PLAN_RUNTIME_BYTES +
                     (uint64_t)g->vocab * SPL_PLAN_TOKEN_BYTES +
                     SPL_MAX_LANES * pages_of(g->max_positions) * sizeof(uint32_t);
}

spl_status spl_plan_make(const spl_geometry *g, const spl_plan_request *r, spl_plan *out, spl_error *err) {
    spl_plan p = {0};
    memset(out, 0, sizeof *out);
    spl_status st = check_request(g, r, err);
    if (st != SPL_OK) return st;
    set_fixed(g, r, &p);
    uint32_t least = g->max_positions < SPL_PLAN_MIN_CONTEXT ? g->max_positions : SPL_PLAN_MIN_CONTEXT;
    if (r->context_tokens) least = r->context_tokens;
    uint64_t least_kv = pages_of(least) * p.kv_page_bytes;
    uint32_t lanes = r->max_lanes ? r->max_lanes : SPL_MAX_LANES;
    while (lanes > 1 && fixed_bytes(&p, r, lanes) + least_kv > p.limit_bytes) lanes--;
    uint64_t fixed = fixed_bytes(&p, r, lanes);
    if (fixed + least_kv > p.limit_bytes) return refuse(g, &p, r, fixed + least_kv, err);
    uint64_t room = p.limit_bytes - fixed;
    p.max_lanes = lanes;
    p.context_tokens = r->context_tokens ? r->context_tokens : choose_context(g, &p, room - reserve(&p, r, room));
    if (p.context_tokens < least) p.context_tokens = least; /* fits: checked above */
    spend_rest(&p, r, room);
    p.state_cells = lanes + p.snapshots;
    p.kv_bytes = p.kv_pages * p.kv_page_bytes;
    p.state_bytes = p.state_cells * p.state_cell_bytes + lanes * r->lane_bytes;
    p.total_bytes = p.weight_bytes + p.kv_bytes + p.state_bytes + p.arena_bytes + p.logits_bytes + p.other_bytes;
    *out = p;
    return SPL_OK;
}

static void line(spl_buf *out, const char *name, uint64_t bytes, const char *note) {
    (void)spl_buf_printf(out, "%-10s %15" PRIu64 "  %9.3f GB  %s\n", name, bytes, (double)bytes / 1e9, note);
}

void spl_plan_print(const spl_plan *p, spl_buf *out) {
    line(out, "weights", p->weight_bytes, "mapped read-only, shared");
    line(out, "kv", p->kv_bytes, "");
    line(out, "state", p->state_bytes, "");
    line(out, "arena", p->arena_bytes, "");
    line(out, "logits", p->logits_bytes, "");
    line(out, "other", p->other_bytes, "threads, tokenizer, runtime");
    line(out, "total", p->total_bytes, "");
    line(out, "limit", p->limit_bytes, "");
    (void)spl_buf_printf(out,
                         "context %" PRIu32 " tokens, %" PRIu32 " pages of %d, %" PRIu32 " lanes, %" PRIu32
                         " state cells (%" PRIu32 " snapshots)\n",
                         p->context_tokens, p->kv_pages, SPL_PAGE_TOKENS, p->max_lanes, p->state_cells, p->snapshots);
}
