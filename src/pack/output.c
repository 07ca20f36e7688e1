/* SPDX-License-Identifier: Apache-2.0
 * Atomic publication of a folder. Where the system can exchange two names the old package stays
 * whole until the new one has its name; elsewhere it is moved aside first and moved back by the next
 * run if that one finds no package under the name. */
#include "pack/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file_map.h"

static const char lock_name[] = ".pack-lock";
static const char partial_mark[] = ".partial-", old_mark[] = ".old-";

/* "BASE MARK PID" with nothing else around: returns the pid, or 0. */
static long marked_pid(const char *name, const char *base, const char *mark) {
    size_t n = strlen(base), m = strlen(mark);
    if (strncmp(name, base, n) != 0 || strncmp(name + n, mark, m) != 0) return 0;
    const char *digits = name + n + m;
    if (*digits == '\0' || strlen(digits) > 18 || strspn(digits, "0123456789") != strlen(digits)) return 0;
    return strtol(digits, NULL, 10);
}

static bool process_is_gone(long pid) { return kill((pid_t)pid, 0) != 0 && errno == ESRCH; }

/* A lock that can be taken belongs to nobody; a folder without one was being created or removed. */
static bool lock_is_free(const char *folder) {
    char *path = spl_path_join(folder, lock_name);
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    bool is_free = path && (fd < 0 ? errno == ENOENT : flock(fd, LOCK_EX | LOCK_NB) == 0);
    if (fd >= 0) (void)close(fd);
    free(path);
    return is_free;
}

static void clean_up_entry(const spl_pack_output *o, const char *base, const char *name) {
    long pid = marked_pid(name, base, partial_mark);
    long old_pid = marked_pid(name, base, old_mark);
    if ((pid == 0 || !process_is_gone(pid)) && (old_pid == 0 || !process_is_gone(old_pid))) return;
    char *path = spl_path_join(o->parent, name);
    if (!path) return;
    if (old_pid && !spl_folder_exists(o->final_path)) {
        (void)rename(path, o->final_path); /* killed between the two renames: the old package comes back */
    } else if (lock_is_free(path)) {
        (void)spl_remove_tree(path, NULL);
    }
    free(path);
}

static void clean_up(const spl_pack_output *o) {
    const char *slash = strrchr(o->final_path, '/'), *base = slash ? slash + 1 : o->final_path;
    DIR *d = opendir(o->parent);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) clean_up_entry(o, base, e->d_name);
    (void)closedir(d);
}

static spl_status set_paths(spl_pack_output *o, const char *path, spl_error *err) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    o->final_path = strndup(path, n);
    if (!o->final_path) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    char *slash = strrchr(o->final_path, '/');
    const char *base = slash ? slash + 1 : o->final_path;
    if (*base == '\0' || strcmp(base, ".") == 0 || strcmp(base, "..") == 0)
        return spl_fail(err, SPL_E_INVALID, "'%s' is no place for a package; name a new folder", path);
    o->parent = !slash                   ? strdup(".")
                : slash == o->final_path ? strdup("/")
                                         : strndup(o->final_path, (size_t)(slash - o->final_path));
    return o->parent ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
}

static bool folder_is_empty(const char *path) {
    DIR *d = opendir(path);
    bool empty = d != NULL;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) empty = false;
    }
    if (d) (void)closedir(d);
    return empty;
}

static spl_status check_final(const spl_pack_output *o, spl_error *err) {
    struct stat info;
    if (lstat(o->final_path, &info) != 0) return SPL_OK;
    if (!S_ISDIR(info.st_mode))
        return spl_fail(err, SPL_E_INVALID, "'%s' exists and is not a folder; name another", o->final_path);
    if (folder_is_empty(o->final_path)) return SPL_OK;
    char *manifest = spl_path_join(o->final_path, "manifest.json");
    bool package = manifest && spl_file_exists(manifest);
    free(manifest);
    if (!package)
        return spl_fail(err, SPL_E_INVALID, "'%s' exists and is not a package; it will not be replaced", o->final_path);
    if (!o->overwrite)
        return spl_fail(err, SPL_E_INVALID, "'%s' exists; ask for it to be replaced, or name another folder",
                        o->final_path);
    return SPL_OK;
}

static spl_status check_space(const spl_pack_output *o, uint64_t need_bytes, spl_error *err) {
    struct statvfs v;
    if (statvfs(o->parent, &v) != 0) return SPL_OK; /* a file system that cannot say: writing will tell */
    uint64_t have = (uint64_t)v.f_bavail * (uint64_t)v.f_frsize;
    if (have >= need_bytes) return SPL_OK;
    return spl_fail(err, SPL_E_NOSPACE,
                    "the package needs %.1f MB but '%s' has %.1f MB free; free %.1f MB or choose another disk",
                    (double)need_bytes / 1e6, o->parent, (double)have / 1e6, (double)(need_bytes - have) / 1e6);
}

