/* SPDX-License-Identifier: Apache-2.0
 * Tuning decides speed alone: text is the same under extreme choices; and a tuning file counts only
 * for the machine and version it was made on. SPL_TEST_TIER names the tier; the best otherwise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/cpu_name.h"
#include "base/file_map.h"
#include "base/thread_team.h"
#include "splash.h"
#include "step/tuning.h"

enum { N_TOKENS = 120, N_PROMPT = 300 };

typedef struct log_lines {
    uint32_t n;
    char last[512];
} log_lines;

static void remember(void *user, const char *line) {
    log_lines *l = user;
    l->n++;
    (void)snprintf(l->last, sizeof l->last, "%s", line);
}

static const char *tier_name(void) {
    const char *name = getenv("SPL_TEST_TIER");
    return name && *name ? name : NULL;
}

static void machine_here(spl_tuning_machine *m) {
    spl_kernels kernels;
    spl_error err;
    spl_tier tier = SPL_N_TIERS;
    assert_true(!tier_name() || spl_tier_from_name(tier_name(), &tier));
    assert_int_equal(spl_kernels_select(&kernels, tier, &err), SPL_OK);
    spl_tuning_machine_get(m, SPLASH_VERSION, kernels.tier);
}

static void store(const char *folder, const spl_tuning *t) {
    spl_tuning_machine here;
    spl_error err;
    machine_here(&here);
    char *path = spl_tuning_path(folder, &here);
    json_t *root = spl_tuning_json(t);
    assert_non_null(root);
    char *text = json_dumps(root, 0);
    assert_int_equal(spl_publish_file(path, text, strlen(text), &err), SPL_OK);
    free(text);
    json_decref(root);
    free(path);
}

static splash_engine *open_toy(const char *folder, uint32_t n_threads, bool proposals, log_lines *log) {
    splash_engine *e = NULL;
    splash_error err = {0};
    splash_options o = {.model = "toy",
                        .random_weights = true,
                        .random_draft = true,
                        .cpu_tier = tier_name(),
                        .n_threads = n_threads,
                        .no_draft = !proposals,
                        .no_lookup = !proposals,
                        .context_tokens = 1024,
                        .memory_limit_bytes = (uint64_t)1 << 30,
                        .tuning_folder = folder,
                        .debug = log ? remember : NULL,
                        .debug_user = log};
    if (splash_open(&e, &o, &err) != SPLASH_OK) fail_msg("%s", err.text);
    return e;
}

static void generate(splash_engine *e, float temperature, uint32_t out[N_TOKENS]) {
    uint32_t prompt[N_PROMPT], n = 0;
    splash_request *r;
    splash_error err;
    splash_event ev;
    for (uint32_t i = 0; i < N_PROMPT; i++) prompt[i] = (i * 7919u >> 3) % 480u;
    splash_prompt p = {.tokens = prompt,
                       .n_tokens = N_PROMPT,
                       .max_new_tokens = N_TOKENS,
                       .ignore_eos = true,
                       .sampling = {.temperature = temperature, .top_p = 1, .repetition_penalty = 1, .seed = 4}};
    assert_int_equal(splash_submit(e, &p, &r, &err), SPLASH_OK);
    do {
        assert_int_equal(splash_next_event(e, &ev, 20000), SPLASH_OK);
        assert_int_not_equal(ev.kind, SPLASH_EVENT_FAILED);
        assert_int_not_equal(ev.kind, SPLASH_EVENT_NONE);
        if (ev.kind == SPLASH_EVENT_TOKEN) out[n++] = ev.token;
    } while (ev.kind != SPLASH_EVENT_DONE);
    assert_int_equal(n, N_TOKENS);
}

static char *new_folder(void) {
    char *folder = strdup("/tmp/splash-tuning-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}
static void drop_folder(char *folder) {
    spl_error err;
    assert_int_equal(spl_remove_tree(folder, &err), SPL_OK);
    free(folder);
}

static void text_does_not_depend_on_tuning(void **state) {
    (void)state;
    static const spl_knobs extremes[] = {
        {.n_threads = 1, .panel_chunk = 1, .reach = {1, 1, 1}},
        {.panel_chunk = SPL_MAX_PANEL_CHUNK, .reach = {SPL_MAX_NEAR_BYTES, SPL_MAX_FAR_BYTES, SPL_MAX_NEAR_BYTES}},
        {.panel_chunk = 3, .reach = {64, 64, 1 << 16}},
    };
    /* Step times that make the engine draft always, never, or by single rows. */
    static const double drafted[][2] = {{1, 0.001}, {0.001, 1}, {1, 1}};
    uint32_t plain[N_TOKENS], sampled[N_TOKENS], out[N_TOKENS];
    char *folder = new_folder(), key[SPL_TUNING_KEY_BYTES];
    spl_package *package;
    spl_error err;
    assert_int_equal(spl_package_random(&package, spl_geometry_find("toy"), 0, true, 1, &err), SPL_OK);
    spl_tuning_model_key(key, package);
    spl_package_close(package);
    splash_engine *e = open_toy(NULL, 0, false, NULL);
    generate(e, 0, plain);
    generate(e, 1, sampled);
    splash_close(&e);
    assert_memory_not_equal(plain, sampled, sizeof plain);
    for (size_t i = 0; i < SPL_COUNT(extremes); i++) {
        spl_tuning t = {.knobs = extremes[i]};
        spl_tuned_model model = {.seconds = {{0}}};
        log_lines log = {0};
        splash_model_info info;
        machine_here(&t.machine);
        memcpy(model.key, key, sizeof key);
        for (uint32_t rows = 1; rows <= SPL_BLOCK_ROWS; rows++)
            for (int d = 0; d < 2; d++) model.seconds[d][rows] = drafted[i][d] * (i == 2 ? rows : 1);
        spl_tuning_put(&t, &model);
        store(folder, &t);
        e = open_toy(folder, 0, true, &log);
        splash_model_info_get(e, &info);
        assert_int_equal(info.n_threads, extremes[i].n_threads ? extremes[i].n_threads : spl_usable_cores());
        assert_int_equal(log.n, 1);
        assert_non_null(strstr(log.last, "tuning used"));
        generate(e, 0, out);
        assert_memory_equal(out, plain, sizeof plain);
        splash_close(&e);
        /* With proposals a seed promises a distribution only, so the sampled answer is compared without. */
        e = open_toy(folder, 0, false, NULL);
        generate(e, 1, out);
        assert_memory_equal(out, sampled, sizeof sampled);
        splash_close(&e);
    }
    drop_folder(folder);
}

