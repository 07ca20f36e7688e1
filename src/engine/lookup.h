/* SPDX-License-Identifier: Apache-2.0
 * Prompt lookup: when the text being written repeats a span seen before, the span's continuation is a good guess.
 * Keeps the tokens of one lane, where every gram (three tokens) and pair occurred, and where a copy in progress stands
 * in its source, so that it goes on without a search and is found again behind a change. Only committed tokens enter,
 * so there is nothing to roll back. Memory is the caller's. */
#ifndef SPL_ENGINE_LOOKUP_H
#define SPL_ENGINE_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

enum {
    SPL_LOOKUP_GRAM = 3,     /* tokens of the grams that are kept with all their occurrences */
    SPL_LOOKUP_LONGEST = 64, /* longest suffix that is compared */
    SPL_LOOKUP_TRIES = 8,    /* occurrences of a gram that are compared, newest first */
    SPL_LOOKUP_WINDOW = 32,  /* tokens of a source in which a copy that was left may go on */
    SPL_LOOKUP_LOST = 16     /* tokens after which it is given up */
};

/* What a proposal rests on; how often each is right is for the caller to measure. */
typedef enum spl_lookup_kind {
    SPL_LOOKUP_GUESS, /* one or two repeated tokens */
    SPL_LOOKUP_SHORT, /* three */
    SPL_LOOKUP_LONG,  /* more */
    SPL_LOOKUP_COPY,  /* a copy in progress: the last token came from here too */
    SPL_N_LOOKUP_KINDS
} spl_lookup_kind;

/* A position counts the tokens before it, so it names the token that follows; 0 is none. */
typedef struct spl_lookup {
    uint32_t *tokens;  /* [capacity] committed tokens, oldest first */
    uint32_t *earlier; /* [capacity]: end of the next older gram in the slot of the gram that ends here */
    uint32_t *grams;   /* [mask + 1]: end of the newest gram that hashes here */
    uint32_t *pairs;   /* [mask + 1]: the same for two tokens */
    uint32_t n_tokens, capacity, mask;
    uint32_t source; /* next token of the copy, or where it was left */
    uint32_t n_lost; /* tokens since then; 0: it goes on */
    uint32_t guess;  /* source of the last proposals, until the next token */
} spl_lookup;

/* Bytes for n_tokens tokens. */
size_t spl_lookup_bytes(uint32_t n_tokens);
/* Starts empty on `memory` (4-aligned, spl_lookup_bytes long). */
void spl_lookup_init(spl_lookup *l, void *memory, uint32_t n_tokens);
/* Appends a committed token; tokens past the capacity are ignored. */
void spl_lookup_push(spl_lookup *l, uint32_t token);
/* Writes the n_max tokens that are likely to follow and returns n_max, or 0 when the newest tokens are new. Without
 * a copy in progress they follow the longest repeated suffix among the occurrences tried; of equals, the one in the
 * copy that was left, then the newest. Where the source ends the proposals go on with themselves: text that repeats. */
uint32_t spl_lookup_find(spl_lookup *l, uint32_t *out, uint32_t n_max, spl_lookup_kind *kind);

#endif
