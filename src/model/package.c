/* SPDX-License-Identifier: Apache-2.0
 * Opens a package: manifest, mapped weight files, the checks of both depths, and the lookup of
 * tensors by role and layer. Owns mappings until spl_package_close. Format: docs/FORMATS.md. */
#include "model/package.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "base/huge_pages.h"
#include "base/memory_lock.h"
#include "model/package_private.h"

enum { SIDE_JSON_MAX_BYTES = 4 << 20, HASH_CHUNK_BYTES = 4 << 20 };

/* Where a check reports to and how far it is. */
typedef struct progress {
    spl_package_report report;
    void *user;
    uint64_t done_bytes, total_bytes;
} progress;

static spl_status advance(progress *g, const char *part, uint64_t n_bytes, spl_error *err) {
    g->done_bytes += n_bytes;
    if (g->report && g->report(g->user, part, g->done_bytes, g->total_bytes) != 0)
        return spl_fail(err, SPL_E_CANCELLED, "check of the package cancelled");
    return SPL_OK;
}

spl_status spl_package_index(spl_package *p, spl_error *err) {
    const spl_manifest *m = p->manifest;
    uint32_t n_layers = m->n_layers;
    if (m->has_draft && m->geometry->draft->n_layers > n_layers) n_layers = m->geometry->draft->n_layers;
    p->n_slots = n_layers + 1;
    p->index = calloc((size_t)SPL_N_TENSOR_ROLES * p->n_slots, sizeof *p->index);
    if (!p->index) return spl_fail(err, SPL_E_NOMEM, "no memory for the tensor index");
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const spl_tensor_spec *t = &m->tensors[i].spec;
        uint32_t slot = t->layer == SPL_NO_LAYER ? 0 : 1u + t->layer;
        p->index[(size_t)t->role * p->n_slots + slot] = i + 1;
    }
    return SPL_OK;
}

const void *spl_package_tensor(const spl_package *p, spl_tensor_role role, uint32_t layer, spl_tensor_spec *spec) {
    uint32_t slot = layer == SPL_NO_LAYER ? 0 : 1 + layer;
    if ((unsigned)role >= SPL_N_TENSOR_ROLES || slot >= p->n_slots) return NULL;
    uint32_t found = p->index[(size_t)role * p->n_slots + slot];
    if (!found) return NULL;
    const spl_placed_tensor *t = &p->manifest->tensors[found - 1];
    if (spec) *spec = t->spec;
    return p->maps[t->spec.file].data + t->offset;
}

/* ---- checks ---- */

static spl_status check_floats(const spl_placed_tensor *t, const uint8_t *data, spl_error *err) {
    uint64_t n = t->spec.bytes / 4;
    for (uint64_t i = 0; i < n; i++) {
        if ((spl_load_u32(data + 4 * i) & 0x7f800000u) == 0x7f800000u)
            return spl_fail(err, SPL_E_CORRUPT,
                            "tensor '%s' holds a value that is not finite at index %llu; pack the model again",
                            t->spec.name, (unsigned long long)i);
    }
    return SPL_OK;
}

static bool finite_bf16(const uint8_t *at, uint64_t n) {
    unsigned bad = 0;
    for (uint64_t i = 0; i < n; i++) bad |= (spl_load_u16(at + 2 * i) & 0x7f80u) == 0x7f80u;
    return !bad;
}

/* Scales and biases of every group, or every value of a bf16 tensor. */
static spl_status check_scales(const spl_placed_tensor *t, const uint8_t *data, spl_error *err) {
    const spl_tensor_spec *s = &t->spec;
    uint64_t step = 0, at = 0, n = 0;
    switch (s->encoding) {
    case SPL_ENC_Q4G64_R16: step = SPL_Q4_TILE_BYTES, n = 2 * SPL_ROWS_PER_TILE; break;
    case SPL_ENC_Q8G64_R16: step = SPL_Q8_TILE_BYTES, n = 2 * SPL_ROWS_PER_TILE; break;
    case SPL_ENC_Q4G64_ROW:
        step = s->cols / 2 + s->cols / SPL_GROUP * 4, at = s->cols / 2, n = s->cols / SPL_GROUP * 2;
        break;
    case SPL_ENC_BF16: step = (uint64_t)s->cols * 2, n = s->cols; break;
    case SPL_ENC_F32:
    case SPL_N_ENCODINGS: return SPL_OK;
    }
    for (uint64_t i = 0; i < s->bytes / step; i++) {
        if (!finite_bf16(data + i * step + at, n))
            return spl_fail(err, SPL_E_CORRUPT,
                            "tensor '%s' holds a scale that is not finite in %s %llu; pack the model again", s->name,
                            at || s->encoding == SPL_ENC_BF16 ? "row" : "tile", (unsigned long long)i);
    }
    return SPL_OK;
}

