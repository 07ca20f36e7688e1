/* SPDX-License-Identifier: Apache-2.0
 * The page pool and page tables. */
#include "cache/page_pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "model/geometry.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

spl_status spl_page_pool_init(spl_page_pool *p, size_t page_bytes, uint32_t n_pages, spl_error *err) {
    memset(p, 0, sizeof *p);
    uint64_t total;
    if (!spl_mul_u64(page_bytes, n_pages, &total) || total > SIZE_MAX)
        return spl_fail(err, SPL_E_LIMIT, "%u KV pages of %zu bytes do not fit the address space", n_pages, page_bytes);
    p->page_bytes = page_bytes;
    p->n_pages = n_pages;
    p->free_ids = calloc(n_pages ? n_pages : 1, sizeof *p->free_ids);
    p->references = calloc(n_pages ? n_pages : 1, sizeof *p->references);
    void *memory = mmap(NULL, (size_t)(total ? total : 1), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) memory = NULL;
    p->memory = memory;
    if (!p->free_ids || !p->references || !memory) {
        spl_page_pool_free(p);
        return spl_fail(err, SPL_E_NOMEM, "no memory for %u KV pages of %zu bytes; lower the context", n_pages,
                        page_bytes);
    }
    for (uint32_t i = 0; i < n_pages; i++) p->free_ids[i] = n_pages - 1 - i; /* low ids first */
    p->n_free = n_pages;
    return SPL_OK;
}

void spl_page_pool_free(spl_page_pool *p) {
    size_t total = p->page_bytes * p->n_pages;
    if (p->memory) (void)munmap(p->memory, total ? total : 1);
    free(p->free_ids);
    free(p->references);
    memset(p, 0, sizeof *p);
}

spl_status spl_page_take(spl_page_pool *p, uint32_t *id, spl_error *err) {
    if (p->n_free == 0) return spl_fail(err, SPL_E_LIMIT, "all %u KV pages are in use", p->n_pages);
    *id = p->free_ids[--p->n_free];
    SPL_ASSERT(p->references[*id] == 0);
    p->references[*id] = 1;
    return SPL_OK;
}

void spl_page_retain(spl_page_pool *p, uint32_t id) {
    SPL_ASSERT(id < p->n_pages && p->references[id] > 0);
    p->references[id]++;
}

void spl_page_release(spl_page_pool *p, uint32_t id) {
    SPL_ASSERT(id < p->n_pages && p->references[id] > 0);
    if (--p->references[id] == 0) p->free_ids[p->n_free++] = id;
}

spl_status spl_page_table_init(spl_page_table *t, uint32_t max_tokens, spl_error *err) {
    memset(t, 0, sizeof *t);
    t->capacity = (uint32_t)spl_div_up(max_tokens, SPL_PAGE_TOKENS);
    t->ids = calloc(t->capacity ? t->capacity : 1, sizeof *t->ids);
    if (!t->ids) return spl_fail(err, SPL_E_NOMEM, "no memory for a page table of %u tokens", max_tokens);
    return SPL_OK;
}

void spl_page_table_free(spl_page_table *t, spl_page_pool *p) {
    spl_page_table_trim(t, p, 0);
    free(t->ids);
    memset(t, 0, sizeof *t);
}

spl_status spl_page_table_grow(spl_page_table *t, spl_page_pool *p, uint32_t n_tokens, spl_error *err) {
    uint32_t need = (uint32_t)spl_div_up(n_tokens, SPL_PAGE_TOKENS), had = t->n;
    if (need > t->capacity)
        return spl_fail(err, SPL_E_CONTEXT, "%u tokens exceed the context of %u", n_tokens,
                        t->capacity * SPL_PAGE_TOKENS);
    while (t->n < need) {
        spl_status st = spl_page_take(p, &t->ids[t->n], err);
        if (st != SPL_OK) {
            spl_page_table_trim(t, p, had * SPL_PAGE_TOKENS);
            return st;
        }
        t->n++;
    }
    return SPL_OK;
}

void spl_page_table_trim(spl_page_table *t, spl_page_pool *p, uint32_t n_tokens) {
    uint32_t keep = (uint32_t)spl_div_up(n_tokens, SPL_PAGE_TOKENS);
    while (t->n > keep) spl_page_release(p, t->ids[--t->n]);
}
