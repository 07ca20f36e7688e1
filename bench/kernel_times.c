/* SPDX-License-Identifier: Apache-2.0
 * See kernel_times.h. Weights rotate through matrices that together exceed any cache here; outputs go to memory through
 * the kernel table, so nothing can be left out. */
#include "bench/kernel_times.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/bench_internal.h"
#include "bench/roof.h"
#include "model/layout.h"
#include "step/tuning.h"

enum {
    ROUNDS = 7,
    MOST_REPEATS = 32, /* runs of one reading */
    HIDDEN = 5120,
    N_OUT = 17408,
    LEAST_MATRICES = 22, /* 1.1 GB: a roof's least */
    MOST_MATRICES = 128, /* 6.4 GB: as with a model's weights, more than a core remembers translations of */
    WIDE_OUT = 2048,     /* outputs measured at 512 rows */
    MAX_ROWS = 512,
    KEY_HEADS = 16,
    VALUE_HEADS = 48,
    GDN_DIM = 128,
    GDN_CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * GDN_DIM,
    GDN_LAYERS = 16,
    Q_HEADS = 24,
    KV_HEADS = 4,
    HEAD_DIM = 256,
    MAX_CONTEXT = 8192,
    CACHED_PANELS = 8, /* per thread: 360 KB of 5,120 inputs */
    CACHED_PASSES = 100
};
/* Of one reading: a single run of a millisecond would measure how threads wake up. */
static const double READING_SECONDS = 0.02;

/* Everything the operations touch. */
typedef struct world {
    const spl_kernels *k;
    spl_team *team;
    spl_roof roof;
    uint8_t *weights, *kv;
    size_t matrix_bytes;
    uint32_t n_matrices;
    float *x, *y, *state, *mixed, *gates, *ones;
    uint8_t *q8;
    uint32_t *pages;
    uint8_t *scratch; /* per member */
    size_t scratch_bytes;
    void *mappings[16];
    size_t mapped[16];
    uint32_t n_mappings, turn; /* turn: which matrix or layer comes next */
} world;

typedef struct op {
    const char *name;
    uint32_t rows, context, n_units;
    double bytes, macs;
    void (*run)(world *w, const struct op *o, uint32_t member, uint32_t begin, uint32_t end);
} op;

static void *take(world *w, size_t n) {
    void *p = spl_bench_map(n, &w->mappings[w->n_mappings], &w->mapped[w->n_mappings]);
    w->n_mappings++;
    return p;
}

/* ---- operations ------------------------------------------------------------------------------ */

static const uint8_t *next_matrix(const world *w) { return w->weights + w->turn % w->n_matrices * w->matrix_bytes; }

