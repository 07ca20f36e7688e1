/* SPDX-License-Identifier: Apache-2.0
 * A growing byte buffer that cannot be made without a cap. After a failed append the buffer keeps
 * what it had and remembers the failure, so a chain of appends needs one check at its end. */
#ifndef SPL_BASE_DYNBUF_H
#define SPL_BASE_DYNBUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

typedef struct spl_buf {
    char *data;     /* NUL-terminated once anything was appended; NULL when empty */
    size_t n_bytes; /* without the NUL */
    size_t capacity;
    size_t max_bytes;
    spl_status status; /* SPL_OK, SPL_E_NOMEM or SPL_E_LIMIT; sticky until spl_buf_reset */
} spl_buf;

void spl_buf_init(spl_buf *b, size_t max_bytes);
/* Each append returns b->status. */
spl_status spl_buf_append(spl_buf *b, const void *data, size_t n_bytes);
spl_status spl_buf_puts(spl_buf *b, const char *text);
spl_status spl_buf_putc(spl_buf *b, char c);
spl_status spl_buf_printf(spl_buf *b, const char *format, ...) SPL_PRINTF(2, 3);
/* Makes room for n_bytes more and returns the write position, or NULL (b->status says why). The
 * caller then adds what it wrote to n_bytes itself. */
char *spl_buf_reserve(spl_buf *b, size_t n_bytes);
/* Drops the first n_bytes (all of them when n_bytes is larger). */
void spl_buf_consume(spl_buf *b, size_t n_bytes);
/* Empties the buffer, keeps its memory, clears the status. */
void spl_buf_reset(spl_buf *b);
/* Hands the bytes (NUL-terminated, free() them) to the caller and empties the buffer; NULL when
 * the status is not SPL_OK or memory is short. */
char *spl_buf_take(spl_buf *b, size_t *n_bytes);
void spl_buf_free(spl_buf *b);

#endif
