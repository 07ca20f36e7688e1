/* SPDX-License-Identifier: Apache-2.0
 * Messages to Chat. What cannot be honoured is refused with its name; cache_control, metadata, betas and other fields
 * nobody acts on are ignored. */
#include "server/messages_body.h"

#include <stdlib.h>
#include <string.h>

#include "base/dynbuf.h"

static bool no_memory(spl_reject *r) {
    return spl_reject_set(r, 503, "frontend_overloaded", "not enough memory to read the messages");
}

static const char *type_of(const json_t *block) {
    const char *type = json_string_value(json_object_get(block, "type"));
    return type ? type : "";
}

static void put(spl_buf *out, const json_t *string) {
    (void)spl_buf_append(out, json_string_value(string), json_string_length(string));
}

/* Agents put a per-request nonce into such a block; keeping it would spoil every shared prefix. */
static bool is_billing(const json_t *text) {
    static const char mark[] = "x-anthropic-billing-header";
    const char *s = json_string_value(text);
    return s && strncmp(s, mark, sizeof mark - 1) == 0;
}

/* A string or text blocks, concatenated. */
static bool read_system(spl_buf *out, const json_t *system, const char *where, spl_reject *r) {
    if (!system || json_is_null(system)) return true;
    if (json_is_string(system)) {
        if (!is_billing(system)) put(out, system);
        return true;
    }
    if (!json_is_array(system)) return spl_reject_field(r, "'%s' must be a string or text blocks", where);
    for (size_t i = 0; i < json_array_size(system); i++) {
        const json_t *block = json_array_get(system, i), *text = json_object_get(block, "text");
        if (strcmp(type_of(block), "text") != 0 || !json_is_string(text))
            return spl_reject_field(r, "'%s[%zu]' must be a text block", where, i);
        if (!is_billing(text)) put(out, text);
    }
    return true;
}

static bool append_message(json_t *list, const char *role, const spl_buf *text, json_t *extra_key_value,
                           const char *key, spl_reject *r) {
    json_t *content = text->status == SPL_OK ? json_stringn(text->data ? text->data : "", text->n_bytes) : NULL;
    json_t *message = json_pack("{s:s,s:o}", "role", role, "content", content);
    if (message && extra_key_value && json_object_set(message, key, extra_key_value) != 0) {
        json_decref(message);
        message = NULL;
    }
    return json_array_append_new(list, message) == 0 ? true : no_memory(r);
}

/* ---- user messages ------------------------------------------------------------------------- */

static bool refuse_block(const char *type, size_t i, spl_reject *r) {
    if (strcmp(type, "image") == 0 || strcmp(type, "document") == 0)
        return spl_reject_field(r, "'messages[%zu]': this model is served for text only, not for '%s' blocks", i, type);
    return spl_reject_field(r, "'messages[%zu]' has a block of unsupported type '%.60s'", i, type);
}

static bool read_result_text(spl_buf *out, const json_t *content, size_t i, spl_reject *r) {
    if (!content || json_is_null(content)) return true;
    if (json_is_string(content)) {
        put(out, content);
        return true;
    }
    if (!json_is_array(content))
        return spl_reject_field(r, "'messages[%zu]': the content of a tool_result must be a string or blocks", i);
    for (size_t k = 0; k < json_array_size(content); k++) {
        const json_t *block = json_array_get(content, k), *text = json_object_get(block, "text");
        const json_t *name = json_object_get(block, "tool_name");
        if (strcmp(type_of(block), "text") == 0 && json_is_string(text))
            put(out, text);
        else if (strcmp(type_of(block), "tool_reference") == 0 && spl_is_c_string(name))
            (void)spl_buf_printf(out, "Tool %s is available.\n", json_string_value(name));
        else
            return refuse_block(type_of(block), i, r);
    }
    return true;
}

static bool read_tool_result(json_t *list, const json_t *block, size_t i, spl_reject *r) {
    json_t *id = json_object_get(block, "tool_use_id");
    bool failed = false;
    spl_buf text;
    if (!json_is_string(id)) return spl_reject_field(r, "'messages[%zu]': a tool_result needs a 'tool_use_id'", i);
    if (!spl_field_bool(block, "is_error", &failed, r)) return false;
    spl_buf_init(&text, SIZE_MAX / 2);
    if (failed) (void)spl_buf_puts(&text, "The tool failed.\n");
    bool ok = read_result_text(&text, json_object_get(block, "content"), i, r) &&
              append_message(list, "tool", &text, id, "tool_call_id", r);
    spl_buf_free(&text);
    return ok;
}

