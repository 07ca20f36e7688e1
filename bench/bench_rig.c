/* SPDX-License-Identifier: Apache-2.0
 * Loading a model for a measurement, and what a run's ops took. */
#include "bench/bench_rig.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/huge_pages.h"
#include "base/memory_limit.h"
#include "model/plan.h"

enum { SPARE_TOKENS = SPL_BLOCK_ROWS, LIMIT_PERCENT = 85 };

uint32_t spl_rig_token(const spl_rig *r, uint32_t i) { return (uint32_t)((i * 2654435761u >> 7) % r->g->vocab); }

/* ---- memory ---------------------------------------------------------------------------------- */

static spl_status open_package(spl_rig *r, const spl_bench_options *o, spl_error *err) {
    if (!o->random_weights) {
        spl_status st = spl_package_open(&r->package, o->model, SPL_CHECK_QUICK, err);
        if (st != SPL_OK) return st;
        r->g = spl_package_geometry(r->package);
        r->n_layers = spl_package_n_layers(r->package);
        if (o->draft && !spl_package_has_draft(r->package))
            return spl_fail(err, SPL_E_NOTFOUND, "%s has no draft; leave --draft out", o->model);
        return SPL_OK;
    }
    r->g = spl_geometry_find(o->model);
    if (!r->g) return spl_fail(err, SPL_E_NOTFOUND, "no geometry is called '%s'", o->model);
    if (o->draft && !r->g->draft) return spl_fail(err, SPL_E_GEOMETRY, "no draft is known for '%s'", o->model);
    r->n_layers = o->n_layers && o->n_layers < r->g->n_layers ? o->n_layers : r->g->n_layers;
    return SPL_OK;
}

static uint32_t pages_per_lane(uint32_t context_tokens) {
    return (uint32_t)spl_div_up((uint64_t)context_tokens + SPARE_TOKENS, SPL_PAGE_TOKENS);
}

static spl_step_config step_config(const spl_rig *r) {
    return (spl_step_config){.geometry = r->g,
                             .max_rows = SPL_BENCH_CHUNK_ROWS,
                             .max_logit_rows = SPL_MAX_LANES,
                             .decode = true,
                             .draft = r->drafts,
                             .small_pages = r->small_pages,
                             .knobs = r->knobs};
}

/* Everything the rig is about to take, against what is free. */
static spl_status check_room(const spl_rig *r, const spl_bench_options *o, uint32_t context_tokens, spl_error *err) {
    spl_step_config config = step_config(r);
    uint64_t arena = 0, limit = o->memory_limit_bytes;
    spl_status st = spl_step_bytes(&config, r->n_layers, r->n_threads, &arena, err);
    if (st != SPL_OK) return st;
    uint64_t lane = spl_state_cell_bytes(r->g, r->n_layers) + spl_pending_bytes(r->g, r->n_layers) +
                    (uint64_t)pages_per_lane(context_tokens) * spl_kv_page_bytes(r->g, r->n_layers, false) +
                    (r->drafts ? spl_draft_ring_bytes(r->g, false) : 0);
    uint64_t wanted = spl_plan_weight_bytes(r->g, r->n_layers, r->drafts) + arena + r->n_lanes * lane;
    if (!limit) {
        spl_memory_room room;
        st = spl_memory_room_get("", &room, err);
        if (st != SPL_OK) return st;
        limit = room.available_bytes / 100 * LIMIT_PERCENT;
    }
    if (wanted <= limit) return SPL_OK;
    return spl_fail(err, SPL_E_LIMIT,
                    "the measurement takes %.2f GB, the limit is %.2f GB; fewer layers, lanes or context tokens fit",
                    (double)wanted * 1e-9, (double)limit * 1e-9);
}

static spl_status take(const spl_rig *r, void **out, uint64_t n_bytes, spl_error *err) {
    *out = spl_alloc_pages((size_t)n_bytes, !r->small_pages);
    if (*out) {
        memset(*out, 0, (size_t)n_bytes);
        return SPL_OK;
    }
    return spl_fail(err, SPL_E_NOMEM, "no memory for a lane's %llu bytes", (unsigned long long)n_bytes);
}

/* Random codes with one ordinary scale in every KV block: the layout is two planes of codes, then the scales. */
static void fill_blocks(uint8_t *memory, size_t n_bytes, uint32_t head_dim) {
    size_t block = spl_kv_block_bytes(head_dim, false), codes = 2 * (size_t)SPL_PAGE_TOKENS * head_dim;
    uint32_t state = 1;
    for (uint8_t *at = memory; at < memory + n_bytes / block * block; at += block) {
        for (size_t j = 0; j < codes; j += 4) {
            state = state * 1664525u + 1013904223u;
            spl_store_u32(at + j, state >> 8 | state << 24);
        }
        for (size_t j = 0; j < 2 * SPL_PAGE_TOKENS; j++) {
            float scale = 0.01f;
            memcpy(at + codes + j * sizeof scale, &scale, sizeof scale);
        }
    }
}

