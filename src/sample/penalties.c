/* SPDX-License-Identifier: Apache-2.0
 * Token counts with exact undo; see penalties.h. Undo is last in, first out: the entry created last sits at
 * the end of `entries`, and its index slot was free when it was taken, so clearing both restores the table
 * exactly although it uses linear probing without tombstones. */
#include "sample/penalties.h"

#include <string.h>

static uint32_t entry_capacity(uint32_t n_tokens, uint32_t vocab) { return n_tokens < vocab ? n_tokens : vocab; }

/* A power of two with at most two thirds in use; at least one slot stays free, which ends every probe. */
static size_t index_slots(uint32_t capacity) {
    size_t slots = 8;
    while (slots < (size_t)capacity + capacity / 2 + 1) slots *= 2;
    return slots;
}

size_t spl_penalties_bytes(uint32_t n_tokens, uint32_t vocab) {
    uint32_t capacity = entry_capacity(n_tokens, vocab);
    return capacity * sizeof(spl_penalty_entry) + index_slots(capacity) * sizeof(uint32_t);
}

void spl_penalties_init(spl_penalties *p, void *memory, uint32_t n_tokens, uint32_t vocab) {
    memset(p, 0, sizeof *p);
    memset(memory, 0, spl_penalties_bytes(n_tokens, vocab));
    p->vocab = vocab;
    p->capacity = entry_capacity(n_tokens, vocab);
    p->entries = memory;
    p->index = (uint32_t *)(void *)(p->entries + p->capacity);
    p->index_mask = (uint32_t)(index_slots(p->capacity) - 1);
}

/* The slot that holds `token`, or the free slot where it would go. */
static uint32_t find_slot(const spl_penalties *p, uint32_t token) {
    uint32_t slot = (token * UINT32_C(0x9E3779B1)) >> 7 & p->index_mask;
    while (p->index[slot] && p->entries[p->index[slot] - 1].token != token) slot = (slot + 1) & p->index_mask;
    return slot;
}

/* The entry of a token, created when absent. */
static spl_status entry_of(spl_penalties *p, uint32_t token, spl_penalty_entry **out, spl_error *err) {
    if (token >= p->vocab)
        return spl_fail(err, SPL_E_INVALID, "token %u is outside the vocabulary of %u", token, p->vocab);
    uint32_t slot = find_slot(p, token);
    if (!p->index[slot]) {
        if (p->n_entries == p->capacity)
            return spl_fail(err, SPL_E_LIMIT, "penalties: more than the %u distinct tokens planned for", p->capacity);
        p->entries[p->n_entries] = (spl_penalty_entry){.token = token};
        p->index[slot] = ++p->n_entries;
    }
    *out = &p->entries[p->index[slot] - 1];
    return SPL_OK;
}

spl_status spl_penalties_add_prompt(spl_penalties *p, const uint32_t *tokens, size_t n_tokens, spl_error *err) {
    for (size_t i = 0; i < n_tokens; i++) {
        spl_penalty_entry *e = NULL;
        spl_status st = entry_of(p, tokens[i], &e, err);
        if (st < 0) return st;
        e->in_prompt = 1;
    }
    p->n_undo = 0; /* entries made here would stand between the journal and its own */
    return SPL_OK;
}

spl_status spl_penalties_push(spl_penalties *p, uint32_t token, spl_error *err) {
    spl_penalty_entry *e = NULL;
    spl_status st = entry_of(p, token, &e, err);
    if (st < 0) return st;
    e->n_output = (e->n_output + 1) & 0x7fffffffu;
    p->journal[p->n_output++ % SPL_PENALTY_UNDO] = token;
    if (p->n_undo < SPL_PENALTY_UNDO) p->n_undo++;
    return SPL_OK;
}

static void undo_one(spl_penalties *p) {
    uint32_t at = --p->n_output % SPL_PENALTY_UNDO;
    uint32_t slot = find_slot(p, p->journal[at]);
    spl_penalty_entry *e = &p->entries[p->index[slot] - 1];
    SPL_ASSERT(e->n_output > 0);
    e->n_output = (e->n_output - 1u) & 0x7fffffffu;
    if (!e->n_output && !e->in_prompt) {
        SPL_ASSERT(p->index[slot] == p->n_entries);
        *e = (spl_penalty_entry){0};
        p->index[slot] = 0;
        p->n_entries--;
    }
    p->n_undo--;
}

spl_status spl_penalties_rollback(spl_penalties *p, uint32_t n_output, spl_error *err) {
    if (n_output > p->n_output || p->n_output - n_output > p->n_undo)
        return spl_fail(err, SPL_E_INTERNAL, "penalties: cannot go back from %u to %u output tokens, %u are kept",
                        p->n_output, n_output, p->n_undo);
    while (p->n_output > n_output) undo_one(p);
    return SPL_OK;
}

uint32_t spl_penalties_count(const spl_penalties *p, uint32_t token, bool *in_prompt) {
    uint32_t slot = find_slot(p, token);
    const spl_penalty_entry *e = p->index[slot] ? &p->entries[p->index[slot] - 1] : NULL;
    if (in_prompt) *in_prompt = e && e->in_prompt;
    return e ? e->n_output : 0;
}