/* Tool results come first, as messages of their own; the rest is one user message. */
static bool read_user(json_t *list, const json_t *content, size_t i, spl_reject *r) {
    spl_buf text;
    bool ok = true, any_text = json_is_string(content);
    spl_buf_init(&text, SIZE_MAX / 2);
    if (any_text)
        put(&text, content);
    else if (!json_is_array(content))
        ok = spl_reject_field(r, "'messages[%zu].content' must be a string or blocks", i);
    for (size_t k = 0; ok && json_is_array(content) && k < json_array_size(content); k++) {
        const json_t *block = json_array_get(content, k), *words = json_object_get(block, "text");
        if (strcmp(type_of(block), "tool_result") == 0) {
            ok = read_tool_result(list, block, i, r);
        } else if (strcmp(type_of(block), "text") == 0 && json_is_string(words)) {
            put(&text, words);
            any_text = true;
        } else {
            ok = refuse_block(type_of(block), i, r);
        }
    }
    if (ok && any_text) ok = append_message(list, "user", &text, NULL, NULL, r);
    spl_buf_free(&text);
    return ok;
}

/* ---- assistant messages -------------------------------------------------------------------- */

static bool read_tool_use(json_t *calls, const json_t *block, size_t i, spl_reject *r) {
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
           *input = json_object_get(block, "input");
    if (!json_is_string(id) || !spl_is_c_string(name) || !json_is_object(input))
        return spl_reject_field(r, "'messages[%zu]': a tool_use needs 'id', 'name' and an object 'input'", i);
    json_t *call =
        json_pack("{s:O,s:s,s:{s:O,s:O}}", "id", id, "type", "function", "function", "name", name, "arguments", input);
    return json_array_append_new(calls, call) == 0 ? true : no_memory(r);
}

static bool read_assistant_block(spl_buf *text, spl_buf *thinking, json_t *calls, const json_t *block, size_t i,
                                 spl_reject *r) {
    const char *type = type_of(block);
    const json_t *words = json_object_get(block, "text"), *thought = json_object_get(block, "thinking");
    if (strcmp(type, "text") == 0 && json_is_string(words)) {
        put(text, words);
        return true;
    }
    if (strcmp(type, "thinking") == 0 && json_is_string(thought)) {
        put(thinking, thought);
        return true;
    }
    if (strcmp(type, "redacted_thinking") == 0) return true;
    if (strcmp(type, "tool_use") == 0) return read_tool_use(calls, block, i, r);
    return refuse_block(type, i, r);
}

static bool read_assistant(json_t *list, const json_t *content, size_t i, spl_reject *r) {
    spl_buf text, thinking;
    bool ok = true;
    json_t *calls = json_array();
    spl_buf_init(&text, SIZE_MAX / 2);
    spl_buf_init(&thinking, SIZE_MAX / 2);
    if (json_is_string(content))
        put(&text, content);
    else if (!json_is_array(content))
        ok = spl_reject_field(r, "'messages[%zu].content' must be a string or blocks", i);
    for (size_t k = 0; ok && json_is_array(content) && k < json_array_size(content); k++)
        ok = read_assistant_block(&text, &thinking, calls, json_array_get(content, k), i, r);
    if (ok) ok = append_message(list, "assistant", &text, json_array_size(calls) ? calls : NULL, "tool_calls", r);
    if (ok && thinking.n_bytes) {
        json_t *message = json_array_get(list, json_array_size(list) - 1);
        ok = thinking.status == SPL_OK &&
             json_object_set_new(message, "reasoning_content", json_stringn(thinking.data, thinking.n_bytes)) == 0;
        if (!ok) ok = no_memory(r);
    }
    json_decref(calls);
    spl_buf_free(&text);
    spl_buf_free(&thinking);
    return ok;
}

/* ---- messages ------------------------------------------------------------------------------ */

static bool read_system_message(json_t *list, const json_t *content, const char *where, spl_reject *r) {
    spl_buf text;
    spl_buf_init(&text, SIZE_MAX / 2);
    bool ok = read_system(&text, content, where, r);
    if (ok && text.n_bytes) ok = append_message(list, "system", &text, NULL, NULL, r);
    spl_buf_free(&text);
    return ok;
}

