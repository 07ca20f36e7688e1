/* SPDX-License-Identifier: Apache-2.0
 * Read and int8 rates with all threads. Nothing may be optimised away: sums are stored per member behind a volatile
 * sink. */
#include "bench/roof.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/compiler.h"

enum {
    ROUNDS = 7,
    MAX_MEMBERS = 256,
    HUGE_PAGE = 2 << 20,
    RUN_BYTES = 45 * 1024,           /* of two runs side by side: a panel of 5,120 inputs */
    WINDOW_BYTES = 5760 * RUN_BYTES, /* read at once */
    NEAR_BYTES = 2304,
    FAR_BYTES = 4096,
    DOT_ROUNDS = 400 * 1000,
    CHAINS = 12
};
static const uint64_t DUE_NS = 500000000u;

static volatile atomic_uint_fast64_t sink;

void *spl_bench_map(size_t n, void **mapping, size_t *mapped_bytes) {
    *mapped_bytes = n + HUGE_PAGE;
    void *p = mmap(NULL, *mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *mapping = NULL;
    if (p == MAP_FAILED) return NULL;
    *mapping = p;
    void *aligned = (void *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
#ifdef MADV_HUGEPAGE
    (void)madvise(aligned, n, MADV_HUGEPAGE); /* a hint; small pages work too */
#endif
    return aligned;
}
void spl_bench_unmap(void *mapping, size_t mapped_bytes) {
    if (mapping) (void)munmap(mapping, mapped_bytes);
}

/* Member's part of n bytes, in runs. */
static void share_of(const spl_roof *roof, uint32_t member, size_t n_bytes, size_t *begin, size_t *end) {
    size_t n = spl_team_size(roof->team), runs = n_bytes / RUN_BYTES;
    *begin = runs * member / n * RUN_BYTES;
    *end = runs * (member + 1) / n * RUN_BYTES;
}

typedef struct touch_run {
    const spl_roof *roof;
    uint8_t *memory;
} touch_run;
static void touch(void *arg, uint32_t member) {
    const touch_run *run = arg;
    size_t begin, end;
    share_of(run->roof, member, run->roof->memory.n_bytes, &begin, &end);
    for (size_t i = begin; i < end; i += 64) memset(run->memory + i, (int)(i >> 6 & 255), 64);
}

static SPL_ALWAYS_INLINE void add_line(uint64_t sum[8], const uint8_t *line) {
    const uint64_t *p = (const uint64_t *)(const void *)line;
    for (int i = 0; i < 8; i++) sum[i] ^= p[i];
}
static SPL_ALWAYS_INLINE const void *ahead(const uint8_t *line, size_t n) {
    return (const void *)((uintptr_t)line + n);
}

/* [begin, end) are whole runs. */
static void read_plain(const uint8_t *begin, const uint8_t *end, uint64_t sum[8]) {
    for (const uint8_t *p = begin; p < end; p += 64) add_line(sum, p);
}
static void read_asking(const uint8_t *begin, const uint8_t *end, uint64_t sum[8]) {
    for (const uint8_t *p = begin; p < end; p += 64) {
        SPL_PREFETCH_T0(ahead(p, NEAR_BYTES));
        SPL_PREFETCH_T1(ahead(p, FAR_BYTES));
        add_line(sum, p);
    }
}
static void read_pairs(const uint8_t *begin, const uint8_t *end, uint64_t sum[8]) {
    for (; (size_t)(end - begin) >= 2 * RUN_BYTES; begin += 2 * RUN_BYTES)
        for (const uint8_t *p = begin; p < begin + RUN_BYTES; p += 64) {
            size_t near = p + NEAR_BYTES / 2 < begin + RUN_BYTES ? NEAR_BYTES / 2 : NEAR_BYTES / 2 + RUN_BYTES;
            SPL_PREFETCH_T0(ahead(p, near));
            SPL_PREFETCH_T0(ahead(p + RUN_BYTES, near));
            add_line(sum, p);
            add_line(sum, p + RUN_BYTES);
        }
    read_plain(begin, end, sum);
}

typedef void (*read_fn)(const uint8_t *begin, const uint8_t *end, uint64_t sum[8]);
static const read_fn WAYS[SPL_ROOF_WAYS] = {read_plain, read_asking, read_pairs};

typedef struct read_run {
    const spl_roof *roof;
    read_fn read;
    size_t at;
} read_run;
static void read_share(void *arg, uint32_t member) {
    const read_run *run = arg;
    const uint8_t *window = run->roof->memory.data + run->at;
    uint64_t sum[8] = {0};
    size_t begin, end;
    share_of(run->roof, member, WINDOW_BYTES, &begin, &end);
    run->read(window + begin, window + end, sum);
    for (int i = 1; i < 8; i++) sum[0] ^= sum[i];
    sink = sum[0];
}

/* For tiers without a byte product of their own: what the compiler makes of 16-bit products. */
static uint64_t dots_plain(const uint8_t *bytes, uint64_t rounds) {
    int16_t sum[64] = {0};
    for (uint64_t i = 0; i < rounds; i++)
        for (int j = 0; j < 64; j++)
            sum[j] = (int16_t)(sum[j] + bytes[64 * (i & 3) + (size_t)j] * (int8_t)(sum[j] ^ bytes[j]));
    uint64_t total = 0;
    for (int j = 0; j < 64; j++) total += (uint64_t)sum[j];
    return total;
}

/* Runs the tier's products; returns the multiplications of one round. */
static uint64_t run_dots(spl_tier tier, const uint8_t *bytes, uint64_t rounds) {
    switch (tier) {
#if defined(__x86_64__)
    case SPL_TIER_AVX2: sink = spl_roof_dots_avx2(bytes, rounds); return CHAINS * 32;
    case SPL_TIER_AVXVNNI: sink = spl_roof_dots_avxvnni(bytes, rounds); return CHAINS * 32;
    case SPL_TIER_AVX512VNNI: sink = spl_roof_dots_avx512vnni(bytes, rounds); return CHAINS * 64;
    case SPL_TIER_AMX: sink = spl_roof_dots_amx(bytes, rounds); return SPL_ROOF_TILES * 16 * 16 * 64;
#elif defined(__aarch64__)
    case SPL_TIER_NEON: sink = spl_roof_dots_neon(bytes, rounds); return CHAINS * 8;
    case SPL_TIER_NEON_DOTPROD: sink = spl_roof_dots_neon_dotprod(bytes, rounds); return CHAINS * 16;
    case SPL_TIER_NEON_I8MM: sink = spl_roof_dots_neon_i8mm(bytes, rounds); return CHAINS * 32;
#endif
    default: sink = dots_plain(bytes, rounds); return 64;
    }
}

typedef struct dot_run {
    const spl_roof *roof;
    spl_tier tier;
    uint64_t macs[MAX_MEMBERS];
} dot_run;
static void dot_share(void *arg, uint32_t member) {
    dot_run *run = arg;
    run->macs[member] = DOT_ROUNDS * run_dots(run->tier, run->roof->memory.data, DOT_ROUNDS);
}

spl_status spl_roof_open(spl_roof *roof, spl_team *team, spl_tier tier, spl_roof_memory over, size_t n_own,
                         spl_error *err) {
    *roof = (spl_roof){.team = team, .tier = tier, .memory = over};
    if (over.n_bytes >= SPL_ROOF_LEAST_BYTES) return SPL_OK;
    size_t n = n_own ? n_own : SPL_ROOF_LEAST_BYTES;
    uint8_t *own = spl_bench_map(n, &roof->mapping, &roof->mapped_bytes);
    if (!own) return spl_fail(err, SPL_E_NOMEM, "no memory for %zu MiB to read; free some", n >> 20);
    roof->memory = (spl_roof_memory){own, n};
    spl_team_run(team, touch, &(touch_run){roof, own});
    return SPL_OK;
}
void spl_roof_close(spl_roof *roof) {
    spl_bench_unmap(roof->mapping, roof->mapped_bytes);
    roof->mapping = NULL;
}

/* All of the memory once, the ways taking turns. Slow moments count as long as they last, as they do for a step. */
static void read_all(spl_roof *roof, double rate[SPL_ROOF_WAYS]) {
    uint64_t ns[SPL_ROOF_WAYS] = {0}, bytes[SPL_ROOF_WAYS] = {0};
    uint32_t way = roof->n;
    for (size_t at = 0; roof->memory.n_bytes - at >= WINDOW_BYTES; at += WINDOW_BYTES) {
        way = (way + 1) % SPL_ROOF_WAYS;
        read_run run = {roof, WAYS[way], at};
        uint64_t start = spl_now_ns();
        spl_team_run(roof->team, read_share, &run);
        ns[way] += spl_now_ns() - start;
        bytes[way] += WINDOW_BYTES;
    }
    for (way = 0; way < SPL_ROOF_WAYS; way++) rate[way] = (double)bytes[way] / (double)ns[way];
}
static double dot_rate(spl_roof *roof, spl_tier tier) {
    dot_run run = {.roof = roof, .tier = tier};
    double macs = 0;
    uint64_t start = spl_now_ns();
    spl_team_run(roof->team, dot_share, &run);
    uint64_t ns = spl_now_ns() - start;
    for (uint32_t i = 0; i < spl_team_size(roof->team); i++) macs += (double)run.macs[i];
    return macs / (double)ns;
}

void spl_roof_take(spl_roof *roof) {
    if (roof->n == SPL_ROOF_READINGS) return;
    double rate[SPL_ROOF_WAYS];
    read_all(roof, rate);
    for (int way = 0; way < SPL_ROOF_WAYS; way++) roof->read[way][roof->n] = rate[way];
    roof->dot[roof->n] = dot_rate(roof, roof->tier);
    roof->vector[roof->n] = roof->tier == SPL_TIER_AMX ? dot_rate(roof, SPL_TIER_AVX512VNNI) : 0;
    roof->n++;
    roof->taken_ns = spl_now_ns();
}
void spl_roof_take_due(spl_roof *roof) {
    if (roof->n == 0 || spl_now_ns() - roof->taken_ns >= DUE_NS) spl_roof_take(roof);
}

/* ---- results --------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(const double *values, uint32_t n, double *low, double *high) {
    double sorted[SPL_ROOF_READINGS];
    memcpy(sorted, values, n * sizeof *values);
    qsort(sorted, n, sizeof *sorted, by_value);
    *low = sorted[0];
    *high = sorted[n - 1];
    return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

spl_roof_rates spl_roof_result(const spl_roof *roof) {
    spl_roof_rates r = {.read_bytes = roof->memory.n_bytes};
    double low, high;
    for (int way = 0; way < SPL_ROOF_WAYS; way++) {
        double rate = median(roof->read[way], roof->n, &low, &high);
        if (rate > r.read_gb) r.read_gb = rate, r.read_gb_min = low, r.read_gb_max = high;
    }
    r.int8_gmac = median(roof->dot, roof->n, &r.int8_gmac_min, &r.int8_gmac_max);
    r.vector_gmac = median(roof->vector, roof->n, &low, &high);
    return r;
}

spl_status spl_roof_measure(uint32_t n_threads, spl_tier tier, size_t n_own, spl_roof_rates *out, spl_error *err) {
    spl_team *team = NULL;
    spl_roof *roof = calloc(1, sizeof *roof);
    if (!roof) return spl_fail(err, SPL_E_NOMEM, "no memory for the readings");
    spl_status st = spl_team_create(&team, n_threads, spl_set_ftz, err);
    if (st == SPL_OK) st = spl_roof_open(roof, team, tier, (spl_roof_memory){NULL, 0}, n_own, err);
    if (st == SPL_OK) {
        for (int i = 0; i < ROUNDS; i++) spl_roof_take(roof);
        *out = spl_roof_result(roof);
    }
    spl_roof_close(roof);
    spl_team_destroy(team);
    free(roof);
    return st;
}

bool spl_roof_put(json_t *j, const spl_roof_rates *r) {
    const struct {
        const char *key;
        double value;
    } reals[] = {{"read_gb_per_second", r->read_gb},
                 {"read_gb_per_second_min", r->read_gb_min},
                 {"read_gb_per_second_max", r->read_gb_max},
                 {"int8_gmac_per_second", r->int8_gmac},
                 {"int8_gmac_per_second_min", r->int8_gmac_min},
                 {"int8_gmac_per_second_max", r->int8_gmac_max}};
    bool done = json_object_set_new(j, "read_bytes", json_integer((json_int_t)r->read_bytes)) == 0;
    for (size_t i = 0; i < SPL_COUNT(reals); i++)
        done = json_object_set_new(j, reals[i].key, json_real(reals[i].value)) == 0 && done;
    if (r->vector_gmac > 0)
        done = json_object_set_new(j, "int8_vector_gmac_per_second", json_real(r->vector_gmac)) == 0 && done;
    return done;
}
