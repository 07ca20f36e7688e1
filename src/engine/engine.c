/* SPDX-License-Identifier: Apache-2.0
 * The engine loop. Only the queue and the published statistics are shared with other threads, behind one
 * mutex; everything else belongs to the engine thread. One turn of the loop: drop cancelled requests, admit
 * waiting ones, one prefill chunk for the oldest prefilling lane, one decode step over all decoding lanes. */
#include "engine/engine.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/huge_pages.h"
#include "engine/lane.h"

enum {
    PREFILL_ROWS = 256,                  /* rows of one chunk; a cancelled chunk ends at its next op */
    CONTEXT_SPARE_TOKENS = 1,            /* room for at least one generated token */
    VERIFY_SPARE_TOKENS = SPL_BLOCK_ROWS /* rows of a verify step that may lie past the last token */
};

/* What a lookup offered a lane in the step in progress; n_tokens 0: nothing. */
typedef struct lookup_offer {
    uint32_t tokens[SPL_MAX_PROPOSALS], n_tokens;
    spl_lookup_kind kind;
} lookup_offer;

struct spl_engine {
    spl_engine_config config;
    const spl_geometry *g;
    spl_kernels kernels;
    spl_plan plan;
    spl_team *team;
    spl_step *step;
    spl_page_pool pages;
    uint32_t reserved_pages; /* promised to the lanes, taken or not */
    spl_lane lanes[SPL_MAX_LANES];
    uint32_t n_lanes;
    uint32_t n_stop_tokens, stop_tokens[SPL_MAX_STOP_TOKENS];
    void *sample_scratch;
    bool drafts; /* the package has a draft and it is wanted */
    spl_pace_cost cost;
    spl_pace_rates rates; /* what a new request starts from */
    spl_decode_lane decode[SPL_MAX_LANES];
    lookup_offer found[SPL_MAX_LANES];

    pthread_t thread;
    bool thread_started;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    spl_request *head, *tail; /* waiting, oldest first */
    uint32_t n_waiting;
    bool quit;
    spl_engine_stats stats;
};

void spl_request_free(spl_request *r) {
    if (!r) return;
    free(r->tokens);
    free(r->bias);
    free(r);
}

/* Tokens the penalty table of a lane must be able to hold: a full context and one draft block. */
static uint32_t penalty_tokens(uint32_t context_tokens) { return context_tokens + SPL_BLOCK_ROWS; }

/* ---- plan ----------------------------------------------------------------------------------- */

/* Bytes a lane owns beside its state cell. */
typedef struct lane_sizes {
    size_t pending, ring, features, lookup, penalties;
} lane_sizes;

static lane_sizes sizes_of(const spl_geometry *g, uint32_t n_layers, uint32_t context_tokens, bool drafts,
                           bool oracle) {
    lane_sizes z = {.pending = (size_t)spl_pending_bytes(g, n_layers == 0 ? g->n_layers : n_layers),
                    .lookup = (size_t)spl_round_up(spl_lookup_bytes(context_tokens), SPL_CACHE_LINE),
                    .penalties = spl_penalties_bytes(penalty_tokens(context_tokens), g->vocab)};
    if (drafts) {
        z.ring = (size_t)spl_round_up(spl_draft_ring_bytes(g, oracle), SPL_CACHE_LINE);
        z.features = (size_t)SPL_BLOCK_ROWS * g->draft->n_capture * g->hidden * sizeof(float);
    }
    return z;
}

static spl_step_config step_config(const spl_geometry *g, const spl_engine_config *config, bool drafts) {
    return (spl_step_config){.geometry = g,
                             .max_rows = PREFILL_ROWS,
                             .max_logit_rows = SPL_MAX_LANES,
                             .decode = true,
                             .draft = drafts,
                             .oracle = config->oracle,
                             .small_pages = config->small_pages,
                             .knobs = config->knobs};
}

spl_status spl_engine_plan(const spl_geometry *g, uint32_t n_layers, bool has_draft, const spl_engine_config *config,
                           spl_plan *out, spl_error *err) {
    bool drafts = has_draft && g->draft && !config->no_draft;
    uint64_t arena = 0, logits = (uint64_t)SPL_MAX_DECODE_ROWS * g->vocab * sizeof(float);
    spl_step_config step = step_config(g, config, drafts);
    spl_status st = spl_step_bytes(&step, n_layers, config->n_threads, &arena, err);
    if (st != SPL_OK) return st;
    uint32_t longest = config->context_tokens ? config->context_tokens : g->max_positions;
    if (longest > g->max_positions) longest = g->max_positions;
    lane_sizes z = sizes_of(g, n_layers, longest, drafts, config->oracle);
    spl_plan_request r = {.n_layers = n_layers,
                          .context_tokens = config->context_tokens,
                          .max_lanes = SPL_MAX_LANES,
                          .n_threads = config->n_threads,
                          .has_draft = drafts,
                          .f32_kv = config->oracle,
                          .state_cell_bytes = spl_state_cell_bytes(g, n_layers),
                          .lane_bytes = z.pending + z.ring + z.features + z.lookup + z.penalties,
                          .arena_bytes = arena - logits,
                          .logits_bytes = logits + spl_dist_scratch_bytes(g->vocab),
                          .limit_bytes = config->limit_bytes};
    return spl_plan_make(g, &r, out, err);
}

