/* SPDX-License-Identifier: Apache-2.0
 * Plans from safetensors checkpoints: the published bf16 form, MLX affine 4-bit, and DFlash 2
 * drafts. Every stored tensor that the package needs is found by name and checked for shape and
 * type here, before anything is written. Names: docs/FORMATS.md. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "pack/checkpoint_config.h"
#include "pack/source.h"

enum { INDEX_MAX_BYTES = 4 << 20 };

/* One opened checkpoint: files, tensors, and how its names begin. */
typedef struct checkpoint {
    spl_pack_source *source;
    spl_st_list tensors;
    const spl_pack_file **files; /* by spl_st_tensor.file */
    uint32_t n_files;
    uint64_t header_bytes; /* of all files */
    char prefix[32];       /* "model.language_model." */
    bool raw_norms;        /* conv1d is [C, 1, 4]: norms are zero-centred */
    const char *label;     /* "source" or "draft source" in errors */
} checkpoint;

static void checkpoint_free(checkpoint *c) {
    spl_st_free(&c->tensors);
    free(c->files);
}

/* ---- files ---- */

static spl_status add_file(checkpoint *c, const char *folder, const char *name, spl_error *err) {
    uint8_t first[8];
    uint64_t n;
    if (c->n_files == SPL_ST_MAX_FILES)
        return spl_fail(err, SPL_E_LIMIT, "'%s' has more than %d safetensors files", folder, SPL_ST_MAX_FILES);
    const spl_pack_file **files = realloc(c->files, (c->n_files + 1) * sizeof *files);
    if (files) c->files = files;
    char *path = spl_path_join(folder, name), *header = NULL;
    spl_status st = files && path ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory to open '%s'", name);
    if (st == SPL_OK) st = spl_pack_source_open_file(c->source, path, &c->files[c->n_files], err);
    if (st == SPL_OK) {
        spl_pack_file *f = c->source->files[c->source->n_files - 1];
        if (f->n_bytes < 10)
            st = spl_fail(err, SPL_E_FORMAT, "'%s' has %llu bytes; it is truncated or not safetensors", path,
                          (unsigned long long)f->n_bytes);
        if (st == SPL_OK) st = spl_pack_read(f, 0, first, sizeof first, err);
        if (st == SPL_OK) st = spl_st_header_bytes(first, f->n_bytes, path, &n, err);
        if (st == SPL_OK && (c->header_bytes += n) > SPL_ST_MAX_HEADERS_BYTES)
            st = spl_fail(err, SPL_E_LIMIT, "the headers of '%s' have more than %d bytes together", folder,
                          SPL_ST_MAX_HEADERS_BYTES);
        if (st == SPL_OK && !(header = malloc((size_t)n)))
            st = spl_fail(err, SPL_E_NOMEM, "no memory for the header of '%s'", path);
        if (st == SPL_OK) st = spl_pack_read(f, 8, header, (size_t)n, err);
        if (st == SPL_OK) st = spl_sha256_hex(header, (size_t)n, f->header_sha256, err);
        if (st == SPL_OK) st = spl_st_parse(&c->tensors, c->n_files, header, (size_t)n, f->n_bytes, path, err);
        c->n_files++;
    }
    free(header);
    free(path);
    return st;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool is_safetensors(const char *name) {
    size_t n = strlen(name);
    return n > 12 && strcmp(name + n - 12, ".safetensors") == 0 && name[0] != '.' && !strchr(name, '/');
}

/* Names of the folder's safetensors files, sorted; malloc'ed strings in a malloc'ed array. */
static spl_status list_files(const char *folder, char ***names, uint32_t *n, spl_error *err) {
    DIR *d = opendir(folder);
    *names = NULL;
    *n = 0;
    if (!d) return spl_fail(err, SPL_E_NOTFOUND, "cannot open the folder '%s'", folder);
    spl_status st = SPL_OK;
    for (struct dirent *e; st == SPL_OK && (e = readdir(d)) != NULL;) {
        if (!is_safetensors(e->d_name)) continue;
        char **more = realloc(*names, (*n + 1) * sizeof *more);
        if (more) *names = more;
        char *copy = strdup(e->d_name);
        if (more && copy)
            (*names)[(*n)++] = copy;
        else {
            free(copy);
            st = spl_fail(err, SPL_E_NOMEM, "no memory to list '%s'", folder);
        }
        if (*n > SPL_ST_MAX_FILES)
            st = spl_fail(err, SPL_E_LIMIT, "'%s' has more than %d safetensors files", folder, SPL_ST_MAX_FILES);
    }
    (void)closedir(d);
    if (*n > 1) qsort(*names, *n, sizeof **names, by_text);
    return st;
}

/* Keeps only the files that the index names; each must be there. */
static spl_status apply_index(const json_t *index, char **names, uint32_t n, bool *keep, spl_error *err) {
    json_t *map, *v;
    const char *tensor;
    spl_status st = spl_json_object(index, "weight_map", &map, "model.safetensors.index.json", err);
    if (st != SPL_OK) return st;
    json_object_foreach(map, tensor, v) {
        const char *file = json_string_value(v);
        if (!file || !is_safetensors(file))
            return spl_fail(err, SPL_E_FORMAT,
                            "model.safetensors.index.json: '%.80s' is not in a plain safetensors file", tensor);
        char **found = bsearch(&file, names, n, sizeof *names, by_text);
        if (!found)
            return spl_fail(err, SPL_E_NOTFOUND,
                            "model.safetensors.index.json names '%.80s', which is not in the folder", file);
        keep[found - names] = true;
    }
    return SPL_OK;
}

static spl_status open_files(checkpoint *c, const char *folder, spl_error *err) {
    char **names;
    uint32_t n;
    spl_status st = list_files(folder, &names, &n, err);
    bool *keep = calloc(n + 1, sizeof *keep);
    char *path = spl_path_join(folder, "model.safetensors.index.json");
    if (st == SPL_OK && (!keep || !path)) st = spl_fail(err, SPL_E_NOMEM, "no memory to list '%s'", folder);
    if (st == SPL_OK && n == 0) st = spl_fail(err, SPL_E_NOTFOUND, "'%s' has no .safetensors file", folder);
    if (st == SPL_OK && spl_file_exists(path)) {
        json_t *index;
        st = spl_json_read(&index, path, INDEX_MAX_BYTES, err);
        if (st == SPL_OK) {
            st = apply_index(index, names, n, keep, err);
            json_decref(index);
        }
    } else if (st == SPL_OK) {
        for (uint32_t i = 0; i < n; i++) keep[i] = true;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (st == SPL_OK && keep[i]) st = add_file(c, folder, names[i], err);
        free(names[i]);
    }
    free(names);
    free(keep);
    free(path);
    return st == SPL_OK ? spl_st_finish(&c->tensors, err) : st;
}

/* ---- tensors ---- */

static void shape_text(const uint64_t *shape, uint32_t rank, char *to, size_t n_bytes) {
    size_t used = 0;
    to[0] = '\0';
    if (rank == 0) (void)snprintf(to, n_bytes, "scalar");
    for (uint32_t i = 0; i < rank && used + 24 < n_bytes; i++)
        used += (size_t)snprintf(to + used, n_bytes - used, "%s%llu", i ? "x" : "", (unsigned long long)shape[i]);
}

static spl_status need(checkpoint *c, const char *name, spl_st_tensor **out, spl_error *err) {
    *out = spl_st_find(&c->tensors, name);
    if (!*out) return spl_fail(err, SPL_E_NOTFOUND, "%s has no tensor '%s'", c->label, name);
    (*out)->used = true;
    return SPL_OK;
}

static spl_status need_shape(const checkpoint *c, const spl_st_tensor *t, const uint64_t *shape, uint32_t rank,
                             spl_error *err) {
    bool same = t->rank == rank;
    for (uint32_t i = 0; same && i < rank; i++) same = t->shape[i] == shape[i];
    if (same) return SPL_OK;
    char have[100], want[100];
    shape_text(t->shape, t->rank, have, sizeof have);
    shape_text(shape, rank, want, sizeof want);
    return spl_fail(err, SPL_E_GEOMETRY, "%s tensor '%s' has shape %s; geometry '%s' needs %s", c->label, t->name, have,
                    c->source->manifest->geometry->id, want);
}

static spl_status value_part(const checkpoint *c, const spl_st_tensor *t, spl_pack_part *p, spl_error *err) {
    switch (t->dtype) {
    case SPL_ST_BF16: p->kind = PART_BF16; break;
    case SPL_ST_F16: p->kind = PART_F16; break;
    case SPL_ST_F32: p->kind = PART_F32; break;
    default:
        return spl_fail(err, SPL_E_UNSUPPORTED, "%s tensor '%s' has dtype %s; BF16, F16 and F32 are supported",
                        c->label, t->name, t->dtype_text);
    }
    p->file[0] = c->files[t->file];
    p->offset[0] = t->offset;
    (void)snprintf(p->name, sizeof p->name, "%s", t->name);
    return SPL_OK;
}

/* The three tensors of an MLX module: `name` is "....weight", whose shape is [.., rows, cols/8]. */
static spl_status mlx_part(checkpoint *c, spl_st_tensor *codes, const uint64_t *shape, uint32_t rank, unsigned bits,
                           spl_pack_part *p, spl_error *err) {
    static const char *const suffixes[] = {".scales", ".biases"};
    uint64_t want[3] = {0};
    char name[SPL_ST_MAX_NAME_BYTES + 16];
    for (uint32_t i = 0; i < rank; i++) want[i] = shape[i];
    want[rank - 1] = shape[rank - 1] * bits / 32;
    if (codes->dtype != SPL_ST_U32)
        return spl_fail(err, SPL_E_FORMAT, "%s tensor '%s' has scales but dtype %s instead of U32", c->label,
                        codes->name, codes->dtype_text);
    spl_status st = need_shape(c, codes, want, rank, err);
    if (st != SPL_OK) return spl_fail_within(err, "as %u-bit codes", bits);
    p->kind = bits == 4 ? PART_ROWS_Q4 : PART_ROWS_Q8;
    p->file[0] = c->files[codes->file];
    p->offset[0] = codes->offset;
    (void)snprintf(p->name, sizeof p->name, "%s", codes->name);
    want[rank - 1] = shape[rank - 1] / SPL_GROUP;
    for (int i = 0; i < 2 && st == SPL_OK; i++) {
        spl_st_tensor *t;
        (void)snprintf(name, sizeof name, "%.*s%s", (int)(strlen(codes->name) - strlen(".weight")), codes->name,
                       suffixes[i]);
        if ((st = need(c, name, &t, err)) != SPL_OK) break;
        if ((st = need_shape(c, t, want, rank, err)) != SPL_OK) break;
        if (t->dtype != SPL_ST_BF16)
            return spl_fail(err, SPL_E_UNSUPPORTED, "%s tensor '%s' has dtype %s; BF16 scales are supported", c->label,
                            t->name, t->dtype_text);
        p->file[i + 1] = c->files[t->file];
        p->offset[i + 1] = t->offset;
    }
    return st;
}

/* Adds a matrix (or a stack of E matrices: rank 3) to a plan. `name` is complete. */
static spl_status add_matrix(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, const char *name,
                             const uint64_t *shape, uint32_t rank, spl_error *err) {
    char scales[SPL_ST_MAX_NAME_BYTES];
    spl_st_tensor *t;
    spl_status st = need(c, name, &t, err);
    if (st != SPL_OK) return st;
    spl_pack_part *p = &plan->parts[plan->n_parts];
    size_t stem = strlen(name);
    bool has_suffix = stem > 7 && strcmp(name + stem - 7, ".weight") == 0;
    if (has_suffix) (void)snprintf(scales, sizeof scales, "%.*s.scales", (int)(stem - 7), name);
    if (has_suffix && spl_st_find(&c->tensors, scales)) {
        st = mlx_part(c, t, shape, rank, spec->encoding == SPL_ENC_Q8G64_R16 ? 8 : 4, p, err);
    } else {
        st = need_shape(c, t, shape, rank, err);
        if (st == SPL_OK) st = value_part(c, t, p, err);
        if (st == SPL_OK && spec->encoding != SPL_ENC_BF16) c->source->quantises = true;
    }
    if (st != SPL_OK) return st;
    p->rows = rank == 3 ? shape[0] * shape[1] : shape[0];
    p->cols = (uint32_t)shape[rank - 1];
    plan->n_parts++;
    return SPL_OK;
}

static spl_status matrix(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, const char *base,
                         const char *leaf, uint64_t rows, spl_error *err) {
    char name[SPL_ST_MAX_NAME_BYTES];
    const uint64_t shape[2] = {rows, spec->cols};
    (void)snprintf(name, sizeof name, "%s%s", base, leaf);
    return add_matrix(c, plan, spec, name, shape, 2, err);
}

/* A small tensor of any rank whose values are taken in storage order. */
static spl_status small(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, const char *base,
                        const char *leaf, const uint64_t *shape, uint32_t rank, spl_pack_transform transform,
                        spl_error *err) {
    char name[SPL_ST_MAX_NAME_BYTES];
    spl_st_tensor *t;
    (void)snprintf(name, sizeof name, "%s%s", base, leaf);
    spl_status st = need(c, name, &t, err);
    if (st == SPL_OK) st = need_shape(c, t, shape, rank, err);
    if (st == SPL_OK) st = value_part(c, t, &plan->parts[0], err);
    if (st != SPL_OK) return st;
    plan->parts[0].rows = spec->rows;
    plan->parts[0].cols = spec->cols;
    plan->transform = transform;
    plan->n_parts = 1;
    return SPL_OK;
}

static spl_status vector(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, const char *base,
                         const char *leaf, spl_pack_transform transform, spl_error *err) {
    const uint64_t shape[1] = {spec->cols};
    return small(c, plan, spec, base, leaf, shape, 1, transform, err);
}

/* ---- target ---- */

static spl_status plan_conv(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, const char *base,
                            spl_error *err) {
    const uint64_t raw[3] = {spec->rows, 1, SPL_CONV_TAPS}, shifted[3] = {spec->rows, SPL_CONV_TAPS, 1};
    return small(c, plan, spec, base, "linear_attn.conv1d.weight", c->raw_norms ? raw : shifted, 3, TRANSFORM_NONE,
                 err);
}

/* Experts: published checkpoints fuse gate and up of all experts; MLX keeps two stacks. */
static spl_status plan_experts(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, const char *base,
                               spl_error *err) {
    char name[SPL_ST_MAX_NAME_BYTES];
    const uint64_t whole[3] = {spec->n_experts, spec->rows, spec->cols};
    const uint64_t half[3] = {spec->n_experts, spec->rows / 2, spec->cols};
    bool down = spec->role == SPL_T_EXPERT_DOWN;
    (void)snprintf(name, sizeof name, "%smlp.experts.%s", base, down ? "down_proj" : "gate_up_proj");
    if (spl_st_find(&c->tensors, name)) return add_matrix(c, plan, spec, name, whole, 3, err);
    (void)snprintf(name, sizeof name, "%smlp.switch_mlp.%s_proj.weight", base, down ? "down" : "gate");
    if (!spl_st_find(&c->tensors, name))
        return spl_fail(err, SPL_E_NOTFOUND, "%s has neither 'mlp.experts.%s' nor 'mlp.switch_mlp' under '%s'",
                        c->label, down ? "down_proj" : "gate_up_proj", base);
    spl_status st = add_matrix(c, plan, spec, name, down ? whole : half, 3, err);
    if (st != SPL_OK || down) return st;
    (void)snprintf(name, sizeof name, "%smlp.switch_mlp.up_proj.weight", base);
    return add_matrix(c, plan, spec, name, half, 3, err);
}

static spl_status plan_attn_in(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, const char *base,
                               spl_error *err) {
    const spl_geometry *g = c->source->manifest->geometry;
    spl_status st = matrix(c, plan, spec, base, "self_attn.q_proj.weight", 2 * spl_q_width(g), err);
    if (st == SPL_OK) st = matrix(c, plan, spec, base, "self_attn.k_proj.weight", spl_kv_width(g), err);
    if (st == SPL_OK) st = matrix(c, plan, spec, base, "self_attn.v_proj.weight", spl_kv_width(g), err);
    return st;
}

static spl_status plan_gdn_in(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, const char *base,
                              spl_error *err) {
    const spl_geometry *g = c->source->manifest->geometry;
    spl_status st = matrix(c, plan, spec, base, "linear_attn.in_proj_qkv.weight", spl_gdn_channels(g), err);
    if (st == SPL_OK) st = matrix(c, plan, spec, base, "linear_attn.in_proj_z.weight", spl_gdn_value_width(g), err);
    if (st == SPL_OK) st = matrix(c, plan, spec, base, "linear_attn.in_proj_b.weight", g->gdn_value_heads, err);
    if (st == SPL_OK) st = matrix(c, plan, spec, base, "linear_attn.in_proj_a.weight", g->gdn_value_heads, err);
    return st;
}

static spl_status pair(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, const char *base,
                       const char *gate, const char *up, spl_error *err) {
    spl_status st = matrix(c, plan, spec, base, gate, spec->rows / 2, err);
    return st == SPL_OK ? matrix(c, plan, spec, base, up, spec->rows / 2, err) : st;
}

static spl_status plan_head(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *spec, spl_error *err) {
    bool mlx = spl_st_find(&c->tensors, "language_model.lm_head.weight") != NULL;
    return matrix(c, plan, spec, mlx ? "language_model." : "", "lm_head.weight", spec->rows, err);
}

static spl_status plan_target(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *s, spl_error *err) {
    char base[64];
    spl_pack_transform norm = c->raw_norms ? TRANSFORM_ADD_ONE : TRANSFORM_NONE;
    (void)snprintf(base, sizeof base, "%slayers.%u.", c->prefix, s->layer);
    switch (s->role) {
    case SPL_T_EMBED: return matrix(c, plan, s, c->prefix, "embed_tokens.weight", s->rows, err);
    case SPL_T_FINAL_NORM: return vector(c, plan, s, c->prefix, "norm.weight", norm, err);
    case SPL_T_HEAD: return plan_head(c, plan, s, err);
    case SPL_T_INPUT_NORM: return vector(c, plan, s, base, "input_layernorm.weight", norm, err);
    case SPL_T_POST_NORM: return vector(c, plan, s, base, "post_attention_layernorm.weight", norm, err);
    case SPL_T_ATTN_IN: return plan_attn_in(c, plan, s, base, err);
    case SPL_T_Q_NORM: return vector(c, plan, s, base, "self_attn.q_norm.weight", norm, err);
    case SPL_T_K_NORM: return vector(c, plan, s, base, "self_attn.k_norm.weight", norm, err);
    case SPL_T_ATTN_OUT: return matrix(c, plan, s, base, "self_attn.o_proj.weight", s->rows, err);
    case SPL_T_GDN_IN: return plan_gdn_in(c, plan, s, base, err);
    case SPL_T_GDN_CONV: return plan_conv(c, plan, s, base, err);
    case SPL_T_GDN_DECAY: return vector(c, plan, s, base, "linear_attn.A_log", TRANSFORM_NEGATED_EXP, err);
    case SPL_T_GDN_DT_BIAS: return vector(c, plan, s, base, "linear_attn.dt_bias", TRANSFORM_NONE, err);
    case SPL_T_GDN_NORM: return vector(c, plan, s, base, "linear_attn.norm.weight", TRANSFORM_NONE, err);
    case SPL_T_GDN_OUT: return matrix(c, plan, s, base, "linear_attn.out_proj.weight", s->rows, err);
    case SPL_T_GATE_UP: return pair(c, plan, s, base, "mlp.gate_proj.weight", "mlp.up_proj.weight", err);
    case SPL_T_DOWN: return matrix(c, plan, s, base, "mlp.down_proj.weight", s->rows, err);
    case SPL_T_ROUTER: return matrix(c, plan, s, base, "mlp.gate.weight", s->rows, err);
    case SPL_T_EXPERT_GATE_UP:
    case SPL_T_EXPERT_DOWN: return plan_experts(c, plan, s, base, err);
    case SPL_T_SHARED_GATE_UP:
        return pair(c, plan, s, base, "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight", err);
    case SPL_T_SHARED_DOWN: return matrix(c, plan, s, base, "mlp.shared_expert.down_proj.weight", s->rows, err);
    case SPL_T_SHARED_GATE: return matrix(c, plan, s, base, "mlp.shared_expert_gate.weight", s->rows, err);
    default: return spl_fail(err, SPL_E_INTERNAL, "no source rule for tensor '%s'", s->name);
    }
}

/* How names begin, and which norm convention the file follows. */
static spl_status find_conventions(checkpoint *c, const spl_geometry *g, spl_error *err) {
    static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "model."};
    char name[80];
    size_t i = 0;
    for (; i < SPL_COUNT(prefixes); i++) {
        (void)snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i]);
        if (spl_st_find(&c->tensors, name)) break;
    }
    if (i == SPL_COUNT(prefixes))
        return spl_fail(
            err, SPL_E_NOTFOUND,
            "source has no tensor 'model.language_model.embed_tokens.weight' (nor its MLX or text-only name)");
    (void)snprintf(c->prefix, sizeof c->prefix, "%s", prefixes[i]);
    (void)snprintf(name, sizeof name, "%slayers.%u.linear_attn.conv1d.weight", prefixes[i],
                   spl_layer_is_attention(g, 0) ? 1u : 0u);
    const spl_st_tensor *conv = spl_st_find(&c->tensors, name);
    if (!conv) return spl_fail(err, SPL_E_NOTFOUND, "source has no tensor '%s'", name);
    c->raw_norms = conv->rank != 3 || conv->shape[2] != 1;
    return SPL_OK;
}

