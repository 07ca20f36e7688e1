/* SPDX-License-Identifier: Apache-2.0
 * Typed readers for request fields. Null counts as absent everywhere. */
#include "server/fields.h"

#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool spl_reject_set(spl_reject *r, unsigned status, const char *code, const char *format, ...) {
    va_list args;
    r->status = status;
    r->code = code;
    va_start(args, format);
    (void)vsnprintf(r->text, sizeof r->text, format, args);
    va_end(args);
    return false;
}

bool spl_reject_field(spl_reject *r, const char *format, ...) {
    va_list args;
    r->status = 400;
    r->code = SPL_CODE_INVALID;
    va_start(args, format);
    (void)vsnprintf(r->text, sizeof r->text, format, args);
    va_end(args);
    return false;
}

json_t *spl_field(const json_t *body, const char *key) {
    json_t *value = json_object_get(body, key);
    return value && !json_is_null(value) ? value : NULL;
}

bool spl_field_bool(const json_t *body, const char *key, bool *out, spl_reject *r) {
    const json_t *value = spl_field(body, key);
    if (!value) return true;
    if (!json_is_boolean(value)) return spl_reject_field(r, "'%s' must be true or false", key);
    *out = json_is_true(value);
    return true;
}

bool spl_field_int(const json_t *body, const char *key, int64_t lo, int64_t hi, int64_t *out, spl_reject *r) {
    const json_t *value = spl_field(body, key);
    if (!value) return true;
    if (!json_is_integer(value) || json_integer_value(value) < lo || json_integer_value(value) > hi) {
        if (hi == INT64_MAX) return spl_reject_field(r, "'%s' must be an integer of at least %lld", key, (long long)lo);
        return spl_reject_field(r, "'%s' must be an integer from %lld to %lld", key, (long long)lo, (long long)hi);
    }
    *out = json_integer_value(value);
    return true;
}

bool spl_field_number(const json_t *body, const char *key, double lo, bool above_lo, double hi, double *out,
                      spl_reject *r) {
    const json_t *value = spl_field(body, key);
    if (!value) return true;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(above_lo ? number > lo : number >= lo) || !(number <= hi)) {
        if (hi >= (double)FLT_MAX)
            return spl_reject_field(r, "'%s' must be a number %s %g", key, above_lo ? "greater than" : "of at least",
                                    lo);
        return spl_reject_field(r, "'%s' must be a number %s %g and at most %g", key,
                                above_lo ? "greater than" : "of at least", lo, hi);
    }
    *out = number;
    return true;
}

bool spl_is_c_string(const json_t *value) {
    return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
}

bool spl_field_string(const json_t *body, const char *key, const char **out, spl_reject *r) {
    const json_t *value = spl_field(body, key);
    if (!value) return true;
    if (!spl_is_c_string(value)) return spl_reject_field(r, "'%s' must be a string", key);
    *out = json_string_value(value);
    return true;
}
