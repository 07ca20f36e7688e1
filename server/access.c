/* SPDX-License-Identifier: Apache-2.0
 * Access rules; see access.h. The port of a Host header is never compared: the defence is about names. */
#include "server/access.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { HOST_BYTES = 256 };

static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

/* Splits "host[:port]" or "[v6][:port]"; host lower-cased, without brackets and trailing dot. */
static bool parse_authority(const char *s, size_t n, char host[HOST_BYTES], unsigned *port) {
    size_t n_host, i;
    *port = 0;
    if (n == 0) return false;
    const char *rest;
    if (s[0] == '[') {
        const char *close = memchr(s, ']', n);
        if (!close) return false;
        n_host = (size_t)(close - s) - 1;
        rest = close + 1;
        s++;
    } else {
        const char *colon = memchr(s, ':', n);
        n_host = colon ? (size_t)(colon - s) : n;
        rest = s + n_host;
    }
    if (n_host == 0 || n_host >= HOST_BYTES) return false;
    for (i = 0; i < n_host; i++) {
        if ((unsigned char)s[i] <= ' ' || s[i] == '/' || s[i] == '@' || s[i] == 0x7f) return false;
        host[i] = lower(s[i]);
    }
    if (n_host > 1 && host[n_host - 1] == '.') n_host--;
    host[n_host] = 0;
    if (*rest == 0) return true;
    if (*rest != ':' || strlen(rest) > 6) return false;
    for (rest++; *rest; rest++) {
        if (*rest < '0' || *rest > '9') return false;
        *port = *port * 10 + (unsigned)(*rest - '0');
    }
    return *port <= 65535;
}

static bool is_wildcard(const char *host) {
    return !host || !*host || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 || strcmp(host, "*") == 0;
}

static bool host_allowed(const spl_access_rules *rules, const char *host, const char *local_address) {
    static const char *const always[] = {"localhost", "127.0.0.1", "::1"};
    for (size_t i = 0; i < SPL_COUNT(always); i++)
        if (strcmp(host, always[i]) == 0) return true;
    if (!is_wildcard(rules->bind_host) && strcasecmp(host, rules->bind_host) == 0) return true;
    if (local_address && strcasecmp(host, local_address) == 0) return true;
    for (size_t i = 0; i < rules->n_allowed_hosts; i++)
        if (strcasecmp(host, rules->allowed_hosts[i]) == 0) return true;
    return false;
}

static bool origin_allowed(const spl_access_rules *rules, const char *origin, const char *host, unsigned host_port,
                           const char **cors, spl_reject *r) {
    char name[HOST_BYTES];
    unsigned port = 0, default_port = 0;
    const char *authority = NULL;
    *cors = NULL;
    if (strncmp(origin, "http://", 7) == 0) {
        authority = origin + 7;
        default_port = 80;
    } else if (strncmp(origin, "https://", 8) == 0) {
        authority = origin + 8;
        default_port = 443;
    }
    bool null_origin = strcmp(origin, "null") == 0;
    bool well_formed = authority && parse_authority(authority, strlen(authority), name, &port);
    /* Schemes of browser extensions and desktop shells: compared as text only. */
    if (!authority && !null_origin) well_formed = strstr(origin, "://") != NULL && !strpbrk(origin, " \t");
    if (!well_formed && !null_origin)
        return spl_reject_set(r, 403, "forbidden", "the Origin header '%.100s' is malformed", origin);
    if (default_port == 80 && authority && strcmp(name, host) == 0 &&
        (port ? port : 80) == (host_port ? host_port : 80))
        return true;
    for (size_t i = 0; i < rules->n_allowed_origins; i++) {
        if (strcmp(rules->allowed_origins[i], "*") == 0) {
            *cors = "*";
            return true;
        }
        if (!null_origin && strcmp(rules->allowed_origins[i], origin) == 0) {
            *cors = origin;
            return true;
        }
    }
    return spl_reject_set(r, 403, "forbidden",
                          "origin '%.100s' is not allowed; start the server with --allowed-origin %.100s", origin,
                          origin);
}

