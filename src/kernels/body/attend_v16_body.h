/* SPDX-License-Identifier: Apache-2.0
 * Attention over int8 pages in v16 operations, several rows and all query heads of a KV head together, so that
 * a page is read once. Arithmetic and order: attend_body.h. The including ISA file provides the integer parts:
 *   ATTEND_Q_BLOCK, ATTEND_CODE_BYTES           vectors of a full block; bytes of a code as its products want it
 *   attend_put_query(dst, v), attend_put_weights(dst, v)
 *                                               16 codes, -127 .. 127 and 0 .. 255
 *   attend_scores(n_q, k, next, q, d, dot)      dot[v][t] = sum over dims of (K code + ATTEND_KEY_BIAS) * q code,
 *                                               vectors d codes apart
 *   attend_values(n_q, tile, w, d, begin, end, f, scale, acc, stride)
 *                                               dims [begin, end) of acc[v] = acc[v] * f[v], then for every page of
 *                                               the tile in order
 *                                               fma((float)(sum over tokens of w * V), scale[v][page], acc[v]);
 *                                               vectors a tile of codes and stride floats apart
 * for n_q = 1 .. ATTEND_Q_BLOCK vectors. `next` is where to prefetch the codes of a later page, line by line in step
 * with the reads; the first vectors have the next tile there, the others what they read anyway.
 *
 * An ISA file that takes any number of vectors at once defines ATTEND_MANY, attend_many_fits(n, d), attend_scores_many
 * and attend_values_many, which say for how many vectors they are ready in a word of the block, and attend_many_end.
 *
 * A tile of 64 KiB does not fit L1. So all vectors pass over a page of keys before the next page is looked at, and over
 * 32 dims of all values of the tile before the next 32; both lie in L1 meanwhile. */
#ifndef SPL_KERNELS_ATTEND_V16_BODY_H
#define SPL_KERNELS_ATTEND_V16_BODY_H

#include "kernels/body/attend_body.h"
#include "kernels/body/v16_body.h"

enum {
    ATTEND_TILE_PAGES = SPL_ATTEND_TILE / SPL_PAGE_TOKENS,
    ATTEND_TILE_VECTORS = SPL_ATTEND_TILE / 16,
    ATTEND_TILE_CODES = ATTEND_CODE_BYTES * SPL_ATTEND_TILE, /* bytes of a vector's weights */
    ATTEND_VALUE_DIMS = 32                                   /* of a pass over the values of a tile */
};

/* The last four stages of the transform, inside a vector, then the others. Strides ascend: inner stages first. */
static SPL_ALWAYS_INLINE v16 v16_inner_hadamard(v16 x) {
    x = v16_butterfly_1(x);
    x = v16_butterfly_2(x);
    x = v16_butterfly_4(x);
    return v16_butterfly_8(x);
}
static SPL_ALWAYS_INLINE void v16_hadamard(float *x, uint32_t d) {
    uint32_t block = spl_hadamard_block(d);
    for (uint32_t i = 0; i < d; i += 16) v16_store(x + i, v16_inner_hadamard(v16_load(x + i)));
    for (uint32_t h = 16; h < block; h *= 2)
        for (uint32_t i = 0; i < d; i += 2 * h)
            for (uint32_t j = i; j < i + h; j += 16) {
                v16 a = v16_load(x + j), b = v16_load(x + j + h);
                v16_store(x + j, v16_add(a, b));
                v16_store(x + j + h, v16_sub(a, b));
            }
}

static SPL_ALWAYS_INLINE v16 v16_exp2_down(v16 x) {
    v16 c = v16_max(x, v16_set1(-125.0f)), magic = v16_set1(12582912.0f);
    v16 t = v16_add(c, magic), r = v16_sub(c, v16_sub(t, magic));
    v16 p = v16_fma(v16_set1(9.582851082e-3f), r, v16_set1(5.5906429887e-2f));
    p = v16_fma(p, r, v16_set1(0.24024099112f));
    p = v16_fma(p, r, v16_set1(0.69312417507f));
    p = v16_fma(p, r, v16_set1(1.0f));
    return v16_raise(p, v16_bits(t));
}

/* One query vector at work. */
typedef struct attend_vector {
    float q_scale;  /* of its codes to scores in log2 */
    int32_t offset; /* ATTEND_KEY_BIAS * sum of codes: K is stored with 128 added */
} attend_vector;

