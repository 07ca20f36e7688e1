/* SPDX-License-Identifier: Apache-2.0
 * The avxvnni tier: the shared bodies compiled with this tier's flags, then the entries where
 * intrinsics do better. */
#define SPL_YMM_VNNI 1
#include "kernels/x86/v16_avx2.h"

#include "kernels/body/fill_body.h"
#include "kernels/body/fill_v16_body.h"
#include "kernels/x86/attend_ymm.h"
#include "kernels/x86/linear_ymm.h"

#include "kernels/body/attend_v16_body.h"
#include "kernels/body/linear_drive_body.h"

void spl_kernels_fill_avxvnni(spl_kernels *k) {
    spl_body_fill(k, SPL_TIER_AVXVNNI);
    v16_fill(k);
    k->linear_q4 = drive_linear_q4;
    k->gate_up_q4 = drive_gate_up_q4;
    attend_fill(k);
}
