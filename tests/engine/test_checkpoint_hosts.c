/* Checkpoints of hosts that do not share the folder: each host has its part, and all of them or none
 * have the checkpoint. A host here is a working directory of a rank's thread, or process: all save
 * into the same relative path. test_checkpoint_hosts.sh does it on hosts with a network between
 * them. */
#include "engine/checkpoint/folder.h"
#include "engine/run/engine_impl.h"
#include "sherd_tools.h"
#include "tests/collectives/ranks.h"
#include "tests/engine/saved.h"
#include "tests/lib/check.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_RANKS   6
#define GLOBAL_BATCH 60

typedef struct job {
    char        base[256]; /* of the folders of the hosts */
    int         world_size, hosts[MOST_RANKS];
    rig_options options;
    char        zero[512];
    const char *tag;
    int         keep_last, steps;
    uint64_t    fingerprint; /* out: of rank 0 at the end */
    uint64_t    kept_bytes;  /* out: of the last save of rank 0 */
} job;

/* The folder of a host; every rank of it sees DIR as "ckpt". */
static const char *host_path(const job *j, int host, const char *name, char out[512])
{
    (void)snprintf(out, 512, "%s/host-%d/%s", j->base, host, name);
    return out;
}

static void host_enter(const job *j, int rank)
{
    char path[512];

    (void)mkdir(j->base, 0700);
    (void)mkdir(host_path(j, j->hosts[rank], "", path), 0700);
    CHECK(unshare(CLONE_FS) == 0);
    CHECK(chdir(path) == 0);
}

static void open_there(rig *r, sherd_world *world, const job *j)
{
    rig_options options = j->options;

    host_enter(j, sherd_world_rank(world));
    options.accumulation = GLOBAL_BATCH / j->world_size;
    options.zero         = j->zero;
    saved_open(r, world, &options);
}

static void blobs_set(rig *r, int rank)
{
    sherd_blob_params params;
    static const char LARGE[70000] = "large";

    sherd_blob_params_init(&params);
    CHECK_OK(sherd_blob_set(r->engine, "run", "of the run", 10, NULL));
    params.is_large = 1;
    CHECK_OK(sherd_blob_set(r->engine, "large", LARGE, sizeof(LARGE), &params));
    params.is_large    = 0;
    params.is_per_rank = 1;
    CHECK_OK(sherd_blob_set(r->engine, "own", &rank, sizeof(rank), &params));
}

static void blobs_check(rig *r, int rank, int saved_ranks)
{
    sherd_blob_params params;
    char              text[10];
    size_t            len  = sizeof(text);
    int               from = -1;

    CHECK_OK(sherd_blob_get(r->engine, "run", text, &len, NULL));
    CHECK_BYTES_EQUAL("of the run", text, 10);
    len = 0;
    CHECK_OK(sherd_blob_get(r->engine, "large", NULL, &len, NULL));
    CHECK_INT(70000, len);
    if (rank < saved_ranks) {
        sherd_blob_params_init(&params);
        params.is_per_rank = 1;
        len                = sizeof(from);
        CHECK_OK(sherd_blob_get(r->engine, "own", &from, &len, &params));
        CHECK_INT(rank, from);
    }
}

/* --------------------------------------------------------------- save and load -- */

static void save_body(sherd_world *world, void *raw)
{
    job                    *j = raw;
    sherd_save_params       params;
    sherd_checkpoint_report report;
    rig                     r;

    open_there(&r, world, j);
    saved_fill(&r);
    blobs_set(&r, sherd_world_rank(world));
    sherd_save_params_init(&params);
    params.keep_last = j->keep_last;
    sherd_checkpoint_report_init(&report);
    for (int s = 0; s < j->steps; s++) {
        saved_train(&r, 1);
        CHECK_OK(sherd_checkpoint_save(r.engine, "ckpt", j->tag, &params));
        CHECK_OK(sherd_checkpoint_wait(r.engine, &report));
    }
    if (sherd_world_rank(world) == 0) {
        j->fingerprint = report.fingerprint;
        j->kept_bytes  = report.kept_bytes;
    }
    rig_close(&r);
}

