/* SPDX-License-Identifier: Apache-2.0
 * The draft's convolution in v16 operations: groups are whole vectors. Order: draft_body.h. */
#ifndef SPL_KERNELS_DRAFT_V16_BODY_H
#define SPL_KERNELS_DRAFT_V16_BODY_H

#include "kernels/body/draft_body.h"
#include "kernels/body/v16_body.h"

static void v16_draft_conv(const spl_draft_conv_args *a) {
    uint32_t groups = a->hidden / a->group;
    for (uint32_t r = a->row_begin; r < a->row_end; r++) {
        uint32_t in_block = r % SPL_BLOCK_ROWS, n_taps = in_block + 1 < a->taps ? in_block + 1 : a->taps;
        const float *x = a->x + (size_t)r * a->hidden, *dyn = a->dyn + r * a->dyn_stride;
        float *y = a->y + (size_t)r * a->hidden;
        for (uint32_t c = 0; c < a->hidden; c += 16) {
            v16 sum = a->add ? v16_load(y + c) : v16_set1(0.0f);
            for (uint32_t tap = 0; tap < n_taps; tap++) {
                v16 weight = v16_add(v16_load(a->base + tap * (size_t)a->hidden + c),
                                     v16_set1(dyn[tap * groups + c / a->group]));
                sum = v16_add(sum, v16_mul(v16_load(x - tap * (size_t)a->hidden + c), weight));
            }
            v16_store(y + c, sum);
        }
    }
}

#endif
