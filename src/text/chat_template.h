/* SPDX-License-Identifier: Apache-2.0
 * A conversation as the text a model was trained on. The rules of the Qwen3.5, Qwen3.6 and Qwen3.8 templates are
 * written out by hand; output equals Jinja2 running the published file with trim_blocks and lstrip_blocks. Inputs are
 * JSON values as an HTTP request carries them; tool-call arguments must be objects (parse their string form first). */
#ifndef SPL_TEXT_CHAT_TEMPLATE_H
#define SPL_TEXT_CHAT_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dynbuf.h"
#include "base/status.h"

typedef enum spl_chat_kind { SPL_CHAT_QWEN3_5, SPL_CHAT_QWEN3_6, SPL_CHAT_QWEN3_8 } spl_chat_kind;

/* A template variable that a caller may leave out, and that may also be an explicit null. */
typedef enum spl_tristate { SPL_UNSET, SPL_FALSE, SPL_TRUE, SPL_NULL } spl_tristate;

typedef struct spl_chat_options {
    spl_tristate enable_thinking;
    spl_tristate preserve_thinking;
    const char *reasoning_effort; /* NULL: unset. Qwen3.8 takes "low", "medium", "xhigh" */
    bool add_vision_id;
    bool add_generation_prompt;
    bool later_system; /* a system message that is not first becomes a turn where it stands; the published templates
                          refuse it, agents send it */
} spl_chat_options;

/* Where the rendered text holds the place of an image or a video. */
typedef struct spl_chat_placeholder {
    size_t offset;    /* of "<|image_pad|>" or "<|video_pad|>" in the text */
    uint32_t message; /* index of the message */
    uint32_t item;    /* index in its content list */
    bool video;
} spl_chat_placeholder;

enum { SPL_CHAT_MAX_BYTES = 256 << 20 }; /* of rendered text */

typedef struct spl_chat_rendering {
    spl_buf text;
    spl_chat_placeholder *placeholders;
    size_t n_placeholders;
    size_t placeholder_capacity;
} spl_chat_rendering;

void spl_chat_rendering_init(spl_chat_rendering *r);
void spl_chat_rendering_free(spl_chat_rendering *r);

/* "qwen3.5", "qwen3.6", "qwen3.8"; false for another name. */
bool spl_chat_template_kind_from_name(const char *name, spl_chat_kind *kind);

/* Renders `messages` (an array) with `tools` (an array; NULL, JSON null or empty: none) into *out, which is emptied
 * first. SPL_E_INVALID carries the template's own complaint and the message it is about. */
spl_status spl_chat_template_render(spl_chat_kind kind, const json_t *messages, const json_t *tools,
                                    const spl_chat_options *options, spl_chat_rendering *out, spl_error *err);

/* True when the generation prompt leaves the think block open, so that the reply begins with reasoning. */
bool spl_chat_opens_thinking(const spl_chat_options *options);

#endif
