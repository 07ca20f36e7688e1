/* SPDX-License-Identifier: Apache-2.0
 * A server under load, seen from outside: streamed chat requests, a fixed number in flight. Either a running server
 * (url) or one this program starts on a free port of the loopback and stops afterwards.
 * TTFT: request sent to first non-empty text. TPOT: (last text - first text) / (tokens - 1). Tokens are the server's
 * own count (usage). Aggregate: all tokens over the time from the first request to the last reply. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "bench/bench_generate.h"
#include "bench/bench_http.h"

enum {
    DEFAULT_MAX_TOKENS = 64,
    MAX_CONCURRENCY = 256,
    MAX_REQUESTS = 4096,
    TIMEOUT_MS = 600 * 1000,
    STOP_POLLS = 100,
    POLL_NS = 100 * 1000 * 1000
};

extern char **environ;

/* ---- a server of our own --------------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    FILE *out;
} child;

/* The options of the measurement as the server's own. */
static size_t server_arguments(const spl_bench_options *o, char numbers[4][24], const char **argv) {
    size_t n = 0;
    argv[n++] = o->program;
    argv[n++] = "serve";
    argv[n++] = "--port";
    argv[n++] = "0";
    argv[n++] = "--quiet";
    if (o->model) argv[n++] = "--model", argv[n++] = o->model;
    if (o->random_weights) argv[n++] = "--random-weights";
    if (o->lock_weights) argv[n++] = "--mlock";
    if (!o->tuning_folder) argv[n++] = "--no-tuning";
    if (o->cpu_tier) argv[n++] = "--cpu", argv[n++] = o->cpu_tier;
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {{"--threads", o->n_threads},
                  {"--layers", o->n_layers},
                  {"--max-context", o->max_context},
                  {"--max-memory", o->memory_limit_bytes}};
    for (size_t i = 0; i < SPL_COUNT(counts); i++) {
        if (!counts[i].value) continue;
        (void)snprintf(numbers[i], sizeof numbers[i], "%llu", (unsigned long long)counts[i].value);
        argv[n++] = counts[i].name;
        argv[n++] = numbers[i];
    }
    argv[n] = NULL;
    return n;
}

static spl_status start_server(child *c, const spl_bench_options *o, char *url, size_t url_bytes, spl_error *err) {
    const char *argv[24];
    char numbers[4][24], line[512];
    int ends[2];
    posix_spawn_file_actions_t actions;
    if (!o->program) return spl_fail(err, SPL_E_INVALID, "serve needs a server: name one with --url");
    (void)server_arguments(o, numbers, argv);
    if (pipe(ends) != 0) return spl_fail_errno(err, errno, "cannot make a pipe");
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc == 0) {
        rc = posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
        if (rc == 0) rc = posix_spawn_file_actions_addclose(&actions, ends[0]);
        if (rc == 0) rc = posix_spawn_file_actions_addclose(&actions, ends[1]);
        if (rc == 0) rc = posix_spawn(&c->pid, o->program, &actions, NULL, (char *const *)(uintptr_t)argv, environ);
        (void)posix_spawn_file_actions_destroy(&actions);
    }
    (void)close(ends[1]);
    if (rc == 0) c->out = fdopen(ends[0], "r");
    if (rc != 0 || !c->out) {
        (void)close(ends[0]);
        return spl_fail_errno(err, rc ? rc : errno, "cannot start %s", o->program);
    }
    while (fgets(line, sizeof line, c->out)) {
        char *at = strstr(line, "http://");
        if (strncmp(line, "Ready", 5) != 0 || !at) continue;
        at[strcspn(at, " \r\n")] = 0;
        (void)snprintf(url, url_bytes, "%s", at);
        return SPL_OK;
    }
    return spl_fail(err, SPL_E_IO, "the server ended before it was ready");
}

