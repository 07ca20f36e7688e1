/* SPDX-License-Identifier: Apache-2.0
 * Laws 2 and 5 on toy shapes with random weights: a row's bits do not depend on the rows beside it, the
 * chunking, the lane, the thread count or the tier's table; deferred commits leave the states that
 * immediate commits leave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "tests/support/step_rig.h"

enum { MAX_ROWS = 64, MAX_TOKENS = 256 };

static void open_toy(rig *r, const char *id, uint32_t n_threads, bool oracle) {
    const spl_geometry *g = spl_geometry_find(id);
    rig_open(
        r, &(rig_options){
               .geometry = id,
               .seed = 7,
               .n_threads = n_threads,
               .lane_tokens = MAX_TOKENS,
               .step = {.max_rows = MAX_ROWS, .max_logit_rows = MAX_ROWS, .capture = g && g->draft, .oracle = oracle}});
}

static uint32_t token_at(uint32_t i) { return (i * 2654435761u >> 7) % 480u; }

static void run(rig *r, const uint32_t *tokens, const spl_segment *segments, uint32_t n_segments, uint32_t n_rows) {
    spl_error err;
    uint32_t all[MAX_ROWS];
    for (uint32_t i = 0; i < n_rows; i++) all[i] = i;
    spl_batch batch = {.tokens = tokens,
                       .n_rows = n_rows,
                       .segments = segments,
                       .n_segments = n_segments,
                       .logit_rows = all,
                       .n_logit_rows = n_rows,
                       .kv_pool = r->pool.memory,
                       .page_stride = r->pool.page_bytes};
    assert_int_equal(spl_step_run(r->step, &batch, &err), SPL_OK);
}

/* Runs n_tokens tokens of one lane in chunks of `chunk` rows and keeps every row's logits. */
static float *run_chunked(rig *r, uint32_t lane, uint32_t n_tokens, uint32_t chunk) {
    float *kept = rig_aligned(sizeof(float) * n_tokens * r->g->vocab);
    uint32_t tokens[MAX_TOKENS];
    for (uint32_t i = 0; i < n_tokens; i++) tokens[i] = token_at(i);
    for (uint32_t at = 0; at < n_tokens; at += chunk) {
        uint32_t n = n_tokens - at < chunk ? n_tokens - at : chunk;
        spl_segment seg = rig_segment(r, lane, 0, n, at);
        run(r, tokens + at, &seg, 1, n);
        memcpy(kept + (size_t)at * r->g->vocab, spl_step_logits(r->step), sizeof(float) * n * r->g->vocab);
    }
    return kept;
}

/* 2, 3, 4, 5, 7, 8, 9, 16, 24, 31, 32, 64: the tile edges and their neighbours. */
static uint32_t next_chunk(uint32_t chunk) {
    static const uint32_t chunks[] = {2, 3, 4, 5, 7, 8, 9, 16, 24, 31, 32, 64, 65};
    uint32_t i = 0;
    while (chunks[i] <= chunk) i++;
    return chunks[i];
}

static const char *const shapes[] = {"toy", "toy-ratio3", "toy-even"};

static void rows_do_not_depend_on_chunk_or_threads(void **state) {
    (void)state;
    enum { N = 75 };
    for (size_t shape = 0; shape < SPL_COUNT(shapes); shape++) {
        rig r;
        open_toy(&r, shapes[shape], 1, false);
        float *base = run_chunked(&r, 0, N, 1);
        for (size_t i = 0; i < (size_t)N * r.g->vocab; i++) assert_true(isfinite(base[i]));
        assert_true(base[0] != base[r.g->vocab]);
        float *cell = rig_aligned(r.cell_bytes);
        memcpy(cell, r.cells[0], r.cell_bytes);
        size_t n_bytes = sizeof(float) * N * r.g->vocab;
        rig_close(&r);
        for (uint32_t threads = 1; threads <= 3; threads++) {
            for (uint32_t chunk = 2; chunk <= 64; chunk = next_chunk(chunk)) {
                if (threads > 1 && chunk != 5 && chunk != 8 && chunk != 31) continue;
                open_toy(&r, shapes[shape], threads, false);
                float *other = run_chunked(&r, chunk % SPL_MAX_LANES, N, chunk);
                assert_memory_equal(base, other, n_bytes);
                assert_memory_equal(cell, r.cells[chunk % SPL_MAX_LANES], r.cell_bytes);
                free(other);
                rig_close(&r);
            }
        }
        free(cell);
        free(base);
    }
}

/* Four lanes of different lengths side by side give what each gives alone. */
static void lanes_do_not_depend_on_each_other(void **state) {
    (void)state;
    enum { N = 40 };
    rig r;
    open_toy(&r, "toy", 2, false);
    float *base = run_chunked(&r, 0, N, 8);
    rig_close(&r);
    open_toy(&r, "toy", 2, false);
    uint32_t tokens[MAX_ROWS];
    for (uint32_t at = 0; at < N; at += 8) {
        spl_segment segments[SPL_MAX_LANES];
        for (uint32_t lane = 0; lane < SPL_MAX_LANES; lane++) {
            segments[lane] = rig_segment(&r, lane, lane * 8, 8, at);
            for (uint32_t i = 0; i < 8; i++) tokens[lane * 8 + i] = token_at(at + i);
        }
        run(&r, tokens, segments, SPL_MAX_LANES, 32);
        for (uint32_t lane = 0; lane < SPL_MAX_LANES; lane++)
            assert_memory_equal(spl_step_logits(r.step) + (size_t)lane * 8 * r.g->vocab, base + (size_t)at * r.g->vocab,
                                sizeof(float) * 8 * r.g->vocab);
    }
    free(base);
    rig_close(&r);
}

/* Verify steps of 8 rows of which `retained` are kept: the rows after the retained ones leave no trace,
 * and the state after folding equals the state of an immediate commit, bit for bit. */
static void deferred_commits_equal_immediate_ones(void **state) {
    (void)state;
    enum { N = 41 };
    rig r;
    open_toy(&r, "toy", 2, false);
    float *base = run_chunked(&r, 0, N, 1);
    rig_close(&r);
    for (uint32_t retained = 1; retained <= 8; retained++) {
        open_toy(&r, "toy", 2, false);
        uint32_t n_pending = 0;
        for (uint32_t at = 0; at + 8 <= N; at += retained) {
            uint32_t tokens[8];
            for (uint32_t i = 0; i < 8; i++) tokens[i] = i < retained ? token_at(at + i) : 479u - i; /* wrong guesses */
            spl_segment seg = rig_segment(&r, 0, 0, 8, at);
            seg.n_commit = 0;
            seg.n_pending = n_pending;
            run(&r, tokens, &seg, 1, 8);
            r.pending[0].half ^= 1u;
            n_pending = retained;
            assert_memory_equal(spl_step_logits(r.step), base + (size_t)at * r.g->vocab,
                                sizeof(float) * retained * r.g->vocab);
        }
        rig_close(&r);
    }
    free(base);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_do_not_depend_on_chunk_or_threads),
        cmocka_unit_test(lanes_do_not_depend_on_each_other),
        cmocka_unit_test(deferred_commits_equal_immediate_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
