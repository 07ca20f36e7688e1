/* SPDX-License-Identifier: Apache-2.0
 * Chat to prompt tokens. */
#include "server/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "server/generation.h"

static splash_status render_once(spl_exchange *x, const spl_chat_body *chat, char **text, size_t *n_bytes,
                                 bool *thinking, splash_error *error) {
    char *request = spl_json_text(chat->render);
    if (!request) {
        error->code = SPLASH_E_NOMEM;
        (void)snprintf(error->text, sizeof error->text, "not enough memory to render the chat");
        return SPLASH_E_NOMEM;
    }
    splash_status st = splash_render_chat(x->server->engine, request, strlen(request), text, n_bytes, thinking, error);
    free(request);
    return st;
}

bool spl_prompt_render(spl_exchange *x, spl_chat_body *chat, char **text, size_t *n_bytes, bool *thinking,
                       spl_reject *r) {
    splash_error error = {0};
    uint64_t start = spl_now_ns();
    *text = NULL;
    splash_status st = render_once(x, chat, text, n_bytes, thinking, &error);
    const char *effort = json_string_value(json_object_get(chat->render, "reasoning_effort"));
    const char *coarser = chat->effort_given && effort ? spl_coarser_effort(effort) : NULL;
    if (st == SPLASH_E_INVALID && coarser) {
        (void)json_object_set_new(chat->render, "reasoning_effort", json_string(coarser));
        st = render_once(x, chat, text, n_bytes, thinking, &error);
    }
    spl_metrics_observe(&x->server->metrics, SPL_STAGE_TEMPLATE, spl_now_ns() - start);
    if (st == SPLASH_OK) return true;
    spl_reject_from_engine(r, &error);
    return false;
}

bool spl_prompt_tokenize(spl_exchange *x, const char *text, size_t n_bytes, uint32_t **tokens, size_t *n_tokens,
                         spl_reject *r) {
    splash_error error = {0};
    uint64_t start = spl_now_ns();
    *tokens = NULL;
    splash_status st = splash_tokenize(x->server->engine, text, n_bytes, true, tokens, n_tokens, &error);
    spl_metrics_observe(&x->server->metrics, SPL_STAGE_TOKENIZATION, spl_now_ns() - start);
    if (st == SPLASH_OK) return true;
    spl_reject_from_engine(r, &error);
    return false;
}

bool spl_prompt_from_chat(spl_exchange *x, spl_chat_body *chat, uint32_t **tokens, size_t *n_tokens, bool *thinking,
                          spl_reject *r) {
    char *text;
    size_t n_bytes;
    *tokens = NULL;
    if (!spl_prompt_render(x, chat, &text, &n_bytes, thinking, r)) return false;
    bool ok = spl_prompt_tokenize(x, text, n_bytes, tokens, n_tokens, r);
    free(text);
    return ok;
}

bool spl_forbid_calls(spl_exchange *x, spl_gen_fields *fields, spl_reject *r) {
    static const char opening[] = "<tool_call>";
    uint32_t *tokens;
    size_t n;
    if (!spl_prompt_tokenize(x, opening, sizeof opening - 1, &tokens, &n, r)) return false;
    uint32_t token = n == 1 ? tokens[0] : 0;
    free(tokens);
    if (n != 1) return true;
    struct splash_bias *grown = realloc(fields->bias, (fields->n_bias + 1) * sizeof *grown);
    if (!grown) return spl_reject_set(r, 503, "frontend_overloaded", "not enough memory for the request");
    fields->bias = grown;
    fields->bias[fields->n_bias].token = token;
    fields->bias[fields->n_bias++].bias = -100;
    return true;
}
