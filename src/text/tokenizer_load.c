/* SPDX-License-Identifier: Apache-2.0
 * Reads tokenizer.json and tokenizer_config.json into a spl_tokenizer. Nothing in the files is
 * trusted: every field is checked before use, and what this family does not use (an unknown token,
 * byte fallback, dropout, another pattern) is refused by name instead of being ignored. */
#include <stdlib.h>
#include <string.h>

#include "base/file_map.h"
#include "base/json.h"
#include "text/tokenizer_internal.h"

typedef struct loader {
    spl_tokenizer *t;
    json_t *vocab;        /* object: spelling -> id, borrowed */
    size_t blob_capacity; /* bytes allocated for t->blob */
    spl_error *err;
} loader;

/* The published patterns. PCRE2's \s has U+180E, Oniguruma's does not, so white space is spelled out
 * here: controls 9..13, U+0085 and the separator categories. */
#define SPACE "\\x{09}-\\x{0d}\\x{85}\\p{Z}"
static const struct {
    const char *published;
    const char *ours;
} patterns[] = {
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" SPACE
     "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|[" SPACE
     "]*[\\r\\n]+|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"},
};

static spl_status unsupported(loader *l, const char *what) {
    return spl_fail(l->err, SPL_E_UNSUPPORTED, "tokenizer.json: %s; only byte-level BPE of the Qwen3 family is read",
                    what);
}

static bool has_type(const json_t *object, const char *type) {
    const char *text = json_string_value(json_object_get(object, "type"));
    return text && strcmp(text, type) == 0;
}

/* True when the member is absent, null or false. */
static bool is_off(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return !v || json_is_null(v) || json_is_false(v);
}

/* True when the member is absent, null or the empty string. */
static bool is_empty(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return !v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0);
}

/* ---- pipeline: normaliser, pattern, decoder ---- */

static spl_status compile_pattern(loader *l, const char *published) {
    const char *ours = NULL;
    for (size_t i = 0; i < SPL_COUNT(patterns); i++) {
        if (strcmp(published, patterns[i].published) == 0) ours = patterns[i].ours;
    }
    if (!ours) return unsupported(l, "the pre-tokenizer's pattern is not a known one");
    int code;
    PCRE2_SIZE at;
    l->t->pattern = pcre2_compile((PCRE2_SPTR)ours, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK,
                                  &code, &at, NULL);
    l->t->match_context = pcre2_match_context_create(NULL);
    if (!l->t->pattern || !l->t->match_context)
        return spl_fail(l->err, SPL_E_NOMEM, "cannot compile the pre-tokenizer's pattern (PCRE2 error %d)", code);
    /* The pattern is linear; PCRE2's default limit of ten million steps would refuse long runs of white space. */
    (void)pcre2_set_match_limit(l->t->match_context, UINT32_MAX);
    l->t->jit = pcre2_jit_compile(l->t->pattern, PCRE2_JIT_COMPLETE) == 0;
    return SPL_OK;
}

static spl_status read_pre_tokenizer(loader *l, const json_t *root) {
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const json_t *list = json_object_get(pre, "pretokenizers");
    const json_t *split = json_array_get(list, 0);
    const json_t *bytes = json_array_get(list, 1);
    if (!has_type(pre, "Sequence") || json_array_size(list) != 2 || !has_type(split, "Split") ||
        !has_type(bytes, "ByteLevel"))
        return unsupported(l, "'pre_tokenizer' must be a Sequence of Split and ByteLevel");
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (!behavior || strcmp(behavior, "Isolated") != 0 || !is_off(split, "invert"))
        return unsupported(l, "the Split pre-tokenizer must be Isolated and not inverted");
    if (!is_off(bytes, "add_prefix_space") || !json_is_false(json_object_get(bytes, "use_regex")))
        return unsupported(l, "the ByteLevel pre-tokenizer must have add_prefix_space and use_regex false");
    const json_t *pattern = json_object_get(json_object_get(split, "pattern"), "Regex");
    if (!json_is_string(pattern) || strlen(json_string_value(pattern)) != json_string_length(pattern))
        return unsupported(l, "the Split pre-tokenizer must have a Regex pattern");
    return compile_pattern(l, json_string_value(pattern));
}

