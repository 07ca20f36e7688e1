/* SPDX-License-Identifier: Apache-2.0
 * The kernel table: one function pointer per operation, filled by ISA tier, weaker tier first, so
 * every entry is set from `ref` on. Kernels know shapes and pointers, never layers, pages as objects
 * or requests. Work is divided by the caller: every args struct that can be split carries a half-open
 * range, and a result never depends on how the ranges were cut. Nothing here allocates.
 *
 * Rounding is part of the interface. Integer sums are exact. A float sum of many terms uses either
 * the natural ascending order (where the vector runs across outputs) or SPL_LANES virtual lanes:
 * lane j adds the terms i with i % 16 == j in ascending i, then lanes j and j + 8, + 4, + 2, + 1 are
 * added in that order. fmaf is used only where the text says fma. All tiers therefore agree bit
 * for bit with `ref`, except where an entry states an error bound. Formulas: docs/MATH.md. */
#ifndef SPL_KERNELS_KERNELS_H
#define SPL_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/draft_kernels.h"
#include "model/geometry.h"

enum {
    SPL_LANES = 16,
    SPL_TILE_M = 8,          /* activation rows of a row tile */
    SPL_Q8_BLOCK_ROWS = 16,  /* rows whose groups lie side by side: two row tiles */
    SPL_MAX_HEAD_DIM = 256,  /* attention and GDN; multiples of 16 */
    SPL_ATTEND_SPLIT = 2048, /* tokens of one partial softmax: fixed, so a history may be shared by threads */
    SPL_ATTEND_TILE = 128    /* tokens between two looks at the running maximum */
};

/* name, text. Order = preference inside one architecture, weakest first. */
#define SPL_TIERS(X)                                                                                                   \
    X(REF, "ref")                                                                                                      \
    X(AVX2, "avx2")                                                                                                    \
    X(AVXVNNI, "avxvnni")                                                                                              \
    X(AVX512VNNI, "avx512vnni")                                                                                        \
    X(AMX, "amx")                                                                                                      \
    X(NEON, "neon")                                                                                                    \
    X(NEON_DOTPROD, "neon_dotprod")                                                                                    \
    X(NEON_I8MM, "neon_i8mm")
typedef enum spl_tier {
#define X(id, text) SPL_TIER_##id,
    SPL_TIERS(X)
#undef X
        SPL_N_TIERS
} spl_tier;

/* Activations quantised for the integer linear: n_laid rows of k inputs, in blocks of 16 rows, the
 * last block holding what is left (r_b = min(16, n_laid - 16 b) rows). The first n_rows count.
 *   q     int8  block b at q + 16 b k:           [k/64][r_b][64]
 *   scale f32   block b at scale + 16 b (k/64):  [k/64][r_b]   dx = amax / 127
 *   sum   f32   same arrangement:                (sum of the group's q) * dx, the sum of what q stands for
 * A row tile is half a block: rows 8 t .. 8 t + 7.
 * q = rint(x * (127 / amax)), ties to even, in [-127, 127]; amax below 2^-100 gives q = 0, scale = 0. */
typedef struct spl_q8_rows {
    int8_t *q;
    float *scale, *sum;
    uint32_t n_rows, k;
    uint32_t n_laid; /* rows that the arrangement is made for: n_rows, or more where only the first ones are used */
} spl_q8_rows;

/* Bytes of a spl_q8_rows block for n_rows x k: q, then scale, then sum, each 64-aligned. */
static inline size_t spl_q8_bytes(size_t n_rows, size_t k) {
    size_t q = (n_rows * k + 63) / 64 * 64, s = (n_rows * (k / SPL_GROUP) * sizeof(float) + 63) / 64 * 64;
    return q + 2 * s;
}
/* Points a block at `memory` (64-aligned, spl_q8_bytes long). */
static inline spl_q8_rows spl_q8_at(void *memory, uint32_t n_rows, uint32_t k) {
    size_t q = ((size_t)n_rows * k + 63) / 64 * 64,
           s = ((size_t)n_rows * (k / SPL_GROUP) * sizeof(float) + 63) / 64 * 64;
    uint8_t *base = memory;
    spl_q8_rows rows = {(int8_t *)base, (float *)(void *)(base + q), (float *)(void *)(base + q + s), n_rows, k,
                        n_rows};
    return rows;
}

