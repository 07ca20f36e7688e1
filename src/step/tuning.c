/* SPDX-License-Identifier: Apache-2.0
 * The tuning file: one JSON object,
 *   {"format": 1, "engine": "0.1.0", "cpu": "...", "cores": 2, "cpu_tier": "avx2",
 *    "threads": 2, "panel_chunk": 4, "near_bytes": 2304, "far_bytes": 65536, "single_bytes": 8192,
 *    "models": [{"model": "...", "steps": [{"rows": 1, "drafted": false, "seconds": 0.1}, ...]}, ...]}
 * A choice that is absent is the engine's own. Members that are not known are ignored. */
#include "step/tuning.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu_name.h"
#include "base/file_map.h"
#include "base/thread_team.h"

enum { FORMAT = 1 };
static const double MAX_SECONDS = 100000;
static const char WHAT[] = "the tuning file";

/* One row per number of the file: where it goes and what is accepted. */
typedef struct knob_row {
    const char *name;
    size_t offset; /* in spl_knobs */
    uint32_t max;
} knob_row;
static const knob_row KNOBS[] = {
    {"threads", offsetof(spl_knobs, n_threads), 256},
    {"panel_chunk", offsetof(spl_knobs, panel_chunk), SPL_MAX_PANEL_CHUNK},
    {"near_bytes", offsetof(spl_knobs, reach.near_bytes), SPL_MAX_NEAR_BYTES},
    {"far_bytes", offsetof(spl_knobs, reach.far_bytes), SPL_MAX_FAR_BYTES},
    {"single_bytes", offsetof(spl_knobs, reach.single_bytes), SPL_MAX_NEAR_BYTES},
};

/* ---- naming ---------------------------------------------------------------------------------- */

void spl_tuning_machine_get(spl_tuning_machine *out, const char *engine, spl_tier tier) {
    memset(out, 0, sizeof *out);
    spl_cpu_name("", out->cpu, sizeof out->cpu);
    (void)snprintf(out->engine, sizeof out->engine, "%s", engine);
    (void)snprintf(out->cpu_tier, sizeof out->cpu_tier, "%s", spl_tier_name(tier));
    out->cores = spl_usable_cores();
}

void spl_tuning_model_key(char out[SPL_TUNING_KEY_BYTES], const spl_package *package) {
    const spl_geometry *g = spl_package_geometry(package);
    (void)snprintf(out, SPL_TUNING_KEY_BYTES, "%.40s, %u layers%s, %.16s", g->id, spl_package_n_layers(package),
                   spl_package_has_draft(package) ? " and draft" : "", spl_package_digest(package));
}

char *spl_tuning_path(const char *folder, const spl_tuning_machine *m) {
    char name[SPL_TUNING_KEY_BYTES + 128], *to = name;
    (void)snprintf(name, sizeof name, "%s-%u-%s-%s", m->cpu, m->cores, m->cpu_tier, m->engine);
    /* Letters, digits, dots and single dashes are left of it. */
    for (const char *from = name; *from; from++) {
        char c = *from >= 'A' && *from <= 'Z' ? (char)(*from - 'A' + 'a') : *from;
        bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c == '.' && to > name);
        if (!plain && (to == name || to[-1] == '-')) continue;
        *to++ = plain ? c : '-';
    }
    (void)snprintf(to, sizeof name - (size_t)(to - name), ".json");
    return spl_path_join(folder, name);
}

/* ---- reading --------------------------------------------------------------------------------- */

static spl_status read_text(const json_t *o, const char *key, char *out, size_t n, spl_error *err) {
    const char *text;
    spl_status st = spl_json_string(o, key, &text, WHAT, err);
    if (st != SPL_OK) return st;
    if (strlen(text) >= n) return spl_fail(err, SPL_E_FORMAT, "%s: '%s' is longer than %zu bytes", WHAT, key, n - 1);
    (void)snprintf(out, n, "%s", text);
    return SPL_OK;
}

static spl_status read_number(const json_t *o, const char *key, uint32_t min, uint32_t max, uint32_t *out,
                              spl_error *err) {
    uint64_t n;
    spl_status st = spl_json_u64(o, key, &n, WHAT, err);
    if (st != SPL_OK) return st;
    if (n < min || n > max)
        return spl_fail(err, SPL_E_FORMAT, "%s: '%s' is %llu, not %u to %u", WHAT, key, (unsigned long long)n, min,
                        max);
    *out = (uint32_t)n;
    return SPL_OK;
}

