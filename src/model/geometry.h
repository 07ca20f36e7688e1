/* SPDX-License-Identifier: Apache-2.0
 * The shape of a model as a compile-time fact. One header per member of the family fills one
 * spl_geometry; the registry in geometry.c lists them. Nothing here depends on a file: a package is
 * accepted only when every number in it equals the compiled one. Formulas: docs/MATH.md. */
#ifndef SPL_MODEL_GEOMETRY_H
#define SPL_MODEL_GEOMETRY_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SPL_MAX_CAPTURE_LAYERS = 8, /* target layers tapped for the draft */
    SPL_MAX_STOP_TOKENS = 4,
    SPL_ROWS_PER_TILE = 16, /* r16 tile: 16 output rows ... */
    SPL_GROUP = 64,         /* ... by one quantisation group of 64 inputs */
    SPL_PAGE_TOKENS = 32,   /* tokens of one KV page */
    SPL_BLOCK_ROWS = 8,     /* rows of one draft block: anchor plus 7 proposals */
    SPL_MAX_LANES = 4,
    SPL_MAX_DECODE_ROWS = SPL_BLOCK_ROWS * SPL_MAX_LANES,
    SPL_CONV_TAPS = 4 /* taps of the GDN convolution; the carried window is 3 rows */
};

/* The small bidirectional proposer that shares the target's embedding and head (DFlash 2). */
typedef struct spl_draft_geometry {
    uint32_t n_layers, hidden, ffn_width;
    uint32_t n_q_heads, n_kv_heads, head_dim;
    uint32_t window_tokens; /* context K/V ring */
    uint32_t block_rows;    /* SPL_BLOCK_ROWS */
    uint32_t conv_group, conv_taps;
    uint32_t selector_rank, selector_top_k;
    uint32_t mask_token;
    uint32_t n_capture;
    uint16_t capture[SPL_MAX_CAPTURE_LAYERS]; /* target layers whose output is tapped, ascending */
    float rope_theta, rms_eps;
} spl_draft_geometry;

/* Vision tower sizes; used for byte accounting. */
typedef struct spl_vision_geometry {
    uint32_t n_blocks, hidden, n_heads, ffn_width, ffn_width_padded;
    uint32_t patch, temporal_patch, channels, merge, n_positions, out_hidden;
} spl_vision_geometry;

typedef struct spl_geometry {
    const char *id;            /* "qwen3.8-27b" */
    const char *display;       /* "Qwen3.8-27B" */
    const char *model_type;    /* text_config.model_type of the checkpoint: "qwen3_5_text" */
    const char *chat_template; /* rule set of src/text/chat_template.h: "qwen3.8", "qwen3.6", "qwen3.5" */
    bool test_only;            /* toy shapes: not listed to people */
    uint32_t n_layers, hidden, vocab;
    uint32_t attention_interval; /* layer N attends when (N + 1) % interval == 0, else it is GDN */
    uint32_t n_q_heads, n_kv_heads, head_dim, rotary_dims;
    uint32_t mrope_section[3];
    float rope_theta, rms_eps;
    uint32_t gdn_key_heads, gdn_value_heads, gdn_head_dim; /* key and value heads share the head dim */
    uint32_t ffn_width;                                    /* dense SwiGLU width; 0 when MoE */
    uint32_t n_experts, experts_per_token, expert_width, shared_expert_width;
    uint32_t max_positions;
    uint32_t n_stop_tokens, stop_tokens[SPL_MAX_STOP_TOKENS];
    uint32_t image_token;              /* placeholder id, or vocab when there is none */
    const spl_draft_geometry *draft;   /* NULL when no draft is defined */
    const spl_vision_geometry *vision; /* NULL for text-only members */
} spl_geometry;

/* Registry. `spl_geometry_at` returns NULL past the end. */
const spl_geometry *spl_geometry_at(uint32_t index);
const spl_geometry *spl_geometry_find(const char *id);

static inline bool spl_layer_is_attention(const spl_geometry *g, uint32_t layer) {
    return (layer + 1) % g->attention_interval == 0;
}
static inline uint32_t spl_n_attention_layers(const spl_geometry *g) { return g->n_layers / g->attention_interval; }
static inline uint32_t spl_n_gdn_layers(const spl_geometry *g) { return g->n_layers - spl_n_attention_layers(g); }
/* Index of a layer among the layers of its own kind: KV pages and state cells are numbered so. */
static inline uint32_t spl_attention_index(const spl_geometry *g, uint32_t layer) {
    return layer / g->attention_interval;
}
static inline uint32_t spl_gdn_index(const spl_geometry *g, uint32_t layer) {
    return layer - layer / g->attention_interval;
}

static inline uint32_t spl_q_width(const spl_geometry *g) { return g->n_q_heads * g->head_dim; }
static inline uint32_t spl_kv_width(const spl_geometry *g) { return g->n_kv_heads * g->head_dim; }
/* Rows [q0 g0 q1 g1 ... | k | v]: query and output gate interleaved per head, as published. */
static inline uint32_t spl_attention_in_width(const spl_geometry *g) {
    return 2 * spl_q_width(g) + 2 * spl_kv_width(g);
}
static inline uint32_t spl_gdn_key_width(const spl_geometry *g) { return g->gdn_key_heads * g->gdn_head_dim; }
static inline uint32_t spl_gdn_value_width(const spl_geometry *g) { return g->gdn_value_heads * g->gdn_head_dim; }
/* Channels of the causal convolution: q, k and v. */
static inline uint32_t spl_gdn_channels(const spl_geometry *g) {
    return 2 * spl_gdn_key_width(g) + spl_gdn_value_width(g);
}
/* Rows [q | k | v | z | b | a] without padding. */
static inline uint32_t spl_gdn_in_width(const spl_geometry *g) {
    return spl_gdn_channels(g) + spl_gdn_value_width(g) + 2 * g->gdn_value_heads;
}

#endif
