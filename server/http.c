/* SPDX-License-Identifier: Apache-2.0
 * Connections, by libmicrohttpd (0.9.75 and later, common API only): one epoll thread, connections suspended while
 * their reply is being made. Here: heads checked, bodies collected, replies delivered. A reply decided before the body
 * was read is sent after the body was read and dropped, so that the client sees it instead of a reset; with "Expect:
 * 100-continue" it is sent at once. */
#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "server/core.h"

enum {
    IDLE_SECONDS = 30,      /* a silent or blocked connection is closed */
    HEAD_BYTES = 80 * 1024, /* connection memory: request head and write buffer */
    UPLOAD_BYTES_PER_SECOND = 512 * 1024,
    STREAM_BLOCK_BYTES = 16 * 1024
};

#define METHODS "GET, HEAD, POST, DELETE, OPTIONS"

/* ---- headers ------------------------------------------------------------------------------- */

typedef struct spl_head {
    spl_access_headers access;
    const char *content_type, *content_length, *content_encoding, *transfer_encoding, *request_id, *expect;
    const char *preflight_method, *preflight_headers;
    unsigned n_content_type, n_content_length, n_content_encoding, n_transfer_encoding;
    char local_address[INET6_ADDRSTRLEN];
} spl_head;

static void note(const char **value, unsigned *n, const char *given) {
    if ((*n)++ == 0) *value = given;
}

static enum MHD_Result on_header(void *cls, enum MHD_ValueKind kind, const char *key, const char *value) {
    spl_head *h = cls;
    unsigned once = 0;
    (void)kind;
    if (!value) value = "";
    if (strcasecmp(key, "Host") == 0)
        note(&h->access.host, &h->access.n_host, value);
    else if (strcasecmp(key, "Origin") == 0)
        note(&h->access.origin, &h->access.n_origin, value);
    else if (strcasecmp(key, "Authorization") == 0)
        note(&h->access.authorization, &h->access.n_authorization, value);
    else if (strcasecmp(key, "x-api-key") == 0)
        note(&h->access.x_api_key, &h->access.n_x_api_key, value);
    else if (strcasecmp(key, "Content-Type") == 0)
        note(&h->content_type, &h->n_content_type, value);
    else if (strcasecmp(key, "Content-Length") == 0)
        note(&h->content_length, &h->n_content_length, value);
    else if (strcasecmp(key, "Content-Encoding") == 0)
        note(&h->content_encoding, &h->n_content_encoding, value);
    else if (strcasecmp(key, "Transfer-Encoding") == 0)
        note(&h->transfer_encoding, &h->n_transfer_encoding, value);
    else if (strcasecmp(key, "x-request-id") == 0 && !h->request_id)
        note(&h->request_id, &once, value);
    else if (strcasecmp(key, "Expect") == 0)
        note(&h->expect, &once, value);
    else if (strcasecmp(key, "Access-Control-Request-Method") == 0)
        note(&h->preflight_method, &once, value);
    else if (strcasecmp(key, "Access-Control-Request-Headers") == 0)
        note(&h->preflight_headers, &once, value);
    return MHD_YES;
}

static void read_local_address(int fd, spl_head *h) {
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    if (fd < 0 || getsockname(fd, (struct sockaddr *)&address, &n) != 0) return;
    const void *raw = NULL;
    struct in_addr v4;
    if (address.ss_family == AF_INET) {
        raw = &((const struct sockaddr_in *)&address)->sin_addr;
    } else if (address.ss_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&address)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(v6)) {
            memcpy(&v4, v6->s6_addr + 12, 4);
            raw = &v4;
            address.ss_family = AF_INET;
        } else {
            raw = v6;
        }
    }
    if (raw && inet_ntop(address.ss_family, raw, h->local_address, sizeof h->local_address))
        h->access.local_address = h->local_address;
}

/* ---- the head ------------------------------------------------------------------------------ */