static spl_status read_pipeline(loader *l, const json_t *root) {
    const json_t *version = json_object_get(root, "version");
    if (!json_is_string(version) || strcmp(json_string_value(version), "1.0") != 0)
        return unsupported(l, "'version' must be \"1.0\"");
    const json_t *normalizer = json_object_get(root, "normalizer");
    const json_t *steps = json_object_get(normalizer, "normalizers");
    if (has_type(normalizer, "Sequence") && json_array_size(steps) == 1) normalizer = json_array_get(steps, 0);
    if (normalizer && !json_is_null(normalizer)) {
        if (!has_type(normalizer, "NFC")) return unsupported(l, "'normalizer' must be NFC");
        spl_status st = spl_nfc_new(&l->t->nfc, l->err);
        if (st != SPL_OK) return st;
    }
    const json_t *post = json_object_get(root, "post_processor");
    if (post && !json_is_null(post) && !has_type(post, "ByteLevel"))
        return unsupported(l, "'post_processor' must be null or ByteLevel");
    if (!has_type(json_object_get(root, "decoder"), "ByteLevel")) return unsupported(l, "'decoder' must be ByteLevel");
    return read_pre_tokenizer(l, root);
}

/* ---- vocabulary ---- */

/* Byte of each code point of the GPT-2 byte alphabet; -1 outside it. */
static void byte_alphabet(int16_t byte_of[512]) {
    for (int i = 0; i < 512; i++) byte_of[i] = -1;
    int16_t next = 256;
    for (int16_t b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        byte_of[printable ? b : next++] = b;
    }
}

/* Writes the raw bytes of a spelling and returns their number; a spelling with a character outside
 * the alphabet stands for its own UTF-8 bytes. */
static size_t decode_spelling(const int16_t byte_of[512], const char *spelling, size_t n_bytes, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < n_bytes;) {
        size_t used;
        uint32_t cp;
        if (spl_utf8_next(spelling + i, n_bytes - i, &used, &cp) != SPL_UTF8_CHAR || cp >= 512 || byte_of[cp] < 0) {
            memcpy(out, spelling, n_bytes);
            return n_bytes;
        }
        out[n++] = (char)byte_of[cp];
        i += used;
    }
    return n;
}

static spl_status check_id(loader *l, const json_t *id, const char *what) {
    if (!json_is_integer(id) || json_integer_value(id) < 0)
        return spl_fail(l->err, SPL_E_FORMAT, "%s: the id must be a non-negative integer", what);
    if (json_integer_value(id) >= SPL_TOKENIZER_MAX_TOKENS)
        return spl_fail(l->err, SPL_E_LIMIT, "%s: id %lld is too large; ids must be below %d", what,
                        (long long)json_integer_value(id), SPL_TOKENIZER_MAX_TOKENS);
    return SPL_OK;
}

/* Largest id and total spelling bytes of the vocabulary. */
static spl_status measure_vocab(loader *l, uint32_t *n_ids, size_t *n_bytes) {
    const char *spelling;
    json_t *id;
    if (json_object_size(l->vocab) == 0 || json_object_size(l->vocab) > SPL_TOKENIZER_MAX_TOKENS)
        return spl_fail(l->err, SPL_E_LIMIT, "tokenizer.json: 'vocab' has %zu entries; 1 to %d are read",
                        json_object_size(l->vocab), SPL_TOKENIZER_MAX_TOKENS);
    json_object_foreach(l->vocab, spelling, id) {
        spl_status st = check_id(l, id, "tokenizer.json: 'vocab'");
        if (st != SPL_OK) return st;
        size_t n = strlen(spelling);
        if (n == 0 || n > SPL_TOKENIZER_MAX_TOKEN_BYTES)
            return spl_fail(l->err, SPL_E_LIMIT, "tokenizer.json: token %lld has %zu bytes; 1 to %d are read",
                            (long long)json_integer_value(id), n, SPL_TOKENIZER_MAX_TOKEN_BYTES);
        *n_bytes += n;
        if ((uint32_t)json_integer_value(id) >= *n_ids) *n_ids = (uint32_t)json_integer_value(id) + 1;
    }
    return SPL_OK;
}

