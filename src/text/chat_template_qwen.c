/* SPDX-License-Identifier: Apache-2.0
 * The chat template of Qwen3.5, Qwen3.6 and Qwen3.8, rule by rule in the order in which the published
 * Jinja text evaluates them, so that a faulty conversation raises the same error. The strings are
 * protocol constants. A value of a type the template never meant (a list as `text`, say) is an
 * error here where Jinja would print Python's spelling of it. */
#include <stdlib.h>
#include <string.h>

#include "text/chat_template.h"
#include "text/python_json.h"
#include "text/unicode.h"

static const char effort_xhigh[] =
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer.";
static const char effort_low[] =
    "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without "
    "unnecessary elaboration.";
static const char tools_head[] = "# Tools\n\nYou have access to the following functions:\n\n<tools>";
static const char tools_tail[] =
    "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT "
    "after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not "
    "tell the user about function calls\n"
    "</IMPORTANT>";

typedef struct renderer {
    spl_chat_kind kind;
    const spl_chat_options *options;
    const json_t *messages;
    spl_chat_rendering *out;
    spl_buf content;             /* the message being rendered, before trimming */
    spl_chat_placeholder *marks; /* placeholders in `content` */
    size_t n_marks, mark_capacity;
    unsigned n_images, n_videos;
    spl_error *err;
} renderer;

/* A part of renderer.content. */
typedef struct span {
    const char *p;
    size_t n;
} span;

static spl_status complain(renderer *r, size_t message, const char *text) {
    return spl_fail(r->err, SPL_E_INVALID, "messages[%zu]: %s", message, text);
}

static spl_status buffer_status(renderer *r, const spl_buf *b) {
    if (b->status == SPL_OK) return SPL_OK;
    return spl_fail(r->err, b->status,
                    b->status == SPL_E_NOMEM ? "no memory to render the conversation"
                                             : "the rendered conversation is too long or its JSON nests too deep");
}

static bool add_placeholder(spl_chat_placeholder **list, size_t *n, size_t *capacity, spl_chat_placeholder item) {
    if (*n == *capacity) {
        size_t grown = *capacity ? *capacity * 2 : 8;
        spl_chat_placeholder *p = realloc(*list, grown * sizeof *p);
        if (!p) return false;
        *list = p;
        *capacity = grown;
    }
    (*list)[(*n)++] = item;
    return true;
}

/* ---- content ---- */

/* An image or video marker. Only the final pass counts them. */
static spl_status render_marker(renderer *r, size_t message, size_t item, bool video, bool count) {
    unsigned *counter = video ? &r->n_videos : &r->n_images;
    if (count) (*counter)++;
    if (r->options->add_vision_id) (void)spl_buf_printf(&r->content, "%s %u: ", video ? "Video" : "Picture", *counter);
    (void)spl_buf_puts(&r->content, "<|vision_start|>");
    spl_chat_placeholder mark = {r->content.n_bytes, (uint32_t)message, (uint32_t)item, video};
    (void)spl_buf_puts(&r->content, video ? "<|video_pad|>" : "<|image_pad|>");
    (void)spl_buf_puts(&r->content, "<|vision_end|>");
    if (!add_placeholder(&r->marks, &r->n_marks, &r->mark_capacity, mark)) r->content.status = SPL_E_NOMEM;
    return buffer_status(r, &r->content);
}

static bool type_is(const json_t *item, const char *type) {
    const char *text = json_string_value(json_object_get(item, "type"));
    return text && strcmp(text, type) == 0;
}

static spl_status render_item(renderer *r, size_t message, size_t index, const json_t *item, bool count, bool system) {
    if (!json_is_object(item)) return complain(r, message, "Unexpected item type in content.");
    if (json_object_get(item, "image") || json_object_get(item, "image_url") || type_is(item, "image")) {
        if (system) return complain(r, message, "System message cannot contain images.");
        return render_marker(r, message, index, false, count);
    }
    if (json_object_get(item, "video") || type_is(item, "video")) {
        if (system) return complain(r, message, "System message cannot contain videos.");
        return render_marker(r, message, index, true, count);
    }
    const json_t *text = json_object_get(item, "text");
    if (!text) return complain(r, message, "Unexpected item type in content.");
    if (!json_is_string(text)) return complain(r, message, "The text of a content item must be a string.");
    (void)spl_buf_append(&r->content, json_string_value(text), json_string_length(text));
    return SPL_OK;
}

