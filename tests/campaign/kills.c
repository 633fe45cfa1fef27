/* The campaign of kills. The ranks are processes and their state rests on a drive. One rank or all
 * ranks are killed at random moments: while they meet, in a step, in a queued update, or while they
 * end. Each attempt goes on from what the attempt before it left. The campaign checks that no step
 * is lost that all ranks had done, and that every step has the fingerprint of the undisturbed run.
 * A step that was queued is done when the ranks meet next. After the last attempt, which is not
 * disturbed, no file of an earlier step may remain.
 *
 * kills [--seed N] [--count N] [--seconds N]
 *
 * Runs the seeds N, N + 1, ...: `count` of them, or as many as begin within `seconds`. */
#include "sherd_build.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "sherd_tools.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS         3
#define STEPS         12
#define KILLS         6 /* the most attempts that are disturbed */
#define GUARD_SECONDS 120

/* What the ranks report, in memory that all processes share. */
typedef struct told {
    int64_t  first[RANKS];    /* the step from which the rank went on; -1: it has not got so far */
    int64_t  queued[RANKS];   /* the last step that the rank has queued or done */
    int64_t  done[RANKS];     /* steps that are done, as the rank's calls have said */
    int      is_over[RANKS];  /* all steps are done, and the rank destroys the engine next */
    int      is_wrong[RANKS]; /* some step has another fingerprint than it should have */
    uint64_t want[STEPS + 1];
} told;

static told       *all;
static char        folder[128];
static char        meeting[200];
static char        keys[1024];
static const char *encodings; /* keys at the top level */
static int         world_size, stage, rank;
static size_t      elems;
static uint64_t    drawn; /* decides how steps end */

/* ----------------------------------------------------------------- a rank -- */

static void undisturbed_train(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = stage, .dtype = SHERD_BF16, .clip = 1, .top = encodings};
    rig         r;

    (void)ctx;
    rig_open(&r, world, &options);
    rig_three(&r, elems);
    rig_seal(&r);
    for (int step = 0; step <= STEPS; step++) {
        uint64_t fingerprint = step == 0 ? rig_fingerprint(&r) : rig_train(&r, 1).fingerprint;

        if (sherd_world_rank(world) == 0) {
            all->want[step] = fingerprint;
        }
    }
    rig_close(&r);
}

static void undisturbed(void)
{
    test_world(world_size, undisturbed_train, NULL);
}

/* How a step ends, the same on all ranks. */
typedef enum ending {
    ENDS_BY_STEP,
    ENDS_QUEUED,
    ENDS_QUEUED_IN_HALVES,
    ENDINGS,
} ending;

/* When the trainer asks for the report of a queued step. */
typedef enum asking {
    ASKS_AT_ONCE,
    ASKS_BEHIND_FORWARD,
    ASKS_BEHIND_BACKWARD,
    ASKS_NEVER,
    ASKINGS,
} asking;

/* One in four steps is not queued. */
static ending ending_of(int64_t step)
{
    uint64_t state = drawn + (uint64_t)step * 77;
    uint64_t draw  = test_random(&state) % 4;

    return draw < ENDINGS ? (ending)draw : ENDS_QUEUED;
}

static asking asking_of(int64_t step)
{
    uint64_t state = drawn + 1000 + (uint64_t)step * 77;

    return (asking)(test_random(&state) % ASKINGS);
}

static void step_is_done(int64_t step, uint64_t fingerprint)
{
    all->is_wrong[rank] |= fingerprint != all->want[step];
    __atomic_store_n(&all->done[rank], step, __ATOMIC_RELAXED);
}

static void step_queue(rig *r, ending how)
{
    sherd_step_params params;

    sherd_step_params_init(&params);
    params.is_queued = 1;
    if (how == ENDS_QUEUED) {
        CHECK_OK(sherd_step_queue(r->engine));
    } else {
        CHECK_OK(sherd_step_prepare(r->engine, NULL));
        CHECK_OK(sherd_step_apply(r->engine, &params));
    }
    r->micro++;
}

