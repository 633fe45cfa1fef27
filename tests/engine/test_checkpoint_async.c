/* Asynchronous saves. They write the state of the step at which it was copied, although training
 * goes on. The ranks agree on the end of a save at a boundary, or where they wait for it, and a
 * failure is returned there. */
#include "engine/checkpoint/save.h"
#include "engine/checkpoint/folder.h"
#include "engine/run/engine_impl.h"
#include "sherd_tools.h"
#include "tests/engine/saved.h"
#include "tests/lib/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char ASYNC[] = ", \"checkpoint\": {\"async\": true}";

typedef struct job {
    rig_options options;
    char        dir[256];
    size_t      elems; /* elements of a model of one parameter; 0: the model with all kinds */
} job;

static job job_of(int stage, const char *name)
{
    job j = {.options = {.stage = stage, .dtype = SHERD_BF16, .clip = 1, .top = ASYNC}};

    saved_need_checksums();
    (void)saved_dir(name, j.dir);
    return j;
}

static sherd_save_params synchronous(void)
{
    sherd_save_params params;

    sherd_save_params_init(&params);
    params.is_async = 0;
    return params;
}

static sherd_checkpoint_report report_of(rig *r)
{
    sherd_checkpoint_report report;

    sherd_checkpoint_report_init(&report);
    CHECK_OK(sherd_checkpoint_wait(r->engine, &report));
    return report;
}

/* ------------------------------------------------------------------------ bits -- */

/* Checks that the data files of two checkpoints are the same. Tag and time are only in the
 * manifest. */
static void data_compare(const char *dir, int world_size)
{
    for (int rank = 0; rank < world_size; rank++) {
        for (int f = 0; f < SHERDI_DATA_FILES; f++) {
            char          name[SHERDI_CHECKPOINT_NAME_BYTES];
            char          path[2][SHERDI_CHECKPOINT_PATH_BYTES];
            unsigned char bytes[2][4096];
            FILE         *files[2];
            size_t        len;

            sherdi_data_file_name((sherdi_data_file)f, rank, world_size, name);
            CHECK_OK(sherdi_checkpoint_path(dir, "sync", name, path[0]));
            CHECK_OK(sherdi_checkpoint_path(dir, "async", name, path[1]));
            files[0] = fopen(path[0], "rb");
            files[1] = fopen(path[1], "rb");
            CHECK(files[0] != NULL && files[1] != NULL);
            do {
                len = fread(bytes[0], 1, sizeof(bytes[0]), files[0]);
                CHECK_INT(len, fread(bytes[1], 1, sizeof(bytes[1]), files[1]));
                CHECK_BYTES_EQUAL(bytes[0], bytes[1], len);
            } while (len > 0);
            (void)fclose(files[0]);
            (void)fclose(files[1]);
        }
    }
}

/* Sets a blob of the whole run and one of each rank, both larger than the space that the snapshot
 * has in addition to the values. */
static void blobs_set(rig *r, unsigned char byte)
{
    static const size_t LEN  = 400001;
    unsigned char      *data = malloc(LEN);
    sherd_blob_params   own;

    sherd_blob_params_init(&own);
    own.is_per_rank = 1;
    CHECK(data != NULL);
    memset(data, byte, LEN);
    CHECK_OK(sherd_blob_set(r->engine, "of all", data, LEN, NULL));
    memset(data, byte + 1 + sherd_world_rank(r->world), LEN);
    CHECK_OK(sherd_blob_set(r->engine, "own", data, LEN, &own));
    free(data);
}

static void snapshot_body(sherd_world *world, void *raw)
{
    const job        *j    = raw;
    sherd_save_params sync = synchronous();
    uint64_t          fingerprint;
    int               steps = 0;
    rig               r;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    saved_train(&r, 2);
    blobs_set(&r, 7);
    fingerprint = rig_fingerprint(&r);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "sync", &sync));
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "async", NULL));
    blobs_set(&r, 77); /* replaces them after the copy */
    while (r.engine->checkpoints->save != NULL) {
        /* a boundary ends the save, the same one on all ranks */
        double all = 1;

        saved_train(&r, 1);
        steps++;
        CHECK_OK(sherd_world_sum_f64(world, &all, 1));
        CHECK_INT(sherd_world_size(world), all);
    }
    CHECK(steps > 0);
    CHECK_INT(0, report_of(&r).is_running);
    CHECK_INT(2, report_of(&r).step);
    if (sherd_world_rank(world) == 0) {
        CHECK_INT(2, saved_verify(j->dir, NULL));
        CHECK_INT(2, saved_verify(j->dir, "async"));
        data_compare(j->dir, sherd_world_size(world));
    }
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, "async", NULL));
    CHECK_INT(fingerprint, rig_fingerprint(&r));
    rig_close(&r);
}

