/* SPDX-License-Identifier: Apache-2.0
 * The two rates that bound everything here: sequential reads of memory and int8 products of the kernel tier, each with
 * all threads at once. For amx, whose products are tiles, those of vectors are measured too: what other machines have,
 * and a fairer measure of work in groups of 64 that are scaled by vectors. Reads are made as the compiler makes them
 * and with prefetches 4 KiB ahead; the faster counts, for on some machines the first is a quarter short of what the
 * weights themselves come in at. They move with the neighbours of a shared machine, so every result carries the ones of
 * its own run. */
#ifndef SPL_BENCH_ROOF_H
#define SPL_BENCH_ROOF_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/thread_team.h"
#include "kernels/kernels.h"

/* A buffer larger than the caches, in 2 MiB pages where the system has them. */
typedef struct spl_roof {
    spl_team *team; /* borrowed */
    spl_tier tier;
    uint8_t *memory;
    size_t n_bytes, mapped_bytes;
    void *mapping;
} spl_roof;

/* Maps and touches the buffer. SPL_E_NOMEM when there is none. The roof is closed by spl_roof_close in any case. */
spl_status spl_roof_open(spl_roof *roof, spl_team *team, spl_tier tier, spl_error *err);
void spl_roof_close(spl_roof *roof);

/* One reading each: GB/s of the faster of two passes over the buffer, GMAC/s of a few milliseconds of products. */
double spl_roof_read(spl_roof *roof);
double spl_roof_dot(spl_roof *roof);
double spl_roof_vector_dot(spl_roof *roof); /* 0: the tier's products are vectors already */

/* Median, smallest and largest of several readings. */
typedef struct spl_roof_rates {
    double read_gb, read_gb_min, read_gb_max;       /* GB/s, all threads together */
    double int8_gmac, int8_gmac_min, int8_gmac_max; /* GMAC/s */
    double vector_gmac;                             /* GMAC/s, or 0 */
} spl_roof_rates;

/* Measures both with n_threads threads, about a quarter of a second; uses 512 MiB for that long. */
spl_status spl_roof_measure(uint32_t n_threads, spl_tier tier, spl_roof_rates *out, spl_error *err);

/* The same as a JSON object of the caller: read_gb_per_second[_min, _max], int8_gmac_per_second[_min, _max],
 * where it is known int8_vector_gmac_per_second. */
spl_status spl_roof_json(uint32_t n_threads, spl_tier tier, json_t **out, spl_error *err);

/* Anonymous memory of n bytes, 2 MiB aligned, huge pages asked for; NULL when there is none. */
void *spl_bench_map(size_t n, void **mapping, size_t *mapped_bytes);
void spl_bench_unmap(void *mapping, size_t mapped_bytes); /* accepts NULL */

/* Products of one tier, one function per roof_<tier>.c: runs `rounds` rounds of 12 products (amx: 6 of tiles) and
 * returns a value that depends on all of them. bytes: 1024 readable bytes. */
uint64_t spl_roof_dots_avx2(const uint8_t *bytes, uint64_t rounds);
uint64_t spl_roof_dots_avxvnni(const uint8_t *bytes, uint64_t rounds);
uint64_t spl_roof_dots_avx512vnni(const uint8_t *bytes, uint64_t rounds);
enum { SPL_ROOF_TILES = 6 }; /* tile products of a round */
uint64_t spl_roof_dots_amx(const uint8_t *bytes, uint64_t rounds);
uint64_t spl_roof_dots_neon(const uint8_t *bytes, uint64_t rounds);
uint64_t spl_roof_dots_neon_dotprod(const uint8_t *bytes, uint64_t rounds);
uint64_t spl_roof_dots_neon_i8mm(const uint8_t *bytes, uint64_t rounds);

#endif