/* Renders and trims the content of a message; *out points into r->content until the next call. */
static spl_status render_content(renderer *r, size_t message, bool count, bool system, span *out) {
    const json_t *content = json_object_get(json_array_get(r->messages, message), "content");
    spl_buf_reset(&r->content);
    r->n_marks = 0;
    spl_status st = SPL_OK;
    if (json_is_string(content)) {
        (void)spl_buf_append(&r->content, json_string_value(content), json_string_length(content));
    } else if (json_is_array(content)) {
        for (size_t i = 0; st == SPL_OK && i < json_array_size(content); i++)
            st = render_item(r, message, i, json_array_get(content, i), count, system);
    } else if (content && !json_is_null(content)) {
        st = complain(r, message, "Unexpected content type.");
    }
    if (st == SPL_OK) st = buffer_status(r, &r->content);
    if (st != SPL_OK) return st;
    *out = (span){r->content.data ? r->content.data : "", r->content.n_bytes};
    spl_unicode_strip(&out->p, &out->n);
    return SPL_OK;
}

/* Appends a span of r->content and takes the placeholders in it along. */
static void emit_span(renderer *r, span s) {
    for (size_t i = 0; i < r->n_marks; i++) {
        /* As numbers: the span may lie in another object, a reasoning field. */
        uintptr_t at = (uintptr_t)r->content.data + r->marks[i].offset;
        if (at < (uintptr_t)s.p || at - (uintptr_t)s.p >= s.n) continue;
        spl_chat_placeholder mark = r->marks[i];
        mark.offset = r->out->text.n_bytes + (size_t)(at - (uintptr_t)s.p);
        if (!add_placeholder(&r->out->placeholders, &r->out->n_placeholders, &r->out->placeholder_capacity, mark))
            r->out->text.status = SPL_E_NOMEM;
    }
    (void)spl_buf_append(&r->out->text, s.p, s.n);
}

static void emit(renderer *r, const char *text) { (void)spl_buf_puts(&r->out->text, text); }

/* ---- system block ---- */

static bool role_is(const json_t *message, const char *role) {
    const char *text = json_string_value(json_object_get(message, "role"));
    return text && strcmp(text, role) == 0;
}

/* The sentence that Qwen3.8 puts in front of the system text; "" for none. */
static spl_status effort_instruction(renderer *r, const char **out) {
    *out = "";
    if (r->kind != SPL_CHAT_QWEN3_8) return SPL_OK;
    if (r->options->enable_thinking != SPL_UNSET && r->options->enable_thinking != SPL_TRUE) return SPL_OK;
    const char *effort = r->options->reasoning_effort ? r->options->reasoning_effort : "xhigh";
    if (strcmp(effort, "xhigh") == 0)
        *out = effort_xhigh;
    else if (strcmp(effort, "low") == 0)
        *out = effort_low;
    else if (strcmp(effort, "medium") != 0)
        return spl_fail(r->err, SPL_E_INVALID,
                        "Unexpected reasoning effort %.64s. Supported types are xhigh (default), medium, and low.",
                        effort);
    return SPL_OK;
}

static spl_status render_tools(renderer *r, const json_t *tools, const char *instruction) {
    emit(r, "<|im_start|>system\n");
    if (*instruction) {
        emit(r, instruction);
        emit(r, "\n\n");
    }
    emit(r, tools_head);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        emit(r, "\n");
        (void)spl_python_json(&r->out->text, json_array_get(tools, i));
    }
    emit(r, tools_tail);
    return buffer_status(r, &r->out->text);
}

static spl_status render_system(renderer *r, const json_t *tools) {
    const char *instruction;
    spl_status st = effort_instruction(r, &instruction);
    bool has_tools = json_array_size(tools) > 0;
    bool has_system = role_is(json_array_get(r->messages, 0), "system");
    span content = {"", 0};
    if (st == SPL_OK && has_tools) st = render_tools(r, tools, instruction);
    if (st == SPL_OK && has_system) st = render_content(r, 0, false, true, &content);
    if (st != SPL_OK) return st;
    if (has_tools) {
        if (content.n) emit(r, "\n\n");
        emit_span(r, content);
        emit(r, "<|im_end|>\n");
        return SPL_OK;
    }
    /* The older templates print an empty system turn; Qwen3.8 leaves it out. */
    bool print = content.n || *instruction || (has_system && r->kind != SPL_CHAT_QWEN3_8);
    if (!print) return SPL_OK;
    emit(r, "<|im_start|>system\n");
    emit(r, instruction);
    if (*instruction && content.n) emit(r, "\n\n");
    emit_span(r, content);
    emit(r, "<|im_end|>\n");
    return SPL_OK;
}

