/* SPDX-License-Identifier: Apache-2.0
 * An engine without a model behind include/splash.h, for tests of the server and the command line: deterministic, fast,
 * and told by the prompt what to do. One token per byte; ids 256.. are special tokens.
 *
 * A prompt may hold one directive block "[[key=value key=value ...]]"; without one the reply is the text of the last
 * user message. Keys: prefill_ms, token_ms (delays); n=COUNT with word=TEXT (COUNT words instead of an echo);
 * think=TEXT (reasoning before the reply, when the prompt ends in an open think block); call=NAME:JSON (a tool
 * call after the text; JSON without spaces; repeatable); fail=CODE with fail_after=TOKENS; dump (the reply is the
 * request's parameters as JSON); cached=TOKENS. */
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "base/dynbuf.h"
#include "splash.h"

enum { VOCAB = 262, N_LANES = 2, MAX_CALLS = 4, FIRST_SPECIAL = 256 };

static const char *const SPECIAL[] = {"<|im_start|>", "<|im_end|>", "<tool_call>",
                                      "</think>",     "<think>",    "<|endoftext|>"};

typedef struct fake_event {
    struct fake_event *next;
    splash_event ev;
    char *text, *arguments;
    splash_logprob top[20];
} fake_event;

struct splash_request {
    splash_engine *engine;
    splash_request *next;
    pthread_t thread;
    splash_prompt prompt; /* scalars; pointers below */
    char *text;           /* the prompt as text */
    size_t n_text;
    char *stop[16];
    size_t n_bias;
    bool cancelled, joined;
    uint64_t submit_ns, start_ns, first_ns;
    uint32_t n_generated, n_reasoning;
    const char *stop_hit;
    bool tools;
};

struct splash_engine {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    fake_event *first, *last, *returned;
    splash_request *requests;
    splash_stats stats;
    uint32_t queue_limit, context;
    bool lock_weights, closing;
    char tuning_folder[512];
};

static splash_status fake_fail(splash_error *err, splash_status code, const char *text) {
    if (err) {
        err->code = code;
        (void)snprintf(err->text, sizeof err->text, "%s", text);
    }
    return code;
}

/* ---- engine -------------------------------------------------------------------------------- */

splash_status splash_plan(const splash_options *options, splash_memory_plan *out, splash_error *err) {
    (void)options, (void)err;
    *out = (splash_memory_plan){.weight_bytes = 1000,
                                .kv_bytes = 200,
                                .total_bytes = 1200,
                                .limit_bytes = 5000,
                                .kv_pages = 64,
                                .max_lanes = N_LANES};
    return SPLASH_OK;
}

splash_status splash_open(splash_engine **out, const splash_options *options, splash_error *err) {
    const char *delay = getenv("FAKE_OPEN_MS"); /* a slow load, to be interrupted */
    *out = NULL;
    if (options->model && strstr(options->model, "broken"))
        return fake_fail(err, SPLASH_E_CORRUPT, "the package is broken; verify it");
    for (long i = 0; delay && i < atol(delay); i += 10) {
        struct timespec ten = {0, 10000000};
        (void)nanosleep(&ten, NULL);
        if (options->progress && options->progress(options->progress_user, "weights", (uint64_t)i, 1000))
            return fake_fail(err, SPLASH_E_CANCELLED, "given up");
    }
    splash_engine *e = calloc(1, sizeof *e);
    if (!e) return fake_fail(err, SPLASH_E_NOMEM, "no memory");
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_cond_init(&e->changed, NULL);
    e->queue_limit = options->queue_limit ? options->queue_limit : 64;
    e->context = options->context_tokens ? options->context_tokens : 4096;
    e->lock_weights = options->lock_weights;
    (void)snprintf(e->tuning_folder, sizeof e->tuning_folder, "%s",
                   options->tuning_folder ? options->tuning_folder : "");
    if (options->debug) options->debug(options->debug_user, "opening");
    e->stats.kv_pages_total = 64;
    *out = e;
    return SPLASH_OK;
}

