/* SPDX-License-Identifier: Apache-2.0
 * Gated DeltaNet in v16 operations. The recurrence treats every column of the state alone, so a head is
 * walked in slices of 16 or 32 columns: the slice stays in L1 (scratch, a vector of every key after the other: side by
 * side, a load would share its low 12 address bits with a store of 32 keys before and wait) while all rows pass,
 * and the update of one row and the sums of the next are one pass, so that memory sees the state once. Prefetches
 * bring the next slice meanwhile. Order of every sum: ascending key index, as in gdn_body.h. */
#ifndef SPL_KERNELS_GDN_V16_BODY_H
#define SPL_KERNELS_GDN_V16_BODY_H

#include "kernels/body/gdn_body.h"
#include "kernels/body/v16_body.h"

enum { ROWS_AHEAD = 4 }; /* how early a row is asked for: rows lie far apart, no hardware prefetcher follows */

/* What one pass over the slice does: state = fma(k, delta, g * state) for row `now`, then the sums of row
 * `next` over the new state. */
typedef struct gdn_pass {
    const float *from;            /* slice of the state or of scratch */
    size_t from_row, from_vector; /* values from one key, and one vector of the slice, to the next */
    float *to, *commit; /* scratch, [vector][d][16], and the state where this row is the last one kept, or NULL */
    const float *k, *next_k, *next_q;
    v16 delta[V16_SLICE], u[V16_SLICE], w[V16_SLICE];
    float g;
} gdn_pass;

static SPL_ALWAYS_INLINE void gdn_run_pass(gdn_pass *p, uint32_t d, const int n_vec, const bool update, const bool sums,
                                           const bool outputs) {
    v16 u[V16_SLICE], w[V16_SLICE], delta[V16_SLICE], g = v16_set1(p->g);
    for (int v = 0; v < n_vec; v++) {
        u[v] = w[v] = v16_set1(0.0f);
        delta[v] = p->delta[v];
    }
    const float *from = p->from;
    float *to = p->to, *commit = p->commit;
    for (uint32_t i = 0; i < d; i++) {
        v16 s[V16_SLICE];
        for (int v = 0; v < n_vec; v++) s[v] = v16_load(from + (size_t)v * p->from_vector);
        if (update) {
            v16 k = v16_set1(p->k[i]);
            for (int v = 0; v < n_vec; v++) s[v] = v16_fma(k, delta[v], v16_mul(g, s[v]));
            for (int v = 0; v < n_vec; v++) v16_store(to + 16 * ((size_t)v * d + i), s[v]);
            if (commit)
                for (int v = 0; v < n_vec; v++) v16_store(commit + (size_t)i * d + 16 * v, s[v]);
        }
        if (sums) {
            v16 k = v16_set1(p->next_k[i]);
            for (int v = 0; v < n_vec; v++) u[v] = v16_fma(s[v], k, u[v]);
        }
        if (outputs) {
            v16 q = v16_set1(p->next_q[i]);
            for (int v = 0; v < n_vec; v++) w[v] = v16_fma(s[v], q, w[v]);
        }
        from += p->from_row;
    }
    for (int v = 0; v < n_vec; v++) {
        p->u[v] = u[v];
        p->w[v] = w[v];
    }
}

static SPL_ALWAYS_INLINE void gdn_any_pass(gdn_pass *p, uint32_t d, const int n_vec, bool update, bool sums,
                                           bool outputs) {
    if (!update)
        outputs ? gdn_run_pass(p, d, n_vec, false, true, true) : gdn_run_pass(p, d, n_vec, false, true, false);
    else if (!sums)
        gdn_run_pass(p, d, n_vec, true, false, false);
    else
        outputs ? gdn_run_pass(p, d, n_vec, true, true, true) : gdn_run_pass(p, d, n_vec, true, true, false);
}

/* Row i of the sequence pending ++ rows. */
typedef struct gdn_row_view {
    const float *q, *k, *v;
    float g, beta;
    bool output;
} gdn_row_view;
static inline gdn_row_view gdn_row_at(const spl_gdn_scan_args *a, uint32_t head, uint32_t i) {
    bool pending = i < a->n_pending;
    uint32_t d = a->head_dim, r = pending ? i : i - a->n_pending;
    size_t channels = (size_t)(2 * a->key_heads + a->value_heads) * d, gate = (size_t)r * a->value_heads + head;
    const float *m = (pending ? a->pending_mixed : a->mixed) + r * channels;
    gdn_row_view view = {.q = m + (size_t)(head / (a->value_heads / a->key_heads)) * d,
                         .v = m + (size_t)(2 * a->key_heads + head) * d,
                         .g = (pending ? a->pending_decay : a->decay)[gate],
                         .beta = (pending ? a->pending_beta : a->beta)[gate],
                         .output = !pending};
    view.k = view.q + (size_t)a->key_heads * d;
    return view;
}

