/* SPDX-License-Identifier: Apache-2.0
 * Measurements, each as one JSON object: what was measured, on which machine, with which kernels, and
 * the plain-read and int8 rates of the same run beside every speed. How to read them: bench/README.md. */
#ifndef SPL_BENCH_BENCH_H
#define SPL_BENCH_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Strings are borrowed. 0 and NULL mean "the kind's default" wherever no other meaning is given. */
typedef struct spl_bench_options {
    const char *model; /* package folder, or a geometry id with random_weights */
    bool random_weights;
    uint32_t n_layers;           /* of random weights; 0: all */
    uint32_t n_threads;          /* 0: one per usable core */
    const char *cpu_tier;        /* NULL: best usable */
    uint64_t memory_limit_bytes; /* 0: 85 % of what is free */
    double seconds;              /* time to spend on a step or prefill measurement; 0: 2 */
    bool lock_weights;           /* keep the weights in memory */
    bool no_huge_pages;          /* ask for no large pages */
    const char *tuning_folder;   /* what `splash tune` stored is used from there; NULL: the engine's own choices */
    uint32_t busy;               /* step: competing threads during half of the runs */
    bool draft;                  /* step, prefill: with the draft; random weights get a random one */
    uint32_t rows;               /* step: rows per lane, 1 to 8 (0: 8); accept: rows verified when there are
                                    proposals (0: the engine's choice) */
    uint32_t lanes;              /* step: 1 to 4 */
    uint32_t context_tokens;     /* step: history every lane attends to; 8 at least */
    uint32_t max_context;        /* accept, nano-quality, serve: context window; 0: what the prompts need */
    double synthetic_tau;        /* step: acceptance length assumed, 1 to rows; 0: what the run accepts */
    uint32_t tokens;             /* prefill: prompt length; 0: 512 */
    const char *prompts;         /* accept, nano-quality, serve: jsonl file */
    uint32_t n_prompts;          /* at most this many of them; 0: all */
    bool no_lookup;              /* accept: proposals from the draft alone */
    bool raw;                    /* prompts are completed as they are, without the chat template */
    uint32_t max_tokens;         /* longest answer */
    uint32_t repeat;             /* accept: passes of each side, 1 or 2 (A B, or A B B A); 0: 2 */
    double temperature;          /* accept; 0: greedy */
    uint32_t concurrency;        /* serve: requests in flight */
    uint32_t n_requests;         /* serve: in all; 0: 4 per place in flight */
    const char *url;             /* serve: "http://127.0.0.1:8000" of a running server; NULL: start one */
    const char *program;         /* serve: path of the splash program, to start a server */
    /* May be NULL. One line of text without a newline, from the calling thread. */
    void (*progress)(void *user, const char *line);
    void *progress_user;
    void (*debug)(void *user, const char *line); /* may be NULL; lines for a debugging log */
} spl_bench_options;

typedef struct spl_bench_kind {
    const char *name, *about;
    bool needs_model; /* options.model is used */
    spl_status (*run)(const spl_bench_options *o, json_t **out, spl_error *err);
} spl_bench_kind;

/* The kinds in order; NULL past the end. */
const spl_bench_kind *spl_bench_kind_at(uint32_t index);
/* NULL when there is none of that name. */
const spl_bench_kind *spl_bench_kind_find(const char *name);

/* Runs one kind; blocks until it is measured. On success *out is the caller's (json_decref): an object with at
 * least kind, machine, cpu_tier, threads, commit, load_average. Errors: SPL_E_INVALID for an unknown kind or an
 * option out of range, SPL_E_LIMIT when the measurement does not fit in memory, and whatever opening the model
 * or its files gives; *out is NULL then. One run at a time. */
spl_status spl_bench_run(const char *kind, const spl_bench_options *o, json_t **out, spl_error *err);

/* Measures the choices of speed that matter on this machine, and the step times of the model, in about `seconds` (0:
 * 40). Choices are measured on the model when it is too large for the caches, otherwise on the first layers of a large
 * one with generated weights. *out: what was measured, and as "tuning" the contents of the file, in which the models of
 * an earlier one in tuning_folder are kept. *path: where the file belongs in tuning_folder (malloc'ed). */
spl_status spl_bench_tune(const spl_bench_options *o, json_t **out, char **path, spl_error *err);

#endif
