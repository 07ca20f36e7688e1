/* SPDX-License-Identifier: Apache-2.0
 * The fields every generation body shares: streaming, sampling, stop strings, output budget, log probabilities. Pure:
 * the model's facts come in through spl_gen_limits. docs/SERVING.md lists the fields and ranges. */
#ifndef SPL_SERVER_GEN_FIELDS_H
#define SPL_SERVER_GEN_FIELDS_H

#include "server/body_text.h"
#include "splash.h"

enum { SPL_MAX_STOP = 4, SPL_MAX_STOP_BYTES = 256, SPL_MAX_TOP_LOGPROBS = 20, SPL_MAX_BIASES = 1024 };

/* What validation needs to know about the served model. */
typedef struct spl_gen_limits {
    const char *model; /* served id */
    const char *const *aliases;
    size_t n_aliases;
    uint32_t vocab, context_tokens;
    splash_sampling defaults;
} spl_gen_limits;

typedef struct spl_gen_fields {
    bool stream, include_usage, return_progress, ignore_eos;
    double timeout_s; /* 0: none */
    splash_sampling sampling;
    bool seed_given;
    const char *stop[SPL_MAX_STOP]; /* borrowed from the body */
    size_t n_stop;
    struct splash_bias *bias; /* owned; spl_gen_fields_free */
    size_t n_bias;
    bool logprobs;
    uint32_t n_top_logprobs;
} spl_gen_fields;

/* 404 model_not_found unless `model` is absent, the served id or an alias. */
bool spl_read_model(const json_t *body, const spl_gen_limits *limits, spl_reject *r);
/* Everything but log probabilities and the output budget, whose shape differs per endpoint. On failure nothing is
 * owned. Unknown fields are ignored. */
bool spl_gen_fields_read(spl_gen_fields *out, const spl_body *body, const spl_gen_limits *limits, spl_reject *r);
/* `stop` or `stop_sequences`: a string or 1 to 4 of them. */
bool spl_read_stop(spl_gen_fields *out, const json_t *body, const char *key, spl_reject *r);
/* Chat: logprobs bool with top_logprobs 0..20. Completions: logprobs integer 0..20. */
bool spl_read_chat_logprobs(spl_gen_fields *out, const json_t *body, spl_reject *r);
bool spl_read_text_logprobs(spl_gen_fields *out, const json_t *body, spl_reject *r);
/* A positive integer under `key` into *out; absent leaves *out. */
bool spl_read_budget(const json_t *body, const char *key, uint32_t *out, spl_reject *r);
/* prompt < context and, when asked is not 0, prompt + asked <= context: else 400 context_length_exceeded. */
bool spl_check_context(uint64_t n_prompt, uint32_t asked, uint32_t context_tokens, spl_reject *r);
void spl_gen_fields_free(spl_gen_fields *fields);

/* "prompt" of a text completion: a string or an array of ids below vocab. Exactly one of *text (borrowed) and *ids
 * (malloc'ed) is set. */
bool spl_read_prompt(const json_t *body, uint32_t vocab, const json_t **text, uint32_t **ids, size_t *n_ids,
                     spl_reject *r);
/* An array of token ids below vocab under `key`; *ids is malloc'ed. */
bool spl_read_ids(const json_t *array, const char *key, uint32_t vocab, uint32_t **ids, size_t *n_ids, spl_reject *r);

#endif
