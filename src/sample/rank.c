/* SPDX-License-Identifier: Apache-2.0
 * Block maxima, argmax and the k largest; see rank.h. The inner loops are elementwise so that compilers
 * vectorise them with baseline flags; a maximum is exact, so the grouping cannot show. */
#include "sample/rank.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { QUARTER = SPL_RANK_BLOCK / 4 };

static inline float larger(float a, float b) { return a > b ? a : b; }

/* Maximum of a full block, by halving; *bad is set when an element is NaN. */
static float block_maximum(const float *x, uint32_t *bad) {
    float m[QUARTER];
    uint32_t unordered = 0;
    for (uint32_t j = 0; j < QUARTER; j++) {
        float a = x[j], b = x[j + QUARTER], c = x[j + 2 * QUARTER], d = x[j + 3 * QUARTER];
        unordered |= (uint32_t)isunordered(a, b) | (uint32_t)isunordered(c, d);
        m[j] = larger(larger(a, b), larger(c, d));
    }
    for (uint32_t j = 0; j < 32; j++) m[j] = larger(m[j], m[j + 32]);
    for (uint32_t j = 0; j < 16; j++) m[j] = larger(m[j], m[j + 16]);
    for (uint32_t j = 0; j < 8; j++) m[j] = larger(m[j], m[j + 8]);
    for (uint32_t j = 0; j < 4; j++) m[j] = larger(m[j], m[j + 4]);
    *bad |= unordered;
    return larger(larger(m[0], m[1]), larger(m[2], m[3]));
}

static float tail_maximum(const float *x, uint32_t n, uint32_t *bad) {
    float m = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        m = x[i] > m ? x[i] : m;
        *bad |= (uint32_t)isnan(x[i]);
    }
    return m;
}

static float maximum_at(const float *logits, uint32_t vocab, size_t block, uint32_t *bad) {
    size_t begin = block * SPL_RANK_BLOCK;
    if (vocab - begin >= SPL_RANK_BLOCK) return block_maximum(logits + begin, bad);
    return tail_maximum(logits + begin, (uint32_t)(vocab - begin), bad);
}

spl_status spl_rank_scan(const float *logits, uint32_t vocab, uint32_t row, float *block_max, float *max,
                         spl_error *err) {
    size_t n_blocks = spl_rank_blocks(vocab);
    uint32_t bad = 0;
    float best = -INFINITY;
    for (size_t i = 0; i < n_blocks; i++) {
        block_max[i] = maximum_at(logits, vocab, i, &bad);
        best = block_max[i] > best ? block_max[i] : best;
    }
    *max = best;
    if (bad || best > FLT_MAX) return spl_fail(err, SPL_E_INTERNAL, "row %u has a non-finite logit", row);
    return SPL_OK;
}

spl_status spl_argmax(const float *logits, uint32_t vocab, uint32_t row, uint32_t *token, spl_error *err) {
    size_t n_blocks = spl_rank_blocks(vocab), best_block = 0;
    uint32_t bad = 0;
    float best = -INFINITY;
    for (size_t i = 0; i < n_blocks; i++) {
        float m = maximum_at(logits, vocab, i, &bad);
        if (m > best) best = m, best_block = i;
    }
    if (bad || best > FLT_MAX) return spl_fail(err, SPL_E_INTERNAL, "row %u has a non-finite logit", row);
    if (!(best >= -FLT_MAX)) return spl_fail(err, SPL_E_INTERNAL, "row %u has no finite logit", row);
    uint32_t id = (uint32_t)(best_block * SPL_RANK_BLOCK);
    while (logits[id] != best) id++;
    *token = id;
    return SPL_OK;
}

