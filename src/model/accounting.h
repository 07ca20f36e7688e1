/* SPDX-License-Identifier: Apache-2.0
 * Bytes and parameters of a model, from the geometry by formulas. Two views of one struct: the
 * published one ("packed-q4": GDN rows padded to 256, small tensors bf16, convolution window bf16),
 * whose every figure can be compared with the published analysis, and this engine's own layout, whose
 * step is summed from the op list. Formulas: docs/MATH.md, section 10. */
#ifndef SPL_MODEL_ACCOUNTING_H
#define SPL_MODEL_ACCOUNTING_H

#include <stdbool.h>
#include <stdint.h>

#include "model/geometry.h"

/* All sizes in bytes; *_share are fractions of step_bytes; a member the geometry lacks is 0. */
typedef struct spl_accounting {
    uint64_t parameters;   /* weights of the target as stored, padding included where the layout pads */
    uint64_t target_bytes; /* all target tensors, without file headers and alignment */
    uint64_t embed_bytes;  /* of those, the embedding table: gathered by rows, never streamed */
    uint64_t head_bytes;   /* of those, the head: read twice a step when there is a draft */
    uint64_t expert_bytes; /* of those, the routed experts: a step reads some of them */
    uint64_t draft_parameters, draft_bytes;
    uint64_t codebook_bytes; /* of those, the selector's two tables: gathered by rows */
    uint64_t vision_bytes;
    uint32_t attention_input_width, gdn_input_width; /* rows as stored */
    uint64_t recurrent_bytes, window_bytes;          /* one sequence */
    uint64_t state_bytes;                            /* sum of both */
    uint64_t kv_bytes_per_token;
    uint64_t draft_kv_bytes_per_token; /* this engine's; of the draft_window_tokens last tokens alone */
    uint32_t draft_window_tokens;
    uint64_t step_bytes;            /* one lane, one decode step with the draft; KV and activations apart */
    uint64_t draft_free_step_bytes; /* one token without a draft */
    uint64_t streamed_step_bytes;   /* step with the draft, codebooks by the rows gathered; 0 without a draft */
    double head_share, draft_share, state_share;
} spl_accounting;

/* The published analysis. step_bytes = target without the embedding table + head once more + draft
 * with its whole codebooks + state read and written. For a mixture of experts the routed experts
 * count as if all rows of a block chose different ones: min(n_experts, rows * experts_per_token). */
void spl_account_published(const spl_geometry *g, spl_accounting *out);

/* This engine's layout for the first n_layers layers (0: all). step_bytes is what the caller summed
 * from its op lists, with or without the draft's (`drafts`); with 0 the shares stay 0. */
void spl_account_engine(const spl_geometry *g, uint32_t n_layers, bool drafts, uint64_t step_bytes,
                        spl_accounting *out);

/* Tokens per second that bandwidth alone allows: tau tokens per step_bytes; bandwidth in 1e9 bytes/s. */
double spl_roof_tokens_per_second(uint64_t step_bytes, double bandwidth_gbs, double tau);
/* Bandwidth in 1e9 bytes/s that a measured rate implies. 0 when tau is not positive. */
double spl_needed_gbs(uint64_t step_bytes, double tokens_per_second, double tau);

#endif