/* y = x * rsqrt-style factor * weight; weight is the effective multiplier.
 *   ss = 16-lane sum of x_i * x_i;  f = 1 / sqrtf(ss / k + eps);  y_i = (x_i * f) * weight_i */
typedef struct spl_norm_args {
    const float *x; /* [n_rows][x_stride] */
    size_t x_stride;
    const float *weight; /* [k] */
    float eps;
    float *y;       /* [n_rows][k], or NULL when only q8 is wanted */
    spl_q8_rows q8; /* quantised y, or q8.q == NULL */
    uint32_t k, row_begin, row_end;
} spl_norm_args;

/* Quantises fp32 rows. */
typedef struct spl_quantise_args {
    const float *x; /* [n_rows][x_stride] */
    size_t x_stride;
    spl_q8_rows q8; /* q8.k inputs per row */
    uint32_t row_begin, row_end;
} spl_quantise_args;

/* How far ahead a linear asks for weights, in bytes; 0: the tier's own choice. A matter of speed only: addresses past
 * the matrix are never read. */
typedef struct spl_reach {
    uint32_t near_bytes;   /* into the first cache */
    uint32_t far_bytes;    /* into the second */
    uint32_t single_bytes; /* into the first, with one row or two */
} spl_reach;

/* y[m][n] (+)= sum over groups g ascending:
 *   acc = 0;  I = sum of code * q (exact int32);  acc = fma((float)I, w_scale * dx, acc);
 *   acc = fma(w_bias, sx, acc);   then  y = acc  or  y = y + acc.
 * Weights: r16 tiles, [n_out/16 panels][k/64 tiles][576]; see docs/FORMATS.md.
 * maxima, which do not go with add: max[m][p] is the largest of the 16 outputs of panel p (fewer in the last), +inf
 * when one is NaN or +inf, +0 for -0. Whoever wants nothing else leaves y NULL. */
typedef struct spl_linear_args {
    const uint8_t *w;
    uint32_t n_out; /* true rows; the last panel may be partial: nothing past n_out is written */
    spl_q8_rows x;
    float *y; /* [x.n_rows][y_stride] */
    size_t y_stride;
    float *max; /* [x.n_rows][max_stride], or NULL */
    size_t max_stride;
    bool add;       /* y += instead of y = */
    bool read_late; /* other memory comes in before y is read: it may go past the caches. A matter of speed only */
    uint32_t panel_begin, panel_end;
    spl_reach reach;
} spl_linear_args;

/* SwiGLU pair, quantised: panel 2p is gate p, 2p + 1 is up p (16 rows each); output 16 p + r of a row is
 * silu(gate) * up, with silu(v) = v * sigmoid(v) by the table's exp. n_out = ffn width, a multiple of 64. A group of 64
 * outputs takes 4 pairs and is quantised when it is complete: ranges are of whole groups. */
typedef struct spl_gate_up_args {
    const uint8_t *w;
    uint32_t n_out;
    spl_q8_rows x;
    spl_q8_rows y;  /* x.n_rows rows of n_out values */
    float *scratch; /* [x.n_rows][64], the caller's */
    uint32_t group_begin, group_end;
    spl_reach reach;
} spl_gate_up_args;

/* Oracle linear: the weights are dequantised (scale * code + bias in fp32), the inputs stay fp32, the
 * products are summed in double in ascending order. Slow on purpose; tests only. */
typedef struct spl_linear_f32_args {
    const uint8_t *w;
    uint32_t n_out, k;
    const float *x; /* [n_rows][k] */
    uint32_t n_rows;
    float *y;
    size_t y_stride;
    float *max; /* as above; linear_f32 only */
    size_t max_stride;
    bool add;
    uint32_t panel_begin, panel_end;
} spl_linear_f32_args;