static bool starts_with(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

/* What stays unused is either known to be another part of the model, or an error: a tensor that the
 * text model has and we would drop changes its output. */
static spl_status check_unused(const checkpoint *c, uint32_t n_layers, spl_error *err) {
    uint32_t n_vision = 0, n_mtp = 0, n_later = 0;
    for (uint32_t i = 0; i < c->tensors.n; i++) {
        const spl_st_tensor *t = &c->tensors.items[i];
        unsigned layer;
        char pattern[48];
        if (t->used) continue;
        (void)snprintf(pattern, sizeof pattern, "%slayers.%%u.", c->prefix);
        if (starts_with(t->name, "model.visual.") || starts_with(t->name, "vision_tower.") ||
            starts_with(t->name, "visual.")) {
            n_vision++;
        } else if (starts_with(t->name, "mtp.") || starts_with(t->name, "model.mtp.") ||
                   starts_with(t->name, "language_model.mtp.")) {
            n_mtp++;
        } else if (starts_with(t->name, c->prefix) && starts_with(t->name + strlen(c->prefix), "layers.") &&
                   (layer = (unsigned)strtoul(t->name + strlen(c->prefix) + 7, NULL, 10)) >= n_layers &&
                   layer < 1000000) {
            n_later++;
        } else {
            return spl_fail(err, SPL_E_UNSUPPORTED,
                            "%s tensor '%.100s' has no place in geometry '%s'; the checkpoint is of another model",
                            c->label, t->name, c->source->manifest->geometry->id);
        }
    }
    if (n_vision)
        spl_pack_note(c->source, "%u vision tensors are left out: the package holds the text model", n_vision);
    if (n_mtp)
        spl_pack_note(c->source, "%u tensors of the extra prediction head are left out: the engine does not use it",
                      n_mtp);
    if (n_later) spl_pack_note(c->source, "%u tensors of layers from %u on are left out as asked", n_later, n_layers);
    return SPL_OK;
}

static void put_file_list(json_t *to, const checkpoint *c) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->n_files; i++) {
        const char *slash = strrchr(c->files[i]->path, '/');
        (void)json_array_append_new(list, json_pack("{s:s,s:I,s:s}", "path", slash ? slash + 1 : c->files[i]->path,
                                                    "bytes", (json_int_t)c->files[i]->n_bytes, "header_sha256",
                                                    c->files[i]->header_sha256));
    }
    (void)json_object_set_new(to, "files", list);
}

