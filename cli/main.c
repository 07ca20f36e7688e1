/* SPDX-License-Identifier: Apache-2.0
 * The program: picks the subcommand. Exit codes: 0 fine, 1 failure, 2 usage, 130/143 ended by a signal. */
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "cli/args.h"
#include "cli/commands.h"
#include "splash.h"

typedef struct spl_command {
    const char *name, *about;
    int (*run)(int argc, char **argv);
} spl_command;

static const spl_command COMMANDS[] = {
    {"serve", "HTTP server, OpenAI- and Anthropic-compatible", spl_cmd_serve},
    {"run", "one answer to a prompt", spl_cmd_run},
    {"chat", "talk to the model in the terminal", spl_cmd_chat},
    {"pack", "turn a checkpoint into a package", spl_cmd_pack},
    {"verify", "check every byte of a package", spl_cmd_verify},
    {"explain", "geometry, bytes per step, roof, memory plan", spl_cmd_explain},
    {"claude", "start Claude Code on the running server", spl_cmd_launch},
    {"opencode", "start opencode on the running server", spl_cmd_launch},
    {"bench", "measurements, with the roof beside them", spl_cmd_bench},
    {"tune", "measure the best settings of this machine and keep them", spl_cmd_tune},
    {"version", "print the version", spl_cmd_version},
};

static void print_help(FILE *out) {
    (void)fprintf(out, "splash %s: local language models on the CPU\n\nusage: splash COMMAND [options]\n\ncommands:\n",
                  SPLASH_VERSION);
    for (size_t i = 0; i < SPL_COUNT(COMMANDS); i++)
        (void)fprintf(out, "  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].about);
    (void)fprintf(out, "\n`splash COMMAND --help` lists a command's options. `splash serve` needs none.\n");
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return SPL_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return SPL_EXIT_OK;
    }
    if (strcmp(name, "--version") == 0) return spl_cmd_version(1, argv + 1);
    for (size_t i = 0; i < SPL_COUNT(COMMANDS); i++)
        if (strcmp(name, COMMANDS[i].name) == 0) return COMMANDS[i].run(argc - 1, argv + 1);
    (void)fprintf(stderr, "splash: there is no command '%s'; `splash --help` lists them\n", name);
    return SPL_EXIT_USAGE;
}
