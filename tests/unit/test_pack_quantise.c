/* SPDX-License-Identifier: Apache-2.0
 * The quantiser against groups worked out by hand from its rule, and the tile order against the
 * address formula of docs/FORMATS.md. Level: EXACT, these are stored bytes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/compiler.h"
#include "model/geometry.h"
#include "model/layout.h"
#include "pack/quantise.h"

typedef float (*group_value)(int i);

static float ramp(int i) { return (float)(i - 20) / 64.0f; }
static float sawtooth(int i) { return (i % 2 ? -1.0f : 1.0f) * (float)(i % 7) / 8.0f; }
static float below_zero(int i) { return -(float)(i + 33) / 64.0f; } /* no zero inside: the high end is clamped */
static float halves(int i) { return -(float)(i % 31) / 32.0f; }     /* exact ties: away from zero */
static float zero(int i) { return (float)(i * 0); }

static const struct {
    group_value value;
    uint16_t scale, bias;
    uint32_t words[8];
} vectors[] = {
    {ramp,
     0xBD8A,
     0x3F2C,
     {0xDDDEEEEF, 0xBBCCCCDD, 0x9AAAAABB, 0x78888999, 0x66667777, 0x44445555, 0x22233333, 0x00011112}},
    {sawtooth,
     0xBDC0,
     0x3F40,
     {0x80F3C598, 0x98F1D4B7, 0xB780F3C5, 0xC598F1D4, 0xD4B780F3, 0xF3C598F1, 0xF1D4B780, 0x80F3C598}},
    {below_zero,
     0x3DCD,
     0xBFC0,
     {0x99999AAA, 0x88888889, 0x66777777, 0x55556666, 0x44444555, 0x33333334, 0x11222222, 0x00001111}},
    {halves,
     0x3D80,
     0xBF70,
     {0xCCDDEEFF, 0x8899AABB, 0x44556677, 0xF0112233, 0xBCCDDEEF, 0x78899AAB, 0x34455667, 0xFF011223}},
    {zero, 0xB3D7, 0x0000, {0, 0, 0, 0, 0, 0, 0, 0}},
};

static void test_vectors(void **state) {
    (void)state;
    for (size_t v = 0; v < SPL_COUNT(vectors); v++) {
        float w[SPL_GROUP];
        uint8_t codes[SPL_GROUP / 2];
        uint16_t scale, bias;
        for (int i = 0; i < SPL_GROUP; i++) w[i] = spl_f32_from_bf16(spl_bf16_from_f32(vectors[v].value(i)));
        assert_true(spl_quantise_row(w, SPL_GROUP, 4, codes, &scale, &bias));
        assert_int_equal(scale, vectors[v].scale);
        assert_int_equal(bias, vectors[v].bias);
        for (int j = 0; j < 8; j++) assert_int_equal(spl_load_u32(codes + 4 * j), vectors[v].words[j]);
    }
}

/* A plain transcription of the rule, one value at a time. */
static void rule(const float *w, float top, uint8_t *codes, uint16_t *scale, uint16_t *bias) {
    float lo = w[0], hi = 0.0f, b = 0.0f;
    for (int i = 0; i < SPL_GROUP; i++) {
        lo = fminf(lo, w[i]);
        hi = fmaxf(hi, w[i]);
    }
    float s = fmaxf((hi - lo) / top, 1e-7f), edge = hi;
    if (fabsf(lo) > fabsf(hi)) {
        edge = lo;
    } else {
        s = -s;
    }
    float q0 = roundf(edge / s);
    if (q0 != 0.0f) {
        s = edge / q0;
        b = edge;
    }
    for (int i = 0; i < SPL_GROUP; i++) codes[i] = (uint8_t)fminf(fmaxf(roundf((w[i] - b) / s), 0.0f), top);
    *scale = spl_bf16_from_f32(s);
    *bias = spl_bf16_from_f32(b);
}

