/* SPDX-License-Identifier: Apache-2.0
 * The 4-bit linear on AMX. A group of a panel, unpacked, is 64 inputs x 16 outputs, just the second operand of a tile
 * product; a block of up to 16 activation rows is the first. The exact sums go through L1 to the fp32 accumulators,
 * and that, four vector operations a row and group, sets the pace: products of one group run while the sums of the
 * one before are scaled. Rows of one block stream over two panels; more share unpacked groups.
 *
 * tdpbsud adds exactly, so the result agrees with ref by the order of the epilogue alone. Numbers:
 * bench/EXPERIMENTS.tsv. */
#ifndef SPL_KERNELS_LINEAR_AMX_H
#define SPL_KERNELS_LINEAR_AMX_H

#include <immintrin.h>

#include "kernels/x86/linear_avx512.h"
#include "kernels/x86/tiles_amx.h"

enum {
    AMX_LEAST_ROWS = 5,           /* fewer go by vectors */
    AMX_SLAB_BYTES = 1280 * 1024, /* activations that share unpacked groups: they come from L2 each time */
    AMX_SLAB_BLOCKS = 16,
    AMX_RING = 4,    /* unpacked groups of a stream: a tile load wants its bytes out of the store buffer */
    AMX_PAGE = 4096, /* hardware prefetchers stop at its end */
    AMX_HEAD = 512   /* bytes that start them again */
};

/* Fp32 sums of up to 16 rows: [panel][row][output]. */
typedef struct amx_sums {
    __m512 v[2][SPL_Q8_BLOCK_ROWS];
} amx_sums;

/* Integer sums of one group and panel on their way from the tile to the vectors. */
typedef struct amx_exact {
    _Alignas(64) int32_t v[2][SPL_Q8_BLOCK_ROWS][SPL_ROWS_PER_TILE];
} amx_exact;

/* The accumulators have names: gcc 12 keeps an array of them in memory. */
#define AMX_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define AMX_TAKE(m) __m512 acc##m = m < M ? sums[m] : _mm512_setzero_ps();
#define AMX_GIVE(m)                                                                                                    \
    if (m < M) sums[m] = acc##m;
#define AMX_ADD(m)                                                                                                     \
    if (m < M)                                                                                                         \
        acc##m =                                                                                                       \
            add_group(acc##m, _mm512_load_si512(from[m]), scale, bias, _mm512_set1_ps(dx[m]), _mm512_set1_ps(sx[m]));
/* Scales the sums of group `g`, which are in `exact.v[odd]`. */
#define AMX_ADD_GROUP(g, odd, at)                                                                                      \
    do {                                                                                                               \
        const int32_t(*from)[SPL_ROWS_PER_TILE] = exact.v[odd];                                                        \
        const __m512 scale = w[g].scale[p], bias = w[g].bias[p];                                                       \
        const float *dx = (at).scale, *sx = (at).sum;                                                                  \
        AMX_EACH_ROW(AMX_ADD)                                                                                          \
    } while (0)

/* Groups of one panel for a block of M rows. Even groups go through tiles 0, 4 and 6, odd ones through 1, 5 and 7. */
static SPL_ALWAYS_INLINE void amx_rows(const pair_group *w, const int p, uint32_t n, spl_q8_cursor c, const int M,
                                       pair_stream *next, __m512 *sums) {
    amx_exact exact;
    spl_q8_cursor done = c; /* of the group before */
    AMX_EACH_ROW(AMX_TAKE)
    TILE_LOAD(6, w[0].code[p]);
    TILE_LOAD(4, c.q);
    for (uint32_t g = 0; g < n; g += 2) {
        TILE_PRODUCT(0, 4, 6);
        if (g + 1 < n) {
            TILE_LOAD(7, w[g + 1].code[p]);
            TILE_LOAD(5, c.q + c.q_step);
        }
        pair_ask(next);
        if (g > 0) {
            TILE_STORE(1, exact.v[1]);
            AMX_ADD_GROUP(g - 1, 1, done);
        }
        if (g + 1 < n) TILE_PRODUCT(1, 5, 7);
        if (g + 2 < n) {
            TILE_LOAD(6, w[g + 2].code[p]);
            TILE_LOAD(4, c.q + 2 * c.q_step);
        }
        pair_ask(next);
        TILE_STORE(0, exact.v[0]);
        AMX_ADD_GROUP(g, 0, c);
        spl_q8_next(&c);
        done = c;
        spl_q8_next(&c);
    }
    if (n % 2 == 0) {
        TILE_STORE(1, exact.v[1]);
        AMX_ADD_GROUP(n - 1, 1, done);
    }
    AMX_EACH_ROW(AMX_GIVE)
}

/* A stream: tiles 0 and 6 hold what belongs to the first panel, 1 and 7 what belongs to the second, 4 the rows. */
#define AMX_ZERO(m) __m512 first##m = _mm512_setzero_ps(), second##m = first##m;
#define AMX_ADD_PAIR(m)                                                                                                \
    if (m < M) {                                                                                                       \
        const __m512 d = _mm512_set1_ps(dx[m]), s = _mm512_set1_ps(sx[m]);                                             \
        for (int p = 0; p < 2 && m < 8; p++) amx_ask(tile[p] + 64 * m, near, far);                                     \
        first##m = add_group(first##m, _mm512_load_si512(exact.v[0][m]), w->scale[0], w->bias[0], d, s);               \
        second##m = add_group(second##m, _mm512_load_si512(exact.v[1][m]), w->scale[1], w->bias[1], d, s);             \
    }
#define AMX_GIVE_PAIR(m)                                                                                               \
    if (m < M) sums->v[0][m] = first##m, sums->v[1][m] = second##m;

/* Where a stream of pairs of panels asks for weights: in this panel, or, beyond its end, in the same one of the next
 * pair. */
static SPL_ALWAYS_INLINE size_t amx_ahead(size_t at, size_t reach, size_t panel_bytes) {
    return at + reach < panel_bytes ? reach : reach + panel_bytes;
}

/* Asks for weights to come: every line `near` bytes on, and `far` bytes on the heads of pages. More far ones, or many
 * at once, hold up what the core needs now. */
static SPL_ALWAYS_INLINE void amx_ask(const uint8_t *line, size_t near, size_t far) {
    uintptr_t there = (uintptr_t)line + far;
    _mm_prefetch((const char *)((uintptr_t)line + near), _MM_HINT_T0);
    if (there % AMX_PAGE < AMX_HEAD) _mm_prefetch((const char *)there, _MM_HINT_T1);
}

static SPL_ALWAYS_INLINE void amx_unpack(const uint8_t *tile, const int p, pair_group *out) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < 8; j++) {
        __m512i w = _mm512_load_si512((const void *)(tile + 64 + 64 * j));
        _mm512_store_si512(out->code[p][2 * j], _mm512_and_si512(w, low));
        _mm512_store_si512(out->code[p][2 * j + 1], high_halves(w));
    }
    out->scale[p] = widen_bf16(tile);
    out->bias[p] = widen_bf16(tile + 32);
}