const spl_plan *spl_engine_get_plan(const spl_engine *e) { return &e->plan; }

void spl_engine_get_stats(spl_engine *e, spl_engine_stats *out) {
    (void)pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->waiting = e->n_waiting;
    (void)pthread_mutex_unlock(&e->lock);
}

/* ---- queue ---------------------------------------------------------------------------------- */

static spl_status check_request(const spl_engine *e, const spl_request *r, spl_error *err) {
    uint32_t limit = e->plan.context_tokens - CONTEXT_SPARE_TOKENS;
    if (r->n_tokens == 0) return spl_fail(err, SPL_E_INVALID, "the prompt is empty; it needs at least one token");
    if (r->n_tokens > limit)
        return spl_fail(err, SPL_E_CONTEXT, "the prompt has %u tokens; the context of %u leaves room for %u",
                        r->n_tokens, e->plan.context_tokens, limit);
    for (uint32_t i = 0; i < r->n_tokens; i++) {
        if (r->tokens[i] >= e->g->vocab)
            return spl_fail(err, SPL_E_INVALID, "prompt token %u is %u; the vocabulary has %u", i, r->tokens[i],
                            e->g->vocab);
    }
    for (uint32_t i = 0; i < r->n_bias; i++) {
        if (r->bias[i].token >= e->g->vocab)
            return spl_fail(err, SPL_E_INVALID, "logit_bias names token %u; the vocabulary has %u", r->bias[i].token,
                            e->g->vocab);
    }
    if (r->n_top_logprobs > SPL_MAX_TOP_LOGPROBS)
        return spl_fail(err, SPL_E_INVALID, "top_logprobs is %u; the limit is %d", r->n_top_logprobs,
                        SPL_MAX_TOP_LOGPROBS);
    return spl_sampling_check(&r->sampling, err);
}

spl_status spl_engine_submit(spl_engine *e, spl_request *r, spl_error *err) {
    spl_status st = check_request(e, r, err);
    if (st != SPL_OK) return st;
    r->submitted_ns = spl_now_ns();
    r->next = NULL;
    (void)pthread_mutex_lock(&e->lock);
    if (e->quit) {
        st = spl_fail(err, SPL_E_CANCELLED, "the engine is closing");
    } else if (e->n_waiting >= e->config.queue_limit) {
        st = spl_fail(err, SPL_E_BUSY, "%u requests are waiting already; try again later", e->n_waiting);
    } else {
        if (e->tail) {
            e->tail->next = r;
        } else {
            e->head = r;
        }
        e->tail = r;
        e->n_waiting++;
        e->stats.requests_total++;
        (void)pthread_cond_signal(&e->wake);
    }
    (void)pthread_mutex_unlock(&e->lock);
    return st;
}

void spl_engine_nudge(spl_engine *e) {
    (void)pthread_mutex_lock(&e->lock);
    (void)pthread_cond_signal(&e->wake);
    (void)pthread_mutex_unlock(&e->lock);
}

/* Unlinks the first waiting request for which `wanted` holds; NULL when there is none. */
static spl_request *take_waiting(spl_engine *e, bool (*wanted)(const spl_engine *, const spl_request *)) {
    (void)pthread_mutex_lock(&e->lock);
    spl_request *previous = NULL, *r = e->head;
    while (r && !wanted(e, r)) {
        previous = r;
        r = r->next;
    }
    if (r) {
        if (previous) {
            previous->next = r->next;
        } else {
            e->head = r->next;
        }
        if (e->tail == r) e->tail = previous;
        e->n_waiting--;
    }
    (void)pthread_mutex_unlock(&e->lock);
    return r;
}

/* ---- finishing ------------------------------------------------------------------------------ */