typedef struct attend_block {
    const spl_attend_args *a;
    uint32_t head, row_begin, n_rows, group, n_vectors;
    size_t stride;         /* floats of a partial result */
    attend_vector *vector; /* [n_vectors] */
    uint8_t *q;            /* [n_vectors][d] codes */
    float *part, *total;   /* [n_vectors][stride] */

    /* of the tile at work, for every vector */
    int32_t (*dot)[SPL_ATTEND_TILE];
    uint8_t (*weight)[ATTEND_TILE_CODES];
    float (*weight_scale)[ATTEND_TILE_PAGES];
    float *factor;
    uint32_t ready; /* ATTEND_MANY's */
} attend_block;

static SPL_ALWAYS_INLINE uint32_t attend_row(const attend_block *b, uint32_t v) { return b->row_begin + v / b->group; }
static SPL_ALWAYS_INLINE uint32_t attend_head(const attend_block *b, uint32_t v) {
    return b->head * b->group + v % b->group;
}

static void attend_prepare_queries(const attend_block *b) {
    const spl_attend_args *a = b->a;
    uint32_t d = a->kv.head_dim;
    for (uint32_t v = 0; v < b->n_vectors; v++) {
        float q[SPL_MAX_HEAD_DIM];
        memcpy(q, a->q + attend_row(b, v) * a->q_stride + attend_head(b, v) * (size_t)d, d * sizeof(float));
        v16_hadamard(q, d);
        v16 top = v16_set1(0.0f);
        v16i sum = v16i_set1(0);
        for (uint32_t i = 0; i < d; i += 16) top = v16_max(v16_abs(v16_load(q + i)), top);
        float amax = v16_top(top);
        bool zero = amax < spl_tiny_amax;
        v16 inverse = v16_set1(zero ? 0.0f : 127.0f / amax);
        for (uint32_t i = 0; i < d; i += 16) {
            v16i code = v16_round(v16_mul(v16_load(q + i), inverse));
            attend_put_query(b->q + ATTEND_CODE_BYTES * ((size_t)v * d + i), code);
            sum = v16i_add(sum, code);
        }
        b->vector[v].q_scale = spl_score_scale(zero ? 0.0f : amax / 127.0f, d);
        b->vector[v].offset = ATTEND_KEY_BIAS * v16i_total(sum);
    }
}

/* Tokens of a tile that a vector sees. */
typedef struct attend_span {
    uint32_t begin, end;
} attend_span;
static SPL_ALWAYS_INLINE v16 attend_mask(attend_span n, uint32_t at, v16 x, v16 other) {
    v16m before = v16_first(n.begin > at ? n.begin - at : 0), seen = v16_first(n.end > at ? n.end - at : 0);
    return v16_select(before, other, v16_select(seen, x, other));
}

/* Softmax of one vector and tile, of which the tokens of n count (all of them when `whole`), in three stages, so
 * that the chains of several vectors overlap. */

/* Scores before the query's scale; returns their maximum, lane by lane. */
static SPL_ALWAYS_INLINE v16 attend_maximum(const attend_vector *x, const spl_attend_tile *tile, const int32_t *dot,
                                            uint32_t d, attend_span n, const bool whole, float *s) {
    v16 best = v16_set1(-INFINITY), none = best;
    for (uint32_t i = 0; i < (whole ? ATTEND_TILE_VECTORS : 2 * tile->n_pages); i++) {
        const float *scales = spl_kv_scales(tile->block[i / 2], d) + 16 * (i % 2);
        v16 score = v16_mul(v16_from_i32(v16i_sub(v16i_load(dot + 16 * i), v16i_set1(x->offset))), v16_load(scales));
        v16_store(s + 16 * i, score);
        if (!whole) score = attend_mask(n, 16 * i, score, none);
        best = v16_max(score, best);
    }
    return best;
}

/* The new maximum, from the largest score of the tile; returns the factor of what was accumulated before. */
static SPL_ALWAYS_INLINE float attend_raise(const attend_vector *x, float *part, float best) {
    float mine = best * x->q_scale, old = part[0], top = mine > old ? mine : old;
    part[0] = top;
    return spl_exp2_down(old - top);
}

