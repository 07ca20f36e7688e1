/* SPDX-License-Identifier: Apache-2.0
 * Schema types and value conversion. The minifier is a strict recursive-descent JSON reader that
 * copies as it checks, so that numbers beyond 64 bits keep all their digits. */
#include "text/tool_value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/python_json.h"
#include "text/unicode.h"

enum { SCHEMA_MAX_DEPTH = 64, SCHEMA_MAX_VISITS = 4096 };

/* ---- schema ---- */

static unsigned type_by_name(const char *name) {
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"string", SPL_TYPE_STRING},   {"number", SPL_TYPE_NUMBER}, {"integer", SPL_TYPE_NUMBER},
                 {"boolean", SPL_TYPE_BOOLEAN}, {"null", SPL_TYPE_NULL},     {"object", SPL_TYPE_OBJECT},
                 {"array", SPL_TYPE_ARRAY}};
    for (size_t i = 0; name && i < SPL_COUNT(types); i++) {
        if (strcmp(name, types[i].name) == 0) return types[i].type;
    }
    return 0;
}

static unsigned type_of_value(const json_t *value) {
    if (json_is_string(value)) return SPL_TYPE_STRING;
    if (json_is_number(value)) return SPL_TYPE_NUMBER;
    if (json_is_boolean(value)) return SPL_TYPE_BOOLEAN;
    if (json_is_null(value)) return SPL_TYPE_NULL;
    return json_is_object(value) ? SPL_TYPE_OBJECT : SPL_TYPE_ARRAY;
}

/* The schema that a local reference ("#", "#/a/b", with ~0 ~1 escapes) names; NULL when there is none. */
static const json_t *follow_reference(const json_t *root, const char *reference) {
    if (reference[0] != '#') return NULL;
    const json_t *at = root;
    const char *p = reference + 1;
    while (at && *p == '/') {
        char key[256];
        size_t n = 0;
        for (p++; *p && *p != '/'; p++) {
            char c = *p;
            if (c == '~' && (p[1] == '0' || p[1] == '1')) c = *++p == '0' ? '~' : '/';
            if (n + 1 < sizeof key) key[n++] = c;
        }
        key[n] = '\0';
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10)) : json_object_get(at, key);
    }
    return *p ? NULL : at;
}

typedef struct walk {
    const json_t *root;
    int visits; /* left: references can make a schema exponentially large */
} walk;

static unsigned schema_types(walk *w, const json_t *schema, int depth);

static unsigned union_of(walk *w, const json_t *members, int depth) {
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(members); i++) types |= schema_types(w, json_array_get(members, i), depth);
    return types;
}

/* The types named by `type`, `enum`, `const`, `anyOf` or `oneOf`, in this order of precedence. */
static unsigned own_types(walk *w, const json_t *schema, int depth) {
    const json_t *type = json_object_get(schema, "type");
    const json_t *values = json_object_get(schema, "enum");
    const json_t *value = json_object_get(schema, "const");
    unsigned types = 0;
    if (type) {
        types = type_by_name(json_string_value(type));
        for (size_t i = 0; i < json_array_size(type); i++)
            types |= type_by_name(json_string_value(json_array_get(type, i)));
    } else if (values || value) {
        for (size_t i = 0; i < json_array_size(values); i++) types |= type_of_value(json_array_get(values, i));
        if (value) types |= type_of_value(value);
    } else {
        types =
            union_of(w, json_object_get(schema, "anyOf"), depth) | union_of(w, json_object_get(schema, "oneOf"), depth);
    }
    return types ? types : SPL_TYPE_ANY;
}

static unsigned schema_types(walk *w, const json_t *schema, int depth) {
    if (!json_is_object(schema) || depth > SCHEMA_MAX_DEPTH || w->visits-- <= 0) return SPL_TYPE_ANY;
    unsigned types = own_types(w, schema, depth + 1);
    const json_t *all = json_object_get(schema, "allOf");
    for (size_t i = 0; i < json_array_size(all); i++) types &= schema_types(w, json_array_get(all, i), depth + 1);
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    if (reference) types &= schema_types(w, follow_reference(w->root, reference), depth + 1);
    return types ? types : SPL_TYPE_ANY;
}

