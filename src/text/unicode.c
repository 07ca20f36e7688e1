/* SPDX-License-Identifier: Apache-2.0
 * UTF-8, white space and NFC. The normaliser copies whole stretches of characters that stand by
 * themselves (its bitmap says which) and composes only what lies between; marks are put in
 * canonical order by counting, because utf8proc's own ordering is quadratic on hostile runs.
 * Rules: Unicode Standard Annex 15 and section 3.11 of the Unicode Standard. */
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

spl_utf8_kind spl_utf8_next(const char *p, size_t n_bytes, size_t *used, uint32_t *cp) {
    const uint8_t *s = (const uint8_t *)p;
    uint8_t lead = s[0];
    *used = 1;
    *cp = lead;
    if (lead < 0x80) return SPL_UTF8_CHAR;
    if (lead < 0xc2 || lead > 0xf4) return SPL_UTF8_BAD;
    size_t need = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    /* The second byte has a narrower range after E0, ED, F0 and F4: no overlong form, no surrogate. */
    uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    uint32_t value = lead & (0xffu >> (need + 1));
    for (size_t i = 1; i < need; i++) {
        *used = i;
        if (i == n_bytes) return SPL_UTF8_PARTIAL;
        if (s[i] < low || s[i] > high) return SPL_UTF8_BAD;
        low = 0x80;
        high = 0xbf;
        value = value << 6 | (s[i] & 0x3fu);
    }
    *used = need;
    *cp = value;
    return SPL_UTF8_CHAR;
}

/* Number of leading bytes below 0x80. */
static size_t ascii_prefix(const char *p, size_t n_bytes) {
    size_t i = 0;
    for (; i + 8 <= n_bytes; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, sizeof word);
        if (word & UINT64_C(0x8080808080808080)) break;
    }
    while (i < n_bytes && (uint8_t)p[i] < 0x80) i++;
    return i;
}

bool spl_utf8_valid(const char *p, size_t n_bytes, size_t *bad) {
    size_t i = 0;
    while (i < n_bytes) {
        size_t used;
        uint32_t cp;
        i += ascii_prefix(p + i, n_bytes - i);
        if (i == n_bytes) break;
        if (spl_utf8_next(p + i, n_bytes - i, &used, &cp) != SPL_UTF8_CHAR) {
            *bad = i;
            return false;
        }
        i += used;
    }
    return true;
}

spl_status spl_utf8_sanitise(spl_buf *out, const char *p, size_t n_bytes) {
    size_t start = 0;
    size_t i = 0;
    while (i < n_bytes) {
        size_t used;
        uint32_t cp;
        if (spl_utf8_next(p + i, n_bytes - i, &used, &cp) != SPL_UTF8_CHAR) {
            (void)spl_buf_append(out, p + start, i - start);
            (void)spl_buf_append(out, "\xef\xbf\xbd", 3);
            start = i + used;
        }
        i += used;
    }
    return spl_buf_append(out, p + start, i - start);
}

size_t spl_utf8_put(char out[4], uint32_t cp) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
}

