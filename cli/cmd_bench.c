/* SPDX-License-Identifier: Apache-2.0
 * splash bench: one measurement as a table or as one JSON object. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "base/compiler.h"
#include "bench/bench.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/cache_folder.h"
#include "cli/model_arg.h"
#include "cli/result_text.h"

/* Path of the running program, so that it can start itself as a server. */
static const char *own_path(char out[PATH_MAX]) {
#ifdef __APPLE__
    uint32_t n = PATH_MAX;
    return _NSGetExecutablePath(out, &n) == 0 ? out : NULL;
#else
    ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
    if (n <= 0) return NULL;
    out[n] = 0;
    return out;
#endif
}

static void usage_text(char *out, size_t out_bytes) {
    int n =
        snprintf(out, out_bytes, "Measures one thing and prints it with the machine's own limits beside it.\n\nkinds:");
    for (uint32_t i = 0; spl_bench_kind_at(i) && n > 0 && (size_t)n < out_bytes; i++)
        n += snprintf(out + n, out_bytes - (size_t)n, "\n  %-13s %s", spl_bench_kind_at(i)->name,
                      spl_bench_kind_at(i)->about);
    if (n > 0 && (size_t)n < out_bytes)
        (void)snprintf(out + n, out_bytes - (size_t)n, "\n  %-13s %s", "compare",
                       "this engine beside llama.cpp, its own options: splash bench compare --help");
}

static int measure(const char *kind, spl_bench_options *o, spl_model_options *model, bool json) {
    char path[PATH_MAX], *resolved = NULL;
    spl_error err = {0};
    json_t *result = NULL;
    spl_status st = SPL_OK;
    bool terminal = isatty(STDERR_FILENO) == 1;
    if (spl_bench_kind_find(kind)->needs_model && !o->url) st = spl_model_resolve(model, &resolved, &err);
    o->model = resolved;
    o->program = own_path(path);
    char *tuning = model->no_tuning ? NULL : spl_cache_folder("tuning");
    o->tuning_folder = tuning;
    o->debug = spl_debug_log();
    if (terminal) o->progress = spl_show_line;
    if (st == SPL_OK) st = spl_bench_run(kind, o, &result, &err);
    if (terminal) (void)fprintf(stderr, "\r\033[K");
    int code = st == SPL_OK ? spl_print_result(result, json) : SPL_EXIT_FAILURE;
    if (st != SPL_OK) (void)fprintf(stderr, "splash: %s\n", err.text);
    json_decref(result);
    free(tuning);
    free(resolved);
    return code;
}

/* `splash bench compare ...`: the comparison is a Python program beside the sources, which takes the words as they
 * are. Returns only when it cannot be started. */
static int run_comparison(char **argv) {
    static const char script[] = "/../bench/compare/compare.py";
    char path[PATH_MAX + sizeof script];
    char exe[PATH_MAX];
    const char *own = own_path(exe);
    const char *slash = own ? strrchr(own, '/') : NULL;
    if (slash) {
        (void)snprintf(path, sizeof path, "%.*s%s", (int)(slash - own), own, script);
        argv[0] = (char *)(uintptr_t) "python3";
        argv[1] = path;
        if (access(path, R_OK) == 0) (void)execvp("python3", argv);
    }
    (void)fprintf(stderr,
                  "splash: bench compare needs python3 and bench/compare of the source tree beside the program\n");
    return 1;
}

