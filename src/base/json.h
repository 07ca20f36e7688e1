/* SPDX-License-Identifier: Apache-2.0
 * JSON from outside, by jansson: parse with a size and depth limit, typed field access with errors
 * that name the field. jansson keeps key order and rejects invalid UTF-8. */
#ifndef SPL_BASE_JSON_H
#define SPL_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { SPL_JSON_MAX_DEPTH = 512 };

/* Parses one JSON value of at most max_bytes. `what` names the text in errors. Duplicate keys are
 * refused. The caller owns *out (json_decref). */
spl_status spl_json_parse(json_t **out, const char *text, size_t n_bytes, size_t max_bytes, const char *what,
                          spl_error *err);
/* Reads and parses a file. */
spl_status spl_json_read(json_t **out, const char *path, size_t max_bytes, spl_error *err);

/* Typed members of an object. `what` names the object in errors; a missing or mistyped member is
 * SPL_E_FORMAT naming both. Borrowed pointers live as long as `object`. */
spl_status spl_json_u64(const json_t *object, const char *key, uint64_t *out, const char *what, spl_error *err);
spl_status spl_json_string(const json_t *object, const char *key, const char **out, const char *what, spl_error *err);
spl_status spl_json_object(const json_t *object, const char *key, json_t **out, const char *what, spl_error *err);
spl_status spl_json_array(const json_t *object, const char *key, json_t **out, const char *what, spl_error *err);

#endif
