/* SPDX-License-Identifier: Apache-2.0
 * What --model means: nothing (the model that comes with the program), a package folder, a checkpoint folder (packed
 * into the cache first), or a geometry id with --random-weights. */
#ifndef SPL_CLI_MODEL_ARG_H
#define SPL_CLI_MODEL_ARG_H

#include "base/status.h"
#include "cli/args.h"
#include "splash.h"

/* The options that every command with a model shares. */
typedef struct spl_model_options {
    const char *model; /* NULL: the model that comes with the program */
    bool random_weights, no_draft, no_lookup, lock_weights, no_tuning;
    uint32_t n_layers, context_tokens, n_threads;
    const char *cpu_tier;
    uint64_t memory_limit_bytes;
} spl_model_options;

/* A row per option, for spl_parse_args. */
#define SPL_MODEL_OPTION_ROWS(m)                                                                                         \
    {"model", 'm', SPL_OPT_STRING, &(m)->model, "M", "package or checkpoint folder, or a geometry id (default: nano)",   \
     NULL},                                                                                                              \
        {"random-weights", 0, SPL_OPT_FLAG, &(m)->random_weights, NULL, "generated weights; M is a geometry id", NULL},  \
        {"layers", 0, SPL_OPT_U32, &(m)->n_layers, "N", "only the first N layers of random weights", NULL},              \
        {"no-draft", 0, SPL_OPT_FLAG, &(m)->no_draft, NULL, "decode without the draft model (same text, slower)", NULL}, \
        {"no-lookup", 0, SPL_OPT_FLAG, &(m)->no_lookup, NULL, "propose nothing from the context (same text)", NULL},     \
        {"max-context", 0, SPL_OPT_U32, &(m)->context_tokens, "TOKENS", "context window (K = 1024; default: what fits)", \
         NULL},                                                                                                          \
        {"threads", 't', SPL_OPT_U32, &(m)->n_threads, "N", "worker threads (default: one per core)", NULL},             \
        {"mlock", 0, SPL_OPT_FLAG, &(m)->lock_weights, NULL, "keep the weights in memory, or refuse to start", NULL},    \
        {"no-tuning", 0, SPL_OPT_FLAG, &(m)->no_tuning, NULL, "without what `splash tune` stored", NULL},                \
        {"cpu", 0, SPL_OPT_STRING, &(m)->cpu_tier, "TIER", "kernel tier (default: the best this machine has)", NULL},    \
    {                                                                                                                    \
        "max-memory", 0, SPL_OPT_SIZE, &(m)->memory_limit_bytes, "SIZE",                                                 \
            "memory limit (default: 85 % of what is free)", NULL                                                         \
    }

/* Resolves the model to what splash_open takes; a checkpoint is packed into the cache, with progress on stderr.
 * *out is malloc'ed. Errors name everything that was tried. */
spl_status spl_model_resolve(const spl_model_options *options, char **out, spl_error *err);

/* Raises the soft limit of locked memory to the hard one: what --mlock may use. */
void spl_raise_lock_limit(void);

/* Resolves and opens; a bar on stderr shows the weights coming in when that takes a moment and stderr is a terminal. A
 * signal that comes meanwhile gives SPL_E_CANCELLED. */
spl_status spl_model_open(const spl_model_options *options, uint32_t queue_limit, splash_engine **out, spl_error *err);

#endif