/* Weights times V scales, the sum of weights, and the largest of every page. */
static SPL_ALWAYS_INLINE void attend_weigh(const attend_vector *x, float *part, const spl_attend_tile *tile, uint32_t d,
                                           attend_span n, const bool whole, float factor, float *s,
                                           float amax[ATTEND_TILE_PAGES]) {
    v16 q_scale = v16_set1(x->q_scale), minus_top = v16_set1(-part[0]), zero = v16_set1(0.0f), sum = zero;
    v16 most[ATTEND_TILE_PAGES] = {zero, zero, zero, zero};
    for (uint32_t p = 0; p < (whole ? ATTEND_TILE_PAGES : tile->n_pages); p++) {
        const float *scales = spl_kv_scales(tile->block[p], d) + SPL_PAGE_TOKENS;
        v16 w[2];
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t at = 32 * p + 16 * half;
            v16 e = v16_exp2_down(v16_fma(v16_load(s + at), q_scale, minus_top));
            if (!whole) e = attend_mask(n, at, e, zero);
            sum = v16_add(sum, e);
            w[half] = v16_mul(e, v16_load(scales + 16 * half));
            if (!whole) w[half] = attend_mask(n, at, w[half], zero);
            v16_store(s + at, w[half]);
        }
        most[p] = v16_max(w[0], w[1]);
    }
    v16_top_4(most, amax);
    part[1] = part[1] * factor + v16_tree(sum);
}

/* The codes of a page's weights; returns their scale. */
static SPL_ALWAYS_INLINE float attend_encode(const float *s, float amax, uint8_t *w) {
    bool nothing = amax < spl_tiny_amax;
    v16 inverse = v16_set1(nothing ? 0.0f : (float)SPL_WEIGHT_MAX / amax);
    attend_put_weights(w, v16_round(v16_mul(v16_load(s), inverse)));
    attend_put_weights(w + 16 * ATTEND_CODE_BYTES, v16_round(v16_mul(v16_load(s + 16), inverse)));
    return nothing ? 0.0f : amax / (float)SPL_WEIGHT_MAX;
}

/* The three passes over a tile, for n_q vectors from `first` on. Scores: page `part`. */
static SPL_ALWAYS_INLINE void attend_score(const attend_block *b, const spl_attend_tile *tile, uint32_t part,
                                           uint32_t first, const int n_q) {
    uint32_t d = b->a->kv.head_dim;
    attend_scores(n_q, tile->block[part], tile->next[part], b->q + ATTEND_CODE_BYTES * (size_t)first * d, d,
                  b->dot[first] + (size_t)part * SPL_PAGE_TOKENS);
}

/* Scores to weights. */
static SPL_ALWAYS_INLINE void attend_soften(const attend_block *b, const spl_attend_tile *tile, uint32_t first,
                                            const int n_q) {
    uint32_t d = b->a->kv.head_dim;
    _Alignas(64) float s[ATTEND_Q_BLOCK][SPL_ATTEND_TILE];
    float *part = b->part + first * b->stride, *factor = b->factor + first;
    const attend_vector *x = b->vector + first;
    attend_span n_seen[ATTEND_Q_BLOCK], every = {0, SPL_ATTEND_TILE};
    bool all_whole = true;
    for (uint32_t i = 0; i < (uint32_t)n_q; i++) {
        uint32_t begin = spl_attend_begin(b->a, attend_row(b, first + i));
        n_seen[i].begin = begin > tile->token ? begin - tile->token : 0;
        n_seen[i].end = spl_attend_end(b->a, attend_row(b, first + i)) - tile->token;
        all_whole = all_whole && n_seen[i].begin == 0 && n_seen[i].end >= SPL_ATTEND_TILE;
    }
    v16 best[(ATTEND_Q_BLOCK + 3) / 4 * 4];
    float top[(ATTEND_Q_BLOCK + 3) / 4 * 4];
    for (int i = 0; i < n_q; i++)
        best[i] = all_whole ? attend_maximum(&x[i], tile, b->dot[first + (uint32_t)i], d, every, true, s[i])
                            : attend_maximum(&x[i], tile, b->dot[first + (uint32_t)i], d, n_seen[i], false, s[i]);
    for (int i = n_q; i < (n_q + 3) / 4 * 4; i++) best[i] = best[0];
    for (int i = 0; i < n_q; i += 4) v16_top_4(best + i, top + i);
    for (int i = 0; i < n_q; i++) factor[i] = attend_raise(&x[i], part + (size_t)i * b->stride, top[i]);
    for (int i = 0; i < n_q; i++) {
        float *own = part + (size_t)i * b->stride, *scale = b->weight_scale[first + (uint32_t)i];
        if (all_whole)
            attend_weigh(&x[i], own, tile, d, every, true, factor[i], s[i], scale);
        else
            attend_weigh(&x[i], own, tile, d, n_seen[i], false, factor[i], s[i], scale);
    }
    for (int i = 0; i < n_q; i++)
        for (uint32_t p = 0; p < tile->n_pages; p++) {
            float *scale = &b->weight_scale[first + (uint32_t)i][p];
            uint8_t *codes = b->weight[first + (uint32_t)i] + (size_t)ATTEND_CODE_BYTES * SPL_PAGE_TOKENS * p;
            *scale = attend_encode(s[i] + SPL_PAGE_TOKENS * p, *scale, codes);
        }
}

