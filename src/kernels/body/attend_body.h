/* SPDX-License-Identifier: Apache-2.0
 * KV store and causal attention over int8 pages, and their fp32 oracles.
 *
 * Codes of an int8 block: K as [head_dim/4][32 tokens][4 dims], stored as code + 128 (unsigned, the first
 * operand of a u8 x s8 dot product); V as [8 token groups][head_dim][4 tokens], signed. Then K scale
 * f32[32], V scale f32[32].
 *
 * Arithmetic. Both products are exact integer sums. A query head is quantised once to 15-bit codes
 * (amax -> 16256 = 127 * 128), the softmax weights times the V scales of a page to 14 bits (page maximum
 * -> 16256). Such a code is two signed 7-bit planes, 128 * high + low, so every ISA computes it with its int8
 * dot product in two passes or with a 16-bit multiply-add in one, and all agree bit for bit.
 *
 * Why two planes: added error, as per cent of RMS output, beside the error of the int8 cache itself
 * (simulation, head dim 256, 4,096 tokens, 48 query heads; rows: distribution of K and V, sharpness):
 *
 *   values, sharpness     int8 KV    q 8 bit   w 8 bit   w 7 bit   q 15 + w 14 bit (this one)
 *   Gaussian, broad        0.085     0.058     0.040     0.081     0.001
 *   heavy tail, broad      0.253     0.177     0.086     0.177     0.002
 *   outlier dims, broad    1.197     0.606     0.314     0.614     0.007
 *   outlier dims, x3       2.850     1.527     0.063     0.109     0.013
 *   outlier dims, x8       4.835     3.529     0.039     0.045     0.024
 *
 * An 8-bit query adds 50-75 % of the cache's own error, 8-bit weights up to 40 %; two planes add below 2 %
 * and still run at half the int8 rate, twice what fp32 products reach.
 *
 * Order. Tokens are cut at multiples of SPL_ATTEND_SPLIT positions. Inside a split pages ascend: scores,
 * page maximum, rescale by exp(old - new), then the page's weights. Splits are merged ascending. The cuts
 * are absolute positions, so threads may share a history without changing bits. */
#ifndef SPL_KERNELS_ATTEND_BODY_H
#define SPL_KERNELS_ATTEND_BODY_H

#include "kernels/body/rows_body.h"

enum { SPL_CODE15_MAX = 127 * 128 };

/* Codes of one head with limit `top` for the largest magnitude; returns the scale. */
static inline float spl_head_scale(const float *x, uint32_t n, float top, float *inverse) {
    float amax = spl_max_abs(x, n);
    bool zero = amax < spl_tiny_amax;
    *inverse = zero ? 0.0f : top / amax;
    return zero ? 0.0f : amax / top;
}

static inline uint8_t *spl_kv_block(const spl_kv_view *kv, uint32_t page, uint32_t head, bool f32) {
    return kv->pool + kv->page_table[page] * kv->page_stride + kv->layer_offset +
           head * spl_kv_block_bytes(kv->head_dim, f32);
}
static inline float *spl_kv_scales(uint8_t *block, uint32_t head_dim) {
    return (float *)(void *)(block + 2 * (size_t)SPL_PAGE_TOKENS * head_dim);
}

static void spl_body_kv_store_i8(const spl_kv_store_args *a) {
    uint32_t d = a->kv.head_dim;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        uint32_t position = a->position + r, slot = position % SPL_PAGE_TOKENS;
        for (uint32_t h = a->head_begin; h < a->head_end; h++) {
            uint8_t *block = spl_kv_block(&a->kv, position / SPL_PAGE_TOKENS, h, false);
            uint8_t *k_codes = block + slot * 4, *v_codes = block + (size_t)SPL_PAGE_TOKENS * d;
            const float *k = a->k + r * a->k_stride + (size_t)h * d, *v = a->v + r * a->v_stride + (size_t)h * d;
            float *scales = spl_kv_scales(block, d), inverse;
            v_codes += (size_t)(slot / 4) * 4 * d + slot % 4;
            scales[slot] = spl_head_scale(k, d, 127.0f, &inverse);
            for (uint32_t i = 0; i < d; i++)
                k_codes[i / 4 * 4 * SPL_PAGE_TOKENS + i % 4] = (uint8_t)(spl_round_i32(k[i] * inverse) + 128);
            scales[SPL_PAGE_TOKENS + slot] = spl_head_scale(v, d, 127.0f, &inverse);
            for (uint32_t i = 0; i < d; i++) v_codes[(size_t)i * 4] = (uint8_t)spl_round_i32(v[i] * inverse);
        }
    }
}

