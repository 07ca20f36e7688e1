/* SPDX-License-Identifier: Apache-2.0
 * KV store and causal attention over int8 pages, and their fp32 oracles.
 *
 * Codes of an int8 block: K as [head_dim/4][32 tokens][4 dims], stored as code + 128 (unsigned, the first
 * operand of a u8 x s8 dot product); V as [8 token groups][head_dim][4 tokens], signed. Then K scale
 * f32[32], V scale f32[32].
 *
 * Arithmetic. q, K and V pass through a Hadamard transform over the head's dims before they are rounded: products
 * of q and K stay what they were, outliers of single dims are spread over all, and the average of V is transformed
 * back at the end. Both products are exact integer sums: int8 queries (one scale a head) with int8 keys, and per
 * page of 32 tokens the softmax weights times the V scales as unsigned 8-bit codes (page maximum -> 255) with int8
 * values. Scores are kept in units of log2, weights are 2^(score - maximum).
 *
 * Why the transform: error of the attended average, as per cent of its RMS (simulation, head dim 256, 4,096 tokens,
 * 48 query heads; rows: distribution of q, K and V, and how far scores spread):
 *
 *   values, spread        int8 cache, exact products    the same, 8-bit q and weights    transformed, 8-bit (this)
 *   Gaussian, 1                    1.02                           1.31                          1.29
 *   Gaussian, 3                    1.35                           1.99                          2.01
 *   heavy tail, 1                  1.82                           2.27                          1.28
 *   heavy tail, 3                  2.87                           3.77                          2.00
 *   outlier dims, 1                3.07                           3.24                          0.80
 *   outlier dims, 8                9.03                          10.23                          2.10
 *
 * One code a value runs at the full int8 rate; what 8-bit queries cost, the transform wins back.
 *
 * Order. Tokens are cut at multiples of SPL_ATTEND_SPLIT positions, a split into tiles of SPL_ATTEND_TILE. Tiles
 * ascend: scores, the tile's maximum, rescale by 2^(old - new), then its pages in ascending order. Splits are merged
 * ascending. The cuts are absolute positions, so threads may share a history without changing bits. */
#ifndef SPL_KERNELS_ATTEND_BODY_H
#define SPL_KERNELS_ATTEND_BODY_H

#include "kernels/body/rows_body.h"

enum { SPL_WEIGHT_MAX = 255 };

/* Dims that one transform mixes: the largest power of two that divides head_dim, 16 at least. */
static inline uint32_t spl_hadamard_block(uint32_t head_dim) { return head_dim & (0u - head_dim); }

/* Hadamard transform of every block, not normalised: twice is block times the values. One addition or subtraction an
 * element and stage, strides ascending, so any vector width gives the same bits. */
