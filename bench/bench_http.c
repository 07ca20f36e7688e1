/* SPDX-License-Identifier: Apache-2.0
 * The client: connect, one request, headers, chunks, events. Everything the server says is checked and bounded. */
#include "bench/bench_http.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/dynbuf.h"

enum { MAX_HEADER_BYTES = 64 << 10, MAX_PENDING_BYTES = 16 << 20, BLOCK_BYTES = 16 << 10 };

#ifdef MSG_NOSIGNAL
enum { SEND_FLAGS = MSG_NOSIGNAL };
#else
enum { SEND_FLAGS = 0 };
#endif

spl_status spl_http_address_read(spl_http_address *out, const char *url, spl_error *err) {
    const char *at = url;
    if (strncmp(at, "http://", 7) != 0)
        return spl_fail(err, SPL_E_INVALID, "'%.100s' is not an address of the form http://HOST:PORT", url);
    at += 7;
    bool bracketed = *at == '[';
    size_t n_host = bracketed ? strcspn(++at, "]") : strcspn(at, ":/");
    const char *port = at + n_host + (bracketed && at[n_host] == ']' ? 1 : 0);
    size_t n_port = *port == ':' ? strspn(port + 1, "0123456789") : 0;
    if (n_host == 0 || n_host >= sizeof out->host || n_port >= sizeof out->port || (*port == ':' && n_port == 0))
        return spl_fail(err, SPL_E_INVALID, "'%.100s' is not an address of the form http://HOST:PORT", url);
    (void)snprintf(out->host, sizeof out->host, "%.*s", (int)n_host, at);
    (void)snprintf(out->port, sizeof out->port, "%.*s", n_port ? (int)n_port : 2, n_port ? port + 1 : "80");
    return SPL_OK;
}

