/* SPDX-License-Identifier: Apache-2.0
 * A package made of random numbers in anonymous memory, so that a machine without the weights can
 * measure speed with the real byte layout. Each matrix gets a pool of random tiles (or rows), which
 * is then copied in runs from random places: filling costs little more than touching the memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/huge_pages.h"
#include "model/package_private.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Four independent xorshift streams, so that the compiler can keep several stores in flight. */
static void fill_random(uint8_t *to, uint64_t n_bytes, uint64_t seed) {
    uint64_t s[4];
    for (int i = 0; i < 4; i++) s[i] = mix(seed + (uint64_t)i) | 1;
    uint64_t at = 0;
    for (; at + 32 <= n_bytes; at += 32) {
        for (int i = 0; i < 4; i++) {
            s[i] ^= s[i] << 13;
            s[i] ^= s[i] >> 7;
            s[i] ^= s[i] << 17;
        }
        memcpy(to + at, s, 32);
    }
    if (at < n_bytes) memcpy(to + at, s, (size_t)(n_bytes - at));
}

/* Uniform codes 0..15 have mean 7.5 and deviation 4.6: with bias -7.5 scale the weights are centred
 * and deviate by 4.6 scale, wanted 1/sqrt(cols). A small jitter makes every group different. */
static void put_scales(uint8_t *scales, uint8_t *biases, uint32_t n, float unit, float middle, uint64_t *state) {
    for (uint32_t i = 0; i < n; i++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        float jitter = 0.75f + 0.5f * (float)(*state & 1023) / 1023.0f;
        float scale = spl_f32_from_bf16(spl_bf16_from_f32(unit * jitter));
        spl_store_u16(scales + 2 * i, spl_bf16_from_f32(scale));
        spl_store_u16(biases + 2 * i, spl_bf16_from_f32(-middle * scale));
    }
}

enum { POOL_BYTES = 1 << 20 };

/* One tile, or one row of the token table, with random codes in place already. */
static void put_item_scales(uint8_t *item, const spl_tensor_spec *t, uint64_t *state) {
    bool q8 = t->encoding == SPL_ENC_Q8G64_R16;
    float middle = q8 ? 127.5f : 7.5f, deviation = q8 ? 73.9f : 4.61f;
    if (t->encoding == SPL_ENC_Q4G64_ROW) {
        uint32_t groups = t->cols / SPL_GROUP;
        uint8_t *scales = item + t->cols / 2;
        /* Embedding rows of deviation 1/50, as trained tables have. */
        put_scales(scales, scales + 2 * (size_t)groups, groups, 0.02f / deviation, middle, state);
    } else {
        put_scales(item, item + 32, SPL_ROWS_PER_TILE, 1.0f / (deviation * sqrtf((float)t->cols)), middle, state);
    }
}

static void fill_matrix(uint8_t *to, const spl_tensor_spec *t, uint64_t seed) {
    uint64_t state = mix(seed ^ 0x5ca1e5u) | 1;
    uint64_t row_bytes = t->cols / 2 + (uint64_t)t->cols / SPL_GROUP * 4;
    uint64_t item = t->encoding == SPL_ENC_Q4G64_ROW   ? row_bytes
                    : t->encoding == SPL_ENC_Q8G64_R16 ? SPL_Q8_TILE_BYTES
                                                       : SPL_Q4_TILE_BYTES;
    uint64_t n_items = t->bytes / item, n_pool = POOL_BYTES / item < n_items ? POOL_BYTES / item : n_items;
    fill_random(to, n_pool * item, seed);
    for (uint64_t i = 0; i < n_pool; i++) put_item_scales(to + i * item, t, &state);
    /* The pool is the matrix's own beginning; runs of it fill the rest. */
    for (uint64_t done = n_pool; done < n_items;) {
        state = mix(state);
        uint64_t first = state % n_pool, n = n_pool - first;
        if (n > n_items - done) n = n_items - done;
        memcpy(to + done * item, to + first * item, (size_t)(n * item));
        done += n;
    }
}

