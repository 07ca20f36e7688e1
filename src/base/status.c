/* SPDX-License-Identifier: Apache-2.0
 * Error texts. Owns nothing; every function writes only into the caller's spl_error. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#ifdef SPL_DEBUG
#include <stdlib.h>
#endif

static void one_line(char *text) {
    for (; *text; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = ' ';
    }
}

spl_status spl_fail(spl_error *err, spl_status code, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        one_line(err->text);
        err->code = code;
    }
    return code;
}

static spl_status status_of_errno(int errno_value) {
    switch (errno_value) {
    case ENOSPC:
    case EDQUOT: return SPL_E_NOSPACE;
    case ENOMEM: return SPL_E_NOMEM;
    case ENOENT: return SPL_E_NOTFOUND;
    default: return SPL_E_IO;
    }
}

spl_status spl_fail_errno(spl_error *err, int errno_value, const char *format, ...) {
    spl_status code = status_of_errno(errno_value);
    if (err) {
        va_list args;
        va_start(args, format);
        int n = vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        size_t used = n < 0 ? 0 : (size_t)n;
        if (used < sizeof err->text)
            (void)snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(errno_value));
        one_line(err->text);
        err->code = code;
    }
    return code;
}

spl_status spl_fail_within(spl_error *err, const char *format, ...) {
    if (!err) return SPL_E_INTERNAL;
    char prefix[SPL_ERROR_TEXT_BYTES];
    char old[SPL_ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    memcpy(old, err->text, sizeof old);
    size_t used = strlen(prefix);
    if (used > sizeof err->text - 3) used = sizeof err->text - 3;
    memcpy(err->text, prefix, used);
    memcpy(err->text + used, ": ", 2);
    size_t room = sizeof err->text - used - 3;
    size_t keep = strlen(old);
    if (keep > room) keep = room;
    memcpy(err->text + used + 2, old, keep);
    err->text[used + 2 + keep] = '\0';
    one_line(err->text);
    return err->code;
}

const char *spl_status_text(spl_status code) {
    switch (code) {
    case SPL_OK: return "ok";
#define X(name, value, text)                                                                                           \
    case SPL_E_##name: return text;
        SPL_STATUS_LIST(X)
#undef X
    }
    return "unknown error";
}

#ifdef SPL_DEBUG
void spl_assert_failed(const char *condition, const char *file, int line) {
    (void)fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, condition); /* debug builds only */
    abort();
}
#endif
