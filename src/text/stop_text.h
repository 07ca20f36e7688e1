/* SPDX-License-Identifier: Apache-2.0
 * Stop strings in streamed text. The scanner lets through all text that cannot belong to a stop
 * string any more and holds back the longest end that still may. The first stop string that is
 * complete ends the text; of several that end at the same byte the longest counts. Matching is
 * Aho and Corasick's automaton, so a state is one number. */
#ifndef SPL_TEXT_STOP_TEXT_H
#define SPL_TEXT_STOP_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dynbuf.h"
#include "base/status.h"

enum {
    SPL_STOP_MAX_STRINGS = 64,
    SPL_STOP_MAX_BYTES = 4096, /* of one string */
};

typedef struct spl_stop_set spl_stop_set; /* read-only after creation; NULL stands for no strings */

/* Plain data: copy it to save the position, copy it back to return. Start with {0}. */
typedef struct spl_stop_state {
    uint32_t node; /* what is held back: the path to this node */
    bool stopped;
} spl_stop_state;

/* Builds a set from n strings (n 0 gives NULL). An empty string or one beyond the limits is SPL_E_INVALID. */
spl_status spl_stop_set_new(spl_stop_set **out, const char *const *strings, size_t n, spl_error *err);
void spl_stop_set_free(spl_stop_set *set); /* accepts NULL */

/* Reads n_bytes more and appends what is safe to `out`. Returns the index of the stop string that
 * was completed, or -1. At a match the text in front of it has been appended, *used tells how many
 * bytes of p were read, and the state refuses more text. out->status says whether memory sufficed. */
int spl_stop_feed(const spl_stop_set *set, spl_stop_state *state, const char *p, size_t n_bytes, spl_buf *out,
                  size_t *used);
/* Ends the text: appends what was held back. */
spl_status spl_stop_flush(const spl_stop_set *set, spl_stop_state *state, spl_buf *out);
/* Number of bytes held back. */
size_t spl_stop_held(const spl_stop_set *set, const spl_stop_state *state);

#endif
