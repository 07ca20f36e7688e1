/* SPDX-License-Identifier: Apache-2.0
 * The thread team. `generation` is odd-even free: each run increments it, workers compare with the last
 * one they saw. Parking uses a mutex and a condition; the spin before it covers back-to-back steps.
 * The barrier is a counter plus a phase number; waiting spins, then yields, so that an oversubscribed
 * machine still makes progress. */
#include "base/thread_team.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/compiler.h"

enum {
    RUN_SPINS = 20000,   /* about 100 us of pause before a worker parks */
    BARRIER_SPINS = 4000 /* about 20 us before a waiting member yields its slice */
};

typedef struct member {
    spl_team *team;
    pthread_t thread;
    uint32_t index;
} member;

struct spl_team {
    uint32_t n_threads;
    void (*on_start)(void);
    void (*fn)(void *arg, uint32_t member);
    void *arg;
    atomic_uint generation; /* number of runs posted */
    atomic_uint n_finished; /* workers done with the current run */
    atomic_bool quit;
    atomic_uint n_parked;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    _Alignas(SPL_CACHE_LINE) atomic_uint barrier_count;
    _Alignas(SPL_CACHE_LINE) atomic_uint barrier_phase;
    member *members;
};

static inline void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until a new run is posted; parks after a while. */
static void wait_for_run(spl_team *team, unsigned seen) {
    for (int i = 0; i < RUN_SPINS; i++) {
        if (atomic_load_explicit(&team->generation, memory_order_acquire) != seen) return;
        pause_cpu();
    }
    (void)pthread_mutex_lock(&team->lock);
    atomic_fetch_add(&team->n_parked, 1);
    while (atomic_load(&team->generation) == seen) (void)pthread_cond_wait(&team->wake, &team->lock);
    atomic_fetch_sub(&team->n_parked, 1);
    (void)pthread_mutex_unlock(&team->lock);
}

static void *worker_main(void *arg) {
    member *self = arg;
    spl_team *team = self->team;
    if (team->on_start) team->on_start();
    for (unsigned seen = 0;;) {
        wait_for_run(team, seen);
        seen = atomic_load_explicit(&team->generation, memory_order_acquire);
        if (atomic_load(&team->quit)) return NULL;
        team->fn(team->arg, self->index);
        atomic_fetch_add_explicit(&team->n_finished, 1, memory_order_release);
    }
}

static void post_run(spl_team *team) {
    atomic_store(&team->n_finished, 0);
    atomic_fetch_add(&team->generation, 1);
    /* A worker parks with the lock held around its last look at `generation`, so taking the lock
     * here orders the increment before or after that look: no wake-up is lost. */
    if (atomic_load(&team->n_parked) > 0) {
        (void)pthread_mutex_lock(&team->lock);
        (void)pthread_cond_broadcast(&team->wake);
        (void)pthread_mutex_unlock(&team->lock);
    }
}

spl_status spl_team_create(spl_team **out, uint32_t n_threads, void (*on_start)(void), spl_error *err) {
    *out = NULL;
    if (n_threads < 1 || n_threads > 256)
        return spl_fail(err, SPL_E_INVALID, "threads must be 1..256, not %u", n_threads);
    void *memory = NULL;
    if (posix_memalign(&memory, SPL_CACHE_LINE, sizeof(spl_team)) != 0)
        return spl_fail(err, SPL_E_NOMEM, "no memory for the thread team");
    spl_team *team = memory;
    memset(team, 0, sizeof *team);
    team->on_start = on_start;
    team->n_threads = 1;
    (void)pthread_mutex_init(&team->lock, NULL);
    (void)pthread_cond_init(&team->wake, NULL);
    team->members = calloc(n_threads, sizeof *team->members);
    if (!team->members) {
        spl_team_destroy(team);
        return spl_fail(err, SPL_E_NOMEM, "no memory for %u threads", n_threads);
    }
    for (uint32_t i = 1; i < n_threads; i++) {
        member *m = &team->members[i];
        m->team = team;
        m->index = i;
        int rc = pthread_create(&m->thread, NULL, worker_main, m);
        if (rc != 0) {
            spl_team_destroy(team);
            return spl_fail_errno(err, rc, "cannot start worker thread %u of %u", i, n_threads);
        }
        team->n_threads = i + 1;
    }
    *out = team;
    return SPL_OK;
}

