/* SPDX-License-Identifier: Apache-2.0
 * The vision tower both real models carry; they differ in the width it hands to the text model.
 * Used for byte accounting. Shapes: docs/MATH.md. */
#ifndef SPL_MODEL_VISION_H
#define SPL_MODEL_VISION_H

#include "model/geometry.h"

enum {
    VISION_BLOCKS = 27,
    VISION_HIDDEN = 1152,
    VISION_HEADS = 16, /* head dim 72 */
    VISION_FFN_WIDTH = 4304,
    VISION_FFN_WIDTH_PADDED = 4352, /* stored width: the next multiple of 128, so that inputs come in whole tiles */
    VISION_PATCH = 16,              /* pixels */
    VISION_TEMPORAL_PATCH = 2,      /* frames */
    VISION_CHANNELS = 3,
    VISION_MERGE = 2,       /* 2 x 2 patches become one token */
    VISION_POSITIONS = 2304 /* a 48 x 48 learned grid */
};
_Static_assert(VISION_HIDDEN % VISION_HEADS == 0, "whole heads");
_Static_assert(VISION_POSITIONS == 48 * 48, "square position grid");
_Static_assert(VISION_FFN_WIDTH_PADDED == (VISION_FFN_WIDTH + 127) / 128 * 128, "padding of the stored MLP");

#define VISION_TOWER(out)                                                                                              \
    {                                                                                                                  \
        .n_blocks = VISION_BLOCKS, .hidden = VISION_HIDDEN, .n_heads = VISION_HEADS, .ffn_width = VISION_FFN_WIDTH,    \
        .ffn_width_padded = VISION_FFN_WIDTH_PADDED, .patch = VISION_PATCH, .temporal_patch = VISION_TEMPORAL_PATCH,   \
        .channels = VISION_CHANNELS, .merge = VISION_MERGE, .n_positions = VISION_POSITIONS, .out_hidden = (out)       \
    }

#endif
