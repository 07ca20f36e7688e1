/* SPDX-License-Identifier: Apache-2.0
 * Files as whole objects. Owns mappings until spl_map_close; closes every descriptor it opens. */
#include "base/file_map.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a regular file for reading and reports its size; *fd is -1 on failure. */
static spl_status open_regular(const char *path, int *fd, size_t *n_bytes, spl_error *err) {
    struct stat info;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return spl_fail_errno(err, errno, "cannot open '%s'", path);
    spl_status st = SPL_OK;
    if (fstat(*fd, &info) != 0) {
        st = spl_fail_errno(err, errno, "cannot stat '%s'", path);
    } else if (!S_ISREG(info.st_mode)) {
        st = spl_fail(err, SPL_E_IO, "'%s' is not a regular file", path);
    }
    if (st != SPL_OK) {
        (void)close(*fd);
        *fd = -1;
        return st;
    }
    *n_bytes = (size_t)info.st_size;
    return SPL_OK;
}

spl_status spl_map_file(spl_map *out, const char *path, spl_error *err) {
    int fd;
    size_t n_bytes = 0;
    memset(out, 0, sizeof *out);
    spl_status st = open_regular(path, &fd, &n_bytes, err);
    if (st != SPL_OK) return st;
    if (n_bytes == 0) {
        st = spl_fail(err, SPL_E_FORMAT, "'%s' is empty", path);
    } else {
        void *data = mmap(NULL, n_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            st = spl_fail_errno(err, errno, "cannot map '%s'", path);
        } else {
            out->data = data;
            out->n_bytes = n_bytes;
        }
    }
    (void)close(fd);
    return st;
}

void spl_map_close(spl_map *map) {
    if (map->data) (void)munmap((void *)(uintptr_t)map->data, map->n_bytes);
    map->data = NULL;
    map->n_bytes = 0;
}