/* Step times from the file are what the choice of rows starts from. */
static void step_times_are_used(void **state) {
    (void)state;
    char *folder = new_folder();
    uint32_t out[N_TOKENS];
    uint64_t draft_steps[2];
    for (int cheap = 0; cheap < 2; cheap++) {
        spl_tuning t = {.n_models = 0};
        spl_tuned_model model = {.seconds = {{0}}};
        spl_package *package;
        spl_error err;
        splash_stats stats;
        machine_here(&t.machine);
        assert_int_equal(spl_package_random(&package, spl_geometry_find("toy"), 0, true, 1, &err), SPL_OK);
        spl_tuning_model_key(model.key, package);
        spl_package_close(package);
        for (uint32_t rows = 1; rows <= SPL_BLOCK_ROWS; rows++) {
            model.seconds[0][rows] = cheap ? 90000 : 1e-9; /* plain steps cost nothing, or all */
            model.seconds[1][rows] = cheap ? 1e-9 : 90000;
        }
        spl_tuning_put(&t, &model);
        store(folder, &t);
        splash_engine *e = open_toy(folder, 1, true, NULL);
        generate(e, 0, out);
        splash_stats_get(e, &stats);
        draft_steps[cheap] = stats.draft_steps_total;
        splash_close(&e);
    }
    assert_int_equal(draft_steps[0], 0);
    assert_true(draft_steps[1] > 10);
    drop_folder(folder);
}

