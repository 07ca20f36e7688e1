/* SPDX-License-Identifier: Apache-2.0
 * Byte-pair merging. A heap entry is stale when its left symbol was merged away or its right
 * neighbour changed; looking the pair up again tells, because a rank names one pair. */
#include "text/bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SCAN_MAX = 48 }; /* up to here the quadratic scan is faster than the heap */

typedef struct spl_bpe_node {
    uint32_t id; /* SPL_BPE_NONE: merged into the symbol on its left */
    uint32_t prev;
    uint32_t next; /* SPL_BPE_NONE at the end */
} spl_bpe_node;

typedef struct spl_bpe_entry {
    uint64_t key; /* rank in the upper half, position in the lower: the order of merging */
    uint32_t merged;
} spl_bpe_entry;

static size_t pair_hash(uint32_t left, uint32_t right) {
    uint64_t x = ((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(x ^ x >> 29);
}

spl_status spl_bpe_init(spl_bpe *bpe, size_t n_merges, spl_error *err) {
    size_t n = 64;
    while (n < n_merges * 2) n *= 2;
    memset(bpe, 0, sizeof *bpe);
    bpe->slots = malloc(n * sizeof *bpe->slots);
    if (!bpe->slots) return spl_fail(err, SPL_E_NOMEM, "no memory for a table of %zu merges", n_merges);
    for (size_t i = 0; i < n; i++) bpe->slots[i].left = SPL_BPE_NONE;
    bpe->mask = n - 1;
    return SPL_OK;
}

void spl_bpe_free(spl_bpe *bpe) {
    free(bpe->slots);
    bpe->slots = NULL;
}

void spl_bpe_add(spl_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
    size_t i = pair_hash(left, right) & bpe->mask;
    while (bpe->slots[i].left != SPL_BPE_NONE && (bpe->slots[i].left != left || bpe->slots[i].right != right))
        i = (i + 1) & bpe->mask;
    bpe->slots[i] = (spl_bpe_slot){left, right, rank, merged};
}

/* The merge of a pair, or NULL. */
static const spl_bpe_slot *find(const spl_bpe *bpe, uint32_t left, uint32_t right) {
    size_t i = pair_hash(left, right) & bpe->mask;
    for (;; i = (i + 1) & bpe->mask) {
        const spl_bpe_slot *s = &bpe->slots[i];
        if (s->left == SPL_BPE_NONE) return NULL;
        if (s->left == left && s->right == right) return s;
    }
}

void spl_bpe_work_free(spl_bpe_work *work) {
    free(work->ids);
    free(work->nodes);
    free(work->heap);
    memset(work, 0, sizeof *work);
}

/* Room for n ids and, when `linked`, for n nodes and the heap: one entry per starting pair and at
 * most two more per merge, of which there are fewer than n. */
static bool make_room(spl_bpe_work *work, size_t n, bool linked) {
    if (n > work->capacity) {
        size_t capacity = n < 256 ? 256 : n;
        uint32_t *ids = realloc(work->ids, capacity * sizeof *ids);
        if (!ids) return false;
        work->ids = ids;
        work->capacity = capacity;
    }
    if (linked && n > work->node_capacity) {
        spl_bpe_node *nodes = realloc(work->nodes, n * sizeof *nodes);
        if (!nodes) return false;
        work->nodes = nodes;
        spl_bpe_entry *heap = realloc(work->heap, 3 * n * sizeof *heap);
        if (!heap) return false;
        work->heap = heap;
        work->node_capacity = n;
    }
    return true;
}

/* Quadratic but cache-resident: ranks of all adjacent pairs are kept beside the ids. */
static void encode_short(const spl_bpe *bpe, uint32_t *ids, size_t *n_ids) {
    uint32_t rank[SCAN_MAX];
    uint32_t merged[SCAN_MAX];
    size_t n = *n_ids;
    for (size_t i = 0; i + 1 < n; i++) {
        const spl_bpe_slot *s = find(bpe, ids[i], ids[i + 1]);
        rank[i] = s ? s->rank : SPL_BPE_NONE;
        merged[i] = s ? s->merged : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == SPL_BPE_NONE) break;
        ids[best] = merged[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof *rank);
        memmove(merged + best, merged + best + 1, (n - best - 1) * sizeof *merged);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const spl_bpe_slot *s = find(bpe, ids[i], ids[i + 1]);
            rank[i] = s ? s->rank : SPL_BPE_NONE;
            merged[i] = s ? s->merged : 0;
        }
    }
    *n_ids = n;
}