static spl_status check_hash(const spl_manifest_file *f, const uint8_t *data, progress *g, spl_error *err) {
    spl_sha256 *h;
    char hex[SPL_SHA256_HEX_BYTES];
    spl_status st = spl_sha256_new(&h, err);
    if (st != SPL_OK) return st;
    for (uint64_t at = f->hash_from; at < f->bytes; at += HASH_CHUNK_BYTES) {
        size_t n = f->bytes - at < HASH_CHUNK_BYTES ? (size_t)(f->bytes - at) : HASH_CHUNK_BYTES;
        spl_sha256_update(h, data + at, n);
        if ((st = advance(g, f->path, n, err)) != SPL_OK) {
            spl_sha256_free(h);
            return st;
        }
    }
    st = spl_sha256_finish(h, hex, err);
    if (st == SPL_OK && strcmp(hex, f->sha256) != 0)
        st = spl_fail(err, SPL_E_CORRUPT,
                      "'%s' has SHA-256 %s but the manifest says %s; pack or download the model again", f->path, hex,
                      f->sha256);
    return st;
}

/* Header and size of a weight file, then its mapping. */
static spl_status map_weights(spl_package *p, spl_file_id file, const char *path, spl_error *err) {
    const spl_manifest_file *f = spl_manifest_find_file(p->manifest, spl_weight_file_name(file));
    uint8_t header[SPL_FILE_HEADER_BYTES];
    spl_map *map = &p->maps[file];
    spl_status st = spl_map_file(map, path, err);
    if (st != SPL_OK) return st;
    if (map->n_bytes != f->bytes)
        return spl_fail(err, SPL_E_CORRUPT,
                        "'%s' has %zu bytes but the manifest says %llu; pack or download the model again", path,
                        map->n_bytes, (unsigned long long)f->bytes);
    spl_manifest_header(p->manifest, file, header);
    if (memcmp(map->data, header, 16) != 0)
        return spl_fail(err, SPL_E_CORRUPT, "'%s' does not start with the header of a version %d weight file", path,
                        SPL_PACKAGE_MAJOR);
    if (memcmp(map->data, header, sizeof header) != 0)
        return spl_fail(err, SPL_E_CORRUPT,
                        "'%s' belongs to another package: its header does not carry this manifest's identity", path);
    return SPL_OK;
}

static spl_status check_side_file(const spl_manifest_file *f, const char *path, spl_error *err) {
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return spl_fail(err, SPL_E_NOTFOUND,
                        "'%s' is listed in the manifest but missing; pack or download the model again", path);
    if ((uint64_t)info.st_size != f->bytes)
        return spl_fail(err, SPL_E_CORRUPT,
                        "'%s' has %llu bytes but the manifest says %llu; pack or download the model again", path,
                        (unsigned long long)info.st_size, (unsigned long long)f->bytes);
    return SPL_OK;
}

static spl_status hash_side_file(const spl_manifest_file *f, const char *path, progress *g, spl_error *err) {
    spl_map map;
    spl_status st = spl_map_file(&map, path, err);
    if (st == SPL_OK) st = map.n_bytes == f->bytes ? check_hash(f, map.data, g, err) : check_side_file(f, path, err);
    spl_map_close(&map);
    return st;
}

