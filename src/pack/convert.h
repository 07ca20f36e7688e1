/* SPDX-License-Identifier: Apache-2.0
 * Turns planned source rows into stored bytes, one unit (a run of panels or rows of one tensor) at a
 * time. A converter is one thread's scratch; units are independent of each other, so any thread may
 * convert any unit and the bytes are the same. */
#ifndef SPL_PACK_CONVERT_H
#define SPL_PACK_CONVERT_H

#include "pack/source.h"

/* A contiguous run of stored bytes. */
typedef struct spl_pack_unit {
    uint32_t tensor;   /* index into the manifest's tensors */
    uint64_t first, n; /* panels of 16 rows, rows, or the whole of a small tensor (n = 1) */
    uint64_t offset;   /* in the weight file */
    uint64_t n_bytes;
} spl_pack_unit;

/* Walks the units of one file in the order of their bytes. Start from {0}. */
typedef struct spl_pack_cursor {
    uint32_t tensor;
    uint64_t next;
} spl_pack_cursor;
bool spl_pack_next_unit(const spl_pack_source *s, spl_file_id file, spl_pack_cursor *cursor, spl_pack_unit *out);
/* Largest n_bytes of any unit of the package. */
uint64_t spl_pack_largest_unit_bytes(const spl_pack_source *s);

typedef struct spl_pack_converter spl_pack_converter;
spl_status spl_pack_converter_new(spl_pack_converter **out, const spl_pack_source *s, spl_error *err);
void spl_pack_converter_free(spl_pack_converter *c); /* accepts NULL */
/* Writes unit->n_bytes to `to`. */
spl_status spl_pack_convert(spl_pack_converter *c, const spl_pack_unit *unit, uint8_t *to, spl_error *err);

#endif