/* Weighted sums: dims from ATTEND_VALUE_DIMS * part on. */
static SPL_ALWAYS_INLINE void attend_gather(const attend_block *b, const spl_attend_tile *tile, uint32_t part,
                                            uint32_t first, const int n_q) {
    uint32_t d = b->a->kv.head_dim, begin = ATTEND_VALUE_DIMS * part;
    uint32_t end = d - begin < ATTEND_VALUE_DIMS ? d : begin + ATTEND_VALUE_DIMS;
    attend_values(n_q, tile, b->weight[first], d, begin, end, b->factor + first, b->weight_scale + first,
                  spl_part_acc(b->part + first * b->stride), b->stride);
}

typedef enum attend_pass { ATTEND_SCORE, ATTEND_SOFTEN, ATTEND_GATHER } attend_pass;
typedef void (*attend_pass_fn)(const attend_block *b, const spl_attend_tile *tile, attend_pass pass, uint32_t part,
                               uint32_t first);
static SPL_ALWAYS_INLINE void attend_vectors(const attend_block *b, const spl_attend_tile *tile, attend_pass pass,
                                             uint32_t part, uint32_t first, const int n_q) {
    switch (pass) {
    case ATTEND_SCORE: attend_score(b, tile, part, first, n_q); break;
    case ATTEND_SOFTEN: attend_soften(b, tile, first, n_q); break;
    case ATTEND_GATHER: attend_gather(b, tile, part, first, n_q); break;
    }
}

/* One function per number of vectors, so that the accumulators are registers. */
#define SPL_GEN_VECTORS(NAME, N)                                                                                       \
    static void attend_vectors_##NAME(const attend_block *b, const spl_attend_tile *tile, attend_pass pass,            \
                                      uint32_t part, uint32_t first) {                                                 \
        attend_vectors(b, tile, pass, part, first, N);                                                                 \
    }
SPL_GEN_VECTORS(full, ATTEND_Q_BLOCK)
SPL_GEN_VECTORS(4, 4)
SPL_GEN_VECTORS(2, 2)
SPL_GEN_VECTORS(1, 1)
#undef SPL_GEN_VECTORS

/* The pages of the tile at `token`, of a history that ends before n_tokens. */
static void attend_find_tile(spl_attend_tile *tile, const attend_block *b, uint32_t token, uint32_t n_tokens) {
    uint32_t page = token / SPL_PAGE_TOKENS, last = (n_tokens - 1) / SPL_PAGE_TOKENS;
    tile->token = token;
    tile->n_pages = last - page < ATTEND_TILE_PAGES ? last - page + 1 : ATTEND_TILE_PAGES;
    for (uint32_t p = 0; p < ATTEND_TILE_PAGES; p++)
        tile->block[p] = spl_kv_block(&b->a->kv, page + p < last ? page + p : last, b->head, false);
}

/* The pages that come after the tile, or NULL. */
static void attend_look_ahead(const uint8_t *ahead[ATTEND_TILE_PAGES], const attend_block *b,
                              const spl_attend_tile *tile, uint32_t n_tokens) {
    uint32_t page = tile->token / SPL_PAGE_TOKENS + ATTEND_TILE_PAGES, last = (n_tokens - 1) / SPL_PAGE_TOKENS;
    for (uint32_t p = 0; p < ATTEND_TILE_PAGES; p++)
        ahead[p] = page + p <= last ? spl_kv_block(&b->a->kv, page + p, b->head, false) : NULL;
}

