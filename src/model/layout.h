/* SPDX-License-Identifier: Apache-2.0
 * Every tensor of a package, derived from the geometry: name, encoding, shape, bytes, file. The
 * packer writes this list, the reader requires it, the weight table binds it, explain sums it:
 * no other list of tensors exists. Formats: docs/FORMATS.md. */
#ifndef SPL_MODEL_LAYOUT_H
#define SPL_MODEL_LAYOUT_H

#include <stdint.h>

#include "model/geometry.h"

/* id in the manifest. Sizes: spl_tensor_bytes. */
typedef enum spl_encoding {
    SPL_ENC_Q4G64_R16, /* "q4g64r16": [rows/16 panels][cols/64 tiles] of 576 bytes */
    SPL_ENC_Q4G64_ROW, /* "q4g64row": a row is cols/2 codes, cols/64 bf16 scales, cols/64 bf16 biases */
    SPL_ENC_Q8G64_R16, /* "q8g64r16": tiles of 1088 bytes, one unsigned byte per weight */
    SPL_ENC_BF16,      /* "bf16": row-major */
    SPL_ENC_F32,       /* "f32": row-major */
    SPL_N_ENCODINGS
} spl_encoding;

enum {
    SPL_Q4_TILE_BYTES = 576,
    SPL_Q8_TILE_BYTES = 1088,
    SPL_FILE_HEADER_BYTES = 4096,
    SPL_MATRIX_ALIGNMENT = 4096, /* quantised matrices start on pages */
    SPL_SMALL_ALIGNMENT = 64
};

/* How the rows of the published tensors are arranged. */
typedef enum spl_order {
    SPL_ORDER_PLAIN,
    SPL_ORDER_GATE_UP, /* panels alternate: 16 gate rows, 16 up rows, ... */
    SPL_ORDER_EXPERTS  /* one matrix after another; gate/up expert matrices alternate panels inside */
} spl_order;

typedef enum spl_file_id { SPL_FILE_TARGET, SPL_FILE_DRAFT, SPL_FILE_VISION, SPL_N_FILES } spl_file_id;

