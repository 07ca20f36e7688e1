/* SPDX-License-Identifier: Apache-2.0
 * The draft's attention in v16 operations: a vector is 16 keys for the scores and 16 dims for the values, four
 * query vectors at a time for the scores so that their sums do not wait for each other. Order: draft_body.h. */
#ifndef SPL_KERNELS_DRAFT_V16_BODY_H
#define SPL_KERNELS_DRAFT_V16_BODY_H

#include "kernels/body/draft_body.h"
#include "kernels/body/v16_body.h"

enum { DRAFT_Q_BLOCK = 4 };

static SPL_ALWAYS_INLINE void draft_scores(const float *const q[DRAFT_Q_BLOCK], const int n, const spl_draft_keys *keys,
                                           uint32_t d, v16 s[DRAFT_Q_BLOCK]) {
    for (int v = 0; v < n; v++) s[v] = v16_set1(0.0f);
    for (uint32_t i = 0; i < d; i++) {
        v16 k = v16_load(keys->k[i]);
        for (int v = 0; v < n; v++) s[v] = v16_fma(v16_set1(q[v][i]), k, s[v]);
    }
}

/* n x 16 dims at y: y * f + sum over keys. */
static SPL_ALWAYS_INLINE void draft_values(float *y, const spl_draft_keys *keys, uint32_t dim, const int n,
                                           const float *w, float f) {
    v16 acc[4];
    for (int c = 0; c < n; c++) acc[c] = v16_mul(v16_load(y + dim + 16 * c), v16_set1(f));
    for (int j = 0; j < SPL_DRAFT_KEYS; j++)
        for (int c = 0; c < n; c++) acc[c] = v16_fma(v16_set1(w[j]), v16_load(keys->v[j] + dim + 16 * c), acc[c]);
    for (int c = 0; c < n; c++) v16_store(y + dim + 16 * c, acc[c]);
}

static SPL_ALWAYS_INLINE void draft_weigh(spl_running *run, float *acc, v16 s, const spl_draft_keys *keys,
                                          uint32_t skip, uint32_t d) {
    float w[SPL_DRAFT_KEYS];
    v16m skipped = v16_first(skip), present = v16_first(keys->n);
    v16 none = v16_set1(-INFINITY), zero = v16_set1(0.0f);
    s = v16_mul(s, v16_set1(1.0f / sqrtf((float)d)));
    float top = v16_top(v16_max(v16_select(skipped, none, v16_select(present, s, none)), v16_set1(run->max)));
    float f = spl_exp(run->max - top);
    v16 e = v16_exp(v16_sub(s, v16_set1(top)));
    e = v16_select(skipped, zero, v16_select(present, e, zero));
    run->max = top;
    run->sum = run->sum * f + v16_tree(e);
    v16_store(w, e);
    uint32_t dim = 0;
    for (; dim + 64 <= d; dim += 64) draft_values(acc, keys, dim, 4, w, f);
    for (; dim < d; dim += 16) draft_values(acc, keys, dim, 1, w, f);
}

static SPL_ALWAYS_INLINE void draft_vectors(const spl_draft_attend_args *a, uint32_t head, spl_running *run,
                                            const spl_draft_keys *keys, uint32_t skip, uint32_t row, uint32_t first,
                                            const int n) {
    uint32_t d = a->head_dim, per_kv = a->n_q_heads / a->n_kv_heads;
    const float *q[DRAFT_Q_BLOCK];
    v16 s[DRAFT_Q_BLOCK];
    for (int v = 0; v < n; v++) q[v] = a->qkv + row * a->qkv_stride + (head * per_kv + first + (uint32_t)v) * (size_t)d;
    draft_scores(q, n, keys, d, s);
    for (int v = 0; v < n; v++) {
        uint32_t at = row * per_kv + first + (uint32_t)v;
        draft_weigh(&run[at], a->scratch + at * (size_t)d, s[v], keys, skip, d);
    }
}

static void v16_draft_meet(const spl_draft_attend_args *a, uint32_t head, spl_running *run, const spl_draft_keys *keys,
                           const uint32_t skip[SPL_BLOCK_ROWS]) {
    uint32_t per_kv = a->n_q_heads / a->n_kv_heads;
    for (uint32_t r = 0; r < SPL_BLOCK_ROWS; r++) {
        if (skip[r] >= keys->n) continue;
        uint32_t h = 0;
        for (; h + 4 <= per_kv; h += 4) draft_vectors(a, head, run, keys, skip[r], r, h, 4);
        for (; h < per_kv; h++) draft_vectors(a, head, run, keys, skip[r], r, h, 1);
    }
}

static void v16_draft_attend(const spl_draft_attend_args *a) {
    for (uint32_t head = a->head_begin; head < a->head_end; head++) spl_draft_attend_head(a, head, v16_draft_meet);
}

#endif