typedef struct going {
    job     *from, *to;
    uint64_t fingerprint; /* out: after one more step */
} going;

static void load_body(sherd_world *world, void *raw)
{
    going *g = raw;
    rig    r;

    open_there(&r, world, g->to);
    CHECK_OK(sherd_checkpoint_load(r.engine, "ckpt", NULL, NULL));
    CHECK_INT(g->from->fingerprint, rig_fingerprint(&r));
    blobs_check(&r, sherd_world_rank(world), g->from->world_size);
    saved_train(&r, 1);
    if (sherd_world_rank(world) == 0) {
        g->fingerprint = rig_fingerprint(&r);
    } else {
        (void)rig_fingerprint(&r);
    }
    rig_close(&r);
}

static void plain_body(sherd_world *world, void *raw)
{
    going      *g       = raw;
    rig_options options = g->to->options;
    rig         r;
    uint64_t    sum;

    options.accumulation = GLOBAL_BATCH;
    saved_open(&r, world, &options);
    saved_fill(&r);
    saved_train(&r, g->from->steps + 1);
    sum = rig_fingerprint(&r);
    CHECK_INT(sum, g->fingerprint);
    rig_close(&r);
}

static job job_make(const char *name, const char *hosts, int stage)
{
    job j = {.world_size = (int)strlen(hosts),
             .options    = {.stage = stage,
                            .dtype = SHERD_BF16,
                            .clip  = 1,
                            .top   = ", \"deterministic\": true"},
             .keep_last  = -1,
             .steps      = 2};

    saved_need_checksums();
    (void)saved_dir(name, j.base);
    for (int r = 0; r < j.world_size; r++) {
        j.hosts[r] = hosts[r] - 'a';
    }
    return j;
}

static int hosts_of(const job *j)
{
    int most = 0;

    for (int r = 0; r < j->world_size; r++) {
        most = j->hosts[r] > most ? j->hosts[r] : most;
    }
    return most + 1;
}

/* Every host has the files of its ranks, the manifest and the latest tag, and nothing else. */
static void parts_check(const job *j, const char *tag)
{
    char name[256], path[512], latest[SHERDI_CHECKPOINT_NAME_BYTES];

    for (int h = 0; h < hosts_of(j); h++) {
        CHECK_OK(sherdi_checkpoint_latest(host_path(j, h, "ckpt", path), latest));
        CHECK(strcmp(latest, tag) == 0);
        CHECK_INT(0, saved_left_behind(path));
        for (int r = 0; r < j->world_size; r++) {
            (void)snprintf(name, sizeof(name), "ckpt/%s/rank-%05d-of-%05d.safetensors", tag, r,
                           j->world_size);
            CHECK_INT(j->hosts[r] == h, sherdi_checkpoint_has(host_path(j, h, name, path)));
        }
        (void)snprintf(name, sizeof(name), "ckpt/%s/" SHERDI_MANIFEST_NAME, tag);
        CHECK(sherdi_checkpoint_has(host_path(j, h, name, path)));
    }
}

static going go_on(job *from, job *to)
{
    going g = {.from = from, .to = to};

    test_world(to->world_size, load_body, &g);
    test_world(1, plain_body, &g);
    return g;
}

static void saved_and_loaded(const char *hosts, int stage)
{
    job  j = job_make("same", hosts, stage);
    char command[600];

    test_world(j.world_size, save_body, &j);
    parts_check(&j, "step-000002");
    (void)go_on(&j, &j);
    (void)snprintf(command, sizeof(command), "rm -rf %s", j.base);
    CHECK_INT(0, system(command));
}

static void parts_load_on_the_hosts_that_saved_them(void)
{
    static const char *const HOSTS[] = {"ab", "aab", "abc", "abab", "aaabcc"};

    for (size_t i = 0; i < sizeof(HOSTS) / sizeof(HOSTS[0]); i++) {
        saved_and_loaded(HOSTS[i], 1 + (int)i % 3);
    }
    saved_and_loaded("ab",
                     0); /* where every rank needs all files, from stage 0 and of frozen ones */
}

