/* SPDX-License-Identifier: Apache-2.0
 * Drawing a token and reporting log probabilities. Draws walk the entries in stored order with a double
 * accumulator: the first whose cumulative exceeds u * sum wins, the last positive entry if none does. */
#ifndef SPL_SAMPLE_SAMPLE_H
#define SPL_SAMPLE_SAMPLE_H

#include "sample/distribution.h"
#include "sample/rng.h"

enum { SPL_MAX_TOP_LOGPROBS = 20 };

/* Draws with a uniform u in [0, 1). The distribution must not be empty. */
uint32_t spl_dist_draw(const spl_dist *d, double u);

/* Chooses the next token of a plain (not speculative) row: temperature 0 takes the argmax and draws nothing,
 * otherwise one number is drawn. scratch as spl_dist_build. On error the counter has not moved. */
spl_status spl_sample_token(uint32_t *token, const spl_dist_input *in, spl_rng *rng, void *scratch, spl_error *err);

typedef struct spl_token_logprob {
    uint32_t token;
    float logprob; /* natural logarithm; -inf where the logit is */
} spl_token_logprob;

typedef struct spl_logprobs {
    spl_token_logprob chosen;
    spl_token_logprob top[SPL_MAX_TOP_LOGPROBS]; /* most likely first */
    uint32_t n_top;
} spl_logprobs;

/* Log-softmax of the raw logits [vocab] (temperature 1, before bias, penalties and cuts) for `token` and the n_top
 * (0..20) best. scratch as spl_dist_build. Errors: INTERNAL "row n has a non-finite logit"; INVALID: token or
 * n_top out of range. */
spl_status spl_logprobs_of(spl_logprobs *out, const float *logits, uint32_t vocab, uint32_t row, uint32_t token,
                           uint32_t n_top, void *scratch, spl_error *err);

#endif
