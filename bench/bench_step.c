/* SPDX-License-Identifier: Apache-2.0
 * One decode step, over and over at the same context: draft, verify, accept and the deferred commit, as the
 * engine dispatches it but with nothing around it. The rows that the step before retained belong to the history,
 * which therefore has 8 tokens at least. The step does not care which proposals stand, so a pattern with a
 * chosen mean may stand in for a real draft's acceptance (synthetic_tau). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench_rig.h"

enum { WARM_STEPS = 3, MIN_STEPS = 5, MAX_STEPS = 2000, STAGE_STEPS = 4 };

/* Settings, and what the runs came to. */
typedef struct measured {
    const spl_bench_options *o;
    uint32_t rows, lanes, context;
    uint64_t n_steps, n_retained, n_context; /* sums over measured steps and lanes */
    double owed;                             /* synthetic acceptance not yet handed out */
    spl_samples seconds;
} measured;

static spl_status check(const spl_bench_options *o, spl_error *err) {
    uint32_t rows = o->rows ? o->rows : SPL_BLOCK_ROWS;
    if (rows > SPL_BLOCK_ROWS) return spl_fail(err, SPL_E_INVALID, "%u rows; a block has %d", rows, SPL_BLOCK_ROWS);
    if (o->lanes > SPL_MAX_LANES)
        return spl_fail(err, SPL_E_INVALID, "%u lanes; at most %d decode together", o->lanes, SPL_MAX_LANES);
    if (o->synthetic_tau != 0 && (o->synthetic_tau < 1 || o->synthetic_tau > rows))
        return spl_fail(err, SPL_E_INVALID, "an acceptance length of %g; a step of %u rows retains 1 to %u",
                        o->synthetic_tau, rows, rows);
    if (o->draft && rows == 1) return spl_fail(err, SPL_E_INVALID, "a step of one row has nothing to draft");
    return SPL_OK;
}

/* Segment and decode record of a lane, as the engine fills them. */
static void prepare(spl_rig *r, const measured *m, uint32_t i, spl_segment *seg, uint32_t *tokens) {
    static const spl_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    spl_rig_lane *lane = &r->lanes[i];
    spl_decode_lane *d = &r->decode[i];
    *seg = (spl_segment){.row_begin = i * m->rows,
                         .n_rows = m->rows,
                         .position = m->context,
                         .page_table = lane->pages.ids,
                         .cell = lane->cell,
                         .pending = &lane->pending,
                         .n_pending = m->rows > 1 && lane->n_retained <= m->context ? lane->n_retained : 0,
                         .n_commit = m->rows > 1 ? 0 : 1,
                         .ring = lane->ring,
                         .features = lane->features};
    memset(d, 0, sizeof *d);
    d->drafts = r->drafts;
    d->sampling = &greedy;
    d->limits.max_retained = m->rows;
    for (uint32_t k = 0; k < m->rows; k++) {
        tokens[k] = spl_rig_token(r, i * SPL_BLOCK_ROWS + k);
        if (k > 0) d->proposals[k - 1].token = tokens[k];
    }
    if (!r->drafts) return;
    d->context = lane->features;
    d->n_context = lane->n_retained;
}

/* Rows that stand: what was accepted, or the next of a pattern whose mean is synthetic_tau. */
static uint32_t retained_rows(measured *m, const spl_decode_lane *d) {
    if (m->o->synthetic_tau == 0) return d->result.retained;
    m->owed += m->o->synthetic_tau;
    uint32_t n = (uint32_t)m->owed;
    n = n < 1 ? 1 : n > m->rows ? m->rows : n;
    m->owed -= n;
    return n;
}

static spl_status run_step(spl_rig *r, measured *m, bool counted, spl_error *err) {
    uint32_t tokens[SPL_MAX_DECODE_ROWS];
    spl_segment segments[SPL_MAX_LANES];
    for (uint32_t i = 0; i < m->lanes; i++) prepare(r, m, i, &segments[i], tokens + (size_t)i * m->rows);
    spl_batch batch = {.tokens = tokens,
                       .n_rows = m->lanes * m->rows,
                       .segments = segments,
                       .n_segments = m->lanes,
                       .kv_pool = r->pool.memory,
                       .page_stride = r->pool.page_bytes,
                       .lanes = r->decode};
    uint64_t begin = spl_now_ns();
    spl_status st = spl_step_run(r->step, &batch, err);
    double seconds = (double)(spl_now_ns() - begin) * 1e-9;
    for (uint32_t i = 0; i < m->lanes && st == SPL_OK; i++) {
        spl_rig_lane *lane = &r->lanes[i];
        if (r->decode[i].status != SPL_OK) {
            *err = r->decode[i].error;
            return err->code;
        }
        uint32_t retained = retained_rows(m, &r->decode[i]);
        if (counted) {
            m->n_retained += retained;
            m->n_context += r->decode[i].n_context;
        }
        lane->n_retained = retained;
        if (m->rows > 1) lane->pending.half ^= 1u;
    }
    if (st == SPL_OK && counted) {
        m->n_steps++;
        spl_samples_add(&m->seconds, seconds);
    }
    return st;
}