static inline void spl_hadamard(float *x, uint32_t head_dim) {
    uint32_t block = spl_hadamard_block(head_dim);
    for (uint32_t h = 1; h < block; h *= 2)
        for (uint32_t i = 0; i < head_dim; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
}

/* 2^x for x <= 1 or so; -125 and below (and NaN) give 2^-125, which adds nothing to a sum that holds a 1.
 * 2^0 is exactly 1; error 2.9e-6 relative. */
static inline float spl_exp2_down(float x) {
    float c = x > -125.0f ? x : -125.0f;
    float t = c + spl_round_magic, r = c - (t - spl_round_magic);
    float p = fmaf(9.582851082e-3f, r, 5.5906429887e-2f);
    p = fmaf(p, r, 0.24024099112f);
    p = fmaf(p, r, 0.69312417507f);
    p = fmaf(p, r, 1.0f);
    return spl_f32_from_bits(spl_bits_from_f32(p) + (spl_bits_from_f32(t) << 23));
}

/* Codes of one head with limit `top` for the largest magnitude; returns the scale. */
static inline float spl_head_scale(const float *x, uint32_t n, float top, float *inverse) {
    float amax = spl_max_abs(x, n);
    bool zero = amax < spl_tiny_amax;
    *inverse = zero ? 0.0f : top / amax;
    return zero ? 0.0f : amax / top;
}

static inline uint8_t *spl_kv_block(const spl_kv_view *kv, uint32_t page, uint32_t head, bool f32) {
    uint32_t place = kv->page_table ? kv->page_table[page] : page % kv->ring_pages;
    return kv->pool + place * kv->page_stride + kv->layer_offset + head * spl_kv_block_bytes(kv->head_dim, f32);
}

/* Row `row` sees tokens [begin, end). */
static inline uint32_t spl_attend_begin(const spl_attend_args *a, uint32_t row) {
    uint32_t position = a->position + row;
    if (a->window == 0) return 0;
    return position + 1 > a->window + a->first ? position + 1 - a->window : a->first;
}
static inline uint32_t spl_attend_end(const spl_attend_args *a, uint32_t row) {
    return a->position + (a->window ? a->n_rows : row + 1);
}
/* Splits from this one on count: what lies before it no row sees. */
static inline uint32_t spl_attend_first_split(const spl_attend_args *a) {
    return spl_attend_begin(a, 0) / SPL_ATTEND_SPLIT;
}
/* Where the tiles of a split begin. */
static inline uint32_t spl_attend_split_begin(const spl_attend_args *a, uint32_t split) {
    uint32_t begin = split * SPL_ATTEND_SPLIT, seen = spl_attend_begin(a, 0) / SPL_ATTEND_TILE * SPL_ATTEND_TILE;
    return seen > begin ? seen : begin;
}
static inline float *spl_kv_scales(uint8_t *block, uint32_t head_dim) {
    return (float *)(void *)(block + 2 * (size_t)SPL_PAGE_TOKENS * head_dim);
}

/* Codes of one token's transformed k and v. */
static inline void spl_kv_put(const spl_kv_view *kv, uint32_t position, uint32_t head, const float *k, const float *v) {
    uint32_t d = kv->head_dim, slot = position % SPL_PAGE_TOKENS;
    uint8_t *block = spl_kv_block(kv, position / SPL_PAGE_TOKENS, head, false);
    uint8_t *k_codes = block + slot * 4, *v_codes = block + (size_t)SPL_PAGE_TOKENS * d;
    float *scales = spl_kv_scales(block, d), inverse;
    v_codes += (size_t)(slot / 4) * 4 * d + slot % 4;
    scales[slot] = spl_head_scale(k, d, 127.0f, &inverse);
    for (uint32_t i = 0; i < d; i++)
        k_codes[i / 4 * 4 * SPL_PAGE_TOKENS + i % 4] = (uint8_t)(spl_round_i32(k[i] * inverse) + 128);
    scales[SPL_PAGE_TOKENS + slot] = spl_head_scale(v, d, 127.0f, &inverse);
    for (uint32_t i = 0; i < d; i++) v_codes[(size_t)i * 4] = (uint8_t)spl_round_i32(v[i] * inverse);
}

static void spl_body_kv_store_i8(const spl_kv_store_args *a) {
    uint32_t d = a->kv.head_dim;
    float k[SPL_MAX_HEAD_DIM], v[SPL_MAX_HEAD_DIM];
    for (uint32_t r = 0; r < a->n_rows; r++)
        for (uint32_t h = a->head_begin; h < a->head_end; h++) {
            memcpy(k, a->k + r * a->k_stride + (size_t)h * d, d * sizeof(float));
            memcpy(v, a->v + r * a->v_stride + (size_t)h * d, d * sizeof(float));
            spl_hadamard(k, d);
            spl_hadamard(v, d);
            spl_kv_put(&a->kv, a->position + r, h, k, v);
        }
}

/* Scale of query codes to scores in log2: their own scale times log2(e) head_dim^-0.5, and what the transform of
 * both factors brought. */
static inline float spl_score_scale(float code_scale, uint32_t d) {
    return code_scale * (1.0f / sqrtf((float)d) * 1.44269504f) * (1.0f / (float)spl_hadamard_block(d));
}

/* A partial result (SPL_ATTEND_PART_FLOATS) over some tokens: maximum score, sum of weights, and from element 16 on
 * the weighted sum of V, all relative to that maximum. */
static inline float *spl_part_acc(float *part) { return part + 16; }
static inline void spl_part_clear(float *part, uint32_t d) {
    part[0] = -INFINITY;
    part[1] = 0.0f;
    memset(spl_part_acc(part), 0, d * sizeof(float));
}

/* Adds the first n tokens of one page whose weights are e[32], over n_codes dims of V. */
static inline void spl_part_add_values(float *part, uint8_t *block, const float e[SPL_PAGE_TOKENS], uint32_t d) {
    const int8_t *codes = (const int8_t *)block + (size_t)SPL_PAGE_TOKENS * d;
    const float *v_scale = spl_kv_scales(block, d) + SPL_PAGE_TOKENS;
    float w[SPL_PAGE_TOKENS], inverse, *acc = spl_part_acc(part);
    int32_t code[SPL_PAGE_TOKENS];
    for (uint32_t t = 0; t < SPL_PAGE_TOKENS; t++) w[t] = e[t] == 0.0f ? 0.0f : e[t] * v_scale[t];
    float w_scale = spl_head_scale(w, SPL_PAGE_TOKENS, (float)SPL_WEIGHT_MAX, &inverse);
    for (uint32_t t = 0; t < SPL_PAGE_TOKENS; t++) code[t] = spl_round_i32(w[t] * inverse);
    for (uint32_t i = 0; i < d; i++) {
        int32_t sum = 0;
        for (uint32_t t = 0; t < SPL_PAGE_TOKENS; t++) sum += code[t] * codes[((size_t)(t / 4) * d + i) * 4 + t % 4];
        acc[i] = fmaf((float)sum, w_scale, acc[i]);
    }
}

/* Adds tokens [skip, n) of the tile that begins at `token`. */
static inline void spl_part_add_tile(float *part, const spl_kv_view *kv, uint32_t kv_head, uint32_t token,
                                     uint32_t skip, uint32_t n, const int8_t *q, float q_scale) {
    uint32_t d = kv->head_dim, n_pages = (n + SPL_PAGE_TOKENS - 1) / SPL_PAGE_TOKENS;
    float s[SPL_ATTEND_TILE], e[SPL_ATTEND_TILE], best = -INFINITY;
    for (uint32_t t = skip; t < n; t++) {
        uint8_t *block = spl_kv_block(kv, (token + t) / SPL_PAGE_TOKENS, kv_head, false);
        const uint8_t *k = block + 4 * (t % SPL_PAGE_TOKENS);
        int32_t dot = 0;
        for (uint32_t i = 0; i < d; i++) dot += (k[i / 4 * 4 * SPL_PAGE_TOKENS + i % 4] - 128) * q[i];
        s[t] = (float)dot * spl_kv_scales(block, d)[t % SPL_PAGE_TOKENS];
        best = s[t] > best ? s[t] : best;
    }
    best = best * q_scale;
    float top = best > part[0] ? best : part[0], f = spl_exp2_down(part[0] - top), *acc = spl_part_acc(part);
    for (uint32_t t = 0; t < SPL_ATTEND_TILE; t++)
        e[t] = t >= skip && t < n ? spl_exp2_down(fmaf(s[t], q_scale, -top)) : 0.0f;
    part[0] = top;
    part[1] = part[1] * f + spl_lane_sum(e, SPL_ATTEND_TILE);
    for (uint32_t i = 0; i < d; i++) acc[i] = acc[i] * f;
    for (uint32_t p = 0; p < n_pages; p++)
        spl_part_add_values(part, spl_kv_block(kv, token / SPL_PAGE_TOKENS + p, kv_head, false),
                            e + (size_t)p * SPL_PAGE_TOKENS, d);
}

/* total = total merged with part, the later one. Both factors are applied; 2^0 is exactly 1. */
static inline void spl_part_merge(float *total, const float *part, uint32_t d) {
    float top = part[0] > total[0] ? part[0] : total[0];
    float f = spl_exp2_down(total[0] - top), g = spl_exp2_down(part[0] - top);
    total[0] = top;
    total[1] = total[1] * f + part[1] * g;
    for (uint32_t i = 16; i < d + 16; i++) total[i] = total[i] * f + part[i] * g;
}

/* y = (transform(acc) * (1 / (block * sum))) * sigmoid(gate), the gate of a row and head where there are gates; acc is
 * used up. */
static inline const float *spl_attend_gate(const spl_attend_args *a, uint32_t row, uint32_t head) {
    return a->gate ? a->gate + row * a->gate_stride + (2 * (size_t)head + 1) * a->kv.head_dim : NULL;
}
static inline void spl_part_finish(float *total, const float *gate, uint32_t d, float *y) {
    float inverse = 1.0f / total[1] * (1.0f / (float)spl_hadamard_block(d)), *acc = spl_part_acc(total);
    spl_hadamard(acc, d);
    for (uint32_t i = 0; i < d; i++) y[i] = acc[i] * inverse;
    for (uint32_t i = 0; gate && i < d; i++) y[i] = y[i] * spl_sigmoid(gate[i]);
}

typedef struct spl_attend_query {
    int8_t code[SPL_MAX_HEAD_DIM];
    float scale;
} spl_attend_query;

static inline spl_attend_query spl_attend_query_of(const spl_attend_args *a, uint32_t row, uint32_t head) {
    uint32_t d = a->kv.head_dim;
    spl_attend_query query;
    float q[SPL_MAX_HEAD_DIM], inverse;
    memcpy(q, a->q + row * a->q_stride + (size_t)head * d, d * sizeof(float));
    spl_hadamard(q, d);
    query.scale = spl_score_scale(spl_head_scale(q, d, 127.0f, &inverse), d);
    for (uint32_t i = 0; i < d; i++) query.code[i] = (int8_t)spl_round_i32(q[i] * inverse);
    return query;
}

/* What one query head of one row sees of split `split`. */
static inline void spl_attend_split_i8(float *part, const spl_attend_args *a, uint32_t row, uint32_t kv_head,
                                       const spl_attend_query *q, uint32_t split) {
    uint32_t seen = spl_attend_begin(a, row), end = spl_attend_end(a, row);
    if (end - split * SPL_ATTEND_SPLIT > SPL_ATTEND_SPLIT) end = (split + 1) * SPL_ATTEND_SPLIT;
    spl_part_clear(part, a->kv.head_dim);
    for (uint32_t t = spl_attend_split_begin(a, split); t < end; t += SPL_ATTEND_TILE)
        spl_part_add_tile(part, &a->kv, kv_head, t, seen > t ? seen - t : 0,
                          end - t < SPL_ATTEND_TILE ? end - t : SPL_ATTEND_TILE, q->code, q->scale);
}

static inline float *spl_attend_part_at(const spl_attend_args *a, uint32_t row, uint32_t head, uint32_t split) {
    size_t n_splits = spl_attend_splits(a->position, a->n_rows);
    return a->parts + (((size_t)row * a->n_q_heads + head) * n_splits + split) * SPL_ATTEND_PART_FLOATS(a->kv.head_dim);
}

static inline void spl_attend_head_i8(const spl_attend_args *a, uint32_t row, uint32_t kv_head, uint32_t head) {
    uint32_t d = a->kv.head_dim, first = spl_attend_first_split(a);
    uint32_t n_splits = spl_attend_splits(spl_attend_end(a, row) - 1, 1);
    float total[SPL_ATTEND_PART_FLOATS(SPL_MAX_HEAD_DIM)], part[SPL_ATTEND_PART_FLOATS(SPL_MAX_HEAD_DIM)];
    spl_attend_query q = spl_attend_query_of(a, row, head);
    spl_attend_split_i8(total, a, row, kv_head, &q, first);
    for (uint32_t split = first + 1; split < n_splits; split++) {
        spl_attend_split_i8(part, a, row, kv_head, &q, split);
        spl_part_merge(total, part, d);
    }
    spl_part_finish(total, spl_attend_gate(a, row, head), d, a->y + ((size_t)row * a->n_q_heads + head) * d);
}

/* A unit of work in parts. */
typedef struct spl_attend_unit {
    uint32_t row_begin, row_end, head, split;
} spl_attend_unit;
static inline spl_attend_unit spl_attend_unit_of(const spl_attend_args *a, uint32_t unit) {
    uint32_t n_splits = a->parts ? spl_attend_splits(a->position, a->n_rows) : 1, block = unit / n_splits;
    spl_attend_unit u = {
        .row_begin = block / a->kv.n_kv_heads * SPL_TILE_M, .head = block % a->kv.n_kv_heads, .split = unit % n_splits};
    u.row_end = a->n_rows - u.row_begin < SPL_TILE_M ? a->n_rows : u.row_begin + SPL_TILE_M;
    return u;
}

static void spl_body_attend_i8(const spl_attend_args *a) {
    uint32_t group = a->n_q_heads / a->kv.n_kv_heads;
    for (uint32_t unit = a->unit_begin; unit < a->unit_end; unit++) {
        spl_attend_unit u = spl_attend_unit_of(a, unit);
        for (uint32_t row = u.row_begin; row < u.row_end; row++)
            for (uint32_t head = u.head * group; head < (u.head + 1) * group; head++) {
                if (!a->parts) {
                    spl_attend_head_i8(a, row, u.head, head);
                } else if (u.split < spl_attend_splits(a->position + row, 1)) {
                    spl_attend_query q = spl_attend_query_of(a, row, head);
                    spl_attend_split_i8(spl_attend_part_at(a, row, head, u.split), a, row, u.head, &q, u.split);
                }
            }
    }
}

/* The pages of a tile, for implementations that take several vectors at once. */
typedef struct spl_attend_tile {
    uint8_t *block[SPL_ATTEND_TILE / SPL_PAGE_TOKENS];
    const uint8_t *next[SPL_ATTEND_TILE / SPL_PAGE_TOKENS]; /* pages to prefetch in step with these */
    uint32_t token, n_pages;
} spl_attend_tile;

static void spl_body_attend_merge(const spl_attend_args *a) {
    uint32_t d = a->kv.head_dim;
    for (uint32_t unit = a->unit_begin; unit < a->unit_end; unit++) {
        uint32_t row = unit / a->n_q_heads, head = unit % a->n_q_heads;
        float *total = spl_attend_part_at(a, row, head, 0), *part = total;
        for (uint32_t split = 1; split < spl_attend_splits(a->position + row, 1); split++)
            spl_part_merge(total, part += SPL_ATTEND_PART_FLOATS(d), d);
        spl_part_finish(total, spl_attend_gate(a, row, head), d, a->y + (size_t)unit * d);
    }
}

static void spl_body_kv_store_f32(const spl_kv_store_args *a) {
    uint32_t d = a->kv.head_dim;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        uint32_t position = a->position + r, slot = position % SPL_PAGE_TOKENS;
        for (uint32_t h = a->head_begin; h < a->head_end; h++) {
            float *block = (float *)(void *)spl_kv_block(&a->kv, position / SPL_PAGE_TOKENS, h, true);
            memcpy(block + (size_t)slot * d, a->k + r * a->k_stride + (size_t)h * d, d * sizeof(float));
            memcpy(block + (size_t)(SPL_PAGE_TOKENS + slot) * d, a->v + r * a->v_stride + (size_t)h * d,
                   d * sizeof(float));
        }
    }
}

