/* SPDX-License-Identifier: Apache-2.0
 * Validation of the shared generation fields. A field that would change the output and cannot be honoured is refused,
 * never dropped; fields nobody knows are ignored. */
#include "server/gen_fields.h"

#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

bool spl_read_model(const json_t *body, const spl_gen_limits *limits, spl_reject *r) {
    const char *model = NULL;
    if (!spl_field_string(body, "model", &model, r)) return false;
    if (!model || strcmp(model, limits->model) == 0) return true;
    for (size_t i = 0; i < limits->n_aliases; i++)
        if (strcmp(model, limits->aliases[i]) == 0) return true;
    return spl_reject_set(r, 404, "model_not_found", "model '%.200s' is not served here; this server has '%s'", model,
                          limits->model);
}

static bool read_sampling(spl_gen_fields *out, const spl_body *body, spl_reject *r) {
    const json_t *b = body->root;
    splash_sampling *s = &out->sampling;
    double temperature = (double)s->temperature, top_p = (double)s->top_p, min_p = (double)s->min_p;
    double presence = (double)s->presence_penalty, frequency = (double)s->frequency_penalty;
    double repetition = (double)s->repetition_penalty;
    int64_t top_k = s->top_k, seed = 0;
    if (!spl_field_number(b, "temperature", 0, false, 2, &temperature, r) ||
        !spl_field_number(b, "top_p", 0, true, 1, &top_p, r) || !spl_field_int(b, "top_k", -1, INT64_MAX, &top_k, r) ||
        !spl_field_number(b, "min_p", 0, false, 1, &min_p, r) ||
        !spl_field_number(b, "presence_penalty", -2, false, 2, &presence, r) ||
        !spl_field_number(b, "frequency_penalty", -2, false, 2, &frequency, r) ||
        !spl_field_number(b, "repetition_penalty", 0, true, (double)FLT_MAX, &repetition, r))
        return false;
    if (temperature > 0 && temperature < 0.01) temperature = 0.01;
    s->temperature = (float)temperature;
    s->top_p = top_p < (double)FLT_TRUE_MIN ? FLT_TRUE_MIN : (float)top_p;
    s->min_p = (float)min_p;
    s->top_k = top_k > INT32_MAX ? INT32_MAX : (int32_t)top_k;
    s->presence_penalty = (float)presence;
    s->frequency_penalty = (float)frequency;
    s->repetition_penalty = repetition < (double)FLT_MIN ? FLT_MIN : (float)repetition;
    const json_t *given = spl_field(b, "seed");
    if (!given) return true;
    if (!json_is_integer(given) || json_integer_value(given) < 0)
        return spl_reject_field(r, "'seed' must be an integer from 0 to 18446744073709551615");
    seed = json_integer_value(given);
    s->seed = body->seed_is_big ? body->big_seed : (uint64_t)seed;
    out->seed_given = true;
    return true;
}

bool spl_read_stop(spl_gen_fields *out, const json_t *body, const char *key, spl_reject *r) {
    const json_t *value = spl_field(body, key);
    out->n_stop = 0;
    if (!value || (json_is_array(value) && json_array_size(value) == 0)) return true;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > SPL_MAX_STOP) return spl_reject_field(r, "'%s' takes at most %d strings", key, SPL_MAX_STOP);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        if (!spl_is_c_string(item) || json_string_length(item) == 0 || json_string_length(item) > SPL_MAX_STOP_BYTES)
            return spl_reject_field(r, "'%s' must be a string or 1 to %d strings of 1 to %d bytes", key, SPL_MAX_STOP,
                                    SPL_MAX_STOP_BYTES);
        out->stop[out->n_stop++] = json_string_value(item);
    }
    return true;
}

/* {"token id": bias}; ids are strings of digits, as OpenAI has it. */
static bool read_bias(spl_gen_fields *out, const json_t *body, uint32_t vocab, spl_reject *r) {
    json_t *value = spl_field(body, "logit_bias"), *item;
    const char *key;
    if (!value) return true;
    if (!json_is_object(value)) return spl_reject_field(r, "'logit_bias' must be an object of token ids and numbers");
    size_t n = json_object_size(value);
    if (n == 0) return true;
    if (n > SPL_MAX_BIASES) return spl_reject_field(r, "'logit_bias' takes at most %d tokens", SPL_MAX_BIASES);
    out->bias = calloc(n, sizeof *out->bias);
    if (!out->bias) return spl_reject_set(r, 503, "frontend_overloaded", "not enough memory for 'logit_bias'");
    json_object_foreach(value, key, item) {
        char *end;
        errno = 0;
        unsigned long id = strtoul(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end || errno || id >= vocab)
            return spl_reject_field(r, "'logit_bias' key '%.40s' is not a token id below %u", key, vocab);
        double bias = json_number_value(item);
        if (!json_is_number(item) || !(bias >= -100 && bias <= 100))
            return spl_reject_field(r, "'logit_bias' of token %lu must be a number from -100 to 100", id);
        out->bias[out->n_bias].token = (uint32_t)id;
        out->bias[out->n_bias++].bias = (float)bias;
    }
    return true;
}

static bool read_stream_options(spl_gen_fields *out, const json_t *body, spl_reject *r) {
    const json_t *options = spl_field(body, "stream_options");
    if (!options) return true;
    if (!json_is_object(options)) return spl_reject_field(r, "'stream_options' must be an object");
    return spl_field_bool(options, "include_usage", &out->include_usage, r);
}

