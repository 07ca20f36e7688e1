/* SPDX-License-Identifier: Apache-2.0
 * The ref tier: the plain C bodies with the baseline flags. It defines every result bit. */
#include "kernels/body/fill_body.h"

void spl_kernels_fill_ref(spl_kernels *k) { spl_body_fill(k, SPL_TIER_REF); }