static bool is_json_type(const char *type) {
    size_t n = strcspn(type, ";");
    while (n > 0 && (type[n - 1] == ' ' || type[n - 1] == '\t')) n--;
    if (n == 16 && strncasecmp(type, "application/json", n) == 0) return true;
    return n > 17 && strncasecmp(type, "application/", 12) == 0 && strncasecmp(type + n - 5, "+json", 5) == 0;
}

static bool check_framing(spl_exchange *x, const spl_head *h, spl_reject *r) {
    size_t max = x->server->options.max_request_bytes;
    if (h->n_content_encoding > 1 || (h->n_content_encoding && strcasecmp(h->content_encoding, "identity") != 0))
        return spl_reject_set(r, 415, SPL_CODE_INVALID,
                              "the request body must not be compressed (Content-Encoding: identity)");
    if (h->n_content_type != 1 || !is_json_type(h->content_type))
        return spl_reject_set(r, 415, SPL_CODE_INVALID, "Content-Type must be application/json");
    if (h->n_transfer_encoding) return true;
    if (h->n_content_length != 1) return spl_reject_field(r, "exactly one Content-Length header is required");
    uint64_t n = 0;
    for (const char *p = h->content_length; *p; p++) {
        if (*p < '0' || *p > '9') return spl_reject_field(r, "Content-Length must be digits only");
        n = n > UINT64_MAX / 16 ? n : n * 10 + (uint64_t)(*p - '0');
    }
    if (n == 0) return spl_reject_field(r, "the request body is empty");
    if (n > max)
        return spl_reject_set(r, 413, "request_too_large",
                              "the request body has %llu bytes; the limit is %zu (--max-request-size)",
                              (unsigned long long)n, max);
    x->content_length = (size_t)n;
    return true;
}

static bool check_server(const spl_exchange *x, spl_reject *r) {
    if (x->route->kind == SPL_ROUTE_GENERATION && atomic_load(&x->server->draining))
        return spl_reject_set(r, 503, "server_shutdown", "the server is shutting down");
    return true;
}

static bool check_head(spl_exchange *x, const spl_head *h, spl_reject *r) {
    static const char *const known[] = {"GET", "HEAD", "POST", "DELETE", "OPTIONS"};
    const char *cors;
    bool method_known = false;
    if (!spl_access_origin(&x->server->access, &h->access, &cors, r)) {
        if (h->access.n_origin == 1 && h->access.n_host == 1) spl_server_log(x->server, "Refused · %.200s", r->text);
        return false;
    }
    if (cors) x->cors = strdup(cors);
    for (size_t i = 0; i < SPL_COUNT(known); i++) method_known |= strcmp(x->method, known[i]) == 0;
    if (!method_known) return spl_reject_set(r, 501, "not_implemented", "method %.15s is not implemented", x->method);
    x->options = strcmp(x->method, "OPTIONS") == 0;
    x->preflight = x->options && h->preflight_method;
    if (x->options) return true;
    x->route = spl_route_find(x->method, x->path);
    bool open = x->route && x->route->is_public;
    if (!open && !spl_access_key(&x->server->access, &h->access, r)) return false;
    if (!x->route)
        return spl_reject_set(r, 404, "not_found", "there is no %.15s %.200s here", x->method,
                              x->path[0] ? x->path : "path");
    if (!check_server(x, r)) return false;
    if (x->route->kind != SPL_ROUTE_INLINE && !spl_server_admit(x->server, x))
        return spl_reject_set(r, 503, "frontend_overloaded",
                              "the server is busy: %u requests are running and waiting (--queue-size)",
                              x->server->options.queue_size);
    if (strcmp(x->method, "POST") != 0) return true;
    if (!check_framing(x, h, r)) return false;
    if (!spl_server_charge(x->server, x, x->content_length))
        return spl_reject_set(r, 503, "frontend_overloaded",
                              "request bodies in flight use all memory set aside for them");
    return true;
}

static void set_request_id(spl_exchange *x, const char *given) {
    size_t n = given ? strlen(given) : 0;
    for (size_t i = 0; i < n; i++)
        if (given[i] <= ' ' || given[i] > '~') n = 0;
    if (n > 0 && n < SPL_REQUEST_ID_BYTES) {
        memcpy(x->request_id, given, n + 1);
    } else {
        memcpy(x->request_id, "req_", 4);
        memcpy(x->request_id + 4, x->pid, 24);
    }
}