static void free_event(fake_event *e) {
    if (!e) return;
    free(e->text);
    free(e->arguments);
    free(e);
}

static void free_request(splash_request *r) {
    if (!r->joined) (void)pthread_join(r->thread, NULL);
    for (size_t i = 0; i < r->prompt.n_stop; i++) free(r->stop[i]);
    free((void *)(uintptr_t)r->prompt.logit_bias);
    free(r->text);
    free(r);
}

void splash_shutdown(splash_engine *e) {
    (void)pthread_mutex_lock(&e->lock);
    e->closing = true;
    for (splash_request *r = e->requests; r; r = r->next) r->cancelled = true;
    (void)pthread_cond_broadcast(&e->changed);
    (void)pthread_mutex_unlock(&e->lock);
}

void splash_close(splash_engine **engine) {
    splash_engine *e = *engine;
    if (!e) return;
    *engine = NULL;
    splash_shutdown(e);
    (void)pthread_mutex_lock(&e->lock);
    splash_request *list = e->requests;
    e->requests = NULL;
    (void)pthread_mutex_unlock(&e->lock);
    for (splash_request *next; list; list = next) {
        next = list->next;
        free_request(list);
    }
    free_event(e->returned);
    for (fake_event *next; e->first; e->first = next) {
        next = e->first->next;
        free_event(e->first);
    }
    (void)pthread_cond_destroy(&e->changed);
    (void)pthread_mutex_destroy(&e->lock);
    free(e);
}

void splash_model_info_get(const splash_engine *engine, splash_model_info *out) {
    *out =
        (splash_model_info){.name = "fake/model",
                            .geometry = "fake",
                            .cpu_tier = "none",
                            .chat_template = "",
                            .context_tokens = engine->context,
                            .vocab = VOCAB,
                            .n_threads = 1,
                            .has_tokenizer = true,
                            .defaults = {.temperature = 0.75f, .top_k = 20, .top_p = 0.9375f, .repetition_penalty = 1}};
    (void)splash_plan(NULL, &out->plan, NULL);
}

/* ---- text ---------------------------------------------------------------------------------- */

splash_status splash_tokenize(const splash_engine *engine, const char *text, size_t n_bytes, bool parse_special,
                              uint32_t **tokens, size_t *n_tokens, splash_error *err) {
    (void)engine;
    uint32_t *out = malloc((n_bytes + 1) * sizeof *out);
    size_t n = 0;
    if (!out) return fake_fail(err, SPLASH_E_NOMEM, "no memory");
    for (size_t i = 0; i < n_bytes;) {
        bool found = false;
        for (uint32_t k = 0; parse_special && text[i] == '<' && k < VOCAB - FIRST_SPECIAL; k++) {
            size_t len = strlen(SPECIAL[k]);
            if (n_bytes - i >= len && memcmp(text + i, SPECIAL[k], len) == 0) {
                out[n++] = FIRST_SPECIAL + k;
                i += len;
                found = true;
                break;
            }
        }
        if (!found) out[n++] = (unsigned char)text[i++];
    }
    *tokens = out;
    *n_tokens = n;
    return SPLASH_OK;
}

const char *splash_token_bytes(const splash_engine *engine, uint32_t token, size_t *n_bytes) {
    static char table[256][2];
    (void)engine;
    if (token >= VOCAB) return NULL;
    if (token >= FIRST_SPECIAL) {
        *n_bytes = strlen(SPECIAL[token - FIRST_SPECIAL]);
        return SPECIAL[token - FIRST_SPECIAL];
    }
    if (table[token][0] == 0) table[token][0] = (char)token;
    *n_bytes = 1;
    return table[token];
}