static void foreign_and_broken_files_are_ignored(void **state) {
    (void)state;
    char *folder = new_folder();
    log_lines log = {0};
    spl_tuning_machine here;
    spl_error err;
    splash_engine *e = open_toy(folder, 1, true, &log);
    splash_close(&e);
    assert_int_equal(log.n, 1);
    assert_non_null(strstr(log.last, "tuning not there"));
    machine_here(&here);
    for (int i = 0; i < 5; i++) {
        static const char *const reasons[] = {"engine 9.9.9", "of another processor", "cores", "tier unknown",
                                              "format"};
        spl_tuning t = {.machine = here, .knobs = {.n_threads = 1}};
        if (i == 0) memcpy(t.machine.engine, "9.9.9", 6);
        if (i == 1) memcpy(t.machine.cpu, "another processor", 18);
        if (i == 2) t.machine.cores++;
        if (i == 3) memcpy(t.machine.cpu_tier, "unknown", 8);
        store(folder, &t);
        if (i == 4) {
            char *path = spl_tuning_path(folder, &here);
            assert_int_equal(spl_publish_file(path, "{\"format\": 7}", 13, &err), SPL_OK);
            free(path);
        }
        e = open_toy(folder, 0, true, &log);
        splash_model_info info;
        splash_model_info_get(e, &info);
        assert_int_equal(info.n_threads, spl_usable_cores());
        splash_close(&e);
        assert_non_null(strstr(log.last, "tuning ignored"));
        assert_non_null(strstr(log.last, reasons[i]));
    }
    drop_folder(folder);
}

static void models_are_kept_newest_last(void **state) {
    (void)state;
    static spl_tuning t;
    for (uint32_t i = 0; i < 20; i++) {
        spl_tuned_model m = {.seconds = {{0, i + 1.0}}};
        (void)snprintf(m.key, sizeof m.key, "model %u", i == 19 ? 10 : i);
        spl_tuning_put(&t, &m);
    }
    assert_int_equal(t.n_models, SPL_TUNING_MAX_MODELS);
    assert_null(spl_tuning_find(&t, "model 2"));
    assert_ptr_equal(spl_tuning_find(&t, "model 3"), &t.models[0]);
    assert_ptr_equal(spl_tuning_find(&t, "model 10"), &t.models[t.n_models - 1]);
    assert_true(t.models[t.n_models - 1].seconds[0][1] == 20.0);
}

static void processors_have_names(void **state) {
    (void)state;
    static const struct {
        const char *text, *name;
    } cases[] = {
        {"processor\t: 0\nmodel name\t: Some  CPU  @ 3.0GHz \nmodel name\t: other\n", "Some CPU @ 3.0GHz"},
        {"processor : 0\nCPU implementer\t: 0x41\nCPU variant : 0x1\nCPU part\t: 0xd40\n", "Arm maker 0x41 part 0xd40"},
        {"model name : \001\377\n", "unknown processor"},
        {"", "unknown processor"}};
    char name[64], *folder = new_folder(), *proc = spl_path_join(folder, "proc");
    spl_error err;
    assert_int_equal(spl_make_folders(proc, &err), SPL_OK);
    char *file = spl_path_join(proc, "cpuinfo");
    spl_cpu_name(folder, name, sizeof name);
#ifndef __APPLE__
    assert_string_equal(name, "unknown processor");
    for (size_t i = 0; i < SPL_COUNT(cases); i++) {
        assert_int_equal(spl_publish_file(file, cases[i].text, strlen(cases[i].text), &err), SPL_OK);
        spl_cpu_name(folder, name, sizeof name);
        assert_string_equal(name, cases[i].name);
    }
#endif
    spl_tuning_machine m = {.cpu = "../Intel(R) Core(TM) i7-1/../x", .engine = "0.1.0", .cpu_tier = "avx2", .cores = 8};
    char *path = spl_tuning_path("/c", &m);
    assert_string_equal(path, "/c/intel-r-core-tm-i7-1-..-x-8-avx2-0.1.0.json");
    free(path);
    free(file);
    free(proc);
    drop_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_does_not_depend_on_tuning), cmocka_unit_test(step_times_are_used),
        cmocka_unit_test(foreign_and_broken_files_are_ignored), cmocka_unit_test(models_are_kept_newest_last),
        cmocka_unit_test(processors_have_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
