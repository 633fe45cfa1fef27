/* See drawn.h. */
#include "tests/lib/drawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOT_HERE 77

uint64_t drawn_seed;

static void said_print(FILE *said)
{
    char line[512];

    rewind(said);
    while (fgets(line, sizeof(line), said) != NULL) {
        printf("  %s", line);
    }
}

/* Returns the exit status of a case: 0 if it has passed, and 77 if it cannot run here. */
static int case_run(char *program, const drawn_campaign *campaign)
{
    char *argv[] = {program, NULL};
    FILE *said   = tmpfile();
    char  text[900];
    int   state = -1;
    pid_t child;

    (void)fflush(stdout);
    child = said == NULL ? -1 : fork();
    if (child == 0) {
        (void)alarm((unsigned)campaign->seconds);
        if (dup2(fileno(said), STDOUT_FILENO) < 0) {
            _exit(2);
        }
        _exit(test_main(1, argv, &campaign->run, 1));
    }
    if (child < 0 || waitpid(child, &state, 0) != child) {
        state = -1;
    }
    if (WIFEXITED(state) && WEXITSTATUS(state) == NOT_HERE) {
        said_print(said);
    } else if (state != 0) {
        campaign->describe(text, sizeof(text));
        printf("FAIL seed %llu: %s (state %d)\n", (unsigned long long)drawn_seed, text, state);
        if (said != NULL) {
            said_print(said);
        }
    }
    if (said != NULL) {
        (void)fclose(said);
    }
    return state == 0 ? 0 : WIFEXITED(state) ? WEXITSTATUS(state) : 1;
}

int drawn_main(int argc, char **argv, const drawn_campaign *campaign)
{
    uint64_t first  = 1;
    int      count  = 10;
    int      failed = 0;
    int      status;

    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
            first = strtoull(argv[i + 1], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--count") == 0) {
            count = (int)strtol(argv[i + 1], NULL, 10);
        } else if (i + 1 < argc && strcmp(argv[i], "--files") == 0) {
            *campaign->wants_files = (int)strtol(argv[i + 1], NULL, 10);
        } else {
            printf("usage: %s [--seed N] [--count N] [--files 1]\n", argv[0]);
            return 2;
        }
    }
    for (int n = 0; n < count; n++) {
        drawn_seed = first + (uint64_t)n;
        status     = case_run(argv[0], campaign);
        if (status == NOT_HERE) {
            return status;
        }
        failed += status != 0;
    }
    printf("%d of %d drawn %s have passed\n", count - failed, count, campaign->what);
    return failed > 0;
}
