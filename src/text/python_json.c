/* SPDX-License-Identifier: Apache-2.0
 * Python's json.dumps. Numbers come as jansson read them: integers of 64 bits, floats as doubles. */
#include "text/python_json.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* Splits "[-]D[.DDD]e[+-]XX" into its digits (returns how many) and exponent. The separator may be
 * the locale's, so characters are picked by kind. */
static int split_scientific(const char *text, char digits[24], int *exponent) {
    int n = 0;
    for (; *text && *text != 'e'; text++) {
        if (*text >= '0' && *text <= '9' && n < 20) digits[n++] = *text;
    }
    digits[n] = '\0';
    *exponent = *text ? (int)strtol(text + 1, NULL, 10) : 0;
    return n;
}

/* True when the digits, taken with the exponent of their first, read back as `value` (not negative). */
static bool reads_back(const char *digits, int exponent, double value) {
    char text[40];
    (void)snprintf(text, sizeof text, "%se%d", digits, exponent - (int)strlen(digits) + 1);
    return strtod(text, NULL) == value;
}

/* Adds one to the last digit; false when a carry would make the number longer. */
static bool bump(char *digits, int n) {
    while (n-- > 0) {
        if (digits[n]++ < '9') return true;
        digits[n] = '0';
    }
    return false;
}

spl_status spl_python_float(spl_buf *out, double value) {
    char mantissa[24];
    int exponent = 0;
    int n = 0;
    if (signbit(value)) {
        (void)spl_buf_putc(out, '-');
        value = -value;
    }
    for (int digits = 1; digits <= 17; digits++) {
        char text[40];
        (void)snprintf(text, sizeof text, "%.*e", digits - 1, value);
        n = split_scientific(text, mantissa, &exponent);
        if (reads_back(mantissa, exponent, value)) break;
        /* Above a power of two the gap is wider than below: the next number up may do where the nearest does not. */
        if (digits < 17 && bump(mantissa, n) && reads_back(mantissa, exponent, value)) break;
    }
    if (n == 0) return spl_buf_puts(out, "NaN"); /* not from JSON text */
    if (exponent < -4 || exponent >= 16)
        return spl_buf_printf(out, "%c%s%se%c%02d", mantissa[0], n > 1 ? "." : "", mantissa + 1,
                              exponent < 0 ? '-' : '+', abs(exponent));
    if (exponent < 0) {
        (void)spl_buf_append(out, "0.0000", (size_t)(1 - exponent));
        return spl_buf_puts(out, mantissa);
    }
    for (int i = 0; i <= exponent; i++) (void)spl_buf_putc(out, i < n ? mantissa[i] : '0');
    return spl_buf_printf(out, ".%s", exponent + 1 < n ? mantissa + exponent + 1 : "0");
}

spl_status spl_python_json_escape(spl_buf *out, const char *text, size_t n_bytes) {
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* character, then its letter */
    size_t start = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        uint8_t c = (uint8_t)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        (void)spl_buf_append(out, text + start, i - start);
        start = i + 1;
        const char *name = NULL;
        for (const char *s = named; *s; s += 2) {
            if ((uint8_t)*s == c) name = s + 1;
        }
        if (name) {
            (void)spl_buf_putc(out, '\\');
            (void)spl_buf_putc(out, *name);
        } else {
            (void)spl_buf_printf(out, "\\u%04x", c);
        }
    }
    return spl_buf_append(out, text + start, n_bytes - start);
}

spl_status spl_python_json_string(spl_buf *out, const char *text, size_t n_bytes) {
    (void)spl_buf_putc(out, '"');
    (void)spl_python_json_escape(out, text, n_bytes);
    return spl_buf_putc(out, '"');
}

static spl_status dump(spl_buf *out, const json_t *value, int depth);

static spl_status dump_object(spl_buf *out, const json_t *object, int depth) {
    const char *key;
    json_t *item;
    bool first = true;
    (void)spl_buf_putc(out, '{');
    json_object_foreach((json_t *)(uintptr_t)object, key, item) {
        if (!first) (void)spl_buf_puts(out, ", ");
        first = false;
        (void)spl_python_json_string(out, key, strlen(key));
        (void)spl_buf_puts(out, ": ");
        (void)dump(out, item, depth + 1);
    }
    return spl_buf_putc(out, '}');
}

static spl_status dump_array(spl_buf *out, const json_t *array, int depth) {
    (void)spl_buf_putc(out, '[');
    for (size_t i = 0; i < json_array_size(array); i++) {
        if (i) (void)spl_buf_puts(out, ", ");
        (void)dump(out, json_array_get(array, i), depth + 1);
    }
    return spl_buf_putc(out, ']');
}

static spl_status dump(spl_buf *out, const json_t *value, int depth) {
    if (depth > SPL_JSON_MAX_DEPTH && out->status == SPL_OK) out->status = SPL_E_LIMIT;
    if (out->status != SPL_OK) return out->status;
    switch (json_typeof(value)) {
    case JSON_OBJECT: return dump_object(out, value, depth);
    case JSON_ARRAY: return dump_array(out, value, depth);
    case JSON_STRING: return spl_python_json_string(out, json_string_value(value), json_string_length(value));
    case JSON_INTEGER: return spl_buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    case JSON_REAL: return spl_python_float(out, json_real_value(value));
    case JSON_TRUE: return spl_buf_puts(out, "true");
    case JSON_FALSE: return spl_buf_puts(out, "false");
    case JSON_NULL:
    default: return spl_buf_puts(out, "null");
    }
}

spl_status spl_python_json(spl_buf *out, const json_t *value) { return dump(out, value, 0); }

spl_status spl_python_str(spl_buf *out, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_TRUE: return spl_buf_puts(out, "True");
    case JSON_FALSE: return spl_buf_puts(out, "False");
    case JSON_NULL: return spl_buf_puts(out, "None");
    case JSON_STRING: return spl_buf_append(out, json_string_value(value), json_string_length(value));
    default: return spl_python_json(out, value);
    }
}