static void count_finish(spl_engine *e, spl_finish finish, const spl_usage *usage, const spl_error *error) {
    (void)pthread_mutex_lock(&e->lock);
    spl_engine_stats *s = &e->stats;
    if (error) {
        s->requests_failed++;
    } else if (finish == SPL_FINISH_CANCELLED) {
        s->requests_cancelled++;
    }
    if (usage->decode_ns > 0 && usage->completion_tokens > 1)
        s->last_decode_tokens_per_second = (usage->completion_tokens - 1) / ((double)usage->decode_ns * 1e-9);
    if (usage->prefill_ns > 0 && usage->prompt_tokens > usage->cached_tokens)
        s->last_prefill_tokens_per_second =
            (usage->prompt_tokens - usage->cached_tokens) / ((double)usage->prefill_ns * 1e-9);
    (void)pthread_mutex_unlock(&e->lock);
}

/* Publishes how much is in use. Called at each turn and before a request's end is reported. */
static uint32_t publish_load(spl_engine *e) {
    uint32_t running = 0;
    for (uint32_t i = 0; i < e->n_lanes; i++) running += e->lanes[i].phase != SPL_PHASE_FREE;
    (void)pthread_mutex_lock(&e->lock);
    e->stats.running = running;
    e->stats.kv_pages_used = e->pages.n_pages - e->pages.n_free;
    (void)pthread_mutex_unlock(&e->lock);
    return running;
}

/* Ends a request that never got a lane. */
static void finish_waiting(spl_engine *e, spl_request *r, spl_finish finish, const spl_error *error) {
    spl_usage usage = {.prompt_tokens = r->n_tokens, .queue_ns = spl_now_ns() - r->submitted_ns};
    count_finish(e, finish, &usage, error);
    r->sink.finished(r->sink.user, finish, &usage, error);
}

static void finish_lane(spl_engine *e, spl_lane *lane, spl_finish finish, const spl_error *error) {
    spl_request *r = lane->request;
    if (lane->phase == SPL_PHASE_DECODE) lane->usage.decode_ns = spl_now_ns() - lane->decode_started_ns;
    lane->usage.completion_tokens = lane->n_generated;
    spl_page_table_trim(&lane->pages, &e->pages, 0);
    e->reserved_pages -= lane->reserved_pages;
    lane->reserved_pages = 0;
    lane->request = NULL;
    lane->phase = SPL_PHASE_FREE;
    count_finish(e, finish, &lane->usage, error);
    (void)publish_load(e);
    r->sink.finished(r->sink.user, finish, &lane->usage, error);
}

/* ---- admission ------------------------------------------------------------------------------ */

static bool is_expired(const spl_request *r) { return r->deadline_ns && spl_now_ns() >= r->deadline_ns; }

static uint32_t max_generated(const spl_engine *e, const spl_request *r) {
    uint32_t room = e->plan.context_tokens - r->n_tokens;
    return r->max_new_tokens && r->max_new_tokens < room ? r->max_new_tokens : room;
}

static uint32_t pages_needed(const spl_engine *e, const spl_request *r) {
    uint64_t tokens = (uint64_t)r->n_tokens + max_generated(e, r) + VERIFY_SPARE_TOKENS;
    uint32_t pages = (uint32_t)spl_div_up(tokens, SPL_PAGE_TOKENS);
    return pages < e->pages.n_pages ? pages : e->pages.n_pages; /* rows past the pool are not verified */
}

static bool must_go(const spl_engine *e, const spl_request *r) {
    (void)e;
    return atomic_load(&r->cancelled) || is_expired(r);
}

/* First come, first served: a request that does not fit yet holds back those behind it. */
static bool is_admissible(const spl_engine *e, const spl_request *r) {
    return r == e->head && e->reserved_pages + pages_needed(e, r) <= e->pages.n_pages;
}

static void drop_waiting(spl_engine *e) {
    for (spl_request *r; (r = take_waiting(e, must_go)) != NULL;) {
        spl_error error;
        if (atomic_load(&r->cancelled)) {
            finish_waiting(e, r, SPL_FINISH_CANCELLED, NULL);
        } else {
            (void)spl_fail(&error, SPL_E_TIMEOUT, "the request's deadline passed while it waited");
            finish_waiting(e, r, SPL_FINISH_CANCELLED, &error);
        }
    }
}