static spl_status read_config(const char *folder, char **text, size_t *n, spl_error *err) {
    char *path = spl_path_join(folder, "config.json");
    if (!path) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    spl_status st = spl_read_file(path, SPL_CONFIG_MAX_BYTES, text, n, err);
    free(path);
    return st;
}

static spl_status plan_all(checkpoint *c, const spl_checkpoint_config *config, uint32_t n_layers, bool with_draft,
                           spl_error *err) {
    spl_pack_source *s = c->source;
    if (n_layers == 0) n_layers = config->n_layers;
    spl_status st = find_conventions(c, config->geometry, err);
    if (st == SPL_OK) st = spl_pack_source_plan(s, config->geometry, n_layers, with_draft, err);
    for (uint32_t i = 0; st == SPL_OK && i < s->manifest->n_tensors; i++) {
        const spl_tensor_spec *t = &s->manifest->tensors[i].spec;
        if (t->file == SPL_FILE_TARGET) st = plan_target(c, &s->tensors[i], t, err);
    }
    return st == SPL_OK ? check_unused(c, s->manifest->n_layers, err) : st;
}

spl_status spl_pack_open_safetensors(spl_pack_source *s, const char *folder, const char *draft_folder,
                                     uint32_t n_layers, spl_error *err) {
    checkpoint c = {.source = s, .label = "source"};
    spl_checkpoint_config config;
    char *text = NULL, digest[SPL_SHA256_HEX_BYTES];
    size_t n;
    s->folder = strdup(folder);
    s->side_folder = strdup(folder);
    s->provenance = json_object();
    spl_status st =
        s->folder && s->side_folder && s->provenance ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a source");
    if (st == SPL_OK) st = read_config(folder, &text, &n, err);
    if (st == SPL_OK) st = spl_sha256_hex(text, n, digest, err);
    if (st == SPL_OK) st = spl_checkpoint_config_parse(&config, text, n, n_layers, false, err);
    if (st == SPL_OK) st = open_files(&c, folder, err);
    if (st == SPL_OK) st = plan_all(&c, &config, n_layers, draft_folder != NULL, err);
    if (st == SPL_OK && config.mlx_affine && s->quantises)
        spl_pack_note(s, "some matrices of this 4-bit checkpoint are stored unquantised; they are quantised now");
    if (st == SPL_OK) {
        json_t *o = json_pack("{s:s,s:s}", "kind", config.mlx_affine ? "mlx-affine-4bit" : "hf-safetensors",
                              "config_sha256", digest);
        put_file_list(o, &c);
        (void)json_object_set_new(s->provenance, "source", o);
    }
    free(text);
    checkpoint_free(&c);
    if (st == SPL_OK && draft_folder) st = spl_pack_open_draft(s, draft_folder, err);
    return st;
}

