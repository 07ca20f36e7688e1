/* SPDX-License-Identifier: Apache-2.0
 * Names of the templates and the life of a rendering; the rules are in chat_template_qwen.c. */
#include "text/chat_template.h"

#include <stdlib.h>
#include <string.h>

void spl_chat_rendering_init(spl_chat_rendering *r) {
    memset(r, 0, sizeof *r);
    spl_buf_init(&r->text, SPL_CHAT_MAX_BYTES);
}

void spl_chat_rendering_free(spl_chat_rendering *r) {
    spl_buf_free(&r->text);
    free(r->placeholders);
    spl_chat_rendering_init(r);
}

bool spl_chat_template_kind_from_name(const char *name, spl_chat_kind *kind) {
    static const struct {
        const char *name;
        spl_chat_kind kind;
    } names[] = {{"qwen3.5", SPL_CHAT_QWEN3_5}, {"qwen3.6", SPL_CHAT_QWEN3_6}, {"qwen3.8", SPL_CHAT_QWEN3_8}};
    for (size_t i = 0; i < SPL_COUNT(names); i++) {
        if (name && strcmp(name, names[i].name) == 0) {
            *kind = names[i].kind;
            return true;
        }
    }
    return false;
}

bool spl_chat_opens_thinking(const spl_chat_options *options) {
    return options->add_generation_prompt && options->enable_thinking != SPL_FALSE;
}