unsigned spl_tool_parameter_types(const json_t *tools, const char *tool, const char *name) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *item = json_array_get(tools, i);
        const json_t *function = json_object_get(item, "function");
        if (json_is_object(function)) item = function;
        const char *its_name = json_string_value(json_object_get(item, "name"));
        if (!its_name || strcmp(its_name, tool) != 0) continue;
        const json_t *root = json_object_get(item, "parameters");
        const json_t *schema = root;
        /* The parameters may stand behind one local reference. */
        const char *reference = json_string_value(json_object_get(root, "$ref"));
        if (!json_object_get(schema, "properties") && reference) schema = follow_reference(root, reference);
        walk w = {root, SCHEMA_MAX_VISITS};
        return schema_types(&w, json_object_get(json_object_get(schema, "properties"), name), 0);
    }
    return SPL_TYPE_ANY;
}

/* ---- strict JSON ---- */

typedef struct reader {
    const char *p;
    const char *end;
    spl_buf *out;
} reader;

static void skip_space(reader *r) {
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\t' || *r->p == '\n' || *r->p == '\r')) r->p++;
}

static bool take(reader *r, char c) {
    if (r->p == r->end || *r->p != c) return false;
    r->p++;
    return true;
}

static bool read_word(reader *r, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, word, n) != 0) return false;
    r->p += n;
    (void)spl_buf_append(r->out, word, n);
    return true;
}

static size_t digits(reader *r) {
    const char *start = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9') r->p++;
    return (size_t)(r->p - start);
}

static bool read_number(reader *r) {
    const char *start = r->p;
    bool real = false;
    (void)take(r, '-');
    const char *first = r->p;
    size_t n = digits(r);
    if (n == 0 || (n > 1 && *first == '0')) return false;
    if (take(r, '.')) {
        real = true;
        if (digits(r) == 0) return false;
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        real = true;
        r->p++;
        if (!take(r, '-')) (void)take(r, '+');
        if (digits(r) == 0) return false;
    }
    size_t length = (size_t)(r->p - start);
    if (length > SPL_TOOL_VALUE_MAX_DIGITS + 1) return false;
    if (real) {
        /* An exponent or many digits can leave the range of doubles; jansson refuses what overflows. */
        json_t *value = json_loadb(start, length, JSON_DECODE_ANY, NULL);
        bool finite = json_is_real(value) && isfinite(json_real_value(value));
        json_decref(value);
        if (!finite) return false;
    }
    (void)spl_buf_append(r->out, start, length);
    return true;
}

