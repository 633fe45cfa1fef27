/* Shared by the commands: one function each, printing, failing. */
#ifndef SHERD_CLI_CLI_H
#define SHERD_CLI_CLI_H

#include "sherd_tools.h"

/* A command: its own name is argv[0]. Returns the exit status: 0, 1 failed, 2 bad arguments. */
int cli_env(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_config(int argc, char **argv);
int cli_test(int argc, char **argv);
int cli_state(int argc, char **argv);
int cli_trace(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_version(int argc, char **argv);

/** A sherd_write_fn whose ctx is a FILE. */
sherd_status cli_print(void *ctx, const char *text, size_t len_bytes);
/** Writes text and a newline to a file that is not there, or is and may go: the old one stays until the new one is
 *  whole. 0, or 1 with a sentence on standard error. */
int cli_file_save(const char *path, const char *text, int is_forced);
/** Prints sherd_last_error() and returns 1. */
int cli_fail(void);

#endif
