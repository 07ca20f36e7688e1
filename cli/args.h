/* SPDX-License-Identifier: Apache-2.0
 * Command-line options from a table: parsing, --help and usage errors come from the same rows. */
#ifndef SPL_CLI_ARGS_H
#define SPL_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/compiler.h"

enum { SPL_EXIT_OK = 0, SPL_EXIT_FAILURE = 1, SPL_EXIT_USAGE = 2, SPL_MAX_LIST = 32 };

typedef enum spl_option_kind {
    SPL_OPT_FLAG,    /* bool, set to true */
    SPL_OPT_STRING,  /* const char * */
    SPL_OPT_LIST,    /* spl_string_list, one entry per use */
    SPL_OPT_U32,     /* uint32_t; suffix K or M (powers of 1024) */
    SPL_OPT_SIZE,    /* uint64_t bytes; suffix K, M, G with optional B or iB */
    SPL_OPT_SEED,    /* uint64_t */
    SPL_OPT_NUMBER,  /* double, finite, not negative */
    SPL_OPT_DURATION /* double seconds above 0; suffix s, m, h */
} spl_option_kind;

typedef struct spl_string_list {
    const char *items[SPL_MAX_LIST];
    size_t n;
} spl_string_list;

typedef struct spl_option {
    const char *name; /* without the dashes; NULL ends a table */
    char letter;      /* 0: none */
    spl_option_kind kind;
    void *target;
    const char *value; /* what --help calls the value; NULL for flags */
    const char *help;
    bool *given; /* may be NULL: set when the option was used */
} spl_option;

typedef struct spl_command_help {
    const char *usage; /* "splash run [options] \"prompt\"" */
    const char *about; /* one or more lines */
} spl_command_help;

/* Parses argv[1..]; positional arguments end up in positional[0..*n_positional), in order. "--" ends options and "-" is
 * positional. Returns -1 to go on, otherwise the exit code: 0 after --help (on stdout), 2 after a usage
 * error (on stderr). The lists of `options` and `more` (may be NULL) are searched one after the other. */
int spl_parse_args(int argc, char **argv, const spl_command_help *help, const spl_option *options,
                   const spl_option *more, const char **positional, size_t n_positional_max, size_t *n_positional);

/* Prints "splash NAME: text" and where to find help on stderr; returns SPL_EXIT_USAGE. */
int spl_usage_error(const spl_command_help *help, const char *format, ...) SPL_PRINTF(2, 3);

#endif
