/* SPDX-License-Identifier: Apache-2.0
 * Parses and checks safetensors headers. Stricter than the format where a loose reading could hide
 * damage: duplicate keys, numbers that are not whole, overlaps and bytes past the end are refused. */
#include "pack/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"

static const uint64_t largest_number = ((uint64_t)1 << 53) - 1;

typedef struct dtype_entry {
    const char *name;
    unsigned bits;
    spl_st_dtype dtype;
} dtype_entry;

static const dtype_entry dtypes[] = {
    {"BF16", 16, SPL_ST_BF16},
    {"F16", 16, SPL_ST_F16},
    {"F32", 32, SPL_ST_F32},
    {"U32", 32, SPL_ST_U32},
    {"U8", 8, SPL_ST_U8},
    {"BOOL", 8, SPL_ST_OTHER},
    {"F4", 4, SPL_ST_OTHER},
    {"F6_E2M3", 6, SPL_ST_OTHER},
    {"F6_E3M2", 6, SPL_ST_OTHER},
    {"I8", 8, SPL_ST_OTHER},
    {"F8_E5M2", 8, SPL_ST_OTHER},
    {"F8_E4M3", 8, SPL_ST_OTHER},
    {"F8_E8M0", 8, SPL_ST_OTHER},
    {"F8_E4M3FNUZ", 8, SPL_ST_OTHER},
    {"F8_E5M2FNUZ", 8, SPL_ST_OTHER},
    {"I16", 16, SPL_ST_OTHER},
    {"U16", 16, SPL_ST_OTHER},
    {"I32", 32, SPL_ST_OTHER},
    {"C64", 64, SPL_ST_OTHER},
    {"F64", 64, SPL_ST_OTHER},
    {"I64", 64, SPL_ST_OTHER},
    {"U64", 64, SPL_ST_OTHER},
};

spl_status spl_st_header_bytes(const uint8_t first[8], uint64_t file_bytes, const char *path, uint64_t *out,
                               spl_error *err) {
    uint64_t n = spl_load_u64(first);
    if (n > SPL_ST_MAX_HEADER_BYTES)
        return spl_fail(err, SPL_E_LIMIT, "'%s' claims a header of %llu bytes; the limit is %d", path,
                        (unsigned long long)n, SPL_ST_MAX_HEADER_BYTES);
    if (n < 2 || n > file_bytes - 8)
        return spl_fail(
            err, SPL_E_FORMAT,
            "'%s' claims a header of %llu bytes but has only %llu after the length; it is truncated or not safetensors",
            path, (unsigned long long)n, (unsigned long long)(file_bytes - 8));
    *out = n;
    return SPL_OK;
}

static bool whole_number(const json_t *v, uint64_t *out) {
    if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) > largest_number)
        return false;
    *out = (uint64_t)json_integer_value(v);
    return true;
}

static spl_status read_dtype(spl_st_tensor *t, const json_t *entry, unsigned *bits, const char *path, spl_error *err) {
    const char *text = json_string_value(json_object_get(entry, "dtype"));
    if (!text) return spl_fail(err, SPL_E_FORMAT, "'%s': tensor '%.100s' has no dtype", path, t->name);
    for (size_t i = 0; i < SPL_COUNT(dtypes); i++) {
        if (strcmp(text, dtypes[i].name) != 0) continue;
        t->dtype = dtypes[i].dtype;
        *bits = dtypes[i].bits;
        memcpy(t->dtype_text, text, strlen(text) + 1);
        return SPL_OK;
    }
    return spl_fail(err, SPL_E_FORMAT, "'%s': tensor '%.100s' has unknown dtype '%.20s'", path, t->name, text);
}