/* ---- delivery ------------------------------------------------------------------------------ */

static ssize_t stream_reader(void *cls, uint64_t position, char *bytes, size_t n_max) {
    spl_exchange *x = cls;
    bool end, broken, wake;
    (void)position;
    size_t n = spl_exchange_take(x, bytes, n_max, &end, &broken);
    if (n) return (ssize_t)n;
    if (end) return MHD_CONTENT_READER_END_OF_STREAM;
    if (broken) return MHD_CONTENT_READER_END_WITH_ERROR;
    struct MHD_Connection *connection = x->connection; /* only this thread changes it */
    MHD_suspend_connection(connection);
    (void)pthread_mutex_lock(&x->lock);
    wake = x->out.n_bytes > 0 || x->ended || x->gone;
    x->parked = !wake;
    (void)pthread_mutex_unlock(&x->lock);
    if (wake) MHD_resume_connection(connection);
    return 0;
}

static void stream_free(void *cls) { spl_exchange_unref(cls); }

static void add_headers(spl_exchange *x, struct MHD_Response *response, const char *preflight_headers) {
#define HEADER(name, value) (void)MHD_add_response_header(response, name, value)
    HEADER("Server", "Splash");
    HEADER("x-request-id", x->request_id);
    if (x->dialect == SPL_DIALECT_ANTHROPIC) HEADER("request-id", x->request_id);
    if (x->options) {
        HEADER("Allow", METHODS);
    } else if (x->content_type) {
        HEADER("Content-Type", x->content_type);
    }
    if (x->status == 503) HEADER("Retry-After", "1");
    if (x->status == 401) HEADER("WWW-Authenticate", "Bearer");
    if (x->streaming) {
        HEADER("Cache-Control", "no-cache");
        HEADER("X-Accel-Buffering", "no");
    }
    if (x->cached_tokens >= 0) {
        char digits[24];
        (void)snprintf(digits, sizeof digits, "%lld", (long long)x->cached_tokens);
        HEADER("x-splash-cached-tokens", digits);
    }
    if (x->cors) {
        HEADER("Access-Control-Allow-Origin", x->cors);
        if (strcmp(x->cors, "*") != 0) HEADER("Vary", "Origin");
        HEADER("Access-Control-Expose-Headers", "Retry-After, WWW-Authenticate");
        if (x->preflight) {
            HEADER("Access-Control-Allow-Methods", METHODS);
            if (preflight_headers) HEADER("Access-Control-Allow-Headers", preflight_headers);
            HEADER("Access-Control-Max-Age", "600");
        }
    }
    if (atomic_load(&x->server->draining)) HEADER("Connection", "close");
#undef HEADER
}

/* The whole reply's bytes move to libmicrohttpd; a stream keeps a reference until its response is destroyed. */
static enum MHD_Result queue_reply(spl_exchange *x, struct MHD_Connection *connection, const char *preflight_headers) {
    struct MHD_Response *response;
    unsigned status = x->options && !x->has_early ? 204 : x->status;
    if (x->streaming) {
        spl_exchange_ref(x);
        response =
            MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, stream_reader, x, stream_free);
        if (!response) spl_exchange_unref(x);
    } else {
        size_t n = x->out.n_bytes;
        char *bytes = n ? spl_buf_take(&x->out, &n) : NULL;
        response = bytes ? MHD_create_response_from_buffer(n, bytes, MHD_RESPMEM_MUST_FREE)
                         : MHD_create_response_from_buffer(0, (void *)(uintptr_t) "", MHD_RESPMEM_PERSISTENT);
        if (!response) free(bytes);
    }
    if (!response) return MHD_NO;
    add_headers(x, response, preflight_headers);
    enum MHD_Result queued = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return queued;
}

