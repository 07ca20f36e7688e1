/* SPDX-License-Identifier: Apache-2.0
 * Runs decode steps with drafted blocks over a package and writes what the draft computed, for comparison with other
 * implementations; also packs a checkpoint with its draft. A script is one lane; lanes run side by side and have the
 * same number of steps. A step keeps as many of its rows as the script says, so any acceptance can be played.
 * Little-endian and packed; P tokens, N steps:
 *   script   u32 P, N; f32 temperature; u32 prompt[P]; N of { u32 anchor, rows, retained; f64 uniforms[16] }
 *   output   SCRIPT.out: N of { u32 position, tokens[8], n_q[7], result[8], result_retained;
 *            f32 hidden[8][H], selector[8][rank]; u32 candidates[8][16]; f32 scores[8][16], q[7][16];
 *            f32 features[8][taps * H]; f32 ring[layers][k, v][heads][window][dim] }
 * The ring is what the lane's pages stand for, position p in slot p % window.
 * All of a step's regions survive the target pass but the draft's logits, whose room the target's take: of them the
 * best 16 per row are left (scores). Row 0 has no candidates. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "cache/page_pool.h"
#include "pack/pack.h"
#include "step/step.h"

enum { MAX_SCRIPT_BYTES = 1 << 22, MAX_CHUNK_ROWS = 512, STEP_BYTES = 3 * 4 + SPL_N_UNIFORMS * 8 };

static const char usage[] = "usage: draft_tool run PACKAGE oracle|int8 CHUNK THREADS SCRIPT...\n"
                            "       draft_tool pack CHECKPOINT DRAFT PACKAGE\n";

/* One script and the memory of its lane. */
typedef struct play {
    char *script;
    uint32_t n_prompt, n_steps, position, n_pending;
    float temperature;
    const uint32_t *prompt;
    const char *steps;
    spl_page_table table;
    float *cell, *features;
    uint8_t *ring;
    void *pending_memory;
    spl_pending pending;
    FILE *out;
} play;

typedef struct rig {
    spl_package *package;
    const spl_geometry *g;
    spl_team *team;
    spl_kernels kernels;
    spl_step *step;
    spl_page_pool pool;
    play lanes[SPL_MAX_LANES];
    uint32_t n_lanes, chunk;
    bool oracle;
} rig;

static spl_status load_script(play *p, const char *path, spl_error *err) {
    size_t n_bytes;
    uint32_t head[2];
    spl_status st = spl_read_file(path, MAX_SCRIPT_BYTES, &p->script, &n_bytes, err);
    if (st != SPL_OK) return st;
    if (n_bytes < 12) return spl_fail(err, SPL_E_FORMAT, "'%s' is too short", path);
    memcpy(head, p->script, sizeof head);
    memcpy(&p->temperature, p->script + 8, sizeof p->temperature);
    p->n_prompt = head[0];
    p->n_steps = head[1];
    if (n_bytes != 12 + (uint64_t)p->n_prompt * 4 + (uint64_t)p->n_steps * STEP_BYTES)
        return spl_fail(err, SPL_E_FORMAT, "'%s' has the wrong length", path);
    p->prompt = (const uint32_t *)(const void *)(p->script + 12);
    p->steps = p->script + 12 + (size_t)p->n_prompt * 4;
    return SPL_OK;
}

static void *zeroed(uint64_t n_bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (size_t)n_bytes) != 0) return NULL;
    memset(memory, 0, (size_t)n_bytes);
    return memory;
}

static spl_status play_open(rig *r, play *p, const char *path, spl_error *err) {
    char name[4096];
    spl_status st = load_script(p, path, err);
    uint32_t n_tokens = p->n_prompt + (p->n_steps + 1) * SPL_BLOCK_ROWS;
    if (st == SPL_OK) st = spl_page_table_init(&p->table, n_tokens, err);
    if (st == SPL_OK) st = spl_page_table_grow(&p->table, &r->pool, n_tokens, err);
    if (st != SPL_OK) return st;
    uint32_t n_layers = spl_package_n_layers(r->package);
    p->cell = zeroed(spl_state_cell_bytes(r->g, n_layers));
    p->ring = zeroed(spl_draft_ring_bytes(r->g, r->oracle));
    p->features = zeroed(spl_step_decode_list(r->step)->captured_width * SPL_BLOCK_ROWS * sizeof(float));
    p->pending_memory = zeroed(spl_pending_bytes(r->g, n_layers));
    if (!p->cell || !p->ring || !p->features || !p->pending_memory)
        return spl_fail(err, SPL_E_NOMEM, "no memory for a lane");
    spl_pending_place(&p->pending, p->pending_memory, r->g, n_layers);
    (void)snprintf(name, sizeof name, "%s.out", path);
    p->out = fopen(name, "wb");
    return p->out ? SPL_OK : spl_fail(err, SPL_E_IO, "cannot create '%s'", name);
}

