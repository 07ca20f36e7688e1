/* SPDX-License-Identifier: Apache-2.0
 * Reading and writing manifest.json. The geometry tables below are the one list of numbers that a
 * package repeats. Format: docs/FORMATS.md. */
#include "model/manifest.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/dynbuf.h"

static const char what[] = "manifest.json";

/* Encodings as this build understands them; a package that uses one must repeat the same numbers. */
static const char encodings_text[] =
    "{\"q4g64r16\":{\"bits\":4,\"group\":64,\"rows_per_tile\":16,\"inputs_per_dword\":4,\"hi_nibble_offset\":4,"
    "\"param_dtype\":\"bf16\",\"param_position\":\"first\",\"tile_bytes\":576},"
    "\"q4g64row\":{\"bits\":4,\"group\":64,\"param_dtype\":\"bf16\",\"param_position\":\"last\"},"
    "\"q8g64r16\":{\"bits\":8,\"group\":64,\"rows_per_tile\":16,\"inputs_per_dword\":4,"
    "\"param_dtype\":\"bf16\",\"param_position\":\"first\",\"tile_bytes\":1088},"
    "\"bf16\":{\"bits\":16},\"f32\":{\"bits\":32}}";

typedef enum number_kind { NUMBER_U32, NUMBER_F32 } number_kind;
typedef struct number_field {
    const char *name;
    size_t offset;
    number_kind kind;
} number_field;