static spl_status open_files(spl_package *p, spl_package_check check, progress *g, spl_error *err) {
    const spl_manifest *m = p->manifest;
    spl_status st = SPL_OK;
    for (uint32_t i = 0; i < m->n_files; i++) g->total_bytes += m->files[i].bytes - m->files[i].hash_from;
    for (uint32_t i = 0; i < m->n_files && st == SPL_OK; i++) {
        const spl_manifest_file *f = &m->files[i];
        char *path = spl_path_join(p->path, f->path);
        if (!path) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
        int file = 0;
        while (file < SPL_N_FILES && strcmp(f->path, spl_weight_file_name((spl_file_id)file)) != 0) file++;
        if (file == SPL_N_FILES) {
            st = check_side_file(f, path, err);
            if (st == SPL_OK && check == SPL_CHECK_FULL) st = hash_side_file(f, path, g, err);
        } else {
            st = map_weights(p, (spl_file_id)file, path, err);
            if (st == SPL_OK && check == SPL_CHECK_FULL) st = check_hash(f, p->maps[file].data, g, err);
        }
        free(path);
    }
    for (uint32_t i = 0; i < m->n_tensors && st == SPL_OK; i++) {
        const spl_placed_tensor *t = &m->tensors[i];
        const uint8_t *data = p->maps[t->spec.file].data + t->offset;
        if (t->spec.encoding == SPL_ENC_F32)
            st = check_floats(t, data, err);
        else if (check == SPL_CHECK_FULL)
            st = check_scales(t, data, err);
    }
    return st;
}

/* ---- generation_config.json ---- */

static void number_into(const json_t *o, const char *key, float lowest, float highest, float *out) {
    double v = json_number_value(json_object_get(o, key));
    if (json_is_number(json_object_get(o, key)) && v >= (double)lowest && v <= (double)highest) *out = (float)v;
}

static void stop_token_into(const json_t *v, uint32_t vocab, spl_package_defaults *d) {
    json_int_t id = json_integer_value(v);
    if (json_is_integer(v) && id >= 0 && id < (json_int_t)vocab && d->n_stop_tokens < SPL_MAX_STOP_TOKENS)
        d->stop_tokens[d->n_stop_tokens++] = (uint32_t)id;
}

