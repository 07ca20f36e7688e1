/* SPDX-License-Identifier: Apache-2.0
 * Plans from splash-packed-q4 folders. Sections have no headers: their order and sizes follow from
 * the geometry, so a file is walked section by section and must end exactly after the last. Rows of
 * every quantised section are padded to 256. Format: docs/FORMATS.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/file_map.h"
#include "pack/checkpoint_config.h"
#include "pack/packed_format.h"
#include "pack/source.h"

enum { HASH_CHUNK_BYTES = 1 << 20 };

/* One weight file being walked. */
typedef struct walk {
    const spl_pack_file *file;
    const char *path; /* relative */
    uint64_t at;      /* end of the last section */
} walk;

typedef struct packed {
    spl_pack_source *source;
    spl_packed_manifest manifest;
    const spl_geometry *geometry;
    spl_pack_hash_report report;
    void *user;
    uint64_t done_bytes, total_bytes;
} packed;

static spl_status hash_file(packed *k, const spl_pack_file *f, const spl_packed_artifact *a, spl_error *err) {
    spl_sha256 *h = NULL;
    char hex[SPL_SHA256_HEX_BYTES];
    uint8_t *chunk = malloc(HASH_CHUNK_BYTES);
    spl_status st = chunk ? spl_sha256_new(&h, err) : spl_fail(err, SPL_E_NOMEM, "no memory to hash '%s'", a->path);
    for (uint64_t at = 0; st == SPL_OK && at < f->n_bytes; at += HASH_CHUNK_BYTES) {
        size_t n = f->n_bytes - at < HASH_CHUNK_BYTES ? (size_t)(f->n_bytes - at) : HASH_CHUNK_BYTES;
        st = spl_pack_read(f, at, chunk, n, err);
        if (st == SPL_OK) spl_sha256_update(h, chunk, n);
        k->done_bytes += n;
        if (st == SPL_OK && k->report) st = k->report(k->user, k->done_bytes, k->total_bytes, err);
    }
    free(chunk);
    if (st != SPL_OK) {
        spl_sha256_free(h);
        return st;
    }
    st = spl_sha256_finish(h, hex, err);
    if (st == SPL_OK && strcmp(hex, a->sha256) != 0)
        st = spl_fail(err, SPL_E_CORRUPT, "'%s' has SHA-256 %s but its manifest says %s", a->path, hex, a->sha256);
    return st;
}

/* Opens an artifact, checks size and digest. */
static spl_status open_artifact(packed *k, const char *path, const spl_pack_file **out, spl_error *err) {
    const spl_packed_artifact *a = spl_packed_find(&k->manifest, path);
    if (!a) return spl_fail(err, SPL_E_NOTFOUND, "splash-packed manifest.json does not list '%s'", path);
    char *full = spl_path_join(k->source->folder, path);
    spl_status st = full ? spl_pack_source_open_file(k->source, full, out, err)
                         : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    free(full);
    if (st == SPL_OK && (*out)->n_bytes != a->n_bytes)
        st = spl_fail(err, SPL_E_CORRUPT, "'%s' has %llu bytes but its manifest says %llu", path,
                      (unsigned long long)(*out)->n_bytes, (unsigned long long)a->n_bytes);
    return st == SPL_OK ? hash_file(k, *out, a, err) : st;
}

static spl_status begin(packed *k, walk *w, const char *path, const char *magic, uint32_t layer, uint32_t type,
                        spl_error *err) {
    uint8_t start[16];
    w->path = path;
    w->at = SPL_PACKED_ALIGNMENT;
    spl_status st = open_artifact(k, path, &w->file, err);
    if (st == SPL_OK) st = spl_pack_read(w->file, 0, start, sizeof start, err);
    return st == SPL_OK ? spl_packed_check_start(start, magic, layer, type, path, err) : st;
}

