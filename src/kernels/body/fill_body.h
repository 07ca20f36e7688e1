/* SPDX-License-Identifier: Apache-2.0
 * The whole table from the plain C bodies, compiled with the flags of the including file: `ref` with the
 * baseline's, an ISA file with its own before it overwrites what it does better. Bits are equal by
 * construction: the order is written down and contraction is off. */
#ifndef SPL_KERNELS_FILL_BODY_H
#define SPL_KERNELS_FILL_BODY_H

#include "kernels/body/attend_body.h"
#include "kernels/body/draft_body.h"
#include "kernels/body/gdn_body.h"
#include "kernels/body/linear_body.h"

static inline void spl_body_fill(spl_kernels *k, spl_tier tier) {
    k->tier = tier;
    k->rms_norm = spl_body_rms_norm;
    k->quantise = spl_body_quantise;
    k->linear_q4 = spl_body_linear_q4;
    k->gate_up_q4 = spl_body_gate_up_q4;
    k->linear_f32 = spl_body_linear_f32;
    k->gate_up_f32 = spl_body_gate_up_f32;
    k->embed_rows = spl_body_embed_rows;
    k->attn_prepare = spl_body_attn_prepare;
    k->kv_store_i8 = spl_body_kv_store_i8;
    k->attend_i8 = spl_body_attend_i8;
    k->attend_merge = spl_body_attend_merge;
    k->kv_store_f32 = spl_body_kv_store_f32;
    k->attend_f32 = spl_body_attend_f32;
    k->gdn_prepare = spl_body_gdn_prepare;
    k->gdn_scan = spl_body_gdn_scan;
    k->gdn_norm = spl_body_gdn_norm;
    k->draft_conv = spl_body_draft_conv;
    k->draft_prepare = spl_body_draft_prepare;
}

#endif