static spl_status rig_open(rig *r, const char *package, uint32_t n_threads, char **scripts, spl_error *err) {
    enum { N_PAGES = 256 };
    spl_status st = spl_package_open(&r->package, package, SPL_CHECK_FULL, err);
    if (st != SPL_OK) return st;
    r->g = spl_package_geometry(r->package);
    if (!r->g->draft) return spl_fail(err, SPL_E_GEOMETRY, "geometry '%s' has no draft", r->g->id);
    st = spl_team_create(&r->team, n_threads, spl_set_ftz, err);
    if (st == SPL_OK) st = spl_kernels_select(&r->kernels, SPL_N_TIERS, err);
    spl_step_config config = {.geometry = r->g,
                              .package = r->package,
                              .kernels = &r->kernels,
                              .team = r->team,
                              .max_rows = r->chunk,
                              .max_logit_rows = 1,
                              .decode = true,
                              .draft = true,
                              .oracle = r->oracle};
    if (st == SPL_OK) st = spl_step_create(&r->step, &config, err);
    if (st == SPL_OK)
        st = spl_page_pool_init(&r->pool, spl_kv_page_bytes(r->g, spl_package_n_layers(r->package), r->oracle), N_PAGES,
                                err);
    for (uint32_t i = 0; i < r->n_lanes && st == SPL_OK; i++) st = play_open(r, &r->lanes[i], scripts[i], err);
    return st;
}

static void rig_close(rig *r) {
    for (uint32_t i = 0; i < r->n_lanes; i++) {
        play *p = &r->lanes[i];
        if (p->out) (void)fclose(p->out);
        free(p->script);
        free(p->cell);
        free(p->ring);
        free(p->features);
        free(p->pending_memory);
        spl_page_table_free(&p->table, &r->pool);
    }
    spl_page_pool_free(&r->pool);
    spl_step_destroy(r->step);
    spl_team_destroy(r->team);
    spl_package_close(r->package);
}

static spl_status prefill(rig *r, play *p, spl_error *err) {
    spl_status st = SPL_OK;
    for (; p->position < p->n_prompt && st == SPL_OK;) {
        uint32_t left = p->n_prompt - p->position, n = left < r->chunk ? left : r->chunk;
        spl_segment segment = {.n_rows = n,
                               .position = p->position,
                               .page_table = p->table.ids,
                               .cell = p->cell,
                               .n_commit = n,
                               .ring = p->ring};
        spl_batch batch = {.tokens = p->prompt + p->position,
                           .n_rows = n,
                           .segments = &segment,
                           .n_segments = 1,
                           .kv_pool = r->pool.memory,
                           .page_stride = r->pool.page_bytes};
        st = spl_step_run(r->step, &batch, err);
        p->position += n;
    }
    return st;
}

static bool odd_bits(uint32_t x) {
    x ^= x >> 4;
    x ^= x >> 2;
    return ((x ^ x >> 1) & 1) != 0;
}

/* The k (plane 0) or v (plane 1) that a block of the ring holds of a token: fp32 rows, or codes of the Hadamard
 * transform with one scale a token: k by fours of dims, v by fours of tokens. */
static void read_token(const uint8_t *block, bool oracle, uint32_t d, uint32_t plane, uint32_t token, float *x) {
    const float *scales = (const float *)(const void *)(block + 2 * (size_t)SPL_PAGE_TOKENS * d);
    if (oracle) {
        memcpy(x, block + (size_t)(plane * SPL_PAGE_TOKENS + token) * d * sizeof(float), d * sizeof(float));
        return;
    }
    float codes[SPL_MAX_HEAD_DIM], scale = scales[plane * SPL_PAGE_TOKENS + token];
    for (uint32_t i = 0; i < d; i++) {
        uint32_t k = (i / 4 * SPL_PAGE_TOKENS + token) * 4 + i % 4, v = (token / 4 * d + i) * 4 + token % 4;
        codes[i] = plane == 0 ? (float)(block[k] - 128) : (float)(int8_t)block[(size_t)SPL_PAGE_TOKENS * d + v];
    }
    uint32_t transformed = d & (0u - d);
    for (uint32_t i = 0; i < d; i++) {
        x[i] = 0;
        for (uint32_t j = 0; j < transformed; j++) {
            float code = codes[i / transformed * transformed + j];
            x[i] += odd_bits(i % transformed & j) ? -code : code;
        }
        x[i] *= scale / (float)transformed;
    }
}

