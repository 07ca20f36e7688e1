/* SPDX-License-Identifier: Apache-2.0
 * The avx2 tier: the shared bodies compiled with this tier's flags. */
#include "kernels/body/fill_body.h"

void spl_kernels_fill_avx2(spl_kernels *k) { spl_body_fill(k, SPL_TIER_AVX2); }
