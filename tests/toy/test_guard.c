/* SPDX-License-Identifier: Apache-2.0
 * A step that is handed inconsistent lanes - counts out of range, rows or rings that are not there, the mark of a
 * wrong acceptance - refuses the whole run and writes nothing: no state, cache, ring, feature, pending row or result.
 * Every case breaks one thing in a run that is sound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "cache/page_pool.h"
#include "step/step.h"

enum { N_LANES = 2, N_PROMPT = 12, N_RETAINED = 3, POSITION = N_PROMPT + N_RETAINED, CONTEXT = 64, GUARD = 0x5a };

static const spl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};

/* A block of memory that a run may write, and what it held before. */
typedef struct watched {
    uint8_t *memory, *before;
    size_t n_bytes;
} watched;

enum { CELLS, RINGS, FEATURES, PENDING, N_WATCHED };

typedef struct rig {
    const spl_geometry *g;
    spl_package *package;
    spl_team *team;
    spl_step *step, *plain; /* with the draft; without it */
    spl_page_pool pool;
    spl_page_table tables[N_LANES];
    spl_pending pending[N_LANES];
    watched watched[N_LANES][N_WATCHED];
    uint8_t *pool_before;
} rig;

/* The run that a case breaks. */
typedef struct run_case {
    rig *r;
    spl_step *step;
    uint32_t tokens[SPL_MAX_DECODE_ROWS + SPL_BLOCK_ROWS];
    spl_segment segments[SPL_MAX_LANES + 1];
    spl_decode_lane lanes[SPL_MAX_LANES + 1];
    spl_batch batch;
} run_case;

static watched watch(size_t n_bytes) {
    watched w = {.n_bytes = n_bytes, .before = malloc(n_bytes)};
    void *memory = NULL;
    assert_non_null(w.before);
    assert_int_equal(posix_memalign(&memory, 64, n_bytes), 0);
    w.memory = memory;
    memset(w.memory, 0, n_bytes);
    return w;
}

static spl_step *step_of(rig *r, const spl_kernels *kernels, bool draft) {
    spl_error err;
    spl_step *step;
    spl_step_config config = {.geometry = r->g,
                              .package = r->package,
                              .kernels = kernels,
                              .team = r->team,
                              .max_rows = 32,
                              .max_logit_rows = 32,
                              .decode = true,
                              .draft = draft};
    if (spl_step_create(&step, &config, &err) != SPL_OK) fail_msg("%s", err.text);
    return step;
}

static void rig_open(rig *r) {
    spl_error err;
    spl_kernels kernels;
    memset(r, 0, sizeof *r);
    r->g = spl_geometry_find("toy-tiny");
    assert_int_equal(spl_package_random(&r->package, r->g, 0, true, 3, &err), SPL_OK);
    assert_int_equal(spl_team_create(&r->team, 1, spl_set_ftz, &err), SPL_OK);
    assert_int_equal(spl_kernels_select(&kernels, SPL_N_TIERS, &err), SPL_OK);
    r->step = step_of(r, &kernels, true);
    r->plain = step_of(r, &kernels, false);
    assert_int_equal(spl_page_pool_init(&r->pool, spl_kv_page_bytes(r->g, 0, false), 8, &err), SPL_OK);
    r->pool_before = malloc(8 * r->pool.page_bytes);
    assert_non_null(r->pool_before);
    for (int i = 0; i < N_LANES; i++) {
        watched *w = r->watched[i];
        assert_int_equal(spl_page_table_init(&r->tables[i], CONTEXT, &err), SPL_OK);
        assert_int_equal(spl_page_table_grow(&r->tables[i], &r->pool, CONTEXT, &err), SPL_OK);
        w[CELLS] = watch((size_t)spl_state_cell_bytes(r->g, 0));
        w[RINGS] = watch((size_t)spl_draft_ring_bytes(r->g, false));
        w[FEATURES] = watch(SPL_BLOCK_ROWS * (size_t)r->g->draft->n_capture * r->g->hidden * sizeof(float));
        w[PENDING] = watch((size_t)spl_pending_bytes(r->g, r->g->n_layers));
        spl_pending_place(&r->pending[i], w[PENDING].memory, r->g, r->g->n_layers);
    }
}

