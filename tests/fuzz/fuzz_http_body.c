/* SPDX-License-Identifier: Apache-2.0
 * Input: the bytes of a request body. Every endpoint's reader takes them: what is accepted lies within the documented
 * ranges and can be printed as JSON again, what is refused has a status, a code and one line of text. The bytes also
 * serve as a request target and as Host and Origin headers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/access.h"
#include "server/chat_body.h"
#include "server/gen_fields.h"
#include "server/messages_body.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(bool condition) {
    if (!condition) abort();
}

static void check_reject(const spl_reject *r) {
    check(r->status >= 400 && r->status < 600 && r->code && r->text[0] && strlen(r->text) < sizeof r->text);
}

static const spl_gen_limits LIMITS = {
    .model = "m",
    .vocab = 1000,
    .context_tokens = 4096,
    .defaults = {.temperature = 1, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1}};

static void check_fields(const spl_gen_fields *f) {
    const splash_sampling *s = &f->sampling;
    check(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->min_p >= 0 &&
          s->min_p <= 1);
    check(fabsf(s->presence_penalty) <= 2 && fabsf(s->frequency_penalty) <= 2);
    check(s->repetition_penalty > 0 && isfinite(s->repetition_penalty) && s->top_k >= -1);
    check(f->n_stop <= SPL_MAX_STOP && f->n_top_logprobs <= SPL_MAX_TOP_LOGPROBS && f->timeout_s >= 0);
    for (size_t i = 0; i < f->n_stop; i++) check(f->stop[i][0] && strlen(f->stop[i]) <= SPL_MAX_STOP_BYTES);
    for (size_t i = 0; i < f->n_bias; i++) check(f->bias[i].token < LIMITS.vocab && fabsf(f->bias[i].bias) <= 100);
    check(!f->return_progress || f->stream);
}

static void read_generation(const spl_body *body) {
    spl_reject why = {0};
    spl_gen_fields f;
    const json_t *text;
    uint32_t *ids, budget = 0;
    size_t n;
    if (!spl_gen_fields_read(&f, body, &LIMITS, &why)) {
        check_reject(&why);
        return;
    }
    bool ok = spl_read_stop(&f, body->root, "stop", &why) && spl_read_chat_logprobs(&f, body->root, &why) &&
              spl_read_budget(body->root, "max_tokens", &budget, &why);
    if (ok)
        check_fields(&f);
    else
        check_reject(&why);
    if (!spl_read_text_logprobs(&f, body->root, &why)) check_reject(&why);
    if (spl_read_prompt(body->root, LIMITS.vocab, &text, &ids, &n, &why)) {
        check((text != NULL) != (ids != NULL));
        for (size_t i = 0; ids && i < n; i++) check(ids[i] < LIMITS.vocab);
        free(ids);
    } else {
        check_reject(&why);
    }
    spl_gen_fields_free(&f);
}

static void read_chat(const json_t *body) {
    spl_reject why = {0};
    spl_chat_body chat;
    if (!spl_chat_body_read(&chat, body, NULL, &why)) {
        check_reject(&why);
        return;
    }
    char *text = json_dumps(chat.render, JSON_COMPACT);
    check(text != NULL && json_array_size(json_object_get(chat.render, "messages")) > 0);
    check(!chat.tools_callable || chat.tools);
    free(text);
    spl_chat_body_free(&chat);
}

static void read_messages(const json_t *body, bool counting) {
    spl_reject why = {0};
    spl_messages_body m;
    if (!spl_messages_body_read(&m, body, counting, &why)) {
        check_reject(&why);
        return;
    }
    check(counting || m.max_tokens > 0);
    read_chat(m.chat);
    spl_messages_body_free(&m);
}

static void read_path(const char *target) {
    char path[SPL_PATH_BYTES], again[SPL_PATH_BYTES];
    if (!spl_canonical_path(target, path, sizeof path)) return;
    check(path[0] == '/' && !strstr(path, "//") && !strstr(path, "/./") && !strstr(path, "/../"));
    if (!strpbrk(path, "%?#")) check(spl_canonical_path(path, again, sizeof again) && strcmp(path, again) == 0);
}

static void read_headers(const char *text) {
    static const char *const origins[] = {"https://app.example"};
    spl_access_rules rules = {
        .bind_host = "127.0.0.1", .allowed_origins = origins, .n_allowed_origins = 1, .api_key = "key"};
    spl_access_headers h = {
        .host = "localhost", .origin = text, .authorization = text, .n_host = 1, .n_origin = 1, .n_authorization = 1};
    spl_reject why = {0};
    const char *cors;
    if (spl_access_origin(&rules, &h, &cors, &why))
        check(!cors || strcmp(cors, origins[0]) == 0);
    else
        check_reject(&why);
    if (!spl_access_key(&rules, &h, &why)) check_reject(&why);
    h.host = text;
    h.n_origin = 0;
    if (!spl_access_origin(&rules, &h, &cors, &why)) check_reject(&why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    spl_reject why = {0};
    spl_body body;
    char *text = malloc(n_bytes + 1);
    if (!text) return 0;
    if (n_bytes) memcpy(text, data, n_bytes);
    text[n_bytes] = 0;
    read_path(text);
    read_headers(text);
    if (spl_body_decode(&body, text, n_bytes, &why)) {
        check(json_is_object(body.root));
        read_generation(&body);
        read_chat(body.root);
        read_messages(body.root, false);
        read_messages(body.root, true);
        spl_body_free(&body);
    } else {
        check_reject(&why);
        check(!body.root);
    }
    free(text);
    return 0;
}
