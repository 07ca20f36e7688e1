/* SPDX-License-Identifier: Apache-2.0
 * Thin, checked layer over jansson. Holds no state. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"

/* jansson bounds recursion at 2048 levels itself; ours is tighter. */
static bool within_depth(const json_t *value, int depth) {
    if (depth > SPL_JSON_MAX_DEPTH) return false;
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_object(value)) {
        json_object_foreach((json_t *)(uintptr_t)value, key, item) {
            if (!within_depth(item, depth + 1)) return false;
        }
    } else if (json_is_array(value)) {
        json_array_foreach(value, i, item) {
            if (!within_depth(item, depth + 1)) return false;
        }
    }
    return true;
}

spl_status spl_json_parse(json_t **out, const char *text, size_t n_bytes, size_t max_bytes, const char *what,
                          spl_error *err) {
    json_error_t jerr;
    *out = NULL;
    if (n_bytes > max_bytes)
        return spl_fail(err, SPL_E_LIMIT, "%s has %zu bytes; the limit is %zu", what, n_bytes, max_bytes);
    json_t *value = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &jerr);
    if (!value)
        return spl_fail(err, SPL_E_FORMAT, "%s is not valid JSON: %s (line %d, column %d)", what, jerr.text, jerr.line,
                        jerr.column);
    if (!within_depth(value, 0)) {
        json_decref(value);
        return spl_fail(err, SPL_E_LIMIT, "%s nests deeper than %d levels", what, SPL_JSON_MAX_DEPTH);
    }
    *out = value;
    return SPL_OK;
}

spl_status spl_json_read(json_t **out, const char *path, size_t max_bytes, spl_error *err) {
    char *text;
    size_t n_bytes;
    *out = NULL;
    spl_status st = spl_read_file(path, max_bytes, &text, &n_bytes, err);
    if (st != SPL_OK) return st;
    st = spl_json_parse(out, text, n_bytes, max_bytes, path, err);
    free(text);
    return st;
}

/* Finds a member; an absent one is an error that names it. */
static spl_status member(const json_t *object, const char *key, json_t **out, const char *what, spl_error *err) {
    *out = json_object_get(object, key);
    if (!*out) return spl_fail(err, SPL_E_FORMAT, "%s has no field '%s'", what, key);
    return SPL_OK;
}

spl_status spl_json_u64(const json_t *object, const char *key, uint64_t *out, const char *what, spl_error *err) {
    json_t *value;
    spl_status st = member(object, key, &value, what, err);
    if (st != SPL_OK) return st;
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return spl_fail(err, SPL_E_FORMAT, "%s field '%s' must be a non-negative integer", what, key);
    *out = (uint64_t)json_integer_value(value);
    return SPL_OK;
}

spl_status spl_json_string(const json_t *object, const char *key, const char **out, const char *what, spl_error *err) {
    json_t *value;
    spl_status st = member(object, key, &value, what, err);
    if (st != SPL_OK) return st;
    if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
        return spl_fail(err, SPL_E_FORMAT, "%s field '%s' must be a string without NUL", what, key);
    *out = json_string_value(value);
    return SPL_OK;
}

spl_status spl_json_object(const json_t *object, const char *key, json_t **out, const char *what, spl_error *err) {
    spl_status st = member(object, key, out, what, err);
    if (st == SPL_OK && !json_is_object(*out))
        st = spl_fail(err, SPL_E_FORMAT, "%s field '%s' must be an object", what, key);
    return st;
}

spl_status spl_json_array(const json_t *object, const char *key, json_t **out, const char *what, spl_error *err) {
    spl_status st = member(object, key, out, what, err);
    if (st == SPL_OK && !json_is_array(*out))
        st = spl_fail(err, SPL_E_FORMAT, "%s field '%s' must be an array", what, key);
    return st;
}