#define TARGET_U32(field)                                                                                              \
    { #field, offsetof(spl_geometry, field), NUMBER_U32 }
#define DRAFT_U32(field)                                                                                               \
    { #field, offsetof(spl_draft_geometry, field), NUMBER_U32 }

static const number_field target_fields[] = {
    TARGET_U32(n_layers),
    TARGET_U32(hidden),
    TARGET_U32(vocab),
    TARGET_U32(attention_interval),
    TARGET_U32(n_q_heads),
    TARGET_U32(n_kv_heads),
    TARGET_U32(head_dim),
    TARGET_U32(rotary_dims),
    {"rope_theta", offsetof(spl_geometry, rope_theta), NUMBER_F32},
    {"rms_eps", offsetof(spl_geometry, rms_eps), NUMBER_F32},
    TARGET_U32(gdn_key_heads),
    TARGET_U32(gdn_value_heads),
    TARGET_U32(gdn_head_dim),
    TARGET_U32(ffn_width),
    TARGET_U32(n_experts),
    TARGET_U32(experts_per_token),
    TARGET_U32(expert_width),
    TARGET_U32(shared_expert_width),
    TARGET_U32(max_positions),
    TARGET_U32(image_token),
};
static const number_field draft_fields[] = {
    DRAFT_U32(n_layers),
    DRAFT_U32(hidden),
    DRAFT_U32(ffn_width),
    DRAFT_U32(n_q_heads),
    DRAFT_U32(n_kv_heads),
    DRAFT_U32(head_dim),
    DRAFT_U32(window_tokens),
    DRAFT_U32(block_rows),
    DRAFT_U32(conv_group),
    DRAFT_U32(conv_taps),
    DRAFT_U32(selector_rank),
    DRAFT_U32(selector_top_k),
    DRAFT_U32(mask_token),
    {"rope_theta", offsetof(spl_draft_geometry, rope_theta), NUMBER_F32},
    {"rms_eps", offsetof(spl_draft_geometry, rms_eps), NUMBER_F32},
};

const char *spl_weight_file_name(spl_file_id file) {
    switch (file) {
    case SPL_FILE_TARGET: return "target.bin";
    case SPL_FILE_DRAFT: return "draft.bin";
    case SPL_FILE_VISION: return "vision.bin";
    case SPL_N_FILES: break;
    }
    return "unknown";
}

const char *spl_order_name(spl_order order) {
    switch (order) {
    case SPL_ORDER_PLAIN: return "plain";
    case SPL_ORDER_GATE_UP: return "gate_up_pairs";
    case SPL_ORDER_EXPERTS: return "experts";
    }
    return "unknown";
}

void spl_manifest_free(spl_manifest *m) {
    if (!m) return;
    free(m->tensors);
    free(m);
}

/* Fills m->tensors with the layout, offsets included. */
static spl_status place_tensors(spl_manifest *m, spl_error *err) {
    uint32_t n = spl_layout_count(m->geometry, SPL_FILE_TARGET, m->n_layers);
    if (m->has_draft) n += spl_layout_count(m->geometry, SPL_FILE_DRAFT, m->n_layers);
    m->tensors = calloc(n, sizeof *m->tensors);
    if (!m->tensors) return spl_fail(err, SPL_E_NOMEM, "no memory for a table of %u tensors", n);
    for (int file = SPL_FILE_TARGET; file <= (m->has_draft ? SPL_FILE_DRAFT : SPL_FILE_TARGET); file++) {
        uint64_t end = SPL_FILE_HEADER_BYTES;
        for (uint32_t i = 0; m->n_tensors < n; i++) {
            spl_placed_tensor *t = &m->tensors[m->n_tensors];
            if (!spl_layout_tensor(m->geometry, (spl_file_id)file, m->n_layers, i, &t->spec)) break;
            t->offset = spl_round_up(end, spl_tensor_alignment(t->spec.encoding));
            end = t->offset + t->spec.bytes;
            m->n_tensors++;
        }
    }
    return SPL_OK;
}

spl_status spl_manifest_new(spl_manifest **out, const spl_geometry *g, uint32_t n_layers, bool with_draft,
                            spl_error *err) {
    *out = NULL;
    spl_manifest *m = calloc(1, sizeof *m);
    if (!m) return spl_fail(err, SPL_E_NOMEM, "no memory for a manifest");
    m->geometry = g;
    m->n_layers = n_layers == 0 || n_layers > g->n_layers ? g->n_layers : n_layers;
    m->has_draft = with_draft;
    (void)snprintf(m->name, sizeof m->name, "%s", g->display);
    (void)snprintf(m->chat_template, sizeof m->chat_template, "%s", g->chat_template);
    spl_status st = SPL_OK;
    if (with_draft && !g->draft) {
        st = spl_fail(err, SPL_E_GEOMETRY, "geometry '%s' defines no draft model", g->id);
    } else {
        st = place_tensors(m, err);
    }
    if (st != SPL_OK) {
        spl_manifest_free(m);
        return st;
    }
    *out = m;
    return SPL_OK;
}

uint64_t spl_manifest_file_bytes(const spl_manifest *m, spl_file_id file) {
    uint64_t end = 0;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        if (m->tensors[i].spec.file == file) end = m->tensors[i].offset + m->tensors[i].spec.bytes;
    }
    return spl_round_up(end, SPL_MATRIX_ALIGNMENT);
}

const spl_manifest_file *spl_manifest_find_file(const spl_manifest *m, const char *path) {
    for (uint32_t i = 0; i < m->n_files; i++) {
        if (strcmp(m->files[i].path, path) == 0) return &m->files[i];
    }
    return NULL;
}

spl_status spl_manifest_add_file(spl_manifest *m, const char *path, uint64_t bytes, uint64_t hash_from,
                                 const char *sha256, spl_error *err) {
    if (m->n_files == SPL_MANIFEST_MAX_FILES)
        return spl_fail(err, SPL_E_LIMIT, "%s lists more than %d files", what, SPL_MANIFEST_MAX_FILES);
    spl_manifest_file *f = &m->files[m->n_files++];
    (void)snprintf(f->path, sizeof f->path, "%s", path);
    (void)snprintf(f->sha256, sizeof f->sha256, "%s", sha256);
    f->bytes = bytes;
    f->hash_from = hash_from;
    return SPL_OK;
}

spl_status spl_manifest_identity(const spl_manifest *m, char hex[SPL_SHA256_HEX_BYTES], spl_error *err) {
    spl_buf b;
    spl_buf_init(&b, (size_t)SPL_MANIFEST_MAX_BYTES * 2);
    (void)spl_buf_printf(&b, "r16-pack %d\ngeometry %s %u\n", SPL_PACKAGE_MAJOR, m->geometry->id, m->n_layers);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const spl_placed_tensor *t = &m->tensors[i];
        (void)spl_buf_printf(&b, "tensor %s %s %llu %llu %s %s %u %u %u\n", t->spec.name,
                             spl_weight_file_name(t->spec.file), (unsigned long long)t->offset,
                             (unsigned long long)t->spec.bytes, spl_encoding_name(t->spec.encoding),
                             spl_order_name(t->spec.order), t->spec.n_experts, t->spec.rows, t->spec.cols);
    }
    for (int file = 0; file < SPL_N_FILES; file++) {
        const spl_manifest_file *f = spl_manifest_find_file(m, spl_weight_file_name((spl_file_id)file));
        if (f) (void)spl_buf_printf(&b, "file %s %llu %s\n", f->path, (unsigned long long)f->bytes, f->sha256);
    }
    spl_status st = b.status == SPL_OK ? spl_sha256_hex(b.data, b.n_bytes, hex, err)
                                       : spl_fail(err, b.status, "no memory for the package identity");
    spl_buf_free(&b);
    return st;
}

