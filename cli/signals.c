/* SPDX-License-Identifier: Apache-2.0
 * Signal flag with a pipe behind it, so that a wait cannot miss a signal. */
#include "cli/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t pending;
static int pipe_fds[2] = {-1, -1};

static void on_signal(int number) {
    int saved = errno;
    pending = number;
    if (pipe_fds[1] >= 0 && write(pipe_fds[1], "", 1) < 0) pending = number; /* a full pipe wakes the reader as well */
    errno = saved;
}

void spl_signals_catch(void) {
    if (pipe_fds[0] < 0 && pipe(pipe_fds) == 0) {
        for (int i = 0; i < 2; i++) {
            (void)fcntl(pipe_fds[i], F_SETFD, FD_CLOEXEC);
            (void)fcntl(pipe_fds[i], F_SETFL, O_NONBLOCK);
        }
    }
    struct sigaction action = {.sa_handler = on_signal}; /* no SA_RESTART: a blocked read returns */
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
}

int spl_signal_pending(void) { return pending; }

void spl_signal_clear(void) {
    char bytes[16];
    pending = 0;
    while (pipe_fds[0] >= 0 && read(pipe_fds[0], bytes, sizeof bytes) > 0) continue;
}

int spl_signal_exit_code(int signal_number) { return 128 + signal_number; }

int spl_signal_wait(int timeout_ms) {
    struct pollfd p = {.fd = pipe_fds[0], .events = POLLIN};
    if (pending) return pending;
    (void)poll(&p, 1, timeout_ms);
    return pending;
}
