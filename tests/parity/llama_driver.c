/* SPDX-License-Identifier: Apache-2.0
 * Logits of llama.cpp for given token ids: F32 cache, flash attention off, processor only. Built by
 * llama.py against the headers and libraries that the pinned node-llama-cpp packages bring. Tokens
 * are raw u32, logits raw f32 [n][vocab], both little-endian. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-backend.h>
#include <llama.h>

enum { MAX_TOKENS = 4096 };

/* llama.cpp reports its progress here; only problems are worth a line. */
static void report(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN) (void)fputs(text, stderr);
}

static int fail(const char *what) {
    (void)fprintf(stderr, "llama_driver: %s\n", what);
    return 1;
}

static int decode(struct llama_context *context, const uint32_t *tokens, int n, int chunk, int n_vocab, FILE *out) {
    struct llama_batch batch = llama_batch_init(chunk, 0, 1);
    int ok = 1;
    for (int at = 0; at < n && ok; at += chunk) {
        batch.n_tokens = n - at < chunk ? n - at : chunk;
        for (int i = 0; i < batch.n_tokens; i++) {
            batch.token[i] = (llama_token)tokens[at + i];
            batch.pos[i] = at + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        size_t n_values = (size_t)batch.n_tokens * (size_t)n_vocab;
        ok = llama_decode(context, batch) == 0 &&
             fwrite(llama_get_logits(context), sizeof(float), n_values, out) == n_values;
    }
    llama_batch_free(batch);
    return ok;
}

int main(int argc, char **argv) {
    static uint32_t tokens[MAX_TOKENS];
    if (argc != 6) return fail("usage: llama_driver LIBRARIES GGUF TOKENS LOGITS CHUNK");
    FILE *in = fopen(argv[3], "rb");
    if (!in) return fail("cannot read the tokens");
    int n = (int)fread(tokens, sizeof *tokens, MAX_TOKENS, in), chunk = atoi(argv[5]);
    (void)fclose(in);
    if (n < 1 || chunk < 1) return fail("no tokens, or no chunk size");

    llama_log_set(report, NULL);
    ggml_backend_load_all_from_path(argv[1]);
    llama_backend_init();
    struct llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[2], model_params);
    if (!model) return fail("cannot load the model");
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)n + 64;
    params.n_batch = params.n_ubatch = (uint32_t)chunk;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    struct llama_context *context = llama_init_from_model(model, params);
    if (!context) return fail("cannot make a context");
    FILE *out = fopen(argv[4], "wb");
    if (!out) return fail("cannot create the output file");
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    int ok = decode(context, tokens, n, chunk, n_vocab, out);
    ok = fclose(out) == 0 && ok;
    llama_free(context);
    llama_model_free(model);
    return ok ? 0 : fail("decoding failed");
}