static spl_status create_partial(spl_pack_output *o, spl_error *err) {
    size_t n = strlen(o->final_path) + sizeof partial_mark + 24;
    char *path = malloc(n);
    if (!path) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    (void)snprintf(path, n, "%s%s%ld", o->final_path, partial_mark, (long)getpid());
    (void)spl_remove_tree(path, NULL); /* of an earlier process with our number */
    if (mkdir(path, 0777) != 0) {
        spl_status st = spl_fail_errno(err, errno, "cannot create folder '%s'", path);
        free(path);
        return st;
    }
    o->partial_path = path;
    char *lock = spl_path_join(path, lock_name);
    if (!lock) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    o->lock = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    spl_status st = o->lock < 0 ? spl_fail_errno(err, errno, "cannot create '%s'", lock) : SPL_OK;
    if (st == SPL_OK) (void)flock(o->lock, LOCK_EX | LOCK_NB);
    free(lock);
    return st;
}

spl_status spl_pack_output_begin(spl_pack_output *o, const char *path, bool overwrite, uint64_t need_bytes,
                                 spl_error *err) {
    *o = (spl_pack_output){.lock = -1, .overwrite = overwrite};
    spl_status st = set_paths(o, path, err);
    if (st == SPL_OK) st = spl_make_folders(o->parent, err);
    if (st != SPL_OK) return st;
    clean_up(o);
    st = check_final(o, err);
    if (st == SPL_OK) st = check_space(o, need_bytes, err);
    return st == SPL_OK ? create_partial(o, err) : st;
}

/* Exchanges two names in one step. False when the system or file system cannot. */
static bool exchange(const char *a, const char *b) {
#if defined(__linux__) && defined(RENAME_EXCHANGE)
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
#elif defined(__APPLE__) && defined(RENAME_SWAP)
    return renamex_np(a, b, RENAME_SWAP) == 0;
#else
    (void)a, (void)b;
    return false;
#endif
}

static spl_status replace_by_two_renames(const spl_pack_output *o, spl_error *err) {
    size_t n = strlen(o->final_path) + sizeof old_mark + 24;
    char *aside = malloc(n);
    if (!aside) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    (void)snprintf(aside, n, "%s%s%ld", o->final_path, old_mark, (long)getpid());
    spl_status st = SPL_OK;
    if (rename(o->final_path, aside) != 0) {
        st = spl_fail_errno(err, errno, "cannot move '%s' aside", o->final_path);
    } else if (rename(o->partial_path, o->final_path) != 0) {
        st = spl_fail_errno(err, errno, "cannot rename '%s' to '%s'", o->partial_path, o->final_path);
        (void)rename(aside, o->final_path);
    } else {
        (void)spl_remove_tree(aside, NULL);
    }
    free(aside);
    return st;
}

spl_status spl_pack_output_publish(spl_pack_output *o, spl_error *err) {
    char *lock = spl_path_join(o->partial_path, lock_name);
    if (!lock) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    spl_status st = unlink(lock) != 0 ? spl_fail_errno(err, errno, "cannot remove '%s'", lock) : SPL_OK;
    free(lock);
    if (st == SPL_OK) st = spl_sync_folder(o->partial_path, err);
    if (st != SPL_OK) return st;
    if (rename(o->partial_path, o->final_path) == 0) {
        free(o->partial_path);
        o->partial_path = NULL;
    } else if (errno != ENOTEMPTY && errno != EEXIST) {
        return spl_fail_errno(err, errno, "cannot rename '%s' to '%s'", o->partial_path, o->final_path);
    } else if ((st = check_final(o, err)) != SPL_OK) {
        /* another run was faster, and replacing was not asked for */
    } else if (exchange(o->partial_path, o->final_path)) {
        /* the partial name now holds the old package; spl_pack_output_end removes it */
    } else {
        st = replace_by_two_renames(o, err);
    }
    return st == SPL_OK ? spl_sync_folder(o->parent, err) : st;
}

void spl_pack_output_end(spl_pack_output *o) {
    if (o->partial_path) (void)spl_remove_tree(o->partial_path, NULL);
    if (o->lock >= 0) (void)close(o->lock);
    free(o->final_path);
    free(o->parent);
    free(o->partial_path);
    *o = (spl_pack_output){.lock = -1};
}
