/* The campaign of random layouts. Each layout is trained on an engine and by its twin without an
 * engine, and both must agree in every bit of every step. Bytes must be held and moved as planned,
 * and no file may be left behind. Every layout is trained in a process of its own, so that a crash
 * or a hang is reported like any other failure.
 *
 * layouts [--seed N] [--count N] [--seconds N] [--without SETTING,...]
 *
 * Trains the layouts of the seeds N, N + 1, ...: `count` of them, or as many as begin within
 * `seconds`. A failure prints what was drawn, the settings that matter, and the command that
 * repeats it. */
#include "tests/campaign/layout.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GUARD_SECONDS 240
#define REFUSED       77
#define REPEATS       4 /* a failure that depends on timing may be absent in one run */

typedef struct job {
    layout         what;
    layout_result *results; /* of each rank; in memory that ranks which are processes share */
} job;

static int  is_device;
static char folder[128]; /* the folder of the layout that runs; a failed layout leaves files in
                          * it */

/* ------------------------------------------------------------- one layout -- */

static void compare(const job *work)
{
    layout_result want = {0};

    layout_twin(&work->what, &want);
    for (int w = 0; w < work->what.num_windows; w++) {
        for (int r = 0; r < work->what.world_size; r++) {
            const layout_outcome *a = &want.windows[w], *b = &work->results[r].windows[w];

            if ((a->fingerprint != b->fingerprint && !b->is_unseen) ||
                memcmp(&a->norm, &b->norm, sizeof(a->norm)) != 0 ||
                a->has_overflow != b->has_overflow || fabs(a->loss_scale - b->loss_scale) > 0) {
                test_fail(
                    __FILE__, __LINE__,
                    "window %d, rank %d: fingerprint %016llx, norm %.17g, overflow %d, loss scale "
                    "%g; the plain training has %016llx, %.17g, %d, %g",
                    w, r, (unsigned long long)b->fingerprint, b->norm, b->has_overflow,
                    b->loss_scale, (unsigned long long)a->fingerprint, a->norm, a->has_overflow,
                    a->loss_scale);
            }
            CHECK_INT(want.undone[w], work->results[r].undone[w]);
            CHECK_INT(want.resumed[w], work->results[r].resumed[w]);
        }
    }
}

static void thread_body(sherd_world *world, void *raw)
{
    job *work = raw;

    layout_train(world, &work->what, &work->results[sherd_world_rank(world)]);
}

/* The body of a rank that is a process. A failed check ends the process. */
static void process_body(job *work, int rank)
{
    sherd_world_params params;
    sherd_world       *world;
    char               meeting[256];

    (void)snprintf(meeting, sizeof(meeting), "unix://%s.meet", folder);
    sherd_world_params_init(&params);
    params.transport = is_device ? NULL : "shm";
    CHECK_OK(sherd_world_create(rank, work->what.world_size, meeting, &params, &world));
    layout_train(world, &work->what, &work->results[rank]);
    sherd_world_destroy(world);
}

