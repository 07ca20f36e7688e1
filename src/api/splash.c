/* SPDX-License-Identifier: Apache-2.0
 * Implements include/splash.h: opening and closing, model facts, text in and out, statistics. Requests and
 * events are in request.c, chat rendering in chat.c, packages in packages.c, explain in explain.c. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/file_map.h"
#include "base/memory_limit.h"
#include "base/thread_team.h"
#include "text/detokenizer.h"
#include "text/unicode.h"

#define X(name, value, text)                                                                                           \
    _Static_assert((int)SPLASH_E_##name == (int)SPL_E_##name, "public and internal codes agree");
SPL_STATUS_LIST(X)
#undef X
_Static_assert(sizeof(((splash_stats *)0)->position_drafted) == sizeof(((spl_engine_stats *)0)->position_drafted),
               "one entry per proposal");
_Static_assert(sizeof(((splash_error *)0)->text) == SPL_ERROR_TEXT_BYTES, "error texts have one size");

splash_status spl_api_error(splash_error *out, const spl_error *err) {
    if (out) {
        out->code = (splash_status)err->code;
        memcpy(out->text, err->text, sizeof out->text);
    }
    return (splash_status)err->code;
}

/* ---- opening -------------------------------------------------------------------------------- */

enum { LIMIT_PERCENT = 85, DEFAULT_QUEUE = 64 };

/* "oracle" is no tier of its own: fp32 arithmetic on the ref table. */
static spl_status choose_tier(const char *name, spl_tier *tier, bool *oracle, spl_error *err) {
    *tier = SPL_N_TIERS;
    *oracle = name && strcmp(name, "oracle") == 0;
    if (*oracle) *tier = SPL_TIER_REF;
    if (!name || *oracle || strcmp(name, "auto") == 0) return SPL_OK;
    if (spl_tier_from_name(name, tier)) return SPL_OK;
    return spl_fail(err, SPL_E_INVALID,
                    "unknown cpu tier '%s'; known are oracle, ref, avx2, avxvnni, avx512vnni, amx, neon, "
                    "neon_dotprod, neon_i8mm",
                    name);
}

static spl_status open_package(spl_package **out, const splash_options *o, spl_error *err) {
    if (!o->model) return spl_fail(err, SPL_E_INVALID, "no model named; give a package folder");
    if (!o->random_weights) return spl_package_open(out, o->model, SPL_CHECK_QUICK, err);
    const spl_geometry *g = spl_geometry_find(o->model);
    if (!g) return spl_fail(err, SPL_E_NOTFOUND, "no geometry is called '%s'", o->model);
    return spl_package_random_paged(out, g, o->n_layers, o->random_draft, 1, !o->no_huge_pages, err);
}

static void debug(const splash_options *o, const char *format, ...) SPL_PRINTF(2, 3);
static void debug(const splash_options *o, const char *format, ...) {
    char line[SPL_ERROR_TEXT_BYTES];
    va_list args;
    if (!o->debug) return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    o->debug(o->debug_user, line);
}

/* What was measured on this machine; everything is left to the engine when there is nothing that holds for it. */
static void read_tuning(spl_tuning *out, const splash_options *o, spl_tier tier) {
    spl_tuning_machine machine;
    spl_error err = {0};
    memset(out, 0, sizeof *out);
    if (!o->tuning_folder) return;
    spl_tuning_machine_get(&machine, SPLASH_VERSION, tier);
    spl_status st = spl_tuning_load(out, o->tuning_folder, &machine, &err);
    if (st != SPL_OK) {
        debug(o, "tuning %s: %.400s", st == SPL_E_NOTFOUND ? "not there" : "ignored", err.text);
        return;
    }
    const spl_knobs *k = &out->knobs;
    debug(o, "tuning used: threads %u, panel chunk %u, reach %u %u %u, models %u (0: the engine's own choice)",
          k->n_threads, k->panel_chunk, k->reach.near_bytes, k->reach.far_bytes, k->reach.single_bytes, out->n_models);
}

