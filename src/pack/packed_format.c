/* SPDX-License-Identifier: Apache-2.0
 * Checks of a splash-packed-q4 manifest, in the order in which a person would want to hear them. */
#include "pack/packed_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

static const char what[] = "splash-packed manifest.json";

void spl_packed_free(spl_packed_manifest *m) {
    free(m->artifacts);
    json_decref(m->root);
    memset(m, 0, sizeof *m);
}

static spl_status need_u64(const json_t *o, const char *key, uint64_t want, const char *in, spl_error *err) {
    uint64_t v;
    spl_status st = spl_json_u64(o, key, &v, in, err);
    if (st == SPL_OK && v != want)
        st = spl_fail(err, SPL_E_GEOMETRY, "%s: %s is %llu in the package but must be %llu", in, key,
                      (unsigned long long)v, (unsigned long long)want);
    return st;
}

static spl_status need_text(const json_t *o, const char *key, const char *want, const char *in, spl_error *err) {
    const char *v;
    spl_status st = spl_json_string(o, key, &v, in, err);
    if (st == SPL_OK && strcmp(v, want) != 0)
        st = spl_fail(err, SPL_E_UNSUPPORTED, "%s: %s is '%.40s' but must be '%s'", in, key, v, want);
    return st;
}

static spl_status check_format(spl_packed_manifest *m, spl_error *err) {
    static const char in[] = "splash-packed manifest.json format";
    json_t *format;
    const char *name;
    uint64_t schema;
    spl_status st = spl_json_object(m->root, "format", &format, what, err);
    if (st == SPL_OK) st = spl_json_string(format, "name", &name, in, err);
    if (st != SPL_OK) return st;
    if (strcmp(name, "r16-pack") == 0)
        return spl_fail(err, SPL_E_INVALID, "the source is already a package of this engine; there is nothing to pack");
    m->moe = strcmp(name, "splash-packed-q4-moe") == 0;
    if (!m->moe && strcmp(name, "splash-packed-q4") != 0)
        return spl_fail(err, SPL_E_UNSUPPORTED,
                        "%s: format '%.40s' is neither 'splash-packed-q4' nor 'splash-packed-q4-moe'", what, name);
    if ((st = spl_json_u64(m->root, "schema_version", &schema, what, err)) != SPL_OK) return st;
    if (schema != (m->moe ? 4u : 3u))
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s: schema_version %llu is not supported; '%s' has %d", what,
                        (unsigned long long)schema, name, m->moe ? 4 : 3);
    st = need_u64(format, "section_alignment_bytes", SPL_PACKED_ALIGNMENT, in, err);
    if (st == SPL_OK) st = need_text(format, "target_layer_magic", m->moe ? "MDFM0001" : "MDFL0006", in, err);
    if (st == SPL_OK) st = need_text(format, "draft_layer_magic", "MDFD0004", in, err);
    if (st == SPL_OK) st = need_text(format, "vision_magic", "MDFV0001", in, err);
    if (st == SPL_OK) st = need_u64(format, "q4_bits", 4, in, err);
    if (st == SPL_OK && m->moe) st = need_u64(format, "q8_bits", 8, in, err);
    if (st == SPL_OK) st = need_u64(format, m->moe ? "quant_group_size" : "q4_group_size", SPL_GROUP, in, err);
    if (st == SPL_OK) st = need_u64(format, m->moe ? "storage_n" : "q4_storage_n", 256, in, err);
    return st;
}

/* Plain relative path: no empty, "." or ".." part, no backslash, glob or control character. */
static bool plain_path(const char *path) {
    size_t n = strlen(path), start = 0;
    if (n == 0 || n >= SPL_PACKED_PATH_BYTES) return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)path[i];
        if (c < 0x20 || c == 0x7f || strchr("\\*?[]", c)) return false;
    }
    for (size_t i = 0; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        size_t part = i - start;
        if (part == 0 || (part == 1 && path[start] == '.') ||
            (part == 2 && path[start] == '.' && path[start + 1] == '.'))
            return false;
        start = i + 1;
    }
    return strcmp(path, "manifest.json") != 0;
}

