/* SPDX-License-Identifier: Apache-2.0
 * Finding the model. Packed checkpoints lie in the cache, one folder per checkpoint state: its name is a digest of the
 * path and of every file's name, size and time. */
#include "cli/model_arg.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include "base/clock.h"
#include "base/dynbuf.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "cli/cache_folder.h"
#include "cli/progress.h"
#include "cli/signals.h"

/* ---- the model that comes with the program ------------------------------------------------- */

/* Folder of the running program, without the trailing slash. */
static bool program_folder(char *out, size_t out_bytes) {
    char path[PATH_MAX], real[PATH_MAX];
#ifdef __APPLE__
    uint32_t n = sizeof path;
    if (_NSGetExecutablePath(path, &n) != 0) return false;
#else
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return false;
    path[n] = 0;
#endif
    if (!realpath(path, real)) return false;
    char *slash = strrchr(real, '/');
    if (!slash) return false;
    *slash = 0;
    return (size_t)snprintf(out, out_bytes, "%s", real) < out_bytes;
}

static spl_status find_default(char **out, spl_error *err) {
    static const char *const places[] = {"../models/nano", "../share/splash/models/nano", "../../models/nano",
                                         "../../../models/nano"};
    char folder[PATH_MAX];
    spl_buf tried;
    spl_buf_init(&tried, (size_t)1 << 16);
    if (!program_folder(folder, sizeof folder)) (void)snprintf(folder, sizeof folder, "%s", ".");
    for (size_t i = 0; i < SPL_COUNT(places); i++) {
        char *path = spl_path_join(folder, places[i]);
        if (!path) break;
        if (splash_folder_kind_of(path) == SPLASH_FOLDER_PACKAGE) {
            char *real = realpath(path, NULL);
            *out = real ? real : path;
            if (real) free(path);
            spl_buf_free(&tried);
            return SPL_OK;
        }
        if (i < 2) (void)spl_buf_printf(&tried, "%s%s", i ? ", " : "", path);
        free(path);
    }
    spl_status st = spl_fail(err, SPL_E_NOTFOUND,
                             "the nano model is not where it should be (tried %.300s); name a model with --model",
                             tried.data ? tried.data : "nothing");
    spl_buf_free(&tried);
    return st;
}

/* ---- checkpoints --------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Adds "name size mtime" of every file of the folder, sorted by name, to the digest. */
static spl_status digest_folder(spl_sha256 *h, const char *path, spl_error *err) {
    DIR *folder = opendir(path);
    if (!folder) return spl_fail_errno(err, errno, "cannot read %s", path);
    char **names = NULL;
    size_t n = 0, capacity = 0;
    spl_status st = SPL_OK;
    for (struct dirent *entry; st == SPL_OK && (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        if (n == capacity) {
            capacity = capacity ? capacity * 2 : 32;
            char **grown = realloc(names, capacity * sizeof *names);
            if (!grown) {
                st = spl_fail(err, SPL_E_NOMEM, "no memory to list %s", path);
                break;
            }
            names = grown;
        }
        names[n] = strdup(entry->d_name);
        if (names[n]) n++;
    }
    (void)closedir(folder);
    if (n) qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; i < n; i++) {
        struct stat info;
        char line[512];
        char *file = spl_path_join(path, names[i]);
        if (file && stat(file, &info) == 0 && S_ISREG(info.st_mode)) {
            int len = snprintf(line, sizeof line, "%.300s %lld %lld\n", names[i], (long long)info.st_size,
                               (long long)info.st_mtime);
            spl_sha256_update(h, line, (size_t)len);
        }
        free(file);
        free(names[i]);
    }
    free(names);
    return st;
}

/* Folder of the cache entry for a checkpoint; malloc'ed. */
static spl_status cache_path(const char *checkpoint, char **out, spl_error *err) {
    char hex[SPL_SHA256_HEX_BYTES], name[PATH_MAX], real[PATH_MAX];
    spl_sha256 *h;
    *out = NULL;
    if (!realpath(checkpoint, real)) return spl_fail_errno(err, errno, "cannot resolve %s", checkpoint);
    spl_status st = spl_sha256_new(&h, err);
    if (st != SPL_OK) return st;
    spl_sha256_update(h, real, strlen(real));
    st = digest_folder(h, real, err);
    if (st != SPL_OK) {
        spl_sha256_free(h);
        return st;
    }
    st = spl_sha256_finish(h, hex, err);
    if (st != SPL_OK) return st;
    const char *leaf = strrchr(real, '/');
    leaf = leaf && leaf[1] ? leaf + 1 : "model";
    char *folder = spl_cache_folder("packages");
    if (!folder)
        return spl_fail(err, SPL_E_NOTFOUND,
                        "neither XDG_CACHE_HOME nor HOME is set: pack the checkpoint with `splash pack`");
    (void)snprintf(name, sizeof name, "%s", folder);
    free(folder);
    st = spl_make_folders(name, err);
    if (st != SPL_OK) return st;
    size_t n = strlen(name);
    (void)snprintf(name + n, sizeof name - n, "/%.100s-%.16s", leaf, hex);
    *out = strdup(name);
    return *out ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
}

