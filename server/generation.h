/* SPDX-License-Identifier: Apache-2.0
 * One generation behind an exchange: engine events in, calls of a dialect out. Keeps what every dialect needs (texts of
 * a whole reply, tool calls, log probabilities, times) so that a dialect only formats. Touched by the preparation
 * thread until submission, then by the event thread alone. */
#ifndef SPL_SERVER_GENERATION_H
#define SPL_SERVER_GENERATION_H

#include "server/core.h"

/* How a dialect writes. begin..keep_alive and fail are used for streams, reply for whole replies. */
typedef struct spl_dialect_ops {
    void (*begin)(spl_exchange *x); /* the engine started the request */
    void (*progress)(spl_exchange *x, uint32_t n_done, uint32_t n_total);
    void (*text)(spl_exchange *x, splash_channel channel, const char *text, size_t n_bytes);
    void (*tool_call)(spl_exchange *x, uint32_t i_call, const char *name, const char *arguments);
    void (*end)(spl_exchange *x);
    void (*keep_alive)(spl_exchange *x, bool started);
    void (*fail)(spl_exchange *x, const spl_reject *why); /* after the headers went out */
    void (*reply)(spl_exchange *x);
} spl_dialect_ops;

typedef struct spl_generation {
    const spl_dialect_ops *ops;
    const char *label; /* endpoint, for the log */
    bool stream, include_usage, return_progress, logprobs, parallel_calls;
    bool started, finished, cut_after_call;
    bool budget_clamped; /* the output budget was cut to what the context has left */
    uint32_t n_top_logprobs, n_prompt;
    int64_t created; /* unix seconds */

    spl_buf content, reasoning; /* whole replies only */
    json_t *calls;              /* whole replies: [{name, arguments}] */
    uint32_t n_calls;
    json_t *content_logprobs, *reasoning_logprobs; /* not yet sent: [{token, logprob, bytes, top_logprobs}] */
    uint64_t text_offset;                          /* characters before the next log probability's token */

    uint64_t submit_ns, start_ns, first_ns, last_ns, done_ns;
    uint32_t n_tokens, n_first_tokens;

    splash_finish finish;    /* set before end and reply */
    const char *stop_string; /* during end and reply only */
    splash_usage usage;
    void *dialect_state; /* owned; freed with free() */
} spl_generation;

/* What a route submits. Everything is copied or consumed. */
typedef struct spl_generation_start {
    const spl_dialect_ops *ops;
    const char *label;
    const spl_gen_fields *fields;
    const uint32_t *tokens;
    size_t n_tokens;
    uint32_t max_new_tokens; /* 0: to the end of the context */
    bool chat, starts_in_reasoning, parallel_calls, budget_clamped;
    const char *tools_json;
    void *dialect_state; /* malloc'ed or NULL; owned from here on, also on failure */
} spl_generation_start;

/* Submits; from then on the event thread owns the exchange's generation. On failure *r says why and the exchange is
 * untouched. */
bool spl_generation_submit(spl_exchange *x, const spl_generation_start *start, spl_reject *r);
/* Event thread only. The exchange comes from event->user. */
void spl_generation_event(const splash_event *event);
/* Event thread only: keep-alive when the stream has been silent for 2 s. */
void spl_generation_keep_alive(spl_exchange *x, uint64_t now_ns);
void spl_generation_free(spl_generation *g);

/* Takes the pending log probabilities of one channel; NULL when there are none or none were asked for. New reference.
 */
json_t *spl_generation_take_logprobs(spl_generation *g, splash_channel channel);
/* HTTP face of an engine error. */
void spl_reject_from_engine(spl_reject *r, const splash_error *error);

#endif
