/* SPDX-License-Identifier: Apache-2.0
 * The registry: one line per compiled-in geometry. */
#include "model/geometry.h"

#include <stddef.h>
#include <string.h>

#include "base/compiler.h"
#include "model/nano.h"
#include "model/qwen3_6_35b_a3b.h"
#include "model/qwen3_8_27b.h"
#include "model/toy.h"

static const spl_geometry *const registry[] = {
    &q38_geometry,        /* the product */
    &q36_geometry,        /* the product, second */
    &nano_geometry,       /* the embedded default */
    &toy_geometry,        /* tests, down to here */
    &toy_ratio3_geometry, /* value heads = 3 x key heads */
    &toy_even_geometry,   /* attention every second layer */
    &toy_tiny_geometry,   /* statistics */
    &toy_moe_geometry,    /* experts */
};

const spl_geometry *spl_geometry_at(uint32_t index) { return index < SPL_COUNT(registry) ? registry[index] : NULL; }

const spl_geometry *spl_geometry_find(const char *id) {
    for (uint32_t i = 0; i < SPL_COUNT(registry); i++) {
        if (strcmp(registry[i]->id, id) == 0) return registry[i];
    }
    return NULL;
}
