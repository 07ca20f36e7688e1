/* SPDX-License-Identifier: Apache-2.0
 * /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API over the Chat pipeline. */
#include <stdlib.h>
#include <string.h>

#include "server/generation.h"
#include "server/messages_body.h"
#include "server/openai_shapes.h"
#include "server/prompt.h"
#include "server/routes.h"

enum { FRAGMENT_BYTES = 16384 };

typedef enum spl_block { BLOCK_NONE, BLOCK_TEXT, BLOCK_THINKING } spl_block;

/* dialect_state of a generation. */
typedef struct spl_messages_state {
    spl_block open;
    uint32_t index; /* of the open block, or of the next one */
    bool omit_thinking;
} spl_messages_state;

static json_t *usage_json(const spl_generation *g, bool final) {
    const splash_usage *u = &g->usage;
    uint32_t prompt = final ? u->prompt_tokens : g->n_prompt, cached = final ? u->cached_tokens : 0;
    return json_pack("{s:I,s:I,s:I}", "input_tokens", (json_int_t)(prompt - cached), "cache_read_input_tokens",
                     (json_int_t)cached, "output_tokens", (json_int_t)(final ? u->completion_tokens : 0));
}

static const char *stop_reason(const spl_generation *g) {
    if (g->finish == SPLASH_FINISH_LENGTH) return g->budget_clamped ? "model_context_window_exceeded" : "max_tokens";
    if (g->n_calls) return "tool_use";
    return g->stop_string ? "stop_sequence" : "end_turn";
}

static json_t *message_json(const spl_exchange *x, json_t *content, bool final) {
    const spl_generation *g = x->generation;
    return json_pack("{s:o,s:s,s:s,s:s,s:o,s:s?,s:s?,s:o}", "id", spl_openai_id("msg_", x), "type", "message", "role",
                     "assistant", "model", x->server->reply_model, "content", content, "stop_reason",
                     final ? stop_reason(g) : NULL, "stop_sequence", final ? g->stop_string : NULL, "usage",
                     usage_json(g, final));
}

/* ---- streamed ------------------------------------------------------------------------------ */

static void messages_begin(spl_exchange *x) {
    spl_exchange_stream_json(
        x, "message_start",
        json_pack("{s:s,s:o}", "type", "message_start", "message", message_json(x, json_array(), false)));
}

static void send_delta(spl_exchange *x, json_t *delta) {
    const spl_messages_state *s = x->generation->dialect_state;
    spl_exchange_stream_json(
        x, "content_block_delta",
        json_pack("{s:s,s:I,s:o}", "type", "content_block_delta", "index", (json_int_t)s->index, "delta", delta));
}

static void send_start(spl_exchange *x, json_t *block) {
    const spl_messages_state *s = x->generation->dialect_state;
    spl_exchange_stream_json(x, "content_block_start",
                             json_pack("{s:s,s:I,s:o}", "type", "content_block_start", "index", (json_int_t)s->index,
                                       "content_block", block));
}

static void send_stop(spl_exchange *x) {
    spl_messages_state *s = x->generation->dialect_state;
    spl_exchange_stream_json(x, "content_block_stop",
                             json_pack("{s:s,s:I}", "type", "content_block_stop", "index", (json_int_t)s->index));
    s->index++;
    s->open = BLOCK_NONE;
}

static void switch_to(spl_exchange *x, spl_block kind) {
    spl_messages_state *s = x->generation->dialect_state;
    if (s->open == kind) return;
    if (s->open != BLOCK_NONE) send_stop(x);
    if (kind == BLOCK_TEXT)
        send_start(x, json_pack("{s:s,s:s}", "type", "text", "text", ""));
    else
        send_start(x, json_pack("{s:s,s:s,s:s}", "type", "thinking", "thinking", "", "signature", ""));
    s->open = kind;
}

static void messages_text(spl_exchange *x, splash_channel channel, const char *text, size_t n_bytes) {
    const spl_messages_state *s = x->generation->dialect_state;
    if (channel == SPLASH_CONTENT) {
        switch_to(x, BLOCK_TEXT);
        send_delta(x, json_pack("{s:s,s:o}", "type", "text_delta", "text", json_stringn(text, n_bytes)));
        return;
    }
    bool opens = s->open != BLOCK_THINKING;
    switch_to(x, BLOCK_THINKING);
    if (!s->omit_thinking)
        send_delta(x, json_pack("{s:s,s:o}", "type", "thinking_delta", "thinking", json_stringn(text, n_bytes)));
    else if (opens)
        send_delta(x, json_pack("{s:s,s:s}", "type", "thinking_delta", "thinking", ""));
}

