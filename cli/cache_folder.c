/* SPDX-License-Identifier: Apache-2.0
 * Reads the environment for the cache and the debugging log. */
#include "cli/cache_folder.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"

#ifdef __APPLE__
static const char CACHES[] = "Library/Caches/splash";
#else
static const char CACHES[] = ".cache/splash";
#endif

char *spl_cache_folder(const char *leaf) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *splash = NULL, *folder;
    if (base && base[0] == '/') {
        splash = spl_path_join(base, "splash");
    } else if (home && *home) {
        splash = spl_path_join(home, CACHES);
    }
    if (!splash) return NULL;
    folder = spl_path_join(splash, leaf);
    free(splash);
    return folder;
}

static void print_line(void *user, const char *line) {
    (void)user;
    (void)fprintf(stderr, "Debug · %s\n", line);
}

spl_debug_fn spl_debug_log(void) {
    const char *wanted = getenv("SPLASH_DEBUG");
    return wanted && *wanted && strcmp(wanted, "0") != 0 ? print_line : NULL;
}