splash_status splash_detokenize(const splash_engine *engine, const uint32_t *tokens, size_t n_tokens, bool keep_special,
                                char **text, size_t *n_bytes, splash_error *err) {
    spl_buf out;
    spl_buf_init(&out, SIZE_MAX / 2);
    for (size_t i = 0; i < n_tokens; i++) {
        char byte = (char)tokens[i];
        size_t n;
        if (tokens[i] < FIRST_SPECIAL) {
            (void)spl_buf_append(&out, &byte, 1);
        } else if (keep_special) {
            const char *special = splash_token_bytes(engine, tokens[i], &n);
            if (special) (void)spl_buf_append(&out, special, n);
        }
    }
    (void)spl_buf_append(&out, "", 0);
    *text = spl_buf_take(&out, n_bytes);
    if (!*text) *text = calloc(1, 1);
    return *text ? SPLASH_OK : fake_fail(err, SPLASH_E_NOMEM, "no memory");
}

splash_status splash_render_chat(const splash_engine *engine, const char *request_json, size_t n_json_bytes,
                                 char **text, size_t *n_bytes, bool *thinking, splash_error *err) {
    json_error_t error;
    json_t *j = json_loadb(request_json, n_json_bytes, JSON_ALLOW_NUL, &error), *m;
    size_t i;
    spl_buf out;
    (void)engine;
    if (!j) return fake_fail(err, SPLASH_E_FORMAT, "render: not JSON");
    const char *effort = json_string_value(json_object_get(j, "reasoning_effort"));
    if (effort && strcmp(effort, "low") != 0 && strcmp(effort, "medium") != 0 && strcmp(effort, "xhigh") != 0) {
        json_decref(j);
        return fake_fail(err, SPLASH_E_INVALID, "render: unknown reasoning_effort");
    }
    bool think = json_is_true(json_object_get(j, "enable_thinking"));
    spl_buf_init(&out, SIZE_MAX / 2);
    json_t *tools = json_object_get(j, "tools");
    if (tools) {
        char *dump = json_dumps(tools, JSON_COMPACT);
        (void)spl_buf_printf(&out, "<|im_start|>tools\n%s<|im_end|>\n", dump);
        free(dump);
    }
    if (effort) (void)spl_buf_printf(&out, "effort:%s\n", effort);
    json_array_foreach(json_object_get(j, "messages"), i, m) {
        const json_t *content = json_object_get(m, "content");
        (void)spl_buf_printf(&out, "<|im_start|>%s\n", json_string_value(json_object_get(m, "role")));
        (void)spl_buf_append(&out, json_string_value(content), json_string_length(content));
        json_t *calls = json_object_get(m, "tool_calls"), *reasoning = json_object_get(m, "reasoning_content");
        if (reasoning) (void)spl_buf_printf(&out, "<reasoning %s>", json_string_value(reasoning));
        if (calls) {
            char *dump = json_dumps(calls, JSON_COMPACT);
            (void)spl_buf_printf(&out, "<calls %s>", dump);
            free(dump);
        }
        (void)spl_buf_puts(&out, "<|im_end|>\n");
    }
    if (!json_is_false(json_object_get(j, "add_generation_prompt"))) {
        (void)spl_buf_puts(&out, "<|im_start|>assistant\n");
        if (think) (void)spl_buf_puts(&out, "<think>\n");
    }
    json_decref(j);
    if (thinking) *thinking = think;
    *text = spl_buf_take(&out, n_bytes);
    return *text ? SPLASH_OK : fake_fail(err, SPLASH_E_NOMEM, "no memory");
}

/* ---- events -------------------------------------------------------------------------------- */

static fake_event *new_event(splash_request *r, splash_event_kind kind) {
    fake_event *e = calloc(1, sizeof *e);
    if (!e) abort();
    e->ev.kind = kind;
    e->ev.request = r;
    e->ev.user = r->prompt.user;
    return e;
}

