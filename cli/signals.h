/* SPDX-License-Identifier: Apache-2.0
 * SIGINT and SIGTERM as a flag that long work polls. */
#ifndef SPL_CLI_SIGNALS_H
#define SPL_CLI_SIGNALS_H

#include <stdbool.h>

/* Catches both from here on. SIGINT inherited as ignored (background shells) is caught too. */
void spl_signals_catch(void);
/* The last signal that came and was not taken yet, or 0. */
int spl_signal_pending(void);
/* Forgets it. */
void spl_signal_clear(void);
/* 130 for SIGINT, 143 for SIGTERM. */
int spl_signal_exit_code(int signal_number);
/* Waits up to timeout_ms for a signal (negative: for ever); returns it and leaves it pending, or 0. */
int spl_signal_wait(int timeout_ms);

#endif
