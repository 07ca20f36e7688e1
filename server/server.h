/* SPDX-License-Identifier: Apache-2.0
 * The HTTP server as its caller sees it: bind, start on a loaded engine, drain, stop. docs/SERVING.md describes
 * the endpoints. Threads: one for connections (libmicrohttpd, epoll), one for engine events, two that prepare
 * requests (parse, render, tokenise); none of them holds a lock while it calls the engine or libmicrohttpd. */
#ifndef SPL_SERVER_SERVER_H
#define SPL_SERVER_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "splash.h"

enum { SPL_DEFAULT_PORT = 8000, SPL_DEFAULT_QUEUE = 32 };

/* Every pointer is borrowed and must outlive the server. */
typedef struct spl_server_options {
    const char *host; /* NULL: 127.0.0.1 */
    uint16_t port;    /* 0: any free port */
    const char *const *allowed_hosts;
    size_t n_allowed_hosts;
    const char *const *allowed_origins;
    size_t n_allowed_origins;
    const char *api_key; /* NULL: no key */
    const char *const *aliases;
    size_t n_aliases;
    bool announce_alias;        /* the first alias is the id that replies carry */
    const char *default_effort; /* reasoning effort of requests that name none; NULL: the template's */
    size_t max_request_bytes;   /* 0: 128 MiB */
    uint32_t queue_size;        /* generations running and waiting; 0: 32 */
    double request_timeout_s;   /* 0: none */
    bool quiet;                 /* no line per request on stderr */
} spl_server_options;

typedef struct spl_server spl_server;

/* Takes the address but does not listen yet, so that a taken port is reported before a model is loaded. */
spl_status spl_server_bind(spl_server **out, const spl_server_options *options, spl_error *err);
/* The port it is bound to. */
uint16_t spl_server_port(const spl_server *server);
/* Listens and starts the threads. The engine stays the caller's and must outlive the server. */
spl_status spl_server_start(spl_server *server, splash_engine *engine, spl_error *err);
/* New work is refused with 503 from here on; what runs goes on. Any thread. */
void spl_server_drain(spl_server *server);
/* True when no generation is running or being sent. Any thread. */
bool spl_server_is_idle(spl_server *server);
/* Cancels what runs, joins the threads, frees everything, sets *server to NULL. Accepts NULL inside. */
void spl_server_stop(spl_server **server);

#endif
