/* SPDX-License-Identifier: Apache-2.0
 * Lifecycle and threads of the server. The event thread reads every engine event and, between them, looks after the
 * exchanges: clients that left (libmicrohttpd does not watch a suspended connection, so their sockets are polled
 * here), cancellations, keep-alive. All calls of splash_cancel are made by that thread, which also sees each request's
 * last event: a cancel can never meet a dead request. */
#include "server/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/core.h"
#include "server/generation.h"

enum { BACKLOG = 256, BUSY_WAIT_MS = 20, IDLE_WAIT_MS = 100 };
static const uint64_t TICK_NS = 20000000u;
static const size_t MIN_INPUT_BUDGET = (size_t)512 << 20;
static const size_t DEFAULT_MAX_REQUEST = (size_t)128 << 20;

/* ---- small things -------------------------------------------------------------------------- */

uint64_t spl_random_u64(void) {
    uint64_t v = 0;
    if (getentropy(&v, sizeof v) != 0) v = spl_now_ns() * 0x9e3779b97f4a7c15u;
    return v;
}

void spl_random_hex(char *out, size_t n_digits) {
    static const char digits[] = "0123456789abcdef";
    uint64_t bits = 0;
    for (size_t i = 0; i < n_digits; i++) {
        if (i % 16 == 0) bits = spl_random_u64();
        out[i] = digits[bits & 15];
        bits >>= 4;
    }
    out[n_digits] = 0;
}

/* Never waits: when nobody reads stderr (a stopped terminal, a full pipe) the line is dropped, and the next one that
 * fits says how many were. A pipe that polls writable takes PIPE_BUF bytes without blocking. */
void spl_server_log(spl_server *server, const char *format, ...) {
    char line[1024], note[48];
    va_list args;
    if (server->options.quiet) return;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (n < 0) return;
    size_t n_bytes = strlen(line);
    for (size_t i = 0; i < n_bytes; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 0x7f) line[i] = '?';
    line[n_bytes++] = '\n';
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    (void)pthread_mutex_lock(&server->log_lock);
    if (poll(&p, 1, 0) == 1 && (p.revents & POLLOUT)) {
        if (server->n_log_dropped) {
            int n_note =
                snprintf(note, sizeof note, "(%llu lines dropped)\n", (unsigned long long)server->n_log_dropped);
            if (write(STDERR_FILENO, note, (size_t)n_note) == n_note) server->n_log_dropped = 0;
        }
        if (write(STDERR_FILENO, line, n_bytes) != (ssize_t)n_bytes) server->n_log_dropped++;
    } else {
        server->n_log_dropped++;
    }
    (void)pthread_mutex_unlock(&server->log_lock);
}

void spl_server_count_rejected(spl_server *server, const spl_exchange *x, const spl_reject *why) {
    (void)pthread_mutex_lock(&server->lock);
    server->n_rejected++;
    (void)pthread_mutex_unlock(&server->lock);
    spl_server_log(server, "Error · %s · %s %.256s · %s", why->code, x->method, x->path, x->request_id);
}

/* ---- exchanges ----------------------------------------------------------------------------- */

spl_exchange *spl_exchange_create(spl_server *server, const char *target) {
    spl_exchange *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    if (pthread_mutex_init(&x->lock, NULL) != 0) {
        free(x);
        return NULL;
    }
    x->server = server;
    x->refs = 1;
    x->fd = -1;
    x->cached_tokens = -1;
    x->arrival_ns = spl_now_ns();
    spl_buf_init(&x->upload, server->options.max_request_bytes);
    spl_buf_init(&x->out, SIZE_MAX / 2);
    spl_random_hex(x->pid, SPL_PID_BYTES - 1);
    if (!spl_canonical_path(target, x->path, sizeof x->path)) x->path[0] = 0; /* matches no route */
    x->dialect = spl_dialect_of(x->path);
    (void)pthread_mutex_lock(&server->lock);
    x->next = server->exchanges;
    if (x->next) x->next->prev = x;
    server->exchanges = x;
    (void)pthread_mutex_unlock(&server->lock);
    return x;
}

