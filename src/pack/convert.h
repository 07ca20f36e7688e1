/* SPDX-License-Identifier: Apache-2.0
 * Turns planned source rows into stored bytes, one unit (a run of panels or rows of one tensor) at a
 * time. A converter is one thread's scratch; units are independent of each other, so any thread may
 * convert any unit and the bytes are the same. */
#ifndef SPL_PACK_CONVERT_H
#define SPL_PACK_CONVERT_H

#include "pack/source.h"

/* A contiguous run of stored bytes. */
typedef struct pack_unit {
    uint32_t tensor;   /* index into the manifest's tensors */
    uint64_t first, n; /* panels of 16 rows, rows, or the whole of a small tensor (n = 1) */
    uint64_t offset;   /* in the weight file */
    uint64_t n_bytes;
} pack_unit;

/* Walks the units of one file in the order of their bytes. Start from {0}. */
typedef struct pack_cursor {
    uint32_t tensor;
    uint64_t next;
} pack_cursor;
bool pack_next_unit(const pack_source *s, spl_file_id file, pack_cursor *cursor, pack_unit *out);
/* Largest n_bytes of any unit of the package. */
uint64_t pack_largest_unit_bytes(const pack_source *s);

typedef struct pack_converter pack_converter;
spl_status pack_converter_new(pack_converter **out, const pack_source *s, spl_error *err);
void pack_converter_free(pack_converter *c); /* accepts NULL */
/* Writes unit->n_bytes to `to`. */
spl_status pack_convert(pack_converter *c, const pack_unit *unit, uint8_t *to, spl_error *err);

#endif