/* A single block of M rows over two panels: nothing to share an unpack with. While the tiles work on group g, group
 * g + 1 is unpacked and the sums of g - 1 are scaled. */
static SPL_ALWAYS_INLINE void amx_stream(const uint8_t *const panels[2], const spl_q8_rows *x, const int M,
                                         const spl_reach *reach, amx_sums *sums) {
    const size_t n = x->k / SPL_GROUP, panel_bytes = n * SPL_Q4_TILE_BYTES;
    pair_group ring[AMX_RING];
    amx_exact exact;
    spl_q8_cursor c = spl_q8_row(x, 0);
    AMX_EACH_ROW(AMX_ZERO)
    for (int p = 0; p < 2; p++) amx_unpack(panels[p], p, &ring[0]);
    for (size_t g = 0; g <= n; g++) {
        const size_t at = (g + 1) * SPL_Q4_TILE_BYTES, near = amx_ahead(at, reach->near_bytes, panel_bytes),
                     far = amx_ahead(at, reach->far_bytes, panel_bytes);
        const uint8_t *const tile[2] = {panels[0] + at, panels[1] + at}; /* of the group to unpack */
        if (g > 0) {
            TILE_STORE(0, exact.v[0]);
            TILE_STORE(1, exact.v[1]);
        }
        if (g < n) {
            TILE_LOAD(4, c.q + g * c.q_step);
            TILE_LOAD(6, ring[g % AMX_RING].code[0]);
            TILE_PRODUCT(0, 4, 6);
            TILE_LOAD(7, ring[g % AMX_RING].code[1]);
            TILE_PRODUCT(1, 4, 7);
        }
        for (int p = 0; p < 2; p++) {
            if (g + 1 < n) amx_unpack(tile[p], p, &ring[(g + 1) % AMX_RING]);
            for (int line = M < 8 ? M : 8; line < 9; line++) amx_ask(tile[p] + 64 * line, near, far);
        }
        if (g > 0) {
            const pair_group *w = &ring[(g - 1) % AMX_RING];
            const float *dx = c.scale + (g - 1) * c.scale_step, *sx = c.sum + (g - 1) * c.scale_step;
            AMX_EACH_ROW(AMX_ADD_PAIR)
        }
    }
    AMX_EACH_ROW(AMX_GIVE_PAIR)
}

/* One function per row count, so that the accumulators are registers: those of a block among several, then those of a
 * block alone. */