/* `tuning` must live as long as the config is used; `package` may be NULL. */
static spl_status fill_config(spl_engine_config *config, const splash_options *o, const spl_tuning *tuning,
                              const spl_package *package, spl_error *err) {
    char key[SPL_TUNING_KEY_BYTES];
    config->knobs = tuning->knobs;
    if (package) {
        spl_tuning_model_key(key, package);
        config->tuned = spl_tuning_find(tuning, key);
    }
    config->n_threads = o->n_threads              ? o->n_threads
                        : config->knobs.n_threads ? config->knobs.n_threads
                                                  : spl_usable_cores();
    config->context_tokens = o->context_tokens;
    config->queue_limit = o->queue_limit ? o->queue_limit : DEFAULT_QUEUE;
    config->no_draft = o->no_draft;
    config->no_lookup = o->no_lookup;
    config->small_pages = o->no_huge_pages;
    config->fixed_rows = o->fixed_rows;
    config->limit_bytes = o->memory_limit_bytes;
    if (config->limit_bytes) return SPL_OK;
    spl_memory_room room;
    spl_status st = spl_memory_room_get("", &room, err);
    if (st == SPL_OK) config->limit_bytes = room.available_bytes / 100 * LIMIT_PERCENT;
    return st;
}

static void export_plan(splash_memory_plan *out, const spl_plan *p) {
    *out = (splash_memory_plan){.weight_bytes = p->weight_bytes,
                                .kv_bytes = p->kv_bytes,
                                .state_bytes = p->state_bytes,
                                .arena_bytes = p->arena_bytes,
                                .logits_bytes = p->logits_bytes,
                                .other_bytes = p->other_bytes,
                                .total_bytes = p->total_bytes,
                                .limit_bytes = p->limit_bytes,
                                .context_tokens = p->context_tokens,
                                .kv_pages = p->kv_pages,
                                .max_lanes = p->max_lanes};
}

splash_status splash_plan(const splash_options *options, splash_memory_plan *out, splash_error *err) {
    spl_error e = {0};
    spl_package *package = NULL;
    spl_engine_config config = {0};
    spl_tier tier;
    memset(out, 0, sizeof *out);
    spl_status st = choose_tier(options->cpu_tier, &tier, &config.oracle, &e);
    const spl_geometry *g = options->random_weights && options->model ? spl_geometry_find(options->model) : NULL;
    uint32_t n_layers = options->n_layers;
    bool has_draft = g && options->random_draft;
    if (st == SPL_OK && !g) {
        st = open_package(&package, options, &e);
        if (st == SPL_OK) {
            g = spl_package_geometry(package);
            n_layers = spl_package_n_layers(package);
            has_draft = spl_package_has_draft(package);
        }
    }
    spl_plan plan;
    spl_kernels kernels;
    spl_tuning tuning = {.n_models = 0};
    if (st == SPL_OK) st = spl_kernels_select(&kernels, tier, &e);
    if (st == SPL_OK && !config.oracle) read_tuning(&tuning, options, kernels.tier);
    if (st == SPL_OK) st = fill_config(&config, options, &tuning, NULL, &e);
    if (st == SPL_OK) st = spl_engine_plan(g, n_layers, has_draft, &config, &plan, &e);
    if (st == SPL_OK) export_plan(out, &plan);
    spl_package_close(package);
    return st == SPL_OK ? SPLASH_OK : spl_api_error(err, &e);
}

/* A package of random weights has no folder, and a package without tokenizer files serves tokens only. */
static spl_status load_tokenizer(splash_engine *e, const splash_options *o, spl_error *err) {
    if (o->random_weights) return SPL_OK;
    spl_status st = SPL_OK;
    char *tokenizer = spl_path_join(spl_package_path(e->package), "tokenizer.json");
    char *config = spl_path_join(spl_package_path(e->package), "tokenizer_config.json");
    if (!tokenizer || !config) {
        st = spl_fail(err, SPL_E_NOMEM, "path of the tokenizer");
    } else if (spl_file_exists(tokenizer)) {
        st = spl_tokenizer_load(&e->tokenizer, tokenizer, spl_file_exists(config) ? config : NULL, err);
    }
    if (st == SPL_OK && e->tokenizer && spl_tokenizer_n_tokens(e->tokenizer) > spl_package_geometry(e->package)->vocab)
        st = spl_fail(err, SPL_E_GEOMETRY, "the tokenizer has %u ids; the model's vocabulary is %u",
                      spl_tokenizer_n_tokens(e->tokenizer), spl_package_geometry(e->package)->vocab);
    free(tokenizer);
    free(config);
    return st;
}

