/* SPDX-License-Identifier: Apache-2.0
 * Reading fields of a request body with errors a client can act on. Every reader leaves *out alone and
 * succeeds when the field is absent or null; a wrong type or range fills *r with status 400 and the field's
 * name. Pure functions: no state, no engine. */
#ifndef SPL_SERVER_FIELDS_H
#define SPL_SERVER_FIELDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

#define SPL_CODE_INVALID "invalid_request_error"

enum { SPL_REJECT_TEXT_BYTES = 512 };

/* Why a request is refused: an HTTP status, a machine-readable code, one line for people. */
typedef struct spl_reject {
    unsigned status;
    const char *code;
    char text[SPL_REJECT_TEXT_BYTES];
} spl_reject;

/* Fills *r; always returns false, so that a reader can `return spl_reject_set(...)`. */
bool spl_reject_set(spl_reject *r, unsigned status, const char *code, const char *format, ...) SPL_PRINTF(4, 5);
/* The common case: 400 invalid_request_error. */
bool spl_reject_field(spl_reject *r, const char *format, ...) SPL_PRINTF(2, 3);

/* The member, or NULL when it is absent or null. Borrowed. */
json_t *spl_field(const json_t *body, const char *key);

bool spl_field_bool(const json_t *body, const char *key, bool *out, spl_reject *r);
/* lo <= value <= hi. */
bool spl_field_int(const json_t *body, const char *key, int64_t lo, int64_t hi, int64_t *out, spl_reject *r);
/* lo <= value <= hi; with `above_lo` lo itself is refused. */
bool spl_field_number(const json_t *body, const char *key, double lo, bool above_lo, double hi, double *out,
                      spl_reject *r);
/* A string without NUL bytes; borrowed from `body`. */
bool spl_field_string(const json_t *body, const char *key, const char **out, spl_reject *r);

/* True when the JSON string holds no NUL byte, so that it is a C string. */
bool spl_is_c_string(const json_t *value);

#endif