static spl_status fill_vocab(loader *l) {
    int16_t byte_of[512];
    byte_alphabet(byte_of);
    const char *spelling;
    json_t *value;
    size_t at = 0;
    for (int b = 0; b < 256; b++) l->t->bpe.byte_id[b] = SPL_BPE_NONE;
    json_object_foreach(l->vocab, spelling, value) {
        uint32_t id = (uint32_t)json_integer_value(value);
        spl_token_text *text = &l->t->texts[id];
        if (text->offset != UINT32_MAX)
            return spl_fail(l->err, SPL_E_FORMAT, "tokenizer.json: id %u is given to two tokens", id);
        text->offset = (uint32_t)at;
        text->n_bytes = (uint32_t)decode_spelling(byte_of, spelling, strlen(spelling), l->t->blob + at);
        at += text->n_bytes;
        size_t used;
        uint32_t cp;
        if (spl_utf8_next(spelling, strlen(spelling), &used, &cp) == SPL_UTF8_CHAR && spelling[used] == '\0' &&
            cp < 512 && byte_of[cp] >= 0)
            l->t->bpe.byte_id[byte_of[cp]] = id;
    }
    for (int b = 0; b < 256; b++) {
        if (l->t->bpe.byte_id[b] == SPL_BPE_NONE)
            return spl_fail(l->err, SPL_E_FORMAT, "tokenizer.json: 'vocab' has no token for byte 0x%02x", (unsigned)b);
    }
    return SPL_OK;
}

/* ---- merges ---- */

static spl_status token_id(loader *l, const char *spelling, size_t merge, uint32_t *id) {
    const json_t *v = json_object_get(l->vocab, spelling);
    if (!v)
        return spl_fail(l->err, SPL_E_FORMAT, "tokenizer.json: merge %zu needs the token '%.64s', which 'vocab' lacks",
                        merge, spelling);
    *id = (uint32_t)json_integer_value(v);
    return SPL_OK;
}

/* Splits one merge, in either spelling, into its parts; both point into `buffer`. */
static spl_status split_merge(loader *l, const json_t *merge, size_t index, char *buffer, const char **left,
                              const char **right) {
    const json_t *a = json_array_get(merge, 0);
    const json_t *b = json_array_get(merge, 1);
    const char *text = json_string_value(merge);
    size_t n_left = json_string_length(a);
    size_t n_right = json_string_length(b);
    if (text) {
        const char *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' ') || strlen(text) != json_string_length(merge))
            return spl_fail(l->err, SPL_E_FORMAT, "tokenizer.json: merge %zu must be two tokens and one space", index);
        n_left = (size_t)(space - text);
        n_right = strlen(space + 1);
        a = b = NULL;
    } else if (json_array_size(merge) != 2 || !json_is_string(a) || !json_is_string(b)) {
        return spl_fail(l->err, SPL_E_FORMAT, "tokenizer.json: merge %zu must be a string or a pair of strings", index);
    }
    if (n_left > SPL_TOKENIZER_MAX_TOKEN_BYTES || n_right > SPL_TOKENIZER_MAX_TOKEN_BYTES)
        return spl_fail(l->err, SPL_E_LIMIT, "tokenizer.json: merge %zu has a part beyond %d bytes", index,
                        SPL_TOKENIZER_MAX_TOKEN_BYTES);
    /* Layout: left NUL right NUL left-and-right NUL. */
    memcpy(buffer, a ? json_string_value(a) : text, n_left);
    buffer[n_left] = '\0';
    memcpy(buffer + n_left + 1, b ? json_string_value(b) : text + n_left + 1, n_right);
    buffer[n_left + 1 + n_right] = '\0';
    *left = buffer;
    *right = buffer + n_left + 1;
    if (strlen(*left) != n_left || strlen(*right) != n_right)
        return spl_fail(l->err, SPL_E_FORMAT, "tokenizer.json: merge %zu has a NUL character", index);
    return SPL_OK;
}