/* Token rows of the q4g64row table: y = scale * code + bias (product first, then one add). */
typedef struct spl_embed_args {
    const uint8_t *table; /* [vocab][k/2 + k/64*4 bytes] */
    const uint32_t *tokens;
    float *y; /* [n_rows][k] */
    uint32_t k, row_begin, row_end;
} spl_embed_args;

/* Attention input rows [q0 g0 q1 g1 ... | k | v] to rotated, normalised q and k. v and the gates are
 * used where they lie. cos/sin: [n_rows][rotary_dims/2], fp32. */
typedef struct spl_attn_prepare_args {
    const float *in; /* [n_rows][in_stride] */
    size_t in_stride;
    const float *q_norm, *k_norm; /* [head_dim] effective multipliers */
    const float *cos, *sin;
    float *q; /* [n_rows][n_q_heads][head_dim] */
    float *k; /* [n_rows][n_kv_heads][head_dim] */
    uint32_t n_q_heads, n_kv_heads, head_dim, rotary_dims;
    float eps;
    uint32_t row_begin, row_end;
} spl_attn_prepare_args;

/* One KV block = one page x one attention layer x one KV head, 32 tokens:
 *   int8 : K codes [32 x head_dim], V codes [32 x head_dim], K scale f32[32], V scale f32[32]; the order
 *          of the codes inside is private to kv_store/attend of the table and equal in all tiers of one
 *          build, so that tiers may share a cache.
 *   fp32 (oracle): K f32 [32][head_dim], V f32 [32][head_dim].
 * scale = amax / 127 over the head's values of that token, codes as in spl_q8_rows, after the Hadamard transform of
 * body/attend_body.h. */
static inline size_t spl_kv_block_bytes(uint32_t head_dim, bool f32) {
    size_t n = (size_t)SPL_PAGE_TOKENS * head_dim;
    return f32 ? 2 * n * sizeof(float) : 2 * n + 2 * SPL_PAGE_TOKENS * sizeof(float);
}

/* Addresses the KV blocks of one lane and one layer: block of (logical page p, head h) is
 *   pool + page_table[p] * page_stride + layer_offset + h * spl_kv_block_bytes(head_dim, f32),
 * in a ring of pages with p % ring_pages in the place of page_table[p]. */
typedef struct spl_kv_view {
    uint8_t *pool;
    const uint32_t *page_table; /* NULL: a ring */
    uint32_t ring_pages;
    size_t page_stride, layer_offset;
    uint32_t n_kv_heads, head_dim;
} spl_kv_view;

/* Writes rows [0, n_rows) of one lane at positions position .. position + n_rows - 1, for KV heads
 * [head_begin, head_end). k is [n_rows][k_stride] (normalised, rotated), v [n_rows][v_stride]. */
typedef struct spl_kv_store_args {
    spl_kv_view kv;
    const float *k, *v;
    size_t k_stride, v_stride;
    uint32_t position, n_rows, head_begin, head_end;
} spl_kv_store_args;

/* Attention of rows of one lane over its pages (its own rows already stored). Row r sits at position + r and sees
 * tokens 0 .. position + r; with a window, which goes with at most 8 rows and no parts, all rows in both directions
 * and before them the tokens t >= first with position + r - t < window. Scores q . k * head_dim^-0.5, softmax in fp32.
 * The history is cut at absolute positions, multiples of SPL_ATTEND_SPLIT; inside a split the running maximum is taken
 * tile by tile in ascending order, and the partial results (maximum, sum, accumulator) of the splits are
 * merged ascending. A row's bits therefore depend on nothing but its q and its history, also when splits are
 * computed by different threads. Integer products and their code widths: body/attend_body.h.
 * y[r][h][d] is the softmax average of V, times sigmoid(gate) where there is a gate.
 * parts NULL: a unit of attend is (block of 8 rows, KV head), the later faster, and writes y.
 * parts given (int8 only): a unit is (block of 8 rows, KV head, split) and writes its partial results;
 * attend_merge, whose units are (row, query head), then makes y of them and uses them up. Both ways give the same
 * bits. scratch: per caller, spl_attend_scratch_bytes; merge needs none. */
