/* SPDX-License-Identifier: Apache-2.0
 * The tuning file. What is accepted stays within its limits, and is read back as it was when written again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "step/tuning.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(const spl_tuning *t) {
    if (t->knobs.n_threads > t->machine.cores || t->machine.cores < 1 || t->machine.cores > 256) abort();
    if (t->knobs.panel_chunk > SPL_MAX_PANEL_CHUNK || t->knobs.reach.near_bytes > SPL_MAX_NEAR_BYTES) abort();
    if (t->knobs.reach.far_bytes > SPL_MAX_FAR_BYTES || t->knobs.reach.single_bytes > SPL_MAX_NEAR_BYTES) abort();
    if (t->n_models > SPL_TUNING_MAX_MODELS) abort();
    for (uint32_t i = 0; i < t->n_models; i++) {
        if (!memchr(t->models[i].key, 0, sizeof t->models[i].key)) abort();
        if (spl_tuning_find(t, t->models[i].key) != &t->models[i]) abort(); /* no key twice */
        for (int drafted = 0; drafted < 2; drafted++)
            for (uint32_t rows = 0; rows <= SPL_MAX_DECODE_ROWS; rows++)
                if (!(t->models[i].seconds[drafted][rows] >= 0 && t->models[i].seconds[drafted][rows] < 1e6)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    static spl_tuning t, again;
    spl_error err;
    if (spl_tuning_parse(&t, (const char *)data, n_bytes, &err) != SPL_OK) return 0;
    check(&t);
    json_t *root = spl_tuning_json(&t);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    if (!text || spl_tuning_parse(&again, text, strlen(text), &err) != SPL_OK) abort();
    if (memcmp(&t, &again, sizeof t) != 0) abort();
    char *path = spl_tuning_path("/f", &t.machine);
    if (!path || strlen(path) < 8 || strchr(path + 3, '/')) abort();
    free(path);
    free(text);
    json_decref(root);
    return 0;
}