static spl_status read_merges(loader *l, const json_t *model) {
    json_t *merges;
    spl_status st = spl_json_array(model, "merges", &merges, "tokenizer.json: 'model'", l->err);
    if (st != SPL_OK) return st;
    size_t n = json_array_size(merges);
    if (n > SPL_TOKENIZER_MAX_TOKENS)
        return spl_fail(l->err, SPL_E_LIMIT, "tokenizer.json: %zu merges; at most %d are read", n,
                        SPL_TOKENIZER_MAX_TOKENS);
    uint32_t byte_id[256];
    memcpy(byte_id, l->t->bpe.byte_id, sizeof byte_id);
    st = spl_bpe_init(&l->t->bpe, n, l->err);
    memcpy(l->t->bpe.byte_id, byte_id, sizeof byte_id);
    char parts[2 * SPL_TOKENIZER_MAX_TOKEN_BYTES + 2];
    char whole[2 * SPL_TOKENIZER_MAX_TOKEN_BYTES + 1];
    for (size_t i = 0; st == SPL_OK && i < n; i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *left = parts;
        const char *right = parts;
        uint32_t id[3] = {0, 0, 0};
        if (json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0) continue;
        st = split_merge(l, merge, i, parts, &left, &right);
        if (st == SPL_OK) {
            size_t n_left = strlen(left);
            memcpy(whole, left, n_left);
            memcpy(whole + n_left, right, strlen(right) + 1);
            st = token_id(l, left, i, &id[0]);
        }
        if (st == SPL_OK) st = token_id(l, right, i, &id[1]);
        if (st == SPL_OK) st = token_id(l, whole, i, &id[2]);
        if (st == SPL_OK) spl_bpe_add(&l->t->bpe, id[0], id[1], (uint32_t)i, id[2]);
    }
    return st;
}

static spl_status read_model(loader *l, const json_t *root) {
    json_t *model;
    spl_status st = spl_json_object(root, "model", &model, "tokenizer.json", l->err);
    if (st != SPL_OK) return st;
    if (!has_type(model, "BPE")) return unsupported(l, "'model' must be of type BPE");
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0.0)
        return unsupported(l, "'model' has dropout");
    if (!is_empty(model, "continuing_subword_prefix") || !is_empty(model, "end_of_word_suffix"))
        return unsupported(l, "'model' has a subword prefix or suffix");
    if (!is_off(model, "unk_token") || !is_off(model, "fuse_unk") || !is_off(model, "byte_fallback") ||
        !is_off(model, "ignore_merges"))
        return unsupported(l, "'model' sets unk_token, fuse_unk, byte_fallback or ignore_merges");
    st = spl_json_object(model, "vocab", &l->vocab, "tokenizer.json: 'model'", l->err);
    size_t n_bytes = 0;
    if (st == SPL_OK) st = measure_vocab(l, &l->t->n_tokens, &n_bytes);
    if (st != SPL_OK) return st;
    /* Added tokens may raise the largest id, so the tables have room for every possible id. */
    l->t->blob = malloc(n_bytes);
    l->t->texts = malloc(SPL_TOKENIZER_MAX_TOKENS * sizeof *l->t->texts);
    l->t->added_of = calloc(SPL_TOKENIZER_MAX_TOKENS, sizeof *l->t->added_of);
    if (!l->t->blob || !l->t->texts || !l->t->added_of)
        return spl_fail(l->err, SPL_E_NOMEM, "no memory for a vocabulary of %u tokens", l->t->n_tokens);
    for (size_t i = 0; i < SPL_TOKENIZER_MAX_TOKENS; i++) l->t->texts[i] = (spl_token_text){UINT32_MAX, 0};
    st = fill_vocab(l);
    return st == SPL_OK ? read_merges(l, model) : st;
}

