/* SPDX-License-Identifier: Apache-2.0
 * Fetches sixteen rows at a time from whatever the source stores, brings them to the row form
 * (quantising when needed), and writes tiles or rows. Formats: docs/FORMATS.md. */
#include "pack/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "pack/quantise.h"

enum {
    TILE_ROWS = 256, /* rows of a splash-packed tile */
    ROWS = SPL_ROWS_PER_TILE,
    ROW_UNIT_BYTES = 1 << 20,
    UNIT_PANELS = 32 /* two source tiles of gate and up, or of one matrix */
};

/* The last source tile read of one part, since the sixteen panels of a tile are asked for in turn. */
typedef struct tile_cache {
    const spl_pack_part *part;
    uint64_t slab, tile;
    uint8_t *bytes; /* codes, then scales, then biases */
} tile_cache;

struct spl_pack_converter {
    const spl_pack_source *source;
    uint8_t *raw;              /* [16][widest row as stored] */
    float *values;             /* [widest row] */
    uint8_t *codes;            /* [16][cols * bits / 8] */
    uint16_t *scales, *biases; /* [16][cols / 64] */
    tile_cache cache[2];
    uint32_t n_cached;
};

static unsigned bits_of(spl_encoding e) { return e == SPL_ENC_Q8G64_R16 ? 8 : 4; }

/* ---- units ---- */

static void unit_grain(const spl_tensor_spec *t, uint64_t *n_items, uint64_t *item_bytes, uint64_t *per_unit) {
    switch (t->encoding) {
    case SPL_ENC_Q4G64_R16:
    case SPL_ENC_Q8G64_R16:
        *n_items = spl_div_up(t->rows, ROWS) * t->n_experts;
        *item_bytes = t->bytes / *n_items;
        *per_unit = UNIT_PANELS;
        return;
    case SPL_ENC_Q4G64_ROW:
    case SPL_ENC_BF16:
        *n_items = t->rows;
        *item_bytes = t->bytes / t->rows;
        *per_unit = ROW_UNIT_BYTES / *item_bytes;
        if (*per_unit < ROWS) *per_unit = ROWS;
        return;
    case SPL_ENC_F32:
    case SPL_N_ENCODINGS: break;
    }
    *n_items = *per_unit = 1;
    *item_bytes = t->bytes;
}

bool spl_pack_next_unit(const spl_pack_source *s, spl_file_id file, spl_pack_cursor *cursor, spl_pack_unit *out) {
    uint64_t n_items, item_bytes, per_unit;
    for (; cursor->tensor < s->manifest->n_tensors; cursor->tensor++, cursor->next = 0) {
        const spl_placed_tensor *t = &s->manifest->tensors[cursor->tensor];
        if (t->spec.file != file) continue;
        unit_grain(&t->spec, &n_items, &item_bytes, &per_unit);
        if (cursor->next >= n_items) continue;
        uint64_t n = n_items - cursor->next < per_unit ? n_items - cursor->next : per_unit;
        *out = (spl_pack_unit){cursor->tensor, cursor->next, n, t->offset + cursor->next * item_bytes, n * item_bytes};
        cursor->next += n;
        return true;
    }
    return false;
}

uint64_t spl_pack_largest_unit_bytes(const spl_pack_source *s) {
    uint64_t n_items, item_bytes, per_unit, most = 1;
    for (uint32_t i = 0; i < s->manifest->n_tensors; i++) {
        unit_grain(&s->manifest->tensors[i].spec, &n_items, &item_bytes, &per_unit);
        uint64_t n = (n_items < per_unit ? n_items : per_unit) * item_bytes;
        if (n > most) most = n;
    }
    return most;
}

/* ---- scratch ---- */

static void free_tile_caches(spl_pack_converter *c) {
    for (int i = 0; i < 2; i++) free(c->cache[i].bytes);
}

void spl_pack_converter_free(spl_pack_converter *c) {
    if (!c) return;
    free_tile_caches(c);
    free(c->raw);
    free(c->values);
    free(c->codes);
    free(c->scales);
    free(c->biases);
    free(c);
}