static void run_linear(world *w, const op *o, uint32_t member, uint32_t begin, uint32_t end) {
    (void)member;
    spl_linear_args a = {.w = next_matrix(w),
                         .n_out = o->n_units * 16,
                         .x = spl_q8_at(w->q8, o->rows, HIDDEN),
                         .y = w->y,
                         .y_stride = N_OUT,
                         .read_late = spl_outputs_read_late((uint64_t)o->n_units * 16 * HIDDEN, o->rows),
                         .panel_begin = begin,
                         .panel_end = end};
    w->k->linear_q4(&a);
}
/* Some panels over and over, so that only the first pass meets memory: what arithmetic alone would allow. */
static void run_cached(world *w, const op *o, uint32_t member, uint32_t begin, uint32_t end) {
    (void)member;
    spl_linear_args a = {.w = w->weights,
                         .n_out = o->n_units * 16,
                         .x = spl_q8_at(w->q8, o->rows, HIDDEN),
                         .y = w->y,
                         .y_stride = N_OUT,
                         .panel_begin = begin,
                         .panel_end = end};
    for (int pass = 0; pass < CACHED_PASSES; pass++) w->k->linear_q4(&a);
}
static void run_gate_up(world *w, const op *o, uint32_t member, uint32_t begin, uint32_t end) {
    spl_gate_up_args a = {.w = next_matrix(w),
                          .n_out = o->n_units * SPL_GROUP,
                          .x = spl_q8_at(w->q8, o->rows, HIDDEN),
                          .y = spl_q8_at(w->y, o->rows, o->n_units * SPL_GROUP),
                          .scratch = (float *)(void *)(w->scratch + member * w->scratch_bytes),
                          .group_begin = begin,
                          .group_end = end};
    w->k->gate_up_q4(&a);
}
static void run_norm(world *w, const op *o, uint32_t member, uint32_t begin, uint32_t end) {
    (void)member;
    spl_norm_args a = {.x = w->x,
                       .x_stride = HIDDEN,
                       .weight = w->ones,
                       .eps = 1e-6f,
                       .q8 = spl_q8_at(w->q8, o->rows, HIDDEN),
                       .k = HIDDEN,
                       .row_begin = begin,
                       .row_end = end};
    w->k->rms_norm(&a);
}
static void run_scan(world *w, const op *o, uint32_t member, uint32_t begin, uint32_t end) {
    size_t layer = (size_t)VALUE_HEADS * GDN_DIM * GDN_DIM;
    spl_gdn_scan_args a = {.state = w->state + w->turn % GDN_LAYERS * layer,
                           .mixed = w->mixed,
                           .decay = w->gates,
                           .beta = w->gates,
                           .out = w->y,
                           .n_rows = o->rows,
                           .key_heads = KEY_HEADS,
                           .value_heads = VALUE_HEADS,
                           .head_dim = GDN_DIM,
                           .head_begin = begin,
                           .head_end = end,
                           .scratch = w->scratch + member * w->scratch_bytes};
    if (o->rows == 1) a.n_commit = 1;
    w->k->gdn_scan(&a);
}
static void run_attend(world *w, const op *o, uint32_t member, uint32_t begin, uint32_t end) {
    spl_kv_view kv = {.pool = w->kv,
                      .page_table = w->pages,
                      .page_stride = KV_HEADS * spl_kv_block_bytes(HEAD_DIM, false),
                      .n_kv_heads = KV_HEADS,
                      .head_dim = HEAD_DIM};
    spl_attend_args a = {.kv = kv,
                         .q = w->x,
                         .gate = w->x,
                         .q_stride = Q_HEADS * HEAD_DIM,
                         .gate_stride = 2 * Q_HEADS * HEAD_DIM,
                         .y = w->y,
                         .n_q_heads = Q_HEADS,
                         .position = o->context - o->rows,
                         .n_rows = o->rows,
                         .unit_begin = begin,
                         .unit_end = end,
                         .scratch = w->scratch + member * w->scratch_bytes};
    w->k->attend_i8(&a);
}
static op linear_op(uint32_t rows, uint32_t n_out) {
    double weights = (double)n_out * HIDDEN;
    op o = {"linear_q4", rows, 0, n_out / 16, weights * 9 / 16, weights * rows, run_linear};
    return o;
}
static op cached_op(uint32_t rows, uint32_t n_threads) {
    uint32_t n = CACHED_PANELS * n_threads < N_OUT / 16 ? CACHED_PANELS * n_threads : N_OUT / 16;
    op o = {"linear_q4 in cache", rows, 0, n, 0, (double)n * 16 * HIDDEN * rows * CACHED_PASSES, run_cached};
    return o;
}
static op gate_up_op(uint32_t rows) {
    double weights = (double)N_OUT * HIDDEN;
    op o = {"gate_up_q4", rows, 0, N_OUT / 2 / SPL_GROUP, weights * 9 / 16, weights * rows, run_gate_up};
    return o;
}
static op attend_op(uint32_t rows, uint32_t context) {
    double kv = (double)context / SPL_PAGE_TOKENS * KV_HEADS * (double)spl_kv_block_bytes(HEAD_DIM, false);
    double macs = 2.0 * rows * Q_HEADS * HEAD_DIM * context; /* two products */
    op o = {"attend_i8", rows, context, spl_attend_blocks(rows, KV_HEADS), kv, macs, run_attend};
    return o;
}
static op scan_op(uint32_t rows) {
    double state = (double)VALUE_HEADS * GDN_DIM * GDN_DIM * 4;
    op o = {"gdn_scan", rows, 0, VALUE_HEADS, rows == 1 ? 2 * state : state, 0, run_scan};
    return o;
}

enum { MAX_OPS = 24 };
static uint32_t list_ops(op *ops, uint32_t n_threads) {
    static const uint32_t rows[] = {1, 2, 4, 8, 16, 24, 32};
    uint32_t n = 0;
    for (size_t i = 0; i < SPL_COUNT(rows); i++) ops[n++] = linear_op(rows[i], N_OUT);
    ops[n++] = linear_op(MAX_ROWS, WIDE_OUT);
    ops[n++] = cached_op(8, n_threads);
    ops[n++] = cached_op(16, n_threads);
    ops[n++] = gate_up_op(8);
    ops[n++] = (op){"rms_norm + quantise", 8, 0, 8, 0, 0, run_norm};
    ops[n++] = scan_op(1);
    ops[n++] = scan_op(8);
    ops[n++] = attend_op(8, 512);
    ops[n++] = attend_op(1, MAX_CONTEXT);
    ops[n++] = attend_op(8, MAX_CONTEXT);
    return n;
}

