/* SPDX-License-Identifier: Apache-2.0
 * splash_explain: the published figures in its JSON, this engine's bytes summed from the op list and
 * equal to the geometry's formula, rates, refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "kernels/kernels.h"
#include "model/accounting.h"
#include "splash.h"
#include "step/op.h"

static json_t *explain(splash_explain_options o) {
    char *text = NULL;
    splash_error err;
    if (splash_explain(&o, &text, &err) != SPLASH_OK) fail_msg("%s", err.text);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    assert_non_null(json);
    return json;
}

static uint64_t integer(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v)) fail_msg("member %s is no integer", key);
    return (uint64_t)json_integer_value(v);
}

static double real(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_real(v)) fail_msg("member %s is no real number", key);
    return json_real_value(v);
}

static void test_published_figures(void **state) {
    (void)state;
    json_t *o = explain((splash_explain_options){.model = "qwen3.8-27b", .bandwidth_gbs = 307, .tau = 4.8});
    assert_string_equal(json_string_value(json_object_get(o, "accounting")), "packed-q4");
    assert_string_equal(json_string_value(json_object_get(o, "model")), "qwen3.8-27b");
    assert_int_equal(integer(o, "parameters"), 26935320064);
    assert_int_equal(integer(o, "target_bytes"), 15154925056);
    assert_int_equal(integer(o, "draft_parameters"), 1924404480);
    assert_int_equal(integer(o, "draft_bytes"), 1265625600);
    assert_int_equal(integer(o, "vision_bytes"), 927434752);
    assert_int_equal(integer(o, "attention_input_width"), 14336);
    assert_int_equal(integer(o, "gdn_input_width"), 16640);
    assert_int_equal(integer(o, "state_bytes"), 153944064);
    assert_int_equal(integer(o, "kv_bytes_per_token"), 33280);
    assert_int_equal(integer(o, "step_bytes"), 16728438784);
    assert_true(fabs(real(o, "head_share") - 0.0855) < 5e-5);
    assert_true(fabs(real(o, "draft_share") - 0.0757) < 5e-5);
    assert_true(fabs(real(o, "roof_tokens_per_second") - 88.09) < 0.01);
    assert_true(fabs(real(o, "draft_free_roof_tokens_per_second") - 20.8) < 0.05);
    assert_null(json_object_get(o, "needed_gb_per_second")); /* not asked for */
    json_decref(o);
    o = explain((splash_explain_options){.model = "qwen3.8-27b", .tau = 4.8, .tokens_per_second = 74});
    assert_true(fabs(real(o, "needed_gb_per_second") - 257.9) < 0.05);
    json_decref(o);
}

/* Law 4: what the op list carries is what the geometry says, for every dense member, with and without a draft. */
static void test_op_list_equals_formula(void **state) {
    (void)state;
    const spl_geometry *g;
    uint32_t n = 0, n_drafting = 0;
    for (uint32_t i = 0; (g = spl_geometry_at(i)) != NULL; i++) {
        spl_op_list list;
        spl_error err;
        spl_accounting a;
        if (g->n_experts) continue;
        spl_account_engine(g, 0, false, 0, &a);
        assert_int_equal(spl_op_list_build(&list, g, 0, 8, 8, SPL_LIST_ACCEPT, false, &err), SPL_OK);
        assert_int_equal(spl_op_list_step_bytes(&list, 1, 0), a.draft_free_step_bytes);
        assert_int_equal(spl_op_list_step_bytes(&list, 3, 100),
                         a.draft_free_step_bytes + 2 * 2 * a.state_bytes + 300 * a.kv_bytes_per_token);
        spl_op_list_free(&list);
        n++;
        if (!g->draft) continue;
        assert_int_equal(spl_op_list_build(&list, g, 0, 8, 8, SPL_LIST_ACCEPT | SPL_LIST_DRAFT, false, &err), SPL_OK);
        spl_account_engine(g, 0, true, 0, &a);
        assert_int_equal(spl_op_list_step_bytes(&list, 1, 0), a.streamed_step_bytes);
        const spl_draft_geometry *d = g->draft;
        uint64_t codebooks = (uint64_t)(d->block_rows - 1) * (1 + d->selector_top_k) * d->selector_rank * 2;
        uint64_t window = a.draft_window_tokens, lane = 2 * a.state_bytes + codebooks;
        assert_int_equal(window, d->window_tokens - 1);
        for (uint64_t tokens = window - 1; tokens <= window + 1; tokens++)
            assert_int_equal(spl_op_list_step_bytes(&list, 3, tokens),
                             a.streamed_step_bytes + 2 * lane + 3 * tokens * a.kv_bytes_per_token +
                                 3 * (tokens < window ? tokens : window) * a.draft_kv_bytes_per_token);
        spl_op_list_free(&list);
        n_drafting++;
    }
    assert_true(n >= 5 && n_drafting >= 3);
}

