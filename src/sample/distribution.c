/* SPDX-License-Identifier: Apache-2.0
 * Target distribution of a row; the rules and their order are in distribution.h. Two ways lead to the same bits
 * when top_k <= 64: ranks by block maxima, or weights for the whole row and a radix selection. The latter also
 * serves every other setting. */
#include "sample/distribution.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "sample/rank.h"
#include "sample/weight.h"

enum { DIGITS = 2048 };

/* The caller's scratch, cut up. */
typedef struct scratch_parts {
    double *mass;     /* [DIGITS] of the radix selection */
    float *block_max; /* [blocks] */
    float *z;         /* [vocab] logits after bias and penalties, when there are any */
    float *w;         /* [vocab] weights, then probabilities */
    uint32_t *ids;    /* [vocab] */
} scratch_parts;

static size_t aligned(size_t n_bytes) { return (n_bytes + 63) / 64 * 64; }

size_t spl_dist_scratch_bytes(uint32_t vocab) {
    return DIGITS * sizeof(double) + aligned(spl_rank_blocks(vocab) * sizeof(float)) +
           3 * aligned((size_t)vocab * sizeof(float));
}

static scratch_parts cut_scratch(void *scratch, uint32_t vocab) {
    unsigned char *at = scratch;
    scratch_parts s;
    s.mass = (double *)(void *)at, at += DIGITS * sizeof(double);
    s.block_max = (float *)(void *)at, at += aligned(spl_rank_blocks(vocab) * sizeof(float));
    s.z = (float *)(void *)at, at += aligned((size_t)vocab * sizeof(float));
    s.w = (float *)(void *)at, at += aligned((size_t)vocab * sizeof(float));
    s.ids = (uint32_t *)(void *)at;
    return s;
}

/* ---- settings --------------------------------------------------------------------------------- */

static spl_status check_range(const char *name, float x, float low, float high, spl_error *err) {
    if (x >= low && x <= high) return SPL_OK; /* false for NaN */
    return spl_fail(err, SPL_E_INVALID, "%s is %g, it must be in [%g, %g]", name, (double)x, (double)low, (double)high);
}

spl_status spl_sampling_check(const spl_sampling *s, spl_error *err) {
    spl_status st;
    if ((st = check_range("temperature", s->temperature, 0.0f, 2.0f, err)) < 0) return st;
    if (s->top_k < -1) return spl_fail(err, SPL_E_INVALID, "top_k is %d, it must be -1 or more", (int)s->top_k);
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f))
        return spl_fail(err, SPL_E_INVALID, "top_p is %g, it must be in (0, 1]", (double)s->top_p);
    if ((st = check_range("min_p", s->min_p, 0.0f, 1.0f, err)) < 0) return st;
    if ((st = check_range("presence_penalty", s->presence_penalty, -2.0f, 2.0f, err)) < 0) return st;
    if ((st = check_range("frequency_penalty", s->frequency_penalty, -2.0f, 2.0f, err)) < 0) return st;
    if (!(s->repetition_penalty > 0.0f && s->repetition_penalty <= FLT_MAX))
        return spl_fail(err, SPL_E_INVALID, "repetition_penalty is %g, it must be finite and above 0",
                        (double)s->repetition_penalty);
    return SPL_OK;
}

bool spl_sampling_has_penalties(const spl_sampling *s) {
    return s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f || s->repetition_penalty != 1.0f;
}

/* ---- bias and penalties ----------------------------------------------------------------------- */

static float clamp_finite(float z) { return z > FLT_MAX ? FLT_MAX : z < -FLT_MAX ? -FLT_MAX : z; }

static bool is_finite(float z) { return z >= -FLT_MAX && z <= FLT_MAX; }