/* Partial softmax average of one split: the true weights are exp(score - max). */
typedef struct spl_attend_part {
    float max, sum;
    float acc[SPL_MAX_HEAD_DIM];
} spl_attend_part;

/* w[t] = exp(s[t] - m) for the first n tokens and 0 for the rest; rescales what stands in the part. */
static inline void spl_part_rescale(spl_attend_part *part, const float s[SPL_PAGE_TOKENS], uint32_t n, uint32_t d,
                                    float w[SPL_PAGE_TOKENS]) {
    float top = part->max;
    for (uint32_t t = 0; t < n; t++) top = s[t] > top ? s[t] : top;
    float f = spl_exp(part->max - top);
    for (uint32_t t = 0; t < SPL_PAGE_TOKENS; t++) {
        float e = spl_exp(s[t] - top);
        w[t] = t < n ? e : 0.0f;
    }
    part->max = top;
    part->sum = part->sum * f + spl_lane_sum(w, SPL_PAGE_TOKENS);
    for (uint32_t i = 0; i < d; i++) part->acc[i] = part->acc[i] * f;
}

/* Adds one page: q15 are the 15-bit codes, q_scale their scale times head_dim^-0.5. */
static inline void spl_part_add_page(spl_attend_part *part, uint8_t *block, const int16_t *q15, float q_scale,
                                     uint32_t d, uint32_t n) {
    const uint8_t *k_codes = block, *v_codes = block + (size_t)SPL_PAGE_TOKENS * d;
    const float *scales = spl_kv_scales(block, d);
    float s[SPL_PAGE_TOKENS], w[SPL_PAGE_TOKENS];
    int32_t code[SPL_PAGE_TOKENS], dot[SPL_PAGE_TOKENS] = {0};
    for (uint32_t i = 0; i < d; i += 4)
        for (uint32_t t = 0; t < SPL_PAGE_TOKENS; t++)
            for (uint32_t j = 0; j < 4; j++) dot[t] += (k_codes[(i * SPL_PAGE_TOKENS) + 4 * t + j] - 128) * q15[i + j];
    for (uint32_t t = 0; t < SPL_PAGE_TOKENS; t++) s[t] = t < n ? (float)dot[t] * (scales[t] * q_scale) : 0.0f;
    spl_part_rescale(part, s, n, d, w);
    for (uint32_t t = 0; t < SPL_PAGE_TOKENS; t++) w[t] = t < n ? w[t] * scales[SPL_PAGE_TOKENS + t] : 0.0f;
    float inverse, w_scale = spl_head_scale(w, SPL_PAGE_TOKENS, (float)SPL_CODE15_MAX, &inverse);
    for (uint32_t t = 0; t < SPL_PAGE_TOKENS; t++) code[t] = spl_round_i32(w[t] * inverse);
    for (uint32_t i = 0; i < d; i++) {
        int32_t sum = 0;
        for (uint32_t t = 0; t < SPL_PAGE_TOKENS; t++)
            sum += code[t] * (int8_t)v_codes[((size_t)(t / 4) * d + i) * 4 + t % 4];
        part->acc[i] = fmaf((float)sum, w_scale, part->acc[i]);
    }
}

static inline void spl_part_clear(spl_attend_part *part, uint32_t d) {
    part->max = -INFINITY;
    part->sum = 0.0f;
    for (uint32_t i = 0; i < d; i++) part->acc[i] = 0.0f;
}

