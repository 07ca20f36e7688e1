/* SPDX-License-Identifier: Apache-2.0
 * Choosing by measurement: for each choice its candidates take turns, one decode step each, for a share of the time,
 * and a candidate replaces the engine's own choice only when it won clearly. At the end the engine's own choices and
 * the winners take turns, which says what tuning is worth here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread_team.h"
#include "bench/step_runs.h"
#include "model/plan.h"
#include "splash.h"

enum { MAX_CANDIDATES = 5, MIN_ROUNDS = 3, MAX_ROUNDS = 400, MIN_COST_ROUNDS = 2, CONTEXT = SPL_BLOCK_ROWS };
static const double DEFAULT_SECONDS = 40;
static const double WIN_GAIN = 1.015, WIN_SHARE = 0.67;  /* in the median, and of the rounds */
static const double BAR = 1.03;                          /* how far the engine's own choices may be from tuned ones */
static const uint64_t LARGE_BYTES = (uint64_t)256 << 20; /* weights that no cache here holds */
static const char STAND_IN[] = "qwen3.8-27b";

typedef struct crew {
    spl_team *team;
    spl_step *step;
} crew;

typedef struct tuner {
    const spl_bench_options *o;
    spl_rig *rig;
    uint64_t budget_ns;
    spl_knobs knobs; /* chosen so far */
    json_t *rows;    /* one object per candidate */
    bool failed;     /* no memory for a row */
} tuner;

/* One candidate of one choice. */
typedef struct candidate {
    spl_knobs knobs;
    uint32_t value; /* what is told about it */
    crew crew;      /* of its thread count */
    bool owned;     /* the crew is its own, not the rig's */
    uint32_t n_wins;
    spl_samples seconds;
} candidate;

/* ---- candidates taking turns ------------------------------------------------------------------ */

static spl_status run_candidate(tuner *t, candidate *c, spl_step_runs *runs, bool counted, double *seconds,
                                spl_error *err) {
    t->rig->team = c->crew.team;
    t->rig->step = c->crew.step;
    spl_step_set_knobs(c->crew.step, &c->knobs);
    spl_status st = spl_step_runs_one(runs, t->rig, false, seconds, err);
    if (st == SPL_OK && counted) spl_samples_add(&c->seconds, *seconds);
    return st;
}

/* Rounds in alternating order until the time is over; candidate 0 is what the others must beat. */
static spl_status take_turns(tuner *t, candidate *c, uint32_t n, uint32_t n_rows, double share, spl_error *err) {
    spl_step_runs runs = {.rows = n_rows, .lanes = 1, .context = CONTEXT, .synthetic_tau = n_rows > 1 ? n_rows / 2 : 0};
    spl_status st = SPL_OK;
    crew own = {t->rig->team, t->rig->step};
    uint64_t begin = spl_now_ns(), limit_ns = (uint64_t)((double)t->budget_ns * share);
    for (uint32_t i = 0; st == SPL_OK && i < n; i++) st = run_candidate(t, &c[i], &runs, false, NULL, err);
    for (uint32_t round = 0; st == SPL_OK && round < MAX_ROUNDS; round++) {
        double seconds[MAX_CANDIDATES] = {0};
        if (round >= MIN_ROUNDS && spl_now_ns() - begin >= limit_ns) break;
        for (uint32_t i = 0; st == SPL_OK && i < n; i++) {
            uint32_t at = round % 2 ? n - 1 - i : i;
            st = run_candidate(t, &c[at], &runs, true, &seconds[at], err);
        }
        for (uint32_t i = 1; i < n; i++) c[i].n_wins += seconds[i] < seconds[0];
    }
    t->rig->team = own.team;
    t->rig->step = own.step;
    return st;
}

/* The candidate that won clearly, or 0. */
static uint32_t winner_of(const candidate *c, uint32_t n) {
    uint32_t best = 0;
    double base = spl_samples_median(&c[0].seconds), least = base;
    for (uint32_t i = 1; i < n; i++) {
        double median = spl_samples_median(&c[i].seconds);
        if (median * WIN_GAIN > base || c[i].n_wins < WIN_SHARE * c[i].seconds.n || median >= least) continue;
        best = i;
        least = median;
    }
    return best;
}