/* ---- added tokens ---- */

static spl_status read_flag(loader *l, const json_t *token, const char *key, bool missing, bool *out) {
    const json_t *v = json_object_get(token, key);
    if (v && !json_is_boolean(v))
        return spl_fail(l->err, SPL_E_FORMAT, "added token field '%s' must be true or false", key);
    *out = v ? json_is_true(v) : missing;
    return SPL_OK;
}

/* An added token may repeat a vocabulary entry, but then both must agree on the id and the text. */
static spl_status check_clash(loader *l, const spl_added_token *token) {
    const json_t *v = json_object_get(l->vocab, token->text);
    if (v && json_integer_value(v) != (json_int_t)token->id)
        return spl_fail(l->err, SPL_E_FORMAT, "added token '%.64s' has id %u but the vocabulary gives it id %lld",
                        token->text, token->id, (long long)json_integer_value(v));
    const spl_token_text *text = &l->t->texts[token->id];
    if (!v && text->offset != UINT32_MAX)
        return spl_fail(l->err, SPL_E_FORMAT, "added token '%.64s' takes id %u, which the vocabulary uses", token->text,
                        token->id);
    return SPL_OK;
}

/* Decides whether the token is new: sets *known when an equal one exists already. */
static spl_status check_known(loader *l, const spl_added_token *token, bool *known) {
    *known = false;
    for (size_t i = 0; i < l->t->n_added; i++) {
        const spl_added_token *other = &l->t->added[i];
        bool same_text = strcmp(other->text, token->text) == 0;
        if (same_text && other->id == token->id) *known = true;
        if (same_text != (other->id == token->id))
            return spl_fail(l->err, SPL_E_FORMAT, "added tokens '%.64s' (id %u) and '%.64s' (id %u) contradict",
                            other->text, other->id, token->text, token->id);
    }
    return SPL_OK;
}

/* The text to look for: its NFC when the token is matched in normalised text. */
static spl_status make_match(loader *l, spl_added_token *token) {
    spl_buf buf;
    spl_buf_init(&buf, 16 * SPL_TOKENIZER_MAX_TOKEN_BYTES);
    spl_status st = SPL_OK;
    if (token->normalized && l->t->nfc)
        st = spl_nfc_append(l->t->nfc, &buf, token->text, token->n_bytes, l->err);
    else
        (void)spl_buf_append(&buf, token->text, token->n_bytes);
    if (st == SPL_OK) {
        token->match = spl_buf_take(&buf, &token->n_match);
        if (!token->match) st = spl_fail(l->err, SPL_E_NOMEM, "no memory for an added token");
    }
    spl_buf_free(&buf);
    return st;
}

