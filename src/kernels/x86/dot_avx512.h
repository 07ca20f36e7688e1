/* SPDX-License-Identifier: Apache-2.0
 * The one instruction all integer kernels of this tier are made of. */
#ifndef SPL_KERNELS_DOT_AVX512_H
#define SPL_KERNELS_DOT_AVX512_H

#include <immintrin.h>
#include <string.h>

#include "base/compiler.h"

/* sum + w (16 x 4 unsigned bytes) times the 4 signed bytes at q. The broadcast is part of the operand and
 * costs no vector slot; clang folds it by itself, gcc 12 does not (77 instead of 81 % of the dot-product roof). */
static SPL_ALWAYS_INLINE __m512i dot_inputs(__m512i sum, __m512i w, const int8_t *q) {
#if defined(__GNUC__) && !defined(__clang__)
    typedef struct four {
        int8_t v[4];
    } four;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*(const four *)(const void *)q));
    return sum;
#else
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(v));
#endif
}

/* sum + w (16 x 4 unsigned bytes) times x (16 x 4 signed bytes). gcc 12 copies accumulators of a loop to and fro
 * around the intrinsic. */
static SPL_ALWAYS_INLINE __m512i dot_bytes(__m512i sum, __m512i w, __m512i x) {
#if defined(__GNUC__) && !defined(__clang__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
#else
    return _mm512_dpbusd_epi32(sum, w, x);
#endif
}

#endif