static void rig_close(rig *r) {
    for (int i = 0; i < N_LANES; i++) {
        for (int j = 0; j < N_WATCHED; j++) {
            free(r->watched[i][j].memory);
            free(r->watched[i][j].before);
        }
        spl_page_table_free(&r->tables[i], &r->pool);
    }
    free(r->pool_before);
    spl_page_pool_free(&r->pool);
    spl_step_destroy(r->step);
    spl_step_destroy(r->plain);
    spl_team_destroy(r->team);
    spl_package_close(r->package);
}

/* A sound decode run of two drafting lanes: three rows of the step before are pending and enter the rings. */
static void sound(run_case *c, rig *r) {
    memset(c, 0, sizeof *c);
    c->r = r;
    c->step = r->step;
    for (uint32_t i = 0; i < N_LANES; i++) {
        watched *w = r->watched[i];
        c->segments[i] = (spl_segment){.row_begin = i * SPL_BLOCK_ROWS,
                                       .n_rows = SPL_BLOCK_ROWS,
                                       .position = POSITION,
                                       .page_table = r->tables[i].ids,
                                       .cell = (float *)(void *)w[CELLS].memory,
                                       .pending = &r->pending[i],
                                       .n_pending = N_RETAINED,
                                       .ring = w[RINGS].memory,
                                       .features = (float *)(void *)w[FEATURES].memory};
        c->lanes[i] = (spl_decode_lane){.drafts = true,
                                        .context = (const float *)(const void *)w[FEATURES].memory,
                                        .n_context = N_RETAINED,
                                        .sampling = &greedy,
                                        .limits = {.max_retained = SPL_BLOCK_ROWS}};
        c->tokens[i * SPL_BLOCK_ROWS] = 7 + i;
    }
    c->batch = (spl_batch){.tokens = c->tokens,
                           .n_rows = N_LANES * SPL_BLOCK_ROWS,
                           .segments = c->segments,
                           .n_segments = N_LANES,
                           .kv_pool = r->pool.memory,
                           .page_stride = r->pool.page_bytes,
                           .lanes = c->lanes};
}

/* A sound prefill of both lanes. */
static void sound_prefill(run_case *c, rig *r) {
    sound(c, r);
    for (uint32_t i = 0; i < N_LANES; i++) {
        spl_segment *seg = &c->segments[i];
        *seg = (spl_segment){.row_begin = i * N_PROMPT,
                             .n_rows = N_PROMPT,
                             .page_table = seg->page_table,
                             .cell = seg->cell,
                             .n_commit = N_PROMPT,
                             .ring = seg->ring};
    }
    c->batch.n_rows = N_LANES * N_PROMPT;
    c->batch.lanes = NULL;
}

static void remember(rig *r) {
    memcpy(r->pool_before, r->pool.memory, 8 * r->pool.page_bytes);
    for (int i = 0; i < N_LANES; i++) {
        for (int j = 0; j < N_WATCHED; j++)
            memcpy(r->watched[i][j].before, r->watched[i][j].memory, r->watched[i][j].n_bytes);
    }
}

static bool untouched(const rig *r) {
    if (memcmp(r->pool_before, r->pool.memory, 8 * r->pool.page_bytes) != 0) return false;
    for (int i = 0; i < N_LANES; i++) {
        for (int j = 0; j < N_WATCHED; j++) {
            const watched *w = &r->watched[i][j];
            if (memcmp(w->before, w->memory, w->n_bytes) != 0) return false;
        }
    }
    return true;
}

/* ---- cases ---------------------------------------------------------------------------------- */

/* Of lane 1, so that lane 0 shows whether anything ran. */
#define SEG c->segments[1]
#define LANE c->lanes[1]

