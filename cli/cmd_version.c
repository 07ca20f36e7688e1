/* SPDX-License-Identifier: Apache-2.0
 * splash version. */
#include <stdio.h>

#include "cli/args.h"
#include "cli/commands.h"
#include "splash.h"

#ifndef SPL_COMMIT
#define SPL_COMMIT "unknown"
#endif

int spl_cmd_version(int argc, char **argv) {
    static const spl_command_help help = {"splash version [--json]",
                                          "Prints the version and the commit it was built from."};
    bool json = false;
    const spl_option options[] = {{"json", 0, SPL_OPT_FLAG, &json, NULL, "one JSON object", NULL}, {0}};
    int code = spl_parse_args(argc, argv, &help, options, NULL, NULL, 0, NULL);
    if (code >= 0) return code;
    if (json)
        (void)printf("{\"version\":\"%s\",\"commit\":\"%s\"}\n", SPLASH_VERSION, SPL_COMMIT);
    else
        (void)printf("splash %s (%s)\n", SPLASH_VERSION, SPL_COMMIT);
    return SPL_EXIT_OK;
}
