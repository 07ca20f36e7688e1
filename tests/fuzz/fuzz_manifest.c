/* SPDX-License-Identifier: Apache-2.0
 * manifest.json of a package. An accepted manifest must place every tensor inside its file. */
#include <stdint.h>
#include <stdlib.h>

#include "model/manifest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    spl_manifest *m;
    spl_error err;
    if (spl_manifest_parse(&m, (const char *)data, n_bytes, &err) != SPL_OK) {
        if (m) abort();
        return 0;
    }
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const spl_placed_tensor *t = &m->tensors[i];
        const spl_manifest_file *f = spl_manifest_find_file(m, spl_weight_file_name(t->spec.file));
        if (!f || t->offset < SPL_FILE_HEADER_BYTES || t->spec.bytes > f->bytes || t->offset > f->bytes - t->spec.bytes)
            abort();
    }
    spl_manifest_free(m);
    return 0;
}
