/* SPDX-License-Identifier: Apache-2.0
 * splash serve: takes the port, loads the model, serves until a signal. The first SIGINT or SIGTERM drains (new work is
 * refused, running replies finish, exit 0); the second ends at once with 130 or 143. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/model_arg.h"
#include "cli/signals.h"
#include "server/server.h"

static const spl_command_help HELP = {
    "splash serve [options]",
    "Serves a model over HTTP (OpenAI and Anthropic APIs, see docs/SERVING.md) on 127.0.0.1:8000.\n"
    "Without options it serves the model that comes with the program. Ctrl+C lets running replies finish;\n"
    "a second Ctrl+C ends at once. SPLASH_PORT and SPLASH_API_KEY set the defaults of --port and --api-key."};

enum { WANTED_DESCRIPTORS = 10240, DRAIN_POLL_MS = 20 };

typedef struct spl_serve_args {
    spl_model_options model;
    spl_server_options server;
    spl_string_list allowed_hosts, allowed_origins, aliases;
    uint32_t port, queue_size;
    uint64_t max_request_bytes;
    bool port_given;
} spl_serve_args;

static bool is_effort(const char *s) {
    static const char *const efforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    for (size_t i = 0; i < SPL_COUNT(efforts); i++)
        if (strcmp(s, efforts[i]) == 0) return true;
    return false;
}

static bool is_key(const char *s) {
    if (!*s) return false;
    for (; *s; s++)
        if (*s < '!' || *s > '~') return false;
    return true;
}

static bool is_alias(const char *s) {
    if (!*s || strpbrk(s, "\\%?# \t") || strstr(s, "//") || s[0] == '/') return false;
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f) return false;
    return true;
}

static int check(spl_serve_args *a) {
    const char *port = getenv("SPLASH_PORT");
    if (!a->port_given && port && *port) {
        char *end;
        unsigned long n = strtoul(port, &end, 10);
        if (*end || n > 65535) return spl_usage_error(&HELP, "SPLASH_PORT '%s' is not a port from 0 to 65535", port);
        a->port = (uint32_t)n;
    }
    if (a->port > 65535) return spl_usage_error(&HELP, "'%u' is not a port from 0 to 65535", a->port);
    if (!a->server.api_key) a->server.api_key = getenv("SPLASH_API_KEY");
    if (a->server.api_key && !is_key(a->server.api_key))
        return spl_usage_error(&HELP, "the API key must be visible ASCII characters without spaces");
    for (size_t i = 0; i < a->aliases.n; i++)
        if (!is_alias(a->aliases.items[i]))
            return spl_usage_error(&HELP, "'%s' is not a usable --served-model-name", a->aliases.items[i]);
    if (a->server.announce_alias && !a->aliases.n)
        return spl_usage_error(&HELP, "--announce-served-name needs --served-model-name");
    if (a->server.default_effort && !is_effort(a->server.default_effort))
        return spl_usage_error(&HELP, "'%s' is not a reasoning effort (none, minimal, low, medium, high, xhigh, max)",
                               a->server.default_effort);
    if (a->queue_size == 0 || a->queue_size > 4096) return spl_usage_error(&HELP, "--queue-size must be 1 to 4096");
    if (a->max_request_bytes == 0 || a->max_request_bytes > (uint64_t)1 << 40)
        return spl_usage_error(&HELP, "--max-request-size must be 1 byte to 1024 GiB");
    return -1;
}

static void finish_options(spl_serve_args *a) {
    spl_server_options *s = &a->server;
    s->port = (uint16_t)a->port;
    s->queue_size = a->queue_size;
    s->max_request_bytes = (size_t)a->max_request_bytes;
    s->allowed_hosts = a->allowed_hosts.items;
    s->n_allowed_hosts = a->allowed_hosts.n;
    s->allowed_origins = a->allowed_origins.items;
    s->n_allowed_origins = a->allowed_origins.n;
    s->aliases = a->aliases.items;
    s->n_aliases = a->aliases.n;
    for (size_t i = 0; i < s->n_allowed_origins; i++)
        if (strcmp(s->allowed_origins[i], "*") == 0 && !s->api_key)
            (void)fprintf(stderr, "Warning · --allowed-origin '*' without a key: any web page can use this server\n");
}

static void raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= WANTED_DESCRIPTORS) return;
    limit.rlim_cur = limit.rlim_max < WANTED_DESCRIPTORS ? limit.rlim_max : WANTED_DESCRIPTORS;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static void print_ready(const splash_engine *engine, const spl_server *server, const char *host) {
    splash_model_info info;
    char context[32];
    splash_model_info_get(engine, &info);
    if (info.context_tokens % 1024 == 0)
        (void)snprintf(context, sizeof context, "%uK", info.context_tokens / 1024);
    else
        (void)snprintf(context, sizeof context, "%u", info.context_tokens);
    bool v6 = strchr(host, ':') != NULL;
    (void)printf("Ready · %s · context %s · http://%s%s%s:%u\n", info.name, context, v6 ? "[" : "", host, v6 ? "]" : "",
                 spl_server_port(server));
    (void)fflush(stdout);
}

/* Until a signal; then until the work in flight is done or a second signal comes. Returns the exit code. */
static int serve_until_signal(spl_server *server) {
    int first = 0;
    while ((first = spl_signal_wait(-1)) == 0) continue;
    spl_signal_clear();
    (void)fprintf(stderr, "Stopping · running replies finish first; once more to stop at once\n");
    spl_server_drain(server);
    while (!spl_server_is_idle(server)) {
        int second = spl_signal_wait(DRAIN_POLL_MS);
        if (second) _exit(spl_signal_exit_code(second));
    }
    return SPL_EXIT_OK;
}