static spl_status read_defaults(spl_package *p, spl_error *err) {
    const spl_geometry *g = p->manifest->geometry;
    spl_package_defaults *d = &p->defaults;
    *d = (spl_package_defaults){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
    if (spl_manifest_find_file(p->manifest, "generation_config.json")) {
        json_t *o, *item;
        size_t i;
        char *path = spl_path_join(p->path, "generation_config.json");
        spl_status st = path ? spl_json_read(&o, path, SIDE_JSON_MAX_BYTES, err)
                             : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
        free(path);
        if (st != SPL_OK) return st;
        number_into(o, "temperature", 0, 100, &d->temperature);
        number_into(o, "top_p", 0, 1, &d->top_p);
        number_into(o, "min_p", 0, 1, &d->min_p);
        number_into(o, "repetition_penalty", 0.01f, 100, &d->repetition_penalty);
        number_into(o, "presence_penalty", -100, 100, &d->presence_penalty);
        json_int_t top_k = json_integer_value(json_object_get(o, "top_k"));
        if (top_k > 0 && top_k <= (json_int_t)g->vocab) d->top_k = (int32_t)top_k;
        item = json_object_get(o, "eos_token_id");
        stop_token_into(item, g->vocab, d);
        json_array_foreach(json_object_get(o, "eos_token_id"), i, item) stop_token_into(item, g->vocab, d);
        json_decref(o);
    }
    if (d->n_stop_tokens == 0) {
        d->n_stop_tokens = g->n_stop_tokens;
        memcpy(d->stop_tokens, g->stop_tokens, sizeof d->stop_tokens);
    }
    return SPL_OK;
}

/* ---- open, close, facts ---- */

static spl_status read_manifest(spl_package *p, spl_error *err) {
    char *text = NULL, *path = spl_path_join(p->path, "manifest.json");
    size_t n_bytes;
    if (!path) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    spl_status st = SPL_OK;
    if (!spl_file_exists(path))
        st = spl_fail(err, SPL_E_NOTFOUND, "'%s' is not a package: it has no manifest.json", p->path);
    if (st == SPL_OK) st = spl_read_file(path, SPL_MANIFEST_MAX_BYTES, &text, &n_bytes, err);
    if (st == SPL_OK) st = spl_sha256_hex(text, n_bytes, p->digest, err);
    if (st == SPL_OK) st = spl_manifest_parse(&p->manifest, text, n_bytes, err);
    free(text);
    free(path);
    return st;
}

spl_status spl_package_open_reporting(spl_package **out, const char *path, spl_package_check check,
                                      spl_package_report report, void *user, spl_error *err) {
    progress g = {.report = report, .user = user};
    *out = NULL;
    spl_package *p = calloc(1, sizeof *p);
    if (p) p->path = strdup(path);
    if (!p || !p->path) {
        free(p);
        return spl_fail(err, SPL_E_NOMEM, "no memory for a package");
    }
    spl_status st = read_manifest(p, err);
    if (st == SPL_OK) st = spl_package_index(p, err);
    if (st == SPL_OK) st = open_files(p, check, &g, err);
    if (st == SPL_OK) st = read_defaults(p, err);
    if (st != SPL_OK) {
        spl_package_close(p);
        return st;
    }
    *out = p;
    return SPL_OK;
}

spl_status spl_package_open(spl_package **out, const char *path, spl_package_check check, spl_error *err) {
    return spl_package_open_reporting(out, path, check, NULL, NULL, err);
}

void spl_package_close(spl_package *p) {
    if (!p) return;
    for (int file = 0; file < SPL_N_FILES; file++) spl_map_close(&p->maps[file]);
    spl_manifest_free(p->manifest);
    free(p->index);
    free(p->path);
    free(p);
}

const spl_geometry *spl_package_geometry(const spl_package *p) { return p->manifest->geometry; }
const char *spl_package_path(const spl_package *p) { return p->path; }
const char *spl_package_name(const spl_package *p) { return p->manifest->name; }
const char *spl_package_chat_template(const spl_package *p) { return p->manifest->chat_template; }
uint32_t spl_package_n_layers(const spl_package *p) { return p->manifest->n_layers; }
bool spl_package_has_draft(const spl_package *p) { return p->manifest->has_draft; }
const char *spl_package_digest(const spl_package *p) { return p->digest; }
void spl_package_get_defaults(const spl_package *p, spl_package_defaults *out) { *out = p->defaults; }

/* The weight files that serve text. */
static uint32_t text_maps(const spl_package *p, bool with_draft, spl_map maps[SPL_N_FILES]) {
    uint32_t n = 0;
    maps[n++] = p->maps[SPL_FILE_TARGET];
    if (with_draft) maps[n++] = p->maps[SPL_FILE_DRAFT];
    return n;
}

spl_status spl_package_lock(const spl_package *p, bool with_draft, bool finish, spl_error *err) {
    spl_map maps[SPL_N_FILES];
    uint32_t n = text_maps(p, with_draft, maps);
    return (finish ? spl_lock_finish : spl_lock_prepare)(maps, n, "the weights", err);
}

uint64_t spl_package_mapped_bytes(const spl_package *p, bool with_draft) {
    spl_map maps[SPL_N_FILES];
    uint64_t total = 0;
    for (uint32_t i = 0, n = text_maps(p, with_draft, maps); i < n; i++) total += maps[i].n_bytes;
    return total;
}

const uint8_t *spl_package_weights(const spl_package *p, size_t *n_bytes) {
    *n_bytes = p->maps[SPL_FILE_TARGET].n_bytes;
    return p->maps[SPL_FILE_TARGET].data;
}

void spl_package_advise_pages(const spl_package *p, bool huge) {
    for (int file = 0; file < SPL_N_FILES; file++) {
        if (p->maps[file].data) spl_advise_pages(p->maps[file].data, p->maps[file].n_bytes, huge);
    }
}

static bool folder_has(const char *folder, const char *name) {
    char *path = spl_path_join(folder, name);
    bool found = path && spl_file_exists(path);
    free(path);
    return found;
}

bool spl_is_package_folder(const char *path) { return folder_has(path, "manifest.json"); }
bool spl_is_checkpoint_folder(const char *path) { return folder_has(path, "config.json"); }
