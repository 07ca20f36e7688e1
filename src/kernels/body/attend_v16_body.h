/* SPDX-License-Identifier: Apache-2.0
 * Attention over int8 pages in v16 operations, several rows and all query heads of a KV head together, so that
 * a page is read once. Arithmetic and order: attend_body.h. The including ISA file provides the integer parts:
 *   attend_put_codes(dst, n, i, v)            codes i .. i + 15 of n, in the form its products want (2 n bytes)
 *   attend_scores(n_q, k, next, q, d, dot)    dot[v][t] = sum over dims of (K code + ATTEND_KEY_BIAS) * q code
 *   attend_values(n_q, v, next, w, d, f, scale, acc)
 *                                             acc[v] = fma((float)(sum over tokens of w * V), scale, acc * f)
 * for n_q = 1 .. 4 vectors whose codes lie 2 d (q) and 64 (w) bytes apart. `next` is where to prefetch the codes
 * of the next page, line by line in step with the reads. */
#ifndef SPL_KERNELS_ATTEND_V16_BODY_H
#define SPL_KERNELS_ATTEND_V16_BODY_H

#include "kernels/body/attend_body.h"
#include "kernels/body/v16_body.h"

enum { ATTEND_Q_BLOCK = 4 };

/* One query vector at work; the arrays it points to lie in scratch. */
typedef struct attend_vector {
    float q_scale;  /* of its codes, times head_dim^-0.5 */
    int32_t offset; /* 128 * sum of codes: K is stored with 128 added */
    float max, sum; /* of the split */
    float total_max, total_sum;
} attend_vector;

typedef struct attend_block {
    const spl_attend_args *a;
    uint32_t head, row_begin, n_rows, group, n_vectors;
    attend_vector *vector; /* [n_vectors] */
    uint8_t *q;            /* [n_vectors][2 d] */
    uint8_t *w;            /* [n_vectors][64] */
    float *part, *total;   /* [n_vectors][d] */
} attend_block;

static SPL_ALWAYS_INLINE const float *attend_query(const attend_block *b, uint32_t v) {
    const spl_attend_args *a = b->a;
    uint32_t row = b->row_begin + v / b->group, head = b->head * b->group + v % b->group;
    return a->q + ((size_t)row * a->n_q_heads + head) * a->kv.head_dim;
}

static void attend_prepare_queries(const attend_block *b) {
    uint32_t d = b->a->kv.head_dim;
    for (uint32_t v = 0; v < b->n_vectors; v++) {
        const float *q = attend_query(b, v);
        v16 top = v16_set1(0.0f);
        v16i sum = v16i_set1(0);
        for (uint32_t i = 0; i < d; i += 16) top = v16_max(v16_abs(v16_load(q + i)), top);
        float amax = v16_top(top);
        bool zero = amax < spl_tiny_amax;
        v16 inverse = v16_set1(zero ? 0.0f : (float)SPL_CODE15_MAX / amax);
        for (uint32_t i = 0; i < d; i += 16) {
            v16i code = v16_round(v16_mul(v16_load(q + i), inverse));
            attend_put_codes(b->q + (size_t)v * 2 * d, d, i, code);
            sum = v16i_add(sum, code);
        }
        float scale = zero ? 0.0f : amax / (float)SPL_CODE15_MAX;
        b->vector[v].q_scale = scale * (1.0f / sqrtf((float)d));
        b->vector[v].offset = ATTEND_KEY_BIAS * v16i_total(sum);
    }
}

/* Scores to weights of one vector and page: updates max and sum, writes 32 codes, returns the factor of what was
 * accumulated before and the scale of the codes. */
