/* SPDX-License-Identifier: Apache-2.0
 * Time of every kernel at the shapes of the 27B, beside the plain-read and int8 rates measured in the same rounds. */
#ifndef SPL_BENCH_KERNEL_TIMES_H
#define SPL_BENCH_KERNEL_TIMES_H

#include <jansson.h>

#include "kernels/kernels.h"

/* Interleaved rounds of all operations and both roofs with n_threads threads; about 1 GB of memory and a few
 * seconds. *out is the caller's object: the two rates as in spl_roof_put and "ops", an array of {op, rows,
 * microseconds[_min, _max], gb_per_second, gmac_per_second, of_read, of_int8}; rates are of the median time, and of_*
 * are their shares of the median roofs (null where the operation reads or multiplies nothing worth a roof). */
spl_status spl_kernels_json(const spl_kernels *kernels, uint32_t n_threads, json_t **out, spl_error *err);

#endif
