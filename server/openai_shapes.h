/* SPDX-License-Identifier: Apache-2.0
 * The JSON pieces that Chat and text completions share: ids, usage, timings, log probabilities. Each function returns a
 * new reference. */
#ifndef SPL_SERVER_OPENAI_SHAPES_H
#define SPL_SERVER_OPENAI_SHAPES_H

#include "server/generation.h"

json_t *spl_openai_id(const char *prefix, const spl_exchange *x); /* "chatcmpl-" + 32 hex digits */
void spl_call_id(const spl_exchange *x, uint32_t i_call, char *out, size_t out_bytes);
const char *spl_openai_finish(const spl_generation *g); /* "stop", "length", "tool_calls" */
json_t *spl_openai_usage(const spl_generation *g);
json_t *spl_openai_timings(const spl_generation *g); /* llama-server's names, draft counts included */
json_t *spl_openai_metrics(const spl_exchange *x);
json_t *spl_openai_progress(const spl_exchange *x, uint32_t n_done, uint32_t n_total);
/* Pending log probabilities, or NULL: Chat's {"content": [...], "refusal": null, "reasoning_content"?: [...]} and
 * completions' parallel lists. */
json_t *spl_openai_logprobs(spl_generation *g);
json_t *spl_openai_text_logprobs(spl_generation *g);
/* Sends a whole reply; `whole` false: memory ran out while it was collected. Takes the reference. */
void spl_openai_send(spl_exchange *x, json_t *reply, bool whole);

#endif