/* ---- messages ---- */

static bool starts_with(span s, const char *text) {
    size_t n = strlen(text);
    return s.n >= n && memcmp(s.p, text, n) == 0;
}

static bool ends_with(span s, const char *text) {
    size_t n = strlen(text);
    return s.n >= n && memcmp(s.p + s.n - n, text, n) == 0;
}

/* Index of the last user message that is not a wrapped tool result. */
static spl_status find_last_query(renderer *r, size_t *out) {
    for (size_t i = json_array_size(r->messages); i-- > 0;) {
        if (!role_is(json_array_get(r->messages, i), "user")) continue;
        span content;
        spl_status st = render_content(r, i, false, false, &content);
        if (st != SPL_OK) return st;
        if (starts_with(content, "<tool_response>") && ends_with(content, "</tool_response>")) continue;
        *out = i;
        return SPL_OK;
    }
    return spl_fail(r->err, SPL_E_INVALID, "No user query found in messages.");
}

/* First or last occurrence of `text` in s, or NULL. */
static const char *find_text(span s, const char *text, bool last) {
    size_t n = strlen(text);
    const char *found = NULL;
    for (size_t i = 0; i + n <= s.n; i++) {
        if (memcmp(s.p + i, text, n) != 0) continue;
        found = s.p + i;
        if (!last) break;
        i += n - 1;
    }
    return found;
}

static span skip_newlines(span s) {
    while (s.n && s.p[0] == '\n') s = (span){s.p + 1, s.n - 1};
    return s;
}

/* Qwen3.5 and 3.6: takes a think block written in the content apart. */
static void split_reasoning(span *content, span *reasoning) {
    const char *first = find_text(*content, "</think>", false);
    if (!first) return;
    const char *last = find_text(*content, "</think>", true) + strlen("</think>");
    span before = {content->p, (size_t)(first - content->p)};
    while (before.n && before.p[before.n - 1] == '\n') before.n--;
    const char *open = find_text(before, "<think>", true);
    if (open) {
        open += strlen("<think>");
        before = (span){open, (size_t)(before.p + before.n - open)};
    }
    *reasoning = skip_newlines(before);
    *content = skip_newlines((span){last, (size_t)(content->p + content->n - last)});
}

static spl_status render_argument(renderer *r, const char *name, const json_t *value) {
    emit(r, "<parameter=");
    emit(r, name);
    emit(r, ">\n");
    bool nested = json_is_object(value) || json_is_array(value);
    if (json_is_string(value) || (r->kind == SPL_CHAT_QWEN3_5 && !nested))
        (void)spl_python_str(&r->out->text, value);
    else
        (void)spl_python_json(&r->out->text, value);
    emit(r, "\n</parameter>\n");
    return buffer_status(r, &r->out->text);
}

static spl_status render_call(renderer *r, size_t message, const json_t *call, const char *before) {
    const json_t *function = json_object_get(call, "function");
    if (function) call = function;
    const json_t *name = json_object_get(call, "name");
    if (!json_is_string(name)) return complain(r, message, "A tool call must have a name.");
    emit(r, before);
    emit(r, "<tool_call>\n<function=");
    (void)spl_buf_append(&r->out->text, json_string_value(name), json_string_length(name));
    emit(r, ">\n");
    const json_t *arguments = json_object_get(call, "arguments");
    bool skip =
        !arguments || (r->kind == SPL_CHAT_QWEN3_8 && json_is_string(arguments) && json_string_length(arguments) == 0);
    if (!skip && !json_is_object(arguments)) return complain(r, message, "Tool call arguments must be an object.");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)(skip ? NULL : arguments), key, value) {
        spl_status st = render_argument(r, key, value);
        if (st != SPL_OK) return st;
    }
    emit(r, "</function>\n</tool_call>");
    return SPL_OK;
}

