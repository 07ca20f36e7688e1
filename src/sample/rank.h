/* SPDX-License-Identifier: Apache-2.0
 * Exact selection over one row of logits. The order everywhere: larger logit first, then smaller token
 * id; -0 equals +0. A row may hold -inf (never chosen); NaN and +inf are errors that name the row.
 * Method for the k largest: the k-th largest block maximum cannot exceed the k-th largest logit, so only
 * blocks that reach it are searched. Results depend on the row alone. */
#ifndef SPL_SAMPLE_RANK_H
#define SPL_SAMPLE_RANK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    SPL_RANK_MAX = 64,    /* most ranks of spl_rank_top */
    SPL_RANK_BLOCK = 256, /* logits per block */
    SPL_RANK_PANEL = 16   /* logits per panel: what the head computes at a time */
};

typedef struct spl_ranked {
    float value[SPL_RANK_MAX];
    uint32_t id[SPL_RANK_MAX];
    uint32_t n; /* best first */
} spl_ranked;

static inline size_t spl_rank_blocks(uint32_t vocab) { return ((size_t)vocab + SPL_RANK_BLOCK - 1) / SPL_RANK_BLOCK; }

/* Maximum of every block into block_max [spl_rank_blocks(vocab)] and of the row into *max, which is -inf when
 * every logit is. Errors: INTERNAL "row n has a non-finite logit" (NaN or +inf). */
spl_status spl_rank_scan(const float *logits, uint32_t vocab, uint32_t row, float *block_max, float *max,
                         spl_error *err);

/* Maxima of panels of 16 logits, as the kernel table's linear writes them (+inf: not finite): a row is then looked at
 * only where it matters, with the same results. */
static inline size_t spl_rank_panels(uint32_t vocab) { return ((size_t)vocab + SPL_RANK_PANEL - 1) / SPL_RANK_PANEL; }
/* The first panel with the best logit of a row. Errors as spl_argmax. */
spl_status spl_best_panel(const float *panel_max, uint32_t vocab, uint32_t row, uint32_t *panel, spl_error *err);
/* As spl_rank_scan and spl_argmax. */
spl_status spl_rank_scan_panels(const float *panel_max, uint32_t vocab, uint32_t row, float *block_max, float *max,
                                spl_error *err);
spl_status spl_argmax_panels(const float *logits, const float *panel_max, uint32_t vocab, uint32_t row, uint32_t *token,
                             spl_error *err);

/* The k (1..SPL_RANK_MAX) largest finite logits, fewer when fewer exist; block_max from spl_rank_scan. With panel_max,
 * else NULL, only panels that can matter are looked at. */
void spl_rank_top(spl_ranked *out, const float *logits, uint32_t vocab, const float *block_max, const float *panel_max,
                  uint32_t k);

/* The best token of a row. Needs no scratch. Errors: as spl_rank_scan, and INTERNAL when every logit is -inf. */
spl_status spl_argmax(const float *logits, uint32_t vocab, uint32_t row, uint32_t *token, spl_error *err);

/* Puts (value, id) into a list of at most k ranks; ids must arrive in ascending order, so that an equal value
 * goes behind those present. */
void spl_rank_insert(spl_ranked *list, uint32_t k, float value, uint32_t id);

#endif
