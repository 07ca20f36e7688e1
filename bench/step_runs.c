/* SPDX-License-Identifier: Apache-2.0
 * One decode step of a rig. The step does not care which proposals stand, so a pattern with a chosen mean may stand in
 * for a real draft's acceptance (synthetic_tau). */
#include "bench/step_runs.h"

#include <string.h>

#include "base/clock.h"

/* Segment and decode record of a lane, as the engine fills them. */
static void prepare(spl_rig *r, const spl_step_runs *m, uint32_t i, spl_segment *seg, uint32_t *tokens) {
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
    d->drafts = m->drafts;
    d->sampling = &greedy;
    d->limits.max_retained = m->rows;
    for (uint32_t k = 0; k < m->rows; k++) {
        tokens[k] = spl_rig_token(r, i * SPL_BLOCK_ROWS + k);
        if (k > 0) d->proposals[k - 1].token = tokens[k];
    }
    if (!m->drafts) return;
    d->context = lane->features;
    d->n_context = lane->n_retained;
}

/* Rows that stand: what was accepted, or the next of a pattern whose mean is synthetic_tau. */
static uint32_t retained_rows(spl_step_runs *m, const spl_decode_lane *d) {
    if (m->synthetic_tau == 0) return d->result.retained;
    m->owed += m->synthetic_tau;
    uint32_t n = (uint32_t)m->owed;
    n = n < 1 ? 1 : n > m->rows ? m->rows : n;
    m->owed -= n;
    return n;
}

spl_status spl_step_runs_one(spl_step_runs *m, spl_rig *r, bool counted, double *seconds, spl_error *err) {
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
    if (seconds) *seconds = (double)(spl_now_ns() - begin) * 1e-9;
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
    if (st == SPL_OK && counted) m->n_steps++;
    return st;
}
