/* SPDX-License-Identifier: Apache-2.0
 * Acceptance and what it buys, on prompts from a file. Two engines over the same weights: A proposes (draft and
 * lookup), B does not. Every prompt runs A B B A, one request at a time, so a machine that slows down slows both.
 * Acceptance length as usual: tau = 1 + accepted / steps, the target's own token included. */
#include <stdlib.h>
#include <string.h>

#include "bench/bench_generate.h"

enum { DEFAULT_MAX_TOKENS = 128, SPARE_TOKENS = 16, CONTEXT_STEP = 256, MIN_CONTEXT = 1024, MAX_PASSES = 2 };

/* Sums over requests of one side in one pass. */
typedef struct side {
    uint64_t tokens, steps, proposed, accepted, prompt_tokens;
    double decode_seconds, prefill_seconds;
} side;

typedef struct session {
    const spl_bench_options *o;
    splash_engine *engines[2]; /* 0: A, proposing; 1: B, plain */
    uint32_t max_tokens, n_passes;
    side sums[2][MAX_PASSES];
    bool identical;
    uint32_t n_differ;
    json_t *per_prompt;
} session;

static void add_usage(side *s, const splash_usage *u) {
    s->tokens += u->completion_tokens > 0 ? u->completion_tokens - 1 : 0; /* the first comes from the prefill */
    s->steps += u->decode_steps;
    s->proposed += u->draft_tokens;
    s->accepted += u->draft_accepted;
    s->prompt_tokens += u->prompt_tokens - u->cached_tokens;
    s->decode_seconds += u->decode_ms * 1e-3;
    s->prefill_seconds += u->prefill_ms * 1e-3;
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }
static double tau_of(const side *s) { return s->steps ? 1 + ratio((double)s->accepted, (double)s->steps) : 0; }
static double speed_of(const side *s) { return ratio((double)s->tokens, s->decode_seconds); }

/* ---- one prompt ------------------------------------------------------------------------------ */

/* All passes of one turn; sums of A and B go to `turn`, the first answer of A to *first. */
static spl_status run_turn(session *s, const spl_bench_input *in, side turn[2], uint32_t seed, spl_bench_answer *first,
                           bool *identical, spl_error *err) {
    static const int order[4] = {0, 1, 1, 0};
    uint32_t pass[2] = {0, 0};
    spl_status st = SPL_OK;
    bool have_first = false;
    /* With one pass each, odd prompts run B first: A B, B A, A B, ... */
    uint32_t shift = s->n_passes == 1 && seed % 2 ? 2 : 0;
    for (uint32_t i = 0; i < 2 * s->n_passes && st == SPL_OK; i++) {
        int which = order[i + shift];
        spl_bench_answer a;
        st = spl_bench_answer_get(&a, s->engines[which], in, s->max_tokens, s->o->temperature, seed, err);
        if (st == SPL_OK) {
            add_usage(&s->sums[which][pass[which]++], &a.usage);
            add_usage(&turn[which], &a.usage);
            if (have_first &&
                (a.n_tokens != first->n_tokens || memcmp(a.tokens, first->tokens, a.n_tokens * sizeof *a.tokens) != 0))
                *identical = false;
        }
        if (st == SPL_OK && !have_first) {
            *first = a;
            have_first = true;
        } else {
            spl_bench_answer_free(&a);
        }
    }
    if (st != SPL_OK && have_first) spl_bench_answer_free(first);
    return st;
}

