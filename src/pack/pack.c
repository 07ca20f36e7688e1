/* SPDX-License-Identifier: Apache-2.0
 * The order of a pack run: plan everything from headers, check the disk, convert, write headers and
 * manifest, open the result as a reader would, publish. */
#include "pack/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_map.h"
#include "model/package.h"
#include "pack/output.h"
#include "pack/source.h"
#include "pack/weight_writer.h"

enum { SLACK_BYTES = 1 << 20 };

/* Files copied beside the weights when the source has them. */
static const struct {
    const char *name;
    size_t max_bytes;
} side_files[] = {
    {"tokenizer.json", 64u << 20},
    {"tokenizer_config.json", 4u << 20},
    {"generation_config.json", 4u << 20},
    {"chat_template.jinja", 1u << 20},
};

typedef struct run {
    const spl_pack_options *options;
    spl_pack_source source;
    spl_pack_output output;
    uint64_t done_bytes, total_bytes;
} run;

static spl_status tell(run *r, const char *stage, uint64_t done, uint64_t total, spl_error *err) {
    const spl_pack_options *o = r->options;
    if (o->progress && o->progress(o->user, stage, done, total) != 0)
        return spl_fail(err, SPL_E_CANCELLED, "pack cancelled");
    return SPL_OK;
}

static spl_status advance(void *user, const char *stage, uint64_t n_bytes, spl_error *err) {
    run *r = user;
    r->done_bytes += n_bytes;
    return tell(r, stage, r->done_bytes, r->total_bytes, err);
}

static spl_status hashed(void *user, uint64_t done_bytes, uint64_t total_bytes, spl_error *err) {
    return tell(user, "checking source", done_bytes, total_bytes, err);
}

/* ---- source ---- */

static spl_status open_source(run *r, spl_error *err) {
    const spl_pack_options *o = r->options;
    char *manifest = spl_path_join(o->source, "manifest.json"), *config = spl_path_join(o->source, "config.json");
    spl_status st = SPL_OK;
    r->source.note = o->note;
    r->source.user = o->user;
    if (!manifest || !config) {
        st = spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    } else if (!spl_folder_exists(o->source)) {
        st = spl_fail(err, SPL_E_NOTFOUND, "'%s' is not a folder; name a checkpoint folder", o->source);
    } else if (spl_file_exists(config)) {
        st = spl_pack_open_safetensors(&r->source, o->source, o->draft_source, o->n_layers, err);
    } else if (spl_file_exists(manifest)) {
        st = spl_pack_open_packed(&r->source, o->source, o->n_layers, o->without_draft || o->draft_source, hashed, r,
                                  err);
        if (st == SPL_OK && o->draft_source)
            st = spl_fail(err, SPL_E_UNSUPPORTED,
                          "a splash-packed-q4 source brings its own draft; leave the draft source out");
    } else {
        st = spl_fail(err, SPL_E_NOTFOUND,
                      "'%s' has neither config.json nor manifest.json; it is not a checkpoint folder", o->source);
    }
    free(manifest);
    free(config);
    return st;
}

static uint64_t package_bytes(const run *r) {
    uint64_t n = SLACK_BYTES;
    for (int file = 0; file < SPL_N_FILES; file++) n += spl_manifest_file_bytes(r->source.manifest, (spl_file_id)file);
    for (size_t i = 0; i < SPL_COUNT(side_files); i++) {
        spl_map map;
        char *path = spl_path_join(r->source.side_folder, side_files[i].name);
        if (path && spl_file_exists(path) && spl_map_file(&map, path, NULL) == SPL_OK) {
            n += map.n_bytes;
            spl_map_close(&map);
        }
        free(path);
    }
    return n;
}

/* ---- side files ---- */

static spl_status write_file(const char *path, const void *data, size_t n_bytes, spl_error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return spl_fail_errno(err, errno, "cannot create '%s'", path);
    spl_status st = spl_write_all(fd, data, n_bytes, path, err);
    if (st == SPL_OK && fsync(fd) != 0) st = spl_fail_errno(err, errno, "cannot sync '%s'", path);
    if (close(fd) != 0 && st == SPL_OK) st = spl_fail_errno(err, errno, "cannot close '%s'", path);
    return st;
}

/* The rule set of src/text that a template text calls for. */
static const char *template_rules(const char *text, const spl_geometry *g) {
    if (strstr(text, "reasoning_effort")) return "qwen3.8";
    if (strstr(text, "preserve_thinking")) return "qwen3.6";
    if (strstr(text, "enable_thinking")) return "qwen3.5";
    return g->chat_template;
}

static spl_status copy_side_file(run *r, const char *name, size_t max_bytes, spl_error *err) {
    spl_manifest *m = r->source.manifest;
    char *from = spl_path_join(r->source.side_folder, name), *to = spl_path_join(r->output.partial_path, name),
         *data = NULL;
    char sha256[SPL_SHA256_HEX_BYTES];
    size_t n;
    spl_status st = from && to ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    if (st == SPL_OK && spl_file_exists(from)) {
        st = spl_read_file(from, max_bytes, &data, &n, err);
        if (st == SPL_OK && n == 0) st = spl_fail(err, SPL_E_FORMAT, "'%s' is empty", from);
        if (st == SPL_OK) st = spl_sha256_hex(data, n, sha256, err);
        if (st == SPL_OK) st = write_file(to, data, n, err);
        if (st == SPL_OK) st = spl_manifest_add_file(m, name, n, 0, sha256, err);
        if (st == SPL_OK && strcmp(name, "chat_template.jinja") == 0)
            (void)snprintf(m->chat_template, sizeof m->chat_template, "%s", template_rules(data, m->geometry));
    } else if (st == SPL_OK && strcmp(name, "tokenizer.json") == 0) {
        spl_pack_note(&r->source, "the source has no tokenizer.json: the package can be measured but not chatted with");
    }
    free(data);
    free(from);
    free(to);
    return st;
}