static spl_status open_lane(spl_rig *r, spl_rig_lane *lane, uint32_t context_tokens, spl_error *err) {
    void *memory = NULL;
    uint64_t cell_bytes = spl_state_cell_bytes(r->g, r->n_layers);
    spl_status st = spl_page_table_init(&lane->pages, context_tokens + SPARE_TOKENS, err);
    if (st == SPL_OK) st = spl_page_table_grow(&lane->pages, &r->pool, context_tokens + SPARE_TOKENS, err);
    if (st == SPL_OK) st = take(r, &memory, cell_bytes, err);
    if (st != SPL_OK) return st;
    lane->cell = memory;
    for (uint64_t i = 0; i < cell_bytes / sizeof(float); i++) lane->cell[i] = 0.001f * (float)(i % 7) - 0.003f;
    st = take(r, &lane->pending_memory, spl_pending_bytes(r->g, r->n_layers), err);
    if (st != SPL_OK) return st;
    spl_pending_place(&lane->pending, lane->pending_memory, r->g, r->n_layers);
    if (!r->drafts) return SPL_OK;
    uint64_t ring_bytes = spl_draft_ring_bytes(r->g, false);
    st = take(r, &memory, ring_bytes, err);
    if (st != SPL_OK) return st;
    lane->ring = memory;
    fill_blocks(lane->ring, (size_t)ring_bytes, r->g->draft->head_dim);
    size_t width = (size_t)r->g->draft->n_capture * r->g->hidden;
    st = take(r, &memory, SPL_BLOCK_ROWS * width * sizeof(float), err);
    lane->features = memory;
    return st;
}

spl_status spl_rig_make_crew(const spl_rig *r, uint32_t n_threads, spl_team **team, spl_step **step, spl_error *err) {
    *step = NULL;
    spl_status st = spl_team_create(team, n_threads, spl_set_ftz, err);
    if (st != SPL_OK) return st;
    spl_step_config config = step_config(r);
    config.package = r->package;
    config.kernels = &r->kernels;
    config.team = *team;
    st = spl_step_create(step, &config, err);
    if (st == SPL_OK) return SPL_OK;
    spl_team_destroy(*team);
    *team = NULL;
    return st;
}

spl_status spl_rig_open(spl_rig *r, const spl_bench_options *o, uint32_t n_lanes, uint32_t context_tokens,
                        spl_error *err) {
    memset(r, 0, sizeof *r);
    r->n_lanes = n_lanes;
    r->drafts = o->draft;
    r->small_pages = o->no_huge_pages;
    spl_status st = spl_bench_kernels(o, &r->kernels, &r->n_threads, err);
    if (st == SPL_OK) spl_bench_knobs(o, r->kernels.tier, &r->knobs);
    if (st == SPL_OK) st = open_package(r, o, err);
    if (st == SPL_OK && context_tokens > r->g->max_positions - SPARE_TOKENS)
        st = spl_fail(err, SPL_E_INVALID, "a context of %u tokens; %s has %u positions", context_tokens, r->g->id,
                      r->g->max_positions);
    if (st == SPL_OK) st = check_room(r, o, context_tokens, err);
    if (st == SPL_OK && !r->package) {
        spl_bench_say(o, "random weights for %u layers of %s", r->n_layers, r->g->id);
        st = spl_package_random_paged(&r->package, r->g, o->n_layers, r->drafts, 1, !o->no_huge_pages, err);
    } else if (st == SPL_OK) {
        spl_package_advise_pages(r->package, !o->no_huge_pages);
    }
    if (st == SPL_OK && o->lock_weights) st = spl_package_lock(r->package, r->drafts, true, err);
    if (st == SPL_OK) st = spl_rig_make_crew(r, r->n_threads, &r->team, &r->step, err);
    if (st == SPL_OK)
        st = spl_page_pool_init(&r->pool, (size_t)spl_kv_page_bytes(r->g, r->n_layers, false),
                                n_lanes * pages_per_lane(context_tokens), err);
    if (st == SPL_OK) spl_advise_pages(r->pool.memory, r->pool.page_bytes * r->pool.n_pages, !r->small_pages);
    if (st == SPL_OK) fill_blocks(r->pool.memory, r->pool.n_pages * r->pool.page_bytes, r->g->head_dim);
    for (uint32_t i = 0; i < n_lanes && st == SPL_OK; i++) st = open_lane(r, &r->lanes[i], context_tokens, err);
    return st;
}

