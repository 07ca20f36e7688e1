/* SPDX-License-Identifier: Apache-2.0
 * Private to bench: the kinds, samples with their median, JSON building that remembers a failure, and
 * the rates that every speed is judged by. */
#ifndef SPL_BENCH_BENCH_INTERNAL_H
#define SPL_BENCH_BENCH_INTERNAL_H

#include "bench/bench.h"
#include "bench/roof.h"
#include "kernels/kernels.h"
#include "step/tuning.h"

spl_status spl_bench_step(const spl_bench_options *o, json_t **out, spl_error *err);
spl_status spl_bench_prefill(const spl_bench_options *o, json_t **out, spl_error *err);
spl_status spl_bench_accept(const spl_bench_options *o, json_t **out, spl_error *err);
spl_status spl_bench_quality(const spl_bench_options *o, json_t **out, spl_error *err);
spl_status spl_bench_serve(const spl_bench_options *o, json_t **out, spl_error *err);

/* ---- JSON ------------------------------------------------------------------------------------ */

/* An object being filled; `failed` is set when a member could not be made (memory). */
typedef struct spl_bench_json {
    json_t *object;
    bool failed;
} spl_bench_json;

void spl_put(spl_bench_json *j, const char *key, json_t *value); /* takes `value` */
void spl_put_real(spl_bench_json *j, const char *key, double value);
void spl_put_u64(spl_bench_json *j, const char *key, uint64_t value);
void spl_put_text(spl_bench_json *j, const char *key, const char *value);
void spl_put_bool(spl_bench_json *j, const char *key, bool value);
/* Hands the object over, or SPL_E_NOMEM when something failed; j is empty afterwards. */
spl_status spl_bench_json_take(spl_bench_json *j, json_t **out, spl_error *err);

/* ---- samples --------------------------------------------------------------------------------- */

enum { SPL_MAX_SAMPLES = 4096 };

typedef struct spl_samples {
    uint32_t n; /* samples past the last place are dropped */
    double values[SPL_MAX_SAMPLES];
} spl_samples;

void spl_samples_add(spl_samples *s, double value);
double spl_samples_median(const spl_samples *s); /* 0 when empty */
/* The smallest value that at least `share` of the samples do not exceed. */
double spl_samples_quantile(const spl_samples *s, double share);
/* key: median; key_min, key_max; key_spread: (max - min) / median. */
void spl_put_samples(spl_bench_json *j, const char *key, const spl_samples *s);

/* ---- the machine ----------------------------------------------------------------------------- */

/* Member machine, and the load of the last minute. */
void spl_put_machine(spl_bench_json *j);

/* What was tuned on this machine, for the options that leave it open; zeroes when nothing was. */
void spl_bench_knobs(const spl_bench_options *o, spl_tier tier, spl_knobs *out);

/* Kernels and threads as the options ask for them. */
spl_status spl_bench_kernels(const spl_bench_options *o, spl_kernels *kernels, uint32_t *n_threads, spl_error *err);

/* Measures what every speed is judged by, over n_own bytes of memory of its own (0: as in bench/roof.h). */
spl_status spl_bench_measure_rates(const spl_bench_options *o, size_t n_own, spl_roof_rates *out, spl_error *err);
void spl_put_rates(spl_bench_json *j, const spl_roof_rates *rates);
/* Time that memory or arithmetic alone would need. */
double spl_roof_seconds(const spl_roof_rates *rates, uint64_t n_bytes, uint64_t n_macs);

/* What is free of this machine's memory; 0: the system does not say. */
uint64_t spl_bench_free_bytes(void);

/* Says what is going on, when somebody listens. */
void spl_bench_say(const spl_bench_options *o, const char *format, ...) SPL_PRINTF(2, 3);

#endif
