/* SPDX-License-Identifier: Apache-2.0
 * Prometheus text. One line per metric below: name after "splash_", type, help, value. */
#include "server/metrics.h"

#include <string.h>

static const double BOUNDS[SPL_N_BUCKETS] = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                             2.5,   5,     10,   30,    60,   120, 300,  900, 1800};
static const char *const BOUND_TEXT[SPL_N_BUCKETS] = {"0.001", "0.005", "0.01",  "0.025", "0.05",  "0.1",
                                                      "0.25",  "0.5",   "1.0",   "2.5",   "5.0",   "10.0",
                                                      "30.0",  "60.0",  "120.0", "300.0", "900.0", "1800.0"};

bool spl_metrics_init(spl_metrics *m) {
    memset(m->stages, 0, sizeof m->stages);
    return pthread_mutex_init(&m->lock, NULL) == 0;
}

void spl_metrics_destroy(spl_metrics *m) { (void)pthread_mutex_destroy(&m->lock); }

void spl_metrics_observe(spl_metrics *m, spl_stage stage, uint64_t elapsed_ns) {
    double seconds = (double)elapsed_ns * 1e-9;
    int i = 0;
    while (i < SPL_N_BUCKETS && seconds > BOUNDS[i]) i++;
    (void)pthread_mutex_lock(&m->lock);
    m->stages[stage].counts[i]++;
    m->stages[stage].sum_seconds += seconds;
    (void)pthread_mutex_unlock(&m->lock);
}