/* ---- data ------------------------------------------------------------------------------------ */

static uint64_t next_random(uint64_t *s) {
    *s = *s * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *s >> 16;
}
static void fill_floats(float *x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) x[i] = (float)(next_random(&seed) & 0xffff) * 0x1p-15f - 1.0f;
}
/* Tiles repeat from a small pool; kernels do not look. */
static void fill_weights(world *w) {
    enum { POOL = 512 };
    uint64_t seed = 1;
    for (size_t i = 0; i < POOL * SPL_Q4_TILE_BYTES; i += 2)
        spl_store_u16(w->weights + i, (uint16_t)next_random(&seed));
    for (size_t t = 0; t < POOL; t++)
        for (size_t r = 0; r < 32; r++)
            spl_store_u16(w->weights + t * SPL_Q4_TILE_BYTES + 2 * r, spl_bf16_from_f32(r < 16 ? 0.01f : -0.075f));
    for (size_t at = POOL * SPL_Q4_TILE_BYTES, n = w->n_matrices * w->matrix_bytes; at < n;) {
        size_t piece = at < n - at ? at : n - at;
        memcpy(w->weights + at, w->weights, piece);
        at += piece;
    }
}

/* As many as a third of the free memory holds. */
static uint32_t count_matrices(size_t matrix_bytes) {
    uint64_t n = spl_bench_free_bytes() / 3 / matrix_bytes;
    return n < LEAST_MATRICES ? LEAST_MATRICES : n < MOST_MATRICES ? (uint32_t)n : MOST_MATRICES;
}

static spl_status open_world(world *w, const spl_kernels *k, uint32_t n_threads, spl_error *err) {
    spl_status st = spl_team_create(&w->team, n_threads, spl_set_ftz, err);
    if (st != SPL_OK) return st;
    size_t attend = spl_attend_scratch_bytes(Q_HEADS, KV_HEADS, HEAD_DIM), scan = spl_gdn_scratch_bytes(GDN_DIM);
    size_t block = KV_HEADS * spl_kv_block_bytes(HEAD_DIM, false);
    w->k = k;
    w->matrix_bytes = spl_tensor_bytes(SPL_ENC_Q4G64_R16, N_OUT, HIDDEN, 1);
    w->scratch_bytes = ((attend > scan ? attend : scan) + 4095) / 4096 * 4096;
    w->n_matrices = count_matrices(w->matrix_bytes);
    w->weights = take(w, w->n_matrices * w->matrix_bytes);
    w->kv = take(w, MAX_CONTEXT / SPL_PAGE_TOKENS * block);
    w->x = take(w, (size_t)MAX_ROWS * HIDDEN * 4);
    w->y = take(w, (size_t)MAX_ROWS * N_OUT * 4);
    w->state = take(w, (size_t)GDN_LAYERS * VALUE_HEADS * GDN_DIM * GDN_DIM * 4);
    w->mixed = take(w, (size_t)8 * GDN_CHANNELS * 4);
    w->gates = take(w, (size_t)8 * VALUE_HEADS * 4);
    w->ones = take(w, (size_t)HIDDEN * 4);
    w->q8 = take(w, spl_q8_bytes(MAX_ROWS, HIDDEN));
    w->pages = take(w, MAX_CONTEXT / SPL_PAGE_TOKENS * 4);
    w->scratch = take(w, w->scratch_bytes * n_threads);
    for (uint32_t i = 0; i < w->n_mappings; i++)
        if (!w->mappings[i]) return spl_fail(err, SPL_E_NOMEM, "no memory for the operands; 2 GB are needed");
    fill_weights(w);
    fill_floats(w->x, (size_t)MAX_ROWS * HIDDEN, 3);
    fill_floats(w->mixed, (size_t)8 * GDN_CHANNELS, 4);
    fill_floats(w->state, (size_t)GDN_LAYERS * VALUE_HEADS * GDN_DIM * GDN_DIM, 5);
    for (size_t i = 0; i < (size_t)8 * VALUE_HEADS; i++) w->gates[i] = 0.5f;
    for (size_t i = 0; i < HIDDEN; i++) w->ones[i] = 1.0f;
    for (uint32_t i = 0; i < MAX_CONTEXT / SPL_PAGE_TOKENS; i++) w->pages[i] = i;
    spl_kv_view kv = {
        .pool = w->kv, .page_table = w->pages, .page_stride = block, .n_kv_heads = KV_HEADS, .head_dim = HEAD_DIM};
    for (uint32_t at = 0; at < MAX_CONTEXT; at += 1024) {
        spl_kv_store_args a = {.kv = kv,
                               .k = w->x,
                               .v = w->x + 512,
                               .k_stride = KV_HEADS * HEAD_DIM,
                               .v_stride = KV_HEADS * HEAD_DIM,
                               .position = at,
                               .n_rows = 1024,
                               .head_end = KV_HEADS};
        k->kv_store_i8(&a);
    }
    return spl_roof_open(&w->roof, w->team, k->tier, (spl_roof_memory){w->weights, w->n_matrices * w->matrix_bytes}, 0,
                         err);
}
static void close_world(world *w) {
    for (uint32_t i = 0; i < w->n_mappings; i++) spl_bench_unmap(w->mappings[i], w->mapped[i]);
    spl_roof_close(&w->roof);
    spl_team_destroy(w->team);
}

