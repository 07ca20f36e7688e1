/* SPDX-License-Identifier: Apache-2.0
 * The memory plan: every byte an engine instance will use, computed from the geometry, the options
 * and the memory limit before anything is allocated. It chooses the context when the caller does
 * not, and refuses with one line when the model cannot fit. Pure: it reads nothing and allocates
 * nothing; the limit comes from base/memory_limit.h. */
#ifndef SPL_MODEL_PLAN_H
#define SPL_MODEL_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dynbuf.h"
#include "base/status.h"
#include "model/geometry.h"

enum {
    SPL_PLAN_LIMIT_PERCENT = 85,               /* of the free memory, when the caller names no limit */
    SPL_PLAN_THREAD_BYTES = 1 << 20,           /* stack and kernel scratch of one worker */
    SPL_PLAN_RUNTIME_BYTES = 24 << 20,         /* queues, requests, HTTP connections, libraries */
    SPL_PLAN_TOKEN_BYTES = 192,                /* tokenizer tables and masks per vocabulary entry */
    SPL_PLAN_MIN_CONTEXT = 1024,               /* below this a chosen context is refused */
    SPL_PLAN_SPARE_TOKENS = SPL_BLOCK_ROWS - 1 /* rows of a verify step past the last context token */
};

/* Numbers the caller knows. Bytes of one thing each; 0 where there is none. */
typedef struct spl_plan_request {
    uint32_t n_layers;         /* 0: all; as in spl_layout_tensor */
    uint32_t context_tokens;   /* 0: chosen, at most the model's maximum */
    uint32_t max_lanes;        /* 0: SPL_MAX_LANES */
    uint32_t snapshots;        /* state cells wanted for prefixes; fewer when memory is short */
    uint32_t n_threads;        /* workers, the engine thread included */
    bool has_draft;            /* draft.bin is mapped as well */
    bool f32_kv;               /* oracle: unquantised keys and values */
    uint64_t state_cell_bytes; /* recurrent state of one lane or snapshot; 0: recurrent state and window by formula */
    uint64_t lane_bytes;       /* what a lane owns beside its cell: pending rows, draft ring, penalties */
    uint64_t arena_bytes;      /* step arena without the logits */
    uint64_t logits_bytes;
    uint64_t limit_bytes; /* all of the plan stays below; required */
} spl_plan_request;

/* The first nine bytes and counts mirror splash_memory_plan of include/splash.h. */
typedef struct spl_plan {
    uint64_t weight_bytes; /* mapped files: headers and alignment included */
    uint64_t kv_bytes;     /* kv_pages * kv_page_bytes */
    uint64_t state_bytes;  /* state_cells * state_cell_bytes + lanes * lane_bytes */
    uint64_t arena_bytes, logits_bytes;
    uint64_t other_bytes; /* threads, tokenizer, runtime, page tables */
    uint64_t total_bytes; /* sum of the above */
    uint64_t limit_bytes;
    uint32_t context_tokens; /* what one request may hold, prompt and answer */
    uint32_t kv_pages;       /* of SPL_PAGE_TOKENS tokens; at least enough for one full context */
    uint32_t max_lanes;      /* lowered when four do not fit */
    uint32_t state_cells;    /* lanes + snapshots */
    uint32_t snapshots;
    uint64_t kv_page_bytes, state_cell_bytes;
} spl_plan;

/* Errors: SPL_E_LIMIT names the bytes needed, the limit and the remedy; SPL_E_INVALID a context above
 * the model's maximum or lanes above SPL_MAX_LANES. *out is zero on failure. */
spl_status spl_plan_make(const spl_geometry *g, const spl_plan_request *r, spl_plan *out, spl_error *err);

/* Appends the plan as a table for people. */
void spl_plan_print(const spl_plan *plan, spl_buf *out);

/* Bytes of the package's files that an engine maps, from the layout. */
uint64_t spl_plan_weight_bytes(const spl_geometry *g, uint32_t n_layers, bool has_draft);

#endif