static SPL_ALWAYS_INLINE void attend_soften(attend_vector *x, const int32_t dot[SPL_PAGE_TOKENS], const float *scales,
                                            uint32_t n, uint8_t *w, float *factor, float *w_scale) {
    v16m valid[2] = {v16_first(n), v16_first(n > 16 ? n - 16 : 0)};
    v16 s[2], e[2], zero = v16_set1(0.0f), best = v16_set1(x->max);
    for (int i = 0; i < 2; i++) {
        v16 k_scale = v16_mul(v16_load(scales + 16 * i), v16_set1(x->q_scale));
        s[i] = v16_mul(v16_from_i32(v16i_sub(v16i_load(dot + 16 * i), v16i_set1(x->offset))), k_scale);
        best = v16_max(v16_select(valid[i], s[i], v16_set1(-INFINITY)), best);
    }
    float top = v16_top(best);
    *factor = spl_exp(x->max - top);
    for (int i = 0; i < 2; i++) e[i] = v16_select(valid[i], v16_exp(v16_sub(s[i], v16_set1(top))), zero);
    x->max = top;
    x->sum = x->sum * *factor + v16_tree(v16_add(e[0], e[1]));
    for (int i = 0; i < 2; i++)
        e[i] = v16_select(valid[i], v16_mul(e[i], v16_load(scales + SPL_PAGE_TOKENS + 16 * i)), zero);
    float amax = v16_top(v16_max(e[0], e[1]));
    bool none = amax < spl_tiny_amax;
    v16 inverse = v16_set1(none ? 0.0f : (float)SPL_CODE15_MAX / amax);
    *w_scale = none ? 0.0f : amax / (float)SPL_CODE15_MAX;
    for (uint32_t i = 0; i < 2; i++) attend_put_codes(w, SPL_PAGE_TOKENS, 16 * i, v16_round(v16_mul(e[i], inverse)));
}

static SPL_ALWAYS_INLINE void attend_page(const attend_block *b, uint8_t *block, const uint8_t *next, uint32_t token,
                                          uint32_t first, const int n_q) {
    uint32_t d = b->a->kv.head_dim;
    const float *scales = spl_kv_scales(block, d);
    int32_t dot[ATTEND_Q_BLOCK][SPL_PAGE_TOKENS];
    float factor[ATTEND_Q_BLOCK], w_scale[ATTEND_Q_BLOCK];
    attend_scores(n_q, block, next, b->q + (size_t)first * 2 * d, d, dot);
    for (uint32_t i = 0; i < (uint32_t)n_q; i++) {
        uint32_t left = b->a->position + b->row_begin + (first + i) / b->group + 1 - token;
        attend_soften(&b->vector[first + i], dot[i], scales, left < SPL_PAGE_TOKENS ? left : SPL_PAGE_TOKENS,
                      b->w + (size_t)(first + i) * 64, &factor[i], &w_scale[i]);
    }
    size_t values = (size_t)SPL_PAGE_TOKENS * d;
    attend_values(n_q, block + values, next + values, b->w + (size_t)first * 64, d, factor, w_scale,
                  b->part + (size_t)first * d);
}

/* total = the first split, or total merged with the later one. */
static void attend_merge(const attend_block *b, uint32_t first, bool is_first_split) {
    uint32_t d = b->a->kv.head_dim;
    for (uint32_t v = first; v < b->n_vectors; v++) {
        attend_vector *x = &b->vector[v];
        float *total = b->total + (size_t)v * d, *part = b->part + (size_t)v * d;
        if (is_first_split) {
            x->total_max = x->max;
            x->total_sum = x->sum;
            memcpy(total, part, d * sizeof(float));
            continue;
        }
        float top = x->max > x->total_max ? x->max : x->total_max;
        float f = spl_exp(x->total_max - top), g = spl_exp(x->max - top);
        x->total_max = top;
        x->total_sum = x->total_sum * f + x->sum * g;
        for (uint32_t i = 0; i < d; i += 16)
            v16_store(total + i,
                      v16_add(v16_mul(v16_load(total + i), v16_set1(f)), v16_mul(v16_load(part + i), v16_set1(g))));
    }
}

