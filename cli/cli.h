/* Shared by the commands: one function for each command, output, and messages about failures. */
#ifndef SHERD_CLI_CLI_H
#define SHERD_CLI_CLI_H

#include "sherd_tools.h"

#include <stddef.h>

/* The commands. argv[0] is "sherd" and the name of the command. They return the exit status: 0, 1
 * (failed) or 2 (bad arguments). */
int cli_env(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_config(int argc, char **argv);
int cli_test(int argc, char **argv);
int cli_state(int argc, char **argv);
int cli_checkpoint(int argc, char **argv);
int cli_launch(int argc, char **argv);
int cli_trace(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_diff(int argc, char **argv);
int cli_version(int argc, char **argv);

/** A sherd_write_fn that writes to the FILE in ctx. */
sherd_status cli_print(void *ctx, const char *text, size_t len_bytes);
/** Checks that a file can be written here: nothing is there, or with is_forced a regular file.
 *  Returns 0, or 1 after it has printed why to standard error. */
int cli_file_check(const char *path, int is_forced);
/** Checks so, and writes text and a newline; an old file stays until the new one is complete.
 *  Returns as cli_file_check does. */
int cli_file_save(const char *path, const char *text, int is_forced);
/** Opens the checkpoint DIR/TAG, or the one that DIR/latest names. Returns 0, or 1 after it has
 *  printed why not. */
int cli_checkpoint_open(const char *path, sherd_checkpoint **out);
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

/* An option of a command, and the field of the command's arguments that it sets. */
typedef struct cli_option cli_option;
struct cli_option {
    const char *name;
    int         letter; /* its short name; 0: none */
    size_t      offset; /* of the field */
    /* Sets the field. Returns 1; 0 for a text that is refused, or 2 if it has said why. NULL: the
     * option is a flag, and its field an int that becomes 1. */
    int (*take)(const cli_option *option, const char *text, void *field);
    const char *wants;       /* about a text that is refused: "wants 1 to 64" */
    int         least, most; /* of a number */
};

#define CLI_OPTION(name, letter, type, field, ...)                                                 \
    {                                                                                              \
        name, letter, offsetof(type, field), __VA_ARGS__                                           \
    }
#define CLI_FLAG(name, letter, type, field) CLI_OPTION(name, letter, type, field, NULL, NULL, 0, 0)
#define CLI_TEXT(name, letter, type, field)                                                        \
    CLI_OPTION(name, letter, type, field, cli_text_take, NULL, 0, 0)
#define CLI_NUMBER(name, letter, type, field, least, most, wants)                                  \
    CLI_OPTION(name, letter, type, field, cli_number_take, wants, least, most)
#define CLI_READ(name, letter, type, field, take, wants)                                           \
    CLI_OPTION(name, letter, type, field, take, wants, 0, 0)

int cli_text_take(const cli_option *option, const char *text, void *field);
int cli_number_take(const cli_option *option, const char *text, void *field);

typedef struct cli_options {
    const char       *command, *help;
    const cli_option *first;         /* the last one has no name */
    int               ends_at_first; /* what follows the first argument belongs to a program */
} cli_options;

/** Reads the options of a command, and --help. Returns -1, with optind at the first argument; else
 *  the exit status, after it has printed the help or what is wrong. */
int cli_options_read(const cli_options *options, int argc, char **argv, void *arguments);
/** Prints a message about arguments and the command whose --help lists them. Returns 2. */
int cli_bad(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** Prints sherd_last_error() and returns 1. */
int cli_fail(void);

#endif