static spl_status read_step(spl_tuned_model *model, const json_t *o, spl_error *err) {
    uint32_t rows = 0;
    const json_t *drafted = json_object_get(o, "drafted"), *seconds = json_object_get(o, "seconds");
    if (!json_is_object(o)) return spl_fail(err, SPL_E_FORMAT, "%s: a step is no object", WHAT);
    spl_status st = read_number(o, "rows", 1, SPL_MAX_DECODE_ROWS, &rows, err);
    if (st != SPL_OK) return st;
    if (!json_is_boolean(drafted)) return spl_fail(err, SPL_E_FORMAT, "%s: 'drafted' is not true or false", WHAT);
    double value = json_number_value(seconds);
    if (!json_is_number(seconds) || !isfinite(value) || value <= 0 || value > MAX_SECONDS)
        return spl_fail(err, SPL_E_FORMAT, "%s: 'seconds' is no time", WHAT);
    model->seconds[json_is_true(drafted)][rows] = value;
    return SPL_OK;
}

static spl_status read_models(spl_tuning *t, const json_t *o, spl_error *err) {
    json_t *models, *item, *steps, *step;
    size_t i, k;
    spl_status st = spl_json_array(o, "models", &models, WHAT, err);
    if (st != SPL_OK) return st;
    if (json_array_size(models) > SPL_TUNING_MAX_MODELS)
        return spl_fail(err, SPL_E_FORMAT, "%s: %zu models; at most %d", WHAT, json_array_size(models),
                        SPL_TUNING_MAX_MODELS);
    json_array_foreach(models, i, item) {
        spl_tuned_model model = {.key = ""};
        if (!json_is_object(item)) return spl_fail(err, SPL_E_FORMAT, "%s: a model is no object", WHAT);
        st = read_text(item, "model", model.key, sizeof model.key, err);
        if (st == SPL_OK) st = spl_json_array(item, "steps", &steps, WHAT, err);
        if (st != SPL_OK) return st;
        json_array_foreach(steps, k, step) {
            if ((st = read_step(&model, step, err)) != SPL_OK) return st;
        }
        spl_tuning_put(t, &model);
    }
    return SPL_OK;
}

static spl_status read_all(spl_tuning *t, const json_t *o, spl_error *err) {
    uint32_t format = 0;
    if (!json_is_object(o)) return spl_fail(err, SPL_E_FORMAT, "%s is no object", WHAT);
    spl_status st = read_number(o, "format", FORMAT, FORMAT, &format, err);
    if (st == SPL_OK) st = read_text(o, "engine", t->machine.engine, sizeof t->machine.engine, err);
    if (st == SPL_OK) st = read_text(o, "cpu", t->machine.cpu, sizeof t->machine.cpu, err);
    if (st == SPL_OK) st = read_text(o, "cpu_tier", t->machine.cpu_tier, sizeof t->machine.cpu_tier, err);
    if (st == SPL_OK) st = read_number(o, "cores", 1, 256, &t->machine.cores, err);
    for (size_t i = 0; st == SPL_OK && i < SPL_COUNT(KNOBS); i++) {
        uint32_t *to = (uint32_t *)(void *)((uint8_t *)&t->knobs + KNOBS[i].offset);
        if (json_object_get(o, KNOBS[i].name)) st = read_number(o, KNOBS[i].name, 0, KNOBS[i].max, to, err);
    }
    if (st == SPL_OK && t->knobs.n_threads > t->machine.cores)
        st = spl_fail(err, SPL_E_FORMAT, "%s: %u threads for %u cores", WHAT, t->knobs.n_threads, t->machine.cores);
    return st == SPL_OK ? read_models(t, o, err) : st;
}

spl_status spl_tuning_parse(spl_tuning *out, const char *text, size_t n_bytes, spl_error *err) {
    json_t *root;
    memset(out, 0, sizeof *out);
    spl_status st = spl_json_parse(&root, text, n_bytes, SPL_TUNING_MAX_BYTES, WHAT, err);
    if (st != SPL_OK) return st;
    st = read_all(out, root, err);
    json_decref(root);
    if (st != SPL_OK) memset(out, 0, sizeof *out);
    return st;
}

