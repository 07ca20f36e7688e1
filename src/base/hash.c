/* SPDX-License-Identifier: Apache-2.0
 * SHA-256 over libcrypto. A digest object belongs to its caller until finish or free. */
#include "base/hash.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>

struct spl_sha256 {
    EVP_MD_CTX *context;
    bool failed;
};

spl_status spl_sha256_new(spl_sha256 **out, spl_error *err) {
    spl_sha256 *h = calloc(1, sizeof *h);
    if (h) h->context = EVP_MD_CTX_new();
    if (!h || !h->context || EVP_DigestInit_ex(h->context, EVP_sha256(), NULL) != 1) {
        spl_sha256_free(h);
        return spl_fail(err, SPL_E_NOMEM, "no memory for a SHA-256 digest");
    }
    *out = h;
    return SPL_OK;
}

void spl_sha256_update(spl_sha256 *h, const void *data, size_t n_bytes) {
    if (EVP_DigestUpdate(h->context, data, n_bytes) != 1) h->failed = true;
}

spl_status spl_sha256_finish(spl_sha256 *h, char hex[SPL_SHA256_HEX_BYTES], spl_error *err) {
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n_digest = 0;
    bool good = !h->failed && EVP_DigestFinal_ex(h->context, digest, &n_digest) == 1 && n_digest == SPL_SHA256_BYTES;
    spl_sha256_free(h);
    if (!good) return spl_fail(err, SPL_E_INTERNAL, "SHA-256 failed");
    for (unsigned i = 0; i < SPL_SHA256_BYTES; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[64] = '\0';
    return SPL_OK;
}

void spl_sha256_free(spl_sha256 *h) {
    if (!h) return;
    EVP_MD_CTX_free(h->context);
    free(h);
}

spl_status spl_sha256_hex(const void *data, size_t n_bytes, char hex[SPL_SHA256_HEX_BYTES], spl_error *err) {
    spl_sha256 *h = NULL;
    spl_status st = spl_sha256_new(&h, err);
    if (st != SPL_OK) return st;
    spl_sha256_update(h, data, n_bytes);
    return spl_sha256_finish(h, hex, err);
}