static spl_status section(walk *w, const char *name, uint64_t n_bytes, uint64_t *offset, spl_error *err) {
    *offset = spl_round_up(w->at, SPL_PACKED_ALIGNMENT);
    if (n_bytes > w->file->n_bytes || *offset > w->file->n_bytes - n_bytes)
        return spl_fail(err, SPL_E_FORMAT, "'%s': section '%s' (%llu bytes at %llu) runs past the end of the file",
                        w->path, name, (unsigned long long)n_bytes, (unsigned long long)*offset);
    w->at = *offset + n_bytes;
    return SPL_OK;
}

static spl_status end(const walk *w, spl_error *err) {
    if (spl_round_up(w->at, SPL_PACKED_ALIGNMENT) == w->file->n_bytes) return SPL_OK;
    return spl_fail(err, SPL_E_FORMAT, "'%s' has %llu bytes but its sections need %llu", w->path,
                    (unsigned long long)w->file->n_bytes,
                    (unsigned long long)spl_round_up(w->at, SPL_PACKED_ALIGNMENT));
}

static spl_pack_tensor *plan_of(const packed *k, spl_tensor_role role, uint32_t layer) {
    const spl_manifest *m = k->source->manifest;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        if (m->tensors[i].spec.role == role && m->tensors[i].spec.layer == layer) return &k->source->tensors[i];
    }
    return NULL;
}

/* Where sections go: plans of the package, or nowhere for layers that are left out. */
typedef struct target {
    packed *k;
    walk w;
    uint32_t layer;
} target;

static spl_status small(target *t, spl_tensor_role role, const char *name, uint64_t rows, uint32_t cols, part_kind kind,
                        spl_error *err) {
    uint64_t offset;
    spl_status st = section(&t->w, name, rows * cols * (kind == PART_F32 ? 4 : 2), &offset, err);
    spl_pack_tensor *plan = st == SPL_OK ? plan_of(t->k, role, t->layer) : NULL;
    if (!plan) return st;
    plan->parts[0] = (spl_pack_part){.kind = kind, .file = {t->w.file}, .offset = {offset}, .rows = rows, .cols = cols};
    (void)snprintf(plan->parts[0].name, sizeof plan->parts[0].name, "%s: %s", t->w.path, name);
    plan->n_parts = 1;
    return SPL_OK;
}

/* One section of `slabs` matrices rows x cols, each in three planes of 256-row tiles. */
static spl_status matrix(target *t, spl_tensor_role role, const char *name, uint64_t slabs, uint64_t rows,
                         uint32_t cols, unsigned bits, spl_error *err) {
    uint64_t offset, padded = spl_round_up(rows, 256);
    uint64_t codes = padded * cols * bits / 8, scales = padded * (cols / SPL_GROUP) * 2, slab = codes + 2 * scales;
    spl_status st = section(&t->w, name, slabs * slab, &offset, err);
    spl_pack_tensor *plan = st == SPL_OK ? plan_of(t->k, role, t->layer) : NULL;
    if (!plan) return st;
    if (plan->n_parts == PACK_MAX_PARTS) return spl_fail(err, SPL_E_INTERNAL, "too many parts for '%s'", name);
    spl_pack_part *p = &plan->parts[plan->n_parts++];
    *p = (spl_pack_part){.kind = bits == 4 ? PART_TILES_Q4 : PART_TILES_Q8,
                         .file = {t->w.file, t->w.file, t->w.file},
                         .offset = {offset, offset + codes, offset + codes + scales},
                         .rows = slabs * rows,
                         .cols = cols,
                         .slab_rows = rows,
                         .slab_bytes = slab};
    (void)snprintf(p->name, sizeof p->name, "%s: %s", t->w.path, name);
    return SPL_OK;
}

static spl_status q4(target *t, spl_tensor_role role, const char *name, uint64_t rows, uint32_t cols, spl_error *err) {
    return matrix(t, role, name, 1, rows, cols, 4, err);
}

static spl_status norm(target *t, spl_tensor_role role, const char *name, uint32_t n, spl_error *err) {
    return small(t, role, name, 1, n, PART_BF16, err);
}

