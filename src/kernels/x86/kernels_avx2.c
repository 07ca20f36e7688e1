/* SPDX-License-Identifier: Apache-2.0
 * The avx2 tier: the shared bodies compiled with this tier's flags, then the entries where
 * intrinsics do better. */

#include "kernels/x86/v16_avx2.h"

#include "kernels/body/fill_body.h"
#include "kernels/body/fill_v16_body.h"
#include "kernels/x86/attend_ymm.h"
#include "kernels/x86/linear_ymm.h"

#include "kernels/body/attend_v16_body.h"
#include "kernels/body/linear_drive_body.h"

void spl_kernels_fill_avx2(spl_kernels *k) {
    spl_body_fill(k, SPL_TIER_AVX2);
    v16_fill(k);
    k->linear_q4 = drive_linear_q4;
    k->gate_up_q4 = drive_gate_up_q4;
    attend_fill(k);
}