spl_status spl_pack_converter_new(spl_pack_converter **out, const spl_pack_source *s, spl_error *err) {
    size_t widest = SPL_GROUP, small = 1, groups;
    bool tiles = false;
    for (uint32_t i = 0; i < s->manifest->n_tensors; i++) {
        const spl_tensor_spec *t = &s->manifest->tensors[i].spec;
        if (t->encoding == SPL_ENC_F32) {
            if (t->bytes > small) small = (size_t)t->bytes;
        } else if (t->cols > widest) {
            widest = t->cols;
        }
        for (uint32_t p = 0; p < s->tensors[i].n_parts; p++) tiles |= s->tensors[i].parts[p].kind >= PART_TILES_Q4;
    }
    spl_pack_converter *c = calloc(1, sizeof *c);
    if (!c) return spl_fail(err, SPL_E_NOMEM, "no memory to convert weights");
    groups = widest / SPL_GROUP;
    c->source = s;
    c->raw = malloc(ROWS * widest * 4 > small ? ROWS * widest * 4 : small);
    c->values = malloc(widest * sizeof(float) > small ? widest * sizeof(float) : small);
    c->codes = malloc(ROWS * widest);
    c->scales = malloc(ROWS * groups * 2);
    c->biases = malloc(ROWS * groups * 2);
    bool good = c->raw && c->values && c->codes && c->scales && c->biases;
    for (int i = 0; i < 2 && tiles; i++)
        good &= (c->cache[i].bytes = malloc(TILE_ROWS * (widest + groups * 4))) != NULL;
    if (!good) {
        spl_pack_converter_free(c);
        return spl_fail(err, SPL_E_NOMEM, "no memory to convert weights");
    }
    *out = c;
    return SPL_OK;
}

/* ---- fetching rows ---- */

static size_t value_bytes(part_kind k) { return k == PART_F32 ? 4 : 2; }

static void widen(part_kind kind, const uint8_t *from, size_t n, float *to) {
    switch (kind) {
    case PART_BF16: spl_widen_bf16(from, n, to); break;
    case PART_F16: spl_widen_f16(from, n, to); break;
    default: spl_widen_f32(from, n, to); break;
    }
}

static spl_status not_finite(const spl_pack_part *p, uint64_t row, spl_error *err) {
    return spl_fail(err, SPL_E_CORRUPT, "source tensor '%s' holds a value that is not finite in row %llu", p->name,
                    (unsigned long long)row);
}

static spl_status fetch_values(spl_pack_converter *c, const spl_pack_part *p, uint64_t row, uint32_t n, unsigned bits,
                               uint32_t at, spl_error *err) {
    size_t row_bytes = p->cols * value_bytes(p->kind), groups = p->cols / SPL_GROUP;
    spl_status st = spl_pack_read(p->file[0], p->offset[0] + row * row_bytes, c->raw, n * row_bytes, err);
    for (uint32_t r = 0; r < n && st == SPL_OK; r++) {
        widen(p->kind, c->raw + r * row_bytes, p->cols, c->values);
        if (!spl_quantise_row(c->values, p->cols, bits, c->codes + (size_t)(at + r) * p->cols * bits / 8,
                              c->scales + (at + r) * groups, c->biases + (at + r) * groups))
            st = not_finite(p, row + r, err);
    }
    return st;
}

static void load_u16s(const uint8_t *from, size_t n, uint16_t *to) {
    for (size_t i = 0; i < n; i++) to[i] = spl_load_u16(from + 2 * i);
}

