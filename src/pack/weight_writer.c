/* SPDX-License-Identifier: Apache-2.0
 * A ring of slots between converter threads and the writing thread. A converter takes the next unit,
 * waits until its slot is free, fills it; the writer takes units strictly in order. */
#include "pack/weight_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_map.h"
#include "pack/convert.h"

enum { MAX_THREADS = 16, SLOTS_PER_THREAD = 2, WRITEBACK_BYTES = 64 << 20 };

typedef struct slot {
    uint8_t *data;
    spl_pack_unit unit;
    bool ready;
} slot;

typedef struct ring {
    const spl_pack_source *source;
    spl_file_id file;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    spl_pack_cursor cursor;
    uint64_t n_taken, n_written; /* units */
    bool exhausted, stop;
    spl_status status;
    spl_error error;
    uint32_t n_slots;
    slot slots[MAX_THREADS * SLOTS_PER_THREAD];
} ring;

typedef struct worker {
    pthread_t thread;
    ring *ring;
    spl_pack_converter *converter;
    bool started;
} worker;

/* Takes the next unit and waits for its slot; NULL when there is none or the run stops. */
static slot *take(ring *r) {
    spl_pack_unit unit;
    slot *s = NULL;
    (void)pthread_mutex_lock(&r->mutex);
    if (!r->stop && !r->exhausted && spl_pack_next_unit(r->source, r->file, &r->cursor, &unit)) {
        uint64_t number = r->n_taken++;
        while (!r->stop && number >= r->n_written + r->n_slots) (void)pthread_cond_wait(&r->changed, &r->mutex);
        if (!r->stop) {
            s = &r->slots[number % r->n_slots];
            s->unit = unit;
        }
    } else {
        r->exhausted = true;
        (void)pthread_cond_broadcast(&r->changed);
    }
    (void)pthread_mutex_unlock(&r->mutex);
    return s;
}

static void *run_worker(void *arg) {
    worker *w = arg;
    ring *r = w->ring;
    for (slot *s; (s = take(r)) != NULL;) {
        spl_error error;
        spl_status st = spl_pack_convert(w->converter, &s->unit, s->data, &error);
        (void)pthread_mutex_lock(&r->mutex);
        s->ready = st == SPL_OK;
        if (st != SPL_OK && r->status == SPL_OK) {
            r->status = st;
            r->error = error;
            r->stop = true;
        }
        (void)pthread_cond_broadcast(&r->changed);
        (void)pthread_mutex_unlock(&r->mutex);
    }
    return NULL;
}

/* The next unit in order, converted; NULL at the end or on a worker's failure. */
static slot *await(ring *r) {
    (void)pthread_mutex_lock(&r->mutex);
    slot *s = &r->slots[r->n_written % r->n_slots];
    while (!r->stop && !s->ready && !(r->exhausted && r->n_written == r->n_taken))
        (void)pthread_cond_wait(&r->changed, &r->mutex);
    if (r->stop || !s->ready) s = NULL;
    (void)pthread_mutex_unlock(&r->mutex);
    return s;
}

static void release(ring *r, slot *s) {
    (void)pthread_mutex_lock(&r->mutex);
    s->ready = false;
    r->n_written++;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->mutex);
}

/* The file so far. */
typedef struct sink {
    int fd;
    const char *path;
    uint64_t at, written_back;
    spl_sha256 *hash;
} sink;

/* Keeps the amount of unwritten and cached output small on a large package. */
static void limit_cache(sink *k) {
#ifdef __linux__
    if (k->at - k->written_back < WRITEBACK_BYTES) return;
    off_t now = (off_t)k->at, before = (off_t)k->written_back;
    (void)sync_file_range(k->fd, before, now - before, SYNC_FILE_RANGE_WRITE);
    if (before >= WRITEBACK_BYTES) {
        (void)sync_file_range(k->fd, before - WRITEBACK_BYTES, WRITEBACK_BYTES,
                              SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        (void)posix_fadvise(k->fd, 0, before, POSIX_FADV_DONTNEED);
    }
    k->written_back = k->at;
#else
    (void)k;
#endif
}

static spl_status put(sink *k, const void *data, size_t n_bytes, spl_error *err) {
    spl_sha256_update(k->hash, data, n_bytes);
    spl_status st = spl_write_all(k->fd, data, n_bytes, k->path, err);
    k->at += n_bytes;
    if (st == SPL_OK) limit_cache(k);
    return st;
}

static spl_status put_zeros_to(sink *k, uint64_t offset, spl_error *err) {
    static const uint8_t zeros[SPL_MATRIX_ALIGNMENT];
    spl_status st = SPL_OK;
    while (k->at < offset && st == SPL_OK) {
        uint64_t n = offset - k->at;
        st = put(k, zeros, n < sizeof zeros ? (size_t)n : sizeof zeros, err);
    }
    return st;
}

static spl_status write_units(ring *r, sink *k, spl_pack_advance advance, void *user, spl_error *err) {
    const char *stage = r->file == SPL_FILE_DRAFT ? "packing draft" : "packing target";
    spl_status st = SPL_OK;
    for (slot *s; st == SPL_OK && (s = await(r)) != NULL; release(r, s)) {
        uint64_t before = k->at;
        st = put_zeros_to(k, s->unit.offset, err);
        if (st == SPL_OK) st = put(k, s->data, (size_t)s->unit.n_bytes, err);
        if (st == SPL_OK) st = advance(user, stage, k->at - before, err);
    }
    (void)pthread_mutex_lock(&r->mutex);
    r->stop = true;
    if (st == SPL_OK && r->status != SPL_OK) {
        st = r->status;
        if (err) *err = r->error;
    }
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->mutex);
    return st;
}

