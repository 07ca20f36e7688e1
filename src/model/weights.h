/* SPDX-License-Identifier: Apache-2.0
 * The weight table: the tensors of one file of a package, in layout order, as pointers into its
 * mapping. Op lists name weights by their index here. Owns nothing but the table. */
#ifndef SPL_MODEL_WEIGHTS_H
#define SPL_MODEL_WEIGHTS_H

#include "model/package.h"

typedef struct spl_weights {
    uint32_t n;
    const void **data;     /* [n] */
    spl_tensor_spec *spec; /* [n] */
} spl_weights;

/* Binds every tensor of `file`. Errors: SPL_E_FORMAT names a missing tensor, SPL_E_NOMEM. */
spl_status spl_weights_bind(spl_weights *out, const spl_package *package, spl_file_id file, spl_error *err);
void spl_weights_free(spl_weights *w);

/* Index of a tensor, or SPL_NO_WEIGHT. */
enum { SPL_NO_WEIGHT = 0xffffffff };
uint32_t spl_layout_index(const spl_geometry *g, spl_file_id file, uint32_t n_layers, spl_tensor_role role,
                          uint32_t layer);

#endif
