/* SPDX-License-Identifier: Apache-2.0
 * Private to bench: prompts from jsonl files, and answers to them through the public API. */
#ifndef SPL_BENCH_BENCH_GENERATE_H
#define SPL_BENCH_BENCH_GENERATE_H

#include "base/dynbuf.h"
#include "bench/bench_internal.h"
#include "splash.h"

/* One line of a prompts file: {"prompt": text} or {"question": text} or {"turns": [text, ...]}, with optional
 * "id", "raw" (complete the text as it is), "thinking", "kind" and "answer". Strings belong to `source`. */
typedef struct spl_bench_prompt {
    json_t *source;
    char id[64];
    uint32_t n_turns;
    const char *turns[16];
    bool raw;
    int thinking; /* -1: the template's default */
    const char *kind, *answer;
} spl_bench_prompt;

typedef struct spl_bench_prompts {
    spl_bench_prompt *items;
    uint32_t n;
} spl_bench_prompts;

/* Reads at most `limit` prompts (0: all). Errors name the file and the line. */
spl_status spl_bench_prompts_read(spl_bench_prompts *out, const char *path, uint32_t limit, spl_error *err);
void spl_bench_prompts_free(spl_bench_prompts *p);

/* Opens o->model with the given context (0: chosen by the engine). */
spl_status spl_bench_engine(splash_engine **out, const spl_bench_options *o, bool plain, uint32_t context_tokens,
                            spl_error *err);

/* What is sent to the model. */
typedef struct spl_bench_input {
    uint32_t *tokens; /* malloc'ed */
    size_t n_tokens;
    bool chat, starts_in_reasoning;
} spl_bench_input;

/* Raw text. A model without a tokenizer (random weights) gets one token per byte instead. */
spl_status spl_bench_input_raw(spl_bench_input *out, const splash_engine *e, const char *text, spl_error *err);
/* A chat, rendered by the model's template; without a tokenizer its texts one after the other. */
spl_status spl_bench_input_chat(spl_bench_input *out, const splash_engine *e, const json_t *messages, int thinking,
                                spl_error *err);
void spl_bench_input_free(spl_bench_input *in);

typedef struct spl_bench_answer {
    uint32_t *tokens; /* generated, malloc'ed */
    size_t n_tokens, capacity;
    spl_buf content, reasoning;
    splash_usage usage;
    splash_finish finish;
} spl_bench_answer;

/* One answer, start to end; nothing else may run on the engine. Seeded by `seed` when temperature is above 0,
 * with the package's other sampling settings. *out is to be freed also after a failure. */
spl_status spl_bench_answer_get(spl_bench_answer *out, splash_engine *e, const spl_bench_input *in, uint32_t max_tokens,
                                double temperature, uint64_t seed, spl_error *err);
void spl_bench_answer_free(spl_bench_answer *a);

/* Error of the public API as one of ours. */
spl_status spl_bench_public_error(spl_error *err, const splash_error *error);

#endif
