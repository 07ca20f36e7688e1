/* SPDX-License-Identifier: Apache-2.0
 * The published figures of Qwen3.8-27B, digit for digit, and this engine's own bytes beside them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "model/accounting.h"

static spl_accounting published(const char *id) {
    spl_accounting a;
    spl_account_published(spl_geometry_find(id), &a);
    return a;
}

static void assert_near(double value, double expected, double tolerance) {
    if (fabs(value - expected) > tolerance) fail_msg("%.6f is not within %g of %.6f", value, tolerance, expected);
}

static void test_27b_parameters_and_bytes(void **state) {
    (void)state;
    spl_accounting a = published("qwen3.8-27b");
    assert_int_equal(a.parameters, 26935320064);
    assert_int_equal(a.target_bytes, 15154925056);
    assert_int_equal(a.embed_bytes, 715161600);
    assert_int_equal(a.head_bytes, 715161600);
    assert_int_equal(a.expert_bytes, 0);
    assert_int_equal(a.draft_parameters, 1924404480);
    assert_int_equal(a.draft_bytes, 1265625600);
    assert_int_equal(a.codebook_bytes, 254279680);
    assert_int_equal(a.vision_bytes, 927434752);
    assert_int_equal(a.attention_input_width, 14336);
    assert_int_equal(a.gdn_input_width, 16640);
}

static void test_27b_state_and_step(void **state) {
    (void)state;
    spl_accounting a = published("qwen3.8-27b");
    assert_int_equal(a.recurrent_bytes, 150994944);
    assert_int_equal(a.window_bytes, 2949120);
    assert_int_equal(a.state_bytes, 153944064);
    assert_int_equal(a.kv_bytes_per_token, 33280);
    assert_int_equal(a.step_bytes, 16728438784);
    assert_int_equal(a.draft_free_step_bytes, 14439763456 + 307888128);
    /* The codebooks are gathered: 7 x 17 rows of 512 bytes instead of the tables. */
    assert_int_equal(a.streamed_step_bytes, a.step_bytes - 254279680 + 7 * 17 * 512);
    assert_near(100.0 * a.head_share, 8.55, 0.005);
    assert_near(100.0 * a.draft_share, 7.57, 0.005);
    assert_near(100.0 * a.state_share, 1.84, 0.005);
    /* Sixteen contexts of 32K tokens. */
    assert_near(16.0 * 32768.0 * (double)a.kv_bytes_per_token / 1e9, 17.45, 0.005);
}

static void test_27b_rates(void **state) {
    (void)state;
    spl_accounting a = published("qwen3.8-27b");
    assert_near(spl_needed_gbs(a.step_bytes, 74.0, 4.80), 257.9, 0.05);
    assert_near(spl_needed_gbs(a.step_bytes, 144.0, 4.80), 501.9, 0.06);
    assert_near(spl_roof_tokens_per_second(a.draft_free_step_bytes, 307.0, 1.0), 20.8, 0.05);
    /* The two are inverses. */
    assert_near(spl_roof_tokens_per_second(a.step_bytes, spl_needed_gbs(a.step_bytes, 74.0, 4.80), 4.80), 74.0, 1e-9);
    assert_near(spl_roof_tokens_per_second(0, 307.0, 4.8), 0.0, 0.0);
    assert_near(spl_needed_gbs(a.step_bytes, 74.0, 0.0), 0.0, 0.0);
}

static void test_35b(void **state) {
    (void)state;
    spl_accounting a = published("qwen3.6-35b-a3b");
    assert_int_equal(a.parameters, 34672407168);
    assert_near((double)a.target_bytes / 1e9, 19.515, 0.0006);
    assert_int_equal(a.expert_bytes, 18119393280);
    assert_int_equal(a.draft_parameters, 526251520);
    assert_int_equal(a.draft_bytes, 478964736);
    assert_int_equal(a.attention_input_width, 9216);
    assert_int_equal(a.gdn_input_width, 12544);
    assert_int_equal(a.recurrent_bytes, 62914560);
    assert_int_equal(a.state_bytes, 64389120);
    assert_int_equal(a.kv_bytes_per_token, 10400);
    /* Eight rows of eight experts read at most a quarter of the 256 routed experts. */
    assert_int_equal(a.step_bytes, a.target_bytes - a.embed_bytes - a.expert_bytes / 4 * 3 + a.head_bytes +
                                       a.draft_bytes + 2 * a.state_bytes);
}

static void test_engine_stores_what_the_padding_added(void **state) {
    (void)state;
    spl_accounting a;
    spl_account_engine(spl_geometry_find("qwen3.8-27b"), 0, false, 0, &a);
    /* No padding rows: 48 layers x 160 rows x 5120 weights fewer than published. */
    assert_int_equal(a.parameters, 26895998464);
    assert_int_equal(a.parameters, published("qwen3.8-27b").parameters - 48ULL * 160 * 5120);
    /* The Q4 matrices shrink by that padding; the 2,645,504 small values cost 4 bytes, all of them. */
    assert_int_equal(a.target_bytes, 15149629440 - 22118400 + 4 * 2645504ULL);
    assert_int_equal(a.gdn_input_width, 16480);
    assert_int_equal(a.window_bytes, 2 * 2949120);
    assert_int_equal(a.step_bytes, 0);
    assert_near(a.head_share, 0.0, 0.0);
    spl_account_engine(spl_geometry_find("qwen3.8-27b"), 0, true, 16000000000, &a);
    assert_near(a.head_share, 2.0 * 715161600.0 / 16e9, 1e-12);
}

/* The formula for KV bytes and the kernels' block must describe the same memory. */
static void test_kv_formula_equals_kernel_block(void **state) {
    (void)state;
    const spl_geometry *g;
    for (uint32_t i = 0; (g = spl_geometry_at(i)) != NULL; i++) {
        spl_accounting a;
        spl_account_engine(g, 0, false, 0, &a);
        assert_int_equal(a.kv_bytes_per_token * SPL_PAGE_TOKENS,
                         spl_kv_block_bytes(g->head_dim, false) * spl_n_attention_layers(g) * g->n_kv_heads);
        assert_int_equal(a.draft_kv_bytes_per_token, 0);
        spl_account_engine(g, 0, true, 0, &a);
        const spl_draft_geometry *d = g->draft;
        assert_int_equal(a.draft_kv_bytes_per_token * SPL_PAGE_TOKENS,
                         d ? spl_kv_block_bytes(d->head_dim, false) * d->n_layers * d->n_kv_heads : 0);
    }
}

static void test_layer_limit(void **state) {
    (void)state;
    const spl_geometry *g = spl_geometry_find("qwen3.8-27b");
    spl_accounting four, eight;
    spl_account_engine(g, 4, false, 0, &four);
    spl_account_engine(g, 8, false, 0, &eight);
    assert_int_equal(four.kv_bytes_per_token, 33280 / 16);
    assert_int_equal(eight.recurrent_bytes, 2 * four.recurrent_bytes);
    assert_int_equal(eight.target_bytes - four.target_bytes, four.target_bytes - four.embed_bytes - four.head_bytes -
                                                                 4ULL * g->hidden); /* less the final norm */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_27b_parameters_and_bytes),
        cmocka_unit_test(test_27b_state_and_step),
        cmocka_unit_test(test_27b_rates),
        cmocka_unit_test(test_35b),
        cmocka_unit_test(test_engine_stores_what_the_padding_added),
        cmocka_unit_test(test_kv_formula_equals_kernel_block),
        cmocka_unit_test(test_layer_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