static void post(splash_engine *engine, fake_event *e) {
    e->ev.text = e->text;
    e->ev.arguments = e->arguments;
    (void)pthread_mutex_lock(&engine->lock);
    if (engine->last)
        engine->last->next = e;
    else
        engine->first = e;
    engine->last = e;
    (void)pthread_cond_broadcast(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
}

static struct timespec in_ms(int64_t ms) {
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (time_t)(ms / 1000);
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

splash_status splash_next_event(splash_engine *engine, splash_event *ev, int64_t timeout_ms) {
    struct timespec until = in_ms(timeout_ms < 0 ? 1000000 : timeout_ms);
    splash_request *over = NULL;
    *ev = (splash_event){0};
    (void)pthread_mutex_lock(&engine->lock);
    if (engine->returned &&
        (engine->returned->ev.kind == SPLASH_EVENT_DONE || engine->returned->ev.kind == SPLASH_EVENT_FAILED)) {
        over = engine->returned->ev.request;
        splash_request **at = &engine->requests;
        while (*at && *at != over) at = &(*at)->next;
        if (*at) *at = over->next;
    }
    free_event(engine->returned);
    engine->returned = NULL;
    int rc = 0;
    while (!engine->first && !engine->closing && rc == 0)
        rc = pthread_cond_timedwait(&engine->changed, &engine->lock, &until);
    fake_event *e = engine->first;
    bool closing = engine->closing;
    if (e) {
        engine->first = e->next;
        if (!engine->first) engine->last = NULL;
        engine->returned = e;
        *ev = e->ev;
    }
    (void)pthread_mutex_unlock(&engine->lock);
    if (over) free_request(over);
    return !e && closing ? SPLASH_E_CANCELLED : SPLASH_OK;
}

/* ---- requests ------------------------------------------------------------------------------ */

typedef struct fake_script {
    long prefill_ms, token_ms, n, fail_after, cached;
    char word[8192], think[256], fail[32], calls[MAX_CALLS][512];
    int n_calls;
    bool dump;
} fake_script;

static void set_key(fake_script *s, const char *key, const char *value) {
    if (strcmp(key, "prefill_ms") == 0)
        s->prefill_ms = atol(value);
    else if (strcmp(key, "token_ms") == 0)
        s->token_ms = atol(value);
    else if (strcmp(key, "n") == 0)
        s->n = atol(value);
    else if (strcmp(key, "fail_after") == 0)
        s->fail_after = atol(value);
    else if (strcmp(key, "cached") == 0)
        s->cached = atol(value);
    else if (strcmp(key, "word") == 0)
        (void)snprintf(s->word, sizeof s->word, "%s", value);
    else if (strcmp(key, "pad") == 0)
        memset(s->word, 'x', (size_t)atol(value) % sizeof s->word);
    else if (strcmp(key, "think") == 0)
        (void)snprintf(s->think, sizeof s->think, "%s", value);
    else if (strcmp(key, "fail") == 0)
        (void)snprintf(s->fail, sizeof s->fail, "%s", value);
    else if (strcmp(key, "dump") == 0)
        s->dump = true;
    else if (strcmp(key, "call") == 0 && s->n_calls < MAX_CALLS)
        (void)snprintf(s->calls[s->n_calls++], sizeof s->calls[0], "%s", value);
}

static void read_script(const char *text, fake_script *s) {
    *s = (fake_script){.word = "word "};
    const char *from = NULL;
    for (const char *p = strstr(text, "[["); p; p = strstr(p + 2, "[[")) from = p;
    const char *to = from ? strstr(from, "]]") : NULL;
    if (!to) return;
    char *copy = strndup(from + 2, (size_t)(to - from - 2)), *save = NULL;
    for (char *item = strtok_r(copy, " ", &save); item; item = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(item, '=');
        if (equals) *equals = 0;
        set_key(s, item, equals ? equals + 1 : "");
    }
    free(copy);
}

static bool stopped(splash_request *r) {
    (void)pthread_mutex_lock(&r->engine->lock);
    bool yes = r->cancelled;
    (void)pthread_mutex_unlock(&r->engine->lock);
    return yes;
}

static bool too_late(const splash_request *r) {
    return r->prompt.deadline_ms && spl_now_ns() - r->submit_ns > r->prompt.deadline_ms * 1000000u;
}

/* Sleeps in small pieces; false when the request was cancelled or its time is over. */
static bool nap(splash_request *r, long ms) {
    uint64_t until = spl_now_ns() + (uint64_t)ms * 1000000u;
    do {
        if (stopped(r) || too_late(r)) return false;
        uint64_t now = spl_now_ns(), left = until > now ? until - now : 0;
        struct timespec t = {0, (long)(left < 5000000 ? left : 5000000)};
        if (left) (void)nanosleep(&t, NULL);
    } while (spl_now_ns() < until);
    return !stopped(r);
}

static char *dump_request(const splash_request *r) {
    const splash_sampling *s = &r->prompt.sampling;
    char seed[32];
    (void)snprintf(seed, sizeof seed, "%llu", (unsigned long long)s->seed);
    json_t *stop = json_array(), *bias = json_object();
    for (size_t i = 0; i < r->prompt.n_stop; i++) (void)json_array_append_new(stop, json_string(r->stop[i]));
    for (size_t i = 0; i < r->n_bias; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "%u", r->prompt.logit_bias[i].token);
        (void)json_object_set_new(bias, key, json_real((double)r->prompt.logit_bias[i].bias));
    }
    json_t *j =
        json_pack("{s:f,s:i,s:f,s:f,s:f,s:f,s:f,s:s,s:i,s:b,s:b,s:b,s:b,s:o,s:o,s:I,s:b,s:s}", "temperature",
                  (double)s->temperature, "top_k", (int)s->top_k, "top_p", (double)s->top_p, "min_p", (double)s->min_p,
                  "presence_penalty", (double)s->presence_penalty, "frequency_penalty", (double)s->frequency_penalty,
                  "repetition_penalty", (double)s->repetition_penalty, "seed", seed, "max_new_tokens",
                  (int)r->prompt.max_new_tokens, "ignore_eos", (int)r->prompt.ignore_eos, "chat", (int)r->prompt.chat,
                  "thinking", (int)r->prompt.starts_in_reasoning, "tools", (int)r->tools, "stop", stop, "bias", bias,
                  "n_prompt", (json_int_t)r->prompt.n_tokens, "lock_weights", (int)r->engine->lock_weights,
                  "tuning_folder", r->engine->tuning_folder);
    char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(7));
    json_decref(j);
    return text;
}

