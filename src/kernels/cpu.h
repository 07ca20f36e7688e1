/* SPDX-License-Identifier: Apache-2.0
 * What the processor and the operating system let us use; private to this folder. One file per
 * architecture defines it (x86/cpu_x86.c, arm/cpu_arm.c); select.c covers the rest. */
#ifndef SPL_KERNELS_CPU_H
#define SPL_KERNELS_CPU_H

#include "kernels/kernels.h"

#if defined(__x86_64__) || defined(__aarch64__)
/* Usable tiers beyond REF, bit t for tier t. */
uint32_t spl_cpu_tiers_native(void);
#endif

#endif