static float float_value(spl_tensor_role role, float u) {
    switch (role) {
    case SPL_T_GDN_DECAY: return -0.02f - 4.0f * u;
    case SPL_T_GDN_DT_BIAS: return -4.0f + 3.0f * u;
    case SPL_T_GDN_CONV: return u - 0.5f;
    case SPL_T_DRAFT_ATTN_CONV_BASE:
    case SPL_T_DRAFT_FFN_CONV_BASE: return 0.2f * (u - 0.5f);
    default: return 0.9f + 0.2f * u;
    }
}

static void fill_small(uint8_t *to, const spl_tensor_spec *t, uint64_t seed) {
    uint64_t s = mix(seed) | 1;
    bool wide = t->encoding == SPL_ENC_F32;
    for (uint64_t i = 0; i < t->bytes / (wide ? 4 : 2); i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        float u = (float)(s >> 40) * 0x1p-24f;
        if (wide)
            spl_store_u32(to + 4 * i, spl_bits_from_f32(float_value(t->role, u)));
        else
            spl_store_u16(to + 2 * i, spl_bf16_from_f32(0.1f * (u - 0.5f)));
    }
}

static spl_status fill_file(spl_package *p, spl_file_id file, uint64_t seed, bool huge_pages, spl_error *err) {
    uint64_t n_bytes = spl_manifest_file_bytes(p->manifest, file);
    if (n_bytes == 0) return SPL_OK;
    uint8_t *data =
        mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return spl_fail(err, SPL_E_NOMEM, "no memory for %llu bytes of random weights", (unsigned long long)n_bytes);
    spl_advise_pages(data, (size_t)n_bytes, huge_pages);
    p->maps[file].data = data;
    p->maps[file].n_bytes = (size_t)n_bytes;
    for (uint32_t i = 0; i < p->manifest->n_tensors; i++) {
        const spl_placed_tensor *t = &p->manifest->tensors[i];
        if (t->spec.file != file) continue;
        uint64_t own = mix(seed ^ mix(((uint64_t)t->spec.role << 32) | t->spec.layer));
        bool small = t->spec.encoding == SPL_ENC_F32 || t->spec.encoding == SPL_ENC_BF16;
        if (small)
            fill_small(data + t->offset, &t->spec, own);
        else
            fill_matrix(data + t->offset, &t->spec, own);
    }
    spl_manifest_header(p->manifest, file, data);
    (void)mprotect(data, (size_t)n_bytes, PROT_READ);
    return SPL_OK;
}

spl_status spl_package_random(spl_package **out, const spl_geometry *g, uint32_t n_layers, bool with_draft,
                              uint64_t seed, spl_error *err) {
    return spl_package_random_paged(out, g, n_layers, with_draft, seed, true, err);
}

spl_status spl_package_random_paged(spl_package **out, const spl_geometry *g, uint32_t n_layers, bool with_draft,
                                    uint64_t seed, bool huge_pages, spl_error *err) {
    *out = NULL;
    spl_package *p = calloc(1, sizeof *p);
    if (p) p->path = strdup("(random)");
    if (!p || !p->path) {
        free(p);
        return spl_fail(err, SPL_E_NOMEM, "no memory for a package");
    }
    spl_status st = spl_manifest_new(&p->manifest, g, n_layers, with_draft, err);
    if (st == SPL_OK) st = spl_manifest_identity(p->manifest, p->manifest->identity, err);
    if (st == SPL_OK) st = spl_package_index(p, err);
    for (int file = 0; file < SPL_N_FILES && st == SPL_OK; file++)
        st = fill_file(p, (spl_file_id)file, seed, huge_pages, err);
    if (st != SPL_OK) {
        spl_package_close(p);
        return st;
    }
    (void)snprintf(p->manifest->name, sizeof p->manifest->name, "%s (random weights)", g->display);
    (void)snprintf(p->digest, sizeof p->digest, "%064llx", (unsigned long long)seed);
    p->defaults = (spl_package_defaults){
        .temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .n_stop_tokens = g->n_stop_tokens};
    memcpy(p->defaults.stop_tokens, g->stop_tokens, sizeof p->defaults.stop_tokens);
    *out = p;
    return SPL_OK;
}
