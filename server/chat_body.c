/* SPDX-License-Identifier: Apache-2.0
 * Chat request validation and normalisation: roles, content parts, tool calls of earlier turns, tool declarations,
 * reasoning options. Leading system messages merge; later ones stay where they are (moving them would change the
 * shared prefix). */
#include "server/chat_body.h"

#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/dynbuf.h"

static bool no_memory(spl_reject *r) {
    return spl_reject_set(r, 503, "frontend_overloaded", "not enough memory to read the messages");
}

/* ---- content ------------------------------------------------------------------------------- */

/* A string, or text parts joined without separator. *out is a new reference; NULL content gives "" when allowed. */
static bool read_text(json_t **out, const json_t *content, bool null_ok, size_t i_message, spl_reject *r) {
    *out = NULL;
    if (!content || json_is_null(content)) {
        if (!null_ok)
            return spl_reject_field(r, "'messages[%zu].content' must be a string or a list of parts", i_message);
        *out = json_string("");
        return *out ? true : no_memory(r);
    }
    if (json_is_string(content)) {
        *out = json_stringn(json_string_value(content), json_string_length(content));
        return *out ? true : no_memory(r);
    }
    if (!json_is_array(content))
        return spl_reject_field(r, "'messages[%zu].content' must be a string or a list of parts", i_message);
    spl_buf text;
    spl_buf_init(&text, SIZE_MAX / 2);
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *words = json_object_get(part, "text");
        if (!json_is_object(part) || !type)
            ok = spl_reject_field(r, "'messages[%zu].content[%zu]' must be an object with a 'type'", i_message, i);
        else if (strcmp(type, "image_url") == 0 || strcmp(type, "file") == 0 || strcmp(type, "input_image") == 0)
            ok = spl_reject_field(r, "'messages[%zu].content[%zu]': this model is served for text only", i_message, i);
        else if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 && strcmp(type, "output_text") != 0)
            ok = spl_reject_field(r, "'messages[%zu].content[%zu]' has unsupported type '%.40s'", i_message, i, type);
        else if (!json_is_string(words))
            ok = spl_reject_field(r, "'messages[%zu].content[%zu].text' must be a string", i_message, i);
        else
            (void)spl_buf_append(&text, json_string_value(words), json_string_length(words));
    }
    if (ok) {
        *out = text.status == SPL_OK ? json_stringn(text.data ? text.data : "", text.n_bytes) : NULL;
        if (!*out) ok = no_memory(r);
    }
    spl_buf_free(&text);
    return ok;
}

/* ---- tool calls of earlier turns ----------------------------------------------------------- */

/* Arguments as an object: as given, from a JSON string, {} from a blank one. *cut is set (and *out NULL) when the
 * string is the beginning of an object that the token limit cut off. */
static bool read_arguments(json_t **out, bool *cut, const json_t *given, size_t i_message, size_t i_call,
                           spl_reject *r) {
    json_error_t error;
    *out = NULL;
    *cut = false;
    if (json_is_object(given)) {
        *out = json_deep_copy(given);
        return *out ? true : no_memory(r);
    }
    if (!given || json_is_null(given)) {
        *out = json_object();
        return *out ? true : no_memory(r);
    }
    if (json_is_string(given)) {
        const char *text = json_string_value(given);
        size_t n = json_string_length(given);
        if (strspn(text, " \t\r\n") == n) {
            *out = json_object();
            return *out ? true : no_memory(r);
        }
        json_t *value = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
        if (json_is_object(value)) {
            /* Integers stay integers unless one is out of range. */
            json_t *exact = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
            *out = exact ? exact : value;
            if (exact) json_decref(value);
            return true;
        }
        bool prefix = !value && json_error_code(&error) == json_error_premature_end_of_input &&
                      text[strspn(text, " \t\r\n")] == '{';
        json_decref(value);
        if (prefix) {
            *cut = true;
            return true;
        }
    }
    return spl_reject_field(r, "'messages[%zu].tool_calls[%zu].function.arguments' must be a JSON object", i_message,
                            i_call);
}

