/* SPDX-License-Identifier: Apache-2.0
 * A geometry becomes a list of (field, value) as config.json spells them; a config is compared with
 * each list. Booleans are the numbers 0 and 1, so one comparison serves all. */
#include "pack/checkpoint_config.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"

enum { MAX_FIELDS = 48 };

typedef struct field {
    const char *name;
    double value;
    bool optional; /* absent means the family's default, which is `value` */
} field;

typedef struct field_list {
    field items[MAX_FIELDS];
    uint32_t n;
} field_list;

static void add(field_list *l, const char *name, double value, bool optional) {
    SPL_ASSERT(l->n < MAX_FIELDS);
    l->items[l->n++] = (field){name, value, optional};
}

static void target_fields(field_list *l, const spl_geometry *g) {
    l->n = 0;
    add(l, "num_hidden_layers", g->n_layers, false);
    add(l, "hidden_size", g->hidden, false);
    add(l, "vocab_size", g->vocab, false);
    add(l, "num_attention_heads", g->n_q_heads, false);
    add(l, "num_key_value_heads", g->n_kv_heads, false);
    add(l, "head_dim", g->head_dim, false);
    add(l, "linear_num_key_heads", g->gdn_key_heads, false);
    add(l, "linear_num_value_heads", g->gdn_value_heads, false);
    add(l, "linear_key_head_dim", g->gdn_head_dim, false);
    add(l, "linear_value_head_dim", g->gdn_head_dim, false);
    add(l, "linear_conv_kernel_dim", SPL_CONV_TAPS, false);
    if (g->n_experts == 0) {
        add(l, "intermediate_size", g->ffn_width, false);
    } else {
        add(l, "num_experts", g->n_experts, false);
        add(l, "num_experts_per_tok", g->experts_per_token, false);
        add(l, "moe_intermediate_size", g->expert_width, false);
        add(l, "shared_expert_intermediate_size", g->shared_expert_width, false);
    }
    add(l, "max_position_embeddings", g->max_positions, false);
    add(l, "rms_norm_eps", (double)g->rms_eps, false);
    add(l, "rope_theta", (double)g->rope_theta, false);
    add(l, "partial_rotary_factor", (double)g->rotary_dims / g->head_dim, false);
    add(l, "full_attention_interval", g->attention_interval, true);
    add(l, "attention_bias", 0, true);
    add(l, "attn_output_gate", 1, true);
    add(l, "tie_word_embeddings", 0, true);
}

static bool number_of(const json_t *v, double *out) {
    if (json_is_boolean(v)) {
        *out = json_is_true(v) ? 1 : 0;
    } else if (json_is_number(v)) {
        *out = json_number_value(v);
    } else {
        return false;
    }
    return true;
}

/* Looks in the text config, its rope_parameters, then the top level. */
static const json_t *lookup(const json_t *root, const json_t *text, const char *name) {
    const json_t *v = json_object_get(text, name);
    if (!v) v = json_object_get(json_object_get(text, "rope_parameters"), name);
    if (!v && strcmp(name, "tie_word_embeddings") == 0) v = json_object_get(root, name);
    return v;
}

/* Eight digits (%.8g) show whole numbers in full and float constants as they were written. */
static bool close_enough(double a, double b) {
    double d = a > b ? a - b : b - a, m = b < 0 ? -b : b;
    return d <= 1e-6 * m;
}

/* First difference between a config and a geometry, and how many there are. */
typedef struct difference {
    const spl_geometry *geometry;
    uint32_t n;
    char text[200];
} difference;

static void differ(difference *d, const char *name, const char *have, const char *want) {
    if (d->n++ == 0)
        (void)snprintf(d->text, sizeof d->text, "%s is %.60s but %.60s in '%s'", name, have, want, d->geometry->id);
}

static void compare_fields(difference *d, const json_t *root, const json_t *text, const field_list *l, uint32_t limit,
                           bool partial) {
    for (uint32_t i = 0; i < l->n; i++) {
        const field *f = &l->items[i];
        char have[40] = "missing", want[40];
        double v = 0;
        const json_t *found = lookup(root, text, f->name);
        if (!found && (f->optional || partial)) continue;
        bool number = number_of(found, &v);
        if (number && close_enough(v, f->value)) continue;
        if (number && i == 0 && limit && v >= limit && v < f->value) continue; /* fewer layers, none needed */
        if (number)
            (void)snprintf(have, sizeof have, "%.8g", v);
        else if (found)
            (void)snprintf(have, sizeof have, "not a number");
        (void)snprintf(want, sizeof want, "%.8g", f->value);
        differ(d, f->name, have, want);
    }
}