void spl_manifest_header(const spl_manifest *m, spl_file_id file, uint8_t header[SPL_FILE_HEADER_BYTES]) {
    memset(header, 0, SPL_FILE_HEADER_BYTES);
    memcpy(header, SPL_PACKAGE_MAGIC, 8);
    spl_store_u32(header + 8, SPL_PACKAGE_MAJOR);
    spl_store_u32(header + 12, (uint32_t)file);
    memcpy(header + 16, m->identity, SPL_SHA256_HEX_BYTES - 1);
}

/* ---- geometry numbers ---- */

static double field_value(const void *base, const number_field *f) {
    const char *at = (const char *)base + f->offset;
    if (f->kind == NUMBER_U32) {
        uint32_t v;
        memcpy(&v, at, sizeof v);
        return v;
    }
    float v;
    memcpy(&v, at, sizeof v);
    return (double)v;
}

/* The arrays of a geometry as uint32 lists. */
typedef struct number_list {
    const char *name;
    uint32_t n, values[SPL_MAX_CAPTURE_LAYERS];
} number_list;

static void list_of_u32(number_list *l, const char *name, const uint32_t *values, uint32_t n) {
    l->name = name;
    l->n = n;
    memcpy(l->values, values, n * sizeof *values);
}

static void list_of_capture(number_list *l, const spl_draft_geometry *d) {
    l->name = "capture";
    l->n = d->n_capture;
    for (uint32_t i = 0; i < d->n_capture; i++) l->values[i] = d->capture[i];
}

static void put_fields(json_t *to, const void *base, const number_field *fields, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double v = field_value(base, &fields[i]);
        (void)json_object_set_new(to, fields[i].name,
                                  fields[i].kind == NUMBER_U32 ? json_integer((json_int_t)v) : json_real(v));
    }
}

static void put_list(json_t *to, const number_list *l) {
    json_t *array = json_array();
    for (uint32_t i = 0; i < l->n; i++) (void)json_array_append_new(array, json_integer(l->values[i]));
    (void)json_object_set_new(to, l->name, array);
}

static json_t *geometry_json(const spl_geometry *g) {
    json_t *o = json_object();
    number_list l;
    put_fields(o, g, target_fields, SPL_COUNT(target_fields));
    list_of_u32(&l, "mrope_section", g->mrope_section, 3);
    put_list(o, &l);
    list_of_u32(&l, "stop_tokens", g->stop_tokens, g->n_stop_tokens);
    put_list(o, &l);
    if (g->draft) {
        json_t *d = json_object();
        put_fields(d, g->draft, draft_fields, SPL_COUNT(draft_fields));
        list_of_capture(&l, g->draft);
        put_list(d, &l);
        (void)json_object_set_new(o, "draft", d);
    }
    return o;
}

static spl_status check_fields(const json_t *object, const void *base, const number_field *fields, size_t n,
                               const char *prefix, const char *id, spl_error *err) {
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_object_get(object, fields[i].name);
        if (!v || !json_is_number(v))
            return spl_fail(err, SPL_E_FORMAT, "%s: geometry field '%s%s' is missing or not a number", what, prefix,
                            fields[i].name);
        double stored = json_number_value(v), ours = field_value(base, &fields[i]);
        bool same =
            fields[i].kind == NUMBER_U32 ? stored == ours : stored > ours * (1 - 1e-6) && stored < ours * (1 + 1e-6);
        if (!same)
            return spl_fail(err, SPL_E_GEOMETRY,
                            "%s: geometry field '%s%s' is %.8g in the package but %.8g in '%s' of this build", what,
                            prefix, fields[i].name, stored, ours, id);
    }
    return SPL_OK;
}

