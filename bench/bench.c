/* SPDX-License-Identifier: Apache-2.0
 * The table of kinds and what all results have in common: machine, kernels, commit, samples. */
#include "bench/bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/cpu_name.h"
#include "base/memory_limit.h"
#include "base/thread_team.h"
#include "bench/bench_internal.h"
#include "bench/kernel_times.h"
#include "bench/roof.h"
#include "splash.h"

#ifndef SPL_COMMIT
#define SPL_COMMIT "unknown"
#endif

static const uint64_t ROOF_MOST_BYTES = (uint64_t)8 << 30;

/* As much as half of what is free, up to 8 GB: the rate of memory the size of a model's. */
static size_t roof_bytes(void) {
    uint64_t half = spl_bench_free_bytes() / 2, most = half < ROOF_MOST_BYTES ? half : ROOF_MOST_BYTES;
    return most < SPL_ROOF_LEAST_BYTES ? SPL_ROOF_LEAST_BYTES : (size_t)most;
}

static spl_status bench_roof(const spl_bench_options *o, json_t **out, spl_error *err) {
    spl_roof_rates rates;
    spl_bench_json j = {0};
    spl_status st = spl_bench_measure_rates(o, roof_bytes(), &rates, err);
    if (st != SPL_OK) return st;
    spl_put_rates(&j, &rates);
    return spl_bench_json_take(&j, out, err);
}

static spl_status bench_kernels(const spl_bench_options *o, json_t **out, spl_error *err) {
    spl_kernels kernels;
    uint32_t n_threads = 0;
    spl_status st = spl_bench_kernels(o, &kernels, &n_threads, err);
    return st == SPL_OK ? spl_kernels_json(&kernels, n_threads, out, err) : st;
}

static const spl_bench_kind KINDS[] = {
    {"roof", "what memory and int8 arithmetic give here", false, bench_roof},
    {"kernels", "every kernel at real shapes against both rates", false, bench_kernels},
    {"step", "one decode step: time, bytes, roof, time per op", true, spl_bench_step},
    {"prefill", "prompt tokens per second", true, spl_bench_prefill},
    {"accept", "acceptance and speed with and without proposals", true, spl_bench_accept},
    {"nano-quality", "does the small model write Python that parses, and add", true, spl_bench_quality},
    {"serve", "first token, time per token and total speed over HTTP", true, spl_bench_serve},
};

const spl_bench_kind *spl_bench_kind_at(uint32_t index) { return index < SPL_COUNT(KINDS) ? &KINDS[index] : NULL; }