static spl_status open_sink(sink *k, const char *path, spl_error *err) {
    k->path = path;
    k->at = SPL_FILE_HEADER_BYTES;
    k->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (k->fd < 0) return spl_fail_errno(err, errno, "cannot create '%s'", path);
    if (lseek(k->fd, SPL_FILE_HEADER_BYTES, SEEK_SET) < 0) return spl_fail_errno(err, errno, "cannot write '%s'", path);
    return spl_sha256_new(&k->hash, err);
}

static spl_status start(ring *r, worker *workers, uint32_t n_threads, spl_error *err) {
    uint64_t slot_bytes = spl_pack_largest_unit_bytes(r->source);
    r->n_slots = n_threads * SLOTS_PER_THREAD;
    for (uint32_t i = 0; i < r->n_slots; i++) {
        if (!(r->slots[i].data = malloc((size_t)slot_bytes)))
            return spl_fail(err, SPL_E_NOMEM, "no memory for conversion buffers");
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        workers[i].ring = r;
        spl_status st = spl_pack_converter_new(&workers[i].converter, r->source, err);
        if (st != SPL_OK) return st;
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        workers[i].started = pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0;
        /* Fewer threads than asked for only cost time. */
        if (!workers[i].started && i == 0) return spl_fail(err, SPL_E_NOMEM, "cannot start a conversion thread");
    }
    return SPL_OK;
}

static void finish(ring *r, worker *workers, uint32_t n_threads) {
    (void)pthread_mutex_lock(&r->mutex);
    r->stop = true;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->mutex);
    for (uint32_t i = 0; i < n_threads; i++) {
        if (workers[i].started) (void)pthread_join(workers[i].thread, NULL);
        spl_pack_converter_free(workers[i].converter);
    }
    for (uint32_t i = 0; i < r->n_slots; i++) free(r->slots[i].data);
    (void)pthread_cond_destroy(&r->changed);
    (void)pthread_mutex_destroy(&r->mutex);
}

spl_status spl_pack_write_weights(const spl_pack_source *s, spl_file_id file, const char *path, uint32_t n_threads,
                                  spl_pack_advance advance, void *user, int *fd, char sha256[SPL_SHA256_HEX_BYTES],
                                  spl_error *err) {
    sink k = {.fd = -1};
    ring r = {.source = s, .file = file};
    worker workers[MAX_THREADS] = {0};
    if (n_threads == 0) n_threads = 2;
    if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    *fd = -1;
    if (pthread_mutex_init(&r.mutex, NULL) != 0) return spl_fail(err, SPL_E_NOMEM, "cannot make a lock");
    if (pthread_cond_init(&r.changed, NULL) != 0) {
        (void)pthread_mutex_destroy(&r.mutex);
        return spl_fail(err, SPL_E_NOMEM, "cannot make a lock");
    }
    spl_status st = open_sink(&k, path, err);
    if (st == SPL_OK) st = start(&r, workers, n_threads, err);
    if (st == SPL_OK) st = write_units(&r, &k, advance, user, err);
    finish(&r, workers, n_threads);
    if (st == SPL_OK) st = put_zeros_to(&k, spl_manifest_file_bytes(s->manifest, file), err);
    if (st == SPL_OK)
        st = spl_sha256_finish(k.hash, sha256, err);
    else
        spl_sha256_free(k.hash);
    *fd = k.fd;
    return st;
}