static bool report(const splash_options *o, const char *stage, uint64_t done, uint64_t total) {
    return o->progress && o->progress(o->progress_user, stage, done, total);
}

/* What is being touched, and how far it is. */
typedef struct warming {
    const splash_options *options;
    uint64_t total, done, reported;
} warming;

static spl_status touch(warming *w, const uint8_t *data, uint64_t n_bytes, spl_error *err) {
    enum { STRIDE = 4096, REPORT_BYTES = 64 << 20 };
    volatile uint8_t sink = 0;
    for (uint64_t at = 0; data && at < n_bytes; at += STRIDE) {
        sink = (uint8_t)(sink + data[at]);
        if (w->done + at - w->reported < REPORT_BYTES) continue;
        w->reported = w->done + at;
        if (report(w->options, "weights", w->reported, w->total))
            return spl_fail(err, SPL_E_CANCELLED, "loading was cancelled");
    }
    w->done += n_bytes;
    return SPL_OK;
}

/* Touches the mapped weights once, so that the first request does not pay for reading them from disk. */
static spl_status warm_weights(const splash_engine *e, const splash_options *o, bool drafts, spl_error *err) {
    const spl_geometry *g = spl_package_geometry(e->package);
    uint32_t n_layers = spl_package_n_layers(e->package), n_files = drafts ? 2 : 1;
    const spl_file_id files[] = {SPL_FILE_TARGET, SPL_FILE_DRAFT};
    warming w = {.options = o};
    spl_tensor_spec spec;
    spl_status st = SPL_OK;
    for (uint32_t f = 0; f < n_files; f++)
        for (uint32_t i = 0; spl_layout_tensor(g, files[f], n_layers, i, &spec); i++) w.total += spec.bytes;
    if (report(o, "weights", 0, w.total)) return spl_fail(err, SPL_E_CANCELLED, "loading was cancelled");
    for (uint32_t f = 0; f < n_files; f++)
        for (uint32_t i = 0; st == SPL_OK && spl_layout_tensor(g, files[f], n_layers, i, &spec); i++)
            st = touch(&w, spl_package_tensor(e->package, spec.role, spec.layer, NULL), spec.bytes, err);
    if (st == SPL_OK) (void)report(o, "weights", w.total, w.total);
    return st;
}

/* A control group that is too small would have the process killed instead of refusing the lock. */
static spl_status check_lock_room(const spl_package *package, bool drafts, spl_error *err) {
    spl_memory_room room;
    uint64_t n_bytes = spl_package_mapped_bytes(package, drafts);
    if (spl_memory_room_get("", &room, err) != SPL_OK || n_bytes <= room.available_bytes) return SPL_OK;
    return spl_fail(err, SPL_E_LIMIT,
                    "cannot lock the weights of %.3f GB in memory: %s leaves %.3f GB; give it more memory%s or do "
                    "without the lock",
                    (double)n_bytes * 1e-9, room.group_bytes < room.machine_bytes ? "the control group" : "the machine",
                    (double)room.available_bytes * 1e-9,
                    room.group_bytes < room.machine_bytes ? " (MemoryMax= in a systemd unit)" : "");
}

/* Brings the weights in and, when asked for, keeps them there. Generated weights are in memory already. */
static spl_status settle_weights(const splash_engine *e, const splash_options *o, bool drafts, spl_error *err) {
    spl_status st = SPL_OK;
    if (!o->random_weights) {
        spl_package_advise_pages(e->package, !o->no_huge_pages);
        if (o->lock_weights) st = check_lock_room(e->package, drafts, err);
    }
    if (st == SPL_OK && o->lock_weights) st = spl_package_lock(e->package, drafts, false, err);
    if (st == SPL_OK && !o->random_weights) st = warm_weights(e, o, drafts, err);
    if (st == SPL_OK && o->lock_weights) st = spl_package_lock(e->package, drafts, true, err);
    return st;
}

