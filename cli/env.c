/* sherd env: build, machine and environment, to read or to paste into a report. */
#include "cli/cli.h"

#include <getopt.h>
#include <stdio.h>

static const char HELP[] =
    "usage: sherd env [--json]\n\n"
    "Prints the version, the machine, what this build was made with and the\n"
    "environment variables that matter.\n\n"
    "  --json   as one JSON object\n";

int cli_env(int argc, char **argv)
{
    static const struct option OPTIONS[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    sherd_plan_format format = SHERD_PLAN_TABLE;
    int               option;

    while ((option = getopt_long(argc, argv, "jh", OPTIONS, NULL)) != -1) {
        switch (option) {
        case 'j':
            format = SHERD_PLAN_JSON;
            break;
        case 'h':
            (void)fputs(HELP, stdout);
            return 0;
        default:
            (void)fputs(HELP, stderr);
            return 2;
        }
    }
    return sherd_env_write(format, cli_print, stdout) == SHERD_OK ? 0 : cli_fail();
}
