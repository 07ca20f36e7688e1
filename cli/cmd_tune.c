/* SPDX-License-Identifier: Apache-2.0
 * splash tune: measures what matters on this machine and stores it in the user's cache, where serve, run, chat and
 * bench find it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_map.h"
#include "bench/bench.h"
#include "cli/args.h"
#include "cli/cache_folder.h"
#include "cli/commands.h"
#include "cli/model_arg.h"
#include "cli/result_text.h"

static const spl_command_help HELP = {
    "splash tune [options]",
    "Measures the number of threads, how work is cut, how far ahead weights are fetched, and the model's step times,\n"
    "in under a minute, and stores the result for this processor and version. serve, run, chat and bench use it from\n"
    "then on. It says how far the engine's own choices were from the best (default over tuned). Answers never change."};

/* Writes the member "tuning" to `path`. */
static spl_status store(const json_t *result, const char *folder, const char *path, spl_error *err) {
    char *text = json_dumps(json_object_get(result, "tuning"), JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (!text) return spl_fail(err, SPL_E_NOMEM, "no memory to store the result");
    spl_status st = spl_make_folders(folder, err);
    if (st == SPL_OK) st = spl_publish_file(path, text, strlen(text), err);
    free(text);
    return st;
}

/* Choices made while others compute are choices for that. */
static void warn_when_busy(const json_t *result) {
    double load = json_number_value(json_object_get(result, "load_average"));
    double cores = (double)json_integer_value(json_object_get(json_object_get(result, "tuning"), "cores"));
    if (load > cores / 2)
        (void)fprintf(stderr,
                      "Warning · other programs kept the machine busy (load %.1f): tune again when it is idle\n", load);
}

static int tune(spl_bench_options *o, const spl_model_options *model, bool json, bool dry_run) {
    spl_error err = {0};
    json_t *result = NULL;
    char *resolved = NULL, *path = NULL, *folder = spl_cache_folder("tuning");
    bool terminal = isatty(STDERR_FILENO) == 1;
    spl_status st = SPL_OK;
    if (!folder && !dry_run)
        st = spl_fail(&err, SPL_E_NOTFOUND,
                      "neither XDG_CACHE_HOME nor HOME is set: there is no cache to store the "
                      "result in; --dry-run measures all the same");
    if (st == SPL_OK) st = spl_model_resolve(model, &resolved, &err);
    o->model = resolved;
    o->tuning_folder = folder;
    if (terminal) o->progress = spl_show_line;
    if (st == SPL_OK) st = spl_bench_tune(o, &result, &path, &err);
    if (terminal) (void)fprintf(stderr, "\r\033[K");
    if (st == SPL_OK) warn_when_busy(result);
    if (st == SPL_OK && !dry_run) st = store(result, folder, path, &err);
    if (st == SPL_OK) {
        (void)json_object_set_new(result, "path", dry_run ? json_null() : json_string(path));
        if (!json) (void)json_object_del(result, "tuning");
    }
    int code = st == SPL_OK ? spl_print_result(result, json) : SPL_EXIT_FAILURE;
    if (st != SPL_OK) (void)fprintf(stderr, "splash: %s\n", err.text);
    json_decref(result);
    free(resolved);
    free(folder);
    free(path);
    return code;
}

int spl_cmd_tune(int argc, char **argv) {
    spl_bench_options o = {0};
    spl_model_options m = {0};
    bool json = false, dry_run = false;
    const spl_option rows[] = {
        {"json", 0, SPL_OPT_FLAG, &json, NULL, "one JSON object", NULL},
        {"dry-run", 0, SPL_OPT_FLAG, &dry_run, NULL, "measure, store nothing", NULL},
        {"seconds", 0, SPL_OPT_DURATION, &o.seconds, "S", "time to spend (default 40)", NULL},
        {"model", 'm', SPL_OPT_STRING, &m.model, "M", "package or checkpoint folder, or a geometry id (default: nano)",
         NULL},
        {"random-weights", 0, SPL_OPT_FLAG, &m.random_weights, NULL, "generated weights; M is a geometry id", NULL},
        {"layers", 0, SPL_OPT_U32, &o.n_layers, "N", "only the first N layers of random weights", NULL},
        {"cpu", 0, SPL_OPT_STRING, &o.cpu_tier, "TIER", "kernel tier (default: the best this machine has)", NULL},
        {"max-memory", 0, SPL_OPT_SIZE, &o.memory_limit_bytes, "SIZE", "memory limit (default: 85 % of what is free)",
         NULL},
        {0}};
    int code = spl_parse_args(argc, argv, &HELP, rows, NULL, NULL, 0, NULL);
    if (code >= 0) return code;
    if (o.n_layers && !m.random_weights) return spl_usage_error(&HELP, "--layers works with --random-weights only");
    o.random_weights = m.random_weights;
    return tune(&o, &m, json, dry_run);
}
