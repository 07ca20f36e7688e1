/* SPDX-License-Identifier: Apache-2.0
 * The byte-level BPE tokenizer of the Qwen3 and Qwen3.5 families, read from a Hugging Face
 * tokenizer.json (and the added tokens of tokenizer_config.json). Pipeline: added tokens are cut out,
 * the rest is brought to NFC, split by the published pattern, and merged byte pair by byte pair.
 * A loaded tokenizer never changes: any number of threads may use one at the same time. */
#ifndef SPL_TEXT_TOKENIZER_H
#define SPL_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    SPL_TOKENIZER_MAX_FILE_BYTES = 64 << 20,  /* tokenizer.json; the 248k family has about 20 MB */
    SPL_TOKENIZER_MAX_CONFIG_BYTES = 4 << 20, /* tokenizer_config.json */
    SPL_TOKENIZER_MAX_TOKENS = 1 << 20,       /* ids are below this; merges are at most this many */
    SPL_TOKENIZER_MAX_TOKEN_BYTES = 4096,     /* one token's text */
    SPL_TOKENIZER_MAX_ADDED = 4096,           /* added tokens */
    SPL_TOKENIZER_MAX_TEXT_BYTES = 256 << 20, /* text of one encode call */
};

/* A growing list of token ids; start with {0}. */
typedef struct spl_token_list {
    uint32_t *ids;
    size_t n_ids;
    size_t capacity;
} spl_token_list;

spl_status spl_token_list_add(spl_token_list *list, const uint32_t *ids, size_t n_ids, spl_error *err);
void spl_token_list_free(spl_token_list *list);

typedef struct spl_tokenizer spl_tokenizer;

/* Loads the files; config_path may be NULL. *out is NULL after a failure. The error names the file, the field and the
 * rule: SPL_E_FORMAT for malformed files, SPL_E_UNSUPPORTED for sound ones of another family, SPL_E_LIMIT beyond the
 * limits above. */
spl_status spl_tokenizer_load(spl_tokenizer **out, const char *tokenizer_json_path, const char *config_path_or_null,
                              spl_error *err);
/* The same from memory; config may be NULL. The texts are not kept. */
spl_status spl_tokenizer_parse(spl_tokenizer **out, const char *json, size_t n_bytes, const char *config,
                               size_t n_config_bytes, spl_error *err);
void spl_tokenizer_close(spl_tokenizer *t); /* accepts NULL */

/* Appends the tokens of `text` to *out. parse_added: texts of added tokens become those tokens;
 * otherwise they are ordinary text. Invalid UTF-8 is SPL_E_FORMAT naming the byte offset (see
 * spl_utf8_sanitise). After a failure *out holds what it held before. */
spl_status spl_tokenizer_encode(const spl_tokenizer *t, const char *text, size_t n_bytes, bool parse_added,
                                spl_token_list *out, spl_error *err);

/* Raw bytes of a token (an added token: its text), not NUL-terminated, owned by the tokenizer; NULL for an id that
 * names no token. *special (may be NULL) tells whether decoding hides it on request. */
const char *spl_tokenizer_bytes(const spl_tokenizer *t, uint32_t id, size_t *n_bytes, bool *special);
/* The id of the added token with exactly this text. */
bool spl_tokenizer_find(const spl_tokenizer *t, const char *added_token_text, uint32_t *id);
/* Largest id plus one; ids below it may be unused. */
uint32_t spl_tokenizer_n_tokens(const spl_tokenizer *t);

#endif