/* total = total merged with part, the later one. Both factors are applied; exp(0) is exactly 1. */
static inline void spl_part_merge(spl_attend_part *total, const spl_attend_part *part, uint32_t d) {
    float top = part->max > total->max ? part->max : total->max;
    float f = spl_exp(total->max - top), g = spl_exp(part->max - top);
    total->max = top;
    total->sum = total->sum * f + part->sum * g;
    for (uint32_t i = 0; i < d; i++) total->acc[i] = total->acc[i] * f + part->acc[i] * g;
}

/* y = (acc * (1 / sum)) * sigmoid(gate) */
static inline void spl_part_finish(const spl_attend_part *total, const float *gate, uint32_t d, float *y) {
    float inverse = 1.0f / total->sum;
    for (uint32_t i = 0; i < d; i++) y[i] = (total->acc[i] * inverse) * spl_sigmoid(gate[i]);
}

static inline void spl_attend_head_i8(const spl_attend_args *a, uint32_t row, uint32_t kv_head, uint32_t head) {
    uint32_t d = a->kv.head_dim, n_tokens = a->position + row + 1;
    const float *q = a->q + ((size_t)row * a->n_q_heads + head) * d;
    int16_t q15[SPL_MAX_HEAD_DIM];
    float inverse, q_scale = spl_head_scale(q, d, (float)SPL_CODE15_MAX, &inverse);
    q_scale = q_scale * (1.0f / sqrtf((float)d));
    for (uint32_t i = 0; i < d; i++) q15[i] = (int16_t)spl_round_i32(q[i] * inverse);
    spl_attend_part total, part;
    spl_part_clear(&total, d);
    for (uint32_t begin = 0; begin < n_tokens; begin += SPL_ATTEND_SPLIT) {
        uint32_t end = n_tokens - begin < SPL_ATTEND_SPLIT ? n_tokens : begin + SPL_ATTEND_SPLIT;
        spl_part_clear(&part, d);
        for (uint32_t t = begin; t < end; t += SPL_PAGE_TOKENS) {
            uint32_t n = end - t < SPL_PAGE_TOKENS ? end - t : SPL_PAGE_TOKENS;
            spl_part_add_page(&part, spl_kv_block(&a->kv, t / SPL_PAGE_TOKENS, kv_head, false), q15, q_scale, d, n);
        }
        if (begin == 0)
            total = part;
        else
            spl_part_merge(&total, &part, d);
    }
    spl_part_finish(&total, a->gate + row * a->gate_stride + (2 * (size_t)head + 1) * d, d,
                    a->y + ((size_t)row * a->n_q_heads + head) * d);
}

static void spl_body_attend_i8(const spl_attend_args *a) {
    uint32_t group = a->n_q_heads / a->kv.n_kv_heads;
    for (uint32_t unit = a->unit_begin; unit < a->unit_end; unit++) {
        uint32_t row = unit / a->kv.n_kv_heads, kv_head = unit % a->kv.n_kv_heads;
        for (uint32_t j = 0; j < group; j++) spl_attend_head_i8(a, row, kv_head, kv_head * group + j);
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
    uint32_t d = a->kv.head_dim, n_tokens = a->position + row + 1;
    const float *q = a->q + ((size_t)row * a->n_q_heads + head) * d;
    const float *gate = a->gate + row * a->gate_stride + (2 * (size_t)head + 1) * d;
    float *y = a->y + ((size_t)row * a->n_q_heads + head) * d;
    double acc[SPL_MAX_HEAD_DIM] = {0}, top = -INFINITY, sum = 0.0, scale = 1.0 / sqrt((double)d);
    for (uint32_t t = 0; t < n_tokens; t++) {
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
    for (uint32_t i = 0; i < d; i++) y[i] = (float)(acc[i] / sum / (1.0 + exp(-(double)gate[i])));
}

static void spl_body_attend_f32(const spl_attend_args *a) {
    uint32_t group = a->n_q_heads / a->kv.n_kv_heads;
    for (uint32_t unit = a->unit_begin; unit < a->unit_end; unit++) {
        uint32_t row = unit / a->kv.n_kv_heads, kv_head = unit % a->kv.n_kv_heads;
        for (uint32_t j = 0; j < group; j++) spl_attend_head_f32(a, row, kv_head, kv_head * group + j);
    }
}

#endif
