/* The sherd command: what can be asked without training. Everything it knows comes through
 * sherd.h; the architectures are data (models/arch.h). */
#include "cli/cli.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} command;

static const command COMMANDS[] = {
    {"env", cli_env, "what this build and this machine have"},
    {"plan", cli_plan, "memory and traffic of a model, for any number of ranks"},
    {"config", cli_config, "check a configuration file and print what it resolves to"},
    {"test", cli_test, "prove on this machine that layouts do not change results"},
    {"state", cli_state, "state files that runs left on drives: list them, remove them"},
    {"checkpoint", cli_checkpoint, "checkpoints: list, inspect, verify, export and remove them"},
    {"bench", cli_bench, "measure the rates that predictions are made from"},
    {"trace", cli_trace, "where the time of a step went, from a file of SHERD_TRACE"},
    {"version", cli_version, "the version"},
};

static void help(FILE *out)
{
    (void)fprintf(out, "usage: sherd COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < sizeof(COMMANDS) / sizeof(COMMANDS[0]); i++) {
        (void)fprintf(out, "  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].summary);
    }
    (void)fprintf(out, "\nsherd COMMAND --help says more.\n");
}

sherd_status cli_print(void *ctx, const char *text, size_t len_bytes)
{
    return fwrite(text, 1, len_bytes, ctx) == len_bytes ? SHERD_OK : SHERD_E_IO;
}

int cli_fail(void)
{
    (void)fprintf(stderr, "sherd: %s\n", sherd_last_error());
    return 1;
}

int cli_version(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    (void)printf("sherd %s\n", sherd_version());
    return 0;
}

/* What stays in stdio's buffer is lost in silence otherwise, on a full disk for one. */
static int output_finish(int status)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        (void)fprintf(stderr, "sherd: the output cannot be written: %s\n", strerror(errno));
        return 1;
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    for (size_t i = 0; i < sizeof(COMMANDS) / sizeof(COMMANDS[0]); i++) {
        if (strcmp(argv[1], COMMANDS[i].name) == 0) {
            return output_finish(COMMANDS[i].run(argc - 1, argv + 1));
        }
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        help(stdout);
        return 0;
    }
    (void)fprintf(stderr, "sherd: no command '%s'\n\n", argv[1]);
    help(stderr);
    return 2;
}
