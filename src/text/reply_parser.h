/* SPDX-License-Identifier: Apache-2.0
 * Reads the model's reply as it streams: reasoning, answer text, tool calls. It is fed decoded text in any pieces and
 * gives the same result for every way of cutting it. Call syntax (one newline after each opening tag is layout):
 *   <tool_call> \n <function=NAME> \n { <parameter=KEY> \n VALUE \n </parameter> \n } </function> \n </tool_call>
 * Text that only looks like the start of a call stays text; nothing is lost. White space before the first visible
 * text, around reasoning, between calls and after the last call is layout and dropped. */
#ifndef SPL_TEXT_REPLY_PARSER_H
#define SPL_TEXT_REPLY_PARSER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef enum spl_reply_kind {
    SPL_REPLY_REASONING, /* text: a piece of reasoning */
    SPL_REPLY_CONTENT,   /* text: a piece of the answer */
    SPL_REPLY_CALL,      /* text: the name of the call that begins; `call` is its index */
    SPL_REPLY_ARGUMENTS, /* text: a piece of the JSON text of that call's arguments */
    SPL_REPLY_CALL_END,  /* no text; `complete` tells whether the arguments are whole */
} spl_reply_kind;

enum { SPL_REPLY_FRAGMENT_BYTES = 16384 }; /* longest piece of arguments in one delta */

typedef struct spl_reply_delta {
    spl_reply_kind kind;
    const char *text; /* valid UTF-8 when the input was; not NUL-terminated; valid during the call */
    size_t n_bytes;
    unsigned call;
    bool complete;
} spl_reply_delta;

/* Receives the deltas in order. A status other than SPL_OK ends the parse and is returned to the feeder. */
typedef spl_status (*spl_reply_fn)(void *context, const spl_reply_delta *delta);

typedef struct spl_reply_options {
    bool opens_thinking; /* the prompt left a think block open: the reply begins with reasoning */
    bool parse_calls;    /* false: call tags are ordinary text */
    const json_t *tools; /* schemas for argument types; may be NULL; must outlive the parser */
} spl_reply_options;

typedef struct spl_reply_parser spl_reply_parser;

spl_status spl_reply_new(spl_reply_parser **out, const spl_reply_options *options, spl_reply_fn receive, void *context,
                         spl_error *err);
void spl_reply_free(spl_reply_parser *p); /* accepts NULL */

/* Reads more text. Errors: SPL_E_NOMEM, SPL_E_LIMIT (a single argument beyond 64 MiB), or what `receive` returned. */
spl_status spl_reply_feed(spl_reply_parser *p, const char *text, size_t n_bytes);

/* Ends the reply. cut: it was stopped by the token limit, so a call that is still open keeps its unfinished argument
 * text and ends with complete = false. Otherwise an open call is closed with the arguments it has: a string that has
 * begun to stream keeps what it got, another value that was not closed is left out. */
spl_status spl_reply_finish(spl_reply_parser *p, bool cut);

/* Number of calls begun, and whether the text is still (or ended) inside reasoning. */
unsigned spl_reply_n_calls(const spl_reply_parser *p);
bool spl_reply_in_reasoning(const spl_reply_parser *p);

#endif