static bool copy_digest(const char *text, char to[SPL_SHA256_HEX_BYTES]) {
    if (strlen(text) != 64 || strspn(text, "0123456789abcdefABCDEF") != 64) return false;
    for (int i = 0; i < 64; i++) to[i] = (char)(text[i] >= 'A' && text[i] <= 'F' ? text[i] + 32 : text[i]);
    to[64] = '\0';
    return true;
}

static spl_status read_artifact(spl_packed_artifact *a, const json_t *entry, spl_error *err) {
    static const char in[] = "splash-packed manifest.json artifact";
    const char *path, *sha256;
    spl_status st = spl_json_string(entry, "path", &path, in, err);
    if (st == SPL_OK) st = spl_json_u64(entry, "size", &a->n_bytes, in, err);
    if (st == SPL_OK) st = spl_json_string(entry, "sha256", &sha256, in, err);
    if (st != SPL_OK) return st;
    if (json_object_size(entry) != 3)
        return spl_fail(err, SPL_E_FORMAT, "%s '%.80s' must have exactly path, size and sha256", in, path);
    if (!plain_path(path)) return spl_fail(err, SPL_E_FORMAT, "%s path '%.80s' is not a plain relative path", in, path);
    (void)snprintf(a->path, sizeof a->path, "%s", path);
    if (a->n_bytes == 0) return spl_fail(err, SPL_E_FORMAT, "%s '%.80s' has size 0", in, path);
    if (!copy_digest(sha256, a->sha256))
        return spl_fail(err, SPL_E_FORMAT, "%s '%.80s' has a sha256 that is not 64 hex digits", in, path);
    size_t n = strlen(path);
    if (n > 4 && strcmp(path + n - 4, ".bin") == 0 && a->n_bytes % SPL_PACKED_ALIGNMENT != 0)
        return spl_fail(err, SPL_E_FORMAT, "%s '%.80s' has size %llu, not a multiple of %d", in, path,
                        (unsigned long long)a->n_bytes, SPL_PACKED_ALIGNMENT);
    return SPL_OK;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const spl_packed_artifact *)a)->path, ((const spl_packed_artifact *)b)->path);
}

static spl_status read_artifacts(spl_packed_manifest *m, spl_error *err) {
    json_t *list, *entry;
    size_t i;
    spl_status st = spl_json_array(m->root, "artifacts", &list, what, err);
    if (st != SPL_OK) return st;
    size_t n = json_array_size(list);
    if (n == 0 || n > SPL_PACKED_MAX_ARTIFACTS)
        return spl_fail(err, SPL_E_LIMIT, "%s lists %zu artifacts; 1 to %d are allowed", what, n,
                        SPL_PACKED_MAX_ARTIFACTS);
    if (!(m->artifacts = calloc(n, sizeof *m->artifacts)))
        return spl_fail(err, SPL_E_NOMEM, "no memory for %zu artifacts", n);
    json_array_foreach(list, i, entry) {
        if ((st = read_artifact(&m->artifacts[i], entry, err)) != SPL_OK) return st;
    }
    m->n_artifacts = (uint32_t)n;
    qsort(m->artifacts, n, sizeof *m->artifacts, by_path);
    for (i = 1; i < n; i++) {
        const char *a = m->artifacts[i - 1].path;
        if (strcmp(a, m->artifacts[i].path) == 0)
            return spl_fail(err, SPL_E_FORMAT, "%s lists artifact '%.80s' twice", what, a);
    }
    /* A path that is also the folder of another: look each folder of each path up. */
    for (i = 0; i < n; i++) {
        char folder[SPL_PACKED_PATH_BYTES];
        memcpy(folder, m->artifacts[i].path, sizeof folder);
        for (char *slash; (slash = strrchr(folder, '/')) != NULL;) {
            *slash = '\0';
            if (spl_packed_find(m, folder))
                return spl_fail(err, SPL_E_FORMAT, "%s: artifact '%.80s' is also the folder of another", what, folder);
        }
    }
    return SPL_OK;
}

const spl_packed_artifact *spl_packed_find(const spl_packed_manifest *m, const char *path) {
    spl_packed_artifact key;
    if (strlen(path) >= sizeof key.path) return NULL;
    memcpy(key.path, path, strlen(path) + 1);
    return bsearch(&key, m->artifacts, m->n_artifacts, sizeof key, by_path);
}

