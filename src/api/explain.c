/* SPDX-License-Identifier: Apache-2.0
 * splash_explain: what a model is, what a step reads and what memory it takes, as one JSON object.
 * The top level is the published accounting, `this_engine` the bytes of the op list this build
 * runs. Every number is computed from the geometry; nothing is measured here. Members: docs/SERVING.md
 * names the command, docs/MATH.md section 10 the formulas. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/compiler.h"
#include "base/json.h"
#include "kernels/kernels.h"
#include "model/accounting.h"
#include "model/package.h"
#include "splash.h"
#include "step/op.h"

_Static_assert(sizeof(splash_error) == sizeof(spl_error) && (int)SPLASH_E_INTERNAL == (int)SPL_E_INTERNAL,
               "public and internal errors are one layout");

/* Rows per lane in a decode step: the block that is verified, or one without a draft. */
static uint32_t rows_per_lane(bool drafts) { return drafts ? SPL_BLOCK_ROWS : 1; }

/* What is explained, and how much of it is there. */
typedef struct subject {
    const spl_geometry *g;
    spl_package *package; /* NULL for a bare geometry id */
    uint32_t n_layers;    /* of the package; 0: all */
    bool has_draft;
    const splash_explain_options *options;
    bool failed; /* a JSON value could not be made: out of memory */
} subject;

static void set(subject *s, json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value) != 0) s->failed = true;
}
static void set_bytes(subject *s, json_t *object, const char *key, uint64_t value) {
    set(s, object, key, json_integer((json_int_t)value));
}
static void set_real(subject *s, json_t *object, const char *key, double value) {
    set(s, object, key, json_real(value));
}

static void add_shares(subject *s, json_t *o, const spl_accounting *a) {
    set_real(s, o, "head_share", a->head_share);
    set_real(s, o, "draft_share", a->draft_share);
    set_real(s, o, "state_share", a->state_share);
}

/* Rates that the caller's bandwidth, tau and measured speed imply for a step of that many bytes. */
static void add_rates(subject *s, json_t *o, const spl_accounting *a) {
    const splash_explain_options *q = s->options;
    if (q->bandwidth_gbs > 0 && q->tau > 0) {
        set_real(s, o, "roof_tokens_per_second", spl_roof_tokens_per_second(a->step_bytes, q->bandwidth_gbs, q->tau));
    }
    if (q->bandwidth_gbs > 0) {
        set_real(s, o, "draft_free_roof_tokens_per_second",
                 spl_roof_tokens_per_second(a->draft_free_step_bytes, q->bandwidth_gbs, 1.0));
    }
    if (q->tokens_per_second > 0 && q->tau > 0) {
        set_real(s, o, "needed_gb_per_second", spl_needed_gbs(a->step_bytes, q->tokens_per_second, q->tau));
    }
}

static void add_sizes(subject *s, json_t *o, const spl_accounting *a) {
    set_bytes(s, o, "parameters", a->parameters);
    set_bytes(s, o, "target_bytes", a->target_bytes);
    set_bytes(s, o, "embedding_bytes", a->embed_bytes);
    set_bytes(s, o, "head_bytes", a->head_bytes);
    if (a->expert_bytes) set_bytes(s, o, "routed_expert_bytes", a->expert_bytes);
    set_bytes(s, o, "draft_parameters", a->draft_parameters);
    set_bytes(s, o, "draft_bytes", a->draft_bytes);
    set_bytes(s, o, "attention_input_width", a->attention_input_width);
    set_bytes(s, o, "gdn_input_width", a->gdn_input_width);
    set_bytes(s, o, "recurrent_bytes", a->recurrent_bytes);
    set_bytes(s, o, "window_bytes", a->window_bytes);
    set_bytes(s, o, "state_bytes", a->state_bytes);
    set_bytes(s, o, "kv_bytes_per_token", a->kv_bytes_per_token);
    if (a->draft_kv_bytes_per_token) {
        set_bytes(s, o, "draft_kv_bytes_per_token", a->draft_kv_bytes_per_token);
        set_bytes(s, o, "draft_window_tokens", a->draft_window_tokens);
    }
}

