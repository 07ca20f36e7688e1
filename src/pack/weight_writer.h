/* SPDX-License-Identifier: Apache-2.0
 * Writes one weight file of a package: converter threads fill slots ahead of the calling thread,
 * which hashes and writes them in file order, so the bytes do not depend on the threads. */
#ifndef SPL_PACK_WEIGHT_WRITER_H
#define SPL_PACK_WEIGHT_WRITER_H

#include "pack/source.h"

/* Called from the calling thread after each unit; a failure stops the writing. */
typedef spl_status (*spl_pack_advance)(void *user, const char *stage, uint64_t n_bytes, spl_error *err);

/* Writes everything but the header, which stays zero, and gives the digest of the bytes behind it.
 * The file is left open in *fd at return (also on failure, unless -1). */
spl_status spl_pack_write_weights(const spl_pack_source *s, spl_file_id file, const char *path, uint32_t n_threads,
                                  spl_pack_advance advance, void *user, int *fd, char sha256[SPL_SHA256_HEX_BYTES],
                                  spl_error *err);

#endif
