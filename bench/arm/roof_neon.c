/* SPDX-License-Identifier: Apache-2.0
 * smlal on bytes: 8 products each. */
#include "bench/roof.h"

#if defined(__aarch64__)
#include <arm_neon.h>

typedef int16x8_t roof_vec;
static SPL_ALWAYS_INLINE roof_vec roof_load(const uint8_t *p) { return vreinterpretq_s16_u8(vld1q_u8(p)); }
static SPL_ALWAYS_INLINE roof_vec roof_dot(roof_vec sum, roof_vec a, roof_vec b) {
    return vmlal_s8(sum, vget_low_s8(vreinterpretq_s8_s16(a)), vget_high_s8(vreinterpretq_s8_s16(b)));
}
static SPL_ALWAYS_INLINE uint64_t roof_total(roof_vec v) { return (uint64_t)vaddvq_s16(v); }

#include "bench/body/roof_body.h"

uint64_t spl_roof_dots_neon(const uint8_t *bytes, uint64_t rounds) { return roof_rounds(bytes, rounds); }
#endif