/* Oracle: running maximum token by token, everything in double. */
static inline void spl_attend_head_f32(const spl_attend_args *a, uint32_t row, uint32_t kv_head, uint32_t head) {
    uint32_t d = a->kv.head_dim, n_tokens = spl_attend_end(a, row);
    const float *q = a->q + row * a->q_stride + (size_t)head * d, *gate = spl_attend_gate(a, row, head);
    float *y = a->y + ((size_t)row * a->n_q_heads + head) * d;
    double acc[SPL_MAX_HEAD_DIM] = {0}, top = -INFINITY, sum = 0.0, scale = 1.0 / sqrt((double)d);
    for (uint32_t t = spl_attend_begin(a, row); t < n_tokens; t++) {
        const float *block = (const float *)(const void *)spl_kv_block(&a->kv, t / SPL_PAGE_TOKENS, kv_head, true);
        const float *k = block + (size_t)(t % SPL_PAGE_TOKENS) * d, *v = k + (size_t)SPL_PAGE_TOKENS * d;
        double s = 0.0;
        for (uint32_t i = 0; i < d; i++) s += (double)q[i] * (double)k[i];
        s *= scale;
        double higher = s > top ? s : top, f = exp(top - higher), w = exp(s - higher);
        sum = sum * f + w;
        for (uint32_t i = 0; i < d; i++) acc[i] = acc[i] * f + w * (double)v[i];
        top = higher;
    }
    for (uint32_t i = 0; i < d; i++) y[i] = (float)(acc[i] / sum / (gate ? 1.0 + exp(-(double)gate[i]) : 1.0));
}

static void spl_body_attend_f32(const spl_attend_args *a) {
    uint32_t group = a->n_q_heads / a->kv.n_kv_heads;
    for (uint32_t unit = a->unit_begin; unit < a->unit_end; unit++) {
        spl_attend_unit u = spl_attend_unit_of(a, unit);
        for (uint32_t row = u.row_begin; row < u.row_end; row++)
            for (uint32_t j = 0; j < group; j++) spl_attend_head_f32(a, row, u.head, u.head * group + j);
    }
}

#endif