static spl_status apply_bias(float *z, const spl_dist_input *in, spl_error *err) {
    for (size_t i = 0; i < in->n_bias; i++) {
        const spl_bias *b = &in->bias[i];
        if (b->token >= in->vocab || !(b->bias <= FLT_MAX))
            return spl_fail(err, SPL_E_INVALID, "logit_bias: token %u with bias %g; tokens are below %u, biases finite",
                            b->token, (double)b->bias, in->vocab);
        float *t = &z[b->token];
        if (is_finite(*t)) *t = b->bias <= -100.0f ? -INFINITY : clamp_finite(*t + b->bias);
    }
    return SPL_OK;
}

static void apply_penalties(float *z, const spl_dist_input *in) {
    const spl_sampling *s = in->sampling;
    for (uint32_t i = 0; i < in->penalties->n_entries; i++) {
        const spl_penalty_entry *e = &in->penalties->entries[i];
        float *t = &z[e->token];
        if (!is_finite(*t)) continue;
        if (s->repetition_penalty != 1.0f)
            *t = clamp_finite(*t > 0.0f ? *t / s->repetition_penalty : *t * s->repetition_penalty);
        if (e->n_output) *t = clamp_finite(*t - (s->frequency_penalty * (float)e->n_output + s->presence_penalty));
    }
}

static bool is_penalised(const spl_dist_input *in) {
    return in->penalties && in->penalties->n_entries && spl_sampling_has_penalties(in->sampling);
}

/* The logits after bias and penalties: the caller's row itself when there are none, else the copy in scratch. */
static spl_status adjusted(const float **out, const spl_dist_input *in, scratch_parts *s, spl_error *err) {
    *out = in->logits;
    if (!is_penalised(in) && !in->n_bias) return SPL_OK;
    SPL_ASSERT(!is_penalised(in) || in->penalties->vocab == in->vocab);
    memcpy(s->z, in->logits, (size_t)in->vocab * sizeof(float));
    *out = s->z;
    spl_status st = apply_bias(s->z, in, err);
    if (st == SPL_OK && is_penalised(in)) apply_penalties(s->z, in);
    return st;
}

/* Adjusted logits, block maxima and the row's maximum, which is finite. */
static spl_status prepare(const float **z, float *max, const spl_dist_input *in, scratch_parts *s, spl_error *err) {
    spl_status st = adjusted(z, in, s, err);
    if (st < 0) return st;
    st = in->panel_max && *z == in->logits
             ? spl_rank_scan_panels(in->panel_max, in->vocab, in->row, s->block_max, max, err)
             : spl_rank_scan(*z, in->vocab, in->row, s->block_max, max, err);
    if (st < 0) return st;
    if (is_finite(*max)) return SPL_OK;
    if (in->n_bias) return spl_fail(err, SPL_E_INVALID, "logit_bias excludes every token of row %u", in->row);
    return spl_fail(err, SPL_E_INTERNAL, "row %u has no finite logit", in->row);
}

/* ---- the two ways ----------------------------------------------------------------------------- */

/* Weights w[n] (some positive) become probabilities. */
static void normalise(spl_dist *out, float *w, const uint32_t *ids, uint32_t n) {
    double scale = 1.0 / spl_sum(w, n);
    for (uint32_t i = 0; i < n; i++) w[i] = (float)((double)w[i] * scale);
    *out = (spl_dist){.n = n, .ids = ids, .p = w, .sum = spl_sum(w, n)};
}

static float temperature_of(const spl_sampling *s) { return s->temperature < 0.01f ? 0.01f : s->temperature; }

