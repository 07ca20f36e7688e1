/* SPDX-License-Identifier: Apache-2.0
 * The memory plan: sums, choices and refusals; and the limit read from made-up /proc and /sys trees. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file_map.h"
#include "base/memory_limit.h"
#include "model/manifest.h"
#include "model/plan.h"

#define GB 1000000000ULL

static const spl_geometry *q38(void) { return spl_geometry_find("qwen3.8-27b"); }

static spl_plan_request request(uint64_t limit) {
    spl_plan_request r = {.n_threads = 2,
                          .snapshots = 32,
                          .has_draft = true,
                          .lane_bytes = 1 << 20,
                          .arena_bytes = 200 << 20,
                          .logits_bytes = 32ULL * 248320 * 4,
                          .limit_bytes = limit};
    return r;
}

static void check_sums(const spl_plan *p, const spl_plan_request *r) {
    assert_int_equal(p->total_bytes, p->weight_bytes + p->kv_bytes + p->state_bytes + p->arena_bytes + p->logits_bytes +
                                         p->other_bytes);
    assert_true(p->total_bytes <= p->limit_bytes);
    assert_int_equal(p->kv_bytes, p->kv_pages * p->kv_page_bytes);
    assert_int_equal(p->state_cells, p->max_lanes + p->snapshots);
    assert_int_equal(p->state_bytes, p->state_cells * p->state_cell_bytes + p->max_lanes * r->lane_bytes);
    /* One request can always use the whole context, spare rows included. */
    assert_true((uint64_t)p->kv_pages * SPL_PAGE_TOKENS >= p->context_tokens + SPL_PLAN_SPARE_TOKENS);
}

static void test_roomy_machine_takes_the_whole_context(void **state) {
    (void)state;
    spl_plan p;
    spl_error err;
    spl_plan_request r = request(128 * GB);
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_OK);
    check_sums(&p, &r);
    assert_int_equal(p.context_tokens, 262144);
    assert_int_equal(p.max_lanes, 4);
    assert_int_equal(p.kv_pages, 4 * ((262144 + 7 + 31) / 32));
    assert_int_equal(p.snapshots, 32);
    r.snapshots = 0; /* an engine without a prefix cache plans none */
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_OK);
    check_sums(&p, &r);
    assert_int_equal(p.state_cells, 4);
    assert_int_equal(p.kv_page_bytes, 33280 * 32);
}

static void test_context_shrinks_with_the_limit(void **state) {
    (void)state;
    uint32_t before = 262144;
    spl_error err;
    for (uint64_t limit = 26; limit >= 18; limit--) {
        spl_plan p;
        spl_plan_request r = request(limit * GB);
        assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_OK);
        check_sums(&p, &r);
        assert_true(p.context_tokens <= before && p.context_tokens >= SPL_PLAN_MIN_CONTEXT);
        assert_int_equal(p.context_tokens % 1024, 0);
        if (limit >= 20) assert_true(p.snapshots >= 2); /* prefixes can be reused */
        before = p.context_tokens;
    }
    assert_true(before < 65536);
}

static void test_lanes_give_way_to_a_useful_context(void **state) {
    (void)state;
    spl_plan p, alone;
    spl_error err;
    spl_plan_request r = request(128 * GB);
    r.max_lanes = 1;
    assert_int_equal(spl_plan_make(q38(), &r, &alone, &err), SPL_OK);
    /* Just enough for one lane with the least context and a little more: not for two lanes. */
    uint64_t one = alone.weight_bytes + alone.arena_bytes + alone.logits_bytes + alone.other_bytes +
                   alone.state_cell_bytes + r.lane_bytes;
    r = request(one + 40 * alone.kv_page_bytes);
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_OK);
    check_sums(&p, &r);
    assert_int_equal(p.max_lanes, 1);
    assert_true(p.context_tokens >= SPL_PLAN_MIN_CONTEXT);
}