/* End of the piece of `text` that starts at `from`: at most FRAGMENT_BYTES, never inside a character. */
static size_t fragment_end(const char *text, size_t n, size_t from) {
    size_t to = n - from > FRAGMENT_BYTES ? from + FRAGMENT_BYTES : n;
    while (to < n && to > from && ((unsigned char)text[to] & 0xc0) == 0x80) to--;
    return to;
}

static void messages_tool_call(spl_exchange *x, uint32_t i_call, const char *name, const char *arguments) {
    spl_messages_state *s = x->generation->dialect_state;
    char id[SPL_PID_BYTES + 24];
    size_t n = strlen(arguments);
    if (s->open != BLOCK_NONE) send_stop(x);
    spl_call_id(x, i_call, id, sizeof id);
    send_start(x, json_pack("{s:s,s:s,s:s,s:{}}", "type", "tool_use", "id", id, "name", name, "input"));
    for (size_t from = 0; from < n;) {
        size_t to = fragment_end(arguments, n, from);
        send_delta(x, json_pack("{s:s,s:o}", "type", "input_json_delta", "partial_json",
                                json_stringn(arguments + from, to - from)));
        from = to;
    }
    send_stop(x);
}

static void messages_end(spl_exchange *x) {
    spl_generation *g = x->generation;
    const spl_messages_state *s = g->dialect_state;
    if (s->open == BLOCK_NONE && s->index == 0) switch_to(x, BLOCK_TEXT);
    if (s->open != BLOCK_NONE) send_stop(x);
    spl_exchange_stream_json(x, "message_delta",
                             json_pack("{s:s,s:{s:s,s:s?},s:o}", "type", "message_delta", "delta", "stop_reason",
                                       stop_reason(g), "stop_sequence", g->stop_string, "usage", usage_json(g, true)));
    spl_exchange_stream_json(x, "message_stop", json_pack("{s:s}", "type", "message_stop"));
}

static void messages_keep_alive(spl_exchange *x, bool started) {
    (void)started;
    spl_exchange_stream_json(x, "ping", json_pack("{s:s}", "type", "ping"));
}

static void messages_progress(spl_exchange *x, uint32_t n_done, uint32_t n_total) {
    spl_exchange_stream_json(
        x, "ping", json_pack("{s:s,s:o}", "type", "ping", "prompt_progress", spl_openai_progress(x, n_done, n_total)));
}

static void messages_fail(spl_exchange *x, const spl_reject *why) {
    spl_exchange_stream_json(x, "error", spl_error_json(SPL_DIALECT_ANTHROPIC, why->status, why->code, why->text));
}

/* ---- whole --------------------------------------------------------------------------------- */

static void add_calls(const spl_exchange *x, json_t *blocks) {
    json_t *call;
    char id[SPL_PID_BYTES + 24];
    size_t i;
    json_array_foreach(x->generation->calls, i, call) {
        const json_t *text = json_object_get(call, "arguments");
        json_t *input = json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL, NULL);
        spl_call_id(x, (uint32_t)i, id, sizeof id);
        (void)json_array_append_new(blocks,
                                    json_pack("{s:s,s:s,s:O,s:o}", "type", "tool_use", "id", id, "name",
                                              json_object_get(call, "name"), "input", input ? input : json_object()));
    }
}

static void messages_reply(spl_exchange *x) {
    spl_generation *g = x->generation;
    const spl_messages_state *s = g->dialect_state;
    json_t *blocks = json_array();
    if (g->reasoning.n_bytes)
        (void)json_array_append_new(
            blocks,
            json_pack("{s:s,s:o,s:s}", "type", "thinking", "thinking",
                      s->omit_thinking ? json_string("") : json_stringn(g->reasoning.data, g->reasoning.n_bytes),
                      "signature", ""));
    if (g->content.n_bytes || (g->n_calls == 0 && g->reasoning.n_bytes == 0))
        (void)json_array_append_new(
            blocks, json_pack("{s:s,s:o}", "type", "text", "text",
                              json_stringn(g->content.data ? g->content.data : "", g->content.n_bytes)));
    add_calls(x, blocks);
    bool whole =
        g->content.status == SPL_OK && g->reasoning.status == SPL_OK && json_array_size(g->calls) == g->n_calls;
    spl_openai_send(x, message_json(x, blocks, true), whole);
}

