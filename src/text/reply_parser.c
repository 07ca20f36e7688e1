/* SPDX-License-Identifier: Apache-2.0
 * The reply reader: a state machine over `input`, which holds only what cannot be decided yet (the
 * beginning of a tag, a name). Each state's step function consumes what it can and says whether
 * there is more to do; when a tag is cut by the end of the input it waits for more. */
#include "text/reply_parser.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/dynbuf.h"
#include "text/python_json.h"
#include "text/tool_value.h"
#include "text/unicode.h"

enum {
    NAME_MAX_BYTES = 1024,
    SPACE_AFTER_CALL_MAX = 64, /* white space that may stand between </function> and </tool_call> */
    VALUE_MAX_BYTES = 64 << 20,
};

static const char tag_call[] = "<tool_call>\n<function=";
static const char tag_call_end[] = "</tool_call>";
static const char tag_function_end[] = "</function>";
static const char tag_parameter[] = "<parameter=";
static const char tag_think_end[] = "</think>";
static const char tag_value_end[] = "\n</parameter>\n";

typedef enum state { REASONING, TEXT, NAME, BODY, PARAMETER, VALUE, AFTER_CALL } state;

struct spl_reply_parser {
    spl_reply_options options;
    spl_reply_fn receive;
    void *context;
    state state;
    state before_call; /* where to go back to when a call turns out to be none */
    bool final;        /* no more text will come */
    spl_status status; /* the first failure; sticky */
    spl_buf input;     /* undecided text */
    spl_buf space;     /* white space that counts only if visible text follows */
    bool seen_content; /* visible answer text was emitted */
    bool space_is_old; /* a call came after the white space began */
    bool seen_reasoning;
    unsigned n_calls;
    char *tool;         /* name of the current call; malloc'ed */
    json_t *keys;       /* set of argument names seen in the current call */
    size_t n_arguments; /* written so far */
    unsigned types;     /* of the current parameter */
    bool value_started; /* a byte of the value was read */
    bool drop_value;    /* repeated or nameless parameter */
    bool streams;       /* the value is a string and leaves as it comes */
    spl_buf key;        /* the current parameter's name */
    spl_buf value;      /* the current value when it does not stream */
    spl_buf arguments;  /* argument text not yet handed out */
};

typedef enum match { NO, PARTIAL, FULL } match;