/* Content of the last "<|im_start|>user\n...<|im_end|>", or the whole text. */
static char *last_user(const char *text) {
    const char *from = NULL;
    for (const char *p = strstr(text, "<|im_start|>user\n"); p; p = strstr(p + 1, "<|im_start|>user\n")) from = p + 17;
    if (!from) return strdup(text);
    const char *to = strstr(from, "<|im_end|>");
    return to ? strndup(from, (size_t)(to - from)) : strdup(from);
}

static char *make_reply(const splash_request *r, const fake_script *s) {
    if (s->dump) return dump_request(r);
    if (s->n == 0) return last_user(r->text);
    size_t len = strlen(s->word);
    char *text = malloc(len * (size_t)s->n + 1);
    if (!text) abort();
    for (long i = 0; i < s->n; i++) memcpy(text + len * (size_t)i, s->word, len);
    text[len * (size_t)s->n] = 0;
    return text;
}

static size_t character_bytes(const char *s) {
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    return strnlen(s, n);
}

/* Emits text one word or character at a time. Returns false when cut (cancel, deadline, budget). */
static bool emit(splash_request *r, const fake_script *s, const char *text, splash_channel channel, bool *length) {
    size_t word = s->n ? strlen(s->word) : 0;
    for (size_t i = 0; text[i];) {
        size_t n = word && channel == SPLASH_CONTENT ? word : character_bytes(text + i);
        if (r->prompt.max_new_tokens && r->n_generated >= r->prompt.max_new_tokens) {
            *length = true;
            return false;
        }
        if (s->fail[0] && (long)r->n_generated >= s->fail_after) return false;
        if (!nap(r, s->token_ms)) return false;
        fake_event *e = new_event(r, SPLASH_EVENT_TOKEN);
        e->ev.token = (unsigned char)text[i];
        e->ev.token_channel = channel;
        if (r->prompt.logprobs) {
            e->ev.logprob = -0.5f - 0.125f * (float)(e->ev.token % 8);
            e->ev.n_top = r->prompt.n_top_logprobs;
            for (uint32_t k = 0; k < e->ev.n_top; k++)
                e->top[k] = (splash_logprob){(e->ev.token + k) % 128, e->ev.logprob - (float)k};
            e->ev.top = e->top;
        }
        post(r->engine, e);
        r->n_generated++;
        if (!r->first_ns) r->first_ns = spl_now_ns();
        if (channel == SPLASH_REASONING) r->n_reasoning++;
        e = new_event(r, SPLASH_EVENT_TEXT);
        e->text = strndup(text + i, n);
        e->ev.n_text_bytes = strlen(e->text);
        e->ev.channel = channel;
        post(r->engine, e);
        i += n;
    }
    return true;
}