void spl_rig_close(spl_rig *r) {
    for (uint32_t i = 0; i < SPL_MAX_LANES; i++) {
        spl_rig_lane *lane = &r->lanes[i];
        spl_page_table_free(&lane->pages, &r->pool);
        free(lane->cell);
        free(lane->pending_memory);
        free(lane->ring);
        free(lane->features);
    }
    spl_page_pool_free(&r->pool);
    spl_step_destroy(r->step);
    spl_team_destroy(r->team);
    spl_package_close(r->package);
    memset(r, 0, sizeof *r);
}

spl_status spl_rig_open_roof(const spl_rig *r, spl_roof **out, spl_error *err) {
    spl_roof_memory weights = {NULL, 0};
    weights.data = spl_package_weights(r->package, &weights.n_bytes);
    *out = calloc(1, sizeof **out);
    if (!*out) return spl_fail(err, SPL_E_NOMEM, "no memory for the readings");
    return spl_roof_open(*out, r->team, r->kernels.tier, weights, 0, err);
}
void spl_rig_close_roof(spl_roof *roof) {
    if (roof) spl_roof_close(roof);
    free(roof);
}

/* ---- results --------------------------------------------------------------------------------- */

void spl_rig_put(spl_bench_json *j, const spl_rig *r) {
    spl_put_text(j, "model", spl_package_name(r->package));
    spl_put_text(j, "geometry", r->g->id);
    spl_put_u64(j, "layers", r->n_layers);
    spl_put_bool(j, "draft", r->drafts);
    spl_put_u64(j, "weight_bytes", spl_plan_weight_bytes(r->g, r->n_layers, r->drafts));
}

uint64_t spl_rig_op_macs(const spl_op *op, uint32_t kv_tokens, uint32_t n_rows, uint32_t n_logit_rows,
                         uint32_t n_context) {
    uint64_t rows = n_rows;
    if (op->kv_macs_per_token) return rows * spl_op_kv_tokens(op, kv_tokens) * op->kv_macs_per_token;
    if (op->kind != SPL_OP_LINEAR && op->kind != SPL_OP_GATE_UP) return 0;
    if (op->rows == SPL_ROWS_LOGITS) rows = n_logit_rows;
    if (op->rows == SPL_ROWS_CONTEXT) rows = n_context;
    if (op->rows == SPL_ROWS_BLOCK_CONTEXT) rows += n_context;
    return rows * op->k * op->n_out * (op->kind == SPL_OP_GATE_UP ? 2 : 1);
}

json_t *spl_rig_stages(const spl_op_list *list, const uint64_t *op_ns, uint32_t n_runs, uint32_t n_lanes,
                       uint32_t kv_tokens, uint32_t n_rows, uint32_t n_logit_rows, uint32_t n_context) {
    json_t *stages = json_array();
    double total = 0;
    for (uint32_t i = 0; i < list->n_ops; i++) total += (double)op_ns[i];
    for (uint32_t kind = 0; kind < SPL_N_OPS && stages; kind++) {
        uint64_t n = 0, ns = 0, bytes = 0, macs = 0;
        for (uint32_t i = 0; i < list->n_ops; i++) {
            const spl_op *op = &list->ops[i];
            if (op->kind != kind) continue;
            n++;
            ns += op_ns[i];
            bytes += op->weight_bytes +
                     n_lanes * (op->lane_bytes + op->kv_bytes_per_token * spl_op_kv_tokens(op, kv_tokens));
            macs += spl_rig_op_macs(op, kv_tokens, n_rows, n_logit_rows, n_context);
        }
        if (n == 0) continue;
        double seconds = (double)ns * 1e-9 / n_runs;
        spl_bench_json row = {0};
        spl_put_text(&row, "op", spl_op_name((spl_op_kind)kind));
        spl_put_u64(&row, "count", n);
        spl_put_real(&row, "seconds", seconds);
        spl_put_real(&row, "share", total > 0 ? (double)ns / total : 0);
        spl_put_u64(&row, "bytes", bytes);
        spl_put_u64(&row, "macs", macs);
        spl_put_real(&row, "gb_per_second", seconds > 0 ? (double)bytes * 1e-9 / seconds : 0);
        spl_put_real(&row, "gmac_per_second", seconds > 0 ? (double)macs * 1e-9 / seconds : 0);
        if (row.failed || json_array_append_new(stages, row.object) != 0) {
            json_decref(stages);
            return NULL;
        }
    }
    return stages;
}