static spl_status check_machine(const spl_tuning_machine *found, const spl_tuning_machine *wanted, spl_error *err) {
    if (strcmp(found->engine, wanted->engine) != 0)
        return spl_fail(err, SPL_E_UNSUPPORTED, "it is of engine %s, this is %s", found->engine, wanted->engine);
    if (strcmp(found->cpu, wanted->cpu) != 0)
        return spl_fail(err, SPL_E_UNSUPPORTED, "it is of %s, this is %s", found->cpu, wanted->cpu);
    if (found->cores != wanted->cores)
        return spl_fail(err, SPL_E_UNSUPPORTED, "it is of %u cores, here are %u", found->cores, wanted->cores);
    if (strcmp(found->cpu_tier, wanted->cpu_tier) != 0)
        return spl_fail(err, SPL_E_UNSUPPORTED, "it is of the tier %s, this is %s", found->cpu_tier, wanted->cpu_tier);
    return SPL_OK;
}

spl_status spl_tuning_load(spl_tuning *out, const char *folder, const spl_tuning_machine *machine, spl_error *err) {
    char *text = NULL, *path = spl_tuning_path(folder, machine);
    size_t n_bytes = 0;
    memset(out, 0, sizeof *out);
    if (!path) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    spl_status st = spl_read_file(path, SPL_TUNING_MAX_BYTES, &text, &n_bytes, err);
    if (st == SPL_OK) {
        st = spl_tuning_parse(out, text, n_bytes, err);
        if (st == SPL_OK) st = check_machine(&out->machine, machine, err);
        if (st != SPL_OK) (void)spl_fail_within(err, "%.300s", path);
    }
    if (st != SPL_OK) memset(out, 0, sizeof *out);
    free(text);
    free(path);
    return st;
}

/* ---- writing --------------------------------------------------------------------------------- */

static json_t *model_json(const spl_tuned_model *m) {
    json_t *steps = json_array();
    for (int drafted = 0; drafted < 2; drafted++)
        for (uint32_t rows = 1; rows <= SPL_MAX_DECODE_ROWS; rows++)
            if (m->seconds[drafted][rows] > 0)
                (void)json_array_append_new(steps, json_pack("{s:i, s:b, s:f}", "rows", (int)rows, "drafted", drafted,
                                                             "seconds", m->seconds[drafted][rows]));
    return json_pack("{s:s, s:o}", "model", m->key, "steps", steps);
}

json_t *spl_tuning_json(const spl_tuning *t) {
    json_t *models = json_array();
    json_t *root = json_pack("{s:i, s:s, s:s, s:i, s:s}", "format", FORMAT, "engine", t->machine.engine, "cpu",
                             t->machine.cpu, "cores", (int)t->machine.cores, "cpu_tier", t->machine.cpu_tier);
    bool good = models && root;
    for (size_t i = 0; good && i < SPL_COUNT(KNOBS); i++) {
        uint32_t value = *(const uint32_t *)(const void *)((const uint8_t *)&t->knobs + KNOBS[i].offset);
        good = json_object_set_new(root, KNOBS[i].name, json_integer((json_int_t)value)) == 0;
    }
    for (uint32_t i = 0; good && i < t->n_models; i++)
        good = json_array_append_new(models, model_json(&t->models[i])) == 0;
    if (good && json_object_set(root, "models", models) == 0) {
        json_decref(models);
        return root;
    }
    json_decref(models);
    json_decref(root);
    return NULL;
}

/* ---- models ---------------------------------------------------------------------------------- */

const spl_tuned_model *spl_tuning_find(const spl_tuning *t, const char *key) {
    for (uint32_t i = 0; i < t->n_models; i++)
        if (strcmp(t->models[i].key, key) == 0) return &t->models[i];
    return NULL;
}

void spl_tuning_put(spl_tuning *t, const spl_tuned_model *model) {
    uint32_t at = 0;
    spl_tuned_model copy = *model;
    while (at < t->n_models && strcmp(t->models[at].key, copy.key) != 0) at++;
    if (at == SPL_TUNING_MAX_MODELS) at = 0;
    if (at == t->n_models) {
        t->n_models++;
    } else {
        memmove(&t->models[at], &t->models[at + 1], (t->n_models - at - 1) * sizeof t->models[0]);
    }
    t->models[t->n_models - 1] = copy;
}