static spl_status start_lane(spl_engine *e, spl_lane *lane, spl_request *r, spl_error *err) {
    lane->n_tokens = lane->n_generated = 0;
    lane->max_generated = max_generated(e, r);
    lane->rng = (spl_rng){.seed = r->seed};
    memset(&lane->usage, 0, sizeof lane->usage);
    lane->usage.prompt_tokens = r->n_tokens;
    lane->started_ns = spl_now_ns();
    lane->usage.queue_ns = lane->started_ns - r->submitted_ns;
    memset(lane->cell, 0, (size_t)e->plan.state_cell_bytes);
    lane->n_pending = lane->n_features = 0;
    spl_pace_rates_start(&lane->rates, &e->rates);
    spl_lookup_init(&lane->lookup, lane->lookup.tokens, e->plan.context_tokens);
    for (uint32_t i = 0; i < r->n_tokens; i++) spl_lookup_push(&lane->lookup, r->tokens[i]);
    lane->has_penalties = spl_sampling_has_penalties(&r->sampling);
    if (lane->has_penalties) {
        spl_penalties_init(&lane->penalties, lane->penalty_memory, penalty_tokens(e->plan.context_tokens), e->g->vocab);
        return spl_penalties_add_prompt(&lane->penalties, r->tokens, r->n_tokens, err);
    }
    return SPL_OK;
}

static void admit(spl_engine *e) {
    for (uint32_t i = 0; i < e->n_lanes; i++) {
        spl_lane *lane = &e->lanes[i];
        if (lane->phase != SPL_PHASE_FREE) continue;
        spl_request *r = take_waiting(e, is_admissible);
        if (!r) return;
        lane->request = r;
        lane->phase = SPL_PHASE_PREFILL;
        lane->reserved_pages = pages_needed(e, r);
        e->reserved_pages += lane->reserved_pages;
        spl_error error;
        if (start_lane(e, lane, r, &error) != SPL_OK) {
            finish_lane(e, lane, SPL_FINISH_CANCELLED, &error);
        } else {
            r->sink.started(r->sink.user);
        }
    }
}

/* ---- sampling ------------------------------------------------------------------------------- */

static bool is_stop_token(const spl_engine *e, uint32_t token) {
    for (uint32_t i = 0; i < e->n_stop_tokens; i++) {
        if (e->stop_tokens[i] == token) return true;
    }
    return false;
}

/* Reports one decided token, whose row of logits is given; true when it ended the request. */
static bool report_token(spl_engine *e, spl_lane *lane, uint32_t token, const float *logits) {
    spl_request *r = lane->request;
    spl_error error;
    spl_logprobs logprobs;
    if (r->logprobs && spl_logprobs_of(&logprobs, logits, e->g->vocab, 0, token, r->n_top_logprobs, e->sample_scratch,
                                       &error) != SPL_OK) {
        finish_lane(e, lane, SPL_FINISH_CANCELLED, &error);
        return true;
    }
    lane->next_token = token;
    lane->n_generated++;
    spl_lookup_push(&lane->lookup, token);
    if (lane->n_generated == 1) lane->usage.first_token_ns = spl_now_ns() - r->submitted_ns;
    if (!r->ignore_eos && is_stop_token(e, token)) {
        finish_lane(e, lane, SPL_FINISH_STOP, NULL);
    } else if (r->sink.token(r->sink.user, token, r->logprobs ? &logprobs : NULL)) {
        finish_lane(e, lane, SPL_FINISH_STOP, NULL);
    } else if (lane->n_generated >= lane->max_generated) {
        finish_lane(e, lane, SPL_FINISH_LENGTH, NULL);
    } else {
        return false;
    }
    return true;
}

/* The first token, sampled from the prompt's last row. */
static void sample_first(spl_engine *e, spl_lane *lane, const float *logits) {
    spl_request *r = lane->request;
    spl_error error;
    uint32_t token = 0;
    spl_dist_input in = {.logits = logits,
                         .vocab = e->g->vocab,
                         .sampling = &r->sampling,
                         .bias = r->bias,
                         .n_bias = r->n_bias,
                         .penalties = lane->has_penalties ? &lane->penalties : NULL};
    spl_status st = spl_sample_token(&token, &in, &lane->rng, e->sample_scratch, &error);
    if (st == SPL_OK && lane->has_penalties) st = spl_penalties_push(&lane->penalties, token, &error);
    if (st != SPL_OK) {
        finish_lane(e, lane, SPL_FINISH_CANCELLED, &error);
        return;
    }
    (void)report_token(e, lane, token, logits);
}

/* ---- commands ------------------------------------------------------------------------------- */

static size_t captured_width(const spl_geometry *g) { return (size_t)g->draft->n_capture * g->hidden; }

static spl_segment segment_of(spl_lane *lane, uint32_t row_begin, uint32_t n_rows) {
    return (spl_segment){.row_begin = row_begin,
                         .n_rows = n_rows,
                         .position = lane->n_tokens,
                         .page_table = lane->pages.ids,
                         .cell = lane->cell,
                         .pending = &lane->pending,
                         .n_commit = n_rows,
                         .ring = lane->ring};
}

