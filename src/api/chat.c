/* SPDX-License-Identifier: Apache-2.0
 * splash_render_chat: a chat request's JSON to the prompt text. Checks types here, so that the template sees only
 * what its rules know; turns tool-call arguments given as JSON text into objects. */
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/json.h"

enum { MAX_REQUEST_BYTES = 256 << 20 };

static spl_status tristate_member(const json_t *request, const char *key, spl_tristate *out, spl_error *err) {
    const json_t *value = json_object_get(request, key);
    *out = SPL_UNSET;
    if (!value) return SPL_OK;
    if (json_is_null(value)) {
        *out = SPL_NULL;
    } else if (json_is_boolean(value)) {
        *out = json_is_true(value) ? SPL_TRUE : SPL_FALSE;
    } else {
        return spl_fail(err, SPL_E_INVALID, "%s must be true, false or null", key);
    }
    return SPL_OK;
}

/* Replaces a JSON text by the object it holds; empty text stays as it is. */
static spl_status parse_arguments(json_t *function, size_t message, spl_error *err) {
    json_t *arguments = json_object_get(function, "arguments"), *parsed = NULL;
    if (!json_is_string(arguments) || json_string_length(arguments) == 0) return SPL_OK;
    spl_error inner;
    spl_status st = spl_json_parse(&parsed, json_string_value(arguments), json_string_length(arguments),
                                   MAX_REQUEST_BYTES, "the arguments of a tool call", &inner);
    if (st == SPL_OK && !json_is_object(parsed))
        st = spl_fail(&inner, SPL_E_FORMAT, "tool call arguments must be an object");
    if (st != SPL_OK) {
        json_decref(parsed);
        return spl_fail(err, SPL_E_INVALID, "messages[%zu]: %s", message, inner.text);
    }
    return json_object_set_new(function, "arguments", parsed) == 0 ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "a tool call");
}

static spl_status parse_all_arguments(json_t *messages, spl_error *err) {
    size_t i, j;
    json_t *message, *call;
    json_array_foreach(messages, i, message) {
        json_t *calls = json_object_get(message, "tool_calls");
        json_array_foreach(calls, j, call) {
            json_t *function = json_object_get(call, "function");
            spl_status st = parse_arguments(function ? function : call, i, err);
            if (st != SPL_OK) return st;
        }
    }
    return SPL_OK;
}

static spl_status read_options(spl_chat_options *o, const json_t *request, spl_error *err) {
    spl_tristate generation, vision_ids;
    memset(o, 0, sizeof *o);
    spl_status st = tristate_member(request, "enable_thinking", &o->enable_thinking, err);
    if (st == SPL_OK) st = tristate_member(request, "preserve_thinking", &o->preserve_thinking, err);
    if (st == SPL_OK) st = tristate_member(request, "add_generation_prompt", &generation, err);
    if (st == SPL_OK) st = tristate_member(request, "add_vision_id", &vision_ids, err);
    if (st != SPL_OK) return st;
    o->add_generation_prompt = generation != SPL_FALSE;
    o->add_vision_id = vision_ids == SPL_TRUE;
    o->later_system = true;
    const json_t *effort = json_object_get(request, "reasoning_effort");
    if (effort && !json_is_null(effort) && !json_is_string(effort))
        return spl_fail(err, SPL_E_INVALID, "reasoning_effort must be a string");
    o->reasoning_effort = json_string_value(effort);
    return SPL_OK;
}

static spl_status render(const splash_engine *e, json_t *request, spl_chat_rendering *out, bool *thinking,
                         spl_error *err) {
    spl_chat_options options;
    json_t *messages = json_object_get(request, "messages");
    const json_t *tools = json_object_get(request, "tools");
    if (!json_is_array(messages)) return spl_fail(err, SPL_E_INVALID, "messages must be an array");
    if (tools && !json_is_array(tools) && !json_is_null(tools))
        return spl_fail(err, SPL_E_INVALID, "tools must be an array");
    spl_status st = read_options(&options, request, err);
    if (st == SPL_OK) st = parse_all_arguments(messages, err);
    if (st == SPL_OK) st = spl_chat_template_render(e->chat_kind, messages, tools, &options, out, err);
    if (thinking) *thinking = options.add_generation_prompt && spl_chat_opens_thinking(&options);
    return st;
}

splash_status splash_render_chat(const splash_engine *e, const char *request_json, size_t n_json_bytes, char **text,
                                 size_t *n_bytes, bool *thinking, splash_error *err) {
    spl_error error = {0};
    json_t *request = NULL;
    spl_chat_rendering rendering;
    *text = NULL;
    spl_chat_rendering_init(&rendering);
    spl_status st = spl_json_parse(&request, request_json, n_json_bytes, MAX_REQUEST_BYTES, "the chat request", &error);
    if (st == SPL_OK && !json_is_object(request))
        st = spl_fail(&error, SPL_E_INVALID, "the chat request must be an object");
    if (st == SPL_OK) st = render(e, request, &rendering, thinking, &error);
    if (st == SPL_OK) {
        *text = spl_buf_take(&rendering.text, n_bytes);
        if (!*text) st = spl_fail(&error, SPL_E_NOMEM, "no memory for the rendered chat");
    }
    json_decref(request);
    spl_chat_rendering_free(&rendering);
    return st == SPL_OK ? SPLASH_OK : spl_api_error(err, &error);
}