static void the_snapshot_is_of_the_step_at_which_it_was_taken(void)
{
    for (int stage = 0; stage <= 3; stage++) {
        char name[16];
        job  j;

        (void)snprintf(name, sizeof(name), "snapshot%d", stage);
        j = job_of(stage, name);
        test_world(3, snapshot_body, &j);
    }
}

/* Waiting ends a save; saves that follow each other need no such call. */
static void wait_body(sherd_world *world, void *raw)
{
    const job *j = raw;
    rig        r;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    for (int s = 1; s <= 4; s++) {
        char tag[16];

        saved_train(&r, 1);
        (void)snprintf(tag, sizeof(tag), "tag-%d", s);
        /* waits for the save before */
        CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, tag, NULL));
        CHECK_INT(1, r.engine->checkpoints->report.is_running);
    }
    CHECK_INT(4, report_of(&r).step);
    CHECK(report_of(&r).all_s >= report_of(&r).blocked_s);
    CHECK_INT(4, saved_verify(j->dir, NULL));
    CHECK_OK(sherd_world_barrier(world));
    CHECK_INT(4, test_files(j->dir, "tag-"));
    rig_close(&r);
}

static void waiting_ends_it(void)
{
    job j = job_of(2, "wait");

    test_world(2, wait_body, &j);
}

/* There are more ranks than there are slices to save; the others end with them. */
static void small_body(sherd_world *world, void *raw)
{
    const job *j = raw;
    rig        r;

    rig_open(&r, world, &j->options);
    (void)rig_unit(&r, "unit");
    (void)rig_param(&r, 0, "w", j->elems);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "a", NULL));
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "b", NULL));
    CHECK_OK(sherd_checkpoint_wait(r.engine, NULL));
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, "a", NULL));
    CHECK_INT(1, saved_verify(j->dir, "a"));
    CHECK_INT(2, saved_verify(j->dir, NULL));
    rig_close(&r);
}

static void ranks_that_have_nothing_end_with_the_others(void)
{
    job j = job_of(3, "small");

    for (j.elems = 1; j.elems <= 129; j.elems += 64) {
        test_world(4, small_body, &j);
    }
}

/* -------------------------------------------------------------------------- ends -- */

static void destroyed_body(sherd_world *world, void *raw)
{
    const job        *j    = raw;
    sherd_save_params sync = synchronous();
    rig               r;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "a", &sync));
    saved_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "b", NULL));
    rig_close(&r);
}

static void destroying_leaves_nothing_half(void)
{
    job j = job_of(3, "destroyed");

    test_world(3, destroyed_body, &j);
    CHECK_INT(0, saved_left_behind(j.dir));
    CHECK_INT(0, test_files(j.dir, "b"));
    CHECK_INT(0, saved_verify(j.dir, NULL));
}

/* The folder disappears while the threads write, so that the manifest or a data file cannot be
 * made. */
static void fails_body(sherd_world *world, void *raw)
{
    const job        *j    = raw;
    sherd_save_params sync = synchronous();
    char              path[SHERDI_CHECKPOINT_PATH_BYTES];
    char              away[SHERDI_CHECKPOINT_PATH_BYTES];
    int               is_first = sherd_world_rank(world) == 0;
    rig               r;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "a", &sync));
    for (int at_boundary = 0; at_boundary < 2; at_boundary++) {
        CHECK_OK(sherdi_checkpoint_partial_path(j->dir, "b", NULL, path));
        CHECK_OK(sherdi_checkpoint_path(j->dir, "away", NULL, away));
        CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "b", NULL));
        CHECK(!is_first || rename(path, away) == 0);
        CHECK_OK(sherd_world_barrier(world));
        while (at_boundary && r.engine->checkpoints->save != NULL) {
            saved_train(&r, 1); /* training goes on */
        }
        CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_wait(r.engine, NULL));
        CHECK_OK(sherd_checkpoint_wait(r.engine, NULL)); /* the failure is returned once */
        CHECK(!is_first || rename(away, path) == 0);     /* this is what a kill leaves */
        CHECK_OK(sherd_world_barrier(world));
        saved_train(&r, 1);
        CHECK_INT(0, saved_verify(j->dir, NULL));
        CHECK_INT(0, test_files(j->dir, "b"));
    }
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "c", NULL));
    CHECK_OK(sherd_checkpoint_wait(r.engine, NULL));
    CHECK_OK(sherd_world_barrier(world));
    CHECK(saved_verify(j->dir, NULL) > 0);
    CHECK_INT(0, saved_left_behind(j->dir));
    rig_close(&r);
}

static void a_failure_is_told_where_it_is_waited_for(void)
{
    job j = job_of(3, "fails");

    test_world(2, fails_body, &j);
}

/* A save that cannot begin leaves nothing that a boundary would look at. */
static void begins_body(sherd_world *world, void *raw)
{
    const job *j = raw;
    rig        r;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_save(r.engine, "/proc/none", "a", NULL));
    saved_train(&r, 2);
    CHECK_OK(sherd_checkpoint_wait(r.engine, NULL));
    rig_close(&r);
}

