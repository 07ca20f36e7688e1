/* SPDX-License-Identifier: Apache-2.0
 * The amx tier: what avx512vnni has, and tile products where there are rows enough for them. */
#include "kernels/x86/v16_avx512.h"

#include "kernels/body/fill_body.h"
#include "kernels/body/fill_v16_body.h"
#include "kernels/x86/attend_amx.h"

#include "kernels/body/attend_v16_body.h"
#include "kernels/x86/linear_amx.h"

void spl_kernels_fill_amx(spl_kernels *k) {
    spl_body_fill(k, SPL_TIER_AMX);
    v16_fill(k);
    k->linear_q4 = linear_q4_amx;
    k->gate_up_q4 = gate_up_q4_amx;
    attend_fill(k);
}
