/* SPDX-License-Identifier: Apache-2.0
 * Prompt lookup: when the text being written repeats a span seen before, the span's continuation is a good guess.
 * Keeps the tokens of one lane and, for every run of SPL_LOOKUP_GRAM tokens, where it occurred last. Only
 * committed tokens enter, so there is nothing to roll back. Memory is the caller's. */
#ifndef SPL_ENGINE_LOOKUP_H
#define SPL_ENGINE_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

enum {
    SPL_LOOKUP_GRAM = 3,    /* tokens that must repeat before a continuation is looked at */
    SPL_LOOKUP_LONGEST = 64 /* longest suffix that is compared */
};

typedef struct spl_lookup {
    uint32_t *tokens; /* [capacity] committed tokens, oldest first */
    uint32_t *slots;  /* [mask + 1]: position after the gram that hashes here, 0: none; newer ones overwrite */
    uint32_t n_tokens, capacity, mask;
} spl_lookup;

/* Bytes for n_tokens tokens. */
size_t spl_lookup_bytes(uint32_t n_tokens);
/* Starts empty on `memory` (4-aligned, spl_lookup_bytes long). */
void spl_lookup_init(spl_lookup *l, void *memory, uint32_t n_tokens);
/* Appends a committed token; tokens past the capacity are ignored. */
void spl_lookup_push(spl_lookup *l, uint32_t token);
/* Looks the newest tokens up. Writes up to n_max tokens that followed their last occurrence and returns their number,
 * 0 when they are new; *match is the length of the repeated suffix, SPL_LOOKUP_GRAM..SPL_LOOKUP_LONGEST. */
uint32_t spl_lookup_find(const spl_lookup *l, uint32_t *out, uint32_t n_max, uint32_t *match);

#endif