/* Four hexadecimal digits; -1 when they are not there. */
static int32_t read_hex(reader *r) {
    int32_t value = 0;
    if (r->end - r->p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = *r->p++;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

static bool read_escape(reader *r) {
    static const char plain[] = "\"\"\\\\//b\bf\fn\nr\rt\t"; /* letter, then the character */
    char text[4];
    if (r->p == r->end) return false;
    char c = *r->p++;
    if (c != 'u') {
        for (const char *s = plain; *s; s += 2) {
            if (*s == c) return spl_python_json_escape(r->out, s + 1, 1) == SPL_OK;
        }
        return false;
    }
    int32_t code = read_hex(r);
    if (code < 0 || (code >= 0xdc00 && code <= 0xdfff)) return false;
    if (code >= 0xd800 && code <= 0xdbff) {
        if (!take(r, '\\') || !take(r, 'u')) return false;
        int32_t low = read_hex(r);
        if (low < 0xdc00 || low > 0xdfff) return false;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    size_t n = 1;
    text[0] = (char)code;
    if (code >= 0x80) n = spl_utf8_put(text, (uint32_t)code);
    return spl_python_json_escape(r->out, text, n) == SPL_OK;
}

static bool read_string(reader *r) {
    if (!take(r, '"')) return false;
    (void)spl_buf_putc(r->out, '"');
    for (;;) {
        const char *start = r->p;
        while (r->p < r->end && *r->p != '"' && *r->p != '\\' && (uint8_t)*r->p >= 0x20) r->p++;
        (void)spl_buf_append(r->out, start, (size_t)(r->p - start));
        if (take(r, '"')) return spl_buf_putc(r->out, '"') == SPL_OK;
        if (!take(r, '\\') || !read_escape(r)) return false;
    }
}

static unsigned read_value(reader *r, int depth);

/* The members of an object or array after its opening bracket. */
static bool read_members(reader *r, char close, int depth) {
    skip_space(r);
    if (take(r, close)) return spl_buf_putc(r->out, close) == SPL_OK;
    for (;;) {
        if (close == '}') {
            skip_space(r);
            if (!read_string(r)) return false;
            skip_space(r);
            if (!take(r, ':')) return false;
            (void)spl_buf_putc(r->out, ':');
        }
        if (!read_value(r, depth)) return false;
        skip_space(r);
        if (take(r, close)) return spl_buf_putc(r->out, close) == SPL_OK;
        if (!take(r, ',')) return false;
        (void)spl_buf_putc(r->out, ',');
    }
}

static unsigned read_value(reader *r, int depth) {
    skip_space(r);
    if (r->p == r->end || depth > SPL_TOOL_VALUE_MAX_DEPTH) return 0;
    char c = *r->p;
    if (c == '{' || c == '[') {
        r->p++;
        (void)spl_buf_putc(r->out, c);
        if (!read_members(r, c == '{' ? '}' : ']', depth + 1)) return 0;
        return c == '{' ? SPL_TYPE_OBJECT : SPL_TYPE_ARRAY;
    }
    if (c == '"') return read_string(r) ? SPL_TYPE_STRING : 0;
    if (c == 't') return read_word(r, "true") ? SPL_TYPE_BOOLEAN : 0;
    if (c == 'f') return read_word(r, "false") ? SPL_TYPE_BOOLEAN : 0;
    if (c == 'n') return read_word(r, "null") ? SPL_TYPE_NULL : 0;
    return read_number(r) ? SPL_TYPE_NUMBER : 0;
}

unsigned spl_json_minify(spl_buf *out, const char *text, size_t n_bytes) {
    if (n_bytes == 0) return 0;
    reader r = {text, text + n_bytes, out};
    size_t before = out->n_bytes;
    unsigned type = read_value(&r, 0);
    skip_space(&r);
    if (type == 0 || r.p != r.end || out->status != SPL_OK) {
        out->n_bytes = before;
        return 0;
    }
    return type;
}

/* ---- conversion ---- */

static bool is_word(const char *text, size_t n_bytes, const char *word) {
    return strlen(word) == n_bytes && memcmp(text, word, n_bytes) == 0;
}

spl_status spl_tool_value(spl_buf *out, unsigned types, const char *text, size_t n_bytes) {
    const char *p = text;
    size_t n = n_bytes;
    size_t before = out->n_bytes;
    spl_unicode_strip(&p, &n);
    if (types != SPL_TYPE_STRING) {
        unsigned type = spl_json_minify(out, p, n);
        bool admit = !(types & SPL_TYPE_STRING) || (types & type & ~(unsigned)SPL_TYPE_STRING);
        if (type && admit) return out->status;
        out->n_bytes = before;
        if (!(types & SPL_TYPE_STRING)) {
            if ((types & SPL_TYPE_BOOLEAN) && is_word(p, n, "True")) return spl_buf_puts(out, "true");
            if ((types & SPL_TYPE_BOOLEAN) && is_word(p, n, "False")) return spl_buf_puts(out, "false");
            if ((types & SPL_TYPE_NULL) && is_word(p, n, "None")) return spl_buf_puts(out, "null");
        }
    }
    return spl_python_json_string(out, text, n_bytes);
}