static void pending_beyond_a_block(run_case *c) { SEG.n_pending = SPL_BLOCK_ROWS + 1; }
static void pending_wraps(run_case *c) { SEG.n_pending = UINT32_MAX; }
static void pending_before_the_text(run_case *c) {
    SEG.position = N_RETAINED - 1;
    LANE.n_context = 0;
}
static void pending_nowhere(run_case *c) { SEG.pending = NULL; }
static void pending_in_a_third_half(run_case *c) { SEG.pending->half = 2; }
static void context_beyond_a_block(run_case *c) { LANE.n_context = SPL_BLOCK_ROWS + 1; }
static void context_wraps(run_case *c) { LANE.n_context = UINT32_MAX; }
static void context_before_the_text(run_case *c) {
    SEG.position = N_RETAINED - 1;
    SEG.n_pending = 0;
}
static void context_nowhere(run_case *c) { LANE.context = NULL; }
static void no_ring_for_a_block(run_case *c) {
    SEG.ring = NULL;
    LANE.n_context = 0;
}
static void no_ring_for_context(run_case *c) {
    SEG.ring = NULL;
    LANE.drafts = false;
}
static void no_draft_in_the_step(run_case *c) { c->step = c->r->plain; }
static void rows_beyond_a_block(run_case *c) {
    SEG.n_rows++;
    c->batch.n_rows++;
}
static void rows_none(run_case *c) { SEG.n_rows = 0; }
static void rows_overlap(run_case *c) { SEG.row_begin--; }
static void rows_leave_a_gap(run_case *c) { SEG.row_begin++; }
static void rows_uncovered(run_case *c) { SEG.n_rows--; }
static void rows_wrap(run_case *c) { SEG.n_rows = UINT32_MAX; }
static void rows_beyond_the_step(run_case *c) { c->batch.n_rows = SPL_MAX_DECODE_ROWS + 1; }
static void commit_beyond_the_rows(run_case *c) { SEG.n_commit = SPL_BLOCK_ROWS + 1; }
static void commit_of_some(run_case *c) { SEG.n_commit = 2; }
static void position_wraps(run_case *c) { SEG.position = UINT32_MAX - 3; }
static void no_pages(run_case *c) { SEG.page_table = NULL; }
static void no_state(run_case *c) { SEG.cell = NULL; }
static void retained_none(run_case *c) { LANE.limits.max_retained = 0; }
static void retained_beyond_the_rows(run_case *c) { LANE.limits.max_retained = SPL_BLOCK_ROWS + 1; }
static void retained_wraps(run_case *c) { LANE.limits.max_retained = UINT32_MAX; }
static void stop_tokens_nowhere(run_case *c) { LANE.limits.n_stop_tokens = 1; }
static void candidates_too_many(run_case *c) {
    LANE.drafts = false;
    LANE.proposals[6].n_q = SPL_MAX_CANDIDATES + 1;
}
static void candidates_nowhere(run_case *c) {
    LANE.drafts = false;
    LANE.proposals[0].n_q = 1;
}
static void token_outside(run_case *c) { c->tokens[12] = c->r->g->vocab; }
static void no_sampling(run_case *c) { LANE.sampling = NULL; }
static void bias_nowhere(run_case *c) { LANE.n_bias = 1; }
static void lanes_too_many(run_case *c) {
    for (uint32_t i = 0; i <= SPL_MAX_LANES; i++) {
        c->segments[i] = c->segments[0];
        c->lanes[i] = c->lanes[0];
        c->segments[i].row_begin = i;
        c->segments[i].n_rows = c->lanes[i].limits.max_retained = 1;
    }
    c->batch.n_segments = c->batch.n_rows = SPL_MAX_LANES + 1;
}
static void lanes_none(run_case *c) { c->batch.n_segments = 0; }

