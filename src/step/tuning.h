/* SPDX-License-Identifier: Apache-2.0
 * What `splash tune` measured on a machine, and the file it is kept in: choices that decide speed alone, and step times
 * of models for the choice of rows. A file holds for one processor, core count, kernel tier and engine version; it is
 * read from a cache folder that anybody may have written to, so everything in it is checked. Text never depends on it.
 */
#ifndef SPL_STEP_TUNING_H
#define SPL_STEP_TUNING_H

#include "base/json.h"
#include "kernels/kernels.h"
#include "model/package.h"

/* Choices of speed; 0: the engine's own. */
typedef struct spl_knobs {
    uint32_t n_threads;
    uint32_t panel_chunk; /* panels of a linear that a thread takes at least; of gate and up, whole groups of 8 */
    spl_reach reach;
} spl_knobs;

enum {
    SPL_DEFAULT_PANEL_CHUNK = 4,
    SPL_MAX_PANEL_CHUNK = 4096,
    SPL_LATE_WEIGHTS = 8 << 20, /* of a matrix larger than a core's own caches */
    SPL_LATE_ROWS = 32,
    SPL_MAX_NEAR_BYTES = 1 << 20,
    SPL_MAX_FAR_BYTES = 64 << 20,
    SPL_TUNING_MAX_MODELS = 16,
    SPL_TUNING_MAX_BYTES = 1 << 20,
    SPL_TUNING_KEY_BYTES = 128
};

/* Whether the weights of a linear push its outputs out of the caches before these are read: not those of small models.
 * Many rows are another matter, their outputs are larger than caches anyway. */
static inline bool spl_outputs_read_late(uint64_t n_weights, uint32_t n_rows) {
    return n_weights >= SPL_LATE_WEIGHTS && n_rows <= SPL_LATE_ROWS;
}

/* What a file is for. */
typedef struct spl_tuning_machine {
    char cpu[SPL_TUNING_KEY_BYTES], engine[32], cpu_tier[32];
    uint32_t cores;
} spl_tuning_machine;

/* Seconds of a step by rows, without and with a drafted block; 0: not measured. */
typedef struct spl_tuned_model {
    char key[SPL_TUNING_KEY_BYTES]; /* spl_tuning_model_key */
    double seconds[2][SPL_MAX_DECODE_ROWS + 1];
} spl_tuned_model;

typedef struct spl_tuning {
    spl_tuning_machine machine;
    spl_knobs knobs;
    uint32_t n_models; /* oldest first */
    spl_tuned_model models[SPL_TUNING_MAX_MODELS];
} spl_tuning;

/* This machine with a tier. `engine` is the version of the engine. */
void spl_tuning_machine_get(spl_tuning_machine *out, const char *engine, spl_tier tier);

/* Names a model and how it is run, for spl_tuned_model. */
void spl_tuning_model_key(char out[SPL_TUNING_KEY_BYTES], const spl_package *package);

/* Errors: SPL_E_FORMAT names the member; *out is zero then. */
spl_status spl_tuning_parse(spl_tuning *out, const char *text, size_t n_bytes, spl_error *err);
json_t *spl_tuning_json(const spl_tuning *t); /* NULL when memory is short */

/* FOLDER/PROCESSOR-CORES-TIER-VERSION.json; malloc'ed, NULL when memory is short. */
char *spl_tuning_path(const char *folder, const spl_tuning_machine *machine);
/* Reads the file of this machine. Errors: SPL_E_NOTFOUND when there is none; SPL_E_UNSUPPORTED when it says it is for
 * another machine or version; as spl_tuning_parse and spl_read_file. *out is zero then. */
spl_status spl_tuning_load(spl_tuning *out, const char *folder, const spl_tuning_machine *machine, spl_error *err);

/* The model of that key, or NULL. */
const spl_tuned_model *spl_tuning_find(const spl_tuning *t, const char *key);
/* Puts a model last, in place of an older one of its key or, when there are too many, of the oldest. */
void spl_tuning_put(spl_tuning *t, const spl_tuned_model *model);

#endif