static void compare_lists(difference *d, const json_t *text, const spl_geometry *g, bool partial) {
    const json_t *types = json_object_get(text, "layer_types"), *v;
    const json_t *sections = json_object_get(json_object_get(text, "rope_parameters"), "mrope_section");
    size_t i;
    json_array_foreach(types, i, v) {
        const char *have = json_string_value(v);
        const char *want = spl_layer_is_attention(g, (uint32_t)(i & 0xffff)) ? "full_attention" : "linear_attention";
        if (have && strcmp(have, want) == 0) continue;
        char name[40];
        (void)snprintf(name, sizeof name, "layer_types[%u]", (unsigned)(i & 0xffff));
        differ(d, name, have ? have : "not a string", want);
    }
    if (!types && !partial && !json_object_get(text, "full_attention_interval"))
        differ(d, "layer_types", "missing", "needed");
    if (sections && json_array_size(sections) != 3) differ(d, "mrope_section", "not three numbers", "three");
    if (json_array_size(sections) != 3) return;
    for (i = 0; i < 3; i++) {
        char have[40], want[40], name[40];
        double value = -1;
        if (number_of(json_array_get(sections, i), &value) && close_enough(value, g->mrope_section[i])) continue;
        (void)snprintf(name, sizeof name, "mrope_section[%zu]", i);
        (void)snprintf(have, sizeof have, "%.8g", value);
        (void)snprintf(want, sizeof want, "%u", g->mrope_section[i]);
        differ(d, name, have, want);
    }
}

static void compare_text(difference *d, const json_t *object, const char *name, const char *want) {
    const char *have = json_string_value(json_object_get(object, name));
    if (json_object_get(object, name) && (!have || strcmp(have, want) != 0))
        differ(d, name, have ? have : "not a string", want);
}

static void compare(difference *d, const spl_geometry *g, const json_t *root, const json_t *text, uint32_t limit,
                    bool partial) {
    field_list l;
    const json_t *rope = json_object_get(text, "rope_parameters");
    memset(d, 0, sizeof *d);
    d->geometry = g;
    if (root != text || json_object_get(text, "model_type")) {
        const char *type = json_string_value(json_object_get(text, "model_type"));
        /* A text-only config may carry the family's name without "_text". */
        size_t n = type ? strlen(type) : 0;
        if (!type || strncmp(type, g->model_type, n) != 0 ||
            (strcmp(g->model_type + n, "") != 0 && strcmp(g->model_type + n, "_text") != 0))
            differ(d, "model_type", type ? type : "missing", g->model_type);
    }
    target_fields(&l, g);
    compare_fields(d, root, text, &l, limit, partial);
    compare_lists(d, text, g, partial);
    compare_text(d, text, "hidden_act", "silu");
    compare_text(d, text, "output_gate_type", "swish");
    compare_text(d, rope, "rope_type", "default");
    compare_text(d, rope, "type", "default");
    const json_t *scaling = json_object_get(text, "rope_scaling"); /* the older place of a scaled rope */
    if (scaling && !json_is_null(scaling) && !json_object_get(scaling, "mrope_section"))
        differ(d, "rope_scaling", "set", "absent");
    compare_text(d, scaling, "type", "default");
    compare_text(d, scaling, "rope_type", "default");
}

static bool known_architecture(const char *name) {
    static const char *const known[] = {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM",
                                        "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"};
    for (size_t i = 0; i < SPL_COUNT(known); i++) {
        if (strcmp(name, known[i]) == 0) return true;
    }
    return false;
}

static spl_status check_architecture(const json_t *root, bool partial, spl_error *err) {
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!name && !type && partial) return SPL_OK;
    bool known = name ? known_architecture(name) : type && strncmp(type, "qwen3_5", 7) == 0;
    if (known) return SPL_OK;
    return spl_fail(
        err, SPL_E_UNSUPPORTED,
        "config.json: architecture '%.60s' (model_type '%.40s') is not supported; this engine runs the Qwen3.5 family",
        name ? name : "missing", type ? type : "missing");
}