int spl_cmd_bench(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "compare") == 0) return run_comparison(argv);
    char about[1024];
    spl_bench_options o = {0};
    spl_model_options m = {0};
    const char *kind = NULL;
    size_t n = 0;
    bool json = false;
    usage_text(about, sizeof about);
    const spl_command_help help = {"splash bench KIND [options]", about};
    const spl_option rows[] = {
        {"json", 0, SPL_OPT_FLAG, &json, NULL, "one JSON object", NULL},
        {"seconds", 0, SPL_OPT_DURATION, &o.seconds, "S", "step, prefill: time to measure for (default 2)", NULL},
        {"draft", 0, SPL_OPT_FLAG, &o.draft, NULL, "step, prefill: with the draft (random weights: a random one)",
         NULL},
        {"rows", 0, SPL_OPT_U32, &o.rows, "N",
         "step: rows per lane (default 8); accept: rows to verify (default: chosen)", NULL},
        {"lanes", 0, SPL_OPT_U32, &o.lanes, "N", "step: lanes, 1 to 4 (default 1)", NULL},
        {"context", 0, SPL_OPT_U32, &o.context_tokens, "TOKENS", "step: history of every lane (default 8, the least)",
         NULL},
        {"busy", 0, SPL_OPT_U32, &o.busy, "N", "step: N other threads compute during half of the runs", NULL},
        {"synthetic-acceptance", 0, SPL_OPT_NUMBER, &o.synthetic_tau, "TAU", "step: assume this acceptance length",
         NULL},
        {"tokens", 0, SPL_OPT_U32, &o.tokens, "N", "prefill: length of the prompt (default 512)", NULL},
        {"prompts", 0, SPL_OPT_STRING, &o.prompts, "FILE",
         "accept, nano-quality, serve: prompts, one JSON object a line", NULL},
        {"no-lookup", 0, SPL_OPT_FLAG, &o.no_lookup, NULL, "accept: proposals from the draft alone", NULL},
        {"limit", 0, SPL_OPT_U32, &o.n_prompts, "N", "only the first N prompts", NULL},
        {"raw", 0, SPL_OPT_FLAG, &o.raw, NULL, "accept: complete the prompts as they are, no chat template", NULL},
        {"max-tokens", 'n', SPL_OPT_U32, &o.max_tokens, "N", "accept, nano-quality, serve: longest answer", NULL},
        {"repeat", 0, SPL_OPT_U32, &o.repeat, "N", "accept: passes of each side, 1 (A B) or 2 (A B B A, default)",
         NULL},
        {"temperature", 0, SPL_OPT_NUMBER, &o.temperature, "T", "accept, serve: 0 is greedy (default)", NULL},
        {"concurrency", 'c', SPL_OPT_U32, &o.concurrency, "N", "serve: requests in flight (default 1)", NULL},
        {"requests", 0, SPL_OPT_U32, &o.n_requests, "N", "serve: requests in all (default 4 per place in flight)",
         NULL},
        {"url", 0, SPL_OPT_STRING, &o.url, "URL", "serve: a running server (default: one is started)", NULL},
        {"model", 'm', SPL_OPT_STRING, &m.model, "M", "package or checkpoint folder, or a geometry id (default: nano)",
         NULL},
        {"random-weights", 0, SPL_OPT_FLAG, &m.random_weights, NULL, "generated weights; M is a geometry id", NULL},
        {"layers", 0, SPL_OPT_U32, &o.n_layers, "N", "only the first N layers of random weights", NULL},
        {"max-context", 0, SPL_OPT_U32, &o.max_context, "TOKENS", "accept, nano-quality, serve: context window", NULL},
        {"threads", 't', SPL_OPT_U32, &o.n_threads, "N", "worker threads (default: one per core)", NULL},
        {"cpu", 0, SPL_OPT_STRING, &o.cpu_tier, "TIER", "kernel tier (default: the best this machine has)", NULL},
        {"mlock", 0, SPL_OPT_FLAG, &m.lock_weights, NULL, "keep the weights in memory, or refuse to start", NULL},
        {"no-tuning", 0, SPL_OPT_FLAG, &m.no_tuning, NULL, "without what `splash tune` stored", NULL},
        {"no-huge-pages", 0, SPL_OPT_FLAG, &o.no_huge_pages, NULL, "ask for no large pages (not for serve)", NULL},
        {"max-memory", 0, SPL_OPT_SIZE, &o.memory_limit_bytes, "SIZE", "memory limit (default: 85 % of what is free)",
         NULL},
        {0}};
    int code = spl_parse_args(argc, argv, &help, rows, NULL, &kind, 1, &n);
    if (code >= 0) return code;
    if (n != 1) return spl_usage_error(&help, "say what to measure");
    if (!spl_bench_kind_find(kind)) return spl_usage_error(&help, "there is no benchmark '%s'", kind);
    if (o.busy && strcmp(kind, "step") != 0) return spl_usage_error(&help, "--busy works with step only");
    if (strcmp(kind, "accept") == 0 && !o.prompts) return spl_usage_error(&help, "accept needs --prompts FILE");
    if (o.n_layers && !m.random_weights) return spl_usage_error(&help, "--layers works with --random-weights only");
    o.random_weights = m.random_weights;
    o.lock_weights = m.lock_weights;
    if (o.lock_weights) spl_raise_lock_limit();
    return measure(kind, &o, &m, json);
}