/* Asks for the report of a step that is under way, if it is the time for it. */
static void step_ask(rig *r, int64_t step, asking when)
{
    sherd_step_report report;

    sherd_step_report_init(&report);
    if (all->queued[rank] == step && all->done[rank] < step && asking_of(step) == when) {
        CHECK_OK(sherd_step_wait(r->engine, &report));
        CHECK_INT(step, report.stored_step);
        step_is_done(step, report.fingerprint);
    }
}

static void step_make(rig *r, int64_t step)
{
    ending how = ending_of(step);

    for (int u = 0; u < r->num_units; u++) {
        rig_forward(r, u, SHERD_FORWARD);
    }
    step_ask(r, step - 1, ASKS_BEHIND_FORWARD);
    for (int u = r->num_units; u-- > 0;) {
        rig_backward(r, u);
    }
    step_ask(r, step - 1, ASKS_BEHIND_BACKWARD);
    if (how == ENDS_BY_STEP) {
        uint64_t fingerprint = rig_step(r).fingerprint;

        all->queued[rank] = step;
        step_is_done(step, fingerprint);
        return;
    }
    step_queue(r, how);
    all->done[rank] = step - 1; /* the ranks have met */
    __atomic_store_n(&all->queued[rank], step, __ATOMIC_RELAXED);
    step_ask(r, step, ASKS_AT_ONCE);
}

/* Trains from the step at which the last attempt ended to the last step. */
static void rank_trains(void)
{
    rig_options options = {
        .stage = stage, .dtype = SHERD_BF16, .clip = 1, .zero = keys, .top = encodings};
    sherd_world_params params;
    sherd_engine_info  info;
    sherd_world       *world;
    rig                r;

    sherd_world_params_init(&params);
    params.transport = "shm";
    CHECK_OK(sherd_world_create(rank, world_size, meeting, &params, &world));
    rig_open(&r, world, &options);
    rig_three(&r, elems);
    rig_seal(&r);
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    r.micro          = info.micro_step;
    all->first[rank] = info.step;
    all->is_wrong[rank] |= rig_fingerprint(&r) != all->want[info.step];
    for (int64_t step = info.step + 1; step <= STEPS; step++) {
        step_make(&r, step);
    }
    if (asking_of(STEPS) !=
        ASKS_NEVER) { /* else the engine ends while an update may be under way */
        step_is_done(STEPS, rig_fingerprint(&r));
    }
    __atomic_store_n(&all->is_over[rank], 1, __ATOMIC_RELAXED);
    rig_close(&r);
    sherd_world_destroy(world);
}

/* ---------------------------------------------------------------- attempts -- */

/* Runs one case in a child process. If ranks are killed, the checks of the others may fail, and
 * is_quiet hides their messages. */
static pid_t child_start(const test_case *what, int is_quiet)
{
    pid_t child;

    (void)fflush(NULL);
    child = fork();
    if (child == 0) {
        (void)alarm(GUARD_SECONDS);
        if (is_quiet && freopen("/dev/null", "w", stdout) == NULL) {
            _exit(1);
        }
        _exit(test_main(0, NULL, what, 1));
    }
    CHECK(child > 0);
    return child;
}

static void nap(long us)
{
    struct timespec rest = {us / 1000000, us % 1000000 * 1000};

    (void)nanosleep(&rest, NULL);
}

/* Waits for the moment of the kill: while the ranks meet, after some step of any rank, or when the
 * first rank is over. Every fourth moment is before the first update. */
static void wait_for_the_moment(uint64_t *random)
{
    int     is_early = test_random(random) % 4 == 0;
    int64_t target   = is_early ? 0 : (int64_t)(test_random(random) % (STEPS + 3)) - 1;

    for (int tries = 0; target >= 0 && tries < 20000; tries++) {
        int is_there = 0;

        for (int r = 0; r < world_size; r++) {
            is_there |= target > STEPS
                            ? __atomic_load_n(&all->is_over[r], __ATOMIC_RELAXED)
                            : __atomic_load_n(&all->first[r], __ATOMIC_RELAXED) >= 0 &&
                                  __atomic_load_n(&all->queued[r], __ATOMIC_RELAXED) >= target;
        }
        if (is_there) {
            break;
        }
        nap(500);
    }
    nap((long)(test_random(random) % (target < 0 ? 60000 : 3000)));
}

