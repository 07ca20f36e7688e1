/* SPDX-License-Identifier: Apache-2.0
 * Stands in for libFuzzer: runs the fuzz target once per file named on the command line, so that
 * the stored corpora are replayed by every compiler. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file_map.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        char *data;
        size_t n_bytes;
        spl_error err;
        if (spl_read_file(argv[i], (size_t)1 << 26, &data, &n_bytes, &err) != SPL_OK) {
            (void)fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        (void)LLVMFuzzerTestOneInput((const uint8_t *)data, n_bytes);
        free(data);
    }
    (void)printf("%d inputs replayed\n", argc - 1);
    return 0;
}