/* Copies what the hosts have into the folder of host `to`. */
static void parts_copy(const job *j, int to)
{
    char command[1200], from[512], into[512];

    for (int h = 0; h < hosts_of(j); h++) {
        if (h != to) {
            (void)snprintf(command, sizeof(command), "mkdir -p %s && cp -r %s/. %s",
                           host_path(j, to, "ckpt", into), host_path(j, h, "ckpt", from), into);
            CHECK_INT(0, system(command));
        }
    }
}

static void parts_in_one_folder_load_on_any_layout(void)
{
    job  from = job_make("together", "abbc", 3);
    job  to   = job_make("together", "ddddd", 1);
    char path[512];

    test_world(from.world_size, save_body, &from);
    parts_copy(&from, 3);
    CHECK_INT(2, saved_verify(host_path(&from, 3, "ckpt", path), NULL));
    (void)go_on(&from, &to);
    to = job_make("together", "d", 2);
    (void)go_on(&from, &to);
}

static void ranks_send_what_hosts_lack(void)
{
    static const char *const HOSTS[] = {"aab", "bbabb", "abccc", "ddabc", "ba"};

    for (size_t i = 0; i < sizeof(HOSTS) / sizeof(HOSTS[0]); i++) {
        job  from = job_make("sent", "ab", 2);
        job  to   = job_make("sent", HOSTS[i], i % 2 == 0 ? 3 : 1);
        char command[600];

        test_world(from.world_size, save_body, &from);
        (void)go_on(&from, &to);
        (void)go_on(&from, &to); /* nothing is left to be sent */
        (void)snprintf(command, sizeof(command), "rm -rf %s", from.base);
        CHECK_INT(0, system(command));
    }
}

/* ------------------------------------------------------------------- missing parts -- */

static void missing_body(sherd_world *world, void *raw)
{
    job     *j = raw;
    rig      r;
    uint64_t before;
    char     text[SHERDI_ERROR_BYTES];
    char     first[SHERDI_ERROR_BYTES];

    open_there(&r, world, j);
    saved_fill(&r);
    before = rig_fingerprint(&r);
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_load(r.engine, "ckpt", NULL, NULL));
    (void)snprintf(text, sizeof(text), "%s", sherd_last_error());
    memcpy(first, text, sizeof(text));
    CHECK_OK(sherd_world_broadcast(world, first, sizeof(first), 0));
    CHECK(strcmp(first, text) == 0);
    CHECK(strstr(text, "no rank has rank-00001-of-00002.safetensors that rank 1 wrote on host ") !=
          NULL);
    CHECK(strstr(text, ", and 1 more files; copy step-000002/*-00001-of-00002* of host ") != NULL);
    CHECK_INT(before, rig_fingerprint(&r));
    saved_train(&r, 1);
    rig_close(&r);
}

static void a_missing_part_is_named_on_all_ranks(void)
{
    job               from = job_make("missing", "ab", 3);
    job               to   = job_make("missing", "acd", 3);
    sherd_checkpoint *c;
    char              path[512];

    test_world(from.world_size, save_body, &from);
    test_world(to.world_size, missing_body, &to);
    to = job_make("missing", "a", 3);
    test_world(to.world_size, missing_body, &to);
    CHECK_OK(sherd_checkpoint_open(host_path(&from, 1, "ckpt", path), NULL, &c));
    CHECK_INT(0, sherd_checkpoint_describe(c)->is_complete);
    CHECK(strstr(sherd_checkpoint_describe(c)->problem,
                 "rank-00000-of-00002.safetensors is missing, which was written on host ") != NULL);
    CHECK(strstr(sherd_checkpoint_describe(c)->problem, "; 1 more files are missing; copy ") !=
          NULL);
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_verify(c, NULL));
    CHECK_ERROR_SAYS("it is not here: rank 0 wrote it on host ");
    sherd_checkpoint_close(c);
}

/* -------------------------------------------------------------------- interrupted -- */

static void path_rename(const job *j, int host, const char *from, const char *to)
{
    char a[512], b[512];

    CHECK(rename(host_path(j, host, from, a), host_path(j, host, to, b)) == 0);
}

