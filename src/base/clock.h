/* SPDX-License-Identifier: Apache-2.0
 * Monotonic time in nanoseconds since an arbitrary start. */
#ifndef SPL_BASE_CLOCK_H
#define SPL_BASE_CLOCK_H

#include <stdint.h>

uint64_t spl_now_ns(void);

#endif
