/* SPDX-License-Identifier: Apache-2.0
 * The route table. */
#include "server/routes.h"

#include <string.h>

#include "server/core.h"

static const spl_route ROUTES[] = {
    {"POST", "/v1/chat/completions", false, false, SPL_ROUTE_GENERATION, spl_route_chat},
    {"POST", "/v1/completions", false, false, SPL_ROUTE_GENERATION, spl_route_completions},
    {"POST", "/v1/messages", false, false, SPL_ROUTE_GENERATION, spl_route_messages},
    {"POST", "/v1/messages/count_tokens", false, false, SPL_ROUTE_PROMPT, spl_route_count_tokens},
    {"POST", "/tokenize", false, false, SPL_ROUTE_PROMPT, spl_route_tokenize},
    {"POST", "/detokenize", false, false, SPL_ROUTE_PROMPT, spl_route_detokenize},
    {"POST", "/apply-template", false, false, SPL_ROUTE_PROMPT, spl_route_apply_template},
    {"GET", "/v1/models", false, false, SPL_ROUTE_INLINE, spl_route_models},
    {"GET", "/v1/models/", true, false, SPL_ROUTE_INLINE, spl_route_model},
    {"GET", "/status", false, false, SPL_ROUTE_INLINE, spl_route_status},
    {"GET", "/metrics", false, false, SPL_ROUTE_INLINE, spl_route_metrics},
    {"GET", "/health", false, true, SPL_ROUTE_INLINE, spl_route_health},
    {"GET", "/ready", false, true, SPL_ROUTE_INLINE, spl_route_ready},
    {"GET", "/", false, true, SPL_ROUTE_INLINE, spl_route_index},
};

const spl_route *spl_route_find(const char *method, const char *path) {
    if (strcmp(method, "HEAD") == 0) method = "GET";
    for (size_t i = 0; i < SPL_COUNT(ROUTES); i++) {
        const spl_route *route = &ROUTES[i];
        size_t n = strlen(route->path);
        bool same = route->prefix ? strncmp(path, route->path, n) == 0 && path[n] : strcmp(path, route->path) == 0;
        if (same && strcmp(method, route->method) == 0) return route;
    }
    return NULL;
}

spl_dialect spl_dialect_of(const char *path) {
    static const char messages[] = "/v1/messages";
    size_t n = sizeof messages - 1;
    bool under = strncmp(path, messages, n) == 0 && (path[n] == 0 || path[n] == '/');
    return under ? SPL_DIALECT_ANTHROPIC : SPL_DIALECT_OPENAI;
}