typedef struct search {
    int in_use;
    int useless; /* files that are not locked and from which no rank could go on */
} search;

static sherd_status count_file(void *ctx, const sherd_state_file *file)
{
    search *found = ctx;

    found->in_use += file->is_locked;
    /* Two kinds of files may remain. A rank that was the only one to write its first generation
     * leaves its file, and so does a rank that is killed when all ranks have come to the end: ranks
     * that go on from the last step have nothing to do and remove nothing. `sherd state remove` is
     * for both kinds. */
    found->useless += !file->is_locked && file->generation != 1 && file->step != STEPS;
    return SHERD_OK;
}

/* Waits until no state file is in use. A killed process may keep its files for a moment longer,
 * until the kernel has closed them. */
static void settle(void)
{
    for (int tries = 0; tries < 10000; tries++) {
        search found = {0};

        CHECK_OK(sherd_state_files_find(folder, count_file, &found));
        if (found.in_use == 0) {
            return;
        }
        nap(1000);
    }
    test_fail(__FILE__, __LINE__, "a file of ranks that are dead stays in use");
}

/* Returns the step that no later attempt may lose: the last step that every rank had done. If all
 * ranks were over, it is 0, because their files may be gone. */
static int64_t least_step(void)
{
    int64_t least = STEPS;
    int     over  = 0;

    for (int r = 0; r < world_size; r++) {
        least = all->done[r] < least ? all->done[r] : least;
        over += all->is_over[r];
    }
    return over == world_size ? 0 : least;
}

static int kills_done, kills_in_shadow;

/* Whether a rank that is killed now has an update under way, as far as can be known. */
static int is_in_shadow(int r)
{
    return __atomic_load_n(&all->queued[r], __ATOMIC_RELAXED) >
           __atomic_load_n(&all->done[r], __ATOMIC_RELAXED);
}

/* Kills the rank `victim`, or all ranks if there is no rank of that number. If the victim has not
 * met the others yet, the others would wait for it; then all ranks are killed, as a launcher would
 * do. */
static void kill_some(const pid_t *children, int victim)
{
    int is_for_all = victim >= world_size || all->first[victim] < 0;

    for (int r = 0; r < world_size; r++) {
        if (is_for_all || r == victim) {
            kills_in_shadow += is_in_shadow(r);
            (void)kill(children[r], SIGKILL);
        }
    }
}

/* Starts all ranks and waits for them. If `random` is NULL, none is killed. Returns how many ranks
 * were killed. */
static int attempt(uint64_t *random, int number, int64_t least)
{
    static const test_case RANK[] = {CASE(rank_trains)};
    pid_t                  children[RANKS];
    int                    killed = 0;

    (void)snprintf(meeting, sizeof(meeting), "unix://%s.meet-%d", folder, number);
    for (int r = 0; r < world_size; r++) {
        all->first[r]  = -1;
        all->queued[r] = all->done[r] = all->is_over[r] = 0;
    }
    for (int r = 0; r < world_size; r++) {
        rank        = r;
        children[r] = child_start(RANK, random != NULL);
    }
    if (random != NULL) {
        wait_for_the_moment(random);
        kill_some(children, (int)(test_random(random) % (uint64_t)(world_size * 2)));
    }
    for (int r = 0; r < world_size; r++) {
        int status;

        CHECK(waitpid(children[r], &status, 0) == children[r]);
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
            test_fail(__FILE__, __LINE__, "attempt %d: rank %d ends by %s", number, r,
                      strsignal(WTERMSIG(status)));
        }
        if (random == NULL && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
            test_fail(__FILE__, __LINE__, "undisturbed, rank %d fails", r);
        }
        if (all->is_wrong[r]) {
            test_fail(__FILE__, __LINE__, "attempt %d: rank %d has another fingerprint", number, r);
        }
        if (all->first[r] >= 0 && all->first[r] < least) {
            test_fail(__FILE__, __LINE__,
                      "attempt %d: rank %d goes on from step %lld; all had done %lld", number, r,
                      (long long)all->first[r], (long long)least);
        }
    }
    return killed;
}