/* Adds a cut-off call to the text of the turn, labelled, so that the conversation can continue. */
static bool append_cut_call(json_t *message, const char *name, const json_t *arguments) {
    spl_buf text;
    spl_buf_init(&text, SIZE_MAX / 2);
    const json_t *content = json_object_get(message, "content");
    (void)spl_buf_append(&text, json_string_value(content), json_string_length(content));
    if (text.n_bytes) (void)spl_buf_puts(&text, "\n\n");
    (void)spl_buf_printf(&text,
                         "[Incomplete tool call, cut off by the token limit] {\"name\":\"%s\",\"arguments\":", name);
    (void)spl_buf_append(&text, json_string_value(arguments), json_string_length(arguments));
    bool ok =
        text.status == SPL_OK && json_object_set_new(message, "content", json_stringn(text.data, text.n_bytes)) == 0;
    spl_buf_free(&text);
    return ok;
}

static bool read_call(json_t *message, json_t *calls, const json_t *call, size_t i_message, size_t i_call,
                      spl_reject *r) {
    const json_t *function = json_object_get(call, "function");
    const json_t *name = json_object_get(function, "name");
    const json_t *id = spl_field(call, "id");
    json_t *arguments;
    bool cut;
    if (!json_is_object(call) || !json_is_object(function) || !spl_is_c_string(name))
        return spl_reject_field(r, "'messages[%zu].tool_calls[%zu]' must have a function with a name", i_message,
                                i_call);
    if (id && !json_is_string(id))
        return spl_reject_field(r, "'messages[%zu].tool_calls[%zu].id' must be a string", i_message, i_call);
    if (!read_arguments(&arguments, &cut, json_object_get(function, "arguments"), i_message, i_call, r)) return false;
    if (cut)
        return append_cut_call(message, json_string_value(name), json_object_get(function, "arguments")) ? true
                                                                                                         : no_memory(r);
    json_t *copy = json_pack("{s:s,s:{s:O,s:o}}", "type", "function", "function", "name", name, "arguments", arguments);
    if (copy && id) (void)json_object_set(copy, "id", (json_t *)(uintptr_t)id);
    return json_array_append_new(calls, copy) == 0 ? true : no_memory(r);
}

static bool read_calls(json_t *message, const json_t *given, size_t i_message, spl_reject *r) {
    if (!json_is_array(given)) return spl_reject_field(r, "'messages[%zu].tool_calls' must be an array", i_message);
    json_t *calls = json_array();
    if (!calls) return no_memory(r);
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(given); i++)
        ok = read_call(message, calls, json_array_get(given, i), i_message, i, r);
    if (ok && json_array_size(calls) > 0) ok = json_object_set(message, "tool_calls", calls) == 0 ? true : no_memory(r);
    json_decref(calls);
    return ok;
}

/* ---- messages ------------------------------------------------------------------------------ */

static bool read_message(json_t **out, const json_t *given, size_t i, spl_reject *r) {
    const char *role = json_string_value(json_object_get(given, "role"));
    json_t *text;
    *out = NULL;
    if (!json_is_object(given)) return spl_reject_field(r, "'messages[%zu]' must be an object", i);
    if (!role) return spl_reject_field(r, "'messages[%zu].role' must be a string", i);
    if (strcmp(role, "developer") == 0) role = "system";
    bool assistant = strcmp(role, "assistant") == 0, tool = strcmp(role, "tool") == 0;
    bool system = strcmp(role, "system") == 0;
    if (!assistant && !tool && !system && strcmp(role, "user") != 0)
        return spl_reject_field(
            r, "'messages[%zu].role' must be system, developer, user, assistant or tool, not '%.40s'", i, role);
    if (!read_text(&text, json_object_get(given, "content"), assistant || system, i, r)) return false;
    json_t *message = json_pack("{s:s,s:o}", "role", role, "content", text);
    if (!message) return no_memory(r);
    bool ok = true;
    const json_t *reasoning = spl_field(given, "reasoning_content"), *calls = spl_field(given, "tool_calls");
    const json_t *id = spl_field(given, "tool_call_id");
    if (assistant && reasoning) {
        if (!json_is_string(reasoning))
            ok = spl_reject_field(r, "'messages[%zu].reasoning_content' must be a string", i);
        else if (json_object_set(message, "reasoning_content", (json_t *)(uintptr_t)reasoning) != 0)
            ok = no_memory(r);
    }
    if (ok && assistant && calls) ok = read_calls(message, calls, i, r);
    if (ok && tool && id) {
        if (!json_is_string(id))
            ok = spl_reject_field(r, "'messages[%zu].tool_call_id' must be a string", i);
        else if (json_object_set(message, "tool_call_id", (json_t *)(uintptr_t)id) != 0)
            ok = no_memory(r);
    }
    if (ok)
        *out = message;
    else
        json_decref(message);
    return ok;
}