static spl_status open_parts(splash_engine *e, const splash_options *o, spl_error *err) {
    spl_engine_config config = {0};
    spl_kernels kernels;
    spl_tuning tuning = {.n_models = 0};
    spl_tier tier;
    spl_status st = choose_tier(o->cpu_tier, &tier, &config.oracle, err);
    if (st == SPL_OK) st = spl_kernels_select(&kernels, tier, err);
    if (st == SPL_OK) st = open_package(&e->package, o, err);
    if (st == SPL_OK) st = load_tokenizer(e, o, err);
    if (st == SPL_OK && !config.oracle) read_tuning(&tuning, o, kernels.tier);
    if (st == SPL_OK) st = fill_config(&config, o, &tuning, e->package, err);
    if (st != SPL_OK) return st;
    e->tier_name = config.oracle ? "oracle" : spl_tier_name(kernels.tier);
    e->n_threads = config.n_threads;
    spl_package_get_defaults(e->package, &e->defaults);
    const char *rules = spl_package_chat_template(e->package);
    if (!spl_chat_template_kind_from_name(rules, &e->chat_kind))
        return spl_fail(err, SPL_E_UNSUPPORTED, "chat template '%s' is not known", rules);
    config.package = e->package;
    config.kernels = &kernels;
    /* The plan is made and checked before a weight is touched. */
    spl_plan plan;
    st = spl_engine_plan(spl_package_geometry(e->package), spl_package_n_layers(e->package),
                         spl_package_has_draft(e->package), &config, &plan, err);
    bool drafts = spl_package_has_draft(e->package) && !o->no_draft;
    if (st == SPL_OK) st = settle_weights(e, o, drafts, err);
    if (st == SPL_OK) st = spl_engine_create(&e->engine, &config, err);
    return st;
}

splash_status splash_open(splash_engine **out, const splash_options *options, splash_error *err) {
    spl_error error = {0};
    *out = NULL;
    splash_engine *e = calloc(1, sizeof *e);
    if (!e) {
        (void)spl_fail(&error, SPL_E_NOMEM, "no memory for the engine");
        return spl_api_error(err, &error);
    }
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_cond_init(&e->arrived, NULL);
    spl_status st = open_parts(e, options, &error);
    if (st != SPL_OK) {
        splash_close(&e);
        return spl_api_error(err, &error);
    }
    *out = e;
    return SPLASH_OK;
}

/* ---- the model ------------------------------------------------------------------------------ */

void splash_model_info_get(const splash_engine *e, splash_model_info *out) {
    const spl_geometry *g = spl_package_geometry(e->package);
    memset(out, 0, sizeof *out);
    out->name = spl_package_name(e->package);
    out->geometry = g->id;
    out->cpu_tier = e->tier_name;
    out->chat_template = spl_package_chat_template(e->package);
    out->context_tokens = spl_engine_get_plan(e->engine)->context_tokens;
    out->vocab = g->vocab;
    out->n_threads = e->n_threads;
    out->has_draft = spl_package_has_draft(e->package);
    out->has_tokenizer = e->tokenizer != NULL;
    out->defaults = (splash_sampling){.temperature = e->defaults.temperature,
                                      .top_k = e->defaults.top_k,
                                      .top_p = e->defaults.top_p,
                                      .min_p = e->defaults.min_p,
                                      .presence_penalty = e->defaults.presence_penalty,
                                      .repetition_penalty = e->defaults.repetition_penalty};
    export_plan(&out->plan, spl_engine_get_plan(e->engine));
}

