/* SPDX-License-Identifier: Apache-2.0
 * Times llama.cpp on one sequence through its public interface, on command: bench/compare/llama_side.py builds it
 * against the headers and libraries of the pinned packages and talks to it over a pipe, so that the model stays
 * loaded between the rounds of a comparison. One command a line on stdin, one line of answer on stdout ("ok" and
 * numbers, or "error" and a sentence); the commands are in COMMANDS below. Times are seconds of llama_decode plus
 * the search for the largest logit of every row that has logits. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ggml-backend.h>
#include <llama.h>

enum { BLOCK_ROWS = 8, MAX_TOKENS = 1 << 17, UBATCH_TOKENS = 512, WARM_STEPS = 1 };

typedef struct side {
    struct llama_context *context;
    uint8_t *snapshot; /* of the sequence at n_past tokens */
    size_t snapshot_bytes;
    int n_past;
} side;

/* `plain` keeps no earlier recurrent states; `verify` keeps those of the last seven rows, so that rejected rows can be
 * taken back, as speculative decoding needs it. */
static struct {
    struct llama_model *model, *draft_model;
    side plain, verify;
    struct llama_context *draft;
    struct llama_batch batch, features; /* tokens; rows of the target's features */
    int n_vocab, n_features, n_ctx;
    int64_t checksum; /* of all tokens found: nothing is computed in vain */
} g;

static void report(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN) (void)fputs(text, stderr);
}

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int token_at(int position) { return (int)((uint32_t)position * 2654435761u >> 7) % g.n_vocab; }

