/* SPDX-License-Identifier: Apache-2.0
 * Results of measurements as text: members line by line, arrays of objects as tables. */
#include "cli/result_text.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "cli/args.h"

enum { LABEL_WIDTH = 34, MAX_COLUMNS = 16, MAX_CELL_BYTES = 44 };

/* "step_seconds" -> "step seconds". */
static void print_label(int indent, const char *key) {
    char label[64];
    (void)snprintf(label, sizeof label, "%s", key);
    for (char *p = label; *p; p++)
        if (*p == '_') *p = ' ';
    int width = LABEL_WIDTH - indent;
    (void)printf("%*s%-*s ", indent, "", width > 1 ? width : 1, label);
}

/* A value as a short text; line ends become spaces. */
static void cell_text(const json_t *value, char out[MAX_CELL_BYTES]) {
    if (json_is_integer(value)) {
        (void)snprintf(out, MAX_CELL_BYTES, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        (void)snprintf(out, MAX_CELL_BYTES, "%.4g", json_real_value(value));
    } else if (json_is_string(value)) {
        const char *text = json_string_value(value);
        size_t n = strlen(text) < MAX_CELL_BYTES ? strlen(text) : MAX_CELL_BYTES - 1;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) n--; /* whole characters */
        (void)snprintf(out, MAX_CELL_BYTES, "%.*s", (int)n, text);
        for (char *p = out; *p; p++)
            if ((unsigned char)*p < 0x20) *p = ' ';
    } else {
        (void)snprintf(out, MAX_CELL_BYTES, "%s", json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "-");
    }
}

/* Rows of equal members, one line each below their names. */
static void print_table(const json_t *rows) {
    size_t width[MAX_COLUMNS] = {0}, i, n = 0;
    const char *names[MAX_COLUMNS], *key;
    char text[MAX_CELL_BYTES];
    json_t *row, *value;
    json_object_foreach(json_array_get(rows, 0), key, value) {
        if (n < MAX_COLUMNS) names[n++] = key;
    }
    for (size_t c = 0; c < n; c++) {
        width[c] = strlen(names[c]);
        json_array_foreach(rows, i, row) {
            cell_text(json_object_get(row, names[c]), text);
            if (strlen(text) > width[c]) width[c] = strlen(text);
        }
    }
    for (size_t c = 0; c < n; c++) (void)printf("  %-*s", (int)width[c], names[c]);
    (void)putchar('\n');
    json_array_foreach(rows, i, row) {
        for (size_t c = 0; c < n; c++) {
            value = json_object_get(row, names[c]);
            cell_text(value, text);
            (void)printf(json_is_number(value) ? "  %*s" : "  %-*s", (int)width[c], text);
        }
        (void)putchar('\n');
    }
}

/* The member "KEY_END", or NULL. */
static const json_t *companion(const json_t *object, const char *key, const char *end) {
    char name[96];
    (void)snprintf(name, sizeof name, "%s_%s", key, end);
    return json_object_get(object, name);
}

/* Whether "KEY_min" and the like is printed beside KEY. */
static bool is_companion(const json_t *object, const char *key) {
    static const char *const ends[] = {"_min", "_max", "_spread"};
    char base[96];
    size_t n = strlen(key);
    for (size_t i = 0; i < SPL_COUNT(ends); i++) {
        size_t m = strlen(ends[i]);
        if (n <= m || strcmp(key + n - m, ends[i]) != 0) continue;
        (void)snprintf(base, sizeof base, "%.*s", (int)(n - m), key);
        if (json_is_number(json_object_get(object, base))) return true;
    }
    return false;
}

static void print_number(const json_t *object, const char *key, const json_t *value) {
    char text[MAX_CELL_BYTES], low[MAX_CELL_BYTES], high[MAX_CELL_BYTES];
    const json_t *min = companion(object, key, "min"), *max = companion(object, key, "max");
    cell_text(value, text);
    if (!min || !max) {
        (void)puts(text);
        return;
    }
    cell_text(min, low);
    cell_text(max, high);
    (void)printf("%-12s (%s to %s)\n", text, low, high);
}

static void print_object(const json_t *object, int indent) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        if (is_companion(object, key)) continue;
        if (json_is_object(value)) {
            print_label(indent, key);
            (void)putchar('\n');
            print_object(value, indent + 2);
        } else if (json_is_array(value)) {
            (void)putchar('\n');
            print_label(indent, key);
            (void)putchar('\n');
            print_table(value);
        } else if (json_is_string(value)) {
            print_label(indent, key);
            (void)puts(json_string_value(value));
        } else {
            print_label(indent, key);
            print_number(object, key, value);
        }
    }
}

int spl_print_result(const json_t *result, bool json) {
    if (!json) {
        print_object(result, 0);
        return SPL_EXIT_OK;
    }
    char *text = json_dumps(result, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (!text) {
        (void)fprintf(stderr, "splash: no memory to print the result\n");
        return SPL_EXIT_FAILURE;
    }
    (void)puts(text);
    free(text);
    return SPL_EXIT_OK;
}

void spl_show_line(void *user, const char *line) {
    (void)user;
    (void)fprintf(stderr, "\r\033[K%s", line);
    (void)fflush(stderr);
}