static spl_status check_list(const json_t *object, const number_list *l, const char *prefix, const char *id,
                             spl_error *err) {
    const json_t *array = json_object_get(object, l->name);
    if (!json_is_array(array))
        return spl_fail(err, SPL_E_FORMAT, "%s: geometry field '%s%s' is missing or not an array", what, prefix,
                        l->name);
    if (json_array_size(array) != l->n)
        return spl_fail(err, SPL_E_GEOMETRY,
                        "%s: geometry field '%s%s' has %zu entries in the package but %u in '%s' of this build", what,
                        prefix, l->name, json_array_size(array), l->n, id);
    for (uint32_t i = 0; i < l->n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) != (json_int_t)l->values[i])
            return spl_fail(err, SPL_E_GEOMETRY,
                            "%s: geometry field '%s%s[%u]' is %.8g in the package but %u in '%s' of this build", what,
                            prefix, l->name, i, json_number_value(v), l->values[i], id);
    }
    return SPL_OK;
}

static spl_status check_geometry(const json_t *root, const spl_geometry *g, spl_error *err) {
    json_t *o, *d;
    number_list l;
    spl_status st = spl_json_object(root, "geometry", &o, what, err);
    if (st == SPL_OK) st = check_fields(o, g, target_fields, SPL_COUNT(target_fields), "", g->id, err);
    list_of_u32(&l, "mrope_section", g->mrope_section, 3);
    if (st == SPL_OK) st = check_list(o, &l, "", g->id, err);
    list_of_u32(&l, "stop_tokens", g->stop_tokens, g->n_stop_tokens);
    if (st == SPL_OK) st = check_list(o, &l, "", g->id, err);
    if (st != SPL_OK || !g->draft) return st;
    st = spl_json_object(o, "draft", &d, "manifest.json geometry", err);
    if (st == SPL_OK) st = check_fields(d, g->draft, draft_fields, SPL_COUNT(draft_fields), "draft.", g->id, err);
    list_of_capture(&l, g->draft);
    if (st == SPL_OK) st = check_list(d, &l, "draft.", g->id, err);
    return st;
}

/* ---- reading ---- */

static spl_status check_format(const json_t *root, spl_error *err) {
    json_t *format, *needs;
    const char *name, *order;
    uint64_t major;
    spl_status st = spl_json_object(root, "format", &format, what, err);
    if (st == SPL_OK) st = spl_json_string(format, "name", &name, "manifest.json format", err);
    if (st != SPL_OK) return st;
    if (strcmp(name, "r16-pack") != 0)
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s: format '%.60s' is not 'r16-pack'; pack this model first", what,
                        name);
    if ((st = spl_json_u64(format, "major", &major, "manifest.json format", err)) != SPL_OK) return st;
    if (major != SPL_PACKAGE_MAJOR)
        return spl_fail(err, SPL_E_UNSUPPORTED,
                        "%s: format version %llu is not supported (this build reads version %d); pack the model again",
                        what, (unsigned long long)major, SPL_PACKAGE_MAJOR);
    if ((st = spl_json_string(format, "byte_order", &order, "manifest.json format", err)) != SPL_OK) return st;
    if (strcmp(order, "little") != 0)
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s: byte order '%.20s' is not 'little'", what, order);
    if ((st = spl_json_array(root, "requires", &needs, what, err)) != SPL_OK) return st;
    if (json_array_size(needs) > 0) {
        const char *feature = json_string_value(json_array_get(needs, 0));
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s: required feature '%.60s' is not known to this build; update it",
                        what, feature ? feature : "(not a string)");
    }
    return SPL_OK;
}

/* Model section: geometry id, layers, name, chat template rule set. */
static spl_status read_model(spl_manifest *m, const json_t *root, spl_error *err) {
    static const char in[] = "manifest.json model";
    json_t *model;
    const char *id, *text;
    uint64_t n_layers;
    spl_status st = spl_json_object(root, "model", &model, what, err);
    if (st == SPL_OK) st = spl_json_string(model, "geometry", &id, in, err);
    if (st != SPL_OK) return st;
    m->geometry = spl_geometry_find(id);
    if (!m->geometry)
        return spl_fail(err, SPL_E_GEOMETRY,
                        "%s: geometry '%.60s' is not known to this build; update it or use another package", what, id);
    if ((st = check_geometry(root, m->geometry, err)) != SPL_OK) return st;
    if ((st = spl_json_u64(model, "n_layers", &n_layers, in, err)) != SPL_OK) return st;
    if (n_layers == 0 || n_layers > m->geometry->n_layers)
        return spl_fail(err, SPL_E_FORMAT, "%s field 'n_layers' is %llu; it must be 1..%u", in,
                        (unsigned long long)n_layers, m->geometry->n_layers);
    m->n_layers = (uint32_t)n_layers;
    if ((st = spl_json_string(model, "name", &text, in, err)) != SPL_OK) return st;
    (void)snprintf(m->name, sizeof m->name, "%s", text);
    text = json_string_value(json_object_get(model, "chat_template"));
    (void)snprintf(m->chat_template, sizeof m->chat_template, "%s", text ? text : m->geometry->chat_template);
    return SPL_OK;
}