/* Compares the text at p with a tag; PARTIAL when the text ends inside it. */
static match match_tag(const char *p, size_t n_bytes, const char *tag) {
    size_t n = strlen(tag);
    size_t common = n_bytes < n ? n_bytes : n;
    if (memcmp(p, tag, common) != 0) return NO;
    return common == n ? FULL : PARTIAL;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* ---- output ---- */

static void deliver(spl_reply_parser *p, spl_reply_kind kind, const char *text, size_t n_bytes, bool complete) {
    if (p->status != SPL_OK) return;
    spl_reply_delta delta = {.kind = kind, .text = text, .n_bytes = n_bytes, .complete = complete};
    delta.call = p->n_calls ? p->n_calls - 1 : 0;
    p->status = p->receive(p->context, &delta);
}

static void note(spl_reply_parser *p, spl_status st) {
    if (p->status == SPL_OK) p->status = st;
}

/* Reasoning or answer text: leading white space is dropped, inner white space waits for what follows it. */
static void emit_text(spl_reply_parser *p, const char *text, size_t n_bytes) {
    bool reasoning = p->state == REASONING;
    bool *seen = reasoning ? &p->seen_reasoning : &p->seen_content;
    spl_reply_kind kind = reasoning ? SPL_REPLY_REASONING : SPL_REPLY_CONTENT;
    size_t head = 0;
    while (head < n_bytes && is_space(text[head])) head++;
    note(p, *seen ? spl_buf_append(&p->space, text, head) : SPL_OK);
    if (head == n_bytes) return;
    size_t tail = n_bytes;
    while (is_space(text[tail - 1])) tail--;
    if (p->space.n_bytes) deliver(p, kind, p->space.data, p->space.n_bytes, false);
    spl_buf_reset(&p->space);
    deliver(p, kind, text + head, tail - head, false);
    note(p, spl_buf_append(&p->space, text + tail, n_bytes - tail));
    *seen = true;
    p->space_is_old = false;
}

/* Length of the longest beginning of text that may leave: at most `limit`, no escape and no character split. */
static size_t fragment_end(const char *text, size_t n_bytes, size_t limit) {
    if (n_bytes <= limit) return n_bytes;
    size_t end = limit;
    while (end > limit - 16 && ((uint8_t)text[end] & 0xc0u) == 0x80) end--;
    /* A backslash among the last bytes may begin an escape of up to 6 bytes; count the run it ends. */
    for (size_t back = 1; back <= 6; back++) {
        if (text[end - back] != '\\') continue;
        size_t first = end - back;
        while (first && text[first - 1] == '\\') first--;
        bool escapes = (end - back - first) % 2 == 0;
        size_t length = text[end - back + 1] == 'u' ? 6 : 2;
        if (escapes && length > back) return end - back;
        break;
    }
    return end;
}

static void flush_arguments(spl_reply_parser *p) {
    note(p, p->arguments.status);
    size_t at = 0;
    while (p->status == SPL_OK && at < p->arguments.n_bytes) {
        size_t n = fragment_end(p->arguments.data + at, p->arguments.n_bytes - at, SPL_REPLY_FRAGMENT_BYTES);
        deliver(p, SPL_REPLY_ARGUMENTS, p->arguments.data + at, n, false);
        at += n;
    }
    spl_buf_reset(&p->arguments);
}

static void end_call(spl_reply_parser *p, bool complete) {
    if (complete) (void)spl_buf_putc(&p->arguments, '}');
    flush_arguments(p);
    deliver(p, SPL_REPLY_CALL_END, NULL, 0, complete);
    p->state = complete ? AFTER_CALL : TEXT;
}

/* ---- parameters ---- */

static void write_key(spl_reply_parser *p) {
    if (p->n_arguments++) (void)spl_buf_putc(&p->arguments, ',');
    (void)spl_python_json_string(&p->arguments, p->key.data, p->key.n_bytes);
    (void)spl_buf_putc(&p->arguments, ':');
}

static void begin_value(spl_reply_parser *p) {
    p->state = VALUE;
    p->value_started = false;
    spl_buf_reset(&p->value);
    p->types = spl_tool_parameter_types(p->options.tools, p->tool, p->key.data);
    p->drop_value = json_object_get(p->keys, p->key.data) != NULL;
    size_t bad;
    if (!spl_utf8_valid(p->key.data, p->key.n_bytes, &bad))
        p->drop_value = true; /* cannot come from decoded text */
    else if (!p->drop_value && json_object_set_new(p->keys, p->key.data, json_true()) != 0)
        note(p, SPL_E_NOMEM);
    p->streams = !p->drop_value && p->types == SPL_TYPE_STRING;
    if (!p->streams) return;
    write_key(p);
    (void)spl_buf_putc(&p->arguments, '"');
}

static void add_value(spl_reply_parser *p, const char *text, size_t n_bytes) {
    if (n_bytes) p->value_started = true;
    if (p->streams) {
        (void)spl_python_json_escape(&p->arguments, text, n_bytes);
        if (p->arguments.n_bytes >= SPL_REPLY_FRAGMENT_BYTES) flush_arguments(p);
    } else if (!p->drop_value) {
        note(p, spl_buf_append(&p->value, text, n_bytes));
    }
}

static void end_value(spl_reply_parser *p) {
    p->state = BODY;
    if (p->streams) {
        (void)spl_buf_putc(&p->arguments, '"');
    } else if (!p->drop_value) {
        write_key(p);
        note(p, spl_tool_value(&p->arguments, p->types, p->value.data ? p->value.data : "", p->value.n_bytes));
    }
    p->streams = false;
}

/* ---- states: each returns how many bytes of the input it consumed; 0 with the state unchanged
 * means that it waits ---- */

static void begin_call(spl_reply_parser *p, const char *name, size_t n_bytes) {
    free(p->tool);
    p->tool = malloc(n_bytes + 1);
    json_decref(p->keys);
    p->keys = json_object();
    if (!p->tool || !p->keys) {
        note(p, SPL_E_NOMEM);
        return;
    }
    memcpy(p->tool, name, n_bytes);
    p->tool[n_bytes] = '\0';
    p->n_arguments = 0;
    p->n_calls++;
    p->space_is_old = true;
    deliver(p, SPL_REPLY_CALL, name, n_bytes, false);
    (void)spl_buf_putc(&p->arguments, '{');
    p->state = BODY;
}

static size_t step_text(spl_reply_parser *p, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '<') continue;
        match call = p->options.parse_calls ? match_tag(text + i, n - i, tag_call) : NO;
        match think = match_tag(text + i, n - i, tag_think_end);
        if (call == NO && think == NO) continue;
        if (call != FULL && think != FULL && p->final) continue;
        if (i) { /* hand out the text in front, then look again */
            emit_text(p, text, i);
            return i;
        }
        if (think == FULL) {
            if (p->state == REASONING) spl_buf_reset(&p->space);
            p->state = TEXT;
            return sizeof tag_think_end - 1;
        }
        if (call == FULL) {
            p->before_call = p->state;
            p->state = NAME;
            return sizeof tag_call - 1;
        }
        return 0;
    }
    emit_text(p, text, n);
    return n;
}

