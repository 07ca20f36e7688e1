/* SPDX-License-Identifier: Apache-2.0
 * The public API of libsplash: open a model, submit token prompts, read events, render chats.
 * Conventions: 0 is success, negative is an error; the library never exits and never prints; every
 * pointer says who owns it; "any thread" means concurrent calls on one engine are safe. */
#ifndef SPLASH_H
#define SPLASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SPLASH_VERSION "0.1.0"

typedef enum splash_status {
    SPLASH_OK = 0,
    SPLASH_E_NOMEM = -1,
    SPLASH_E_INVALID = -2,
    SPLASH_E_IO = -3,
    SPLASH_E_FORMAT = -4,
    SPLASH_E_GEOMETRY = -5,
    SPLASH_E_CONTEXT = -6, /* prompt longer than the context */
    SPLASH_E_BUSY = -7,    /* queue full */
    SPLASH_E_LIMIT = -8,
    SPLASH_E_CANCELLED = -9,
    SPLASH_E_UNSUPPORTED = -10,
    SPLASH_E_NOSPACE = -11,
    SPLASH_E_NOTFOUND = -12,
    SPLASH_E_CORRUPT = -13,
    SPLASH_E_TIMEOUT = -14,
    SPLASH_E_INTERNAL = -15
} splash_status;

typedef struct splash_error {
    splash_status code;
    char text[512]; /* one line: the thing, the limit, the remedy */
} splash_error;

typedef struct splash_engine splash_engine;   /* a loaded model; opaque */
typedef struct splash_request splash_request; /* owned by its engine; opaque */

/* ---- opening ------------------------------------------------------------------------------- */

typedef struct splash_options {
    const char *model;           /* package folder, or a geometry id with random_weights */
    bool random_weights;         /* benchmarks: weights from a generator instead of files */
    uint32_t n_layers;           /* limit for random weights; 0: all */
    uint32_t context_tokens;     /* 0: chosen from the memory limit, at most the model's maximum */
    uint32_t n_threads;          /* 0: one per performance core, cgroup limits respected */
    const char *cpu_tier;        /* NULL: best usable; "oracle": fp32 reference arithmetic, for tests */
    uint64_t memory_limit_bytes; /* 0: 85 % of what the machine or its cgroup has free */
    uint32_t queue_limit;        /* waiting requests; 0: 64 */
    bool random_draft;           /* random_weights: with a draft, whose guesses are rarely right */
    bool no_draft, no_lookup;    /* leave a source of proposals out; text is the same either way */
    uint32_t fixed_rows; /* tests, benchmarks: verify this many rows (2..8) whenever proposals exist; 0: choose */
    bool lock_weights;   /* keep the weights in memory; splash_open fails with LIMIT when the system forbids it */
    bool no_huge_pages;  /* ask for no large pages, to measure what they bring */
    /* Folder of what `splash tune` stored, or NULL. The file of this processor and engine version is used where the
     * options leave a choice; a missing, broken or foreign one is ignored. Text never depends on it. */
    const char *tuning_folder;
    /* Lines for a debugging log, during splash_plan and splash_open; may be NULL. */
    void (*debug)(void *user, const char *line);
    void *debug_user;
    /* Called during splash_open with bytes done and total; may be NULL. Return true to give up. */
    bool (*progress)(void *user, const char *stage, uint64_t done, uint64_t total);
    void *progress_user;
} splash_options;

/* Bytes, all known before weights are touched. */
typedef struct splash_memory_plan {
    uint64_t weight_bytes; /* mapped, shared, reclaimable */
    uint64_t kv_bytes, state_bytes, arena_bytes, logits_bytes, other_bytes;
    uint64_t total_bytes; /* sum of the above */
    uint64_t limit_bytes;
    uint32_t context_tokens, kv_pages, max_lanes;
} splash_memory_plan;

/* Plans without loading. Errors as splash_open. */
splash_status splash_plan(const splash_options *options, splash_memory_plan *out, splash_error *err);

/* On success *out belongs to the caller. On failure *out is NULL and *err says why. */
splash_status splash_open(splash_engine **out, const splash_options *options, splash_error *err);

/* Cancels all requests and refuses new ones. Their last events still arrive; when all have been returned,
 * splash_next_event returns SPLASH_E_CANCELLED, now and ever after. Any thread; may be called twice. */
void splash_shutdown(splash_engine *engine);

/* Shuts down, joins all threads, frees everything, sets *engine to NULL (which it may be already). No other
 * thread may be inside a call on this engine or make one later: a reader of events is first told by
 * splash_shutdown and joined. */
void splash_close(splash_engine **engine);

/* ---- the model ----------------------------------------------------------------------------- */