static json_t *geometry_json(subject *s) {
    const spl_geometry *g = s->g;
    json_t *o = json_object();
    set(s, o, "id", json_string(g->id));
    set(s, o, "model_type", json_string(g->model_type));
    set(s, o, "chat_template", json_string(g->chat_template));
    set_bytes(s, o, "layers", g->n_layers);
    set_bytes(s, o, "attention_layers", spl_n_attention_layers(g));
    set_bytes(s, o, "gdn_layers", spl_n_gdn_layers(g));
    set_bytes(s, o, "hidden", g->hidden);
    set_bytes(s, o, "vocab", g->vocab);
    set_bytes(s, o, "q_heads", g->n_q_heads);
    set_bytes(s, o, "kv_heads", g->n_kv_heads);
    set_bytes(s, o, "head_dim", g->head_dim);
    set_bytes(s, o, "rotary_dims", g->rotary_dims);
    set_bytes(s, o, "gdn_key_heads", g->gdn_key_heads);
    set_bytes(s, o, "gdn_value_heads", g->gdn_value_heads);
    set_bytes(s, o, "gdn_head_dim", g->gdn_head_dim);
    set_bytes(s, o, "ffn_width", g->ffn_width);
    set_bytes(s, o, "experts", g->n_experts);
    set_bytes(s, o, "experts_per_token", g->experts_per_token);
    set_bytes(s, o, "max_positions", g->max_positions);
    set_bytes(s, o, "draft_layers", g->draft ? g->draft->n_layers : 0);
    return o;
}

static json_t *op_json(subject *s, const spl_op *op) {
    json_t *o = json_object();
    set(s, o, "op", json_string(spl_op_name((spl_op_kind)op->kind)));
    set(s, o, "layer", op->layer == SPL_NO_LAYER ? json_null() : json_integer(op->layer));
    static const char *const rows[] = {"batch", "logits", "block", "context", "block+context"};
    _Static_assert(SPL_COUNT(rows) == SPL_ROWS_BLOCK_CONTEXT + 1, "a name per kind of rows");
    set(s, o, "rows", json_string(rows[op->rows]));
    if (op->n_out) set_bytes(s, o, "n_out", op->n_out);
    if (op->k) set_bytes(s, o, "k", op->k);
    set_bytes(s, o, "weight_bytes", op->weight_bytes);
    if (op->lane_bytes) set_bytes(s, o, "lane_bytes", op->lane_bytes);
    if (op->kv_bytes_per_token) set_bytes(s, o, "kv_bytes_per_token", op->kv_bytes_per_token);
    if (op->kv_window) set_bytes(s, o, "kv_window", op->kv_window);
    if (op->joined) set(s, o, "joined", json_true());
    return o;
}

/* One entry per kind of op: how often it runs in a step and what it reads for one lane. */
static json_t *stages_json(subject *s, const spl_op_list *list) {
    json_t *stages = json_array();
    for (uint32_t kind = 0; kind < SPL_N_OPS; kind++) {
        uint64_t n = 0, weights = 0, lane = 0, kv = 0, window = 0;
        for (uint32_t i = 0; i < list->n_ops; i++) {
            const spl_op *op = &list->ops[i];
            if (op->kind != kind) continue;
            n++;
            weights += op->weight_bytes;
            lane += op->lane_bytes;
            kv += op->kv_bytes_per_token;
            window = op->kv_window;
        }
        if (n == 0) continue;
        json_t *o = json_object();
        set(s, o, "op", json_string(spl_op_name((spl_op_kind)kind)));
        set_bytes(s, o, "count", n);
        set_bytes(s, o, "weight_bytes", weights);
        set_bytes(s, o, "lane_bytes", lane);
        set_bytes(s, o, "kv_bytes_per_token", kv);
        if (window) set_bytes(s, o, "kv_window", window);
        if (json_array_append_new(stages, o) != 0) s->failed = true;
    }
    return stages;
}