static void cut_at_stop(splash_request *r, char *text) {
    char *at = NULL;
    for (size_t i = 0; i < r->prompt.n_stop; i++) {
        char *found = strstr(text, r->stop[i]);
        if (found && (!at || found < at)) {
            at = found;
            r->stop_hit = r->stop[i];
        }
    }
    if (at) *at = 0;
}

static bool wait_for_lane(splash_request *r) {
    splash_engine *e = r->engine;
    (void)pthread_mutex_lock(&e->lock);
    while (e->stats.running >= N_LANES && !r->cancelled) {
        struct timespec until = in_ms(5);
        (void)pthread_cond_timedwait(&e->changed, &e->lock, &until);
        if (too_late(r)) break;
    }
    e->stats.waiting--;
    e->stats.running++;
    bool go = !r->cancelled && !too_late(r);
    (void)pthread_mutex_unlock(&e->lock);
    return go;
}

static void fill_usage(const splash_request *r, const fake_script *s, splash_usage *u) {
    uint64_t now = spl_now_ns(), first = r->first_ns ? r->first_ns : now, start = r->start_ns ? r->start_ns : now;
    *u = (splash_usage){.prompt_tokens = (uint32_t)r->prompt.n_tokens,
                        .cached_tokens = (uint32_t)s->cached,
                        .completion_tokens = r->n_generated,
                        .reasoning_tokens = r->n_reasoning,
                        .draft_tokens = 7 * r->n_generated,
                        .draft_accepted = 3 * r->n_generated,
                        .decode_steps = r->n_generated,
                        .queue_ms = (double)(start - r->submit_ns) * 1e-6,
                        .prefill_ms = (double)(first - start) * 1e-6,
                        .decode_ms = (double)(now - first) * 1e-6,
                        .ttft_ms = (double)(first - r->submit_ns) * 1e-6};
}

static void count_end(splash_request *r, const fake_event *last) {
    splash_stats *t = &r->engine->stats;
    (void)pthread_mutex_lock(&r->engine->lock);
    t->running--;
    t->prompt_tokens_total += r->prompt.n_tokens;
    t->cached_tokens_total += last->ev.usage.cached_tokens;
    t->generated_tokens_total += r->n_generated;
    t->draft_tokens_total += 7u * r->n_generated;
    t->draft_accepted_total += 3u * r->n_generated;
    t->decode_steps_total += r->n_generated;
    if (last->ev.kind == SPLASH_EVENT_FAILED)
        t->requests_failed++;
    else if (last->ev.finish == SPLASH_FINISH_CANCELLED)
        t->requests_cancelled++;
    (void)pthread_mutex_unlock(&r->engine->lock);
}

static splash_status failure_code(const char *name) {
    if (strcmp(name, "nomem") == 0) return SPLASH_E_NOMEM;
    return strcmp(name, "limit") == 0 ? SPLASH_E_LIMIT : SPLASH_E_INTERNAL;
}

