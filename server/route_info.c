/* SPDX-License-Identifier: Apache-2.0
 * /health, /ready, /v1/models, /status, /metrics. Everything here answers from numbers at hand: none of it waits for
 * the engine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/core.h"
#include "server/routes.h"

static bool is_ready(const spl_exchange *x) { return !atomic_load(&x->server->draining); }

/* For people with a browser and agents that look whether anybody is there. */
void spl_route_index(spl_exchange *x) {
    char text[512];
    int n = snprintf(text, sizeof text,
                     "Splash serves %.200s.\n\nPOST /v1/chat/completions\nPOST /v1/completions\nPOST /v1/messages\n"
                     "GET  /v1/models\nGET  /status\nGET  /metrics\n",
                     x->server->access.api_key ? "a model" : x->server->reply_model); /* names are behind the key */
    spl_exchange_reply(x, 200, "text/plain; charset=utf-8", text, (size_t)n);
}

/* Routers probe this: 200 only while new work is taken. */
void spl_route_health(spl_exchange *x) {
    bool ready = is_ready(x);
    spl_exchange_reply_json(x, ready ? 200 : 503, json_pack("{s:s}", "status", ready ? "ok" : "draining"));
}

void spl_route_ready(spl_exchange *x) {
    bool ready = is_ready(x);
    spl_exchange_reply_json(x, ready ? 200 : 503, json_pack("{s:s}", "status", ready ? "ready" : "unavailable"));
}

/* ---- models -------------------------------------------------------------------------------- */

static json_t *model_json(const spl_server *s, const char *id) {
    json_int_t context = s->info.context_tokens;
    json_t *m = json_pack("{s:s,s:s,s:i,s:s,s:I,s:I,s:b,s:[s]}", "id", id, "object", "model", "created", 0, "owned_by",
                          "splash", "max_model_len", context, "context_length", context, "vision", 0,
                          "input_modalities", "text");
    if (strcmp(id, s->reply_model) != 0) (void)json_object_set_new(m, "root", json_string(s->reply_model));
    return m;
}

static bool is_model(const spl_server *s, const char *id) {
    if (strcmp(id, s->info.name) == 0) return true;
    for (size_t i = 0; i < s->options.n_aliases; i++)
        if (strcmp(id, s->options.aliases[i]) == 0) return true;
    return false;
}

static void add_model(json_t *data, json_t *models, const spl_server *s, const char *id) {
    (void)json_array_append_new(data, model_json(s, id));
    (void)json_array_append_new(
        models, json_pack("{s:s,s:s,s:s}", "name", id, "description", s->info.geometry, "release_date", ""));
}

void spl_route_models(spl_exchange *x) {
    const spl_server *s = x->server;
    json_t *data = json_array(), *models = json_array();
    add_model(data, models, s, s->reply_model);
    if (strcmp(s->reply_model, s->info.name) != 0) add_model(data, models, s, s->info.name);
    for (size_t i = 0; i < s->options.n_aliases; i++)
        if (strcmp(s->options.aliases[i], s->reply_model) != 0) add_model(data, models, s, s->options.aliases[i]);
    spl_exchange_reply_json(x, 200, json_pack("{s:s,s:o,s:o}", "object", "list", "data", data, "models", models));
}

void spl_route_model(spl_exchange *x) {
    const char *id = x->path + strlen(x->route->path);
    spl_reject why;
    if (is_model(x->server, id)) {
        spl_exchange_reply_json(x, 200, model_json(x->server, id));
        return;
    }
    (void)spl_reject_set(&why, 404, "model_not_found", "model '%.200s' is not served here; this server has '%s'", id,
                         x->server->info.name);
    spl_exchange_reject(x, &why);
}

/* ---- status and metrics -------------------------------------------------------------------- */

typedef struct spl_counts {
    uint32_t generations, prompts, queued, preparing;
    uint64_t input_bytes, rejected;
} spl_counts;

static spl_counts read_counts(spl_server *s) {
    (void)pthread_mutex_lock(&s->lock);
    spl_counts c = {s->active[SPL_ROUTE_GENERATION],
                    s->active[SPL_ROUTE_PROMPT],
                    s->n_queued,
                    s->n_preparing,
                    s->input_bytes,
                    s->n_rejected};
    (void)pthread_mutex_unlock(&s->lock);
    return c;
}

static json_t *pair(uint64_t active, uint64_t capacity) {
    return json_pack("{s:I,s:I}", "active", (json_int_t)active, "capacity", (json_int_t)capacity);
}

static json_t *http_json(spl_server *s, const spl_counts *c) {
    uint32_t queue = s->options.queue_size;
    return json_pack("{s:o,s:o,s:o,s:o,s:I}", "requests", pair(c->generations, queue), "token_counts",
                     pair(c->prompts, queue), "connections", pair(spl_http_connections(s), queue + 1024),
                     "request_body_bytes", pair(c->input_bytes, s->input_budget_bytes), "max_request_bytes",
                     (json_int_t)s->options.max_request_bytes);
}