/* Rank 0 has completed the checkpoint, and host b has not come to it. */
static void a_load_completes_what_a_save_has_left(void)
{
    job j = job_make("left", "abb", 3);

    test_world(j.world_size, save_body, &j);
    path_rename(&j, 1, "ckpt/step-000002", "ckpt/.step-000002.prepared");
    (void)go_on(&j, &j);
    parts_check(&j, "step-000002");
    /* the same where the next save comes first */
    path_rename(&j, 1, "ckpt/step-000002", "ckpt/.step-000002.prepared");
    j.tag = "next";
    test_world(j.world_size, save_body, &j);
    parts_check(&j, "next");
    {
        char path[512];

        CHECK(sherdi_checkpoint_has(host_path(&j, 1, "ckpt/step-000002", path)));
    }
}

/* Host b was ready, and rank 0 has not completed it: also where it would replace another. */
static void a_save_removes_what_never_became_complete(void)
{
    job  j = job_make("never", "ab", 3);
    char command[1200], path[512], other[512];

    j.tag = "same";
    test_world(j.world_size, save_body, &j);
    (void)snprintf(command, sizeof(command), "cp -r %s %s && sed -i s/bf16/bfXX/ %s/manifest.json",
                   host_path(&j, 1, "ckpt/same", path),
                   host_path(&j, 1, "ckpt/.same.prepared", other), other);
    CHECK_INT(0, system(command));
    (void)go_on(&j, &j);
    CHECK(sherdi_checkpoint_has(other)); /* a load does not judge */
    path_rename(&j, 1, "ckpt/.same.prepared", "ckpt/.never.prepared");
    test_world(j.world_size, save_body, &j);
    parts_check(&j, "same");
    (void)go_on(&j, &j);
}

/* Rank 0 has replaced a checkpoint, and host b has the one before under the name. */
static void a_part_that_was_not_replaced_is(void)
{
    job  j = job_make("replaced", "aab", 3);
    char command[1200], path[512], other[512];

    j.tag   = "same";
    j.steps = 1;
    test_world(j.world_size, save_body, &j);
    (void)snprintf(command, sizeof(command), "cp -r %s %s", host_path(&j, 1, "ckpt/same", path),
                   host_path(&j, 1, "before", other));
    CHECK_INT(0, system(command));
    j.steps = 2;
    test_world(j.world_size, save_body, &j);
    path_rename(&j, 1, "ckpt/same", "ckpt/.same.prepared");
    path_rename(&j, 1, "before", "ckpt/same");
    (void)go_on(&j, &j);
    parts_check(&j, "same");
}

static void old_parts_go_on_all_hosts(void)
{
    job  j = job_make("old", "abb", 2);
    char path[512];

    j.keep_last = 2;
    j.steps     = 4;
    test_world(j.world_size, save_body, &j);
    parts_check(&j, "step-000004");
    for (int h = 0; h < 2; h++) {
        CHECK_INT(2, test_files(host_path(&j, h, "ckpt", path), "step-"));
        CHECK(sherdi_checkpoint_has(host_path(&j, h, "ckpt/step-000003", path)));
    }
}

static void asynchronous_saves_have_parts(void)
{
    job j = job_make("async", "aab", 3);

    j.options.top = ", \"deterministic\": true, \"checkpoint\": {\"async\": true}";
    test_world(j.world_size, save_body, &j);
    parts_check(&j, "step-000002");
    (void)go_on(&j, &j);
}

/* State on a drive is linked into the part of its host, and is sent as it lies there. */
static void linked_state_is_sent(void)
{
    job  from = job_make("linked", "ab", 3);
    job  to   = job_make("linked", "acb", 3);
    char path[512];

    (void)snprintf(from.zero, sizeof(from.zero),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                   test_scratch());
    test_world(from.world_size, save_body, &from);
    if (from.kept_bytes == 0) {
        test_skip("this file system has no links");
    }
    CHECK(
        sherdi_checkpoint_has(host_path(&from, 1, "ckpt/step-000002/slots-00001-of-00002", path)));
    (void)go_on(&from, &from);
    (void)go_on(&from, &to);
    CHECK(sherdi_checkpoint_has(host_path(&to, 2, "ckpt/step-000002/slots-00001-of-00002", path)));
}