typedef struct splash_sampling {
    float temperature;                                             /* 0: greedy */
    int32_t top_k;                                                 /* 0 or -1: all */
    float top_p, min_p;                                            /* 1 and 0: off */
    float presence_penalty, frequency_penalty, repetition_penalty; /* 0, 0, 1: off */
    uint64_t seed;
} splash_sampling;

typedef struct splash_model_info {
    const char *name;     /* manifest's model name, used as the model id over HTTP */
    const char *geometry; /* "qwen3.8-27b" */
    const char *cpu_tier;
    const char *chat_template;
    uint32_t context_tokens, vocab, n_threads;
    bool has_draft, has_tokenizer;
    splash_sampling defaults; /* recommended by the package; seed 0 */
    splash_memory_plan plan;
} splash_model_info;

/* Pointers live as long as the engine. Any thread. */
void splash_model_info_get(const splash_engine *engine, splash_model_info *out);

/* ---- text ---------------------------------------------------------------------------------- */

/* Tokens of UTF-8 text; special tokens spelled in the text become their ids when parse_special.
 * *tokens is malloc'ed. Invalid UTF-8 is replaced by U+FFFD. Any thread. */
splash_status splash_tokenize(const splash_engine *engine, const char *text, size_t n_bytes, bool parse_special,
                              uint32_t **tokens, size_t *n_tokens, splash_error *err);
/* Text of tokens, special tokens included when keep_special; *text is malloc'ed and NUL-terminated. */
splash_status splash_detokenize(const splash_engine *engine, const uint32_t *tokens, size_t n_tokens, bool keep_special,
                                char **text, size_t *n_bytes, splash_error *err);
/* Raw bytes of one token (may be part of a UTF-8 sequence); NULL for an id without text. */
const char *splash_token_bytes(const splash_engine *engine, uint32_t token, size_t *n_bytes);

/* Renders a chat by the model's template. `request_json` is one JSON object: {"messages": [...],
 * "tools": [...], "add_generation_prompt": bool, "enable_thinking": bool|null, "reasoning_effort": str,
 * "preserve_thinking": bool|null}; absent members take the template's defaults. tool_calls[].function.
 * arguments may be an object or a JSON string holding one. *text is malloc'ed; *thinking (may be NULL)
 * tells whether the reply starts inside a reasoning block. Any thread. */
splash_status splash_render_chat(const splash_engine *engine, const char *request_json, size_t n_json_bytes,
                                 char **text, size_t *n_bytes, bool *thinking, splash_error *err);

/* ---- requests ------------------------------------------------------------------------------ */

typedef struct splash_prompt {
    const uint32_t *tokens;
    size_t n_tokens;         /* at least 1 */
    uint32_t max_new_tokens; /* 0: up to the end of the context */
    splash_sampling sampling;
    const char *const *stop;  /* stop strings, not emitted */
    size_t n_stop;            /* at most 16, 256 bytes each */
    bool ignore_eos;          /* benchmarks: stop tokens do not stop */
    bool keep_special;        /* emit the text of special tokens */
    bool logprobs;            /* TOKEN events carry log probabilities */
    uint32_t n_top_logprobs;  /* at most 20 */
    bool chat;                /* split reasoning, content and tool calls; otherwise all text is content */
    bool starts_in_reasoning; /* from splash_render_chat */
    const char *tools_json;   /* tools array for typed arguments, or NULL; NULL leaves calls as content */
    uint64_t deadline_ms;     /* from submission; 0: none */
    const struct splash_bias {
        uint32_t token;
        float bias;
    } * logit_bias; /* -100 and below: never */
    size_t n_logit_bias;
    void *user; /* handed back in every event */
} splash_prompt;

/* Copies what `prompt` points at. *out stays valid until its DONE or FAILED event was returned by
 * splash_next_event. Errors: CONTEXT (names prompt length and limit), BUSY, INVALID (names the field and its
 * range), LIMIT. Any thread. */
splash_status splash_submit(splash_engine *engine, const splash_prompt *prompt, splash_request **out,
                            splash_error *err);

/* Asks for an early end; the DONE event with SPLASH_FINISH_CANCELLED still arrives. Any thread, but not
 * after the request's last event was returned. */
void splash_cancel(splash_engine *engine, splash_request *request);

typedef enum splash_event_kind {
    SPLASH_EVENT_NONE,      /* timeout */
    SPLASH_EVENT_STARTED,   /* prefill begins; queue time is over */
    SPLASH_EVENT_PREFILL,   /* n_done of n_total prompt tokens */
    SPLASH_EVENT_TOKEN,     /* one generated token, with log probabilities when asked for */
    SPLASH_EVENT_TEXT,      /* text released: valid UTF-8, never empty */
    SPLASH_EVENT_TOOL_CALL, /* one complete tool call */
    SPLASH_EVENT_DONE,
    SPLASH_EVENT_FAILED
} splash_event_kind;

