/* SPDX-License-Identifier: Apache-2.0
 * splash explain: the JSON of splash_explain, as it is or as text. The text is made from the JSON alone, so it cannot
 * say anything else. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "cli/model_arg.h"

static const spl_command_help HELP = {
    "splash explain [options]",
    "Geometry, bytes a decode step reads, the roof they imply, the memory plan, the kernels chosen."};

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* 16730000000 -> "16,730,000,000". */
static void group_digits(long long value, char *out, size_t n_out) {
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%lld", value < 0 ? -value : value);
    size_t w = 0;
    if (value < 0 && w + 1 < n_out) out[w++] = '-';
    for (int i = 0; i < n && w + 2 < n_out; i++) {
        out[w++] = digits[i];
        if ((n - i - 1) % 3 == 0 && i + 1 < n) out[w++] = ',';
    }
    out[w] = 0;
}

static void print_scalar(const char *key, const json_t *value) {
    char text[64];
    if (json_is_integer(value)) {
        json_int_t n = json_integer_value(value);
        group_digits((long long)n, text, sizeof text);
        if (ends_with(key, "bytes") && n >= 1000000)
            (void)printf("%s (%.3f GB)\n", text, (double)n * 1e-9);
        else
            (void)puts(text);
    } else if (json_is_real(value)) {
        double v = json_real_value(value);
        if (ends_with(key, "_share"))
            (void)printf("%.2f %%\n", v * 100);
        else
            (void)printf("%.*f\n", fabs(v) < 10 ? 4 : 2, v);
    } else if (json_is_string(value)) {
        (void)puts(json_string_value(value));
    } else {
        (void)puts(json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "-");
    }
}

/* Arrays of flat objects are tables, one line per object. */
static void print_row(const json_t *row) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)row, key, value) {
        if (json_is_string(value))
            (void)printf(" %-22s", json_string_value(value));
        else if (json_is_integer(value))
            (void)printf(" %s=%lld", key, (long long)json_integer_value(value));
        else if (json_is_real(value))
            (void)printf(" %s=%.4g", key, json_real_value(value));
        else if (json_is_boolean(value))
            (void)printf(" %s=%s", key, json_is_true(value) ? "yes" : "no");
    }
    (void)putchar('\n');
}

static void print_object(const json_t *object, int indent) {
    const char *key;
    json_t *value, *item;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        char label[64];
        (void)snprintf(label, sizeof label, "%s", key);
        for (char *p = label; *p; p++)
            if (*p == '_') *p = ' ';
        if (json_is_object(value)) {
            (void)printf("%*s%s\n", indent, "", label);
            print_object(value, indent + 2);
        } else if (json_is_array(value)) {
            (void)printf("%*s%s\n", indent, "", label);
            json_array_foreach(value, i, item) {
                (void)printf("%*s", indent + 1, "");
                if (json_is_object(item)) {
                    print_row(item);
                } else {
                    (void)putchar(' ');
                    print_scalar(key, item);
                }
            }
        } else {
            int width = 34 - indent;
            (void)printf("%*s%-*s ", indent, "", width > 1 ? width : 1, label);
            print_scalar(key, value);
        }
    }
}

static int print_text(const char *json) {
    spl_error err;
    json_t *root;
    if (spl_json_parse(&root, json, strlen(json), SIZE_MAX, "the explanation", &err) != SPL_OK) {
        (void)fprintf(stderr, "splash: %s\n", err.text);
        return SPL_EXIT_FAILURE;
    }
    print_object(root, 0);
    json_decref(root);
    return SPL_EXIT_OK;
}

/* A folder or the default goes through the usual resolution; anything else is taken as a geometry id. */
static spl_status find_model(const char *given, char **out, spl_error *err) {
    spl_model_options options = {.model = given};
    if (!given || splash_folder_kind_of(given) != SPLASH_FOLDER_OTHER) return spl_model_resolve(&options, out, err);
    *out = strdup(given);
    return *out ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for a path");
}

int spl_cmd_explain(int argc, char **argv) {
    splash_explain_options o = {0};
    const char *model = NULL;
    char *path = NULL, *text = NULL;
    bool json = false;
    splash_error error = {0};
    spl_error err = {0};
    const spl_option rows[] = {
        {"model", 'm', SPL_OPT_STRING, &model, "M", "package or checkpoint folder, or a geometry id (default: nano)",
         NULL},
        {"json", 0, SPL_OPT_FLAG, &json, NULL, "one JSON object", NULL},
        {"bandwidth", 0, SPL_OPT_NUMBER, &o.bandwidth_gbs, "GBS", "memory bandwidth in GB/s: gives the roof", NULL},
        {"tau", 0, SPL_OPT_NUMBER, &o.tau, "T", "tokens accepted per step, 1 to 8", NULL},
        {"tokens-per-second", 0, SPL_OPT_NUMBER, &o.tokens_per_second, "R", "with --tau: bandwidth this rate needs",
         NULL},
        {"lanes", 0, SPL_OPT_U32, &o.lanes, "N", "requests decoding together, 1 to 4", NULL},
        {"context", 0, SPL_OPT_U32, &o.context_tokens, "TOKENS", "context the step attends over", NULL},
        {"ops", 0, SPL_OPT_FLAG, &o.op_list, NULL, "every op of the step with its bytes", NULL},
        {0}};
    int code = spl_parse_args(argc, argv, &HELP, rows, NULL, NULL, 0, NULL);
    if (code >= 0) return code;
    if (find_model(model, &path, &err) != SPL_OK) {
        (void)fprintf(stderr, "splash: %s\n", err.text);
        return SPL_EXIT_FAILURE;
    }
    o.model = path;
    if (splash_explain(&o, &text, &error) != SPLASH_OK) {
        (void)fprintf(stderr, "splash: %s\n", error.text);
        code = SPL_EXIT_FAILURE;
    } else if (json) {
        (void)puts(text);
        code = SPL_EXIT_OK;
    } else {
        code = print_text(text);
    }
    free(text);
    free(path);
    return code;
}
