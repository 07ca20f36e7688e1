/* SPDX-License-Identifier: Apache-2.0
 * splash pack and splash verify. */
#include <stdio.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "splash.h"

/* The library's verdict as an exit code; a signal explains a cancelled run. */
static int conclude(splash_status st, const splash_error *error) {
    if (st == SPLASH_OK) return SPL_EXIT_OK;
    if (st == SPLASH_E_CANCELLED && spl_signal_pending()) return spl_signal_exit_code(spl_signal_pending());
    (void)fprintf(stderr, "splash: %s\n", error->text);
    return SPL_EXIT_FAILURE;
}

int spl_cmd_pack(int argc, char **argv) {
    static const spl_command_help help = {
        "splash pack SOURCE -o FOLDER [options]",
        "Turns a checkpoint (config.json and safetensors) into a package. The package appears under its name only\n"
        "when it is complete; an interrupted run leaves what was there before."};
    splash_pack_options pack = {0};
    splash_error error = {0};
    spl_progress progress;
    size_t n = 0;
    const spl_option rows[] = {
        {"output", 'o', SPL_OPT_STRING, &pack.output, "FOLDER", "where the package goes", NULL},
        {"draft", 0, SPL_OPT_STRING, &pack.draft, "FOLDER", "checkpoint of the draft model", NULL},
        {"name", 0, SPL_OPT_STRING, &pack.name, "NAME", "model name (default: the geometry's)", NULL},
        {"layers", 0, SPL_OPT_U32, &pack.n_layers, "N", "only the first N layers", NULL},
        {"overwrite", 0, SPL_OPT_FLAG, &pack.overwrite, NULL, "replace an existing package", NULL},
        {0}};
    int code = spl_parse_args(argc, argv, &help, rows, NULL, &pack.source, 1, &n);
    if (code >= 0) return code;
    if (n != 1) return spl_usage_error(&help, "the checkpoint folder is missing");
    if (!pack.output) return spl_usage_error(&help, "the output folder is missing (-o FOLDER)");
    spl_signals_catch();
    spl_progress_init(&progress);
    pack.progress = spl_progress_step;
    pack.progress_user = &progress;
    splash_status st = splash_pack(&pack, &error);
    spl_progress_end(&progress);
    code = conclude(st, &error);
    if (code == SPL_EXIT_OK) (void)fprintf(stderr, "Packed · %s\n", pack.output);
    return code;
}

int spl_cmd_verify(int argc, char **argv) {
    static const spl_command_help help = {"splash verify FOLDER", "Checks every hash and every scale of a package."};
    const char *path = NULL;
    splash_error error = {0};
    spl_progress progress;
    size_t n = 0;
    bool json = false;
    const spl_option rows[] = {{"json", 0, SPL_OPT_FLAG, &json, NULL, "one JSON object", NULL}, {0}};
    int code = spl_parse_args(argc, argv, &help, rows, NULL, &path, 1, &n);
    if (code >= 0) return code;
    if (n != 1) return spl_usage_error(&help, "the package folder is missing");
    spl_signals_catch();
    spl_progress_init(&progress);
    splash_status st = splash_verify(path, spl_progress_step, &progress, &error);
    spl_progress_end(&progress);
    code = conclude(st, &error);
    if (json)
        (void)printf("{\"ok\":%s}\n", st == SPLASH_OK ? "true" : "false");
    else if (code == SPL_EXIT_OK)
        (void)printf("%s is complete and sound\n", path);
    return code;
}
