/* SPDX-License-Identifier: Apache-2.0
 * Whole files: read-only shared mappings, bounded reads, and the atomic publish (write to a
 * temporary sibling, fsync, rename, fsync the folder) that law 7 rests on. */
#ifndef SPL_BASE_FILE_MAP_H
#define SPL_BASE_FILE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct spl_map {
    const uint8_t *data; /* page-aligned; NULL for an empty map */
    size_t n_bytes;
} spl_map;

/* Maps a regular, non-empty file read-only and shared. */
spl_status spl_map_file(spl_map *out, const char *path, spl_error *err);
void spl_map_close(spl_map *map);

/* Reads a whole regular file of at most max_bytes; *out is malloc'ed and NUL-terminated (the NUL
 * is not counted in *n_bytes). A longer file is SPL_E_LIMIT and names the limit. */
spl_status spl_read_file(const char *path, size_t max_bytes, char **out, size_t *n_bytes, spl_error *err);

/* Writes all bytes at the current position of `fd`, retrying short writes and EINTR. */
spl_status spl_write_all(int fd, const void *data, size_t n_bytes, const char *path, spl_error *err);

/* Publishes `n_bytes` under `path` atomically: readers see the old file or the new one. */
spl_status spl_publish_file(const char *path, const void *data, size_t n_bytes, spl_error *err);

/* fsync on a folder, so that a rename inside it survives a power cut. */
spl_status spl_sync_folder(const char *path, spl_error *err);

/* mkdir -p with mode 0777 & ~umask. */
spl_status spl_make_folders(const char *path, spl_error *err);

/* Removes a folder and what is in it; follows no links. A missing folder is success. */
spl_status spl_remove_tree(const char *path, spl_error *err);

/* Joins folder and name with one '/'; malloc'ed, NULL when memory is short. */
char *spl_path_join(const char *folder, const char *name);

bool spl_file_exists(const char *path);
bool spl_folder_exists(const char *path);

#endif
