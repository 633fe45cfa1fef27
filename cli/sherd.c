/* The sherd command: questions that need no training. It gets everything from sherd.h; the
 * architectures are data (models/arch.h). */
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
    {"env", cli_env, "print what this build and this machine have"},
    {"doctor", cli_doctor, "look for what makes training fail or slow on these hosts"},
    {"plan", cli_plan, "predict memory, traffic and time of a model, for any number of ranks"},
    {"config", cli_config, "check a configuration file and print what it resolves to"},
    {"launch", cli_launch, "start a program as several ranks, on this host or on several"},
    {"test", cli_test, "prove on this machine that layouts do not change results"},
    {"state", cli_state, "list or remove the state files that runs left on drives"},
    {"checkpoint", cli_checkpoint, "list, inspect, verify, export, import or remove checkpoints"},
    {"diff", cli_diff, "find the first step, unit and rank where two runs part"},
    {"bench", cli_bench, "measure the rates from which plan predicts times"},
    {"trace", cli_trace, "show where the time of a step went, from a file of SHERD_TRACE"},
    {"version", cli_version, "print the version"},
};

/* Words that people may try as commands, and the right commands. */
static const struct {
    const char *wanted, *is;
} ELSEWHERE[] = {
    {"verify", "sherd checkpoint verify"},
    {"inspect", "sherd checkpoint inspect"},
    {"export", "sherd checkpoint export"},
    {"import", "sherd checkpoint import"},
    {"convert", "sherd checkpoint export and import"},
    {"compare", "sherd diff"},
    {"estimate", "sherd plan"},
    {"estimate-memory", "sherd plan"},
    {"init", "sherd plan --best --out FILE, which writes a configuration"},
    {"train", "sherd-llm, or ./run train in the sources"},
};

static void help(FILE *out)
{
    (void)fprintf(out, "usage: sherd COMMAND [OPTIONS]\n\n");
    for (size_t i = 0; i < sizeof(COMMANDS) / sizeof(COMMANDS[0]); i++) {
        (void)fprintf(out, "  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].summary);
    }
    (void)fprintf(out, "\nsherd COMMAND --help lists the options of a command.\n");
}

static int is_one_of(const char *word, const char *first, const char *second, const char *third)
{
    return strcmp(word, first) == 0 || strcmp(word, second) == 0 || strcmp(word, third) == 0;
}

static const command *command_find(const char *name)
{
    for (size_t i = 0; i < sizeof(COMMANDS) / sizeof(COMMANDS[0]); i++) {
        if (strcmp(name, COMMANDS[i].name) == 0) {
            return &COMMANDS[i];
        }
    }
    return NULL;
}

static int command_unknown(const char *name)
{
    for (size_t i = 0; i < sizeof(ELSEWHERE) / sizeof(ELSEWHERE[0]); i++) {
        if (strcmp(name, ELSEWHERE[i].wanted) == 0) {
            (void)fprintf(stderr, "sherd: no command '%s': it is %s\n", name, ELSEWHERE[i].is);
            return 2;
        }
    }
    (void)fprintf(stderr, "sherd: no command '%s'\n\n", name);
    help(stderr);
    return 2;
}

/* The messages of getopt begin with argv[0]. */
static int command_run(const command *found, int argc, char **argv)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "sherd %s", found->name);
    argv[0] = name;
    return found->run(argc, argv);
}

/* `sherd help plan` means `sherd plan --help`. */
static int help_for(char *name)
{
    const command *found        = command_find(name);
    char           option[]     = "--help";
    char          *arguments[3] = {name, option, NULL};

    return found == NULL ? command_unknown(name) : command_run(found, 2, arguments);
}

sherd_status cli_print(void *ctx, const char *text, size_t len_bytes)
{
    return fwrite(text, 1, len_bytes, ctx) == len_bytes ? SHERD_OK : SHERD_E_IO;
}

/* Where the output itself cannot be written there is no message yet: main says why. */
int cli_fail(void)
{
    if (sherd_last_error()[0] != '\0') {
        (void)fprintf(stderr, "sherd: %s\n", sherd_last_error());
    }
    return 1;
}

int cli_version(int argc, char **argv)
{
    if (argc > 1) {
        (void)printf(
            "usage: sherd version\n\nPrints the version and, of a build in a git checkout, the "
            "commit.\n");
        return strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    (void)printf("sherd %s\n", sherd_version());
    return 0;
}

/* Otherwise output in the buffer of stdio could be lost without a message, for example on a full
 * disk. */
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
    const command *found;

    if (argc < 2) {
        help(stderr);
        return 2;
    }
    if (is_one_of(argv[1], "--help", "-h", "help")) {
        if (argc > 2) {
            return output_finish(help_for(argv[2]));
        }
        help(stdout);
        return output_finish(0);
    }
    if (is_one_of(argv[1], "--version", "-V", "-v")) {
        return output_finish(cli_version(1, argv));
    }
    found = command_find(argv[1]);
    return found == NULL ? command_unknown(argv[1])
                         : output_finish(command_run(found, argc - 1, argv + 1));
}