static spl_status plan_mixer(target *t, const spl_geometry *g, spl_error *err) {
    spl_status st = SPL_OK;
    if (spl_layer_is_attention(g, t->layer)) {
        st = q4(t, SPL_T_ATTN_IN, "attention input", spl_attention_in_width(g), g->hidden, err);
        if (st == SPL_OK) st = norm(t, SPL_T_Q_NORM, "query norm", g->head_dim, err);
        if (st == SPL_OK) st = norm(t, SPL_T_K_NORM, "key norm", g->head_dim, err);
        if (st == SPL_OK) st = q4(t, SPL_T_ATTN_OUT, "attention output", g->hidden, spl_q_width(g), err);
        return st;
    }
    st = q4(t, SPL_T_GDN_IN, "gdn input", spl_gdn_in_width(g), g->hidden, err);
    if (st == SPL_OK) st = small(t, SPL_T_GDN_CONV, "conv", spl_gdn_channels(g), SPL_CONV_TAPS, PART_BF16, err);
    if (st == SPL_OK) st = small(t, SPL_T_GDN_DECAY, "decay", 1, g->gdn_value_heads, PART_F32, err);
    if (st == SPL_OK) st = norm(t, SPL_T_GDN_DT_BIAS, "time-step bias", g->gdn_value_heads, err);
    if (st == SPL_OK) st = norm(t, SPL_T_GDN_NORM, "gated norm", g->gdn_head_dim, err);
    if (st == SPL_OK) st = q4(t, SPL_T_GDN_OUT, "gdn output", g->hidden, spl_gdn_value_width(g), err);
    return st;
}

static spl_status plan_ffn(target *t, const spl_geometry *g, spl_error *err) {
    spl_status st = SPL_OK;
    if (g->n_experts == 0) {
        st = q4(t, SPL_T_GATE_UP, "mlp gate", g->ffn_width, g->hidden, err);
        if (st == SPL_OK) st = q4(t, SPL_T_GATE_UP, "mlp up", g->ffn_width, g->hidden, err);
        if (st == SPL_OK) st = q4(t, SPL_T_DOWN, "mlp down", g->hidden, g->ffn_width, err);
        return st;
    }
    st = matrix(t, SPL_T_ROUTER, "router", 1, g->n_experts, g->hidden, 8, err);
    if (st == SPL_OK)
        st = matrix(t, SPL_T_EXPERT_GATE_UP, "expert gate", g->n_experts, g->expert_width, g->hidden, 4, err);
    if (st == SPL_OK)
        st = matrix(t, SPL_T_EXPERT_GATE_UP, "expert up", g->n_experts, g->expert_width, g->hidden, 4, err);
    if (st == SPL_OK)
        st = matrix(t, SPL_T_EXPERT_DOWN, "expert down", g->n_experts, g->hidden, g->expert_width, 4, err);
    if (st == SPL_OK) st = q4(t, SPL_T_SHARED_GATE_UP, "shared gate", g->shared_expert_width, g->hidden, err);
    if (st == SPL_OK) st = q4(t, SPL_T_SHARED_GATE_UP, "shared up", g->shared_expert_width, g->hidden, err);
    if (st == SPL_OK) st = q4(t, SPL_T_SHARED_DOWN, "shared down", g->hidden, g->shared_expert_width, err);
    if (st == SPL_OK) st = matrix(t, SPL_T_SHARED_GATE, "shared scalar gate", 1, 1, g->hidden, 8, err);
    return st;
}

static spl_status plan_layer(packed *k, uint32_t layer, spl_error *err) {
    const spl_geometry *g = k->geometry;
    target t = {.k = k, .layer = layer};
    char path[40];
    (void)snprintf(path, sizeof path, "target/layer-%u.bin", layer);
    spl_status st =
        begin(k, &t.w, path, g->n_experts ? "MDFM0001" : "MDFL0006", layer, spl_layer_is_attention(g, layer), err);
    if (st == SPL_OK) st = norm(&t, SPL_T_INPUT_NORM, "input norm", g->hidden, err);
    if (st == SPL_OK) st = plan_mixer(&t, g, err);
    if (st == SPL_OK) st = norm(&t, SPL_T_POST_NORM, "post-attention norm", g->hidden, err);
    if (st == SPL_OK) st = plan_ffn(&t, g, err);
    return st == SPL_OK ? end(&t.w, err) : st;
}

