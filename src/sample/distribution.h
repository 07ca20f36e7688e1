/* SPDX-License-Identifier: Apache-2.0
 * The exact target distribution of one row over the whole vocabulary, in this order:
 *   1. logit bias: z += bias; a bias of -100 or below excludes the token;
 *   2. repetition penalty r over prompt and output tokens: z = z > 0 ? z / r : z * r, once per token;
 *   3. presence and frequency penalty over output tokens: z -= frequency * count + presence;
 *      steps 1-3 clamp to the finite floats; they also act on greedy requests;
 *   4. temperature 0: the largest z alone. Otherwise w = exp((z - max) / temperature); a weight below
 *      2^-100.5 of the largest counts as 0;
 *   5. top_k: the k first ranks (larger z, then smaller id); min_p: those with w >= min_p of the largest weight
 *      1 (the two cuts commute); top_p: rank i stays iff the weight before it <= top_p of what is left, so the
 *      token that crosses top_p stays and the first always does;
 *   6. p = w / sum of the kept w.
 * Everything is a function of the row and the settings: no threads, no allocation, no libm, so the bits are the
 * same on every machine. Cost: top_k <= 64 is one pass for block maxima; the general case is linear in the
 * vocabulary too (radix selection by count and by mass, no sort). */
#ifndef SPL_SAMPLE_DISTRIBUTION_H
#define SPL_SAMPLE_DISTRIBUTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "sample/penalties.h"

/* Sampling settings of a request; fields and neutral values as in the public API. */
typedef struct spl_sampling {
    float temperature; /* 0: greedy; (0, 0.01) is taken as 0.01 */
    int32_t top_k;     /* 0, -1 or >= vocabulary: all */
    float top_p, min_p;
    float presence_penalty, frequency_penalty, repetition_penalty;
} spl_sampling;

/* Errors: INVALID, naming the field, its value and its range. */
spl_status spl_sampling_check(const spl_sampling *s, spl_error *err);
/* Whether the request needs token counts. */
bool spl_sampling_has_penalties(const spl_sampling *s);

typedef struct spl_bias {
    uint32_t token;
    float bias; /* finite or -inf; -100 and below: never */
} spl_bias;

typedef struct spl_dist_input {
    const float *logits;    /* [vocab], not changed */
    const float *panel_max; /* their panel maxima (rank.h), or NULL: the row is scanned */
    uint32_t vocab;
    uint32_t row;                 /* named in errors */
    const spl_sampling *sampling; /* checked before */
    const spl_bias *bias;         /* tokens < vocab, checked here */
    size_t n_bias;
    const spl_penalties *penalties; /* NULL: none; else its vocab equals `vocab` */
} spl_dist_input;

/* p[i] is the probability of ids[i], ids ascending; ids NULL: dense, n = vocab, p[i] belongs to token i. Sparse
 * entries are positive. The arrays lie in the scratch they were built in. */
typedef struct spl_dist {
    uint32_t n;
    const uint32_t *ids;
    const float *p;
    double sum; /* of p, within a few fp32 roundings of 1; what draws scale their uniform by */
} spl_dist;

/* Scratch bytes that serve every setting (12.1 bytes per token and a fixed part). */
size_t spl_dist_scratch_bytes(uint32_t vocab);

/* Builds the distribution. scratch: 16-aligned; *out is valid until it is used again.
 * Errors: INTERNAL "row n has a non-finite logit"; INVALID: a bias names a token outside the vocabulary or
 * nothing is left. */
spl_status spl_dist_build(spl_dist *out, const spl_dist_input *in, void *scratch, spl_error *err);
/* The same bits by the general selection, whatever top_k is; for tests. */
spl_status spl_dist_build_general(spl_dist *out, const spl_dist_input *in, void *scratch, spl_error *err);

/* The row's token of a greedy request, penalties and bias included. Errors as spl_dist_build. */
spl_status spl_dist_argmax(uint32_t *token, const spl_dist_input *in, void *scratch, spl_error *err);

/* Probability of a token; 0 when absent. */
float spl_dist_p(const spl_dist *d, uint32_t token);

#endif
