/* SPDX-License-Identifier: Apache-2.0
 * Encoding: text -> added tokens and stretches between them -> NFC -> pieces of the published
 * pattern -> merged tokens. Everything that changes lives in one struct per call, so a tokenizer
 * can serve many threads. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

/* Pieces already merged in this call. Only short pieces are kept; a slot is simply overwritten. */
enum { CACHE_SLOTS = 1 << 13, CACHE_PIECE_BYTES = 24, CACHE_IDS = 8, CACHE_FROM_BYTES = 8192 };

typedef struct cache_slot {
    char piece[CACHE_PIECE_BYTES];
    uint8_t n_bytes; /* 0: empty */
    uint8_t n_ids;
    uint32_t ids[CACHE_IDS];
} cache_slot;

typedef struct encoder {
    const spl_tokenizer *t;
    bool parse_added;
    spl_token_list *out;
    spl_error *err;
    pcre2_match_data *match;
    spl_bpe_work work;
    cache_slot *cache; /* NULL: text too short to be worth it, or no memory */
    spl_buf normal;    /* the stretch being encoded, in NFC */
} encoder;

spl_status spl_token_list_add(spl_token_list *list, const uint32_t *ids, size_t n_ids, spl_error *err) {
    if (n_ids > list->capacity - list->n_ids) {
        size_t capacity = list->capacity < 64 ? 64 : list->capacity * 2;
        if (capacity < list->n_ids + n_ids) capacity = list->n_ids + n_ids;
        uint32_t *grown = realloc(list->ids, capacity * sizeof *grown);
        if (!grown) return spl_fail(err, SPL_E_NOMEM, "no memory for %zu tokens", capacity);
        list->ids = grown;
        list->capacity = capacity;
    }
    if (n_ids) memcpy(list->ids + list->n_ids, ids, n_ids * sizeof *ids);
    list->n_ids += n_ids;
    return SPL_OK;
}

void spl_token_list_free(spl_token_list *list) {
    free(list->ids);
    *list = (spl_token_list){0};
}

/* FNV-1a over at most CACHE_PIECE_BYTES bytes. */
static size_t piece_hash(const char *piece, size_t n_bytes) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n_bytes; i++) h = (h ^ (uint8_t)piece[i]) * UINT64_C(0x100000001b3);
    return (size_t)(h ^ h >> 32) & (CACHE_SLOTS - 1);
}

static spl_status encode_piece(encoder *e, const char *piece, size_t n_bytes) {
    if (n_bytes == 1) return spl_token_list_add(e->out, &e->t->bpe.byte_id[(uint8_t)piece[0]], 1, e->err);
    cache_slot *slot = NULL;
    if (e->cache && n_bytes <= CACHE_PIECE_BYTES) {
        slot = &e->cache[piece_hash(piece, n_bytes)];
        if (slot->n_bytes == n_bytes && memcmp(slot->piece, piece, n_bytes) == 0)
            return spl_token_list_add(e->out, slot->ids, slot->n_ids, e->err);
    }
    spl_status st = spl_bpe_encode(&e->t->bpe, &e->work, piece, n_bytes, e->err);
    if (st != SPL_OK) return st;
    if (slot && e->work.n_ids <= CACHE_IDS) {
        slot->n_bytes = (uint8_t)n_bytes;
        slot->n_ids = (uint8_t)e->work.n_ids;
        memcpy(slot->piece, piece, n_bytes);
        memcpy(slot->ids, e->work.ids, e->work.n_ids * sizeof *slot->ids);
    }
    return spl_token_list_add(e->out, e->work.ids, e->work.n_ids, e->err);
}

static int match_from(const encoder *e, const char *text, size_t n_bytes, size_t at) {
    const spl_tokenizer *t = e->t;
    if (t->jit) {
        int rc =
            pcre2_jit_match(t->pattern, (PCRE2_SPTR)text, n_bytes, at, PCRE2_NO_UTF_CHECK, e->match, t->match_context);
        if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    }
    return pcre2_match(t->pattern, (PCRE2_SPTR)text, n_bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match,
                       t->match_context);
}