static int largest(const float *logits) {
    int best = 0;
    for (int i = 1; i < g.n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Rows n_past .. n_past + n - 1 of the sequence, logits of the last n_logits of them; n_past is not advanced. */
static bool decode(side *s, int n, int n_logits) {
    struct llama_batch *b = &g.batch;
    b->n_tokens = n;
    for (int i = 0; i < n; i++) {
        b->token[i] = token_at(s->n_past + i);
        b->pos[i] = s->n_past + i;
        b->n_seq_id[i] = 1;
        b->seq_id[i][0] = 0;
        b->logits[i] = i >= n - n_logits;
    }
    if (llama_decode(s->context, *b) != 0) return false;
    for (int i = n - n_logits; i < n; i++) g.checksum += largest(llama_get_logits_ith(s->context, i));
    return true;
}

static bool prompt(side *s, int n_tokens) {
    llama_memory_clear(llama_get_memory(s->context), true);
    s->n_past = 0;
    while (s->n_past < n_tokens) {
        int n = n_tokens - s->n_past < UBATCH_TOKENS ? n_tokens - s->n_past : UBATCH_TOKENS;
        if (!decode(s, n, s->n_past + n == n_tokens)) return false;
        s->n_past += n;
    }
    return true;
}

/* The sequence as the command `fill` left it. */
static bool restore(side *s, int n_past) {
    struct llama_memory_i *memory = llama_get_memory(s->context);
    if (n_past > 0 && !s->snapshot) return false;
    llama_memory_clear(memory, false);
    s->n_past = n_past;
    return n_past == 0 || llama_state_seq_set_data(s->context, s->snapshot, s->snapshot_bytes, 0) != 0;
}

/* ---- commands: numbers in, text out ------------------------------------------------------------ */

static int n_filled;

/* fill TOKENS: both contexts hold that many tokens, and remember how it looked */
static const char *fill(const long *v) {
    if (v[0] < 0 || v[0] + 64 > g.n_ctx) return "the context is too small";
    side *sides[] = {&g.plain, &g.verify};
    n_filled = (int)v[0];
    for (int i = 0; i < 2; i++) {
        side *s = sides[i];
        free(s->snapshot);
        s->snapshot = NULL;
        if (!prompt(s, n_filled)) return "decoding failed";
        if (n_filled == 0) continue;
        s->snapshot_bytes = llama_state_seq_get_size(s->context, 0);
        s->snapshot = malloc(s->snapshot_bytes);
        if (!s->snapshot) return "no memory for a snapshot";
        if (llama_state_seq_get_data(s->context, s->snapshot, s->snapshot_bytes, 0) == 0) return "no snapshot";
    }
    return NULL;
}

/* prefill TOKENS RUNS: a whole prompt from an empty context, logits of its last token */
static const char *prefill(const long *v) {
    if (v[0] < 1 || v[0] > g.n_ctx) return "the context is too small";
    for (long i = 0; i < v[1]; i++) {
        double begin = now();
        if (!prompt(&g.plain, (int)v[0])) return "decoding failed";
        (void)printf(" %.9f", now() - begin);
    }
    return NULL;
}

/* rows ROWS STEPS: ROWS rows at the filled context, logits of all of them. More than one row: the same rows again
 * every time, the context put back in between, untimed. One row: one token after the other */
static const char *rows(const long *v) {
    if (v[0] < 1 || v[0] > BLOCK_ROWS) return "1 to 8 rows";
    if (!restore(&g.plain, n_filled)) return "the context cannot be put back";
    for (long i = -WARM_STEPS; i < v[1]; i++) {
        double begin = now();
        if (!decode(&g.plain, (int)v[0], (int)v[0])) return "decoding failed";
        if (i >= 0) (void)printf(" %.9f", now() - begin);
        if (v[0] == 1)
            g.plain.n_past++;
        else if (!restore(&g.plain, n_filled))
            return "the context cannot be put back";
    }
    return NULL;
}

/* verify STEPS A B: 8 rows, of which A stand after even steps and B after odd ones; the rest is taken back */
static const char *verify(const long *v) {
    side *s = &g.verify;
    if (v[1] < 1 || v[1] > BLOCK_ROWS || v[2] < 1 || v[2] > BLOCK_ROWS) return "1 to 8 rows stand";
    if (!restore(s, n_filled)) return "the context cannot be put back";
    for (long i = -WARM_STEPS; i < v[0]; i++) {
        double begin = now();
        if (!decode(s, BLOCK_ROWS, BLOCK_ROWS)) return "decoding failed";
        int kept = (int)(i % 2 == 0 ? v[1] : v[2]);
        s->n_past += kept;
        if (kept < BLOCK_ROWS && !llama_memory_seq_rm(llama_get_memory(s->context), 0, s->n_past, -1))
            return "rejected rows cannot be taken back";
        if (i >= 0) (void)printf(" %.9f", now() - begin);
    }
    return NULL;
}

/* draft STEPS ROWS: that many rows of features enter the draft's cache, then one block of 8 rows is drafted */
static const char *draft(const long *v) {
    if (!g.draft) return "no draft was loaded";
    if (v[1] < 1 || v[1] > BLOCK_ROWS) return "1 to 8 rows of features";
    struct llama_memory_i *memory = llama_get_memory(g.draft);
    struct llama_batch *f = &g.features, *b = &g.batch;
    llama_memory_clear(memory, false);
    int position = n_filled;
    for (long i = -WARM_STEPS; i < v[0]; i++) {
        double begin = now();
        f->n_tokens = (int)v[1];
        for (int r = 0; r < f->n_tokens; r++) {
            f->pos[r] = position++;
            f->n_seq_id[r] = 1;
            f->seq_id[r][0] = 0;
            f->logits[r] = 0;
        }
        if (llama_decode(g.draft, *f) != 0) return "the features were refused";
        b->n_tokens = BLOCK_ROWS;
        for (int r = 0; r < BLOCK_ROWS; r++) {
            b->token[r] = token_at(r);
            b->pos[r] = position + r;
            b->n_seq_id[r] = 1;
            b->seq_id[r][0] = 0;
            b->logits[r] = 0;
        }
        if (llama_decode(g.draft, *b) != 0) return "drafting failed";
        llama_synchronize(g.draft);
        if (!llama_memory_seq_rm(memory, 0, position, -1)) return "the block cannot be taken back";
        if (i >= 0) (void)printf(" %.9f", now() - begin);
    }
    return NULL;
}

static const struct {
    const char *name;
    int n_numbers;
    const char *(*run)(const long *numbers);
} COMMANDS[] = {
    {"fill", 1, fill}, {"prefill", 2, prefill}, {"rows", 2, rows}, {"verify", 3, verify}, {"draft", 2, draft}};

/* "ok" comes first, so a failure in the middle of the numbers ends the line with "error". */
static void answer(char *line) {
    char *at = line + strcspn(line, " \n");
    for (size_t i = 0; i < sizeof COMMANDS / sizeof *COMMANDS; i++) {
        long numbers[3] = {0};
        if (strncmp(line, COMMANDS[i].name, (size_t)(at - line)) != 0 || COMMANDS[i].name[at - line]) continue;
        for (int n = 0; n < COMMANDS[i].n_numbers; n++) numbers[n] = strtol(at, &at, 10);
        (void)fputs("ok", stdout);
        const char *failure = COMMANDS[i].run(numbers);
        if (failure) (void)printf(" error %s", failure);
        (void)putchar('\n');
        return;
    }
    (void)puts("error unknown command");
}

/* ---- opening ------------------------------------------------------------------------------------- */

static int fail(const char *what) {
    (void)fprintf(stderr, "llama_bench: %s\n", what);
    return 1;
}

static struct llama_context *open_context(struct llama_model *model, const struct llama_context_params *base,
                                          uint32_t n_taken_back, struct llama_context *other) {
    struct llama_context_params p = *base;
    p.n_rs_seq = n_taken_back;
    p.ctx_other = other;
    return llama_init_from_model(model, p);
}

static struct llama_model *load(const char *path) {
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    return llama_model_load_from_file(path, params);
}

static int open_all(char **argv) {
    long n_ctx = strtol(argv[4], NULL, 10), n_threads = strtol(argv[5], NULL, 10);
    if (n_ctx < 64 || n_ctx > MAX_TOKENS || n_threads < 1 || n_threads > 256) return fail("context or threads?");
    bool q8 = strcmp(argv[6], "q8_0") == 0, flash = strcmp(argv[7], "on") == 0;
    g.model = load(argv[2]);
    if (!g.model) return fail("cannot load the model");
    g.n_ctx = (int)n_ctx;
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = (uint32_t)n_ctx;
    p.n_batch = p.n_ubatch = UBATCH_TOKENS;
    p.n_outputs_max = p.n_outputs_max_per_seq = BLOCK_ROWS;
    p.n_threads = p.n_threads_batch = (int32_t)n_threads;
    p.type_k = p.type_v = q8 ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    p.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    g.plain.context = open_context(g.model, &p, 0, NULL);
    g.verify.context = open_context(g.model, &p, BLOCK_ROWS - 1, NULL);
    if (!g.plain.context || !g.verify.context) return fail("cannot make a context");
    if (llama_n_rs_seq(g.verify.context) != BLOCK_ROWS - 1) return fail("this build cannot take rows back");
    g.n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(g.model));
    g.batch = llama_batch_init(UBATCH_TOKENS, 0, 1);
    if (strcmp(argv[3], "-") == 0) return 0;

    g.draft_model = load(argv[3]);
    if (!g.draft_model) return fail("cannot load the draft");
    g.draft = open_context(g.draft_model, &p, 0, g.verify.context);
    if (!g.draft) return fail("cannot make the draft's context");
    llama_set_causal_attn(g.draft, false);
    g.n_features = (int)strtol(argv[8], NULL, 10);
    g.features = llama_batch_init(BLOCK_ROWS, g.n_features, 1);
    for (int i = 0; i < BLOCK_ROWS * g.n_features; i++) g.features.embd[i] = 0.01f * (float)(i % 97 - 48);
    return 0;
}

int main(int argc, char **argv) {
    char line[256];
    if (argc != 9)
        return fail("usage: llama_bench LIBRARIES MODEL DRAFT|- N_CTX THREADS f16|q8_0 FLASH(on|off) FEATURES");
    llama_log_set(report, NULL);
    ggml_backend_load_all_from_path(argv[1]);
    llama_backend_init();
    if (open_all(argv) != 0) return 1;
    (void)printf("ready %s | %s\n", llama_version(), llama_print_system_info());
    (void)fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        answer(line);
        (void)fflush(stdout);
    }
    (void)fprintf(stderr, "llama_bench: checksum %lld\n", (long long)g.checksum);
    free(g.plain.snapshot);
    free(g.verify.snapshot);
    llama_free(g.draft);
    llama_free(g.plain.context);
    llama_free(g.verify.context);
    llama_model_free(g.draft_model);
    llama_model_free(g.model);
    return 0;
}
