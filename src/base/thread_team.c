/* SPDX-License-Identifier: Apache-2.0
 * The thread team. `generation` is odd-even free: each run increments it, workers compare with the last
 * one they saw. Parking between runs uses a mutex and a condition; the spin before it covers back-to-back steps.
 *
 * Who waits inside a run spins, then yields, then sleeps in short slices. The sleep is for machines with more
 * runnable threads than cores: a core that falls idle is given the member that was pushed off its own core, whereas
 * a waiting member that stays runnable keeps it away for a whole time slice of the scheduler. */
#include "base/thread_team.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/compiler.h"

enum {
    RUN_SPINS = 20000,       /* about 100 us of pause before a worker parks */
    STAGE_SPINS = 4000,      /* about 20 us before a waiting member yields its core */
    STAGE_YIELDS = 100,      /* about as long again when nobody else wants it */
    STAGE_SLEEP_NS = 300000, /* then it sleeps; every falling asleep lets the scheduler move threads here */
    SMALL_STAGE_PIECES = 2,  /* members' own parts of fewer pieces than this are not worth having */
    LARGE_PIECE = 4          /* grains taken at once while there is plenty: fewer, longer runs through memory */
};

typedef struct member {
    /* Of the newest stage in which somebody took units of this member's part: stage + 1, and how many were taken. */
    _Alignas(SPL_CACHE_LINE) atomic_uint_fast64_t taken;
    spl_team *team;
    pthread_t thread;
    uint32_t index;
} member;

struct spl_team {
    uint32_t n_threads;
    bool pins;       /* every member has a processor of its own */
    bool has_caller; /* `caller` is pinned as member 0 */
    pthread_t caller;
    void (*on_start)(void);
    void (*fn)(void *arg, uint32_t member);
    void *arg;
    atomic_uint generation; /* number of runs posted */
    atomic_uint n_finished; /* workers done with the current run */
    atomic_bool quit;
    atomic_uint n_parked;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint n_asleep; /* members that sleep inside the run, on `wake` too */
    member *members;
};

/* ---- processors ------------------------------------------------------------------------------ */

#if defined(__linux__)
static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static cpu_set_t process_cpus; /* where the process might run before any thread was pinned */
static bool has_process_cpus;

static void read_process_cpus(void) {
    has_process_cpus = sched_getaffinity(0, sizeof process_cpus, &process_cpus) == 0;
}

/* Processors this process may run on; 0: not known. */
static uint32_t count_process_cpus(void) {
    (void)pthread_once(&process_once, read_process_cpus);
    return has_process_cpus ? (uint32_t)CPU_COUNT(&process_cpus) : 0;
}

/* Keeps the calling thread on the index-th of them. A refusal costs speed only. */
static void pin_thread(uint32_t index) {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &process_cpus) || index-- > 0) continue;
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof one, &one);
        return;
    }
}
void spl_unpin_thread(void) {
    if (count_process_cpus() > 0) (void)sched_setaffinity(0, sizeof process_cpus, &process_cpus);
}
#else
static uint32_t count_process_cpus(void) { return 0; }
static void pin_thread(uint32_t index) { (void)index; }
void spl_unpin_thread(void) {}
#endif

/* ---- waiting --------------------------------------------------------------------------------- */

static inline void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void broadcast(spl_team *team) {
    (void)pthread_mutex_lock(&team->lock);
    (void)pthread_cond_broadcast(&team->wake);
    (void)pthread_mutex_unlock(&team->lock);
}

/* Sleeps until *count reaches `wanted`. The clock may be set meanwhile: a wake-up may come late, not never, since
 * who reaches the number looks at n_asleep after it and a sleeper looks at the number after it counted itself. */
static void sleep_until(spl_team *team, const atomic_uint *count, unsigned wanted) {
    (void)pthread_mutex_lock(&team->lock);
    atomic_fetch_add(&team->n_asleep, 1);
    while (atomic_load(count) < wanted) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += STAGE_SLEEP_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        (void)pthread_cond_timedwait(&team->wake, &team->lock, &until);
    }
    atomic_fetch_sub(&team->n_asleep, 1);
    (void)pthread_mutex_unlock(&team->lock);
}

static void wait_until(spl_team *team, const atomic_uint *count, unsigned wanted) {
    for (int spins = 0; spins < STAGE_SPINS + STAGE_YIELDS; spins++) {
        if (atomic_load_explicit(count, memory_order_acquire) >= wanted) return;
        if (spins < STAGE_SPINS) {
            pause_cpu();
        } else {
            (void)sched_yield();
        }
    }
    sleep_until(team, count, wanted);
}

/* Adds to a number that others wait for; true when it is the one wanted now. */
static bool add_and_wake(spl_team *team, atomic_uint *count, unsigned n, unsigned wanted) {
    if (atomic_fetch_add(count, n) + n < wanted) return false;
    if (atomic_load(&team->n_asleep) > 0) broadcast(team);
    return true;
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
    if (team->pins) {
        pin_thread(self->index);
    } else
        spl_unpin_thread(); /* whoever made the team may be pinned for another one */
    if (team->on_start) team->on_start();
    for (unsigned seen = 0;;) {
        wait_for_run(team, seen);
        seen = atomic_load_explicit(&team->generation, memory_order_acquire);
        if (atomic_load(&team->quit)) return NULL;
        team->fn(team->arg, self->index);
        (void)add_and_wake(team, &team->n_finished, 1, team->n_threads - 1);
    }
}