/* min_p, top_p and the order by id for at most 64 ranks. */
static void finish_ranked(spl_dist *out, const spl_ranked *top, const spl_sampling *set, scratch_parts *s) {
    float t = temperature_of(set), w[SPL_RANK_MAX];
    uint32_t rank[SPL_RANK_MAX], n = 0;
    double total = 0.0, before = 0.0;
    for (uint32_t i = 0; i < top->n; i++) {
        float x = spl_weight_of(top->value[i], top->value[0], t);
        if (!(x > 0.0f) || x < set->min_p) continue;
        w[n] = x, rank[n++] = i;
        total += (double)x;
    }
    uint32_t kept = 0;
    for (; kept < n && (set->top_p >= 1.0f || before <= (double)set->top_p * total); kept++) before += (double)w[kept];
    for (uint32_t i = 0; i < kept; i++) {
        uint32_t id = top->id[rank[i]], at = i;
        for (; at > 0 && s->ids[at - 1] > id; at--) s->ids[at] = s->ids[at - 1], s->w[at] = s->w[at - 1];
        s->ids[at] = id, s->w[at] = w[i];
    }
    normalise(out, s->w, s->ids, kept);
}

/* Unsigned integers in the order of the floats; -0 and +0 share one. */
static uint32_t order_key(float z) {
    float canonical = z + 0.0f;
    uint32_t bits;
    memcpy(&bits, &canonical, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Where a selection by radix stands: the mass of the ranks before the keys that begin with `prefix`. */
typedef struct radix_cut {
    double before, budget;
    uint32_t prefix;
} radix_cut;

/* Finds the digit in which the mass crosses the budget, walking down from the largest, and puts it into the prefix.
 * false when none does. */
static bool find_digit(radix_cut *c, const double *mass, uint32_t n_digits, uint32_t shift) {
    uint32_t digit = n_digits;
    while (digit > 0 && c->before + mass[digit - 1] <= c->budget) c->before += mass[--digit];
    if (digit == 0) return false;
    c->prefix |= (digit - 1) << shift;
    return true;
}

/* Walks the positive weights in rank order and keeps a token iff the mass before it is <= budget, mass being w, or 1
 * per token when `by_count`; the weights of all others become 0. Radix selection over the order key in digits of 11,
 * 11 and 10 bits; after the first digit only the `list` of the tokens that share it is looked at. */
static void cut_ranks(const float *z, float *w, uint32_t n, bool by_count, double budget, double *mass,
                      uint32_t *list) {
    enum { FIRST = 21, SECOND = 10 };
    radix_cut c = {.before = 0.0, .budget = budget, .prefix = 0};
    memset(mass, 0, DIGITS * sizeof *mass);
    for (uint32_t i = 0; i < n; i++) {
        double m = w[i] > 0.0f ? 1.0 : 0.0;
        mass[order_key(z[i]) >> FIRST] += by_count ? m : (double)w[i];
    }
    if (!find_digit(&c, mass, DIGITS, FIRST)) return;
    uint32_t n_list = 0, first = c.prefix;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t high = order_key(z[i]) & ~((1u << FIRST) - 1);
        w[i] = high >= first ? w[i] : 0.0f;
        list[n_list] = i;
        n_list += high == first && w[i] > 0.0f;
    }
    for (uint32_t shift = SECOND, known = ~((1u << FIRST) - 1);; known = ~((1u << SECOND) - 1), shift = 0) {
        uint32_t n_digits = shift ? 1u << (FIRST - SECOND) : 1u << SECOND;
        memset(mass, 0, n_digits * sizeof *mass);
        for (uint32_t i = 0; i < n_list; i++) {
            uint32_t key = order_key(z[list[i]]);
            if ((key & known) == c.prefix) mass[key >> shift & (n_digits - 1)] += by_count ? 1.0 : (double)w[list[i]];
        }
        /* rounding may hide the crossing seen by the digit before: then all of that digit stays */
        if (!find_digit(&c, mass, n_digits, shift) || shift == 0) break;
    }
    for (uint32_t i = 0; i < n_list; i++) {
        uint32_t key = order_key(z[list[i]]);
        double m = by_count ? 1.0 : (double)w[list[i]];
        if (key == c.prefix && c.before <= budget) {
            c.before += m; /* equal logits: by ascending id */
        } else if (key <= c.prefix) {
            w[list[i]] = 0.0f;
        }
    }
}

static uint32_t compress(float *w, uint32_t *ids, uint32_t n) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        float x = w[i];
        ids[kept] = i, w[kept] = x;
        kept += x > 0.0f;
    }
    return kept;
}