/* Shape, then its byte count, which must equal the stored range. */
static spl_status read_shape(spl_st_tensor *t, const json_t *entry, uint64_t *n_elements, const char *path,
                             spl_error *err) {
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) return spl_fail(err, SPL_E_FORMAT, "'%s': tensor '%.100s' has no shape", path, t->name);
    if (json_array_size(shape) > SPL_ST_MAX_RANK)
        return spl_fail(err, SPL_E_LIMIT, "'%s': tensor '%.100s' has %zu dimensions; the limit is %d", path, t->name,
                        json_array_size(shape), SPL_ST_MAX_RANK);
    t->rank = (uint32_t)json_array_size(shape);
    *n_elements = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (!whole_number(json_array_get(shape, i), &t->shape[i]))
            return spl_fail(err, SPL_E_FORMAT,
                            "'%s': tensor '%.100s' has a dimension that is not a whole number below 2^53", path,
                            t->name);
        if (!spl_mul_u64(*n_elements, t->shape[i], n_elements))
            return spl_fail(err, SPL_E_FORMAT, "'%s': the shape of tensor '%.100s' overflows", path, t->name);
    }
    return SPL_OK;
}

static spl_status read_entry(spl_st_tensor *t, const json_t *entry, uint64_t data_start, uint64_t file_bytes,
                             const char *path, spl_error *err) {
    unsigned bits = 0;
    uint64_t n_elements = 0, n_bits, begin, end;
    const json_t *range = json_object_get(entry, "data_offsets");
    spl_status st = read_dtype(t, entry, &bits, path, err);
    if (st == SPL_OK) st = read_shape(t, entry, &n_elements, path, err);
    if (st != SPL_OK) return st;
    if (json_object_size(entry) != 3 || json_array_size(range) != 2 ||
        !whole_number(json_array_get(range, 0), &begin) || !whole_number(json_array_get(range, 1), &end))
        return spl_fail(err, SPL_E_FORMAT,
                        "'%s': tensor '%.100s' needs exactly dtype, shape and data_offsets [begin, end]", path,
                        t->name);
    if (!spl_mul_u64(n_elements, bits, &n_bits) || n_bits % 8 != 0 || end < begin || end - begin != n_bits / 8)
        return spl_fail(err, SPL_E_FORMAT,
                        "'%s': tensor '%.100s' has data_offsets [%llu, %llu], which do not fit its shape and dtype %s",
                        path, t->name, (unsigned long long)begin, (unsigned long long)end, t->dtype_text);
    if (end > file_bytes - data_start)
        return spl_fail(
            err, SPL_E_FORMAT,
            "'%s': tensor '%.100s' ends at byte %llu of the data, which has only %llu; the file is truncated", path,
            t->name, (unsigned long long)end, (unsigned long long)(file_bytes - data_start));
    t->offset = data_start + begin;
    t->n_bytes = end - begin;
    return SPL_OK;
}

static spl_status check_metadata(const json_t *entry, const char *path, spl_error *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(entry)) return spl_fail(err, SPL_E_FORMAT, "'%s': __metadata__ is not an object", path);
    json_object_foreach((json_t *)(uintptr_t)entry, key, value) {
        if (!json_is_string(value))
            return spl_fail(err, SPL_E_FORMAT, "'%s': __metadata__ value '%.60s' is not a string", path, key);
    }
    return SPL_OK;
}

static spl_st_tensor *append(spl_st_list *list) {
    if (list->n == list->capacity) {
        uint32_t capacity = list->capacity ? 2 * list->capacity : 256;
        spl_st_tensor *items = realloc(list->items, capacity * sizeof *items);
        if (!items) return NULL;
        list->items = items;
        list->capacity = capacity;
    }
    spl_st_tensor *t = &list->items[list->n++];
    memset(t, 0, sizeof *t);
    return t;
}

static int by_offset(const void *a, const void *b) {
    const spl_st_tensor *const *x = a, *const *y = b;
    return (*x)->offset < (*y)->offset ? -1 : (*x)->offset > (*y)->offset;
}

/* The tensors from `first` on are those of one file. */
static spl_status check_overlaps(const spl_st_list *list, uint32_t first, const char *path, spl_error *err) {
    uint32_t n = 0;
    const spl_st_tensor **order = calloc(list->n - first + 1, sizeof *order);
    if (!order) return spl_fail(err, SPL_E_NOMEM, "no memory for the tensors of '%s'", path);
    for (uint32_t i = first; i < list->n; i++) {
        if (list->items[i].n_bytes > 0) order[n++] = &list->items[i];
    }
    if (n > 1) qsort(order, n, sizeof *order, by_offset);
    spl_status st = SPL_OK;
    for (uint32_t i = 1; i < n && st == SPL_OK; i++) {
        if (order[i]->offset < order[i - 1]->offset + order[i - 1]->n_bytes)
            st = spl_fail(err, SPL_E_FORMAT, "'%s': tensors '%.100s' and '%.100s' overlap", path, order[i - 1]->name,
                          order[i]->name);
    }
    free(order);
    return st;
}