static void one_that_cannot_begin_is_told_at_once(void)
{
    job j = job_of(3, "begins");

    test_world(2, begins_body, &j);
}

/* ------------------------------------------------------------------ several engines -- */

static void shared_body(sherd_world *world, void *raw)
{
    const job        *j    = raw;
    sherd_save_params sync = synchronous();
    rig               one;
    rig               other;

    saved_open(&one, world, &j->options);
    saved_open(&other, world, &j->options);
    saved_fill(&one);
    saved_fill(&other);
    saved_train(&other, 2);
    CHECK_OK(sherd_checkpoint_save(one.engine, j->dir, "one", NULL)); /* not over before its wait */
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_save(other.engine, j->dir, "one", &sync));
    if (sherd_world_rank(world) == 0) {
        CHECK_ERROR_SAYS("one is being saved by another engine (process ");
    }
    CHECK_OK(sherd_checkpoint_save(other.engine, j->dir, "other", &sync));
    CHECK_OK(sherd_checkpoint_wait(one.engine, NULL));
    CHECK_OK(sherd_world_barrier(world));
    CHECK_INT(0, saved_verify(j->dir, "one"));
    CHECK_INT(2, saved_verify(j->dir, "other"));
    CHECK_OK(sherd_world_barrier(world));
    CHECK_OK(sherd_checkpoint_save(other.engine, j->dir, "one", &sync)); /* it is free now */
    CHECK_OK(sherd_world_barrier(world));
    CHECK_INT(2, saved_verify(j->dir, "one"));
    CHECK_INT(0, saved_left_behind(j->dir));
    rig_close(&one);
    rig_close(&other);
}

static void engines_share_a_folder_by_their_tags(void)
{
    job j = job_of(3, "shared");

    test_world(2, shared_body, &j);
}

/* Claims the partial folder of tag "b" in another process, which lives until it is killed. */
static pid_t claim_elsewhere(const char *dir)
{
    char  path[SHERDI_CHECKPOINT_PATH_BYTES];
    int   ends[2];
    char  told;
    pid_t child;

    CHECK(mkdir(dir, 0777) == 0 && pipe(ends) == 0);
    CHECK_OK(sherdi_checkpoint_partial_path(dir, "b", NULL, path));
    CHECK(mkdir(path, 0777) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sherdi_claim claim;

        told = sherdi_claim_partial(path, &claim) == SHERD_OK;
        (void)!write(ends[1], &told, 1);
        for (;;) {
            (void)pause();
        }
    }
    CHECK(read(ends[0], &told, 1) == 1 && told == 1);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return child;
}

static void elsewhere_body(sherd_world *world, void *raw)
{
    job              *j     = raw;
    sherd_save_params sync  = synchronous();
    pid_t             child = claim_elsewhere(j->dir);
    char              who[64];
    rig               r;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_save(r.engine, j->dir, "b", &sync));
    (void)snprintf(who, sizeof(who), "(process %ld on host ", (long)child);
    CHECK_ERROR_SAYS(who);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "c", &sync));
    CHECK_INT(1, saved_left_behind(j->dir)); /* it is the other's */
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "b", &sync));
    CHECK_INT(0, saved_left_behind(j->dir));
    CHECK_INT(0, saved_verify(j->dir, "b"));
    rig_close(&r);
}

static void what_another_process_writes_stays_until_it_dies(void)
{
    job j = job_of(3, "elsewhere");

    test_world(1, elsewhere_body, &j);
}

static void unplanned_body(sherd_world *world, void *raw)
{
    job              *j = raw;
    sherd_save_params params;
    rig               r;

    saved_open(&r, world, &j->options);
    saved_fill(&r);
    sherd_save_params_init(&params);
    params.is_async = 1;
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_checkpoint_save(r.engine, j->dir, "a", &params));
    CHECK_ERROR_SAYS("async");
    saved_train(&r, 1);
    rig_close(&r);
}

static void without_its_key_it_is_refused(void)
{
    job j = job_of(3, "unplanned");

    j.options.top = NULL;
    test_world(2, unplanned_body, &j);
}

static const test_case CASES[] = {
    CASE(the_snapshot_is_of_the_step_at_which_it_was_taken),
    CASE(waiting_ends_it),
    CASE(ranks_that_have_nothing_end_with_the_others),
    CASE(destroying_leaves_nothing_half),
    CASE(a_failure_is_told_where_it_is_waited_for),
    CASE(one_that_cannot_begin_is_told_at_once),
    CASE(engines_share_a_folder_by_their_tags),
    CASE(what_another_process_writes_stays_until_it_dies),
    CASE(without_its_key_it_is_refused),
};

RUN_MAIN(CASES)