const spl_bench_kind *spl_bench_kind_find(const char *name) {
    for (size_t i = 0; i < SPL_COUNT(KINDS); i++)
        if (strcmp(KINDS[i].name, name) == 0) return &KINDS[i];
    return NULL;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

void spl_put(spl_bench_json *j, const char *key, json_t *value) {
    if (!j->object) j->object = json_object();
    if (json_object_set_new(j->object, key, value) != 0) j->failed = true;
}
void spl_put_real(spl_bench_json *j, const char *key, double value) {
    spl_put(j, key, isfinite(value) ? json_real(value) : json_null());
}
void spl_put_u64(spl_bench_json *j, const char *key, uint64_t value) {
    spl_put(j, key, json_integer((json_int_t)value));
}
void spl_put_text(spl_bench_json *j, const char *key, const char *value) { spl_put(j, key, json_string(value)); }
void spl_put_bool(spl_bench_json *j, const char *key, bool value) { spl_put(j, key, json_boolean(value)); }

spl_status spl_bench_json_take(spl_bench_json *j, json_t **out, spl_error *err) {
    if (!j->object || j->failed) {
        json_decref(j->object);
        *j = (spl_bench_json){0};
        *out = NULL;
        return spl_fail(err, SPL_E_NOMEM, "no memory for the result");
    }
    *out = j->object;
    j->object = NULL;
    return SPL_OK;
}

/* ---- samples --------------------------------------------------------------------------------- */

void spl_samples_add(spl_samples *s, double value) {
    if (s->n < SPL_MAX_SAMPLES) s->values[s->n++] = value;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double spl_samples_quantile(const spl_samples *s, double share) {
    if (s->n == 0) return 0;
    spl_samples sorted = *s;
    qsort(sorted.values, sorted.n, sizeof sorted.values[0], by_value);
    double at = ceil(share * sorted.n) - 1;
    return sorted.values[at < 0 ? 0 : at >= sorted.n ? sorted.n - 1 : (uint32_t)at];
}

double spl_samples_median(const spl_samples *s) {
    if (s->n == 0) return 0;
    spl_samples sorted = *s;
    qsort(sorted.values, sorted.n, sizeof sorted.values[0], by_value);
    uint32_t middle = sorted.n / 2;
    return sorted.n % 2 ? sorted.values[middle] : (sorted.values[middle - 1] + sorted.values[middle]) / 2;
}

void spl_put_samples(spl_bench_json *j, const char *key, const spl_samples *s) {
    char name[96];
    double low = s->n ? s->values[0] : 0, high = low, median = spl_samples_median(s);
    for (uint32_t i = 1; i < s->n; i++) {
        low = s->values[i] < low ? s->values[i] : low;
        high = s->values[i] > high ? s->values[i] : high;
    }
    spl_put_real(j, key, median);
    (void)snprintf(name, sizeof name, "%s_min", key);
    spl_put_real(j, name, low);
    (void)snprintf(name, sizeof name, "%s_max", key);
    spl_put_real(j, name, high);
    (void)snprintf(name, sizeof name, "%s_spread", key);
    spl_put_real(j, name, median > 0 ? (high - low) / median : 0);
}

/* ---- the machine ----------------------------------------------------------------------------- */

spl_status spl_bench_kernels(const spl_bench_options *o, spl_kernels *kernels, uint32_t *n_threads, spl_error *err) {
    spl_tier tier = SPL_N_TIERS;
    bool best = !o->cpu_tier || strcmp(o->cpu_tier, "auto") == 0;
    if (!best && !spl_tier_from_name(o->cpu_tier, &tier))
        return spl_fail(err, SPL_E_INVALID, "unknown cpu tier '%s'; `splash explain` lists the usable ones",
                        o->cpu_tier);
    if (o->n_threads > 256) return spl_fail(err, SPL_E_INVALID, "%u threads; at most 256 work", o->n_threads);
    spl_status st = spl_kernels_select(kernels, tier, err);
    if (st != SPL_OK || !n_threads) return st;
    spl_knobs knobs;
    spl_bench_knobs(o, kernels->tier, &knobs);
    *n_threads = o->n_threads ? o->n_threads : knobs.n_threads ? knobs.n_threads : spl_usable_cores();
    return SPL_OK;
}

void spl_bench_knobs(const spl_bench_options *o, spl_tier tier, spl_knobs *out) {
    spl_tuning_machine machine;
    spl_tuning tuning;
    spl_error err;
    memset(out, 0, sizeof *out);
    if (!o->tuning_folder) return;
    spl_tuning_machine_get(&machine, SPLASH_VERSION, tier);
    spl_status st = spl_tuning_load(&tuning, o->tuning_folder, &machine, &err);
    if (st == SPL_OK) {
        *out = tuning.knobs;
    } else if (st != SPL_E_NOTFOUND && o->debug) {
        o->debug(o->progress_user, err.text);
    }
}

void spl_put_machine(spl_bench_json *j) {
    char processor[200], text[600];
    struct utsname u;
    double load[1];
    spl_cpu_name("", processor, sizeof processor);
    if (uname(&u) != 0) memset(&u, 0, sizeof u);
    (void)snprintf(text, sizeof text, "%s, %u cores, %.64s %.64s", processor, spl_usable_cores(), u.sysname, u.machine);
    spl_put_text(j, "machine", text);
    if (getloadavg(load, 1) == 1) spl_put_real(j, "load_average", load[0]);
}

static bool is_tuned(const spl_bench_options *o, spl_tier tier) {
    spl_knobs knobs;
    const spl_reach *r = &knobs.reach;
    spl_bench_knobs(o, tier, &knobs);
    return knobs.n_threads || knobs.panel_chunk || r->near_bytes || r->far_bytes || r->single_bytes;
}

spl_status spl_bench_run(const char *kind, const spl_bench_options *o, json_t **out, spl_error *err) {
    *out = NULL;
    const spl_bench_kind *k = spl_bench_kind_find(kind);
    if (!k) return spl_fail(err, SPL_E_INVALID, "there is no benchmark '%s'", kind);
    if (k->needs_model && !o->model && !o->url)
        return spl_fail(err, SPL_E_INVALID, "the benchmark '%s' needs a model", kind);
    spl_kernels kernels;
    uint32_t n_threads = 0;
    spl_bench_json j = {0};
    json_t *result = NULL;
    spl_put_text(&j, "kind", kind);
    spl_put_machine(&j);
    spl_status st = spl_bench_kernels(o, &kernels, &n_threads, err);
    if (st == SPL_OK) {
        spl_put_text(&j, "cpu_tier", spl_tier_name(kernels.tier));
        spl_put_u64(&j, "threads", n_threads);
        spl_put_bool(&j, "tuned", is_tuned(o, kernels.tier));
        spl_put_text(&j, "commit", SPL_COMMIT);
        st = k->run(o, &result, err);
    }
    if (st == SPL_OK && json_object_update(j.object, result) != 0) j.failed = true;
    json_decref(result);
    if (st == SPL_OK) return spl_bench_json_take(&j, out, err);
    json_decref(j.object);
    return st;
}

spl_status spl_bench_measure_rates(const spl_bench_options *o, size_t n_own, spl_roof_rates *out, spl_error *err) {
    spl_kernels kernels;
    uint32_t n_threads = 0;
    spl_status st = spl_bench_kernels(o, &kernels, &n_threads, err);
    return st == SPL_OK ? spl_roof_measure(n_threads, kernels.tier, n_own, out, err) : st;
}

void spl_put_rates(spl_bench_json *j, const spl_roof_rates *rates) {
    if (!j->object) j->object = json_object();
    if (!spl_roof_put(j->object, rates)) j->failed = true;
}

uint64_t spl_bench_free_bytes(void) {
    spl_memory_room room;
    spl_error ignored;
    return spl_memory_room_get("", &room, &ignored) == SPL_OK ? room.available_bytes : 0;
}

double spl_roof_seconds(const spl_roof_rates *rates, uint64_t n_bytes, uint64_t n_macs) {
    return fmax((double)n_bytes / (rates->read_gb * 1e9), (double)n_macs / (rates->int8_gmac * 1e9));
}

void spl_bench_say(const spl_bench_options *o, const char *format, ...) {
    char line[256];
    va_list args;
    if (!o->progress) return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    o->progress(o->progress_user, line);
}
