/* SPDX-License-Identifier: Apache-2.0
 * Runs token ids through the step of a package and writes every row's logits, for comparison with
 * other implementations; also packs a checkpoint and prints rotary tables. Rows are committed at
 * once, as a prefill commits them. Files are raw and little-endian:
 *   tokens, positions   u32 [n]
 *   logits              f32 [n][vocab]
 *   captured            f32 [n][captures * hidden], rows of the draft's taps
 *   rotary              f32 [n][2][dims / 2], cos then sin */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "cache/page_pool.h"
#include "pack/pack.h"
#include "step/step.h"

enum { MAX_CHUNK_ROWS = 512, MAX_TOKENS = 1 << 17 };

static const char usage[] =
    "usage: logits_tool run PACKAGE TOKENS LOGITS [--tier oracle|int8] [--isa NAME] [--chunk N] [--threads N]\n"
    "                   [--captured FILE]\n"
    "       logits_tool rotary GEOMETRY POSITIONS OUT\n"
    "       logits_tool pack CHECKPOINT PACKAGE\n";

typedef struct options {
    const char *package, *tokens, *logits, *captured;
    bool oracle;
    spl_tier isa;
    uint32_t chunk, n_threads;
} options;

/* All that one run owns. */
typedef struct rig {
    spl_package *package;
    const spl_geometry *g;
    spl_team *team;
    spl_kernels kernels;
    spl_step *step;
    spl_page_pool pool;
    spl_page_table table;
    float *cell;
    FILE *logits, *captured;
} rig;

static spl_status read_u32(const char *path, uint32_t **out, uint32_t *n, spl_error *err) {
    char *text;
    size_t n_bytes;
    spl_status st = spl_read_file(path, MAX_TOKENS * sizeof(uint32_t), &text, &n_bytes, err);
    if (st != SPL_OK) return st;
    *out = (uint32_t *)(void *)text;
    *n = (uint32_t)(n_bytes / sizeof(uint32_t));
    if (*n > 0) return SPL_OK;
    free(text);
    return spl_fail(err, SPL_E_FORMAT, "'%s' holds no 32-bit numbers", path);
}

static spl_status write_floats(FILE *to, const float *from, size_t n, spl_error *err) {
    return fwrite(from, sizeof(float), n, to) == n ? SPL_OK : spl_fail(err, SPL_E_IO, "cannot write the output file");
}

static spl_status open_output(FILE **out, const char *path, spl_error *err) {
    *out = fopen(path, "wb");
    return *out ? SPL_OK : spl_fail(err, SPL_E_IO, "cannot create '%s'", path);
}

static spl_status rig_open(rig *r, const options *o, uint32_t n_tokens, spl_error *err) {
    spl_status st = spl_package_open(&r->package, o->package, SPL_CHECK_FULL, err);
    if (st != SPL_OK) return st;
    r->g = spl_package_geometry(r->package);
    uint32_t n_layers = spl_package_n_layers(r->package), n_pages = n_tokens / SPL_PAGE_TOKENS + 1;
    st = spl_team_create(&r->team, o->n_threads, spl_set_ftz, err);
    if (st == SPL_OK) st = spl_kernels_select(&r->kernels, o->isa, err);
    if (st == SPL_OK) {
        spl_step_config config = {.geometry = r->g,
                                  .package = r->package,
                                  .kernels = &r->kernels,
                                  .team = r->team,
                                  .max_rows = o->chunk,
                                  .max_logit_rows = o->chunk,
                                  .capture = o->captured != NULL,
                                  .oracle = o->oracle};
        st = spl_step_create(&r->step, &config, err);
    }
    if (st == SPL_OK) st = spl_page_pool_init(&r->pool, spl_kv_page_bytes(r->g, n_layers, o->oracle), n_pages, err);
    if (st == SPL_OK) st = spl_page_table_init(&r->table, n_pages * SPL_PAGE_TOKENS, err);
    if (st == SPL_OK) st = spl_page_table_grow(&r->table, &r->pool, n_tokens, err);
    if (st == SPL_OK) {
        void *memory = NULL;
        size_t n_bytes = (size_t)spl_state_cell_bytes(r->g, n_layers);
        if (posix_memalign(&memory, 64, n_bytes) != 0) return spl_fail(err, SPL_E_NOMEM, "no memory for the state");
        memset(memory, 0, n_bytes);
        r->cell = memory;
    }
    if (st == SPL_OK) st = open_output(&r->logits, o->logits, err);
    if (st == SPL_OK && o->captured) st = open_output(&r->captured, o->captured, err);
    return st;
}

static void rig_close(rig *r) {
    if (r->logits) (void)fclose(r->logits);
    if (r->captured) (void)fclose(r->captured);
    free(r->cell);
    spl_page_table_free(&r->table, &r->pool);
    spl_page_pool_free(&r->pool);
    spl_step_destroy(r->step);
    spl_team_destroy(r->team);
    spl_package_close(r->package);
}