/* role, name inside its layer (or of the model). */
#define SPL_TENSOR_ROLES(X)                                                                                            \
    X(EMBED, "embed")                         /* Q4 rows [vocab][hidden] */                                            \
    X(FINAL_NORM, "final_norm")               /* f32 [hidden], effective multiplier */                                 \
    X(HEAD, "head")                           /* Q4 [vocab][hidden] */                                                 \
    X(INPUT_NORM, "input_norm")               /* f32 [hidden], effective multiplier */                                 \
    X(POST_NORM, "post_norm")                 /* f32 [hidden], effective multiplier */                                 \
    X(ATTN_IN, "attn_in")                     /* Q4 [q|gate per head, k, v][hidden] */                                 \
    X(Q_NORM, "q_norm")                       /* f32 [head_dim], effective multiplier */                               \
    X(K_NORM, "k_norm")                       /* f32 [head_dim], effective multiplier */                               \
    X(ATTN_OUT, "attn_out")                   /* Q4 [hidden][q_width] */                                               \
    X(GDN_IN, "gdn_in")                       /* Q4 [q|k|v|z|b|a][hidden] */                                           \
    X(GDN_CONV, "gdn_conv")                   /* f32 [channels][4], tap 3 newest */                                    \
    X(GDN_DECAY, "gdn_decay")                 /* f32 [value heads] = -exp(A_log) */                                    \
    X(GDN_DT_BIAS, "gdn_dt_bias")             /* f32 [value heads] */                                                  \
    X(GDN_NORM, "gdn_norm")                   /* f32 [head dim], plain multiplier */                                   \
    X(GDN_OUT, "gdn_out")                     /* Q4 [hidden][value width] */                                           \
    X(GATE_UP, "gate_up")                     /* Q4 [2*ffn][hidden], panels alternate */                               \
    X(DOWN, "down")                           /* Q4 [hidden][ffn] */                                                   \
    X(ROUTER, "router")                       /* Q8 [experts][hidden] */                                               \
    X(EXPERT_GATE_UP, "expert_gate_up")       /* Q4 experts x [2*width][hidden] */                                     \
    X(EXPERT_DOWN, "expert_down")             /* Q4 experts x [hidden][width] */                                       \
    X(SHARED_GATE_UP, "shared_gate_up")       /* Q4 [2*width][hidden] */                                               \
    X(SHARED_DOWN, "shared_down")             /* Q4 [hidden][width] */                                                 \
    X(SHARED_GATE, "shared_gate")             /* Q8 [1][hidden], padded to 16 rows */                                  \
    X(DRAFT_CONTEXT, "context")               /* Q4 [hidden][captures * hidden] */                                     \
    X(DRAFT_HIDDEN_NORM, "hidden_norm")       /* f32 [hidden] */                                                       \
    X(DRAFT_FINAL_NORM, "final_norm")         /* f32 [hidden] */                                                       \
    X(DRAFT_SELECTOR, "selector")             /* Q4 [rank][hidden] */                                                  \
    X(DRAFT_PREDECESSOR, "predecessor")       /* bf16 [vocab][rank] */                                                 \
    X(DRAFT_SUCCESSOR, "successor")           /* bf16 [vocab][rank] */                                                 \
    X(DRAFT_INPUT_NORM, "input_norm")         /* f32 [hidden] */                                                       \
    X(DRAFT_ATTN_CONV_BASE, "attn_conv_base") /* f32 [2 sides][taps][hidden] */                                        \
    X(DRAFT_ATTN_CONV_PROJ, "attn_conv_proj") /* Q4 [2*taps*hidden/group][hidden] */                                   \
    X(DRAFT_QKV, "qkv")                       /* Q4 [q|k|v][hidden] */                                                 \
    X(DRAFT_Q_NORM, "q_norm")                 /* f32 [head_dim] */                                                     \
    X(DRAFT_K_NORM, "k_norm")                 /* f32 [head_dim] */                                                     \
    X(DRAFT_ATTN_OUT, "attn_out")             /* Q4 [hidden][q_width] */                                               \
    X(DRAFT_POST_NORM, "post_norm")           /* f32 [hidden] */                                                       \
    X(DRAFT_FFN_CONV_BASE, "ffn_conv_base")   /* f32 [2 sides][taps][hidden] */                                        \
    X(DRAFT_FFN_CONV_PROJ, "ffn_conv_proj")   /* Q4 [2*taps*hidden/group][hidden] */                                   \
    X(DRAFT_GATE_UP, "gate_up")               /* Q4 [2*ffn][hidden], panels alternate */                               \
    X(DRAFT_DOWN, "down")                     /* Q4 [hidden][ffn] */

typedef enum spl_tensor_role {
#define X(id, text) SPL_T_##id,
    SPL_TENSOR_ROLES(X)
#undef X
        SPL_N_TENSOR_ROLES
} spl_tensor_role;

enum { SPL_NO_LAYER = 0xffff, SPL_TENSOR_NAME_BYTES = 64 };

typedef struct spl_tensor_spec {
    spl_tensor_role role;
    spl_file_id file;
    spl_encoding encoding;
    spl_order order;
    uint16_t layer;                   /* SPL_NO_LAYER for model-wide tensors */
    uint32_t rows;                    /* outputs; the true number, not padded */
    uint32_t cols;                    /* inputs; a multiple of 64 for quantised encodings */
    uint32_t n_experts;               /* 1 unless order is SPL_ORDER_EXPERTS */
    uint64_t bytes;                   /* stored bytes, panels padded to 16 rows */
    char name[SPL_TENSOR_NAME_BYTES]; /* "target.layers.3.attn_in", "target.head", "draft.layers.0.qkv" */
} spl_tensor_spec;

/* The i-th tensor of a file in file order (ascending offsets), for the first n_layers layers of
 * the geometry (all of them when n_layers is 0 or too large; a partial model is for benchmarks
 * and tests). Returns false past the end. Draft and vision files exist only when the geometry has
 * them; the vision file is not listed yet. */
bool spl_layout_tensor(const spl_geometry *g, spl_file_id file, uint32_t n_layers, uint32_t index,
                       spl_tensor_spec *out);
/* Number of tensors of a file. */
uint32_t spl_layout_count(const spl_geometry *g, spl_file_id file, uint32_t n_layers);

/* Bytes of rows x cols in an encoding (rows padded to 16 for tiles). */
uint64_t spl_tensor_bytes(spl_encoding encoding, uint64_t rows, uint64_t cols, uint64_t n_experts);
uint64_t spl_tensor_alignment(spl_encoding encoding);
const char *spl_encoding_name(spl_encoding encoding);

#endif
