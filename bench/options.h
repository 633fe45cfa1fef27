/* The options of timing programs: one table each, from which reading, refusing and the help
 * come. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stddef.h>

typedef enum bench_option_kind {
    BENCH_TEXT,   /* const char *; with `choices` one of them */
    BENCH_SIZE,   /* size_t; suffixes K, M and G are powers of 1024 */
    BENCH_INT,    /* int, with the same suffixes */
    BENCH_REAL,   /* double */
    BENCH_SWITCH, /* int, which becomes 1; takes no argument */
    BENCH_LIST,   /* bench_list, "1,2,4": none twice */
    BENCH_CALL,   /* `read` does it */
} bench_option_kind;

#define BENCH_MOST_LIST 16

typedef struct bench_list {
    size_t values[BENCH_MOST_LIST];
    size_t count;
} bench_list;

typedef struct bench_option {
    const char       *name;     /* without the dashes */
    const char       *argument; /* its name in the help; NULL: it takes none */
    const char       *help;     /* NULL: the help does not show it */
    bench_option_kind kind;
    void             *value;
    double            least, most; /* of numbers, inclusive; most 0: no bound */
    const char       *choices;     /* "a|b|c" */
    int (*read)(const char *text,
                void       *value); /* 0, or -1: refused. `text` lives as long as the program */
} bench_option;

typedef struct bench_command {
    const char         *name;  /* its name in ./run bench */
    const char         *about; /* its measurements: whole sentences, wrapped by the help */
    const bench_option *options;
    size_t              num_options;
    const char         *end;      /* of the help; NULL: nothing */
    int                 has_rest; /* arguments after "--" belong to another program */
} bench_command;

#define BENCH_COMMAND(program, about, rows)                                                        \
    {                                                                                              \
        (program), (about), (rows), sizeof(rows) / sizeof((rows)[0]), NULL, 0                      \
    }

/** Fills the values of the options that are set and returns the index of the first argument after
 *  "--". Ends the program with 0 after --help, with 2 and a sentence after a mistake. */
int bench_options_read(const bench_command *command, int argc, char **argv);
/** Ends the program with 2: options that do not go together. */
_Noreturn void bench_options_refuse(const bench_command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Reads a positive number with an optional suffix K, M or G (binary); 0: it is none. */
size_t bench_parse_size(const char *text);

#endif