typedef enum splash_channel { SPLASH_CONTENT, SPLASH_REASONING } splash_channel;

typedef enum splash_finish {
    SPLASH_FINISH_STOP,   /* stop token or stop string */
    SPLASH_FINISH_LENGTH, /* max_new_tokens or the end of the context */
    SPLASH_FINISH_TOOL_CALLS,
    SPLASH_FINISH_CANCELLED
} splash_finish;

typedef struct splash_logprob {
    uint32_t token;
    float logprob; /* natural log, of the model's own distribution at temperature 1 */
} splash_logprob;

typedef struct splash_usage {
    uint32_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    uint32_t draft_tokens, draft_accepted, decode_steps;
    double queue_ms, prefill_ms, decode_ms, ttft_ms;
} splash_usage;

typedef struct splash_event {
    splash_event_kind kind;
    splash_request *request;
    void *user;
    splash_channel channel; /* TEXT */
    const char *text;       /* TEXT; TOOL_CALL: function name. NUL-terminated */
    size_t n_text_bytes;
    const char *arguments;        /* TOOL_CALL: JSON object */
    const char *stop_string;      /* DONE by a stop string: which one, else NULL */
    uint32_t token;               /* TOKEN */
    splash_channel token_channel; /* TOKEN */
    float logprob;                /* TOKEN, when asked for */
    const splash_logprob *top;    /* TOKEN: n_top entries, most likely first */
    uint32_t n_top;
    uint32_t n_done, n_total; /* PREFILL */
    splash_finish finish;     /* DONE */
    splash_usage usage;       /* DONE, FAILED */
    splash_error error;       /* FAILED */
} splash_event;

/* The next event of any request of this engine, in order per request; waits up to timeout_ms (negative: for
 * ever). Pointers in *ev live until the next call. One thread at a time. */
splash_status splash_next_event(splash_engine *engine, splash_event *ev, int64_t timeout_ms);

/* ---- statistics ---------------------------------------------------------------------------- */

typedef struct splash_stats {
    uint64_t requests_total, requests_failed, requests_cancelled;
    uint64_t prompt_tokens_total, cached_tokens_total, generated_tokens_total;
    uint64_t draft_tokens_total, draft_accepted_total;   /* proposals of the draft */
    uint64_t lookup_tokens_total, lookup_accepted_total; /* proposals copied from the context */
    uint64_t position_drafted[7], position_accepted[7];  /* of the draft's, by position in the block */
    uint64_t decode_steps_total, draft_steps_total, lookup_steps_total, verify_rows_total, prefill_chunks_total;
    uint64_t prefill_ns_total, decode_ns_total;
    uint32_t running, waiting, kv_pages_used, kv_pages_total;
    double last_decode_tokens_per_second, last_prefill_tokens_per_second;
} splash_stats;
void splash_stats_get(const splash_engine *engine, splash_stats *out); /* any thread */

/* ---- packages ------------------------------------------------------------------------------ */

typedef struct splash_pack_options {
    const char *source; /* checkpoint or package folder */
    const char *draft;  /* draft checkpoint folder, or NULL */
    const char *output;
    const char *name;  /* model name; NULL: the geometry's */
    uint32_t n_layers; /* 0: all */
    bool overwrite;
    bool (*progress)(void *user, const char *stage, uint64_t done, uint64_t total); /* true: give up */
    void *progress_user;
} splash_pack_options;

/* Publishes `output` atomically: afterwards it holds the complete new package or what it held before. */
splash_status splash_pack(const splash_pack_options *options, splash_error *err);
/* Full check of a package: every hash, every scale. */
splash_status splash_verify(const char *path, bool (*progress)(void *, const char *, uint64_t, uint64_t), void *user,
                            splash_error *err);

typedef enum splash_folder_kind {
    SPLASH_FOLDER_OTHER,
    SPLASH_FOLDER_PACKAGE,
    SPLASH_FOLDER_CHECKPOINT
} splash_folder_kind;
splash_folder_kind splash_folder_kind_of(const char *path);

/* The explanation of a model as one JSON object (malloc'ed): geometry, published accounting, this
 * engine's own bytes from the op list, memory plan, kernels. `bandwidth_gbs`, `tau`, `tokens_per_second`
 * are 0 when not asked for. `model` is a package folder or a geometry id. */
typedef struct splash_explain_options {
    const char *model;
    double bandwidth_gbs, tau, tokens_per_second;
    uint32_t lanes, context_tokens;
    bool op_list; /* include every op with its bytes */
} splash_explain_options;
splash_status splash_explain(const splash_explain_options *options, char **json, splash_error *err);

#ifdef __cplusplus
}
#endif

#endif
