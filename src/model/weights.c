/* SPDX-License-Identifier: Apache-2.0
 * Binding of weights by layout order. */
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

spl_status spl_weights_bind(spl_weights *out, const spl_package *package, spl_file_id file, spl_error *err) {
    const spl_geometry *g = spl_package_geometry(package);
    uint32_t n_layers = spl_package_n_layers(package);
    memset(out, 0, sizeof *out);
    uint32_t n = spl_layout_count(g, file, n_layers);
    out->data = calloc(n, sizeof *out->data);
    out->spec = calloc(n, sizeof *out->spec);
    if (!out->data || !out->spec) {
        spl_weights_free(out);
        return spl_fail(err, SPL_E_NOMEM, "no memory for a table of %u weights", n);
    }
    out->n = n;
    for (uint32_t i = 0; i < n; i++) {
        (void)spl_layout_tensor(g, file, n_layers, i, &out->spec[i]);
        out->data[i] = spl_package_tensor(package, out->spec[i].role, out->spec[i].layer, NULL);
        if (!out->data[i]) {
            spl_status st =
                spl_fail(err, SPL_E_FORMAT, "'%s' has no tensor '%s'", spl_package_path(package), out->spec[i].name);
            spl_weights_free(out);
            return st;
        }
    }
    return SPL_OK;
}

void spl_weights_free(spl_weights *w) {
    free(w->data);
    free(w->spec);
    memset(w, 0, sizeof *w);
}

uint32_t spl_layout_index(const spl_geometry *g, spl_file_id file, uint32_t n_layers, spl_tensor_role role,
                          uint32_t layer) {
    spl_tensor_spec spec;
    for (uint32_t i = 0; spl_layout_tensor(g, file, n_layers, i, &spec); i++) {
        if (spec.role == role && spec.layer == layer) return i;
    }
    return SPL_NO_WEIGHT;
}
