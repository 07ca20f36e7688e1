/* SPDX-License-Identifier: Apache-2.0
 * One prompt through the engine in the terminal: submit, print as it comes, Ctrl+C stops the answer. */
#ifndef SPL_CLI_TURN_H
#define SPL_CLI_TURN_H

#include "base/dynbuf.h"
#include "base/json.h"
#include "splash.h"

/* Sampling options as given on the command line; a negative number means "the model's default". */
typedef struct spl_turn_options {
    double temperature;
    uint32_t max_tokens; /* 0: to the end of the context */
    uint64_t seed;
    bool seed_given, no_think;
    bool show_content;   /* print the answer to stdout as it comes */
    bool show_reasoning; /* print reasoning to stderr, dimmed on a terminal */
} spl_turn_options;

typedef struct spl_turn_result {
    spl_buf content, reasoning;
    splash_usage usage;
    splash_finish finish;
    bool interrupted; /* by a signal; still pending */
} spl_turn_result;

/* Renders `messages` (borrowed) by the model's template and generates one answer. */
spl_status spl_turn_chat(splash_engine *engine, json_t *messages, const spl_turn_options *options, spl_turn_result *out,
                         spl_error *err);
/* Generates from text as it is. */
spl_status spl_turn_raw(splash_engine *engine, const char *text, size_t n_bytes, const spl_turn_options *options,
                        spl_turn_result *out, spl_error *err);
void spl_turn_free(spl_turn_result *result);

/* "prompt 12 (0 cached) · new 85 · first token 0.12 s · 31.0 tok/s" into `out`. */
void spl_turn_stats(const spl_turn_result *result, char *out, size_t out_bytes);
const char *spl_turn_finish(const spl_turn_result *result);

#endif