static void prefill_chunk(spl_engine *e, spl_lane *lane) {
    spl_request *r = lane->request;
    spl_error error;
    uint32_t left = r->n_tokens - lane->n_tokens, n = left < PREFILL_ROWS ? left : PREFILL_ROWS;
    uint32_t last_row = n - 1;
    spl_segment segment = segment_of(lane, 0, n);
    spl_batch batch = {.tokens = r->tokens + lane->n_tokens,
                       .n_rows = n,
                       .segments = &segment,
                       .n_segments = 1,
                       .logit_rows = &last_row,
                       .n_logit_rows = n == left ? 1 : 0,
                       .kv_pool = e->pages.memory,
                       .page_stride = e->pages.page_bytes,
                       .abort = &r->cancelled};
    uint64_t begin = spl_now_ns();
    spl_status st = spl_page_table_grow(&lane->pages, &e->pages, lane->n_tokens + n, &error);
    segment.page_table = lane->pages.ids;
    if (st == SPL_OK) st = spl_step_run(e->step, &batch, &error);
    if (st != SPL_OK) {
        finish_lane(e, lane, SPL_FINISH_CANCELLED, st == SPL_E_CANCELLED ? NULL : &error);
        return;
    }
    uint64_t spent = spl_now_ns() - begin;
    lane->n_tokens += n;
    lane->usage.prefill_ns += spent;
    (void)pthread_mutex_lock(&e->lock);
    e->stats.prefill_chunks_total++;
    e->stats.prompt_tokens_total += n;
    e->stats.generated_tokens_total += n == left; /* the first token comes from the prompt's last row */
    e->stats.prefill_ns_total += spent;
    (void)pthread_mutex_unlock(&e->lock);
    r->sink.prefill(r->sink.user, lane->n_tokens, r->n_tokens);
    if (n < left) return;
    lane->phase = SPL_PHASE_DECODE;
    lane->decode_started_ns = spl_now_ns();
    sample_first(e, lane, spl_step_logits(e->step));
}

/* Rows a lane may verify: block, budget, pages. */
static uint32_t row_limit(const spl_lane *lane) {
    uint32_t budget = lane->max_generated - lane->n_generated;
    uint32_t pages = lane->reserved_pages * SPL_PAGE_TOKENS - lane->n_tokens;
    uint32_t rows = budget < SPL_BLOCK_ROWS ? budget : SPL_BLOCK_ROWS;
    return rows < pages ? rows : pages;
}

/* Decides what a lane does in this step and fills its decode record; returns its rows. `tokens` gets them. */
static uint32_t prepare_lane(spl_engine *e, spl_lane *lane, uint32_t index, uint32_t n_lanes, uint32_t *tokens) {
    const spl_request *r = lane->request;
    spl_decode_lane *d = &e->decode[index];
    lookup_offer *found = &e->found[index];
    found->n_tokens =
        e->config.no_lookup ? 0 : spl_lookup_find(&lane->lookup, found->tokens, SPL_MAX_PROPOSALS, &found->kind);
    spl_pace_offer offer = {.can_draft = e->drafts,
                            .lookup_rows = 1 + found->n_tokens,
                            .lookup_kind = found->kind,
                            .max_rows = row_limit(lane),
                            .n_lanes = n_lanes};
    spl_pace_choice choice = e->config.fixed_rows ? spl_pace_choose_fixed(&lane->rates, &offer, e->config.fixed_rows)
                                                  : spl_pace_choose(&lane->rates, &e->cost, &offer);
    memset(d, 0, sizeof *d);
    d->drafts = choice.mode == SPL_PACE_DRAFT;
    d->sampling = &r->sampling;
    d->bias = r->bias;
    d->n_bias = r->n_bias;
    d->penalties = lane->has_penalties ? &lane->penalties : NULL;
    d->keeps_logits = r->logprobs;
    d->limits = (spl_accept_limits){.max_retained = choice.n_rows,
                                    .stop_tokens = e->stop_tokens,
                                    .n_stop_tokens = r->ignore_eos ? 0 : e->n_stop_tokens};
    if (r->sampling.temperature > 0) spl_rng_step(&lane->rng, d->uniforms);
    tokens[0] = lane->next_token;
    for (uint32_t i = 1; i < choice.n_rows; i++) {
        tokens[i] = choice.mode == SPL_PACE_LOOKUP ? found->tokens[i - 1] : 0; /* the run fills in what it drafts */
        d->proposals[i - 1].token = tokens[i];
    }
    /* Tapped rows enter the ring when a block is drafted, or before their buffer overflows. */
    if (lane->ring && (d->drafts || lane->n_features + choice.n_rows > SPL_BLOCK_ROWS)) {
        d->context = lane->features;
        d->n_context = lane->n_features;
        lane->n_features = 0;
    }
    return choice.n_rows;
}