static void processes_run(job *work)
{
    pid_t children[LAYOUT_RANKS];
    int   failed = 0, refused = 0;

    for (int r = 0; r < work->what.world_size; r++) {
        children[r] = fork();
        CHECK(children[r] >= 0);
        if (children[r] == 0) {
            /* a failed check longjmps to case_run in this process, which then exits */
            process_body(work, r);
            _exit(0);
        }
    }
    for (int r = 0; r < work->what.world_size; r++) {
        int status;

        CHECK(waitpid(children[r], &status, 0) == children[r]);
        refused += WIFEXITED(status) && WEXITSTATUS(status) == REFUSED;
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    if (refused == work->what.world_size) {
        test_skip("refused");
    }
    CHECK_INT(0, failed);
}

static job current;

static void layout_agrees(void)
{
    current.results = mmap(NULL, LAYOUT_RANKS * sizeof(layout_result), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(current.results != MAP_FAILED);
    if (current.what.is_processes) {
        processes_run(&current);
    } else {
        test_world(current.what.world_size, thread_body, &current);
    }
    compare(&current);
    test_files_remove(folder, "fingerprints");
    CHECK_INT(0, test_files(folder, ""));
}

static const test_case CASES[] = {CASE(layout_agrees)};

/* ---------------------------------------------------------------- children -- */

/* Prints the output of the child, which is in a file next to its folder. */
static void child_said(void)
{
    char   text[4096];
    size_t count;
    FILE  *file;

    (void)snprintf(text, sizeof(text), "%s.said", folder);
    file = fopen(text, "r");
    while (file != NULL && (count = fread(text, 1, sizeof(text), file)) > 0) {
        (void)fwrite(text, 1, count, stdout);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* Runs a layout in a child process with a process group of its own. Returns the child's exit code:
 * 77 if the engine refuses the layout by a documented rule, 1 for everything that is wrong, whose
 * output is printed unless `is_quiet`. */
static int child_run(uint64_t seed, uint64_t without, int is_quiet)
{
    static int number;
    char       said[sizeof(folder) + 8];
    pid_t      child;
    int        status;

    (void)snprintf(folder, sizeof(folder), "%s/%d", test_scratch(), number++);
    if (mkdir(folder, 0700) != 0) {
        (void)printf("no folder %s: %s\n", folder, strerror(errno));
        return 1;
    }
    (void)snprintf(said, sizeof(said), "%s.said", folder);
    (void)fflush(NULL);
    child = fork();
    if (child == 0) {
        (void)setpgid(0, 0);
        (void)alarm(GUARD_SECONDS);
        if (freopen(said, "w", stdout) == NULL) {
            _exit(1);
        }
        (void)setvbuf(stdout, NULL, _IOLBF, 0);
        layout_draw(seed, without, folder, is_device, &current.what);
        (void)setenv("SHERD_DEBUG", current.what.is_debug ? "1" : "0", 1);
        status = test_main(0, NULL, CASES, 1);
        (void)fflush(NULL);
        _exit(status);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        (void)printf("no process: %s\n", strerror(errno));
        return 1;
    }
    (void)kill(-child, SIGKILL); /* ends the ranks that a crash or a hang has left */
    if (!is_quiet &&
        (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != REFUSED))) {
        (void)printf("FAIL seed %llu\n", (unsigned long long)seed);
        child_said();
    }
    (void)unlink(said);
    if (WIFSIGNALED(status) && !is_quiet) {
        (void)printf("ends by %s%s\n", strsignal(WTERMSIG(status)),
                     WTERMSIG(status) == SIGALRM ? ": it hangs" : "");
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int fails(uint64_t seed, uint64_t without)
{
    for (int i = 0; i < REPEATS; i++) {
        int result = child_run(seed, without, 1);

        if (result != 0) {
            return result != REFUSED;
        }
    }
    return 0;
}

static void print_settings(uint64_t bits, int is_set)
{
    const char *comma = "";

    for (int s = 0; s < LAYOUT_NUM_SETTINGS; s++) {
        if ((int)(bits >> s & 1) == is_set) {
            (void)printf("%s%s", comma, layout_setting_name(s));
            comma = ",";
        }
    }
}

/* Puts one setting after another back to its plain value, and keeps it there if the layout still
 * fails. */
static void narrow_down(uint64_t seed, uint64_t without, const char *program)
{
    char   text[6000];
    layout what;

    for (int s = 0; s < LAYOUT_NUM_SETTINGS; s++) {
        if ((without >> s & 1) == 0 && fails(seed, without | (uint64_t)1 << s)) {
            without |= (uint64_t)1 << s;
        }
    }
    layout_draw(seed, without, folder, is_device, &what);
    layout_describe(&what, text, sizeof(text));
    (void)printf("  what is left: %s\n  what matters: ", text);
    print_settings(without, 0);
    (void)printf("\n  repeat: ");
    for (size_t i = 0; is_device && i < 4; i++) {
        static const char *const NAMES[] = {"SHERD_BACKEND", "SHERD_EMULATOR_EAGER",
                                            "SHERD_EMULATOR_GUARD", "SHERD_NCCL_LIBRARY"};

        (void)printf("%s=%s ", NAMES[i], getenv(NAMES[i]) == NULL ? "" : getenv(NAMES[i]));
    }
    (void)printf("%s --seed %llu --count 1", program, (unsigned long long)seed);
    if (without != 0) {
        (void)printf(" --without ");
        print_settings(without, 1);
    }
    (void)printf("\n");
}

/* ------------------------------------------------------------------- main -- */

typedef struct wish {
    uint64_t seed, without;
    long     count, seconds;
} wish;

static uint64_t settings_of(const char *text)
{
    uint64_t bits = 0;

    for (int s = 0; s < LAYOUT_NUM_SETTINGS; s++) {
        const char *name = layout_setting_name(s);
        size_t      len  = strlen(name);

        for (const char *at = text; (at = strstr(at, name)) != NULL; at += len) {
            if ((at == text || at[-1] == ',') && (at[len] == '\0' || at[len] == ',')) {
                bits |= (uint64_t)1 << s;
            }
        }
    }
    return bits;
}

static wish wish_of(int argc, char **argv)
{
    wish what = {.seed = 1, .count = -1, .seconds = -1};

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) {
            what.seed = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--count") == 0) {
            what.count = strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0) {
            what.seconds = strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--without") == 0) {
            what.without = settings_of(argv[i + 1]);
        } else {
            (void)printf("usage: %s [--seed N] [--count N] [--seconds N] [--without SETTING,...]\n",
                         argv[0]);
            exit(2);
        }
    }
    what.count = what.count < 0 && what.seconds < 0 ? 1 : what.count;
    return what;
}

int main(int argc, char **argv)
{
    wish   what    = wish_of(argc, argv);
    time_t ends_at = time(NULL) + what.seconds;
    long   done = 0, failed = 0, refused = 0;

    is_device = getenv("SHERD_BACKEND") != NULL && strcmp(getenv("SHERD_BACKEND"), "cpu") != 0;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    for (; (what.count < 0 || done < what.count) && (what.seconds < 0 || time(NULL) < ends_at);
         done++) {
        uint64_t seed = what.seed + (uint64_t)done;

        int result = child_run(seed, what.without, 0);

        refused += result == REFUSED;
        if (result != 0 && result != REFUSED) {
            narrow_down(seed, what.without, argv[0]);
            failed++;
        }
        if (done % 100 == 99) {
            (void)printf("%ld layouts, %ld failed\n", done + 1, failed);
        }
    }
    (void)printf("layouts: %ld from seed %llu, %ld refused, %ld failed\n", done,
                 (unsigned long long)what.seed, refused, failed);
    return failed > 0;
}