static void put_candidates(tuner *t, const char *choice, const candidate *c, uint32_t n, uint32_t n_rows,
                           uint32_t winner) {
    double base = spl_samples_median(&c[0].seconds);
    for (uint32_t i = 0; i < n; i++) {
        double median = spl_samples_median(&c[i].seconds);
        spl_bench_json row = {0};
        spl_put_text(&row, "choice", choice);
        spl_put(&row, "value", c[i].value ? json_integer((json_int_t)c[i].value) : json_string("default"));
        spl_put_u64(&row, "rows", n_rows);
        spl_put_u64(&row, "rounds", c[i].seconds.n);
        spl_put_real(&row, "step_seconds", median);
        spl_put_real(&row, "of_default", base > 0 ? median / base : 0);
        spl_put_bool(&row, "chosen", i == winner);
        if (row.failed || json_array_append_new(t->rows, row.object) != 0) t->failed = true;
    }
}

/* One choice with the given values beside the default; `field` is where it lies in spl_knobs. */
static spl_status choose(tuner *t, const char *choice, size_t field, const uint32_t *values, uint32_t n_values,
                         uint32_t n_rows, double share, spl_error *err) {
    candidate *c = calloc(MAX_CANDIDATES, sizeof *c);
    spl_status st = c ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for measurements");
    uint32_t n = 0;
    bool threads = field == offsetof(spl_knobs, n_threads);
    spl_bench_say(t->o, "tuning: %s", choice);
    for (uint32_t i = 0; st == SPL_OK && i < n_values + 1 && n < MAX_CANDIDATES; i++) {
        candidate *next = &c[n++];
        *next = (candidate){.knobs = t->knobs, .crew = {t->rig->team, t->rig->step}};
        if (i == 0) continue;
        next->value = values[i - 1];
        *(uint32_t *)(void *)((uint8_t *)&next->knobs + field) = next->value;
        if (!threads) continue;
        next->owned = true;
        st = spl_rig_make_crew(t->rig, next->value, &next->crew.team, &next->crew.step, err);
        if (st != SPL_OK) next->owned = false;
    }
    if (st == SPL_OK) st = take_turns(t, c, n, n_rows, share, err);
    if (st == SPL_OK) {
        uint32_t winner = winner_of(c, n);
        t->knobs = c[winner].knobs;
        put_candidates(t, choice, c, n, n_rows, winner);
        if (c[winner].owned) { /* the rig goes on with the winner's crew */
            spl_step_destroy(t->rig->step);
            spl_team_destroy(t->rig->team);
            t->rig->step = c[winner].crew.step;
            t->rig->team = c[winner].crew.team;
            t->rig->n_threads = c[winner].value;
            c[winner].owned = false;
        }
    }
    for (uint32_t i = 0; c && i < n; i++) {
        if (!c[i].owned) continue;
        spl_step_destroy(c[i].crew.step);
        spl_team_destroy(c[i].crew.team);
    }
    free(c);
    return st;
}

static spl_status choose_all(tuner *t, uint32_t n_cores, spl_error *err) {
    static const uint32_t chunks[] = {1, 2, 8, 16}, near[] = {1152, 4608, 9216}, far[] = {4096, 32768, 131072},
                          single[] = {2304, 4608, 16384};
    uint32_t threads[2], n_threads = 0, rows = SPL_BLOCK_ROWS;
    if (n_cores > 1) threads[n_threads++] = n_cores - 1;
    if (n_cores / 2 > 0 && n_cores / 2 < n_cores - 1) threads[n_threads++] = n_cores / 2;
    spl_status st = SPL_OK;
    if (n_threads > 0) st = choose(t, "threads", offsetof(spl_knobs, n_threads), threads, n_threads, rows, 0.15, err);
    if (st == SPL_OK)
        st = choose(t, "panel_chunk", offsetof(spl_knobs, panel_chunk), chunks, SPL_COUNT(chunks), rows, 0.15, err);
    if (st == SPL_OK)
        st = choose(t, "near_bytes", offsetof(spl_knobs, reach.near_bytes), near, SPL_COUNT(near), rows, 0.12, err);
    if (st == SPL_OK)
        st = choose(t, "far_bytes", offsetof(spl_knobs, reach.far_bytes), far, SPL_COUNT(far), rows, 0.12, err);
    if (st == SPL_OK)
        st = choose(t, "single_bytes", offsetof(spl_knobs, reach.single_bytes), single, SPL_COUNT(single), 1, 0.1, err);
    return st;
}