static spl_status fetch_row_form(spl_pack_converter *c, const spl_pack_part *p, uint64_t row, uint32_t n, unsigned bits,
                                 uint32_t at, spl_error *err) {
    size_t row_bytes = (size_t)p->cols * bits / 8, groups = p->cols / SPL_GROUP;
    spl_status st =
        spl_pack_read(p->file[0], p->offset[0] + row * row_bytes, c->codes + at * row_bytes, n * row_bytes, err);
    if (st == SPL_OK) st = spl_pack_read(p->file[1], p->offset[1] + row * groups * 2, c->raw, n * groups * 2, err);
    if (st != SPL_OK) return st;
    load_u16s(c->raw, n * groups, c->scales + at * groups);
    st = spl_pack_read(p->file[2], p->offset[2] + row * groups * 2, c->raw, n * groups * 2, err);
    if (st == SPL_OK) load_u16s(c->raw, n * groups, c->biases + at * groups);
    return st;
}

/* The 256-row tile of a splash-packed matrix that holds `row`, through the cache. */
static spl_status load_tile(spl_pack_converter *c, const spl_pack_part *p, uint64_t slab, uint64_t tile, unsigned bits,
                            const uint8_t **out, spl_error *err) {
    size_t groups = p->cols / SPL_GROUP;
    size_t codes = TILE_ROWS * groups * SPL_GROUP * bits / 8, scales = TILE_ROWS * groups * 2;
    for (int i = 0; i < 2; i++) {
        const tile_cache *k = &c->cache[i];
        if (k->part != p || k->slab != slab || k->tile != tile) continue;
        *out = k->bytes;
        return SPL_OK;
    }
    tile_cache *k = &c->cache[c->n_cached++ & 1];
    k->part = NULL;
    uint64_t base = slab * p->slab_bytes;
    spl_status st = spl_pack_read(p->file[0], p->offset[0] + base + tile * codes, k->bytes, codes, err);
    if (st == SPL_OK)
        st = spl_pack_read(p->file[1], p->offset[1] + base + tile * scales, k->bytes + codes, scales, err);
    if (st == SPL_OK)
        st = spl_pack_read(p->file[2], p->offset[2] + base + tile * scales, k->bytes + codes + scales, scales, err);
    if (st != SPL_OK) return st;
    k->part = p;
    k->slab = slab;
    k->tile = tile;
    *out = k->bytes;
    return SPL_OK;
}

static spl_status fetch_tiles(spl_pack_converter *c, const spl_pack_part *p, uint64_t row, uint32_t n, unsigned bits,
                              uint32_t at, spl_error *err) {
    size_t groups = p->cols / SPL_GROUP, group_bytes = SPL_GROUP * bits / 8;
    size_t codes = TILE_ROWS * groups * group_bytes, scales = TILE_ROWS * groups * 2;
    for (uint32_t r = 0; r < n; r++) {
        const uint8_t *tile;
        uint64_t slab = (row + r) / p->slab_rows, in_slab = (row + r) % p->slab_rows, lane = in_slab % TILE_ROWS;
        spl_status st = load_tile(c, p, slab, in_slab / TILE_ROWS, bits, &tile, err);
        if (st != SPL_OK) return st;
        for (size_t g = 0; g < groups; g++) {
            size_t slot = g * TILE_ROWS + (size_t)lane;
            memcpy(c->codes + ((at + r) * groups + g) * group_bytes, tile + slot * group_bytes, group_bytes);
            c->scales[(at + r) * groups + g] = spl_load_u16(tile + codes + slot * 2);
            c->biases[(at + r) * groups + g] = spl_load_u16(tile + codes + scales + slot * 2);
        }
    }
    return SPL_OK;
}

static bool finite_scales(const uint16_t *v, size_t n) {
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++) bad |= (v[i] & 0x7f80u) == 0x7f80u;
    return !bad;
}

