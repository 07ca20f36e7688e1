/* SPDX-License-Identifier: Apache-2.0
 * Input: a tokenizer.json, optionally a NUL and a tokenizer_config.json, optionally a NUL and a text.
 * Whatever loads must encode the text and give back its bytes: the tokens' bytes put together are
 * the text after NFC whenever no added token is involved. */
#include <stdlib.h>
#include <string.h>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void check(bool condition) {
    if (!condition) abort();
}

static void round_trip(const spl_tokenizer *t, const char *text, size_t n_bytes) {
    spl_error err;
    spl_token_list list = {0};
    spl_buf clean;
    spl_buf normal;
    spl_buf decoded;
    spl_nfc *nfc = NULL;
    spl_buf_init(&clean, 1 << 24);
    spl_buf_init(&normal, 1 << 24);
    spl_buf_init(&decoded, 1 << 24);
    check(spl_utf8_sanitise(&clean, text, n_bytes) == SPL_OK);
    const char *p = clean.data ? clean.data : "";
    check(spl_tokenizer_encode(t, p, clean.n_bytes, true, &list, &err) == SPL_OK);
    list.n_ids = 0;
    check(spl_tokenizer_encode(t, p, clean.n_bytes, false, &list, &err) == SPL_OK);
    spl_detokenizer d;
    spl_detokenizer_init(&d, t, false);
    for (size_t i = 0; i < list.n_ids; i++) {
        size_t n;
        check(list.ids[i] < spl_tokenizer_n_tokens(t) && spl_tokenizer_bytes(t, list.ids[i], &n, NULL));
        check(spl_detokenizer_push(&d, list.ids[i], &decoded) == SPL_OK);
    }
    check(spl_detokenizer_flush(&d, &decoded) == SPL_OK);
    size_t bad;
    check(spl_utf8_valid(decoded.data ? decoded.data : "", decoded.n_bytes, &bad));
    /* NFC twice is NFC once. */
    if (spl_nfc_new(&nfc, &err) == SPL_OK && spl_nfc_append(nfc, &normal, p, clean.n_bytes, &err) == SPL_OK) {
        size_t once = normal.n_bytes;
        char *copy = malloc(once + 1);
        if (copy) {
            if (once) memcpy(copy, normal.data, once);
            check(spl_nfc_append(nfc, &normal, copy, once, &err) == SPL_OK);
            check(normal.n_bytes == 2 * once && (once == 0 || memcmp(normal.data + once, copy, once) == 0));
        }
        free(copy);
    }
    spl_nfc_free(nfc);
    spl_token_list_free(&list);
    spl_buf_free(&clean);
    spl_buf_free(&normal);
    spl_buf_free(&decoded);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    const char *json = (const char *)data;
    const char *end = json + n_bytes;
    const char *zero = n_bytes ? memchr(json, 0, n_bytes) : NULL;
    size_t n_json = zero ? (size_t)(zero - json) : n_bytes;
    const char *config = zero ? zero + 1 : NULL;
    zero = config ? memchr(config, 0, (size_t)(end - config)) : NULL;
    size_t n_config = config ? (size_t)((zero ? zero : end) - config) : 0;
    spl_error err;
    spl_tokenizer *t;
    spl_status st = spl_tokenizer_parse(&t, json, n_json, n_config ? config : NULL, n_config, &err);
    check((st == SPL_OK) == (t != NULL));
    if (!t) return 0;
    if (zero) round_trip(t, zero + 1, (size_t)(end - zero - 1));
    spl_tokenizer_close(t);
    return 0;
}
