/* SPDX-License-Identifier: Apache-2.0
 * A package on disk, opened: manifest checked against a compiled-in geometry, files mapped
 * read-only and shared, every tensor found at a checked offset. Nothing is copied. Format:
 * docs/FORMATS.md. Writing packages: src/pack. */
#ifndef SPL_MODEL_PACKAGE_H
#define SPL_MODEL_PACKAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "model/layout.h"

typedef struct spl_package spl_package;

typedef enum spl_package_check {
    SPL_CHECK_QUICK, /* sizes, headers, identity, finite small tensors: every open */
    SPL_CHECK_FULL   /* also SHA-256 of every file and finite scales of every matrix: verify */
} spl_package_check;

/* Opens the package folder `path`. On success *out belongs to the caller (spl_package_close).
 * Errors: SPL_E_GEOMETRY names the field that differs and both values; SPL_E_FORMAT, SPL_E_CORRUPT,
 * SPL_E_UNSUPPORTED (unknown major, feature or encoding), SPL_E_IO, SPL_E_NOTFOUND, SPL_E_LIMIT. */
spl_status spl_package_open(spl_package **out, const char *path, spl_package_check check, spl_error *err);

/* A package without files, for benchmarks: the layout of `g` (its first n_layers, all when 0) in
 * anonymous memory, filled with codes and scales that keep activations of order one. Equal seeds
 * give equal bytes. No tokenizer, path "(random)". Errors: SPL_E_NOMEM, SPL_E_GEOMETRY (no draft). */
spl_status spl_package_random(spl_package **out, const spl_geometry *g, uint32_t n_layers, bool with_draft,
                              uint64_t seed, spl_error *err);
/* The same with or against large pages; spl_package_random asks for them. */
spl_status spl_package_random_paged(spl_package **out, const spl_geometry *g, uint32_t n_layers, bool with_draft,
                                    uint64_t seed, bool huge_pages, spl_error *err);
void spl_package_close(spl_package *p); /* accepts NULL */

/* Keeps the weights in memory, those of the draft too when `with_draft`, in the two steps of base/memory_lock.h: before
 * and, with `finish`, after they were read once. Errors: SPL_E_LIMIT. */
spl_status spl_package_lock(const spl_package *p, bool with_draft, bool finish, spl_error *err);
/* Bytes of the mapped weight files, the draft's too when `with_draft`. */
uint64_t spl_package_mapped_bytes(const spl_package *p, bool with_draft);
/* The target's weights as they lie in memory. */
const uint8_t *spl_package_weights(const spl_package *p, size_t *n_bytes);
/* Asks for large pages of the mapped weights, or against them. */
void spl_package_advise_pages(const spl_package *p, bool huge);

const spl_geometry *spl_package_geometry(const spl_package *p);
const char *spl_package_path(const spl_package *p);
const char *spl_package_name(const spl_package *p);          /* manifest's model name */
const char *spl_package_chat_template(const spl_package *p); /* rule set; geometry's when the manifest has none */
uint32_t spl_package_n_layers(const spl_package *p);         /* below the geometry's in a partial package */
bool spl_package_has_draft(const spl_package *p);
const char *spl_package_digest(const spl_package *p); /* 64 hex: SHA-256 of manifest.json */

/* Stored bytes of a tensor, or NULL when the package has none of that role and layer. The pointer
 * lives as long as the package; `spec` may be NULL. */
const void *spl_package_tensor(const spl_package *p, spl_tensor_role role, uint32_t layer, spl_tensor_spec *spec);

/* Sampling defaults and stop tokens from the package's generation_config.json, if present. */
typedef struct spl_package_defaults {
    float temperature, top_p, min_p, repetition_penalty, presence_penalty;
    int32_t top_k; /* 0: all */
    uint32_t n_stop_tokens, stop_tokens[SPL_MAX_STOP_TOKENS];
} spl_package_defaults;
void spl_package_get_defaults(const spl_package *p, spl_package_defaults *out);

/* Called by spl_package_open_reporting after each checked part: its name and bytes so far of all.
 * Non-zero cancels (SPL_E_CANCELLED). */
typedef int (*spl_package_report)(void *user, const char *part, uint64_t done_bytes, uint64_t total_bytes);
spl_status spl_package_open_reporting(spl_package **out, const char *path, spl_package_check check,
                                      spl_package_report report, void *user, spl_error *err);

/* Whether a folder looks like a package (has manifest.json) or a checkpoint (has config.json). */
bool spl_is_package_folder(const char *path);
bool spl_is_checkpoint_folder(const char *path);

#endif
