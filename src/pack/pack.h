/* SPDX-License-Identifier: Apache-2.0
 * Makes a package from a checkpoint folder, and checks packages. Accepted sources: published
 * safetensors in bf16 (F16 and F32 too), MLX affine 4-bit, splash-packed-q4; and a DFlash 2 draft
 * checkpoint beside them. What each means: docs/FORMATS.md. */
#ifndef SPL_PACK_PACK_H
#define SPL_PACK_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct spl_pack_options {
    const char *source;       /* folder with config.json, or a splash-packed-q4 folder */
    const char *draft_source; /* folder of a draft checkpoint, or NULL */
    const char *output;       /* folder to create */
    const char *name;         /* model name for the manifest; NULL: the geometry's */
    uint32_t n_layers;        /* only the first layers; 0: all */
    uint32_t n_threads;       /* conversion threads; 0: two */
    bool overwrite;           /* replace an existing package */
    bool without_draft;       /* leave out the draft that a splash-packed-q4 source carries */
    /* Called from the calling thread; non-zero cancels. May be NULL. */
    int (*progress)(void *user, const char *stage, uint64_t done_bytes, uint64_t total_bytes);
    /* One line worth telling, without newline. May be NULL. */
    void (*note)(void *user, const char *line);
    void *user;
} spl_pack_options;

/* Writes the package. On any failure, cancellation or crash the output folder is what it was before,
 * or, when it has been published already, complete. Blocks; any thread.
 * Errors: SPL_E_GEOMETRY, SPL_E_UNSUPPORTED, SPL_E_FORMAT, SPL_E_CORRUPT, SPL_E_LIMIT (sources),
 * SPL_E_NOSPACE, SPL_E_INVALID (output exists), SPL_E_CANCELLED, SPL_E_IO, SPL_E_NOTFOUND. */
spl_status spl_pack(const spl_pack_options *o, spl_error *err);

/* Full check of a package: structure, SHA-256 of every file, finite scales. `report` may be NULL;
 * non-zero cancels. */
spl_status spl_verify(const char *path,
                      int (*report)(void *user, const char *part, uint64_t done_bytes, uint64_t total_bytes),
                      void *user, spl_error *err);

#endif
