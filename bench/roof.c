/* SPDX-License-Identifier: Apache-2.0
 * Read and int8 rates with all threads. Nothing may be optimised away: sums are stored per member behind a volatile
 * sink. */
#include "bench/roof.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/compiler.h"

enum { ROUNDS = 7, MAX_MEMBERS = 256, HUGE_PAGE = 2 << 20, DOT_ROUNDS = 400 * 1000, CHAINS = 12, ASK_AHEAD = 4096 };
static const size_t READ_BYTES = (size_t)512 << 20;

static volatile uint64_t sink;

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

static void share_of(const spl_roof *roof, uint32_t member, size_t *begin, size_t *end) {
    size_t n = spl_team_size(roof->team), lines = roof->n_bytes / 64;
    *begin = lines * member / n * 64;
    *end = lines * (member + 1) / n * 64;
}

static void touch(void *arg, uint32_t member) {
    spl_roof *roof = arg;
    size_t begin, end;
    share_of(roof, member, &begin, &end);
    for (size_t i = begin; i < end; i += 64) memset(roof->memory + i, (int)(i >> 6 & 255), 64);
}

static void read_lines(const spl_roof *roof, uint32_t member, bool ask) {
    size_t begin, end;
    uint64_t sum[8] = {0};
    share_of(roof, member, &begin, &end);
    const uint64_t *p = (const uint64_t *)(const void *)(roof->memory + begin);
    for (size_t n = (end - begin) / 64; n > 0; n--, p += 8) {
        if (ask) SPL_PREFETCH_T1((const void *)((uintptr_t)p + ASK_AHEAD));
        for (int i = 0; i < 8; i++) sum[i] ^= p[i];
    }
    for (int i = 1; i < 8; i++) sum[0] ^= sum[i];
    sink = sum[0];
}
static void read_plain(void *arg, uint32_t member) { read_lines(arg, member, false); }
static void read_asking(void *arg, uint32_t member) { read_lines(arg, member, true); }

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
    run->macs[member] = DOT_ROUNDS * run_dots(run->tier, run->roof->memory, DOT_ROUNDS);
}

spl_status spl_roof_open(spl_roof *roof, spl_team *team, spl_tier tier, spl_error *err) {
    *roof = (spl_roof){.team = team, .tier = tier, .n_bytes = READ_BYTES};
    roof->memory = spl_bench_map(roof->n_bytes, &roof->mapping, &roof->mapped_bytes);
    if (!roof->memory) return spl_fail(err, SPL_E_NOMEM, "no memory for 512 MiB to read; free some");
    spl_team_run(team, touch, roof);
    return SPL_OK;
}
void spl_roof_close(spl_roof *roof) {
    spl_bench_unmap(roof->mapping, roof->mapped_bytes);
    roof->mapping = NULL;
}

static double read_rate(spl_roof *roof, void (*read)(void *arg, uint32_t member)) {
    uint64_t start = spl_now_ns();
    spl_team_run(roof->team, read, roof);
    return (double)roof->n_bytes / (double)(spl_now_ns() - start);
}
double spl_roof_read(spl_roof *roof) { return fmax(read_rate(roof, read_plain), read_rate(roof, read_asking)); }
static double dot_rate(spl_roof *roof, spl_tier tier) {
    dot_run run = {.roof = roof, .tier = tier};
    double macs = 0;
    uint64_t start = spl_now_ns();
    spl_team_run(roof->team, dot_share, &run);
    uint64_t ns = spl_now_ns() - start;
    for (uint32_t i = 0; i < spl_team_size(roof->team); i++) macs += (double)run.macs[i];
    return macs / (double)ns;
}

double spl_roof_dot(spl_roof *roof) { return dot_rate(roof, roof->tier); }
double spl_roof_vector_dot(spl_roof *roof) {
    return roof->tier == SPL_TIER_AMX ? dot_rate(roof, SPL_TIER_AVX512VNNI) : 0;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

spl_status spl_roof_measure(uint32_t n_threads, spl_tier tier, spl_roof_rates *out, spl_error *err) {
    spl_team *team = NULL;
    spl_roof roof = {0};
    double read[ROUNDS], dot[ROUNDS], vector[ROUNDS];
    spl_status st = spl_team_create(&team, n_threads, spl_set_ftz, err);
    if (st == SPL_OK) st = spl_roof_open(&roof, team, tier, err);
    if (st == SPL_OK) {
        for (int i = 0; i < ROUNDS; i++) {
            read[i] = spl_roof_read(&roof);
            dot[i] = spl_roof_dot(&roof);
            vector[i] = spl_roof_vector_dot(&roof);
        }
        qsort(read, ROUNDS, sizeof read[0], by_value);
        qsort(dot, ROUNDS, sizeof dot[0], by_value);
        qsort(vector, ROUNDS, sizeof vector[0], by_value);
        *out = (spl_roof_rates){read[ROUNDS / 2], read[0],         read[ROUNDS - 1],  dot[ROUNDS / 2],
                                dot[0],           dot[ROUNDS - 1], vector[ROUNDS / 2]};
    }
    spl_roof_close(&roof);
    spl_team_destroy(team);
    return st;
}

spl_status spl_roof_json(uint32_t n_threads, spl_tier tier, json_t **out, spl_error *err) {
    spl_roof_rates r;
    *out = NULL;
    spl_status st = spl_roof_measure(n_threads, tier, &r, err);
    if (st != SPL_OK) return st;
    *out = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "read_gb_per_second", r.read_gb, "read_gb_per_second_min",
                     r.read_gb_min, "read_gb_per_second_max", r.read_gb_max, "int8_gmac_per_second", r.int8_gmac,
                     "int8_gmac_per_second_min", r.int8_gmac_min, "int8_gmac_per_second_max", r.int8_gmac_max);
    bool done = *out && (r.vector_gmac == 0 ||
                         json_object_set_new(*out, "int8_vector_gmac_per_second", json_real(r.vector_gmac)) == 0);
    if (done) return SPL_OK;
    json_decref(*out);
    *out = NULL;
    return spl_fail(err, SPL_E_NOMEM, "no memory for the result");
}
