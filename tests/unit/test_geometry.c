/* SPDX-License-Identifier: Apache-2.0
 * Every compiled-in geometry: relations the engine relies on, and the published figures of the two
 * real models. A new member of the family is checked by the first group without a new line here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/geometry.h"
#include "model/layout.h"

static void check_target(const spl_geometry *g) {
    assert_int_equal(g->n_layers % g->attention_interval, 0);
    assert_int_equal(g->hidden % SPL_GROUP, 0);
    assert_int_equal(spl_q_width(g) % SPL_GROUP, 0);
    assert_int_equal(spl_gdn_value_width(g) % SPL_GROUP, 0);
    assert_int_equal(g->vocab % SPL_ROWS_PER_TILE, 0);
    assert_int_equal(g->n_q_heads % g->n_kv_heads, 0);
    assert_int_equal(g->gdn_value_heads % g->gdn_key_heads, 0);
    assert_int_equal(g->rotary_dims % 2, 0);
    assert_true(g->rotary_dims <= g->head_dim);
    /* The three axes of the rotary section share the pairs. */
    assert_int_equal(g->mrope_section[0] + g->mrope_section[1] + g->mrope_section[2], g->rotary_dims / 2);
    assert_true(g->rope_theta > 1.0f && g->rms_eps > 0.0f);
    assert_true(g->n_stop_tokens >= 1 && g->n_stop_tokens <= SPL_MAX_STOP_TOKENS);
    for (uint32_t i = 0; i < g->n_stop_tokens; i++) assert_true(g->stop_tokens[i] < g->vocab);
    assert_true(g->image_token <= g->vocab);
    assert_int_equal(g->max_positions % SPL_PAGE_TOKENS, 0);
}

static void check_ffn(const spl_geometry *g) {
    if (g->n_experts == 0) {
        assert_true(g->ffn_width > 0);
        assert_int_equal(g->ffn_width % SPL_GROUP, 0);
        return;
    }
    assert_int_equal(g->ffn_width, 0);
    assert_int_equal(g->expert_width % SPL_GROUP, 0);
    assert_int_equal(g->shared_expert_width % SPL_GROUP, 0);
    assert_true(g->experts_per_token >= 1 && g->experts_per_token <= g->n_experts);
}

static void check_draft(const spl_geometry *g) {
    const spl_draft_geometry *d = g->draft;
    if (!d) return;
    assert_int_equal(d->hidden, g->hidden); /* it shares embedding and head */
    assert_int_equal(d->block_rows, SPL_BLOCK_ROWS);
    assert_int_equal(d->ffn_width % SPL_GROUP, 0);
    assert_int_equal(d->selector_rank % SPL_GROUP, 0);
    assert_int_equal(d->n_q_heads % d->n_kv_heads, 0);
    assert_int_equal(d->hidden % d->conv_group, 0);
    assert_int_equal(d->window_tokens % SPL_PAGE_TOKENS, 0);
    assert_true(d->mask_token < g->vocab);
    assert_true(d->n_capture >= 1 && d->n_capture <= SPL_MAX_CAPTURE_LAYERS);
    for (uint32_t i = 0; i < d->n_capture; i++) {
        assert_true(d->capture[i] < g->n_layers);
        if (i > 0) assert_true(d->capture[i] > d->capture[i - 1]);
    }
}

static void test_every_geometry_is_sound(void **state) {
    (void)state;
    uint32_t n = 0;
    for (const spl_geometry *g; (g = spl_geometry_at(n)) != NULL; n++) {
        assert_true(strlen(g->id) > 0 && strlen(g->display) > 0);
        assert_ptr_equal(spl_geometry_find(g->id), g); /* ids are unique */
        assert_true(strcmp(g->chat_template, "qwen3.8") == 0 || strcmp(g->chat_template, "qwen3.6") == 0 ||
                    strcmp(g->chat_template, "qwen3.5") == 0);
        check_target(g);
        check_ffn(g);
        check_draft(g);
    }
    assert_true(n >= 4);
    assert_null(spl_geometry_find("qwen3.8-28b"));
    assert_null(spl_geometry_find(""));
}

