/* SPDX-License-Identifier: Apache-2.0
 * The subcommands. Each gets argv with argv[0] being its own name and returns the exit code. */
#ifndef SPL_CLI_COMMANDS_H
#define SPL_CLI_COMMANDS_H

int spl_cmd_serve(int argc, char **argv);
int spl_cmd_run(int argc, char **argv);
int spl_cmd_chat(int argc, char **argv);
int spl_cmd_pack(int argc, char **argv);
int spl_cmd_verify(int argc, char **argv);
int spl_cmd_explain(int argc, char **argv);
int spl_cmd_bench(int argc, char **argv);
int spl_cmd_tune(int argc, char **argv);
int spl_cmd_version(int argc, char **argv);
int spl_cmd_launch(int argc, char **argv); /* claude, codex, opencode: argv[0] says which */

#endif