/* Asks for part i of n of a slice: spread over the passes, so that the memory system keeps up. */
static SPL_ALWAYS_INLINE void gdn_prefetch(const float *slice, uint32_t d, const int n_vec, uint32_t i, uint32_t n) {
    for (uint32_t row = d * i / n; row < d * (i + 1) / n; row++)
        for (int v = 0; v < n_vec; v++) v16_prefetch(slice + (size_t)row * d + 16 * v);
}

static inline float *gdn_out_at(const spl_gdn_scan_args *a, uint32_t head, uint32_t column, uint32_t i) {
    return a->out + ((size_t)(i - a->n_pending) * a->value_heads + head) * a->head_dim + column;
}

/* Keys, queries and values of a row to come, and where its output goes: far apart in memory, so no hardware prefetcher
 * follows. Long prompts take two thirds of the time with it, most of that by the output. */
static SPL_ALWAYS_INLINE void gdn_prefetch_row(const spl_gdn_scan_args *a, uint32_t head, uint32_t column,
                                               const int n_vec, uint32_t i) {
    gdn_row_view row = gdn_row_at(a, head, i);
    for (uint32_t j = 0; j < a->head_dim; j += 16) {
        v16_prefetch(row.q + j);
        v16_prefetch(row.k + j);
    }
    for (int v = 0; v < n_vec; v++) {
        v16_prefetch(row.v + column + 16 * v);
        if (row.output) SPL_PREFETCH_WRITE(gdn_out_at(a, head, column, i) + 16 * v);
    }
}

static SPL_ALWAYS_INLINE void gdn_slice(const spl_gdn_scan_args *a, uint32_t head, uint32_t column, const int n_vec) {
    uint32_t d = a->head_dim, n = a->n_pending + a->n_rows, n_kept = a->n_pending + a->n_commit;
    float *state = a->state + (size_t)head * d * d + column, *scratch = a->scratch;
    gdn_row_view row = gdn_row_at(a, head, 0);
    gdn_pass p = {.from = state, .from_row = d, .from_vector = 16, .to = scratch, .next_k = row.k, .next_q = row.q};
    /* the next slice of this head, else the first one of the next head (or anything: it is a hint) */
    const float *ahead = state + 16 * (size_t)n_vec;
    if (column + 16 * (uint32_t)n_vec >= d)
        ahead = a->state + (size_t)(head + 1 < a->head_end ? head + 1 : head) * d * d;
    if (n == 1) gdn_prefetch(ahead, d, n_vec, 0, 1); /* nothing to spread over */
    gdn_any_pass(&p, d, n_vec, false, true, row.output);
    for (uint32_t i = 0; i < n; i++) {
        if (n > 1) gdn_prefetch(ahead, d, n_vec, i, n);
        if (i + ROWS_AHEAD < n) gdn_prefetch_row(a, head, column, n_vec, i + ROWS_AHEAD);
        v16 g = v16_set1(row.g), beta = v16_set1(row.beta);
        for (int v = 0; v < n_vec; v++)
            p.delta[v] = v16_mul(beta, v16_sub(v16_load(row.v + column + 16 * v), v16_mul(g, p.u[v])));
        if (row.output) {
            v16 kq = v16_set1(v16_dot(row.k, row.q, d));
            float *o = gdn_out_at(a, head, column, i);
            for (int v = 0; v < n_vec; v++) v16_store(o + 16 * v, v16_fma(kq, p.delta[v], v16_mul(g, p.w[v])));
        }
        bool more = i + 1 < n;
        if (!more && i + 1 != n_kept) break;
        p.g = row.g;
        p.k = row.k;
        p.commit = i + 1 == n_kept ? state : NULL;
        if (more) {
            row = gdn_row_at(a, head, i + 1);
            p.next_k = row.k;
            p.next_q = row.q;
        }
        gdn_any_pass(&p, d, n_vec, true, more, more && row.output);
        p.from = scratch;
        p.from_row = 16;
        p.from_vector = 16 * (size_t)d;
    }
}

