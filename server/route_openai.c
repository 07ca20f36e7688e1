/* SPDX-License-Identifier: Apache-2.0
 * /v1/chat/completions and /v1/completions: request in, OpenAI shapes out. docs/SERVING.md shows both. */
#include <stdlib.h>
#include <string.h>

#include "server/generation.h"
#include "server/openai_shapes.h"
#include "server/prompt.h"
#include "server/routes.h"

/* ---- chat: streamed ------------------------------------------------------------------------ */

/* One chunk; takes `delta` and `logprobs` (may be NULL). finish NULL: none yet. */
static json_t *chat_chunk(const spl_exchange *x, json_t *delta, json_t *logprobs, const char *finish) {
    json_t *choice = json_pack("{s:i,s:o,s:s?}", "index", 0, "delta", delta, "finish_reason", finish);
    if (choice && logprobs) (void)json_object_set_new(choice, "logprobs", logprobs);
    return json_pack("{s:o,s:s,s:I,s:s,s:[o]}", "id", spl_openai_id("chatcmpl-", x), "object", "chat.completion.chunk",
                     "created", (json_int_t)x->generation->created, "model", x->server->reply_model, "choices", choice);
}

static void chat_begin(spl_exchange *x) {
    json_t *delta = json_pack("{s:s,s:s}", "role", "assistant", "content", "");
    spl_exchange_stream_json(x, NULL, chat_chunk(x, delta, NULL, NULL));
}

static void chat_progress(spl_exchange *x, uint32_t n_done, uint32_t n_total) {
    json_t *chunk = chat_chunk(x, json_object(), NULL, NULL);
    (void)json_object_set_new(chunk, "prompt_progress", spl_openai_progress(x, n_done, n_total));
    spl_exchange_stream_json(x, NULL, chunk);
}

static void chat_text(spl_exchange *x, splash_channel channel, const char *text, size_t n_bytes) {
    const char *key = channel == SPLASH_REASONING ? "reasoning_content" : "content";
    json_t *delta = json_pack("{s:o}", key, json_stringn(text, n_bytes));
    spl_exchange_stream_json(x, NULL, chat_chunk(x, delta, spl_openai_logprobs(x->generation), NULL));
}

static void chat_tool_call(spl_exchange *x, uint32_t i_call, const char *name, const char *arguments) {
    char id[SPL_PID_BYTES + 24];
    spl_call_id(x, i_call, id, sizeof id);
    json_t *head = json_pack("{s:[{s:I,s:s,s:s,s:{s:s,s:s}}]}", "tool_calls", "index", (json_int_t)i_call, "id", id,
                             "type", "function", "function", "name", name, "arguments", arguments);
    spl_exchange_stream_json(x, NULL, chat_chunk(x, head, spl_openai_logprobs(x->generation), NULL));
}

static void chat_end(spl_exchange *x) {
    spl_generation *g = x->generation;
    json_t *last = chat_chunk(x, json_object(), spl_openai_logprobs(g), spl_openai_finish(g));
    (void)json_object_set_new(last, "timings", spl_openai_timings(g));
    spl_exchange_stream_json(x, NULL, last);
    if (g->include_usage) {
        json_t *usage =
            json_pack("{s:o,s:s,s:I,s:s,s:[],s:o,s:o}", "id", spl_openai_id("chatcmpl-", x), "object",
                      "chat.completion.chunk", "created", (json_int_t)g->created, "model", x->server->reply_model,
                      "choices", "usage", spl_openai_usage(g), "metrics", spl_openai_metrics(x));
        spl_exchange_stream_json(x, NULL, usage);
    }
    spl_exchange_stream_write(x, "data: [DONE]\n\n", 14);
}

/* Comments keep proxies awake; once the reply has begun, some clients time out without data events. */
static void chat_keep_alive(spl_exchange *x, bool started) {
    if (started)
        spl_exchange_stream_json(x, NULL, chat_chunk(x, json_object(), NULL, NULL));
    else
        spl_exchange_stream_write(x, ": keep-alive\n\n", 14);
}

static void openai_fail(spl_exchange *x, const spl_reject *why) {
    spl_exchange_stream_json(x, NULL, spl_error_json(SPL_DIALECT_OPENAI, why->status, why->code, why->text));
    spl_exchange_stream_write(x, "data: [DONE]\n\n", 14);
}

/* ---- chat: whole --------------------------------------------------------------------------- */

static json_t *calls_json(const spl_exchange *x) {
    json_t *list = json_array(), *call;
    char id[SPL_PID_BYTES + 24];
    size_t i;
    json_array_foreach(x->generation->calls, i, call) {
        spl_call_id(x, (uint32_t)i, id, sizeof id);
        (void)json_array_append_new(list, json_pack("{s:s,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function",
                                                    "name", json_object_get(call, "name"), "arguments",
                                                    json_object_get(call, "arguments")));
    }
    return list;
}

