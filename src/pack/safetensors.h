/* SPDX-License-Identifier: Apache-2.0
 * safetensors headers: one or more files as one list of named tensors. Headers are untrusted: after
 * a successful parse every range lies inside its file, sizes equal shape times type, ranges do not
 * overlap and names are unique. Data may start at any byte offset; nothing here reads it. */
#ifndef SPL_PACK_SAFETENSORS_H
#define SPL_PACK_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    SPL_ST_MAX_HEADER_BYTES = 1 << 20,  /* one file */
    SPL_ST_MAX_HEADERS_BYTES = 4 << 20, /* all files together */
    SPL_ST_MAX_TENSORS = 16384,
    SPL_ST_MAX_FILES = 1024,
    SPL_ST_MAX_RANK = 8,
    SPL_ST_MAX_NAME_BYTES = 1024
};

typedef enum spl_st_dtype { SPL_ST_BF16, SPL_ST_F16, SPL_ST_F32, SPL_ST_U32, SPL_ST_U8, SPL_ST_OTHER } spl_st_dtype;

typedef struct spl_st_tensor {
    char *name; /* owned by the list */
    spl_st_dtype dtype;
    char dtype_text[16];
    uint32_t rank;
    uint64_t shape[SPL_ST_MAX_RANK];
    uint64_t offset, n_bytes; /* absolute, in its file */
    uint32_t file;            /* number the caller gave */
    bool used;                /* the caller's mark */
} spl_st_tensor;

typedef struct spl_st_list {
    spl_st_tensor *items;
    uint32_t n, capacity;
} spl_st_list;

/* Length of the JSON header from a file's first 8 bytes; checked against the limit and the file. */
spl_status spl_st_header_bytes(const uint8_t first[8], uint64_t file_bytes, const char *path, uint64_t *out,
                               spl_error *err);
/* Appends the tensors of one header (`n_bytes` of JSON; the file has `file_bytes` in all). */
spl_status spl_st_parse(spl_st_list *list, uint32_t file, const char *header, size_t n_bytes, uint64_t file_bytes,
                        const char *path, spl_error *err);
/* Sorts by name and refuses a name that occurs twice. Call once after the last header. */
spl_status spl_st_finish(spl_st_list *list, spl_error *err);
/* After spl_st_finish; NULL when absent. */
spl_st_tensor *spl_st_find(const spl_st_list *list, const char *name);
void spl_st_free(spl_st_list *list);

#endif