bool spl_unicode_white_space(uint32_t cp) {
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool spl_unicode_python_space(uint32_t cp) { return spl_unicode_white_space(cp) || (cp >= 0x1c && cp <= 0x1f); }

bool spl_unicode_word(uint32_t cp) {
    /* Circled and squared letters are Alphabetic although their category is So. */
    if ((cp >= 0x24b6 && cp <= 0x24e9) || (cp >= 0x1f130 && cp <= 0x1f149) || (cp >= 0x1f150 && cp <= 0x1f169) ||
        (cp >= 0x1f170 && cp <= 0x1f189) || cp == 0x200c || cp == 0x200d)
        return true;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

void spl_unicode_strip(const char **p, size_t *n_bytes) {
    const char *s = *p;
    size_t n = *n_bytes;
    size_t used;
    uint32_t cp;
    while (n && spl_utf8_next(s, n, &used, &cp) == SPL_UTF8_CHAR && spl_unicode_python_space(cp)) {
        s += used;
        n -= used;
    }
    while (n) {
        size_t back = 1;
        while (back < n && back < 4 && ((uint8_t)s[n - back] & 0xc0u) == 0x80) back++;
        if (spl_utf8_next(s + n - back, back, &used, &cp) != SPL_UTF8_CHAR || !spl_unicode_python_space(cp)) break;
        n -= back;
    }
    *p = s;
    *n_bytes = n;
}

enum { NFC_TABLE_CODES = 0x10000, NFC_DECOMPOSED_MAX = 32 };

/* Bit set: the character is unchanged by NFC, has combining class 0 and never joins the character
 * before it, so that text may be cut in front of it. Planes above the first have marks too; they are
 * looked up in utf8proc when they occur. */
struct spl_nfc {
    uint8_t inert[NFC_TABLE_CODES / 8];
};

static bool may_join_left(uint32_t cp) {
    if (cp >= 0x1160 && cp <= 0x11ff) return true; /* Hangul vowels and final consonants */
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CN: return true;
    default: return false;
    }
}

static bool is_inert(uint32_t cp) {
    if (cp < 0x300) return true;
    if (cp >= 0xac00 && cp <= 0xd7a3) return true; /* Hangul syllables compose from jamo only */
    if (may_join_left(cp) || utf8proc_get_property((utf8proc_int32_t)cp)->combining_class != 0) return false;
    char text[5] = {0};
    size_t n = spl_utf8_put(text, cp);
    utf8proc_int32_t codes[NFC_DECOMPOSED_MAX];
    utf8proc_ssize_t count = utf8proc_decompose((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, codes,
                                                NFC_DECOMPOSED_MAX, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (count < 1 || count > NFC_DECOMPOSED_MAX) return false;
    count = utf8proc_normalize_utf32(codes, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return count == 1 && (uint32_t)codes[0] == cp;
}

spl_status spl_nfc_new(spl_nfc **out, spl_error *err) {
    spl_nfc *nfc = calloc(1, sizeof *nfc);
    *out = nfc;
    if (!nfc) return spl_fail(err, SPL_E_NOMEM, "no memory for the normalisation table");
    for (uint32_t cp = 0; cp < NFC_TABLE_CODES; cp++) {
        if ((cp < 0xd800 || cp > 0xdfff) && is_inert(cp)) nfc->inert[cp / 8] |= (uint8_t)(1u << (cp % 8));
    }
    return SPL_OK;
}

void spl_nfc_free(spl_nfc *nfc) { free(nfc); }

static bool inert(const spl_nfc *nfc, uint32_t cp) {
    return cp < NFC_TABLE_CODES ? nfc->inert[cp / 8] >> (cp % 8) & 1 : is_inert(cp);
}

size_t spl_nfc_quick(const spl_nfc *nfc, const char *p, size_t n_bytes) {
    size_t i = 0;
    size_t last = 0; /* start of the last inert character: it may still join what follows */
    while (i < n_bytes) {
        size_t ascii = ascii_prefix(p + i, n_bytes - i);
        if (ascii) {
            i += ascii;
            last = i - 1;
            continue;
        }
        size_t used;
        uint32_t cp;
        if (spl_utf8_next(p + i, n_bytes - i, &used, &cp) != SPL_UTF8_CHAR || !inert(nfc, cp)) return last;
        last = i;
        i += used;
    }
    return n_bytes;
}

/* Stable sort of a run of marks by combining class. */
static bool order_marks(utf8proc_int32_t *codes, size_t n) {
    size_t start[257] = {0};
    bool sorted = true;
    int before = 0;
    for (size_t i = 0; i < n; i++) {
        int ccc = utf8proc_get_property(codes[i])->combining_class & 0xff;
        start[ccc + 1]++;
        if (ccc < before) sorted = false;
        before = ccc;
    }
    if (sorted) return true;
    utf8proc_int32_t *copy = malloc(n * sizeof *copy);
    if (!copy) return false;
    memcpy(copy, codes, n * sizeof *copy);
    for (int c = 0; c < 256; c++) start[c + 1] += start[c];
    for (size_t i = 0; i < n; i++) codes[start[utf8proc_get_property(copy[i])->combining_class & 0xff]++] = copy[i];
    free(copy);
    return true;
}

/* Puts every run of marks in canonical order. */
static bool order_codes(utf8proc_int32_t *codes, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && utf8proc_get_property(codes[end])->combining_class != 0) end++;
        if (end - i > 1 && !order_marks(codes + i, end - i)) return false;
        i = end + 1;
    }
    return true;
}

/* Normalises a stretch that begins at an inert character or at the start of the text. */
static spl_status normalise_stretch(spl_buf *out, const char *p, size_t n_bytes, spl_error *err) {
    /* Two bytes of text decompose to at most 3 code points, three to at most 4, four to at most 3. */
    size_t capacity = n_bytes * 2 + NFC_DECOMPOSED_MAX;
    utf8proc_int32_t *codes = malloc(capacity * sizeof *codes);
    if (!codes) return spl_fail(err, SPL_E_NOMEM, "no memory to normalise %zu bytes of text", n_bytes);
    size_t n = 0;
    bool fine = true;
    for (size_t i = 0; fine && i < n_bytes;) {
        size_t used;
        uint32_t cp;
        (void)spl_utf8_next(p + i, n_bytes - i, &used, &cp);
        i += used;
        int boundary = 0;
        utf8proc_ssize_t got =
            utf8proc_decompose_char((utf8proc_int32_t)cp, codes + n, (utf8proc_ssize_t)(capacity - n),
                                    UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
        fine = got > 0 && (size_t)got <= capacity - n;
        if (fine) n += (size_t)got;
    }
    fine = fine && order_codes(codes, n);
    utf8proc_ssize_t count =
        fine ? utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE) : -1;
    for (utf8proc_ssize_t i = 0; i < count; i++) {
        char bytes[4];
        size_t used = spl_utf8_put(bytes, (uint32_t)codes[i]);
        (void)spl_buf_append(out, bytes, used);
    }
    free(codes);
    if (count < 0 || out->status != SPL_OK)
        return spl_fail(err, count < 0 ? SPL_E_NOMEM : out->status, "cannot normalise %zu bytes of text", n_bytes);
    return SPL_OK;
}

spl_status spl_nfc_append(const spl_nfc *nfc, spl_buf *out, const char *p, size_t n_bytes, spl_error *err) {
    size_t i = 0;
    while (i < n_bytes) {
        size_t clean = spl_nfc_quick(nfc, p + i, n_bytes - i);
        if (spl_buf_append(out, p + i, clean) != SPL_OK)
            return spl_fail(err, out->status, "normalised text needs more than %zu bytes", out->max_bytes);
        i += clean;
        if (i == n_bytes) break;
        /* The stretch: what stands at i (an inert character or not) and all that is not inert after it. */
        size_t end = i;
        do {
            size_t used;
            uint32_t cp;
            (void)spl_utf8_next(p + end, n_bytes - end, &used, &cp);
            if (end > i && inert(nfc, cp)) break;
            end += used;
        } while (end < n_bytes);
        spl_status st = normalise_stretch(out, p + i, end - i, err);
        if (st != SPL_OK) return st;
        i = end;
    }
    return SPL_OK;
}
