/* SPDX-License-Identifier: Apache-2.0
 * One rig for the toy tests of whole steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/step_rig.h"

spl_tier rig_tier(void) {
    spl_tier tier = SPL_N_TIERS;
    const char *name = getenv("SPL_TEST_TIER");
    assert_true(!name || !*name || spl_tier_from_name(name, &tier));
    return tier;
}

void *rig_aligned(size_t n_bytes) {
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, 64, n_bytes), 0);
    memset(memory, 0, n_bytes);
    return memory;
}

static void open_lane(rig *r, uint32_t lane, const rig_options *o) {
    spl_error err;
    assert_int_equal(spl_page_table_init(&r->tables[lane], o->lane_tokens, &err), SPL_OK);
    assert_int_equal(spl_page_table_grow(&r->tables[lane], &r->pool, o->lane_tokens, &err), SPL_OK);
    r->cells[lane] = rig_aligned(r->cell_bytes);
    r->pending_memory[lane] = rig_aligned(spl_pending_bytes(r->g, r->g->n_layers));
    spl_pending_place(&r->pending[lane], r->pending_memory[lane], r->g, r->g->n_layers);
    if (!o->step.draft) return;
    r->rings[lane] = rig_aligned(spl_draft_ring_bytes(r->g, o->step.oracle));
    r->features[lane] = rig_aligned((size_t)SPL_BLOCK_ROWS * r->g->draft->n_capture * r->g->hidden * sizeof(float));
}

void rig_open(rig *r, const rig_options *o) {
    spl_error err;
    memset(r, 0, sizeof *r);
    r->g = spl_geometry_find(o->geometry);
    assert_non_null(r->g);
    assert_int_equal(spl_package_random(&r->package, r->g, 0, o->with_draft, o->seed, &err), SPL_OK);
    assert_int_equal(spl_team_create(&r->team, o->n_threads ? o->n_threads : 1, spl_set_ftz, &err), SPL_OK);
    assert_int_equal(spl_kernels_select(&r->kernels, rig_tier(), &err), SPL_OK);
    spl_step_config config = o->step;
    config.geometry = r->g;
    config.package = r->package;
    config.kernels = &r->kernels;
    config.team = r->team;
    if (spl_step_create(&r->step, &config, &err) != SPL_OK) fail_msg("%s", err.text);
    uint32_t n_pages = SPL_MAX_LANES * (o->lane_tokens / SPL_PAGE_TOKENS + 1);
    assert_int_equal(spl_page_pool_init(&r->pool, spl_kv_page_bytes(r->g, 0, o->step.oracle), n_pages, &err), SPL_OK);
    r->cell_bytes = spl_state_cell_bytes(r->g, 0);
    for (uint32_t i = 0; i < SPL_MAX_LANES; i++) open_lane(r, i, o);
}

void rig_close(rig *r) {
    for (int i = 0; i < SPL_MAX_LANES; i++) {
        spl_page_table_free(&r->tables[i], &r->pool);
        free(r->cells[i]);
        free(r->rings[i]);
        free(r->features[i]);
        free(r->pending_memory[i]);
    }
    spl_page_pool_free(&r->pool);
    spl_step_destroy(r->step);
    spl_team_destroy(r->team);
    spl_package_close(r->package);
}

spl_segment rig_segment(rig *r, uint32_t lane, uint32_t row_begin, uint32_t n_rows, uint32_t position) {
    return (spl_segment){.row_begin = row_begin,
                         .n_rows = n_rows,
                         .position = position,
                         .page_table = r->tables[lane].ids,
                         .cell = r->cells[lane],
                         .pending = &r->pending[lane],
                         .n_commit = n_rows,
                         .ring = r->rings[lane]};
}
