/* SPDX-License-Identifier: Apache-2.0
 * Tokens back to text, one at a time. Only whole characters leave: bytes that may still become one
 * wait, bytes that cannot become U+FFFD exactly as Python's bytes.decode(errors="replace") makes
 * them, so that the pieces put together equal the text decoded at once. */
#ifndef SPL_TEXT_DETOKENIZER_H
#define SPL_TEXT_DETOKENIZER_H

#include "base/dynbuf.h"
#include "text/tokenizer.h"

/* Plain data: assign the struct to save a state and assign it back to return to it. */
typedef struct spl_detokenizer {
    const spl_tokenizer *tokenizer; /* must outlive the state */
    bool skip_special;
    uint8_t n_pending;
    char pending[4]; /* the beginning of a character */
} spl_detokenizer;

void spl_detokenizer_init(spl_detokenizer *d, const spl_tokenizer *t, bool skip_special);
/* Appends the text that `id` completes. An id that names no token adds nothing. Returns out->status; after a failure
 * the state is unchanged. */
spl_status spl_detokenizer_push(spl_detokenizer *d, uint32_t id, spl_buf *out);
/* Ends the text: bytes still waiting become one U+FFFD. */
spl_status spl_detokenizer_flush(spl_detokenizer *d, spl_buf *out);

#endif
