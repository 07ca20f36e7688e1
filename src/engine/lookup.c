/* SPDX-License-Identifier: Apache-2.0
 * Prompt lookup by one hash table of grams. A slot holds the position behind the newest gram but one: the gram
 * that ends the text itself must not be its own continuation, so it is entered when the next token arrives. */
#include "engine/lookup.h"

#include <string.h>

static uint32_t slot_count(uint32_t n_tokens) {
    uint32_t n = 64;
    while (n / 2 < n_tokens && n < UINT32_C(1) << 30) n *= 2;
    return n;
}

size_t spl_lookup_bytes(uint32_t n_tokens) { return ((size_t)n_tokens + slot_count(n_tokens)) * sizeof(uint32_t); }

void spl_lookup_init(spl_lookup *l, void *memory, uint32_t n_tokens) {
    l->tokens = memory;
    l->slots = l->tokens + n_tokens;
    l->capacity = n_tokens;
    l->n_tokens = 0;
    l->mask = slot_count(n_tokens) - 1;
    memset(l->slots, 0, ((size_t)l->mask + 1) * sizeof(uint32_t));
}

/* Slot of the gram that ends before position `end`. */
static uint32_t slot_of(const spl_lookup *l, uint32_t end) {
    uint64_t h = 0;
    for (uint32_t i = end - SPL_LOOKUP_GRAM; i < end; i++) h = (h ^ l->tokens[i]) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(h >> 32) & l->mask;
}

void spl_lookup_push(spl_lookup *l, uint32_t token) {
    if (l->n_tokens == l->capacity) return;
    if (l->n_tokens >= SPL_LOOKUP_GRAM) l->slots[slot_of(l, l->n_tokens)] = l->n_tokens;
    l->tokens[l->n_tokens++] = token;
}

uint32_t spl_lookup_find(const spl_lookup *l, uint32_t *out, uint32_t n_max, uint32_t *match) {
    *match = 0;
    if (l->n_tokens <= SPL_LOOKUP_GRAM) return 0;
    uint32_t at = l->slots[slot_of(l, l->n_tokens)];
    if (at == 0) return 0;
    uint32_t same = 0;
    while (same < SPL_LOOKUP_LONGEST && same < at && l->tokens[at - 1 - same] == l->tokens[l->n_tokens - 1 - same])
        same++;
    if (same < SPL_LOOKUP_GRAM) return 0; /* another gram with the same hash */
    *match = same;
    uint32_t n = l->n_tokens - at < n_max ? l->n_tokens - at : n_max;
    memcpy(out, l->tokens + at, n * sizeof *out);
    return n;
}
