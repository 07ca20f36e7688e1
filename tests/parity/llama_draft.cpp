/* SPDX-License-Identifier: Apache-2.0
 * Drafted blocks of llama.cpp over a given text: F32 caches, processor only. Built by llama.py as llama_driver.c
 * is; in C++, because the calls that read tapped layers and the selector's table (llama-ext.h) are. The text is fed
 * in pieces up to the next block's position, each piece's tapped rows enter the draft's cache, then the block runs
 * and is taken out again. Files are raw and little-endian:
 *   script   u32 n_text, n_blocks; text [n_text]; n_blocks of { u32 position, anchor }, positions ascending
 *   out      f32 [n_blocks][8][hidden]: per row K candidate ids, then K x K scores [predecessor][candidate] */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <ggml-backend.h>
#include <llama.h>
#include <llama-ext.h>

static const int block_rows = 8, max_context = 4096;

static void report(enum ggml_log_level level, const char *text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR || level == GGML_LOG_LEVEL_WARN) (void)fputs(text, stderr);
}

static int fail(const char *what) {
    (void)fprintf(stderr, "llama_draft: %s\n", what);
    return 1;
}

static llama_context *open_model(const char *path) {
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    llama_model *model = llama_model_load_from_file(path, model_params);
    if (!model) return nullptr;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = max_context;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    return llama_init_from_model(model, params);
}

/* Rows of one run; tokens or embeddings are filled in by the caller. */
static llama_batch rows(int n, int position, int width) {
    llama_batch batch = llama_batch_init(n, width, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.pos[i] = position + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 0;
    }
    return batch;
}

/* Text through the target, its tapped rows into the draft's cache. */
static bool advance(llama_context *target, llama_context *draft, const uint32_t *text, int n, int position) {
    const llama_model *model = llama_get_model(draft);
    const int32_t *taps = llama_model_target_layer_ids(model);
    const size_t n_taps = llama_model_target_layer_ids_n(model), hidden = (size_t)llama_model_n_embd(model);
    llama_batch batch = rows(n, position, 0);
    for (int i = 0; i < n; i++) batch.token[i] = (llama_token)text[i];
    batch.logits[n - 1] = 1;
    bool good = llama_decode(target, batch) == 0;
    llama_batch_free(batch);
    batch = rows(n, position, (int)(n_taps * hidden));
    for (size_t k = 0; k < n_taps && good; k++) {
        const float *layer = llama_get_embeddings_layer_inp(target, (uint32_t)taps[k]);
        good = layer != nullptr;
        for (int i = 0; i < n && good; i++)
            memcpy(batch.embd + ((size_t)i * n_taps + k) * hidden, layer + (size_t)i * hidden, hidden * sizeof(float));
    }
    good = good && llama_decode(draft, batch) == 0;
    llama_batch_free(batch);
    return good;
}

static bool propose(llama_context *draft, uint32_t position, uint32_t anchor, FILE *out) {
    const llama_model *model = llama_get_model(draft);
    const size_t n_values = (size_t)block_rows * (size_t)llama_model_n_embd(model);
    llama_batch batch = rows(block_rows, (int)position, 0);
    for (int i = 0; i < block_rows; i++)
        batch.token[i] = i == 0 ? (llama_token)anchor : llama_vocab_mask(llama_model_get_vocab(model));
    bool good = llama_decode(draft, batch) == 0;
    llama_batch_free(batch);
    const float *lattice = good ? llama_get_embeddings_nextn(draft) : nullptr;
    good = lattice && fwrite(lattice, sizeof(float), n_values, out) == n_values;
    return good && llama_memory_seq_rm(llama_get_memory(draft), 0, (llama_pos)position, -1);
}

int main(int argc, char **argv) {
    if (argc != 6) return fail("usage: llama_draft LIBRARIES TARGET DRAFT SCRIPT OUT");
    std::vector<uint32_t> script(1 << 16);
    FILE *in = fopen(argv[4], "rb");
    if (!in) return fail("cannot read the script");
    script.resize(fread(script.data(), sizeof(uint32_t), script.size(), in));
    (void)fclose(in);
    if (script.size() < 2 || script.size() != 2 + (size_t)script[0] + 2 * (size_t)script[1] || script[0] > 2048)
        return fail("the script has the wrong length");
    llama_log_set(report, nullptr);
    ggml_backend_load_all_from_path(argv[1]);
    llama_backend_init();
    llama_context *target = open_model(argv[2]), *draft = open_model(argv[3]);
    if (!target || !draft) return fail("cannot load the models");
    const llama_model *model = llama_get_model(draft);
    for (uint32_t k = 0; k < llama_model_target_layer_ids_n(model); k++)
        llama_set_embeddings_layer_inp(target, (uint32_t)llama_model_target_layer_ids(model)[k], true);
    llama_set_embeddings_nextn(draft, true, false);
    llama_set_causal_attn(draft, false);
    FILE *out = fopen(argv[5], "wb");
    if (!out) return fail("cannot create the output file");
    const uint32_t *text = script.data() + 2, *blocks = text + script[0];
    bool good = true;
    uint32_t at = 0;
    for (uint32_t i = 0; i < script[1] && good; i++) {
        uint32_t position = blocks[2 * i];
        good = position >= at && position <= script[0];
        if (good && position > at) good = advance(target, draft, text + at, (int)(position - at), (int)at);
        at = position;
        good = good && propose(draft, position, blocks[2 * i + 1], out);
    }
    good = fclose(out) == 0 && good;
    return good ? 0 : fail("a run failed");
}
