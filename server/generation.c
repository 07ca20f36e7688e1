/* SPDX-License-Identifier: Apache-2.0
 * Engine events to dialect calls. Exactly one terminal action (end, reply, fail or a rejection) per generation. */
#include "server/generation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

static const uint64_t KEEP_ALIVE_NS = 2000000000u;

void spl_reject_from_engine(spl_reject *r, const splash_error *error) {
    unsigned status = 500;
    const char *code = "internal_server_error";
    switch (error->code) {
    case SPLASH_E_CONTEXT: status = 400, code = "context_length_exceeded"; break;
    case SPLASH_E_INVALID:
    case SPLASH_E_FORMAT:
    case SPLASH_E_UNSUPPORTED: status = 400, code = SPL_CODE_INVALID; break;
    case SPLASH_E_LIMIT: status = 400, code = "capacity_exhausted"; break;
    case SPLASH_E_BUSY: status = 503, code = "frontend_overloaded"; break;
    case SPLASH_E_NOMEM: status = 503, code = "resource_timeout"; break;
    case SPLASH_E_CANCELLED: status = 503, code = "server_shutdown"; break;
    case SPLASH_E_TIMEOUT: status = 504, code = "request_timeout"; break;
    default: break;
    }
    (void)spl_reject_set(r, status, code, "%s", error->text[0] ? error->text : "the engine failed");
}

void spl_generation_free(spl_generation *g) {
    if (!g) return;
    spl_buf_free(&g->content);
    spl_buf_free(&g->reasoning);
    json_decref(g->calls);
    json_decref(g->content_logprobs);
    json_decref(g->reasoning_logprobs);
    free(g->dialect_state);
    free(g);
}

/* ---- submission ---------------------------------------------------------------------------- */

static spl_generation *create(const spl_generation_start *s) {
    spl_generation *g = calloc(1, sizeof *g);
    if (!g) {
        free(s->dialect_state);
        return NULL;
    }
    g->ops = s->ops;
    g->label = s->label;
    g->stream = s->fields->stream;
    g->include_usage = s->fields->include_usage;
    g->return_progress = s->fields->return_progress;
    g->logprobs = s->fields->logprobs;
    g->n_top_logprobs = s->fields->n_top_logprobs;
    g->parallel_calls = s->parallel_calls;
    g->budget_clamped = s->budget_clamped;
    g->n_prompt = (uint32_t)s->n_tokens;
    g->created = (int64_t)time(NULL);
    g->dialect_state = s->dialect_state;
    spl_buf_init(&g->content, SIZE_MAX / 2);
    spl_buf_init(&g->reasoning, SIZE_MAX / 2);
    g->calls = json_array();
    g->content_logprobs = json_array();
    g->reasoning_logprobs = json_array();
    if (!g->calls || !g->content_logprobs || !g->reasoning_logprobs) {
        spl_generation_free(g);
        return NULL;
    }
    return g;
}

/* Milliseconds left of the smaller of the request's and the server's time limit; 0: none. false: already over. */
static bool deadline_left(const spl_exchange *x, double asked_s, uint64_t now_ns, uint64_t *left_ms) {
    double limit = x->server->options.request_timeout_s;
    *left_ms = 0;
    if (asked_s > 0 && (limit <= 0 || asked_s < limit)) limit = asked_s;
    if (limit <= 0) return true;
    double left = limit - (double)(now_ns - x->arrival_ns) * 1e-9;
    if (left <= 0) return false;
    *left_ms = left > 1e12 ? 0 : (uint64_t)(left * 1e3) + 1;
    return true;
}

bool spl_generation_submit(spl_exchange *x, const spl_generation_start *s, spl_reject *r) {
    splash_error error = {0};
    splash_request *request;
    uint64_t left_ms, now = spl_now_ns();
    spl_generation *g = create(s);
    if (!g) return spl_reject_set(r, 503, "frontend_overloaded", "not enough memory for the request");
    if (!deadline_left(x, s->fields->timeout_s, now, &left_ms)) {
        spl_generation_free(g);
        return spl_reject_set(r, 504, "request_timeout", "the request's time was over before it could start");
    }
    splash_prompt prompt = {.tokens = s->tokens,
                            .n_tokens = s->n_tokens,
                            .max_new_tokens = s->max_new_tokens,
                            .sampling = s->fields->sampling,
                            .stop = s->fields->stop,
                            .n_stop = s->fields->n_stop,
                            .ignore_eos = s->fields->ignore_eos,
                            .logprobs = s->fields->logprobs,
                            .n_top_logprobs = s->fields->n_top_logprobs,
                            .chat = s->chat,
                            .starts_in_reasoning = s->starts_in_reasoning,
                            .tools_json = s->tools_json,
                            .deadline_ms = left_ms,
                            .logit_bias = s->fields->bias,
                            .n_logit_bias = s->fields->n_bias,
                            .user = x};
    if (!s->fields->seed_given) prompt.sampling.seed = spl_random_u64();
    g->submit_ns = now;
    x->generation = g;
    spl_exchange_ref(x); /* the engine's, until the last event */
    if (splash_submit(x->server->engine, &prompt, &request, &error) != SPLASH_OK) {
        x->generation = NULL;
        spl_generation_free(g);
        spl_exchange_unref(x);
        spl_reject_from_engine(r, &error);
        return false;
    }
    /* The last event may have come already; then the pointer is dead and engine_done says so. */
    (void)pthread_mutex_lock(&x->lock);
    x->request = request;
    (void)pthread_mutex_unlock(&x->lock);
    return true;
}

