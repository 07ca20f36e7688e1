/* SPDX-License-Identifier: Apache-2.0
 * Chat templates: the renderings that the rules' description lists, the stored Jinja2 renderings
 * (tests/golden/chat; run from the repository's root), and places of images. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/python_json.h"

#define XHIGH                                                                                                          \
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "   \
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer."
#define ON "<|im_start|>assistant\n<think>\n"
#define HI "<|im_start|>user\nhi<|im_end|>\n"
#define TURNS(middle) HI "<|im_start|>assistant\n" middle "a<|im_end|>\n" HI ON

static spl_tristate tristate(const json_t *options, const char *key) {
    const json_t *v = json_object_get(options, key);
    return !v ? SPL_UNSET : json_is_true(v) ? SPL_TRUE : json_is_null(v) ? SPL_NULL : SPL_FALSE;
}

static spl_chat_options read_options(const json_t *o) {
    return (spl_chat_options){.enable_thinking = tristate(o, "enable_thinking"),
                              .preserve_thinking = tristate(o, "preserve_thinking"),
                              .reasoning_effort = json_string_value(json_object_get(o, "reasoning_effort")),
                              .add_vision_id = json_is_true(json_object_get(o, "add_vision_id")),
                              .add_generation_prompt = json_is_true(json_object_get(o, "add_generation_prompt"))};
}

static void test_described_renderings(void **state) {
    (void)state;
    static const char turns[] =
        "[{'role':'user','content':'hi'},{'role':'assistant','content':'a','reasoning_content':'r'},"
        "{'role':'user','content':'hi'}]";
    static const char calls[] =
        "[{'role':'user','content':'hi'},{'role':'assistant','reasoning_content':'r','tool_calls':["
        "{'type':'function','function':{'name':'f','arguments':{'a':'x','b':1,'c':true,'d':null,'e':[1,'y']}}},"
        "{'name':'g','arguments':{}}]},{'role':'tool','content':'out'},{'role':'tool','content':'out'}]";
    static const struct {
        const char *messages, *options, *text;
    } cases[] = {
        {"[{'role':'user','content':'hi'}]", "{}", "<|im_start|>system\n" XHIGH "<|im_end|>\n" HI ON},
        {"[{'role':'user','content':'hi'}]", "{'reasoning_effort':'medium'}", HI ON},
        {"[{'role':'user','content':'hi'}]", "{'enable_thinking':false}",
         HI "<|im_start|>assistant\n<think>\n\n</think>\n\n"},
        {"[{'role':'user','content':'hi'}]", "{'enable_thinking':null}", HI ON},
        {turns, "{'reasoning_effort':'medium'}", TURNS("<think>\nr\n</think>\n\n")},
        {turns, "{'reasoning_effort':'medium','preserve_thinking':false}", TURNS("")},
        {turns, "{'reasoning_effort':'medium','preserve_thinking':null}", TURNS("")},
        {"[{'role':'user','content':[{'type':'image'},{'type':'text','text':'what'}]}]",
         "{'reasoning_effort':'medium'}",
         "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>what<|im_end|>\n" ON},
        {calls, "{'reasoning_effort':'medium'}",
         HI
         "<|im_start|>assistant\n<think>\nr\n</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n"
         "<parameter=b>\n1\n</parameter>\n<parameter=c>\ntrue\n</parameter>\n<parameter=d>\nnull\n</parameter>\n"
         "<parameter=e>\n[1, \"y\"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n"
         "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nout\n</tool_response>\n<tool_response>\nout\n"
         "</tool_response><|im_end|>\n" ON},
    };
    for (size_t i = 0; i < SPL_COUNT(cases); i++) {
        char text[2][2000];
        json_t *value[2];
        for (int k = 0; k < 2; k++) {
            (void)snprintf(text[k], sizeof text[k], "%s", k ? cases[i].options : cases[i].messages);
            for (char *p = text[k]; *p; p++) {
                if (*p == '\'') *p = '"';
            }
            value[k] = json_loads(text[k], 0, NULL);
            assert_non_null(value[k]);
        }
        spl_error err;
        spl_chat_rendering r;
        spl_chat_options options = read_options(value[1]);
        options.add_generation_prompt = true;
        spl_chat_rendering_init(&r);
        if (spl_chat_template_render(SPL_CHAT_QWEN3_8, value[0], NULL, &options, &r, &err) != SPL_OK)
            fail_msg("%s", err.text);
        assert_string_equal(r.text.data, cases[i].text);
        assert_int_equal(spl_chat_opens_thinking(&options), options.enable_thinking != SPL_FALSE);
        spl_chat_rendering_free(&r);
        json_decref(value[0]);
        json_decref(value[1]);
    }
}

static void check_case(const json_t *item, spl_chat_rendering *r) {
    spl_error err = {0};
    spl_chat_kind kind;
    const char *name = json_string_value(json_object_get(item, "name"));
    const json_t *expect = json_object_get(item, "expect");
    const char *error = json_string_value(json_object_get(item, "error"));
    spl_chat_options options = read_options(json_object_get(item, "options"));
    assert_true(spl_chat_template_kind_from_name(json_string_value(json_object_get(item, "kind")), &kind));
    spl_status st = spl_chat_template_render(kind, json_object_get(item, "messages"), json_object_get(item, "tools"),
                                             &options, r, &err);
    if (error) {
        if (st != SPL_E_INVALID || !strstr(err.text, error)) fail_msg("%s: status %d, '%s'", name, (int)st, err.text);
        return;
    }
    if (st != SPL_OK) fail_msg("%s: %s", name, err.text);
    if (r->text.n_bytes != json_string_length(expect) ||
        (r->text.n_bytes && memcmp(r->text.data, json_string_value(expect), r->text.n_bytes) != 0))
        fail_msg("%s (%s): got\n%s\nexpected\n%s", name, json_string_value(json_object_get(item, "kind")), r->text.data,
                 json_string_value(expect));
}

static void test_stored_renderings(void **state) {
    (void)state;
    static const char *const files[] = {"tests/golden/chat/qwen3.5.json", "tests/golden/chat/qwen3.6.json",
                                        "tests/golden/chat/qwen3.8.json"};
    spl_chat_rendering r;
    spl_chat_rendering_init(&r);
    for (size_t f = 0; f < SPL_COUNT(files); f++) {
        spl_error err;
        json_t *cases;
        if (spl_json_read(&cases, files[f], (size_t)4 << 20, &err) != SPL_OK) fail_msg("%s", err.text);
        assert_true(json_array_size(cases) >= 180);
        for (size_t i = 0; i < json_array_size(cases); i++) check_case(json_array_get(cases, i), &r);
        json_decref(cases);
    }
    spl_chat_rendering_free(&r);
}

static void test_placeholders(void **state) {
    (void)state;
    json_t *messages = json_pack("[{s:s,s:[{s:s},{s:s},{s:s},{s:s}]},{s:s,s:[{s:s}]},{s:s,s:s}]", "role", "user",
                                 "content", "text", " \n<|image_pad|>", "type", "image", "text", "x", "video", "v",
                                 "role", "tool", "content", "image", "i", "role", "user", "content", "<|image_pad|>");
    assert_non_null(messages);
    spl_error err;
    spl_chat_rendering r;
    spl_chat_options options = {.add_vision_id = true};
    spl_chat_rendering_init(&r);
    assert_int_equal(spl_chat_template_render(SPL_CHAT_QWEN3_6, messages, NULL, &options, &r, &err), SPL_OK);
    assert_string_equal(r.text.data,
                        "<|im_start|>user\n<|image_pad|>Picture 1: <|vision_start|><|image_pad|><|vision_end|>x"
                        "Video 1: <|vision_start|><|video_pad|><|vision_end|><|im_end|>\n<|im_start|>user\n"
                        "<tool_response>\nPicture 2: <|vision_start|><|image_pad|><|vision_end|>\n"
                        "</tool_response><|im_end|>\n<|im_start|>user\n<|image_pad|><|im_end|>\n");
    static const struct {
        uint32_t message, item;
        bool video;
    } expected[] = {{0, 1, false}, {0, 3, true}, {1, 0, false}};
    assert_int_equal(r.n_placeholders, 3);
    for (size_t i = 0; i < 3; i++) {
        const spl_chat_placeholder *p = &r.placeholders[i];
        assert_int_equal(p->message, expected[i].message);
        assert_int_equal(p->item, expected[i].item);
        assert_true(p->video == expected[i].video);
        assert_memory_equal(r.text.data + p->offset, p->video ? "<|video_pad|>" : "<|image_pad|>", 13);
        assert_memory_equal(r.text.data + p->offset - 16, "<|vision_start|>", 16);
    }
    json_decref(messages);
    spl_chat_rendering_free(&r);
}

static void test_limits_and_names(void **state) {
    (void)state;
    spl_chat_kind kind;
    assert_true(spl_chat_template_kind_from_name("qwen3.8", &kind) && kind == SPL_CHAT_QWEN3_8);
    assert_false(spl_chat_template_kind_from_name("qwen3.7", &kind));
    assert_false(spl_chat_template_kind_from_name(NULL, &kind));
    /* A tool that nests deeper than any parsed text can. */
    json_t *deep = json_array();
    for (int i = 0; i < SPL_JSON_MAX_DEPTH + 10; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hi");
    json_t *tools = json_array();
    json_array_append_new(tools, deep);
    spl_error err;
    spl_chat_rendering r;
    spl_chat_options options = {0};
    spl_chat_rendering_init(&r);
    assert_int_equal(spl_chat_template_render(SPL_CHAT_QWEN3_8, messages, tools, &options, &r, &err), SPL_E_LIMIT);
    assert_int_equal(spl_chat_template_render(SPL_CHAT_QWEN3_8, messages, NULL, &options, &r, &err), SPL_OK);
    json_decref(messages);
    json_decref(tools);
    spl_chat_rendering_free(&r);
}

static void test_floats(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.0, "0.0"},
                 {-0.0, "-0.0"},
                 {1.0, "1.0"},
                 {0.1, "0.1"},
                 {1e15, "1000000000000000.0"},
                 {1e16, "1e+16"},
                 {1e-4, "0.0001"},
                 {1e-5, "1e-05"},
                 {5e-324, "5e-324"},
                 {1.7976931348623157e308, "1.7976931348623157e+308"},
                 {123456.789, "123456.789"},
                 {-2.5e-7, "-2.5e-07"},
                 {7.291122019556398e-304, "7.291122019556398e-304"},
                 {9007199254740993.0, "9007199254740992.0"},
                 {100.0, "100.0"},
                 {1e22, "1e+22"}};
    for (size_t i = 0; i < SPL_COUNT(cases); i++) {
        spl_buf out;
        spl_buf_init(&out, 100);
        assert_int_equal(spl_python_float(&out, cases[i].value), SPL_OK);
        assert_string_equal(out.data, cases[i].text);
        spl_buf_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_described_renderings),
        cmocka_unit_test(test_stored_renderings),
        cmocka_unit_test(test_placeholders),
        cmocka_unit_test(test_limits_and_names),
        cmocka_unit_test(test_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