/* Sends the reply when it is there, otherwise suspends the connection until it is. */
static enum MHD_Result deliver(spl_exchange *x, struct MHD_Connection *connection) {
    const char *preflight_headers = NULL;
    (void)pthread_mutex_lock(&x->lock);
    bool ready = x->ready, gone = x->gone;
    (void)pthread_mutex_unlock(&x->lock);
    if (gone) return MHD_NO;
    if (ready) {
        if (x->preflight)
            preflight_headers =
                MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Access-Control-Request-Headers");
        return queue_reply(x, connection, preflight_headers);
    }
    MHD_suspend_connection(connection);
    (void)pthread_mutex_lock(&x->lock);
    bool wake = x->ready || x->gone;
    x->parked = !wake;
    (void)pthread_mutex_unlock(&x->lock);
    if (wake) MHD_resume_connection(connection);
    return MHD_YES;
}

/* ---- the three kinds of calls libmicrohttpd makes ------------------------------------------ */

static enum MHD_Result on_head(spl_exchange *x, struct MHD_Connection *connection, const char *method) {
    spl_head h = {0};
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    (void)pthread_mutex_lock(&x->lock);
    x->connection = connection;
    x->fd = info ? info->connect_fd : -1;
    (void)pthread_mutex_unlock(&x->lock);
    (void)snprintf(x->method, sizeof x->method, "%s", method);
    (void)MHD_get_connection_values(connection, MHD_HEADER_KIND, on_header, &h);
    read_local_address(x->fd, &h);
    set_request_id(x, h.request_id);
    /* Two framings: nothing after the head can be trusted. */
    bool ambiguous = h.n_content_length > 1 || (h.n_transfer_encoding && h.n_content_length);
    if (ambiguous)
        x->has_early =
            !spl_reject_field(&x->early, "exactly one Content-Length or one Transfer-Encoding header is allowed");
    else
        x->has_early = !check_head(x, &h, &x->early);
    /* libmicrohttpd's epoll loop misses a FIN that comes together with the last bytes it reads: an upload broken off
     * would keep its place until the idle timeout. So it is watched from here on. */
    (void)pthread_mutex_lock(&x->lock);
    x->watched = !x->has_early && x->route && x->route->kind != SPL_ROUTE_INLINE;
    (void)pthread_mutex_unlock(&x->lock);
    double seconds = IDLE_SECONDS + (double)x->content_length / UPLOAD_BYTES_PER_SECOND;
    x->upload_deadline_ns = x->arrival_ns + (uint64_t)(seconds * 1e9);
    if (x->has_early && (ambiguous || (h.expect && strcasecmp(h.expect, "100-continue") == 0))) {
        x->dispatched = true;
        spl_exchange_reject(x, &x->early);
        return deliver(x, connection);
    }
    return MHD_YES;
}

static enum MHD_Result on_upload(spl_exchange *x, const char *bytes, size_t n_bytes) {
    size_t max = x->server->options.max_request_bytes;
    uint64_t now = spl_now_ns();
    bool chunked = x->content_length == 0;
    if (chunked) /* the time allowed grows with what arrives */
        x->upload_deadline_ns += (uint64_t)((double)n_bytes / UPLOAD_BYTES_PER_SECOND * 1e9);
    if (now > x->upload_deadline_ns && !x->has_early)
        x->has_early = !spl_reject_set(&x->early, 408, "request_timeout", "the request body came too slowly");
    if (now > x->upload_deadline_ns + (uint64_t)IDLE_SECONDS * 1000000000u) return MHD_NO;
    x->upload.max_bytes = max;
    if (!x->has_early && chunked && x->upload.n_bytes + n_bytes > max)
        x->has_early =
            !spl_reject_set(&x->early, 413, "request_too_large",
                            "the request body is larger than the limit of %zu bytes (--max-request-size)", max);
    if (!x->has_early && chunked && !spl_server_charge(x->server, x, n_bytes))
        x->has_early = !spl_reject_set(&x->early, 503, "frontend_overloaded",
                                       "request bodies in flight use all memory set aside for them");
    if (!x->has_early && spl_buf_append(&x->upload, bytes, n_bytes) != SPL_OK)
        x->has_early = !spl_reject_set(&x->early, 503, "frontend_overloaded", "not enough memory for the request body");
    if (x->has_early) spl_buf_free(&x->upload);
    return MHD_YES;
}

