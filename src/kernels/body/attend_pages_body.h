/* SPDX-License-Identifier: Apache-2.0
 * attend_values of attend_v16_body.h for tiers with too few registers for the sums of a tile and of a page: around an
 * ISA file's attend_page_values(n_q, first page?, values, next, w, d, begin, end, factor, scale, acc, stride). */
#ifndef SPL_KERNELS_ATTEND_PAGES_BODY_H
#define SPL_KERNELS_ATTEND_PAGES_BODY_H

#include "kernels/body/attend_body.h"

/* Page by page: sums of a page do not fit beside those of a tile. */
static SPL_ALWAYS_INLINE void attend_values(const int n_q, const spl_attend_tile *tile, const uint8_t *w, uint32_t d,
                                            uint32_t dim_begin, uint32_t dim_end, const float *factor,
                                            float scale[][SPL_ATTEND_TILE / SPL_PAGE_TOKENS], float *acc,
                                            size_t stride) {
    size_t values = (size_t)SPL_PAGE_TOKENS * d;
    for (uint32_t p = 0; p < tile->n_pages; p++, w += ATTEND_CODE_BYTES * SPL_PAGE_TOKENS) {
        float own[ATTEND_Q_BLOCK];
        for (int v = 0; v < n_q; v++) own[v] = scale[v][p];
        if (p == 0)
            attend_page_values(n_q, true, tile->block[p] + values, tile->next[p] + values, w, d, dim_begin, dim_end,
                               factor, own, acc, stride);
        else
            attend_page_values(n_q, false, tile->block[p] + values, tile->next[p] + values, w, d, dim_begin, dim_end,
                               factor, own, acc, stride);
    }
}

#endif
