/* SPDX-License-Identifier: Apache-2.0
 * Where the packer reads from: open source files, and for every tensor of the package a plan that
 * says which stored rows it is made of. Three makers fill plans: source_safetensors.c (published
 * bf16 and MLX 4-bit checkpoints, draft checkpoints) and source_packed.c (splash-packed-q4). */
#ifndef SPL_PACK_SOURCE_H
#define SPL_PACK_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "base/status.h"
#include "model/manifest.h"
#include "pack/safetensors.h"

/* One source file, kept open; read only by pread, so a file cut short is an error and not a signal. */
typedef struct spl_pack_file {
    char *path;
    int fd;
    uint64_t n_bytes;
    uint64_t device, inode;
    int64_t modified_s, modified_ns;
    char header_sha256[SPL_SHA256_HEX_BYTES]; /* of the safetensors header or the whole file; "" unknown */
} spl_pack_file;

typedef enum part_kind {
    PART_BF16, /* row-major values */
    PART_F16,
    PART_F32,
    PART_ROWS_Q4, /* row form: three tensors, codes, scales, biases */
    PART_ROWS_Q8,
    PART_TILES_Q4, /* splash-packed: 256-row tiles, three planes */
    PART_TILES_Q8
} part_kind;

/* A stored matrix or vector. offset[] of codes or values, scales, biases. */
typedef struct spl_pack_part {
    part_kind kind;
    const spl_pack_file *file[3];
    uint64_t offset[3];
    uint64_t rows; /* all slabs together */
    uint32_t cols;
    uint64_t slab_rows, slab_bytes; /* tiles: expert slabs follow one another; slab_rows real rows each */
    char name[112];
} spl_pack_part;

typedef enum spl_pack_transform {
    TRANSFORM_NONE,
    TRANSFORM_ADD_ONE,    /* zero-centred norm weights */
    TRANSFORM_NEGATED_EXP /* A_log to decay */
} spl_pack_transform;

enum { PACK_MAX_PARTS = 4 };
typedef struct spl_pack_tensor {
    spl_pack_transform transform;
    uint32_t n_parts; /* 0: not planned yet */
    spl_pack_part parts[PACK_MAX_PARTS];
} spl_pack_tensor;

typedef struct spl_pack_source {
    char *folder;
    spl_manifest *manifest;   /* of the package to write */
    spl_pack_tensor *tensors; /* [manifest->n_tensors] */
    spl_pack_file **files;
    uint32_t n_files;
    char *side_folder;  /* where tokenizer files are */
    json_t *provenance; /* members added to the manifest */
    bool quantises;     /* some matrix is quantised by us */
    void (*note)(void *user, const char *line);
    void *user;
} spl_pack_source;

/* Opens a regular file and adds it to the source, which owns it. */
spl_status spl_pack_source_open_file(spl_pack_source *s, const char *path, const spl_pack_file **out, spl_error *err);
/* Fails when any source file is not the one that was opened, byte for byte in size and time. */
spl_status spl_pack_source_unchanged(const spl_pack_source *s, spl_error *err);
/* pread of exactly n bytes. */
spl_status spl_pack_read(const spl_pack_file *f, uint64_t offset, void *to, size_t n_bytes, spl_error *err);
void spl_pack_source_free(spl_pack_source *s);
/* Sends a line to the caller's note callback. */
void spl_pack_note(const spl_pack_source *s, const char *format, ...) SPL_PRINTF(2, 3);
/* Allocates manifest and plans for a geometry. */
spl_status spl_pack_source_plan(spl_pack_source *s, const spl_geometry *g, uint32_t n_layers, bool with_draft,
                                spl_error *err);

/* Fill `s` from folders. draft_folder may be NULL. */
spl_status spl_pack_open_safetensors(spl_pack_source *s, const char *folder, const char *draft_folder,
                                     uint32_t n_layers, spl_error *err);
/* report is called while the source's files are hashed. */
typedef spl_status (*spl_pack_hash_report)(void *user, uint64_t done_bytes, uint64_t total_bytes, spl_error *err);
spl_status spl_pack_open_packed(spl_pack_source *s, const char *folder, uint32_t n_layers, bool without_draft,
                                spl_pack_hash_report report, void *user, spl_error *err);
/* Adds the draft tensors of a DFlash 2 checkpoint to plans made with_draft. */
spl_status spl_pack_open_draft(spl_pack_source *s, const char *folder, spl_error *err);

#endif
