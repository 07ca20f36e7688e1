/* SPDX-License-Identifier: Apache-2.0
 * Latency histograms of the HTTP side and the Prometheus text of /metrics (format 0.0.4). Counters that belong to
 * the engine are read from splash_stats when asked; nothing is counted twice. */
#ifndef SPL_SERVER_METRICS_H
#define SPL_SERVER_METRICS_H

#include <pthread.h>

#include "base/dynbuf.h"
#include "splash.h"

/* stage, help */
#define SPL_STAGES(X)                                                                                                  \
    X(HTTP_REQUEST, "http_request", "From the request head to the end of the reply")                                   \
    X(UPLOAD, "upload", "Receiving the request body")                                                                  \
    X(PREPARATION_QUEUE, "preparation_queue", "Waiting for a preparation thread")                                      \
    X(PREPARATION, "preparation", "Parsing, rendering and tokenising a request")                                       \
    X(TEMPLATE, "template", "Rendering the chat template")                                                             \
    X(TOKENIZATION, "tokenization", "Tokenising the prompt")                                                           \
    X(NATIVE_QUEUE, "native_queue", "Waiting in the engine's queue")                                                   \
    X(HTTP_TTFT, "http_ttft", "From the request head to the first token")                                              \
    X(OUTPUT_INTERVAL, "output_interval", "Between two token events of one request")

typedef enum spl_stage {
#define X(id, name, help) SPL_STAGE_##id,
    SPL_STAGES(X)
#undef X
        SPL_N_STAGES
} spl_stage;

enum { SPL_N_BUCKETS = 18 };

typedef struct spl_histogram {
    uint64_t counts[SPL_N_BUCKETS + 1]; /* last: +Inf */
    double sum_seconds;
} spl_histogram;

typedef struct spl_metrics {
    pthread_mutex_t lock;
    spl_histogram stages[SPL_N_STAGES];
} spl_metrics;

/* What the server knows and the engine does not. */
typedef struct spl_server_gauges {
    bool ready;
    uint32_t pending, preparing, preparation_waiting;
    uint64_t http_rejected;
    uint32_t context_tokens;
} spl_server_gauges;

bool spl_metrics_init(spl_metrics *m);
void spl_metrics_destroy(spl_metrics *m);
/* Any thread. */
void spl_metrics_observe(spl_metrics *m, spl_stage stage, uint64_t elapsed_ns);
void spl_metrics_write(spl_metrics *m, const splash_stats *stats, const splash_model_info *info,
                       const spl_server_gauges *gauges, spl_buf *out);

#endif
