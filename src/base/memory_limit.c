/* SPDX-License-Identifier: Apache-2.0
 * Linux: /proc/meminfo, /proc/self/cgroup and the groups' files from the process's own group up to
 * the root; a path that a container does not show falls back to the mount's root. macOS: sysctl. */
#include "base/memory_limit.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#ifdef __APPLE__
#include <sys/sysctl.h>

spl_status spl_memory_room_get(const char *root, spl_memory_room *out, spl_error *err) {
    (void)root;
    uint64_t bytes = 0;
    size_t n = sizeof bytes;
    if (sysctlbyname("hw.memsize", &bytes, &n, NULL, 0) != 0 || bytes == 0) {
        return spl_fail(err, SPL_E_UNSUPPORTED, "hw.memsize is not available: name a memory limit");
    }
    *out = (spl_memory_room){.machine_bytes = bytes, .group_bytes = UINT64_MAX, .available_bytes = bytes};
    return SPL_OK;
}
#else

enum { PATH_BYTES = 1024, LINE_BYTES = 1024 };

/* Where a hierarchy keeps its figures. `stat_keys` are the file pages a group can give back. */
typedef struct hierarchy {
    const char *mount, *limit_file, *usage_file, *stat_keys[2];
} hierarchy;

static const hierarchy group_v2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}};
static const hierarchy group_v1 = {"/sys/fs/cgroup/memory",
                                   "memory.limit_in_bytes",
                                   "memory.usage_in_bytes",
                                   {"total_inactive_file ", "total_active_file "}};

/* Number after `key` on the first line that starts with it; the first line's own number when key is "". */
static bool read_number(const char *path, const char *key, uint64_t *out) {
    char line[LINE_BYTES];
    bool found = false;
    FILE *f = fopen(path, "re");
    if (!f) return false;
    while (!found && fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            found = sscanf(line + strlen(key), "%" SCNu64, out) == 1; /* "max" is no number: no limit */
            break;
        }
    }
    (void)fclose(f);
    return found;
}

static bool group_number(const char *folder, const char *file, const char *key, uint64_t *out) {
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s", folder, file);
    return n > 0 && (size_t)n < sizeof path && read_number(path, key, out);
}

/* Bytes that one group still allows; false when it sets no limit. */
static bool group_room(const hierarchy *h, const char *folder, uint64_t *out) {
    uint64_t limit, usage, pages;
    if (!group_number(folder, h->limit_file, "", &limit) || limit >= UINT64_MAX / 4) return false;
    if (!group_number(folder, h->usage_file, "", &usage)) usage = 0;
    for (int i = 0; i < 2; i++) {
        if (group_number(folder, "memory.stat", h->stat_keys[i], &pages)) usage -= pages < usage ? pages : usage;
    }
    *out = limit > usage ? limit - usage : 0;
    return true;
}

/* Lowers *room by the group `path` and every group above it. */
static void walk_groups(const hierarchy *h, const char *root, const char *path, uint64_t *room) {
    char folder[PATH_BYTES];
    uint64_t here;
    int mount = snprintf(folder, sizeof folder, "%s%s", root, h->mount);
    int n = snprintf(folder, sizeof folder, "%s%s%s", root, h->mount, path);
    if (n < 0 || (size_t)n >= sizeof folder || mount < 0) return;
    for (;;) {
        if (group_room(h, folder, &here) && here < *room) *room = here;
        char *slash = strrchr(folder, '/');
        if (!slash || slash - folder < mount) return;
        *slash = '\0';
    }
}

/* Does "4:memory:/path" name the memory controller? v2's own line is "0::/path". */
static const char *group_path(char *line, bool *v2) {
    line[strcspn(line, "\n")] = '\0';
    char *names = strchr(line, ':');
    char *path = names ? strchr(names + 1, ':') : NULL;
    if (!path) return NULL;
    *path++ = '\0';
    names++;
    *v2 = *names == '\0';
    if (*v2) return path;
    for (char *word = names, *end; word; word = end ? end + 1 : NULL) {
        end = strchr(word, ',');
        if (end) *end = '\0';
        if (strcmp(word, "memory") == 0) return path;
    }
    return NULL;
}

spl_status spl_memory_room_get(const char *root, spl_memory_room *out, spl_error *err) {
    char path[PATH_BYTES], line[LINE_BYTES];
    uint64_t kilobytes;
    int n = snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (n < 0 || (size_t)n >= sizeof path) return spl_fail(err, SPL_E_LIMIT, "root path of over %d bytes", PATH_BYTES);
    if (!read_number(path, "MemAvailable:", &kilobytes)) {
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s has no MemAvailable line: name a memory limit", path);
    }
    *out = (spl_memory_room){.machine_bytes = kilobytes * 1024, .group_bytes = UINT64_MAX};
    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) {
        bool v2;
        const char *group = group_path(line, &v2);
        if (group) walk_groups(v2 ? &group_v2 : &group_v1, root, group, &out->group_bytes);
    }
    if (f) (void)fclose(f);
    out->available_bytes = out->machine_bytes < out->group_bytes ? out->machine_bytes : out->group_bytes;
    return SPL_OK;
}
#endif