/* One pass for all vectors from `first` on, in blocks. The i-th of n blocks prefetches its share of what is ahead, and
 * for the rest what it reads anyway. */
static void attend_pass_all(const attend_block *b, spl_attend_tile *tile, const uint8_t *const ahead[ATTEND_TILE_PAGES],
                            attend_pass pass, uint32_t part, uint32_t first) {
    uint32_t n = (b->n_vectors - first + ATTEND_Q_BLOCK - 1) / ATTEND_Q_BLOCK, v = first;
    if (n > ATTEND_TILE_PAGES) n = ATTEND_TILE_PAGES;
    for (uint32_t i = 0; v < b->n_vectors; i++) {
        uint32_t left = b->n_vectors - v;
        for (uint32_t p = 0; p < ATTEND_TILE_PAGES; p++)
            tile->next[p] = p % n == i && ahead[p] ? ahead[p] : tile->block[p];
        if (left >= ATTEND_Q_BLOCK) {
            attend_vectors_full(b, tile, pass, part, v);
            v += ATTEND_Q_BLOCK;
        } else if (left >= 4) {
            attend_vectors_4(b, tile, pass, part, v);
            v += 4;
        } else if (left >= 2) {
            attend_vectors_2(b, tile, pass, part, v);
            v += 2;
        } else {
            attend_vectors_1(b, tile, pass, part, v);
            v += 1;
        }
    }
}

#ifdef ATTEND_MANY
static void attend_run_many(attend_block *b, spl_attend_tile *tile, const uint8_t *const ahead[ATTEND_TILE_PAGES],
                            uint32_t first) {
    uint32_t d = b->a->kv.head_dim, n = b->n_vectors - first;
    for (uint32_t p = 0; p < tile->n_pages; p++)
        attend_scores_many(n, tile->block[p], ahead[p] ? ahead[p] : tile->block[p],
                           b->q + ATTEND_CODE_BYTES * (size_t)first * d, d, b->dot[first] + (size_t)p * SPL_PAGE_TOKENS,
                           &b->ready);
    attend_pass_all(b, tile, ahead, ATTEND_SOFTEN, 0, first);
    attend_values_many(n, tile, ahead, b->weight[first], d, b->factor + first, b->weight_scale + first,
                       spl_part_acc(b->part + first * b->stride), b->stride, &b->ready);
}
#endif

static void attend_run_tile(attend_block *b, spl_attend_tile *tile, uint32_t first, uint32_t n_tokens) {
    const uint8_t *ahead[ATTEND_TILE_PAGES];
    attend_look_ahead(ahead, b, tile, n_tokens);
#ifdef ATTEND_MANY
    if (attend_many_fits(b->n_vectors - first, b->a->kv.head_dim)) {
        attend_run_many(b, tile, ahead, first);
        return;
    }
#endif
    for (uint32_t p = 0; p < tile->n_pages; p++) attend_pass_all(b, tile, ahead, ATTEND_SCORE, p, first);
    attend_pass_all(b, tile, ahead, ATTEND_SOFTEN, 0, first);
    for (uint32_t i = 0; i * ATTEND_VALUE_DIMS < b->a->kv.head_dim; i++)
        attend_pass_all(b, tile, ahead, ATTEND_GATHER, i, first);
}

/* The first vector whose row sees `token` or later tokens. */
static uint32_t attend_first_vector(const attend_block *b, uint32_t token) {
    uint32_t row0 = b->a->position + b->row_begin;
    return token > row0 && !b->a->window ? (token - row0) * b->group : 0;
}

