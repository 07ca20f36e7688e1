/* SPDX-License-Identifier: Apache-2.0
 * Progress display. */
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/signals.h"

enum { BAR_WIDTH = 30 };
static const uint64_t BAR_NS = 100000000u, LINE_NS = 5000000000u;

void spl_progress_init(spl_progress *p) {
    *p = (spl_progress){0};
    p->is_terminal = isatty(STDERR_FILENO) == 1;
}

static void format_time(double seconds, char *out, size_t n) {
    if (seconds > 359999) seconds = 359999;
    unsigned s = (unsigned)(seconds + 0.5);
    if (s >= 3600)
        (void)snprintf(out, n, "%u:%02u:%02u", s / 3600, s / 60 % 60, s % 60);
    else
        (void)snprintf(out, n, "%u:%02u", s / 60, s % 60);
}

static void print_bar(const spl_progress *p, double share, double rate, double left_s) {
    char bar[BAR_WIDTH + 1], left[32];
    int filled = (int)(share * BAR_WIDTH);
    for (int i = 0; i < BAR_WIDTH; i++) bar[i] = i < filled ? '#' : '.';
    bar[BAR_WIDTH] = 0;
    format_time(left_s, left, sizeof left);
    (void)fprintf(stderr, "\r%-18.18s [%s] %3.0f %%  %7.1f MB/s  %s left\033[K", p->stage, bar, share * 100,
                  rate * 1e-6, left);
    (void)fflush(stderr);
}

bool spl_progress_step(void *user, const char *stage, uint64_t done, uint64_t total) {
    spl_progress *p = user;
    uint64_t now = spl_now_ns();
    bool fresh = strncmp(p->stage, stage, sizeof p->stage - 1) != 0;
    if (fresh) {
        spl_progress_end(p);
        (void)snprintf(p->stage, sizeof p->stage, "%s", stage);
        p->stage_start_ns = now;
        p->first_done = done;
        p->last_print_ns = 0;
    }
    bool last = total > 0 && done >= total;
    if (fresh || last || now - p->last_print_ns >= (p->is_terminal ? BAR_NS : LINE_NS)) {
        double share = total ? (double)done / (double)total : 0;
        double seconds = (double)(now - p->stage_start_ns) * 1e-9;
        double rate = seconds > 0 ? (double)(done - p->first_done) / seconds : 0;
        double left = rate > 0 && total > done ? (double)(total - done) / rate : 0;
        p->last_print_ns = now;
        if (share > 1) share = 1;
        if (p->is_terminal) {
            print_bar(p, share, rate, left);
            p->line_open = true;
        } else {
            (void)fprintf(stderr, "%s: %.0f %% of %.1f MB, %.1f MB/s\n", p->stage, share * 100, (double)total * 1e-6,
                          rate * 1e-6);
        }
    }
    return spl_signal_pending() != 0;
}

void spl_progress_end(spl_progress *p) {
    if (p->line_open) (void)fputc('\n', stderr);
    p->line_open = false;
}