void spl_exchange_ref(spl_exchange *x) {
    (void)pthread_mutex_lock(&x->server->lock);
    x->refs++;
    (void)pthread_mutex_unlock(&x->server->lock);
}

void spl_exchange_unref(spl_exchange *x) {
    spl_server *server = x->server;
    (void)pthread_mutex_lock(&server->lock);
    bool last = --x->refs == 0;
    if (last) {
        if (x->prev) x->prev->next = x->next;
        if (x->next) x->next->prev = x->prev;
        if (server->exchanges == x) server->exchanges = x->next;
        if (x->admitted) server->active[x->route->kind]--;
        server->input_bytes -= x->charged_bytes;
    }
    (void)pthread_mutex_unlock(&server->lock);
    if (!last) return;
    spl_generation_free(x->generation);
    spl_body_free(&x->body);
    spl_buf_free(&x->upload);
    spl_buf_free(&x->out);
    free(x->cors);
    (void)pthread_mutex_destroy(&x->lock);
    free(x);
}

bool spl_server_admit(spl_server *server, spl_exchange *x) {
    (void)pthread_mutex_lock(&server->lock);
    x->admitted = server->active[x->route->kind] < server->options.queue_size;
    if (x->admitted) server->active[x->route->kind]++;
    (void)pthread_mutex_unlock(&server->lock);
    return x->admitted;
}

bool spl_server_charge(spl_server *server, spl_exchange *x, size_t n_bytes) {
    (void)pthread_mutex_lock(&server->lock);
    bool ok = n_bytes <= server->input_budget_bytes - server->input_bytes;
    if (ok) {
        server->input_bytes += n_bytes;
        x->charged_bytes += n_bytes;
    }
    (void)pthread_mutex_unlock(&server->lock);
    return ok;
}

/* ---- preparation --------------------------------------------------------------------------- */

void spl_server_enqueue(spl_server *server, spl_exchange *x) {
    x->queued_ns = spl_now_ns();
    (void)pthread_mutex_lock(&server->lock);
    x->refs++;
    x->queue_next = NULL;
    if (server->queue_tail)
        server->queue_tail->queue_next = x;
    else
        server->queue_head = x;
    server->queue_tail = x;
    server->n_queued++;
    (void)pthread_cond_signal(&server->queue_filled);
    (void)pthread_mutex_unlock(&server->lock);
}

static spl_exchange *next_queued(spl_server *server) {
    (void)pthread_mutex_lock(&server->lock);
    while (!server->queue_head && !atomic_load(&server->stopping))
        (void)pthread_cond_wait(&server->queue_filled, &server->lock);
    spl_exchange *x = server->queue_head;
    if (x) {
        server->queue_head = x->queue_next;
        if (!server->queue_head) server->queue_tail = NULL;
        server->n_queued--;
        server->n_preparing++;
    }
    (void)pthread_mutex_unlock(&server->lock);
    return x;
}

static void prepare(spl_server *server, spl_exchange *x) {
    spl_reject why;
    uint64_t start = spl_now_ns();
    spl_metrics_observe(&server->metrics, SPL_STAGE_PREPARATION_QUEUE, start - x->queued_ns);
    if (spl_exchange_is_gone(x)) return;
    if (!spl_body_decode(&x->body, x->upload.data, x->upload.n_bytes, &why)) {
        spl_exchange_reject(x, &why);
        return;
    }
    spl_buf_free(&x->upload);
    x->route->handle(x);
    /* The engine has copied what it needs; what is left of the body is small beside it. */
    spl_body_free(&x->body);
    (void)pthread_mutex_lock(&server->lock);
    server->input_bytes -= x->charged_bytes;
    x->charged_bytes = 0;
    (void)pthread_mutex_unlock(&server->lock);
    spl_metrics_observe(&server->metrics, SPL_STAGE_PREPARATION, spl_now_ns() - start);
}

