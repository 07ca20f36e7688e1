/* SPDX-License-Identifier: Apache-2.0
 * A safetensors file from its first byte: length, header, ranges. Whatever is accepted must lie
 * inside the file and be findable by name. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pack/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void parse(const uint8_t *data, size_t n_header, uint64_t file_bytes) {
    spl_st_list list = {0};
    spl_error err;
    spl_status st = spl_st_parse(&list, 0, (const char *)data, n_header, file_bytes, "input", &err);
    if (st == SPL_OK) st = spl_st_finish(&list, &err);
    for (uint32_t i = 0; st == SPL_OK && i < list.n; i++) {
        const spl_st_tensor *t = &list.items[i];
        if (t->offset < 8 + n_header || t->n_bytes > file_bytes || t->offset > file_bytes - t->n_bytes) abort();
        if (spl_st_find(&list, t->name) != t) abort();
    }
    spl_st_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    spl_error err;
    uint64_t n_header;
    if (n_bytes < 10) return 0;
    if (spl_st_header_bytes(data, n_bytes, "input", &n_header, &err) == SPL_OK) {
        parse(data + 8, (size_t)n_header, n_bytes);
        parse(data + 8, (size_t)n_header, (uint64_t)1 << 40); /* as if the data were all there */
    }
    return 0;
}