/* Adds what became of a step's proposals. */
static void learn_rates(spl_pace_rates *rates, const spl_decode_lane *d, uint32_t n_proposed,
                        const lookup_offer *found) {
    spl_pace_lookup_result(rates, found->kind, found->tokens, found->n_tokens, d->result.tokens, d->result.retained);
    if (d->drafts) spl_pace_draft_result(rates, n_proposed, d->result.n_accepted);
}

/* Takes over what a lane's rows came to. */
static void settle_lane(spl_engine *e, spl_lane *lane, uint32_t index, uint32_t n_lanes, const spl_segment *seg,
                        double seconds) {
    const spl_decode_lane *d = &e->decode[index];
    if (d->status != SPL_OK) {
        finish_lane(e, lane, SPL_FINISH_CANCELLED, &d->error);
        return;
    }
    uint32_t retained = d->result.retained, proposed = seg->n_rows - 1, accepted = d->result.n_accepted;
    lane->n_tokens += retained;
    lane->n_pending = 0;
    if (seg->n_commit < seg->n_rows) {
        lane->n_pending = retained;
        lane->pending.half ^= 1u;
    }
    if (lane->ring) lane->n_features += retained;
    lane->usage.decode_steps++;
    lane->usage.draft_tokens += proposed;
    lane->usage.draft_accepted += accepted;
    learn_rates(&lane->rates, d, proposed, &e->found[index]);
    spl_pace_step_result(&lane->rates, &e->cost, d->drafts, seg->n_rows, n_lanes, seconds, retained);
    /* With fixed rows every request starts alike, so that what is measured does not depend on what came before. */
    if (!e->config.fixed_rows) learn_rates(&e->rates, d, proposed, &e->found[index]);
    const float *logits = spl_step_logits(e->step) + (size_t)seg->row_begin * e->g->vocab;
    for (uint32_t i = 0; i < retained; i++) {
        if (report_token(e, lane, d->result.tokens[i], logits + (size_t)i * e->g->vocab)) return;
    }
}

static void count_step(spl_engine *e, const spl_segment *segments, uint32_t n, uint32_t n_rows, uint64_t spent_ns) {
    bool drafted = false;
    (void)pthread_mutex_lock(&e->lock);
    spl_engine_stats *s = &e->stats;
    s->decode_steps_total++;
    s->decode_ns_total += spent_ns;
    s->verify_rows_total += n_rows;
    for (uint32_t i = 0; i < n; i++) {
        const spl_decode_lane *d = &e->decode[i];
        uint32_t proposed = segments[i].n_rows - 1, accepted = d->status == SPL_OK ? d->result.n_accepted : 0;
        s->generated_tokens_total += d->status == SPL_OK ? d->result.retained : 0;
        drafted = drafted || d->drafts;
        if (!d->drafts) {
            s->lookup_steps_total += proposed > 0;
            s->lookup_tokens_total += proposed;
            s->lookup_accepted_total += accepted;
            continue;
        }
        s->draft_steps_total++;
        s->draft_tokens_total += proposed;
        s->draft_accepted_total += accepted;
        for (uint32_t k = 0; k < proposed; k++) {
            s->position_drafted[k]++;
            s->position_accepted[k] += k < accepted;
        }
    }
    (void)pthread_mutex_unlock(&e->lock);
    spl_pace_cost_add(&e->cost, drafted, n_rows, (double)spent_ns * 1e-9);
}

/* One step over the decoding lanes: drafts, verifies and accepts in one dispatch. */
static void decode_step(spl_engine *e, spl_lane *const *lanes, uint32_t n) {
    uint32_t tokens[SPL_MAX_DECODE_ROWS] = {0}, n_rows = 0;
    spl_segment segments[SPL_MAX_LANES];
    spl_error error;
    spl_status st = SPL_OK;
    uint64_t begin = spl_now_ns();
    for (uint32_t i = 0; i < n && st == SPL_OK; i++) {
        spl_lane *lane = lanes[i];
        uint32_t rows = prepare_lane(e, lane, i, n, tokens + n_rows);
        st = spl_page_table_grow(&lane->pages, &e->pages, lane->n_tokens + rows, &error);
        segments[i] = segment_of(lane, n_rows, rows);
        segments[i].n_pending = lane->n_pending;
        segments[i].n_commit = rows == 1 ? 1 : 0;
        if (lane->ring) segments[i].features = lane->features + (size_t)lane->n_features * captured_width(e->g);
        n_rows += rows;
    }
    spl_batch batch = {.tokens = tokens,
                       .n_rows = n_rows,
                       .segments = segments,
                       .n_segments = n,
                       .kv_pool = e->pages.memory,
                       .page_stride = e->pages.page_bytes,
                       .lanes = e->decode};
    if (st == SPL_OK) st = spl_step_run(e->step, &batch, &error);
    if (st != SPL_OK) {
        for (uint32_t i = 0; i < n; i++) finish_lane(e, lanes[i], SPL_FINISH_CANCELLED, &error);
        return;
    }
    uint64_t spent_ns = spl_now_ns() - begin;
    count_step(e, segments, n, n_rows, spent_ns);
    for (uint32_t i = 0; i < n; i++) settle_lane(e, lanes[i], i, n, &segments[i], (double)spent_ns * 1e-9);
}

