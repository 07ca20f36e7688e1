/* SPDX-License-Identifier: Apache-2.0
 * Speculative acceptance; see accept.h. Comparisons are made in double, where u * q is exact enough that no
 * rounding is shared with p. */
#include "sample/accept.h"

#include "sample/sample.h"

spl_status spl_accept_begin(spl_accept *a, const spl_proposal *proposals, uint32_t n_proposals, const double *uniforms,
                            const spl_accept_limits *limits, spl_error *err) {
    if (n_proposals > SPL_MAX_PROPOSALS)
        return spl_fail(err, SPL_E_INVALID, "%u proposals, at most %d", n_proposals, SPL_MAX_PROPOSALS);
    if (limits->max_retained < 1 || limits->max_retained > n_proposals + 1)
        return spl_fail(err, SPL_E_INVALID, "at most %u rows may stay, it must be in [1, %u]", limits->max_retained,
                        n_proposals + 1);
    for (uint32_t i = 0; i < n_proposals; i++)
        if (proposals[i].n_q > SPL_MAX_CANDIDATES)
            return spl_fail(err, SPL_E_INVALID, "proposal %u has %u candidates, at most %d", i, proposals[i].n_q,
                            SPL_MAX_CANDIDATES);
    *a = (spl_accept){.proposals = proposals, .uniforms = uniforms, .limits = *limits, .n_proposals = n_proposals};
    return SPL_OK;
}

static bool is_stop(const spl_accept *a, uint32_t token) {
    for (uint32_t i = 0; i < a->limits.n_stop_tokens; i++)
        if (a->limits.stop_tokens[i] == token) return true;
    return false;
}

/* Records the token that follows row a->row; `last` when it is not a proposal that stands. */
static void record(spl_accept *a, uint32_t token, bool last) {
    a->tokens[a->row++] = token;
    a->stopped = is_stop(a, token);
    a->done = last || a->stopped || a->row == a->limits.max_retained;
    a->retained = a->row;
    a->n_accepted = a->row - 1;
    a->next_anchor = token;
}

static float proposal_q(const spl_proposal *proposal, uint32_t token) {
    if (proposal->n_q == 0) return proposal->token == token ? 1.0f : 0.0f;
    for (uint32_t j = 0; j < proposal->n_q; j++)
        if (proposal->ids[j] == token) return proposal->q[j];
    return 0.0f;
}

void spl_accept_row(spl_accept *a, const spl_dist *target) {
    SPL_ASSERT(!a->done);
    if (a->row == a->n_proposals) {
        record(a, spl_dist_draw(target, a->uniforms[SPL_UNIFORM_FINAL]), true);
        return;
    }
    const spl_proposal *proposal = &a->proposals[a->row];
    double q = (double)proposal_q(proposal, proposal->token), p = (double)spl_dist_p(target, proposal->token);
    if (a->uniforms[SPL_UNIFORM_ACCEPT + a->row] * q < p) {
        record(a, proposal->token, false);
    } else {
        record(a, spl_residual_draw(target, proposal, a->uniforms[SPL_UNIFORM_FINAL]), true);
    }
}

void spl_accept_row_greedy(spl_accept *a, uint32_t best) {
    SPL_ASSERT(!a->done);
    record(a, best, a->row == a->n_proposals || a->proposals[a->row].token != best);
}

/* The candidates in ascending id order, walked beside the target's entries. */
typedef struct candidates {
    uint32_t n, id[SPL_MAX_CANDIDATES];
    float q[SPL_MAX_CANDIDATES];
} candidates;

static void sort_candidates(candidates *c, const spl_proposal *proposal) {
    c->n = 0;
    uint32_t n = proposal->n_q ? proposal->n_q : 1;
    for (uint32_t j = 0; j < n; j++) {
        uint32_t id = proposal->n_q ? proposal->ids[j] : proposal->token, at = c->n++;
        for (; at > 0 && c->id[at - 1] > id; at--) c->id[at] = c->id[at - 1], c->q[at] = c->q[at - 1];
        c->id[at] = id;
        c->q[at] = proposal->n_q ? proposal->q[j] : 1.0f;
    }
}

/* Walks r_i = max(p_i - q_i, 0) in stored order until the running sum exceeds `threshold`; a threshold no sum reaches
 * walks all. Returns the sum; *last is the last positive entry walked. */
static double walk_residual(const spl_dist *target, const candidates *c, double threshold, uint32_t *last) {
    double sum = 0.0;
    uint32_t next = 0;
    for (uint32_t i = 0; i < target->n && !(sum > threshold); i++) {
        uint32_t id = target->ids ? target->ids[i] : i;
        double r = (double)target->p[i];
        while (next < c->n && c->id[next] < id) next++;
        if (next < c->n && c->id[next] == id) r -= (double)c->q[next];
        if (!(r > 0.0)) continue;
        sum += r;
        *last = id;
    }
    return sum;
}

uint32_t spl_residual_draw(const spl_dist *target, const spl_proposal *proposal, double u) {
    candidates c;
    sort_candidates(&c, proposal);
    uint32_t token = 0;
    double total = walk_residual(target, &c, 2.0, &token);
    if (!(total > 0.0)) return spl_dist_draw(target, u);
    walk_residual(target, &c, u * total, &token);
    return token;
}