spl_status spl_packed_parse(spl_packed_manifest *out, const char *text, size_t n_bytes, spl_error *err) {
    spl_packed_manifest m = {0};
    const char *model;
    spl_status st = spl_json_parse(&m.root, text, n_bytes, SPL_PACKED_MANIFEST_MAX_BYTES, what, err);
    if (st == SPL_OK && !json_is_object(m.root)) st = spl_fail(err, SPL_E_FORMAT, "%s is not a JSON object", what);
    if (st == SPL_OK) st = check_format(&m, err);
    if (st == SPL_OK) st = spl_json_string(m.root, "model", &model, what, err);
    if (st == SPL_OK && *model == '\0') st = spl_fail(err, SPL_E_FORMAT, "%s: model is empty", what);
    if (st == SPL_OK) {
        (void)snprintf(m.model, sizeof m.model, "%s", model);
        st = read_artifacts(&m, err);
    }
    if (st != SPL_OK) {
        spl_packed_free(&m);
        memset(out, 0, sizeof *out);
        return st;
    }
    *out = m;
    return SPL_OK;
}

static spl_status check_execution(const spl_packed_manifest *m, const spl_geometry *g, spl_error *err) {
    static const char in[] = "splash-packed manifest.json execution_geometry";
    static const char *const noted[] = {"allocation_extent_target_bytes", "maximum_batch_width",
                                        "prefill_token_budget"};
    json_t *o;
    uint64_t v;
    spl_status st = spl_json_object(m->root, "execution_geometry", &o, what, err);
    for (size_t i = 0; i < SPL_COUNT(noted) && st == SPL_OK; i++) {
        st = spl_json_u64(o, noted[i], &v, in, err);
        if (st == SPL_OK && v == 0) st = spl_fail(err, SPL_E_FORMAT, "%s: %s must be positive", in, noted[i]);
    }
    if (st == SPL_OK) st = need_u64(o, "draft_proposal_tokens", SPL_BLOCK_ROWS - 1, in, err);
    if (st == SPL_OK) st = need_u64(o, "draft_query_rows", SPL_BLOCK_ROWS, in, err);
    if (st == SPL_OK) st = need_u64(o, "draft_sliding_window", g->draft ? g->draft->window_tokens : 2048, in, err);
    if (st == SPL_OK) st = need_u64(o, "target_kv_block_tokens", SPL_PAGE_TOKENS, in, err);
    if (st == SPL_OK) st = need_u64(o, "target_verify_rows", SPL_BLOCK_ROWS, in, err);
    return st;
}

static spl_status check_layer_types(const json_t *o, const spl_geometry *g, const char *in, spl_error *err) {
    json_t *types;
    spl_status st = spl_json_array(o, "layer_types", &types, in, err);
    if (st == SPL_OK && json_array_size(types) != g->n_layers)
        st = spl_fail(err, SPL_E_GEOMETRY, "%s: layer_types has %zu entries but '%s' has %u layers", in,
                      json_array_size(types), g->id, g->n_layers);
    for (uint32_t i = 0; st == SPL_OK && i < g->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || strcmp(type, spl_layer_is_attention(g, i) ? "attention" : "gdn") != 0)
            st = spl_fail(err, SPL_E_GEOMETRY, "%s: layer_types[%u] is '%.20s'", in, i, type ? type : "not a string");
    }
    return st;
}