static void test_a_given_context_is_kept_or_refused(void **state) {
    (void)state;
    spl_plan p;
    spl_error err;
    spl_plan_request r = request(24 * GB);
    r.context_tokens = 5000;
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_OK);
    check_sums(&p, &r);
    assert_int_equal(p.context_tokens, 5000);
    assert_int_equal(p.kv_pages, 4 * ((5000 + 7 + 31) / 32));
    r.context_tokens = 262144;
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_E_LIMIT);
    assert_non_null(strstr(err.text, "shorter context"));
    assert_int_equal(p.total_bytes, 0);
    r.context_tokens = 262145;
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_E_INVALID);
    assert_non_null(strstr(err.text, "262144"));
}

static void test_refusals_name_bytes_limit_and_remedy(void **state) {
    (void)state;
    spl_plan p;
    spl_error err;
    spl_plan_request r = request(8 * GB);
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_E_LIMIT);
    assert_non_null(strstr(err.text, "qwen3.8-27b"));
    assert_non_null(strstr(err.text, "8000000000"));
    assert_non_null(strstr(err.text, "smaller model"));
    char weights[32];
    (void)snprintf(weights, sizeof weights, "%llu", (unsigned long long)spl_plan_weight_bytes(q38(), 0, true));
    assert_non_null(strstr(err.text, weights));
    r.limit_bytes = 0;
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_E_INVALID);
    r = request(64 * GB);
    r.max_lanes = 5;
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_E_INVALID);
}

static void test_every_geometry_plans(void **state) {
    (void)state;
    const spl_geometry *g;
    for (uint32_t i = 0; (g = spl_geometry_at(i)) != NULL; i++) {
        spl_plan p;
        spl_error err;
        spl_plan_request r = request(64 * GB);
        r.has_draft = g->draft != NULL;
        assert_int_equal(spl_plan_make(g, &r, &p, &err), SPL_OK);
        check_sums(&p, &r);
        assert_int_equal(p.context_tokens, g->max_positions);
        r.f32_kv = true;
        spl_plan oracle;
        assert_int_equal(spl_plan_make(g, &r, &oracle, &err), SPL_OK);
        assert_int_equal(oracle.kv_page_bytes * (g->head_dim + 4), p.kv_page_bytes * 4 * g->head_dim);
    }
}

/* The packer's own placement and the plan's sum are two computations of one number. */
static void test_weight_bytes_equal_the_files(void **state) {
    (void)state;
    static const char *const ids[] = {"nano", "toy", "toy-even", "qwen3.8-27b", "qwen3.6-35b-a3b"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        const spl_geometry *g = spl_geometry_find(ids[i]);
        spl_manifest *m;
        spl_error err;
        assert_int_equal(spl_manifest_new(&m, g, 4, g->draft != NULL, &err), SPL_OK);
        uint64_t files = spl_manifest_file_bytes(m, SPL_FILE_TARGET) + spl_manifest_file_bytes(m, SPL_FILE_DRAFT);
        assert_int_equal(spl_plan_weight_bytes(g, 4, true), files);
        spl_manifest_free(m);
    }
}

static void test_print_lists_every_part(void **state) {
    (void)state;
    spl_plan p;
    spl_error err;
    spl_plan_request r = request(64 * GB);
    spl_buf text;
    spl_buf_init(&text, 4096);
    assert_int_equal(spl_plan_make(q38(), &r, &p, &err), SPL_OK);
    spl_plan_print(&p, &text);
    assert_int_equal(text.status, SPL_OK);
    static const char *const words[] = {"weights", "kv",    "state", "arena", "logits",
                                        "other",   "total", "limit", "262144"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) assert_non_null(strstr(text.data, words[i]));
    spl_buf_free(&text);
}

/* ---- the limit ------------------------------------------------------------------------------- */

#ifndef __APPLE__
static char tree[] = "/tmp/spl_test_plan_XXXXXX";

static int make_tree(void **state) {
    (void)state;
    return mkdtemp(tree) ? 0 : 1;
}

static int remove_tree(void **state) {
    (void)state;
    return spl_remove_tree(tree, NULL) == SPL_OK ? 0 : 1;
}

