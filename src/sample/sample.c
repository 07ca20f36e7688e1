/* SPDX-License-Identifier: Apache-2.0
 * Draws and log probabilities; see sample.h. */
#include "sample/sample.h"

#include <math.h>

#include "sample/rank.h"
#include "sample/weight.h"

uint32_t spl_dist_draw(const spl_dist *d, double u) {
    double threshold = u * d->sum, cumulative = 0.0;
    uint32_t last = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (!(d->p[i] > 0.0f)) continue;
        cumulative += (double)d->p[i];
        last = i;
        if (cumulative > threshold) break;
    }
    return d->ids ? d->ids[last] : last;
}

spl_status spl_sample_token(uint32_t *token, const spl_dist_input *in, spl_rng *rng, void *scratch, spl_error *err) {
    if (in->sampling->temperature == 0.0f) return spl_dist_argmax(token, in, scratch, err);
    spl_dist d;
    spl_status st = spl_dist_build(&d, in, scratch, err);
    if (st == SPL_OK) *token = spl_dist_draw(&d, spl_rng_draw(rng));
    return st;
}

spl_status spl_logprobs_of(spl_logprobs *out, const float *logits, uint32_t vocab, uint32_t row, uint32_t token,
                           uint32_t n_top, void *scratch, spl_error *err) {
    if (token >= vocab || n_top > SPL_MAX_TOP_LOGPROBS)
        return spl_fail(err, SPL_E_INVALID,
                        "logprobs of token %u with the best %u; tokens are below %u, at most %d best", token, n_top,
                        vocab, SPL_MAX_TOP_LOGPROBS);
    float *block_max = scratch, max;
    spl_status st = spl_rank_scan(logits, vocab, row, block_max, &max, err);
    if (st < 0) return st;
    if (!(max > -INFINITY)) return spl_fail(err, SPL_E_INTERNAL, "row %u has no finite logit", row);
    double log_sum = log(spl_weight_sum(logits, vocab, max, 1.0f));
    out->chosen = (spl_token_logprob){token, (float)((double)logits[token] - (double)max - log_sum)};
    out->n_top = 0;
    if (n_top == 0) return SPL_OK;
    spl_ranked top;
    spl_rank_top(&top, logits, vocab, block_max, NULL, n_top);
    for (uint32_t i = 0; i < top.n; i++)
        out->top[i] = (spl_token_logprob){top.id[i], (float)((double)top.value[i] - (double)max - log_sum)};
    out->n_top = top.n;
    return SPL_OK;
}