static const spl_dialect_ops MESSAGES_OPS = {messages_begin, messages_progress,   messages_text, messages_tool_call,
                                             messages_end,   messages_keep_alive, messages_fail, messages_reply};

/* ---- requests ------------------------------------------------------------------------------ */

static bool submit(spl_exchange *x, spl_gen_fields *f, const spl_messages_body *m, spl_chat_body *chat, spl_reject *r) {
    uint32_t *tokens = NULL, context = x->server->info.context_tokens;
    size_t n_tokens = 0;
    bool thinking = false;
    char *tools = NULL;
    bool ok =
        spl_prompt_from_chat(x, chat, &tokens, &n_tokens, &thinking, r) && spl_check_context(n_tokens, 0, context, r);
    if (ok && chat->tools && !chat->tools_callable) ok = spl_forbid_calls(x, f, r);
    if (ok && chat->tools_callable && !(tools = spl_json_text(chat->tools)))
        ok = spl_reject_set(r, 503, "frontend_overloaded", "not enough memory for 'tools'");
    spl_messages_state *state = ok ? calloc(1, sizeof *state) : NULL;
    if (ok && !state) ok = spl_reject_set(r, 503, "frontend_overloaded", "not enough memory for the request");
    if (ok) {
        uint32_t left = context - (uint32_t)n_tokens;
        bool clamped = m->max_tokens > left;
        state->omit_thinking = m->omit_thinking;
        spl_generation_start start = {.ops = &MESSAGES_OPS,
                                      .label = "messages",
                                      .fields = f,
                                      .tokens = tokens,
                                      .n_tokens = n_tokens,
                                      .max_new_tokens = clamped ? left : m->max_tokens,
                                      .budget_clamped = clamped,
                                      .chat = true,
                                      .starts_in_reasoning = thinking,
                                      .parallel_calls = chat->parallel_calls,
                                      .tools_json = tools,
                                      .dialect_state = state};
        ok = spl_generation_submit(x, &start, r);
    }
    free(tokens);
    free(tools);
    return ok;
}

void spl_route_messages(spl_exchange *x) {
    const json_t *body = x->body.root;
    spl_reject why;
    spl_gen_fields fields = {0};
    spl_messages_body messages = {0};
    spl_chat_body chat = {0};
    bool ok = spl_messages_body_read(&messages, body, false, &why) &&
              spl_gen_fields_read(&fields, &x->body, &x->server->limits, &why);
    if (ok)
        ok = spl_read_stop(&fields, body, "stop_sequences", &why) &&
             spl_chat_body_read(&chat, messages.chat, NULL, &why);
    if (ok && fields.n_stop && chat.tools_callable)
        ok = spl_reject_field(&why,
                              "'stop_sequences' cannot be used together with callable 'tools': it could cut a call");
    if (ok) ok = submit(x, &fields, &messages, &chat, &why);
    if (!ok) spl_exchange_reject(x, &why);
    spl_gen_fields_free(&fields);
    spl_chat_body_free(&chat);
    spl_messages_body_free(&messages);
}

void spl_route_count_tokens(spl_exchange *x) {
    spl_reject why;
    spl_messages_body messages = {0};
    spl_chat_body chat = {0};
    uint32_t *tokens = NULL;
    size_t n_tokens = 0;
    bool thinking;
    bool ok = spl_messages_body_read(&messages, x->body.root, true, &why) &&
              spl_read_model(x->body.root, &x->server->limits, &why) &&
              spl_chat_body_read(&chat, messages.chat, NULL, &why) &&
              spl_prompt_from_chat(x, &chat, &tokens, &n_tokens, &thinking, &why);
    if (ok)
        spl_exchange_reply_json(x, 200, json_pack("{s:I}", "input_tokens", (json_int_t)n_tokens));
    else
        spl_exchange_reject(x, &why);
    free(tokens);
    spl_chat_body_free(&chat);
    spl_messages_body_free(&messages);
}
