/* SPDX-License-Identifier: Apache-2.0
 * The random numbers of a request: a counter generator (SplitMix64 of seed + counter * golden ratio)
 * whose whole state is two integers, so that any draw can be repeated from its number and rollback
 * is restoring a counter. Greedy requests draw nothing. Formula: docs/MATH.md. */
#ifndef SPL_SAMPLE_RNG_H
#define SPL_SAMPLE_RNG_H

#include <stdint.h>

/* What each uniform of a decode step is for. A speculative step takes slots 1..15, used or not. */
enum {
    SPL_UNIFORM_FIRST = 0,  /* the first token after prefill; one draw, taken then */
    SPL_UNIFORM_DRAFT = 1,  /* 1..7: draft path at proposal 0..6 */
    SPL_UNIFORM_ACCEPT = 8, /* 8..14: acceptance test of proposal 0..6 */
    SPL_UNIFORM_FINAL = 15, /* residual or bonus draw */
    SPL_N_UNIFORMS = 16,
    SPL_UNIFORMS_PER_STEP = 15
};

typedef struct spl_rng {
    uint64_t seed;
    uint64_t counter; /* draws made so far; 0 at the start of a request */
} spl_rng;

/* The 64 bits of draw number `counter`, the first draw of a request being number 1. */
uint64_t spl_rng_at(uint64_t seed, uint64_t counter);

/* A uniform in [0, 1) with 53 bits: coarser ones would distort tokens rarer than their step. */
static inline double spl_rng_uniform(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

/* The next uniform; the counter moves on by 1. */
double spl_rng_draw(spl_rng *rng);

/* The uniforms of one speculative step: slot 0 is 0, slots 1..15 the next 15 draws. The counter moves on
 * by 15 whatever is accepted. */
void spl_rng_step(spl_rng *rng, double uniforms[SPL_N_UNIFORMS]);

#endif
