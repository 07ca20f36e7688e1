/* SPDX-License-Identifier: Apache-2.0
 * See emulated.h: the amx tier's own source once more, with the macro that replaces the tiles. */
#include "tests/support/emulated.h"

#if defined(__x86_64__)
#define SPL_EMULATE_AMX 1
#define spl_kernels_fill_amx spl_kernels_fill_amx_emulated
#include "kernels/x86/kernels_amx.c"
#endif