static enum MHD_Result on_complete(spl_exchange *x, struct MHD_Connection *connection) {
    if (!x->dispatched) {
        x->dispatched = true;
        if (!x->has_early && x->route && x->route->kind != SPL_ROUTE_INLINE && x->upload.n_bytes == 0)
            x->has_early = !spl_reject_field(&x->early, "the request body is empty");
        if (x->has_early) {
            spl_exchange_reject(x, &x->early);
        } else if (x->options) {
            spl_exchange_reply(x, 204, NULL, "", 0);
        } else if (x->route->kind == SPL_ROUTE_INLINE) {
            x->route->handle(x);
        } else {
            spl_metrics_observe(&x->server->metrics, SPL_STAGE_UPLOAD, spl_now_ns() - x->arrival_ns);
            spl_server_enqueue(x->server, x);
        }
    }
    return deliver(x, connection);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *n_upload, void **context) {
    spl_exchange *x = *context;
    (void)cls;
    (void)url;
    (void)version;
    if (!x) return MHD_NO; /* no memory at the request line */
    if (!x->head_done) {
        x->head_done = true;
        return on_head(x, connection, method);
    }
    if (*n_upload) {
        enum MHD_Result result = on_upload(x, upload, *n_upload);
        *n_upload = 0;
        return result;
    }
    return on_complete(x, connection);
}

/* Called with the raw request target, before headers: the exchange is born here. */
static void *on_target(void *cls, const char *target, struct MHD_Connection *connection) {
    (void)connection;
    return spl_exchange_create(cls, target);
}

/* The reply is out, or the connection broke. The socket is still open, so `fd` cannot have been reused. */
static void on_end(void *cls, struct MHD_Connection *connection, void **context, enum MHD_RequestTerminationCode why) {
    spl_exchange *x = *context;
    (void)cls;
    (void)connection;
    if (!x) return;
    *context = NULL;
    (void)pthread_mutex_lock(&x->lock);
    x->connection = NULL;
    x->fd = -1;
    x->parked = false;
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK) x->gone = true;
    if (!x->engine_done) x->cancel_wanted = true;
    (void)pthread_mutex_unlock(&x->lock);
    if (x->route && why == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        spl_metrics_observe(&x->server->metrics, SPL_STAGE_HTTP_REQUEST, spl_now_ns() - x->arrival_ns);
    spl_exchange_unref(x);
}

spl_status spl_http_start(spl_server *server, spl_error *err) {
    unsigned connections = server->options.queue_size + 1024;
    unsigned loop = MHD_is_feature_supported(MHD_FEATURE_EPOLL) == MHD_YES ? MHD_USE_EPOLL_INTERNAL_THREAD
                                                                           : MHD_USE_POLL_INTERNAL_THREAD;
    struct MHD_Daemon *daemon = MHD_start_daemon(
        loop | MHD_ALLOW_SUSPEND_RESUME, server->port, NULL, NULL, on_request, server, MHD_OPTION_LISTEN_SOCKET,
        server->listen_fd, MHD_OPTION_URI_LOG_CALLBACK, on_target, server, MHD_OPTION_NOTIFY_COMPLETED, on_end, server,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES,
        MHD_OPTION_CONNECTION_LIMIT, connections, MHD_OPTION_END);
    if (!daemon) return spl_fail(err, SPL_E_IO, "the HTTP server does not start on port %u", server->port);
    atomic_store(&server->daemon, daemon);
    server->listen_fd = -1; /* the daemon closes it */
    return SPL_OK;
}

void spl_http_stop(spl_server *server) {
    struct MHD_Daemon *daemon = atomic_load(&server->daemon);
    if (daemon) MHD_stop_daemon(daemon);
    atomic_store(&server->daemon, NULL);
}

uint32_t spl_http_connections(spl_server *server) {
    struct MHD_Daemon *daemon = atomic_load(&server->daemon);
    const union MHD_DaemonInfo *info = daemon ? MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS) : NULL;
    return info ? info->num_connections : 0;
}
