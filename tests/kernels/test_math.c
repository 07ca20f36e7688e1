/* SPDX-License-Identifier: Apache-2.0
 * exp, sigmoid, SiLU, softplus and the fixed sums against double precision, over the whole float range
 * and at its ends. Level: ULP, bounds as stated in kernels/body/math_body.h. */
#include "kernels/body/math_body.h"
#include "tests/support/check.h"
#include "tests/support/kernel_test.h"

static double ulps(float found, double expected) {
    return fabs((double)found - expected) / ldexp(1.0, ilogb(expected) - 23);
}

static void exp_is_close(void **state) {
    (void)state;
    double worst_exp = 0, worst_sigmoid = 0, worst_softplus = 0;
    for (uint64_t b = 0; b < UINT64_C(0x100000000); b += 1021) {
        float x = spl_f32_from_bits((uint32_t)b);
        if (!(x > -87.33f && x < 88.7228f)) continue;
        double d = (double)x, e = ulps(spl_exp(x), exp(d)), s = ulps(spl_sigmoid(x), 1.0 / (1.0 + exp(-d)));
        double p = ulps(spl_softplus(x), (d > 0 ? d : 0) + log1p(exp(-fabs(d))));
        worst_exp = fmax(worst_exp, e);
        worst_sigmoid = fmax(worst_sigmoid, s);
        worst_softplus = fmax(worst_softplus, p);
    }
    assert_true(worst_exp < 1.2);
    assert_true(worst_sigmoid < 2.6);
    assert_true(worst_softplus < 2.9);
}

static void exp_ends(void **state) {
    (void)state;
    assert_true(spl_exp(0.0f) == 1.0f);
    assert_true(spl_exp(-0.0f) == 1.0f);
    assert_true(spl_exp(-INFINITY) == 0.0f);
    assert_true(spl_exp(-87.4f) == 0.0f);
    assert_true(spl_exp(-87.3f) > 0x1p-126f);
    assert_true(spl_exp(-3e38f) == 0.0f);
    assert_true(spl_exp(88.73f) == INFINITY);
    assert_true(spl_exp(INFINITY) == INFINITY);
    assert_true(isnan(spl_exp(NAN)));
    assert_true(spl_sigmoid(INFINITY) == 1.0f && spl_sigmoid(-INFINITY) == 0.0f);
    assert_true(spl_silu(-200.0f) == 0.0f && spl_silu(200.0f) == 200.0f);
    assert_true(spl_softplus(100.0f) == 100.0f && spl_softplus(-100.0f) == 0.0f);
}

static void rounding_is_to_even(void **state) {
    (void)state;
    for (int i = -4000; i <= 4000; i++) {
        float x = (float)i * 0.25f;
        assert_int_equal(spl_round_i32(x), (int32_t)nearbyint((double)x));
    }
}

/* The tree is the written one and no other: values of very different size make the order visible. */
static void lanes_follow_the_tree(void **state) {
    (void)state;
    kt_random r = {7};
    for (int round = 0; round < 100; round++) {
        float x[96], lane[16] = {0};
        for (int i = 0; i < 96; i++) x[i] = kt_normal(&r) * (i % 5 ? 1.0f : 1e6f);
        for (int i = 0; i < 96; i++) lane[i % 16] += x[i];
        for (int step = 8; step; step /= 2)
            for (int j = 0; j < step; j++) lane[j] = lane[j] + lane[j + step];
        assert_true(spl_lane_sum(x, 96) == lane[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_close),
        cmocka_unit_test(exp_ends),
        cmocka_unit_test(rounding_is_to_even),
        cmocka_unit_test(lanes_follow_the_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