static void attend_finish(const attend_block *b) {
    const spl_attend_args *a = b->a;
    uint32_t d = a->kv.head_dim;
    for (uint32_t v = 0; v < b->n_vectors; v++) {
        uint32_t row = b->row_begin + v / b->group, head = b->head * b->group + v % b->group;
        const float *gate = a->gate + row * a->gate_stride + (2 * (size_t)head + 1) * d,
                    *total = b->total + (size_t)v * d;
        float *y = a->y + ((size_t)row * a->n_q_heads + head) * d;
        v16 inverse = v16_set1(1.0f / b->vector[v].total_sum);
        for (uint32_t i = 0; i < d; i += 16)
            v16_store(y + i, v16_mul(v16_mul(v16_load(total + i), inverse), v16_sigmoid(v16_load(gate + i))));
    }
}

static void attend_run_block(attend_block *b) {
    const spl_attend_args *a = b->a;
    uint32_t d = a->kv.head_dim, row0 = a->position + b->row_begin, n_tokens = row0 + b->n_rows;
    attend_prepare_queries(b);
    for (uint32_t begin = 0; begin < n_tokens; begin += SPL_ATTEND_SPLIT) {
        uint32_t end = n_tokens - begin < SPL_ATTEND_SPLIT ? n_tokens : begin + SPL_ATTEND_SPLIT;
        uint32_t split_first = begin > row0 ? (begin - row0) * b->group : 0; /* earlier rows end before this split */
        for (uint32_t v = split_first; v < b->n_vectors; v++) {
            b->vector[v].max = -INFINITY;
            b->vector[v].sum = 0.0f;
        }
        memset(b->part + (size_t)split_first * d, 0, (size_t)(b->n_vectors - split_first) * d * sizeof(float));
        for (uint32_t token = begin; token < end; token += SPL_PAGE_TOKENS) {
            uint8_t *block = spl_kv_block(&a->kv, token / SPL_PAGE_TOKENS, b->head, false);
            uint32_t v = token > row0 ? (token - row0) * b->group : 0;
            /* the first vectors fetch the next page, the others repeat what is there */
            const uint8_t *next = block;
            if (n_tokens - token > SPL_PAGE_TOKENS)
                next = spl_kv_block(&a->kv, token / SPL_PAGE_TOKENS + 1, b->head, false);
            for (; v + 4 <= b->n_vectors; v += 4, next = block) attend_page(b, block, next, token, v, 4);
            switch (b->n_vectors - v) {
            case 3: attend_page(b, block, next, token, v, 3); break;
            case 2: attend_page(b, block, next, token, v, 2); break;
            case 1: attend_page(b, block, next, token, v, 1); break;
            default: break;
            }
        }
        attend_merge(b, split_first, begin == 0);
    }
    attend_finish(b);
}

/* Cuts scratch into the arrays of a block of up to 8 rows. */
static inline void attend_bind(attend_block *b, uint32_t n_vectors) {
    uint32_t d = b->a->kv.head_dim;
    uint8_t *at = (uint8_t *)(((uintptr_t)b->a->scratch + 63) & ~(uintptr_t)63);
    b->n_vectors = n_vectors;
    b->part = (float *)(void *)at;
    b->total = b->part + (size_t)n_vectors * d;
    b->w = (uint8_t *)(b->total + (size_t)n_vectors * d);
    b->q = b->w + (size_t)n_vectors * 64;
    b->vector = (attend_vector *)(void *)(b->q + (size_t)n_vectors * 2 * d);
}

static void v16_attend_i8(const spl_attend_args *a) {
    uint32_t heads = a->kv.n_kv_heads;
    for (uint32_t head = 0; head < heads; head++) {
        /* rows of this head whose unit lies in the range */
        uint32_t row = (a->unit_begin + heads - 1 - head) / heads;
        uint32_t end = a->unit_end > head ? (a->unit_end + heads - 1 - head) / heads : 0;
        for (; row < end; row += SPL_TILE_M) {
            attend_block b = {.a = a, .head = head, .row_begin = row, .group = a->n_q_heads / heads};
            b.n_rows = end - row < SPL_TILE_M ? end - row : SPL_TILE_M;
            attend_bind(&b, b.n_rows * b.group);
            attend_run_block(&b);
        }
    }
}

#endif
