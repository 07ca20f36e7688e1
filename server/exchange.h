/* SPDX-License-Identifier: Apache-2.0
 * One HTTP request and its reply. The HTTP thread creates it and delivers its bytes; a preparation thread and the
 * event thread produce them. The exchange is where those threads meet: everything below "shared" is guarded by
 * `lock`, which is never held across a call into libmicrohttpd or the engine.
 * Lifetime: references counted under the server's lock; the HTTP side, the worker side and the reply stream hold one
 * each. */
#ifndef SPL_SERVER_EXCHANGE_H
#define SPL_SERVER_EXCHANGE_H

#include <pthread.h>
#include <stdint.h>

#include "base/dynbuf.h"
#include "server/access.h"
#include "server/body_text.h"
#include "splash.h"

struct MHD_Connection;
struct spl_server;
struct spl_generation;
typedef struct spl_exchange spl_exchange;

typedef enum spl_dialect { SPL_DIALECT_OPENAI, SPL_DIALECT_ANTHROPIC } spl_dialect;

typedef enum spl_route_kind {
    SPL_ROUTE_INLINE,     /* answered by the HTTP thread at once: must not block */
    SPL_ROUTE_PROMPT,     /* prepared, no inference */
    SPL_ROUTE_GENERATION, /* prepared and submitted */
    SPL_N_ROUTE_KINDS
} spl_route_kind;

/* A row of the route table: how a request of this method and path is served. */
typedef struct spl_route {
    const char *method; /* "GET" (HEAD included) or "POST" */
    const char *path;   /* exact canonical path; with `prefix` the path starts with it */
    bool prefix, is_public;
    spl_route_kind kind;
    void (*handle)(spl_exchange *x);
} spl_route;

enum {
    SPL_PID_BYTES = 33,
    SPL_REQUEST_ID_BYTES = 129,
    SPL_STREAM_BUFFER_BYTES = 1 << 20 /* a reader this far behind the engine is cut off */
};

struct spl_exchange {
    struct spl_server *server;
    spl_exchange *prev, *next; /* server's list; with refs guarded by the server's lock */
    unsigned refs;
    spl_exchange *queue_next; /* preparation queue */

    /* Request: written by the HTTP thread before the exchange is handed over. */
    const spl_route *route; /* NULL: no such path */
    spl_dialect dialect;
    char path[SPL_PATH_BYTES];
    char method[16];
    char pid[SPL_PID_BYTES];
    char request_id[SPL_REQUEST_ID_BYTES];
    char *cors; /* value of Access-Control-Allow-Origin, or NULL */
    uint64_t arrival_ns, upload_deadline_ns, queued_ns;
    size_t content_length, charged_bytes;
    bool head_done, dispatched, has_early, admitted, options, preflight, no_body;
    spl_reject early; /* the reply, decided before the body was read */
    spl_buf upload;
    spl_body body;

    /* Shared. */
    pthread_mutex_t lock;
    struct MHD_Connection *connection; /* NULL once the HTTP side is done */
    int fd;
    bool watched;   /* there is work behind it: a closed socket means the client left */
    bool parked;    /* the connection is suspended and nobody has resumed it */
    bool gone;      /* the client left: no more output */
    bool ready;     /* status and headers may go out */
    bool streaming; /* the body is `out`, growing; otherwise `out` is the whole body */
    bool ended;     /* streaming: nothing follows */
    bool cancel_wanted, engine_done;
    splash_request *request; /* valid until engine_done */
    unsigned status;
    const char *content_type;
    int64_t cached_tokens; /* header x-splash-cached-tokens; -1: none */
    spl_buf out;
    uint64_t wire_ns; /* last time bytes were handed to the connection */

    /* Generation: the preparation thread's until submission, then the event thread's. */
    struct spl_generation *generation;
};

void spl_exchange_ref(spl_exchange *x);
void spl_exchange_unref(spl_exchange *x);

/* Whole replies; the first one counts, later ones are dropped. Any thread. */
void spl_exchange_reply(spl_exchange *x, unsigned status, const char *content_type, const void *bytes, size_t n_bytes);
void spl_exchange_reply_json(spl_exchange *x, unsigned status, json_t *value); /* takes the reference; NULL: 503 */
void spl_exchange_reject(spl_exchange *x, const spl_reject *why);              /* in the dialect of the path */
/* The error object of a dialect; new reference or NULL. */
json_t *spl_error_json(spl_dialect dialect, unsigned status, const char *code, const char *text);

/* Streams (text/event-stream). begin sends the headers; writes after the client left are dropped. */
void spl_exchange_stream_begin(spl_exchange *x);
void spl_exchange_stream_write(spl_exchange *x, const char *bytes, size_t n_bytes);
/* "event: NAME\n" when name is not NULL, then "data: JSON\n\n". Takes the reference. */
void spl_exchange_stream_json(spl_exchange *x, const char *name, json_t *value);
void spl_exchange_stream_end(spl_exchange *x);

/* Takes up to n_max bytes of the body; *end tells that nothing follows, *broken that the client must be cut off. */
size_t spl_exchange_take(spl_exchange *x, char *bytes, size_t n_max, bool *end, bool *broken);
/* Marks the client as gone and asks for the engine request's end. Any thread. */
void spl_exchange_abandon(spl_exchange *x);
bool spl_exchange_is_gone(spl_exchange *x);

/* JSON text as every reply prints it; malloc'ed, NULL when memory is short. */
char *spl_json_text(const json_t *value);

#endif
