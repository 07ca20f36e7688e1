/* SPDX-License-Identifier: Apache-2.0
 * Chat messages, tools and reasoning options of a request, checked and turned into the one JSON object that
 * splash_render_chat takes. Other dialects convert to Chat shape first and come through here. Pure. */
#ifndef SPL_SERVER_CHAT_BODY_H
#define SPL_SERVER_CHAT_BODY_H

#include "server/fields.h"

enum { SPL_MAX_SCHEMA_DEPTH = 64, SPL_MAX_TOOL_NAME = 128 };

typedef struct spl_chat_body {
    json_t *render;      /* argument of splash_render_chat; owned */
    json_t *tools;       /* non-empty array or NULL; borrowed from render */
    bool tools_callable; /* tools are offered and tool_choice is not "none" */
    bool parallel_calls; /* false: the reply ends with its first call */
    bool effort_given;   /* reasoning_effort is in render and may be replaced by a coarser one */
} spl_chat_body;

/* `default_effort` (may be NULL) applies when the body names none. */
bool spl_chat_body_read(spl_chat_body *out, const json_t *body, const char *default_effort, spl_reject *r);
void spl_chat_body_free(spl_chat_body *chat);

/* The next coarser effort a template may know (high and max: xhigh; minimal: low), or NULL. */
const char *spl_coarser_effort(const char *effort);

#endif