/* ---------------------------------------------------------------- one run -- */

static void run_ends_as_undisturbed(void)
{
    static const char *const ENCODINGS[] = {
        "",
        ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}",
        ", \"sherd\": {\"master_encoding\": \"bf16\", \"moment_encoding\": \"bf16\"}",
        ", \"sherd\": {\"master_encoding\": \"bf16\", \"moment_encoding\": \"fp8\"}",
    };
    static const test_case REFERENCE[] = {CASE(undisturbed)};
    uint64_t               random      = all->want[0]; /* main puts the seed here */
    int64_t                least       = 0;
    int                    status, attempts;
    search                 left = {0};

    world_size = 2 + (int)(test_random(&random) % (RANKS - 1));
    stage      = 1 + (int)(test_random(&random) % 3);
    elems      = test_random(&random) % 2 == 0 ? 3000 : 60000;
    attempts   = 1 + (int)(test_random(&random) % KILLS);
    encodings  = ENCODINGS[test_random(&random) % 4];
    drawn      = test_random(&random);
    (void)snprintf(keys, sizeof(keys),
                   ", \"sub_group_size\": 20480, \"offload_optimizer\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\", \"resume\": true, \"durable\": false}",
                   folder);
    CHECK(waitpid(child_start(REFERENCE, 0), &status, 0) > 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (int k = 0; k < attempts; k++) {
        int64_t now;

        kills_done += attempt(&random, k, least);
        settle();
        now   = least_step();
        least = all->is_over[0] && now == 0 ? 0 : now > least ? now : least;
    }
    (void)attempt(NULL, attempts, least);
    CHECK_OK(sherd_state_files_find(folder, count_file, &left));
    if (left.in_use + left.useless > 0) {
        test_fail(__FILE__, __LINE__, "%d state files are left behind, %d in use", left.useless,
                  left.in_use);
    }
    (void)remove(folder);
}

static const test_case CASES[] = {CASE(run_ends_as_undisturbed)};

#ifdef SHERDI_HAVE_XXHASH
int main(int argc, char **argv)
{
    uint64_t seed  = 1;
    long     count = 1, seconds = -1, done = 0, failed = 0;
    time_t   ends_at;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0) {
            seed = strtoull(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--count") == 0) {
            count = strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--seconds") == 0) {
            seconds = strtol(argv[i + 1], NULL, 10);
        } else {
            (void)printf("usage: %s [--seed N] [--count N] [--seconds N]\n", argv[0]);
            return 2;
        }
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    all = mmap(NULL, sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) {
        (void)printf("no shared memory: %s\n", strerror(errno));
        return 1;
    }
    for (ends_at = time(NULL) + seconds; seconds < 0 ? done < count : time(NULL) < ends_at;
         done++) {
        uint64_t this_seed = seed + (uint64_t)done;

        memset(all, 0, sizeof(*all));
        all->want[0] = this_seed;
        (void)snprintf(folder, sizeof(folder), "%s/%ld", test_scratch(), done);
        if (mkdir(folder, 0700) != 0 || test_main(0, NULL, CASES, 1) != 0) {
            (void)printf("FAIL seed %llu\n  repeat: %s --seed %llu\n",
                         (unsigned long long)this_seed, argv[0], (unsigned long long)this_seed);
            failed++;
        }
    }
    (void)printf(
        "kills: %d in %ld runs from seed %llu, %d of them behind a queued step, %ld failed\n",
        kills_done, done, (unsigned long long)seed, kills_in_shadow, failed);
    return failed > 0;
}
#else /* without libxxhash, state cannot rest on a drive */
int main(void)
{
    (void)CASES;
    (void)puts("skip: no libxxhash in this build");
    return 77;
}
#endif
