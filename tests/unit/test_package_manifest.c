/* SPDX-License-Identifier: Apache-2.0
 * manifest.json without files: what is written is read back for every geometry, sizes add up to the
 * published figures, and a changed number is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "model/manifest.h"

static const char digest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

static spl_manifest *make(const char *id, uint32_t n_layers, bool with_draft) {
    spl_manifest *m;
    spl_error err;
    assert_int_equal(spl_manifest_new(&m, spl_geometry_find(id), n_layers, with_draft, &err), SPL_OK);
    for (int f = 0; f < SPL_N_FILES; f++) {
        uint64_t n = spl_manifest_file_bytes(m, (spl_file_id)f);
        if (n)
            (void)spl_manifest_add_file(m, spl_weight_file_name((spl_file_id)f), n, SPL_FILE_HEADER_BYTES, digest,
                                        &err);
    }
    assert_int_equal(spl_manifest_identity(m, m->identity, &err), SPL_OK);
    return m;
}

static void text_of(const spl_manifest *m, char **text, size_t *n) {
    spl_error err;
    json_t *nothing = json_object();
    assert_int_equal(spl_manifest_text(m, nothing, text, n, &err), SPL_OK);
    json_decref(nothing);
}

static void test_round_trip(void **state) {
    (void)state;
    const spl_geometry *g;
    for (uint32_t i = 0; (g = spl_geometry_at(i)) != NULL; i++) {
        for (int partial = 0; partial < 2; partial++) {
            spl_manifest *m = make(g->id, partial ? 2 : 0, g->draft != NULL && !partial), *read = NULL;
            spl_error err = {0};
            size_t n;
            char *text;
            text_of(m, &text, &n);
            spl_status st = spl_manifest_parse(&read, text, n, &err);
            if (st != SPL_OK) fail_msg("%s: %s", g->id, err.text);
            assert_ptr_equal(read->geometry, g);
            assert_int_equal(read->n_layers, partial ? 2 : g->n_layers);
            assert_int_equal(read->has_draft, m->has_draft);
            assert_int_equal(read->n_tensors, m->n_tensors);
            assert_memory_equal(read->tensors, m->tensors, m->n_tensors * sizeof *m->tensors);
            assert_string_equal(read->identity, m->identity);
            assert_true(n < SPL_MANIFEST_MAX_BYTES / 4); /* the real models stay far below the limit */
            free(text);
            spl_manifest_free(read);
            spl_manifest_free(m);
        }
    }
}

/* Every tensor behind the header, aligned, in ascending order, without overlap. */
static void test_places(void **state) {
    (void)state;
    const spl_geometry *g;
    for (uint32_t i = 0; (g = spl_geometry_at(i)) != NULL; i++) {
        spl_manifest *m = make(g->id, 0, g->draft != NULL);
        uint64_t end[SPL_N_FILES] = {SPL_FILE_HEADER_BYTES, SPL_FILE_HEADER_BYTES, SPL_FILE_HEADER_BYTES};
        for (uint32_t t = 0; t < m->n_tensors; t++) {
            const spl_placed_tensor *p = &m->tensors[t];
            assert_true(p->offset >= end[p->spec.file]);
            assert_true(p->offset - end[p->spec.file] < spl_tensor_alignment(p->spec.encoding));
            assert_int_equal(p->offset % spl_tensor_alignment(p->spec.encoding), 0);
            end[p->spec.file] = p->offset + p->spec.bytes;
        }
        assert_int_equal(spl_manifest_file_bytes(m, SPL_FILE_TARGET) % SPL_MATRIX_ALIGNMENT, 0);
        assert_true(spl_manifest_file_bytes(m, SPL_FILE_TARGET) - end[SPL_FILE_TARGET] < SPL_MATRIX_ALIGNMENT);
        spl_manifest_free(m);
    }
}

/* The parameter count of the published 27B, and the byte counts of its published draft. */
static void test_totals_of_the_27b(void **state) {
    (void)state;
    spl_manifest *m = make("qwen3.8-27b", 0, true);
    uint64_t weights = 0, small = 0, draft_q4 = 0, draft_bf16 = 0;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const spl_tensor_spec *t = &m->tensors[i].spec;
        uint64_t n = (uint64_t)t->rows * t->cols * t->n_experts;
        if (t->file == SPL_FILE_TARGET && t->encoding == SPL_ENC_F32) small += n;
        if (t->file == SPL_FILE_TARGET && t->encoding != SPL_ENC_F32) weights += n;
        if (t->file == SPL_FILE_DRAFT && t->encoding == SPL_ENC_Q4G64_R16) draft_q4 += t->bytes;
        if (t->file == SPL_FILE_DRAFT && t->encoding == SPL_ENC_BF16) draft_bf16 += t->bytes;
    }
    assert_int_equal(weights + small, 26895998464u);
    assert_int_equal(draft_q4, 1010810880u);
    assert_int_equal(draft_bf16, 254279680u);
    spl_manifest_free(m);
}

