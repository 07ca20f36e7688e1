/* SPDX-License-Identifier: Apache-2.0
 * How many rows to verify: the choice between plain decoding, a drafted block and a looked-up continuation, from
 * measured step times and measured acceptance. It steers speed only; text never depends on it. Pure: times are
 * arguments, nothing is read from a clock. */
#ifndef SPL_ENGINE_PACE_H
#define SPL_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/lookup.h"
#include "model/geometry.h"

enum { SPL_PACE_PROBE_STEPS = 48 }; /* plain steps at least between two looks at whether drafting pays again */

/* Share of the time that such looks may cost. */
#define SPL_PACE_PROBE_SHARE 0.015
/* What verifying may cost a text of this many tokens or more in all, as a share of plain decoding. A shorter one may
 * lose as much: it cannot be known to be short, and most texts that begin badly go on well. */
#define SPL_PACE_LOSS_SHARE 0.026
enum { SPL_PACE_LOSS_TOKENS = 256 };

/* Step seconds by number of rows, without and with a drafted block; one for the engine. */
typedef struct spl_pace_cost {
    double seconds[2][SPL_MAX_DECODE_ROWS + 1];
    uint32_t n_seen[2][SPL_MAX_DECODE_ROWS + 1];
} spl_pace_cost;

void spl_pace_cost_add(spl_pace_cost *c, bool drafted, uint32_t n_rows, double seconds);
/* Expected seconds of a step; from neighbours where it was not measured. 0 when nothing is known. */
double spl_pace_cost_of(const spl_pace_cost *c, bool drafted, uint32_t n_rows);

/* Chance that proposal i stands given that those before it did, by source. One for the engine (what a new request
 * starts from), one per lane. */
typedef struct spl_pace_rates {
    float draft[SPL_BLOCK_ROWS - 1];
    float lookup[SPL_N_LOOKUP_KINDS][2]; /* the first proposal; any later one */
    uint32_t n_draft;                    /* drafted steps seen */
    uint32_t plain_steps;                /* since the last drafted one */
    double plain, behind; /* of this text: seconds that plain decoding takes for it; those lost by verifying, below 0
                             those won */
} spl_pace_rates;

void spl_pace_rates_init(spl_pace_rates *r);
/* Rates of a new request: what the engine has seen, held loosely. */
void spl_pace_rates_start(spl_pace_rates *r, const spl_pace_rates *known);
void spl_pace_draft_result(spl_pace_rates *r, uint32_t n_proposed, uint32_t n_accepted);
/* Judges a lookup's proposals [n_proposed] by the tokens [n_tokens] that came in their place, whether these proposals
 * were verified or others. */
void spl_pace_lookup_result(spl_pace_rates *r, spl_lookup_kind kind, const uint32_t *proposed, uint32_t n_proposed,
                            const uint32_t *tokens, uint32_t n_tokens);

/* What a step of n_rows rows of this text and `seconds` brought it, all n_lanes lanes in the step. */
void spl_pace_step_result(spl_pace_rates *r, const spl_pace_cost *c, bool drafted, uint32_t n_rows, uint32_t n_lanes,
                          double seconds, uint32_t n_tokens);

typedef enum spl_pace_mode { SPL_PACE_PLAIN, SPL_PACE_DRAFT, SPL_PACE_LOOKUP } spl_pace_mode;

typedef struct spl_pace_offer {
    bool can_draft;
    uint32_t lookup_rows; /* 1 + tokens a lookup offers; 1: none */
    spl_lookup_kind lookup_kind;
    uint32_t max_rows; /* budget and block, 1..8 */
    uint32_t n_lanes;  /* that decode in this step */
} spl_pace_offer;

typedef struct spl_pace_choice {
    spl_pace_mode mode;
    uint32_t n_rows; /* 1 when plain */
} spl_pace_choice;

spl_pace_choice spl_pace_choose(spl_pace_rates *r, const spl_pace_cost *c, const spl_pace_offer *offer);
/* The same for at most n_rows rows whatever they cost: the source that promises more tokens. */
spl_pace_choice spl_pace_choose_fixed(const spl_pace_rates *r, const spl_pace_offer *offer, uint32_t n_rows);

#endif
