/* SPDX-License-Identifier: Apache-2.0
 * Expected tokens of R rows are 1 + a1 + a1 a2 + ...; the choice maximises them per second. A step time is a
 * running mean that ignores hiccups; rates are running means too, fast enough to notice that prose turned into code.
 * Expectations may be wrong for a whole text, so each keeps account of what verifying has cost it against plain
 * decoding, and verifies only what it can afford to lose. */
#include "engine/pace.h"

#include <string.h>

#include "base/compiler.h"

/* Drafted steps that the engine's rates are worth to a new request: its own text soon counts for more. */
enum { START_WEIGHT = 8 };

/* The first steps of a kind find cold caches, or a machine that is still busy with what started them: until it has
 * settled the fastest counts, and fewer than COLD_STEPS say nothing. */
enum { COLD_STEPS = 3, SETTLED_STEPS = 8 };

/* Drafted steps that an opinion about drafting takes; while there were fewer, plain decoding looks again sooner. */
enum { OPINION_STEPS = 16 };

/* A draft has to promise this much more than what is chosen otherwise: the best of several noisy guesses flatters. */
static const double draft_margin = 1.12;

/* Chances of a lookup before anything is measured, by kind: means over edits of source files and nano's answers. */
static const float lookup_start[SPL_N_LOOKUP_KINDS][2] = {{0.35f, 0.75f}, {0.55f, 0.8f}, {0.8f, 0.92f}, {0.95f, 0.97f}};

static const double cost_weight = 0.1;
static const float rate_weight = 0.06f;

void spl_pace_cost_add(spl_pace_cost *c, bool drafted, uint32_t n_rows, double seconds) {
    if (n_rows == 0 || n_rows > SPL_MAX_DECODE_ROWS || !(seconds > 0)) return;
    double *mean = &c->seconds[drafted][n_rows];
    uint32_t *seen = &c->n_seen[drafted][n_rows];
    if (*seen > 4 && seconds > 3 * *mean) seconds = 3 * *mean; /* somebody else had the core */
    if (*seen < SETTLED_STEPS) {
        if (*seen == 0 || seconds < *mean) *mean = seconds;
    } else
        *mean += cost_weight * (seconds - *mean);
    if (*seen < 1000) (*seen)++;
}

/* Between the nearest measured row counts, or beyond them with the slope of an eighth of a step per row. */
double spl_pace_cost_of(const spl_pace_cost *c, bool drafted, uint32_t n_rows) {
    const double *s = c->seconds[drafted];
    const uint32_t *n = c->n_seen[drafted];
    if (n_rows > SPL_MAX_DECODE_ROWS) n_rows = SPL_MAX_DECODE_ROWS;
    if (n[n_rows]) return s[n_rows];
    uint32_t below = n_rows, above = n_rows;
    while (below > 0 && !n[below]) below--;
    while (above <= SPL_MAX_DECODE_ROWS && !n[above]) above++;
    bool has_above = above <= SPL_MAX_DECODE_ROWS;
    if (below > 0 && has_above) return s[below] + (s[above] - s[below]) * (n_rows - below) / (double)(above - below);
    if (below > 0) return s[below] * (1 + 0.05 * (n_rows - below));
    if (has_above) return s[above];
    if (!drafted) return 0;
    return 1.25 * spl_pace_cost_of(c, false, n_rows);
}

void spl_pace_rates_init(spl_pace_rates *r) {
    memset(r, 0, sizeof *r);
    for (int i = 0; i < SPL_BLOCK_ROWS - 1; i++) r->draft[i] = 0.9f; /* hope costs little: see can_afford */
    memcpy(r->lookup, lookup_start, sizeof r->lookup);
}

void spl_pace_rates_start(spl_pace_rates *r, const spl_pace_rates *known) {
    *r = *known;
    if (r->n_draft > START_WEIGHT) r->n_draft = START_WEIGHT;
    r->plain = r->behind = 0;
}

static void learn(float *rate, bool accepted, float weight) { *rate += weight * ((accepted ? 1.0f : 0.0f) - *rate); }

void spl_pace_draft_result(spl_pace_rates *r, uint32_t n_proposed, uint32_t n_accepted) {
    /* The first results count for more: the start value is only a hope. */
    float weight = 1.0f / (float)(r->n_draft + 3);
    if (weight < rate_weight) weight = rate_weight;
    for (uint32_t i = 0; i < n_proposed && i <= n_accepted && i < SPL_BLOCK_ROWS - 1; i++)
        learn(&r->draft[i], i < n_accepted, weight);
    if (r->n_draft < 1000) r->n_draft++;
    r->plain_steps = 0;
}

void spl_pace_lookup_result(spl_pace_rates *r, spl_lookup_kind kind, const uint32_t *proposed, uint32_t n_proposed,
                            const uint32_t *tokens, uint32_t n_tokens) {
    bool right = true;
    for (uint32_t i = 0; i < n_proposed && i < n_tokens && right; i++) {
        right = proposed[i] == tokens[i];
        learn(&r->lookup[kind][i > 0], right, rate_weight);
    }
}

void spl_pace_step_result(spl_pace_rates *r, const spl_pace_cost *c, bool drafted, uint32_t n_rows, uint32_t n_lanes,
                          double seconds, uint32_t n_tokens) {
    double plain = spl_pace_cost_of(c, false, n_lanes), most = 1.5 * spl_pace_cost_of(c, drafted, n_rows * n_lanes);
    if (!(plain > 0)) return;
    r->plain += plain * n_tokens;
    if (n_rows > 1) r->behind += (seconds < most ? seconds : most) - plain * n_tokens;
}

