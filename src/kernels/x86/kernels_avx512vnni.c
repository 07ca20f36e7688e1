/* SPDX-License-Identifier: Apache-2.0
 * The avx512vnni tier: the shared bodies compiled with this tier's flags, then the entries where
 * intrinsics do better. */
#include "kernels/x86/v16_avx512.h"

#include "kernels/body/fill_body.h"
#include "kernels/body/fill_v16_body.h"
#include "kernels/x86/attend_avx512.h"

#include "kernels/body/attend_v16_body.h"
#include "kernels/x86/linear_avx512.h"

void spl_kernels_fill_avx512vnni(spl_kernels *k) {
    spl_body_fill(k, SPL_TIER_AVX512VNNI);
    v16_fill(k);
    k->linear_q4 = linear_q4_avx512;
    k->gate_up_q4 = gate_up_q4_avx512;
    attend_fill(k);
}
