/* SPDX-License-Identifier: Apache-2.0
 * Incremental decoding. At most three bytes wait between tokens; they always are a prefix of some
 * valid character. */
#include "text/detokenizer.h"

#include <string.h>

#include "text/unicode.h"

static const char replacement[] = "\xef\xbf\xbd";

void spl_detokenizer_init(spl_detokenizer *d, const spl_tokenizer *t, bool skip_special) {
    memset(d, 0, sizeof *d);
    d->tokenizer = t;
    d->skip_special = skip_special;
}

/* Completes or gives up the waiting bytes with the first bytes of p; returns how many were used. */
static size_t finish_pending(spl_detokenizer *d, const char *p, size_t n_bytes, spl_buf *out) {
    size_t used = 0;
    while (d->n_pending && used < n_bytes) {
        size_t covered;
        uint32_t cp;
        d->pending[d->n_pending++] = p[used];
        spl_utf8_kind kind = spl_utf8_next(d->pending, d->n_pending, &covered, &cp);
        if (kind == SPL_UTF8_PARTIAL) {
            used++;
        } else if (kind == SPL_UTF8_CHAR) {
            used++;
            (void)spl_buf_append(out, d->pending, d->n_pending);
            d->n_pending = 0;
        } else { /* the new byte does not belong to the character: it is read again on its own */
            (void)spl_buf_append(out, replacement, 3);
            d->n_pending = 0;
        }
    }
    return used;
}

spl_status spl_detokenizer_push(spl_detokenizer *d, uint32_t id, spl_buf *out) {
    size_t n_bytes;
    bool special;
    spl_detokenizer before = *d;
    size_t n_before = out->n_bytes;
    const char *p = spl_tokenizer_bytes(d->tokenizer, id, &n_bytes, &special);
    if (!p || (special && d->skip_special)) return out->status;
    size_t i = finish_pending(d, p, n_bytes, out);
    size_t start = i;
    while (i < n_bytes) {
        size_t used;
        uint32_t cp;
        spl_utf8_kind kind = spl_utf8_next(p + i, n_bytes - i, &used, &cp);
        if (kind != SPL_UTF8_CHAR) {
            (void)spl_buf_append(out, p + start, i - start);
            if (kind == SPL_UTF8_BAD) {
                (void)spl_buf_append(out, replacement, 3);
            } else {
                memcpy(d->pending, p + i, used);
                d->n_pending = (uint8_t)used;
            }
            start = i + used;
        }
        i += used;
    }
    (void)spl_buf_append(out, p + start, i - start);
    if (out->status != SPL_OK) {
        *d = before;
        out->n_bytes = n_before;
    }
    return out->status;
}

spl_status spl_detokenizer_flush(spl_detokenizer *d, spl_buf *out) {
    if (d->n_pending && spl_buf_append(out, replacement, 3) == SPL_OK) d->n_pending = 0;
    return out->status;
}
