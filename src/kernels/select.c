/* SPDX-License-Identifier: Apache-2.0
 * Chooses the kernels: weaker tiers first, each overwriting what it does better, up to the best one
 * usable or the forced one. */
#include <stdio.h>
#include <string.h>

#include "kernels/cpu.h"

static const char *const tier_names[SPL_N_TIERS] = {
#define X(id, text) [SPL_TIER_##id] = text,
    SPL_TIERS(X)
#undef X
};

const char *spl_tier_name(spl_tier tier) { return (unsigned)tier < SPL_N_TIERS ? tier_names[tier] : "unknown"; }

bool spl_tier_from_name(const char *name, spl_tier *tier) {
    for (int t = 0; t < SPL_N_TIERS; t++)
        if (strcmp(name, tier_names[t]) == 0) {
            *tier = (spl_tier)t;
            return true;
        }
    return false;
}

uint32_t spl_cpu_tiers(void) {
    uint32_t tiers = 1u << SPL_TIER_REF;
#if defined(__x86_64__) || defined(__aarch64__)
    tiers |= spl_cpu_tiers_native();
#endif
    return tiers;
}

#if !defined(__x86_64__) && !defined(__aarch64__)
void spl_set_ftz(void) {} /* no known control register: denormals are computed */
#endif

static void fill(spl_kernels *k, spl_tier tier) {
    switch (tier) {
    case SPL_TIER_REF: spl_kernels_fill_ref(k); break;
#if defined(__x86_64__)
    case SPL_TIER_AVX2: spl_kernels_fill_avx2(k); break;
    case SPL_TIER_AVXVNNI: spl_kernels_fill_avxvnni(k); break;
    case SPL_TIER_AVX512VNNI: spl_kernels_fill_avx512vnni(k); break;
    case SPL_TIER_AMX: spl_kernels_fill_amx(k); break;
#elif defined(__aarch64__)
    case SPL_TIER_NEON: spl_kernels_fill_neon(k); break;
    case SPL_TIER_NEON_DOTPROD: spl_kernels_fill_neon_dotprod(k); break;
    case SPL_TIER_NEON_I8MM: spl_kernels_fill_neon_i8mm(k); break;
#endif
    default: break;
    }
}

spl_status spl_kernels_select(spl_kernels *k, spl_tier forced, spl_error *err) {
    uint32_t usable = spl_cpu_tiers(), last = SPL_TIER_REF;
    for (uint32_t t = 0; t < SPL_N_TIERS; t++)
        if (usable >> t & 1u) last = t;
    if (forced != SPL_N_TIERS) {
        if ((unsigned)forced >= SPL_N_TIERS || !(usable >> forced & 1u)) {
            char list[128] = "";
            for (uint32_t t = 0; t < SPL_N_TIERS; t++)
                if (usable >> t & 1u) {
                    size_t at = strlen(list);
                    snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", tier_names[t]);
                }
            return spl_fail(err, SPL_E_UNSUPPORTED, "this processor cannot run the kernel tier '%s'; usable: %s",
                            spl_tier_name(forced), list);
        }
        last = forced;
    }
    for (uint32_t t = 0; t <= last; t++)
        if (usable >> t & 1u) fill(k, (spl_tier)t);
    return SPL_OK;
}

/* Room for one unit block: 8 rows of one KV head's query group, codes and two partial results. */
size_t spl_attend_scratch_bytes(uint32_t n_q_heads, uint32_t n_kv_heads, uint32_t head_dim) {
    size_t rows = (size_t)SPL_TILE_M * (n_q_heads / n_kv_heads);
    return rows * ((size_t)head_dim * (2 + 2 * sizeof(float)) + 1024) + 4096;
}

size_t spl_gdn_scratch_bytes(uint32_t head_dim) { return (size_t)head_dim * head_dim * sizeof(float); }
