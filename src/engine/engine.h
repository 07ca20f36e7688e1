/* SPDX-License-Identifier: Apache-2.0
 * The engine: one thread that owns every request, lane, page and state. It admits waiting requests to
 * lanes, runs prefill chunks and decode steps over the active lanes, samples, and reports tokens to each
 * request's sink. It knows tokens, never text. */
#ifndef SPL_ENGINE_ENGINE_H
#define SPL_ENGINE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/kernels.h"
#include "model/package.h"
#include "model/plan.h"
#include "sample/sample.h"
#include "step/tuning.h"

typedef enum spl_finish { SPL_FINISH_STOP, SPL_FINISH_LENGTH, SPL_FINISH_CANCELLED } spl_finish;

typedef struct spl_usage {
    uint32_t prompt_tokens, cached_tokens, completion_tokens, decode_steps;
    uint32_t draft_tokens, draft_accepted;                    /* proposals of either source */
    uint64_t queue_ns, prefill_ns, decode_ns, first_token_ns; /* first_token: from submission */
} spl_usage;

/* Where a request's progress goes; every call comes from the engine thread. */
typedef struct spl_sink {
    void *user;
    void (*started)(void *user);
    void (*prefill)(void *user, uint32_t done_tokens, uint32_t total_tokens);
    /* A sampled token that is not a stop token; `logprobs` is NULL unless asked for. Returns true to end the
     * request here (a stop string was found). */
    bool (*token)(void *user, uint32_t token, const spl_logprobs *logprobs);
    /* The last call. `error` is NULL unless the request failed. The engine has let go of the request. */
    void (*finished)(void *user, spl_finish finish, const spl_usage *usage, const spl_error *error);
} spl_sink;

/* What a request asks for. Filled by the caller; the arrays belong to the request (spl_request_free). */
typedef struct spl_request {
    uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t max_new_tokens; /* 0: to the end of the context */
    spl_sampling sampling;
    uint64_t seed;
    spl_bias *bias;
    uint32_t n_bias;
    bool ignore_eos, logprobs;
    uint32_t n_top_logprobs;
    uint64_t deadline_ns; /* on spl_now_ns's clock; 0: none */
    spl_sink sink;
    atomic_bool cancelled; /* set by anyone, read by the engine */
    /* engine's own */
    uint64_t submitted_ns;
    struct spl_request *next;
} spl_request;
void spl_request_free(spl_request *r); /* frees the arrays and the request; accepts NULL */

typedef struct spl_engine_config {
    const spl_package *package; /* borrowed */
    const spl_kernels *kernels; /* copied */
    bool oracle;
    uint32_t n_threads;
    uint32_t context_tokens; /* 0: chosen */
    uint64_t limit_bytes;
    uint32_t queue_limit;
    bool no_draft, no_lookup; /* leave a source of proposals out */
    bool small_pages;         /* ask for no large pages */
    spl_knobs knobs;
    const spl_tuned_model *tuned; /* step times to start from, or NULL; copied */
    uint32_t fixed_rows; /* tests and benchmarks: always verify this many rows when a source offers them; 0: choose */
} spl_engine_config;

typedef struct spl_engine spl_engine;

typedef struct spl_engine_stats {
    uint64_t requests_total, requests_failed, requests_cancelled;
    uint64_t prompt_tokens_total, generated_tokens_total, decode_steps_total, prefill_chunks_total;
    uint64_t prefill_ns_total, decode_ns_total;
    uint64_t draft_tokens_total, draft_accepted_total;   /* proposals of the draft */
    uint64_t lookup_tokens_total, lookup_accepted_total; /* proposals copied from the context */
    uint64_t position_drafted[SPL_BLOCK_ROWS - 1], position_accepted[SPL_BLOCK_ROWS - 1]; /* draft, by position */
    uint64_t verify_rows_total, draft_steps_total, lookup_steps_total;
    uint32_t running, waiting, kv_pages_used, kv_pages_total;
    double last_decode_tokens_per_second, last_prefill_tokens_per_second;
} spl_engine_stats;

/* The memory plan of a configuration, without making anything. */
spl_status spl_engine_plan(const spl_geometry *g, uint32_t n_layers, bool has_draft, const spl_engine_config *config,
                           spl_plan *out, spl_error *err);

/* Makes lanes, pages and arena, starts the threads. On failure *out is NULL. */
spl_status spl_engine_create(spl_engine **out, const spl_engine_config *config, spl_error *err);
/* Cancels all requests (their sinks hear it), joins the threads. Accepts NULL. */
void spl_engine_destroy(spl_engine *e);

/* Queues a request. On success the engine holds it until sink.finished; on failure the caller keeps it and
 * no sink call is made. Errors: SPL_E_BUSY (queue full), SPL_E_CONTEXT, SPL_E_INVALID. Any thread. */
spl_status spl_engine_submit(spl_engine *e, spl_request *r, spl_error *err);
/* Wakes the engine after r->cancelled was set. Any thread. */
void spl_engine_nudge(spl_engine *e);

const spl_plan *spl_engine_get_plan(const spl_engine *e);
void spl_engine_get_stats(spl_engine *e, spl_engine_stats *out); /* any thread */

#endif
