#include "bench/options.h"

#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_OPTIONS 32
#define COLUMNS      96

size_t bench_parse_size(const char *text)
{
    char              *end;
    unsigned long long value = strtoull(text, &end, 10);
    int                shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;

    if (end == text || text[0] == '-' || (*end != '\0' && (shift == 0 || end[1] != '\0'))) {
        return 0;
    }
    return (size_t)value << shift;
}

void bench_options_refuse(const bench_command *command, const char *format, ...)
{
    va_list arguments;

    (void)fprintf(stderr, "bench %s: ", command->name);
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fprintf(stderr, "; --help lists the options\n");
    exit(2);
}

/* ------------------------------------------------------------------ help -- */

/* Words from `column` on, broken before COLUMNS; later lines begin at `indent`. */
static void text_print(const char *text, size_t column, size_t indent)
{
    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (column > indent && column + 1 + len > COLUMNS) {
            (void)printf("\n%*s", (int)indent, "");
            column = indent;
        }
        if (column > indent) {
            (void)putchar(' ');
            column++;
        }
        (void)printf("%.*s", (int)len, text);
        column += len;
        text += len;
        text += strspn(text, " ");
    }
    (void)putchar('\n');
}

static size_t label_len(const bench_option *option)
{
    return strlen(option->name) + (option->argument == NULL ? 0 : strlen(option->argument) + 1);
}

static void help_print(const bench_command *command)
{
    size_t indent = 0;

    (void)printf("usage: ./run bench %s [OPTIONS]%s\n\n", command->name,
                 command->has_rest ? " [-- ARGUMENTS]" : "");
    text_print(command->about, 0, 0);
    (void)putchar('\n');
    for (size_t i = 0; i < command->num_options; i++) {
        size_t len = label_len(&command->options[i]);

        indent = command->options[i].help != NULL && len > indent ? len : indent;
    }
    for (size_t i = 0; i < command->num_options; i++) {
        const bench_option *option = &command->options[i];

        if (option->help != NULL) {
            (void)printf("  --%s %-*s  ", option->name, (int)(indent - strlen(option->name) - 1),
                         option->argument == NULL ? "" : option->argument);
            text_print(option->help, indent + 6, indent + 6);
        }
    }
    if (command->end != NULL) {
        (void)putchar('\n');
        text_print(command->end, 0, 0);
    }
}

/* ---------------------------------------------------------------- values -- */

static int is_choice(const char *choices, const char *text)
{
    size_t len = strlen(text);

    for (const char *at = choices; len > 0 && at != NULL; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, text, len) == 0 && (at[len] == '\0' || at[len] == '|')) {
            return 1;
        }
    }
    return 0;
}

static int is_within(const bench_option *option, double value)
{
    return value >= option->least && (option->most == 0 || value <= option->most);
}

static int real_read(const bench_option *option, const char *text)
{
    char  *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !is_within(option, value)) {
        return -1;
    }
    *(double *)option->value = value;
    return 0;
}

static int whole_read(const bench_option *option, const char *text)
{
    size_t value = bench_parse_size(text);

    if ((value == 0 && strcmp(text, "0") != 0) || !is_within(option, (double)value) ||
        (option->kind == BENCH_INT && value > INT_MAX)) {
        return -1;
    }
    if (option->kind == BENCH_INT) {
        *(int *)option->value = (int)value;
    } else {
        *(size_t *)option->value = value;
    }
    return 0;
}

static int list_read(const bench_option *option, const char *text)
{
    bench_list list = {.count = 0};

    for (const char *at = text;; at++) {
        size_t       len      = strcspn(at, ",");
        char         copy[32] = "";
        size_t       value    = 0;
        bench_option each     = {
                .kind = BENCH_SIZE, .value = &value, .least = option->least, .most = option->most};

        if (len >= sizeof(copy) || list.count == BENCH_MOST_LIST) {
            return -1;
        }
        memcpy(copy, at, len);
        if (whole_read(&each, copy) != 0) {
            return -1;
        }
        for (size_t i = 0; i < list.count; i++) {
            if (list.values[i] == value) {
                return -1;
            }
        }
        list.values[list.count++] = value;
        at += len;
        if (*at == '\0') {
            *(bench_list *)option->value = list;
            return 0;
        }
    }
}

static int option_read(const bench_option *option, const char *text)
{
    switch (option->kind) {
    case BENCH_TEXT:
        if (option->choices != NULL && !is_choice(option->choices, text)) {
            return -1;
        }
        *(const char **)option->value = text;
        return 0;
    case BENCH_SIZE:
    case BENCH_INT:
        return whole_read(option, text);
    case BENCH_REAL:
        return real_read(option, text);
    case BENCH_SWITCH:
        *(int *)option->value = 1;
        return 0;
    case BENCH_LIST:
        return list_read(option, text);
    case BENCH_CALL:
        break;
    }
    return option->read(text, option->value);
}

/* "at least 1", "1 to 8", "bf16 or fp32", as the row has it. */
static _Noreturn void value_refuse(const bench_command *command, const bench_option *option,
                                   const char *text)
{
    char wanted[256] = "";

    if (option->choices != NULL) {
        (void)snprintf(wanted, sizeof(wanted), " (%s)", option->choices);
    } else if (option->most > 0) {
        (void)snprintf(wanted, sizeof(wanted), " (%.0f to %.0f%s)", option->least, option->most,
                       option->kind == BENCH_LIST ? ", none twice" : "");
    } else if (option->least > 0) {
        (void)snprintf(wanted, sizeof(wanted), " (at least %.0f%s)", option->least,
                       option->kind == BENCH_LIST ? ", none twice" : "");
    }
    bench_options_refuse(command, "--%s takes %s%s, not '%s'", option->name, option->argument,
                         wanted, text);
}

int bench_options_read(const bench_command *command, int argc, char **argv)
{
    struct option table[MOST_OPTIONS + 2] = {0};
    int           found;

    for (size_t i = 0; i < command->num_options && i < MOST_OPTIONS; i++) {
        const bench_option *option = &command->options[i];

        table[i] = (struct option){
            option->name, option->argument == NULL ? no_argument : required_argument, NULL, (int)i};
    }
    table[command->num_options] = (struct option){"help", no_argument, NULL, MOST_OPTIONS};
    while ((found = getopt_long(argc, argv, "", table, NULL)) != -1) {
        if (found == MOST_OPTIONS) {
            help_print(command);
            exit(0);
        }
        if (found == '?') { /* getopt has printed the reason */
            (void)fprintf(stderr, "bench %s: --help lists the options\n", command->name);
            exit(2);
        }
        if (option_read(&command->options[found], optarg) != 0) {
            value_refuse(command, &command->options[found], optarg);
        }
    }
    if (optind < argc && (!command->has_rest || strcmp(argv[optind - 1], "--") != 0)) {
        bench_options_refuse(command, "'%s' is no option", argv[optind]);
    }
    return optind;
}
