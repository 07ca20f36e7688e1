/* SPDX-License-Identifier: Apache-2.0
 * Unaligned little-endian loads and stores, bfloat16 and IEEE half conversion, checked sizes. Bytes from outside are
 * read only through these: a mapped pointer is never cast to a wider type. */
#ifndef SPL_BASE_BYTES_H
#define SPL_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t spl_load_u16(const void *p) {
    const uint8_t *b = p;
    return (uint16_t)(b[0] | (unsigned)b[1] << 8);
}
static inline uint32_t spl_load_u32(const void *p) {
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
static inline uint64_t spl_load_u64(const void *p) {
    const uint8_t *b = p;
    return (uint64_t)spl_load_u32(b) | (uint64_t)spl_load_u32(b + 4) << 32;
}
static inline void spl_store_u16(void *p, uint16_t v) {
    uint8_t *b = p;
    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}
static inline void spl_store_u32(void *p, uint32_t v) {
    uint8_t *b = p;
    for (int i = 0; i < 4; i++) b[i] = (uint8_t)(v >> (8 * i));
}
static inline void spl_store_u64(void *p, uint64_t v) {
    uint8_t *b = p;
    for (int i = 0; i < 8; i++) b[i] = (uint8_t)(v >> (8 * i));
}

static inline float spl_f32_from_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline uint32_t spl_bits_from_f32(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}
/* bfloat16 is the upper half of binary32: widening is exact. */
static inline float spl_f32_from_bf16(uint16_t h) { return spl_f32_from_bits((uint32_t)h << 16); }
/* Round to nearest, ties to even; NaN stays a quiet NaN. */
static inline uint16_t spl_bf16_from_f32(float f) {
    uint32_t bits = spl_bits_from_f32(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
/* IEEE binary16 to binary32, exact. */
static inline float spl_f32_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 31) return spl_f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        float tiny = (float)mantissa * 0x1p-24f;
        return sign ? -tiny : tiny;
    }
    return spl_f32_from_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

/* *out = a * b or a + b; false when it does not fit in 64 bits. */
static inline bool spl_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (a != 0 && b > UINT64_MAX / a) return false;
    *out = a * b;
    return true;
}
static inline bool spl_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (b > UINT64_MAX - a) return false;
    *out = a + b;
    return true;
}
static inline uint64_t spl_round_up(uint64_t n, uint64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline uint64_t spl_div_up(uint64_t n, uint64_t d) { return (n + d - 1) / d; }

#endif