static uint32_t next_random(uint32_t *s) {
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

/* Magnitudes over many binades, one-sided groups, ties, tiny groups: all must equal the rule. */
static void test_equals_the_rule(void **state) {
    (void)state;
    uint32_t seed = 7;
    for (int trial = 0; trial < 20000; trial++) {
        float w[SPL_GROUP];
        uint8_t codes[SPL_GROUP], want[SPL_GROUP];
        uint16_t scale, bias, want_scale, want_bias;
        float size = ldexpf(1.0f, (int)(next_random(&seed) % 60) - 40), shift = (float)(trial % 5 - 2);
        for (int i = 0; i < SPL_GROUP; i++) {
            float u = (float)(next_random(&seed) & 0xffff) / 65536.0f - 0.5f;
            if (trial % 3 == 0) u = rintf(u * 30.0f) / 30.0f;
            w[i] = (u + shift * 0.5f) * size;
            if (trial % 2) w[i] = spl_f32_from_bf16(spl_bf16_from_f32(w[i]));
        }
        unsigned bits = trial % 7 == 0 ? 8 : 4;
        rule(w, bits == 8 ? 255.0f : 15.0f, want, &want_scale, &want_bias);
        assert_true(spl_quantise_row(w, SPL_GROUP, bits, codes, &scale, &bias));
        assert_int_equal(scale, want_scale);
        assert_int_equal(bias, want_bias);
        for (int i = 0; i < SPL_GROUP; i++) {
            int code = bits == 8 ? codes[i] : codes[i / 2] >> (4 * (i % 2)) & 15;
            assert_int_equal(code, want[i]);
        }
    }
}

static void test_values_that_are_not_finite(void **state) {
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    uint8_t codes[SPL_GROUP];
    uint16_t scales[2], biases[2];
    for (size_t b = 0; b < SPL_COUNT(bad); b++) {
        for (int at = 0; at < 2 * SPL_GROUP; at += 13) {
            float w[2 * SPL_GROUP] = {0};
            w[at] = bad[b];
            assert_false(spl_quantise_row(w, 2 * SPL_GROUP, 4, codes, scales, biases));
        }
    }
    float wide[SPL_GROUP] = {0}; /* finite values whose range is not */
    wide[0] = 3.3e38f;
    wide[1] = -3.3e38f;
    assert_false(spl_quantise_row(wide, SPL_GROUP, 4, codes, scales, biases));
}

static void test_one_word_of_a_tile(void **state) {
    (void)state;
    uint8_t codes[SPL_ROWS_PER_TILE * 32] = {0}, tile[SPL_Q4_TILE_BYTES];
    uint16_t params[SPL_ROWS_PER_TILE] = {0};
    spl_store_u32(codes + 5 * 32 + 4 * 3, 0x76543210u); /* row 5, inputs 24..31 */
    spl_tile_panel(codes, params, params, SPL_GROUP, 4, tile);
    assert_int_equal(spl_load_u32(tile + 64 + 3 * 64 + 5 * 4), 0x73625140u);
}

static void test_tile_addresses_q4(void **state) {
    (void)state;
    enum { COLS = 192, GROUPS = COLS / SPL_GROUP };
    uint8_t codes[16 * COLS / 2], panel[GROUPS * SPL_Q4_TILE_BYTES];
    uint16_t scales[16 * GROUPS], biases[16 * GROUPS];
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(i * 37 + (i >> 5));
    for (int i = 0; i < 16 * GROUPS; i++) {
        scales[i] = (uint16_t)(0x3c00 + i);
        biases[i] = (uint16_t)(0xbc00 + i);
    }
    spl_tile_panel(codes, scales, biases, COLS, 4, panel);
    for (int r = 0; r < 16; r++) {
        for (int k = 0; k < COLS; k++) {
            const uint8_t *tile = panel + k / SPL_GROUP * SPL_Q4_TILE_BYTES;
            int in = k % SPL_GROUP;
            uint8_t byte = tile[64 + in / 8 * 64 + r * 4 + in % 4];
            int code = in % 8 < 4 ? byte & 15 : byte >> 4;
            assert_int_equal(code, codes[r * COLS / 2 + k / 2] >> (4 * (k % 2)) & 15);
            assert_int_equal(spl_load_u16(tile + 2 * r), scales[r * GROUPS + k / SPL_GROUP]);
            assert_int_equal(spl_load_u16(tile + 32 + 2 * r), biases[r * GROUPS + k / SPL_GROUP]);
        }
    }
}

static void test_tile_addresses_q8(void **state) {
    (void)state;
    enum { COLS = 128, GROUPS = COLS / SPL_GROUP };
    uint8_t codes[16 * COLS], panel[GROUPS * SPL_Q8_TILE_BYTES];
    uint16_t scales[16 * GROUPS] = {0}, biases[16 * GROUPS] = {0};
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(i * 37 + (i >> 7));
    scales[3 * GROUPS + 1] = 0x1234;
    biases[3 * GROUPS + 1] = 0x4321;
    spl_tile_panel(codes, scales, biases, COLS, 8, panel);
    for (int r = 0; r < 16; r++) {
        for (int k = 0; k < COLS; k++) {
            const uint8_t *tile = panel + k / SPL_GROUP * SPL_Q8_TILE_BYTES;
            int in = k % SPL_GROUP;
            assert_int_equal(tile[64 + in / 4 * 64 + r * 4 + in % 4], codes[r * COLS + k]);
        }
    }
    assert_int_equal(spl_load_u16(panel + SPL_Q8_TILE_BYTES + 6), 0x1234);
    assert_int_equal(spl_load_u16(panel + SPL_Q8_TILE_BYTES + 38), 0x4321);
}

static void test_widening(void **state) {
    (void)state;
    const uint8_t halves_text[] = {0xff, 0x00, 0x3c, 0x01, 0x00, 0x00, 0xc0, 0xff, 0x7b}; /* at an odd address */
    float out[4];
    spl_widen_f16(halves_text + 1, 4, out);
    assert_true(out[0] == 1.0f && out[1] == 0x1p-24f && out[2] == -2.0f && out[3] == 65504.0f);
    const uint8_t bf16_text[] = {0, 0x80, 0x3f, 0x49, 0x40};
    spl_widen_bf16(bf16_text + 1, 2, out);
    assert_true(out[0] == 1.0f && out[1] == 3.140625f);
    const uint8_t f32_text[] = {0, 0x00, 0x00, 0x80, 0xbf};
    spl_widen_f32(f32_text + 1, 1, out);
    assert_true(out[0] == -1.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_equals_the_rule),
        cmocka_unit_test(test_values_that_are_not_finite),
        cmocka_unit_test(test_one_word_of_a_tile),
        cmocka_unit_test(test_tile_addresses_q4),
        cmocka_unit_test(test_tile_addresses_q8),
        cmocka_unit_test(test_widening),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