static json_t *instance_json(const spl_server *s) {
    return json_pack("{s:s,s:I,s:s,s:s,s:I,s:I}", "id", s->instance_id, "pid", (json_int_t)getpid(), "model",
                     s->info.name, "host", s->host_text, "port", (json_int_t)s->port, "started_at",
                     (json_int_t)s->started_at);
}

static json_t *memory_json(const splash_memory_plan *p) {
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "weight_bytes", (json_int_t)p->weight_bytes, "kv_bytes",
                     (json_int_t)p->kv_bytes, "state_bytes", (json_int_t)p->state_bytes, "arena_bytes",
                     (json_int_t)p->arena_bytes, "logits_bytes", (json_int_t)p->logits_bytes, "other_bytes",
                     (json_int_t)p->other_bytes, "total_bytes", (json_int_t)p->total_bytes, "limit_bytes",
                     (json_int_t)p->limit_bytes);
}

static json_t *engine_json(const splash_stats *t) {
    double accepted = t->draft_tokens_total ? (double)t->draft_accepted_total / (double)t->draft_tokens_total : 0;
    return json_pack("{s:f,s:f,s:f,s:I,s:I,s:I,s:I,s:I}", "decode_tokens_per_second", t->last_decode_tokens_per_second,
                     "prefill_tokens_per_second", t->last_prefill_tokens_per_second, "draft_acceptance_ratio", accepted,
                     "drafted_tokens_total", (json_int_t)t->draft_tokens_total, "accepted_draft_tokens_total",
                     (json_int_t)t->draft_accepted_total, "prompt_tokens_total", (json_int_t)t->prompt_tokens_total,
                     "cached_tokens_total", (json_int_t)t->cached_tokens_total, "generated_tokens_total",
                     (json_int_t)t->generated_tokens_total);
}

void spl_route_status(spl_exchange *x) {
    spl_server *s = x->server;
    spl_counts c = read_counts(s);
    splash_stats t = {0};
    splash_stats_get(s->engine, &t);
    json_t *j = json_pack("{s:i,s:b,s:s,s:I,s:b,s:[s]}", "schema_version", 1, "ready", (int)is_ready(x),
                          "memory_pressure", "normal", "maximum_context_tokens", (json_int_t)s->info.context_tokens,
                          "vision", 0, "input_modalities", "text");
    (void)json_object_set_new(j, "model",
                              json_pack("{s:s,s:s,s:s,s:I,s:I,s:b}", "name", s->info.name, "geometry", s->info.geometry,
                                        "cpu_tier", s->info.cpu_tier, "threads", (json_int_t)s->info.n_threads,
                                        "vocabulary", (json_int_t)s->info.vocab, "draft", (int)s->info.has_draft));
    (void)json_object_set_new(j, "instance", instance_json(s));
    (void)json_object_set_new(j, "http", http_json(s, &c));
    (void)json_object_set_new(j, "frontend",
                              json_pack("{s:i,s:I,s:I}", "preparation_capacity", (int)SPL_N_PREPARERS, "active",
                                        (json_int_t)c.preparing, "waiting", (json_int_t)c.queued));
    (void)json_object_set_new(j, "requests",
                              json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "running", (json_int_t)t.running, "waiting",
                                        (json_int_t)t.waiting, "submitted", (json_int_t)t.requests_total, "failed",
                                        (json_int_t)t.requests_failed, "cancelled", (json_int_t)t.requests_cancelled,
                                        "rejected", (json_int_t)c.rejected));
    (void)json_object_set_new(
        j, "kv",
        json_pack("{s:I,s:I}", "pages_used", (json_int_t)t.kv_pages_used, "pages_total", (json_int_t)t.kv_pages_total));
    (void)json_object_set_new(j, "memory_plan", memory_json(&s->info.plan));
    (void)json_object_set_new(j, "metrics", engine_json(&t));
    (void)json_object_set_new(j, "chat_template", json_pack("{s:s}", "later_system", "native"));
    spl_exchange_reply_json(x, 200, j);
}

void spl_route_metrics(spl_exchange *x) {
    spl_server *s = x->server;
    spl_counts c = read_counts(s);
    splash_stats stats = {0};
    spl_buf text;
    splash_stats_get(s->engine, &stats);
    spl_server_gauges gauges = {is_ready(x), c.generations, c.preparing, c.queued, c.rejected, s->info.context_tokens};
    spl_buf_init(&text, (size_t)1 << 20);
    spl_metrics_write(&s->metrics, &stats, &s->info, &gauges, &text);
    spl_exchange_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", text.data, text.n_bytes);
    spl_buf_free(&text);
}