static spl_status check_target(const spl_packed_manifest *m, const spl_geometry *g, spl_error *err) {
    static const char in[] = "splash-packed manifest.json target";
    json_t *o;
    spl_status st = spl_json_object(m->root, "target", &o, what, err);
    if (st == SPL_OK) st = need_text(o, "architecture", "qwen3_5_moe", in, err);
    if (st == SPL_OK) st = need_u64(o, "layers", g->n_layers, in, err);
    if (st == SPL_OK) st = need_u64(o, "hidden_size", g->hidden, in, err);
    if (st == SPL_OK) st = need_u64(o, "vocabulary_size", g->vocab, in, err);
    if (st == SPL_OK) st = need_u64(o, "gdn_actual_width", spl_gdn_in_width(g), in, err);
    if (st == SPL_OK) st = need_u64(o, "gdn_packed_width", spl_round_up(spl_gdn_in_width(g), 256), in, err);
    if (st == SPL_OK) st = need_u64(o, "attention_packed_width", spl_attention_in_width(g), in, err);
    if (st == SPL_OK) st = need_u64(o, "experts", g->n_experts, in, err);
    if (st == SPL_OK) st = need_u64(o, "experts_per_token", g->experts_per_token, in, err);
    if (st == SPL_OK) st = need_u64(o, "moe_intermediate_size", g->expert_width, in, err);
    if (st == SPL_OK) st = need_u64(o, "shared_expert_intermediate_size", g->shared_expert_width, in, err);
    return st == SPL_OK ? check_layer_types(o, g, in, err) : st;
}

static spl_status check_draft(const spl_packed_manifest *m, const spl_geometry *g, spl_error *err) {
    static const char in[] = "splash-packed manifest.json draft";
    const spl_draft_geometry *d = g->draft;
    json_t *o, *capture;
    spl_status st = spl_json_object(m->root, "draft", &o, what, err);
    if (st == SPL_OK) st = need_text(o, "architecture", "DFlash2DraftModel", in, err);
    if (st == SPL_OK) st = need_u64(o, "layers", d->n_layers, in, err);
    if (st == SPL_OK) st = need_u64(o, "hidden_size", d->hidden, in, err);
    if (st == SPL_OK) st = need_u64(o, "intermediate_size", d->ffn_width, in, err);
    if (st == SPL_OK) st = need_u64(o, "sliding_window", d->window_tokens, in, err);
    if (st == SPL_OK) st = need_u64(o, "block_size", d->block_rows, in, err);
    if (st == SPL_OK) st = need_u64(o, "dynamic_conv_group_size", d->conv_group, in, err);
    if (st == SPL_OK) st = need_u64(o, "dynamic_conv_kernel_size", d->conv_taps, in, err);
    if (st == SPL_OK) st = need_u64(o, "selector_rank", d->selector_rank, in, err);
    if (st == SPL_OK) st = need_u64(o, "selector_top_k", d->selector_top_k, in, err);
    if (st == SPL_OK) st = spl_json_array(o, "target_capture_layers", &capture, in, err);
    if (st == SPL_OK && json_array_size(capture) != d->n_capture)
        st = spl_fail(err, SPL_E_GEOMETRY, "%s: target_capture_layers has %zu entries but must have %u", in,
                      json_array_size(capture), d->n_capture);
    for (uint32_t i = 0; st == SPL_OK && i < d->n_capture; i++) {
        if (json_integer_value(json_array_get(capture, i)) != d->capture[i])
            st = spl_fail(err, SPL_E_GEOMETRY, "%s: target_capture_layers[%u] must be %u", in, i, d->capture[i]);
    }
    return st;
}

spl_status spl_packed_check_geometry(const spl_packed_manifest *m, const spl_geometry *g, spl_error *err) {
    if (m->moe != (g->n_experts > 0))
        return spl_fail(err, SPL_E_GEOMETRY, "%s: the format is for %s models but '%s' is not one", what,
                        m->moe ? "mixture-of-experts" : "dense", g->id);
    spl_status st = check_execution(m, g, err);
    if (st == SPL_OK && m->moe) st = check_target(m, g, err);
    if (st == SPL_OK && m->moe && g->draft) st = check_draft(m, g, err);
    return st;
}

spl_status spl_packed_check_start(const uint8_t start[16], const char *magic, uint32_t layer, uint32_t type,
                                  const char *path, spl_error *err) {
    if (memcmp(start, magic, 8) != 0)
        return spl_fail(err, SPL_E_FORMAT, "'%s' does not begin with the magic %s", path, magic);
    if (spl_load_u32(start + 8) != layer)
        return spl_fail(err, SPL_E_FORMAT, "'%s' has layer field %u but must have %u", path, spl_load_u32(start + 8),
                        layer);
    if (spl_load_u32(start + 12) != type)
        return spl_fail(err, SPL_E_FORMAT, "'%s' has type field %u but must have %u", path, spl_load_u32(start + 12),
                        type);
    return SPL_OK;
}
