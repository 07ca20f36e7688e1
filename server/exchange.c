/* SPDX-License-Identifier: Apache-2.0
 * Replies and streams of an exchange: bytes in under the lock, then the connection is resumed without it. */
#include "server/exchange.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "server/core.h"

/* Call with x->lock held; returns the connection to resume after unlocking, or NULL. */
static struct MHD_Connection *take_parked(spl_exchange *x) {
    if (!x->parked) return NULL;
    x->parked = false;
    return x->connection;
}

/* A parked connection stays suspended, hence alive, until this call. */
static void unlock_and_resume(spl_exchange *x, bool wake) {
    struct MHD_Connection *connection = wake ? take_parked(x) : NULL;
    (void)pthread_mutex_unlock(&x->lock);
    if (connection) MHD_resume_connection(connection);
}

/* Call with x->lock held, which keeps the descriptor open. The HTTP thread may be waiting for the peer to read: this
 * wakes it, and it closes the connection. */
static void hang_up(const spl_exchange *x) {
    if (x->fd >= 0) (void)shutdown(x->fd, SHUT_RDWR);
}

char *spl_json_text(const json_t *value) {
    return value ? json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
}

void spl_exchange_reply(spl_exchange *x, unsigned status, const char *content_type, const void *bytes, size_t n_bytes) {
    (void)pthread_mutex_lock(&x->lock);
    if (!x->ready) {
        if (spl_buf_append(&x->out, bytes, n_bytes) != SPL_OK) {
            static const char text[] = "{\"error\":{\"message\":\"not enough memory for the reply\","
                                       "\"type\":\"server_error\",\"code\":\"frontend_overloaded\"}}";
            spl_buf_reset(&x->out);
            (void)spl_buf_puts(&x->out, text);
            status = 503;
            content_type = "application/json";
        }
        x->status = status;
        x->content_type = content_type;
        x->ready = x->ended = true;
    }
    unlock_and_resume(x, true);
}

void spl_exchange_reply_json(spl_exchange *x, unsigned status, json_t *value) {
    char *text = spl_json_text(value);
    json_decref(value);
    if (text)
        spl_exchange_reply(x, status, "application/json", text, strlen(text));
    else
        spl_exchange_reply(x, 503, "application/json", "{}", 2);
    free(text);
}

static const char *anthropic_type(unsigned status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 408:
    case 504: return "timeout_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

json_t *spl_error_json(spl_dialect dialect, unsigned status, const char *code, const char *text) {
    json_t *message = json_string(text);
    if (!message) { /* it quotes the client's bytes, cut anywhere */
        char ascii[SPL_REJECT_TEXT_BYTES];
        size_t n = 0;
        for (; text[n] && n + 1 < sizeof ascii; n++) ascii[n] = (unsigned char)text[n] < 0x80 ? text[n] : '?';
        ascii[n] = 0;
        message = json_string(ascii);
    }
    if (dialect == SPL_DIALECT_ANTHROPIC)
        return json_pack("{s:s,s:{s:s,s:o}}", "type", "error", "error", "type", anthropic_type(status), "message",
                         message);
    return json_pack("{s:{s:o,s:s,s:s}}", "error", "message", message, "type",
                     status >= 500 ? "server_error" : "invalid_request_error", "code", code);
}

void spl_exchange_reject(spl_exchange *x, const spl_reject *why) {
    spl_server_count_rejected(x->server, x, why);
    spl_exchange_reply_json(x, why->status, spl_error_json(x->dialect, why->status, why->code, why->text));
}

void spl_exchange_stream_begin(spl_exchange *x) {
    (void)pthread_mutex_lock(&x->lock);
    if (!x->ready) {
        x->status = 200;
        x->content_type = "text/event-stream";
        x->ready = x->streaming = true;
        x->wire_ns = spl_now_ns();
    }
    unlock_and_resume(x, true);
}

void spl_exchange_stream_write(spl_exchange *x, const char *bytes, size_t n_bytes) {
    (void)pthread_mutex_lock(&x->lock);
    if (!x->gone && !x->ended) {
        if (x->out.n_bytes + n_bytes > SPL_STREAM_BUFFER_BYTES || spl_buf_append(&x->out, bytes, n_bytes) != SPL_OK) {
            x->gone = x->cancel_wanted = true;
            spl_buf_free(&x->out);
            hang_up(x);
        }
    }
    unlock_and_resume(x, true);
}

void spl_exchange_stream_json(spl_exchange *x, const char *name, json_t *value) {
    spl_buf event;
    char *text = spl_json_text(value);
    json_decref(value);
    spl_buf_init(&event, SIZE_MAX / 2);
    if (name) (void)spl_buf_printf(&event, "event: %s\n", name);
    (void)spl_buf_puts(&event, "data: ");
    (void)spl_buf_puts(&event, text ? text : "{}");
    (void)spl_buf_puts(&event, "\n\n");
    if (text && event.status == SPL_OK)
        spl_exchange_stream_write(x, event.data, event.n_bytes);
    else
        spl_exchange_abandon(x); /* an event that cannot be built must not be skipped silently */
    spl_buf_free(&event);
    free(text);
}

void spl_exchange_stream_end(spl_exchange *x) {
    (void)pthread_mutex_lock(&x->lock);
    x->ended = true;
    unlock_and_resume(x, true);
}

size_t spl_exchange_take(spl_exchange *x, char *bytes, size_t n_max, bool *end, bool *broken) {
    (void)pthread_mutex_lock(&x->lock);
    size_t n = x->out.n_bytes < n_max ? x->out.n_bytes : n_max;
    *broken = x->gone;
    if (*broken) n = 0;
    if (n) {
        memcpy(bytes, x->out.data, n);
        spl_buf_consume(&x->out, n);
        x->wire_ns = spl_now_ns();
    }
    *end = !*broken && n == 0 && x->ended;
    (void)pthread_mutex_unlock(&x->lock);
    return n;
}

void spl_exchange_abandon(spl_exchange *x) {
    (void)pthread_mutex_lock(&x->lock);
    x->gone = true;
    if (!x->engine_done) x->cancel_wanted = true;
    hang_up(x);
    unlock_and_resume(x, true);
}

bool spl_exchange_is_gone(spl_exchange *x) {
    (void)pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    (void)pthread_mutex_unlock(&x->lock);
    return gone;
}