/* Rows [row, row + n) of a part into rows `at` on of the row form. n + at <= 16. */
static spl_status fetch(spl_pack_converter *c, const spl_pack_part *p, uint64_t row, uint32_t n, unsigned bits,
                        uint32_t at, spl_error *err) {
    size_t groups = p->cols / SPL_GROUP;
    spl_status st;
    switch (p->kind) {
    case PART_ROWS_Q4:
    case PART_ROWS_Q8: st = fetch_row_form(c, p, row, n, bits, at, err); break;
    case PART_TILES_Q4:
    case PART_TILES_Q8: st = fetch_tiles(c, p, row, n, bits, at, err); break;
    default: return fetch_values(c, p, row, n, bits, at, err);
    }
    if (st == SPL_OK &&
        !(finite_scales(c->scales + at * groups, n * groups) && finite_scales(c->biases + at * groups, n * groups)))
        st = spl_fail(err, SPL_E_CORRUPT, "source tensor '%s' holds a scale that is not finite in rows %llu to %llu",
                      p->name, (unsigned long long)row, (unsigned long long)row + n - 1);
    return st;
}

/* Rows of the parts laid end to end; rows past the last are zero. */
static spl_status fetch_concatenated(spl_pack_converter *c, const spl_pack_tensor *plan, const spl_tensor_spec *t,
                                     uint64_t row, unsigned bits, uint32_t n_wanted, spl_error *err) {
    size_t groups = t->cols / SPL_GROUP;
    uint32_t at = 0;
    for (uint32_t p = 0; p < plan->n_parts && at < n_wanted; p++) {
        const spl_pack_part *part = &plan->parts[p];
        if (row >= part->rows) {
            row -= part->rows;
            continue;
        }
        uint32_t n = part->rows - row < n_wanted - at ? (uint32_t)(part->rows - row) : n_wanted - at;
        spl_status st = fetch(c, part, row, n, bits, at, err);
        if (st != SPL_OK) return st;
        at += n;
        row = 0;
    }
    if (at < n_wanted) {
        memset(c->codes + at * (size_t)t->cols * bits / 8, 0, (n_wanted - at) * (size_t)t->cols * bits / 8);
        memset(c->scales + at * groups, 0, (n_wanted - at) * groups * 2);
        memset(c->biases + at * groups, 0, (n_wanted - at) * groups * 2);
    }
    return SPL_OK;
}

/* The sixteen rows of one panel, by the order of the tensor. */
static spl_status fetch_panel(spl_pack_converter *c, const spl_pack_tensor *plan, const spl_tensor_spec *t,
                              uint64_t panel, unsigned bits, spl_error *err) {
    bool pairs = t->order == SPL_ORDER_GATE_UP || t->role == SPL_T_EXPERT_GATE_UP;
    if (!pairs) return fetch_concatenated(c, plan, t, panel * ROWS, bits, ROWS, err);
    uint64_t per_matrix = t->rows / ROWS, matrix = panel / per_matrix, within = panel % per_matrix;
    uint64_t half = within % 2, row = within / 2 * ROWS, width = t->rows / 2;
    if (plan->n_parts == 1) return fetch(c, &plan->parts[0], matrix * t->rows + half * width + row, ROWS, bits, 0, err);
    return fetch(c, &plan->parts[half], matrix * width + row, ROWS, bits, 0, err);
}

/* ---- units to bytes ---- */

static spl_status convert_panels(spl_pack_converter *c, const spl_pack_unit *u, const spl_tensor_spec *t,
                                 const spl_pack_tensor *plan, uint8_t *to, spl_error *err) {
    unsigned bits = bits_of(t->encoding);
    uint64_t panel_bytes = u->n_bytes / u->n;
    spl_status st = SPL_OK;
    /* Gate panels first, then up panels: each source is then read forward once. */
    uint64_t step = t->order == SPL_ORDER_PLAIN || t->role == SPL_T_EXPERT_DOWN ? 1 : 2;
    for (uint64_t phase = 0; phase < step; phase++) {
        for (uint64_t i = phase; i < u->n && st == SPL_OK; i += step) {
            st = fetch_panel(c, plan, t, u->first + i, bits, err);
            if (st == SPL_OK) spl_tile_panel(c->codes, c->scales, c->biases, t->cols, bits, to + i * panel_bytes);
        }
    }
    return st;
}

