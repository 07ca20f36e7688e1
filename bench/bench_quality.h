/* SPDX-License-Identifier: Apache-2.0
 * Private to bench: the rules of nano-quality.
 * A raw completion is cut at the first line that leaves the definition: one that starts in the first column with
 * anything but a comment or a closing bracket (as HumanEval-style scoring cuts at "\ndef", "\nclass", "\nprint").
 * From a chat answer the first fenced block counts, or the whole answer when there is none. Code counts when Python
 * parses it and it defines a function or class whose body is more than a docstring. A sum counts when the last
 * integer of the answer is the expected one. Reasoning never counts. */
#ifndef SPL_BENCH_BENCH_QUALITY_H
#define SPL_BENCH_BENCH_QUALITY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Bytes of a completion that belong to the definition it completes. The completion starts on a new line. */
size_t spl_quality_cut(const char *text, size_t n_bytes);

/* The code of a chat answer (NUL-terminated); points into it. */
const char *spl_quality_code(const char *answer, size_t *n_bytes);

/* Whether the last integer of the text is `wanted` (decimal; NULL: no). */
bool spl_quality_last_integer_is(const char *text, const char *wanted);

/* *good: python3 parses the source and it defines something. Starts a process. Errors: SPL_E_NOTFOUND when there is
 * no python3, SPL_E_INTERNAL when it ends otherwise than it should. */
spl_status spl_quality_parses(const char *source, size_t n_bytes, bool *good, spl_error *err);

#endif