static void put(const char *name, const char *text) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", tree, name);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    assert_int_equal(spl_make_folders(path, NULL), SPL_OK);
    *slash = '/';
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void test_machine_without_groups(void **state) {
    (void)state;
    spl_memory_room room;
    spl_error err;
    assert_int_equal(spl_memory_room_get(tree, &room, &err), SPL_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "MemAvailable"));
    put("proc/meminfo", "MemTotal:  16000000 kB\nMemFree: 1000 kB\nMemAvailable:   8000000 kB\n");
    assert_int_equal(spl_memory_room_get(tree, &room, &err), SPL_OK);
    assert_int_equal(room.machine_bytes, 8000000ULL * 1024);
    assert_true(room.group_bytes == UINT64_MAX);
    assert_int_equal(room.available_bytes, room.machine_bytes);
}

static void test_groups_v2(void **state) {
    (void)state;
    spl_memory_room room;
    spl_error err;
    put("proc/meminfo", "MemAvailable:   8000000 kB\n");
    put("proc/self/cgroup", "0::/slice/service\n");
    put("sys/fs/cgroup/slice/service/memory.max", "max\n");
    put("sys/fs/cgroup/slice/memory.max", "4000000000\n");
    put("sys/fs/cgroup/slice/memory.current", "3000000000\n");
    put("sys/fs/cgroup/slice/memory.stat",
        "anon 1\nfile 2500000000\ninactive_file 1500000000\nactive_file 500000000\n");
    assert_int_equal(spl_memory_room_get(tree, &room, &err), SPL_OK);
    /* File pages can be given back: 4 - (3 - 2) GB. The tighter of both figures counts. */
    assert_int_equal(room.group_bytes, 3000000000);
    assert_int_equal(room.available_bytes, 3000000000);
    put("sys/fs/cgroup/slice/service/memory.max", "1000000\n");
    assert_int_equal(spl_memory_room_get(tree, &room, &err), SPL_OK);
    assert_int_equal(room.available_bytes, 1000000);
}

static void test_groups_v1_and_container_paths(void **state) {
    (void)state;
    spl_memory_room room;
    spl_error err;
    put("proc/meminfo", "MemAvailable:   8000000 kB\n");
    put("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/docker/0123456789\n0::/\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000000\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000000\n");
    put("sys/fs/cgroup/memory/memory.stat", "cache 7\ntotal_inactive_file 100000000\ntotal_active_file 0\n");
    /* The container does not show its own group's folder: its parent's, the mount's root, counts. */
    assert_int_equal(spl_memory_room_get(tree, &room, &err), SPL_OK);
    assert_int_equal(room.group_bytes, 1600000000);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* v1's "no limit" */
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "oops\n");
    assert_int_equal(spl_memory_room_get(tree, &room, &err), SPL_OK);
    assert_true(room.group_bytes == UINT64_MAX);
}
#endif

static void test_this_machine_has_room(void **state) {
    (void)state;
    spl_memory_room room;
    spl_error err;
    assert_int_equal(spl_memory_room_get("", &room, &err), SPL_OK);
    assert_true(room.available_bytes > 0 && room.available_bytes <= room.machine_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roomy_machine_takes_the_whole_context),
        cmocka_unit_test(test_context_shrinks_with_the_limit),
        cmocka_unit_test(test_lanes_give_way_to_a_useful_context),
        cmocka_unit_test(test_a_given_context_is_kept_or_refused),
        cmocka_unit_test(test_refusals_name_bytes_limit_and_remedy),
        cmocka_unit_test(test_every_geometry_plans),
        cmocka_unit_test(test_weight_bytes_equal_the_files),
        cmocka_unit_test(test_print_lists_every_part),
        cmocka_unit_test(test_this_machine_has_room),
#ifndef __APPLE__
        cmocka_unit_test(test_machine_without_groups),
        cmocka_unit_test(test_groups_v2),
        cmocka_unit_test(test_groups_v1_and_container_paths),
#endif
    };
#ifndef __APPLE__
    return cmocka_run_group_tests(tests, make_tree, remove_tree);
#else
    return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
