/* SPDX-License-Identifier: Apache-2.0
 * Requests and events. The engine thread calls the sink below for every token; here tokens become text, stop
 * strings end the request at once, the reply is split into channels, and events are queued for the reader.
 * A request object lives from submit until its last event has been returned and left behind. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/api_internal.h"
#include "base/clock.h"
#include "base/json.h"
#include "text/detokenizer.h"
#include "text/reply_parser.h"
#include "text/stop_text.h"

enum {
    MAX_STOP_STRINGS = 16,
    MAX_STOP_BYTES = 256,
    MAX_PIECE_BYTES = 64 << 20, /* text one token can release */
    MAX_TOOLS_BYTES = 16 << 20,
    N_MARKUP = 4
};

struct splash_request {
    splash_engine *engine;
    splash_request *next_live;
    spl_request *inner; /* the engine's while it runs, ours again afterwards */
    void *user;
    spl_detokenizer detokenizer;
    spl_stop_set *stops;
    spl_stop_state stop_state;
    char **stop_strings; /* copies, to name the one that matched */
    size_t n_stop_strings;
    int matched_stop;        /* index or -1 */
    spl_reply_parser *reply; /* NULL: all text is content */
    json_t *tools;
    uint32_t markup[N_MARKUP]; /* ids of the reply's own tags, hidden from special-token skipping */
    uint32_t n_markup;
    spl_buf decoded, released;
    char *call_name;
    spl_buf call_arguments;
    uint32_t n_reasoning_tokens;
    spl_error failure;         /* code SPL_OK: none */
    spl_api_event *last_event; /* made at submission, so that the end always arrives */
};

/* ---- the queue ------------------------------------------------------------------------------ */

void spl_api_post(splash_engine *e, spl_api_event *ev) {
    (void)pthread_mutex_lock(&e->lock);
    ev->next = NULL;
    if (e->last) {
        e->last->next = ev;
    } else {
        e->first = ev;
    }
    e->last = ev;
    (void)pthread_cond_signal(&e->arrived);
    (void)pthread_mutex_unlock(&e->lock);
}

static spl_status link_live(splash_engine *e, splash_request *r, spl_error *err) {
    (void)pthread_mutex_lock(&e->lock);
    bool closing = e->closing;
    if (!closing) {
        r->next_live = e->live;
        e->live = r;
    }
    (void)pthread_mutex_unlock(&e->lock);
    return closing ? spl_fail(err, SPL_E_CANCELLED, "the engine is shutting down") : SPL_OK;
}

static void unlink_live(splash_engine *e, splash_request *r) {
    (void)pthread_mutex_lock(&e->lock);
    splash_request **at = &e->live;
    while (*at && *at != r) at = &(*at)->next_live;
    if (*at) *at = r->next_live;
    (void)pthread_mutex_unlock(&e->lock);
}

static bool is_last(const spl_api_event *ev) {
    return ev->event.kind == SPLASH_EVENT_DONE || ev->event.kind == SPLASH_EVENT_FAILED;
}

void spl_api_event_free(splash_engine *e, spl_api_event *ev) {
    if (!ev) return;
    if (is_last(ev)) {
        unlink_live(e, ev->event.request);
        spl_api_request_free(ev->event.request);
    }
    free(ev->text);
    free(ev->arguments);
    free(ev);
}

static spl_api_event *new_event(splash_request *r, splash_event_kind kind) {
    spl_api_event *ev = calloc(1, sizeof *ev);
    if (!ev) {
        if (r->failure.code == SPL_OK) (void)spl_fail(&r->failure, SPL_E_NOMEM, "no memory for an event");
        return NULL;
    }
    ev->event.kind = kind;
    ev->event.request = r;
    ev->event.user = r->user;
    return ev;
}