/* Adds one token. `id` comes from the object (tokenizer.json) or its key (tokenizer_config.json). */
static spl_status add_token(loader *l, const json_t *object, uint32_t id) {
    spl_added_token token = {.id = id};
    const json_t *content = json_object_get(object, "content");
    size_t n = json_string_length(content);
    if (!json_is_string(content) || n == 0 || n > SPL_TOKENIZER_MAX_TOKEN_BYTES ||
        strlen(json_string_value(content)) != n)
        return spl_fail(l->err, SPL_E_FORMAT, "added token %u: 'content' must be a string of 1 to %d bytes without NUL",
                        id, SPL_TOKENIZER_MAX_TOKEN_BYTES);
    spl_status st = read_flag(l, object, "special", false, &token.special);
    if (st == SPL_OK) st = read_flag(l, object, "single_word", false, &token.single_word);
    if (st == SPL_OK) st = read_flag(l, object, "lstrip", false, &token.lstrip);
    if (st == SPL_OK) st = read_flag(l, object, "rstrip", false, &token.rstrip);
    if (st == SPL_OK) st = read_flag(l, object, "normalized", !token.special, &token.normalized);
    if (st != SPL_OK) return st;
    if (l->t->n_added == SPL_TOKENIZER_MAX_ADDED)
        return spl_fail(l->err, SPL_E_LIMIT, "more than %d added tokens", SPL_TOKENIZER_MAX_ADDED);
    token.text = malloc(n + 1);
    if (!token.text) return spl_fail(l->err, SPL_E_NOMEM, "no memory for an added token");
    memcpy(token.text, json_string_value(content), n + 1);
    token.n_bytes = n;
    bool known = false;
    st = check_known(l, &token, &known);
    if (st == SPL_OK && !known) st = check_clash(l, &token);
    if (st == SPL_OK && !known) st = make_match(l, &token);
    if (st != SPL_OK || known) {
        free(token.text);
        return st;
    }
    l->t->added[l->t->n_added++] = token;
    l->t->added_of[id] = (uint16_t)l->t->n_added;
    if (id >= l->t->n_tokens) l->t->n_tokens = id + 1;
    return SPL_OK;
}

static spl_status read_added(loader *l, const json_t *root) {
    l->t->added = calloc(SPL_TOKENIZER_MAX_ADDED, sizeof *l->t->added);
    if (!l->t->added) return spl_fail(l->err, SPL_E_NOMEM, "no memory for the added tokens");
    const json_t *list = json_object_get(root, "added_tokens");
    if (!list || json_is_null(list)) return SPL_OK;
    if (!json_is_array(list))
        return spl_fail(l->err, SPL_E_FORMAT, "tokenizer.json field 'added_tokens' must be an array");
    spl_status st = SPL_OK;
    for (size_t i = 0; st == SPL_OK && i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i);
        const json_t *id = json_object_get(token, "id");
        st = check_id(l, id, "tokenizer.json: 'added_tokens'");
        if (st == SPL_OK) st = add_token(l, token, (uint32_t)json_integer_value(id));
    }
    return st;
}

static spl_status read_config(loader *l, const json_t *config) {
    if (!json_is_object(config)) return spl_fail(l->err, SPL_E_FORMAT, "tokenizer_config.json must be an object");
    json_t *decoder = json_object_get(config, "added_tokens_decoder");
    if (!decoder || json_is_null(decoder)) return SPL_OK;
    if (!json_is_object(decoder))
        return spl_fail(l->err, SPL_E_FORMAT, "tokenizer_config.json field 'added_tokens_decoder' must be an object");
    const char *key;
    json_t *token;
    spl_status st = SPL_OK;
    json_object_foreach(decoder, key, token) {
        uint32_t id = 0;
        size_t i = 0;
        for (; key[i] >= '0' && key[i] <= '9' && i < 7; i++) id = id * 10 + (uint32_t)(key[i] - '0');
        if (i == 0 || key[i] || id >= SPL_TOKENIZER_MAX_TOKENS)
            return spl_fail(l->err, SPL_E_FORMAT, "tokenizer_config.json: '%.32s' is no token id below %d", key,
                            SPL_TOKENIZER_MAX_TOKENS);
        st = add_token(l, token, id);
        if (st != SPL_OK) return st;
    }
    return SPL_OK;
}

/* Groups the tokens of one kind by first byte, longest first (insertion sort: few tokens). */
static spl_status build_index(loader *l, spl_added_index *index, bool normalized) {
    size_t n = 0;
    index->order = calloc(l->t->n_added + 1, sizeof *index->order);
    if (!index->order) return spl_fail(l->err, SPL_E_NOMEM, "no memory for the added tokens");
    for (unsigned b = 0; b < 256; b++) {
        index->first[b] = (uint16_t)n;
        for (size_t i = 0; i < l->t->n_added; i++) {
            const spl_added_token *token = &l->t->added[i];
            if (token->normalized != normalized || (uint8_t)token->match[0] != b) continue;
            size_t at = n++;
            while (at > index->first[b] && l->t->added[index->order[at - 1]].n_match < token->n_match) {
                index->order[at] = index->order[at - 1];
                at--;
            }
            index->order[at] = (uint16_t)i;
        }
    }
    index->first[256] = (uint16_t)n;
    return SPL_OK;
}