static spl_status read_quantisation(spl_checkpoint_config *out, const json_t *root, spl_error *err) {
    const json_t *q = json_object_get(root, "quantization");
    uint64_t bits, group;
    if (!q) {
        const json_t *other = json_object_get(root, "quantization_config");
        const char *method = json_string_value(json_object_get(other, "quant_method"));
        if (!other || json_is_null(other)) return SPL_OK;
        return spl_fail(
            err, SPL_E_UNSUPPORTED,
            "config.json: quantisation method '%.40s' is not supported; use the bf16 checkpoint or an MLX 4-bit one",
            method ? method : "unknown");
    }
    const char *mode = json_string_value(json_object_get(q, "mode"));
    if (mode && strcmp(mode, "affine") != 0)
        return spl_fail(err, SPL_E_UNSUPPORTED,
                        "config.json: quantization mode '%.40s' is not supported; only 'affine' is", mode);
    spl_status st = spl_json_u64(q, "bits", &bits, "config.json quantization", err);
    if (st == SPL_OK) st = spl_json_u64(q, "group_size", &group, "config.json quantization", err);
    if (st != SPL_OK) return st;
    if (bits != 4 || group != SPL_GROUP)
        return spl_fail(
            err, SPL_E_UNSUPPORTED,
            "config.json: quantization of %llu bits in groups of %llu is not supported; 4 bits in groups of %d is",
            (unsigned long long)bits, (unsigned long long)group, SPL_GROUP);
    out->mlx_affine = true;
    out->bits = (unsigned)bits;
    return SPL_OK;
}

static spl_status find_geometry(spl_checkpoint_config *out, const json_t *root, const json_t *text, uint32_t limit,
                                bool partial, spl_error *err) {
    difference best = {.n = UINT32_MAX}, d;
    const spl_geometry *g;
    for (uint32_t i = 0; (g = spl_geometry_at(i)) != NULL; i++) {
        compare(&d, g, root, text, limit, partial);
        if (d.n < best.n) best = d;
        if (best.n == 0) break;
    }
    if (best.n != 0) {
        return spl_fail(err, SPL_E_GEOMETRY, "config.json: %s, the closest model this build knows", best.text);
    }
    out->geometry = best.geometry;
    double layers = best.geometry->n_layers;
    (void)number_of(lookup(root, text, "num_hidden_layers"), &layers);
    out->n_layers = (uint32_t)layers;
    return SPL_OK;
}

spl_status spl_checkpoint_config_parse(spl_checkpoint_config *out, const char *text, size_t n_bytes,
                                       uint32_t n_layers_limit, bool partial, spl_error *err) {
    json_t *root;
    memset(out, 0, sizeof *out);
    spl_status st = spl_json_parse(&root, text, n_bytes, SPL_CONFIG_MAX_BYTES, "config.json", err);
    if (st != SPL_OK) return st;
    if (!json_is_object(root)) st = spl_fail(err, SPL_E_FORMAT, "config.json is not a JSON object");
    const json_t *inner = json_object_get(root, "text_config");
    if (st == SPL_OK && inner && !json_is_object(inner))
        st = spl_fail(err, SPL_E_FORMAT, "config.json field 'text_config' must be an object");
    if (st == SPL_OK) st = check_architecture(root, partial, err);
    if (st == SPL_OK) st = read_quantisation(out, root, err);
    if (st == SPL_OK) st = find_geometry(out, root, inner ? inner : root, n_layers_limit, partial, err);
    json_decref(root);
    return st;
}

/* ---- draft ---- */

static spl_status check_draft_text(const json_t *object, const char *key, const char *want, spl_error *err) {
    const char *have = json_string_value(json_object_get(object, key));
    if (have && strcmp(have, want) == 0) return SPL_OK;
    return spl_fail(err, SPL_E_GEOMETRY, "draft config.json: %s is '%.40s'; it must be '%s'", key,
                    have ? have : "missing", want);
}

static spl_status check_draft_fields(const json_t *root, const field_list *l, const spl_geometry *g, spl_error *err) {
    const json_t *dflash = json_object_get(root, "dflash_config"), *rope = json_object_get(root, "rope_parameters");
    for (uint32_t i = 0; i < l->n; i++) {
        const field *f = &l->items[i];
        double v = 0;
        const json_t *found = json_object_get(dflash, f->name);
        if (!found) found = json_object_get(root, f->name);
        if (!found) found = json_object_get(rope, f->name);
        if (!found && f->optional) continue;
        if (!number_of(found, &v))
            return spl_fail(err, SPL_E_GEOMETRY, "draft config.json: %s is missing; the draft of '%s' needs %.8g",
                            f->name, g->id, f->value);
        if (!close_enough(v, f->value))
            return spl_fail(err, SPL_E_GEOMETRY, "draft config.json: %s is %.8g; the draft of '%s' needs %.8g", f->name,
                            v, g->id, f->value);
    }
    return SPL_OK;
}