static bool prefill(splash_request *r, const fake_script *s) {
    for (long done = 0; done < s->prefill_ms; done += 100) {
        long piece = s->prefill_ms - done < 100 ? s->prefill_ms - done : 100;
        if (!nap(r, piece)) return false;
        fake_event *e = new_event(r, SPLASH_EVENT_PREFILL);
        e->ev.n_total = (uint32_t)r->prompt.n_tokens;
        e->ev.n_done = (uint32_t)((double)e->ev.n_total * (double)(done + piece) / (double)s->prefill_ms);
        post(r->engine, e);
    }
    return true;
}

static void *request_main(void *arg) {
    splash_request *r = arg;
    fake_script s;
    bool length = false, calls = false;
    char *asked = last_user(r->text);
    read_script(asked, &s);
    free(asked);
    char *reply = make_reply(r, &s);
    cut_at_stop(r, reply);
    bool going = wait_for_lane(r);
    if (going) {
        r->start_ns = spl_now_ns();
        if (!(s.fail[0] && s.fail_after < 0)) post(r->engine, new_event(r, SPLASH_EVENT_STARTED));
        going = prefill(r, &s);
    }
    if (going && r->prompt.starts_in_reasoning) going = emit(r, &s, s.think, SPLASH_REASONING, &length);
    if (going) going = emit(r, &s, reply, SPLASH_CONTENT, &length);
    for (int i = 0; going && i < s.n_calls && r->tools; i++) {
        char *colon = strchr(s.calls[i], ':');
        fake_event *e = new_event(r, SPLASH_EVENT_TOOL_CALL);
        e->text = strndup(s.calls[i], colon ? (size_t)(colon - s.calls[i]) : strlen(s.calls[i]));
        e->arguments = strdup(colon ? colon + 1 : "{}");
        post(r->engine, e);
        calls = true;
        going = nap(r, s.token_ms);
    }
    free(reply);
    bool fails = s.fail[0] && !stopped(r) && (going || !length) && !too_late(r);
    fake_event *last = new_event(r, fails || (too_late(r) && !stopped(r)) ? SPLASH_EVENT_FAILED : SPLASH_EVENT_DONE);
    fill_usage(r, &s, &last->ev.usage);
    if (last->ev.kind == SPLASH_EVENT_FAILED)
        (void)fake_fail(&last->ev.error, fails ? failure_code(s.fail) : SPLASH_E_TIMEOUT,
                        fails ? "the fake engine failed as told" : "the request's time is over");
    last->ev.finish = stopped(r) ? SPLASH_FINISH_CANCELLED
                      : length   ? SPLASH_FINISH_LENGTH
                      : calls    ? SPLASH_FINISH_TOOL_CALLS
                                 : SPLASH_FINISH_STOP;
    last->ev.stop_string = length ? NULL : r->stop_hit;
    count_end(r, last);
    post(r->engine, last);
    return NULL;
}

splash_status splash_submit(splash_engine *engine, const splash_prompt *p, splash_request **out, splash_error *err) {
    size_t n;
    splash_request *r = calloc(1, sizeof *r);
    if (!r) return fake_fail(err, SPLASH_E_NOMEM, "no memory");
    if (p->n_tokens >= engine->context) {
        free(r);
        return fake_fail(err, SPLASH_E_CONTEXT, "prompt too long");
    }
    r->engine = engine;
    r->prompt = *p;
    r->tools = p->tools_json != NULL;
    r->n_bias = p->n_logit_bias;
    r->submit_ns = spl_now_ns();
    for (size_t i = 0; i < p->n_stop; i++) r->stop[i] = strdup(p->stop[i]);
    struct splash_bias *bias = p->n_logit_bias ? malloc(p->n_logit_bias * sizeof *bias) : NULL;
    if (bias) memcpy(bias, p->logit_bias, p->n_logit_bias * sizeof *bias);
    r->prompt.logit_bias = bias;
    (void)splash_detokenize(engine, p->tokens, p->n_tokens, true, &r->text, &n, err);
    (void)pthread_mutex_lock(&engine->lock);
    if (engine->stats.waiting >= engine->queue_limit) {
        (void)pthread_mutex_unlock(&engine->lock);
        free(bias);
        free(r->text);
        free(r);
        return fake_fail(err, SPLASH_E_BUSY, "the queue is full");
    }
    engine->stats.requests_total++;
    engine->stats.waiting++;
    r->next = engine->requests;
    engine->requests = r;
    (void)pthread_mutex_unlock(&engine->lock);
    *out = r;
    if (pthread_create(&r->thread, NULL, request_main, r) != 0) abort();
    return SPLASH_OK;
}

