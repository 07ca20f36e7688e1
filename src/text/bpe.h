/* SPDX-License-Identifier: Apache-2.0
 * Byte-pair merging: the table of merges and the loop that applies them to one piece of text. Pairs
 * are merged lowest rank first, leftmost first among equal ranks. Short pieces are scanned, long
 * ones use a heap over a linked list, so a piece of n bytes costs O(n log n). */
#ifndef SPL_TEXT_BPE_H
#define SPL_TEXT_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define SPL_BPE_NONE UINT32_MAX

typedef struct spl_bpe_slot {
    uint32_t left; /* SPL_BPE_NONE: the slot is empty */
    uint32_t right;
    uint32_t rank;
    uint32_t merged;
} spl_bpe_slot;

typedef struct spl_bpe {
    spl_bpe_slot *slots; /* open addressing, at most half full */
    size_t mask;         /* slots - 1, a power of two less one */
    uint32_t byte_id[256];
} spl_bpe;

/* Makes room for n_merges; byte_id is for the caller to fill. */
spl_status spl_bpe_init(spl_bpe *bpe, size_t n_merges, spl_error *err);
void spl_bpe_free(spl_bpe *bpe);
/* Adds a merge; a pair given twice keeps the later rank. At most n_merges additions. */
void spl_bpe_add(spl_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);

/* Working memory of one encode call; grows as needed, starts zeroed. */
typedef struct spl_bpe_work {
    uint32_t *ids; /* the merged piece */
    size_t n_ids;
    size_t capacity;
    struct spl_bpe_node *nodes;
    struct spl_bpe_entry *heap;
    size_t node_capacity;
} spl_bpe_work;

void spl_bpe_work_free(spl_bpe_work *work);
/* Encodes one piece of 1..2^31 bytes into work->ids[0..n_ids). SPL_E_NOMEM is the only error. */
spl_status spl_bpe_encode(const spl_bpe *bpe, spl_bpe_work *work, const char *piece, size_t n_bytes, spl_error *err);

#endif
