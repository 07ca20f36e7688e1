/* SPDX-License-Identifier: Apache-2.0
 * The thread team: every unit of every stage is computed exactly once, what a stage wrote is seen by the next one,
 * and a member that stays away holds up nobody. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/compiler.h"
#include "base/thread_team.h"

enum { MAX_UNITS = 3000, N_STAGES = 60 };

typedef struct job {
    spl_team *team;
    uint32_t n_stages, n_units[N_STAGES], grain[N_STAGES];
    spl_share shares[N_STAGES];
    atomic_uint times[MAX_UNITS]; /* how often a unit was computed, over all stages so far */
    uint32_t value[MAX_UNITS];    /* plain memory: each stage adds what the one before left in the mirrored place */
    uint32_t expected[MAX_UNITS];
    uint32_t late;           /* member that sleeps before stage 1, or UINT32_MAX */
    uint32_t slow;           /* member that sleeps with its first piece of stage 1 in hand, or UINT32_MAX */
    atomic_bool late_is_out; /* false once it has come back */
    atomic_uint n_bad;
    uint64_t done_ns; /* member 0 after the last stage */
} job;

static void nap(long ms) { (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL); }

static void walk(void *arg, uint32_t member) {
    job *j = arg;
    for (uint32_t i = 0; i < j->n_stages; i++) {
        uint32_t begin, end, n_mine = 0, n = j->n_units[i];
        if (i == 1 && member == j->late) {
            nap(500);
            atomic_store(&j->late_is_out, false);
        }
        for (; spl_team_take(j->team, i, member, n, j->grain[i], &begin, &end); n_mine += end - begin) {
            if (begin >= end || end > n) atomic_fetch_add(&j->n_bad, 1);
            if (i == 1 && member == j->slow && n_mine == 0) nap(20);
            for (uint32_t u = begin; u < end; u++) {
                atomic_fetch_add(&j->times[u], 1);
                j->value[u] = j->value[u] * 3 + u + i;
            }
        }
        spl_team_finish(j->team, &j->shares[i], n_mine, n);
        /* Everybody may read all of it now; the stage after next writes it again. */
        for (uint32_t u = 0; u < n && i + 1 == j->n_stages; u++)
            if (j->value[u] != j->expected[u]) atomic_fetch_add(&j->n_bad, 1);
    }
    if (member == 0) j->done_ns = spl_now_ns();
}

static void check_job(job *j) {
    uint32_t times[MAX_UNITS] = {0};
    memset(j->shares, 0, sizeof j->shares);
    memset(j->value, 0, sizeof j->value);
    memset(j->expected, 0, sizeof j->expected);
    for (uint32_t u = 0; u < MAX_UNITS; u++) atomic_store(&j->times[u], 0);
    for (uint32_t i = 0; i < j->n_stages; i++)
        for (uint32_t u = 0; u < j->n_units[i]; u++) {
            times[u]++;
            j->expected[u] = j->expected[u] * 3 + u + i;
        }
    spl_team_run(j->team, walk, j);
    assert_int_equal(atomic_load(&j->n_bad), 0);
    for (uint32_t u = 0; u < MAX_UNITS; u++) {
        assert_int_equal(atomic_load(&j->times[u]), times[u]);
        assert_int_equal(j->value[u], j->expected[u]);
    }
}

static job *new_job(uint32_t n_threads) {
    spl_error err;
    job *j = calloc(1, sizeof *j);
    assert_non_null(j);
    assert_int_equal(spl_team_create(&j->team, n_threads, NULL, &err), SPL_OK);
    assert_int_equal(spl_team_size(j->team), n_threads);
    j->late = j->slow = UINT32_MAX;
    return j;
}
static void free_job(job *j) {
    spl_team_destroy(j->team);
    free(j);
}