/* ------------------------------------------------------------------------ failures -- */

typedef struct failing {
    job job;
    int rank; /* whose allocations fail */
    int failed;
} failing;

static void save_memory_body(sherd_world *world, void *raw)
{
    failing *f       = raw;
    int      is_mine = sherd_world_rank(world) == f->rank;
    size_t   made;
    rig      r;

    open_there(&r, world, &f->job);
    saved_fill(&r);
    saved_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, "ckpt", "a", NULL));
    (void)sherdi_mem_fail_nth(0);
    CHECK_OK(sherd_checkpoint_save(r.engine, "ckpt", "b", NULL));
    made = sherdi_mem_fail_nth(0);
    CHECK_OK(sherd_world_broadcast(world, &made, sizeof(made), f->rank));
    for (size_t nth = 1; nth <= made; nth += test_is_long() ? 1 : 13) {
        sherd_status status;

        (void)sherdi_mem_fail_nth(is_mine ? nth : 0);
        status = sherd_checkpoint_save(r.engine, "ckpt", "b", NULL);
        (void)sherdi_mem_fail_nth(0);
        CHECK(status == SHERD_OK || status == SHERD_E_NOMEM);
        f->failed += is_mine && status != SHERD_OK;
        CHECK_OK(sherd_checkpoint_load(r.engine, "ckpt", "b", NULL));
    }
    CHECK_OK(sherd_checkpoint_load(r.engine, "ckpt", "a", NULL));
    saved_train(&r, 1);
    rig_close(&r);
}

/* The host of the rank has nothing, so others send to it. */
static void load_memory_body(sherd_world *world, void *raw)
{
    failing *f       = raw;
    int      rank    = sherd_world_rank(world);
    int      is_mine = rank == f->rank;
    size_t   made    = 0;
    size_t   held    = 0;
    rig      r;

    open_there(&r, world, &f->job);
    saved_fill(&r);
    for (size_t nth = 0; nth <= made; nth += nth == 0 || test_is_long() ? 1 : 13) {
        sherd_status status;

        CHECK(rank != 1 || system("rm -rf ckpt") == 0);
        CHECK_OK(sherd_world_barrier(world));
        (void)sherdi_mem_fail_nth(is_mine ? nth : 0);
        status = sherd_checkpoint_load(r.engine, "ckpt", NULL, NULL);
        made   = nth > 0 ? made : sherdi_mem_fail_nth(0);
        (void)sherdi_mem_fail_nth(0);
        CHECK(status == SHERD_OK || status == SHERD_E_NOMEM);
        if (status != SHERD_OK) {
            f->failed += is_mine;
            CHECK_OK(sherd_checkpoint_load(r.engine, "ckpt", NULL, NULL));
        }
        held = nth > 0 ? held : sherdi_mem_held_all(&r.engine->mem);
        CHECK_INT(held, sherdi_mem_held_all(&r.engine->mem));
        CHECK_OK(sherd_world_broadcast(world, &made, sizeof(made), f->rank));
    }
    rig_close(&r);
}

/* What stands in the way on host b. */
typedef struct obstacle {
    job         job;
    const char *path;    /* a folder in its ckpt */
    int         is_held; /* as by a save of another engine that is complete there */
} obstacle;