void splash_stats_get(const splash_engine *e, splash_stats *out) {
    spl_engine_stats s;
    spl_engine_get_stats(e->engine, &s);
    *out = (splash_stats){.requests_total = s.requests_total,
                          .requests_failed = s.requests_failed,
                          .requests_cancelled = s.requests_cancelled,
                          .prompt_tokens_total = s.prompt_tokens_total,
                          .generated_tokens_total = s.generated_tokens_total,
                          .draft_tokens_total = s.draft_tokens_total,
                          .draft_accepted_total = s.draft_accepted_total,
                          .lookup_tokens_total = s.lookup_tokens_total,
                          .lookup_accepted_total = s.lookup_accepted_total,
                          .decode_steps_total = s.decode_steps_total,
                          .draft_steps_total = s.draft_steps_total,
                          .lookup_steps_total = s.lookup_steps_total,
                          .verify_rows_total = s.verify_rows_total,
                          .prefill_chunks_total = s.prefill_chunks_total,
                          .prefill_ns_total = s.prefill_ns_total,
                          .decode_ns_total = s.decode_ns_total,
                          .running = s.running,
                          .waiting = s.waiting,
                          .kv_pages_used = s.kv_pages_used,
                          .kv_pages_total = s.kv_pages_total,
                          .last_decode_tokens_per_second = s.last_decode_tokens_per_second,
                          .last_prefill_tokens_per_second = s.last_prefill_tokens_per_second};
    memcpy(out->position_drafted, s.position_drafted, sizeof out->position_drafted);
    memcpy(out->position_accepted, s.position_accepted, sizeof out->position_accepted);
}

/* ---- text ----------------------------------------------------------------------------------- */

static spl_status need_tokenizer(const splash_engine *e, spl_error *err) {
    if (e->tokenizer) return SPL_OK;
    return spl_fail(err, SPL_E_UNSUPPORTED, "this model has no tokenizer.json; only token ids work");
}

splash_status splash_tokenize(const splash_engine *e, const char *text, size_t n_bytes, bool parse_special,
                              uint32_t **tokens, size_t *n_tokens, splash_error *err) {
    spl_error error = {0};
    spl_token_list list = {0};
    spl_buf clean;
    size_t bad;
    *tokens = NULL;
    *n_tokens = 0;
    spl_buf_init(&clean, SPL_TOKENIZER_MAX_TEXT_BYTES);
    spl_status st = need_tokenizer(e, &error);
    if (st == SPL_OK && !spl_utf8_valid(text, n_bytes, &bad)) {
        st = spl_utf8_sanitise(&clean, text, n_bytes);
        if (st != SPL_OK) (void)spl_fail(&error, st, "the text of %zu bytes is too long to repair", n_bytes);
        text = clean.data ? clean.data : "";
        n_bytes = clean.n_bytes;
    }
    if (st == SPL_OK) st = spl_tokenizer_encode(e->tokenizer, text, n_bytes, parse_special, &list, &error);
    spl_buf_free(&clean);
    if (st != SPL_OK) {
        spl_token_list_free(&list);
        return spl_api_error(err, &error);
    }
    *tokens = list.ids ? list.ids : malloc(sizeof **tokens);
    *n_tokens = list.n_ids;
    if (*tokens) return SPLASH_OK;
    (void)spl_fail(&error, SPL_E_NOMEM, "no memory for an empty token list");
    return spl_api_error(err, &error);
}

splash_status splash_detokenize(const splash_engine *e, const uint32_t *tokens, size_t n_tokens, bool keep_special,
                                char **text, size_t *n_bytes, splash_error *err) {
    spl_error error = {0};
    spl_buf out;
    spl_detokenizer d;
    *text = NULL;
    spl_status st = need_tokenizer(e, &error);
    if (st != SPL_OK) return spl_api_error(err, &error);
    spl_buf_init(&out, SPL_TOKENIZER_MAX_TEXT_BYTES);
    spl_detokenizer_init(&d, e->tokenizer, !keep_special);
    for (size_t i = 0; i < n_tokens; i++) (void)spl_detokenizer_push(&d, tokens[i], &out);
    st = spl_detokenizer_flush(&d, &out);
    *text = spl_buf_take(&out, n_bytes);
    spl_buf_free(&out);
    if (*text) return SPLASH_OK;
    (void)spl_fail(&error, st == SPL_OK ? SPL_E_NOMEM : st, "the text of %zu tokens does not fit", n_tokens);
    return spl_api_error(err, &error);
}

const char *splash_token_bytes(const splash_engine *e, uint32_t token, size_t *n_bytes) {
    *n_bytes = 0;
    return e->tokenizer ? spl_tokenizer_bytes(e->tokenizer, token, n_bytes, NULL) : NULL;
}
