/* SPDX-License-Identifier: Apache-2.0
 * Prompt lookup by two hash tables, of grams (chained) and of pairs (the newest), and a pointer to the source of the
 * copy. What ends the text itself must not be its own continuation, so it is entered when the next token arrives. */
#include "engine/lookup.h"

#include <string.h>

enum { PAIR = 2 };

static uint32_t slot_count(uint32_t n_tokens) {
    uint32_t n = 64;
    while (n / 2 < n_tokens && n < UINT32_C(1) << 30) n *= 2;
    return n;
}

size_t spl_lookup_bytes(uint32_t n_tokens) { return 2 * ((size_t)n_tokens + slot_count(n_tokens)) * sizeof(uint32_t); }

void spl_lookup_init(spl_lookup *l, void *memory, uint32_t n_tokens) {
    uint32_t n_slots = slot_count(n_tokens);
    *l = (spl_lookup){.tokens = memory, .capacity = n_tokens, .mask = n_slots - 1};
    l->earlier = l->tokens + n_tokens;
    l->grams = l->earlier + n_tokens;
    l->pairs = l->grams + n_slots;
    memset(l->grams, 0, 2 * (size_t)n_slots * sizeof(uint32_t));
}

/* Slot of the `n` tokens that end before position `end`. */
static uint32_t slot_of(const spl_lookup *l, uint32_t end, uint32_t n) {
    uint64_t h = 0;
    for (uint32_t i = end - n; i < end; i++) h = (h ^ l->tokens[i]) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(h >> 32) & l->mask;
}

/* Enters the gram and the pair that end the text. */
static void enter(spl_lookup *l) {
    uint32_t end = l->n_tokens;
    if (end >= SPL_LOOKUP_GRAM) {
        uint32_t *slot = &l->grams[slot_of(l, end, SPL_LOOKUP_GRAM)];
        l->earlier[end] = *slot;
        *slot = end;
    }
    if (end >= PAIR) l->pairs[slot_of(l, end, PAIR)] = end;
}

/* Moves the source along, or counts how long the copy has been left. */
static void follow(spl_lookup *l, uint32_t token) {
    if (l->guess && l->tokens[l->guess] == token) {
        l->source = l->guess + 1;
        l->n_lost = 0;
    } else if (l->source && l->n_lost == 0 && l->tokens[l->source] == token) {
        l->source++;
    } else if (l->source && ++l->n_lost > SPL_LOOKUP_LOST) {
        l->source = l->n_lost = 0;
    }
    l->guess = 0;
}

void spl_lookup_push(spl_lookup *l, uint32_t token) {
    if (l->n_tokens == l->capacity) return;
    enter(l);
    follow(l, token);
    l->tokens[l->n_tokens++] = token;
}

/* Tokens before position `at` that also end the text, at most n_max. */
static uint32_t suffix_at(const spl_lookup *l, uint32_t at, uint32_t n_max) {
    uint32_t n = 0;
    while (n < n_max && n < at && l->tokens[at - 1 - n] == l->tokens[l->n_tokens - 1 - n]) n++;
    return n;
}

/* Of the newest occurrences of the last gram, the one with the longest suffix. */
static uint32_t longest(const spl_lookup *l, uint32_t *match) {
    uint32_t best = 0, at = 0;
    *match = 0;
    if (l->n_tokens >= SPL_LOOKUP_GRAM) at = l->grams[slot_of(l, l->n_tokens, SPL_LOOKUP_GRAM)];
    for (int i = 0; i < SPL_LOOKUP_TRIES && at && *match < SPL_LOOKUP_LONGEST; i++) {
        uint32_t same = suffix_at(l, at, SPL_LOOKUP_LONGEST);
        if (same >= SPL_LOOKUP_GRAM && same > *match) { /* else another gram with the same hash */
            *match = same;
            best = at;
        }
        at = l->earlier[at];
    }
    return best;
}

/* Where the copy that was left goes on: nearest behind the longest run of tokens written since that also stands in the
 * source, whether tokens were replaced, left out or put in. */
static uint32_t resume(const spl_lookup *l, uint32_t *match) {
    uint32_t best = 0;
    *match = 0;
    for (uint32_t i = 1; i <= SPL_LOOKUP_WINDOW && l->source + i < l->n_tokens; i++) {
        uint32_t same = suffix_at(l, l->source + i, i < l->n_lost ? i : l->n_lost);
        if (same > *match) {
            *match = same;
            best = l->source + i;
        }
    }
    return best;
}

/* Place of the longest repeated suffix, 0: none. */
static uint32_t search(const spl_lookup *l, spl_lookup_kind *kind) {
    uint32_t match, near;
    uint32_t at = longest(l, &match);
    if (l->source) {
        uint32_t place = resume(l, &near);
        if (near >= match) {
            match = near;
            at = place;
        }
    }
    if (match < PAIR && l->n_tokens > PAIR) {
        uint32_t end = l->pairs[slot_of(l, l->n_tokens, PAIR)];
        if (end && suffix_at(l, end, PAIR) == PAIR) {
            match = PAIR;
            at = end;
        }
    }
    *kind = match < SPL_LOOKUP_GRAM ? SPL_LOOKUP_GUESS : match == SPL_LOOKUP_GRAM ? SPL_LOOKUP_SHORT : SPL_LOOKUP_LONG;
    return at;
}

uint32_t spl_lookup_find(spl_lookup *l, uint32_t *out, uint32_t n_max, spl_lookup_kind *kind) {
    *kind = SPL_LOOKUP_COPY;
    l->guess = l->source && l->n_lost == 0 ? l->source : search(l, kind);
    if (l->guess == 0) return 0;
    for (uint32_t i = 0; i < n_max; i++) {
        uint32_t at = l->guess + i;
        out[i] = at < l->n_tokens ? l->tokens[at] : out[at - l->n_tokens];
    }
    return n_max;
}