static spl_status plan_head(packed *k, spl_error *err) {
    const spl_geometry *g = k->geometry;
    target t = {.k = k, .layer = SPL_NO_LAYER};
    spl_status st = begin(k, &t.w, "target/head.bin", g->n_experts ? "MDFM0002" : "MDFL0002", g->n_layers, 2, err);
    if (st == SPL_OK) st = norm(&t, SPL_T_FINAL_NORM, "final norm", g->hidden, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_HEAD, "lm_head", g->vocab, g->hidden, err);
    return st == SPL_OK ? end(&t.w, err) : st;
}

static spl_status plan_embedding(packed *k, spl_error *err) {
    const spl_geometry *g = k->geometry;
    uint64_t rows = g->vocab, offsets[3];
    walk w;
    spl_status st = begin(k, &w, "target/embedding.bin", "MDFE0001", g->vocab, g->hidden, err);
    if (st == SPL_OK) st = section(&w, "codes", rows * g->hidden / 2, &offsets[0], err);
    if (st == SPL_OK) st = section(&w, "scales", rows * (g->hidden / SPL_GROUP) * 2, &offsets[1], err);
    if (st == SPL_OK) st = section(&w, "biases", rows * (g->hidden / SPL_GROUP) * 2, &offsets[2], err);
    if (st == SPL_OK) st = end(&w, err);
    if (st != SPL_OK) return st;
    spl_pack_tensor *plan = plan_of(k, SPL_T_EMBED, SPL_NO_LAYER);
    plan->n_parts = 1;
    plan->parts[0] = (spl_pack_part){.kind = PART_ROWS_Q4,
                                     .file = {w.file, w.file, w.file},
                                     .rows = rows,
                                     .cols = g->hidden,
                                     .offset = {offsets[0], offsets[1], offsets[2]},
                                     .name = "target/embedding.bin"};
    return SPL_OK;
}

static spl_status plan_draft_layer(packed *k, uint32_t layer, spl_error *err) {
    const spl_draft_geometry *d = k->geometry->draft;
    uint32_t conv_rows = 2 * d->conv_taps * (d->hidden / d->conv_group), q_width = d->n_q_heads * d->head_dim;
    target t = {.k = k, .layer = layer};
    char path[40];
    (void)snprintf(path, sizeof path, "draft/layer-%u.bin", layer);
    spl_status st = begin(k, &t.w, path, "MDFD0004", layer, 0, err);
    if (st == SPL_OK) st = norm(&t, SPL_T_DRAFT_INPUT_NORM, "input norm", d->hidden, err);
    if (st == SPL_OK)
        st = small(&t, SPL_T_DRAFT_ATTN_CONV_BASE, "attention conv base", 2 * d->conv_taps, d->hidden, PART_BF16, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_DRAFT_ATTN_CONV_PROJ, "attention conv projection", conv_rows, d->hidden, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_DRAFT_QKV, "qkv", q_width + 2 * d->n_kv_heads * d->head_dim, d->hidden, err);
    if (st == SPL_OK) st = norm(&t, SPL_T_DRAFT_Q_NORM, "query norm", d->head_dim, err);
    if (st == SPL_OK) st = norm(&t, SPL_T_DRAFT_K_NORM, "key norm", d->head_dim, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_DRAFT_ATTN_OUT, "attention output", d->hidden, q_width, err);
    if (st == SPL_OK) st = norm(&t, SPL_T_DRAFT_POST_NORM, "post-attention norm", d->hidden, err);
    if (st == SPL_OK)
        st = small(&t, SPL_T_DRAFT_FFN_CONV_BASE, "mlp conv base", 2 * d->conv_taps, d->hidden, PART_BF16, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_DRAFT_FFN_CONV_PROJ, "mlp conv projection", conv_rows, d->hidden, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_DRAFT_GATE_UP, "mlp gate", d->ffn_width, d->hidden, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_DRAFT_GATE_UP, "mlp up", d->ffn_width, d->hidden, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_DRAFT_DOWN, "mlp down", d->hidden, d->ffn_width, err);
    return st == SPL_OK ? end(&t.w, err) : st;
}