/* ---- log probabilities --------------------------------------------------------------------- */

static json_t *bytes_json(const char *bytes, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) (void)json_array_append_new(list, json_integer((unsigned char)bytes[i]));
    return list;
}

/* {"token": text with invalid bytes replaced, "logprob", "bytes"}; a token without text has empty ones. */
static json_t *logprob_json(const spl_exchange *x, uint32_t token, float logprob) {
    size_t n = 0;
    const char *bytes = splash_token_bytes(x->server->engine, token, &n);
    if (!bytes) n = 0;
    json_t *text = json_stringn(bytes ? bytes : "", n);
    if (!text) { /* part of a character */
        char ascii[256];
        size_t w = 0;
        for (size_t i = 0; i < n && w + 4 < sizeof ascii; i++) {
            if ((unsigned char)bytes[i] < 0x80) {
                ascii[w++] = bytes[i];
            } else {
                memcpy(ascii + w, "\xef\xbf\xbd", 3);
                w += 3;
            }
        }
        text = json_stringn(ascii, w);
    }
    double value = isfinite(logprob) ? (double)logprob : -9999.0;
    return json_pack("{s:o,s:f,s:o}", "token", text, "logprob", value, "bytes", bytes_json(bytes, n));
}

static void add_logprob(spl_exchange *x, spl_generation *g, const splash_event *ev) {
    json_t *entry = logprob_json(x, ev->token, ev->logprob), *top = json_array();
    for (uint32_t i = 0; i < ev->n_top; i++)
        (void)json_array_append_new(top, logprob_json(x, ev->top[i].token, ev->top[i].logprob));
    (void)json_object_set_new(entry, "top_logprobs", top);
    (void)json_array_append_new(ev->token_channel == SPLASH_REASONING ? g->reasoning_logprobs : g->content_logprobs,
                                entry);
}

json_t *spl_generation_take_logprobs(spl_generation *g, splash_channel channel) {
    json_t **list = channel == SPLASH_REASONING ? &g->reasoning_logprobs : &g->content_logprobs;
    if (!g->logprobs || json_array_size(*list) == 0) return NULL;
    json_t *fresh = json_array(), *taken = *list;
    if (!fresh) return NULL;
    *list = fresh;
    return taken;
}

/* ---- events -------------------------------------------------------------------------------- */

/* Ends the generation with an error: a status when nothing was sent yet, an event of the stream otherwise. */
static void fail(spl_exchange *x, spl_generation *g, const spl_reject *why) {
    if (g->finished) return;
    g->finished = true;
    (void)pthread_mutex_lock(&x->lock);
    bool headers_sent = x->ready;
    (void)pthread_mutex_unlock(&x->lock);
    if (!headers_sent) {
        spl_exchange_reject(x, why);
        return;
    }
    spl_server_count_rejected(x->server, x, why);
    g->ops->fail(x, why);
    spl_exchange_stream_end(x);
}

static void log_done(const spl_exchange *x, const spl_generation *g) {
    static const char *const reasons[] = {"stop", "length", "tool_calls", "cancelled"};
    const splash_usage *u = &g->usage;
    double decode_s = u->decode_ms * 1e-3;
    spl_server_log(x->server, "%s · %s · prompt %u (%u cached) · new %u · first token %.2f s · %.1f tok/s · %s",
                   g->label, reasons[g->finish], u->prompt_tokens, u->cached_tokens, u->completion_tokens,
                   u->ttft_ms * 1e-3, decode_s > 0 ? u->completion_tokens / decode_s : 0.0, x->request_id);
}

/* A draft that is never right costs time and helps nobody; said once. */
static void warn_useless_draft(spl_server *server) {
    enum { ENOUGH_PROPOSALS = 200 };
    splash_stats t;
    splash_stats_get(server->engine, &t);
    if (t.draft_tokens_total < ENOUGH_PROPOSALS || t.draft_accepted_total > 0) return;
    if (atomic_exchange(&server->warned_draft, true)) return;
    spl_server_log(server,
                   "warning: none of %llu draft proposals was accepted; was the draft made for this model? "
                   "--no-draft leaves it out",
                   (unsigned long long)t.draft_tokens_total);
}

