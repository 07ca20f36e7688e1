/* SPDX-License-Identifier: Apache-2.0
 * The cost of one decode step: time, bytes, roof, time per op; and, with --busy, what other programs do to it. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/huge_pages.h"
#include "bench/step_runs.h"

enum {
    WARM_STEPS = 3,
    MIN_STEPS = 5,
    MAX_STEPS = 2000,
    STAGE_STEPS = 4,
    MAX_BUSY = 256,
    MIN_BLOCKS = 4,
    BLOCK_STEPS = 250
};
static const uint64_t BLOCK_NS = 400000000u; /* of a stretch of steps with or without busy threads */
static const double BUSY_BAR = 1.7;          /* slowdown allowed by one busy program on two cores */

typedef struct measured {
    const spl_bench_options *o;
    spl_step_runs runs;
    spl_samples seconds, busy_seconds;
    uint64_t n_faults, n_disk_faults; /* page faults during the counted steps */
    uint64_t huge_page_bytes;         /* of the process, without the roof's */
    spl_roof *roof;                   /* read now and then between steps */
} measured;

static spl_status check(const spl_bench_options *o, spl_error *err) {
    uint32_t rows = o->rows ? o->rows : SPL_BLOCK_ROWS;
    if (rows > SPL_BLOCK_ROWS) return spl_fail(err, SPL_E_INVALID, "%u rows; a block has %d", rows, SPL_BLOCK_ROWS);
    if (o->lanes > SPL_MAX_LANES)
        return spl_fail(err, SPL_E_INVALID, "%u lanes; at most %d decode together", o->lanes, SPL_MAX_LANES);
    if (o->synthetic_tau != 0 && (o->synthetic_tau < 1 || o->synthetic_tau > rows))
        return spl_fail(err, SPL_E_INVALID, "an acceptance length of %g; a step of %u rows retains 1 to %u",
                        o->synthetic_tau, rows, rows);
    if (o->busy > MAX_BUSY) return spl_fail(err, SPL_E_INVALID, "%u busy threads; at most %d", o->busy, MAX_BUSY);
    if (o->draft && rows == 1) return spl_fail(err, SPL_E_INVALID, "a step of one row has nothing to draft");
    return SPL_OK;
}

/* ---- competition ----------------------------------------------------------------------------- */

/* Threads that compute for nobody, pinned nowhere: other programs, as far as the scheduler is concerned. */
typedef struct busy_crowd {
    pthread_t threads[MAX_BUSY];
    uint32_t n;
    atomic_bool stop;
} busy_crowd;

static void *be_busy(void *arg) {
    busy_crowd *c = arg;
    volatile uint64_t x = 1;
    spl_unpin_thread();
    while (!atomic_load_explicit(&c->stop, memory_order_relaxed))
        for (int i = 0; i < 1000; i++) x = x * 6364136223846793005u + 1;
    return NULL;
}

static void end_crowd(busy_crowd *c) {
    atomic_store(&c->stop, true);
    for (uint32_t i = 0; i < c->n; i++) (void)pthread_join(c->threads[i], NULL);
    c->n = 0;
}

