/* SPDX-License-Identifier: Apache-2.0
 * Source files and the life of a spl_pack_source. Reads only by pread on descriptors kept open. */
#include "pack/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void remember(spl_pack_file *f, const struct stat *info) {
    f->n_bytes = (uint64_t)info->st_size;
    f->device = (uint64_t)info->st_dev;
    f->inode = (uint64_t)info->st_ino;
#ifdef __APPLE__
    f->modified_s = (int64_t)info->st_mtimespec.tv_sec;
    f->modified_ns = (int64_t)info->st_mtimespec.tv_nsec;
#else
    f->modified_s = (int64_t)info->st_mtim.tv_sec;
    f->modified_ns = (int64_t)info->st_mtim.tv_nsec;
#endif
}

static void close_file(spl_pack_file *f) {
    if (!f) return;
    if (f->fd >= 0) (void)close(f->fd);
    free(f->path);
    free(f);
}

spl_status spl_pack_source_open_file(spl_pack_source *s, const char *path, const spl_pack_file **out, spl_error *err) {
    struct stat info;
    spl_pack_file *f = calloc(1, sizeof *f);
    spl_pack_file **files = realloc(s->files, (s->n_files + 1) * sizeof *files);
    if (files) s->files = files;
    if (f) {
        f->fd = -1;
        f->path = strdup(path);
    }
    if (!f || !f->path || !files) {
        close_file(f);
        return spl_fail(err, SPL_E_NOMEM, "no memory to open '%s'", path);
    }
    spl_status st = SPL_OK;
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &info) != 0) {
        st = spl_fail_errno(err, errno, "cannot open '%s'", path);
    } else if (!S_ISREG(info.st_mode)) {
        st = spl_fail(err, SPL_E_IO, "'%s' is not a regular file", path);
    } else if (info.st_size == 0) {
        st = spl_fail(err, SPL_E_FORMAT, "'%s' is empty", path);
    }
    if (st != SPL_OK) {
        close_file(f);
        return st;
    }
    remember(f, &info);
    s->files[s->n_files++] = f;
    *out = f;
    return SPL_OK;
}

spl_status spl_pack_source_unchanged(const spl_pack_source *s, spl_error *err) {
    for (uint32_t i = 0; i < s->n_files; i++) {
        struct stat info;
        spl_pack_file now = {0};
        const spl_pack_file *f = s->files[i];
        if (stat(f->path, &info) != 0) return spl_fail_errno(err, errno, "source file '%s' went away", f->path);
        remember(&now, &info);
        if (now.n_bytes != f->n_bytes || now.device != f->device || now.inode != f->inode ||
            now.modified_s != f->modified_s || now.modified_ns != f->modified_ns)
            return spl_fail(err, SPL_E_IO, "source file '%s' changed while it was read; run pack again", f->path);
    }
    return SPL_OK;
}

spl_status spl_pack_read(const spl_pack_file *f, uint64_t offset, void *to, size_t n_bytes, spl_error *err) {
    char *at = to;
    while (n_bytes > 0) {
        ssize_t n = pread(f->fd, at, n_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return spl_fail_errno(err, errno, "cannot read '%s'", f->path);
        if (n == 0) return spl_fail(err, SPL_E_IO, "'%s' shrank while it was read", f->path);
        at += n;
        offset += (uint64_t)n;
        n_bytes -= (size_t)n;
    }
    return SPL_OK;
}

void spl_pack_source_free(spl_pack_source *s) {
    for (uint32_t i = 0; i < s->n_files; i++) close_file(s->files[i]);
    free(s->files);
    free(s->tensors);
    free(s->folder);
    free(s->side_folder);
    spl_manifest_free(s->manifest);
    json_decref(s->provenance);
    memset(s, 0, sizeof *s);
}

void spl_pack_note(const spl_pack_source *s, const char *format, ...) {
    char line[SPL_ERROR_TEXT_BYTES];
    va_list args;
    if (!s->note) return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    s->note(s->user, line);
}

spl_status spl_pack_source_plan(spl_pack_source *s, const spl_geometry *g, uint32_t n_layers, bool with_draft,
                                spl_error *err) {
    if (g->ffn_width % SPL_ROWS_PER_TILE || g->expert_width % SPL_ROWS_PER_TILE ||
        g->shared_expert_width % SPL_ROWS_PER_TILE || (g->draft && g->draft->ffn_width % SPL_ROWS_PER_TILE) ||
        (g->n_experts && g->hidden % SPL_ROWS_PER_TILE))
        return spl_fail(err, SPL_E_GEOMETRY, "geometry '%s' has a feed-forward width that is not a multiple of %d",
                        g->id, SPL_ROWS_PER_TILE);
    spl_status st = spl_manifest_new(&s->manifest, g, n_layers, with_draft, err);
    if (st != SPL_OK) return st;
    s->tensors = calloc(s->manifest->n_tensors, sizeof *s->tensors);
    if (!s->tensors) return spl_fail(err, SPL_E_NOMEM, "no memory for %u tensor plans", s->manifest->n_tensors);
    return SPL_OK;
}