static void obstacle_body(sherd_world *world, void *raw)
{
    obstacle *o  = raw;
    int       fd = -1;
    char      command[600], path[600];
    rig       r;

    open_there(&r, world, &o->job);
    saved_fill(&r);
    saved_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, "ckpt", "before", NULL));
    if (sherd_world_rank(world) == 1) {
        (void)snprintf(command, sizeof(command), "mkdir -p ckpt/%s && touch ckpt/%s/lock", o->path,
                       o->path);
        (void)snprintf(path, sizeof(path), "ckpt/%s/lock", o->path);
        CHECK_INT(0, system(command));
        fd = open(path, O_RDWR | O_CLOEXEC);
        CHECK(fd >= 0 && (!o->is_held || flock(fd, LOCK_EX) == 0));
    }
    CHECK_OK(sherd_world_barrier(world));
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_save(r.engine, "ckpt", "after", NULL));
    CHECK_ERROR_SAYS(sherd_world_rank(world) == 1 ? o->path : "rank 1 failed");
    CHECK_OK(sherd_world_barrier(world)); /* the owners have removed what they made */
    CHECK(!sherdi_checkpoint_has("ckpt/.after.partial"));
    CHECK(!sherdi_checkpoint_has("ckpt/after/" SHERDI_MANIFEST_NAME));
    CHECK_OK(sherd_checkpoint_load(r.engine, "ckpt", NULL, NULL));
    if (sherd_world_rank(world) == 1) {
        (void)snprintf(command, sizeof(command), "rm -r ckpt/%s", o->path);
        CHECK_INT(0, system(command));
        CHECK(close(fd) == 0);
    }
    CHECK_OK(sherd_world_barrier(world));
    CHECK_OK(sherd_checkpoint_save(r.engine, "ckpt", "after", NULL));
    rig_close(&r);
}

static void a_host_that_cannot_save_leaves_nothing_on_all(void)
{
    obstacle at_begin = {.job = job_make("begin", "ab", 3), .path = "after"};
    obstacle at_end   = {.job = job_make("end", "abb", 3), .path = ".after.prepared", .is_held = 1};

    test_world(2, obstacle_body, &at_begin);
    parts_check(&at_begin.job, "after");
    test_world(3, obstacle_body, &at_end);
    parts_check(&at_end.job, "after");
}

static void every_allocation_fails_once(void)
{
    job from = job_make("memory-from", "ab", 3);

    test_world(from.world_size, save_body, &from);
    for (int rank = 0; rank < 3; rank++) {
        failing saving  = {.job = job_make("memory", "abb", 3), .rank = rank};
        failing loading = {.job = job_make("memory-from", "acb", 3), .rank = rank};

        test_world(3, save_memory_body, &saving);
        CHECK(saving.failed > 0);
        test_world(3, load_memory_body, &loading);
        CHECK(loading.failed > 0);
    }
}

/* --------------------------------------------------------------------------- kills -- */

#define KILL_STEPS 40

/* From the latest on: a step, a save, and so on. */
static void killed_body(sherd_world *world, void *raw)
{
    job              *j = raw;
    sherd_save_params params;
    sherd_engine_info info;
    rig               r;
    char              latest[SHERDI_CHECKPOINT_NAME_BYTES];
    int               is_first;

    open_there(&r, world, j);
    is_first = sherdi_checkpoint_latest("ckpt", latest) != SHERD_OK;
    CHECK_OK(sherd_world_broadcast(world, &is_first, sizeof(is_first), 0));
    if (!is_first) {
        CHECK_OK(sherd_checkpoint_load(r.engine, "ckpt", NULL, NULL));
    }
    saved_fill(&r);
    sherd_save_params_init(&params);
    params.keep_last = j->keep_last;
    sherd_engine_info_init(&info);
    for (;;) {
        saved_train(&r, 1);
        CHECK_OK(sherd_checkpoint_save(r.engine, "ckpt", j->tag, &params));
    }
}

static void after_body(sherd_world *world, void *raw)
{
    job              *j = raw;
    sherd_engine_info info;
    rig               r;

    open_there(&r, world, j);
    CHECK_OK(sherd_checkpoint_load(r.engine, "ckpt", NULL, NULL));
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK(info.step >= j->steps);
    if (sherd_world_rank(world) == 0) {
        j->steps = (int)info.step;
    }
    CHECK_OK(sherd_world_barrier(world));
    rig_close(&r);
}

/* The whole job is killed at any moment, again and again: the latest of rank 0 loads on all hosts. */
static void killed_at_any_moment(const char *name, const char *tag)
{
    job      j    = job_make(name, "abc", 3);
    uint64_t seed = 20261129;

    j.tag       = tag;
    j.keep_last = 2;
    j.steps     = 1;
    test_world(j.world_size, save_body, &j);
    for (int i = 0; i < (test_is_long() ? 100 : 5); i++) {
        const uint64_t        us   = 20000 + test_random(&seed) % 60000;
        const struct timespec rest = {0, (long)us * 1000};
        pid_t                 child;
        int                   status;

        child = fork();
        if (child == 0) {
            test_world(j.world_size, killed_body, &j);
            _exit(1);
        }
        (void)nanosleep(&rest, NULL);
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status));
        test_world(j.world_size, after_body, &j);
    }
}

