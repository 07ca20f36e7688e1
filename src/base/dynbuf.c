/* SPDX-License-Identifier: Apache-2.0
 * The capped growing buffer. Capacity doubles up to the cap, one byte more for the NUL. */
#include "base/dynbuf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void spl_buf_init(spl_buf *b, size_t max_bytes) {
    memset(b, 0, sizeof *b);
    b->max_bytes = max_bytes;
}

char *spl_buf_reserve(spl_buf *b, size_t n_bytes) {
    if (b->status != SPL_OK) return NULL;
    if (n_bytes > b->max_bytes - b->n_bytes) {
        b->status = SPL_E_LIMIT;
        return NULL;
    }
    size_t need = b->n_bytes + n_bytes + 1;
    if (need > b->capacity) {
        size_t grown = b->capacity < 64 ? 64 : b->capacity;
        while (grown < need) grown = grown > SIZE_MAX / 2 ? need : grown * 2;
        if (grown > b->max_bytes && b->max_bytes + 1 >= need) grown = b->max_bytes + 1;
        char *data = realloc(b->data, grown);
        if (!data) {
            b->status = SPL_E_NOMEM;
            return NULL;
        }
        b->data = data;
        b->capacity = grown;
    }
    return b->data + b->n_bytes;
}

spl_status spl_buf_append(spl_buf *b, const void *data, size_t n_bytes) {
    char *to = spl_buf_reserve(b, n_bytes);
    if (!to) return b->status;
    if (n_bytes) memcpy(to, data, n_bytes);
    b->n_bytes += n_bytes;
    b->data[b->n_bytes] = '\0';
    return SPL_OK;
}

spl_status spl_buf_puts(spl_buf *b, const char *text) { return spl_buf_append(b, text, strlen(text)); }

spl_status spl_buf_putc(spl_buf *b, char c) { return spl_buf_append(b, &c, 1); }

spl_status spl_buf_printf(spl_buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) return b->status = SPL_E_INVALID;
    char *to = spl_buf_reserve(b, (size_t)n);
    if (!to) return b->status;
    va_start(args, format);
    (void)vsnprintf(to, (size_t)n + 1, format, args);
    va_end(args);
    b->n_bytes += (size_t)n;
    return SPL_OK;
}

void spl_buf_consume(spl_buf *b, size_t n_bytes) {
    if (n_bytes >= b->n_bytes) {
        b->n_bytes = 0;
    } else {
        memmove(b->data, b->data + n_bytes, b->n_bytes - n_bytes);
        b->n_bytes -= n_bytes;
    }
    if (b->data) b->data[b->n_bytes] = '\0';
}

void spl_buf_reset(spl_buf *b) {
    b->n_bytes = 0;
    b->status = SPL_OK;
    if (b->data) b->data[0] = '\0';
}

char *spl_buf_take(spl_buf *b, size_t *n_bytes) {
    if (b->status != SPL_OK) return NULL;
    if (!b->data && !spl_buf_reserve(b, 0)) return NULL;
    char *data = b->data;
    data[b->n_bytes] = '\0';
    if (n_bytes) *n_bytes = b->n_bytes;
    size_t max_bytes = b->max_bytes;
    spl_buf_init(b, max_bytes);
    return data;
}

void spl_buf_free(spl_buf *b) {
    free(b->data);
    spl_buf_init(b, b->max_bytes);
}
