/* SPDX-License-Identifier: Apache-2.0
 * The processor's name as the system gives it, to label measurements and to find what was measured on it. */
#ifndef SPL_BASE_CPU_NAME_H
#define SPL_BASE_CPU_NAME_H

#include <stddef.h>

/* Printable ASCII without trailing blanks, cut to n - 1 bytes; "unknown processor" when the system says nothing. `root`
 * is put in front of /proc: "" for this machine, a folder in tests (ignored on macOS). */
void spl_cpu_name(const char *root, char *out, size_t n);

#endif
