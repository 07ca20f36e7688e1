/* SPDX-License-Identifier: Apache-2.0
 * config.json of a checkpoint against the compiled geometries: finds the one whose every number
 * agrees, or names the first field that differs from the closest. Also the draft's config.json. */
#ifndef SPL_PACK_CHECKPOINT_CONFIG_H
#define SPL_PACK_CHECKPOINT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/geometry.h"

enum { SPL_CONFIG_MAX_BYTES = 1 << 20 };

typedef struct spl_checkpoint_config {
    const spl_geometry *geometry;
    uint32_t n_layers; /* num_hidden_layers; below the geometry's only when a layer limit allows it */
    bool mlx_affine;   /* has a "quantization" object: MLX affine, group 64 */
    unsigned bits;     /* of that object: 4 */
} spl_checkpoint_config;

/* n_layers_limit: 0, or the number of leading layers that will be packed. `partial` accepts absent
 * fields (side copies of a config inside splash-packed packages).
 * Errors: SPL_E_GEOMETRY, SPL_E_UNSUPPORTED, SPL_E_FORMAT, SPL_E_LIMIT. */
spl_status spl_checkpoint_config_parse(spl_checkpoint_config *out, const char *text, size_t n_bytes,
                                       uint32_t n_layers_limit, bool partial, spl_error *err);

/* A DFlash 2 config.json against the draft of `g`; every differing key is named with both values. */
spl_status spl_draft_config_check(const char *text, size_t n_bytes, const spl_geometry *g, spl_error *err);

#endif
