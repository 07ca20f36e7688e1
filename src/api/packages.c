/* SPDX-License-Identifier: Apache-2.0
 * Packages through the public API: thin adapters over src/pack. */
#include "api/api_internal.h"
#include "pack/pack.h"

typedef struct adapter {
    bool (*progress)(void *user, const char *stage, uint64_t done, uint64_t total);
    void *user;
} adapter;

static int forward(void *context, const char *stage, uint64_t done, uint64_t total) {
    const adapter *a = context;
    return a->progress && a->progress(a->user, stage, done, total);
}

splash_status splash_pack(const splash_pack_options *o, splash_error *err) {
    spl_error error = {0};
    adapter a = {o->progress, o->progress_user};
    spl_pack_options options = {.source = o->source,
                                .draft_source = o->draft,
                                .output = o->output,
                                .name = o->name,
                                .n_layers = o->n_layers,
                                .overwrite = o->overwrite,
                                .progress = forward,
                                .user = &a};
    if (!o->source || !o->output) {
        (void)spl_fail(&error, SPL_E_INVALID, "pack needs a source and an output folder");
        return spl_api_error(err, &error);
    }
    return spl_pack(&options, &error) == SPL_OK ? SPLASH_OK : spl_api_error(err, &error);
}

splash_status splash_verify(const char *path, bool (*progress)(void *, const char *, uint64_t, uint64_t), void *user,
                            splash_error *err) {
    spl_error error = {0};
    adapter a = {progress, user};
    return spl_verify(path, forward, &a, &error) == SPL_OK ? SPLASH_OK : spl_api_error(err, &error);
}

splash_folder_kind splash_folder_kind_of(const char *path) {
    if (spl_is_package_folder(path)) return SPLASH_FOLDER_PACKAGE;
    return spl_is_checkpoint_folder(path) ? SPLASH_FOLDER_CHECKPOINT : SPLASH_FOLDER_OTHER;
}