static spl_status measure(spl_rig *r, measured *m, uint64_t *op_ns, spl_error *err) {
    spl_status st = SPL_OK;
    uint64_t limit_ns = (uint64_t)((m->o->seconds > 0 ? m->o->seconds : 2) * 1e9);
    for (int i = 0; i < WARM_STEPS && st == SPL_OK; i++) st = run_step(r, m, false, err);
    uint64_t begin = spl_now_ns();
    while (st == SPL_OK && m->n_steps < MAX_STEPS && (m->n_steps < MIN_STEPS || spl_now_ns() - begin < limit_ns))
        st = run_step(r, m, true, err);
    spl_step_time_ops(r->step, op_ns);
    for (int i = 0; i < STAGE_STEPS && st == SPL_OK; i++) st = run_step(r, m, false, err);
    spl_step_time_ops(r->step, NULL);
    return st;
}

static void report(spl_bench_json *j, const spl_rig *r, const measured *m, const spl_bench_rates *rates,
                   const uint64_t *op_ns) {
    const spl_op_list *list = spl_step_decode_list(r->step);
    uint32_t n_rows = m->rows * m->lanes;
    uint32_t n_context = (uint32_t)lround((double)m->n_context / (double)m->n_steps);
    uint64_t bytes = spl_op_list_step_bytes(list, m->lanes, m->context);
    uint64_t macs = spl_op_list_step_macs(list, n_rows, n_rows, n_context);
    double seconds = spl_samples_median(&m->seconds), roof = spl_roof_seconds(rates, bytes, macs);
    double tau = (double)m->n_retained / (double)(m->n_steps * m->lanes);
    spl_rig_put(j, r);
    spl_put_u64(j, "rows", m->rows);
    spl_put_u64(j, "lanes", m->lanes);
    spl_put_u64(j, "context_tokens", m->context);
    spl_put_u64(j, "steps", m->n_steps);
    spl_put_samples(j, "step_seconds", &m->seconds);
    spl_put_u64(j, "step_bytes", bytes);
    spl_put_u64(j, "step_macs", macs);
    spl_put_rates(j, rates);
    spl_put_real(j, "roof_seconds", roof);
    spl_put_real(j, "roof_fraction", seconds > 0 ? roof / seconds : 0);
    spl_put_real(j, "tau", tau);
    spl_put_text(j, "tau_source", m->o->synthetic_tau != 0 ? "synthetic" : "accepted");
    spl_put_real(j, "tokens_per_second", seconds > 0 ? tau * m->lanes / seconds : 0);
    spl_put_real(j, "roof_tokens_per_second", tau * m->lanes / roof);
    spl_put(j, "stages", spl_rig_stages(list, op_ns, STAGE_STEPS, m->lanes, m->context, n_rows, n_rows, n_context));
}

spl_status spl_bench_step(const spl_bench_options *o, json_t **out, spl_error *err) {
    spl_status st = check(o, err);
    if (st != SPL_OK) return st;
    spl_rig rig;
    spl_bench_rates rates = {0};
    spl_bench_json j = {0};
    measured m = {.o = o,
                  .rows = o->rows ? o->rows : SPL_BLOCK_ROWS,
                  .lanes = o->lanes ? o->lanes : 1,
                  .context = o->context_tokens < SPL_BLOCK_ROWS ? SPL_BLOCK_ROWS : o->context_tokens};
    uint64_t *op_ns = NULL;
    st = spl_rig_open(&rig, o, m.lanes, m.context, err);
    if (st == SPL_OK) st = spl_bench_measure_rates(o, &rates, err);
    if (st == SPL_OK) {
        spl_bench_say(o, "steps of %u rows in %u lanes at context %u", m.rows, m.lanes, m.context);
        op_ns = calloc(spl_step_decode_list(rig.step)->n_ops, sizeof *op_ns);
        st = op_ns ? measure(&rig, &m, op_ns, err) : spl_fail(err, SPL_E_NOMEM, "no memory for the times of the ops");
    }
    if (st == SPL_OK) st = spl_bench_measure_rates(o, &rates, err);
    if (st == SPL_OK) {
        report(&j, &rig, &m, &rates, op_ns);
        st = spl_bench_json_take(&j, out, err);
    }
    free(op_ns);
    spl_rig_close(&rig);
    return st;
}
