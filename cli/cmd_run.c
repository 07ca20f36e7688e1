/* SPDX-License-Identifier: Apache-2.0
 * splash run: one answer. The answer goes to stdout, reasoning and statistics to stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/model_arg.h"
#include "cli/signals.h"
#include "cli/turn.h"

static const spl_command_help HELP = {"splash run [options] \"prompt\" (or - for stdin)",
                                      "Prints one answer to the prompt. Statistics go to stderr."};

enum { MAX_STDIN_BYTES = 64 << 20 };

typedef struct spl_run_args {
    spl_model_options model;
    spl_turn_options turn;
    const char *system, *prompt;
    bool raw, json;
} spl_run_args;

static spl_status read_stdin(spl_buf *out, spl_error *err) {
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0)
        if (spl_buf_append(out, block, n) != SPL_OK)
            return spl_fail(err, out->status, "the prompt on stdin is too long");
    return ferror(stdin) ? spl_fail(err, SPL_E_IO, "cannot read stdin") : SPL_OK;
}

static spl_status answer(splash_engine *engine, const spl_run_args *a, const char *prompt, size_t n_bytes,
                         spl_turn_result *result, spl_error *err) {
    if (a->raw) return spl_turn_raw(engine, prompt, n_bytes, &a->turn, result, err);
    json_t *messages = json_array();
    json_t *content = json_stringn(prompt, n_bytes);
    if (!content) {
        json_decref(messages);
        return spl_fail(err, SPL_E_INVALID, "the prompt is not valid UTF-8");
    }
    if (a->system)
        (void)json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "system", "content", a->system));
    (void)json_array_append_new(messages, json_pack("{s:s,s:o}", "role", "user", "content", content));
    spl_status st = spl_turn_chat(engine, messages, &a->turn, result, err);
    json_decref(messages);
    return st;
}

static void print_json(const spl_turn_result *r) {
    const splash_usage *u = &r->usage;
    json_t *usage = json_pack("{s:I,s:I,s:I,s:I}", "prompt_tokens", (json_int_t)u->prompt_tokens, "cached_tokens",
                              (json_int_t)u->cached_tokens, "completion_tokens", (json_int_t)u->completion_tokens,
                              "reasoning_tokens", (json_int_t)u->reasoning_tokens);
    json_t *timings = json_pack("{s:f,s:f,s:f,s:I,s:I,s:I}", "prefill_ms", u->prefill_ms, "decode_ms", u->decode_ms,
                                "ttft_ms", u->ttft_ms, "decode_steps", (json_int_t)u->decode_steps, "draft_tokens",
                                (json_int_t)u->draft_tokens, "draft_accepted", (json_int_t)u->draft_accepted);
    json_t *j = json_pack("{s:o,s:o,s:s,s:o,s:o}", "content",
                          json_stringn(r->content.data ? r->content.data : "", r->content.n_bytes), "reasoning",
                          json_stringn(r->reasoning.data ? r->reasoning.data : "", r->reasoning.n_bytes),
                          "finish_reason", spl_turn_finish(r), "usage", usage, "timings", timings);
    char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
    (void)puts(text ? text : "{}");
    free(text);
    json_decref(j);
}

static int finish(const spl_run_args *a, const spl_turn_result *r) {
    char stats[256];
    if (a->json) {
        print_json(r);
    } else {
        if (r->content.n_bytes == 0 || r->content.data[r->content.n_bytes - 1] != '\n') (void)putchar('\n');
        (void)fflush(stdout);
        spl_turn_stats(r, stats, sizeof stats);
        (void)fprintf(stderr, "%s%s\n", stats, r->finish == SPLASH_FINISH_LENGTH ? " · cut at the token limit" : "");
    }
    return r->interrupted ? spl_signal_exit_code(spl_signal_pending()) : SPL_EXIT_OK;
}

static int run(spl_run_args *a) {
    spl_error err = {0};
    splash_engine *engine = NULL;
    spl_turn_result result = {0};
    spl_buf input;
    int code = SPL_EXIT_FAILURE;
    spl_buf_init(&input, MAX_STDIN_BYTES);
    spl_signals_catch();
    bool from_stdin = strcmp(a->prompt, "-") == 0;
    spl_status st = from_stdin ? read_stdin(&input, &err) : SPL_OK;
    if (st == SPL_OK && (from_stdin ? input.n_bytes == 0 : a->prompt[0] == 0))
        st = spl_fail(&err, SPL_E_INVALID, "the prompt is empty");
    if (st == SPL_OK) st = spl_model_open(&a->model, 0, &engine, &err);
    if (st == SPL_OK)
        st = answer(engine, a, from_stdin ? (input.data ? input.data : "") : a->prompt,
                    from_stdin ? input.n_bytes : strlen(a->prompt), &result, &err);
    if (st == SPL_OK)
        code = finish(a, &result);
    else if (spl_signal_pending())
        code = spl_signal_exit_code(spl_signal_pending());
    else
        (void)fprintf(stderr, "splash: %s\n", err.text);
    spl_turn_free(&result);
    spl_buf_free(&input);
    splash_close(&engine);
    return code;
}

int spl_cmd_run(int argc, char **argv) {
    spl_run_args a = {.turn = {.temperature = -1}};
    size_t n = 0;
    const spl_option model_rows[] = {SPL_MODEL_OPTION_ROWS(&a.model), {0}};
    const spl_option rows[] = {
        {"max-tokens", 'n', SPL_OPT_U32, &a.turn.max_tokens, "N",
         "longest answer in tokens (default: to the end of the context)", NULL},
        {"temperature", 0, SPL_OPT_NUMBER, &a.turn.temperature, "T", "0 is greedy (default: the model's)", NULL},
        {"seed", 0, SPL_OPT_SEED, &a.turn.seed, "N", "repeat an answer", &a.turn.seed_given},
        {"system", 0, SPL_OPT_STRING, &a.system, "TEXT", "system message", NULL},
        {"no-think", 0, SPL_OPT_FLAG, &a.turn.no_think, NULL, "answer without reasoning first", NULL},
        {"raw", 0, SPL_OPT_FLAG, &a.raw, NULL, "continue the text as it is, without the chat template", NULL},
        {"json", 0, SPL_OPT_FLAG, &a.json, NULL, "one JSON object on stdout", NULL},
        {0}};
    int code = spl_parse_args(argc, argv, &HELP, rows, model_rows, &a.prompt, 1, &n);
    if (code >= 0) return code;
    if (n != 1) return spl_usage_error(&HELP, "the prompt is missing");
    if (a.raw && (a.system || a.turn.no_think)) return spl_usage_error(&HELP, "--raw excludes --system and --no-think");
    if (a.turn.temperature > 100) return spl_usage_error(&HELP, "--temperature must be at most 100");
    a.turn.show_content = !a.json;
    a.turn.show_reasoning = !a.json && isatty(STDERR_FILENO) == 1;
    return run(&a);
}
