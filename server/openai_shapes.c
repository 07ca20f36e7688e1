/* SPDX-License-Identifier: Apache-2.0
 * Shared OpenAI response pieces. */
#include "server/openai_shapes.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

json_t *spl_openai_id(const char *prefix, const spl_exchange *x) { return json_sprintf("%s%s", prefix, x->pid); }

void spl_call_id(const spl_exchange *x, uint32_t i_call, char *out, size_t out_bytes) {
    (void)snprintf(out, out_bytes, "call_%s_%u", x->pid, i_call);
}

const char *spl_openai_finish(const spl_generation *g) {
    if (g->finish == SPLASH_FINISH_LENGTH) return "length";
    return g->n_calls ? "tool_calls" : "stop";
}

json_t *spl_openai_usage(const spl_generation *g) {
    const splash_usage *u = &g->usage;
    return json_pack("{s:I,s:I,s:I,s:{s:I},s:{s:I}}", "prompt_tokens", (json_int_t)u->prompt_tokens,
                     "completion_tokens", (json_int_t)u->completion_tokens, "total_tokens",
                     (json_int_t)u->prompt_tokens + (json_int_t)u->completion_tokens, "prompt_tokens_details",
                     "cached_tokens", (json_int_t)u->cached_tokens, "completion_tokens_details", "reasoning_tokens",
                     (json_int_t)u->reasoning_tokens);
}

static double per_second(double n, double ms) { return ms > 0 && n > 0 ? n * 1e3 / ms : 0; }

json_t *spl_openai_timings(const spl_generation *g) {
    const splash_usage *u = &g->usage;
    double computed = (double)u->prompt_tokens - u->cached_tokens;
    return json_pack("{s:I,s:I,s:f,s:f,s:I,s:f,s:f,s:I,s:I}", "prompt_n", (json_int_t)u->prompt_tokens, "cache_n",
                     (json_int_t)u->cached_tokens, "prompt_ms", u->prefill_ms, "prompt_per_second",
                     per_second(computed, u->prefill_ms), "predicted_n", (json_int_t)u->completion_tokens,
                     "predicted_ms", u->decode_ms, "predicted_per_second",
                     per_second(u->completion_tokens, u->decode_ms), "draft_n", (json_int_t)u->draft_tokens,
                     "draft_n_accepted", (json_int_t)u->draft_accepted);
}

static double ms_between(uint64_t from_ns, uint64_t to_ns) {
    return from_ns && to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-6 : 0;
}

json_t *spl_openai_metrics(const spl_exchange *x) {
    const spl_generation *g = x->generation;
    const splash_usage *u = &g->usage;
    double wall = ms_between(x->arrival_ns, g->done_ns), out = ms_between(g->first_ns, g->done_ns);
    double first = ms_between(g->start_ns, g->first_ns);
    json_t *latency =
        json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "start_to_first_token_ms", first, "first_token_to_done_ms", out,
                  "wall_ms", wall, "ttft_ms", wall - out, "queue_to_start_ms", wall - out - first,
                  "stream_tokens_per_second", per_second(u->completion_tokens ? u->completion_tokens - 1.0 : 0, out));
    return json_pack("{s:{s:I},s:{s:I},s:o,s:{s:s,s:I}}", "prefill", "tokens",
                     (json_int_t)u->prompt_tokens - (json_int_t)u->cached_tokens, "decode", "tokens",
                     (json_int_t)u->completion_tokens, "request_latency", latency, "cache", "status",
                     u->cached_tokens ? "hit" : "miss", "matched_tokens", (json_int_t)u->cached_tokens);
}

json_t *spl_openai_progress(const spl_exchange *x, uint32_t n_done, uint32_t n_total) {
    const spl_generation *g = x->generation;
    json_int_t cached = (json_int_t)(g->n_prompt > n_total ? g->n_prompt - n_total : 0);
    return json_pack("{s:I,s:I,s:I,s:I}", "total", (json_int_t)g->n_prompt, "cache", cached, "processed",
                     (json_int_t)n_done, "time_ms", (json_int_t)(ms_between(g->start_ns, spl_now_ns())));
}

json_t *spl_openai_logprobs(spl_generation *g) {
    json_t *content = spl_generation_take_logprobs(g, SPLASH_CONTENT);
    json_t *reasoning = spl_generation_take_logprobs(g, SPLASH_REASONING);
    if (!content && !reasoning) return NULL;
    json_t *j = json_pack("{s:o,s:n}", "content", content ? content : json_array(), "refusal");
    if (reasoning) (void)json_object_set_new(j, "reasoning_content", reasoning);
    return j;
}

static json_int_t count_characters(const char *s, size_t n) {
    json_int_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

json_t *spl_openai_text_logprobs(spl_generation *g) {
    json_t *list = spl_generation_take_logprobs(g, SPLASH_CONTENT), *entry, *other;
    size_t i, k;
    if (!list) return NULL;
    json_t *tokens = json_array(), *values = json_array(), *tops = json_array(), *offsets = json_array();
    json_array_foreach(list, i, entry) {
        json_t *token = json_object_get(entry, "token"), *top = json_object();
        (void)json_array_append(tokens, token);
        (void)json_array_append(values, json_object_get(entry, "logprob"));
        (void)json_array_append_new(offsets, json_integer((json_int_t)g->text_offset));
        g->text_offset += (uint64_t)count_characters(json_string_value(token), json_string_length(token));
        json_array_foreach(json_object_get(entry, "top_logprobs"), k, other) {
            const char *name = json_string_value(json_object_get(other, "token"));
            if (name && !json_object_get(top, name))
                (void)json_object_set(top, name, json_object_get(other, "logprob"));
        }
        (void)json_array_append_new(tops, top);
    }
    json_decref(list);
    return json_pack("{s:o,s:o,s:o,s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops,
                     "text_offset", offsets);
}

void spl_openai_send(spl_exchange *x, json_t *reply, bool whole) {
    spl_reject why;
    if (whole && reply) {
        spl_exchange_reply_json(x, 200, reply);
        return;
    }
    json_decref(reply);
    (void)spl_reject_set(&why, 503, "frontend_overloaded", "not enough memory for the reply");
    spl_exchange_reject(x, &why);
}