typedef void (*amx_rows_fn)(const pair_group *w, uint32_t p, uint32_t n, const spl_q8_cursor *c, pair_stream *next,
                            __m512 *sums);
typedef void (*amx_stream_fn)(const uint8_t *const panels[2], const spl_q8_rows *x, const spl_reach *reach,
                              amx_sums *sums);
#define SPL_GEN_ROWS(M)                                                                                                \
    static void amx_rows_m##M(const pair_group *w, uint32_t p, uint32_t n, const spl_q8_cursor *c, pair_stream *next,  \
                              __m512 *sums) {                                                                          \
        amx_rows(w, (int)p, n, *c, M, next, sums);                                                                     \
    }
#define SPL_GEN_STREAM(M)                                                                                              \
    static void amx_stream_m##M(const uint8_t *const panels[2], const spl_q8_rows *x, const spl_reach *reach,          \
                                amx_sums *sums) {                                                                      \
        amx_stream(panels, x, M, reach, sums);                                                                         \
    }
SPL_GEN_ROWS(1)
SPL_GEN_ROWS(2)
SPL_GEN_ROWS(3)
SPL_GEN_ROWS(4)
SPL_GEN_ROWS(5)
SPL_GEN_ROWS(6)
SPL_GEN_ROWS(7)
SPL_GEN_ROWS(8)
SPL_GEN_ROWS(9)
SPL_GEN_ROWS(10)
SPL_GEN_ROWS(11)
SPL_GEN_ROWS(12)
SPL_GEN_ROWS(13)
SPL_GEN_ROWS(14)
SPL_GEN_ROWS(15)
SPL_GEN_ROWS(16)
SPL_GEN_STREAM(5)
SPL_GEN_STREAM(6)
SPL_GEN_STREAM(7)
SPL_GEN_STREAM(8)
SPL_GEN_STREAM(9)
SPL_GEN_STREAM(10)
SPL_GEN_STREAM(11)
SPL_GEN_STREAM(12)
SPL_GEN_STREAM(13)
SPL_GEN_STREAM(14)
SPL_GEN_STREAM(15)
SPL_GEN_STREAM(16)
#undef SPL_GEN_ROWS
#undef SPL_GEN_STREAM
static const amx_rows_fn amx_rows_table[SPL_Q8_BLOCK_ROWS + 1] = {
    NULL,         amx_rows_m1,  amx_rows_m2,  amx_rows_m3,  amx_rows_m4,  amx_rows_m5,
    amx_rows_m6,  amx_rows_m7,  amx_rows_m8,  amx_rows_m9,  amx_rows_m10, amx_rows_m11,
    amx_rows_m12, amx_rows_m13, amx_rows_m14, amx_rows_m15, amx_rows_m16};
static const amx_stream_fn amx_stream_table[SPL_Q8_BLOCK_ROWS + 1] = {
    [5] = amx_stream_m5, amx_stream_m6,  amx_stream_m7,  amx_stream_m8,  amx_stream_m9,  amx_stream_m10,
    amx_stream_m11,      amx_stream_m12, amx_stream_m13, amx_stream_m14, amx_stream_m15, amx_stream_m16};

static uint32_t amx_rows_of_block(const spl_q8_rows *x, uint32_t block) {
    uint32_t left = x->n_rows - block * SPL_Q8_BLOCK_ROWS;
    return left < SPL_Q8_BLOCK_ROWS ? left : SPL_Q8_BLOCK_ROWS;
}
static uint32_t amx_blocks(const spl_q8_rows *x) { return (x->n_rows + SPL_Q8_BLOCK_ROWS - 1) / SPL_Q8_BLOCK_ROWS; }

/* Row blocks that share an unpack. */
static uint32_t amx_slab(const spl_q8_rows *x) {
    uint32_t n = AMX_SLAB_BYTES / (SPL_Q8_BLOCK_ROWS * x->k);
    return n < 1 ? 1 : n > AMX_SLAB_BLOCKS ? AMX_SLAB_BLOCKS : n;
}

/* Row blocks [first, last) over two panels: groups are unpacked into L1, then all rows pass over them while the next
 * groups come from memory. *rows: what the tiles are set to. */
