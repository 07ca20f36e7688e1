/* SPDX-License-Identifier: Apache-2.0
 * A small tokenizer for the tests of src/text: the 256 bytes (token id = byte), the merges given,
 * and three added tokens at ADDED_FIRST. Parts of a merge are written in the byte alphabet. */
#ifndef SPL_TEST_TEXT_SUPPORT_H
#define SPL_TEST_TEXT_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"
#include "text/unicode.h"

enum { ADDED_FIRST = 1000 };

#define SMALL_PATTERN                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"   \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static inline void small_spell(unsigned byte, char out[5]) {
    static const unsigned gaps[] = {0x21, 0x7f, 0xa1, 0xad, 0xae};
    unsigned code = byte;
    if (byte < gaps[0])
        code = 256 + byte;
    else if (byte >= gaps[1] && byte < gaps[2])
        code = 256 + 0x21 + byte - gaps[1];
    else if (byte == gaps[3])
        code = 256 + 0x21 + 0x22;
    memset(out, 0, 5);
    (void)spl_utf8_put(out, code);
}

/* The document; `merges` are "left right" strings, ended by NULL. Merged tokens get ids from 256. */
static inline json_t *small_document(const char *const *merges) {
    json_t *vocab = json_object();
    json_t *list = json_array();
    json_t *added = json_array();
    for (unsigned b = 0; b < 256; b++) {
        char text[5];
        small_spell(b, text);
        json_object_set_new(vocab, text, json_integer(b));
    }
    for (size_t i = 0; merges && merges[i]; i++) {
        char whole[256];
        const char *space = strchr(merges[i], ' ');
        size_t n = (size_t)(space - merges[i]);
        memcpy(whole, merges[i], n);
        strcpy(whole + n, space + 1);
        json_array_append_new(list, json_string(merges[i]));
        if (!json_object_get(vocab, whole)) json_object_set_new(vocab, whole, json_integer((json_int_t)(256 + i)));
    }
    static const char *const texts[] = {"<|im_end|>", "<think>", "<think>>"};
    for (int i = 0; i < 3; i++)
        json_array_append_new(added, json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", ADDED_FIRST + i, "content",
                                               texts[i], "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0,
                                               "special", i == 0));
    return json_pack(
        "{s:s,s:o,s:{s:s},s:{s:s,s:[{s:s,s:{s:s},s:s,s:b},{s:s,s:b,s:b,s:b}]},s:n,s:{s:s},s:{s:s,s:o,s:o}}", "version",
        "1.0", "added_tokens", added, "normalizer", "type", "NFC", "pre_tokenizer", "type", "Sequence", "pretokenizers",
        "type", "Split", "pattern", "Regex", SMALL_PATTERN, "behavior", "Isolated", "invert", 0, "type", "ByteLevel",
        "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0, "post_processor", "decoder", "type", "ByteLevel",
        "model", "type", "BPE", "vocab", vocab, "merges", list);
}

/* Loads a document (and gives it back); the status and error are the caller's to judge. */
static inline spl_status small_load(json_t *document, const char *config, spl_tokenizer **t, spl_error *err) {
    char *text = json_dumps(document, JSON_COMPACT);
    spl_status st = spl_tokenizer_parse(t, text, strlen(text), config, config ? strlen(config) : 0, err);
    free(text);
    json_decref(document);
    return st;
}

static inline spl_tokenizer *small_tokenizer(const char *const *merges) {
    spl_error err;
    spl_tokenizer *t = NULL;
    spl_status st = small_load(small_document(merges), NULL, &t, &err);
    if (st != SPL_OK) fail_msg("%s", err.text);
    return t;
}

#endif