static void test_this_engine_sums_its_ops(void **state) {
    (void)state;
    json_t *o = explain((splash_explain_options){.model = "toy", .lanes = 2, .context_tokens = 70, .op_list = true});
    const json_t *e = json_object_get(o, "this_engine"), *v;
    uint64_t weights = 0, lane = 0, kv = 0, draft_kv = 0, stages = 0, n_stage = 0;
    size_t i;
    json_array_foreach(json_object_get(e, "op_list"), i, v) {
        weights += integer(v, "weight_bytes");
        if (json_object_get(v, "lane_bytes")) lane += integer(v, "lane_bytes");
        bool window = json_object_get(v, "kv_window") != NULL;
        if (json_object_get(v, "kv_bytes_per_token")) *(window ? &draft_kv : &kv) += integer(v, "kv_bytes_per_token");
        if (window) assert_int_equal(integer(v, "kv_window"), integer(e, "draft_window_tokens"));
    }
    assert_int_equal(i, integer(e, "ops"));
    assert_int_equal(integer(e, "step_bytes"), weights + lane);
    assert_int_equal(kv, integer(e, "kv_bytes_per_token"));
    assert_int_equal(draft_kv, integer(e, "draft_kv_bytes_per_token"));
    uint64_t reach = integer(e, "draft_window_tokens");
    assert_true(reach < 70 && draft_kv > 0);
    assert_int_equal(integer(json_object_get(e, "at"), "step_bytes"),
                     weights + 2 * lane + 2 * (70 * kv + reach * draft_kv));
    json_array_foreach(json_object_get(e, "stages"), i, v) {
        stages += integer(v, "weight_bytes") + integer(v, "lane_bytes");
        n_stage += integer(v, "count");
    }
    assert_int_equal(stages, weights + lane);
    assert_int_equal(n_stage, integer(e, "ops"));
    assert_true(json_is_true(json_object_get(e, "runs")));
    json_decref(o);
}

static void test_kernels_and_memory(void **state) {
    (void)state;
    json_t *o = explain((splash_explain_options){.model = NULL});
    const json_t *k = json_object_get(o, "kernels"), *m = json_object_get(o, "memory");
    spl_kernels best;
    assert_int_equal(spl_kernels_select(&best, SPL_N_TIERS, NULL), SPL_OK);
    assert_string_equal(json_string_value(json_object_get(o, "model")), "nano");
    assert_string_equal(json_string_value(json_object_get(k, "tier")), spl_tier_name(best.tier));
    assert_string_equal(json_string_value(json_array_get(json_object_get(k, "usable"), 0)), "ref");
    assert_int_equal(json_object_size(json_object_get(k, "chosen")), 12);
    assert_true(json_is_true(json_object_get(m, "fits")));
    assert_int_equal(integer(m, "total_bytes"), integer(m, "weight_bytes") + integer(m, "kv_bytes") +
                                                    integer(m, "state_bytes") + integer(m, "arena_bytes") +
                                                    integer(m, "logits_bytes") + integer(m, "other_bytes"));
    json_decref(o);
}

static void test_a_model_this_build_cannot_run_is_still_explained(void **state) {
    (void)state;
    json_t *o = explain((splash_explain_options){.model = "qwen3.6-35b-a3b"});
    const json_t *e = json_object_get(o, "this_engine");
    assert_int_equal(integer(o, "parameters"), 34672407168);
    assert_int_equal(integer(e, "parameters"), 34660610688);
    assert_true(integer(o, "routed_expert_bytes") == 18119393280);
    json_decref(o);
}

static void expect_refusal(splash_explain_options o, splash_status status, const char *word) {
    char *text = (char *)"untouched";
    splash_error err;
    assert_int_equal(splash_explain(&o, &text, &err), status);
    assert_null(text);
    assert_int_equal(err.code, status);
    if (!strstr(err.text, word)) fail_msg("'%s' does not name %s", err.text, word);
}

static void test_refusals(void **state) {
    (void)state;
    expect_refusal((splash_explain_options){.model = "qwen3.9"}, SPLASH_E_NOTFOUND, "qwen3.9");
    expect_refusal((splash_explain_options){.model = "toy", .lanes = 5}, SPLASH_E_INVALID, "lanes");
    expect_refusal((splash_explain_options){.model = "toy", .tau = -1}, SPLASH_E_INVALID, "tau");
    expect_refusal((splash_explain_options){.model = "toy", .tau = 1, .bandwidth_gbs = NAN}, SPLASH_E_INVALID,
                   "bandwidth");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_figures),
        cmocka_unit_test(test_op_list_equals_formula),
        cmocka_unit_test(test_this_engine_sums_its_ops),
        cmocka_unit_test(test_kernels_and_memory),
        cmocka_unit_test(test_a_model_this_build_cannot_run_is_still_explained),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