static spl_status parse_entries(spl_st_list *list, uint32_t file, const json_t *root, uint64_t data_start,
                                uint64_t file_bytes, const char *path, spl_error *err) {
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)root, name, entry) {
        spl_status st;
        if (strcmp(name, "__metadata__") == 0) {
            if ((st = check_metadata(entry, path, err)) != SPL_OK) return st;
            continue;
        }
        if (strlen(name) > SPL_ST_MAX_NAME_BYTES)
            return spl_fail(err, SPL_E_LIMIT, "'%s': a tensor name has %zu bytes; the limit is %d", path, strlen(name),
                            SPL_ST_MAX_NAME_BYTES);
        if (list->n == SPL_ST_MAX_TENSORS)
            return spl_fail(err, SPL_E_LIMIT, "'%s': more than %d tensors in the checkpoint", path, SPL_ST_MAX_TENSORS);
        spl_st_tensor *t = append(list);
        if (t) t->name = strdup(name);
        if (!t || !t->name) return spl_fail(err, SPL_E_NOMEM, "no memory for the tensors of '%s'", path);
        t->file = file;
        if ((st = read_entry(t, entry, data_start, file_bytes, path, err)) != SPL_OK) return st;
    }
    return SPL_OK;
}

/* Keys with a NUL would be cut short by the string functions; the encoded form shows them. */
static bool names_a_nul(const char *header, size_t n_bytes) {
    for (size_t i = 0; i + 6 <= n_bytes; i++) {
        if (memcmp(header + i, "\\u0000", 6) == 0) return true;
    }
    return memchr(header, '\0', n_bytes) != NULL;
}

spl_status spl_st_parse(spl_st_list *list, uint32_t file, const char *header, size_t n_bytes, uint64_t file_bytes,
                        const char *path, spl_error *err) {
    uint32_t first = list->n;
    json_t *root;
    if (n_bytes == 0 || header[0] != '{')
        return spl_fail(err, SPL_E_FORMAT, "'%s': the header does not begin with '{'; this is not safetensors", path);
    if (names_a_nul(header, n_bytes)) return spl_fail(err, SPL_E_FORMAT, "'%s': the header contains NUL", path);
    spl_status st = spl_json_parse(&root, header, n_bytes, SPL_ST_MAX_HEADER_BYTES, path, err);
    if (st != SPL_OK) return st;
    st = parse_entries(list, file, root, 8 + (uint64_t)n_bytes, file_bytes, path, err);
    json_decref(root);
    if (st == SPL_OK) st = check_overlaps(list, first, path, err);
    return st;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const spl_st_tensor *)a)->name, ((const spl_st_tensor *)b)->name);
}

spl_status spl_st_finish(spl_st_list *list, spl_error *err) {
    if (list->n > 1) qsort(list->items, list->n, sizeof *list->items, by_name);
    for (uint32_t i = 1; i < list->n; i++) {
        if (strcmp(list->items[i].name, list->items[i - 1].name) == 0)
            return spl_fail(err, SPL_E_FORMAT, "tensor '%.100s' is in two files of the checkpoint",
                            list->items[i].name);
    }
    return SPL_OK;
}

spl_st_tensor *spl_st_find(const spl_st_list *list, const char *name) {
    spl_st_tensor key = {.name = (char *)(uintptr_t)name};
    if (list->n == 0) return NULL;
    return bsearch(&key, list->items, list->n, sizeof *list->items, by_name);
}

void spl_st_free(spl_st_list *list) {
    for (uint32_t i = 0; i < list->n; i++) free(list->items[i].name);
    free(list->items);
    memset(list, 0, sizeof *list);
}
