/* SPDX-License-Identifier: Apache-2.0
 * config.json of checkpoints and drafts. The first byte chooses the reader and the layer limit. */
#include <stdint.h>
#include <stdlib.h>

#include "pack/checkpoint_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    spl_checkpoint_config config;
    spl_error err;
    if (n_bytes == 0) return 0;
    uint8_t way = data[0];
    const char *text = (const char *)data + 1;
    if (way % 3 == 2) {
        (void)spl_draft_config_check(text, n_bytes - 1, spl_geometry_find("toy"), &err);
        return 0;
    }
    spl_status st = spl_checkpoint_config_parse(&config, text, n_bytes - 1, way / 3 % 4, way % 3 == 1, &err);
    if (st == SPL_OK && (!config.geometry || config.n_layers == 0 || config.n_layers > config.geometry->n_layers))
        abort();
    return 0;
}