typedef struct guard_case {
    const char *name;
    void (*break_it)(run_case *c);
} guard_case;
#define CASE(name)                                                                                                     \
    { #name, name }

static void check(rig *r, void (*make)(run_case *, rig *), const guard_case *cases, size_t n_cases) {
    static run_case c, kept;
    spl_error err;
    for (size_t i = 0; i < n_cases; i++) {
        make(&c, r);
        cases[i].break_it(&c);
        for (int lane = 0; lane < N_LANES; lane++) {
            memset(&c.lanes[lane].result, GUARD, sizeof c.lanes[lane].result);
            c.lanes[lane].status = SPL_E_INTERNAL;
        }
        memcpy(&kept, &c, sizeof c);
        remember(r);
        spl_status st = spl_step_run(c.step, &c.batch, &err);
        r->pending[1].half = 0;
        if (st != SPL_E_INVALID) fail_msg("%s: status %d", cases[i].name, (int)st);
        if (!untouched(r) || memcmp(&kept, &c, sizeof c) != 0) fail_msg("%s: something was written", cases[i].name);
        assert_true(strlen(err.text) > 0);
    }
}

static void broken_decode_runs_are_refused(void **state) {
    (void)state;
    static const guard_case cases[] = {CASE(pending_beyond_a_block),
                                       CASE(pending_wraps),
                                       CASE(pending_before_the_text),
                                       CASE(pending_nowhere),
                                       CASE(pending_in_a_third_half),
                                       CASE(context_beyond_a_block),
                                       CASE(context_wraps),
                                       CASE(context_before_the_text),
                                       CASE(context_nowhere),
                                       CASE(no_ring_for_a_block),
                                       CASE(no_ring_for_context),
                                       CASE(no_draft_in_the_step),
                                       CASE(rows_beyond_a_block),
                                       CASE(rows_none),
                                       CASE(rows_overlap),
                                       CASE(rows_leave_a_gap),
                                       CASE(rows_uncovered),
                                       CASE(rows_wrap),
                                       CASE(rows_beyond_the_step),
                                       CASE(commit_beyond_the_rows),
                                       CASE(commit_of_some),
                                       CASE(position_wraps),
                                       CASE(no_pages),
                                       CASE(no_state),
                                       CASE(retained_none),
                                       CASE(retained_beyond_the_rows),
                                       CASE(retained_wraps),
                                       CASE(stop_tokens_nowhere),
                                       CASE(candidates_too_many),
                                       CASE(candidates_nowhere),
                                       CASE(token_outside),
                                       CASE(no_sampling),
                                       CASE(bias_nowhere),
                                       CASE(lanes_too_many),
                                       CASE(lanes_none)};
    static run_case c;
    spl_error err;
    rig r;
    rig_open(&r);
    check(&r, sound, cases, SPL_COUNT(cases));
    /* Nothing was wrong with the rest: the run that the cases broke goes through, and writes. */
    sound(&c, &r);
    remember(&r);
    if (spl_step_run(r.step, &c.batch, &err) != SPL_OK) fail_msg("%s", err.text);
    assert_int_equal(c.lanes[1].status, SPL_OK);
    assert_false(untouched(&r));
    rig_close(&r);
}

/* ---- prefill -------------------------------------------------------------------------------- */

static void one_ring_missing(run_case *c) { SEG.ring = NULL; }
static void features_beside_a_ring(run_case *c) { SEG.features = (float *)(void *)c->r->watched[1][FEATURES].memory; }
static void deferred_beyond_a_block(run_case *c) { SEG.n_commit = 0; }
static void logit_row_outside(run_case *c) {
    static const uint32_t row = N_LANES * N_PROMPT;
    c->batch.logit_rows = &row;
    c->batch.n_logit_rows = 1;
}

static void broken_prefills_are_refused(void **state) {
    (void)state;
    static const guard_case cases[] = {CASE(one_ring_missing),        CASE(features_beside_a_ring),
                                       CASE(deferred_beyond_a_block), CASE(logit_row_outside),
                                       CASE(pending_wraps),           CASE(no_state)};
    static run_case c;
    spl_error err;
    rig r;
    rig_open(&r);
    check(&r, sound_prefill, cases, SPL_COUNT(cases));
    sound_prefill(&c, &r);
    remember(&r);
    if (spl_step_run(r.step, &c.batch, &err) != SPL_OK) fail_msg("%s", err.text);
    assert_false(untouched(&r));
    rig_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(broken_decode_runs_are_refused),
                                       cmocka_unit_test(broken_prefills_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