static spl_status pack_into_cache(const char *checkpoint, char **out, spl_error *err) {
    splash_error error = {0};
    spl_progress progress;
    spl_status st = cache_path(checkpoint, out, err);
    if (st != SPL_OK) return st;
    if (splash_folder_kind_of(*out) == SPLASH_FOLDER_PACKAGE) return SPL_OK;
    (void)fprintf(stderr, "Packing · %s into %s\n", checkpoint, *out);
    spl_progress_init(&progress);
    splash_pack_options pack = {
        .source = checkpoint, .output = *out, .progress = spl_progress_step, .progress_user = &progress};
    splash_status code = splash_pack(&pack, &error);
    spl_progress_end(&progress);
    if (code == SPLASH_OK) return SPL_OK;
    free(*out);
    *out = NULL;
    return spl_fail(err, (spl_status)code, "%s", error.text);
}

/* ---- resolution ---------------------------------------------------------------------------- */

spl_status spl_model_resolve(const spl_model_options *o, char **out, spl_error *err) {
    *out = NULL;
    if (o->random_weights) {
        if (!o->model) return spl_fail(err, SPL_E_INVALID, "--random-weights needs a geometry id in --model");
        *out = strdup(o->model);
        return *out ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    }
    if (!o->model || strcmp(o->model, "nano") == 0) {
        if (o->model && splash_folder_kind_of(o->model) == SPLASH_FOLDER_PACKAGE) {
            *out = strdup(o->model);
            return *out ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
        }
        return find_default(out, err);
    }
    switch (splash_folder_kind_of(o->model)) {
    case SPLASH_FOLDER_PACKAGE:
        *out = strdup(o->model);
        return *out ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    case SPLASH_FOLDER_CHECKPOINT: return pack_into_cache(o->model, out, err);
    case SPLASH_FOLDER_OTHER: break;
    }
    return spl_fail(err, SPL_E_NOTFOUND,
                    "'%.200s' is neither a package folder (manifest.json) nor a checkpoint folder (config.json and "
                    "weights); a geometry id needs --random-weights",
                    o->model);
}

void spl_raise_lock_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_MEMLOCK, &limit);
}

/* The bar of a load that takes a moment; small models never show it. */
typedef struct open_bar {
    spl_progress progress;
    uint64_t start_ns;
} open_bar;

static bool open_progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    static const uint64_t patience_ns = 300000000u;
    open_bar *bar = user;
    if (bar->progress.is_terminal && (bar->progress.line_open || spl_now_ns() - bar->start_ns > patience_ns))
        return spl_progress_step(&bar->progress, stage, done, total);
    return spl_signal_pending() != 0;
}

spl_status spl_model_open(const spl_model_options *o, uint32_t queue_limit, splash_engine **out, spl_error *err) {
    char *model;
    splash_error error = {0};
    open_bar bar = {.start_ns = spl_now_ns()};
    *out = NULL;
    spl_status st = spl_model_resolve(o, &model, err);
    if (st != SPL_OK) return st;
    if (o->lock_weights) spl_raise_lock_limit();
    spl_progress_init(&bar.progress);
    char *tuning = o->no_tuning ? NULL : spl_cache_folder("tuning");
    splash_options options = {.model = model,
                              .random_weights = o->random_weights,
                              .no_draft = o->no_draft,
                              .no_lookup = o->no_lookup,
                              .n_layers = o->n_layers,
                              .context_tokens = o->context_tokens,
                              .n_threads = o->n_threads,
                              .cpu_tier = o->cpu_tier,
                              .memory_limit_bytes = o->memory_limit_bytes,
                              .queue_limit = queue_limit,
                              .lock_weights = o->lock_weights,
                              .tuning_folder = tuning,
                              .debug = spl_debug_log(),
                              .progress = open_progress,
                              .progress_user = &bar};
    splash_status code = splash_open(out, &options, &error);
    spl_progress_end(&bar.progress);
    free(tuning);
    free(model);
    return code == SPLASH_OK ? SPL_OK : spl_fail(err, (spl_status)code, "%s", error.text);
}