static void stop_server(child *c) {
    if (c->pid > 0) {
        int status;
        (void)kill(c->pid, SIGTERM);
        for (int i = 0; i < STOP_POLLS; i++) {
            pid_t got = waitpid(c->pid, &status, WNOHANG);
            if (got == c->pid || (got < 0 && errno != EINTR)) c->pid = 0;
            if (c->pid == 0) break;
            (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        }
        if (c->pid > 0) {
            (void)kill(c->pid, SIGKILL);
            (void)waitpid(c->pid, &status, 0);
        }
    }
    if (c->out) (void)fclose(c->out);
    *c = (child){0};
}

/* ---- load ------------------------------------------------------------------------------------ */

/* One request's story. */
typedef struct exchange {
    uint64_t sent_ns, first_ns, last_ns;
    uint64_t prompt_tokens, tokens;
} exchange;

typedef struct load {
    const spl_bench_options *o;
    spl_http_address address;
    const spl_bench_prompts *prompts;
    uint32_t n_requests;
    atomic_uint next;
    atomic_bool failed;
    exchange *exchanges; /* [n_requests] */
    pthread_mutex_t lock;
    spl_error error; /* the first, under the lock */
} load;

static uint64_t count_of(const json_t *usage, const char *key) {
    json_int_t n = json_integer_value(json_object_get(usage, key));
    return n > 0 ? (uint64_t)n : 0;
}

static spl_status on_event(void *user, const char *data, size_t n_bytes, uint64_t at_ns, spl_error *err) {
    exchange *x = user;
    json_t *event;
    if (strcmp(data, "[DONE]") == 0) return SPL_OK;
    spl_status st = spl_json_parse(&event, data, n_bytes, (size_t)16 << 20, "an event of the reply", err);
    if (st != SPL_OK) return st;
    const json_t *error = json_object_get(event, "error"), *usage = json_object_get(event, "usage");
    const json_t *delta = json_object_get(json_array_get(json_object_get(event, "choices"), 0), "delta");
    const char *content = json_string_value(json_object_get(delta, "content"));
    const char *reasoning = json_string_value(json_object_get(delta, "reasoning_content"));
    if ((content && *content) || (reasoning && *reasoning) || json_object_get(delta, "tool_calls")) {
        if (!x->first_ns) x->first_ns = at_ns;
        x->last_ns = at_ns;
    }
    if (json_is_object(usage)) {
        x->prompt_tokens = count_of(usage, "prompt_tokens");
        x->tokens = count_of(usage, "completion_tokens");
    }
    if (error) {
        const char *text = json_string_value(json_object_get(error, "message"));
        st = spl_fail(err, SPL_E_IO, "the server reports: %.300s", text ? text : "an error");
    }
    json_decref(event);
    return st;
}

static spl_status send_one(load *l, uint32_t index, spl_error *err) {
    const spl_bench_prompt *p = &l->prompts->items[index % l->prompts->n];
    exchange *x = &l->exchanges[index];
    json_t *body =
        json_pack("{s:[{s:s,s:s}], s:b, s:{s:b}, s:i, s:f}", "messages", "role", "user", "content", p->turns[0],
                  "stream", 1, "stream_options", "include_usage", 1, "max_tokens",
                  (int)(l->o->max_tokens ? l->o->max_tokens : DEFAULT_MAX_TOKENS), "temperature", l->o->temperature);
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (!text) return spl_fail(err, SPL_E_NOMEM, "no memory for a request");
    x->sent_ns = spl_now_ns();
    spl_status st =
        spl_http_post_events(&l->address, "/v1/chat/completions", text, strlen(text), TIMEOUT_MS, on_event, x, err);
    free(text);
    if (st == SPL_OK && !x->last_ns) x->first_ns = x->last_ns = spl_now_ns(); /* an empty answer */
    return st;
}

static void *send_many(void *arg) {
    load *l = arg;
    spl_error err = {0};
    while (!atomic_load(&l->failed)) {
        uint32_t index = atomic_fetch_add(&l->next, 1);
        if (index >= l->n_requests) break;
        if (send_one(l, index, &err) == SPL_OK) continue;
        (void)pthread_mutex_lock(&l->lock);
        if (!atomic_exchange(&l->failed, true)) l->error = err;
        (void)pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

static spl_status run_load(load *l, uint32_t concurrency, spl_error *err) {
    pthread_t threads[MAX_CONCURRENCY];
    uint32_t n = 0;
    int rc = 0;
    while (n < concurrency && (rc = pthread_create(&threads[n], NULL, send_many, l)) == 0) n++;
    if (rc != 0) atomic_store(&l->failed, true);
    for (uint32_t i = 0; i < n; i++) (void)pthread_join(threads[i], NULL);
    if (rc != 0) return spl_fail_errno(err, rc, "cannot start a thread per request in flight");
    if (!atomic_load(&l->failed)) return SPL_OK;
    *err = l->error;
    return err->code;
}

/* ---- results --------------------------------------------------------------------------------- */

static void put_latency(spl_bench_json *j, const char *key, const spl_samples *s) {
    char name[64];
    spl_put_samples(j, key, s);
    (void)snprintf(name, sizeof name, "%s_p99", key);
    spl_put_real(j, name, spl_samples_quantile(s, 0.99));
}

static void report(spl_bench_json *j, const load *l, uint32_t concurrency, const spl_roof_rates *rates) {
    spl_samples ttft = {0}, tpot = {0}, speed = {0};
    uint64_t begin = UINT64_MAX, end = 0, tokens = 0, prompt_tokens = 0;
    for (uint32_t i = 0; i < l->n_requests; i++) {
        const exchange *x = &l->exchanges[i];
        begin = x->sent_ns < begin ? x->sent_ns : begin;
        end = x->last_ns > end ? x->last_ns : end;
        tokens += x->tokens;
        prompt_tokens += x->prompt_tokens;
        spl_samples_add(&ttft, (double)(x->first_ns - x->sent_ns) * 1e-9);
        if (x->tokens < 2 || x->last_ns == x->first_ns) continue;
        double per_token = (double)(x->last_ns - x->first_ns) * 1e-9 / (double)(x->tokens - 1);
        spl_samples_add(&tpot, per_token);
        spl_samples_add(&speed, 1 / per_token);
    }
    double seconds = (double)(end - begin) * 1e-9;
    spl_put_u64(j, "concurrency", concurrency);
    spl_put_u64(j, "requests", l->n_requests);
    spl_put_u64(j, "prompt_tokens", prompt_tokens);
    spl_put_u64(j, "completion_tokens", tokens);
    put_latency(j, "ttft_seconds", &ttft);
    put_latency(j, "tpot_seconds", &tpot);
    spl_put_samples(j, "request_tokens_per_second", &speed);
    spl_put_real(j, "wall_seconds", seconds);
    spl_put_real(j, "aggregate_tokens_per_second", seconds > 0 ? (double)tokens / seconds : 0);
    spl_put_rates(j, rates);
}

/* Prompts when no file is named: short questions, so that a first token is quick. */
static spl_status default_prompts(spl_bench_prompts *out, spl_error *err) {
    static const char *const texts[] = {
        "Write a Python function that returns the largest number of a list.", "What is 7 + 5?",
        "Write a Python function that counts the words of a sentence.", "Name three colours."};
    *out = (spl_bench_prompts){.items = calloc(SPL_COUNT(texts), sizeof *out->items), .n = SPL_COUNT(texts)};
    if (!out->items) {
        out->n = 0;
        return spl_fail(err, SPL_E_NOMEM, "no memory for the prompts");
    }
    for (size_t i = 0; i < SPL_COUNT(texts); i++)
        out->items[i] = (spl_bench_prompt){.n_turns = 1, .turns = {texts[i]}, .thinking = -1};
    return SPL_OK;
}

spl_status spl_bench_serve(const spl_bench_options *o, json_t **out, spl_error *err) {
    uint32_t concurrency = o->concurrency ? o->concurrency : 1;
    char url[300];
    child server = {0};
    spl_bench_prompts prompts = {0};
    spl_roof_rates rates;
    spl_bench_json j = {0};
    load l = {.o = o, .n_requests = o->n_requests ? o->n_requests : 4 * concurrency};
    if (concurrency > MAX_CONCURRENCY)
        return spl_fail(err, SPL_E_INVALID, "%u requests in flight; at most %d", concurrency, MAX_CONCURRENCY);
    if (l.n_requests < concurrency || l.n_requests > MAX_REQUESTS)
        return spl_fail(err, SPL_E_INVALID, "%u requests; %u (those in flight) to %d", l.n_requests, concurrency,
                        MAX_REQUESTS);
    (void)pthread_mutex_init(&l.lock, NULL);
    (void)snprintf(url, sizeof url, "%s", o->url ? o->url : "");
    l.exchanges = calloc(l.n_requests, sizeof *l.exchanges);
    spl_status st = l.exchanges ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for %u requests", l.n_requests);
    if (st == SPL_OK)
        st = o->prompts ? spl_bench_prompts_read(&prompts, o->prompts, o->n_prompts, err)
                        : default_prompts(&prompts, err);
    l.prompts = &prompts;
    if (st == SPL_OK && !o->url) st = start_server(&server, o, url, sizeof url, err);
    if (st == SPL_OK) st = spl_http_address_read(&l.address, url, err);
    if (st == SPL_OK) {
        spl_bench_say(o, "%u requests, %u in flight, to %s", l.n_requests, concurrency, url);
        st = run_load(&l, concurrency, err);
    }
    stop_server(&server);
    if (st == SPL_OK) st = spl_bench_measure_rates(o, 0, &rates, err);
    if (st == SPL_OK) {
        report(&j, &l, concurrency, &rates);
        spl_put_text(&j, "url", url);
        if (!o->url) spl_put_text(&j, "model", o->model);
        st = spl_bench_json_take(&j, out, err);
    }
    free(l.exchanges);
    spl_bench_prompts_free(&prompts);
    (void)pthread_mutex_destroy(&l.lock);
    return st;
}
