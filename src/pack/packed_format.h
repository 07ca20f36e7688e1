/* SPDX-License-Identifier: Apache-2.0
 * The splash-packed-q4 container: its manifest (schema 3 dense, schema 4 mixture of experts) and the
 * 16-byte start of its weight files. Text and bytes in, checked facts out; opens nothing. */
#ifndef SPL_PACK_PACKED_FORMAT_H
#define SPL_PACK_PACKED_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/status.h"
#include "model/geometry.h"

enum {
    SPL_PACKED_ALIGNMENT = 16384,
    SPL_PACKED_MANIFEST_MAX_BYTES = 4 << 20,
    SPL_PACKED_MAX_ARTIFACTS = 1024,
    SPL_PACKED_PATH_BYTES = 256
};

typedef struct spl_packed_artifact {
    char path[SPL_PACKED_PATH_BYTES]; /* plain relative path */
    uint64_t n_bytes;
    char sha256[SPL_SHA256_HEX_BYTES]; /* lower case */
} spl_packed_artifact;

typedef struct spl_packed_manifest {
    bool moe;
    char model[128];
    uint32_t n_artifacts;
    spl_packed_artifact *artifacts; /* [n_artifacts] sorted by path */
    json_t *root;                   /* the whole text, for the geometry check */
} spl_packed_manifest;

/* Everything that needs no geometry. *out is filled only on success; free it. */
spl_status spl_packed_parse(spl_packed_manifest *out, const char *text, size_t n_bytes, spl_error *err);
void spl_packed_free(spl_packed_manifest *m);
/* The schema 4 numbers and the block sizes against a geometry. */
spl_status spl_packed_check_geometry(const spl_packed_manifest *m, const spl_geometry *g, spl_error *err);
const spl_packed_artifact *spl_packed_find(const spl_packed_manifest *m, const char *path);

/* Magic, layer and type at the start of a weight file. */
spl_status spl_packed_check_start(const uint8_t start[16], const char *magic, uint32_t layer, uint32_t type,
                                  const char *path, spl_error *err);

#endif