/* Reads a name up to ">\n" and trims it. FULL: *name, *length, *used are set; NO: it can be no name. */
static match read_name(const spl_reply_parser *p, const char *text, size_t n, const char **name, size_t *length,
                       size_t *used) {
    size_t end = 0;
    while (end < n && end <= NAME_MAX_BYTES && text[end] != '>' && text[end] != '<') end++;
    if (end > NAME_MAX_BYTES) return NO;
    if (end == n || (text[end] == '>' && end + 1 == n)) return p->final ? NO : PARTIAL;
    if (text[end] == '<' || text[end + 1] != '\n') return NO;
    size_t start = 0;
    *used = end + 2;
    while (start < end && is_space(text[start])) start++;
    while (end > start && is_space(text[end - 1])) end--;
    *name = text + start;
    *length = end - start;
    for (size_t i = start; i < end; i++) {
        if ((uint8_t)text[i] < 0x20) return NO;
    }
    return start < end ? FULL : NO;
}

static size_t step_name(spl_reply_parser *p, const char *text, size_t n) {
    const char *name;
    size_t length;
    size_t used = 0;
    match m = read_name(p, text, n, &name, &length, &used);
    if (m == PARTIAL) return 0;
    if (m == NO) { /* no call: its opening is text, the rest is read as text */
        p->state = p->before_call;
        emit_text(p, tag_call, sizeof tag_call - 1);
        return 0;
    }
    if (p->before_call == REASONING) spl_buf_reset(&p->space);
    begin_call(p, name, length);
    return used;
}

static size_t step_body(spl_reply_parser *p, const char *text, size_t n) {
    size_t i = 0;
    while (i < n && text[i] != '<') i++; /* between parameters only layout is expected; the rest is skipped */
    if (i) return i;
    match parameter = match_tag(text, n, tag_parameter);
    match function_end = match_tag(text, n, tag_function_end);
    match call_end = match_tag(text, n, tag_call_end);
    if (parameter == FULL) {
        p->state = PARAMETER;
        return sizeof tag_parameter - 1;
    }
    if (function_end == FULL || call_end == FULL) {
        end_call(p, true);
        if (call_end == FULL) p->state = TEXT;
        return function_end == FULL ? sizeof tag_function_end - 1 : sizeof tag_call_end - 1;
    }
    if (!p->final && (parameter == PARTIAL || function_end == PARTIAL || call_end == PARTIAL)) return 0;
    return 1;
}

static size_t step_parameter(spl_reply_parser *p, const char *text, size_t n) {
    const char *name;
    size_t length;
    size_t used = 0;
    match m = read_name(p, text, n, &name, &length, &used);
    if (m == PARTIAL) return 0;
    if (m == NO) {
        p->state = BODY;
        return 0;
    }
    spl_buf_reset(&p->key);
    note(p, spl_buf_append(&p->key, name, length));
    if (p->status == SPL_OK) begin_value(p);
    return used;
}

/* Does a value end at text? The closing tag counts only in front of another tag of the call. */
static match match_value_end(const spl_reply_parser *p, const char *text, size_t n, const char *end) {
    match m = match_tag(text, n, end);
    if (m == NO) return NO;
    size_t length = strlen(end);
    /* At the end of the reply the closing tag itself is enough, its newline may be missing. */
    if (m == PARTIAL) return p->final && n + 1 == length ? FULL : PARTIAL;
    static const char *const followers[] = {tag_parameter, tag_function_end, tag_call_end};
    match best = NO;
    for (size_t i = 0; i < SPL_COUNT(followers); i++) {
        match f = match_tag(text + length, n - length, followers[i]);
        if (f > best) best = f;
    }
    return best == PARTIAL && p->final ? FULL : best;
}