static bool plain_file_name(const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n >= SPL_MANIFEST_PATH_BYTES || name[0] == '.') return false;
    return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static spl_status read_file_entry(spl_manifest *m, const json_t *entry, spl_error *err) {
    static const char in[] = "manifest.json files entry";
    const char *path, *sha256;
    uint64_t bytes, hash_from = 0;
    spl_status st = spl_json_string(entry, "path", &path, in, err);
    if (st == SPL_OK) st = spl_json_u64(entry, "bytes", &bytes, in, err);
    if (st == SPL_OK) st = spl_json_string(entry, "sha256", &sha256, in, err);
    if (st == SPL_OK && json_object_get(entry, "hash_from")) st = spl_json_u64(entry, "hash_from", &hash_from, in, err);
    if (st != SPL_OK) return st;
    if (!plain_file_name(path) || strcmp(path, "manifest.json") == 0)
        return spl_fail(err, SPL_E_FORMAT, "%s: file path '%.60s' is not a plain file name", what, path);
    if (strlen(sha256) != SPL_SHA256_HEX_BYTES - 1 || strspn(sha256, "0123456789abcdef") != SPL_SHA256_HEX_BYTES - 1)
        return spl_fail(err, SPL_E_FORMAT, "%s: file '%s' has a sha256 that is not 64 lower-case hex digits", what,
                        path);
    if (spl_manifest_find_file(m, path)) return spl_fail(err, SPL_E_FORMAT, "%s lists file '%s' twice", what, path);
    if (bytes == 0 || hash_from >= bytes)
        return spl_fail(err, SPL_E_FORMAT, "%s: file '%s' has %llu bytes, hashed from %llu", what, path,
                        (unsigned long long)bytes, (unsigned long long)hash_from);
    return spl_manifest_add_file(m, path, bytes, hash_from, sha256, err);
}

static spl_status read_files(spl_manifest *m, const json_t *root, spl_error *err) {
    json_t *files, *entry;
    size_t i;
    spl_status st = spl_json_array(root, "files", &files, what, err);
    if (st != SPL_OK) return st;
    json_array_foreach(files, i, entry) {
        if ((st = read_file_entry(m, entry, err)) != SPL_OK) return st;
    }
    for (int file = 0; file < SPL_N_FILES; file++) {
        const spl_manifest_file *f = spl_manifest_find_file(m, spl_weight_file_name((spl_file_id)file));
        if (f && f->hash_from != SPL_FILE_HEADER_BYTES)
            return spl_fail(err, SPL_E_FORMAT, "%s: file '%s' must be hashed from byte %d", what, f->path,
                            SPL_FILE_HEADER_BYTES);
    }
    if (!spl_manifest_find_file(m, spl_weight_file_name(SPL_FILE_TARGET)))
        return spl_fail(err, SPL_E_FORMAT, "%s lists no file 'target.bin'", what);
    m->has_draft = spl_manifest_find_file(m, spl_weight_file_name(SPL_FILE_DRAFT)) != NULL;
    if (m->has_draft && !m->geometry->draft)
        return spl_fail(err, SPL_E_GEOMETRY, "%s lists draft.bin but geometry '%s' defines no draft model", what,
                        m->geometry->id);
    return SPL_OK;
}

/* A needed encoding must be described with exactly our numbers. */
static spl_status check_encoding(const json_t *stored, const json_t *ours, const char *id, spl_error *err) {
    const json_t *theirs = json_object_get(stored, id);
    const json_t *compiled = json_object_get(ours, id);
    const char *key;
    json_t *value;
    if (!json_is_object(theirs))
        return spl_fail(err, SPL_E_FORMAT, "%s: encoding '%s' is used but not described under 'encodings'", what, id);
    json_object_foreach((json_t *)(uintptr_t)compiled, key, value) {
        if (!json_equal(json_object_get(theirs, key), value))
            return spl_fail(err, SPL_E_UNSUPPORTED, "%s: encoding '%s' differs from this build's in '%s'", what, id,
                            key);
    }
    if (json_object_size(theirs) != json_object_size(compiled))
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s: encoding '%s' has fields that this build does not know", what, id);
    return SPL_OK;
}