static bool read_messages(json_t *chat, const json_t *body, bool counting, spl_reject *r) {
    const json_t *given = json_object_get(body, "messages");
    const char *role = NULL;
    json_t *list = json_array();
    if (!list || json_object_set_new(chat, "messages", list) != 0) return no_memory(r);
    if (!json_is_array(given) || json_array_size(given) == 0)
        return spl_reject_field(r, "'messages' must be a non-empty array of objects");
    if (!read_system_message(list, json_object_get(body, "system"), "system", r)) return false;
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *message = json_array_get(given, i), *content = json_object_get(message, "content");
        role = json_string_value(json_object_get(message, "role"));
        bool ok;
        if (!role)
            ok = spl_reject_field(r, "'messages[%zu]' must be an object with a 'role'", i);
        else if (strcmp(role, "user") == 0)
            ok = read_user(list, content, i, r);
        else if (strcmp(role, "assistant") == 0)
            ok = read_assistant(list, content, i, r);
        else if (strcmp(role, "system") == 0)
            ok = read_system_message(list, content, "messages[].content", r);
        else
            ok = spl_reject_field(r, "'messages[%zu].role' must be user, assistant or system, not '%.40s'", i, role);
        if (!ok) return false;
    }
    if (!counting && strcmp(role, "assistant") == 0)
        return spl_reject_field(
            r, "the last of 'messages' is the assistant's: continuing a given answer is not supported");
    return true;
}

/* ---- tools --------------------------------------------------------------------------------- */

static bool read_tools(json_t *chat, const json_t *body, spl_reject *r) {
    const json_t *given = spl_field(body, "tools");
    if (!given) return true;
    if (!json_is_array(given)) return spl_reject_field(r, "'tools' must be an array");
    json_t *list = json_array();
    if (!list || json_object_set_new(chat, "tools", list) != 0) return no_memory(r);
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *tool = json_array_get(given, i), *type = spl_field(tool, "type");
        if (!json_is_object(tool)) return spl_reject_field(r, "'tools[%zu]' must be an object", i);
        if (type && strcmp(json_string_value(type) ? json_string_value(type) : "", "custom") != 0)
            return spl_reject_field(r, "'tools[%zu]': only custom tools are supported, not '%.60s'", i,
                                    json_string_value(type) ? json_string_value(type) : "?");
        json_t *schema = spl_field(tool, "input_schema"), *description = spl_field(tool, "description");
        json_t *strict = spl_field(tool, "strict"), *name = json_object_get(tool, "name");
        if (!json_is_string(name)) return spl_reject_field(r, "'tools[%zu].name' must be a string", i);
        json_t *function = json_pack("{s:O}", "name", name);
        if (function && description) (void)json_object_set(function, "description", description);
        if (function && schema) (void)json_object_set(function, "parameters", schema);
        if (function && !schema) (void)json_object_set_new(function, "parameters", json_object());
        if (function && strict) (void)json_object_set(function, "strict", strict);
        if (json_array_append_new(list, json_pack("{s:s,s:o}", "type", "function", "function", function)) != 0)
            return no_memory(r);
    }
    return true;
}

static bool read_tool_choice(json_t *chat, const json_t *body, spl_reject *r) {
    const json_t *choice = spl_field(body, "tool_choice");
    const char *type = type_of(choice);
    bool single = false;
    json_t *out = NULL;
    if (!choice) return true;
    if (!spl_field_bool(choice, "disable_parallel_tool_use", &single, r)) return false;
    if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0)
        out = json_string(type);
    else if (strcmp(type, "any") == 0)
        out = json_string("required");
    else if (strcmp(type, "tool") == 0 && json_is_string(json_object_get(choice, "name")))
        out = json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", json_object_get(choice, "name"));
    else
        return spl_reject_field(r, "'tool_choice' must have type auto, any, none or tool (with a name)");
    if (json_object_set_new(chat, "tool_choice", out) != 0) return no_memory(r);
    if (single && json_object_set_new(chat, "parallel_tool_calls", json_false()) != 0) return no_memory(r);
    return true;
}

/* ---- reasoning and the rest ---------------------------------------------------------------- */

