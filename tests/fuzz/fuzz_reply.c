/* SPDX-License-Identifier: Apache-2.0
 * Input: one byte of flags, one byte of chunk length, then the reply. Fed whole and in chunks it must
 * give the same deltas; finished arguments are JSON when the reply is UTF-8. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/reply_parser.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(bool condition) {
    if (!condition) abort();
}

typedef struct record {
    spl_buf line;      /* everything, kind by kind */
    spl_buf arguments; /* of the current call */
    int last;
    bool utf8;
} record;

static spl_status receive(void *context, const spl_reply_delta *d) {
    record *r = context;
    check(d->kind == SPL_REPLY_CALL_END || d->n_bytes > 0);
    check(d->kind != SPL_REPLY_ARGUMENTS || d->n_bytes <= SPL_REPLY_FRAGMENT_BYTES);
    if ((int)d->kind != r->last || d->kind == SPL_REPLY_CALL)
        (void)spl_buf_printf(&r->line, "\1%d %u %d\2", (int)d->kind, d->call, d->complete);
    r->last = (int)d->kind;
    (void)spl_buf_append(&r->line, d->text, d->n_bytes);
    if (d->kind == SPL_REPLY_CALL) spl_buf_reset(&r->arguments);
    if (d->kind == SPL_REPLY_ARGUMENTS) (void)spl_buf_append(&r->arguments, d->text, d->n_bytes);
    if (d->kind == SPL_REPLY_CALL_END && d->complete && r->utf8) {
        json_t *value = json_loadb(r->arguments.data, r->arguments.n_bytes, JSON_ALLOW_NUL, NULL);
        /* jansson reads no integer beyond 64 bits, no NUL in a key and limits the depth itself. */
        check(json_is_object(value) || r->arguments.n_bytes > 20);
        json_decref(value);
    }
    return r->line.status;
}

static void run(const char *text, size_t n_bytes, unsigned flags, size_t step, const json_t *tools, record *r) {
    spl_error err;
    spl_reply_parser *p;
    size_t bad;
    spl_reply_options options = {flags & 1, !(flags & 2), flags & 4 ? tools : NULL};
    memset(r, 0, sizeof *r);
    r->last = -1;
    r->utf8 = spl_utf8_valid(text, n_bytes, &bad);
    spl_buf_init(&r->line, 1 << 24);
    spl_buf_init(&r->arguments, 1 << 24);
    check(spl_reply_new(&p, &options, receive, r, &err) == SPL_OK);
    for (size_t at = 0; at < n_bytes; at += step) {
        size_t left = n_bytes - at;
        check(spl_reply_feed(p, text + at, left < step ? left : step) == SPL_OK);
    }
    check(spl_reply_finish(p, flags & 8) == SPL_OK);
    spl_reply_free(p);
    spl_buf_free(&r->arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static const char tools_text[] =
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{\"r\":{\"$ref\":\"#/$defs/r\"}},\"properties\":{"
        "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":["
        "\"object\","
        "\"null\",\"string\"]},\"r\":{\"$ref\":\"#/$defs/r\"}}}}}]";
    if (n_bytes < 2 || n_bytes > 1 << 20) return 0;
    json_t *tools = json_loads(tools_text, 0, NULL);
    const char *text = (const char *)data + 2;
    record whole;
    record parts;
    check(tools != NULL);
    run(text, n_bytes - 2, data[0], n_bytes, tools, &whole);
    run(text, n_bytes - 2, data[0], 1 + data[1] % 32, tools, &parts);
    check(whole.line.n_bytes == parts.line.n_bytes);
    check(whole.line.n_bytes == 0 || memcmp(whole.line.data, parts.line.data, whole.line.n_bytes) == 0);
    spl_buf_free(&whole.line);
    spl_buf_free(&parts.line);
    json_decref(tools);
    return 0;
}