/* Appends `more` to the first (system) message of `list`, a blank line between; empty texts add nothing. */
static bool merge_system(json_t *list, const json_t *more) {
    json_t *first = json_array_get(list, 0);
    const json_t *a = json_object_get(first, "content"), *b = json_object_get(more, "content");
    if (json_string_length(b) == 0) return true;
    if (json_string_length(a) == 0) return json_object_set(first, "content", (json_t *)(uintptr_t)b) == 0;
    spl_buf text;
    spl_buf_init(&text, SIZE_MAX / 2);
    (void)spl_buf_append(&text, json_string_value(a), json_string_length(a));
    (void)spl_buf_puts(&text, "\n\n");
    (void)spl_buf_append(&text, json_string_value(b), json_string_length(b));
    bool ok =
        text.status == SPL_OK && json_object_set_new(first, "content", json_stringn(text.data, text.n_bytes)) == 0;
    spl_buf_free(&text);
    return ok;
}

static bool read_messages(json_t **out, const json_t *body, spl_reject *r) {
    const json_t *given = json_object_get(body, "messages");
    *out = NULL;
    if (!json_is_array(given) || json_array_size(given) == 0)
        return spl_reject_field(r, "'messages' must be a non-empty array of objects");
    json_t *list = json_array(), *message;
    bool ok = list ? true : no_memory(r), leading = true, user = false;
    for (size_t i = 0; ok && i < json_array_size(given); i++) {
        ok = read_message(&message, json_array_get(given, i), i, r);
        if (!ok) break;
        const char *role = json_string_value(json_object_get(message, "role"));
        if (strcmp(role, "system") != 0) leading = false;
        if (strcmp(role, "user") == 0) user = true;
        if (leading && json_array_size(list) > 0) {
            ok = merge_system(list, message) ? true : no_memory(r);
            json_decref(message);
        } else if (json_array_append_new(list, message) != 0) {
            ok = no_memory(r);
        }
    }
    /* A system turn that came out empty is no turn at all. */
    if (ok && json_array_size(list) > 0) {
        const json_t *first = json_array_get(list, 0);
        if (strcmp(json_string_value(json_object_get(first, "role")), "system") == 0 &&
            json_string_length(json_object_get(first, "content")) == 0)
            (void)json_array_remove(list, 0);
    }
    if (ok && !user) ok = spl_reject_field(r, "'messages' needs at least one message of role user");
    if (ok)
        *out = list;
    else
        json_decref(list);
    return ok;
}

/* ---- tools --------------------------------------------------------------------------------- */

static bool is_tool_name(const json_t *name) {
    const char *s = json_string_value(name);
    size_t n = json_string_length(name);
    if (!s || n == 0 || n > SPL_MAX_TOOL_NAME) return false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-'))
            return false;
    }
    return true;
}

