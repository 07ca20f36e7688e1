/* SPDX-License-Identifier: Apache-2.0
 * splash chat: a conversation in the terminal. libedit gives line editing and history on a terminal; otherwise lines
 * come from stdin. Lines that arrive together (a paste) are one message. Ctrl+C stops the answer, Ctrl+D ends. */
#include <errno.h>
#include <histedit.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/model_arg.h"
#include "cli/signals.h"
#include "cli/turn.h"

static const spl_command_help HELP = {"splash chat [options]",
                                      "Talks to the model. Ctrl+C stops an answer, Ctrl+D or /exit ends, /reset "
                                      "forgets the conversation, /help lists more."};

enum { PASTE_MS = 30, MAX_MESSAGE_BYTES = 16 << 20, HISTORY_LINES = 500 };

typedef struct spl_chat {
    splash_engine *engine;
    spl_turn_options turn;
    const char *system;
    json_t *messages;
    EditLine *editor; /* NULL: plain stdin */
    History *history;
} spl_chat;

/* ---- input --------------------------------------------------------------------------------- */

static const char *prompt_text(EditLine *editor) {
    (void)editor;
    return "> ";
}

static void open_editor(spl_chat *c) {
    HistEvent ev;
    if (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1) return;
    c->history = history_init();
    c->editor = el_init("splash", stdin, stdout, stderr);
    if (!c->history || !c->editor) return;
    (void)history(c->history, &ev, H_SETSIZE, HISTORY_LINES);
    (void)history(c->history, &ev, H_SETUNIQUE, 1);
    (void)el_set(c->editor, EL_PROMPT, prompt_text);
    (void)el_set(c->editor, EL_EDITOR, "emacs");
    (void)el_set(c->editor, EL_HIST, history, c->history);
    (void)el_set(c->editor, EL_SIGNAL, 0);
    (void)el_source(c->editor, NULL);
}

static void close_editor(spl_chat *c) {
    if (c->editor) el_end(c->editor);
    if (c->history) history_end(c->history);
}

/* One line with its newline into *line (borrowed until the next call); false at the end of input or on a signal. */
static bool next_line(spl_chat *c, const char **line, size_t *n_bytes) {
    static char plain[65536];
    if (c->editor) {
        int n = 0;
        *line = el_gets(c->editor, &n);
        *n_bytes = n > 0 ? (size_t)n : 0;
        return *line && n > 0;
    }
    if (!fgets(plain, sizeof plain, stdin)) return false;
    *line = plain;
    *n_bytes = strlen(plain);
    return true;
}

static bool more_is_waiting(const spl_chat *c) {
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    return c->editor && poll(&p, 1, PASTE_MS) == 1 && (p.revents & POLLIN);
}

/* A message: one line, or all lines of a paste. False: the conversation is over. */
static bool read_message(spl_chat *c, spl_buf *message) {
    const char *line;
    size_t n;
    spl_buf_reset(message);
    do {
        if (!next_line(c, &line, &n)) {
            if (spl_signal_pending() == SIGINT) { /* Ctrl+C while typing: an empty message */
                spl_signal_clear();
                (void)fputs("\n", stdout);
                spl_buf_reset(message);
                clearerr(stdin);
                if (c->editor) el_reset(c->editor);
                return true;
            }
            return message->n_bytes > 0;
        }
        if (spl_buf_append(message, line, n) != SPL_OK) {
            (void)fprintf(stderr, "splash: the message is longer than %d MiB\n", MAX_MESSAGE_BYTES >> 20);
            spl_buf_reset(message);
            return true;
        }
    } while (more_is_waiting(c));
    while (message->n_bytes && strchr(" \t\r\n", message->data[message->n_bytes - 1]))
        message->data[--message->n_bytes] = 0;
    if (c->history && message->n_bytes) {
        HistEvent ev;
        (void)history(c->history, &ev, H_ENTER, message->data);
    }
    return true;
}

/* ---- the conversation ---------------------------------------------------------------------- */

static void reset(spl_chat *c) {
    (void)json_array_clear(c->messages);
    if (c->system)
        (void)json_array_append_new(c->messages, json_pack("{s:s,s:s}", "role", "system", "content", c->system));
}

static void print_commands(void) {
    (void)fputs("/reset   forget the conversation\n/think   turn reasoning on or off\n/exit    end (Ctrl+D does too)\n"
                "Ctrl+C   stop the answer; pasted lines are one message\n",
                stderr);
}

