/* SPDX-License-Identifier: Apache-2.0
 * Progress on stderr: a bar with rate and time left on a terminal, a plain line now and then otherwise. */
#ifndef SPL_CLI_PROGRESS_H
#define SPL_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct spl_progress {
    bool is_terminal, line_open;
    char stage[64];
    uint64_t stage_start_ns, last_print_ns;
    uint64_t first_done;
} spl_progress;

void spl_progress_init(spl_progress *p);
/* Fits the callbacks of splash.h; `user` is the spl_progress. True (give up) once a signal came. */
bool spl_progress_step(void *user, const char *stage, uint64_t done, uint64_t total);
/* Ends an open bar. */
void spl_progress_end(spl_progress *p);

#endif