static void sift_down(spl_bpe_entry *heap, size_t n, size_t i) {
    spl_bpe_entry item = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= item.key) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = item;
}

static void push(spl_bpe_entry *heap, size_t *n, spl_bpe_entry item) {
    size_t i = (*n)++;
    while (i && heap[(i - 1) / 2].key > item.key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = item;
}

/* The entry of the pair that starts at node `at`; false when it has no merge. */
static bool pair_at(const spl_bpe *bpe, const spl_bpe_node *nodes, uint32_t at, spl_bpe_entry *out) {
    uint32_t next = nodes[at].next;
    if (next == SPL_BPE_NONE) return false;
    const spl_bpe_slot *s = find(bpe, nodes[at].id, nodes[next].id);
    if (!s) return false;
    *out = (spl_bpe_entry){(uint64_t)s->rank << 32 | at, s->merged};
    return true;
}

static void encode_long(const spl_bpe *bpe, spl_bpe_work *work, size_t n) {
    spl_bpe_node *nodes = work->nodes;
    spl_bpe_entry *heap = work->heap;
    spl_bpe_entry entry;
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        nodes[i] = (spl_bpe_node){work->ids[i], i ? (uint32_t)(i - 1) : SPL_BPE_NONE,
                                  i + 1 < n ? (uint32_t)(i + 1) : SPL_BPE_NONE};
    }
    for (size_t i = 0; i < n; i++) {
        if (pair_at(bpe, nodes, (uint32_t)i, &entry)) heap[n_heap++] = entry;
    }
    for (size_t i = n_heap / 2; i-- > 0;) sift_down(heap, n_heap, i);
    while (n_heap) {
        spl_bpe_entry top = heap[0];
        heap[0] = heap[--n_heap];
        if (n_heap) sift_down(heap, n_heap, 0);
        uint32_t at = (uint32_t)top.key;
        if (nodes[at].id == SPL_BPE_NONE || !pair_at(bpe, nodes, at, &entry) || entry.key != top.key) continue;
        uint32_t right = nodes[at].next;
        nodes[at].id = top.merged;
        nodes[at].next = nodes[right].next;
        nodes[right].id = SPL_BPE_NONE;
        if (nodes[at].next != SPL_BPE_NONE) nodes[nodes[at].next].prev = at;
        if (pair_at(bpe, nodes, at, &entry)) push(heap, &n_heap, entry);
        if (nodes[at].prev != SPL_BPE_NONE && pair_at(bpe, nodes, nodes[at].prev, &entry)) push(heap, &n_heap, entry);
    }
    work->n_ids = 0;
    for (uint32_t at = 0; at != SPL_BPE_NONE; at = nodes[at].next) work->ids[work->n_ids++] = nodes[at].id;
}

spl_status spl_bpe_encode(const spl_bpe *bpe, spl_bpe_work *work, const char *piece, size_t n_bytes, spl_error *err) {
    bool linked = n_bytes > SCAN_MAX;
    if (!make_room(work, n_bytes, linked))
        return spl_fail(err, SPL_E_NOMEM, "no memory to tokenise a piece of %zu bytes", n_bytes);
    for (size_t i = 0; i < n_bytes; i++) work->ids[i] = bpe->byte_id[(uint8_t)piece[i]];
    work->n_ids = n_bytes;
    if (linked)
        encode_long(bpe, work, n_bytes);
    else
        encode_short(bpe, work->ids, &work->n_ids);
    return SPL_OK;
}
