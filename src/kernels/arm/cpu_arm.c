/* SPDX-License-Identifier: Apache-2.0
 * AArch64 features from the system (auxiliary vector or sysctl), and flush-to-zero in FPCR. NEON itself
 * is part of the architecture. */
#include "kernels/cpu.h"

#if defined(__APPLE__)
#include <sys/types.h>
#include <sys/sysctl.h>
static bool has(const char *name) {
    int value = 0;
    size_t n = sizeof value;
    return sysctlbyname(name, &value, &n, NULL, 0) == 0 && value != 0;
}
static bool has_dotprod(void) { return has("hw.optional.arm.FEAT_DotProd"); }
static bool has_i8mm(void) { return has("hw.optional.arm.FEAT_I8MM"); }
#elif defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
static bool has_dotprod(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
static bool has_i8mm(void) { return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0; }
#else
static bool has_dotprod(void) { return false; }
static bool has_i8mm(void) { return false; }
#endif

uint32_t spl_cpu_tiers_native(void) {
    uint32_t tiers = 1u << SPL_TIER_NEON;
    if (has_dotprod()) tiers |= 1u << SPL_TIER_NEON_DOTPROD;
    if (has_dotprod() && has_i8mm()) tiers |= 1u << SPL_TIER_NEON_I8MM;
    return tiers;
}

void spl_set_ftz(void) {
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    fpcr |= UINT64_C(1) << 24;
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
}
