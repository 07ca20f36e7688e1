/* SPDX-License-Identifier: Apache-2.0
 * manifest.json of a package: parsed and checked against a compiled-in geometry, or built for a new
 * package. Both directions share one list of fields, so that a number cannot be written and not
 * checked. A manifest is untrusted input: after spl_manifest_parse every offset lies inside its
 * file and no two tensors overlap. Format: docs/FORMATS.md. */
#ifndef SPL_MODEL_MANIFEST_H
#define SPL_MODEL_MANIFEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/status.h"
#include "model/layout.h"

enum {
    SPL_PACKAGE_MAJOR = 1,
    SPL_PACKAGE_MINOR = 0,
    SPL_MANIFEST_MAX_BYTES = 4 << 20,
    SPL_MANIFEST_MAX_TENSORS = 16384,
    SPL_MANIFEST_MAX_FILES = 16,
    SPL_MANIFEST_PATH_BYTES = 64,
    SPL_MODEL_NAME_BYTES = 128
};
#define SPL_PACKAGE_MAGIC "SPLR16PK" /* first 8 bytes of every weight file */

typedef struct spl_placed_tensor {
    spl_tensor_spec spec;
    uint64_t offset; /* in its file, header included */
} spl_placed_tensor;

typedef struct spl_manifest_file {
    char path[SPL_MANIFEST_PATH_BYTES]; /* a plain name inside the package folder */
    uint64_t bytes;
    uint64_t hash_from; /* first byte the digest covers: the header's size in weight files, else 0 */
    char sha256[SPL_SHA256_HEX_BYTES];
} spl_manifest_file;

typedef struct spl_manifest {
    const spl_geometry *geometry; /* compiled in, never freed */
    uint32_t n_layers;            /* target layers present, 1..geometry->n_layers */
    bool has_draft;
    char name[SPL_MODEL_NAME_BYTES];
    char chat_template[32];
    uint32_t n_files;
    spl_manifest_file files[SPL_MANIFEST_MAX_FILES];
    uint32_t n_tensors;
    spl_placed_tensor *tensors; /* [n_tensors] the whole layout, target file first, ascending offsets */
    char identity[SPL_SHA256_HEX_BYTES];
} spl_manifest;

/* Parses and checks a manifest. *out belongs to the caller. Errors: SPL_E_GEOMETRY, SPL_E_FORMAT,
 * SPL_E_UNSUPPORTED, SPL_E_LIMIT, SPL_E_CORRUPT (identity), SPL_E_NOMEM. */
spl_status spl_manifest_parse(spl_manifest **out, const char *text, size_t n_bytes, spl_error *err);
void spl_manifest_free(spl_manifest *m); /* accepts NULL */

/* A manifest for a new package: every tensor placed, no files listed yet. n_layers as in
 * spl_layout_tensor. */
spl_status spl_manifest_new(spl_manifest **out, const spl_geometry *g, uint32_t n_layers, bool with_draft,
                            spl_error *err);
/* Size of a weight file with its header and padding; 0 when the package has no such file. */
uint64_t spl_manifest_file_bytes(const spl_manifest *m, spl_file_id file);
/* Appends an entry to m->files; SPL_E_LIMIT when the table is full. */
spl_status spl_manifest_add_file(spl_manifest *m, const char *path, uint64_t bytes, uint64_t hash_from,
                                 const char *sha256, spl_error *err);
/* The listed file of that name, or NULL. */
const spl_manifest_file *spl_manifest_find_file(const spl_manifest *m, const char *path);

/* SHA-256 of what ties the weight files to this manifest: format, geometry, tensor places and the
 * weight files' digests. */
spl_status spl_manifest_identity(const spl_manifest *m, char hex[SPL_SHA256_HEX_BYTES], spl_error *err);
/* The header that a weight file of this manifest must have, byte for byte. */
void spl_manifest_header(const spl_manifest *m, spl_file_id file, uint8_t header[SPL_FILE_HEADER_BYTES]);
/* The JSON text (malloc'ed, caller frees). `provenance` is an object whose members are added at the
 * top level ("source", "converter", "quantiser"); borrowed. */
spl_status spl_manifest_text(const spl_manifest *m, const json_t *provenance, char **text, size_t *n_bytes,
                             spl_error *err);

const char *spl_weight_file_name(spl_file_id file); /* "target.bin" */
const char *spl_order_name(spl_order order);        /* "plain", "gate_up_pairs", "experts" */

#endif