static void finish(spl_exchange *x, spl_generation *g, const splash_event *ev) {
    spl_reject why;
    g->usage = ev->usage;
    g->finish = ev->finish;
    g->stop_string = ev->stop_string;
    g->done_ns = spl_now_ns();
    if (g->finish == SPLASH_FINISH_CANCELLED && g->cut_after_call) g->finish = SPLASH_FINISH_TOOL_CALLS;
    log_done(x, g);
    warn_useless_draft(x->server);
    if (g->finished) return;
    if (g->finish == SPLASH_FINISH_CANCELLED) {
        if (spl_exchange_is_gone(x)) {
            g->finished = true;
            return;
        }
        (void)spl_reject_set(&why, 503, "server_shutdown",
                             "the request was cancelled because the server is shutting down");
        fail(x, g, &why);
        return;
    }
    g->finished = true;
    if (g->stream) {
        g->ops->end(x);
        spl_exchange_stream_end(x);
    } else {
        x->cached_tokens = g->usage.cached_tokens;
        g->ops->reply(x);
    }
    g->stop_string = NULL;
}

static void on_started(spl_exchange *x, spl_generation *g) {
    if (g->started) return;
    g->started = true;
    g->start_ns = spl_now_ns();
    spl_metrics_observe(&x->server->metrics, SPL_STAGE_NATIVE_QUEUE, g->start_ns - g->submit_ns);
    if (g->stream) {
        spl_exchange_stream_begin(x);
        g->ops->begin(x);
    }
}

static void on_token(spl_exchange *x, spl_generation *g, const splash_event *ev) {
    uint64_t now = spl_now_ns();
    if (g->first_ns == 0) {
        g->first_ns = now;
        spl_metrics_observe(&x->server->metrics, SPL_STAGE_HTTP_TTFT, now - x->arrival_ns);
    } else {
        spl_metrics_observe(&x->server->metrics, SPL_STAGE_OUTPUT_INTERVAL, now - g->last_ns);
    }
    g->last_ns = now;
    g->n_tokens++;
    if (g->logprobs && !g->cut_after_call) add_logprob(x, g, ev);
}

static void on_text(spl_exchange *x, spl_generation *g, const splash_event *ev) {
    if (g->finished || g->cut_after_call) return;
    if (g->stream)
        g->ops->text(x, ev->channel, ev->text, ev->n_text_bytes);
    else
        (void)spl_buf_append(ev->channel == SPLASH_REASONING ? &g->reasoning : &g->content, ev->text, ev->n_text_bytes);
}

static void on_tool_call(spl_exchange *x, spl_generation *g, const splash_event *ev) {
    if (g->finished || g->cut_after_call) return;
    if (g->stream)
        g->ops->tool_call(x, g->n_calls, ev->text, ev->arguments);
    else
        (void)json_array_append_new(g->calls, json_pack("{s:s,s:s}", "name", ev->text, "arguments", ev->arguments));
    g->n_calls++;
    if (g->parallel_calls) return;
    g->cut_after_call = true; /* one call was asked for: the rest is not wanted */
    (void)pthread_mutex_lock(&x->lock);
    x->cancel_wanted = true;
    (void)pthread_mutex_unlock(&x->lock);
}

static void on_last(spl_exchange *x, spl_generation *g, const splash_event *ev) {
    (void)pthread_mutex_lock(&x->lock);
    x->engine_done = true;
    x->request = NULL;
    (void)pthread_mutex_unlock(&x->lock);
    if (ev->kind == SPLASH_EVENT_DONE) {
        if (ev->finish != SPLASH_FINISH_CANCELLED) on_started(x, g);
        finish(x, g, ev);
    } else {
        spl_reject why;
        g->usage = ev->usage;
        spl_reject_from_engine(&why, &ev->error);
        fail(x, g, &why);
    }
    spl_exchange_unref(x); /* the engine's reference */
}

void spl_generation_event(const splash_event *ev) {
    spl_exchange *x = ev->user;
    if (!x || ev->kind == SPLASH_EVENT_NONE) return;
    spl_generation *g = x->generation;
    switch (ev->kind) {
    case SPLASH_EVENT_STARTED: on_started(x, g); break;
    case SPLASH_EVENT_PREFILL:
        on_started(x, g);
        if (g->stream && g->return_progress && !g->finished) g->ops->progress(x, ev->n_done, ev->n_total);
        break;
    case SPLASH_EVENT_TOKEN:
        on_started(x, g);
        on_token(x, g, ev);
        break;
    case SPLASH_EVENT_TEXT:
        on_started(x, g);
        on_text(x, g, ev);
        break;
    case SPLASH_EVENT_TOOL_CALL:
        on_started(x, g);
        on_tool_call(x, g, ev);
        break;
    case SPLASH_EVENT_DONE:
    case SPLASH_EVENT_FAILED: on_last(x, g, ev); break;
    case SPLASH_EVENT_NONE: break;
    }
}

void spl_generation_keep_alive(spl_exchange *x, uint64_t now_ns) {
    spl_generation *g = x->generation;
    if (!g->stream || g->finished) return;
    (void)pthread_mutex_lock(&x->lock);
    uint64_t since = x->wire_ns ? x->wire_ns : x->arrival_ns;
    bool due = x->out.n_bytes == 0 && !x->ended && !x->gone && now_ns - since >= KEEP_ALIVE_NS;
    if (due) x->wire_ns = now_ns;
    (void)pthread_mutex_unlock(&x->lock);
    if (!due) return;
    spl_exchange_stream_begin(x); /* the headers too, if nothing was sent yet */
    g->ops->keep_alive(x, g->started);
}