static spl_status plan_draft_model(packed *k, spl_error *err) {
    const spl_geometry *g = k->geometry;
    const spl_draft_geometry *d = g->draft;
    target t = {.k = k, .layer = SPL_NO_LAYER};
    spl_status st = begin(k, &t.w, "draft/model.bin", "MDFD0004", d->n_layers, 1, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_DRAFT_CONTEXT, "context projection", d->hidden, d->n_capture * g->hidden, err);
    if (st == SPL_OK) st = norm(&t, SPL_T_DRAFT_HIDDEN_NORM, "hidden norm", d->hidden, err);
    if (st == SPL_OK) st = norm(&t, SPL_T_DRAFT_FINAL_NORM, "final norm", d->hidden, err);
    if (st == SPL_OK) st = q4(&t, SPL_T_DRAFT_SELECTOR, "selector", d->selector_rank, d->hidden, err);
    if (st == SPL_OK)
        st = small(&t, SPL_T_DRAFT_PREDECESSOR, "predecessor codebook", g->vocab, d->selector_rank, PART_BF16, err);
    if (st == SPL_OK)
        st = small(&t, SPL_T_DRAFT_SUCCESSOR, "successor codebook", g->vocab, d->selector_rank, PART_BF16, err);
    return st == SPL_OK ? end(&t.w, err) : st;
}

/* ---- the whole folder ---- */

static spl_status read_text(const spl_pack_source *s, const char *name, size_t max_bytes, char **text, size_t *n,
                            spl_error *err) {
    char *path = spl_path_join(s->folder, name);
    spl_status st =
        path ? spl_read_file(path, max_bytes, text, n, err) : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    free(path);
    return st;
}

/* The list must name every file that the format has for this geometry. */
static spl_status check_complete(const packed *k, spl_error *err) {
    static const char *const fixed[] = {
        "target/head.bin",       "target/embedding.bin",     "tokenizer/chat_template.jinja",
        "tokenizer/config.json", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json",
        "tokenizer/vocab.json",  "draft/model.bin",          "vision/model.bin"};
    const spl_geometry *g = k->geometry;
    char path[40];
    for (size_t i = 0; i < SPL_COUNT(fixed); i++) {
        if (!g->draft && strcmp(fixed[i], "draft/model.bin") == 0) continue;
        if (!g->vision && strcmp(fixed[i], "vision/model.bin") == 0) continue;
        if (!spl_packed_find(&k->manifest, fixed[i]))
            return spl_fail(err, SPL_E_NOTFOUND, "splash-packed manifest.json does not list '%s'", fixed[i]);
    }
    uint32_t n_draft = g->draft ? g->draft->n_layers : 0;
    for (uint32_t i = 0; i < g->n_layers + n_draft; i++) {
        bool draft = i >= g->n_layers;
        (void)snprintf(path, sizeof path, "%s/layer-%u.bin", draft ? "draft" : "target", draft ? i - g->n_layers : i);
        if (!spl_packed_find(&k->manifest, path))
            return spl_fail(err, SPL_E_NOTFOUND, "splash-packed manifest.json does not list '%s'", path);
    }
    return SPL_OK;
}

static spl_status find_geometry(packed *k, spl_error *err) {
    spl_checkpoint_config config;
    char *text = NULL;
    size_t n;
    spl_status st = read_text(k->source, "tokenizer/config.json", SPL_CONFIG_MAX_BYTES, &text, &n, err);
    if (st == SPL_OK) st = spl_checkpoint_config_parse(&config, text, n, 0, true, err);
    free(text);
    if (st != SPL_OK) return spl_fail_within(err, "tokenizer");
    k->geometry = config.geometry;
    return spl_packed_check_geometry(&k->manifest, config.geometry, err);
}