static void v16_gdn_scan(const spl_gdn_scan_args *a) {
    if (a->n_pending + a->n_rows == 0) return;
    for (uint32_t h = a->head_begin; h < a->head_end; h++) {
        uint32_t column = 0;
        for (; column + 16 * V16_SLICE <= a->head_dim; column += 16 * V16_SLICE) gdn_slice(a, h, column, V16_SLICE);
        for (; column < a->head_dim; column += 16) gdn_slice(a, h, column, 1);
    }
}

static SPL_ALWAYS_INLINE void v16_conv_head(const spl_gdn_prepare_args *a, uint32_t row, uint32_t channel,
                                            uint32_t channels, float *y) {
    const float *tap[SPL_CONV_TAPS], *w = a->conv + (size_t)channel * SPL_CONV_TAPS;
    for (uint32_t i = 0; i < SPL_CONV_TAPS; i++)
        tap[i] = row + i < 3 ? a->window + (size_t)(row + i) * channels + channel
                             : a->in + (size_t)(row + i - 3) * a->in_stride + channel;
    for (uint32_t c = 0; c < a->head_dim; c += 16) {
        v16x4 t = v16_load_taps(w + 4 * (size_t)c);
        v16 s = v16_add(v16_mul(t.v[0], v16_load(tap[0] + c)), v16_mul(t.v[1], v16_load(tap[1] + c)));
        s = v16_add(s, v16_mul(t.v[2], v16_load(tap[2] + c)));
        s = v16_add(s, v16_mul(t.v[3], v16_load(tap[3] + c)));
        v16_store(y + c, v16_silu(s));
    }
}

static void v16_gdn_prepare(const spl_gdn_prepare_args *a) {
    uint32_t d = a->head_dim, keys = a->key_heads, channels = (2 * keys + a->value_heads) * d;
    v16 root = v16_set1(1.0f / sqrtf((float)d));
    for (uint32_t unit = a->unit_begin; unit < a->unit_end; unit++)
        for (uint32_t r = 0; r < a->n_rows; r++) {
            float *y = a->mixed + (size_t)r * channels + (size_t)unit * d;
            for (uint32_t i = 0; r + ROWS_AHEAD < a->n_rows && i < d; i += 16) {
                v16_prefetch(a->in + (size_t)(r + ROWS_AHEAD) * a->in_stride + (size_t)unit * d + i);
                SPL_PREFETCH_WRITE(y + (size_t)ROWS_AHEAD * channels + i);
            }
            v16_conv_head(a, r, unit * d, channels, y);
            if (unit < 2 * keys) {
                v16 length = v16_set1(sqrtf(v16_dot(y, y, d) + 1e-6f));
                for (uint32_t i = 0; i < d; i += 16) {
                    v16 v = v16_div(v16_load(y + i), length);
                    v16_store(y + i, unit < keys ? v16_mul(v, root) : v);
                }
            } else {
                uint32_t h = unit - 2 * keys;
                const float *gates = a->in + r * a->in_stride + channels + (size_t)a->value_heads * d;
                a->beta[(size_t)r * a->value_heads + h] = spl_sigmoid(gates[h]);
                a->decay[(size_t)r * a->value_heads + h] =
                    spl_exp(a->a_neg[h] * spl_softplus(gates[a->value_heads + h] + a->dt_bias[h]));
            }
        }
}

static void v16_gdn_norm(const spl_gdn_norm_args *a) {
    uint32_t d = a->head_dim;
    for (uint32_t r = a->row_begin; r < a->row_end; r++)
        for (uint32_t h = 0; h < a->value_heads; h++) {
            float *o = a->out + ((size_t)r * a->value_heads + h) * d;
            const float *z = a->z + r * a->z_stride + (size_t)h * d;
            v16 f = v16_set1(1.0f / sqrtf(v16_dot(o, o, d) / (float)d + a->eps));
            for (uint32_t i = 0; i < d; i += 16) {
                v16 v = v16_mul(v16_mul(v16_load(o + i), f), v16_load(a->weight + i));
                v16_store(o + i, v16_mul(v, v16_silu(v16_load(z + i))));
            }
        }
}

#endif
