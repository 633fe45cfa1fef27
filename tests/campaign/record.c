/* Writes down what the engine does. A fixed matrix of layouts is trained for three windows each.
 * Every line of the output is one event of one layout: fingerprint, norm and scale of a step, bytes
 * planned, counted and held, or a hash of the plan. No line depends on time or place: two runs of
 * one engine write the same text, and so do two engines that do the same. compare.sh (or diff)
 * compares the texts.
 *
 * record [--all] [--only WORDS] [--plans FOLDER] [--traces FOLDER]
 *
 * --all takes every kind of layout on 1, 2, 3, 4, 7 and 8 ranks, in all types; this takes minutes.
 * --only takes the layouts whose names contain WORDS. --plans writes the plans of all ranks as
 * JSON, a file for each layout. --traces writes what every lane did (SHERD_TRACE), a file for each
 * rank; apart from waits and drives the order of its intervals is the same in each run, but their
 * times are not. The lines of steps are the same on every backend (SHERD_BACKEND), but those of
 * bytes and plans are not. Every layout runs in a process of its own. One that fails gives a line,
 * a message on standard error, and a failing exit code. */
#include "tests/campaign/record.h"

#include "tests/lib/check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GUARD_SECONDS 240

static FILE *text; /* where the lines go: a copy of standard output, into which the test runner does
                    * not print */
static char  plans[PATH_MAX], traces[PATH_MAX];

/* ------------------------------------------------------------- one layout -- */

typedef struct job {
    record_layout what;
    record_lines  lines[RECORD_RANKS];
} job;

static job current;

static void rank_run(sherd_world *world, void *raw)
{
    job *work = raw;

    record_run(world, &work->what, &work->lines[sherd_world_rank(world)]);
}

/* Gives FOLDER/NAME.json; characters of the name that mean something to a shell or a path are
 * replaced. */
static void path_of(const char *folder, const char *name, char *path, size_t len_bytes)
{
    (void)snprintf(path, len_bytes, "%s/%s.json", folder, name);
    for (char *at = path + strlen(folder) + 1; *at != '\0'; at++) {
        *at = *at == '/' || *at == ' ' || *at == '\'' ? '-' : *at == ',' ? '_' : *at;
    }
}

static void plans_write(const job *work)
{
    char  path[PATH_MAX + 128];
    FILE *file;

    path_of(plans, work->what.name, path, sizeof(path));
    file = fopen(path, "w");
    CHECK(file != NULL);
    for (int r = 0; r < work->what.world_size; r++) {
        CHECK(fputs(work->lines[r].plan.at, file) >= 0);
    }
    CHECK(fclose(file) == 0);
}

static void layout_is_recorded(void)
{
    const job *work = &current;

    test_world(work->what.world_size, rank_run, &current);
    for (int r = 1; r < work->what.world_size; r++) {
        CHECK(strcmp(work->lines[0].steps.at, work->lines[r].steps.at) == 0);
    }
    (void)fputs(work->lines[0].steps.at, text);
    for (int r = 0; r < work->what.world_size; r++) {
        (void)fputs(work->lines[r].end.at, text);
    }
    (void)fprintf(text, "%s files: %d\n", work->what.name, test_files(".", ""));
    if (plans[0] != '\0') {
        plans_write(work);
    }
}

static const test_case CASES[] = {CASE(layout_is_recorded)};

static int child_main(const char *folder)
{
    char path[PATH_MAX + 128];
    int  status;

    (void)alarm(GUARD_SECONDS);
    if (traces[0] != '\0') {
        path_of(traces, current.what.name, path, sizeof(path));
        (void)setenv("SHERD_TRACE", path, 1);
    }
    if (chdir(folder) != 0) {
        return 1;
    }
    status = test_main(0, NULL, CASES, 1);
    return fflush(NULL) == 0 ? status : 1;
}

static void stream_to(int fd, const char *path)
{
    int to = path == NULL ? fcntl(STDERR_FILENO, F_DUPFD, 0) : open(path, O_WRONLY);

    if (to < 0 || dup2(to, fd) < 0) {
        _exit(1);
    }
    (void)close(to);
}

/* Runs the layout in a process of its own and returns its exit code. `is_told`: prints the runner's
 * messages to standard error and drops the lines. */
