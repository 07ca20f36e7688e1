/* SPDX-License-Identifier: Apache-2.0
 * The two rates that bound everything here: sequential reads of memory and int8 products of the kernel tier, each with
 * all threads at once. For amx, whose products are tiles, those of vectors are measured too: what other machines have,
 * and a fairer measure of work in groups of 64 that are scaled by vectors. They move with the neighbours of a shared
 * machine, so every result carries the ones of its own run.
 *
 * A rate of reading is of so much memory: what lies in caches or in the translations a core remembers (2,048 of 2 MiB
 * on many) comes faster. So a model's roof is read from its own weights, all of them each time, in turn with the steps
 * it is compared with. It is the fastest of several ways to read. */
#ifndef SPL_BENCH_ROOF_H
#define SPL_BENCH_ROOF_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/thread_team.h"
#include "kernels/kernels.h"

/* Ways to read: as the compiler makes it; with prefetches near and far; in two runs side by side. */
enum { SPL_ROOF_WAYS = 3, SPL_ROOF_READINGS = 512 /* further ones are dropped */ };

/* Memory to read that belongs to someone else; { NULL, 0 }: none. */
typedef struct spl_roof_memory {
    const uint8_t *data;
    size_t n_bytes;
} spl_roof_memory;

typedef struct spl_roof {
    spl_team *team; /* borrowed */
    spl_tier tier;
    spl_roof_memory memory;
    void *mapping;
    size_t mapped_bytes;
    uint64_t taken_ns;                                        /* when the last reading ended */
    uint32_t n;                                               /* readings */
    double read[SPL_ROOF_WAYS][SPL_ROOF_READINGS];            /* GB/s */
    double dot[SPL_ROOF_READINGS], vector[SPL_ROOF_READINGS]; /* GMAC/s */
} spl_roof;

enum { SPL_ROOF_LEAST_BYTES = 1 << 30 };

/* Reads `over`, which outlives the roof; where that is less than SPL_ROOF_LEAST_BYTES, a buffer of the roof's own of
 * n_own bytes (0: SPL_ROOF_LEAST_BYTES), in 2 MiB pages where the system has them. SPL_E_NOMEM when there is none.
 * The roof is closed by spl_roof_close in any case. */
spl_status spl_roof_open(spl_roof *roof, spl_team *team, spl_tier tier, spl_roof_memory over, size_t n_own,
                         spl_error *err);
void spl_roof_close(spl_roof *roof);

/* Takes one reading: all of the memory once, the ways in turn, and some milliseconds of products. */
void spl_roof_take(spl_roof *roof);
/* The same where the last one is half a second old: between the parts of what is measured, so that both meet the same
 * neighbours. */
void spl_roof_take_due(spl_roof *roof);

/* Median, smallest and largest of the readings; of reading memory, those of the way with the best median. */
typedef struct spl_roof_rates {
    double read_gb, read_gb_min, read_gb_max;       /* GB/s, all threads together */
    double int8_gmac, int8_gmac_min, int8_gmac_max; /* GMAC/s */
    double vector_gmac;                             /* GMAC/s by vectors, or 0: the tier's products are vectors */
    uint64_t read_bytes;                            /* of the memory that was read */
} spl_roof_rates;

/* At least one reading was taken. */
spl_roof_rates spl_roof_result(const spl_roof *roof);

/* Measures everything with n_threads threads over n_own bytes (0 as above). */
spl_status spl_roof_measure(uint32_t n_threads, spl_tier tier, size_t n_own, spl_roof_rates *out, spl_error *err);

/* As members of j: read_gb_per_second[_min, _max], read_bytes, int8_gmac_per_second[_min, _max] and, where it is
 * known, int8_vector_gmac_per_second. False without memory. */
bool spl_roof_put(json_t *j, const spl_roof_rates *r);

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
