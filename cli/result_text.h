/* SPDX-License-Identifier: Apache-2.0
 * Prints the JSON object of a measurement on stdout, for people or as it is. */
#ifndef SPL_CLI_RESULT_TEXT_H
#define SPL_CLI_RESULT_TEXT_H

#include <stdbool.h>

#include "base/json.h"

/* Returns the exit code. */
int spl_print_result(const json_t *result, bool json);

/* One line of progress on stderr, over the one before; fits the callback of bench.h. */
void spl_show_line(void *user, const char *line);

#endif
