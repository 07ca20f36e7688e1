/* SPDX-License-Identifier: Apache-2.0
 * Who may talk to the server: Host (DNS-rebinding defence), Origin (CORS), key; and the one canonical form of a
 * request path that routing, access and error dialect all use. Pure functions over header values. */
#ifndef SPL_SERVER_ACCESS_H
#define SPL_SERVER_ACCESS_H

#include "server/fields.h"

enum { SPL_PATH_BYTES = 2048 };

typedef struct spl_access_rules {
    const char *bind_host; /* NULL or a wildcard: not an accepted Host by itself */
    const char *const *allowed_hosts;
    size_t n_allowed_hosts;
    const char *const *allowed_origins; /* exact, or "*" */
    size_t n_allowed_origins;
    const char *api_key; /* NULL: open */
} spl_access_rules;

/* Header values of one request; a count above 1 means the header was repeated (value: the first). */
typedef struct spl_access_headers {
    const char *host, *origin, *authorization, *x_api_key;
    unsigned n_host, n_origin, n_authorization, n_x_api_key;
    const char *local_address; /* numeric address the connection arrived at, or NULL */
} spl_access_headers;

/* Host and Origin. On success *cors (static or borrowed from headers) is the value for Access-Control-Allow-Origin,
 * or NULL when none is due. Failure: 403 forbidden. */
bool spl_access_origin(const spl_access_rules *rules, const spl_access_headers *h, const char **cors, spl_reject *r);
/* Key. Failure: 401 authentication_error. Not to be called for public paths. */
bool spl_access_key(const spl_access_rules *rules, const spl_access_headers *h, spl_reject *r);

/* Canonical path of a request target: cut at '?' and '#', percent-decoded, empty and "." segments dropped, ".."
 * resolved, one trailing '/' kept. false: it holds a NUL or does not fit. */
bool spl_canonical_path(const char *target, char *out, size_t out_bytes);

#endif