/* The engine's own choices (A) and the tuned ones (B) in turn. */
static spl_status compare(tuner *t, uint32_t n_cores, spl_bench_json *j, spl_error *err) {
    candidate *c = calloc(2, sizeof *c);
    if (!c) return spl_fail(err, SPL_E_NOMEM, "no memory for measurements");
    spl_status st = SPL_OK;
    spl_bench_say(t->o, "tuning: the engine's own choices against the chosen ones");
    for (int i = 0; i < 2; i++) c[i].crew = (crew){t->rig->team, t->rig->step};
    c[1].knobs = t->knobs;
    c[0].owned = t->knobs.n_threads != 0 && t->knobs.n_threads != n_cores;
    if (c[0].owned) st = spl_rig_make_crew(t->rig, n_cores, &c[0].crew.team, &c[0].crew.step, err);
    if (st == SPL_OK) st = take_turns(t, c, 2, SPL_BLOCK_ROWS, 0.2, err);
    if (st == SPL_OK) {
        double own = spl_samples_median(&c[0].seconds), tuned = spl_samples_median(&c[1].seconds);
        spl_put_samples(j, "default_step_seconds", &c[0].seconds);
        spl_put_samples(j, "tuned_step_seconds", &c[1].seconds);
        spl_put_real(j, "default_over_tuned", tuned > 0 ? own / tuned : 0);
        spl_put_real(j, "bar", BAR);
        spl_put_bool(j, "within_bar", own <= BAR * tuned);
    }
    if (c[0].owned && c[0].crew.step) {
        spl_step_destroy(c[0].crew.step);
        spl_team_destroy(c[0].crew.team);
    }
    free(c);
    return st;
}

/* ---- step times of the model ------------------------------------------------------------------- */

static spl_status measure_costs(tuner *t, spl_tuned_model *model, spl_error *err) {
    static const uint32_t rows[] = {1, 2, 3, 4, 6, 8};
    enum { N = SPL_COUNT(rows) };
    spl_samples *samples = calloc(2 * N, sizeof *samples);
    spl_status st = samples ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for measurements");
    uint64_t begin = spl_now_ns(), limit_ns = t->budget_ns / 6;
    spl_bench_say(t->o, "tuning: step times of the model");
    spl_step_set_knobs(t->rig->step, &t->knobs);
    spl_tuning_model_key(model->key, t->rig->package);
    for (uint32_t round = 0; st == SPL_OK && round < MAX_ROUNDS; round++) {
        if (round > MIN_COST_ROUNDS && spl_now_ns() - begin >= limit_ns) break;
        for (uint32_t i = 0; i < 2 * N && st == SPL_OK; i++) {
            double seconds = 0;
            bool drafted = i >= N;
            uint32_t n = rows[i % N];
            if (drafted && (!t->rig->drafts || n == 1)) continue;
            /* Full blocks were retained before, as when proposals stand. */
            spl_step_runs runs = {.rows = n, .lanes = 1, .context = CONTEXT, .drafts = drafted, .synthetic_tau = n};
            t->rig->lanes[0].n_retained = n;
            st = spl_step_runs_one(&runs, t->rig, false, &seconds, err);
            if (round > 0) spl_samples_add(&samples[i], seconds); /* the first round warms up */
        }
    }
    for (uint32_t i = 0; i < 2 * N && st == SPL_OK; i++)
        model->seconds[i >= N][rows[i % N]] = spl_samples_median(&samples[i]);
    free(samples);
    return st;
}

static void put_costs(tuner *t, spl_bench_json *j, const spl_tuned_model *model) {
    json_t *rows = json_array();
    for (int drafted = 0; drafted < 2; drafted++)
        for (uint32_t n = 1; n <= SPL_BLOCK_ROWS; n++) {
            if (!(model->seconds[drafted][n] > 0)) continue;
            if (json_array_append_new(rows, json_pack("{s:i, s:b, s:f}", "rows", (int)n, "drafted", drafted, "seconds",
                                                      model->seconds[drafted][n])) != 0)
                t->failed = true;
        }
    spl_put_text(j, "model", model->key);
    spl_put(j, "model_steps", rows);
}

/* ---- rigs ------------------------------------------------------------------------------------- */

/* The model itself, with its draft when it has one. */
static spl_status open_model(spl_rig *rig, const spl_bench_options *o, spl_error *err) {
    spl_bench_options own = *o;
    own.draft = true;
    spl_status st = spl_rig_open(rig, &own, 1, CONTEXT, err);
    if (st != SPL_E_NOTFOUND && st != SPL_E_GEOMETRY) return st;
    spl_rig_close(rig);
    own.draft = false;
    return spl_rig_open(rig, &own, 1, CONTEXT, err);
}

/* As many layers of a large model as fit. */
static spl_status open_stand_in(spl_rig *rig, const spl_bench_options *o, spl_error *err) {
    spl_status st = SPL_OK;
    for (uint32_t layers = 4; layers > 0; layers /= 2) {
        spl_bench_options large = *o;
        large.model = STAND_IN;
        large.random_weights = true;
        large.n_layers = layers;
        large.draft = false;
        large.lock_weights = false;
        st = spl_rig_open(rig, &large, 1, CONTEXT, err);
        if (st != SPL_E_LIMIT && st != SPL_E_NOMEM) return st;
        spl_rig_close(rig);
    }
    return st;
}