/* Partial results of a split, to b->part; rows whose history ends before it are left out. Returns the first vector. */
static uint32_t attend_run_split(attend_block *b, uint32_t split) {
    const spl_attend_args *a = b->a;
    uint32_t d = a->kv.head_dim, row0 = a->position + b->row_begin, n_tokens = row0 + b->n_rows;
    uint32_t begin = split * SPL_ATTEND_SPLIT;
    uint32_t end = n_tokens - begin < SPL_ATTEND_SPLIT ? n_tokens : begin + SPL_ATTEND_SPLIT;
    uint32_t split_first = attend_first_vector(b, begin);
    for (uint32_t v = split_first; v < b->n_vectors; v++) spl_part_clear(b->part + v * b->stride, d);
    for (uint32_t token = spl_attend_split_begin(a, split); token < end; token += SPL_ATTEND_TILE) {
        spl_attend_tile tile;
        attend_find_tile(&tile, b, token, n_tokens);
        attend_run_tile(b, &tile, attend_first_vector(b, token), n_tokens);
    }
    return split_first;
}

/* total = total merged with part, the later one. */
static SPL_ALWAYS_INLINE void v16_part_merge(float *total, const float *part, uint32_t d) {
    float top = part[0] > total[0] ? part[0] : total[0];
    float f = spl_exp2_down(total[0] - top), g = spl_exp2_down(part[0] - top);
    total[0] = top;
    total[1] = total[1] * f + part[1] * g;
    for (uint32_t i = 16; i < d + 16; i += 16)
        v16_store(total + i,
                  v16_add(v16_mul(v16_load(total + i), v16_set1(f)), v16_mul(v16_load(part + i), v16_set1(g))));
}

static SPL_ALWAYS_INLINE void v16_part_finish(float *total, const float *gate, uint32_t d, float *y) {
    v16 inverse = v16_set1(1.0f / total[1] * (1.0f / (float)spl_hadamard_block(d)));
    float *acc = spl_part_acc(total);
    v16_hadamard(acc, d);
    for (uint32_t i = 0; i < d; i += 16) {
        v16 mean = v16_mul(v16_load(acc + i), inverse);
        v16_store(y + i, gate ? v16_mul(mean, v16_sigmoid(v16_load(gate + i))) : mean);
    }
}

/* Whole histories: all splits one after the other, then y. */
static void attend_run_whole(attend_block *b) {
    const spl_attend_args *a = b->a;
    uint32_t d = a->kv.head_dim, n_splits = spl_attend_splits(a->position + b->row_begin, b->n_rows);
    uint32_t first = spl_attend_first_split(a);
    float *first_part = b->part;
    b->part = b->total;
    (void)attend_run_split(b, first);
    b->part = first_part;
    for (uint32_t split = first + 1; split < n_splits; split++)
        for (uint32_t v = attend_run_split(b, split); v < b->n_vectors; v++)
            v16_part_merge(b->total + v * b->stride, b->part + v * b->stride, d);
    for (uint32_t v = 0; v < b->n_vectors; v++) {
        uint32_t row = attend_row(b, v), head = attend_head(b, v);
        v16_part_finish(b->total + v * b->stride, spl_attend_gate(a, row, head), d,
                        a->y + ((size_t)row * a->n_q_heads + head) * d);
    }
}

/* Cuts scratch into the arrays of a block of up to 8 rows. */
static void attend_bind(attend_block *b, const spl_attend_args *a, const spl_attend_unit *u) {
    uint32_t d = a->kv.head_dim;
    *b = (attend_block){.a = a,
                        .head = u->head,
                        .row_begin = u->row_begin,
                        .n_rows = u->row_end - u->row_begin,
                        .group = a->n_q_heads / a->kv.n_kv_heads,
                        .stride = SPL_ATTEND_PART_FLOATS(d),
                        .ready = b->ready};
    b->n_vectors = b->n_rows * b->group;
    uint8_t *at = (uint8_t *)(((uintptr_t)a->scratch + 63) & ~(uintptr_t)63);
    b->part = (float *)(void *)at;
    b->total = b->part + b->n_vectors * b->stride;
    b->q = (uint8_t *)(b->total + b->n_vectors * b->stride);
    b->dot = (int32_t(*)[SPL_ATTEND_TILE])(void *)(b->q + ATTEND_CODE_BYTES * (size_t)b->n_vectors * d);
    b->weight = (uint8_t(*)[ATTEND_TILE_CODES])(b->dot + b->n_vectors);
    b->weight_scale = (float(*)[ATTEND_TILE_PAGES])(void *)(b->weight + b->n_vectors);
    b->factor = (float *)(b->weight_scale + b->n_vectors);
    b->vector = (attend_vector *)(void *)(b->factor + b->n_vectors);
    attend_prepare_queries(b);
}

