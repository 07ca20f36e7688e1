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
#include "engine/lane.h"
#include "step/step.h"

enum {
    PREFILL_ROWS = 256,      /* rows of one chunk; a cancelled chunk ends at its next op */
    CONTEXT_SPARE_TOKENS = 1 /* room for at least one generated token */
};

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

spl_status spl_engine_plan(const spl_geometry *g, uint32_t n_layers, const spl_engine_config *config, spl_plan *out,
                           spl_error *err) {
    uint64_t arena = 0, logits = (uint64_t)SPL_MAX_LANES * g->vocab * sizeof(float);
    spl_status st =
        spl_step_bytes(g, n_layers, PREFILL_ROWS, SPL_MAX_LANES, false, config->oracle, config->n_threads, &arena, err);
    if (st != SPL_OK) return st;
    uint32_t longest = config->context_tokens ? config->context_tokens : g->max_positions;
    if (longest > g->max_positions) longest = g->max_positions;
    spl_plan_request r = {.n_layers = n_layers,
                          .context_tokens = config->context_tokens,
                          .max_lanes = SPL_MAX_LANES,
                          .n_threads = config->n_threads,
                          .f32_kv = config->oracle,
                          .state_cell_bytes = spl_state_cell_bytes(g, n_layers),
                          .lane_bytes = spl_penalties_bytes(penalty_tokens(longest), g->vocab),
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
    return (uint32_t)spl_div_up((uint64_t)r->n_tokens + max_generated(e, r), SPL_PAGE_TOKENS);
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

/* Samples the lane's next token from a row of logits and reports it; may finish the lane. */
static void sample_lane(spl_engine *e, spl_lane *lane, const float *logits) {
    spl_request *r = lane->request;
    spl_error error;
    spl_logprobs logprobs;
    uint32_t token = 0;
    spl_dist_input in = {.logits = logits,
                         .vocab = e->g->vocab,
                         .sampling = &r->sampling,
                         .bias = r->bias,
                         .n_bias = r->n_bias,
                         .penalties = lane->has_penalties ? &lane->penalties : NULL};
    spl_status st = spl_sample_token(&token, &in, &lane->rng, e->sample_scratch, &error);
    if (st == SPL_OK && r->logprobs)
        st = spl_logprobs_of(&logprobs, logits, e->g->vocab, 0, token, r->n_top_logprobs, e->sample_scratch, &error);
    if (st == SPL_OK && lane->has_penalties) st = spl_penalties_push(&lane->penalties, token, &error);
    if (st != SPL_OK) {
        finish_lane(e, lane, SPL_FINISH_CANCELLED, &error);
        return;
    }
    lane->next_token = token;
    lane->n_generated++;
    if (lane->n_generated == 1) lane->usage.first_token_ns = spl_now_ns() - r->submitted_ns;
    if (!r->ignore_eos && is_stop_token(e, token)) {
        finish_lane(e, lane, SPL_FINISH_STOP, NULL);
    } else if (r->sink.token(r->sink.user, token, r->logprobs ? &logprobs : NULL)) {
        finish_lane(e, lane, SPL_FINISH_STOP, NULL);
    } else if (lane->n_generated >= lane->max_generated) {
        finish_lane(e, lane, SPL_FINISH_LENGTH, NULL);
    }
}

/* ---- commands ------------------------------------------------------------------------------- */

static spl_segment segment_of(const spl_lane *lane, uint32_t row_begin, uint32_t n_rows) {
    return (spl_segment){.row_begin = row_begin,
                         .n_rows = n_rows,
                         .position = lane->n_tokens,
                         .page_table = lane->pages.ids,
                         .cell = lane->cell,
                         .n_commit = n_rows};
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
    e->stats.prefill_ns_total += spent;
    (void)pthread_mutex_unlock(&e->lock);
    r->sink.prefill(r->sink.user, lane->n_tokens, r->n_tokens);
    if (n < left) return;
    lane->phase = SPL_PHASE_DECODE;
    lane->decode_started_ns = spl_now_ns();
    sample_lane(e, lane, spl_step_logits(e->step));
}

/* One row for each of the lanes; every row has logits. */
static void decode_step(spl_engine *e, spl_lane *const *lanes, uint32_t n) {
    uint32_t tokens[SPL_MAX_LANES], rows[SPL_MAX_LANES];
    spl_segment segments[SPL_MAX_LANES];
    spl_error error;
    spl_status st = SPL_OK;
    for (uint32_t i = 0; i < n && st == SPL_OK; i++) {
        st = spl_page_table_grow(&lanes[i]->pages, &e->pages, lanes[i]->n_tokens + 1, &error);
        tokens[i] = lanes[i]->next_token;
        rows[i] = i;
        segments[i] = segment_of(lanes[i], i, 1);
    }
    spl_batch batch = {.tokens = tokens,
                       .n_rows = n,
                       .segments = segments,
                       .n_segments = n,
                       .logit_rows = rows,
                       .n_logit_rows = n,
                       .kv_pool = e->pages.memory,
                       .page_stride = e->pages.page_bytes};
    uint64_t begin = spl_now_ns();
    if (st == SPL_OK) st = spl_step_run(e->step, &batch, &error);
    if (st != SPL_OK) {
        for (uint32_t i = 0; i < n; i++) finish_lane(e, lanes[i], SPL_FINISH_CANCELLED, &error);
        return;
    }
    (void)pthread_mutex_lock(&e->lock);
    e->stats.decode_steps_total++;
    e->stats.generated_tokens_total += n;
    e->stats.decode_ns_total += spl_now_ns() - begin;
    (void)pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; i < n; i++) {
        lanes[i]->n_tokens++;
        lanes[i]->usage.decode_steps++;
        sample_lane(e, lanes[i], spl_step_logits(e->step) + (size_t)i * e->g->vocab);
    }
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

static spl_status make_lanes(spl_engine *e, spl_error *err) {
    e->n_lanes = e->plan.max_lanes;
    for (uint32_t i = 0; i < e->n_lanes; i++) {
        void *cell = NULL;
        spl_status st = spl_page_table_init(&e->lanes[i].pages, e->plan.context_tokens, err);
        if (st != SPL_OK) return st;
        if (posix_memalign(&cell, 4096, (size_t)e->plan.state_cell_bytes) != 0)
            return spl_fail(err, SPL_E_NOMEM, "no memory for a state cell of %llu bytes",
                            (unsigned long long)e->plan.state_cell_bytes);
        e->lanes[i].cell = cell;
        size_t n_bytes = spl_penalties_bytes(penalty_tokens(e->plan.context_tokens), e->g->vocab);
        e->lanes[i].penalty_memory = malloc(n_bytes);
        if (!e->lanes[i].penalty_memory)
            return spl_fail(err, SPL_E_NOMEM, "no memory for a penalty table of %zu bytes", n_bytes);
    }
    return SPL_OK;
}

static spl_status make_parts(spl_engine *e, spl_error *err) {
    spl_status st = spl_team_create(&e->team, e->config.n_threads, spl_set_ftz, err);
    if (st != SPL_OK) return st;
    spl_step_config config = {.geometry = e->g,
                              .package = e->config.package,
                              .kernels = &e->kernels,
                              .team = e->team,
                              .max_rows = PREFILL_ROWS,
                              .max_logit_rows = SPL_MAX_LANES,
                              .oracle = e->config.oracle};
    st = spl_step_create(&e->step, &config, err);
    if (st == SPL_OK) st = spl_page_pool_init(&e->pages, (size_t)e->plan.kv_page_bytes, e->plan.kv_pages, err);
    if (st == SPL_OK) st = make_lanes(e, err);
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
    spl_status st = spl_engine_plan(e->g, spl_package_n_layers(config->package), config, &e->plan, err);
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