/* Depth and reference form of a JSON schema; recursion is bounded by the body's nesting limit. */
static bool check_schema(const json_t *schema, int depth, const char *tool, spl_reject *r) {
    static const char *const refs[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    const char *key;
    json_t *item;
    size_t i;
    if (depth > SPL_MAX_SCHEMA_DEPTH)
        return spl_reject_field(r, "tool '%s': 'parameters' nests deeper than %d levels", tool, SPL_MAX_SCHEMA_DEPTH);
    if (json_is_object(schema)) {
        for (i = 0; i < SPL_COUNT(refs); i++) {
            const json_t *ref = json_object_get(schema, refs[i]);
            if (ref && json_is_string(ref) && json_string_value(ref)[0] != '#')
                return spl_reject_field(r, "tool '%s': '%s' must be a string that starts with #", tool, refs[i]);
        }
        json_object_foreach((json_t *)(uintptr_t)schema, key, item) {
            if (!check_schema(item, depth + 1, tool, r)) return false;
        }
    } else if (json_is_array(schema)) {
        json_array_foreach(schema, i, item) {
            if (!check_schema(item, depth + 1, tool, r)) return false;
        }
    }
    return true;
}

static bool read_tool(json_t *names, const json_t *tool, size_t i, spl_reject *r) {
    const char *type = json_string_value(json_object_get(tool, "type"));
    const json_t *function = json_object_get(tool, "function"), *name = json_object_get(function, "name");
    if (!json_is_object(tool)) return spl_reject_field(r, "'tools[%zu]' must be an object", i);
    if (!type || strcmp(type, "function") != 0) return spl_reject_field(r, "'tools[%zu].type' must be \"function\"", i);
    if (!json_is_object(function)) return spl_reject_field(r, "'tools[%zu].function' must be an object", i);
    if (!is_tool_name(name))
        return spl_reject_field(r, "'tools[%zu].function.name' must be 1 to %d characters A-Z a-z 0-9 _ -", i,
                                SPL_MAX_TOOL_NAME);
    const char *s = json_string_value(name);
    if (json_object_get(names, s)) return spl_reject_field(r, "'tools[%zu]': the name '%s' is used twice", i, s);
    if (json_object_set_new(names, s, json_true()) != 0) return no_memory(r);
    const json_t *description = spl_field(function, "description"), *parameters = spl_field(function, "parameters");
    const json_t *strict = spl_field(function, "strict");
    if (description && !json_is_string(description))
        return spl_reject_field(r, "tool '%s': 'description' must be a string", s);
    if (parameters && !json_is_object(parameters) && !json_is_boolean(parameters))
        return spl_reject_field(r, "tool '%s': 'parameters' must be an object", s);
    if (strict && !json_is_boolean(strict)) return spl_reject_field(r, "tool '%s': 'strict' must be true or false", s);
    if (json_is_true(strict))
        return spl_reject_field(
            r, "tool '%s': 'strict': true needs constrained decoding, which this build does not have", s);
    return check_schema(parameters, 0, s, r);
}

static bool read_tool_choice(spl_chat_body *out, const json_t *body, const json_t *names, spl_reject *r) {
    const json_t *choice = spl_field(body, "tool_choice");
    const char *word = json_string_value(choice);
    out->tools_callable = out->tools != NULL;
    if (!choice || (word && strcmp(word, "auto") == 0)) return true;
    if (word && strcmp(word, "none") == 0) {
        out->tools_callable = false;
        return true;
    }
    const char *type = json_string_value(json_object_get(choice, "type"));
    const char *name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
    bool named = json_is_object(choice) && type && strcmp(type, "function") == 0 && name;
    if (!named && !(word && strcmp(word, "required") == 0))
        return spl_reject_field(
            r, "'tool_choice' must be auto, none, required or {\"type\":\"function\",\"function\":{\"name\":...}}");
    if (!out->tools) return spl_reject_field(r, "'tool_choice' needs 'tools'");
    if (named && !json_object_get(names, name))
        return spl_reject_field(r, "'tool_choice' names '%.80s', which is not in 'tools'", name);
    return spl_reject_field(
        r, "'tool_choice' %s needs constrained decoding, which this build does not have; use auto or none",
        named ? "with a function" : "\"required\"");
}

static bool read_tools(spl_chat_body *out, const json_t *body, spl_reject *r) {
    json_t *tools = spl_field(body, "tools");
    out->parallel_calls = true;
    if (!spl_field_bool(body, "parallel_tool_calls", &out->parallel_calls, r)) return false;
    if (tools && !json_is_array(tools)) return spl_reject_field(r, "'tools' must be an array");
    json_t *names = json_object();
    if (!names) return no_memory(r);
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(tools); i++) ok = read_tool(names, json_array_get(tools, i), i, r);
    if (ok && json_array_size(tools) > 0) {
        if (json_object_set(out->render, "tools", tools) != 0) ok = no_memory(r);
        out->tools = tools;
    }
    if (ok) ok = read_tool_choice(out, body, names, r);
    json_decref(names);
    return ok;
}

/* ---- reasoning and template variables ------------------------------------------------------ */

static const char *const EFFORTS[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};

static bool is_effort(const char *effort) {
    for (size_t i = 0; i < SPL_COUNT(EFFORTS); i++)
        if (strcmp(effort, EFFORTS[i]) == 0) return true;
    return false;
}