typedef struct spl_attend_args {
    spl_kv_view kv;
    const float *q; /* head h of row r at q + r * q_stride + h * head_dim */
    size_t q_stride;
    const float *gate; /* gate of (row, head) at gate + row * gate_stride + (2 * head + 1) * head_dim, or NULL */
    size_t gate_stride;
    float *y;     /* [n_rows][n_q_heads * head_dim] */
    float *parts; /* [n_rows][n_q_heads][spl_attend_splits(position, n_rows)][SPL_ATTEND_PART_FLOATS], or NULL */
    uint32_t n_q_heads, position, n_rows, unit_begin, unit_end;
    uint32_t window, first; /* window 0: causal, the whole history */
    void *scratch;
} spl_attend_args;
#define SPL_ATTEND_PART_FLOATS(head_dim) ((size_t)(head_dim) + 16)

/* Splits that rows at position .. position + n_rows - 1 reach into. */
static inline uint32_t spl_attend_splits(uint32_t position, uint32_t n_rows) {
    return (position + n_rows - 1) / SPL_ATTEND_SPLIT + 1;
}
/* Blocks of rows times KV heads: the units of attend without parts, and with parts those of one split. */
static inline uint32_t spl_attend_blocks(uint32_t n_rows, uint32_t n_kv_heads) {
    return (n_rows + SPL_TILE_M - 1) / SPL_TILE_M * n_kv_heads;
}

/* GDN front: for rows of one lane, convolution over [window ++ rows], SiLU, l2 norm of q (times
 * head_dim^-0.5) and k, gates. in row: [q|k|v|z|b|a].
 *   c_t = silu(((w0 u_{t-3} + w1 u_{t-2}) + w2 u_{t-1}) + w3 u_t)
 *   l2(x) = x / sqrtf(16-lane sum x^2 + 1e-6);  q = l2(c_q) * head_dim^-0.5;  k = l2(c_k)
 *   beta = sigmoid(b);  decay = exp(a_neg * softplus(a + dt_bias)), a_neg = -exp(A_log)
 * Units are heads of q, then k, then v: [unit_begin, unit_end) of 2 * key_heads + value_heads; the gates
 * of value head h are computed with unit 2 * key_heads + h.
 * window: [3][channels] rows before the first one, oldest first; it is read only. */
typedef struct spl_gdn_prepare_args {
    const float *in; /* [n_rows][in_stride] */
    size_t in_stride;
    const float *window;
    const float *conv;            /* [channels][4] */
    const float *a_neg, *dt_bias; /* [value_heads] */
    float *mixed;                 /* [n_rows][channels]: q | k | v after convolution and norms */
    float *decay, *beta;          /* [n_rows][value_heads] */
    uint32_t key_heads, value_heads, head_dim, n_rows, unit_begin, unit_end;
} spl_gdn_prepare_args;

/* GDN recurrence over value heads [head_begin, head_end) of one lane. State of a head: S [key dim][value
 * dim] fp32, value dim contiguous. First the pending rows (retained rows of the previous step) are folded
 * in, without outputs; then rows 0 .. n_rows - 1 run, and the state left in `state` is the one after the
 * first n_commit rows (0 in a verify step, n_rows in prefill). Per row, g = decay, all sums ascending in i:
 *   u_j = sum_i S_ij k_i (fma from 0);  w_j = sum_i S_ij q_i (fma from 0);  kq = 16-lane sum k_i q_i
 *   d_j = beta * (v_j - g * u_j);  o_j = fma(kq, d_j, g * w_j);  S_ij = fma(k_i, d_j, g * S_ij)
 * scratch: spl_gdn_scratch_bytes per caller (holds the state of one head). */
