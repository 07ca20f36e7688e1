/* SPDX-License-Identifier: Apache-2.0
 * Lets the Python comparisons drive src/text: one JSON request per line on stdin, one JSON answer per
 * line on stdout. Arguments: [tokenizer.json [tokenizer_config.json]]. Requests by "op": encode,
 * decode, render, reply, float, nfc, speed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file_map.h"
#include "base/json.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/python_json.h"
#include "text/reply_parser.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

static json_t *failure(const spl_error *err) { return json_pack("{s:s}", "error", err->text); }

static json_t *text_value(const char *p, size_t n) { return json_stringn(p ? p : "", n); }

static json_t *op_encode(const spl_tokenizer *t, const json_t *q) {
    spl_error err;
    spl_token_list list = {0};
    const json_t *text = json_object_get(q, "text");
    bool added = !json_is_false(json_object_get(q, "added"));
    if (spl_tokenizer_encode(t, json_string_value(text), json_string_length(text), added, &list, &err) != SPL_OK)
        return failure(&err);
    json_t *ids = json_array();
    for (size_t i = 0; i < list.n_ids; i++) json_array_append_new(ids, json_integer(list.ids[i]));
    spl_token_list_free(&list);
    return json_pack("{s:o}", "ids", ids);
}

/* Pushes the tokens one by one; answers the pieces. */
static json_t *op_decode(const spl_tokenizer *t, const json_t *q) {
    spl_detokenizer d;
    spl_buf out;
    json_t *pieces = json_array();
    const json_t *ids = json_object_get(q, "ids");
    spl_detokenizer_init(&d, t, json_is_true(json_object_get(q, "skip_special")));
    spl_buf_init(&out, 1 << 26);
    for (size_t i = 0; i <= json_array_size(ids); i++) {
        spl_buf_reset(&out);
        if (i < json_array_size(ids))
            (void)spl_detokenizer_push(&d, (uint32_t)json_integer_value(json_array_get(ids, i)), &out);
        else
            (void)spl_detokenizer_flush(&d, &out);
        json_array_append_new(pieces, text_value(out.data, out.n_bytes));
    }
    spl_buf_free(&out);
    return json_pack("{s:o}", "pieces", pieces);
}

static spl_tristate tristate(const json_t *options, const char *key) {
    const json_t *v = json_object_get(options, key);
    return !v ? SPL_UNSET : json_is_true(v) ? SPL_TRUE : json_is_null(v) ? SPL_NULL : SPL_FALSE;
}

static json_t *op_render(const json_t *q) {
    spl_error err;
    spl_chat_rendering r;
    spl_chat_kind kind;
    const json_t *o = json_object_get(q, "options");
    spl_chat_options options = {.enable_thinking = tristate(o, "enable_thinking"),
                                .preserve_thinking = tristate(o, "preserve_thinking"),
                                .reasoning_effort = json_string_value(json_object_get(o, "reasoning_effort")),
                                .add_vision_id = json_is_true(json_object_get(o, "add_vision_id")),
                                .add_generation_prompt = json_is_true(json_object_get(o, "add_generation_prompt"))};
    if (!spl_chat_template_kind_from_name(json_string_value(json_object_get(q, "kind")), &kind)) return NULL;
    spl_chat_rendering_init(&r);
    json_t *answer;
    if (spl_chat_template_render(kind, json_object_get(q, "messages"), json_object_get(q, "tools"), &options, &r,
                                 &err) != SPL_OK) {
        answer = failure(&err);
    } else {
        json_t *offsets = json_array();
        for (size_t i = 0; i < r.n_placeholders; i++)
            json_array_append_new(offsets, json_integer((json_int_t)r.placeholders[i].offset));
        answer = json_pack("{s:o, s:o}", "text", text_value(r.text.data, r.text.n_bytes), "offsets", offsets);
    }
    spl_chat_rendering_free(&r);
    return answer;
}

/* Collects deltas as [kind, call, text or complete]; equal neighbours are joined. */
static spl_status collect(void *context, const spl_reply_delta *d) {
    static const char *const names[] = {"reasoning", "content", "call", "arguments", "end"};
    json_t *list = context;
    json_t *item = json_array();
    json_array_append_new(item, json_string(names[d->kind]));
    json_array_append_new(item, json_integer(d->call));
    json_array_append_new(item,
                          d->kind == SPL_REPLY_CALL_END ? json_boolean(d->complete) : text_value(d->text, d->n_bytes));
    json_array_append_new(list, item);
    return SPL_OK;
}