static void build_general(spl_dist *out, const float *z, float max, uint32_t k, const spl_dist_input *in,
                          scratch_parts *s) {
    const spl_sampling *set = in->sampling;
    uint32_t n = in->vocab;
    float t = temperature_of(set), *w = s->w, min_p = set->min_p;
    spl_weights(w, z, n, max, t);
    if (k < n) cut_ranks(z, w, n, true, (double)k - 1.0, s->mass, s->ids);
    if (k <= SPL_RANK_MAX) {
        spl_ranked top = {.n = 0};
        for (uint32_t i = 0; i < n; i++)
            if (w[i] > 0.0f) spl_rank_insert(&top, k, z[i], i);
        finish_ranked(out, &top, set, s);
        return;
    }
    if (min_p > 0.0f)
        for (uint32_t i = 0; i < n; i++) w[i] = w[i] < min_p ? 0.0f : w[i];
    if (set->top_p < 1.0f) cut_ranks(z, w, n, false, (double)set->top_p * spl_sum(w, n), s->mass, s->ids);
    if (k == n && !(min_p > 0.0f) && !(set->top_p < 1.0f)) {
        normalise(out, w, NULL, n);
    } else {
        normalise(out, w, s->ids, compress(w, s->ids, n));
    }
}

static spl_status build(spl_dist *out, const spl_dist_input *in, void *scratch, bool general, spl_error *err) {
    const spl_sampling *set = in->sampling;
    scratch_parts s = cut_scratch(scratch, in->vocab);
    if (set->temperature == 0.0f) {
        spl_status st = spl_dist_argmax(s.ids, in, scratch, err);
        if (st < 0) return st;
        s.w[0] = 1.0f;
        *out = (spl_dist){.n = 1, .ids = s.ids, .p = s.w, .sum = 1.0};
        return SPL_OK;
    }
    const float *z;
    float max;
    spl_status st = prepare(&z, &max, in, &s, err);
    if (st < 0) return st;
    uint32_t k = set->top_k <= 0 || (uint32_t)set->top_k > in->vocab ? in->vocab : (uint32_t)set->top_k;
    if (general || k > SPL_RANK_MAX) {
        build_general(out, z, max, k, in, &s);
    } else {
        spl_ranked top;
        spl_rank_top(&top, z, in->vocab, s.block_max, z == in->logits ? in->panel_max : NULL, k);
        finish_ranked(out, &top, set, &s);
    }
    return SPL_OK;
}

spl_status spl_dist_build(spl_dist *out, const spl_dist_input *in, void *scratch, spl_error *err) {
    return build(out, in, scratch, false, err);
}

spl_status spl_dist_build_general(spl_dist *out, const spl_dist_input *in, void *scratch, spl_error *err) {
    return build(out, in, scratch, true, err);
}

spl_status spl_dist_argmax(uint32_t *token, const spl_dist_input *in, void *scratch, spl_error *err) {
    if (!is_penalised(in) && !in->n_bias)
        return in->panel_max ? spl_argmax_panels(in->logits, in->panel_max, in->vocab, in->row, token, err)
                             : spl_argmax(in->logits, in->vocab, in->row, token, err);
    scratch_parts s = cut_scratch(scratch, in->vocab);
    const float *z;
    float max;
    spl_status st = prepare(&z, &max, in, &s, err);
    return st < 0 ? st : spl_argmax(z, in->vocab, in->row, token, err);
}

float spl_dist_p(const spl_dist *d, uint32_t token) {
    if (!d->ids) return token < d->n ? d->p[token] : 0.0f;
    uint32_t low = 0, high = d->n;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (d->ids[mid] < token)
            low = mid + 1;
        else
            high = mid;
    }
    return low < d->n && d->ids[low] == token ? d->p[low] : 0.0f;
}