static void drop_lanes(spl_engine *e) {
    for (uint32_t i = 0; i < e->n_lanes; i++) {
        spl_lane *lane = &e->lanes[i];
        spl_error error;
        if (lane->phase == SPL_PHASE_FREE) continue;
        if (atomic_load(&lane->request->cancelled)) {
            finish_lane(e, lane, SPL_FINISH_CANCELLED, NULL);
        } else if (is_expired(lane->request)) {
            (void)spl_fail(&error, SPL_E_TIMEOUT, "the request's deadline passed after %u tokens", lane->n_generated);
            finish_lane(e, lane, SPL_FINISH_CANCELLED, &error);
        }
    }
}

/* The prefilling lane whose request came first, or NULL. */
static spl_lane *oldest_prefill(spl_engine *e) {
    spl_lane *oldest = NULL;
    for (uint32_t i = 0; i < e->n_lanes; i++) {
        spl_lane *lane = &e->lanes[i];
        if (lane->phase == SPL_PHASE_PREFILL &&
            (!oldest || lane->request->submitted_ns < oldest->request->submitted_ns))
            oldest = lane;
    }
    return oldest;
}

/* One turn; false when there was nothing to do. */
static bool turn(spl_engine *e) {
    drop_waiting(e);
    drop_lanes(e);
    admit(e);
    spl_lane *prefilling = oldest_prefill(e), *decoding[SPL_MAX_LANES];
    uint32_t running = publish_load(e), n = 0;
    if (prefilling) prefill_chunk(e, prefilling);
    for (uint32_t i = 0; i < e->n_lanes; i++) {
        if (e->lanes[i].phase == SPL_PHASE_DECODE) decoding[n++] = &e->lanes[i];
    }
    if (n > 0) decode_step(e, decoding, n);
    return running > 0;
}

static bool is_any(const spl_engine *e, const spl_request *r) {
    (void)e;
    return r != NULL;
}

/* Waits until there may be work; true when the engine is to stop. */
static bool wait_for_work(spl_engine *e, bool idle) {
    (void)pthread_mutex_lock(&e->lock);
    while (idle && !e->quit && !e->head) (void)pthread_cond_wait(&e->wake, &e->lock);
    bool quit = e->quit;
    (void)pthread_mutex_unlock(&e->lock);
    return quit;
}

static void *engine_main(void *arg) {
    spl_engine *e = arg;
    bool idle = true;
    while (!wait_for_work(e, idle)) idle = !turn(e);
    for (uint32_t i = 0; i < e->n_lanes; i++) {
        if (e->lanes[i].phase != SPL_PHASE_FREE) finish_lane(e, &e->lanes[i], SPL_FINISH_CANCELLED, NULL);
    }
    for (spl_request *r; (r = take_waiting(e, is_any)) != NULL;) finish_waiting(e, r, SPL_FINISH_CANCELLED, NULL);
    return NULL;
}

/* ---- making and unmaking -------------------------------------------------------------------- */

static spl_status make_lane(spl_engine *e, spl_lane *lane, spl_error *err) {
    uint32_t n_layers = spl_package_n_layers(e->config.package);
    lane_sizes z = sizes_of(e->g, n_layers, e->plan.context_tokens, e->drafts, e->config.oracle);
    bool huge = !e->config.small_pages;
    spl_status st = spl_page_table_init(&lane->pages, e->plan.context_tokens + VERIFY_SPARE_TOKENS, err);
    if (st != SPL_OK) return st;
    size_t n_bytes = z.pending + z.ring + z.features + z.lookup;
    lane->cell = spl_alloc_pages((size_t)e->plan.state_cell_bytes, huge);
    lane->memory = spl_alloc_pages(n_bytes, huge);
    lane->penalty_memory = malloc(z.penalties);
    if (!lane->cell || !lane->memory || !lane->penalty_memory)
        return spl_fail(err, SPL_E_NOMEM, "no memory for a lane of %llu bytes",
                        (unsigned long long)(e->plan.state_cell_bytes + n_bytes + z.penalties));
    uint8_t *at = lane->memory;
    memset(at, 0, n_bytes);
    spl_pending_place(&lane->pending, at, e->g, n_layers);
    at += z.pending;
    if (e->drafts) {
        lane->ring = at;
        lane->features = (float *)(void *)(at + z.ring);
    }
    spl_lookup_init(&lane->lookup, at + z.ring + z.features, e->plan.context_tokens);
    return SPL_OK;
}

