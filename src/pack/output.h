/* SPDX-License-Identifier: Apache-2.0
 * The output folder of a pack run. Everything is written into a sibling "OUT.partial-PID" that holds
 * a locked file, and becomes OUT in one rename (an exchange when OUT exists). A run that is killed
 * leaves the sibling; the next run removes it when its lock is free and its process is gone. */
#ifndef SPL_PACK_OUTPUT_H
#define SPL_PACK_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct spl_pack_output {
    char *final_path;   /* without trailing slashes */
    char *parent;       /* folder that holds it */
    char *partial_path; /* NULL until the folder exists */
    int lock;           /* descriptor of the locked file, -1 */
    bool overwrite;
} spl_pack_output;

/* Removes what dead runs left, refuses an output that must not be replaced, checks the free space
 * and creates the partial folder. need_bytes: what will be written. */
spl_status spl_pack_output_begin(spl_pack_output *o, const char *path, bool overwrite, uint64_t need_bytes,
                                 spl_error *err);
/* Makes the partial folder the package; every file in it must be synced already. */
spl_status spl_pack_output_publish(spl_pack_output *o, spl_error *err);
/* Removes the partial folder if it still exists and frees the paths. Safe after any failure. */
void spl_pack_output_end(spl_pack_output *o);

#endif
