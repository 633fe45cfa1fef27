/* The turns of an elastic job: newcomers wait and are called, die before they have come, are sent
 * away; ranks leave, and die in a turn. A part of this program is the launcher. */
#include "tests/collectives/ranks.h"

#include "sherd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the launcher's words ---- */

static const char *word_path(const char *name)
{
    static char path[300];

    (void)snprintf(path, sizeof(path), "%s/%s", getenv("SHERD_ELASTIC"), name);
    return path;
}

static int has_word(const char *name)
{
    return access(word_path(name), F_OK) == 0;
}

static void word_wait(const char *name)
{
    while (!has_word(name)) {
        (void)poll(NULL, 0, 2);
    }
}

/* Makes a file, locked by this process until it ends. Returns its descriptor. */
static int word_lock(const char *name)
{
    int  fd = open(word_path("of-the-test"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char from[300];

    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    (void)snprintf(from, sizeof(from), "%s", word_path("of-the-test"));
    CHECK(rename(from, word_path(name)) == 0);
    return fd;
}

static void wanted_set(int wanted)
{
    char  from[300];
    FILE *file;

    (void)snprintf(from, sizeof(from), "%s", word_path("wanted-new"));
    file = fopen(from, "we");
    CHECK(file != NULL && fprintf(file, "%d\n", wanted) > 0 && fclose(file) == 0);
    CHECK(rename(from, word_path("wanted")) == 0);
}

/* ---- ranks ---- */

/* Notes a size of the world that rank 0 has seen. */
static void size_note(sherd_world *world)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "size-%d", sherd_world_size(world));
    if (sherd_world_rank(world) == 0 && !ranks_note_is_there(name)) {
        ranks_note_leave(name);
    }
}

/* Takes the next world. Without ranks that were lost, if some were. Returns NULL where this rank
 * leaves. */
static sherd_world *turn_take(sherd_world *world)
{
    sherd_world *next   = NULL;
    sherd_status status = sherd_world_turn(world, &next);

    if (status == SHERD_OK && next != world && next != NULL) { /* in place of a move */
        status = sherd_world_barrier(next);
        if (status != SHERD_OK) {
            sherd_world_destroy(next);
        }
    }
    if (status != SHERD_OK) {
        CHECK_INT(SHERD_E_PEER_LOST, status);
        do {
            CHECK_OK(sherd_world_shrink(world, &next));
            status = sherd_world_barrier(next);
            if (status != SHERD_OK) {
                sherd_world_destroy(next);
            }
        } while (status != SHERD_OK);
    }
    if (next != world) {
        sherd_world_destroy(world);
    }
    return next;
}

/* Turns until the launcher has left the note "stop". The turn that has taken in a newcomer counts. */
static void turns_live(sherd_world *world, int is_new)
{
    double is_over = 0;

    while (world != NULL && is_over == 0) {
        world  = is_new ? world : turn_take(world);
        is_new = 0;
        if (world != NULL) {
            size_note(world);
            is_over = sherd_world_rank(world) == 0 && ranks_note_is_there("stop");
            if (sherd_world_sum_f64(world, &is_over, 1) != SHERD_OK) {
                is_over = 0; /* the next turn finds it too */
            }
        }
    }
    sherd_world_destroy(world);
}

/* Kills this process: when it waits to be called, or after a time. */
static void *dies_later(void *raw)
{
    const char *name = raw;
    char        note[32];

    if (name != NULL) {
        word_wait(name);
    } else {
        (void)usleep((useconds_t)ranks_variable("TEST_DELAY"));
    }
    (void)snprintf(note, sizeof(note), "dead-%s", getenv("SHERD_PROCESS"));
    ranks_note_leave(note);
    (void)kill(getpid(), SIGKILL);
    return raw;
}

static void death_prepare(char *waits)
{
    pthread_t thread;

    if (getenv("TEST_DIES") != NULL) {
        CHECK(pthread_create(&thread, NULL, dies_later,
                             strcmp(getenv("TEST_DIES"), "waiting") == 0 ? waits : NULL) == 0);
    }
}

