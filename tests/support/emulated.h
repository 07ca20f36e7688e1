/* SPDX-License-Identifier: Apache-2.0
 * The avxvnni kernels with the dot product built from AVX2 instructions and the amx kernels with tiles built from
 * AVX-512 ones (both exactly), for processors that lack them. */
#ifndef SPL_TESTS_EMULATED_H
#define SPL_TESTS_EMULATED_H

#include "kernels/kernels.h"

#if defined(__x86_64__)
void spl_kernels_fill_avxvnni_emulated(spl_kernels *k);
void spl_kernels_fill_amx_emulated(spl_kernels *k);
#endif

#endif