static int layout_try(int number, int is_told)
{
    char  folder[PATH_MAX];
    pid_t child;
    int   status;

    (void)snprintf(folder, sizeof(folder), "%s/%d%s", test_scratch(), number, is_told ? "t" : "");
    if (mkdir(folder, 0700) != 0) {
        return 1;
    }
    (void)fflush(NULL);
    child = fork();
    if (child == 0) {
        if (is_told) {
            stream_to(fileno(text), "/dev/null");
        }
        stream_to(STDOUT_FILENO, is_told ? NULL : "/dev/null");
        _exit(child_main(folder));
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        return 1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* ----------------------------------------------------------------- matrix -- */

typedef struct wish {
    int         is_all;
    const char *only;
    int         count, failed;
} wish;

static void layout_do(wish *w, const record_theme *theme, int stage, int world_size, int dtype,
                      int accumulation)
{
    record_layout *what = &current.what;

    *what = (record_layout){.theme        = theme,
                            .world_size   = world_size,
                            .stage        = stage,
                            .accumulation = accumulation,
                            .dtype        = (sherd_dtype)dtype};
    (void)snprintf(what->name, sizeof(what->name), "%s/stage %d/ranks %d/%s/micro %d", theme->name,
                   stage, world_size, sherd_dtype_name(what->dtype), accumulation);
    if (w->only != NULL && strstr(what->name, w->only) == NULL) {
        return;
    }
    if (layout_try(w->count, 0) != 0) {
        (void)fprintf(text, "%s: FAILED\n", what->name);
        (void)fprintf(stderr, "%s:\n", what->name);
        (void)layout_try(w->count, 1);
        w->failed++;
    }
    w->count++;
}

/* Goes round the worlds, types and accumulations, each at a pace of its own, so that all pairs of
 * them occur. */
static void stage_do(wish *w, const record_theme *theme, int number, int stage)
{
    static const int WORLDS[] = {2, 3, 1, 4};
    int              first    = number + number / 4 + stage;
    int              turn     = number + stage;
    int              micro    = number / 3 + stage;

    for (int i = 0; i < (theme->is_everywhere ? 4 : 1); i++) {
        layout_do(w, theme, stage, WORLDS[(first + i) % 4],
                  theme->dtype > 0 ? theme->dtype - 1 : (turn + i) % 3,
                  theme->accumulation > 0 ? theme->accumulation : 1 + 2 * ((micro + i) % 2));
    }
}

static void stage_do_all(wish *w, const record_theme *theme, int stage)
{
    static const int WORLDS[] = {1, 2, 3, 4, 7, 8};

    for (size_t i = 0; i < sizeof(WORLDS) / sizeof(WORLDS[0]); i++) {
        for (int dtype = 0; dtype < 3; dtype++) {
            for (int accumulation = 1; accumulation <= 3; accumulation += 2) {
                if ((theme->dtype == 0 || theme->dtype == dtype + 1) &&
                    (theme->accumulation == 0 || theme->accumulation == accumulation)) {
                    layout_do(w, theme, stage, WORLDS[i], dtype, accumulation);
                }
            }
        }
    }
}

static wish wish_of(int argc, char **argv)
{
    wish what = {.only = NULL};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--all") == 0) {
            what.is_all = 1;
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            what.only = argv[++i];
        } else if (strcmp(argv[i], "--plans") == 0 && i + 1 < argc &&
                   realpath(argv[i + 1], plans) != NULL) {
            i++;
        } else if (strcmp(argv[i], "--traces") == 0 && i + 1 < argc &&
                   realpath(argv[i + 1], traces) != NULL) {
            i++;
        } else {
            (void)fprintf(stderr,
                          "usage: %s [--all] [--only WORDS] [--plans FOLDER] [--traces FOLDER]\n",
                          argv[0]);
            exit(2);
        }
    }
    return what;
}

int main(int argc, char **argv)
{
    wish what = wish_of(argc, argv);

    text = fdopen(fcntl(STDOUT_FILENO, F_DUPFD, 3), "w");
    if (text == NULL) {
        (void)fprintf(stderr, "standard output: %s\n", strerror(errno));
        return 1;
    }
    for (size_t t = 0; t < RECORD_NUM_THEMES; t++) {
        const record_theme *theme = &RECORD_THEMES[t];

        for (int stage = theme->least_stage; stage <= theme->most_stage; stage++) {
            if (what.is_all) {
                stage_do_all(&what, theme, stage);
            } else {
                stage_do(&what, theme, (int)t, stage);
            }
        }
    }
    (void)fprintf(text, "%d layouts, %d failed\n", what.count, what.failed);
    return fclose(text) != 0 || what.failed > 0;
}
