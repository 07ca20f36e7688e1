/* SPDX-License-Identifier: Apache-2.0
 * The user's cache: what can be made again. $XDG_CACHE_HOME/splash, else ~/Library/Caches/splash on macOS and
 * ~/.cache/splash elsewhere. And the one other thing taken from the environment for all commands: SPLASH_DEBUG. */
#ifndef SPL_CLI_CACHE_FOLDER_H
#define SPL_CLI_CACHE_FOLDER_H

/* Path of a folder of the cache, which may not exist; malloc'ed. NULL when no home is known. */
char *spl_cache_folder(const char *leaf);

/* Where debugging lines go: to stderr when SPLASH_DEBUG is set and not "0", else NULL. Fits the callbacks `debug`. */
typedef void (*spl_debug_fn)(void *user, const char *line);
spl_debug_fn spl_debug_log(void);

#endif