static spl_status dump_ring(const rig *r, const play *p, spl_error *err) {
    const spl_draft_geometry *d = r->g->draft;
    uint32_t n_pages = spl_draft_ring_pages(r->g);
    size_t block_bytes = spl_kv_block_bytes(d->head_dim, r->oracle), n = (size_t)d->window_tokens * d->head_dim;
    float *plane = calloc(n, sizeof *plane);
    if (!plane) return spl_fail(err, SPL_E_NOMEM, "no memory for the ring");
    bool good = true;
    for (uint32_t i = 0; i < d->n_layers * 2 * d->n_kv_heads; i++) {
        uint32_t layer = i / (2 * d->n_kv_heads), half = i / d->n_kv_heads % 2, head = i % d->n_kv_heads;
        uint32_t first = p->position > d->window_tokens ? p->position - d->window_tokens : 0;
        for (uint32_t at = first; at < p->position; at++) {
            size_t page = (size_t)layer * n_pages + at / SPL_PAGE_TOKENS % n_pages;
            read_token(p->ring + (page * d->n_kv_heads + head) * block_bytes, r->oracle, d->head_dim, half,
                       at % SPL_PAGE_TOKENS, plane + (size_t)(at % d->window_tokens) * d->head_dim);
        }
        good = good && fwrite(plane, sizeof *plane, n, p->out) == n;
    }
    free(plane);
    return good ? SPL_OK : spl_fail(err, SPL_E_IO, "cannot write the output file");
}

/* What the i-th lane's block left behind. */
static spl_status dump(const rig *r, uint32_t i, uint32_t row_begin, const spl_decode_lane *lane, spl_error *err) {
    const spl_draft_geometry *d = r->g->draft;
    const spl_op_list *l = spl_step_decode_list(r->step);
    const uint8_t *arena = (const uint8_t *)spl_step_logits(r->step) - l->logits;
    const play *p = &r->lanes[i];
    size_t row = (size_t)i * SPL_BLOCK_ROWS;
    uint32_t head[1 + 8 + 7 + 8 + 1] = {p->position};
    float q[SPL_MAX_PROPOSALS][SPL_MAX_CANDIDATES] = {{0}};
    size_t left = SPL_MAX_DECODE_ROWS - row_begin; /* rows behind the lane's own are the next lane's */
    memcpy(head + 1, arena + l->tokens + row_begin * sizeof(uint32_t), (left < 8 ? left : 8) * sizeof(uint32_t));
    for (uint32_t j = 0; j < SPL_MAX_PROPOSALS; j++) {
        head[9 + j] = lane->proposals[j].n_q;
        memcpy(q[j], lane->q[j], lane->proposals[j].n_q * sizeof(float));
    }
    memcpy(head + 16, lane->result.tokens, 8 * sizeof(uint32_t));
    head[24] = lane->result.retained;
    const struct {
        const void *from;
        size_t n_bytes;
    } parts[] = {
        {head, sizeof head},
        {arena + l->draft_hidden + row * r->g->hidden * 4, (size_t)8 * r->g->hidden * 4},
        {arena + l->draft_selector + row * d->selector_rank * 4, (size_t)8 * d->selector_rank * 4},
        {arena + l->draft_candidates + row * d->selector_top_k * 4, (size_t)8 * d->selector_top_k * 4},
        {arena + l->draft_scores + row * d->selector_top_k * 4, (size_t)8 * d->selector_top_k * 4},
        {q, sizeof q},
        {p->features, (size_t)8 * l->captured_width * 4},
    };
    for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++) {
        if (fwrite(parts[j].from, 1, parts[j].n_bytes, p->out) != parts[j].n_bytes)
            return spl_fail(err, SPL_E_IO, "cannot write the output file");
    }
    return dump_ring(r, p, err);
}