static bool keeps_reasoning(const renderer *r, size_t message, size_t last_query) {
    if (message > last_query) return true;
    spl_tristate preserve = r->options->preserve_thinking;
    if (r->kind == SPL_CHAT_QWEN3_5) return false;
    return preserve == SPL_TRUE || (r->kind == SPL_CHAT_QWEN3_8 && preserve == SPL_UNSET);
}

static spl_status render_assistant(renderer *r, size_t index, span content, size_t last_query) {
    const json_t *message = json_array_get(r->messages, index);
    const json_t *field = json_object_get(message, "reasoning_content");
    span reasoning = {"", 0};
    if (json_is_string(field))
        reasoning = (span){json_string_value(field), json_string_length(field)};
    else if (r->kind != SPL_CHAT_QWEN3_8)
        split_reasoning(&content, &reasoning);
    spl_unicode_strip(&reasoning.p, &reasoning.n);
    emit(r, "<|im_start|>assistant\n");
    if (keeps_reasoning(r, index, last_query)) {
        emit(r, "<think>\n");
        emit_span(r, reasoning);
        emit(r, "\n</think>\n\n");
    }
    emit_span(r, content);
    const json_t *calls = json_object_get(message, "tool_calls");
    if (json_string_length(calls)) return complain(r, index, "'tool_calls' must be an array.");
    spl_unicode_strip(&content.p, &content.n);
    for (size_t i = 0; i < json_array_size(calls); i++) {
        spl_status st = render_call(r, index, json_array_get(calls, i), i ? "\n" : content.n ? "\n\n" : "");
        if (st != SPL_OK) return st;
    }
    emit(r, "<|im_end|>\n");
    return SPL_OK;
}

static void render_tool_result(renderer *r, size_t index, span content) {
    bool first = index && !role_is(json_array_get(r->messages, index - 1), "tool");
    bool last = index + 1 == json_array_size(r->messages) || !role_is(json_array_get(r->messages, index + 1), "tool");
    if (first) emit(r, "<|im_start|>user");
    emit(r, "\n<tool_response>\n");
    emit_span(r, content);
    emit(r, "\n</tool_response>");
    if (last) emit(r, "<|im_end|>\n");
}

static spl_status render_message(renderer *r, size_t index, size_t last_query) {
    const json_t *message = json_array_get(r->messages, index);
    span content;
    spl_status st = render_content(r, index, true, false, &content);
    if (st != SPL_OK) return st;
    if (role_is(message, "system")) {
        if (index && !r->options->later_system) return complain(r, index, "System message must be at the beginning.");
        if (index) {
            emit(r, "<|im_start|>system\n");
            emit_span(r, content);
            emit(r, "<|im_end|>\n");
        }
    } else if (role_is(message, "user")) {
        emit(r, "<|im_start|>user\n");
        emit_span(r, content);
        emit(r, "<|im_end|>\n");
    } else if (role_is(message, "assistant")) {
        st = render_assistant(r, index, content, last_query);
    } else if (role_is(message, "tool")) {
        render_tool_result(r, index, content);
    } else {
        return complain(r, index, "Unexpected message role.");
    }
    return st == SPL_OK ? buffer_status(r, &r->out->text) : st;
}

spl_status spl_chat_template_render(spl_chat_kind kind, const json_t *messages, const json_t *tools,
                                    const spl_chat_options *options, spl_chat_rendering *out, spl_error *err) {
    renderer r = {.kind = kind, .options = options, .messages = messages, .out = out, .err = err};
    spl_buf_reset(&out->text);
    out->n_placeholders = 0;
    spl_buf_init(&r.content, SPL_CHAT_MAX_BYTES);
    if (json_array_size(messages) == 0) return spl_fail(err, SPL_E_INVALID, "No messages provided.");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (!json_is_object(json_array_get(messages, i))) return complain(&r, i, "A message must be an object.");
    }
    size_t last_query = 0;
    spl_status st = render_system(&r, tools);
    if (st == SPL_OK) st = find_last_query(&r, &last_query);
    for (size_t i = 0; st == SPL_OK && i < json_array_size(messages); i++) st = render_message(&r, i, last_query);
    if (st == SPL_OK && options->add_generation_prompt)
        emit(&r, options->enable_thinking == SPL_FALSE ? "<|im_start|>assistant\n<think>\n\n</think>\n\n"
                                                       : "<|im_start|>assistant\n<think>\n");
    if (st == SPL_OK) st = buffer_status(&r, &out->text);
    spl_buf_free(&r.content);
    free(r.marks);
    return st;
}
