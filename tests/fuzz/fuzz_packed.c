/* SPDX-License-Identifier: Apache-2.0
 * The splash-packed-q4 manifest and the start of a weight file: sixteen bytes, then JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pack/packed_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    spl_packed_manifest m;
    spl_error err;
    if (n_bytes < 16) return 0;
    (void)spl_packed_check_start(data, "MDFL0006", 3, 1, "input", &err);
    if (spl_packed_parse(&m, (const char *)data + 16, n_bytes - 16, &err) != SPL_OK) return 0;
    for (uint32_t i = 0; i < m.n_artifacts; i++) {
        if (spl_packed_find(&m, m.artifacts[i].path) != &m.artifacts[i]) abort();
        const char *path = m.artifacts[i].path;
        if (path[0] == '/' || strncmp(path, "../", 3) == 0 || strstr(path, "/../") || strstr(path, "//")) abort();
    }
    (void)spl_packed_check_geometry(&m, spl_geometry_find("toy"), &err);
    (void)spl_packed_check_geometry(&m, spl_geometry_find("toy-moe"), &err);
    spl_packed_free(&m);
    return 0;
}