static spl_status read_all(int fd, char *to, size_t n_bytes, const char *path, spl_error *err) {
    size_t done = 0;
    while (done < n_bytes) {
        ssize_t n = read(fd, to + done, n_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return spl_fail_errno(err, errno, "cannot read '%s'", path);
        if (n == 0) return spl_fail(err, SPL_E_IO, "'%s' shrank while it was read", path);
        done += (size_t)n;
    }
    return SPL_OK;
}

spl_status spl_read_file(const char *path, size_t max_bytes, char **out, size_t *n_bytes, spl_error *err) {
    int fd;
    size_t size = 0;
    *out = NULL;
    *n_bytes = 0;
    spl_status st = open_regular(path, &fd, &size, err);
    if (st != SPL_OK) return st;
    char *data = NULL;
    if (size > max_bytes) {
        st = spl_fail(err, SPL_E_LIMIT, "'%s' has %zu bytes; the limit is %zu", path, size, max_bytes);
    } else if (!(data = malloc(size + 1))) {
        st = spl_fail(err, SPL_E_NOMEM, "no memory for '%s' (%zu bytes)", path, size);
    } else {
        st = read_all(fd, data, size, path, err);
    }
    (void)close(fd);
    if (st != SPL_OK) {
        free(data);
        return st;
    }
    data[size] = '\0';
    *out = data;
    *n_bytes = size;
    return SPL_OK;
}

spl_status spl_write_all(int fd, const void *data, size_t n_bytes, const char *path, spl_error *err) {
    const char *from = data;
    while (n_bytes > 0) {
        ssize_t n = write(fd, from, n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return spl_fail_errno(err, errno, "cannot write '%s'", path);
        from += n;
        n_bytes -= (size_t)n;
    }
    return SPL_OK;
}

/* Opens, fsyncs and closes the folder that holds `path`. */
static spl_status sync_parent(const char *path, spl_error *err) {
    const char *slash = strrchr(path, '/');
    if (!slash) return spl_sync_folder(".", err);
    size_t n = slash == path ? 1 : (size_t)(slash - path);
    char *folder = malloc(n + 1);
    if (!folder) return spl_fail(err, SPL_E_NOMEM, "path of '%s'", path);
    memcpy(folder, path, n);
    folder[n] = '\0';
    spl_status st = spl_sync_folder(folder, err);
    free(folder);
    return st;
}

spl_status spl_publish_file(const char *path, const void *data, size_t n_bytes, spl_error *err) {
    size_t n_path = strlen(path);
    char *temporary = malloc(n_path + 32);
    if (!temporary) return spl_fail(err, SPL_E_NOMEM, "path of '%s'", path);
    (void)snprintf(temporary, n_path + 32, "%s.%ld.partial", path, (long)getpid());
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    spl_status st = fd < 0 ? spl_fail_errno(err, errno, "cannot create '%s'", temporary) : SPL_OK;
    if (st == SPL_OK) st = spl_write_all(fd, data, n_bytes, temporary, err);
    if (st == SPL_OK && fsync(fd) != 0) st = spl_fail_errno(err, errno, "cannot sync '%s'", temporary);
    if (fd >= 0 && close(fd) != 0 && st == SPL_OK) st = spl_fail_errno(err, errno, "cannot close '%s'", temporary);
    if (st == SPL_OK && rename(temporary, path) != 0)
        st = spl_fail_errno(err, errno, "cannot rename '%s' to '%s'", temporary, path);
    if (st != SPL_OK && fd >= 0) (void)unlink(temporary);
    if (st == SPL_OK) st = sync_parent(path, err);
    free(temporary);
    return st;
}

spl_status spl_sync_folder(const char *path, spl_error *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return spl_fail_errno(err, errno, "cannot open folder '%s'", path);
    spl_status st = SPL_OK;
    /* Some file systems refuse fsync on folders with EINVAL; there is nothing to sync then. */
    if (fsync(fd) != 0 && errno != EINVAL) st = spl_fail_errno(err, errno, "cannot sync folder '%s'", path);
    (void)close(fd);
    return st;
}

spl_status spl_make_folders(const char *path, spl_error *err) {
    size_t n = strlen(path);
    char *copy = malloc(n + 1);
    if (!copy) return spl_fail(err, SPL_E_NOMEM, "path of '%s'", path);
    memcpy(copy, path, n + 1);
    spl_status st = SPL_OK;
    for (size_t i = 1; i <= n && st == SPL_OK; i++) {
        if (copy[i] != '/' && copy[i] != '\0') continue;
        char kept = copy[i];
        copy[i] = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            st = spl_fail_errno(err, errno, "cannot create folder '%s'", copy);
        copy[i] = kept;
    }
    free(copy);
    if (st == SPL_OK && !spl_folder_exists(path)) st = spl_fail(err, SPL_E_IO, "'%s' is not a folder", path);
    return st;
}

static spl_status remove_at(int parent, const char *name, const char *shown, spl_error *err) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return SPL_OK;
        return spl_fail_errno(err, errno, "cannot remove '%s'", shown);
    }
    DIR *folder = fdopendir(fd);
    if (!folder) {
        (void)close(fd);
        return spl_fail_errno(err, errno, "cannot list '%s'", shown);
    }
    spl_status st = SPL_OK;
    for (struct dirent *entry; st == SPL_OK && (entry = readdir(folder)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        st = remove_at(dirfd(folder), entry->d_name, entry->d_name, err);
    }
    (void)closedir(folder);
    if (st == SPL_OK && unlinkat(parent, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        st = spl_fail_errno(err, errno, "cannot remove folder '%s'", shown);
    return st;
}

spl_status spl_remove_tree(const char *path, spl_error *err) { return remove_at(AT_FDCWD, path, path, err); }

char *spl_path_join(const char *folder, const char *name) {
    size_t n_folder = strlen(folder);
    while (n_folder > 1 && folder[n_folder - 1] == '/') n_folder--;
    size_t n_name = strlen(name);
    char *path = malloc(n_folder + n_name + 2);
    if (!path) return NULL;
    memcpy(path, folder, n_folder);
    path[n_folder] = '/';
    memcpy(path + n_folder + 1, name, n_name + 1);
    return path;
}

bool spl_file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool spl_folder_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}
