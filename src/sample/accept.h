/* SPDX-License-Identifier: Apache-2.0
 * Speculative acceptance for one lane: which proposals stand, which token follows, how many rows stay. The output
 * law is the target distribution of every row, whatever the proposals were drawn from, provided the q handed in is
 * the q they were drawn with. Sampled rule for proposal t of row i: it stands iff u[8+i] * q < p; at the first
 * failure the token is drawn from max(p - q, 0); when all stand, a bonus token is drawn from the last row.
 *
 * Rows are handed in one at a time, so one scratch serves them all and rows after a failure, a stop token or the end
 * of the budget need no distribution:
 *     spl_accept_begin(&a, ...);
 *     while (!a.done) { build the distribution of row a.row; spl_accept_row(&a, &dist); }
 * With penalties, push a.tokens[a.row - 1] after every row, so that row i counts the proposals before it; the counts
 * then hold exactly the retained tokens, and a step that is dropped rolls them back to where they were. */
#ifndef SPL_SAMPLE_ACCEPT_H
#define SPL_SAMPLE_ACCEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "model/geometry.h"
#include "sample/distribution.h"
#include "sample/rng.h"

enum { SPL_MAX_PROPOSALS = SPL_BLOCK_ROWS - 1, SPL_MAX_CANDIDATES = 16 };

/* A proposed token and the distribution it was drawn from. n_q = 0: it was not drawn but computed (greedy walk, prompt
 * lookup), so q = 1 for it alone. Otherwise q[j] belongs to ids[j] (distinct, any order), at most
 * SPL_MAX_CANDIDATES; a token absent from ids has q = 0. */
typedef struct spl_proposal {
    uint32_t token;
    uint32_t n_q;
    const uint32_t *ids;
    const float *q;
} spl_proposal;

typedef struct spl_accept_limits {
    uint32_t max_retained;       /* min(tokens left in the budget, proposals + 1), at least 1 */
    const uint32_t *stop_tokens; /* [n_stop_tokens]; none when stops are ignored */
    uint32_t n_stop_tokens;
} spl_accept_limits;

/* The result is valid once `done`. Rows that become permanent: the anchor and the first retained - 1 tokens. */
typedef struct spl_accept {
    const spl_proposal *proposals;
    const double *uniforms;
    spl_accept_limits limits;
    uint32_t n_proposals;
    uint32_t row; /* whose distribution is wanted next, 0..n_proposals */
    bool done;
    uint32_t tokens[SPL_BLOCK_ROWS]; /* tokens that follow the anchor; the first `retained` count */
    uint32_t retained;               /* input rows that stay, 1..max_retained */
    uint32_t n_accepted;             /* proposals among the retained tokens' rows, retained - 1 */
    uint32_t next_anchor;            /* tokens[retained - 1] */
    bool stopped;                    /* next_anchor is a stop token */
} spl_accept;

/* proposals [n_proposals <= 7], uniforms [SPL_N_UNIFORMS] (NULL for greedy requests) and the stop tokens stay
 * the caller's and must outlive *a. Errors: INVALID when a count is out of range. */
spl_status spl_accept_begin(spl_accept *a, const spl_proposal *proposals, uint32_t n_proposals, const double *uniforms,
                            const spl_accept_limits *limits, spl_error *err);

/* Handles row a->row of a sampled request. */
void spl_accept_row(spl_accept *a, const spl_dist *target);

/* Handles row a->row of a greedy request, whose target token is `best`: a proposal stands iff it equals it. */
void spl_accept_row_greedy(spl_accept *a, uint32_t best);

/* Draws from max(p - q, 0) in stored order with threshold u * sum; from p itself when nothing is left. */
uint32_t spl_residual_draw(const spl_dist *target, const spl_proposal *proposal, double u);

#endif