const char *spl_coarser_effort(const char *effort) {
    if (strcmp(effort, "high") == 0 || strcmp(effort, "max") == 0) return "xhigh";
    return strcmp(effort, "minimal") == 0 ? "low" : NULL;
}

static bool read_template_kwargs(spl_chat_body *out, const json_t *body, spl_reject *r) {
    static const char *const reserved[] = {"add_generation_prompt", "chat_template", "continue_final_message",
                                           "conversation",          "documents",     "messages",
                                           "return_dict",           "tokenize",      "tools"};
    json_t *kwargs = spl_field(body, "chat_template_kwargs"), *value;
    const char *key;
    if (!kwargs) return true;
    if (!json_is_object(kwargs)) return spl_reject_field(r, "'chat_template_kwargs' must be an object");
    for (size_t i = 0; i < SPL_COUNT(reserved); i++)
        if (json_object_get(kwargs, reserved[i]))
            return spl_reject_field(r, "'chat_template_kwargs' may not set '%s'", reserved[i]);
    const json_t *thinking = spl_field(kwargs, "enable_thinking");
    if (thinking && !json_is_boolean(thinking))
        return spl_reject_field(r, "'chat_template_kwargs.enable_thinking' must be true, false or null");
    const json_t *preserve = spl_field(kwargs, "preserve_thinking");
    if (preserve && !json_is_boolean(preserve))
        return spl_reject_field(r, "'chat_template_kwargs.preserve_thinking' must be true, false or null");
    const json_t *effort = spl_field(kwargs, "reasoning_effort");
    if (effort && !json_is_string(effort))
        return spl_reject_field(r, "'chat_template_kwargs.reasoning_effort' must be a string");
    json_object_foreach(kwargs, key, value) {
        if (!json_is_null(value) && json_object_set(out->render, key, value) != 0) return no_memory(r);
    }
    return true;
}

static bool read_reasoning(spl_chat_body *out, const json_t *body, const char *default_effort, spl_reject *r) {
    const char *effort = default_effort;
    bool preserve = false;
    if (!spl_field_string(body, "reasoning_effort", &effort, r) ||
        !spl_field_bool(body, "preserve_thinking", &preserve, r))
        return false;
    if (effort && !is_effort(effort))
        return spl_reject_field(r, "'reasoning_effort' must be none, minimal, low, medium, high, xhigh or max");
    if (effort) {
        bool on = strcmp(effort, "none") != 0;
        if (json_object_set_new(out->render, "enable_thinking", json_boolean(on)) != 0) return no_memory(r);
        if (on && json_object_set_new(out->render, "reasoning_effort", json_string(effort)) != 0) return no_memory(r);
        out->effort_given = on;
    }
    if (spl_field(body, "preserve_thinking") &&
        json_object_set_new(out->render, "preserve_thinking", json_boolean(preserve)) != 0)
        return no_memory(r);
    return true;
}

static bool read_response_format(const json_t *body, spl_reject *r) {
    const json_t *format = spl_field(body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!format || (type && strcmp(type, "text") == 0)) return true;
    if (type && (strcmp(type, "json_object") == 0 || strcmp(type, "json_schema") == 0))
        return spl_reject_field(r, "'response_format' %s needs constrained decoding, which this build does not have",
                                type);
    return spl_reject_field(r, "'response_format' must be an object with type text, json_object or json_schema");
}

bool spl_chat_body_read(spl_chat_body *out, const json_t *body, const char *default_effort, spl_reject *r) {
    json_t *messages;
    bool generation_prompt = true;
    *out = (spl_chat_body){0};
    if (!read_messages(&messages, body, r)) return false;
    out->render = json_pack("{s:o}", "messages", messages);
    if (!out->render) return no_memory(r);
    bool ok = read_response_format(body, r) && spl_field_bool(body, "add_generation_prompt", &generation_prompt, r) &&
              read_tools(out, body, r) && read_reasoning(out, body, default_effort, r) &&
              read_template_kwargs(out, body, r);
    if (ok && json_object_set_new(out->render, "add_generation_prompt", json_boolean(generation_prompt)) != 0)
        ok = no_memory(r);
    if (!ok) spl_chat_body_free(out);
    return ok;
}

void spl_chat_body_free(spl_chat_body *chat) {
    json_decref(chat->render);
    *chat = (spl_chat_body){0};
}
