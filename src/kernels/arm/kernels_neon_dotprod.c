/* SPDX-License-Identifier: Apache-2.0
 * The neon_dotprod tier: the shared bodies compiled with this tier's flags, then the entries where
 * intrinsics do better. */
#define SPL_NEON_DOTPROD 1

#include "kernels/arm/v16_neon.h"

#include "kernels/body/fill_body.h"
#include "kernels/body/fill_v16_body.h"
#include "kernels/arm/attend_neon.h"
#include "kernels/arm/linear_neon.h"

#include "kernels/body/attend_v16_body.h"
#include "kernels/body/linear_drive_body.h"

void spl_kernels_fill_neon_dotprod(spl_kernels *k) {
    spl_body_fill(k, SPL_TIER_NEON_DOTPROD);
    v16_fill(k);
    k->linear_q4 = drive_linear_q4;
    k->gate_up_q4 = drive_gate_up_q4;
    attend_fill(k);
}
