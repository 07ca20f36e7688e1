/* SPDX-License-Identifier: Apache-2.0
 * sdot: 16 products each. */
#include "bench/roof.h"

#if defined(__aarch64__)
#include <arm_neon.h>

typedef int32x4_t roof_vec;
static SPL_ALWAYS_INLINE roof_vec roof_load(const uint8_t *p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
static SPL_ALWAYS_INLINE roof_vec roof_dot(roof_vec sum, roof_vec a, roof_vec b) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
}
static SPL_ALWAYS_INLINE uint64_t roof_total(roof_vec v) { return (uint64_t)vaddvq_s32(v); }

#include "bench/body/roof_body.h"

uint64_t spl_roof_dots_neon_dotprod(const uint8_t *bytes, uint64_t rounds) { return roof_rounds(bytes, rounds); }
#endif
