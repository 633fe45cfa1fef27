/* Options, and messages about bad arguments, in the same form for all commands. See cli.h. */
#include "cli/cli.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int cli_number_read(const char *text, int least, int most, int *out)
{
    char *end;
    long  value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || value < least || value > most) {
        return 0;
    }
    *out = (int)value;
    return 1;
}

int cli_bad(const char *command, const char *fmt, ...)
{
    va_list args;

    (void)fprintf(stderr, "sherd: ");
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fprintf(stderr, "; sherd %s --help lists the options\n", command);
    return 2;
}

int cli_text_take(const cli_option *option, const char *text, void *field)
{
    (void)option;
    *(const char **)field = text;
    return 1;
}

int cli_number_take(const cli_option *option, const char *text, void *field)
{
    return cli_number_read(text, option->least, option->most, field);
}

/* ---- options ---- */

#define MOST_OPTIONS 16

/* Makes the tables that getopt_long reads. The value of an option is its number from 256 on, and
 * its letter means the same; 'h' is --help. */
static void tables_make(const cli_options *all, struct option longs[MOST_OPTIONS + 2],
                        char shorts[2 * MOST_OPTIONS + 3])
{
    size_t count = 0;

    *shorts++ = all->ends_at_first ? '+' : 'h';
    for (const cli_option *o = all->first; o->name != NULL; o++) {
        int has_text = o->take == NULL ? no_argument : required_argument;

        longs[count++] = (struct option){o->name, has_text, NULL, 256 + (int)(o - all->first)};
        if (o->letter != 0) {
            *shorts++ = (char)o->letter;
        }
        if (o->letter != 0 && o->take != NULL) {
            *shorts++ = ':';
        }
    }
    longs[count++] = (struct option){"help", no_argument, NULL, 'h'};
    longs[count]   = (struct option){0};
    *shorts++      = 'h';
    *shorts        = '\0';
}

static const cli_option *option_find(const cli_options *all, int value)
{
    const cli_option *o = all->first;

    while (o->name != NULL && value != o->letter && value - 256 != (int)(o - all->first)) {
        o++;
    }
    return o->name == NULL ? NULL : o;
}

int cli_options_read(const cli_options *options, int argc, char **argv, void *arguments)
{
    struct option longs[MOST_OPTIONS + 2];
    char          shorts[2 * MOST_OPTIONS + 3];
    int           value;

    tables_make(options, longs, shorts);
    while ((value = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        const cli_option *o     = option_find(options, value);
        void             *field = (char *)arguments + (o == NULL ? 0 : o->offset);
        int               taken = 1;

        if (o == NULL) {
            (void)fputs(options->help, value == 'h' ? stdout : stderr);
            return value == 'h' ? 0 : 2;
        }
        if (o->take == NULL) {
            *(int *)field = 1;
        } else {
            taken = o->take(o, optarg, field);
        }
        if (taken != 1) {
            return taken == 2
                       ? 2
                       : cli_bad(options->command, "--%s %s, not '%s'", o->name, o->wants, optarg);
        }
    }
    return -1;
}