static void process_lives(void)
{
    sherd_world *world = NULL;
    char         waits[32];

    (void)snprintf(waits, sizeof(waits), "waits-%s", getenv("SHERD_PROCESS"));
    word_wait("launcher");
    if (!sherd_launched_late()) {
        CHECK_STATUS(SHERD_E_STATE, sherd_world_join(NULL, &world));
        CHECK_OK(sherd_world_from_env(NULL, &world));
        death_prepare(waits);
    } else {
        death_prepare(waits);
        if (getenv("TEST_AFTER") != NULL) {
            ranks_note_wait(getenv("TEST_AFTER"));
        }
        do { /* the others may die before this process is one of them */
            sherd_world_destroy(world);
            CHECK_OK(sherd_world_join(NULL, &world));
        } while (world != NULL && sherd_world_barrier(world) != SHERD_OK);
    }
    turns_live(world, sherd_launched_late());
    if (getenv("TEST_DIES") != NULL) {
        (void)poll(NULL, 0, -1);
    }
}

/* ---- the launcher, in each case ---- */

static void launcher_of_two_at_once(void)
{
    (void)word_lock("launcher");
    word_wait("waits-2");
    word_wait("waits-3");
    ranks_note_wait("size-2");
    wanted_set(4);
    ranks_note_wait("size-4");
    CHECK(!ranks_note_is_there("size-3"));
    CHECK(has_word("trains-0"));
    word_wait("trains-3");
    wanted_set(1);
    ranks_note_wait("size-1");
    CHECK(!ranks_note_is_there("size-3"));
    word_wait("leaves-3");
    CHECK(has_word("trains-0") && !has_word("trains-3"));
    ranks_note_leave("stop");
}

static void launcher_of_a_dead_newcomer(void)
{
    int waits;

    (void)word_lock("launcher");
    word_wait("waits-2");
    waits = open(word_path("waits-2"), O_RDWR | O_CLOEXEC);
    CHECK(waits >= 0 && flock(waits, LOCK_EX) == 0); /* process 2 has killed itself */
    (void)close(waits);
    wanted_set(3);
    ranks_note_leave("there is room"); /* for process 3 */
    ranks_note_wait("size-3");
    word_wait("trains-3"); /* which it says when it has met the others */
    CHECK(has_word("waits-2"));
    ranks_note_leave("stop");
}

/* Newcomer 7 is this process, which lives and does not come. */
static void launcher_of_a_silent_newcomer(void)
{
    int silent;

    (void)word_lock("launcher");
    silent = word_lock("waits-7");
    wanted_set(3);
    word_wait("called-7-2-1");
    word_wait("turn-1");
    ranks_note_leave("there is room");
    ranks_note_wait("size-3");
    word_wait("trains-3");
    (void)close(silent);
    ranks_note_leave("stop");
}

static void launcher_of_newcomers_that_are_not_needed(void)
{
    int lock = word_lock("launcher");

    word_wait("waits-0");
    CHECK(unlink(word_path("waits-0")) == 0);
    ranks_note_wait("sent away");
    word_wait("waits-0");
    (void)close(word_lock("over"));
    ranks_note_wait("over");
    CHECK(unlink(word_path("over")) == 0);
    word_wait("waits-0");
    (void)close(lock);
}

static void newcomer_is_not_needed(void)
{
    sherd_world *world = NULL;

    word_wait("launcher");
    CHECK_INT(1, sherd_launched_late());
    CHECK_OK(sherd_world_join(NULL, &world));
    CHECK(world == NULL);
    ranks_note_leave("sent away");
    CHECK_OK(sherd_world_join(NULL, &world));
    CHECK(world == NULL);
    ranks_note_leave("over");
    while (has_word("over")) {
        (void)poll(NULL, 0, 2);
    }
    CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_join(NULL, &world));
    CHECK_ERROR_SAYS("the launcher of the job has ended");
    CHECK(!has_word("waits-0"));
}

/* A rank and newcomer 3 die at any moment, and two that live come for them. */
static void launcher_of_deaths(void)
{
    char note[32];

    (void)word_lock("launcher");
    (void)snprintf(note, sizeof(note), "dead-%d", ranks_variable("TEST_DEAD"));
    ranks_note_wait(note);
    ranks_note_wait("dead-3");
    ranks_note_wait("size-4");
    wanted_set(1);
    ranks_note_wait("size-1");
    ranks_note_leave("stop");
    (void)close(word_lock("over"));
}

