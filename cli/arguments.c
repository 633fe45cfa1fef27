/* Messages about bad arguments, in the same form for all commands. See cli.h. */
#include "cli/cli.h"

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
