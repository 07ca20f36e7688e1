/* SPDX-License-Identifier: Apache-2.0
 * v16 (see x86/v16_avx512.h) as four 128-bit registers. */
#ifndef SPL_KERNELS_V16_NEON_H
#define SPL_KERNELS_V16_NEON_H

#include <arm_neon.h>

#include "kernels/body/math_body.h"

typedef struct v16 {
    float32x4_t v[4];
} v16;
typedef struct v16i {
    int32x4_t v[4];
} v16i;
typedef struct v16m {
    uint32x4_t v[4]; /* all bits of a lane set or clear */
} v16m;
enum { V16_SLICE = 1 };

#define V16_EACH(result, expression)                                                                                   \
    result r;                                                                                                          \
    for (int i = 0; i < 4; i++) r.v[i] = (expression);                                                                 \
    return r

static SPL_ALWAYS_INLINE v16 v16_load(const float *p) { V16_EACH(v16, vld1q_f32(p + 4 * i)); }
static SPL_ALWAYS_INLINE void v16_store(float *p, v16 x) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]);
}
static SPL_ALWAYS_INLINE v16 v16_set1(float x) { V16_EACH(v16, vdupq_n_f32(x)); }
static SPL_ALWAYS_INLINE v16 v16_add(v16 x, v16 y) { V16_EACH(v16, vaddq_f32(x.v[i], y.v[i])); }
static SPL_ALWAYS_INLINE v16 v16_sub(v16 x, v16 y) { V16_EACH(v16, vsubq_f32(x.v[i], y.v[i])); }
static SPL_ALWAYS_INLINE v16 v16_mul(v16 x, v16 y) { V16_EACH(v16, vmulq_f32(x.v[i], y.v[i])); }
static SPL_ALWAYS_INLINE v16 v16_div(v16 x, v16 y) { V16_EACH(v16, vdivq_f32(x.v[i], y.v[i])); }
static SPL_ALWAYS_INLINE v16 v16_fma(v16 x, v16 y, v16 z) { V16_EACH(v16, vfmaq_f32(z.v[i], x.v[i], y.v[i])); }
static SPL_ALWAYS_INLINE v16 v16_max(v16 x, v16 y) {
    V16_EACH(v16, vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]));
}
static SPL_ALWAYS_INLINE v16 v16_abs(v16 x) { V16_EACH(v16, vabsq_f32(x.v[i])); }
static SPL_ALWAYS_INLINE v16 v16_minus(v16 x) { V16_EACH(v16, vnegq_f32(x.v[i])); }
static SPL_ALWAYS_INLINE v16m v16_less(v16 x, v16 y) { V16_EACH(v16m, vcltq_f32(x.v[i], y.v[i])); }
static SPL_ALWAYS_INLINE v16 v16_select(v16m m, v16 yes, v16 no) {
    V16_EACH(v16, vbslq_f32(m.v[i], yes.v[i], no.v[i]));
}
static SPL_ALWAYS_INLINE v16m v16_first(uint32_t n) {
    static const uint32_t lane[4] = {0, 1, 2, 3};
    uint32x4_t base = vld1q_u32(lane), count = vdupq_n_u32(n);
    V16_EACH(v16m, vcltq_u32(vaddq_u32(base, vdupq_n_u32(4 * (uint32_t)i)), count));
}
static SPL_ALWAYS_INLINE float v16_tree(v16 x) {
    float32x4_t a = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(b, 0) + vget_lane_f32(b, 1);
}
static SPL_ALWAYS_INLINE float v16_top(v16 x) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3])));
}
static SPL_ALWAYS_INLINE void v16_top_4(const v16 v[4], float top[4]) {
    for (int i = 0; i < 4; i++) top[i] = v16_top(v[i]);
}

static SPL_ALWAYS_INLINE v16i v16i_set1(int32_t x) { V16_EACH(v16i, vdupq_n_s32(x)); }
static SPL_ALWAYS_INLINE v16i v16i_load(const int32_t *p) { V16_EACH(v16i, vld1q_s32(p + 4 * i)); }
static SPL_ALWAYS_INLINE v16i v16i_add(v16i x, v16i y) { V16_EACH(v16i, vaddq_s32(x.v[i], y.v[i])); }
static SPL_ALWAYS_INLINE v16i v16i_sub(v16i x, v16i y) { V16_EACH(v16i, vsubq_s32(x.v[i], y.v[i])); }
static SPL_ALWAYS_INLINE v16i v16i_half(v16i x) { V16_EACH(v16i, vshrq_n_s32(x.v[i], 1)); }
static SPL_ALWAYS_INLINE int32_t v16i_total(v16i x) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
}
static SPL_ALWAYS_INLINE v16 v16_power(v16i n) {
    V16_EACH(v16, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.v[i], vdupq_n_s32(127)), 23)));
}
static SPL_ALWAYS_INLINE v16 v16_raise(v16 p, v16i n) {
    V16_EACH(v16, vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p.v[i]), vshlq_n_s32(n.v[i], 23))));
}
static SPL_ALWAYS_INLINE float32x4_t butterfly_4(float32x4_t x, float32x4_t other, uint32x4_t upper) {
    return vbslq_f32(upper, vsubq_f32(other, x), vaddq_f32(x, other));
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_1(v16 x) {
    static const uint32_t upper[4] = {0, UINT32_MAX, 0, UINT32_MAX};
    V16_EACH(v16, butterfly_4(x.v[i], vrev64q_f32(x.v[i]), vld1q_u32(upper)));
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_2(v16 x) {
    static const uint32_t upper[4] = {0, 0, UINT32_MAX, UINT32_MAX};
    V16_EACH(v16, butterfly_4(x.v[i], vextq_f32(x.v[i], x.v[i], 2), vld1q_u32(upper)));
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_4(v16 x) {
    V16_EACH(v16, i % 2 ? vsubq_f32(x.v[i - 1], x.v[i]) : vaddq_f32(x.v[i], x.v[i + 1]));
}
static SPL_ALWAYS_INLINE v16 v16_butterfly_8(v16 x) {
    V16_EACH(v16, i < 2 ? vaddq_f32(x.v[i], x.v[i + 2]) : vsubq_f32(x.v[i - 2], x.v[i]));
}
static SPL_ALWAYS_INLINE v16i v16_bits(v16 x) { V16_EACH(v16i, vreinterpretq_s32_f32(x.v[i])); }
static SPL_ALWAYS_INLINE v16 v16_from_i32(v16i x) { V16_EACH(v16, vcvtq_f32_s32(x.v[i])); }
/* The 16 integers, which fit, as int16. */
static SPL_ALWAYS_INLINE int16x8x2_t v16i_to_i16(v16i x) {
    int16x8x2_t r = {
        {vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1])), vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]))}};
    return r;
}
static SPL_ALWAYS_INLINE void v16i_store_bytes(void *p, v16i x) {
    int16x8x2_t w = v16i_to_i16(x);
    vst1q_s8(p, vcombine_s8(vmovn_s16(w.val[0]), vmovn_s16(w.val[1])));
}
typedef struct v16x4 {
    v16 v[4];
} v16x4;
static SPL_ALWAYS_INLINE v16x4 v16_load_taps(const float *p) {
    v16x4 r;
    for (int i = 0; i < 4; i++) {
        float32x4x4_t t = vld4q_f32(p + 16 * i);
        for (int tap = 0; tap < 4; tap++) r.v[tap].v[i] = t.val[tap];
    }
    return r;
}
static SPL_ALWAYS_INLINE void v16_prefetch(const float *p) { SPL_PREFETCH_T1(p); }

#endif