static spl_status start_crowd(busy_crowd *c, uint32_t n, spl_error *err) {
    atomic_store(&c->stop, false);
    for (c->n = 0; c->n < n; c->n++) {
        int rc = pthread_create(&c->threads[c->n], NULL, be_busy, c);
        if (rc == 0) continue;
        end_crowd(c);
        return spl_fail_errno(err, rc, "cannot start %u busy threads", n);
    }
    return SPL_OK;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static spl_status add_step(spl_rig *r, measured *m, spl_samples *to, spl_error *err) {
    double seconds = 0;
    spl_status st = spl_step_runs_one(&m->runs, r, true, &seconds, err);
    if (st == SPL_OK) spl_samples_add(to, seconds);
    return st;
}

/* Steps alone for a while. */
static spl_status measure_quiet(spl_rig *r, measured *m, uint64_t limit_ns, spl_error *err) {
    spl_status st = SPL_OK;
    struct rusage before, after;
    uint64_t begin = spl_now_ns();
    (void)getrusage(RUSAGE_SELF, &before);
    while (st == SPL_OK && m->seconds.n < MAX_STEPS && (m->seconds.n < MIN_STEPS || spl_now_ns() - begin < limit_ns)) {
        spl_roof_take_due(m->roof);
        st = add_step(r, m, &m->seconds, err);
    }
    (void)getrusage(RUSAGE_SELF, &after);
    m->n_faults += (uint64_t)(after.ru_minflt - before.ru_minflt + after.ru_majflt - before.ru_majflt);
    m->n_disk_faults += (uint64_t)(after.ru_majflt - before.ru_majflt);
    return st;
}

/* Stretches without and with busy threads in turn (A B B A ...), so that both meet the same neighbours. */
static spl_status measure_both(spl_rig *r, measured *m, uint64_t limit_ns, spl_error *err) {
    busy_crowd crowd = {.n = 0};
    spl_status st = SPL_OK;
    uint64_t begin = spl_now_ns();
    for (uint32_t block = 0; st == SPL_OK && m->seconds.n < MAX_STEPS && m->busy_seconds.n < MAX_STEPS; block++) {
        if (block % 2 == 0 && block >= MIN_BLOCKS && spl_now_ns() - begin >= limit_ns) break;
        bool busy = block % 4 == 1 || block % 4 == 2;
        spl_samples *to = busy ? &m->busy_seconds : &m->seconds;
        spl_roof_take_due(m->roof);
        if (busy) st = start_crowd(&crowd, m->o->busy, err);
        if (st == SPL_OK) st = spl_step_runs_one(&m->runs, r, false, NULL, err);
        uint64_t start = spl_now_ns();
        for (uint32_t n = 0; st == SPL_OK && (n < 2 || (n < BLOCK_STEPS && spl_now_ns() - start < BLOCK_NS)); n++)
            st = add_step(r, m, to, err);
        end_crowd(&crowd);
    }
    return st;
}

static spl_status measure(spl_rig *r, measured *m, uint64_t *op_ns, spl_error *err) {
    spl_status st = SPL_OK;
    double wanted = m->o->seconds > 0 ? m->o->seconds : m->o->busy ? 6 : 2;
    uint64_t limit_ns = (uint64_t)(wanted * 1e9);
    for (int i = 0; i < WARM_STEPS && st == SPL_OK; i++) st = spl_step_runs_one(&m->runs, r, false, NULL, err);
    m->huge_page_bytes = spl_huge_page_bytes();
    if (st == SPL_OK) st = spl_rig_open_roof(r, &m->roof, err); /* now that mapped weights are in memory */
    if (st == SPL_OK) st = (m->o->busy ? measure_both : measure_quiet)(r, m, limit_ns, err);
    if (st == SPL_OK) spl_roof_take(m->roof);
    spl_step_time_ops(r->step, op_ns);
    for (int i = 0; i < STAGE_STEPS && st == SPL_OK; i++) st = spl_step_runs_one(&m->runs, r, false, NULL, err);
    spl_step_time_ops(r->step, NULL);
    return st;
}

/* ---- results --------------------------------------------------------------------------------- */

static void put_busy(spl_bench_json *j, const measured *m) {
    double quiet = spl_samples_median(&m->seconds), busy = spl_samples_median(&m->busy_seconds);
    spl_put_u64(j, "busy_threads", m->o->busy);
    spl_put_u64(j, "busy_steps", m->busy_seconds.n);
    spl_put_samples(j, "busy_step_seconds", &m->busy_seconds);
    spl_put_real(j, "busy_ratio", quiet > 0 ? busy / quiet : 0);
    spl_put_real(j, "busy_bar", BUSY_BAR); /* for one busy thread on two cores */
}

static void report(spl_bench_json *j, const spl_rig *r, const measured *m, const spl_roof_rates *rates,
                   const uint64_t *op_ns) {
    const spl_op_list *list = spl_step_decode_list(r->step);
    const spl_step_runs *runs = &m->runs;
    uint32_t n_rows = runs->rows * runs->lanes, lanes = runs->lanes;
    uint32_t n_context = (uint32_t)lround((double)runs->n_context / (double)runs->n_steps);
    uint64_t bytes = spl_op_list_step_bytes(list, lanes, runs->context);
    uint64_t attend_macs = spl_op_list_attend_macs(list, n_rows, runs->context);
    uint64_t macs = spl_op_list_step_macs(list, n_rows, n_rows, n_context) + attend_macs;
    double seconds = spl_samples_median(&m->seconds), roof = spl_roof_seconds(rates, bytes, macs);
    double tau = (double)runs->n_retained / (double)(runs->n_steps * lanes);
    spl_rig_put(j, r);
    spl_put_u64(j, "rows", runs->rows);
    spl_put_u64(j, "lanes", lanes);
    spl_put_u64(j, "context_tokens", runs->context);
    spl_put_u64(j, "steps", m->seconds.n);
    spl_put_samples(j, "step_seconds", &m->seconds);
    if (m->o->busy) {
        put_busy(j, m);
    } else {
        spl_put_u64(j, "page_faults", m->n_faults);
        spl_put_u64(j, "disk_page_faults", m->n_disk_faults);
    }
    spl_put_u64(j, "huge_page_bytes", m->huge_page_bytes);
    spl_put_u64(j, "step_bytes", bytes);
    spl_put_u64(j, "step_macs", macs);
    spl_put_u64(j, "attend_macs", attend_macs);
    spl_put_rates(j, rates);
    spl_put_real(j, "roof_seconds", roof);
    spl_put_real(j, "roof_fraction", seconds > 0 ? roof / seconds : 0);
    spl_put_real(j, "tau", tau);
    spl_put_text(j, "tau_source", m->o->synthetic_tau != 0 ? "synthetic" : "accepted");
    spl_put_real(j, "tokens_per_second", seconds > 0 ? tau * lanes / seconds : 0);
    spl_put_real(j, "roof_tokens_per_second", tau * lanes / roof);
    spl_put(j, "stages", spl_rig_stages(list, op_ns, STAGE_STEPS, lanes, runs->context, n_rows, n_rows, n_context));
}

static spl_status measure_and_report(spl_rig *rig, measured *m, json_t **out, spl_error *err) {
    spl_bench_json j = {0};
    uint64_t *op_ns = calloc(spl_step_decode_list(rig->step)->n_ops, sizeof *op_ns);
    spl_bench_say(m->o, "steps of %u rows in %u lanes at context %u", m->runs.rows, m->runs.lanes, m->runs.context);
    spl_status st = op_ns ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for the times of the ops");
    if (st == SPL_OK) st = measure(rig, m, op_ns, err);
    if (st == SPL_OK) {
        spl_roof_rates rates = spl_roof_result(m->roof);
        report(&j, rig, m, &rates, op_ns);
        st = spl_bench_json_take(&j, out, err);
    }
    spl_rig_close_roof(m->roof);
    free(op_ns);
    return st;
}

spl_status spl_bench_step(const spl_bench_options *o, json_t **out, spl_error *err) {
    spl_status st = check(o, err);
    if (st != SPL_OK) return st;
    spl_rig rig;
    measured m = {.o = o,
                  .runs = {.rows = o->rows ? o->rows : SPL_BLOCK_ROWS,
                           .lanes = o->lanes ? o->lanes : 1,
                           .context = o->context_tokens < SPL_BLOCK_ROWS ? SPL_BLOCK_ROWS : o->context_tokens,
                           .drafts = o->draft,
                           .synthetic_tau = o->synthetic_tau}};
    st = spl_rig_open(&rig, o, m.runs.lanes, m.runs.context, err);
    if (st == SPL_OK) st = measure_and_report(&rig, &m, out, err);
    spl_rig_close(&rig);
    return st;
}