/* Splits normalised text by the pattern; text that no match covers is a piece of its own. */
static spl_status encode_pieces(encoder *e, const char *text, size_t n_bytes) {
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(e->match);
    size_t at = 0;
    while (at < n_bytes) {
        int rc = match_from(e, text, n_bytes, at);
        size_t start = n_bytes;
        size_t end = n_bytes;
        if (rc > 0) {
            start = span[0];
            end = span[1];
        } else if (rc != PCRE2_ERROR_NOMATCH) {
            return spl_fail(e->err, rc == PCRE2_ERROR_NOMEMORY ? SPL_E_NOMEM : SPL_E_INTERNAL,
                            "cannot split text into pieces (PCRE2 error %d)", rc);
        }
        spl_status st = start > at ? encode_piece(e, text + at, start - at) : SPL_OK;
        if (st == SPL_OK && end > start) st = encode_piece(e, text + start, end - start);
        if (st != SPL_OK) return st;
        at = end;
    }
    return SPL_OK;
}

/* ---- added tokens ---- */

static size_t spaces_at_start(const char *p, size_t n_bytes) {
    size_t n = 0;
    size_t used;
    uint32_t cp;
    while (n < n_bytes && spl_utf8_next(p + n, n_bytes - n, &used, &cp) == SPL_UTF8_CHAR && spl_unicode_white_space(cp))
        n += used;
    return n;
}

/* The last character of p[0..n_bytes) and its length. */
static uint32_t last_char(const char *p, size_t n_bytes, size_t *length) {
    size_t back = 1;
    uint32_t cp;
    while (back < n_bytes && back < 4 && ((uint8_t)p[n_bytes - back] & 0xc0u) == 0x80) back++;
    (void)spl_utf8_next(p + n_bytes - back, back, length, &cp);
    *length = back;
    return cp;
}

/* How many bytes of white space end p[0..n_bytes), looking back no further than `floor`. */
static size_t spaces_at_end(const char *p, size_t n_bytes, size_t floor) {
    size_t n = n_bytes;
    while (n > floor) {
        size_t length;
        if (!spl_unicode_white_space(last_char(p, n, &length))) break;
        n -= length;
    }
    return n_bytes - n;
}

static bool stands_alone(const char *text, size_t n_bytes, size_t start, size_t end) {
    size_t length;
    uint32_t cp;
    if (start && spl_unicode_word(last_char(text, start, &length))) return false;
    if (end == n_bytes) return true;
    (void)spl_utf8_next(text + end, n_bytes - end, &length, &cp);
    return !spl_unicode_word(cp);
}

/* The longest added token of the index that stands at text[at], or NULL. */
static const spl_added_token *added_at(const encoder *e, const spl_added_index *index, const char *text, size_t n_bytes,
                                       size_t at) {
    uint8_t b = (uint8_t)text[at];
    for (uint16_t i = index->first[b]; i < index->first[b + 1]; i++) {
        const spl_added_token *token = &e->t->added[index->order[i]];
        if (token->n_match <= n_bytes - at && memcmp(token->match, text + at, token->n_match) == 0) return token;
    }
    return NULL;
}

typedef spl_status (*stretch_fn)(encoder *e, const char *text, size_t n_bytes);

/* Cuts out the added tokens of one kind and hands the stretches between them to `rest`. A match
 * that single_word rejects is passed over whole, as the reference does. */
static spl_status split_added(encoder *e, const spl_added_index *index, const char *text, size_t n_bytes,
                              stretch_fn rest) {
    size_t done = 0;
    for (size_t at = 0; at < n_bytes;) {
        const spl_added_token *token = added_at(e, index, text, n_bytes, at);
        if (!token) {
            at++;
            continue;
        }
        size_t start = at;
        size_t end = at + token->n_match;
        at = end;
        if (start < done || (token->single_word && !stands_alone(text, n_bytes, start, end))) continue;
        if (token->lstrip) start -= spaces_at_end(text, start, done);
        if (token->rstrip) end += spaces_at_start(text + end, n_bytes - end);
        spl_status st = start > done ? rest(e, text + done, start - done) : SPL_OK;
        if (st == SPL_OK) st = spl_token_list_add(e->out, &token->id, 1, e->err);
        if (st != SPL_OK) return st;
        done = end;
    }
    return done < n_bytes ? rest(e, text + done, n_bytes - done) : SPL_OK;
}