static spl_status convert_q4_rows(spl_pack_converter *c, const spl_pack_unit *u, const spl_tensor_spec *t,
                                  const spl_pack_tensor *plan, uint8_t *to, spl_error *err) {
    size_t code_bytes = t->cols / 2, groups = t->cols / SPL_GROUP;
    spl_status st = SPL_OK;
    for (uint64_t i = 0; i < u->n && st == SPL_OK; i += ROWS) {
        uint32_t n = u->n - i < ROWS ? (uint32_t)(u->n - i) : ROWS;
        st = fetch_concatenated(c, plan, t, u->first + i, 4, n, err);
        for (uint32_t r = 0; r < n && st == SPL_OK; r++) {
            memcpy(to, c->codes + r * code_bytes, code_bytes);
            for (size_t g = 0; g < groups; g++) {
                spl_store_u16(to + code_bytes + 2 * g, c->scales[r * groups + g]);
                spl_store_u16(to + code_bytes + 2 * (groups + g), c->biases[r * groups + g]);
            }
            to += code_bytes + 4 * groups;
        }
    }
    return st;
}

/* bf16 rows: copied when they are bf16 already, else rounded to nearest even. */
static spl_status convert_bf16_rows(spl_pack_converter *c, const spl_pack_unit *u, const spl_tensor_spec *t,
                                    const spl_pack_tensor *plan, uint8_t *to, spl_error *err) {
    const spl_pack_part *p = &plan->parts[0];
    size_t row_bytes = t->cols * value_bytes(p->kind);
    for (uint64_t i = 0; i < u->n; i++) {
        spl_status st = spl_pack_read(p->file[0], p->offset[0] + (u->first + i) * row_bytes, c->raw, row_bytes, err);
        if (st != SPL_OK) return st;
        widen(p->kind, c->raw, t->cols, c->values);
        for (uint32_t k = 0; k < t->cols; k++, to += 2) {
            uint16_t v = spl_bf16_from_f32(c->values[k]);
            if ((v & 0x7f80u) == 0x7f80u) return not_finite(p, u->first + i, err);
            spl_store_u16(to, v);
        }
    }
    return SPL_OK;
}

static spl_status convert_small(spl_pack_converter *c, const spl_tensor_spec *t, const spl_pack_tensor *plan,
                                uint8_t *to, spl_error *err) {
    const spl_pack_part *p = &plan->parts[0];
    size_t n = (size_t)t->rows * t->cols;
    spl_status st = spl_pack_read(p->file[0], p->offset[0], c->raw, n * value_bytes(p->kind), err);
    if (st != SPL_OK) return st;
    widen(p->kind, c->raw, n, c->values);
    for (size_t i = 0; i < n; i++) {
        float v = c->values[i];
        if (plan->transform == TRANSFORM_ADD_ONE) v = 1.0f + v;
        if (plan->transform == TRANSFORM_NEGATED_EXP) v = (float)-exp((double)v);
        if (!isfinite(v)) return not_finite(p, i / t->cols, err);
        spl_store_u32(to + 4 * i, spl_bits_from_f32(v));
    }
    return SPL_OK;
}

spl_status spl_pack_convert(spl_pack_converter *c, const spl_pack_unit *unit, uint8_t *to, spl_error *err) {
    const spl_tensor_spec *t = &c->source->manifest->tensors[unit->tensor].spec;
    const spl_pack_tensor *plan = &c->source->tensors[unit->tensor];
    if (plan->n_parts == 0) return spl_fail(err, SPL_E_INTERNAL, "tensor '%s' has no source", t->name);
    switch (t->encoding) {
    case SPL_ENC_Q4G64_R16:
    case SPL_ENC_Q8G64_R16: return convert_panels(c, unit, t, plan, to, err);
    case SPL_ENC_Q4G64_ROW: return convert_q4_rows(c, unit, t, plan, to, err);
    case SPL_ENC_BF16: return convert_bf16_rows(c, unit, t, plan, to, err);
    case SPL_ENC_F32: return convert_small(c, t, plan, to, err);
    case SPL_N_ENCODINGS: break;
    }
    return spl_fail(err, SPL_E_INTERNAL, "tensor '%s' has an unknown encoding", t->name);
}
