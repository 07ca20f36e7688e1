/* SPDX-License-Identifier: Apache-2.0
 * See emulated.h: the tier's own source once more, with the macro that replaces the instruction. */
#include "tests/support/emulated.h"

#if defined(__x86_64__)
#define SPL_EMULATE_VNNI 1
#define spl_kernels_fill_avxvnni spl_kernels_fill_avxvnni_emulated
#include "kernels/x86/kernels_avxvnni.c"
#endif