static spl_status check_encodings(const spl_manifest *m, const json_t *root, spl_error *err) {
    json_t *stored, *ours;
    spl_status st = spl_json_object(root, "encodings", &stored, what, err);
    if (st == SPL_OK)
        st = spl_json_parse(&ours, encodings_text, strlen(encodings_text), SPL_MANIFEST_MAX_BYTES, "encodings", err);
    if (st != SPL_OK) return st;
    bool used[SPL_N_ENCODINGS] = {false};
    for (uint32_t i = 0; i < m->n_tensors; i++) used[m->tensors[i].spec.encoding] = true;
    for (int e = 0; e < SPL_N_ENCODINGS && st == SPL_OK; e++) {
        if (used[e]) st = check_encoding(stored, ours, spl_encoding_name((spl_encoding)e), err);
    }
    json_decref(ours);
    return st;
}

static json_t *shape_json(const spl_tensor_spec *t) {
    return t->order == SPL_ORDER_EXPERTS
               ? json_pack("[I,I,I]", (json_int_t)t->n_experts, (json_int_t)t->rows, (json_int_t)t->cols)
               : json_pack("[I,I]", (json_int_t)t->rows, (json_int_t)t->cols);
}

static void shape_text(const json_t *shape, char *to, size_t n_bytes) {
    size_t n = json_array_size(shape), used = 0;
    to[0] = '\0';
    for (size_t i = 0; i < n && i < 8 && used + 24 < n_bytes; i++)
        used += (size_t)snprintf(to + used, n_bytes - used, "%s%" JSON_INTEGER_FORMAT, i ? "x" : "",
                                 json_integer_value(json_array_get(shape, i)));
}

/* One needed tensor against its manifest entry; takes the offset over. */
static spl_status check_tensor(spl_placed_tensor *t, const json_t *entry, spl_error *err) {
    static const char in[] = "manifest.json tensors entry";
    const spl_tensor_spec *s = &t->spec;
    const char *file, *encoding, *order;
    json_t *shape;
    uint64_t bytes;
    spl_status st = spl_json_string(entry, "file", &file, in, err);
    if (st == SPL_OK) st = spl_json_string(entry, "encoding", &encoding, in, err);
    if (st == SPL_OK) st = spl_json_string(entry, "order", &order, in, err);
    if (st == SPL_OK) st = spl_json_array(entry, "shape", &shape, in, err);
    if (st == SPL_OK) st = spl_json_u64(entry, "offset", &t->offset, in, err);
    if (st == SPL_OK) st = spl_json_u64(entry, "bytes", &bytes, in, err);
    if (st != SPL_OK) return st;
    if (strcmp(encoding, spl_encoding_name(s->encoding)) != 0)
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s: tensor '%s' has encoding '%.30s'; this build reads '%s'", what,
                        s->name, encoding, spl_encoding_name(s->encoding));
    if (strcmp(order, spl_order_name(s->order)) != 0)
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s: tensor '%s' has order '%.30s'; this build reads '%s'", what,
                        s->name, order, spl_order_name(s->order));
    if (strcmp(file, spl_weight_file_name(s->file)) != 0)
        return spl_fail(err, SPL_E_FORMAT, "%s: tensor '%s' must be in '%s', not in '%.60s'", what, s->name,
                        spl_weight_file_name(s->file), file);
    json_t *expected = shape_json(s);
    bool same = expected && json_equal(expected, shape);
    if (!same) {
        char have[100], want[100];
        shape_text(shape, have, sizeof have);
        shape_text(expected, want, sizeof want);
        st = spl_fail(err, SPL_E_GEOMETRY, "%s: tensor '%s' has shape %s; this build needs %s", what, s->name, have,
                      want);
    }
    json_decref(expected);
    if (st != SPL_OK) return st;
    if (bytes != s->bytes)
        return spl_fail(err, SPL_E_FORMAT, "%s: tensor '%s' has %llu bytes; its shape and encoding need %llu", what,
                        s->name, (unsigned long long)bytes, (unsigned long long)s->bytes);
    if (t->offset % spl_tensor_alignment(s->encoding) != 0)
        return spl_fail(err, SPL_E_FORMAT, "%s: tensor '%s' at offset %llu is not aligned to %llu", what, s->name,
                        (unsigned long long)t->offset, (unsigned long long)spl_tensor_alignment(s->encoding));
    return SPL_OK;
}

