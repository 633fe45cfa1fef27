/* Processes that are killed at random moments, with the state on a drive. While their engines move
 * back and forth between three and two ranks, the run can be resumed on one of the two numbers, at
 * the step that it had. While they train, another process reads what each rank had committed. */
#include "engine/elastic/remains.h"
#include "engine/elastic/move.h"
#include "engine/elastic/stored.h"
#include "engine/run/engine_impl.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS  3
#define PHASES 60
#define STEPS  (PHASES + 4)

static uint64_t want[STEPS];

typedef struct crew {
    int stage;
    void (*body)(int slot, void *ctx); /* of a rank in the child */
    int          started[2];           /* pipe: a byte comes when the moves begin */
    sherd_world *worlds[PHASES][SLOTS];
    int          resumed_at; /* of a run that was resumed: its step; -1: it was not */
} crew;

static int size_at(int phase)
{
    return phase % 2 == 0 ? 3 : 2;
}

static void crew_declare(const crew *c, rig *r, sherd_world *world, int resumes)
{
    char        zero[700];
    rig_options options = {.stage        = c->stage,
                           .accumulation = 6 / sherd_world_size(world),
                           .dtype        = SHERD_BF16,
                           .zero         = zero,
                           .top          = ", \"deterministic\": true"};

    (void)snprintf(zero, sizeof(zero),
                   ", \"sub_group_size\": 4096, \"offload_optimizer\": {\"device\": \"nvme\", "
                   "\"nvme_path\": \"%s\", \"resume\": %s}",
                   test_scratch(), resumes ? "true" : "false");
    rig_open(r, world, &options);
    rig_three(r, 9000);
}

static uint64_t crew_step(rig *r, int step)
{
    int size = sherd_world_size(r->world);

    r->micro = (int64_t)step * 6 / size;
    return rig_train(r, 6 / size).fingerprint;
}

/* Moves in each phase, and trains a step there; until it is killed. */
static void slot_live(int slot, void *ctx)
{
    crew        *c     = ctx;
    sherd_world *world = c->worlds[0][slot];
    rig          r;

    crew_declare(c, &r, world, 0);
    rig_seal(&r);
    CHECK_INT(want[1], crew_step(&r, 0));
    if (slot == 0) {
        CHECK_INT(1, write(c->started[1], "x", 1));
    }
    for (int phase = 1; phase < PHASES; phase++) {
        sherd_world *next = slot < size_at(phase) ? c->worlds[phase][slot] : NULL;

        if (world == NULL) {
            sherd_world *alone;

            CHECK_OK(sherd_world_self(&alone));
            crew_declare(c, &r, alone, 0);
            sherd_world_destroy(alone);
        }
        CHECK_OK(sherd_engine_move(r.engine, next));
        sherd_world_destroy(world);
        world   = next;
        r.world = next;
        if (world == NULL) {
            rig_close(&r);
        } else {
            CHECK_INT(want[phase + 1], crew_step(&r, phase));
        }
    }
    if (world != NULL) {
        rig_close(&r);
        sherd_world_destroy(world);
    }
}

static void worlds_make(crew *c)
{
    sherd_world_params params;

    sherd_world_params_init(&params);
    params.timeout_ns  = INT64_C(30000000000);
    params.cpu_threads = 1;
    for (int p = 0; p < PHASES; p++) {
        CHECK_OK(sherd_world_threads_with(size_at(p), &params, c->worlds[p]));
    }
}

/* Resumes and trains two steps more, if there is a run of this number of ranks. */
static void resume_train(sherd_world *world, void *ctx)
{
    crew             *c = ctx;
    sherd_engine_info info;
    rig               r;

    crew_declare(c, &r, world, 1);
    rig_seal(&r);
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    if (info.is_resumed) {
        int step = (int)info.step;

        CHECK_INT(want[step], rig_fingerprint(&r));
        CHECK_INT(want[step + 1], crew_step(&r, step));
        CHECK_INT(want[step + 2], crew_step(&r, step + 1));
    }
    if (sherd_world_rank(world) == 0) {
        c->resumed_at = info.is_resumed ? (int)info.step : -1;
    }
    rig_close(&r);
}

/* Returns the number of files in the test's folder, and removes them. */
static int files_clear(void)
{
    DIR *dir   = opendir(test_scratch());
    int  count = 0;

    CHECK(dir != NULL);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        if (entry->d_name[0] != '.') {
            CHECK(unlinkat(dirfd(dir), entry->d_name, 0) == 0);
            count++;
        }
    }
    (void)closedir(dir);
    return count;
}