static void post_run(spl_team *team) {
    atomic_store(&team->n_finished, 0);
    for (uint32_t i = 0; i < team->n_threads; i++)
        atomic_store_explicit(&team->members[i].taken, 0, memory_order_relaxed);
    atomic_fetch_add(&team->generation, 1);
    /* A worker parks with the lock held around its last look at `generation`, so taking the lock
     * here orders the increment before or after that look: no wake-up is lost. */
    if (atomic_load(&team->n_parked) > 0) broadcast(team);
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
    team->pins = n_threads > 1 && count_process_cpus() == n_threads;
    (void)pthread_mutex_init(&team->lock, NULL);
    (void)pthread_cond_init(&team->wake, NULL);
    if (posix_memalign(&memory, SPL_CACHE_LINE, n_threads * sizeof *team->members) != 0) {
        spl_team_destroy(team);
        return spl_fail(err, SPL_E_NOMEM, "no memory for %u threads", n_threads);
    }
    team->members = memory;
    memset(team->members, 0, n_threads * sizeof *team->members);
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
    broadcast(team);
    for (uint32_t i = 1; i < team->n_threads; i++) (void)pthread_join(team->members[i].thread, NULL);
    if (team->has_caller && pthread_equal(team->caller, pthread_self())) spl_unpin_thread();
    (void)pthread_cond_destroy(&team->wake);
    (void)pthread_mutex_destroy(&team->lock);
    free(team->members);
    free(team);
}

uint32_t spl_team_size(const spl_team *team) { return team->n_threads; }

void spl_team_run(spl_team *team, void (*fn)(void *arg, uint32_t member), void *arg) {
    team->fn = fn;
    team->arg = arg;
    if (team->pins && !(team->has_caller && pthread_equal(team->caller, pthread_self()))) {
        pin_thread(0);
        team->caller = pthread_self();
        team->has_caller = true;
    }
    post_run(team);
    fn(arg, 0);
    wait_until(team, &team->n_finished, team->n_threads - 1);
}

/* Takes units of member m's part, which has n of them and `n_takers` members at work on it. The word says which stage
 * it speaks of: one of an earlier stage means that nothing is taken yet, one of a later stage that this stage is long
 * over. */
static bool take_part(spl_team *team, uint32_t m, uint32_t stage, uint32_t n, uint32_t n_takers, uint32_t grain,
                      uint32_t *at, uint32_t *count) {
    atomic_uint_fast64_t *word = &team->members[m].taken;
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed), key = (uint64_t)stage + 1;
    for (;;) {
        uint32_t taken = now >> 32 == key ? (uint32_t)now : 0;
        if (now >> 32 > key || taken >= n) return false;
        uint32_t left = n - taken, piece = left / 2 / n_takers / grain * grain;
        if (piece > LARGE_PIECE * grain) piece = LARGE_PIECE * grain;
        if (piece < grain) piece = left < grain ? left : grain;
        if (!atomic_compare_exchange_weak_explicit(word, &now, key << 32 | (taken + piece), memory_order_relaxed,
                                                   memory_order_relaxed))
            continue;
        *at = taken;
        *count = piece;
        return true;
    }
}

bool spl_team_take(spl_team *team, uint32_t stage, uint32_t member_index, uint32_t n_units, uint32_t grain,
                   uint32_t *begin, uint32_t *end) {
    uint32_t n = team->n_threads, count;
    if (n_units == 0) return false;
    if (n == 1) grain = n_units; /* nobody to share with */
    /* Whole pieces per member, the remainder spread; a small stage is one part that all take from. */
    uint32_t n_pieces = n_units / grain + (n_units % grain > 0), n_parts = n_pieces / n < SMALL_STAGE_PIECES ? 1 : n;
    for (uint32_t i = 0; i < n_parts; i++) {
        uint32_t m = (member_index + i) % n_parts;
        uint32_t first = (uint32_t)((uint64_t)n_pieces * m / n_parts) * grain;
        uint32_t last = (uint32_t)((uint64_t)n_pieces * (m + 1) / n_parts) * grain;
        if (last > n_units) last = n_units;
        if (!take_part(team, m, stage, last - first, n / n_parts, grain, begin, &count)) continue;
        *begin += first;
        *end = *begin + count;
        return true;
    }
    return false;
}

void spl_team_finish(spl_team *team, spl_share *share, uint32_t n_mine, uint32_t n_units) {
    if (team->n_threads == 1) return;
    if (n_mine > 0 && add_and_wake(team, &share->n_done, n_mine, n_units)) return;
    wait_until(team, &share->n_done, n_units);
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
    if (count_process_cpus() > 0) n = count_process_cpus();
    uint32_t cores = n < 1 ? 1 : n > 256 ? 256 : (uint32_t)n;
    uint32_t limit = cgroup_cores();
    return limit > 0 && limit < cores ? limit : cores;
}