static void put(spl_buf *out, const char *name, const char *type, const char *help, double value) {
    (void)spl_buf_printf(out, "# HELP splash_%s %s\n# TYPE splash_%s %s\nsplash_%s %.15g\n", name, help, name, type,
                         name, value);
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

static void put_engine(spl_buf *out, const splash_stats *s, const splash_model_info *info) {
    double prefill_s = (double)s->prefill_ns_total * 1e-9, decode_s = (double)s->decode_ns_total * 1e-9;
    double computed = (double)(s->prompt_tokens_total - s->cached_tokens_total);
    const splash_memory_plan *plan = &info->plan;
    double limit = (double)plan->limit_bytes, total = (double)plan->total_bytes;
#define COUNTER(name, help, value) put(out, name, "counter", help, (double)(value))
#define GAUGE(name, help, value) put(out, name, "gauge", help, (double)(value))
    COUNTER("requests_submitted_total", "Requests the engine took", s->requests_total);
    COUNTER("requests_completed_total", "Requests that ended with a reply",
            s->requests_total - s->requests_failed - s->requests_cancelled - s->running - s->waiting);
    COUNTER("requests_cancelled_total", "Requests cancelled", s->requests_cancelled);
    COUNTER("requests_failed_total", "Requests that failed in the engine", s->requests_failed);
    GAUGE("scheduler_queued", "Requests waiting to start", s->waiting);
    GAUGE("scheduler_decoding", "Requests started and not finished, prefill included", s->running);
    COUNTER("scheduler_prefill_batches_total", "Prefill chunks run", s->prefill_chunks_total);
    COUNTER("scheduler_decode_batches_total", "Decode steps run", s->decode_steps_total);
    GAUGE("kv_pages_allocated", "KV pages of the pool", s->kv_pages_total);
    GAUGE("kv_pages_active", "KV pages held by requests and the prefix cache", s->kv_pages_used);
    GAUGE("kv_free_allocated_pages", "KV pages free", s->kv_pages_total - s->kv_pages_used);
    GAUGE("kv_allocated_bytes", "Bytes of the KV pool", plan->kv_bytes);
    GAUGE("state_bytes", "Bytes of recurrent states and snapshots", plan->state_bytes);
    COUNTER("cache_reused_tokens_total", "Prompt tokens taken from the prefix cache", s->cached_tokens_total);
    COUNTER("target_prefill_rows_total", "Prompt tokens computed", computed);
    GAUGE("memory_current_bytes", "Bytes of the memory plan", total);
    GAUGE("memory_limit_bytes", "Memory limit of the plan", limit);
    GAUGE("memory_headroom_bytes", "Limit less plan", limit > total ? limit - total : 0);
    COUNTER("prefill_input_tokens_total", "Prompt tokens, cached ones included", s->prompt_tokens_total);
    COUNTER("prefill_wall_milliseconds_total", "Time spent in prefill", prefill_s * 1e3);
    GAUGE("prefill_tokens_per_second", "Computed prompt tokens per second of prefill", ratio(computed, prefill_s));
    COUNTER("decode_output_tokens_total", "Generated tokens", s->generated_tokens_total);
    COUNTER("decode_wall_milliseconds_total", "Time spent in decode steps", decode_s * 1e3);
    GAUGE("decode_tokens_per_second", "Generated tokens per second of decode, all lanes",
          ratio((double)s->generated_tokens_total, decode_s));
    COUNTER("drafted_tokens_total", "Draft tokens proposed", s->draft_tokens_total);
    COUNTER("accepted_draft_tokens_total", "Draft tokens accepted", s->draft_accepted_total);
    GAUGE("draft_acceptance_ratio", "Accepted draft tokens / proposed",
          ratio((double)s->draft_accepted_total, (double)s->draft_tokens_total));
    COUNTER("lookup_tokens_total", "Tokens proposed from the context", s->lookup_tokens_total);
    COUNTER("accepted_lookup_tokens_total", "Tokens proposed from the context and accepted", s->lookup_accepted_total);
    COUNTER("draft_steps_total", "Decode steps with draft proposals", s->draft_steps_total);
    COUNTER("lookup_steps_total", "Decode steps with proposals from the context", s->lookup_steps_total);
    COUNTER("verify_rows_total", "Rows verified in decode steps", s->verify_rows_total);
#undef COUNTER
#undef GAUGE
}

static void put_positions(spl_buf *out, const char *name, const char *help, const uint64_t counts[7]) {
    (void)spl_buf_printf(out, "# HELP splash_%s %s\n# TYPE splash_%s counter\n", name, help, name);
    for (int i = 0; i < 7; i++)
        (void)spl_buf_printf(out, "splash_%s{position=\"%d\"} %llu\n", name, i + 1, (unsigned long long)counts[i]);
}

/* The three gauges existing scrapers and routers look for under vLLM's names. */
static void put_aliases(spl_buf *out, const splash_stats *s, const splash_model_info *info) {
    double used = ratio((double)s->kv_pages_used, (double)s->kv_pages_total);
    (void)spl_buf_printf(out,
                         "# HELP vllm:num_requests_running Requests running\n# TYPE vllm:num_requests_running gauge\n"
                         "vllm:num_requests_running{model_name=\"%s\"} %u\n",
                         info->name, s->running);
    (void)spl_buf_printf(out,
                         "# HELP vllm:num_requests_waiting Requests waiting\n# TYPE vllm:num_requests_waiting gauge\n"
                         "vllm:num_requests_waiting{model_name=\"%s\"} %u\n",
                         info->name, s->waiting);
    (void)spl_buf_printf(out,
                         "# HELP vllm:gpu_cache_usage_perc KV pages in use, 0 to 1\n"
                         "# TYPE vllm:gpu_cache_usage_perc gauge\nvllm:gpu_cache_usage_perc{model_name=\"%s\"} %.6g\n",
                         info->name, used);
}

static void put_histogram(spl_buf *out, const char *name, const char *help, const spl_histogram *h) {
    uint64_t total = 0;
    (void)spl_buf_printf(out, "# HELP splash_%s_seconds %s\n# TYPE splash_%s_seconds histogram\n", name, help, name);
    for (int i = 0; i < SPL_N_BUCKETS; i++) {
        total += h->counts[i];
        (void)spl_buf_printf(out, "splash_%s_seconds_bucket{le=\"%s\"} %llu\n", name, BOUND_TEXT[i],
                             (unsigned long long)total);
    }
    total += h->counts[SPL_N_BUCKETS];
    (void)spl_buf_printf(
        out, "splash_%s_seconds_bucket{le=\"+Inf\"} %llu\nsplash_%s_seconds_sum %.9g\nsplash_%s_seconds_count %llu\n",
        name, (unsigned long long)total, name, h->sum_seconds, name, (unsigned long long)total);
}

void spl_metrics_write(spl_metrics *m, const splash_stats *stats, const splash_model_info *info,
                       const spl_server_gauges *gauges, spl_buf *out) {
    spl_histogram stages[SPL_N_STAGES];
    static const char *const names[] = {
#define X(id, name, help) name,
        SPL_STAGES(X)
#undef X
    };
    static const char *const helps[] = {
#define X(id, name, help) help,
        SPL_STAGES(X)
#undef X
    };
    (void)pthread_mutex_lock(&m->lock);
    memcpy(stages, m->stages, sizeof stages);
    (void)pthread_mutex_unlock(&m->lock);
    (void)spl_buf_puts(out,
                       "# HELP splash_info The engine\n# TYPE splash_info gauge\nsplash_info{runtime=\"native\"} 1\n");
    put(out, "ready", "gauge", "1 when work is accepted", gauges->ready);
    put(out, "transport_pending", "gauge", "Generation requests admitted and not finished", gauges->pending);
    put(out, "frontend_active", "gauge", "Requests being prepared", gauges->preparing);
    put(out, "frontend_waiting", "gauge", "Requests waiting for preparation", gauges->preparation_waiting);
    put(out, "http_rejected_total", "counter", "Requests answered with an error status", (double)gauges->http_rejected);
    put(out, "context_tokens", "gauge", "Context limit in tokens", gauges->context_tokens);
    put_engine(out, stats, info);
    put_positions(out, "draft_position_drafted_total", "Draft tokens by place in the block", stats->position_drafted);
    put_positions(out, "draft_position_accepted_total", "Accepted draft tokens by place in the block",
                  stats->position_accepted);
    put_aliases(out, stats, info);
    for (int i = 0; i < SPL_N_STAGES; i++) put_histogram(out, names[i], helps[i], &stages[i]);
}
