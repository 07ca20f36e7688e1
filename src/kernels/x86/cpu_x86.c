/* SPDX-License-Identifier: Apache-2.0
 * CPUID and XCR0: a feature counts only when the system also saves its registers. Also the control
 * word of the SSE unit. Built with -mxsave for the one instruction that reads XCR0; it runs only when
 * CPUID says that the system enabled it. */
#include <cpuid.h>
#include <immintrin.h>
#include <xmmintrin.h>

#include "kernels/cpu.h"

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static bool bit(unsigned word, unsigned n) { return (word >> n & 1u) != 0; }

/* The registers of tiles are 8 KiB a thread: Linux hands them out to processes that ask, and then to all their
 * threads. */
static bool may_use_tiles(void) {
#if defined(__linux__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

uint32_t spl_cpu_tiers_native(void) {
    unsigned a, b, c, d, b7, c7, d7, a71 = 0, b71, c71, d71;
    uint32_t tiers = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    bool osxsave = bit(c, 27), avx = bit(c, 28), fma = bit(c, 12), f16c = bit(c, 29);
    if (!osxsave || !avx || !fma || !f16c) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return 0;
    if (a >= 1) __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71);
    unsigned long long xcr0 = (unsigned long long)_xgetbv(0);
    bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xe6) == 0xe6;
    if (!ymm || !bit(b7, 5)) return 0;
    tiers |= 1u << SPL_TIER_AVX2;
    if (bit(a71, 4)) tiers |= 1u << SPL_TIER_AVXVNNI;
    bool f = bit(b7, 16), dq = bit(b7, 17), bw = bit(b7, 30), vl = bit(b7, 31), vnni = bit(c7, 11);
    if (zmm && f && dq && bw && vl && vnni) {
        tiers |= 1u << SPL_TIER_AVX512VNNI;
        bool tile = bit(d7, 24), int8 = bit(d7, 25), gfni = bit(c7, 8);
        if ((xcr0 & 0x60000) == 0x60000 && tile && int8 && gfni && may_use_tiles()) tiers |= 1u << SPL_TIER_AMX;
    }
    return tiers;
}

/* MXCSR bit 15: flush to zero; bit 6: denormals are zero. */
void spl_set_ftz(void) { _mm_setcsr(_mm_getcsr() | 0x8040u); }