static int fail(const spl_error *err) {
    if (err->code == SPL_E_CANCELLED && spl_signal_pending()) return spl_signal_exit_code(spl_signal_pending());
    (void)fprintf(stderr, "Error · %s\n", err->text);
    return SPL_EXIT_FAILURE;
}

static int serve(const spl_serve_args *a) {
    spl_error err = {0};
    spl_server *server;
    splash_engine *engine = NULL;
    spl_signals_catch();
    raise_descriptor_limit();
    if (spl_server_bind(&server, &a->server, &err) != SPL_OK) return fail(&err);
    (void)fprintf(stderr, "Loading · %s\n", a->model.model ? a->model.model : "nano");
    int code;
    if (spl_model_open(&a->model, a->queue_size, &engine, &err) != SPL_OK ||
        spl_server_start(server, engine, &err) != SPL_OK) {
        code = fail(&err);
    } else {
        print_ready(engine, server, a->server.host ? a->server.host : "127.0.0.1");
        code = serve_until_signal(server);
    }
    spl_server_stop(&server);
    splash_close(&engine);
    return code;
}

int spl_cmd_serve(int argc, char **argv) {
    spl_serve_args a = {
        .port = SPL_DEFAULT_PORT, .queue_size = SPL_DEFAULT_QUEUE, .max_request_bytes = (uint64_t)128 << 20};
    const spl_option model_rows[] = {SPL_MODEL_OPTION_ROWS(&a.model), {0}};
    const spl_option rows[] = {
        {"host", 0, SPL_OPT_STRING, &a.server.host, "ADDRESS", "address to listen on (default 127.0.0.1)", NULL},
        {"port", 'p', SPL_OPT_U32, &a.port, "PORT", "port to listen on (default 8000; 0: any free one)", &a.port_given},
        {"api-key", 0, SPL_OPT_STRING, &a.server.api_key, "KEY", "require this key (better: SPLASH_API_KEY)", NULL},
        {"allowed-host", 0, SPL_OPT_LIST, &a.allowed_hosts, "NAME", "accept this Host header too; repeatable", NULL},
        {"allowed-origin", 0, SPL_OPT_LIST, &a.allowed_origins, "ORIGIN",
         "accept web pages of this origin, or '*'; repeatable", NULL},
        {"served-model-name", 0, SPL_OPT_LIST, &a.aliases, "NAME", "another name for the model; repeatable", NULL},
        {"announce-served-name", 0, SPL_OPT_FLAG, &a.server.announce_alias, NULL, "replies carry the first such name",
         NULL},
        {"default-reasoning-effort", 0, SPL_OPT_STRING, &a.server.default_effort, "EFFORT",
         "effort of requests that name none", NULL},
        {"max-request-size", 0, SPL_OPT_SIZE, &a.max_request_bytes, "SIZE", "largest request body (default 128M)",
         NULL},
        {"request-timeout", 0, SPL_OPT_DURATION, &a.server.request_timeout_s, "TIME",
         "longest time for a request (default: none)", NULL},
        {"queue-size", 0, SPL_OPT_U32, &a.queue_size, "N", "generations running and waiting (default 32)", NULL},
        {"quiet", 'q', SPL_OPT_FLAG, &a.server.quiet, NULL, "no line per request", NULL},
        {0}};
    int code = spl_parse_args(argc, argv, &HELP, rows, model_rows, NULL, 0, NULL);
    if (code < 0) code = check(&a);
    if (code >= 0) return code;
    finish_options(&a);
    return serve(&a);
}