static spl_status run_chunk(rig *r, const uint32_t *tokens, uint32_t position, uint32_t n_rows, spl_error *err) {
    uint32_t rows[MAX_CHUNK_ROWS];
    for (uint32_t i = 0; i < n_rows; i++) rows[i] = i;
    spl_segment segment = {
        .n_rows = n_rows, .position = position, .page_table = r->table.ids, .cell = r->cell, .n_commit = n_rows};
    spl_batch batch = {.tokens = tokens + position,
                       .n_rows = n_rows,
                       .segments = &segment,
                       .n_segments = 1,
                       .logit_rows = rows,
                       .n_logit_rows = n_rows,
                       .kv_pool = r->pool.memory,
                       .page_stride = r->pool.page_bytes};
    spl_status st = spl_step_run(r->step, &batch, err);
    if (st == SPL_OK) st = write_floats(r->logits, spl_step_logits(r->step), (size_t)n_rows * r->g->vocab, err);
    if (st == SPL_OK && r->captured) {
        const float *captured = spl_step_captured(r->step);
        if (!captured) return spl_fail(err, SPL_E_GEOMETRY, "geometry '%s' taps no layers", r->g->id);
        st = write_floats(r->captured, captured, (size_t)n_rows * spl_step_list(r->step)->captured_width, err);
    }
    return st;
}

static spl_status run(const options *o, spl_error *err) {
    uint32_t *tokens, n_tokens;
    rig r = {0};
    spl_status st = read_u32(o->tokens, &tokens, &n_tokens, err);
    if (st != SPL_OK) return st;
    st = rig_open(&r, o, n_tokens, err);
    for (uint32_t at = 0; at < n_tokens && st == SPL_OK; at += o->chunk)
        st = run_chunk(&r, tokens, at, n_tokens - at < o->chunk ? n_tokens - at : o->chunk, err);
    rig_close(&r);
    free(tokens);
    return st;
}

static spl_status rotary(const char *id, const char *positions_path, const char *out_path, spl_error *err) {
    float frequencies[SPL_MAX_HEAD_DIM], row[SPL_MAX_HEAD_DIM];
    uint32_t *positions, n;
    FILE *out;
    const spl_geometry *g = spl_geometry_find(id);
    if (!g) return spl_fail(err, SPL_E_GEOMETRY, "geometry '%s' is not known", id);
    spl_status st = read_u32(positions_path, &positions, &n, err);
    if (st == SPL_OK) {
        st = open_output(&out, out_path, err);
        spl_rope_frequencies(frequencies, g->rotary_dims, g->rope_theta);
        for (uint32_t i = 0; i < n && st == SPL_OK; i++) {
            spl_rope_row(row, row + g->rotary_dims / 2, frequencies, g->rotary_dims / 2, positions[i]);
            st = write_floats(out, row, g->rotary_dims, err);
        }
        if (out) (void)fclose(out);
        free(positions);
    }
    return st;
}

static bool number(const char *text, uint32_t high, uint32_t *out) {
    char *end;
    unsigned long v = strtoul(text, &end, 10);
    *out = (uint32_t)v;
    return *text != '\0' && *end == '\0' && v >= 1 && v <= high;
}

static bool tier_of(const char *name, spl_tier *out) {
    for (int t = 0; t < SPL_N_TIERS; t++) {
        if (strcmp(name, spl_tier_name((spl_tier)t)) != 0) continue;
        *out = (spl_tier)t;
        return true;
    }
    return false;
}

static bool parse(options *o, int argc, char **argv) {
    if (argc < 5) return false;
    *o = (options){.package = argv[2],
                   .tokens = argv[3],
                   .logits = argv[4],
                   .oracle = true,
                   .isa = SPL_N_TIERS,
                   .chunk = 32,
                   .n_threads = 1};
    for (int i = 5; i < argc; i += 2) {
        if (i + 1 >= argc) return false;
        const char *name = argv[i], *value = argv[i + 1];
        bool good = true;
        if (strcmp(name, "--tier") == 0) {
            o->oracle = strcmp(value, "oracle") == 0;
            good = o->oracle || strcmp(value, "int8") == 0;
        } else if (strcmp(name, "--isa") == 0) {
            good = tier_of(value, &o->isa);
        } else if (strcmp(name, "--chunk") == 0) {
            good = number(value, MAX_CHUNK_ROWS, &o->chunk);
        } else if (strcmp(name, "--threads") == 0) {
            good = number(value, 256, &o->n_threads);
        } else if (strcmp(name, "--captured") == 0) {
            o->captured = value;
        } else {
            good = false;
        }
        if (!good) return false;
    }
    return true;
}

int main(int argc, char **argv) {
    spl_error err = {0};
    options o;
    spl_status st;
    if (argc == 5 && strcmp(argv[1], "rotary") == 0) {
        st = rotary(argv[2], argv[3], argv[4], &err);
    } else if (argc == 4 && strcmp(argv[1], "pack") == 0) {
        spl_pack_options pack = {.source = argv[2], .output = argv[3], .overwrite = true};
        st = spl_pack(&pack, &err);
    } else if (argc > 1 && strcmp(argv[1], "run") == 0 && parse(&o, argc, argv)) {
        st = run(&o, &err);
    } else {
        (void)fputs(usage, stderr);
        return 2;
    }
    if (st == SPL_OK) return 0;
    (void)fprintf(stderr, "logits_tool: %s\n", err.text);
    return 1;
}