static void chat_reply(spl_exchange *x) {
    spl_generation *g = x->generation;
    json_t *content = g->content.n_bytes ? json_stringn(g->content.data, g->content.n_bytes) : json_null();
    json_t *message = json_pack("{s:s,s:o}", "role", "assistant", "content", content);
    if (g->reasoning.n_bytes)
        (void)json_object_set_new(message, "reasoning_content", json_stringn(g->reasoning.data, g->reasoning.n_bytes));
    if (g->n_calls) (void)json_object_set_new(message, "tool_calls", calls_json(x));
    json_t *choice = json_pack("{s:i,s:o,s:s}", "index", 0, "message", message, "finish_reason", spl_openai_finish(g));
    json_t *logprobs = spl_openai_logprobs(g);
    if (logprobs) (void)json_object_set_new(choice, "logprobs", logprobs);
    bool whole =
        g->content.status == SPL_OK && g->reasoning.status == SPL_OK && json_array_size(g->calls) == g->n_calls;
    json_t *reply = json_pack("{s:o,s:s,s:I,s:s,s:[o],s:o,s:o,s:o}", "id", spl_openai_id("chatcmpl-", x), "object",
                              "chat.completion", "created", (json_int_t)g->created, "model", x->server->reply_model,
                              "choices", choice, "usage", spl_openai_usage(g), "metrics", spl_openai_metrics(x),
                              "timings", spl_openai_timings(g));
    spl_openai_send(x, reply, whole);
}

static const spl_dialect_ops CHAT_OPS = {chat_begin, chat_progress,   chat_text,   chat_tool_call,
                                         chat_end,   chat_keep_alive, openai_fail, chat_reply};

/* ---- chat: request ------------------------------------------------------------------------- */