static void twin_train(sherd_world *world, void *ctx)
{
    rig r;

    crew_declare(ctx, &r, world, 0);
    rig_seal(&r);
    want[0] = rig_fingerprint(&r);
    for (int step = 0; step < STEPS - 1; step++) {
        want[step + 1] = crew_step(&r, step);
    }
    rig_close(&r);
}

/* Starts the moves in a child, and kills it. */
static void crew_kill(crew *c, useconds_t delay_us)
{
    pid_t child;
    int   state;
    char  byte;

    CHECK(pipe(c->started) == 0);
    (void)fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        (void)alarm(60);
        worlds_make(c);
        test_threads(SLOTS, c->body, c);
        _exit(0);
    }
    (void)close(c->started[1]);
    CHECK_INT(1, read(c->started[0], &byte, 1));
    (void)close(c->started[0]);
    (void)usleep(delay_us);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &state, 0) == child);
    CHECK(WIFSIGNALED(state) || (WIFEXITED(state) && WEXITSTATUS(state) == 0));
}

static void a_run_that_is_killed_while_it_moves_is_resumed_on_one_of_both_numbers(void)
{
    uint64_t state = 49;
    int      at[2] = {0};

    for (int n = 0; n < (test_is_long() ? 300 : 30); n++) {
        crew c          = {.stage = 1 + n % 3, .body = slot_live};
        int  is_resumed = 0;

        if (n < 3) {
            test_world(1, twin_train, &c); /* the same at each stage */
        }
        crew_kill(&c, (useconds_t)(test_random(&state) % 150000));
        for (int size = 2; size <= 3; size++) {
            test_world(size, resume_train, &c);
            at[size - 2] += c.resumed_at >= 0;
            is_resumed |= c.resumed_at >= 0;
        }
        CHECK(is_resumed);
        (void)files_clear();
    }
    (void)printf("  resumed on 2 ranks: %d, on 3: %d\n", at[0], at[1]);
}

/* ------------------------------------------------------------- files of lost ranks -- */

#define MOST_ELEMS 12000

static float masters[STEPS][3][MOST_ELEMS]; /* after each step */

static void masters_train(sherd_world *world, void *ctx)
{
    rig r;

    crew_declare(ctx, &r, world, 0);
    rig_seal(&r);
    for (int step = 0; step < STEPS; step++) {
        for (int p = 0; p < 3; p++) {
            CHECK_OK(sherd_param_read(r.engine, r.params[p].handle, SHERD_MASTER, 0,
                                      r.params[p].elems, masters[step][p]));
        }
        if (step + 1 < STEPS) {
            (void)crew_step(&r, step);
        }
    }
    rig_close(&r);
}

static void blobs_set(rig *r, int step)
{
    sherd_blob_params params;
    int               own[2] = {sherd_world_rank(r->world), step};

    sherd_blob_params_init(&params);
    CHECK_OK(sherd_blob_set(r->engine, "step", &step, sizeof(step), &params));
    params.is_per_rank = 1;
    CHECK_OK(sherd_blob_set(r->engine, "own", own, sizeof(own), &params));
}

/* Trains until it is killed. */
static void slot_train(int slot, void *ctx)
{
    crew *c = ctx;
    rig   r;

    crew_declare(c, &r, c->worlds[0][slot], 0);
    rig_seal(&r);
    for (int step = 0; step < STEPS - 1; step++) {
        blobs_set(&r, step + 1);
        (void)crew_step(&r, step);
        if (slot == 0 && step == 0) {
            CHECK_INT(1, write(c->started[1], "x", 1));
        }
    }
    (void)pause();
}

/* Compares what a rank's files give of the masters. */
static void values_compare(sherd_engine *engine, const sherdi_remains *lost, int step)
{
    sherdi_holding held = {.plan = lost->plan, .model = &engine->model};

    CHECK_OK(sherdi_stored_open(lost->plan, lost->tiers, &engine->mem, &held.stored));
    for (size_t s = 0; s < lost->plan->layout.num_segments; s++) {
        CHECK_OK(sherdi_stored_read(held.stored, (int)s));
        sherdi_stored_ahead(NULL, (int)s);
        for (size_t p = 0; p < engine->model.num_params; p++) {
            size_t begin;
            size_t end;

            if (lost->plan->layout.params[p].segment != (int)s) {
                continue;
            }
            sherdi_move_held(lost->plan, &engine->model, p, SHERDI_MOVE_STATE, 0, lost->plan->rank,
                             &begin, &end);
            end = end < engine->model.params[p].elems ? end : engine->model.params[p].elems;
            while (begin < end) {
                size_t               some   = end - begin;
                const unsigned char *values = sherdi_holding_of(&held, p, 0, begin, &some);

                CHECK_BYTES_EQUAL(&masters[step][p][begin], values, some * sizeof(float));
                begin += some;
            }
        }
    }
    sherdi_stored_close(held.stored);
}