static void v16_attend_i8(const spl_attend_args *a) {
    attend_block b = {0};
    for (uint32_t unit = a->unit_begin; unit < a->unit_end; unit++) {
        spl_attend_unit u = spl_attend_unit_of(a, unit);
        /* queries stay for the splits that follow */
        if (unit == a->unit_begin || u.split == 0) attend_bind(&b, a, &u);
        if (!a->parts) {
            attend_run_whole(&b);
            continue;
        }
        if (u.split >= spl_attend_splits(a->position + u.row_begin, b.n_rows)) continue;
        for (uint32_t v = attend_run_split(&b, u.split); v < b.n_vectors; v++)
            memcpy(spl_attend_part_at(a, attend_row(&b, v), attend_head(&b, v), u.split), b.part + v * b.stride,
                   b.stride * sizeof(float));
    }
#ifdef ATTEND_MANY
    attend_many_end(&b.ready);
#endif
}

static void v16_attend_merge(const spl_attend_args *a) {
    uint32_t d = a->kv.head_dim;
    for (uint32_t unit = a->unit_begin; unit < a->unit_end; unit++) {
        uint32_t row = unit / a->n_q_heads, head = unit % a->n_q_heads;
        float *total = spl_attend_part_at(a, row, head, 0), *part = total;
        for (uint32_t split = 1; split < spl_attend_splits(a->position + row, 1); split++)
            v16_part_merge(total, part += SPL_ATTEND_PART_FLOATS(d), d);
        v16_part_finish(total, spl_attend_gate(a, row, head), d, a->y + (size_t)unit * d);
    }
}

/* Codes of one transformed head; returns their scale. */
static SPL_ALWAYS_INLINE float attend_head_codes(float *x, uint32_t d, uint8_t *codes) {
    v16 top = v16_set1(0.0f);
    v16_hadamard(x, d);
    for (uint32_t i = 0; i < d; i += 16) top = v16_max(v16_abs(v16_load(x + i)), top);
    float amax = v16_top(top);
    bool zero = amax < spl_tiny_amax;
    v16 inverse = v16_set1(zero ? 0.0f : 127.0f / amax);
    for (uint32_t i = 0; i < d; i += 16) v16i_store_bytes(codes + i, v16_round(v16_mul(v16_load(x + i), inverse)));
    return zero ? 0.0f : amax / 127.0f;
}

/* As spl_kv_put, whose layout this is. */
static void v16_kv_put(const spl_kv_view *kv, uint32_t position, uint32_t head, const float *k, const float *v) {
    uint32_t d = kv->head_dim, slot = position % SPL_PAGE_TOKENS;
    uint8_t *block = spl_kv_block(kv, position / SPL_PAGE_TOKENS, head, false), codes[SPL_MAX_HEAD_DIM];
    uint8_t *v_codes = block + (size_t)SPL_PAGE_TOKENS * d + (size_t)(slot / 4) * 4 * d + slot % 4;
    float *scales = spl_kv_scales(block, d), x[SPL_MAX_HEAD_DIM];
    memcpy(x, k, d * sizeof(float));
    scales[slot] = attend_head_codes(x, d, codes);
    for (uint32_t i = 0; i < d; i += 4)
        spl_store_u32(block + slot * 4 + (size_t)i * SPL_PAGE_TOKENS, spl_load_u32(codes + i) ^ 0x80808080u);
    memcpy(x, v, d * sizeof(float));
    scales[SPL_PAGE_TOKENS + slot] = attend_head_codes(x, d, codes);
    for (uint32_t i = 0; i < d; i++) v_codes[(size_t)i * 4] = codes[i];
}

static void v16_kv_store_i8(const spl_kv_store_args *a) {
    uint32_t d = a->kv.head_dim;
    for (uint32_t r = 0; r < a->n_rows; r++)
        for (uint32_t h = a->head_begin; h < a->head_end; h++)
            v16_kv_put(&a->kv, a->position + r, h, a->k + r * a->k_stride + (size_t)h * d,
                       a->v + r * a->v_stride + (size_t)h * d);
}

static inline void attend_fill(spl_kernels *k) {
    k->kv_store_i8 = v16_kv_store_i8;
    k->attend_i8 = v16_attend_i8;
    k->attend_merge = v16_attend_merge;
}

#endif