static void test_header(void **state) {
    (void)state;
    uint8_t header[SPL_FILE_HEADER_BYTES];
    spl_manifest *m = make("toy", 0, true);
    spl_manifest_header(m, SPL_FILE_DRAFT, header);
    assert_memory_equal(header, "SPLR16PK", 8);
    assert_int_equal(spl_load_u32(header + 8), 1);
    assert_int_equal(spl_load_u32(header + 12), SPL_FILE_DRAFT);
    assert_memory_equal(header + 16, m->identity, 64);
    for (int i = 80; i < SPL_FILE_HEADER_BYTES; i++) assert_int_equal(header[i], 0);
    spl_manifest_free(m);
}

/* The identity moves with everything that decides where bytes lie and what they are. */
static void test_identity_depends_on(void **state) {
    (void)state;
    char other[SPL_SHA256_HEX_BYTES];
    spl_error err;
    spl_manifest *m = make("toy", 0, true);
    m->tensors[5].offset += 4096;
    assert_int_equal(spl_manifest_identity(m, other, &err), SPL_OK);
    assert_string_not_equal(other, m->identity);
    m->tensors[5].offset -= 4096;
    m->files[0].sha256[3] = 'f';
    assert_int_equal(spl_manifest_identity(m, other, &err), SPL_OK);
    assert_string_not_equal(other, m->identity);
    m->files[0].sha256[3] = digest[3];
    assert_int_equal(spl_manifest_identity(m, other, &err), SPL_OK);
    assert_string_equal(other, m->identity);
    spl_manifest_free(m);
}

static void expect_refused(const char *find, const char *replace, spl_status want, const char *message) {
    spl_manifest *m = make("toy", 0, true), *read;
    spl_error err = {0};
    size_t n;
    char *text, *at;
    text_of(m, &text, &n);
    at = strstr(text, find);
    assert_non_null(at);
    char *changed = malloc(n + strlen(replace) + 1);
    assert_non_null(changed);
    (void)sprintf(changed, "%.*s%s%s", (int)(at - text), text, replace, at + strlen(find));
    assert_int_equal(spl_manifest_parse(&read, changed, strlen(changed), &err), want);
    assert_null(read);
    assert_string_equal(err.text, message);
    free(changed);
    free(text);
    spl_manifest_free(m);
}

static void test_refusals(void **state) {
    (void)state;
    expect_refused(
        "\"major\": 1", "\"major\": 2", SPL_E_UNSUPPORTED,
        "manifest.json: format version 2 is not supported (this build reads version 1); pack the model again");
    expect_refused("\"hidden\": 128", "\"hidden\": 129", SPL_E_GEOMETRY,
                   "manifest.json: geometry field 'hidden' is 129 in the package but 128 in 'toy' of this build");
    expect_refused(
        "\"rope_theta\": 1e7", "\"rope_theta\": 1e6", SPL_E_GEOMETRY,
        "manifest.json: geometry field 'rope_theta' is 1000000 in the package but 10000000 in 'toy' of this build");
    expect_refused("\"requires\": []", "\"requires\": [\"x\"]", SPL_E_UNSUPPORTED,
                   "manifest.json: required feature 'x' is not known to this build; update it");
    expect_refused("\"tile_bytes\": 576", "\"tile_bytes\": 575", SPL_E_UNSUPPORTED,
                   "manifest.json: encoding 'q4g64r16' differs from this build's in 'tile_bytes'");
    expect_refused("\"name\": \"target.head\"", "\"name\": \"target.hand\"", SPL_E_FORMAT,
                   "manifest.json: tensor 'target.head' is missing");
    expect_refused("\"offset\": 4096", "\"offset\": 9223372036854771712", SPL_E_FORMAT,
                   "manifest.json: tensor 'target.embed' (offset 9223372036854771712, 36864 bytes) does not fit in "
                   "'target.bin' of 823296 bytes");
    expect_refused("\"path\": \"target.bin\"", "\"path\": \"/target.bin\"", SPL_E_FORMAT,
                   "manifest.json: file path '/target.bin' is not a plain file name");
}

static void test_no_draft_defined(void **state) {
    (void)state;
    spl_manifest *m;
    spl_error err;
    assert_int_equal(spl_manifest_new(&m, spl_geometry_find("toy-even"), 0, true, &err), SPL_E_GEOMETRY);
    assert_null(m);
    assert_string_equal(err.text, "geometry 'toy-even' defines no draft model");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),          cmocka_unit_test(test_places),
        cmocka_unit_test(test_totals_of_the_27b),   cmocka_unit_test(test_header),
        cmocka_unit_test(test_identity_depends_on), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_draft_defined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