static void add_list(subject *s, json_t *o, const spl_op_list *list) {
    const splash_explain_options *q = s->options;
    uint32_t lanes = q->lanes ? q->lanes : 1, rows = lanes * rows_per_lane(s->has_draft);
    set_bytes(s, o, "ops", list->n_ops);
    set_bytes(s, o, "rows_per_lane", rows_per_lane(s->has_draft));
    set_bytes(s, o, "step_macs", spl_op_list_step_macs(list, rows, rows, rows));
    if (q->lanes || q->context_tokens) { /* with the history every lane attends to */
        json_t *at = json_object();
        set_bytes(s, at, "lanes", lanes);
        set_bytes(s, at, "context_tokens", q->context_tokens);
        set_bytes(s, at, "step_bytes", spl_op_list_step_bytes(list, lanes, q->context_tokens));
        set(s, o, "at", at);
    }
    set(s, o, "stages", stages_json(s, list));
    if (!q->op_list) return;
    json_t *ops = json_array();
    for (uint32_t i = 0; i < list->n_ops; i++) {
        if (json_array_append_new(ops, op_json(s, &list->ops[i])) != 0) s->failed = true;
    }
    set(s, o, "op_list", ops);
}

static json_t *engine_json(subject *s) {
    json_t *o = json_object();
    spl_op_list list = {0};
    spl_error why;
    spl_accounting a;
    unsigned parts = s->has_draft ? SPL_LIST_ACCEPT | SPL_LIST_DRAFT : SPL_LIST_ACCEPT;
    spl_status st =
        spl_op_list_build(&list, s->g, s->n_layers, SPL_MAX_DECODE_ROWS, SPL_MAX_DECODE_ROWS, parts, false, &why);
    if (st == SPL_E_NOMEM) s->failed = true;
    uint64_t step = st == SPL_OK ? spl_op_list_step_bytes(&list, 1, 0) : 0;
    spl_account_engine(s->g, s->n_layers, s->has_draft, step, &a);
    add_sizes(s, o, &a);
    set_bytes(s, o, "draft_free_step_bytes", a.draft_free_step_bytes);
    set_bytes(s, o, "streamed_step_bytes", a.streamed_step_bytes);
    set(s, o, "runs", json_boolean(st == SPL_OK));
    set(s, o, "drafts", json_boolean(s->has_draft));
    if (st == SPL_OK) {
        set_bytes(s, o, "step_bytes", a.step_bytes);
        add_shares(s, o, &a);
        add_rates(s, o, &a);
        add_list(s, o, &list);
    } else {
        set(s, o, "step_bytes", json_null());
        set(s, o, "reason", json_string(why.text));
    }
    spl_op_list_free(&list);
    return o;
}

/* ---- kernels --------------------------------------------------------------------------------- */

typedef struct kernel_entry {
    const char *name;
    size_t offset; /* of the function pointer in spl_kernels */
} kernel_entry;