/* ---- weights ---- */

static spl_status write_header(run *r, spl_file_id file, int fd, const char *path, spl_error *err) {
    uint8_t header[SPL_FILE_HEADER_BYTES];
    spl_manifest_header(r->source.manifest, file, header);
    if (lseek(fd, 0, SEEK_SET) != 0) return spl_fail_errno(err, errno, "cannot write '%s'", path);
    spl_status st = spl_write_all(fd, header, sizeof header, path, err);
    if (st == SPL_OK && fsync(fd) != 0) st = spl_fail_errno(err, errno, "cannot sync '%s'", path);
    return st;
}

static spl_status write_manifest(run *r, spl_error *err) {
    char *text = NULL, *path = spl_path_join(r->output.partial_path, "manifest.json");
    size_t n;
    json_t *provenance = r->source.provenance;
    (void)json_object_set_new(provenance, "converter", json_pack("{s:s,s:s}", "id", "splash-pack", "version", "1"));
    (void)json_object_set_new(provenance, "quantiser",
                              json_string(r->source.quantises ? "mlx-affine-metal-1" : "none"));
    spl_status st = path ? spl_manifest_text(r->source.manifest, provenance, &text, &n, err)
                         : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    if (st == SPL_OK) st = write_file(path, text, n, err);
    free(text);
    free(path);
    return st;
}

static spl_status write_weights(run *r, spl_error *err) {
    spl_manifest *m = r->source.manifest;
    char *paths[SPL_N_FILES] = {0}, sha256[SPL_SHA256_HEX_BYTES];
    int fds[SPL_N_FILES];
    spl_status st = SPL_OK;
    for (int f = 0; f < SPL_N_FILES; f++) fds[f] = -1;
    for (int f = 0; f < SPL_N_FILES && st == SPL_OK; f++) {
        const char *name = spl_weight_file_name((spl_file_id)f);
        uint64_t n_bytes = spl_manifest_file_bytes(m, (spl_file_id)f);
        if (n_bytes == 0) continue;
        if (!(paths[f] = spl_path_join(r->output.partial_path, name)))
            st = spl_fail(err, SPL_E_NOMEM, "no memory for a path");
        if (st == SPL_OK)
            st = spl_pack_write_weights(&r->source, (spl_file_id)f, paths[f], r->options->n_threads, advance, r,
                                        &fds[f], sha256, err);
        if (st == SPL_OK) st = spl_manifest_add_file(m, name, n_bytes, SPL_FILE_HEADER_BYTES, sha256, err);
    }
    if (st == SPL_OK) st = spl_manifest_identity(m, m->identity, err);
    for (int f = 0; f < SPL_N_FILES; f++) {
        if (st == SPL_OK && fds[f] >= 0) st = write_header(r, (spl_file_id)f, fds[f], paths[f], err);
        if (fds[f] >= 0 && close(fds[f]) != 0 && st == SPL_OK)
            st = spl_fail_errno(err, errno, "cannot close '%s'", paths[f]);
        free(paths[f]);
    }
    return st;
}

static spl_status check_result(const run *r, spl_error *err) {
    spl_package *p = NULL;
    spl_status st = spl_package_open(&p, r->output.partial_path, SPL_CHECK_QUICK, err);
    spl_package_close(p);
    return st;
}

static spl_status run_pack(run *r, spl_error *err) {
    const spl_pack_options *o = r->options;
    spl_status st = tell(r, "reading headers", 0, 0, err);
    if (st == SPL_OK) st = open_source(r, err);
    if (st != SPL_OK) return st;
    spl_manifest *m = r->source.manifest;
    if (o->name) (void)snprintf(m->name, sizeof m->name, "%s", o->name);
    for (int f = 0; f < SPL_N_FILES; f++) {
        uint64_t n = spl_manifest_file_bytes(m, (spl_file_id)f);
        r->total_bytes += n > SPL_FILE_HEADER_BYTES ? n - SPL_FILE_HEADER_BYTES : 0;
    }
    st = spl_pack_output_begin(&r->output, o->output, o->overwrite, package_bytes(r), err);
    for (size_t i = 0; i < SPL_COUNT(side_files) && st == SPL_OK; i++)
        st = copy_side_file(r, side_files[i].name, side_files[i].max_bytes, err);
    if (st == SPL_OK) st = write_weights(r, err);
    if (st == SPL_OK) st = spl_pack_source_unchanged(&r->source, err);
    if (st == SPL_OK) st = write_manifest(r, err);
    if (st == SPL_OK) st = check_result(r, err);
    if (st == SPL_OK) st = tell(r, "publishing", r->total_bytes, r->total_bytes, err);
    return st == SPL_OK ? spl_pack_output_publish(&r->output, err) : st;
}

spl_status spl_pack(const spl_pack_options *o, spl_error *err) {
    run r = {.options = o, .output = {.lock = -1}};
    if (!o->source || !o->output)
        return spl_fail(err, SPL_E_INVALID, "pack needs a source folder and an output folder");
    spl_status st = run_pack(&r, err);
    spl_pack_output_end(&r.output);
    spl_pack_source_free(&r.source);
    return st;
}

spl_status spl_verify(const char *path,
                      int (*report)(void *user, const char *part, uint64_t done_bytes, uint64_t total_bytes),
                      void *user, spl_error *err) {
    spl_package *p = NULL;
    spl_status st = spl_package_open_reporting(&p, path, SPL_CHECK_FULL, report, user, err);
    spl_package_close(p);
    return st;
}