/* Checked and otherwise left alone: the engine serves requests in order of arrival. */
static bool read_priority(const json_t *body, spl_reject *r) {
    const char *priority = "normal";
    if (!spl_field_string(body, "priority", &priority, r)) return false;
    if (strcmp(priority, "foreground") != 0 && strcmp(priority, "normal") != 0 && strcmp(priority, "background") != 0)
        return spl_reject_field(r, "'priority' must be foreground, normal or background");
    return true;
}

bool spl_gen_fields_read(spl_gen_fields *out, const spl_body *body, const spl_gen_limits *limits, spl_reject *r) {
    const json_t *b = body->root;
    int64_t n = 1;
    *out = (spl_gen_fields){.sampling = limits->defaults};
    bool ok = spl_read_model(b, limits, r) && spl_field_bool(b, "stream", &out->stream, r) &&
              read_stream_options(out, b, r) && spl_field_bool(b, "return_progress", &out->return_progress, r) &&
              spl_field_bool(b, "ignore_eos", &out->ignore_eos, r) &&
              spl_field_number(b, "timeout", 0, true, DBL_MAX, &out->timeout_s, r) && read_priority(b, r) &&
              read_sampling(out, body, r) && spl_field_int(b, "n", INT64_MIN, INT64_MAX, &n, r);
    if (ok && n != 1) ok = spl_reject_field(r, "'n' must be 1: one choice per request");
    if (ok && out->return_progress && !out->stream) ok = spl_reject_field(r, "'return_progress' needs 'stream': true");
    if (ok) ok = read_bias(out, b, limits->vocab, r);
    if (!ok) spl_gen_fields_free(out);
    return ok;
}

void spl_gen_fields_free(spl_gen_fields *fields) {
    free(fields->bias);
    fields->bias = NULL;
    fields->n_bias = 0;
}

bool spl_read_chat_logprobs(spl_gen_fields *out, const json_t *body, spl_reject *r) {
    int64_t top = 0;
    if (!spl_field_bool(body, "logprobs", &out->logprobs, r) ||
        !spl_field_int(body, "top_logprobs", 0, SPL_MAX_TOP_LOGPROBS, &top, r))
        return false;
    if (spl_field(body, "top_logprobs") && !out->logprobs)
        return spl_reject_field(r, "'top_logprobs' needs 'logprobs': true");
    out->n_top_logprobs = (uint32_t)top;
    return true;
}

bool spl_read_text_logprobs(spl_gen_fields *out, const json_t *body, spl_reject *r) {
    int64_t top = 0;
    if (!spl_field_int(body, "logprobs", 0, SPL_MAX_TOP_LOGPROBS, &top, r)) return false;
    out->logprobs = spl_field(body, "logprobs") != NULL;
    out->n_top_logprobs = (uint32_t)top;
    return true;
}

bool spl_read_budget(const json_t *body, const char *key, uint32_t *out, spl_reject *r) {
    int64_t n = *out;
    if (!spl_field_int(body, key, 1, INT64_MAX, &n, r)) return false;
    *out = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
    return true;
}

bool spl_check_context(uint64_t n_prompt, uint32_t asked, uint32_t context_tokens, spl_reject *r) {
    if (n_prompt >= context_tokens)
        return spl_reject_set(
            r, 400, "context_length_exceeded",
            "prompt is too long: %llu tokens > %u maximum (the context holds %u, one is left for the reply)",
            (unsigned long long)n_prompt, context_tokens - 1, context_tokens);
    if (n_prompt + asked > context_tokens)
        return spl_reject_set(r, 400, "context_length_exceeded",
                              "prompt of %llu tokens and %u requested output tokens exceed the context of %u tokens",
                              (unsigned long long)n_prompt, asked, context_tokens);
    return true;
}

bool spl_read_ids(const json_t *array, const char *key, uint32_t vocab, uint32_t **ids, size_t *n_ids, spl_reject *r) {
    size_t n = json_array_size(array);
    *ids = NULL;
    *n_ids = 0;
    uint32_t *list = malloc((n ? n : 1) * sizeof *list);
    if (!list) return spl_reject_set(r, 503, "frontend_overloaded", "not enough memory for '%s'", key);
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= (json_int_t)vocab) {
            free(list);
            return spl_reject_field(r, "'%s'[%zu] must be a token id from 0 to %u", key, i, vocab - 1);
        }
        list[i] = (uint32_t)id;
    }
    *ids = list;
    *n_ids = n;
    return true;
}

bool spl_read_prompt(const json_t *body, uint32_t vocab, const json_t **text, uint32_t **ids, size_t *n_ids,
                     spl_reject *r) {
    const json_t *prompt = spl_field(body, "prompt");
    *text = NULL;
    *ids = NULL;
    *n_ids = 0;
    if (json_is_string(prompt) && json_string_length(prompt) > 0) {
        *text = prompt;
        return true;
    }
    if (json_is_array(prompt) && json_array_size(prompt) > 0 && json_is_integer(json_array_get(prompt, 0)))
        return spl_read_ids(prompt, "prompt", vocab, ids, n_ids, r);
    return spl_reject_field(r, "'prompt' must be one non-empty string or one non-empty array of token ids");
}
