/* SPDX-License-Identifier: Apache-2.0
 * Terminal turns. */
#include "cli/turn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/signals.h"

enum { POLL_MS = 50 };

static spl_status from_engine(spl_error *err, const splash_error *error) {
    return spl_fail(err, (spl_status)error->code, "%s", error->text);
}

/* Shows and keeps a piece of text; the change between reasoning and content gets a line break. */
static void on_text(const spl_turn_options *o, spl_turn_result *r, const splash_event *ev) {
    bool reasoning = ev->channel == SPLASH_REASONING;
    (void)spl_buf_append(reasoning ? &r->reasoning : &r->content, ev->text, ev->n_text_bytes);
    if (reasoning && o->show_reasoning) {
        bool dim = isatty(STDERR_FILENO) == 1;
        (void)fprintf(stderr, "%s%s%s", dim ? "\033[2m" : "", ev->text, dim ? "\033[0m" : "");
        (void)fflush(stderr);
    } else if (!reasoning && o->show_content) {
        if (o->show_reasoning && r->reasoning.n_bytes && r->content.n_bytes == ev->n_text_bytes)
            (void)fputs("\n\n", stderr);
        (void)fwrite(ev->text, 1, ev->n_text_bytes, stdout);
        (void)fflush(stdout);
    }
}

static spl_status collect(splash_engine *engine, splash_request *request, const spl_turn_options *o, spl_turn_result *r,
                          spl_error *err) {
    bool cancelled = false;
    for (;;) {
        splash_event ev = {0};
        if (splash_next_event(engine, &ev, POLL_MS) != SPLASH_OK)
            return spl_fail(err, SPL_E_INTERNAL, "the engine stopped");
        if (!cancelled && spl_signal_pending() && ev.kind != SPLASH_EVENT_DONE && ev.kind != SPLASH_EVENT_FAILED) {
            splash_cancel(engine, request);
            cancelled = r->interrupted = true;
        }
        if (ev.kind == SPLASH_EVENT_TEXT) on_text(o, r, &ev);
        if (ev.kind == SPLASH_EVENT_DONE) {
            r->usage = ev.usage;
            r->finish = ev.finish;
            return r->content.status == SPL_OK ? SPL_OK : spl_fail(err, r->content.status, "no memory for the answer");
        }
        if (ev.kind == SPLASH_EVENT_FAILED) return from_engine(err, &ev.error);
    }
}

static spl_status generate(splash_engine *engine, const char *text, size_t n_bytes, bool chat, bool thinking,
                           const spl_turn_options *o, spl_turn_result *r, spl_error *err) {
    splash_error error = {0};
    splash_model_info info;
    splash_request *request;
    uint32_t *tokens;
    size_t n_tokens;
    *r = (spl_turn_result){0};
    spl_buf_init(&r->content, SIZE_MAX / 2);
    spl_buf_init(&r->reasoning, SIZE_MAX / 2);
    splash_model_info_get(engine, &info);
    if (splash_tokenize(engine, text, n_bytes, true, &tokens, &n_tokens, &error) != SPLASH_OK)
        return from_engine(err, &error);
    splash_prompt prompt = {.tokens = tokens,
                            .n_tokens = n_tokens,
                            .max_new_tokens = o->max_tokens,
                            .sampling = info.defaults,
                            .chat = chat,
                            .starts_in_reasoning = thinking};
    if (o->temperature >= 0) prompt.sampling.temperature = (float)o->temperature;
    prompt.sampling.seed = o->seed_given ? o->seed : spl_now_ns();
    splash_status st = n_tokens ? splash_submit(engine, &prompt, &request, &error) : SPLASH_OK;
    free(tokens);
    if (!n_tokens) return spl_fail(err, SPL_E_INVALID, "the prompt is empty");
    if (st != SPLASH_OK) return from_engine(err, &error);
    return collect(engine, request, o, r, err);
}

spl_status spl_turn_raw(splash_engine *engine, const char *text, size_t n_bytes, const spl_turn_options *o,
                        spl_turn_result *out, spl_error *err) {
    return generate(engine, text, n_bytes, false, false, o, out, err);
}

spl_status spl_turn_chat(splash_engine *engine, json_t *messages, const spl_turn_options *o, spl_turn_result *out,
                         spl_error *err) {
    splash_error error = {0};
    char *text = NULL;
    size_t n_bytes = 0;
    bool thinking = false;
    *out = (spl_turn_result){0};
    json_t *request = json_pack("{s:O,s:b}", "messages", messages, "add_generation_prompt", 1);
    if (request && o->no_think) (void)json_object_set_new(request, "enable_thinking", json_false());
    char *json = request ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    if (!json) return spl_fail(err, SPL_E_NOMEM, "no memory for the chat");
    splash_status st = splash_render_chat(engine, json, strlen(json), &text, &n_bytes, &thinking, &error);
    free(json);
    if (st != SPLASH_OK) return from_engine(err, &error);
    spl_status result = generate(engine, text, n_bytes, true, thinking, o, out, err);
    free(text);
    return result;
}

void spl_turn_free(spl_turn_result *result) {
    spl_buf_free(&result->content);
    spl_buf_free(&result->reasoning);
}

const char *spl_turn_finish(const spl_turn_result *r) {
    static const char *const names[] = {"stop", "length", "tool_calls", "cancelled"};
    return names[r->finish];
}

void spl_turn_stats(const spl_turn_result *r, char *out, size_t out_bytes) {
    const splash_usage *u = &r->usage;
    double rate = u->decode_ms > 0 ? u->completion_tokens * 1e3 / u->decode_ms : 0;
    int n = snprintf(out, out_bytes, "prompt %u (%u cached) · new %u · first token %.2f s · %.1f tok/s",
                     u->prompt_tokens, u->cached_tokens, u->completion_tokens, u->ttft_ms * 1e-3, rate);
    if (u->draft_tokens && n > 0 && (size_t)n < out_bytes)
        (void)snprintf(out + n, out_bytes - (size_t)n, " · draft %.0f %% accepted",
                       100.0 * u->draft_accepted / u->draft_tokens);
}
