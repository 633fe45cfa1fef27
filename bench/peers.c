#include "bench/peers.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Noreturn void die(const char *what, const char *why)
{
    (void)fprintf(stderr, "bench: %s: %s\n", what, why);
    exit(1);
}

void bench_peers_start(bench_peers *peers, const char *python, const char *script)
{
    int  to[2];
    int  from[2];
    char command[1024];

    (void)signal(SIGPIPE, SIG_IGN); /* its end is found when its answer is read */
    if (pipe(to) != 0 || pipe(from) != 0) {
        die("pipe", strerror(errno));
    }
    (void)snprintf(command, sizeof(command), "exec '%s' '%s' --serve", python, script);
    switch (fork()) {
    case -1:
        die("fork", strerror(errno));
    case 0:
        (void)dup2(to[0], 0);
        (void)dup2(from[1], 1);
        for (int i = 0; i < 2; i++) {
            (void)close(to[i]);
            (void)close(from[i]);
        }
        (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    default:
        break;
    }
    (void)close(to[0]);
    (void)close(from[1]);
    peers->to   = fdopen(to[1], "w");
    peers->from = fdopen(from[0], "r");
}

static void peers_answer(bench_peers *peers, char *line, size_t line_bytes)
{
    (void)fflush(peers->to);
    if (fgets(line, (int)line_bytes, peers->from) == NULL) {
        die("the peers' script", "it ended; without it: no --peers");
    }
    line[strcspn(line, "\n")] = '\0';
}

void bench_peers_setup(bench_peers *peers, const char *fmt, ...)
{
    char    line[1024];
    char   *rest = line;
    va_list args;

    peers->count = 0;
    if (peers->to == NULL) {
        return;
    }
    va_start(args, fmt);
    (void)fputs("setup ", peers->to);
    (void)vfprintf(peers->to, fmt, args);
    (void)fputc('\n', peers->to);
    va_end(args);
    peers_answer(peers, line, sizeof(line));
    for (char *name; (name = strsep(&rest, "\t")) != NULL && peers->count < BENCH_MAX_PEERS;) {
        (void)snprintf(peers->names[peers->count++], sizeof(peers->names[0]), "%s", name);
    }
}

double bench_peer_seconds(bench_peers *peers, size_t index, size_t repeats)
{
    const struct timespec settle = {.tv_nsec = 5000000}; /* its threads spin for a while */
    char                  line[1024];
    double                seconds;

    (void)fprintf(peers->to, "run %zu %zu\n", index, repeats);
    peers_answer(peers, line, sizeof(line));
    seconds = strtod(line, NULL);
    if (!(seconds > 0)) {
        die("the peers' script", line);
    }
    (void)nanosleep(&settle, NULL);
    return seconds;
}
