/* SPDX-License-Identifier: Apache-2.0
 * JSON text exactly as Python's json.dumps(value, ensure_ascii=False) writes it: ", " and ": " between items, keys in
 * their order, floats as repr(). The chat templates were rendered with it when the models were trained. */
#ifndef SPL_TEXT_PYTHON_JSON_H
#define SPL_TEXT_PYTHON_JSON_H

#include <jansson.h>

#include "base/dynbuf.h"

/* Appends the value. Returns out->status; a value nested deeper than SPL_JSON_MAX_DEPTH sets it to SPL_E_LIMIT. */
spl_status spl_python_json(spl_buf *out, const json_t *value);
/* Appends str(value) for null, booleans, numbers and strings ("None", "True", 1.5, raw text). */
spl_status spl_python_str(spl_buf *out, const json_t *value);
/* Appends repr(float): the shortest digits that read back as `value`. */
spl_status spl_python_float(spl_buf *out, double value);
/* Appends text as a JSON string with its quotes. Control characters, quote and backslash are escaped. */
spl_status spl_python_json_string(spl_buf *out, const char *text, size_t n_bytes);
/* The same without the quotes. */
spl_status spl_python_json_escape(spl_buf *out, const char *text, size_t n_bytes);

#endif