/* Whether a text can lose a whole step of this choice and still be nearly as fast as plain decoding. */
static bool can_afford(const spl_pace_rates *r, const spl_pace_cost *c, const spl_pace_offer *o,
                       const spl_pace_choice *choice) {
    double plain = spl_pace_cost_of(c, false, o->n_lanes), least = SPL_PACE_LOSS_TOKENS * plain;
    double risk = spl_pace_cost_of(c, choice->mode == SPL_PACE_DRAFT, choice->n_rows * o->n_lanes) - plain;
    return r->behind + risk <= SPL_PACE_LOSS_SHARE * (r->plain > least ? r->plain : least);
}

/* Of equals the lookup, which costs nothing. */
static const spl_pace_mode sources[] = {SPL_PACE_LOOKUP, SPL_PACE_DRAFT};

/* Rows that a source can fill; tokens[rows] are those that a step of that many rows is expected to yield. */
static uint32_t expect(const spl_pace_rates *r, const spl_pace_offer *o, spl_pace_mode mode,
                       double tokens[SPL_BLOCK_ROWS + 1]) {
    uint32_t limit = mode == SPL_PACE_LOOKUP ? o->lookup_rows : o->can_draft ? SPL_BLOCK_ROWS : 1, rows = 1;
    double chance = 1;
    tokens[1] = 1;
    while (rows < limit && rows < o->max_rows && rows < SPL_BLOCK_ROWS) {
        chance *= (double)(mode == SPL_PACE_LOOKUP ? r->lookup[o->lookup_kind][rows > 1] : r->draft[rows - 1]);
        tokens[rows + 1] = tokens[rows] + chance;
        rows++;
    }
    return rows;
}

/* Tokens per second of a choice; 0 when its cost is unknown. */
static double rate_of(const spl_pace_cost *c, bool drafted, uint32_t n_rows, uint32_t n_lanes, double tokens) {
    double seconds = spl_pace_cost_of(c, drafted, n_rows * n_lanes);
    return seconds > 0 ? tokens / seconds : 0;
}

/* Plain steps until the next look at whether drafting pays again: the dearer the look, the rarer. */
static double pause_of(const spl_pace_rates *r, const spl_pace_cost *c, const spl_pace_offer *o) {
    uint32_t rows = o->max_rows * o->n_lanes, seen = c->n_seen[1][rows] < r->n_draft ? c->n_seen[1][rows] : r->n_draft;
    double dear = spl_pace_cost_of(c, true, rows) / spl_pace_cost_of(c, false, o->n_lanes) - 1;
    double pause = dear / SPL_PACE_PROBE_SHARE;
    if (pause < SPL_PACE_PROBE_STEPS) pause = SPL_PACE_PROBE_STEPS;
    return seen < OPINION_STEPS ? pause * seen / OPINION_STEPS : pause;
}

spl_pace_choice spl_pace_choose(spl_pace_rates *r, const spl_pace_cost *c, const spl_pace_offer *o) {
    spl_pace_choice best = {SPL_PACE_PLAIN, 1};
    double best_rate = rate_of(c, false, 1, o->n_lanes, 1);
    if (c->n_seen[0][o->n_lanes] == 0) { /* the yardstick comes first */
        r->plain_steps++;
        return best;
    }
    bool measured = c->n_seen[1][o->max_rows * o->n_lanes] >= COLD_STEPS;
    for (size_t i = 0; i < SPL_COUNT(sources); i++) {
        bool drafted = sources[i] == SPL_PACE_DRAFT;
        double tokens[SPL_BLOCK_ROWS + 1];
        uint32_t limit = expect(r, o, sources[i], tokens);
        for (uint32_t rows = 2; rows <= limit; rows++) {
            double rate = rate_of(c, drafted, rows, o->n_lanes, tokens[rows]);
            if (rate <= best_rate * (drafted && best.mode != SPL_PACE_DRAFT ? draft_margin : 1)) continue;
            best_rate = rate;
            best = (spl_pace_choice){sources[i], rows};
        }
    }
    /* What was never tried is tried, and plain decoding looks up from time to time. */
    bool looks = !measured || r->plain_steps >= pause_of(r, c, o);
    if (best.mode == SPL_PACE_PLAIN && o->can_draft && o->max_rows > 1 && looks)
        best = (spl_pace_choice){SPL_PACE_DRAFT, o->max_rows};
    if (!can_afford(r, c, o, &best)) best = (spl_pace_choice){SPL_PACE_PLAIN, 1};
    if (best.mode != SPL_PACE_DRAFT) r->plain_steps++;
    return best;
}

spl_pace_choice spl_pace_choose_fixed(const spl_pace_rates *r, const spl_pace_offer *o, uint32_t n_rows) {
    spl_pace_choice best = {SPL_PACE_PLAIN, 1};
    double most = 0;
    for (size_t i = 0; i < SPL_COUNT(sources); i++) {
        double tokens[SPL_BLOCK_ROWS + 1];
        uint32_t limit = expect(r, o, sources[i], tokens), rows = limit < n_rows ? limit : n_rows;
        if (rows < 2 || tokens[rows] <= most) continue;
        most = tokens[rows];
        best = (spl_pace_choice){sources[i], rows};
    }
    return best;
}