static void *preparer_main(void *arg) {
    spl_server *server = arg;
    for (;;) {
        spl_exchange *x = next_queued(server);
        if (!x) return NULL;
        prepare(server, x);
        (void)pthread_mutex_lock(&server->lock);
        server->n_preparing--;
        (void)pthread_mutex_unlock(&server->lock);
        spl_exchange_unref(x);
    }
}

/* ---- the event thread ---------------------------------------------------------------------- */

/* True when the peer closed its side (a half-close counts: nobody is left to read). */
static bool peer_left(const struct pollfd *p) {
#ifdef POLLRDHUP
    return (p->revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
#else
    char byte;
    if (p->revents & (POLLHUP | POLLERR)) return true;
    return (p->revents & POLLIN) != 0 && recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
#endif
}

/* Exchanges whose body is complete and whose reply is not: references taken. The array is malloc'ed. */
static spl_exchange **snapshot(spl_server *server, size_t *n_out) {
    size_t n = 0, i = 0;
    *n_out = 0;
    (void)pthread_mutex_lock(&server->lock);
    for (const spl_exchange *x = server->exchanges; x; x = x->next) n++;
    spl_exchange **list = n ? malloc(n * sizeof(spl_exchange *)) : NULL;
    for (spl_exchange *x = server->exchanges; list && x; x = x->next) {
        x->refs++;
        list[i++] = x;
    }
    (void)pthread_mutex_unlock(&server->lock);
    *n_out = i;
    return list;
}

static void watch_clients(spl_exchange **list, size_t n) {
    struct pollfd *fds = calloc(n, sizeof *fds);
    if (!fds) return;
    for (size_t i = 0; i < n; i++) {
        spl_exchange *x = list[i];
        (void)pthread_mutex_lock(&x->lock);
        fds[i].fd = x->watched ? x->fd : -1;
#ifdef POLLRDHUP
        fds[i].events = POLLRDHUP;
#else
        fds[i].events = POLLIN;
#endif
        (void)pthread_mutex_unlock(&x->lock);
    }
    if (poll(fds, (nfds_t)n, 0) > 0) {
        for (size_t i = 0; i < n; i++) {
            if (fds[i].fd < 0 || !peer_left(&fds[i])) continue;
            /* Between the poll and here the request may have ended and its descriptor number may belong to
             * another connection: then x->fd is -1. */
            (void)pthread_mutex_lock(&list[i]->lock);
            bool same = list[i]->fd == fds[i].fd && !list[i]->gone && !(list[i]->ended && list[i]->ready);
            (void)pthread_mutex_unlock(&list[i]->lock);
            if (same) spl_exchange_abandon(list[i]);
        }
    }
    free(fds);
}

/* Called about every 20 ms while something is going on. Returns how many generations are in the engine. */
static size_t tick(spl_server *server, uint64_t now) {
    size_t n, n_running = 0;
    spl_exchange **list = snapshot(server, &n);
    if (!list) return 0;
    watch_clients(list, n);
    for (size_t i = 0; i < n; i++) {
        spl_exchange *x = list[i];
        (void)pthread_mutex_lock(&x->lock);
        splash_request *request = x->engine_done ? NULL : x->request;
        bool cancel = request && x->cancel_wanted;
        if (cancel) x->cancel_wanted = false;
        (void)pthread_mutex_unlock(&x->lock);
        if (cancel) splash_cancel(server->engine, request);
        if (request) {
            n_running++;
            if (!cancel) spl_generation_keep_alive(x, now);
        }
        spl_exchange_unref(x);
    }
    free(list);
    return n_running;
}

static void *event_main(void *arg) {
    spl_server *server = arg;
    uint64_t last_tick = 0;
    size_t n_running = 0;
    while (!atomic_load(&server->stopping)) {
        splash_event event = {0};
        splash_status st = splash_next_event(server->engine, &event, n_running ? BUSY_WAIT_MS : IDLE_WAIT_MS);
        if (st == SPLASH_E_CANCELLED) break;
        if (st == SPLASH_OK)
            spl_generation_event(&event);
        else
            (void)poll(NULL, 0, BUSY_WAIT_MS);
        uint64_t now = spl_now_ns();
        if (now - last_tick >= TICK_NS) {
            n_running = tick(server, now);
            last_tick = now;
        } else if (event.kind == SPLASH_EVENT_STARTED) {
            n_running++; /* until the next tick counts */
        }
    }
    return NULL;
}

/* ---- lifecycle ----------------------------------------------------------------------------- */

/* A wildcard and a loopback listener can coexist on some systems; then only a connection tells. */
static bool someone_listens(const struct addrinfo *a) {
    int fd = socket(a->ai_family, SOCK_STREAM, 0);
    if (fd < 0) return false;
    bool yes = fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0;
    if (!yes && errno == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        int error = 0;
        socklen_t n = sizeof error;
        yes = poll(&p, 1, 200) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error == 0;
    }
    (void)close(fd);
    return yes;
}

static spl_status port_taken(const spl_server *s, spl_error *err) {
    return spl_fail(err, SPL_E_BUSY,
                    "port %u on %s is in use; stop the program that has it or choose another with --port",
                    s->options.port, s->options.host);
}

static spl_status bind_to(spl_server *s, const struct addrinfo *a, spl_error *err) {
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    char port[16];
    int on = 1;
    if (s->options.port && someone_listens(a)) return port_taken(s, err);
    s->listen_fd = socket(a->ai_family, SOCK_STREAM, 0);
    if (s->listen_fd < 0) return spl_fail_errno(err, errno, "cannot open a socket");
    (void)fcntl(s->listen_fd, F_SETFD, FD_CLOEXEC);
    (void)setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(s->listen_fd, a->ai_addr, a->ai_addrlen) != 0) {
        if (errno == EADDRINUSE) return port_taken(s, err);
        return spl_fail_errno(err, errno, "cannot bind %s port %u", s->options.host, s->options.port);
    }
    if (getsockname(s->listen_fd, (struct sockaddr *)&bound, &n) != 0 ||
        getnameinfo((struct sockaddr *)&bound, n, s->host_text, sizeof s->host_text, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return spl_fail(err, SPL_E_IO, "cannot read the address of the listening socket");
    s->port = (uint16_t)strtoul(port, NULL, 10);
    return SPL_OK;
}

static spl_status open_socket(spl_server *s, spl_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    char port[16];
    (void)snprintf(port, sizeof port, "%u", s->options.port);
    int code = getaddrinfo(s->options.host, port, &hints, &found);
    if (code != 0)
        return spl_fail(err, SPL_E_INVALID, "cannot use '%s' as --host: %s", s->options.host, gai_strerror(code));
    spl_status st = bind_to(s, found, err);
    freeaddrinfo(found);
    return st;
}

static void destroy(spl_server *s) {
    if (s->listen_fd >= 0) (void)close(s->listen_fd);
    (void)pthread_mutex_destroy(&s->log_lock);
    (void)pthread_cond_destroy(&s->queue_filled);
    (void)pthread_mutex_destroy(&s->lock);
    spl_metrics_destroy(&s->metrics);
    free(s);
}

spl_status spl_server_bind(spl_server **out, const spl_server_options *options, spl_error *err) {
    *out = NULL;
    spl_server *s = calloc(1, sizeof *s);
    if (!s) return spl_fail(err, SPL_E_NOMEM, "no memory for the server");
    s->options = *options;
    s->listen_fd = -1;
    if (!s->options.host) s->options.host = "127.0.0.1";
    if (!s->options.max_request_bytes) s->options.max_request_bytes = DEFAULT_MAX_REQUEST;
    if (!s->options.queue_size) s->options.queue_size = SPL_DEFAULT_QUEUE;
    s->input_budget_bytes = s->options.max_request_bytes * 2;
    if (s->input_budget_bytes < MIN_INPUT_BUDGET) s->input_budget_bytes = MIN_INPUT_BUDGET;
    s->access = (spl_access_rules){s->options.host,          options->allowed_hosts,     options->n_allowed_hosts,
                                   options->allowed_origins, options->n_allowed_origins, options->api_key};
    if (!spl_metrics_init(&s->metrics) || pthread_mutex_init(&s->lock, NULL) != 0 ||
        pthread_mutex_init(&s->log_lock, NULL) != 0 || pthread_cond_init(&s->queue_filled, NULL) != 0) {
        free(s);
        return spl_fail(err, SPL_E_NOMEM, "no memory for the server");
    }
    spl_status st = open_socket(s, err);
    if (st != SPL_OK) {
        destroy(s);
        return st;
    }
    *out = s;
    return SPL_OK;
}

uint16_t spl_server_port(const spl_server *server) { return server->port; }

spl_status spl_server_start(spl_server *s, splash_engine *engine, spl_error *err) {
    s->engine = engine;
    splash_model_info_get(engine, &s->info);
    s->limits = (spl_gen_limits){.model = s->info.name,
                                 .aliases = s->options.aliases,
                                 .n_aliases = s->options.n_aliases,
                                 .vocab = s->info.vocab,
                                 .context_tokens = s->info.context_tokens,
                                 .defaults = s->info.defaults};
    s->reply_model = s->options.announce_alias && s->options.n_aliases ? s->options.aliases[0] : s->info.name;
    s->started_at = time(NULL);
    spl_random_hex(s->instance_id, SPL_PID_BYTES - 1);
    if (listen(s->listen_fd, BACKLOG) != 0) {
        if (errno == EADDRINUSE) return port_taken(s, err);
        return spl_fail_errno(err, errno, "cannot listen on port %u", s->port);
    }
    if (pthread_create(&s->event_thread, NULL, event_main, s) != 0)
        return spl_fail(err, SPL_E_NOMEM, "cannot start the event thread");
    s->event_thread_runs = true;
    for (; s->n_preparers < SPL_N_PREPARERS; s->n_preparers++)
        if (pthread_create(&s->preparers[s->n_preparers], NULL, preparer_main, s) != 0)
            return spl_fail(err, SPL_E_NOMEM, "cannot start the preparation threads");
    return spl_http_start(s, err);
}

void spl_server_drain(spl_server *server) { atomic_store(&server->draining, true); }

bool spl_server_is_idle(spl_server *server) {
    (void)pthread_mutex_lock(&server->lock);
    bool idle = server->active[SPL_ROUTE_GENERATION] == 0 && server->active[SPL_ROUTE_PROMPT] == 0;
    (void)pthread_mutex_unlock(&server->lock);
    return idle;
}

/* Every suspended connection must be resumed before libmicrohttpd can stop; abandoning does that. */
static void abandon_all(spl_server *s) {
    size_t n;
    spl_exchange **list = snapshot(s, &n);
    for (size_t i = 0; i < n; i++) {
        spl_exchange_abandon(list[i]);
        spl_exchange_unref(list[i]);
    }
    free(list);
}

void spl_server_stop(spl_server **server) {
    spl_server *s = *server;
    if (!s) return;
    *server = NULL;
    atomic_store(&s->draining, true);
    if (atomic_load(&s->daemon)) {
        /* Cancelled requests end within a step; their connections close as they do. */
        for (int i = 0; i < 500; i++) {
            abandon_all(s);
            (void)pthread_mutex_lock(&s->lock);
            bool empty = s->exchanges == NULL;
            (void)pthread_mutex_unlock(&s->lock);
            if (empty) break;
            (void)poll(NULL, 0, 10);
        }
        spl_http_stop(s);
    }
    atomic_store(&s->stopping, true);
    (void)pthread_mutex_lock(&s->lock);
    (void)pthread_cond_broadcast(&s->queue_filled);
    (void)pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < s->n_preparers; i++) (void)pthread_join(s->preparers[i], NULL);
    if (s->event_thread_runs) (void)pthread_join(s->event_thread, NULL);
    destroy(s);
}
