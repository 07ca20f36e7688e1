/* SPDX-License-Identifier: Apache-2.0
 * A bare command around spl_pack and spl_verify for the tests: it can stop at a given byte so that
 * the test can kill it, fill the disk or change the source at a known point.
 *   pack_driver pack SRC OUT [--draft DIR] [--layers N] [--overwrite] [--threads N] [--name S]
 *                            [--pause-at BYTES] [--cancel-at BYTES]
 *   pack_driver verify PACKAGE
 *   pack_driver open PACKAGE
 *   pack_driver geometry ID      a manifest without files
 * On a pause it prints "paused" and waits for a line on standard input. Exit 0 on success; errors
 * are printed as "CODE TEXT" and exit 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "model/manifest.h"
#include "model/package.h"
#include "pack/pack.h"

typedef struct script {
    uint64_t pause_at, cancel_at;
    int paused;
} script;

static int on_progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    script *s = user;
    (void)total;
    if (strncmp(stage, "packing", 7) != 0 && strcmp(stage, "publishing") != 0) return 0;
    if (s->pause_at && done >= s->pause_at && !s->paused) {
        s->paused = 1;
        (void)printf("paused\n");
        (void)fflush(stdout);
        (void)getchar();
    }
    return s->cancel_at && done >= s->cancel_at;
}

static void on_note(void *user, const char *line) {
    (void)user;
    (void)printf("note: %s\n", line);
}

static int finish(spl_status st, const spl_error *err, uint64_t start_ns) {
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    if (st != SPL_OK) (void)printf("%d %s\n", st, err->text);
    (void)printf("seconds %.3f peak_rss_kb %ld\n", (double)(spl_now_ns() - start_ns) * 1e-9, usage.ru_maxrss);
    return st == SPL_OK ? 0 : 1;
}

static int run_pack(int argc, char **argv, uint64_t start_ns) {
    script s = {0};
    spl_pack_options o = {.source = argv[2], .output = argv[3], .progress = on_progress, .note = on_note, .user = &s};
    spl_error err;
    for (int i = 4; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        if (strcmp(argv[i], "--overwrite") == 0) {
            o.overwrite = true;
            continue;
        }
        if (strcmp(argv[i], "--draft") == 0)
            o.draft_source = value;
        else if (strcmp(argv[i], "--layers") == 0)
            o.n_layers = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--threads") == 0)
            o.n_threads = (uint32_t)strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--name") == 0)
            o.name = value;
        else if (strcmp(argv[i], "--pause-at") == 0)
            s.pause_at = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--cancel-at") == 0)
            s.cancel_at = strtoull(value, NULL, 10);
        else
            return 2;
        i++;
    }
    return finish(spl_pack(&o, &err), &err, start_ns);
}

static int print_geometry(const char *id) {
    const spl_geometry *g = spl_geometry_find(id);
    spl_manifest *m = NULL;
    spl_error err;
    char *text = NULL;
    size_t n_bytes;
    json_t *nothing = json_object();
    if (!g || spl_manifest_new(&m, g, 0, false, &err) != SPL_OK ||
        spl_manifest_text(m, nothing, &text, &n_bytes, &err) != SPL_OK)
        return 2;
    (void)printf("%s\n", text);
    free(text);
    json_decref(nothing);
    spl_manifest_free(m);
    return 0;
}

int main(int argc, char **argv) {
    uint64_t start_ns = spl_now_ns();
    spl_error err;
    if (argc >= 4 && strcmp(argv[1], "pack") == 0) return run_pack(argc, argv, start_ns);
    if (argc == 3 && strcmp(argv[1], "verify") == 0)
        return finish(spl_verify(argv[2], NULL, NULL, &err), &err, start_ns);
    if (argc == 3 && strcmp(argv[1], "open") == 0) {
        spl_package *p = NULL;
        spl_status st = spl_package_open(&p, argv[2], SPL_CHECK_QUICK, &err);
        if (st == SPL_OK)
            (void)printf("geometry %s name %s template %s layers %u draft %d digest %s\n", spl_package_geometry(p)->id,
                         spl_package_name(p), spl_package_chat_template(p), spl_package_n_layers(p),
                         spl_package_has_draft(p), spl_package_digest(p));
        spl_package_close(p);
        return finish(st, &err, start_ns);
    }
    if (argc == 3 && strcmp(argv[1], "geometry") == 0) return print_geometry(argv[2]);
    return 2;
}
