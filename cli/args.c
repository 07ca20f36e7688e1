/* SPDX-License-Identifier: Apache-2.0
 * Option parsing. */
#include "cli/args.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int spl_usage_error(const spl_command_help *help, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)fputs("splash: ", stderr);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fprintf(stderr, "\nusage: %s\n(--help lists the options)\n", help->usage);
    return SPL_EXIT_USAGE;
}

static void print_options(const spl_option *options) {
    for (const spl_option *o = options; o && o->name; o++) {
        char left[64];
        char letter[8] = "    ";
        if (o->letter) (void)snprintf(letter, sizeof letter, "-%c, ", o->letter);
        (void)snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->value ? " " : "", o->value ? o->value : "");
        (void)printf("  %-32s %s\n", left, o->help);
    }
}

static void print_help(const spl_command_help *help, const spl_option *options, const spl_option *more) {
    (void)printf("usage: %s\n\n%s\n\noptions:\n", help->usage, help->about);
    print_options(options);
    print_options(more);
    (void)printf("  %-32s %s\n", "    --help", "this text");
}

/* Whole number with an optional binary suffix; false when malformed or too large. */
static bool parse_scaled(const char *text, uint64_t max, bool giga, uint64_t *out) {
    char *end;
    unsigned shift = 0;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno) return false;
    if (*end == 'k' || *end == 'K')
        shift = 10;
    else if (*end == 'm' || *end == 'M')
        shift = 20;
    else if (giga && (*end == 'g' || *end == 'G'))
        shift = 30;
    if (shift) {
        end++;
        if (giga && strcasecmp(end, "ib") == 0)
            end += 2;
        else if (giga && strcasecmp(end, "b") == 0)
            end += 1;
    }
    if (*end || n > max >> shift) return false;
    *out = (uint64_t)n << shift;
    return true;
}

static bool parse_double(const char *text, bool duration, double *out) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno || !isfinite(value) || value < 0) return false;
    if (duration) {
        if (*end == 's')
            end++;
        else if (*end == 'm')
            value *= 60, end++;
        else if (*end == 'h')
            value *= 3600, end++;
        if (value <= 0) return false;
    }
    if (*end) return false;
    *out = value;
    return true;
}

/* Stores one value; false when it does not fit the option's kind. */
static bool store(const spl_option *o, const char *text) {
    uint64_t n;
    spl_string_list *list;
    char *end;
    switch (o->kind) {
    case SPL_OPT_FLAG: *(bool *)o->target = true; return true;
    case SPL_OPT_STRING: *(const char **)o->target = text; return true;
    case SPL_OPT_LIST:
        list = o->target;
        if (list->n == SPL_MAX_LIST) return false;
        list->items[list->n++] = text;
        return true;
    case SPL_OPT_U32:
        if (!parse_scaled(text, UINT32_MAX, false, &n)) return false;
        *(uint32_t *)o->target = (uint32_t)n;
        return true;
    case SPL_OPT_SIZE: return parse_scaled(text, UINT64_MAX, true, o->target);
    case SPL_OPT_SEED:
        errno = 0;
        if (*text < '0' || *text > '9') return false;
        *(uint64_t *)o->target = strtoull(text, &end, 10);
        return *end == 0 && errno == 0;
    case SPL_OPT_NUMBER: return parse_double(text, false, o->target);
    case SPL_OPT_DURATION: return parse_double(text, true, o->target);
    }
    return false;
}

static const spl_option *find(const spl_option *options, const char *name, size_t n_name, char letter) {
    for (const spl_option *o = options; o && o->name; o++)
        if (letter ? o->letter == letter : strlen(o->name) == n_name && memcmp(o->name, name, n_name) == 0) return o;
    return NULL;
}

/* One option at argv[*i]; moves *i over its value. Returns -1 or an exit code. */
static int parse_option(int argc, char **argv, int *i, const spl_command_help *help, const spl_option *options,
                        const spl_option *more) {
    const char *arg = argv[*i], *value = NULL;
    bool is_long = arg[1] == '-';
    const char *name = arg + (is_long ? 2 : 1);
    const char *equals = is_long ? strchr(name, '=') : NULL;
    size_t n_name = equals ? (size_t)(equals - name) : strlen(name);
    char letter = is_long ? 0 : name[0];
    const spl_option *o = find(options, name, n_name, letter);
    if (!o) o = find(more, name, n_name, letter);
    if (!o) return spl_usage_error(help, "there is no option %s", arg);
    if (o->kind == SPL_OPT_FLAG) {
        if (equals || (!is_long && name[1])) return spl_usage_error(help, "--%s takes no value", o->name);
    } else if (equals) {
        value = equals + 1;
    } else if (!is_long && name[1]) {
        value = name + 1;
    } else {
        if (*i + 1 >= argc) return spl_usage_error(help, "--%s needs a value: %s", o->name, o->value);
        value = argv[++*i];
    }
    if (!store(o, value)) return spl_usage_error(help, "'%s' is not a valid %s for --%s", value, o->value, o->name);
    if (o->given) *o->given = true;
    return -1;
}

int spl_parse_args(int argc, char **argv, const spl_command_help *help, const spl_option *options,
                   const spl_option *more, const char **positional, size_t n_positional_max, size_t *n_positional) {
    bool options_over = false;
    size_t n = 0;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (!options_over && strcmp(arg, "--") == 0) {
            options_over = true;
        } else if (!options_over && (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)) {
            print_help(help, options, more);
            return SPL_EXIT_OK;
        } else if (!options_over && arg[0] == '-' && arg[1]) {
            int code = parse_option(argc, argv, &i, help, options, more);
            if (code >= 0) return code;
        } else if (n < n_positional_max) {
            positional[n++] = arg;
        } else {
            return spl_usage_error(help, "'%s' is one argument too many", arg);
        }
    }
    if (n_positional) *n_positional = n;
    return -1;
}
