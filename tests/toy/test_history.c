/* SPDX-License-Identifier: Apache-2.0
 * Long histories: a step's bits do not depend on the number of threads, on the lanes beside a lane, on whether a
 * history was shared by its splits or attended whole, nor on the size of the prefill chunks that wrote it. Lanes end
 * before, on, across and behind the cuts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/step_rig.h"

enum { CHUNK = 64, ROWS = 8, LANES = 4, MAX_TOKENS = 2 * SPL_ATTEND_SPLIT + 64 };

static void open_toy(rig *r, uint32_t n_threads) {
    rig_open(r, &(rig_options){.geometry = "toy",
                               .seed = 3,
                               .with_draft = true,
                               .n_threads = n_threads,
                               .lane_tokens = MAX_TOKENS,
                               .step = {.max_rows = CHUNK, .max_logit_rows = 1, .decode = true}});
}

static uint32_t token_at(uint32_t lane, uint32_t position) { return (position * 37 + lane * 11 + position / 5) % 300; }

static void prefill(rig *r, uint32_t lane, uint32_t n_tokens, uint32_t chunk) {
    spl_error err;
    for (uint32_t at = 0; at < n_tokens; at += chunk) {
        uint32_t tokens[CHUNK], n = n_tokens - at < chunk ? n_tokens - at : chunk;
        for (uint32_t i = 0; i < n; i++) tokens[i] = token_at(lane, at + i);
        spl_segment seg = {
            .n_rows = n, .position = at, .page_table = r->tables[lane].ids, .cell = r->cells[lane], .n_commit = n};
        spl_batch batch = {.tokens = tokens,
                           .n_rows = n,
                           .segments = &seg,
                           .n_segments = 1,
                           .kv_pool = r->pool.memory,
                           .page_stride = r->pool.page_bytes};
        if (spl_step_run(r->step, &batch, &err) != SPL_OK) fail_msg("%s", err.text);
    }
}

/* A step of 8 rows in each of n lanes from `first` on, nothing committed; copies the logits. */
static void verify(rig *r, const uint32_t *lengths, uint32_t first, uint32_t n, float *logits) {
    static const spl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    spl_error err;
    uint32_t tokens[LANES * ROWS];
    spl_segment segments[LANES];
    spl_decode_lane lanes[LANES];
    memset(lanes, 0, sizeof lanes);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t lane = first + i;
        for (uint32_t k = 0; k < ROWS; k++) tokens[i * ROWS + k] = token_at(lane, lengths[lane] + k);
        segments[i] = (spl_segment){.row_begin = i * ROWS,
                                    .n_rows = ROWS,
                                    .position = lengths[lane],
                                    .page_table = r->tables[lane].ids,
                                    .cell = r->cells[lane],
                                    .pending = &r->pending[lane]};
        lanes[i].sampling = &greedy;
        lanes[i].keeps_logits = true;
        lanes[i].limits.max_retained = ROWS;
        for (uint32_t k = 1; k < ROWS; k++) lanes[i].proposals[k - 1].token = tokens[i * ROWS + k];
    }
    spl_batch batch = {.tokens = tokens,
                       .n_rows = n * ROWS,
                       .segments = segments,
                       .n_segments = n,
                       .kv_pool = r->pool.memory,
                       .page_stride = r->pool.page_bytes,
                       .lanes = lanes};
    if (spl_step_run(r->step, &batch, &err) != SPL_OK) fail_msg("%s", err.text);
    memcpy(logits, spl_step_logits(r->step), (size_t)n * ROWS * r->g->vocab * sizeof(float));
}

static void shared_histories_keep_their_bits(void **state) {
    (void)state;
    static const uint32_t lengths[LANES] = {100, SPL_ATTEND_SPLIT - ROWS, SPL_ATTEND_SPLIT - 3,
                                            2 * SPL_ATTEND_SPLIT + 40};
    static const uint32_t n_threads[] = {1, 2, 3, 8};
    float *expected = NULL, *found = NULL;
    size_t n = 0;
    for (size_t t = 0; t < sizeof n_threads / sizeof n_threads[0]; t++) {
        rig r;
        open_toy(&r, n_threads[t]);
        n = (size_t)LANES * ROWS * r.g->vocab;
        if (!expected) expected = rig_aligned(n * sizeof(float));
        if (!found) found = rig_aligned(n * sizeof(float));
        /* chunks of 64 rows attend whole histories, smaller ones share them */
        for (uint32_t lane = 0; lane < LANES; lane++) prefill(&r, lane, lengths[lane], t % 2 ? 19 : CHUNK);
        verify(&r, lengths, 0, LANES, t ? found : expected);
        if (t) assert_memory_equal(found, expected, n * sizeof(float));
        for (uint32_t lane = 0; lane < LANES; lane++) {
            verify(&r, lengths, lane, 1, found);
            assert_memory_equal(found, expected + lane * (n / LANES), n / LANES * sizeof(float));
        }
        rig_close(&r);
    }
    free(expected);
    free(found);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_histories_keep_their_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