bool spl_access_origin(const spl_access_rules *rules, const spl_access_headers *h, const char **cors, spl_reject *r) {
    char host[HOST_BYTES];
    unsigned port;
    *cors = NULL;
    if (h->n_host != 1) return spl_reject_set(r, 403, "forbidden", "exactly one Host header is required");
    if (h->n_origin > 1) return spl_reject_set(r, 403, "forbidden", "at most one Origin header is allowed");
    if (!parse_authority(h->host, strlen(h->host), host, &port))
        return spl_reject_set(r, 403, "forbidden", "the Host header '%.100s' is malformed", h->host);
    if (!host_allowed(rules, host, h->local_address))
        return spl_reject_set(r, 403, "forbidden",
                              "host '%.100s' is not served here; start the server with --allowed-host %.100s", host,
                              host);
    if (!h->n_origin) return true;
    return origin_allowed(rules, h->origin, host, port, cors, r);
}

/* Time does not depend on where the texts differ; the key's length is no secret. */
static bool same_key(const char *given, const char *key) {
    size_t n = strlen(key), n_given = strlen(given);
    unsigned char difference = (unsigned char)(n != n_given);
    for (size_t i = 0; i < n; i++) difference |= (unsigned char)(key[i] ^ given[i < n_given ? i : 0]);
    return n_given > 0 && difference == 0;
}

bool spl_access_key(const spl_access_rules *rules, const spl_access_headers *h, spl_reject *r) {
    if (!rules->api_key) return true;
    if (h->n_authorization + h->n_x_api_key == 0)
        return spl_reject_set(r, 401, "authentication_error",
                              "this server needs a key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
    bool ok = h->n_authorization <= 1 && h->n_x_api_key <= 1;
    if (h->n_authorization) {
        const char *a = h->authorization;
        bool bearer = strncasecmp(a, "Bearer ", 7) == 0;
        if (bearer) a += 7 + strspn(a + 7, " ");
        if (!same_key(bearer ? a : "", rules->api_key)) ok = false;
    }
    if (h->n_x_api_key && !same_key(h->x_api_key, rules->api_key)) ok = false;
    return ok ? true
              : spl_reject_set(r, 401, "authentication_error", "the key is not the one this server was started with");
}

/* ---- paths --------------------------------------------------------------------------------- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes up to '?' or '#'; false for a NUL or a path that does not fit. */
static bool decode_path(const char *target, char *out, size_t out_bytes, size_t *n_out) {
    size_t n = 0;
    for (const char *p = target; *p && *p != '?' && *p != '#'; p++) {
        char c = *p;
        if (c == '%' && hex_digit(p[1]) >= 0 && hex_digit(p[2]) >= 0) {
            c = (char)(hex_digit(p[1]) << 4 | hex_digit(p[2]));
            p += 2;
            if (c == 0) return false;
        }
        if (n == out_bytes) return false;
        out[n++] = c;
    }
    *n_out = n;
    return true;
}

bool spl_canonical_path(const char *target, char *out, size_t out_bytes) {
    char raw[SPL_PATH_BYTES];
    size_t n = 0, w = 0;
    if (!decode_path(target, raw, sizeof raw - 2, &n)) return false;
    if (out_bytes < n + 3) return false;
    for (size_t i = 0; i < n;) {
        while (i < n && raw[i] == '/') i++;
        size_t from = i;
        while (i < n && raw[i] != '/') i++;
        size_t len = i - from;
        if (len == 0 || (len == 1 && raw[from] == '.')) continue;
        if (len == 2 && raw[from] == '.' && raw[from + 1] == '.') {
            while (w > 0 && out[--w] != '/') continue;
            continue;
        }
        out[w++] = '/';
        memcpy(out + w, raw + from, len);
        w += len;
    }
    if (w == 0 || raw[n - 1] == '/') out[w++] = '/';
    out[w] = 0;
    return true;
}