static void count_bytes(packed *k, uint32_t n_layers, bool with_draft) {
    char path[40];
    for (uint32_t i = 0; i < k->manifest.n_artifacts; i++) {
        const spl_packed_artifact *a = &k->manifest.artifacts[i];
        if (strcmp(a->path, "target/head.bin") == 0 || strcmp(a->path, "target/embedding.bin") == 0 ||
            (with_draft && strncmp(a->path, "draft/", 6) == 0))
            k->total_bytes += a->n_bytes;
    }
    for (uint32_t i = 0; i < n_layers; i++) {
        (void)snprintf(path, sizeof path, "target/layer-%u.bin", i);
        const spl_packed_artifact *a = spl_packed_find(&k->manifest, path);
        if (a) k->total_bytes += a->n_bytes;
    }
}

static spl_status plan_files(packed *k, bool with_draft, spl_error *err) {
    count_bytes(k, k->source->manifest->n_layers, with_draft);
    spl_status st = plan_embedding(k, err);
    if (st == SPL_OK) st = plan_head(k, err);
    for (uint32_t i = 0; st == SPL_OK && i < k->source->manifest->n_layers; i++) st = plan_layer(k, i, err);
    if (!with_draft) return st;
    if (st == SPL_OK) st = plan_draft_model(k, err);
    for (uint32_t i = 0; st == SPL_OK && i < k->geometry->draft->n_layers; i++) st = plan_draft_layer(k, i, err);
    return st;
}

static spl_status check_side_files(packed *k, spl_error *err) {
    static const char *const names[] = {"tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json",
                                        "tokenizer/chat_template.jinja"};
    spl_status st = SPL_OK;
    for (size_t i = 0; i < SPL_COUNT(names) && st == SPL_OK; i++) {
        const spl_pack_file *f;
        st = open_artifact(k, names[i], &f, err);
    }
    return st;
}

spl_status spl_pack_open_packed(spl_pack_source *s, const char *folder, uint32_t n_layers, bool without_draft,
                                spl_pack_hash_report report, void *user, spl_error *err) {
    packed k = {.source = s, .report = report, .user = user};
    char *text = NULL, digest[SPL_SHA256_HEX_BYTES];
    size_t n;
    s->folder = strdup(folder);
    s->side_folder = spl_path_join(folder, "tokenizer");
    s->provenance = json_object();
    spl_status st =
        s->folder && s->side_folder && s->provenance ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a source");
    if (st == SPL_OK) st = read_text(s, "manifest.json", SPL_PACKED_MANIFEST_MAX_BYTES, &text, &n, err);
    if (st == SPL_OK) st = spl_sha256_hex(text, n, digest, err);
    if (st == SPL_OK) st = spl_packed_parse(&k.manifest, text, n, err);
    if (st == SPL_OK) st = find_geometry(&k, err);
    if (st == SPL_OK) st = check_complete(&k, err);
    bool with_draft = st == SPL_OK && k.geometry->draft && !without_draft;
    if (st == SPL_OK) st = spl_pack_source_plan(s, k.geometry, n_layers, with_draft, err);
    if (st == SPL_OK) st = plan_files(&k, with_draft, err);
    if (st == SPL_OK) st = check_side_files(&k, err);
    if (st == SPL_OK && k.geometry->vision)
        spl_pack_note(s, "the vision tower is left out: the package holds the text model");
    if (st == SPL_OK)
        (void)json_object_set_new(s->provenance, "source",
                                  json_pack("{s:s,s:s,s:s}", "kind",
                                            k.manifest.moe ? "splash-packed-q4-moe" : "splash-packed-q4", "model",
                                            k.manifest.model, "manifest_sha256", digest));
    free(text);
    spl_packed_free(&k.manifest);
    return st;
}
