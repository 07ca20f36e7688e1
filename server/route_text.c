/* SPDX-License-Identifier: Apache-2.0
 * /tokenize, /detokenize, /apply-template: prompt work without inference. Results may exceed the context. */
#include <stdlib.h>
#include <string.h>

#include "server/generation.h"
#include "server/prompt.h"
#include "server/routes.h"

static bool tokenize(spl_exchange *x, json_t **out, spl_reject *r) {
    const json_t *body = x->body.root, *content = spl_field(body, "content");
    bool add_special = false, parse_special = true, with_pieces = false;
    uint32_t *tokens;
    size_t n;
    if (!spl_field_bool(body, "add_special", &add_special, r) ||
        !spl_field_bool(body, "parse_special", &parse_special, r) ||
        !spl_field_bool(body, "with_pieces", &with_pieces, r))
        return false;
    if (!json_is_string(content)) return spl_reject_field(r, "'content' must be a string");
    if (!parse_special) return spl_reject_field(r, "'parse_special': false is not supported");
    if (with_pieces) return spl_reject_field(r, "'with_pieces': true is not supported");
    if (!spl_prompt_tokenize(x, json_string_value(content), json_string_length(content), &tokens, &n, r)) return false;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) (void)json_array_append_new(list, json_integer(tokens[i]));
    free(tokens);
    *out = json_pack("{s:o}", "tokens", list);
    return true;
}

static bool detokenize(spl_exchange *x, json_t **out, spl_reject *r) {
    const json_t *list = spl_field(x->body.root, "tokens");
    splash_error error = {0};
    uint32_t *ids;
    char *text = NULL;
    size_t n, n_bytes = 0;
    if (!json_is_array(list)) return spl_reject_field(r, "'tokens' must be an array of token ids");
    if (!spl_read_ids(list, "tokens", x->server->info.vocab, &ids, &n, r)) return false;
    splash_status st = splash_detokenize(x->server->engine, ids, n, true, &text, &n_bytes, &error);
    free(ids);
    if (st != SPLASH_OK) {
        spl_reject_from_engine(r, &error);
        return false;
    }
    json_t *content = json_stringn(text, n_bytes);
    free(text);
    if (!content) return spl_reject_field(r, "the tokens do not spell valid UTF-8");
    *out = json_pack("{s:o}", "content", content);
    return true;
}

static bool apply_template(spl_exchange *x, json_t **out, spl_reject *r) {
    spl_chat_body chat;
    char *text;
    size_t n_bytes;
    bool thinking;
    if (!spl_read_model(x->body.root, &x->server->limits, r) ||
        !spl_chat_body_read(&chat, x->body.root, x->server->options.default_effort, r))
        return false;
    bool ok = spl_prompt_render(x, &chat, &text, &n_bytes, &thinking, r);
    spl_chat_body_free(&chat);
    if (!ok) return false;
    *out = json_pack("{s:o}", "prompt", json_stringn(text, n_bytes));
    free(text);
    return true;
}

static void answer(spl_exchange *x, bool (*work)(spl_exchange *, json_t **, spl_reject *)) {
    spl_reject why;
    json_t *reply = NULL;
    if (work(x, &reply, &why))
        spl_exchange_reply_json(x, 200, reply);
    else
        spl_exchange_reject(x, &why);
}

void spl_route_tokenize(spl_exchange *x) { answer(x, tokenize); }
void spl_route_detokenize(spl_exchange *x) { answer(x, detokenize); }
void spl_route_apply_template(spl_exchange *x) { answer(x, apply_template); }
