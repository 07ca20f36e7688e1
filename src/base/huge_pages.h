/* SPDX-License-Identifier: Apache-2.0
 * Large pages: one entry of the address translation for 2 MiB instead of 4 KiB. The system is asked for them where
 * memory is large and read as a whole, and can be asked against them to measure what they bring. Always a hint. */
#ifndef SPL_BASE_HUGE_PAGES_H
#define SPL_BASE_HUGE_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SPL_HUGE_PAGE_BYTES = 2 << 20 };

/* For the 2 MiB pages that lie wholly in data .. data + n_bytes; best before the memory is touched. For a mapped file
 * it helps where the kernel keeps large pages of that file system in its cache, and costs nothing elsewhere. */
void spl_advise_pages(const void *data, size_t n_bytes, bool huge);

/* Memory for free(), aligned to a page, large ones asked for (or against) when it has room for one. Not cleared; NULL
 * when there is none. */
void *spl_alloc_pages(size_t n_bytes, bool huge);

/* Bytes of this process that lie on large pages now; 0 where the system does not say. */
uint64_t spl_huge_page_bytes(void);

#endif
