/* SPDX-License-Identifier: Apache-2.0
 * From a checked chat to prompt tokens: the two engine calls every chat-like route makes, timed. */
#ifndef SPL_SERVER_PROMPT_H
#define SPL_SERVER_PROMPT_H

#include "server/chat_body.h"
#include "server/core.h"

/* Renders the chat; an effort the template does not know is replaced by the next coarser one. *text is malloc'ed. */
bool spl_prompt_render(spl_exchange *x, spl_chat_body *chat, char **text, size_t *n_bytes, bool *thinking,
                       spl_reject *r);
/* Tokens of text with special tokens recognised; malloc'ed. */
bool spl_prompt_tokenize(spl_exchange *x, const char *text, size_t n_bytes, uint32_t **tokens, size_t *n_tokens,
                         spl_reject *r);
/* Both. */
bool spl_prompt_from_chat(spl_exchange *x, spl_chat_body *chat, uint32_t **tokens, size_t *n_tokens, bool *thinking,
                          spl_reject *r);
/* tool_choice "none" with tools in the prompt: the token that opens a call gets a bias of -100. Grows *fields's
 * biases; does nothing when the model has no such token. */
bool spl_forbid_calls(spl_exchange *x, spl_gen_fields *fields, spl_reject *r);

#endif
