/* SPDX-License-Identifier: Apache-2.0
 * Body decoding: encoding detection as JSON defines it (the pattern of zero bytes in the first four), one scan that
 * repairs what jansson cannot take, then jansson. */
#include "server/body_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/dynbuf.h"

/* ---- encodings ----------------------------------------------------------------------------- */

typedef struct spl_encoding {
    unsigned unit_bytes; /* 1, 2 or 4 */
    bool big_endian;
    size_t bom_bytes;
} spl_encoding;

static spl_encoding detect(const unsigned char *b, size_t n) {
    if (n >= 3 && b[0] == 0xef && b[1] == 0xbb && b[2] == 0xbf) return (spl_encoding){1, false, 3};
    if (n >= 4 && b[0] == 0xff && b[1] == 0xfe && b[2] == 0 && b[3] == 0) return (spl_encoding){4, false, 4};
    if (n >= 4 && b[0] == 0 && b[1] == 0 && b[2] == 0xfe && b[3] == 0xff) return (spl_encoding){4, true, 4};
    if (n >= 2 && b[0] == 0xff && b[1] == 0xfe) return (spl_encoding){2, false, 2};
    if (n >= 2 && b[0] == 0xfe && b[1] == 0xff) return (spl_encoding){2, true, 2};
    if (n >= 4 && !b[0] && !b[1] && !b[2] && b[3]) return (spl_encoding){4, true, 0};
    if (n >= 4 && b[0] && !b[1] && !b[2] && !b[3]) return (spl_encoding){4, false, 0};
    if (n >= 2 && !b[0] && b[1]) return (spl_encoding){2, true, 0};
    if (n >= 2 && b[0] && !b[1]) return (spl_encoding){2, false, 0};
    return (spl_encoding){1, false, 0};
}

static void put_utf8(spl_buf *out, uint32_t c) {
    char s[4];
    if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) c = 0xfffd;
    if (c < 0x80) {
        (void)spl_buf_putc(out, (char)c);
    } else if (c < 0x800) {
        s[0] = (char)(0xc0 | c >> 6);
        s[1] = (char)(0x80 | (c & 0x3f));
        (void)spl_buf_append(out, s, 2);
    } else if (c < 0x10000) {
        s[0] = (char)(0xe0 | c >> 12);
        s[1] = (char)(0x80 | (c >> 6 & 0x3f));
        s[2] = (char)(0x80 | (c & 0x3f));
        (void)spl_buf_append(out, s, 3);
    } else {
        s[0] = (char)(0xf0 | c >> 18);
        s[1] = (char)(0x80 | (c >> 12 & 0x3f));
        s[2] = (char)(0x80 | (c >> 6 & 0x3f));
        s[3] = (char)(0x80 | (c & 0x3f));
        (void)spl_buf_append(out, s, 4);
    }
}

static uint32_t unit_at(const unsigned char *b, const spl_encoding *e) {
    uint32_t v = 0;
    for (unsigned i = 0; i < e->unit_bytes; i++) v = v << 8 | b[e->big_endian ? i : e->unit_bytes - 1 - i];
    return v;
}

/* UTF-16/32 to UTF-8; a trailing partial unit is dropped, lone surrogates become U+FFFD. */
static void transcode(spl_buf *out, const unsigned char *b, size_t n, const spl_encoding *e) {
    for (size_t i = 0; i + e->unit_bytes <= n; i += e->unit_bytes) {
        uint32_t c = unit_at(b + i, e);
        if (e->unit_bytes == 2 && c >= 0xd800 && c <= 0xdbff && i + 4 <= n) {
            uint32_t low = unit_at(b + i + 2, e);
            if (low >= 0xdc00 && low <= 0xdfff) {
                c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
                i += 2;
            }
        }
        put_utf8(out, c);
    }
}

/* ---- the repairing scan -------------------------------------------------------------------- */

typedef struct spl_scan {
    const char *in;
    size_t n, i;
    spl_buf *out;
    int depth;
    size_t key_at, key_bytes; /* last string at depth 1: the key in front of a ':' */
    bool seed_next;           /* the value of top-level "seed" follows */
    spl_body *body;
} spl_scan;

static int hex4(const char *s, size_t n) {
    int v = 0;
    if (n < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return -1;
        v = v << 4 | d;
    }
    return v;
}

/* At a backslash inside a string: copies the escape, a lone surrogate as \ufffd. */
static void scan_escape(spl_scan *s) {
    size_t left = s->n - s->i;
    const char *p = s->in + s->i;
    int unit = left >= 6 && p[1] == 'u' ? hex4(p + 2, left - 2) : -1;
    size_t take = left >= 2 ? 2 : left;
    if (unit >= 0xd800 && unit <= 0xdbff) {
        int low = left >= 12 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8, left - 8) : -1;
        if (low >= 0xdc00 && low <= 0xdfff) {
            take = 12;
        } else {
            (void)spl_buf_puts(s->out, "\\ufffd");
            s->i += 6;
            return;
        }
    } else if (unit >= 0xdc00 && unit <= 0xdfff) {
        (void)spl_buf_puts(s->out, "\\ufffd");
        s->i += 6;
        return;
    }
    (void)spl_buf_append(s->out, p, take);
    s->i += take;
}