static json_t *op_reply(const json_t *q) {
    spl_error err;
    spl_reply_parser *p;
    json_t *deltas = json_array();
    const json_t *chunks = json_object_get(q, "chunks");
    spl_reply_options options = {.opens_thinking = json_is_true(json_object_get(q, "thinking")),
                                 .parse_calls = !json_is_false(json_object_get(q, "calls")),
                                 .tools = json_object_get(q, "tools")};
    if (spl_reply_new(&p, &options, collect, deltas, &err) != SPL_OK) return failure(&err);
    spl_status st = SPL_OK;
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        const json_t *c = json_array_get(chunks, i);
        st = spl_reply_feed(p, json_string_value(c), json_string_length(c));
    }
    if (st == SPL_OK) st = spl_reply_finish(p, json_is_true(json_object_get(q, "cut")));
    spl_reply_free(p);
    return json_pack("{s:o, s:i}", "deltas", deltas, "status", (int)st);
}

static json_t *op_float(const json_t *q) {
    spl_buf out;
    spl_buf_init(&out, 1 << 26);
    (void)spl_python_json(&out, json_object_get(q, "value"));
    json_t *answer = json_pack("{s:o}", "text", text_value(out.data, out.n_bytes));
    spl_buf_free(&out);
    return answer;
}

static json_t *op_nfc(const json_t *q) {
    spl_error err;
    spl_nfc *nfc;
    spl_buf out;
    const json_t *text = json_object_get(q, "text");
    spl_buf_init(&out, 1 << 26);
    if (spl_nfc_new(&nfc, &err) != SPL_OK ||
        spl_nfc_append(nfc, &out, json_string_value(text), json_string_length(text), &err) != SPL_OK)
        return failure(&err);
    json_t *answer = json_pack("{s:o}", "text", text_value(out.data, out.n_bytes));
    spl_nfc_free(nfc);
    spl_buf_free(&out);
    return answer;
}

/* Tokenises a file once and reports seconds and tokens. */
static json_t *op_speed(const spl_tokenizer *t, const json_t *q) {
    spl_error err;
    char *text;
    size_t n;
    spl_token_list list = {0};
    if (spl_read_file(json_string_value(json_object_get(q, "path")), (size_t)1 << 28, &text, &n, &err) != SPL_OK)
        return failure(&err);
    uint64_t start = spl_now_ns();
    spl_status st = spl_tokenizer_encode(t, text, n, true, &list, &err);
    double seconds = (double)(spl_now_ns() - start) * 1e-9;
    free(text);
    if (st != SPL_OK) return failure(&err);
    json_t *answer =
        json_pack("{s:f, s:I, s:I}", "seconds", seconds, "bytes", (json_int_t)n, "tokens", (json_int_t)list.n_ids);
    spl_token_list_free(&list);
    return answer;
}

static json_t *handle(const spl_tokenizer *t, const json_t *q) {
    const char *op = json_string_value(json_object_get(q, "op"));
    if (!op) return NULL;
    if (strcmp(op, "render") == 0) return op_render(q);
    if (strcmp(op, "reply") == 0) return op_reply(q);
    if (strcmp(op, "float") == 0) return op_float(q);
    if (strcmp(op, "nfc") == 0) return op_nfc(q);
    if (t && strcmp(op, "encode") == 0) return op_encode(t, q);
    if (t && strcmp(op, "decode") == 0) return op_decode(t, q);
    if (t && strcmp(op, "speed") == 0) return op_speed(t, q);
    return NULL;
}

int main(int argc, char **argv) {
    spl_error err;
    spl_tokenizer *t = NULL;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    if (argc > 1 && spl_tokenizer_load(&t, argv[1], argc > 2 ? argv[2] : NULL, &err) != SPL_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        json_t *q;
        if (spl_json_parse(&q, line, (size_t)n, (size_t)1 << 28, "request", &err) != SPL_OK) {
            (void)printf("{\"bad\": \"%s\"}\n", err.code == SPL_E_FORMAT ? "format" : "limit");
        } else {
            json_t *answer = handle(t, q);
            if (answer)
                (void)json_dumpf(answer, stdout, JSON_COMPACT);
            else
                (void)printf("{\"bad\": \"request\"}");
            (void)printf("\n");
            json_decref(answer);
            json_decref(q);
        }
        (void)fflush(stdout);
    }
    free(line);
    spl_tokenizer_close(t);
    return 0;
}
