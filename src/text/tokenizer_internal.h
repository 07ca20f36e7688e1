/* SPDX-License-Identifier: Apache-2.0
 * What the loader builds and the encoder reads. Private to src/text. */
#ifndef SPL_TEXT_TOKENIZER_INTERNAL_H
#define SPL_TEXT_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/bpe.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

typedef struct spl_added_token {
    char *text; /* malloc'ed, NUL-terminated */
    size_t n_bytes;
    char *match; /* what is looked for: the text, or its NFC when `normalized`; malloc'ed */
    size_t n_match;
    uint32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
} spl_added_token;

typedef struct spl_token_text {
    uint32_t offset; /* into spl_tokenizer.blob; UINT32_MAX: the id is unused or an added token */
    uint32_t n_bytes;
} spl_token_text;

/* Added tokens of one kind for leftmost-longest search: those that begin with byte b are
 * order[first[b] .. first[b + 1]), longest first. */
typedef struct spl_added_index {
    uint16_t first[257];
    uint16_t *order;
} spl_added_index;

struct spl_tokenizer {
    spl_bpe bpe;
    char *blob; /* raw bytes of all ordinary tokens */
    spl_token_text *texts;
    uint16_t *added_of; /* per id: index into `added` plus one, or 0 */
    uint32_t n_tokens;
    spl_added_token *added;
    size_t n_added;
    spl_added_index raw;        /* tokens matched before normalisation */
    spl_added_index normalized; /* tokens matched after it */
    spl_nfc *nfc;               /* NULL: the file has no normaliser */
    pcre2_code *pattern;
    pcre2_match_context *match_context;
    bool jit;
};

#endif