#define ENTRY(member)                                                                                                  \
    { #member, offsetof(spl_kernels, member) }
static const kernel_entry entries[] = {
    ENTRY(rms_norm),     ENTRY(quantise),     ENTRY(linear_q4),   ENTRY(gate_up_q4),
    ENTRY(embed_rows),   ENTRY(attn_prepare), ENTRY(kv_store_i8), ENTRY(attend_i8),
    ENTRY(attend_merge), ENTRY(gdn_prepare),  ENTRY(gdn_scan),    ENTRY(gdn_norm),
};

static bool same_entry(const spl_kernels *a, const spl_kernels *b, const kernel_entry *e) {
    return memcmp((const char *)a + e->offset, (const char *)b + e->offset, sizeof a->quantise) == 0;
}

/* The weakest tier whose table has the same function is the one that wrote it. */
static json_t *kernels_json(subject *s) {
    json_t *o = json_object(), *chosen = json_object(), *usable = json_array();
    spl_kernels best;
    spl_error err;
    memset(&best, 0, sizeof best);
    if (spl_kernels_select(&best, SPL_N_TIERS, &err) != SPL_OK) best.tier = SPL_N_TIERS;
    uint32_t tiers = spl_cpu_tiers();
    for (int tier = 0; tier < SPL_N_TIERS; tier++) {
        spl_kernels k;
        if (!(tiers >> tier & 1u) || spl_kernels_select(&k, (spl_tier)tier, &err) != SPL_OK) continue;
        json_t *name = json_string(spl_tier_name((spl_tier)tier));
        if (json_array_append(usable, name) != 0) s->failed = true;
        for (size_t i = 0; i < SPL_COUNT(entries); i++) {
            if (!same_entry(&k, &best, &entries[i]) || json_object_get(chosen, entries[i].name)) continue;
            if (json_object_set(chosen, entries[i].name, name) != 0) s->failed = true;
        }
        json_decref(name);
    }
    set(s, o, "tier", best.tier < SPL_N_TIERS ? json_string(spl_tier_name(best.tier)) : json_null());
    set(s, o, "usable", usable);
    set(s, o, "chosen", chosen);
    return o;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The plan an engine of this model would make here, by the same code. */
static json_t *memory_json(subject *s) {
    json_t *o = json_object();
    splash_options options = {
        .model = s->options->model, .random_weights = s->package == NULL, .context_tokens = s->options->context_tokens};
    splash_memory_plan p;
    splash_error why;
    if (options.random_weights) options.model = s->g->id;
    if (splash_plan(&options, &p, &why) != SPLASH_OK) {
        set(s, o, "fits", json_false());
        set(s, o, "reason", json_string(why.text));
        return o;
    }
    set(s, o, "fits", json_true());
    set_bytes(s, o, "weight_bytes", p.weight_bytes);
    set_bytes(s, o, "kv_bytes", p.kv_bytes);
    set_bytes(s, o, "state_bytes", p.state_bytes);
    set_bytes(s, o, "arena_bytes", p.arena_bytes);
    set_bytes(s, o, "logits_bytes", p.logits_bytes);
    set_bytes(s, o, "other_bytes", p.other_bytes);
    set_bytes(s, o, "total_bytes", p.total_bytes);
    set_bytes(s, o, "limit_bytes", p.limit_bytes);
    set_bytes(s, o, "context_tokens", p.context_tokens);
    set_bytes(s, o, "kv_pages", p.kv_pages);
    set_bytes(s, o, "max_lanes", p.max_lanes);
    return o;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static json_t *explain_json(subject *s) {
    spl_accounting a;
    spl_account_published(s->g, &a);
    json_t *o = json_object();
    set(s, o, "model", json_string(s->package ? spl_package_name(s->package) : s->g->id));
    set(s, o, "display", json_string(s->g->display));
    set(s, o, "accounting", json_string("packed-q4"));
    add_sizes(s, o, &a);
    set_bytes(s, o, "vision_bytes", a.vision_bytes);
    set_bytes(s, o, "step_bytes", a.step_bytes);
    set_bytes(s, o, "draft_free_step_bytes", a.draft_free_step_bytes);
    add_shares(s, o, &a);
    add_rates(s, o, &a);
    set(s, o, "geometry", geometry_json(s));
    set(s, o, "this_engine", engine_json(s));
    set(s, o, "memory", memory_json(s));
    set(s, o, "kernels", kernels_json(s));
    return o;
}

static spl_status open_subject(subject *s, spl_error *err) {
    const char *model = s->options->model ? s->options->model : "nano";
    s->g = spl_geometry_find(model);
    s->has_draft = s->g && s->g->draft;
    if (s->g) return SPL_OK;
    if (!spl_is_package_folder(model)) {
        return spl_fail(err, SPL_E_NOTFOUND, "%s is neither a package folder nor a geometry this engine knows", model);
    }
    spl_status st = spl_package_open(&s->package, model, SPL_CHECK_QUICK, err);
    if (st != SPL_OK) return st;
    s->g = spl_package_geometry(s->package);
    s->n_layers = spl_package_n_layers(s->package);
    s->has_draft = spl_package_has_draft(s->package);
    return SPL_OK;
}

static bool sound(double rate) { return isfinite(rate) && rate >= 0; }

splash_status splash_explain(const splash_explain_options *options, char **json, splash_error *err) {
    spl_error inner = {.code = SPL_OK};
    subject s = {.options = options};
    *json = NULL;
    spl_status st = open_subject(&s, &inner);
    if (st == SPL_OK && !(options->lanes <= SPL_MAX_LANES && sound(options->bandwidth_gbs) && sound(options->tau) &&
                          sound(options->tokens_per_second))) {
        st = spl_fail(&inner, SPL_E_INVALID, "lanes must be 0..%d; bandwidth, tau and speed finite and not negative",
                      SPL_MAX_LANES);
    }
    if (st == SPL_OK) {
        json_t *o = explain_json(&s);
        if (!s.failed) *json = json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
        json_decref(o);
        if (!*json) st = spl_fail(&inner, SPL_E_NOMEM, "no memory for the explanation");
    }
    spl_package_close(s.package);
    if (err) memcpy(err, &inner, sizeof inner);
    return (splash_status)st;
}
