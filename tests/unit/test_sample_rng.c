/* SPDX-License-Identifier: Apache-2.0
 * The random stream, written down: a change of these numbers changes every seeded answer. */
#include "test_sample_support.h"

static void known_draws(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, counter, bits;
    } known[] = {
        {0, 1, UINT64_C(0xe220a8397b1dcdaf)},
        {0, 2, UINT64_C(0x6e789e6aa1b965f4)},
        {0, 3, UINT64_C(0x06c45d188009454f)},
        {0, 16, UINT64_C(0x84bb3f97971d80ab)},
        {0, UINT64_C(1) << 40, UINT64_C(0xe90201baecc3eb77)},
        {1234, 1, UINT64_C(0xbb0cf61b2f181cdb)},
        {1234, 2, UINT64_C(0x97c7a1364df06524)},
        {42, 1, UINT64_C(0xbdd732262feb6e95)},
        {42, 16, UINT64_C(0x341452c54d7c33f2)},
        {UINT64_MAX, 3, UINT64_C(0x382ff84cb27281e9)},
    };
    for (size_t i = 0; i < SPL_COUNT(known); i++)
        assert_true(spl_rng_at(known[i].seed, known[i].counter) == known[i].bits);
}

/* The leading 24 bits are the published uniforms of the original's stream. */
static void known_uniforms(void **state) {
    (void)state;
    static const double u[3][3] = {{0.88331079, 0.43152797, 0.02643377},
                                   {0.73066652, 0.59288985, 0.20213282},
                                   {0.74156487, 0.15991038, 0.27860111}};
    static const uint64_t seeds[3] = {0, 1234, 42};
    for (uint32_t i = 0; i < 3; i++) {
        spl_rng rng = {seeds[i], 0};
        for (uint32_t j = 0; j < 3; j++) {
            double x = spl_rng_draw(&rng);
            assert_true(fabs(floor(x * 0x1p24) * 0x1p-24 - u[i][j]) < 6e-9);
        }
        assert_int_equal(rng.counter, 3);
    }
    assert_true(spl_rng_uniform(UINT64_MAX) < 1.0);
    assert_true(spl_rng_uniform(0) == 0.0);
}

static void a_step_takes_fifteen(void **state) {
    (void)state;
    spl_rng rng = {99, 7}, again = {99, 7};
    double u[SPL_N_UNIFORMS];
    spl_rng_step(&rng, u);
    assert_int_equal(rng.counter, 7 + SPL_UNIFORMS_PER_STEP);
    assert_true(u[SPL_UNIFORM_FIRST] == 0.0);
    for (uint32_t i = 1; i < SPL_N_UNIFORMS; i++) {
        assert_true(u[i] == spl_rng_draw(&again));
        assert_true(u[i] == spl_rng_uniform(spl_rng_at(99, 7 + i)));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_draws),
        cmocka_unit_test(known_uniforms),
        cmocka_unit_test(a_step_takes_fifteen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
