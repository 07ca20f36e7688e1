/* SPDX-License-Identifier: Apache-2.0
 * Input: a JSON object with "kind", "messages", "tools", "options". Every template renders it: valid UTF-8 comes out,
 * placeholders point at their markers, the same input gives the same text. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(bool condition) {
    if (!condition) abort();
}

static spl_tristate tristate(const json_t *options, const char *key) {
    const json_t *v = json_object_get(options, key);
    return !v ? SPL_UNSET : json_is_true(v) ? SPL_TRUE : json_is_null(v) ? SPL_NULL : SPL_FALSE;
}

static void render(const json_t *q, spl_chat_kind kind, spl_chat_rendering *r) {
    spl_error err = {0};
    size_t bad;
    const json_t *o = json_object_get(q, "options");
    spl_chat_options options = {.enable_thinking = tristate(o, "enable_thinking"),
                                .preserve_thinking = tristate(o, "preserve_thinking"),
                                .reasoning_effort = json_string_value(json_object_get(o, "reasoning_effort")),
                                .add_vision_id = json_is_true(json_object_get(o, "add_vision_id")),
                                .add_generation_prompt = json_is_true(json_object_get(o, "add_generation_prompt"))};
    spl_status st =
        spl_chat_template_render(kind, json_object_get(q, "messages"), json_object_get(q, "tools"), &options, r, &err);
    if (st != SPL_OK) {
        check(err.text[0] != '\0' && err.code == st);
        return;
    }
    check(r->text.n_bytes > 0 && spl_utf8_valid(r->text.data, r->text.n_bytes, &bad));
    for (size_t i = 0; i < r->n_placeholders; i++) {
        const spl_chat_placeholder *p = &r->placeholders[i];
        check(p->offset + 13 <= r->text.n_bytes);
        check(memcmp(r->text.data + p->offset, p->video ? "<|video_pad|>" : "<|image_pad|>", 13) == 0);
        check(i == 0 || p->offset > r->placeholders[i - 1].offset);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    spl_error err;
    json_t *q;
    spl_chat_rendering r;
    if (spl_json_parse(&q, (const char *)data, n_bytes, (size_t)1 << 24, "input", &err) != SPL_OK) return 0;
    spl_chat_rendering_init(&r);
    render(q, SPL_CHAT_QWEN3_5, &r);
    render(q, SPL_CHAT_QWEN3_6, &r);
    render(q, SPL_CHAT_QWEN3_8, &r);
    spl_chat_rendering_free(&r);
    json_decref(q);
    return 0;
}