/* A stretch without raw added tokens: normalise, cut out the normalised ones, split and merge. */
static spl_status encode_stretch(encoder *e, const char *text, size_t n_bytes) {
    if (e->t->nfc && spl_nfc_quick(e->t->nfc, text, n_bytes) != n_bytes) {
        spl_buf_reset(&e->normal);
        spl_status st = spl_nfc_append(e->t->nfc, &e->normal, text, n_bytes, e->err);
        if (st != SPL_OK) return st;
        text = e->normal.data;
        n_bytes = e->normal.n_bytes;
    }
    if (e->parse_added && e->t->normalized.first[256])
        return split_added(e, &e->t->normalized, text, n_bytes, encode_pieces);
    return encode_pieces(e, text, n_bytes);
}

spl_status spl_tokenizer_encode(const spl_tokenizer *t, const char *text, size_t n_bytes, bool parse_added,
                                spl_token_list *out, spl_error *err) {
    size_t bad;
    if (n_bytes > SPL_TOKENIZER_MAX_TEXT_BYTES)
        return spl_fail(err, SPL_E_LIMIT, "text of %zu bytes is too long to tokenise; the limit is %d", n_bytes,
                        SPL_TOKENIZER_MAX_TEXT_BYTES);
    if (!spl_utf8_valid(text, n_bytes, &bad))
        return spl_fail(err, SPL_E_FORMAT, "text is not valid UTF-8 at byte %zu", bad);
    if (n_bytes == 0) return SPL_OK;
    encoder e = {.t = t, .parse_added = parse_added, .out = out, .err = err};
    size_t n_before = out->n_ids;
    spl_buf_init(&e.normal, (size_t)3 * SPL_TOKENIZER_MAX_TEXT_BYTES);
    e.match = pcre2_match_data_create(1, NULL);
    if (!e.match) return spl_fail(err, SPL_E_NOMEM, "no memory to tokenise");
    if (n_bytes >= CACHE_FROM_BYTES) e.cache = calloc(CACHE_SLOTS, sizeof *e.cache);
    spl_status st =
        parse_added ? split_added(&e, &t->raw, text, n_bytes, encode_stretch) : encode_stretch(&e, text, n_bytes);
    if (st != SPL_OK) out->n_ids = n_before;
    pcre2_match_data_free(e.match);
    spl_bpe_work_free(&e.work);
    spl_buf_free(&e.normal);
    free(e.cache);
    return st;
}

const char *spl_tokenizer_bytes(const spl_tokenizer *t, uint32_t id, size_t *n_bytes, bool *special) {
    *n_bytes = 0;
    if (special) *special = false;
    if (id >= t->n_tokens) return NULL;
    if (t->added_of[id]) {
        const spl_added_token *token = &t->added[t->added_of[id] - 1];
        *n_bytes = token->n_bytes;
        if (special) *special = token->special;
        return token->text;
    }
    if (t->texts[id].offset == UINT32_MAX) return NULL;
    *n_bytes = t->texts[id].n_bytes;
    return t->blob + t->texts[id].offset;
}

bool spl_tokenizer_find(const spl_tokenizer *t, const char *added_token_text, uint32_t *id) {
    for (size_t i = 0; i < t->n_added; i++) {
        if (strcmp(t->added[i].text, added_token_text) == 0) {
            *id = t->added[i].id;
            return true;
        }
    }
    return false;
}

uint32_t spl_tokenizer_n_tokens(const spl_tokenizer *t) { return t->n_tokens; }
