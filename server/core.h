/* SPDX-License-Identifier: Apache-2.0
 * The server's own state, shared by http.c (connections), server.c (lifecycle and threads) and the routes. `lock`
 * guards the exchange list, the gates and the preparation queue. Lock order: server lock before exchange lock is never
 * needed; no thread holds two locks. */
#ifndef SPL_SERVER_CORE_H
#define SPL_SERVER_CORE_H

#include <stdatomic.h>
#include <time.h>

#include "server/exchange.h"
#include "server/gen_fields.h"
#include "server/metrics.h"
#include "server/server.h"

enum { SPL_N_PREPARERS = 2 };

struct MHD_Daemon;

struct spl_server {
    spl_server_options options;
    spl_access_rules access;
    char host_text[64]; /* numeric address bound */
    uint16_t port;
    int listen_fd;
    splash_engine *engine;
    splash_model_info info;
    spl_gen_limits limits;
    const char *reply_model; /* id that replies carry */
    char instance_id[SPL_PID_BYTES];
    time_t started_at;
    spl_metrics metrics;
    _Atomic(struct MHD_Daemon *) daemon; /* the HTTP thread may run before it is stored */
    uint64_t input_budget_bytes;

    pthread_mutex_t lock;
    pthread_cond_t queue_filled;
    spl_exchange *exchanges;               /* all that live */
    spl_exchange *queue_head, *queue_tail; /* waiting for preparation */
    uint32_t active[SPL_N_ROUTE_KINDS];    /* admitted per gate */
    uint32_t n_queued, n_preparing;
    uint64_t input_bytes; /* uploads in memory */
    uint64_t n_rejected;
    pthread_mutex_t log_lock;
    uint64_t n_log_dropped; /* guarded by log_lock */

    atomic_bool draining, stopping;
    atomic_bool warned_draft; /* that not one proposal was accepted */
    pthread_t event_thread, preparers[SPL_N_PREPARERS];
    unsigned n_preparers;
    bool event_thread_runs;
};

/* http.c: the daemon on server->listen_fd. */
spl_status spl_http_start(spl_server *server, spl_error *err);
void spl_http_stop(spl_server *server);
uint32_t spl_http_connections(spl_server *server);

/* routes.c: the row for a method and canonical path. NULL: *path_known tells 404 from 501/404. */
const spl_route *spl_route_find(const char *method, const char *path);
spl_dialect spl_dialect_of(const char *path);

/* Exchanges. create takes a reference for the HTTP side; NULL when memory is short. */
spl_exchange *spl_exchange_create(spl_server *server, const char *target);
/* One more of `kind`: false when its gate is full. */
bool spl_server_admit(spl_server *server, spl_exchange *x);
/* Reserves upload memory; false when the shared budget is used up. */
bool spl_server_charge(spl_server *server, spl_exchange *x, size_t n_bytes);
/* Hands an exchange whose body is complete to the preparation threads. */
void spl_server_enqueue(spl_server *server, spl_exchange *x);
void spl_server_count_rejected(spl_server *server, const spl_exchange *x, const spl_reject *why);
/* One line on stderr unless quiet; dropped when stderr is not being read. */
void spl_server_log(spl_server *server, const char *format, ...) SPL_PRINTF(2, 3);
/* Random bytes from the system as lower-case hex; n_digits + 1 bytes are written. */
void spl_random_hex(char *out, size_t n_digits);
uint64_t spl_random_u64(void);

#endif