/* True when the message was a command; *over ends the conversation. */
static bool command(spl_chat *c, const char *text, bool *over) {
    if (text[0] != '/' || strchr(text, '\n')) return false;
    if (strcmp(text, "/exit") == 0 || strcmp(text, "/quit") == 0) {
        *over = true;
    } else if (strcmp(text, "/reset") == 0) {
        reset(c);
        (void)fputs("The conversation starts anew.\n", stderr);
    } else if (strcmp(text, "/think") == 0) {
        c->turn.no_think = !c->turn.no_think;
        (void)fprintf(stderr, "Reasoning is %s.\n", c->turn.no_think ? "off" : "on");
    } else if (strcmp(text, "/help") == 0) {
        print_commands();
    } else {
        (void)fprintf(stderr, "There is no command %s; /help lists them.\n", text);
    }
    return true;
}

/* Answers one message; the turn is taken back when it failed. */
static void answer(spl_chat *c, const spl_buf *message) {
    spl_turn_result result = {0};
    spl_error err = {0};
    char stats[256];
    json_t *content = json_stringn(message->data, message->n_bytes);
    if (!content) {
        (void)fputs("splash: the message is not valid UTF-8\n", stderr);
        return;
    }
    (void)json_array_append_new(c->messages, json_pack("{s:s,s:o}", "role", "user", "content", content));
    spl_status st = spl_turn_chat(c->engine, c->messages, &c->turn, &result, &err);
    if (st != SPL_OK) {
        (void)fprintf(stderr, "splash: %s\n", err.text);
        (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
    } else {
        json_t *reply = json_pack("{s:s,s:o}", "role", "assistant", "content",
                                  json_stringn(result.content.data ? result.content.data : "", result.content.n_bytes));
        if (reply && result.reasoning.n_bytes)
            (void)json_object_set_new(reply, "reasoning_content",
                                      json_stringn(result.reasoning.data, result.reasoning.n_bytes));
        (void)json_array_append_new(c->messages, reply);
        (void)fputc('\n', stdout);
        (void)fflush(stdout);
        spl_turn_stats(&result, stats, sizeof stats);
        bool dim = isatty(STDERR_FILENO) == 1;
        (void)fprintf(stderr, "%s%s%s%s\n", dim ? "\033[2m" : "", stats, result.interrupted ? " · stopped" : "",
                      dim ? "\033[0m" : "");
    }
    if (spl_signal_pending() == SIGINT) spl_signal_clear();
    spl_turn_free(&result);
}

static int converse(spl_chat *c) {
    spl_buf message;
    bool over = false;
    spl_buf_init(&message, MAX_MESSAGE_BYTES);
    reset(c);
    while (!over && spl_signal_pending() != SIGTERM && read_message(c, &message)) {
        if (message.n_bytes == 0 || command(c, message.data, &over)) continue;
        answer(c, &message);
    }
    spl_buf_free(&message);
    int signal_number = spl_signal_pending();
    return signal_number ? spl_signal_exit_code(signal_number) : SPL_EXIT_OK;
}

static int chat(spl_chat *c, const spl_model_options *model) {
    spl_error err = {0};
    splash_model_info info;
    spl_signals_catch();
    if (spl_model_open(model, 0, &c->engine, &err) != SPL_OK) {
        if (spl_signal_pending()) return spl_signal_exit_code(spl_signal_pending());
        (void)fprintf(stderr, "splash: %s\n", err.text);
        return SPL_EXIT_FAILURE;
    }
    splash_model_info_get(c->engine, &info);
    c->messages = json_array();
    open_editor(c);
    if (c->editor) (void)fprintf(stderr, "%s · context %u · /help\n", info.name, info.context_tokens);
    int code = c->messages ? converse(c) : SPL_EXIT_FAILURE;
    close_editor(c);
    json_decref(c->messages);
    splash_close(&c->engine);
    return code;
}

int spl_cmd_chat(int argc, char **argv) {
    spl_chat c = {.turn = {.temperature = -1, .show_content = true}};
    spl_model_options model = {0};
    const spl_option model_rows[] = {SPL_MODEL_OPTION_ROWS(&model), {0}};
    const spl_option rows[] = {
        {"max-tokens", 'n', SPL_OPT_U32, &c.turn.max_tokens, "N", "longest answer in tokens", NULL},
        {"temperature", 0, SPL_OPT_NUMBER, &c.turn.temperature, "T", "0 is greedy (default: the model's)", NULL},
        {"seed", 0, SPL_OPT_SEED, &c.turn.seed, "N", "repeat answers", &c.turn.seed_given},
        {"system", 0, SPL_OPT_STRING, &c.system, "TEXT", "system message", NULL},
        {"no-think", 0, SPL_OPT_FLAG, &c.turn.no_think, NULL, "answer without reasoning first", NULL},
        {0}};
    int code = spl_parse_args(argc, argv, &HELP, rows, model_rows, NULL, 0, NULL);
    if (code >= 0) return code;
    c.turn.show_reasoning = isatty(STDERR_FILENO) == 1;
    return chat(&c, &model);
}