static spl_status connect_to(const spl_http_address *a, int *fd, spl_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(a->host, a->port, &hints, &list), one = 1, reason = 0;
    *fd = -1;
    if (rc != 0) return spl_fail(err, SPL_E_IO, "cannot resolve %s: %s", a->host, gai_strerror(rc));
    for (struct addrinfo *i = list; i && *fd < 0; i = i->ai_next) {
        *fd = socket(i->ai_family, i->ai_socktype, i->ai_protocol);
        if (*fd >= 0 && connect(*fd, i->ai_addr, i->ai_addrlen) == 0) break;
        reason = errno;
        if (*fd >= 0) (void)close(*fd);
        *fd = -1;
    }
    freeaddrinfo(list);
    if (*fd < 0) return spl_fail_errno(err, reason, "cannot connect to %s port %s", a->host, a->port);
    (void)setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
#ifdef SO_NOSIGPIPE
    (void)setsockopt(*fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
    return SPL_OK;
}

static spl_status send_all(int fd, const char *data, size_t n_bytes, spl_error *err) {
    while (n_bytes > 0) {
        ssize_t n = send(fd, data, n_bytes, SEND_FLAGS);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return spl_fail_errno(err, errno, "cannot send a request");
        data += n;
        n_bytes -= (size_t)n;
    }
    return SPL_OK;
}

static spl_status send_request(int fd, const spl_http_address *a, const char *path, const char *body, size_t n_bytes,
                               spl_error *err) {
    char head[1024];
    bool v6 = strchr(a->host, ':') != NULL;
    int n = snprintf(head, sizeof head,
                     "POST %s HTTP/1.1\r\nHost: %s%s%s:%s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                     "Accept: text/event-stream\r\nConnection: close\r\n\r\n",
                     path, v6 ? "[" : "", a->host, v6 ? "]" : "", a->port, n_bytes);
    if (n < 0 || (size_t)n >= sizeof head) return spl_fail(err, SPL_E_INVALID, "the path of the request is too long");
    spl_status st = send_all(fd, head, (size_t)n, err);
    return st == SPL_OK ? send_all(fd, body, n_bytes, err) : st;
}

/* ---- the reply ------------------------------------------------------------------------------- */

/* A reply being read: wire bytes not yet decoded, body bytes not yet reported. */
typedef struct reply {
    int fd, timeout_ms, status;
    bool chunked, has_head, ended;
    size_t chunk_left; /* bytes of the chunk in progress, its line end included */
    spl_buf wire, body;
    uint64_t at_ns; /* when the last bytes came */
    spl_http_event event;
    void *user;
} reply;

/* More wire bytes; *closed at the end of the connection. */
static spl_status receive(reply *r, bool *closed, spl_error *err) {
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    *closed = false;
    int ready = poll(&p, 1, r->timeout_ms);
    if (ready < 0 && errno == EINTR) return SPL_OK;
    if (ready < 0) return spl_fail_errno(err, errno, "cannot wait for a reply");
    if (ready == 0) return spl_fail(err, SPL_E_TIMEOUT, "the server said nothing for %d ms", r->timeout_ms);
    char *room = spl_buf_reserve(&r->wire, BLOCK_BYTES);
    if (!room) return spl_fail(err, r->wire.status, "a reply too long to hold");
    ssize_t n = recv(r->fd, room, BLOCK_BYTES, 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return SPL_OK;
    if (n < 0) return spl_fail_errno(err, errno, "cannot read a reply");
    r->at_ns = spl_now_ns();
    r->wire.n_bytes += (size_t)n;
    r->wire.data[r->wire.n_bytes] = 0;
    *closed = n == 0;
    return SPL_OK;
}

static spl_status read_head(reply *r, spl_error *err) {
    char *end = r->wire.data ? strstr(r->wire.data, "\r\n\r\n") : NULL;
    if (!end) {
        if (r->wire.n_bytes < MAX_HEADER_BYTES) return SPL_OK;
        return spl_fail(err, SPL_E_FORMAT, "the reply has no end of its headers");
    }
    end[2] = 0;
    if (strncmp(r->wire.data, "HTTP/1.", 7) != 0 || strlen(r->wire.data) < 12)
        return spl_fail(err, SPL_E_FORMAT, "the reply is not HTTP/1.1");
    r->status = (int)strtol(r->wire.data + 9, NULL, 10);
    for (char *line = r->wire.data; (line = strstr(line, "\r\n")) != NULL;) {
        line += 2;
        if (strncasecmp(line, "transfer-encoding:", 18) == 0)
            r->chunked = strncasecmp(line + 18 + strspn(line + 18, " "), "chunked", 7) == 0;
    }
    spl_buf_consume(&r->wire, (size_t)(end - r->wire.data) + 4);
    r->has_head = true;
    return SPL_OK;
}

/* Moves what is complete of the chunks to the body. */
static spl_status read_chunks(reply *r, spl_error *err) {
    while (r->wire.n_bytes > 0 && !r->ended) {
        if (r->chunk_left == 0) {
            char *line_end = memchr(r->wire.data, '\n', r->wire.n_bytes), *number_end;
            if (!line_end) return SPL_OK;
            unsigned long n = strtoul(r->wire.data, &number_end, 16);
            if (number_end == r->wire.data || n > MAX_PENDING_BYTES)
                return spl_fail(err, SPL_E_FORMAT, "the reply has a malformed chunk");
            spl_buf_consume(&r->wire, (size_t)(line_end - r->wire.data) + 1);
            if (n == 0) r->ended = true;
            r->chunk_left = n + 2;
            continue;
        }
        size_t n = r->wire.n_bytes < r->chunk_left ? r->wire.n_bytes : r->chunk_left;
        size_t text = r->chunk_left > 2 ? r->chunk_left - 2 : 0; /* before the line end */
        if (spl_buf_append(&r->body, r->wire.data, n < text ? n : text) != SPL_OK)
            return spl_fail(err, r->body.status, "a reply too long to hold");
        r->chunk_left -= n;
        spl_buf_consume(&r->wire, n);
    }
    return SPL_OK;
}

/* Reports the complete lines "data: ..." of the body. */
static spl_status report_events(reply *r, spl_error *err) {
    spl_status st = SPL_OK;
    for (;;) {
        char *end = r->body.n_bytes ? memchr(r->body.data, '\n', r->body.n_bytes) : NULL;
        if (!end || st != SPL_OK) return st;
        size_t n = (size_t)(end - r->body.data), skip = 5;
        *end = 0;
        if (n > 0 && end[-1] == '\r') end[-1] = 0;
        if (strncmp(r->body.data, "data:", 5) == 0) {
            skip += strspn(r->body.data + skip, " ");
            st = r->event(r->user, r->body.data + skip, strlen(r->body.data + skip), r->at_ns, err);
        }
        spl_buf_consume(&r->body, n + 1);
    }
}

static spl_status read_reply(reply *r, spl_error *err) {
    bool closed = false;
    spl_status st = SPL_OK;
    while (st == SPL_OK && !closed && !r->ended) {
        st = receive(r, &closed, err);
        if (st == SPL_OK && !r->has_head) st = read_head(r, err);
        if (st != SPL_OK || !r->has_head) continue;
        if (r->chunked) {
            st = read_chunks(r, err);
        } else if (r->wire.n_bytes > 0) {
            (void)spl_buf_append(&r->body, r->wire.data, r->wire.n_bytes);
            spl_buf_reset(&r->wire);
        }
        if (st == SPL_OK && r->status == 200) st = report_events(r, err);
    }
    if (st != SPL_OK) return st;
    if (!r->has_head) return spl_fail(err, SPL_E_IO, "the server closed the connection without a reply");
    if (r->status != 200)
        return spl_fail(err, SPL_E_IO, "the server answered %d: %.300s", r->status, r->body.data ? r->body.data : "");
    if (r->chunked && !r->ended) return spl_fail(err, SPL_E_IO, "the reply ended in the middle");
    return SPL_OK;
}

spl_status spl_http_post_events(const spl_http_address *address, const char *path, const char *body, size_t n_bytes,
                                int timeout_ms, spl_http_event event, void *user, spl_error *err) {
    reply r = {.timeout_ms = timeout_ms, .event = event, .user = user};
    spl_status st = connect_to(address, &r.fd, err);
    if (st != SPL_OK) return st;
    spl_buf_init(&r.wire, MAX_PENDING_BYTES);
    spl_buf_init(&r.body, MAX_PENDING_BYTES);
    st = send_request(r.fd, address, path, body, n_bytes, err);
    if (st == SPL_OK) st = read_reply(&r, err);
    (void)close(r.fd);
    spl_buf_free(&r.wire);
    spl_buf_free(&r.body);
    return st;
}