static bool read_chat_budget(const json_t *body, uint32_t *budget, spl_reject *r) {
    const char *key = spl_field(body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    *budget = 0;
    return spl_read_budget(body, key, budget, r);
}

static bool chat_submit(spl_exchange *x, spl_gen_fields *f, spl_chat_body *chat, uint32_t budget, spl_reject *r) {
    uint32_t *tokens = NULL;
    size_t n_tokens = 0;
    bool thinking = false;
    char *tools = NULL;
    bool ok = spl_prompt_from_chat(x, chat, &tokens, &n_tokens, &thinking, r) &&
              spl_check_context(n_tokens, budget, x->server->info.context_tokens, r);
    if (ok && chat->tools && !chat->tools_callable) ok = spl_forbid_calls(x, f, r);
    if (ok && chat->tools_callable) {
        tools = spl_json_text(chat->tools);
        if (!tools) ok = spl_reject_set(r, 503, "frontend_overloaded", "not enough memory for 'tools'");
    }
    if (ok) {
        spl_generation_start start = {.ops = &CHAT_OPS,
                                      .label = "chat",
                                      .fields = f,
                                      .tokens = tokens,
                                      .n_tokens = n_tokens,
                                      .max_new_tokens = budget,
                                      .chat = true,
                                      .starts_in_reasoning = thinking,
                                      .parallel_calls = chat->parallel_calls,
                                      .tools_json = tools};
        ok = spl_generation_submit(x, &start, r);
    }
    free(tokens);
    free(tools);
    return ok;
}

void spl_route_chat(spl_exchange *x) {
    const json_t *body = x->body.root;
    spl_reject why;
    spl_gen_fields fields;
    spl_chat_body chat = {0};
    uint32_t budget;
    if (!spl_gen_fields_read(&fields, &x->body, &x->server->limits, &why)) {
        spl_exchange_reject(x, &why);
        return;
    }
    bool ok = spl_read_stop(&fields, body, "stop", &why) && spl_read_chat_logprobs(&fields, body, &why) &&
              read_chat_budget(body, &budget, &why) &&
              spl_chat_body_read(&chat, body, x->server->options.default_effort, &why);
    if (ok && fields.n_stop && chat.tools_callable)
        ok = spl_reject_field(&why, "'stop' cannot be used together with callable 'tools': it could cut a call");
    if (ok) ok = chat_submit(x, &fields, &chat, budget, &why);
    if (!ok) spl_exchange_reject(x, &why);
    spl_gen_fields_free(&fields);
    spl_chat_body_free(&chat);
}

/* ---- text completions ---------------------------------------------------------------------- */

static json_t *text_object(const spl_exchange *x, const char *text, size_t n_bytes, json_t *logprobs,
                           const char *finish) {
    json_t *choice = json_pack("{s:i,s:o,s:o,s:s?}", "index", 0, "text", json_stringn(text, n_bytes), "logprobs",
                               logprobs ? logprobs : json_null(), "finish_reason", finish);
    return json_pack("{s:o,s:s,s:I,s:s,s:[o]}", "id", spl_openai_id("cmpl-", x), "object", "text_completion", "created",
                     (json_int_t)x->generation->created, "model", x->server->reply_model, "choices", choice);
}

static void text_begin(spl_exchange *x) { (void)x; }

static void text_progress(spl_exchange *x, uint32_t n_done, uint32_t n_total) {
    json_t *chunk = text_object(x, "", 0, NULL, NULL);
    (void)json_object_set_new(chunk, "prompt_progress", spl_openai_progress(x, n_done, n_total));
    spl_exchange_stream_json(x, NULL, chunk);
}

static void text_text(spl_exchange *x, splash_channel channel, const char *text, size_t n_bytes) {
    (void)channel;
    spl_exchange_stream_json(x, NULL, text_object(x, text, n_bytes, spl_openai_text_logprobs(x->generation), NULL));
}

static void text_tool_call(spl_exchange *x, uint32_t i_call, const char *name, const char *arguments) {
    (void)x, (void)i_call, (void)name, (void)arguments; /* none are asked for */
}

static void text_end(spl_exchange *x) {
    spl_generation *g = x->generation;
    json_t *last = text_object(x, "", 0, spl_openai_text_logprobs(g), spl_openai_finish(g));
    (void)json_object_set_new(last, "timings", spl_openai_timings(g));
    spl_exchange_stream_json(x, NULL, last);
    if (g->include_usage) {
        json_t *usage = json_pack("{s:o,s:s,s:I,s:s,s:[],s:o,s:o}", "id", spl_openai_id("cmpl-", x), "object",
                                  "text_completion", "created", (json_int_t)g->created, "model", x->server->reply_model,
                                  "choices", "usage", spl_openai_usage(g), "metrics", spl_openai_metrics(x));
        spl_exchange_stream_json(x, NULL, usage);
    }
    spl_exchange_stream_write(x, "data: [DONE]\n\n", 14);
}

static void text_keep_alive(spl_exchange *x, bool started) {
    if (started)
        spl_exchange_stream_json(x, NULL, text_object(x, "", 0, NULL, NULL));
    else
        spl_exchange_stream_write(x, ": keep-alive\n\n", 14);
}

static void text_reply(spl_exchange *x) {
    spl_generation *g = x->generation;
    json_t *reply = text_object(x, g->content.data ? g->content.data : "", g->content.n_bytes,
                                spl_openai_text_logprobs(g), spl_openai_finish(g));
    (void)json_object_set_new(reply, "usage", spl_openai_usage(g));
    (void)json_object_set_new(reply, "metrics", spl_openai_metrics(x));
    (void)json_object_set_new(reply, "timings", spl_openai_timings(g));
    spl_openai_send(x, reply, g->content.status == SPL_OK);
}

static const spl_dialect_ops TEXT_OPS = {text_begin, text_progress,   text_text,   text_tool_call,
                                         text_end,   text_keep_alive, openai_fail, text_reply};

static bool refuse_text_fields(const json_t *body, spl_reject *r) {
    const json_t *suffix = spl_field(body, "suffix");
    bool echo = false;
    int64_t best_of = 1;
    if (suffix && !(json_is_string(suffix) && json_string_length(suffix) == 0))
        return spl_reject_field(r, "'suffix' is not supported");
    if (!spl_field_bool(body, "echo", &echo, r) || !spl_field_int(body, "best_of", INT64_MIN, INT64_MAX, &best_of, r))
        return false;
    if (echo) return spl_reject_field(r, "'echo': true is not supported");
    return best_of == 1 ? true : spl_reject_field(r, "'best_of' must be 1");
}

static bool text_submit(spl_exchange *x, spl_gen_fields *f, spl_reject *r) {
    const json_t *text, *body = x->body.root;
    uint32_t context = x->server->info.context_tokens, budget = 0;
    uint32_t *tokens;
    size_t n;
    if (!spl_read_stop(f, body, "stop", r) || !spl_read_text_logprobs(f, body, r) || !refuse_text_fields(body, r) ||
        !spl_read_budget(body, "max_tokens", &budget, r) ||
        !spl_read_prompt(body, x->server->info.vocab, &text, &tokens, &n, r))
        return false;
    if (text && !spl_prompt_tokenize(x, json_string_value(text), json_string_length(text), &tokens, &n, r))
        return false;
    bool ok = n > 0 ? true : spl_reject_field(r, "'prompt' has no tokens");
    if (ok) ok = spl_check_context(n, budget, context, r);
    if (ok) {
        if (!budget) budget = context - (uint32_t)n < 16 ? context - (uint32_t)n : 16;
        spl_generation_start start = {.ops = &TEXT_OPS,
                                      .label = "text",
                                      .fields = f,
                                      .tokens = tokens,
                                      .n_tokens = n,
                                      .max_new_tokens = budget,
                                      .parallel_calls = true};
        ok = spl_generation_submit(x, &start, r);
    }
    free(tokens);
    return ok;
}

void spl_route_completions(spl_exchange *x) {
    spl_reject why;
    spl_gen_fields fields;
    bool ok = spl_gen_fields_read(&fields, &x->body, &x->server->limits, &why);
    if (ok) {
        ok = text_submit(x, &fields, &why);
        spl_gen_fields_free(&fields);
    }
    if (!ok) spl_exchange_reject(x, &why);
}
