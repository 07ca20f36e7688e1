/* SPDX-License-Identifier: Apache-2.0
 * Private to bench: a small HTTP/1.1 client for measuring a server: one POST per connection, the reply read as
 * server-sent events while it arrives. Numeric or named hosts, no TLS, no proxies. */
#ifndef SPL_BENCH_BENCH_HTTP_H
#define SPL_BENCH_BENCH_HTTP_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct spl_http_address {
    char host[256], port[8];
} spl_http_address;

/* "http://HOST[:PORT][/...]"; the path is ignored. Errors: SPL_E_INVALID. */
spl_status spl_http_address_read(spl_http_address *out, const char *url, spl_error *err);

/* One event's data, NUL-terminated, and when it arrived (spl_now_ns). Not SPL_OK ends the exchange with that error. */
typedef spl_status (*spl_http_event)(void *user, const char *data, size_t n_bytes, uint64_t at_ns, spl_error *err);

/* Sends `body` as application/json to `path` and reports every event of the reply until its end. Blocks for at most
 * timeout_ms without a byte. Errors: SPL_E_IO (connection, or a status other than 200, with the reply's start),
 * SPL_E_TIMEOUT, SPL_E_FORMAT, and what `event` returns. */
spl_status spl_http_post_events(const spl_http_address *address, const char *path, const char *body, size_t n_bytes,
                                int timeout_ms, spl_http_event event, void *user, spl_error *err);

#endif
