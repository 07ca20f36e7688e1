/* SPDX-License-Identifier: Apache-2.0
 * splash claude, splash opencode: asks the running server what it serves, then becomes the agent, configured by
 * environment only. Nothing of the user's own configuration is written. */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/dynbuf.h"
#include "base/json.h"
#include "cli/args.h"
#include "cli/commands.h"

enum { DEFAULT_PORT = 8000, TIMEOUT_S = 2, MAX_REPLY_BYTES = 1 << 20, MAX_ARGS = 256 };

typedef struct spl_launch {
    const char *tool, *key; /* key: "local" when the server has none */
    unsigned port;
    char url[64];
    char model[256];
    json_int_t context_tokens;
} spl_launch;

/* ---- discovery ----------------------------------------------------------------------------- */

static int complain(const char *what, const char *which, const char *remedy) {
    (void)fprintf(stderr, "splash: %s %s%s\n", what, which, remedy);
    return SPL_EXIT_FAILURE;
}

/* GET /v1/models by HTTP/1.0, so that the reply ends with the connection. */
static bool fetch_models(const spl_launch *l, spl_buf *reply) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)l->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {TIMEOUT_S, 0};
    char request[512], block[8192];
    int n = snprintf(request, sizeof request,
                     "GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %.300s\r\n\r\n", l->key);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return false;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    bool ok = connect(fd, (struct sockaddr *)&to, sizeof to) == 0 && send(fd, request, (size_t)n, 0) == n;
    while (ok) {
        ssize_t got = recv(fd, block, sizeof block, 0);
        if (got < 0) ok = false;
        if (got <= 0 || spl_buf_append(reply, block, (size_t)got) != SPL_OK) break;
    }
    (void)close(fd);
    return ok && reply->n_bytes > 12;
}

/* Fills model and context from the reply. Returns -1 to go on, otherwise the exit code. */
static int read_models(spl_launch *l, const spl_buf *reply) {
    spl_error err;
    json_t *root;
    if (strncmp(reply->data + 8, " 401", 4) == 0)
        return complain("a key is wanted by the server at", l->url, ": set SPLASH_API_KEY");
    const char *body = strstr(reply->data, "\r\n\r\n");
    if (!body || spl_json_parse(&root, body + 4, reply->n_bytes - (size_t)(body + 4 - reply->data), MAX_REPLY_BYTES,
                                "reply", &err) != SPL_OK)
        return complain("no splash server, but something else, listens at", l->url, "");
    const json_t *first = json_array_get(json_object_get(root, "data"), 0);
    const char *owner = json_string_value(json_object_get(first, "owned_by")),
               *id = json_string_value(json_object_get(first, "id"));
    const json_t *context = json_object_get(first, "context_length");
    bool ours = owner && id && strcmp(owner, "splash") == 0 && json_is_integer(context);
    if (ours) {
        (void)snprintf(l->model, sizeof l->model, "%s", id);
        l->context_tokens = json_integer_value(context);
    }
    json_decref(root);
    return ours ? -1 : complain("no splash server, but something else, listens at", l->url, "");
}

static int discover(spl_launch *l) {
    spl_buf reply;
    spl_buf_init(&reply, MAX_REPLY_BYTES);
    int code = fetch_models(l, &reply) ? read_models(l, &reply)
                                       : complain("no server answers at", l->url, ": start one with `splash serve`");
    spl_buf_free(&reply);
    return code;
}

/* ---- the agents ---------------------------------------------------------------------------- */

static void set(const char *name, const char *value) { (void)setenv(name, value, 1); }

static void set_number(const char *name, json_int_t value) {
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    set(name, text);
}

/* Fixed arguments go in front of the user's. */
static size_t prepare_claude(const spl_launch *l, const char **args, size_t n) {
    static const char *const models[] = {"ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL",
                                         "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL",
                                         "ANTHROPIC_SMALL_FAST_MODEL"};
    static const char *const off[] = {"CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY",
                                      "CLAUDE_CODE_ATTRIBUTION_HEADER"};
    set("ANTHROPIC_BASE_URL", l->url);
    set("ANTHROPIC_AUTH_TOKEN", l->key);
    (void)unsetenv("ANTHROPIC_API_KEY");
    for (size_t i = 0; i < SPL_COUNT(models); i++) set(models[i], l->model);
    for (size_t i = 0; i < SPL_COUNT(off); i++) set(off[i], "0");
    set_number("CLAUDE_CODE_MAX_CONTEXT_TOKENS", l->context_tokens);
    set_number("CLAUDE_CODE_AUTO_COMPACT_WINDOW", l->context_tokens);
    static const char *const fixed[] = {"--disallowedTools", "WebSearch", "--permission-mode", "default", "--model"};
    for (size_t i = 0; i < SPL_COUNT(fixed); i++) args[n++] = fixed[i];
    args[n++] = l->model;
    return n;
}

