/* SPDX-License-Identifier: Apache-2.0
 * Anthropic Messages requests, converted to the Chat shape that chat_body.h checks. Pure. */
#ifndef SPL_SERVER_MESSAGES_BODY_H
#define SPL_SERVER_MESSAGES_BODY_H

#include "server/fields.h"

typedef struct spl_messages_body {
    json_t *chat;        /* a Chat request body: messages, tools, tool_choice, reasoning; owned */
    uint32_t max_tokens; /* 0 only when counting */
    bool omit_thinking;  /* thinking blocks are sent empty */
} spl_messages_body;

/* `counting`: for count_tokens, where max_tokens may be missing and the last message may be the assistant's. */
bool spl_messages_body_read(spl_messages_body *out, const json_t *body, bool counting, spl_reject *r);
void spl_messages_body_free(spl_messages_body *m);

#endif
