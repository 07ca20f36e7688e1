/* SPDX-License-Identifier: Apache-2.0
 * The entries that v16_body.h, gdn_v16_body.h and draft_v16_body.h provide. */
#ifndef SPL_KERNELS_FILL_V16_BODY_H
#define SPL_KERNELS_FILL_V16_BODY_H

#include "kernels/body/draft_v16_body.h"
#include "kernels/body/gdn_v16_body.h"
#include "kernels/body/v16_body.h"

static inline void v16_fill(spl_kernels *k) {
    k->rms_norm = v16_rms_norm;
    k->quantise = v16_quantise;
    k->gdn_prepare = v16_gdn_prepare;
    k->gdn_scan = v16_gdn_scan;
    k->gdn_norm = v16_gdn_norm;
    k->draft_conv = v16_draft_conv;
}

#endif
