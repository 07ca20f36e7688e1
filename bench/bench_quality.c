/* SPDX-License-Identifier: Apache-2.0
 * What the small model can do, greedily, on fixed prompts: Python that parses and sums that are right. The
 * rules are in bench_quality.h. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file_map.h"
#include "bench/bench_generate.h"
#include "bench/bench_quality.h"

enum { DEFAULT_MAX_TOKENS = 220, CONTEXT_TOKENS = 1024, SHOWN_BYTES = 4000 };

extern char **environ;

/* ---- Python ---------------------------------------------------------------------------------- */

static const char CHECKER[] = "import ast, sys\n"
                              "try:\n"
                              "    tree = ast.parse(sys.stdin.read())\n"
                              "except (SyntaxError, ValueError, RecursionError, MemoryError):\n"
                              "    sys.exit(3)\n"
                              "kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)\n"
                              "def is_text(n):\n"
                              "    return isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)\n"
                              "good = any(isinstance(n, kinds) and not all(map(is_text, n.body)) for n in tree.body)\n"
                              "sys.exit(0 if good else 3)\n";

/* A temporary file without a name that holds the source. */
static spl_status source_file(const char *source, size_t n_bytes, FILE **out, spl_error *err) {
    *out = tmpfile();
    if (!*out) return spl_fail_errno(err, errno, "cannot make a temporary file");
    if (fwrite(source, 1, n_bytes, *out) == n_bytes && fflush(*out) == 0 && fseek(*out, 0, SEEK_SET) == 0)
        return SPL_OK;
    spl_status st = spl_fail_errno(err, errno, "cannot write a temporary file");
    (void)fclose(*out);
    *out = NULL;
    return st;
}

spl_status spl_quality_parses(const char *source, size_t n_bytes, bool *good, spl_error *err) {
    char *const argv[] = {(char *)(uintptr_t) "python3", (char *)(uintptr_t) "-I", (char *)(uintptr_t) "-c",
                          (char *)(uintptr_t)CHECKER, NULL};
    posix_spawn_file_actions_t actions;
    FILE *file;
    pid_t child = 0;
    int rc, status = 0;
    spl_status st = source_file(source, n_bytes, &file, err);
    if (st != SPL_OK) return st;
    rc = posix_spawn_file_actions_init(&actions);
    if (rc == 0) {
        rc = posix_spawn_file_actions_adddup2(&actions, fileno(file), STDIN_FILENO);
        if (rc == 0) rc = posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
        if (rc == 0) rc = posix_spawnp(&child, "python3", &actions, NULL, argv, environ);
        (void)posix_spawn_file_actions_destroy(&actions);
    }
    (void)fclose(file);
    if (rc == ENOENT) return spl_fail(err, SPL_E_NOTFOUND, "python3 is missing; it says whether an answer parses");
    if (rc != 0) return spl_fail_errno(err, rc, "cannot start python3");
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return spl_fail_errno(err, errno, "cannot wait for python3");
    if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3))
        return spl_fail(err, SPL_E_INTERNAL, "python3 could not check an answer (status %d)", status);
    *good = WEXITSTATUS(status) == 0;
    return SPL_OK;
}

size_t spl_quality_cut(const char *text, size_t n_bytes) {
    for (size_t at = 0; at < n_bytes;) {
        if (!strchr(" \t\r\n#)]}", text[at])) return at;
        const char *end = memchr(text + at, '\n', n_bytes - at);
        if (!end) return n_bytes;
        at = (size_t)(end - text) + 1;
    }
    return n_bytes;
}