/* ---- measuring ------------------------------------------------------------------------------- */

typedef struct op_run {
    world *w;
    const op *o;
} op_run;
static void run_share(void *arg, uint32_t member) {
    op_run *run = arg;
    uint64_t n = run->o->n_units, size = spl_team_size(run->w->team);
    uint32_t begin = (uint32_t)(n * member / size), end = (uint32_t)(n * (member + 1) / size);
    if (begin < end) run->o->run(run->w, run->o, member, begin, end);
}
static double run_once(op_run *run) {
    run->w->turn++;
    uint64_t start = spl_now_ns();
    spl_team_run(run->w->team, run_share, run);
    return (double)(spl_now_ns() - start) * 1e-9;
}
/* Seconds of a run, over as many as fill a reading; the first run only wakes everything up. */
static double seconds_of(world *w, const op *o) {
    op_run run = {w, o};
    if (o->run == run_linear || o->run == run_cached || o->run == run_gate_up) {
        spl_quantise_args q = {
            .x = w->x, .x_stride = HIDDEN, .q8 = spl_q8_at(w->q8, o->rows, HIDDEN), .row_end = o->rows};
        w->k->quantise(&q);
    }
    (void)run_once(&run);
    double sum = 0;
    uint32_t n = 0;
    do sum += run_once(&run);
    while (++n < MOST_REPEATS && sum < READING_SECONDS);
    return sum / n;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static json_t *share(double rate, double roof) { return rate > 0 && roof > 0 ? json_real(rate / roof) : json_null(); }

static json_t *op_json(const op *o, double seconds[ROUNDS], const spl_roof_rates *r) {
    qsort(seconds, ROUNDS, sizeof seconds[0], by_value);
    double median = seconds[ROUNDS / 2], gb = o->bytes / median * 1e-9, gmac = o->macs / median * 1e-9;
    json_t *j =
        json_pack("{s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "op", o->name, "rows", (int)o->rows,
                  "context_tokens", (int)o->context, "microseconds", median * 1e6, "microseconds_min", seconds[0] * 1e6,
                  "microseconds_max", seconds[ROUNDS - 1] * 1e6, "gb_per_second", gb, "gmac_per_second", gmac,
                  "of_read", share(gb, r->read_gb), "of_int8", share(gmac, r->int8_gmac));
    if (j && r->vector_gmac > 0) (void)json_object_set_new(j, "of_int8_vector", share(gmac, r->vector_gmac));
    return j;
}

static spl_status measure(world *w, json_t **out, spl_error *err) {
    op ops[MAX_OPS];
    double seconds[MAX_OPS][ROUNDS];
    uint32_t n = list_ops(ops, spl_team_size(w->team));
    for (int round = 0; round < ROUNDS; round++) { /* roofs and operations in turn, so that all meet the same noise */
        spl_roof_take(&w->roof);
        for (uint32_t i = 0; i < n; i++) seconds[i][round] = seconds_of(w, &ops[i]);
    }
    spl_roof_rates rates = spl_roof_result(&w->roof);
    json_t *list = json_array();
    for (uint32_t i = 0; i < n && list; i++)
        if (json_array_append_new(list, op_json(&ops[i], seconds[i], &rates)) != 0) {
            json_decref(list);
            list = NULL;
        }
    *out = json_pack("{s:o}", "ops", list); /* takes the list, also when it fails */
    if (*out && spl_roof_put(*out, &rates)) return SPL_OK;
    json_decref(*out);
    *out = NULL;
    return spl_fail(err, SPL_E_NOMEM, "no memory for the result");
}

spl_status spl_kernels_json(const spl_kernels *kernels, uint32_t n_threads, json_t **out, spl_error *err) {
    world w = {0};
    *out = NULL;
    spl_status st = open_world(&w, kernels, n_threads, err);
    if (st == SPL_OK) {
        spl_set_ftz(); /* the caller is member 0 */
        st = measure(&w, out, err);
    }
    close_world(&w);
    return st;
}
