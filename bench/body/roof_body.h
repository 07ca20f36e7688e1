/* SPDX-License-Identifier: Apache-2.0
 * Twelve independent sums, enough for every latency here. The including file defines roof_vec, roof_load(p),
 * roof_dot(sum, a, b) and roof_total(v), and includes this last. Operands come from memory in turn, so that no
 * product can be moved out of the loop, and every sum starts from other bytes: equal sums would be computed once. */
#ifndef SPL_BENCH_ROOF_BODY_H
#define SPL_BENCH_ROOF_BODY_H

#include <stdint.h>

#include "base/compiler.h"

static SPL_ALWAYS_INLINE uint64_t roof_rounds(const uint8_t *bytes, uint64_t rounds) {
    const uint8_t *starts = bytes + 4 * 64;
    roof_vec s0 = roof_load(starts), s1 = roof_load(starts + 64), s2 = roof_load(starts + 128);
    roof_vec s3 = roof_load(starts + 192), s4 = roof_load(starts + 256), s5 = roof_load(starts + 320);
    roof_vec s6 = roof_load(starts + 384), s7 = roof_load(starts + 448), s8 = roof_load(starts + 512);
    roof_vec s9 = roof_load(starts + 576), s10 = roof_load(starts + 640), s11 = roof_load(starts + 704);
    for (uint64_t i = 0; i < rounds; i++) {
        roof_vec a = roof_load(bytes + 64 * (i & 3)), b = roof_load(bytes + 64 * ((i + 1) & 3));
        s0 = roof_dot(s0, a, b);
        s1 = roof_dot(s1, b, a);
        s2 = roof_dot(s2, a, b);
        s3 = roof_dot(s3, b, a);
        s4 = roof_dot(s4, a, b);
        s5 = roof_dot(s5, b, a);
        s6 = roof_dot(s6, a, b);
        s7 = roof_dot(s7, b, a);
        s8 = roof_dot(s8, a, b);
        s9 = roof_dot(s9, b, a);
        s10 = roof_dot(s10, a, b);
        s11 = roof_dot(s11, b, a);
    }
    return roof_total(s0) + roof_total(s1) * 3 + roof_total(s2) * 5 + roof_total(s3) * 7 + roof_total(s4) * 11 +
           roof_total(s5) * 13 + roof_total(s6) * 17 + roof_total(s7) * 19 + roof_total(s8) * 23 + roof_total(s9) * 29 +
           roof_total(s10) * 31 + roof_total(s11) * 37;
}

#endif
