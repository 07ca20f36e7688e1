/* SPDX-License-Identifier: Apache-2.0
 * What a tool's JSON schema says about one parameter, and the conversion of the text a model wrote
 * for it into a JSON value. Nothing is validated against the schema beyond the choice of a type. */
#ifndef SPL_TEXT_TOOL_VALUE_H
#define SPL_TEXT_TOOL_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/dynbuf.h"

/* Sets of JSON types; integer counts as number. */
enum {
    SPL_TYPE_STRING = 1,
    SPL_TYPE_NUMBER = 2,
    SPL_TYPE_BOOLEAN = 4,
    SPL_TYPE_NULL = 8,
    SPL_TYPE_OBJECT = 16,
    SPL_TYPE_ARRAY = 32,
    SPL_TYPE_ANY = 63,
};

/* Deepest nesting of a value that still counts as JSON. */
enum { SPL_TOOL_VALUE_MAX_DEPTH = 122, SPL_TOOL_VALUE_MAX_DIGITS = 4300 };

/* Types that parameter `name` of tool `tool` admits, by the `parameters` schema in `tools` (an array of tool objects,
 * with or without the "function" wrapper; may be NULL). Unknown tools and parameters admit any. */
unsigned spl_tool_parameter_types(const json_t *tools, const char *tool, const char *name);

/* Checks strict JSON (no NaN, no lone surrogate, finite numbers, at most SPL_TOOL_VALUE_MAX_DEPTH deep; white space
 * around it is fine) and appends it without white space and with non-ASCII characters unescaped. Returns its type, or 0
 * for text that is no JSON or when memory is short (out->status tells); `out` then is as before. Numbers keep their
 * spelling. */
unsigned spl_json_minify(spl_buf *out, const char *text, size_t n_bytes);

/* Appends the JSON value that the text of a parameter of types `types` stands for. */
spl_status spl_tool_value(spl_buf *out, unsigned types, const char *text, size_t n_bytes);

#endif