static size_t step_value(spl_reply_parser *p, const char *text, size_t n) {
    size_t i = 0;
    /* An empty value may be written without its own line: then the opening newline closes it too. */
    match end = p->value_started ? NO : match_value_end(p, text, n, tag_value_end + 1);
    const char *tag = tag_value_end + 1;
    while (end == NO && i < n) {
        if (text[i] == '\n') {
            end = match_value_end(p, text + i, n - i, tag_value_end);
            tag = tag_value_end;
            if (end != NO) break;
        }
        i++;
    }
    if (end == PARTIAL && p->final) { /* an unfinished tag at the end of the reply belongs to no value */
        add_value(p, text, i);
        return n;
    }
    add_value(p, text, i);
    if (end != FULL) return i;
    end_value(p);
    size_t used = i + strlen(tag);
    return used > n ? n : used;
}

static size_t step_after_call(spl_reply_parser *p, const char *text, size_t n) {
    size_t space = 0;
    while (space < n && space <= SPACE_AFTER_CALL_MAX && is_space(text[space])) space++;
    if (space <= SPACE_AFTER_CALL_MAX) {
        match m = match_tag(text + space, n - space, tag_call_end);
        if (m == PARTIAL && !p->final) return 0;
        if (m == FULL) {
            p->state = TEXT;
            return space + sizeof tag_call_end - 1;
        }
    }
    p->state = TEXT;
    return 0;
}

static size_t step(spl_reply_parser *p, const char *text, size_t n) {
    switch (p->state) {
    case REASONING:
    case TEXT: return step_text(p, text, n);
    case NAME: return step_name(p, text, n);
    case BODY: return step_body(p, text, n);
    case PARAMETER: return step_parameter(p, text, n);
    case VALUE: return step_value(p, text, n);
    case AFTER_CALL:
    default: return step_after_call(p, text, n);
    }
}

/* Runs the states until they wait for more input. */
static void run(spl_reply_parser *p) {
    size_t at = 0;
    while (p->status == SPL_OK && at < p->input.n_bytes) {
        state before = p->state;
        size_t used = step(p, p->input.data + at, p->input.n_bytes - at);
        at += used;
        if (used == 0 && p->state == before) break;
    }
    spl_buf_consume(&p->input, at);
    flush_arguments(p);
}

spl_status spl_reply_feed(spl_reply_parser *p, const char *text, size_t n_bytes) {
    note(p, spl_buf_append(&p->input, text, n_bytes));
    if (p->status == SPL_OK) run(p);
    return p->status;
}

spl_status spl_reply_finish(spl_reply_parser *p, bool cut) {
    p->final = true;
    run(p);
    if (p->state == NAME) { /* nothing followed the opening */
        p->state = p->before_call;
        emit_text(p, tag_call, sizeof tag_call - 1);
    }
    if (p->state == BODY || p->state == PARAMETER || p->state == VALUE) {
        if (!cut && p->streams) (void)spl_buf_putc(&p->arguments, '"');
        end_call(p, !cut);
        p->state = TEXT;
    }
    /* White space at the very end belongs to the answer unless a call stands between. */
    if (p->state == TEXT && !p->space_is_old && p->space.n_bytes)
        deliver(p, SPL_REPLY_CONTENT, p->space.data, p->space.n_bytes, false);
    spl_buf_reset(&p->space);
    return p->status;
}

spl_status spl_reply_new(spl_reply_parser **out, const spl_reply_options *options, spl_reply_fn receive, void *context,
                         spl_error *err) {
    spl_reply_parser *p = calloc(1, sizeof *p);
    *out = p;
    if (!p) return spl_fail(err, SPL_E_NOMEM, "no memory for a reply parser");
    p->options = *options;
    p->receive = receive;
    p->context = context;
    p->state = options->opens_thinking ? REASONING : TEXT;
    spl_buf_init(&p->input, VALUE_MAX_BYTES);
    spl_buf_init(&p->space, VALUE_MAX_BYTES);
    spl_buf_init(&p->key, NAME_MAX_BYTES);
    spl_buf_init(&p->value, VALUE_MAX_BYTES);
    /* Every byte of a value may become an escape of six. */
    spl_buf_init(&p->arguments, (size_t)7 * VALUE_MAX_BYTES);
    return SPL_OK;
}

void spl_reply_free(spl_reply_parser *p) {
    if (!p) return;
    spl_buf_free(&p->input);
    spl_buf_free(&p->space);
    spl_buf_free(&p->key);
    spl_buf_free(&p->value);
    spl_buf_free(&p->arguments);
    json_decref(p->keys);
    free(p->tool);
    free(p);
}

unsigned spl_reply_n_calls(const spl_reply_parser *p) { return p->n_calls; }

bool spl_reply_in_reasoning(const spl_reply_parser *p) { return p->state == REASONING; }