/* ---- draft ---- */

static spl_status plan_draft_qkv(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *s, const char *base,
                                 spl_error *err) {
    const spl_draft_geometry *d = c->source->manifest->geometry->draft;
    spl_status st = matrix(c, plan, s, base, "self_attn.q_proj.weight", (uint64_t)d->n_q_heads * d->head_dim, err);
    if (st == SPL_OK)
        st = matrix(c, plan, s, base, "self_attn.k_proj.weight", (uint64_t)d->n_kv_heads * d->head_dim, err);
    if (st == SPL_OK)
        st = matrix(c, plan, s, base, "self_attn.v_proj.weight", (uint64_t)d->n_kv_heads * d->head_dim, err);
    return st;
}

static spl_status plan_draft(checkpoint *c, spl_pack_tensor *plan, const spl_tensor_spec *s, spl_error *err) {
    const spl_draft_geometry *d = c->source->manifest->geometry->draft;
    const uint64_t base_kernel[3] = {2, d->conv_taps, d->hidden};
    char base[64];
    (void)snprintf(base, sizeof base, "layers.%u.", s->layer);
    switch (s->role) {
    case SPL_T_DRAFT_CONTEXT: return matrix(c, plan, s, "", "fc.weight", s->rows, err);
    case SPL_T_DRAFT_HIDDEN_NORM: return vector(c, plan, s, "", "hidden_norm.weight", TRANSFORM_NONE, err);
    case SPL_T_DRAFT_FINAL_NORM: return vector(c, plan, s, "", "norm.weight", TRANSFORM_NONE, err);
    case SPL_T_DRAFT_SELECTOR:
        return matrix(c, plan, s, "", "candidate_selector.hidden_projection.weight", s->rows, err);
    case SPL_T_DRAFT_PREDECESSOR:
        return matrix(c, plan, s, "", "candidate_selector.predecessor_codebook", s->rows, err);
    case SPL_T_DRAFT_SUCCESSOR: return matrix(c, plan, s, "", "candidate_selector.successor_codebook", s->rows, err);
    case SPL_T_DRAFT_INPUT_NORM: return vector(c, plan, s, base, "input_layernorm.weight", TRANSFORM_NONE, err);
    case SPL_T_DRAFT_ATTN_CONV_BASE:
        return small(c, plan, s, base, "attention_conv.base_kernel", base_kernel, 3, TRANSFORM_NONE, err);
    case SPL_T_DRAFT_ATTN_CONV_PROJ:
        return matrix(c, plan, s, base, "attention_conv.kernel_projection.weight", s->rows, err);
    case SPL_T_DRAFT_QKV: return plan_draft_qkv(c, plan, s, base, err);
    case SPL_T_DRAFT_Q_NORM: return vector(c, plan, s, base, "self_attn.q_norm.weight", TRANSFORM_NONE, err);
    case SPL_T_DRAFT_K_NORM: return vector(c, plan, s, base, "self_attn.k_norm.weight", TRANSFORM_NONE, err);
    case SPL_T_DRAFT_ATTN_OUT: return matrix(c, plan, s, base, "self_attn.o_proj.weight", s->rows, err);
    case SPL_T_DRAFT_POST_NORM: return vector(c, plan, s, base, "post_attention_layernorm.weight", TRANSFORM_NONE, err);
    case SPL_T_DRAFT_FFN_CONV_BASE:
        return small(c, plan, s, base, "mlp_conv.base_kernel", base_kernel, 3, TRANSFORM_NONE, err);
    case SPL_T_DRAFT_FFN_CONV_PROJ: return matrix(c, plan, s, base, "mlp_conv.kernel_projection.weight", s->rows, err);
    case SPL_T_DRAFT_GATE_UP: return pair(c, plan, s, base, "mlp.gate_proj.weight", "mlp.up_proj.weight", err);
    case SPL_T_DRAFT_DOWN: return matrix(c, plan, s, base, "mlp.down_proj.weight", s->rows, err);
    default: return spl_fail(err, SPL_E_INTERNAL, "no source rule for tensor '%s'", s->name);
    }
}

