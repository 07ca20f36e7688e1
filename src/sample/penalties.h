/* SPDX-License-Identifier: Apache-2.0
 * Which tokens a request has seen, for the repetition, presence and frequency penalties: one entry per
 * distinct token in order of first appearance, found through a small hash index. Output tokens are
 * pushed one by one; the last SPL_PENALTY_UNDO of them can be taken back, which leaves entries and index
 * byte for byte as if they had never been pushed. Memory is the caller's; nothing here allocates. */
#ifndef SPL_SAMPLE_PENALTIES_H
#define SPL_SAMPLE_PENALTIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { SPL_PENALTY_UNDO = 16 }; /* at least two draft blocks */

typedef struct spl_penalty_entry {
    uint32_t token;
    uint32_t n_output : 31; /* occurrences among output tokens */
    uint32_t in_prompt : 1;
} spl_penalty_entry;

typedef struct spl_penalties {
    spl_penalty_entry *entries; /* [capacity], the first n_entries in use */
    uint32_t *index;            /* [index_mask + 1], entry number + 1, 0: free; linear probing */
    uint32_t index_mask, capacity, n_entries, vocab;
    uint32_t n_output;                  /* output tokens pushed and not taken back */
    uint32_t n_undo;                    /* how many of them can still be taken back */
    uint32_t journal[SPL_PENALTY_UNDO]; /* ring: output token i is at i % SPL_PENALTY_UNDO */
} spl_penalties;

/* Bytes for a request that sees at most n_tokens tokens (prompt, output and one draft block). */
size_t spl_penalties_bytes(uint32_t n_tokens, uint32_t vocab);

/* Starts empty on `memory` (8-aligned, spl_penalties_bytes long), which stays the caller's. */
void spl_penalties_init(spl_penalties *p, void *memory, uint32_t n_tokens, uint32_t vocab);

/* Notes prompt tokens; they count for the repetition penalty only. May be called per chunk, before or
 * between pushes only while nothing is to be taken back across it.
 * Errors: INVALID (token outside the vocabulary), LIMIT (more distinct tokens than planned). */
spl_status spl_penalties_add_prompt(spl_penalties *p, const uint32_t *tokens, size_t n_tokens, spl_error *err);

/* Counts one output token, proposals under test included. Errors as above; on error nothing changed. */
spl_status spl_penalties_push(spl_penalties *p, uint32_t token, spl_error *err);

/* Takes back the newest output tokens until n_output are left (a value of p->n_output seen earlier).
 * Errors: INTERNAL when that is ahead, or further back than the journal reaches; nothing changed then. */
spl_status spl_penalties_rollback(spl_penalties *p, uint32_t n_output, spl_error *err);

/* Occurrences of a token among the output; *in_prompt (may be NULL) whether the prompt has it. */
uint32_t spl_penalties_count(const spl_penalties *p, uint32_t token, bool *in_prompt);

#endif
