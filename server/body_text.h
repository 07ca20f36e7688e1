/* SPDX-License-Identifier: Apache-2.0
 * From the bytes of an upload to one JSON object. Takes what real clients send and a strict parser refuses: UTF-16
 * and UTF-32, a byte-order mark, escaped lone surrogates (become U+FFFD), integers above 2^63. Nesting is
 * limited before the parser recurses. */
#ifndef SPL_SERVER_BODY_TEXT_H
#define SPL_SERVER_BODY_TEXT_H

#include "server/fields.h"

enum { SPL_BODY_MAX_DEPTH = 128 };

typedef struct spl_body {
    json_t *root;     /* an object; owned */
    bool seed_is_big; /* top-level "seed" is an integer above 2^63-1; root holds 0 in its place */
    uint64_t big_seed;
} spl_body;

/* On success the caller owns out->root (spl_body_free). On failure out is empty and *r says why. */
bool spl_body_decode(spl_body *out, const char *bytes, size_t n_bytes, spl_reject *r);
void spl_body_free(spl_body *body);

#endif