static json_t *opencode_config(const spl_launch *l) {
    json_int_t output = l->context_tokens / 4 < 32768 ? l->context_tokens / 4 : 32768;
    char base[80], model[300];
    (void)snprintf(base, sizeof base, "%s/v1", l->url);
    (void)snprintf(model, sizeof model, "splash/%s", l->model);
    json_t *entry = json_pack("{s:s,s:b,s:b,s:{s:I,s:I}}", "name", l->model, "reasoning", 1, "tool_call", 1, "limit",
                              "context", l->context_tokens, "output", output);
    json_t *models = json_object();
    (void)json_object_set_new(models, l->model, entry);
    return json_pack("{s:{s:{s:s,s:s,s:{s:s,s:s},s:o}},s:s,s:s}", "provider", "splash", "npm",
                     "@ai-sdk/openai-compatible", "name", "Splash", "options", "baseURL", base, "apiKey", l->key,
                     "models", models, "model", model, "small_model", model);
}

/* The variable's own content, if there is one, stays underneath ours. */
static bool prepare_opencode(const spl_launch *l) {
    const char *given = getenv("OPENCODE_CONFIG_CONTENT");
    json_t *config = given && *given ? json_loads(given, 0, NULL) : json_object();
    json_t *ours = opencode_config(l);
    bool ok = json_is_object(config) && ours && json_object_update_recursive(config, ours) == 0;
    char *text = ok ? json_dumps(config, JSON_COMPACT) : NULL;
    if (text) set("OPENCODE_CONFIG_CONTENT", text);
    ok = text != NULL;
    free(text);
    json_decref(ours);
    json_decref(config);
    return ok;
}

static int become(const spl_launch *l, int argc, char **argv, int i_rest) {
    const char *args[MAX_ARGS + 16];
    size_t n = 0;
    args[n++] = l->tool;
    if (strcmp(l->tool, "claude") == 0)
        n = prepare_claude(l, args, n);
    else if (!prepare_opencode(l))
        return complain("OPENCODE_CONFIG_CONTENT", "is not a JSON object", "");
    for (int i = i_rest; i < argc && n < MAX_ARGS; i++) args[n++] = argv[i];
    args[n] = NULL;
    (void)execvp(l->tool, (char *const *)(uintptr_t)args);
    if (errno != ENOENT) return complain("cannot start", l->tool, "");
    return complain("not installed:", l->tool,
                    strcmp(l->tool, "claude") == 0 ? " (npm install -g @anthropic-ai/claude-code)"
                                                   : " (npm install -g opencode-ai)");
}

int spl_cmd_launch(int argc, char **argv) {
    static const spl_command_help help = {
        "splash claude|opencode [--port N] [the agent's own arguments]",
        "Starts the agent on the server that runs on this machine. SPLASH_PORT and SPLASH_API_KEY are read."};
    const char *key = getenv("SPLASH_API_KEY"), *port = getenv("SPLASH_PORT");
    spl_launch l = {.tool = argv[0], .key = key && *key ? key : "local", .port = DEFAULT_PORT};
    int i_rest = 1;
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        (void)printf("usage: %s\n\n%s\n", help.usage, help.about);
        return SPL_EXIT_OK;
    }
    if (argc > 1 && strcmp(argv[1], "--port") == 0) {
        if (argc < 3) return spl_usage_error(&help, "--port needs a value: N");
        port = argv[2];
        i_rest = 3;
    }
    if (port && *port) {
        char *end;
        unsigned long n = strtoul(port, &end, 10);
        if (*end || n == 0 || n > 65535) return spl_usage_error(&help, "'%s' is not a port from 1 to 65535", port);
        l.port = (unsigned)n;
    }
    (void)snprintf(l.url, sizeof l.url, "http://127.0.0.1:%u", l.port);
    int code = discover(&l);
    return code >= 0 ? code : become(&l, argc, argv, i_rest);
}