static struct timespec after_ms(int64_t timeout_ms) {
    struct timespec at;
    (void)clock_gettime(CLOCK_REALTIME, &at);
    at.tv_sec += (time_t)(timeout_ms / 1000);
    at.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

splash_status splash_next_event(splash_engine *e, splash_event *ev, int64_t timeout_ms) {
    memset(ev, 0, sizeof *ev);
    struct timespec until = after_ms(timeout_ms < 0 ? 0 : timeout_ms);
    spl_api_event_free(e, e->returned);
    e->returned = NULL;
    (void)pthread_mutex_lock(&e->lock);
    while (!e->first && !(e->closing && !e->live)) {
        if (timeout_ms < 0) {
            (void)pthread_cond_wait(&e->arrived, &e->lock);
        } else if (pthread_cond_timedwait(&e->arrived, &e->lock, &until) == ETIMEDOUT) {
            break;
        }
    }
    spl_api_event *node = e->first;
    bool over = !node && e->closing && !e->live;
    if (node) {
        e->first = node->next;
        if (!e->first) e->last = NULL;
        e->returned = node;
        *ev = node->event;
    }
    (void)pthread_mutex_unlock(&e->lock);
    return over ? SPLASH_E_CANCELLED : SPLASH_OK;
}

/* ---- text of one request -------------------------------------------------------------------- */

static char *copy_text(const char *text, size_t n_bytes) {
    char *copy = malloc(n_bytes + 1);
    if (!copy) return NULL;
    if (n_bytes) memcpy(copy, text, n_bytes);
    copy[n_bytes] = '\0';
    return copy;
}

static void fail_request(splash_request *r, spl_status st, const char *what) {
    if (r->failure.code == SPL_OK) (void)spl_fail(&r->failure, st, "%s: %s", what, spl_status_text(st));
}

static void post_text(splash_request *r, splash_channel channel, const char *text, size_t n_bytes) {
    if (n_bytes == 0) return;
    spl_api_event *ev = new_event(r, SPLASH_EVENT_TEXT);
    if (!ev) return;
    ev->text = copy_text(text, n_bytes);
    if (!ev->text) {
        free(ev);
        fail_request(r, SPL_E_NOMEM, "text event");
        return;
    }
    ev->event.channel = channel;
    ev->event.text = ev->text;
    ev->event.n_text_bytes = n_bytes;
    spl_api_post(r->engine, ev);
}

static void post_call(splash_request *r) {
    spl_api_event *ev = new_event(r, SPLASH_EVENT_TOOL_CALL);
    if (!ev) return;
    ev->text = r->call_name;
    ev->arguments = copy_text(r->call_arguments.data, r->call_arguments.n_bytes);
    r->call_name = NULL;
    if (!ev->text || !ev->arguments || r->call_arguments.status != SPL_OK) {
        free(ev->text);
        free(ev->arguments);
        free(ev);
        fail_request(r, SPL_E_NOMEM, "tool call");
        return;
    }
    ev->event.text = ev->text;
    ev->event.n_text_bytes = strlen(ev->text);
    ev->event.arguments = ev->arguments;
    spl_api_post(r->engine, ev);
}

static spl_status receive_delta(void *context, const spl_reply_delta *delta) {
    splash_request *r = context;
    switch (delta->kind) {
    case SPL_REPLY_REASONING: post_text(r, SPLASH_REASONING, delta->text, delta->n_bytes); break;
    case SPL_REPLY_CONTENT: post_text(r, SPLASH_CONTENT, delta->text, delta->n_bytes); break;
    case SPL_REPLY_CALL:
        free(r->call_name);
        r->call_name = copy_text(delta->text, delta->n_bytes);
        spl_buf_reset(&r->call_arguments);
        break;
    case SPL_REPLY_ARGUMENTS: (void)spl_buf_append(&r->call_arguments, delta->text, delta->n_bytes); break;
    case SPL_REPLY_CALL_END: post_call(r); break;
    }
    return r->failure.code;
}

/* Released text to the reader, by way of the reply parser in a chat. */
static void deliver(splash_request *r) {
    if (r->released.status != SPL_OK) {
        fail_request(r, r->released.status, "released text");
    } else if (!r->reply) {
        post_text(r, SPLASH_CONTENT, r->released.data, r->released.n_bytes);
    } else if (r->released.n_bytes > 0) {
        spl_status st = spl_reply_feed(r->reply, r->released.data, r->released.n_bytes);
        if (st != SPL_OK) fail_request(r, st, "the reply");
    }
    spl_buf_reset(&r->released);
}

/* Runs decoded text through the stop scanner; true when a stop string was completed. */
static bool scan(splash_request *r) {
    size_t used = 0;
    if (r->decoded.status != SPL_OK) fail_request(r, r->decoded.status, "decoded text");
    r->matched_stop = spl_stop_feed(r->stops, &r->stop_state, r->decoded.data, r->decoded.n_bytes, &r->released, &used);
    spl_buf_reset(&r->decoded);
    deliver(r);
    return r->matched_stop >= 0;
}

static bool is_markup(const splash_request *r, uint32_t token) {
    for (uint32_t i = 0; i < r->n_markup; i++) {
        if (r->markup[i] == token) return true;
    }
    return false;
}

static void decode(splash_request *r, uint32_t token) {
    if (!r->engine->tokenizer) return;
    if (is_markup(r, token)) {
        size_t n_bytes;
        const char *text = spl_tokenizer_bytes(r->engine->tokenizer, token, &n_bytes, NULL);
        (void)spl_detokenizer_flush(&r->detokenizer, &r->decoded);
        (void)spl_buf_append(&r->decoded, text, n_bytes);
        return;
    }
    (void)spl_detokenizer_push(&r->detokenizer, token, &r->decoded);
}

/* ---- the sink: called by the engine thread --------------------------------------------------- */

static void on_started(void *user) {
    splash_request *r = user;
    spl_api_event *ev = new_event(r, SPLASH_EVENT_STARTED);
    if (ev) spl_api_post(r->engine, ev);
}

static void on_prefill(void *user, uint32_t done, uint32_t total) {
    splash_request *r = user;
    spl_api_event *ev = new_event(r, SPLASH_EVENT_PREFILL);
    if (!ev) return;
    ev->event.n_done = done;
    ev->event.n_total = total;
    spl_api_post(r->engine, ev);
}

static void post_token(splash_request *r, uint32_t token, const spl_logprobs *logprobs, splash_channel channel) {
    spl_api_event *ev = new_event(r, SPLASH_EVENT_TOKEN);
    if (!ev) return;
    ev->event.token = token;
    ev->event.token_channel = channel;
    if (logprobs) {
        ev->event.logprob = logprobs->chosen.logprob;
        ev->event.n_top = logprobs->n_top;
        ev->event.top = ev->top;
        for (uint32_t i = 0; i < logprobs->n_top; i++)
            ev->top[i] = (splash_logprob){logprobs->top[i].token, logprobs->top[i].logprob};
    }
    spl_api_post(r->engine, ev);
}

static bool on_token(void *user, uint32_t token, const spl_logprobs *logprobs) {
    splash_request *r = user;
    bool reasoning = r->reply && spl_reply_in_reasoning(r->reply);
    r->n_reasoning_tokens += reasoning;
    post_token(r, token, logprobs, reasoning ? SPLASH_REASONING : SPLASH_CONTENT);
    decode(r, token);
    return scan(r) || r->failure.code != SPL_OK;
}

static void export_usage(splash_usage *out, const spl_usage *u, uint32_t n_reasoning) {
    *out = (splash_usage){.prompt_tokens = u->prompt_tokens,
                          .cached_tokens = u->cached_tokens,
                          .completion_tokens = u->completion_tokens,
                          .reasoning_tokens = n_reasoning,
                          .draft_tokens = u->draft_tokens,
                          .draft_accepted = u->draft_accepted,
                          .decode_steps = u->decode_steps,
                          .queue_ms = (double)u->queue_ns * 1e-6,
                          .prefill_ms = (double)u->prefill_ns * 1e-6,
                          .decode_ms = (double)u->decode_ns * 1e-6,
                          .ttft_ms = (double)u->first_token_ns * 1e-6};
}

/* Ends the text: what the detokenizer, the stop scanner and the parser still hold. */
static void flush_text(splash_request *r, bool cut) {
    if (r->matched_stop < 0) {
        (void)spl_detokenizer_flush(&r->detokenizer, &r->decoded);
        if (!scan(r)) {
            (void)spl_stop_flush(r->stops, &r->stop_state, &r->released);
            deliver(r);
        }
    }
    if (r->reply) {
        spl_status st = spl_reply_finish(r->reply, cut);
        if (st != SPL_OK) fail_request(r, st, "the reply");
    }
}

static void on_finished(void *user, spl_finish finish, const spl_usage *usage, const spl_error *error) {
    splash_request *r = user;
    if (r->engine->tokenizer) flush_text(r, finish != SPL_FINISH_STOP);
    spl_api_event *ev = r->last_event;
    r->last_event = NULL;
    if (error) r->failure = *error;
    ev->event.kind = r->failure.code != SPL_OK ? SPLASH_EVENT_FAILED : SPLASH_EVENT_DONE;
    ev->event.request = r;
    ev->event.user = r->user;
    export_usage(&ev->event.usage, usage, r->n_reasoning_tokens);
    (void)spl_api_error(&ev->event.error, &r->failure);
    if (finish == SPL_FINISH_CANCELLED) {
        ev->event.finish = SPLASH_FINISH_CANCELLED;
    } else if (r->reply && spl_reply_n_calls(r->reply) > 0 && finish == SPL_FINISH_STOP) {
        ev->event.finish = SPLASH_FINISH_TOOL_CALLS;
    } else {
        ev->event.finish = finish == SPL_FINISH_STOP ? SPLASH_FINISH_STOP : SPLASH_FINISH_LENGTH;
    }
    if (r->matched_stop >= 0) ev->event.stop_string = r->stop_strings[r->matched_stop];
    spl_api_post(r->engine, ev);
}

/* ---- submitting ----------------------------------------------------------------------------- */

void spl_api_request_free(splash_request *r) {
    if (!r) return;
    spl_request_free(r->inner);
    spl_stop_set_free(r->stops);
    for (size_t i = 0; i < r->n_stop_strings; i++) free(r->stop_strings[i]);
    free(r->stop_strings);
    spl_reply_free(r->reply);
    json_decref(r->tools);
    spl_buf_free(&r->decoded);
    spl_buf_free(&r->released);
    spl_buf_free(&r->call_arguments);
    free(r->call_name);
    free(r->last_event);
    free(r);
}

static void *copy_array(const void *from, size_t n, size_t size) {
    void *copy = calloc(n ? n : 1, size);
    if (copy && n) memcpy(copy, from, n * size);
    return copy;
}

static spl_status fill_inner(splash_request *r, const splash_prompt *p, spl_error *err) {
    spl_request *inner = r->inner;
    if (p->n_tokens > UINT32_MAX)
        return spl_fail(err, SPL_E_CONTEXT, "the prompt has %zu tokens; the limit is %u", p->n_tokens, UINT32_MAX);
    if (p->n_logit_bias > 1u << 20)
        return spl_fail(err, SPL_E_LIMIT, "logit_bias has %zu entries; the limit is %u", p->n_logit_bias, 1u << 20);
    inner->tokens = copy_array(p->tokens, p->n_tokens, sizeof *p->tokens);
    inner->bias = calloc(p->n_logit_bias ? p->n_logit_bias : 1, sizeof *inner->bias);
    if (!inner->tokens || !inner->bias)
        return spl_fail(err, SPL_E_NOMEM, "no memory for a prompt of %zu tokens", p->n_tokens);
    inner->n_tokens = (uint32_t)p->n_tokens;
    inner->n_bias = (uint32_t)p->n_logit_bias;
    for (size_t i = 0; i < p->n_logit_bias; i++)
        inner->bias[i] = (spl_bias){p->logit_bias[i].token, p->logit_bias[i].bias};
    inner->max_new_tokens = p->max_new_tokens;
    inner->sampling = (spl_sampling){.temperature = p->sampling.temperature,
                                     .top_k = p->sampling.top_k,
                                     .top_p = p->sampling.top_p,
                                     .min_p = p->sampling.min_p,
                                     .presence_penalty = p->sampling.presence_penalty,
                                     .frequency_penalty = p->sampling.frequency_penalty,
                                     .repetition_penalty = p->sampling.repetition_penalty};
    inner->seed = p->sampling.seed;
    inner->ignore_eos = p->ignore_eos;
    inner->logprobs = p->logprobs;
    inner->n_top_logprobs = p->n_top_logprobs;
    inner->deadline_ns = p->deadline_ms ? spl_now_ns() + p->deadline_ms * 1000000u : 0;
    inner->sink = (spl_sink){r, on_started, on_prefill, on_token, on_finished};
    return SPL_OK;
}

static spl_status fill_stops(splash_request *r, const splash_prompt *p, spl_error *err) {
    if (p->n_stop > MAX_STOP_STRINGS)
        return spl_fail(err, SPL_E_INVALID, "stop has %zu strings; the limit is %d", p->n_stop, MAX_STOP_STRINGS);
    r->stop_strings = calloc(p->n_stop ? p->n_stop : 1, sizeof *r->stop_strings);
    if (!r->stop_strings) return spl_fail(err, SPL_E_NOMEM, "no memory for stop strings");
    for (size_t i = 0; i < p->n_stop; i++) {
        size_t n_bytes = strlen(p->stop[i]);
        if (n_bytes == 0 || n_bytes > MAX_STOP_BYTES)
            return spl_fail(err, SPL_E_INVALID, "stop string %zu has %zu bytes; allowed are 1 to %d", i, n_bytes,
                            MAX_STOP_BYTES);
        r->stop_strings[i] = copy_text(p->stop[i], n_bytes);
        r->n_stop_strings = i + 1;
        if (!r->stop_strings[i]) return spl_fail(err, SPL_E_NOMEM, "no memory for stop strings");
    }
    return spl_stop_set_new(&r->stops, p->stop, p->n_stop, err);
}

static spl_status fill_reply(splash_request *r, const splash_prompt *p, spl_error *err) {
    static const char *const tags[N_MARKUP] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    const splash_engine *e = r->engine;
    if (!p->chat || !e->tokenizer) return SPL_OK;
    for (int i = 0; i < N_MARKUP; i++) {
        if (spl_tokenizer_find(e->tokenizer, tags[i], &r->markup[r->n_markup])) r->n_markup++;
    }
    if (p->tools_json) {
        spl_status st = spl_json_parse(&r->tools, p->tools_json, strlen(p->tools_json), MAX_TOOLS_BYTES, "tools", err);
        if (st != SPL_OK) return st;
        if (!json_is_array(r->tools)) return spl_fail(err, SPL_E_INVALID, "tools must be an array");
    }
    spl_reply_options options = {
        .opens_thinking = p->starts_in_reasoning, .parse_calls = r->tools != NULL, .tools = r->tools};
    return spl_reply_new(&r->reply, &options, receive_delta, r, err);
}

static spl_status make_request(splash_request **out, splash_engine *e, const splash_prompt *p, spl_error *err) {
    splash_request *r = calloc(1, sizeof *r);
    *out = r;
    if (!r) return spl_fail(err, SPL_E_NOMEM, "no memory for a request");
    r->engine = e;
    r->user = p->user;
    r->matched_stop = -1;
    spl_buf_init(&r->decoded, MAX_PIECE_BYTES);
    spl_buf_init(&r->released, MAX_PIECE_BYTES);
    spl_buf_init(&r->call_arguments, MAX_PIECE_BYTES);
    r->inner = calloc(1, sizeof *r->inner);
    r->last_event = calloc(1, sizeof *r->last_event);
    if (!r->inner || !r->last_event) return spl_fail(err, SPL_E_NOMEM, "no memory for a request");
    if (e->tokenizer) spl_detokenizer_init(&r->detokenizer, e->tokenizer, !p->keep_special);
    spl_status st = fill_inner(r, p, err);
    if (st == SPL_OK) st = fill_stops(r, p, err);
    if (st == SPL_OK) st = fill_reply(r, p, err);
    return st;
}

splash_status splash_submit(splash_engine *e, const splash_prompt *prompt, splash_request **out, splash_error *err) {
    spl_error error = {0};
    splash_request *r;
    *out = NULL;
    spl_status st = make_request(&r, e, prompt, &error);
    if (st == SPL_OK) {
        /* Its events may reach the reader before this function returns. */
        *out = r;
        st = link_live(e, r, &error);
        if (st == SPL_OK && (st = spl_engine_submit(e->engine, r->inner, &error)) != SPL_OK) unlink_live(e, r);
    }
    if (st == SPL_OK) return SPLASH_OK;
    *out = NULL;
    spl_api_request_free(r);
    return spl_api_error(err, &error);
}

void splash_cancel(splash_engine *e, splash_request *r) {
    atomic_store(&r->inner->cancelled, true);
    spl_engine_nudge(e->engine);
}

void splash_shutdown(splash_engine *e) {
    (void)pthread_mutex_lock(&e->lock);
    e->closing = true;
    for (splash_request *r = e->live; r; r = r->next_live) atomic_store(&r->inner->cancelled, true);
    (void)pthread_cond_broadcast(&e->arrived);
    (void)pthread_mutex_unlock(&e->lock);
    if (e->engine) spl_engine_nudge(e->engine);
}

void splash_close(splash_engine **engine) {
    splash_engine *e = *engine;
    if (!e) return;
    *engine = NULL;
    splash_shutdown(e);
    spl_engine_destroy(e->engine);
    spl_api_event_free(e, e->returned);
    for (spl_api_event *ev = e->first, *next; ev; ev = next) {
        next = ev->next;
        spl_api_event_free(e, ev);
    }
    spl_tokenizer_close(e->tokenizer);
    spl_package_close(e->package);
    (void)pthread_cond_destroy(&e->arrived);
    (void)pthread_mutex_destroy(&e->lock);
    free(e);
}