static spl_status tune_machine(tuner *t, uint32_t n_cores, spl_bench_json *j, spl_error *err) {
    char text[SPL_TUNING_KEY_BYTES];
    spl_tuning_model_key(text, t->rig->package);
    spl_put_text(j, "measured_on", text);
    spl_status st = choose_all(t, n_cores, err);
    if (st == SPL_OK) st = compare(t, n_cores, j, err);
    return st;
}

/* Both measurements, on one rig when the model is large enough for the first too. */
static spl_status tune(tuner *t, spl_rig *rig, uint32_t n_cores, spl_tuned_model *model, spl_bench_json *j,
                       spl_error *err) {
    spl_status st = open_model(rig, t->o, err);
    if (st != SPL_OK) return st;
    bool large = spl_plan_weight_bytes(rig->g, rig->n_layers, rig->drafts) >= LARGE_BYTES;
    spl_rig other = {0};
    if (!large) {
        st = open_stand_in(&other, t->o, err);
        if (st == SPL_E_LIMIT || st == SPL_E_NOMEM) { /* no room: the model must do */
            st = SPL_OK;
            large = true;
        }
    }
    t->rig = large ? rig : &other;
    if (st == SPL_OK) st = tune_machine(t, n_cores, j, err);
    uint32_t n_threads = t->rig->n_threads;
    if (!large) spl_rig_close(&other);
    t->rig = rig;
    crew own;
    if (st == SPL_OK && rig->n_threads != n_threads) {
        st = spl_rig_make_crew(rig, n_threads, &own.team, &own.step, err);
        if (st == SPL_OK) {
            spl_step_destroy(rig->step);
            spl_team_destroy(rig->team);
            rig->team = own.team;
            rig->step = own.step;
        }
    }
    return st == SPL_OK ? measure_costs(t, model, err) : st;
}

static spl_status finish(tuner *t, const spl_tuning_machine *machine, const spl_tuned_model *model, spl_bench_json *j,
                         char **path, spl_error *err) {
    spl_tuning tuning;
    const char *folder = t->o->tuning_folder ? t->o->tuning_folder : ".";
    if (spl_tuning_load(&tuning, folder, machine, err) != SPL_OK) tuning = (spl_tuning){.n_models = 0};
    tuning.machine = *machine;
    tuning.knobs = t->knobs;
    spl_tuning_put(&tuning, model);
    *path = spl_tuning_path(folder, machine);
    put_costs(t, j, model);
    spl_put(j, "choices", json_incref(t->rows));
    spl_put(j, "tuning", spl_tuning_json(&tuning));
    return *path && !t->failed ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for the result");
}

spl_status spl_bench_tune(const spl_bench_options *given, json_t **out, char **path, spl_error *err) {
    spl_bench_options o = *given;
    spl_kernels kernels;
    spl_tuning_machine machine;
    spl_tuned_model model = {.key = ""};
    spl_rig rig = {0};
    spl_bench_json j = {0};
    uint64_t begin = spl_now_ns();
    *out = NULL;
    *path = NULL;
    o.tuning_folder = NULL; /* an earlier result is not the measure of a new one */
    o.n_threads = 0;
    spl_status st = spl_bench_kernels(&o, &kernels, NULL, err);
    if (st != SPL_OK) return st;
    spl_tuning_machine_get(&machine, SPLASH_VERSION, kernels.tier);
    tuner t = {.o = &o, .rows = json_array()};
    t.budget_ns = (uint64_t)((o.seconds > 0 ? o.seconds : DEFAULT_SECONDS) * 1e9);
    spl_put_text(&j, "kind", "tune");
    spl_put_machine(&j);
    spl_put_text(&j, "cpu_tier", machine.cpu_tier);
    spl_put_text(&j, "engine", machine.engine);
    spl_set_ftz(); /* the caller is member 0 of every team */
    st = tune(&t, &rig, machine.cores, &model, &j, err);
    o.tuning_folder = given->tuning_folder;
    if (st == SPL_OK) st = finish(&t, &machine, &model, &j, path, err);
    spl_put_real(&j, "seconds", (double)(spl_now_ns() - begin) * 1e-9);
    spl_rig_close(&rig);
    json_decref(t.rows);
    if (st == SPL_OK) return spl_bench_json_take(&j, out, err);
    json_decref(j.object);
    free(*path);
    *path = NULL;
    return st;
}
