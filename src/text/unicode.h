/* SPDX-License-Identifier: Apache-2.0
 * UTF-8 checking, decoding and repair, Python's notion of white space, and Unicode Normalisation
 * Form C in linear time. Character data come from utf8proc; nothing here keeps state except the
 * read-only table that spl_nfc_new makes. */
#ifndef SPL_TEXT_UNICODE_H
#define SPL_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dynbuf.h"
#include "base/status.h"

/* What the bytes at p begin with. */
typedef enum spl_utf8_kind {
    SPL_UTF8_CHAR,    /* a whole character of n_bytes */
    SPL_UTF8_BAD,     /* n_bytes (1..3) that can begin no character: one U+FFFD in Python's "replace" */
    SPL_UTF8_PARTIAL, /* the text ends after n_bytes (1..3) that may still become a character */
} spl_utf8_kind;

/* Classifies the first character of p[0..n_bytes), n_bytes > 0. *used gets the bytes it covers and
 * *cp, for SPL_UTF8_CHAR, the code point. Overlong forms and surrogates are BAD. */
spl_utf8_kind spl_utf8_next(const char *p, size_t n_bytes, size_t *used, uint32_t *cp);

/* True when the text is valid UTF-8; otherwise *bad gets the offset of the first wrong byte. */
bool spl_utf8_valid(const char *p, size_t n_bytes, size_t *bad);

/* Appends the text with every maximal wrong sequence replaced by U+FFFD, exactly as Python's
 * bytes.decode(errors="replace") does. */
spl_status spl_utf8_sanitise(spl_buf *out, const char *p, size_t n_bytes);

/* Writes the 1..4 bytes of a code point and returns their number. */
size_t spl_utf8_put(char out[4], uint32_t cp);

/* str.isspace() of Python, which str.strip() cuts by. */
bool spl_unicode_python_space(uint32_t cp);
/* White_Space of Unicode (\s in Oniguruma and in Rust's regex). */
bool spl_unicode_white_space(uint32_t cp);
/* \w of Rust's regex: Alphabetic, marks, decimal numbers, connectors, joiners. */
bool spl_unicode_word(uint32_t cp);

/* Python's str.strip(): moves *p and *n_bytes past white space at both ends of valid UTF-8. */
void spl_unicode_strip(const char **p, size_t *n_bytes);

typedef struct spl_nfc spl_nfc; /* read-only after creation, free to share between threads */

spl_status spl_nfc_new(spl_nfc **out, spl_error *err);
void spl_nfc_free(spl_nfc *nfc); /* accepts NULL */
/* Appends NFC(text) to `out`; the text must be valid UTF-8. Linear in n_bytes, also for hostile
 * runs of combining marks. */
spl_status spl_nfc_append(const spl_nfc *nfc, spl_buf *out, const char *p, size_t n_bytes, spl_error *err);
/* Length of the longest prefix that is known to be in NFC and that nothing after it can change:
 * n_bytes when the whole text is. */
size_t spl_nfc_quick(const spl_nfc *nfc, const char *p, size_t n_bytes);

#endif