static spl_status run_step(rig *r, uint32_t at, spl_error *err) {
    uint32_t tokens[SPL_MAX_DECODE_ROWS] = {0}, retained[SPL_MAX_LANES], n_rows = 0;
    spl_segment segments[SPL_MAX_LANES] = {0};
    spl_decode_lane lanes[SPL_MAX_LANES];
    spl_sampling sampling[SPL_MAX_LANES];
    memset(lanes, 0, sizeof lanes);
    for (uint32_t i = 0; i < r->n_lanes; i++) {
        play *p = &r->lanes[i];
        uint32_t head[3];
        memcpy(head, p->steps + (size_t)at * STEP_BYTES, sizeof head);
        memcpy(lanes[i].uniforms, p->steps + (size_t)at * STEP_BYTES + sizeof head, sizeof lanes[i].uniforms);
        retained[i] = head[2];
        if (head[1] < 1 || head[1] > SPL_BLOCK_ROWS || retained[i] < 1 || retained[i] > head[1])
            return spl_fail(err, SPL_E_INVALID, "step %u keeps %u of %u rows", at, retained[i], head[1]);
        sampling[i] = (spl_sampling){.temperature = p->temperature, .top_p = 1, .repetition_penalty = 1};
        tokens[n_rows] = head[0];
        segments[i] = (spl_segment){.row_begin = n_rows,
                                    .n_rows = head[1],
                                    .position = p->position,
                                    .page_table = p->table.ids,
                                    .cell = p->cell,
                                    .pending = &p->pending,
                                    .n_pending = p->n_pending,
                                    .ring = p->ring,
                                    .features = p->features};
        lanes[i].drafts = true;
        lanes[i].context = p->features;
        lanes[i].n_context = p->n_pending;
        lanes[i].sampling = &sampling[i];
        lanes[i].limits.max_retained = head[1];
        n_rows += head[1];
    }
    spl_batch batch = {.tokens = tokens,
                       .n_rows = n_rows,
                       .segments = segments,
                       .n_segments = r->n_lanes,
                       .kv_pool = r->pool.memory,
                       .page_stride = r->pool.page_bytes,
                       .lanes = lanes};
    spl_status st = spl_step_run(r->step, &batch, err);
    for (uint32_t i = 0; i < r->n_lanes && st == SPL_OK; i++) {
        play *p = &r->lanes[i];
        if (lanes[i].status != SPL_OK) return spl_fail(err, lanes[i].status, "%s", lanes[i].error.text);
        st = dump(r, i, segments[i].row_begin, &lanes[i], err);
        p->position += retained[i];
        p->n_pending = retained[i];
        p->pending.half ^= 1u;
    }
    return st;
}

static spl_status run(const char *package, bool oracle, uint32_t chunk, uint32_t n_threads, char **scripts,
                      uint32_t n_scripts, spl_error *err) {
    rig r = {.n_lanes = n_scripts, .chunk = chunk, .oracle = oracle};
    spl_status st = rig_open(&r, package, n_threads, scripts, err);
    for (uint32_t i = 0; i < n_scripts && st == SPL_OK; i++) {
        if (r.lanes[i].n_steps != r.lanes[0].n_steps)
            st = spl_fail(err, SPL_E_INVALID, "'%s' has another number of steps", scripts[i]);
        if (st == SPL_OK) st = prefill(&r, &r.lanes[i], err);
    }
    for (uint32_t at = 0; st == SPL_OK && at < r.lanes[0].n_steps; at++) st = run_step(&r, at, err);
    rig_close(&r);
    return st;
}

int main(int argc, char **argv) {
    spl_error err = {0};
    spl_status st;
    if (argc == 5 && strcmp(argv[1], "pack") == 0) {
        spl_pack_options pack = {.source = argv[2], .draft_source = argv[3], .output = argv[4], .overwrite = true};
        st = spl_pack(&pack, &err);
    } else if (argc > 6 && argc <= 6 + SPL_MAX_LANES && strcmp(argv[1], "run") == 0) {
        unsigned long chunk = strtoul(argv[4], NULL, 10), n_threads = strtoul(argv[5], NULL, 10);
        if (chunk < 1 || chunk > MAX_CHUNK_ROWS || n_threads < 1 || n_threads > 64) {
            (void)fputs(usage, stderr);
            return 2;
        }
        st = run(argv[2], strcmp(argv[3], "int8") != 0, (uint32_t)chunk, (uint32_t)n_threads, argv + 6,
                 (uint32_t)argc - 6, &err);
    } else {
        (void)fputs(usage, stderr);
        return 2;
    }
    if (st == SPL_OK) return 0;
    (void)fprintf(stderr, "draft_tool: %s\n", err.text);
    return 1;
}
