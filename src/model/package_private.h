/* SPDX-License-Identifier: Apache-2.0
 * The inside of spl_package, shared by its two makers: package.c (files) and random_package.c
 * (anonymous memory). Nobody else includes it. */
#ifndef SPL_MODEL_PACKAGE_PRIVATE_H
#define SPL_MODEL_PACKAGE_PRIVATE_H

#include "base/file_map.h"
#include "model/manifest.h"
#include "model/package.h"

struct spl_package {
    char *path;
    spl_manifest *manifest;
    spl_map maps[SPL_N_FILES]; /* whole weight files, headers included */
    uint32_t *index;           /* [SPL_N_TENSOR_ROLES][n_slots] 1 + place in manifest->tensors, 0: absent */
    uint32_t n_slots;          /* one for "no layer", then one per layer */
    char digest[SPL_SHA256_HEX_BYTES];
    spl_package_defaults defaults;
};

/* Builds p->index from p->manifest. */
spl_status spl_package_index(spl_package *p, spl_error *err);

#endif