/* Gives back the room that was kept for ids that did not come. */
static void shrink(spl_tokenizer *t) {
    void *texts = realloc(t->texts, t->n_tokens * sizeof *t->texts);
    if (texts) t->texts = texts;
    void *added_of = realloc(t->added_of, t->n_tokens * sizeof *t->added_of);
    if (added_of) t->added_of = added_of;
}

spl_status spl_tokenizer_parse(spl_tokenizer **out, const char *json, size_t n_bytes, const char *config,
                               size_t n_config_bytes, spl_error *err) {
    json_t *root = NULL;
    json_t *side = NULL;
    loader l = {.t = calloc(1, sizeof(spl_tokenizer)), .err = err};
    *out = NULL;
    if (!l.t) return spl_fail(err, SPL_E_NOMEM, "no memory for a tokenizer");
    spl_status st = spl_json_parse(&root, json, n_bytes, SPL_TOKENIZER_MAX_FILE_BYTES, "tokenizer.json", err);
    if (st == SPL_OK && !json_is_object(root)) st = spl_fail(err, SPL_E_FORMAT, "tokenizer.json must be an object");
    if (st == SPL_OK) st = read_pipeline(&l, root);
    if (st == SPL_OK) st = read_model(&l, root);
    if (st == SPL_OK) st = read_added(&l, root);
    if (st == SPL_OK && config)
        st =
            spl_json_parse(&side, config, n_config_bytes, SPL_TOKENIZER_MAX_CONFIG_BYTES, "tokenizer_config.json", err);
    if (st == SPL_OK && side) st = read_config(&l, side);
    if (st == SPL_OK) st = build_index(&l, &l.t->raw, false);
    if (st == SPL_OK) st = build_index(&l, &l.t->normalized, true);
    json_decref(root);
    json_decref(side);
    if (st != SPL_OK) {
        spl_tokenizer_close(l.t);
        return st;
    }
    shrink(l.t);
    *out = l.t;
    return SPL_OK;
}

spl_status spl_tokenizer_load(spl_tokenizer **out, const char *tokenizer_json_path, const char *config_path_or_null,
                              spl_error *err) {
    char *json = NULL;
    char *config = NULL;
    size_t n_json = 0;
    size_t n_config = 0;
    *out = NULL;
    spl_status st = spl_read_file(tokenizer_json_path, SPL_TOKENIZER_MAX_FILE_BYTES, &json, &n_json, err);
    if (st != SPL_OK) return st;
    if (config_path_or_null)
        st = spl_read_file(config_path_or_null, SPL_TOKENIZER_MAX_CONFIG_BYTES, &config, &n_config, err);
    if (st == SPL_OK) {
        st = spl_tokenizer_parse(out, json, n_json, config, n_config, err);
        if (st != SPL_OK) (void)spl_fail_within(err, "%.200s", tokenizer_json_path);
    }
    free(json);
    free(config);
    return st;
}

void spl_tokenizer_close(spl_tokenizer *t) {
    if (!t) return;
    for (size_t i = 0; i < t->n_added; i++) {
        free(t->added[i].text);
        free(t->added[i].match);
    }
    free(t->added);
    free(t->raw.order);
    free(t->normalized.order);
    free(t->blob);
    free(t->texts);
    free(t->added_of);
    spl_bpe_free(&t->bpe);
    spl_nfc_free(t->nfc);
    pcre2_code_free(t->pattern);
    pcre2_match_context_free(t->match_context);
    free(t);
}