const char *spl_quality_code(const char *answer, size_t *n_bytes) {
    const char *open = strstr(answer, "```"), *begin = open ? strchr(open, '\n') : NULL;
    if (!begin) {
        *n_bytes = strlen(answer);
        return answer;
    }
    const char *end = strstr(++begin, "```");
    *n_bytes = end ? (size_t)(end - begin) : strlen(begin);
    return begin;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool spl_quality_last_integer_is(const char *text, const char *wanted) {
    const char *last = NULL;
    for (const char *at = text; *at; at++) {
        if (!is_digit(*at) || (at > text && is_digit(at[-1]))) continue;
        last = at > text && at[-1] == '-' ? at - 1 : at;
    }
    return last && wanted && strtoll(last, NULL, 10) == strtoll(wanted, NULL, 10);
}

/* ---- scoring --------------------------------------------------------------------------------- */

typedef struct tally {
    uint32_t n, n_good, n_stopped;
} tally;

typedef struct session {
    const spl_bench_options *o;
    splash_engine *engine;
    tally completion, chat, sum;
    json_t *rows;
} session;

static spl_status judge_code(const spl_bench_prompt *p, bool raw, const char *answer, bool *good, spl_error *err) {
    size_t n_bytes;
    spl_buf source;
    if (!raw) {
        const char *code = spl_quality_code(answer, &n_bytes);
        return spl_quality_parses(code, n_bytes, good, err);
    }
    spl_buf_init(&source, SIZE_MAX / 2);
    (void)spl_buf_puts(&source, p->turns[0]);
    spl_status st = spl_buf_append(&source, answer, spl_quality_cut(answer, strlen(answer)));
    st = st == SPL_OK ? spl_quality_parses(source.data, source.n_bytes, good, err)
                      : spl_fail(err, st, "no memory for a completion");
    spl_buf_free(&source);
    return st;
}

static spl_status add_row(session *s, const spl_bench_prompt *p, const spl_bench_answer *a, bool good, tally *t,
                          spl_error *err) {
    bool stopped = a->finish != SPLASH_FINISH_LENGTH;
    size_t n = a->content.n_bytes < SHOWN_BYTES ? a->content.n_bytes : SHOWN_BYTES;
    while (n > 0 && n < a->content.n_bytes && (a->content.data[n] & 0xc0) == 0x80) n--; /* whole characters */
    spl_bench_json row = {0};
    spl_put_text(&row, "id", p->id);
    spl_put_text(&row, "kind", p->kind);
    spl_put_bool(&row, "good", good);
    spl_put_bool(&row, "stopped", stopped);
    spl_put_u64(&row, "tokens", a->usage.completion_tokens);
    spl_put(&row, "answer", json_stringn(a->content.data ? a->content.data : "", n));
    json_t *object;
    spl_status st = spl_bench_json_take(&row, &object, err);
    if (st == SPL_OK && json_array_append_new(s->rows, object) != 0)
        st = spl_fail(err, SPL_E_NOMEM, "no memory for the result");
    t->n++;
    t->n_good += good;
    t->n_stopped += stopped;
    return st;
}

static spl_status run_prompt(session *s, const spl_bench_prompt *p, spl_error *err) {
    bool raw = p->kind && strcmp(p->kind, "python-completion") == 0, good = false;
    bool code = raw || (p->kind && strcmp(p->kind, "python-chat") == 0);
    if (!code && !(p->kind && strcmp(p->kind, "sum") == 0))
        return spl_fail(err, SPL_E_FORMAT, "prompt %s: 'kind' must be python-completion, python-chat or sum", p->id);
    spl_bench_input in = {0};
    spl_bench_answer a = {0};
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", p->turns[0]);
    spl_status st = messages ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a chat");
    if (st == SPL_OK)
        st = raw ? spl_bench_input_raw(&in, s->engine, p->turns[0], err)
                 : spl_bench_input_chat(&in, s->engine, messages, p->thinking, err);
    if (st == SPL_OK)
        st = spl_bench_answer_get(&a, s->engine, &in, s->o->max_tokens ? s->o->max_tokens : DEFAULT_MAX_TOKENS, 0, 0,
                                  err);
    const char *text = a.content.data ? a.content.data : "";
    if (st == SPL_OK && code) st = judge_code(p, raw, text, &good, err);
    if (st == SPL_OK && !code) good = spl_quality_last_integer_is(text, p->answer);
    if (st == SPL_OK) st = add_row(s, p, &a, good, raw ? &s->completion : code ? &s->chat : &s->sum, err);
    spl_bench_answer_free(&a);
    spl_bench_input_free(&in);
    json_decref(messages);
    return st;
}

static double rate(uint32_t n_good, uint32_t n) { return n ? (double)n_good / n : 0; }

static spl_status report(session *s, json_t **out, spl_error *err) {
    spl_bench_json j = {0};
    splash_model_info info;
    splash_stats stats;
    uint32_t n_code = s->completion.n + s->chat.n, n_good = s->completion.n_good + s->chat.n_good;
    splash_model_info_get(s->engine, &info);
    splash_stats_get(s->engine, &stats);
    spl_put_text(&j, "model", info.name);
    spl_put_bool(&j, "draft", info.has_draft);
    spl_put_u64(&j, "prompts", n_code + s->sum.n);
    spl_put_real(&j, "python_parse_rate", rate(n_good, n_code));
    spl_put_real(&j, "sum_rate", rate(s->sum.n_good, s->sum.n));
    spl_put_real(&j, "completion_parse_rate", rate(s->completion.n_good, s->completion.n));
    spl_put_real(&j, "chat_parse_rate", rate(s->chat.n_good, s->chat.n));
    spl_put_u64(&j, "python_prompts", n_code);
    spl_put_u64(&j, "python_good", n_good);
    spl_put_u64(&j, "sum_prompts", s->sum.n);
    spl_put_u64(&j, "sums_good", s->sum.n_good);
    spl_put_u64(&j, "answers_that_stopped", s->completion.n_stopped + s->chat.n_stopped + s->sum.n_stopped);
    spl_put_u64(&j, "max_tokens", s->o->max_tokens ? s->o->max_tokens : DEFAULT_MAX_TOKENS);
    spl_put_text(&j, "rules",
                 "completions are cut at the first line that leaves the definition; code must parse and define "
                 "something; a sum's last integer must be right");
    spl_put(&j, "per_prompt", json_incref(s->rows));
    return spl_bench_json_take(&j, out, err);
}

static spl_status find_prompts(const spl_bench_options *o, char **path, spl_error *err) {
    *path = o->prompts ? strdup(o->prompts) : spl_path_join(o->model, "quality_prompts.jsonl");
    if (!*path) return spl_fail(err, SPL_E_NOMEM, "no memory for a path");
    if (o->prompts || spl_file_exists(*path)) return SPL_OK;
    spl_status st = spl_fail(err, SPL_E_NOTFOUND, "there is no %.200s; name a file with --prompts", *path);
    free(*path);
    *path = NULL;
    return st;
}

spl_status spl_bench_quality(const spl_bench_options *o, json_t **out, spl_error *err) {
    char *path = NULL;
    spl_bench_prompts prompts = {0};
    session s = {.o = o, .rows = json_array()};
    bool works = false;
    spl_status st = find_prompts(o, &path, err);
    if (st == SPL_OK) st = spl_bench_prompts_read(&prompts, path, o->n_prompts, err);
    static const char sound[] = "def f():\n    return 1\n";
    if (st == SPL_OK) st = spl_quality_parses(sound, sizeof sound - 1, &works, err); /* before any work is done */
    if (st == SPL_OK && !works) st = spl_fail(err, SPL_E_INTERNAL, "python3 does not parse a simple function");
    if (st == SPL_OK) st = spl_bench_engine(&s.engine, o, false, o->max_context ? o->max_context : CONTEXT_TOKENS, err);
    for (uint32_t i = 0; i < prompts.n && st == SPL_OK; i++) {
        spl_bench_say(o, "prompt %u of %u (%s)", i + 1, prompts.n, prompts.items[i].id);
        st = run_prompt(&s, &prompts.items[i], err);
    }
    if (st == SPL_OK) st = report(&s, out, err);
    splash_close(&s.engine);
    json_decref(s.rows);
    spl_bench_prompts_free(&prompts);
    free(path);
    return st;
}