static spl_status make_parts(spl_engine *e, spl_error *err) {
    spl_status st = spl_team_create(&e->team, e->config.n_threads, spl_set_ftz, err);
    if (st != SPL_OK) return st;
    spl_step_config config = step_config(e->g, &e->config, e->drafts);
    config.package = e->config.package;
    config.kernels = &e->kernels;
    config.team = e->team;
    st = spl_step_create(&e->step, &config, err);
    if (st == SPL_OK) st = spl_page_pool_init(&e->pages, (size_t)e->plan.kv_page_bytes, e->plan.kv_pages, err);
    if (st == SPL_OK) spl_advise_pages(e->pages.memory, (size_t)e->plan.kv_bytes, !e->config.small_pages);
    e->n_lanes = e->plan.max_lanes;
    for (uint32_t i = 0; i < e->n_lanes && st == SPL_OK; i++) st = make_lane(e, &e->lanes[i], err);
    if (st != SPL_OK) return st;
    if (posix_memalign(&e->sample_scratch, SPL_CACHE_LINE, spl_dist_scratch_bytes(e->g->vocab)) != 0) {
        e->sample_scratch = NULL;
        return spl_fail(err, SPL_E_NOMEM, "no memory for sampling over %u tokens", e->g->vocab);
    }
    int rc = pthread_create(&e->thread, NULL, engine_main, e);
    if (rc != 0) return spl_fail_errno(err, rc, "cannot start the engine thread");
    e->thread_started = true;
    return SPL_OK;
}

spl_status spl_engine_create(spl_engine **out, const spl_engine_config *config, spl_error *err) {
    *out = NULL;
    spl_engine *e = calloc(1, sizeof *e);
    if (!e) return spl_fail(err, SPL_E_NOMEM, "no memory for the engine");
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_cond_init(&e->wake, NULL);
    e->config = *config;
    e->kernels = *config->kernels;
    e->g = spl_package_geometry(config->package);
    spl_package_defaults defaults;
    spl_package_get_defaults(config->package, &defaults);
    e->n_stop_tokens = defaults.n_stop_tokens;
    memcpy(e->stop_tokens, defaults.stop_tokens, sizeof e->stop_tokens);
    bool has_draft = spl_package_has_draft(config->package);
    e->drafts = has_draft && e->g->draft && !config->no_draft;
    spl_pace_rates_init(&e->rates);
    for (uint32_t rows = 1; config->tuned && rows <= SPL_MAX_DECODE_ROWS; rows++)
        for (int drafted = 0; drafted < 2; drafted++)
            spl_pace_cost_add(&e->cost, drafted, rows, config->tuned->seconds[drafted][rows]);
    e->config.tuned = NULL;
    spl_status st = spl_engine_plan(e->g, spl_package_n_layers(config->package), has_draft, config, &e->plan, err);
    if (st == SPL_OK) st = make_parts(e, err);
    if (st != SPL_OK) {
        spl_engine_destroy(e);
        return st;
    }
    e->stats.kv_pages_total = e->pages.n_pages;
    *out = e;
    return SPL_OK;
}

void spl_engine_destroy(spl_engine *e) {
    if (!e) return;
    if (e->thread_started) {
        (void)pthread_mutex_lock(&e->lock);
        e->quit = true;
        (void)pthread_cond_signal(&e->wake);
        (void)pthread_mutex_unlock(&e->lock);
        (void)pthread_join(e->thread, NULL);
    }
    for (uint32_t i = 0; i < SPL_MAX_LANES; i++) {
        spl_page_table_free(&e->lanes[i].pages, &e->pages);
        free(e->lanes[i].cell);
        free(e->lanes[i].memory);
        free(e->lanes[i].penalty_memory);
    }
    free(e->sample_scratch);
    spl_page_pool_free(&e->pages);
    spl_step_destroy(e->step);
    spl_team_destroy(e->team);
    (void)pthread_cond_destroy(&e->wake);
    (void)pthread_mutex_destroy(&e->lock);
    free(e);
}
