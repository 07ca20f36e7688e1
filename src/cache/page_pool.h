/* SPDX-License-Identifier: Apache-2.0
 * Physical KV pages: one reserved block of memory, ids, reference counts, a free list. A page is free
 * when nothing refers to it. Contents are never cleared: the length of a lane hides what is stale.
 * One owner thread; no locks. */
#ifndef SPL_CACHE_PAGE_POOL_H
#define SPL_CACHE_PAGE_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct spl_page_pool {
    uint8_t *memory; /* [n_pages][page_bytes]; backed by the OS on first touch */
    size_t page_bytes;
    uint32_t n_pages, n_free;
    uint32_t *free_ids;   /* stack of free page ids */
    uint32_t *references; /* [n_pages] */
} spl_page_pool;

spl_status spl_page_pool_init(spl_page_pool *p, size_t page_bytes, uint32_t n_pages, spl_error *err);
void spl_page_pool_free(spl_page_pool *p);

/* A free page with one reference; SPL_E_LIMIT when there is none. */
spl_status spl_page_take(spl_page_pool *p, uint32_t *id, spl_error *err);
void spl_page_retain(spl_page_pool *p, uint32_t id);
void spl_page_release(spl_page_pool *p, uint32_t id);

/* The pages of one lane, in order of tokens. */
typedef struct spl_page_table {
    uint32_t *ids; /* [capacity] */
    uint32_t n, capacity;
} spl_page_table;

spl_status spl_page_table_init(spl_page_table *t, uint32_t max_tokens, spl_error *err);
void spl_page_table_free(spl_page_table *t, spl_page_pool *p); /* releases its pages */
/* Adds pages until n_tokens fit; on failure the table keeps what it had. SPL_E_LIMIT when the pool is
 * empty, SPL_E_CONTEXT past the table's capacity. */
spl_status spl_page_table_grow(spl_page_table *t, spl_page_pool *p, uint32_t n_tokens, spl_error *err);
/* Releases pages past n_tokens. */
void spl_page_table_trim(spl_page_table *t, spl_page_pool *p, uint32_t n_tokens);

#endif