/* Where a listed tensor lies, for the overlap check. */
typedef struct extent {
    const spl_manifest_file *file;
    const char *name;
    uint64_t begin, end;
} extent;

static int by_place(const void *a, const void *b) {
    const extent *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Every listed tensor, known or not, lies inside its file behind the header. */
static spl_status read_extent(const spl_manifest *m, const json_t *entry, extent *out, spl_error *err) {
    static const char in[] = "manifest.json tensors entry";
    const char *path;
    uint64_t bytes;
    spl_status st = spl_json_string(entry, "name", &out->name, in, err);
    if (st == SPL_OK) st = spl_json_string(entry, "file", &path, in, err);
    if (st == SPL_OK) st = spl_json_u64(entry, "offset", &out->begin, in, err);
    if (st == SPL_OK) st = spl_json_u64(entry, "bytes", &bytes, in, err);
    if (st != SPL_OK) return st;
    out->file = spl_manifest_find_file(m, path);
    if (!out->file)
        return spl_fail(err, SPL_E_FORMAT, "%s: tensor '%.63s' is in '%.60s', which 'files' does not list", what,
                        out->name, path);
    if (bytes == 0 || out->begin < SPL_FILE_HEADER_BYTES || !spl_add_u64(out->begin, bytes, &out->end) ||
        out->end > out->file->bytes)
        return spl_fail(err, SPL_E_FORMAT,
                        "%s: tensor '%.63s' (offset %llu, %llu bytes) does not fit in '%s' of %llu bytes", what,
                        out->name, (unsigned long long)out->begin, (unsigned long long)bytes, out->file->path,
                        (unsigned long long)out->file->bytes);
    return SPL_OK;
}

static spl_status check_extents(const spl_manifest *m, const json_t *list, spl_error *err) {
    size_t n = json_array_size(list), i;
    json_t *entry;
    if (n > SPL_MANIFEST_MAX_TENSORS)
        return spl_fail(err, SPL_E_LIMIT, "%s lists %zu tensors; the limit is %d", what, n, SPL_MANIFEST_MAX_TENSORS);
    extent *e = calloc(n ? n : 1, sizeof *e);
    if (!e) return spl_fail(err, SPL_E_NOMEM, "no memory for %zu tensors", n);
    spl_status st = SPL_OK;
    json_array_foreach(list, i, entry) {
        if ((st = read_extent(m, entry, &e[i], err)) != SPL_OK) break;
    }
    if (st == SPL_OK) qsort(e, n, sizeof *e, by_place);
    for (i = 1; i < n && st == SPL_OK; i++) {
        if (e[i].file == e[i - 1].file && e[i].begin < e[i - 1].end)
            st = spl_fail(err, SPL_E_FORMAT, "%s: tensors '%.63s' and '%.63s' overlap in '%s'", what, e[i - 1].name,
                          e[i].name, e[i].file->path);
    }
    free(e);
    return st;
}

static spl_status read_tensors(spl_manifest *m, const json_t *root, spl_error *err) {
    json_t *list, *entry;
    size_t n;
    spl_status st = spl_json_array(root, "tensors", &list, what, err);
    if (st == SPL_OK) st = check_extents(m, list, err);
    if (st == SPL_OK) st = place_tensors(m, err);
    if (st != SPL_OK) return st;
    json_t *by_name = json_object();
    if (!by_name) return spl_fail(err, SPL_E_NOMEM, "no memory for the tensor names");
    json_array_foreach(list, n, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (json_object_get(by_name, name)) {
            st = spl_fail(err, SPL_E_FORMAT, "%s lists tensor '%.63s' twice", what, name);
            break;
        }
        if (json_object_set(by_name, name, entry) != 0) {
            st = spl_fail(err, SPL_E_NOMEM, "no memory for the tensor names");
            break;
        }
    }
    for (uint32_t i = 0; i < m->n_tensors && st == SPL_OK; i++) {
        entry = json_object_get(by_name, m->tensors[i].spec.name);
        st = entry ? check_tensor(&m->tensors[i], entry, err)
                   : spl_fail(err, SPL_E_FORMAT, "%s: tensor '%s' is missing", what, m->tensors[i].spec.name);
    }
    json_decref(by_name);
    return st;
}

static spl_status check_identity(spl_manifest *m, const json_t *root, spl_error *err) {
    const char *stored;
    spl_status st = spl_json_string(root, "identity", &stored, what, err);
    if (st == SPL_OK) st = spl_manifest_identity(m, m->identity, err);
    if (st == SPL_OK && strcmp(stored, m->identity) != 0)
        st = spl_fail(err, SPL_E_CORRUPT,
                      "%s: identity does not match its contents; the manifest was edited or damaged", what);
    return st;
}

spl_status spl_manifest_parse(spl_manifest **out, const char *text, size_t n_bytes, spl_error *err) {
    json_t *root = NULL;
    *out = NULL;
    spl_manifest *m = calloc(1, sizeof *m);
    if (!m) return spl_fail(err, SPL_E_NOMEM, "no memory for a manifest");
    spl_status st = spl_json_parse(&root, text, n_bytes, SPL_MANIFEST_MAX_BYTES, what, err);
    if (st == SPL_OK && !json_is_object(root)) st = spl_fail(err, SPL_E_FORMAT, "%s is not a JSON object", what);
    if (st == SPL_OK) st = check_format(root, err);
    if (st == SPL_OK) st = read_model(m, root, err);
    if (st == SPL_OK) st = read_files(m, root, err);
    if (st == SPL_OK) st = read_tensors(m, root, err);
    if (st == SPL_OK) st = check_encodings(m, root, err);
    if (st == SPL_OK) st = check_identity(m, root, err);
    json_decref(root);
    if (st != SPL_OK) {
        spl_manifest_free(m);
        return st;
    }
    *out = m;
    return SPL_OK;
}

/* ---- writing ---- */

static json_t *tensors_json(const spl_manifest *m) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const spl_placed_tensor *t = &m->tensors[i];
        (void)json_array_append_new(list, json_pack("{s:s,s:s,s:I,s:I,s:o,s:s,s:s}", "name", t->spec.name, "file",
                                                    spl_weight_file_name(t->spec.file), "offset", (json_int_t)t->offset,
                                                    "bytes", (json_int_t)t->spec.bytes, "shape", shape_json(&t->spec),
                                                    "encoding", spl_encoding_name(t->spec.encoding), "order",
                                                    spl_order_name(t->spec.order)));
    }
    return list;
}