static bool read_effort(const json_t *body, const char **effort, spl_reject *r) {
    static const char *const efforts[] = {"low", "medium", "high", "xhigh", "max"};
    const json_t *config = spl_field(body, "output_config");
    const json_t *format = spl_field(config, "format");
    *effort = "high";
    if (config && !json_is_object(config)) return spl_reject_field(r, "'output_config' must be an object");
    if (format || spl_field(body, "output_format"))
        return spl_reject_field(r, "'output_config.format' needs constrained decoding, which this build does not have");
    if (!config || !spl_field_string(config, "effort", effort, r)) return config == NULL;
    for (size_t i = 0; i < SPL_COUNT(efforts); i++)
        if (strcmp(*effort, efforts[i]) == 0) return true;
    return spl_reject_field(r, "'output_config.effort' must be low, medium, high, xhigh or max");
}

static bool read_display(spl_messages_body *out, const json_t *thinking, bool on, spl_reject *r) {
    const char *display = NULL;
    if (!thinking || !spl_field_string(thinking, "display", &display, r)) return thinking == NULL;
    if (!display) return true;
    if (!on) return spl_reject_field(r, "'thinking.display' needs thinking");
    out->omit_thinking = strcmp(display, "omitted") == 0 || strcmp(display, "updates") == 0;
    return out->omit_thinking || strcmp(display, "summarized") == 0
               ? true
               : spl_reject_field(r, "'thinking.display' must be summarized, omitted or updates");
}

static bool read_thinking(spl_messages_body *out, const json_t *body, spl_reject *r) {
    const json_t *thinking = spl_field(body, "thinking");
    const char *effort, *type = type_of(thinking);
    bool on = strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0;
    if (thinking && !on && strcmp(type, "disabled") != 0)
        return spl_reject_field(r, "'thinking' must have type enabled, adaptive or disabled");
    if (!read_effort(body, &effort, r) || !read_display(out, thinking, on, r)) return false;
    if (json_object_set_new(out->chat, "reasoning_effort", json_string(on ? effort : "none")) != 0) return no_memory(r);
    return true;
}

static bool read_context_management(json_t *chat, const json_t *body, spl_reject *r) {
    const json_t *management = spl_field(body, "context_management"), *edits = spl_field(management, "edits");
    if (management && !json_is_object(management)) return spl_reject_field(r, "'context_management' must be an object");
    if (edits && !json_is_array(edits)) return spl_reject_field(r, "'context_management.edits' must be an array");
    for (size_t i = 0; i < json_array_size(edits); i++) {
        const json_t *edit = json_array_get(edits, i);
        const char *keep = json_string_value(json_object_get(edit, "keep"));
        if (strcmp(type_of(edit), "clear_thinking_20251015") != 0 || !keep || strcmp(keep, "all") != 0)
            return spl_reject_field(
                r, "'context_management.edits[%zu]': only clear_thinking_20251015 with keep \"all\" is supported", i);
        if (json_object_set_new(chat, "preserve_thinking", json_true()) != 0) return no_memory(r);
    }
    return true;
}

static bool read_required(spl_messages_body *out, const json_t *body, bool counting, spl_reject *r) {
    const json_t *model = json_object_get(body, "model");
    int64_t max_tokens = 0;
    if (!spl_is_c_string(model) || json_string_length(model) == 0)
        return spl_reject_field(r, "'model' is required and must be a string");
    if (!spl_field_int(body, "max_tokens", 1, INT64_MAX, &max_tokens, r)) return false;
    if (!counting && max_tokens == 0)
        return spl_reject_field(r, "'max_tokens' is required and must be an integer of at least 1");
    if (!counting && json_object_get(body, "stream") && !json_is_boolean(json_object_get(body, "stream")))
        return spl_reject_field(r, "'stream' must be true or false");
    out->max_tokens = max_tokens > UINT32_MAX ? UINT32_MAX : (uint32_t)max_tokens;
    return true;
}

bool spl_messages_body_read(spl_messages_body *out, const json_t *body, bool counting, spl_reject *r) {
    *out = (spl_messages_body){.chat = json_object()};
    if (!out->chat) return no_memory(r);
    bool ok = read_required(out, body, counting, r) && read_messages(out->chat, body, counting, r) &&
              read_tools(out->chat, body, r) && read_tool_choice(out->chat, body, r) && read_thinking(out, body, r) &&
              read_context_management(out->chat, body, r);
    if (!ok) spl_messages_body_free(out);
    return ok;
}

void spl_messages_body_free(spl_messages_body *m) {
    json_decref(m->chat);
    *m = (spl_messages_body){0};
}