static spl_status make_input(session *s, const spl_bench_prompt *p, uint32_t turn, json_t *messages,
                             spl_bench_input *out, spl_error *err) {
    if (p->raw || s->o->raw) return spl_bench_input_raw(out, s->engines[0], p->turns[turn], err);
    if (json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", p->turns[turn])) != 0)
        return spl_fail(err, SPL_E_NOMEM, "no memory for a chat");
    return spl_bench_input_chat(out, s->engines[0], messages, p->thinking, err);
}

static spl_status add_row(session *s, const spl_bench_prompt *p, const side turn[2], bool identical, spl_error *err) {
    spl_bench_json row = {0};
    spl_put_text(&row, "id", p->id);
    spl_put_u64(&row, "tokens", turn[1].tokens / s->n_passes);
    spl_put_u64(&row, "steps", turn[0].steps / s->n_passes);
    spl_put_u64(&row, "proposed", turn[0].proposed / s->n_passes);
    spl_put_u64(&row, "accepted", turn[0].accepted / s->n_passes);
    spl_put_real(&row, "tau", tau_of(&turn[0]));
    spl_put_real(&row, "tokens_per_second", speed_of(&turn[0]));
    spl_put_real(&row, "plain_tokens_per_second", speed_of(&turn[1]));
    if (s->o->temperature <= 0) spl_put_bool(&row, "greedy_identical", identical);
    json_t *object;
    spl_status st = spl_bench_json_take(&row, &object, err);
    if (st == SPL_OK && json_array_append_new(s->per_prompt, object) != 0)
        st = spl_fail(err, SPL_E_NOMEM, "no memory for the result");
    return st;
}

static spl_status run_prompt(session *s, const spl_bench_prompt *p, uint32_t index, spl_error *err) {
    json_t *messages = json_array();
    side turn[2] = {{0}, {0}};
    bool identical = true;
    spl_status st = messages ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a chat");
    for (uint32_t i = 0; i < p->n_turns && st == SPL_OK; i++) {
        spl_bench_input in = {0};
        spl_bench_answer answer;
        st = make_input(s, p, i, messages, &in, err);
        if (st == SPL_OK) st = run_turn(s, &in, turn, index, &answer, &identical, err);
        spl_bench_input_free(&in);
        if (st != SPL_OK) break;
        json_t *content = json_stringn(answer.content.data ? answer.content.data : "", answer.content.n_bytes);
        if (json_array_append_new(messages, json_pack("{s:s,s:o}", "role", "assistant", "content", content)) != 0)
            st = spl_fail(err, SPL_E_NOMEM, "no memory for a chat");
        spl_bench_answer_free(&answer);
    }
    json_decref(messages);
    if (st != SPL_OK) return spl_fail_within(err, "prompt %s", p->id);
    s->n_differ += !identical;
    return add_row(s, p, turn, identical, err);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Context that holds the longest prompt with its answers: a token is at least a byte, so bytes bound tokens; the
 * template's own tokens come on top. */
static uint32_t context_for(const spl_bench_prompts *p, uint32_t max_tokens) {
    uint64_t longest = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t n = SPARE_TOKENS;
        for (uint32_t k = 0; k < p->items[i].n_turns; k++)
            n += strlen(p->items[i].turns[k]) + 4 * SPARE_TOKENS + max_tokens;
        longest = n > longest ? n : longest;
    }
    longest = (longest + CONTEXT_STEP - 1) / CONTEXT_STEP * CONTEXT_STEP;
    return longest < MIN_CONTEXT ? MIN_CONTEXT : longest > UINT32_MAX ? UINT32_MAX : (uint32_t)longest;
}

/* Both engines get the same context, no more than the model has. */
static spl_status open_engines(session *s, const spl_bench_prompts *p, spl_error *err) {
    splash_error error = {0};
    splash_memory_plan plan;
    uint32_t wanted = s->o->max_context ? s->o->max_context : context_for(p, s->max_tokens);
    splash_options options = {.model = s->o->model,
                              .random_weights = s->o->random_weights,
                              .n_layers = s->o->n_layers,
                              .memory_limit_bytes = s->o->memory_limit_bytes};
    if (splash_plan(&options, &plan, &error) != SPLASH_OK) return spl_bench_public_error(err, &error);
    if (!s->o->max_context && wanted > plan.context_tokens) wanted = plan.context_tokens;
    spl_status st = spl_bench_engine(&s->engines[0], s->o, false, wanted, err);
    if (st == SPL_OK) st = spl_bench_engine(&s->engines[1], s->o, true, wanted, err);
    return st;
}

/* ---- results --------------------------------------------------------------------------------- */

static json_t *positions(const splash_stats *stats) {
    json_t *array = json_array();
    for (uint32_t i = 0; i < SPL_COUNT(stats->position_drafted) && array; i++) {
        uint64_t drafted = stats->position_drafted[i], accepted = stats->position_accepted[i];
        json_t *row = json_pack("{s:i,s:I,s:I,s:f}", "position", (int)i + 1, "drafted", (json_int_t)drafted, "accepted",
                                (json_int_t)accepted, "rate", ratio((double)accepted, (double)drafted));
        if (json_array_append_new(array, row) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static void put_source(spl_bench_json *j, const char *key, uint64_t steps, uint64_t proposed, uint64_t accepted) {
    spl_bench_json o = {0};
    spl_put_u64(&o, "steps", steps);
    spl_put_u64(&o, "proposed", proposed);
    spl_put_u64(&o, "accepted", accepted);
    spl_put_real(&o, "tau", steps ? 1 + ratio((double)accepted, (double)steps) : 0);
    spl_put_real(&o, "accept_rate", ratio((double)accepted, (double)proposed));
    if (o.failed) j->failed = true;
    spl_put(j, key, o.object);
}

/* Speeds of one side, a sample per pass. */
static void put_side(spl_bench_json *j, const side *passes, uint32_t n, const char *decode, const char *prefill) {
    spl_samples d = {0}, f = {0};
    for (uint32_t i = 0; i < n; i++) {
        spl_samples_add(&d, speed_of(&passes[i]));
        spl_samples_add(&f, ratio((double)passes[i].prompt_tokens, passes[i].prefill_seconds));
    }
    spl_put_samples(j, decode, &d);
    spl_put_samples(j, prefill, &f);
}

static void report(spl_bench_json *j, session *s, const spl_bench_prompts *p, const spl_roof_rates *rates) {
    splash_model_info info;
    splash_stats stats;
    side a = {0}, b = {0};
    splash_model_info_get(s->engines[0], &info);
    splash_stats_get(s->engines[0], &stats);
    for (uint32_t i = 0; i < s->n_passes; i++) {
        const side *x = &s->sums[0][i], *y = &s->sums[1][i];
        a.tokens += x->tokens, a.steps += x->steps, a.proposed += x->proposed, a.accepted += x->accepted;
        a.decode_seconds += x->decode_seconds;
        b.tokens += y->tokens, b.steps += y->steps, b.decode_seconds += y->decode_seconds;
    }
    spl_put_text(j, "model", info.name);
    spl_put_bool(j, "draft", info.has_draft);
    spl_put_u64(j, "prompts", p->n);
    spl_put_u64(j, "passes", s->n_passes);
    spl_put_u64(j, "max_tokens", s->max_tokens);
    spl_put_u64(j, "fixed_rows", s->o->rows);
    spl_put_real(j, "temperature", s->o->temperature);
    spl_put_u64(j, "tokens", a.tokens);
    spl_put_u64(j, "steps", a.steps);
    spl_put_u64(j, "proposed", a.proposed);
    spl_put_u64(j, "accepted", a.accepted);
    spl_put_real(j, "tau", tau_of(&a));
    spl_put_real(j, "accept_rate", ratio((double)a.accepted, (double)a.proposed));
    put_source(j, "by_draft", stats.draft_steps_total, stats.draft_tokens_total, stats.draft_accepted_total);
    put_source(j, "by_lookup", stats.lookup_steps_total, stats.lookup_tokens_total, stats.lookup_accepted_total);
    put_side(j, s->sums[0], s->n_passes, "tokens_per_second", "prefill_tokens_per_second");
    put_side(j, s->sums[1], s->n_passes, "plain_tokens_per_second", "plain_prefill_tokens_per_second");
    spl_put_real(j, "speedup", ratio(speed_of(&a), speed_of(&b)));
    spl_put_rates(j, rates);
    if (s->o->temperature <= 0) {
        spl_put_bool(j, "greedy_identical", s->n_differ == 0);
        spl_put_u64(j, "prompts_that_differ", s->n_differ);
    }
    spl_put(j, "per_position", positions(&stats));
    spl_put(j, "per_prompt", json_incref(s->per_prompt));
}

spl_status spl_bench_accept(const spl_bench_options *o, json_t **out, spl_error *err) {
    spl_bench_prompts prompts = {0};
    spl_roof_rates rates;
    spl_bench_json j = {0};
    session s = {.o = o,
                 .max_tokens = o->max_tokens ? o->max_tokens : DEFAULT_MAX_TOKENS,
                 .n_passes = o->repeat ? o->repeat : MAX_PASSES,
                 .per_prompt = json_array()};
    spl_status st = SPL_OK;
    if (!o->prompts) st = spl_fail(err, SPL_E_INVALID, "accept needs a prompts file (jsonl); bench/prompts has some");
    if (st == SPL_OK && s.n_passes > MAX_PASSES)
        st = spl_fail(err, SPL_E_INVALID, "%u passes; 1 (A B) or 2 (A B B A)", s.n_passes);
    if (st == SPL_OK && (o->rows == 1 || o->rows > SPL_BLOCK_ROWS))
        st = spl_fail(err, SPL_E_INVALID, "%u rows; a verified block has 2 to %d", o->rows, SPL_BLOCK_ROWS);
    if (st == SPL_OK) st = spl_bench_prompts_read(&prompts, o->prompts, o->n_prompts, err);
    if (st == SPL_OK) st = open_engines(&s, &prompts, err);
    for (uint32_t i = 0; i < prompts.n && st == SPL_OK; i++) {
        spl_bench_say(o, "prompt %u of %u (%s)", i + 1, prompts.n, prompts.items[i].id);
        st = run_prompt(&s, &prompts.items[i], i, err);
    }
    if (st == SPL_OK) st = spl_bench_measure_rates(o, 0, &rates, err);
    if (st == SPL_OK) {
        report(&j, &s, &prompts, &rates);
        st = spl_bench_json_take(&j, out, err);
    }
    splash_close(&s.engines[0]);
    splash_close(&s.engines[1]);
    json_decref(s.per_prompt);
    spl_bench_prompts_free(&prompts);
    return st;
}