static void every_unit_once(void **state) {
    (void)state;
    static const uint32_t threads[] = {1, 2, 3, 5, 8};
    uint64_t seed = 7;
    for (size_t t = 0; t < SPL_COUNT(threads); t++) {
        job *j = new_job(threads[t]);
        for (uint32_t round = 0; round < 40; round++) {
            j->n_stages = 1 + round % N_STAGES;
            j->slow = round % 4 ? UINT32_MAX : threads[t] - 1; /* nobody may go on without its piece */
            for (uint32_t i = 0; i < j->n_stages; i++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                j->grain[i] = 1 + (uint32_t)(seed >> 33) % 9;
                j->n_units[i] = (uint32_t)(seed >> 40) % (seed >> 62 ? MAX_UNITS + 1 : 12); /* often none or few */
            }
            check_job(j);
        }
        free_job(j);
    }
}

/* Member 1 is away for half a second. It had nothing in hand, so the others go through all stages without it. */
static void the_absent_hold_up_nobody(void **state) {
    (void)state;
    job *j = new_job(3);
    j->n_stages = N_STAGES;
    j->late = 1;
    for (uint32_t i = 0; i < N_STAGES; i++) {
        j->grain[i] = 1 + i % 4;
        j->n_units[i] = i % 3 ? MAX_UNITS / 4 : 2;
    }
    atomic_store(&j->late_is_out, true);
    uint64_t begin = spl_now_ns();
    check_job(j);
    assert_false(atomic_load(&j->late_is_out)); /* the run itself ends with its last member */
    assert_true(spl_now_ns() - begin >= 500000000u);
    assert_true(j->done_ns - begin < 350000000u);
    free_job(j);
}

#if defined(__linux__)
typedef struct places {
    uint32_t n_allowed[256]; /* processors that each member may run on */
    int first[256];
} places;
static void note_place(void *arg, uint32_t member) {
    places *p = arg;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    p->n_allowed[member] = (uint32_t)CPU_COUNT(&set);
    p->first[member] = 0;
    while (!CPU_ISSET((size_t)p->first[member], &set)) p->first[member]++;
}
static uint32_t allowed_here(void) {
    places here;
    note_place(&here, 0);
    return here.n_allowed[0];
}

/* A member for every processor: one each, until the team is gone. Fewer members, or more: wherever they like, also when
 * the thread that makes the team is pinned for another one. */
static void members_keep_their_processors(void **state) {
    (void)state;
    spl_team *full, *other;
    spl_error err;
    places *p = calloc(1, sizeof *p);
    uint32_t n = allowed_here(), usable = spl_usable_cores();
    assert_non_null(p);
    if (n < 2 || n > 255) skip();
    assert_int_equal(spl_team_create(&full, n, NULL, &err), SPL_OK);
    spl_team_run(full, note_place, p);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(p->n_allowed[i], 1);
        for (uint32_t j = 0; j < i; j++) assert_int_not_equal(p->first[i], p->first[j]);
    }
    assert_int_equal(allowed_here(), 1); /* the caller was member 0 */
    assert_int_equal(spl_usable_cores(), usable);
    assert_int_equal(spl_team_create(&other, n + 1, NULL, &err), SPL_OK);
    spl_team_run(other, note_place, p);
    for (uint32_t i = 1; i <= n; i++) assert_int_equal(p->n_allowed[i], n);
    spl_team_destroy(other);
    spl_unpin_thread();
    assert_int_equal(allowed_here(), n);
    spl_team_run(full, note_place, p);
    spl_team_destroy(full);
    assert_int_equal(allowed_here(), n);
    free(p);
}
#endif

static void bad_sizes_are_refused(void **state) {
    (void)state;
    spl_team *team;
    spl_error err;
    assert_int_equal(spl_team_create(&team, 0, NULL, &err), SPL_E_INVALID);
    assert_int_equal(spl_team_create(&team, 257, NULL, &err), SPL_E_INVALID);
    assert_null(team);
    spl_team_destroy(NULL);
    assert_true(spl_usable_cores() >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_unit_once),
        cmocka_unit_test(the_absent_hold_up_nobody),
#if defined(__linux__)
        cmocka_unit_test(members_keep_their_processors),
#endif
        cmocka_unit_test(bad_sizes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
