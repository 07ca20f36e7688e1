/* SPDX-License-Identifier: Apache-2.0
 * The stop-string automaton: a trie with failure links. A node stands for the longest end of the
 * text that begins some stop string; its bytes are the first `depth` bytes of that string. */
#include "text/stop_text.h"

#include <stdlib.h>
#include <string.h>

typedef struct stop_node {
    uint32_t child;   /* first child, 0: none */
    uint32_t sibling; /* next child of the same parent, 0: none */
    uint32_t fail;    /* the longest proper end that is a node too */
    uint32_t depth;
    uint16_t string; /* a string whose beginning this node is */
    int16_t match;   /* the longest stop string that ends here, or -1 */
    uint8_t byte;
} stop_node;

struct spl_stop_set {
    stop_node *nodes; /* nodes[0] is the root */
    size_t n_nodes;
    char *strings[SPL_STOP_MAX_STRINGS];
    size_t length[SPL_STOP_MAX_STRINGS];
    size_t n_strings;
};

static uint32_t child_of(const spl_stop_set *set, uint32_t node, uint8_t byte) {
    uint32_t child = set->nodes[node].child;
    while (child && set->nodes[child].byte != byte) child = set->nodes[child].sibling;
    return child;
}

static uint32_t advance(const spl_stop_set *set, uint32_t node, uint8_t byte) {
    for (;;) {
        uint32_t child = child_of(set, node, byte);
        if (child || node == 0) return child;
        node = set->nodes[node].fail;
    }
}

static void insert(spl_stop_set *set, size_t string) {
    uint32_t node = 0;
    for (size_t i = 0; i < set->length[string]; i++) {
        uint8_t byte = (uint8_t)set->strings[string][i];
        uint32_t child = child_of(set, node, byte);
        if (!child) {
            child = (uint32_t)set->n_nodes++;
            set->nodes[child] = (stop_node){.sibling = set->nodes[node].child,
                                            .depth = (uint32_t)i + 1,
                                            .string = (uint16_t)string,
                                            .match = -1,
                                            .byte = byte};
            set->nodes[node].child = child;
        }
        node = child;
    }
    if (set->nodes[node].match < 0) set->nodes[node].match = (int16_t)string;
}

/* Failure links in breadth-first order; `queue` has room for every node. */
static void link_failures(spl_stop_set *set, uint32_t *queue) {
    size_t head = 0;
    size_t tail = 0;
    queue[tail++] = 0;
    while (head < tail) {
        uint32_t node = queue[head++];
        for (uint32_t c = set->nodes[node].child; c; c = set->nodes[c].sibling) {
            uint32_t fail = node ? advance(set, set->nodes[node].fail, set->nodes[c].byte) : 0;
            set->nodes[c].fail = fail;
            if (set->nodes[c].match < 0) set->nodes[c].match = set->nodes[fail].match;
            queue[tail++] = c;
        }
    }
}

spl_status spl_stop_set_new(spl_stop_set **out, const char *const *strings, size_t n, spl_error *err) {
    size_t total = 1;
    *out = NULL;
    if (n == 0) return SPL_OK;
    if (n > SPL_STOP_MAX_STRINGS)
        return spl_fail(err, SPL_E_INVALID, "%zu stop strings; at most %d are allowed", n, SPL_STOP_MAX_STRINGS);
    for (size_t i = 0; i < n; i++) {
        size_t length = strlen(strings[i]);
        if (length == 0 || length > SPL_STOP_MAX_BYTES)
            return spl_fail(err, SPL_E_INVALID, "stop string %zu has %zu bytes; 1 to %d are allowed", i, length,
                            SPL_STOP_MAX_BYTES);
        total += length;
    }
    spl_stop_set *set = calloc(1, sizeof *set);
    uint32_t *queue = malloc(total * sizeof *queue);
    bool fine = set && queue;
    if (fine) {
        set->nodes = calloc(total, sizeof *set->nodes);
        fine = set->nodes != NULL;
    }
    for (size_t i = 0; fine && i < n; i++) {
        set->length[i] = strlen(strings[i]);
        set->strings[i] = malloc(set->length[i] + 1);
        fine = set->strings[i] != NULL;
        if (fine) memcpy(set->strings[i], strings[i], set->length[i] + 1);
        set->n_strings = i + 1;
    }
    if (fine) {
        set->nodes[0].match = -1;
        set->n_nodes = 1;
        for (size_t i = 0; i < n; i++) insert(set, i);
        link_failures(set, queue);
        *out = set;
    } else {
        spl_stop_set_free(set);
    }
    free(queue);
    return fine ? SPL_OK : spl_fail(err, SPL_E_NOMEM, "no memory for the stop strings");
}

void spl_stop_set_free(spl_stop_set *set) {
    if (!set) return;
    for (size_t i = 0; i < set->n_strings; i++) free(set->strings[i]);
    free(set->nodes);
    free(set);
}

int spl_stop_feed(const spl_stop_set *set, spl_stop_state *state, const char *p, size_t n_bytes, spl_buf *out,
                  size_t *used) {
    *used = 0;
    if (state->stopped) return -1;
    if (!set) {
        (void)spl_buf_append(out, p, n_bytes);
        *used = n_bytes;
        return -1;
    }
    /* `held` bytes are the path to the node; those that came from earlier calls are read from the
     * string the path belongs to, the others still stand in p. */
    stop_node start = set->nodes[state->node];
    const char *old = set->strings[start.string];
    size_t n_old = start.depth;
    uint32_t node = state->node;
    int match = -1;
    size_t i = 0;
    while (match < 0 && i < n_bytes) {
        node = advance(set, node, (uint8_t)p[i++]);
        match = set->nodes[node].match;
    }
    size_t keep = match < 0 ? set->nodes[node].depth : set->length[match];
    size_t safe = n_old + i - keep;
    if (safe) {
        size_t from_old = safe < n_old ? safe : n_old;
        (void)spl_buf_append(out, old, from_old);
        (void)spl_buf_append(out, p, safe - from_old);
    }
    state->node = match < 0 ? node : 0;
    state->stopped = match >= 0;
    *used = i;
    return match;
}

spl_status spl_stop_flush(const spl_stop_set *set, spl_stop_state *state, spl_buf *out) {
    if (set && !state->stopped) {
        const stop_node *node = &set->nodes[state->node];
        (void)spl_buf_append(out, set->strings[node->string], node->depth);
    }
    state->node = 0;
    return out->status;
}

size_t spl_stop_held(const spl_stop_set *set, const spl_stop_state *state) {
    return set ? set->nodes[state->node].depth : 0;
}