static json_t *files_json(const spl_manifest *m) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < m->n_files; i++) {
        const spl_manifest_file *f = &m->files[i];
        json_t *entry = json_pack("{s:s,s:I,s:s}", "path", f->path, "bytes", (json_int_t)f->bytes, "sha256", f->sha256);
        if (f->hash_from) (void)json_object_set_new(entry, "hash_from", json_integer((json_int_t)f->hash_from));
        (void)json_array_append_new(list, entry);
    }
    return list;
}

spl_status spl_manifest_text(const spl_manifest *m, const json_t *provenance, char **text, size_t *n_bytes,
                             spl_error *err) {
    *text = NULL;
    json_t *root = json_pack("{s:{s:s,s:i,s:i,s:s},s:[],s:{s:s,s:s,s:i,s:s}}", "format", "name", "r16-pack", "major",
                             SPL_PACKAGE_MAJOR, "minor", SPL_PACKAGE_MINOR, "byte_order", "little", "requires", "model",
                             "name", m->name, "geometry", m->geometry->id, "n_layers", (int)m->n_layers,
                             "chat_template", m->chat_template);
    if (!root) return spl_fail(err, SPL_E_NOMEM, "no memory for %s, or the model name is not UTF-8", what);
    (void)json_object_set_new(root, "identity", json_string(m->identity));
    (void)json_object_set_new(root, "geometry", geometry_json(m->geometry));
    (void)json_object_set_new(root, "encodings", json_loads(encodings_text, 0, NULL));
    (void)json_object_update(root, (json_t *)(uintptr_t)provenance);
    (void)json_object_set_new(root, "files", files_json(m));
    (void)json_object_set_new(root, "tensors", tensors_json(m));
    /* Seven digits reproduce every constant of the geometry tables. */
    *text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(7));
    json_decref(root);
    if (!*text) return spl_fail(err, SPL_E_NOMEM, "no memory for %s", what);
    *n_bytes = strlen(*text);
    return SPL_OK;
}