static void blobs_compare(sherd_engine *engine, const sherdi_remains *lost, int step)
{
    const sherdi_blob *blob;
    sherdi_blobs       of_run;
    sherdi_blobs       of_rank;
    int                own[2] = {lost->plan->rank, step};

    sherdi_blobs_init(&of_run, &engine->mem);
    sherdi_blobs_init(&of_rank, &engine->mem);
    CHECK_OK(sherdi_remains_blobs(lost, &of_run, &of_rank));
    blob = sherdi_blobs_find(&of_rank, "own", SHERDI_BLOB_OF_RANK, lost->plan->rank);
    CHECK(blob != NULL && blob->len_bytes == sizeof(own));
    CHECK_BYTES_EQUAL(own, blob->data, sizeof(own));
    blob = sherdi_blobs_find(&of_run, "step", SHERDI_BLOB_GLOBAL, 0);
    CHECK((blob != NULL) == (lost->plan->rank == 0));
    CHECK(blob == NULL || memcmp(blob->data, &step, sizeof(step)) == 0);
    sherdi_blobs_fini(&of_run);
    sherdi_blobs_fini(&of_rank);
}

/* Returns the number of the run that has three ranks. */
static sherd_status run_found(void *ctx, const sherdi_state_found *found)
{
    if (found->id.world_size == 3) {
        *(uint64_t *)ctx = found->id.run;
    }
    return SHERD_OK;
}

static void lost_read(sherd_world *world, void *ctx)
{
    crew                 *c           = ctx;
    sherdi_remains        lost[SLOTS] = {0};
    sherdi_batch_settings batch;
    uint64_t              run    = 0;
    uint64_t              common = UINT64_MAX;
    uint64_t              newest = 0;
    sherd_engine         *engine;
    rig                   r;

    crew_declare(c, &r, world, 0);
    rig_seal(&r);
    engine = r.engine;
    batch  = sherdi_move_batch(&engine->settings.batch, SLOTS);
    CHECK_OK(sherdi_state_find(test_scratch(), run_found, &run));
    CHECK(run != 0);
    for (int rank = 0; rank < SLOTS; rank++) {
        uint64_t own;

        CHECK_OK(sherdi_remains_open(engine, engine->storage.store->queue, run, rank, SLOTS, &batch,
                                     &engine->plan->machine, &lost[rank]));
        own    = sherdi_remains_generation(&lost[rank]);
        common = own < common ? own : common;
        newest = own > newest ? own : newest;
    }
    CHECK(newest - common <= 1);
    c->resumed_at = newest > common;
    for (int rank = 0; rank < SLOTS; rank++) {
        sherdi_state_record record;

        CHECK_STATUS(SHERD_E_STATE, sherdi_remains_aim(&lost[rank], common + 2, &record));
        CHECK_OK(sherdi_remains_aim(&lost[rank], common, &record));
        CHECK(record.note.step >= 1 && record.note.step < STEPS);
        values_compare(engine, &lost[rank], (int)record.note.step);
        blobs_compare(engine, &lost[rank], (int)record.note.step);
    }
    for (int rank = 0; rank < SLOTS; rank++) {
        sherdi_remains_close(&lost[rank], rank > 0);
    }
    CHECK_STATUS(SHERD_E_STATE, sherdi_remains_open(engine, engine->storage.store->queue, run, 1, 4,
                                                    &batch, &engine->plan->machine, &lost[1]));
    rig_close(&r);
}

static void what_a_killed_rank_had_committed_is_read_by_another(void)
{
    uint64_t state   = 7;
    int      differs = 0;

    for (int n = 0; n < (test_is_long() ? 200 : 24); n++) {
        crew c = {.stage = 1 + n % 3, .body = slot_train};

        if (n == 0) {
            test_world(1, masters_train, &c);
        }
        crew_kill(&c, (useconds_t)(test_random(&state) % 100000));
        test_world(1, lost_read, &c);
        differs += c.resumed_at;
        CHECK_INT(2 * 3, files_clear()); /* those of rank 0 were removed */
    }
    (void)printf("  ranks were at two steps in %d of them\n", differs);
}

static const test_case CASES[] = {
    CASE(what_a_killed_rank_had_committed_is_read_by_another),
    CASE(a_run_that_is_killed_while_it_moves_is_resumed_on_one_of_both_numbers),
};

RUN_MAIN(CASES)