static spl_status check_capture(const json_t *root, const spl_geometry *g, spl_error *err) {
    const json_t *ids = json_object_get(json_object_get(root, "dflash_config"), "target_layer_ids");
    if (!ids) ids = json_object_get(root, "target_layer_ids");
    if (json_array_size(ids) != g->draft->n_capture)
        return spl_fail(err, SPL_E_GEOMETRY,
                        "draft config.json: target_layer_ids has %zu entries; the draft of '%s' needs %u",
                        json_array_size(ids), g->id, g->draft->n_capture);
    for (uint32_t i = 0; i < g->draft->n_capture; i++) {
        const json_t *v = json_array_get(ids, i);
        if (!json_is_integer(v) || json_integer_value(v) != g->draft->capture[i])
            return spl_fail(err, SPL_E_GEOMETRY,
                            "draft config.json: target_layer_ids[%u] is %.8g; the draft of '%s' needs %u", i,
                            json_number_value(v), g->id, g->draft->capture[i]);
    }
    return SPL_OK;
}

static spl_status check_draft_layer_types(const json_t *root, spl_error *err) {
    const json_t *v;
    size_t i;
    json_array_foreach(json_object_get(root, "layer_types"), i, v) {
        const char *type = json_string_value(v);
        if (!type || strcmp(type, "sliding_attention") != 0)
            return spl_fail(err, SPL_E_GEOMETRY,
                            "draft config.json: layer_types[%zu] is '%.40s'; it must be 'sliding_attention'", i,
                            type ? type : "not a string");
    }
    return SPL_OK;
}

static void draft_fields(field_list *l, const spl_geometry *g) {
    const spl_draft_geometry *d = g->draft;
    l->n = 0;
    add(l, "num_hidden_layers", d->n_layers, false);
    add(l, "hidden_size", d->hidden, false);
    add(l, "vocab_size", g->vocab, false);
    add(l, "intermediate_size", d->ffn_width, false);
    add(l, "num_attention_heads", d->n_q_heads, false);
    add(l, "num_key_value_heads", d->n_kv_heads, false);
    add(l, "head_dim", d->head_dim, false);
    add(l, "sliding_window", d->window_tokens, false);
    add(l, "is_causal", 0, false);
    add(l, "attention_bias", 0, false);
    add(l, "tie_word_embeddings", 0, false);
    add(l, "rms_norm_eps", (double)d->rms_eps, false);
    add(l, "rope_theta", (double)d->rope_theta, false);
    add(l, "block_size", d->block_rows, false);
    add(l, "conv_group_size", d->conv_group, false);
    add(l, "conv_kernel_size", d->conv_taps, false);
    add(l, "selector_top_k", d->selector_top_k, false);
    add(l, "selector_rank", d->selector_rank, false);
    add(l, "mask_token_id", d->mask_token, false);
    add(l, "num_target_layers", g->n_layers, true);
    add(l, "output_multiplier", 1, true);
    add(l, "input_embedding_scale", 1, true);
}

spl_status spl_draft_config_check(const char *text, size_t n_bytes, const spl_geometry *g, spl_error *err) {
    json_t *root;
    field_list l;
    if (!g->draft) return spl_fail(err, SPL_E_GEOMETRY, "geometry '%s' defines no draft model", g->id);
    spl_status st = spl_json_parse(&root, text, n_bytes, SPL_CONFIG_MAX_BYTES, "draft config.json", err);
    if (st != SPL_OK) return st;
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    if (!name || strcmp(name, "DFlash2DraftModel") != 0)
        st = spl_fail(err, SPL_E_UNSUPPORTED,
                      "draft config.json: architecture '%.60s' is not supported; 'DFlash2DraftModel' is",
                      name ? name : "missing");
    draft_fields(&l, g);
    if (st == SPL_OK) st = check_draft_fields(root, &l, g, err);
    if (st == SPL_OK) st = check_draft_text(root, "hidden_act", "silu", err);
    if (st == SPL_OK && json_object_get(json_object_get(root, "rope_parameters"), "rope_type"))
        st = check_draft_text(json_object_get(root, "rope_parameters"), "rope_type", "default", err);
    if (st == SPL_OK) st = check_capture(root, g, err);
    if (st == SPL_OK) st = check_draft_layer_types(root, err);
    const json_t *cap = json_object_get(json_object_get(root, "dflash_config"), "final_logit_softcapping");
    if (st == SPL_OK && cap && !json_is_null(cap))
        st = spl_fail(err, SPL_E_GEOMETRY, "draft config.json: final_logit_softcapping is set; this build has none");
    json_decref(root);
    return st;
}