void splash_cancel(splash_engine *engine, splash_request *request) {
    (void)pthread_mutex_lock(&engine->lock);
    request->cancelled = true;
    (void)pthread_cond_broadcast(&engine->changed);
    (void)pthread_mutex_unlock(&engine->lock);
}

void splash_stats_get(const splash_engine *engine, splash_stats *out) {
    splash_engine *e = (splash_engine *)(uintptr_t)engine;
    (void)pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->kv_pages_used = out->running * 4;
    (void)pthread_mutex_unlock(&e->lock);
}

/* ---- packages ------------------------------------------------------------------------------ */

static bool has_file(const char *folder, const char *name) {
    char path[4096];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &info) == 0;
}

splash_folder_kind splash_folder_kind_of(const char *path) {
    if (has_file(path, "manifest.json") || has_file(path, "fake.manifest")) return SPLASH_FOLDER_PACKAGE;
    return has_file(path, "config.json") ? SPLASH_FOLDER_CHECKPOINT : SPLASH_FOLDER_OTHER;
}

splash_status splash_pack(const splash_pack_options *o, splash_error *err) {
    char path[4096];
    if (splash_folder_kind_of(o->source) != SPLASH_FOLDER_CHECKPOINT)
        return fake_fail(err, SPLASH_E_NOTFOUND, "the source is no checkpoint folder");
    for (uint64_t i = 0; i <= 20; i++) {
        struct timespec t = {0, 20000000};
        (void)nanosleep(&t, NULL);
        if (o->progress && o->progress(o->progress_user, "weights", i * 1000000, 20000000))
            return fake_fail(err, SPLASH_E_CANCELLED, "given up");
    }
    if (mkdir(o->output, 0777) != 0 && errno != EEXIST)
        return fake_fail(err, SPLASH_E_IO, "cannot make the output folder");
    (void)snprintf(path, sizeof path, "%s/fake.manifest", o->output);
    FILE *f = fopen(path, "w");
    if (!f) return fake_fail(err, SPLASH_E_IO, "cannot write the package");
    (void)fclose(f);
    return SPLASH_OK;
}

splash_status splash_verify(const char *path, bool (*progress)(void *, const char *, uint64_t, uint64_t), void *user,
                            splash_error *err) {
    if (progress && progress(user, "check", 1, 1)) return fake_fail(err, SPLASH_E_CANCELLED, "given up");
    if (splash_folder_kind_of(path) != SPLASH_FOLDER_PACKAGE)
        return fake_fail(err, SPLASH_E_NOTFOUND, "the folder is no package");
    return SPLASH_OK;
}

splash_status splash_explain(const splash_explain_options *o, char **json, splash_error *err) {
    char text[512];
    (void)err;
    (void)snprintf(text, sizeof text,
                   "{\"model\":\"fake\",\"step_bytes\":16730000000,\"head_share\":0.0425,\"lanes\":%u,\"tau\":%.3f,"
                   "\"memory_plan\":{\"kv_bytes\":200},\"kernels\":[{\"op\":\"linear\",\"tier\":\"none\"}]}",
                   o->lanes, o->tau);
    *json = strdup(text);
    return *json ? SPLASH_OK : SPLASH_E_NOMEM;
}
