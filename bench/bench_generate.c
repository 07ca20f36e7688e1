/* SPDX-License-Identifier: Apache-2.0
 * Prompts in, answers out, through include/splash.h alone: what is measured is what a program sees. */
#include "bench/bench_generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/json.h"

enum { MAX_FILE_BYTES = 256 << 20, MAX_LINE_BYTES = 16 << 20, MAX_ANSWER_BYTES = 64 << 20, POLL_MS = 1000 };

spl_status spl_bench_public_error(spl_error *err, const splash_error *error) {
    return spl_fail(err, (spl_status)error->code, "%s", error->text);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static spl_status read_turns(spl_bench_prompt *p, const char *where, spl_error *err) {
    const json_t *turns = json_object_get(p->source, "turns"), *prompt = json_object_get(p->source, "prompt");
    if (!prompt) prompt = json_object_get(p->source, "question");
    if (json_is_string(prompt)) {
        p->turns[p->n_turns++] = json_string_value(prompt);
        return SPL_OK;
    }
    for (size_t i = 0; i < json_array_size(turns); i++) {
        const char *text = json_string_value(json_array_get(turns, i));
        if (!text || p->n_turns == SPL_COUNT(p->turns))
            return spl_fail(err, SPL_E_FORMAT, "%s: 'turns' must be at most %zu texts", where, SPL_COUNT(p->turns));
        p->turns[p->n_turns++] = text;
    }
    if (p->n_turns > 0) return SPL_OK;
    return spl_fail(err, SPL_E_FORMAT, "%s: neither 'prompt' nor 'question' nor 'turns'", where);
}

static spl_status read_prompt(spl_bench_prompt *p, const char *line, size_t n_bytes, const char *where, uint32_t number,
                              spl_error *err) {
    *p = (spl_bench_prompt){.thinking = -1};
    spl_status st = spl_json_parse(&p->source, line, n_bytes, MAX_LINE_BYTES, where, err);
    if (st != SPL_OK) return st;
    if (!json_is_object(p->source)) return spl_fail(err, SPL_E_FORMAT, "%s: not an object", where);
    st = read_turns(p, where, err);
    const json_t *id = json_object_get(p->source, "id"), *thinking = json_object_get(p->source, "thinking");
    if (json_is_string(id)) {
        (void)snprintf(p->id, sizeof p->id, "%s", json_string_value(id));
    } else if (json_is_integer(id)) {
        (void)snprintf(p->id, sizeof p->id, "%lld", (long long)json_integer_value(id));
    } else {
        (void)snprintf(p->id, sizeof p->id, "%u", number);
    }
    p->raw = json_is_true(json_object_get(p->source, "raw"));
    if (json_is_boolean(thinking)) p->thinking = json_is_true(thinking);
    p->kind = json_string_value(json_object_get(p->source, "kind"));
    p->answer = json_string_value(json_object_get(p->source, "answer"));
    if (p->raw && p->n_turns > 1 && st == SPL_OK)
        st = spl_fail(err, SPL_E_FORMAT, "%s: a raw prompt has one turn", where);
    return st;
}

spl_status spl_bench_prompts_read(spl_bench_prompts *out, const char *path, uint32_t limit, spl_error *err) {
    char *text = NULL, where[300];
    size_t n_bytes = 0, line_number = 0;
    *out = (spl_bench_prompts){0};
    spl_status st = spl_read_file(path, MAX_FILE_BYTES, &text, &n_bytes, err);
    for (size_t at = 0; st == SPL_OK && at < n_bytes && (limit == 0 || out->n < limit);) {
        const char *end = memchr(text + at, '\n', n_bytes - at);
        size_t n = end ? (size_t)(end - text) - at : n_bytes - at;
        line_number++;
        (void)snprintf(where, sizeof where, "%.250s, line %zu", path, line_number);
        if (n > 0) {
            spl_bench_prompt *grown = realloc(out->items, (out->n + 1) * sizeof *grown);
            if (grown) {
                out->items = grown;
                st = read_prompt(&grown[out->n++], text + at, n, where, (uint32_t)line_number, err);
            } else {
                st = spl_fail(err, SPL_E_NOMEM, "no memory for the prompts of %s", path);
            }
        }
        at += n + 1;
    }
    free(text);
    if (st == SPL_OK && out->n == 0) st = spl_fail(err, SPL_E_FORMAT, "%s has no prompts", path);
    if (st != SPL_OK) spl_bench_prompts_free(out);
    return st;
}

void spl_bench_prompts_free(spl_bench_prompts *p) {
    for (uint32_t i = 0; i < p->n; i++) json_decref(p->items[i].source);
    free(p->items);
    *p = (spl_bench_prompts){0};
}

/* ---- the engine ------------------------------------------------------------------------------ */

spl_status spl_bench_engine(splash_engine **out, const spl_bench_options *o, bool plain, uint32_t context_tokens,
                            spl_error *err) {
    splash_error error = {0};
    splash_options options = {.model = o->model,
                              .random_weights = o->random_weights,
                              .n_layers = o->n_layers,
                              .context_tokens = context_tokens,
                              .n_threads = o->n_threads,
                              .cpu_tier = o->cpu_tier,
                              .memory_limit_bytes = o->memory_limit_bytes,
                              .random_draft = o->random_weights && o->draft,
                              .lock_weights = o->lock_weights,
                              .tuning_folder = o->tuning_folder,
                              .debug = o->debug,
                              .debug_user = o->progress_user,
                              .no_huge_pages = o->no_huge_pages,
                              .no_draft = plain,
                              .no_lookup = plain || o->no_lookup,
                              .fixed_rows = plain ? 0 : o->rows};
    *out = NULL;
    if (splash_open(out, &options, &error) == SPLASH_OK) return SPL_OK;
    return spl_bench_public_error(err, &error);
}

static spl_status bytes_as_tokens(spl_bench_input *out, const splash_engine *e, const char *text, spl_error *err) {
    splash_model_info info;
    splash_model_info_get(e, &info);
    size_t n = strlen(text);
    uint32_t *grown = realloc(out->tokens, (out->n_tokens + n + 1) * sizeof *grown);
    if (!grown) return spl_fail(err, SPL_E_NOMEM, "no memory for a prompt of %zu bytes", n);
    out->tokens = grown;
    for (size_t i = 0; i < n; i++) grown[out->n_tokens++] = (uint8_t)text[i] % info.vocab;
    return SPL_OK;
}

static bool has_tokenizer(const splash_engine *e) {
    splash_model_info info;
    splash_model_info_get(e, &info);
    return info.has_tokenizer;
}

static spl_status tokenize(spl_bench_input *out, const splash_engine *e, const char *text, size_t n_bytes,
                           spl_error *err) {
    splash_error error = {0};
    if (splash_tokenize(e, text, n_bytes, true, &out->tokens, &out->n_tokens, &error) == SPLASH_OK) return SPL_OK;
    return spl_bench_public_error(err, &error);
}

spl_status spl_bench_input_raw(spl_bench_input *out, const splash_engine *e, const char *text, spl_error *err) {
    *out = (spl_bench_input){0};
    if (!has_tokenizer(e)) return bytes_as_tokens(out, e, text, err);
    return tokenize(out, e, text, strlen(text), err);
}

spl_status spl_bench_input_chat(spl_bench_input *out, const splash_engine *e, const json_t *messages, int thinking,
                                spl_error *err) {
    splash_error error = {0};
    spl_status st = SPL_OK;
    size_t i, n_bytes;
    json_t *message;
    char *text = NULL;
    *out = (spl_bench_input){0};
    if (!has_tokenizer(e)) {
        json_array_foreach(messages, i, message) {
            const char *content = json_string_value(json_object_get(message, "content"));
            if (st == SPL_OK) st = bytes_as_tokens(out, e, content ? content : "", err);
        }
        return st;
    }
    json_t *request = json_pack("{s:O,s:b}", "messages", messages, "add_generation_prompt", 1);
    if (request && thinking >= 0) (void)json_object_set_new(request, "enable_thinking", json_boolean(thinking));
    char *json = request ? json_dumps(request, JSON_COMPACT) : NULL;
    json_decref(request);
    if (!json) return spl_fail(err, SPL_E_NOMEM, "no memory for a chat");
    out->chat = true;
    if (splash_render_chat(e, json, strlen(json), &text, &n_bytes, &out->starts_in_reasoning, &error) != SPLASH_OK)
        st = spl_bench_public_error(err, &error);
    free(json);
    if (st == SPL_OK) st = tokenize(out, e, text, n_bytes, err);
    free(text);
    return st;
}

void spl_bench_input_free(spl_bench_input *in) {
    free(in->tokens);
    *in = (spl_bench_input){0};
}

/* ---- answers --------------------------------------------------------------------------------- */

static spl_status keep_token(spl_bench_answer *a, uint32_t token, spl_error *err) {
    if (a->n_tokens == a->capacity) {
        size_t capacity = a->capacity ? a->capacity * 2 : 256;
        uint32_t *grown = realloc(a->tokens, capacity * sizeof *grown);
        if (!grown) return spl_fail(err, SPL_E_NOMEM, "no memory for an answer of %zu tokens", capacity);
        a->tokens = grown;
        a->capacity = capacity;
    }
    a->tokens[a->n_tokens++] = token;
    return SPL_OK;
}

/* Reads the request's events to their end, whatever goes wrong here meanwhile. */
static spl_status collect(spl_bench_answer *a, splash_engine *e, spl_error *err) {
    spl_status st = SPL_OK;
    for (;;) {
        splash_event ev = {0};
        if (splash_next_event(e, &ev, POLL_MS) != SPLASH_OK)
            return spl_fail(err, SPL_E_INTERNAL, "the engine stopped during an answer");
        if (ev.kind == SPLASH_EVENT_TOKEN && st == SPL_OK) st = keep_token(a, ev.token, err);
        if (ev.kind == SPLASH_EVENT_TEXT)
            (void)spl_buf_append(ev.channel == SPLASH_REASONING ? &a->reasoning : &a->content, ev.text,
                                 ev.n_text_bytes);
        if (ev.kind == SPLASH_EVENT_FAILED) return spl_bench_public_error(err, &ev.error);
        if (ev.kind != SPLASH_EVENT_DONE) continue;
        a->usage = ev.usage;
        a->finish = ev.finish;
        if (st == SPL_OK && a->content.status != SPL_OK) st = spl_fail(err, a->content.status, "an answer too long");
        return st;
    }
}

spl_status spl_bench_answer_get(spl_bench_answer *out, splash_engine *e, const spl_bench_input *in, uint32_t max_tokens,
                                double temperature, uint64_t seed, spl_error *err) {
    splash_error error = {0};
    splash_model_info info;
    splash_request *request;
    *out = (spl_bench_answer){0};
    spl_buf_init(&out->content, MAX_ANSWER_BYTES);
    spl_buf_init(&out->reasoning, MAX_ANSWER_BYTES);
    splash_model_info_get(e, &info);
    splash_prompt prompt = {.tokens = in->tokens,
                            .n_tokens = in->n_tokens,
                            .max_new_tokens = max_tokens,
                            .sampling = {.top_p = 1, .repetition_penalty = 1},
                            .ignore_eos = !info.has_tokenizer,
                            .chat = in->chat,
                            .starts_in_reasoning = in->starts_in_reasoning};
    if (temperature > 0) {
        prompt.sampling = info.defaults;
        prompt.sampling.temperature = (float)temperature;
        prompt.sampling.seed = seed;
    }
    if (splash_submit(e, &prompt, &request, &error) != SPLASH_OK) return spl_bench_public_error(err, &error);
    return collect(out, e, err);
}

void spl_bench_answer_free(spl_bench_answer *a) {
    free(a->tokens);
    spl_buf_free(&a->content);
    spl_buf_free(&a->reasoning);
    *a = (spl_bench_answer){0};
}