/* Two ranks take in a newcomer. Rank 0 goes on in the new world; rank 1 goes back to the old one, as
 * after a move that has failed for it alone. */
static void launcher_of_ranks_that_part(void)
{
    (void)word_lock("launcher");
    word_wait("trains-2");
    while (!has_word("loss-1")) {
        (void)poll(NULL, 0, 2);
    }
    ranks_note_wait("old has ended");
    ranks_note_wait("new has ended");
    CHECK(ranks_note_is_there("old goes on") != ranks_note_is_there("new goes on"));
}

static void ranks_part(void)
{
    sherd_world *world  = NULL;
    sherd_world *next   = NULL;
    sherd_world *last   = NULL;
    int          is_old = ranks_variable("SHERD_PROCESS") == 1;
    sherd_status status;

    word_wait("launcher");
    if (sherd_launched_late()) {
        CHECK_OK(sherd_world_join(NULL, &next));
    } else {
        CHECK_OK(sherd_world_from_env(NULL, &world));
        for (next = world; next == world;) {
            CHECK_OK(sherd_world_turn(world, &next));
        }
        CHECK_INT(3, sherd_world_size(next));
    }
    CHECK_OK(sherd_world_barrier(next));
    if (is_old) {
        sherd_world_destroy(next);
        status = sherd_world_shrink(world, &last);
    } else {
        sherd_world_destroy(world);
        CHECK_STATUS(SHERD_E_PEER_LOST, sherd_world_barrier(next));
        status = sherd_world_shrink(next, &last);
    }
    if (status == SHERD_OK) {
        CHECK_INT(is_old ? 1 : 2, sherd_world_size(last));
    } else {
        CHECK_INT(SHERD_E_STATE, status);
        CHECK_ERROR_SAYS("have gone on without these");
    }
    if (is_old || sherd_world_rank(next) == 0) {
        if (status == SHERD_OK) {
            ranks_note_leave(is_old ? "old goes on" : "new goes on");
        }
        ranks_note_leave(is_old ? "old has ended" : "new has ended");
    }
    sherd_world_destroy(last);
    sherd_world_destroy(is_old ? world : next);
}

static const rank_part PARTS[] = {
    PART(process_lives),
    PART(launcher_of_two_at_once),
    PART(launcher_of_a_dead_newcomer),
    PART(launcher_of_a_silent_newcomer),
    PART(launcher_of_newcomers_that_are_not_needed),
    PART(newcomer_is_not_needed),
    PART(launcher_of_deaths),
    PART(launcher_of_ranks_that_part),
    PART(ranks_part),
};

/* ---- the cases ---- */

#define MOST_STARTS 8
#define TEXT_BYTES  200

/* Processes of a job in a folder of its own. */
typedef struct job {
    rank_start starts[MOST_STARTS];
    int        count;
    char       texts[MOST_STARTS][4][TEXT_BYTES];
} job;

static const char *text_make(job *j, int n, const char *name, const char *value)
{
    char *text = j->texts[j->count][n];

    CHECK(snprintf(text, TEXT_BYTES, "%s=%s", name, value) < TEXT_BYTES);
    return text;
}

static void job_open(job *j, int wanted, const char *launcher)
{
    static int number;
    char       folder[120];

    memset(j, 0, sizeof(*j));
    (void)snprintf(folder, sizeof(folder), "%s/job-%d", test_scratch(), number++);
    CHECK(mkdir(folder, 0700) == 0);
    CHECK(setenv("SHERD_ELASTIC", folder, 1) == 0);
    wanted_set(wanted);
    j->starts[0]                = (rank_start){.part = launcher};
    j->starts[0].environment[0] = text_make(j, 0, "SHERD_ELASTIC", folder);
    j->count                    = 1;
}