static void test_layers_are_numbered_within_their_kind(void **state) {
    (void)state;
    const spl_geometry *g;
    for (uint32_t n = 0; (g = spl_geometry_at(n)) != NULL; n++) {
        uint32_t n_attention = 0, n_gdn = 0;
        for (uint32_t layer = 0; layer < g->n_layers; layer++) {
            if (spl_layer_is_attention(g, layer)) {
                assert_int_equal(spl_attention_index(g, layer), n_attention++);
            } else {
                assert_int_equal(spl_gdn_index(g, layer), n_gdn++);
            }
        }
        assert_int_equal(n_attention, spl_n_attention_layers(g));
        assert_int_equal(n_gdn, spl_n_gdn_layers(g));
    }
}

static void test_tensor_names_are_unique_and_sizes_positive(void **state) {
    (void)state;
    const spl_geometry *g = spl_geometry_find("qwen3.6-35b-a3b");
    spl_tensor_spec a, b;
    uint32_t n = spl_layout_count(g, SPL_FILE_TARGET, 4);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(spl_layout_tensor(g, SPL_FILE_TARGET, 4, i, &a));
        assert_true(a.bytes > 0);
        for (uint32_t j = i + 1; j < n; j++) {
            assert_true(spl_layout_tensor(g, SPL_FILE_TARGET, 4, j, &b));
            assert_string_not_equal(a.name, b.name);
        }
    }
    assert_false(spl_layout_tensor(g, SPL_FILE_TARGET, 4, n, &a));
}

static void test_qwen3_8_27b(void **state) {
    (void)state;
    const spl_geometry *g = spl_geometry_find("qwen3.8-27b");
    assert_non_null(g);
    static const uint16_t capture[] = {5, 19, 33, 47, 61};
    assert_int_equal(spl_n_attention_layers(g), 16);
    assert_int_equal(spl_n_gdn_layers(g), 48);
    assert_true(spl_layer_is_attention(g, 3) && spl_layer_is_attention(g, 63) && !spl_layer_is_attention(g, 0));
    assert_int_equal(spl_attention_in_width(g), 14336);
    assert_int_equal(spl_gdn_channels(g), 10240);
    assert_int_equal(spl_gdn_in_width(g), 16480);
    assert_int_equal(g->draft->n_layers, 5);
    assert_int_equal(g->draft->mask_token, 248070);
    assert_int_equal(g->draft->n_capture, 5);
    assert_memory_equal(g->draft->capture, capture, sizeof capture);
    assert_string_equal(g->chat_template, "qwen3.8");
}

static void test_qwen3_6_35b_a3b(void **state) {
    (void)state;
    const spl_geometry *g = spl_geometry_find("qwen3.6-35b-a3b");
    assert_non_null(g);
    static const uint16_t capture[] = {1, 6, 11, 16, 22, 27, 32, 37};
    assert_int_equal(spl_n_attention_layers(g), 10);
    assert_int_equal(spl_n_gdn_layers(g), 30);
    assert_int_equal(spl_attention_in_width(g), 9216);
    assert_int_equal(spl_gdn_channels(g), 8192);
    assert_int_equal(spl_gdn_in_width(g), 12352);
    assert_int_equal(g->draft->n_layers, 6);
    assert_int_equal(g->draft->mask_token, 248077);
    assert_int_equal(g->draft->n_capture, 8);
    assert_memory_equal(g->draft->capture, capture, sizeof capture);
    assert_string_equal(g->chat_template, "qwen3.6");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_geometry_is_sound),
        cmocka_unit_test(test_layers_are_numbered_within_their_kind),
        cmocka_unit_test(test_tensor_names_are_unique_and_sizes_positive),
        cmocka_unit_test(test_qwen3_8_27b),
        cmocka_unit_test(test_qwen3_6_35b_a3b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