spl_status spl_rank_scan_panels(const float *panel_max, uint32_t vocab, uint32_t row, float *block_max, float *max,
                                spl_error *err) {
    enum { PER_BLOCK = SPL_RANK_BLOCK / SPL_RANK_PANEL };
    size_t n_blocks = spl_rank_blocks(vocab), n_panels = spl_rank_panels(vocab);
    float best = -INFINITY;
    for (size_t i = 0; i < n_blocks; i++) {
        size_t begin = i * PER_BLOCK, end = n_panels - begin < PER_BLOCK ? n_panels : begin + PER_BLOCK;
        float m = -INFINITY;
        for (size_t p = begin; p < end; p++) m = larger(panel_max[p], m);
        block_max[i] = m;
        best = larger(m, best);
    }
    *max = best;
    if (best > FLT_MAX) return spl_fail(err, SPL_E_INTERNAL, "row %u has a non-finite logit", row);
    return SPL_OK;
}

spl_status spl_best_panel(const float *panel_max, uint32_t vocab, uint32_t row, uint32_t *panel, spl_error *err) {
    size_t n_panels = spl_rank_panels(vocab);
    float best = -INFINITY;
    *panel = 0;
    for (size_t i = 0; i < n_panels; i++)
        if (panel_max[i] > best) best = panel_max[i], *panel = (uint32_t)i;
    if (best > FLT_MAX) return spl_fail(err, SPL_E_INTERNAL, "row %u has a non-finite logit", row);
    if (!(best >= -FLT_MAX)) return spl_fail(err, SPL_E_INTERNAL, "row %u has no finite logit", row);
    return SPL_OK;
}

spl_status spl_argmax_panels(const float *logits, const float *panel_max, uint32_t vocab, uint32_t row, uint32_t *token,
                             spl_error *err) {
    uint32_t panel;
    spl_status st = spl_best_panel(panel_max, vocab, row, &panel, err);
    if (st != SPL_OK) return st;
    uint32_t id = panel * SPL_RANK_PANEL;
    while (logits[id] != panel_max[panel]) id++;
    *token = id;
    return SPL_OK;
}

void spl_rank_insert(spl_ranked *list, uint32_t k, float value, uint32_t id) {
    if (list->n == k && !(value > list->value[k - 1])) return;
    uint32_t at = list->n < k ? list->n++ : k - 1;
    for (; at > 0 && value > list->value[at - 1]; at--) {
        list->value[at] = list->value[at - 1];
        list->id[at] = list->id[at - 1];
    }
    list->value[at] = value;
    list->id[at] = id;
}

/* Puts what reaches the threshold of [begin, end) into the list, whole panels left out where none does. */
static void insert_range(spl_ranked *out, uint32_t k, const float *logits, const float *panel_max, size_t begin,
                         size_t end, float threshold) {
    for (size_t at = begin; at < end; at += SPL_RANK_PANEL) {
        if (panel_max && !(panel_max[at / SPL_RANK_PANEL] >= threshold)) continue;
        size_t stop = end - at < SPL_RANK_PANEL ? end : at + SPL_RANK_PANEL;
        for (size_t i = at; i < stop; i++)
            if (logits[i] >= threshold) spl_rank_insert(out, k, logits[i], (uint32_t)i);
    }
}

void spl_rank_top(spl_ranked *out, const float *logits, uint32_t vocab, const float *block_max, const float *panel_max,
                  uint32_t k) {
    size_t n_blocks = spl_rank_blocks(vocab);
    out->n = 0;
    for (size_t i = 0; i < n_blocks; i++) spl_rank_insert(out, k, block_max[i], (uint32_t)i);
    float threshold = out->n == k ? out->value[k - 1] : -FLT_MAX;
    if (!(threshold >= -FLT_MAX)) threshold = -FLT_MAX;
    out->n = 0;
    for (size_t i = 0; i < n_blocks; i++) {
        /* a full list only takes what beats its last rank; before that, what reaches the threshold */
        if (!(block_max[i] >= threshold)) continue;
        size_t begin = i * SPL_RANK_BLOCK, end = begin + SPL_RANK_BLOCK < vocab ? begin + SPL_RANK_BLOCK : vocab;
        insert_range(out, k, logits, panel_max, begin, end, threshold);
    }
}