static void scan_string(spl_scan *s) {
    size_t start = s->i++;
    (void)spl_buf_putc(s->out, '"');
    while (s->i < s->n && s->in[s->i] != '"') {
        if (s->in[s->i] == '\\') {
            scan_escape(s);
            continue;
        }
        size_t from = s->i;
        while (s->i < s->n && s->in[s->i] != '"' && s->in[s->i] != '\\') s->i++;
        (void)spl_buf_append(s->out, s->in + from, s->i - from);
    }
    if (s->i < s->n) {
        (void)spl_buf_putc(s->out, '"');
        s->i++;
    }
    s->key_at = start;
    s->key_bytes = s->i - start;
}

/* An integer that does not fit in int64 becomes a real ("123...e0"), except the top-level seed, whose 64 bits
 * are kept exactly. */
static void scan_number(spl_scan *s) {
    size_t from = s->i, digits = 0;
    bool integer = true, overflow = false;
    uint64_t value = 0;
    if (s->in[s->i] == '-') s->i++;
    for (; s->i < s->n; s->i++) {
        char c = s->in[s->i];
        if (c >= '0' && c <= '9') {
            unsigned d = (unsigned)(c - '0');
            digits++;
            if (value > (UINT64_MAX - d) / 10) overflow = true;
            value = value * 10 + d;
        } else if (c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-') {
            integer = false;
        } else {
            break;
        }
    }
    bool negative = s->in[from] == '-';
    bool fits = !overflow && value <= (uint64_t)INT64_MAX;
    if (integer && !fits && digits > 18) {
        if (s->seed_next && !negative && !overflow) {
            s->body->seed_is_big = true;
            s->body->big_seed = value;
            (void)spl_buf_putc(s->out, '0');
        } else {
            (void)spl_buf_append(s->out, s->in + from, s->i - from);
            (void)spl_buf_puts(s->out, "e0");
        }
    } else {
        (void)spl_buf_append(s->out, s->in + from, s->i - from);
    }
    s->seed_next = false;
}

static bool scan(spl_scan *s, spl_reject *r) {
    while (s->i < s->n) {
        char c = s->in[s->i];
        if (c == '"') {
            scan_string(s);
            continue;
        }
        if (c == '-' || (c >= '0' && c <= '9')) {
            scan_number(s);
            continue;
        }
        if (c == '{' || c == '[') {
            if (++s->depth > SPL_BODY_MAX_DEPTH)
                return spl_reject_field(r, "the request body nests deeper than %d arrays and objects",
                                        SPL_BODY_MAX_DEPTH);
        } else if (c == '}' || c == ']') {
            s->depth--;
        }
        if (c == ':')
            s->seed_next = s->depth == 1 && s->key_bytes == 6 && memcmp(s->in + s->key_at, "\"seed\"", 6) == 0;
        else if (c == ',' || c == '{' || c == '[')
            s->seed_next = false;
        (void)spl_buf_putc(s->out, c);
        s->i++;
    }
    return true;
}

static bool parse(spl_body *out, const spl_buf *text, spl_reject *r) {
    json_error_t error;
    json_t *root = json_loadb(text->data ? text->data : "", text->n_bytes,
                              JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!root)
        return spl_reject_field(r, "the request body is not valid JSON: %s (line %d, column %d)", error.text,
                                error.line, error.column);
    if (!json_is_object(root)) {
        json_decref(root);
        return spl_reject_field(r, "the request body must be a JSON object");
    }
    out->root = root;
    return true;
}

bool spl_body_decode(spl_body *out, const char *bytes, size_t n_bytes, spl_reject *r) {
    spl_buf utf8, clean;
    *out = (spl_body){0};
    spl_encoding e = detect((const unsigned char *)bytes, n_bytes);
    size_t cap = n_bytes > SIZE_MAX / 4 - 64 ? SIZE_MAX : n_bytes * 3 + 64; /* UTF-16 to UTF-8 grows by at most 3/2 */
    spl_buf_init(&utf8, cap);
    spl_buf_init(&clean, cap);
    const char *text = bytes + e.bom_bytes;
    size_t n_text = n_bytes - e.bom_bytes;
    if (e.unit_bytes > 1) {
        transcode(&utf8, (const unsigned char *)text, n_text, &e);
        text = utf8.data ? utf8.data : "";
        n_text = utf8.n_bytes;
    }
    spl_scan s = {.in = text, .n = n_text, .out = &clean, .body = out};
    bool ok = scan(&s, r);
    if (ok && (utf8.status != SPL_OK || clean.status != SPL_OK))
        ok = spl_reject_set(r, 503, "frontend_overloaded", "not enough memory to read the request body");
    if (ok) ok = parse(out, &clean, r);
    if (!ok) *out = (spl_body){0};
    spl_buf_free(&utf8);
    spl_buf_free(&clean);
    return ok;
}

void spl_body_free(spl_body *body) {
    json_decref(body->root);
    *body = (spl_body){0};
}
