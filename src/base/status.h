/* SPDX-License-Identifier: Apache-2.0
 * The one error convention: 0 is success, codes are negative, the text of an error travels in a
 * spl_error owned by the caller and names the thing, the limit and the remedy in one line. */
#ifndef SPL_BASE_STATUS_H
#define SPL_BASE_STATUS_H

#include "base/compiler.h"

/* name, value, short text. The values equal splash_status in include/splash.h. */
#define SPL_STATUS_LIST(X)                                                                                             \
    X(NOMEM, -1, "out of memory")                                                                                      \
    X(INVALID, -2, "invalid argument")                                                                                 \
    X(IO, -3, "input/output error")                                                                                    \
    X(FORMAT, -4, "malformed file or text")                                                                            \
    X(GEOMETRY, -5, "model geometry not supported")                                                                    \
    X(CONTEXT, -6, "prompt longer than the context")                                                                   \
    X(BUSY, -7, "queue full")                                                                                          \
    X(LIMIT, -8, "limit exceeded")                                                                                     \
    X(CANCELLED, -9, "cancelled")                                                                                      \
    X(UNSUPPORTED, -10, "not supported")                                                                               \
    X(NOSPACE, -11, "no space left on the disk")                                                                       \
    X(NOTFOUND, -12, "not found")                                                                                      \
    X(CORRUPT, -13, "contents do not match their checksum")                                                            \
    X(TIMEOUT, -14, "timed out")                                                                                       \
    X(INTERNAL, -15, "internal error")

typedef enum spl_status {
    SPL_OK = 0,
#define X(name, value, text) SPL_E_##name = value,
    SPL_STATUS_LIST(X)
#undef X
} spl_status;

enum { SPL_ERROR_TEXT_BYTES = 512 };

typedef struct spl_error {
    spl_status code;
    char text[SPL_ERROR_TEXT_BYTES]; /* one line, no newline, NUL-terminated */
} spl_error;

/* Stores `code` and the formatted line in *err (err may be NULL) and returns `code`. */
spl_status spl_fail(spl_error *err, spl_status code, const char *format, ...) SPL_PRINTF(3, 4);

/* As spl_fail for a failed system call: appends ": " and the text of `errno_value`; ENOSPC and
 * EDQUOT become SPL_E_NOSPACE, ENOMEM SPL_E_NOMEM, ENOENT SPL_E_NOTFOUND, the rest SPL_E_IO. */
spl_status spl_fail_errno(spl_error *err, int errno_value, const char *format, ...) SPL_PRINTF(3, 4);

/* Puts "prefix: " in front of the text already in *err; returns err's code. */
spl_status spl_fail_within(spl_error *err, const char *format, ...) SPL_PRINTF(2, 3);

/* Short English text of a code; never NULL. */
const char *spl_status_text(spl_status code);

/* Our own invariants: checked in debug and test builds, compiled out in releases. */
#ifdef SPL_DEBUG
_Noreturn void spl_assert_failed(const char *condition, const char *file, int line);
#define SPL_ASSERT(c) ((c) ? (void)0 : spl_assert_failed(#c, __FILE__, __LINE__))
#else
#define SPL_ASSERT(c) ((void)sizeof(c))
#endif

#endif