static void amx_share(const uint8_t *const panels[2], const spl_q8_rows *x, uint32_t first, uint32_t last,
                      uint32_t *rows, amx_sums *acc) {
    uint32_t groups = x->k / SPL_GROUP, units = 2 * (last - first);
    const size_t panel_bytes = (size_t)groups * SPL_Q4_TILE_BYTES;
    pair_group w[PAIR_GROUPS];
    memset(acc, 0, (last - first) * sizeof *acc);
    for (uint32_t g = 0; g < groups; g += PAIR_GROUPS) {
        uint32_t n_groups = groups - g < PAIR_GROUPS ? groups - g : PAIR_GROUPS;
        size_t at = (size_t)g * SPL_Q4_TILE_BYTES, then = at + n_groups * SPL_Q4_TILE_BYTES;
        pair_stream next = {.n_bytes = PAIR_GROUPS * SPL_Q4_TILE_BYTES,
                            .lines_per_group = (SPL_Q4_TILE_BYTES / 64 + units - 1) / units};
        for (int p = 0; p < 2; p++) next.panel[p] = panels[p] + (then < panel_bytes ? then : 2 * panel_bytes);
        for (uint32_t i = 0; i < n_groups; i++) {
            const uint8_t *const tile[2] = {panels[0] + at + i * SPL_Q4_TILE_BYTES,
                                            panels[1] + at + i * SPL_Q4_TILE_BYTES};
            pair_unpack(tile, &w[i]);
        }
        for (uint32_t b = first; b < last; b++) {
            uint32_t n = amx_rows_of_block(x, b);
            spl_q8_cursor c = spl_q8_row(x, b * SPL_Q8_BLOCK_ROWS);
            spl_q8_skip(&c, g);
            if (n != *rows) tiles_configure(*rows = n);
            for (uint32_t p = 0; p < 2; p++) amx_rows_table[n](w, p, n_groups, &c, &next, acc[b - first].v[p]);
        }
    }
}

/* The same for any number of blocks. */
static void amx_pair(const uint8_t *const panels[2], const spl_q8_rows *x, uint32_t first, uint32_t last,
                     const spl_reach *reach, uint32_t *rows, amx_sums *acc) {
    if (amx_blocks(x) > 1) {
        amx_share(panels, x, first, last, rows, acc);
        return;
    }
    if (*rows == 0) tiles_configure(*rows = x->n_rows);
    amx_stream_table[x->n_rows](panels, x, reach, acc);
}

static void linear_q4_amx(const spl_linear_args *a) {
    if (a->x.n_rows < AMX_LEAST_ROWS) {
        linear_q4_avx512(a);
        return;
    }
    const spl_reach reach = spl_reach_or(a->reach, NEAR_BYTES, FAR_BYTES, SINGLE_BYTES);
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    uint32_t n_blocks = amx_blocks(&a->x), slab = amx_slab(&a->x), rows = 0;
    for (uint32_t first = 0; first < n_blocks; first += slab) {
        uint32_t last = n_blocks - first < slab ? n_blocks : first + slab;
        for (uint32_t p = a->panel_begin; p < a->panel_end; p += 2) {
            amx_sums acc[AMX_SLAB_BLOCKS];
            uint32_t n_panels = a->panel_end - p < 2 ? 1 : 2; /* a panel without a partner is its own */
            const uint8_t *const pair[2] = {a->w + p * panel_bytes, a->w + (p + n_panels - 1) * panel_bytes};
            amx_pair(pair, &a->x, first, last, &reach, &rows, acc);
            for (uint32_t t = 2 * first; t < 2 * last && t * SPL_TILE_M < a->x.n_rows; t++)
                for (uint32_t i = 0; i < n_panels; i++)
                    linear_store(a, t, p + i, acc[t / 2 - first].v[i] + t % 2 * SPL_TILE_M);
        }
    }
    tiles_release();
}

static void gate_up_q4_amx(const spl_gate_up_args *a) {
    if (a->x.n_rows < AMX_LEAST_ROWS) {
        gate_up_q4_avx512(a);
        return;
    }
    const spl_reach reach = spl_reach_or(a->reach, NEAR_BYTES, FAR_BYTES, SINGLE_BYTES);
    size_t panel_bytes = (size_t)a->x.k / SPL_GROUP * SPL_Q4_TILE_BYTES;
    uint32_t n_blocks = amx_blocks(&a->x), slab = amx_slab(&a->x), rows = 0;
    for (uint32_t first = 0; first < n_blocks; first += slab) {
        uint32_t last = n_blocks - first < slab ? n_blocks : first + slab;
        for (uint32_t p = a->pair_begin; p < a->pair_end; p++) {
            amx_sums acc[AMX_SLAB_BLOCKS];
            const uint8_t *const pair[2] = {a->w + 2 * p * panel_bytes, a->w + (2 * p + 1) * panel_bytes};
            amx_pair(pair, &a->x, first, last, &reach, &rows, acc);
            for (uint32_t t = 2 * first; t < 2 * last && t * SPL_TILE_M < a->x.n_rows; t++) {
                const __m512 *gate = acc[t / 2 - first].v[0], *up = acc[t / 2 - first].v[1];
                gate_up_store(a, t, p, gate + t % 2 * SPL_TILE_M, up + t % 2 * SPL_TILE_M);
            }
        }
    }
    tiles_release();
}

#endif
