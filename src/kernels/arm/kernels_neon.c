/* SPDX-License-Identifier: Apache-2.0
 * The neon tier: the shared bodies compiled with this tier's flags. */
#include "kernels/body/fill_body.h"

void spl_kernels_fill_neon(spl_kernels *k) { spl_body_fill(k, SPL_TIER_NEON); }
