/* SPDX-License-Identifier: Apache-2.0
 * A prompt through the target in chunks as the engine cuts them, from an empty context, over and over. With a
 * draft its context enters the ring on the way, as it does in the engine. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench_rig.h"

enum { MIN_RUNS = 3, MAX_RUNS = 200, DEFAULT_TOKENS = 512 };

/* What one pass over the prompt moves and computes, and the time the roof gives it. */
typedef struct work {
    uint64_t bytes, macs;
    double roof_seconds;
} work;

static spl_status run_prompt(spl_rig *r, const uint32_t *tokens, uint32_t n_tokens, spl_error *err) {
    spl_rig_lane *lane = &r->lanes[0];
    spl_status st = SPL_OK;
    for (uint32_t at = 0; at < n_tokens && st == SPL_OK; at += SPL_BENCH_CHUNK_ROWS) {
        uint32_t left = n_tokens - at, n = left < SPL_BENCH_CHUNK_ROWS ? left : SPL_BENCH_CHUNK_ROWS, last = n - 1;
        spl_segment seg = {.n_rows = n,
                           .position = at,
                           .page_table = lane->pages.ids,
                           .cell = lane->cell,
                           .pending = &lane->pending,
                           .n_commit = n,
                           .ring = lane->ring};
        spl_batch batch = {.tokens = tokens + at,
                           .n_rows = n,
                           .segments = &seg,
                           .n_segments = 1,
                           .logit_rows = &last,
                           .n_logit_rows = n == left ? 1 : 0,
                           .kv_pool = r->pool.memory,
                           .page_stride = r->pool.page_bytes};
        st = spl_step_run(r->step, &batch, err);
    }
    return st;
}

static work work_of(const spl_rig *r, const spl_roof_rates *rates, uint32_t n_tokens) {
    const spl_op_list *list = spl_step_list(r->step);
    work w = {0};
    for (uint32_t at = 0; at < n_tokens; at += SPL_BENCH_CHUNK_ROWS) {
        uint32_t left = n_tokens - at, n = left < SPL_BENCH_CHUNK_ROWS ? left : SPL_BENCH_CHUNK_ROWS;
        uint64_t bytes = spl_op_list_step_bytes(list, 1, at);
        uint64_t macs = spl_op_list_step_macs(list, n, n == left ? 1 : 0, r->drafts ? n : 0) +
                        spl_op_list_attend_macs(list, n, at + n / 2);
        w.bytes += bytes;
        w.macs += macs;
        w.roof_seconds += spl_roof_seconds(rates, bytes, macs);
    }
    return w;
}

static spl_status measure(spl_rig *r, const spl_bench_options *o, const uint32_t *tokens, uint32_t n_tokens,
                          spl_roof *roof, spl_samples *seconds, uint64_t *op_ns, spl_error *err) {
    uint64_t limit_ns = (uint64_t)((o->seconds > 0 ? o->seconds : 2) * 1e9);
    spl_status st = run_prompt(r, tokens, n_tokens < SPL_BENCH_CHUNK_ROWS ? n_tokens : SPL_BENCH_CHUNK_ROWS, err);
    uint64_t begin = spl_now_ns();
    while (st == SPL_OK && seconds->n < MAX_RUNS && (seconds->n < MIN_RUNS || spl_now_ns() - begin < limit_ns)) {
        spl_roof_take_due(roof);
        uint64_t start = spl_now_ns();
        st = run_prompt(r, tokens, n_tokens, err);
        spl_samples_add(seconds, (double)(spl_now_ns() - start) * 1e-9);
    }
    spl_roof_take(roof);
    spl_step_time_ops(r->step, op_ns);
    if (st == SPL_OK) st = run_prompt(r, tokens, n_tokens, err);
    spl_step_time_ops(r->step, NULL);
    return st;
}

static void report(spl_bench_json *j, const spl_rig *r, uint32_t n_tokens, const spl_samples *seconds,
                   const spl_roof_rates *rates, const uint64_t *op_ns) {
    work w = work_of(r, rates, n_tokens);
    spl_samples speeds = {0};
    for (uint32_t i = 0; i < seconds->n; i++) spl_samples_add(&speeds, n_tokens / seconds->values[i]);
    spl_rig_put(j, r);
    spl_put_u64(j, "tokens", n_tokens);
    spl_put_u64(j, "chunk_rows", SPL_BENCH_CHUNK_ROWS);
    spl_put_u64(j, "runs", seconds->n);
    spl_put_samples(j, "prefill_seconds", seconds);
    spl_put_samples(j, "tokens_per_second", &speeds);
    spl_put_u64(j, "prefill_bytes", w.bytes);
    spl_put_u64(j, "prefill_macs", w.macs);
    spl_put_rates(j, rates);
    spl_put_real(j, "roof_seconds", w.roof_seconds);
    spl_put_real(j, "roof_tokens_per_second", n_tokens / w.roof_seconds);
    spl_put_real(j, "roof_fraction", w.roof_seconds / spl_samples_median(seconds));
    double vector = rates->vector_gmac * 1e9;
    if (vector > 0) spl_put_real(j, "of_int8_vector", (double)w.macs / vector / spl_samples_median(seconds));
    uint32_t n_chunks = (n_tokens + SPL_BENCH_CHUNK_ROWS - 1) / SPL_BENCH_CHUNK_ROWS;
    uint32_t rows = n_tokens / n_chunks;
    spl_put(j, "stages",
            spl_rig_stages(spl_step_list(r->step), op_ns, n_chunks, 1, n_tokens / 2, rows, 0, r->drafts ? rows : 0));
}

spl_status spl_bench_prefill(const spl_bench_options *o, json_t **out, spl_error *err) {
    uint32_t n_tokens = o->tokens ? o->tokens : DEFAULT_TOKENS;
    spl_rig rig;
    spl_samples seconds = {0};
    spl_bench_json j = {0};
    uint32_t *tokens = NULL;
    uint64_t *op_ns = NULL;
    spl_roof *roof = NULL;
    spl_status st = spl_rig_open(&rig, o, 1, n_tokens, err);
    if (st == SPL_OK) {
        tokens = calloc(n_tokens, sizeof *tokens);
        op_ns = calloc(spl_step_list(rig.step)->n_ops, sizeof *op_ns);
        if (!tokens || !op_ns) st = spl_fail(err, SPL_E_NOMEM, "no memory for a prompt of %u tokens", n_tokens);
    }
    for (uint32_t i = 0; i < n_tokens && st == SPL_OK; i++) tokens[i] = spl_rig_token(&rig, i);
    if (st == SPL_OK) st = spl_rig_open_roof(&rig, &roof, err);
    if (st == SPL_OK) {
        spl_bench_say(o, "prefill of %u tokens", n_tokens);
        st = measure(&rig, o, tokens, n_tokens, roof, &seconds, op_ns, err);
    }
    if (st == SPL_OK) {
        spl_roof_rates rates = spl_roof_result(roof);
        report(&j, &rig, n_tokens, &seconds, &rates, op_ns);
        st = spl_bench_json_take(&j, out, err);
    }
    free(op_ns);
    free(tokens);
    spl_rig_close_roof(roof);
    spl_rig_close(&rig);
    return st;
}
