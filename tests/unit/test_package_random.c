/* SPDX-License-Identifier: Apache-2.0
 * Random packages: every tensor of the layout is there at its alignment, equal seeds give equal
 * bytes, and weights have the deviation that keeps activations of order one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "model/package.h"

static spl_package *make(const char *id, uint32_t n_layers, bool draft, uint64_t seed) {
    spl_package *p;
    spl_error err = {0};
    assert_int_equal(spl_package_random(&p, spl_geometry_find(id), n_layers, draft, seed, &err), SPL_OK);
    return p;
}

static void test_every_tensor(void **state) {
    (void)state;
    const spl_geometry *g;
    for (uint32_t i = 0; (g = spl_geometry_at(i)) != NULL; i++) {
        if (!g->test_only) continue;
        spl_package *p = make(g->id, 0, g->draft != NULL, 1);
        for (int file = 0; file < (g->draft ? 2 : 1); file++) {
            spl_tensor_spec want, got;
            for (uint32_t t = 0; spl_layout_tensor(g, (spl_file_id)file, 0, t, &want); t++) {
                const void *data = spl_package_tensor(p, want.role, want.layer, &got);
                assert_non_null(data);
                assert_memory_equal(&got, &want, sizeof got);
                assert_int_equal((uintptr_t)data % spl_tensor_alignment(want.encoding), 0);
            }
        }
        assert_null(spl_package_tensor(p, SPL_T_HEAD, 0, NULL));
        assert_null(spl_package_tensor(p, SPL_T_INPUT_NORM, g->n_layers, NULL));
        assert_null(spl_package_tensor(p, SPL_T_INPUT_NORM, SPL_NO_LAYER, NULL));
        assert_null(spl_package_tensor(p, SPL_N_TENSOR_ROLES, 0, NULL));
        assert_int_equal(spl_package_has_draft(p), g->draft != NULL);
        assert_ptr_equal(spl_package_geometry(p), g);
        spl_package_close(p);
    }
}

static void test_layers_and_draft_on_request(void **state) {
    (void)state;
    spl_package *p = make("toy", 3, false, 1);
    assert_int_equal(spl_package_n_layers(p), 3);
    assert_non_null(spl_package_tensor(p, SPL_T_GATE_UP, 2, NULL));
    assert_null(spl_package_tensor(p, SPL_T_GATE_UP, 3, NULL));
    assert_null(spl_package_tensor(p, SPL_T_DRAFT_QKV, 0, NULL));
    assert_false(spl_package_has_draft(p));
    spl_package_close(p);
}

static void test_seeds(void **state) {
    (void)state;
    spl_package *a = make("toy", 0, true, 5), *b = make("toy", 0, true, 5), *c = make("toy", 0, true, 6);
    spl_tensor_spec t;
    const void *x = spl_package_tensor(a, SPL_T_DOWN, 2, &t);
    assert_memory_equal(x, spl_package_tensor(b, SPL_T_DOWN, 2, NULL), t.bytes);
    assert_memory_not_equal(x, spl_package_tensor(c, SPL_T_DOWN, 2, NULL), t.bytes);
    assert_memory_not_equal(x, spl_package_tensor(a, SPL_T_DOWN, 3, NULL), t.bytes);
    spl_package_close(a);
    spl_package_close(b);
    spl_package_close(c);
}

static void test_weights_have_unit_gain(void **state) {
    (void)state;
    spl_package *p = make("nano", 0, false, 3);
    spl_tensor_spec t;
    const uint8_t *data = spl_package_tensor(p, SPL_T_DOWN, 0, &t);
    double sum = 0, squares = 0;
    for (uint64_t at = 0; at < t.bytes; at += SPL_Q4_TILE_BYTES) {
        for (int i = 0; i < 16 * SPL_GROUP; i++) {
            int row = i / SPL_GROUP, in = i % SPL_GROUP;
            uint8_t byte = data[at + 64 + (size_t)(in / 8 * 64 + row * 4 + in % 4)];
            float scale = spl_f32_from_bf16(spl_load_u16(data + at + 2 * row));
            float bias = spl_f32_from_bf16(spl_load_u16(data + at + 32 + 2 * row));
            double w = (double)(scale * (float)(in % 8 < 4 ? byte & 15 : byte >> 4) + bias);
            sum += w;
            squares += w * w;
        }
    }
    double n = (double)t.rows * t.cols, gain = sqrt(squares / n * t.cols);
    assert_true(fabs(sum / n) < 0.01 / sqrt(t.cols));
    assert_true(gain > 0.9 && gain < 1.15);
    const uint8_t *decay = spl_package_tensor(p, SPL_T_GDN_DECAY, 0, &t);
    for (uint32_t i = 0; i < t.cols; i++) assert_true(spl_f32_from_bits(spl_load_u32(decay + 4 * i)) < 0.0f);
    spl_package_close(p);
}

static void test_no_draft_defined(void **state) {
    (void)state;
    spl_package *p;
    spl_error err;
    assert_int_equal(spl_package_random(&p, spl_geometry_find("toy-even"), 0, true, 1, &err), SPL_E_GEOMETRY);
    assert_null(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tensor),
        cmocka_unit_test(test_layers_and_draft_on_request),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_weights_have_unit_gain),
        cmocka_unit_test(test_no_draft_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