typedef struct spl_gdn_scan_args {
    float *state;                              /* [value_heads][head_dim][head_dim] */
    const float *pending_mixed;                /* [n_pending][channels] */
    const float *pending_decay, *pending_beta; /* [n_pending][value_heads] */
    uint32_t n_pending;
    const float *mixed; /* [n_rows][channels] */
    const float *decay, *beta;
    float *out; /* [n_rows][value_heads * head_dim] */
    uint32_t n_rows, n_commit;
    uint32_t key_heads, value_heads, head_dim, head_begin, head_end;
    void *scratch;
} spl_gdn_scan_args;

/* Gated norm per value head: y = (o * (1 / sqrtf(16-lane sum o^2 / head_dim + eps)) * weight) * silu(z).
 * z of row r at in + r * in_stride + channels. In place on out ([n_rows][value_heads * head_dim]). */
typedef struct spl_gdn_norm_args {
    float *out;
    const float *z; /* first row's z */
    size_t z_stride;
    const float *weight; /* [head_dim] */
    float eps;
    uint32_t value_heads, head_dim, row_begin, row_end;
} spl_gdn_norm_args;

typedef struct spl_kernels {
    spl_tier tier;
    void (*rms_norm)(const spl_norm_args *a);
    void (*quantise)(const spl_quantise_args *a);
    void (*linear_q4)(const spl_linear_args *a);
    void (*gate_up_q4)(const spl_gate_up_args *a);
    void (*linear_f32)(const spl_linear_f32_args *a);  /* oracle */
    void (*gate_up_f32)(const spl_linear_f32_args *a); /* oracle: panel range counts pairs, n_out = ffn width */
    void (*embed_rows)(const spl_embed_args *a);
    void (*attn_prepare)(const spl_attn_prepare_args *a);
    void (*kv_store_i8)(const spl_kv_store_args *a);
    void (*attend_i8)(const spl_attend_args *a);
    void (*attend_merge)(const spl_attend_args *a);
    void (*kv_store_f32)(const spl_kv_store_args *a); /* oracle */
    void (*attend_f32)(const spl_attend_args *a);     /* oracle */
    void (*gdn_prepare)(const spl_gdn_prepare_args *a);
    void (*gdn_scan)(const spl_gdn_scan_args *a);
    void (*gdn_norm)(const spl_gdn_norm_args *a);
    void (*draft_conv)(const spl_draft_conv_args *a);
    void (*draft_prepare)(const spl_draft_prepare_args *a);
} spl_kernels;

size_t spl_attend_scratch_bytes(uint32_t n_q_heads, uint32_t n_kv_heads, uint32_t head_dim);
size_t spl_gdn_scratch_bytes(uint32_t head_dim);

/* CPU features that the OS also lets us use (XCR0 is checked), as a set of tiers: bit t is tier t. REF
 * is always set. */
uint32_t spl_cpu_tiers(void);
const char *spl_tier_name(spl_tier tier);
bool spl_tier_from_name(const char *name, spl_tier *tier);

/* Fills the table for the best usable tier, or for `forced` (SPL_N_TIERS: best). A forced tier the CPU
 * lacks is SPL_E_UNSUPPORTED and the text lists the usable ones. */
spl_status spl_kernels_select(spl_kernels *k, spl_tier forced, spl_error *err);

/* One per ISA file; each overwrites the entries it has. */
void spl_kernels_fill_ref(spl_kernels *k);
void spl_kernels_fill_avx2(spl_kernels *k);
void spl_kernels_fill_avxvnni(spl_kernels *k);
void spl_kernels_fill_avx512vnni(spl_kernels *k);
void spl_kernels_fill_amx(spl_kernels *k);
void spl_kernels_fill_neon(spl_kernels *k);
void spl_kernels_fill_neon_dotprod(spl_kernels *k);
void spl_kernels_fill_neon_i8mm(spl_kernels *k);

/* Sets flush-to-zero and denormals-are-zero for the calling thread; every worker does it. */
void spl_set_ftz(void);

#endif
