/* SPDX-License-Identifier: Apache-2.0
 * Private to src/api: what an opened engine holds, and how events travel from the engine thread to the
 * one thread that reads them. */
#ifndef SPL_API_API_INTERNAL_H
#define SPL_API_API_INTERNAL_H

#include <pthread.h>

#include "engine/engine.h"
#include "splash.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

/* One event with the bytes its pointers name. */
typedef struct spl_api_event {
    struct spl_api_event *next;
    splash_event event;
    char *text, *arguments; /* owned */
    splash_logprob top[SPL_MAX_TOP_LOGPROBS];
} spl_api_event;

struct splash_engine {
    spl_package *package;     /* NULL in a random-weights engine without files */
    spl_tokenizer *tokenizer; /* NULL when the package has none */
    spl_chat_kind chat_kind;
    spl_engine *engine;
    const char *tier_name;
    uint32_t n_threads;
    spl_package_defaults defaults;

    pthread_mutex_t lock; /* guards the queue and the list of live requests */
    pthread_cond_t arrived;
    spl_api_event *first, *last;
    splash_request *live; /* requests whose last event was not yet returned */
    bool closing;
    spl_api_event *returned; /* the event whose pointers the reader may still use */
};

/* Copies an error to the public form and returns its code. */
splash_status spl_api_error(splash_error *out, const spl_error *err);

/* Appends an event; takes ownership of it. Any thread. */
void spl_api_post(splash_engine *e, spl_api_event *ev);
/* Frees an event and, after a request's last one, the request. */
void spl_api_event_free(splash_engine *e, spl_api_event *ev);
void spl_api_request_free(splash_request *r);

#endif
