/* Shared by the commands: one function for each command, output, and messages about failures. */
#ifndef SHERD_CLI_CLI_H
#define SHERD_CLI_CLI_H

#include "sherd_tools.h"

/* The commands. argv[0] is "sherd" and the name of the command. They return the exit status: 0, 1
 * (failed) or 2 (bad arguments). */
int cli_env(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_config(int argc, char **argv);
int cli_test(int argc, char **argv);
int cli_state(int argc, char **argv);
int cli_checkpoint(int argc, char **argv);
int cli_launch(int argc, char **argv);
int cli_trace(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_version(int argc, char **argv);

/** A sherd_write_fn that writes to the FILE in ctx. */
sherd_status cli_print(void *ctx, const char *text, size_t len_bytes);
/** Checks that a file can be written here: nothing is there, or with is_forced a regular file.
 *  Returns 0, or 1 after it has printed why to standard error. */
int cli_file_check(const char *path, int is_forced);
/** Checks so, and writes text and a newline; an old file stays until the new one is complete.
 *  Returns as cli_file_check does. */
int cli_file_save(const char *path, const char *text, int is_forced);
#define CLI_WORD_BYTES 64
/** Write a size ("12.50 MiB"), and how long ago a time in seconds since 1970 was ("3 min"). Both
 *  return `text`. */
const char *cli_bytes_text(uint64_t bytes, char text[CLI_WORD_BYTES]);
const char *cli_age_text(int64_t changed_s, char text[CLI_WORD_BYTES]);
/** Prints text as a JSON string. */
void cli_json_text_print(const char *text);
/** Prints text of any origin, without characters that control a terminal. */
void cli_plain_print(const char *text);
/** Asks a question at the terminal. Returns 1 for yes. */
int cli_confirm(const char *question);
/** Reads a whole number from `least` to `most`. Returns 1, or 0 without a change of *out. */
int cli_number_read(const char *text, int least, int most, int *out);
/** Prints a message about arguments and the command whose --help lists them. Returns 2. */
int cli_bad(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** Prints sherd_last_error() and returns 1. */
int cli_fail(void);

#endif
