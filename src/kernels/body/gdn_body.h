/* SPDX-License-Identifier: Apache-2.0
 * Gated DeltaNet: front (convolution, norms, gates), recurrence, output norm. Sums over the key dimension
 * run in ascending order because the vector runs across the value dimension. Formulas: docs/MATH.md. */
#ifndef SPL_KERNELS_GDN_BODY_H
#define SPL_KERNELS_GDN_BODY_H

#include "kernels/body/rows_body.h"

static inline void spl_gdn_conv_head(const spl_gdn_prepare_args *a, uint32_t row, uint32_t channel, uint32_t channels,
                                     float *y) {
    const float *tap[SPL_CONV_TAPS], *w = a->conv + (size_t)channel * SPL_CONV_TAPS;
    for (uint32_t i = 0; i < SPL_CONV_TAPS; i++)
        tap[i] = row + i < 3 ? a->window + (size_t)(row + i) * channels + channel
                             : a->in + (size_t)(row + i - 3) * a->in_stride + channel;
    for (uint32_t c = 0; c < a->head_dim; c++) {
        float s = w[4 * c] * tap[0][c] + w[4 * c + 1] * tap[1][c];
        s = s + w[4 * c + 2] * tap[2][c];
        s = s + w[4 * c + 3] * tap[3][c];
        y[c] = spl_silu(s);
    }
}

static void spl_body_gdn_prepare(const spl_gdn_prepare_args *a) {
    uint32_t d = a->head_dim, keys = a->key_heads, channels = (2 * keys + a->value_heads) * d;
    float root = 1.0f / sqrtf((float)d);
    for (uint32_t unit = a->unit_begin; unit < a->unit_end; unit++)
        for (uint32_t r = 0; r < a->n_rows; r++) {
            float *y = a->mixed + (size_t)r * channels + (size_t)unit * d;
            spl_gdn_conv_head(a, r, unit * d, channels, y);
            if (unit < 2 * keys) {
                float length = sqrtf(spl_lane_dot(y, y, d) + 1e-6f);
                for (uint32_t i = 0; i < d; i++) y[i] = unit < keys ? (y[i] / length) * root : y[i] / length;
            } else {
                uint32_t h = unit - 2 * keys;
                const float *gates = a->in + r * a->in_stride + channels + (size_t)a->value_heads * d;
                a->beta[(size_t)r * a->value_heads + h] = spl_sigmoid(gates[h]);
                a->decay[(size_t)r * a->value_heads + h] =
                    spl_exp(a->a_neg[h] * spl_softplus(gates[a->value_heads + h] + a->dt_bias[h]));
            }
        }
}

/* One row of one head. `state` is updated when `write`; o is written unless NULL. */
static inline void spl_gdn_row(float *state, uint32_t d, const float *q, const float *k, const float *v, float g,
                               float beta, bool write, float *o) {
    float u[SPL_MAX_HEAD_DIM], w[SPL_MAX_HEAD_DIM];
    for (uint32_t j = 0; j < d; j++) u[j] = w[j] = 0.0f;
    for (uint32_t i = 0; i < d; i++) {
        const float *s = state + (size_t)i * d;
        for (uint32_t j = 0; j < d; j++) u[j] = fmaf(s[j], k[i], u[j]);
        if (o)
            for (uint32_t j = 0; j < d; j++) w[j] = fmaf(s[j], q[i], w[j]);
    }
    for (uint32_t j = 0; j < d; j++) u[j] = beta * (v[j] - g * u[j]); /* u is d from here on */
    if (o) {
        float kq = spl_lane_dot(k, q, d);
        for (uint32_t j = 0; j < d; j++) o[j] = fmaf(kq, u[j], g * w[j]);
    }
    if (!write) return;
    for (uint32_t i = 0; i < d; i++) {
        float *s = state + (size_t)i * d, ki = k[i];
        for (uint32_t j = 0; j < d; j++) s[j] = fmaf(ki, u[j], g * s[j]);
    }
}

static void spl_body_gdn_scan(const spl_gdn_scan_args *a) {
    uint32_t d = a->head_dim, ratio = a->value_heads / a->key_heads, channels = (2 * a->key_heads + a->value_heads) * d;
    for (uint32_t h = a->head_begin; h < a->head_end; h++) {
        float *state = a->state + (size_t)h * d * d;
        size_t q_at = (size_t)(h / ratio) * d, k_at = q_at + (size_t)a->key_heads * d;
        size_t v_at = (size_t)(2 * a->key_heads + h) * d;
        for (uint32_t r = 0; r < a->n_pending; r++) {
            const float *m = a->pending_mixed + (size_t)r * channels;
            size_t gate = (size_t)r * a->value_heads + h;
            spl_gdn_row(state, d, m + q_at, m + k_at, m + v_at, a->pending_decay[gate], a->pending_beta[gate], true,
                        NULL);
        }
        for (uint32_t r = 0; r < a->n_rows; r++) {
            const float *m = a->mixed + (size_t)r * channels;
            size_t gate = (size_t)r * a->value_heads + h;
            if (r == a->n_commit && r + 1 < a->n_rows) {
                memcpy(a->scratch, state, (size_t)d * d * sizeof(float));
                state = a->scratch;
            }
            bool write = r < a->n_commit || r + 1 < a->n_rows;
            spl_gdn_row(state, d, m + q_at, m + k_at, m + v_at, a->decay[gate], a->beta[gate], write,
                        a->out + gate * d);
        }
    }
}

static void spl_body_gdn_norm(const spl_gdn_norm_args *a) {
    uint32_t d = a->head_dim;
    for (uint32_t r = a->row_begin; r < a->row_end; r++)
        for (uint32_t h = 0; h < a->value_heads; h++) {
            float *o = a->out + ((size_t)r * a->value_heads + h) * d;
            const float *z = a->z + r * a->z_stride + (size_t)h * d;
            float f = spl_rms_factor(o, d, a->eps);
            for (uint32_t i = 0; i < d; i++) o[i] = ((o[i] * f) * a->weight[i]) * spl_silu(z[i]);
        }
}

#endif