spl_status spl_pack_open_draft(spl_pack_source *s, const char *folder, spl_error *err) {
    checkpoint c = {.source = s, .label = "draft source"};
    char *text = NULL, digest[SPL_SHA256_HEX_BYTES];
    size_t n;
    spl_status st = read_config(folder, &text, &n, err);
    if (st == SPL_OK) st = spl_sha256_hex(text, n, digest, err);
    if (st == SPL_OK) st = spl_draft_config_check(text, n, s->manifest->geometry, err);
    if (st == SPL_OK) st = open_files(&c, folder, err);
    for (uint32_t i = 0; st == SPL_OK && i < s->manifest->n_tensors; i++) {
        const spl_tensor_spec *t = &s->manifest->tensors[i].spec;
        if (t->file == SPL_FILE_DRAFT) st = plan_draft(&c, &s->tensors[i], t, err);
    }
    for (uint32_t i = 0; st == SPL_OK && i < c.tensors.n; i++) {
        if (!c.tensors.items[i].used)
            st = spl_fail(err, SPL_E_UNSUPPORTED, "draft source tensor '%.100s' has no place in the draft of '%s'",
                          c.tensors.items[i].name, s->manifest->geometry->id);
    }
    if (st == SPL_OK) {
        json_t *o = json_pack("{s:s,s:s}", "kind", "dflash2-safetensors", "config_sha256", digest);
        put_file_list(o, &c);
        (void)json_object_set_new(s->provenance, "draft_source", o);
    }
    free(text);
    checkpoint_free(&c);
    return st;
}