static void killed_in_saves_the_latest_loads(void)
{
    killed_at_any_moment("kills", NULL);
}

static void killed_in_saves_of_one_tag_it_loads(void)
{
    killed_at_any_moment("kills-tag", "same");
}

/* ---- one rank is killed, and the others live ---- */

#define KILLED_RANK 2

static void die(void *ctx, uint64_t done_bytes, uint64_t all_bytes)
{
    (void)ctx, (void)done_bytes, (void)all_bytes;
    (void)raise(SIGKILL);
}

static void part_dies_in_its_save(void)
{
    job               j = job_make("", "aab", 3);
    sherd_world      *world;
    sherd_save_params params;
    rig               r;

    (void)snprintf(j.base, sizeof(j.base), "%s", getenv("SHERD_TEST_BASE"));
    CHECK_OK(sherd_world_from_env(NULL, &world));
    open_there(&r, world, &j);
    CHECK_OK(sherd_checkpoint_load(r.engine, "ckpt", NULL, NULL));
    saved_train(&r, 1);
    sherd_save_params_init(&params);
    params.progress = sherd_world_rank(world) == KILLED_RANK ? die : NULL;
    /* a rank may find first that rank 0 has removed the folder */
    CHECK(sherd_checkpoint_save(r.engine, "ckpt", NULL, &params) != SHERD_OK);
    sherd_engine_destroy(r.engine);
    sherd_world_destroy(world);
}

static void a_rank_that_dies_leaves_the_checkpoint_before(void)
{
    job        j = job_make("dies", "aab", 3);
    char       base[300], text[3][64], meeting[200], path[512];
    rank_start starts[3];

    test_world(j.world_size, save_body, &j);
    (void)snprintf(base, sizeof(base), "SHERD_TEST_BASE=%s", j.base);
    (void)snprintf(meeting, sizeof(meeting), "SHERD_RENDEZVOUS=%s", ranks_address());
    for (int r = 0; r < 3; r++) {
        (void)snprintf(text[r], sizeof(text[r]), "SHERD_RANK=%d", r);
        starts[r] = (rank_start){.part        = "part_dies_in_its_save",
                                 .environment = {text[r], "SHERD_WORLD_SIZE=3", meeting, base},
                                 .ends        = r == KILLED_RANK ? RANK_IS_KILLED : RANK_PASSES};
    }
    ranks_run(starts, 3);
    CHECK_INT(0, saved_left_behind(host_path(&j, 0, "ckpt", path)));
    CHECK_INT(1, saved_left_behind(host_path(&j, 1, "ckpt", path)));
    (void)go_on(&j, &j);
    test_world(j.world_size, save_body, &j);
    parts_check(&j, "step-000002");
}

static const test_case CASES[] = {
    CASE(parts_load_on_the_hosts_that_saved_them),
    CASE(parts_in_one_folder_load_on_any_layout),
    CASE(ranks_send_what_hosts_lack),
    CASE(a_missing_part_is_named_on_all_ranks),
    CASE(a_load_completes_what_a_save_has_left),
    CASE(a_save_removes_what_never_became_complete),
    CASE(a_part_that_was_not_replaced_is),
    CASE(old_parts_go_on_all_hosts),
    CASE(asynchronous_saves_have_parts),
    CASE(linked_state_is_sent),
    CASE(a_host_that_cannot_save_leaves_nothing_on_all),
    CASE(every_allocation_fails_once),
    CASE(killed_in_saves_the_latest_loads),
    CASE(killed_in_saves_of_one_tag_it_loads),
    CASE(a_rank_that_dies_leaves_the_checkpoint_before),
};

static const rank_part PARTS[] = {PART(part_dies_in_its_save)};

RANKS_MAIN(CASES, PARTS)