void spl_team_destroy(spl_team *team) {
    if (!team) return;
    atomic_store(&team->quit, true);
    atomic_fetch_add(&team->generation, 1);
    (void)pthread_mutex_lock(&team->lock);
    (void)pthread_cond_broadcast(&team->wake);
    (void)pthread_mutex_unlock(&team->lock);
    for (uint32_t i = 1; i < team->n_threads; i++) (void)pthread_join(team->members[i].thread, NULL);
    (void)pthread_cond_destroy(&team->wake);
    (void)pthread_mutex_destroy(&team->lock);
    free(team->members);
    free(team);
}

uint32_t spl_team_size(const spl_team *team) { return team->n_threads; }

void spl_team_run(spl_team *team, void (*fn)(void *arg, uint32_t member), void *arg) {
    team->fn = fn;
    team->arg = arg;
    if (team->n_threads > 1) post_run(team);
    fn(arg, 0);
    for (int spins = 0; atomic_load_explicit(&team->n_finished, memory_order_acquire) != team->n_threads - 1; spins++) {
        if (spins < BARRIER_SPINS) {
            pause_cpu();
        } else {
            (void)sched_yield();
        }
    }
}

void spl_team_barrier(spl_team *team) {
    if (team->n_threads == 1) return;
    unsigned phase = atomic_load_explicit(&team->barrier_phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&team->barrier_count, 1, memory_order_acq_rel) == team->n_threads - 1) {
        atomic_store_explicit(&team->barrier_count, 0, memory_order_relaxed);
        atomic_store_explicit(&team->barrier_phase, phase + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&team->barrier_phase, memory_order_acquire) == phase; spins++) {
        if (spins < BARRIER_SPINS) {
            pause_cpu();
        } else {
            (void)sched_yield();
        }
    }
}

bool spl_team_take(spl_team *team, spl_share *share, spl_share_cursor *cursor, uint32_t member_index, uint32_t n_units,
                   uint32_t grain, uint32_t *begin, uint32_t *end) {
    uint32_t n = team->n_threads;
    if (n == 1) {
        if (cursor->static_done) return false;
        cursor->static_done = true;
        *begin = 0;
        *end = n_units;
        return n_units > 0;
    }
    /* 85 % static: whole grains per member; small stages are dynamic altogether. */
    uint32_t per_member = (uint32_t)((uint64_t)n_units * 85 / 100 / n / grain * grain);
    uint32_t n_static = per_member * n;
    if (!cursor->static_done) {
        cursor->static_done = true;
        if (per_member > 0) {
            *begin = member_index * per_member;
            *end = *begin + per_member;
            return true;
        }
    }
    uint32_t at = n_static + (uint32_t)atomic_fetch_add_explicit(&share->next, grain, memory_order_relaxed);
    if (at >= n_units) return false;
    *begin = at;
    *end = n_units - at < grain ? n_units : at + grain;
    return true;
}

/* Reads a small file; false when it cannot be read. */
static bool read_line(const char *path, char *line, size_t n) {
    FILE *f = fopen(path, "r");
    if (!f) return false;
    bool good = fgets(line, (int)n, f) != NULL;
    (void)fclose(f);
    return good;
}

/* Cores the cgroup's cpu quota allows, or 0 when there is none (cgroup v2, then v1). */
static uint32_t cgroup_cores(void) {
    char line[128];
    double quota = 0, period = 0;
    if (read_line("/sys/fs/cgroup/cpu.max", line, sizeof line)) {
        if (sscanf(line, "%lf %lf", &quota, &period) != 2) return 0;
    } else if (read_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", line, sizeof line)) {
        quota = strtod(line, NULL);
        if (!read_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us", line, sizeof line)) return 0;
        period = strtod(line, NULL);
    }
    if (quota <= 0 || period <= 0) return 0;
    double cores = quota / period;
    return cores < 1 ? 1 : cores > 1024 ? 0 : (uint32_t)(cores + 0.999);
}

uint32_t spl_usable_cores(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) n = CPU_COUNT(&set);
#endif
    uint32_t cores = n < 1 ? 1 : n > 256 ? 256 : (uint32_t)n;
    uint32_t limit = cgroup_cores();
    return limit > 0 && limit < cores ? limit : cores;
}
