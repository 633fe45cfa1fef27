/* Shared by the commands: one function each, printing, failing. */
#ifndef SHERD_CLI_CLI_H
#define SHERD_CLI_CLI_H

#include "sherd_tools.h"

/* A command: argv[0] is "sherd" and its own name. Returns the exit status: 0, 1 failed, 2 bad arguments. */
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

/** A sherd_write_fn whose ctx is a FILE. */
sherd_status cli_print(void *ctx, const char *text, size_t len_bytes);
/** Writes text and a newline to a file that is not there, or is and may go: the old one stays until the new one is
 *  whole. 0, or 1 with a sentence on standard error. */
int cli_file_save(const char *path, const char *text, int is_forced);
#define CLI_WORD_BYTES 64
/** "12.50 MiB"; how long ago a second since 1970 is: "3 min". Both return `text`. */
const char *cli_bytes_text(uint64_t bytes, char text[CLI_WORD_BYTES]);
const char *cli_age_text(int64_t changed_s, char text[CLI_WORD_BYTES]);
/** A string of JSON. */
void cli_json_text_print(const char *text);
/** Text of any origin, without what a terminal would obey. */
void cli_plain_print(const char *text);
/** Asks the person at the terminal; 1: yes. */
int cli_confirm(const char *question);
/** A whole number from `least` to `most`: 1, or 0, and *out is left alone. */
int cli_number_read(const char *text, int least, int most, int *out);
/** Prints a sentence about arguments, with the command whose --help lists them; returns 2. */
int cli_bad(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** Prints sherd_last_error() and returns 1. */
int cli_fail(void);

#endif