/* Adds a process; `more` are variables of it. */
static void job_add(job *j, const char *part, int process, int ranks, const char *more,
                    const char *much_more)
{
    const char **environment = j->starts[j->count].environment;
    char         value[TEXT_BYTES];
    int          n = 3;

    j->starts[j->count].part = part;
    (void)snprintf(value, sizeof(value), "%d", process);
    environment[0] = text_make(j, 0, "SHERD_PROCESS", value);
    environment[1] = j->texts[0][0];
    (void)snprintf(value, sizeof(value), "unix://%.100s/meeting", getenv("SHERD_ELASTIC"));
    environment[2] = text_make(j, 1, "SHERD_RENDEZVOUS", value);
    if (process < ranks) {
        (void)snprintf(value, sizeof(value), "%d", process);
        environment[n++] = text_make(j, 2, "SHERD_RANK", value);
        (void)snprintf(value, sizeof(value), "%d", ranks);
        environment[n++] = text_make(j, 3, "SHERD_WORLD_SIZE", value);
    }
    environment[n++] = more;
    environment[n]   = much_more;
    j->count++;
}

static void two_newcomers_come_in_one_turn_and_leave(void)
{
    job j;

    job_open(&j, 2, "launcher_of_two_at_once");
    for (int p = 0; p < 4; p++) {
        job_add(&j, "process_lives", p, 2, NULL, NULL);
    }
    ranks_run(j.starts, j.count);
}

/* With a limit of ten minutes: who waits for the dead one is too late for the test. */
static void a_newcomer_that_has_died_is_not_called(void)
{
    job j;

    job_open(&j, 2, "launcher_of_a_dead_newcomer");
    for (int p = 0; p < 4; p++) {
        job_add(&j, "process_lives", p, 2, "SHERD_TIMEOUT=600",
                p == 2   ? "TEST_DIES=waiting"
                : p == 3 ? "TEST_AFTER=there is room"
                         : NULL);
    }
    j.starts[3].ends = RANK_IS_KILLED;
    ranks_run(j.starts, j.count);
}

static void a_newcomer_that_does_not_come_is_given_up(void)
{
    job j;

    job_open(&j, 2, "launcher_of_a_silent_newcomer");
    for (int p = 0; p < 4; p++) {
        if (p != 2) {
            job_add(&j, "process_lives", p, 2, "SHERD_TIMEOUT=0.5", "TEST_AFTER=there is room");
        }
    }
    ranks_run(j.starts, j.count);
}

static void newcomers_that_are_not_needed_end(void)
{
    job j;

    job_open(&j, 1, "launcher_of_newcomers_that_are_not_needed");
    job_add(&j, "newcomer_is_not_needed", 0, 0, NULL, NULL);
    ranks_run(j.starts, j.count);
}

static void deaths_in_turns_leave_the_others_turning(void)
{
    uint64_t state = 49;

    for (int n = 0; n < (test_is_long() ? 100 : 15); n++) {
        int  dead = (int)(test_random(&state) % 3);
        char delays[2][32], number[32];
        job  j;

        for (int d = 0; d < 2; d++) {
            (void)snprintf(delays[d], sizeof(delays[d]), "TEST_DELAY=%d",
                           (int)(test_random(&state) % 60000) + 10000);
        }
        job_open(&j, 4, "launcher_of_deaths");
        (void)snprintf(number, sizeof(number), "TEST_DEAD=%d", dead);
        j.starts[0].environment[1] = number;
        for (int p = 0; p < 6; p++) {
            int dies = p == dead || p == 3;

            job_add(&j, "process_lives", p, 3, dies ? delays[p == 3] : "SHERD_TIMEOUT=1",
                    dies ? "TEST_DIES=later" : NULL);
            j.starts[j.count - 1].ends = dies ? RANK_IS_KILLED : RANK_PASSES;
        }
        ranks_run(j.starts, j.count);
    }
}

static void ranks_that_part_do_not_both_go_on(void)
{
    job j;

    for (int n = 0; n < 5; n++) {
        job_open(&j, 3, "launcher_of_ranks_that_part");
        for (int p = 0; p < 3; p++) {
            job_add(&j, "ranks_part", p, 2, NULL, NULL);
        }
        ranks_run(j.starts, j.count);
    }
}

static const test_case CASES[] = {CASE(two_newcomers_come_in_one_turn_and_leave),
                                  CASE(a_newcomer_that_has_died_is_not_called),
                                  CASE(a_newcomer_that_does_not_come_is_given_up),
                                  CASE(newcomers_that_are_not_needed_end),
                                  CASE(ranks_that_part_do_not_both_go_on),
                                  CASE(deaths_in_turns_leave_the_others_turning)};

RANKS_MAIN(CASES, PARTS)
