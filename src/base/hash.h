/* SPDX-License-Identifier: Apache-2.0
 * SHA-256 of files and manifests, by OpenSSL's EVP interface (hardware instructions where the CPU has them). */
#ifndef SPL_BASE_HASH_H
#define SPL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { SPL_SHA256_BYTES = 32, SPL_SHA256_HEX_BYTES = 65 };

typedef struct spl_sha256 spl_sha256; /* a running digest */

spl_status spl_sha256_new(spl_sha256 **out, spl_error *err);
void spl_sha256_update(spl_sha256 *h, const void *data, size_t n_bytes);
/* Finishes, frees `h` and writes 64 lower-case hex digits and a NUL. */
spl_status spl_sha256_finish(spl_sha256 *h, char hex[SPL_SHA256_HEX_BYTES], spl_error *err);
void spl_sha256_free(spl_sha256 *h); /* accepts NULL; for abandoned digests */
/* One call for a buffer in memory. */
spl_status spl_sha256_hex(const void *data, size_t n_bytes, char hex[SPL_SHA256_HEX_BYTES], spl_error *err);

#endif
