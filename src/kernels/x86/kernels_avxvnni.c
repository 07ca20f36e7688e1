/* SPDX-License-Identifier: Apache-2.0
 * The avxvnni tier: the shared bodies compiled with this tier's flags. */
#include "kernels/body/fill_body.h"

void spl_kernels_fill_avxvnni(spl_kernels *k) { spl_body_fill(k, SPL_TIER_AVXVNNI); }
