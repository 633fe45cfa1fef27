/* A run that is saved on one layout goes on in another with the same bits, for all ranks, stages,
 * tiers and optimizers. Checkpoints are complete or not there. Those that are damaged or of another
 * model are tested in test_checkpoint_damage.c. */
#include "engine/checkpoint/folder.h"
#include "engine/run/engine_impl.h"
#include "offload/checksum.h"
#include "sherd_tools.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Micro-batches of the whole world in a step; every number of ranks here divides it. */
#define GLOBAL_BATCH 84

static int steps(void)
{
    return test_is_long() ? 20 : 2;
}

typedef struct layout {
    int         world_size, stage;
    const char *state, *params; /* devices of the offload; NULL: none */
    int         has_grads;      /* the gradients are on the drive of the state, too */
} layout;

typedef struct job {
    rig_options options;
    layout      layout;
    char        dir[256];
    const char *tag;
    int         saved_ranks;
    int         is_saved_on; /* it saves, and trains on */
    uint64_t    fingerprint; /* result: after the last step */
} job;

static void need_checksums(void)
{
    if (sherdi_checksum_check_built() != SHERD_OK) {
        test_skip("%s", sherd_last_error());
    }
}

static const char *layout_keys(const layout *l, char keys[1024])
{
    size_t len = (size_t)snprintf(keys, 1024,
                                  ", \"stage3_param_persistence_threshold\": 150, "
                                  "\"sub_group_size\": 1024");

    if (l->state != NULL) {
        len +=
            (size_t)snprintf(keys + len, 1024 - len,
                             ", \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \"%s\", "
                             "\"gradients\": \"%s\"}",
                             l->state, test_scratch(), l->has_grads ? "nvme" : "cpu");
    }
    if (l->params != NULL) {
        (void)snprintf(keys + len, 1024 - len,
                       ", \"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s\"}",
                       l->params, test_scratch());
    }
    return keys;
}

/* Opens two units, each with a parameter that is sliced, one smaller than a slice, one of a single
 * element, one that every rank keeps whole, and a frozen one. */
static void model_open(rig *r, sherd_world *world, const rig_options *options)
{
    static const size_t ELEMS[] = {9000, 1, 130, 4999, 700};

    rig_open(r, world, options);
    for (int u = 0; u < 2; u++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "unit%d", u);
        (void)rig_unit(r, name);
        for (int p = 0; p < 5; p++) {
            sherd_param_params params;

            sherd_param_params_init(&params);
            params.frozen = p == 3;
            (void)snprintf(name, sizeof(name), "unit%d.%d", u, p);
            (void)rig_param_as(r, u, name, ELEMS[p], &params);
        }
    }
    CHECK_OK(sherd_engine_seal(r->engine));
}

static void model_fill(rig *r)
{
    for (int p = 0; p < r->num_params; p++) {
        CHECK_OK(sherd_param_fill(r->engine, r->params[p].handle, rig_fill, (void *)(uintptr_t)p));
    }
}

static void open_as(rig *r, sherd_world *world, const job *j, char keys[1024])
{
    rig_options options = j->options;

    options.stage = j->layout.stage;
    options.zero  = layout_keys(&j->layout, keys);
    if (options.accumulation == 0) {
        options.accumulation = GLOBAL_BATCH / j->layout.world_size;
    }
    model_open(r, world, &options);
}

static void train(rig *r, int count)
{
    sherd_engine_info info;

    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r->engine, &info));
    r->micro = info.step * info.accumulation;
    (void)rig_train(r, count * info.accumulation);
}

/* More than all small blobs may have. */
#define LARGE_BLOB_BYTES (SHERD_BLOB_MAX_BYTES + 4000)

/* Sets bytes of the trainer's own, for the run and for each rank. */
static void blobs_set(rig *r)
{
    sherd_blob_params params;
    int               rank  = sherd_world_rank(r->world);
    char             *large = malloc(LARGE_BLOB_BYTES);

    CHECK(large != NULL);
    memset(large, 'a' + rank, LARGE_BLOB_BYTES);
    sherd_blob_params_init(&params);
    params.is_large = 1;
    CHECK_OK(sherd_blob_set(r->engine, "queue", large, LARGE_BLOB_BYTES, &params));
    params.is_per_rank = 1;
    CHECK_OK(sherd_blob_set(r->engine, "queue", large, (size_t)rank, &params));
    free(large);

    sherd_blob_params_init(&params);
    params.is_per_rank = 1;
    CHECK_OK(sherd_blob_set(r->engine, "place", rank == 0 ? "page 7" : "other", 6, NULL));
    CHECK_OK(sherd_blob_set(r->engine, "seed", &rank, sizeof(rank), &params));
}

static void large_blob_check(rig *r)
{
    char  *large = malloc(LARGE_BLOB_BYTES);
    size_t len   = LARGE_BLOB_BYTES;

    CHECK(large != NULL);
    CHECK_OK(sherd_blob_get(r->engine, "queue", large, &len, NULL));
    CHECK_INT(LARGE_BLOB_BYTES, len);
    CHECK(large[0] == 'a' && memcmp(large, large + 1, len - 1) == 0); /* rank 0's */
    free(large);
}

static void blobs_check(rig *r, int saved_ranks)
{
    sherd_blob_params params;
    char              blob[8] = "";
    size_t            len     = sizeof(blob);
    int               seed    = -1;

    CHECK_OK(sherd_blob_get(r->engine, "place", blob, &len, NULL));
    CHECK(len == 6 && memcmp(blob, "page 7", 6) == 0);
    large_blob_check(r);
    sherd_blob_params_init(&params);
    params.is_per_rank = 1;
    for (int rank = sherd_world_rank(r->world); rank < saved_ranks;
         rank += sherd_world_size(r->world)) {
        params.rank = rank;
        len         = sizeof(seed);
        CHECK_OK(sherd_blob_get(r->engine, "seed", &seed, &len, &params));
        CHECK_INT(rank, seed);
        CHECK_OK(sherd_blob_get(r->engine, "queue", NULL, &len, &params));
        CHECK_INT(rank, len);
    }
}

static void first_run(sherd_world *world, void *raw)
{
    job *j = raw;
    char keys[1024];
    rig  r;

    open_as(&r, world, j, keys);
    model_fill(&r);
    train(&r, steps());
    if (j->is_saved_on) {
        blobs_set(&r);
        CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, j->tag, NULL));
    }
    train(&r, steps());
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

static void next_run(sherd_world *world, void *raw)
{
    job *j = raw;
    char keys[1024];
    rig  r;

    open_as(&r, world, j, keys);
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, j->tag, NULL));
    blobs_check(&r, j->saved_ranks);
    model_fill(&r); /* this keeps the loaded values */
    train(&r, steps());
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

static void dir_make(job *j, const char *name)
{
    (void)snprintf(j->dir, sizeof(j->dir), "%s/%s", test_scratch(), name);
}

static const layout LAYOUTS[] = {
    {1, 3, NULL, NULL, 0},     {2, 0, NULL, NULL, 0},   {3, 2, "cpu", NULL, 0},
    {7, 3, "nvme", "nvme", 1}, {1, 1, "nvme", NULL, 0}, {4, 3, "cpu", "cpu", 0},
    {2, 1, NULL, NULL, 0},     {3, 3, "nvme", NULL, 0}, {4, 0, "cpu", NULL, 0},
};

static void goes_on_everywhere(const rig_options *options, const layout *from, const char *name)
{
    job first = {.options = *options, .layout = *from, .is_saved_on = 1};
    job plain = first;

    dir_make(&first, name);
    plain.is_saved_on = 0;
    test_world(from->world_size, first_run, &plain);
    test_world(from->world_size, first_run, &first);
    CHECK_INT(plain.fingerprint, first.fingerprint);
    for (size_t l = 0; l < sizeof(LAYOUTS) / sizeof(LAYOUTS[0]); l++) {
        job next = first;

        next.saved_ranks = from->world_size;
        next.layout      = LAYOUTS[l];
        test_world(next.layout.world_size, next_run, &next);
        CHECK_INT(plain.fingerprint, next.fingerprint);
    }
}

static void saved_at_stage_3_on_nvme_goes_on_on_every_layout(void)
{
    layout from = {4, 3, "nvme", "nvme", 0};

    need_checksums();
    goes_on_everywhere(
        &(rig_options){
            .dtype = SHERD_BF16, .top = ", \"deterministic\": true", .clip = 1, .wide = 0x192},
        &from, "nvme");
}

static void saved_at_stage_0_goes_on_on_every_layout(void)
{
    layout from = {3, 0, NULL, NULL, 0};

    need_checksums();
    goes_on_everywhere(
        &(rig_options){.dtype = SHERD_F32, .top = ", \"deterministic\": true", .optimizer = "LAMB"},
        &from, "whole");
}

static void saved_with_a_loss_scale_goes_on_on_every_layout(void)
{
    layout from = {2, 2, "cpu", NULL, 0};

    need_checksums();
    goes_on_everywhere(
        &(rig_options){.dtype = SHERD_F16, .top = ", \"deterministic\": true", .optimizer = "Adam"},
        &from, "half");
}

/* What another type has saved. */
static void scale_is_own(sherd_world *world, void *raw)
{
    job  *j = raw;
    char  keys[1024];
    float before;
    rig   r;

    open_as(&r, world, j, keys);
    before = sherd_loss_scale(r.engine);
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, j->tag, NULL));
    CHECK(sherd_loss_scale(r.engine) == before);
    CHECK(before > 1 || j->options.dtype != SHERD_F16);
    rig_close(&r);
}

/* Gradients of bf16 that nobody has scaled would be divided by the scale that fp16 needed. */
static void the_loss_scale_of_another_type_is_left(void)
{
    static const sherd_dtype DTYPES[] = {SHERD_F16, SHERD_BF16, SHERD_F32};

    need_checksums();
    for (int from = 0; from < 3; from++) {
        job first = {
            .options = {.dtype = DTYPES[from]}, .layout = {2, 2, NULL, NULL, 0}, .is_saved_on = 1};

        dir_make(&first, sherd_dtype_name(DTYPES[from]));
        test_world(2, first_run, &first);
        for (int to = 0; to < 3; to++) {
            job next = first;

            next.options.dtype = DTYPES[to];
            if (to != from) {
                test_world(2, scale_is_own, &next);
            }
        }
    }
}

/* In the default mode a run goes on with the same bits only on the same layout; at stage 2 this is
 * with SGD that has no momentum, and no state but the master. */
static void every_mode_goes_on_on_its_own_layout(void)
{
    need_checksums();
    for (int stage = 0; stage <= 3; stage++) {
        job  first = {.options     = {.dtype = SHERD_BF16, .accumulation = 2},
                      .layout      = {3, stage, NULL, NULL},
                      .is_saved_on = 1};
        job  next;
        char name[16];

        first.options.optimizer = stage == 2 ? "SGD" : NULL;
        (void)snprintf(name, sizeof(name), "mode%d", stage);
        dir_make(&first, name);
        next             = first;
        next.saved_ranks = 3;
        test_world(3, first_run, &first);
        test_world(3, next_run, &next);
        CHECK_INT(first.fingerprint, next.fingerprint);
    }
}

/* State on a drive is linked: none of it is written again, and later training does not change
 * it. */
static void kept_body(sherd_world *world, void *raw)
{
    job                    *j = raw;
    sherd_checkpoint_report report;
    char                    keys[1024];
    rig                     r;

    open_as(&r, world, j, keys);
    model_fill(&r);
    train(&r, 2);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "kept", NULL));
    sherd_checkpoint_report_init(&report);
    CHECK_OK(sherd_checkpoint_wait(r.engine, &report));
    CHECK(report.kept_bytes >= r.engine->plan->nvme_bytes[0] / 3);
    CHECK(report.bytes < report.kept_bytes);
    train(&r, 3);
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, "kept", NULL)); /* goes back by three steps */
    CHECK_INT(2, r.engine->counters.step);
    train(&r, 3);
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

/* The folder of the state is gone, and the files are open: they are copied. */
static void removed_body(sherd_world *world, void *raw)
{
    job *j = raw;
    char keys[1024];
    rig  r;

    open_as(&r, world, j, keys);
    model_fill(&r);
    train(&r, 2);
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0) {
        CHECK(test_files(test_scratch(), "sherd-") > 0);
        test_files_remove(test_scratch(), "sherd-");
    }
    CHECK_OK(sherd_world_barrier(world));
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "copied", NULL));
    train(&r, 1);
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, "copied", NULL));
    train(&r, 3);
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

static void straight_body(sherd_world *world, void *raw)
{
    job *j = raw;
    char keys[1024];
    rig  r;

    open_as(&r, world, j, keys);
    model_fill(&r);
    train(&r, 5);
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

static void state_on_a_drive_is_kept_by_a_link(void)
{
    static const char *const STORED[] = {
        NULL, ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}",
        ", \"sherd\": {\"master_encoding\": \"bf16_beside\", \"moment_encoding\": \"fp8\"}"};

    need_checksums();
    for (int i = 0; i < 3; i++) {
        job kept     = {.options = {.dtype = SHERD_BF16, .accumulation = 1, .top = STORED[i]},
                        .layout  = {2, 2, "nvme", NULL, 0}};
        job straight = kept;

        dir_make(&kept, i == 0 ? "links" : i == 1 ? "encoded" : "codes");
        test_world(2, kept_body, &kept);
        test_world(2, straight_body, &straight);
        CHECK_INT(straight.fingerprint, kept.fingerprint);
        if (i == 0) {
            dir_make(&kept, "removed");
            test_world(2, removed_body, &kept);
            CHECK_INT(straight.fingerprint, kept.fingerprint);
        }
    }
}

/* ------------------------------------------------------------ inside of a window -- */

#define MICRO_BATCHES 3

/* Trains one micro-batch of a window, saves, and ends the window. */
static void window_body(sherd_world *world, void *raw)
{
    job              *j = raw;
    sherd_save_params params;
    char              keys[1024];
    rig               r;

    sherd_save_params_init(&params);
    open_as(&r, world, j, keys);
    model_fill(&r);
    train(&r, 1);
    (void)rig_train(&r, 1);
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_save(r.engine, j->dir, j->tag, &params));
    params.may_be_in_window = 1;
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, j->tag, &params));
    (void)rig_train(&r, MICRO_BATCHES - 1);
    train(&r, 1);
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

static void window_straight_body(sherd_world *world, void *raw)
{
    job *j = raw;
    char keys[1024];
    rig  r;

    open_as(&r, world, j, keys);
    model_fill(&r);
    train(&r, 3);
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

/* What was saved is of the update before the window. */
static void window_next_body(sherd_world *world, void *raw)
{
    job              *j = raw;
    sherd_engine_info info;
    char              keys[1024];
    rig               r;

    open_as(&r, world, j, keys);
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, j->tag, NULL));
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK_INT(1, info.step);
    CHECK_INT(MICRO_BATCHES, info.micro_step);
    model_fill(&r);
    train(&r, 2);
    j->fingerprint = rig_fingerprint(&r);
    rig_close(&r);
}

static void saved_inside_of_a_window_is_the_update_before(void)
{
    static const char *const TOPS[] = {NULL, ", \"deterministic\": true"};

    need_checksums();
    for (size_t i = 0; i < 2 * sizeof(LAYOUTS) / sizeof(LAYOUTS[0]); i++) {
        job straight = {
            .options = {.dtype = SHERD_BF16, .accumulation = MICRO_BATCHES, .top = TOPS[i % 2]},
            .layout  = LAYOUTS[i / 2],
            .tag     = "window"};
        job saved = straight;

        dir_make(&saved, "window");
        test_world(straight.layout.world_size, window_straight_body, &straight);
        test_world(straight.layout.world_size, window_body, &saved);
        CHECK_INT(straight.fingerprint, saved.fingerprint);
        test_world(straight.layout.world_size, window_next_body, &saved);
        CHECK_INT(straight.fingerprint, saved.fingerprint);
    }
}

/* ------------------------------------------------------------------- folders -- */

static void tags_body(sherd_world *world, void *raw)
{
    job              *j = raw;
    sherd_save_params params;
    char              keys[1024];
    rig               r;

    sherd_save_params_init(&params);
    params.keep_last = 2;
    open_as(&r, world, j, keys);
    model_fill(&r);
    for (int s = 0; s < 4; s++) {
        train(&r, 1);
        CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, NULL, &params));
    }
    /* replaces the one of that name */
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, NULL, &params));
    rig_close(&r);
}

static void last_two_are_kept_and_latest_names_one(void)
{
    job  j = {.options = {.dtype = SHERD_BF16}, .layout = {3, 3, NULL, NULL, 0}};
    char tag[SHERDI_CHECKPOINT_NAME_BYTES];

    need_checksums();
    dir_make(&j, "tags");
    test_world(3, tags_body, &j);
    CHECK_INT(2, test_files(j.dir, "step-"));
    CHECK_OK(sherdi_checkpoint_latest(j.dir, tag));
    CHECK(strcmp(tag, "step-000004") == 0);
    CHECK_INT(0, test_files(j.dir, "partial"));
}

/* -------------------------------------------------------------- asynchronous -- */

/* Trains until an asynchronous save has ended, which takes the same number of steps on every
 * rank. */
static void query_body(sherd_world *world, void *raw)
{
    job                    *j = raw;
    sherd_checkpoint_report report;
    char                    keys[1024];
    double                  count = 0, sum;
    rig                     r;

    sherd_checkpoint_report_init(&report);
    open_as(&r, world, j, keys);
    model_fill(&r);
    train(&r, 1);
    CHECK_OK(sherd_checkpoint_query(r.engine, &report));
    CHECK_INT(0, report.is_running);
    blobs_set(&r);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, NULL, NULL));
    /* the copy that is being saved stays */
    CHECK_OK(sherd_blob_set(r.engine, "queue", NULL, 0, NULL));
    CHECK_OK(sherd_checkpoint_query(r.engine, &report));
    CHECK_INT(1, report.is_running);
    CHECK_INT(1, report.step);
    while (report.is_running) {
        train(&r, 1);
        count++;
        CHECK_OK(sherd_checkpoint_query(r.engine, &report));
    }
    CHECK(report.all_s >= report.blocked_s);
    sum = count;
    CHECK_OK(sherd_world_sum_f64(world, &sum, 1));
    CHECK(sum == count * j->layout.world_size);
    CHECK_OK(sherd_checkpoint_wait(r.engine, NULL));
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, NULL, NULL));
    blobs_check(&r, j->layout.world_size);
    rig_close(&r);
}

static void asynchronous_save_ends_at_one_boundary(void)
{
    job j = {.options = {.dtype = SHERD_BF16, .top = ", \"checkpoint\": {\"async\": true}"},
             .layout  = {2, 3, NULL, NULL, 0}};

    need_checksums();
    dir_make(&j, "query");
    test_world(2, query_body, &j);
    CHECK_INT(1, test_files(j.dir, "step-000001"));
}

/* ------------------------------------------------------- blobs for tools -- */

typedef struct taken {
    char         bytes[LARGE_BLOB_BYTES];
    size_t       len_bytes;
    sherd_status answer;
} taken;

static sherd_status bytes_take(void *ctx, const char *text, size_t len_bytes)
{
    taken *t = ctx;

    CHECK(len_bytes <= sizeof(t->bytes));
    memcpy(t->bytes, text, len_bytes);
    t->len_bytes = len_bytes;
    return t->answer;
}

static void save_with_blobs(sherd_world *world, void *raw)
{
    job *j = raw;
    char keys[1024];
    rig  r;

    open_as(&r, world, j, keys);
    model_fill(&r);
    train(&r, 1);
    blobs_set(&r);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, "tag", NULL));
    rig_close(&r);
}

static void last_byte_flip(const char *path)
{
    FILE *file = fopen(path, "r+b");
    int   byte;

    CHECK(file != NULL && fseek(file, -1, SEEK_END) == 0);
    byte = fgetc(file);
    CHECK(fseek(file, -1, SEEK_END) == 0 && fputc(byte ^ 1, file) != EOF && fclose(file) == 0);
}

static void tools_read_the_blobs_of_the_run(void)
{
    static taken      t;
    job               j = {.options = {.dtype = SHERD_F32}, .layout = {2, 2, NULL, NULL, 0}};
    char              path[512];
    int               is_there;
    sherd_checkpoint *open;

    need_checksums();
    dir_make(&j, "blobs");
    test_world(2, save_with_blobs, &j);
    CHECK_OK(sherd_checkpoint_open(j.dir, NULL, &open));
    CHECK_OK(sherd_checkpoint_blob(open, "place", &is_there, bytes_take, &t));
    CHECK(is_there && t.len_bytes == 6 && memcmp(t.bytes, "page 7", 6) == 0);
    CHECK_OK(sherd_checkpoint_blob(open, "queue", &is_there, bytes_take, &t));
    CHECK(is_there && t.len_bytes == LARGE_BLOB_BYTES && t.bytes[LARGE_BLOB_BYTES - 1] == 'a');
    t.answer = SHERD_E_IO; /* of the caller's */
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_blob(open, "place", &is_there, bytes_take, &t));
    CHECK_OK(sherd_checkpoint_blob(open, "seed", &is_there, bytes_take, &t)); /* of each rank */
    CHECK_INT(0, is_there);
    sherd_checkpoint_close(open);

    (void)snprintf(path, sizeof(path), "%s/tag/rank-00000-of-00002.safetensors", j.dir);
    last_byte_flip(path);
    CHECK_OK(sherd_checkpoint_open(j.dir, NULL, &open));
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_blob(open, "place", &is_there, bytes_take, &t));
    CHECK_INT(0, is_there);
    sherd_checkpoint_close(open);
}

static const test_case CASES[] = {
    CASE(saved_at_stage_3_on_nvme_goes_on_on_every_layout),
    CASE(saved_at_stage_0_goes_on_on_every_layout),
    CASE(saved_with_a_loss_scale_goes_on_on_every_layout),
    CASE(the_loss_scale_of_another_type_is_left),
    CASE(every_mode_goes_on_on_its_own_layout),
    CASE(state_on_a_drive_is_kept_by_a_link),
    CASE(saved_inside_of_a_window_is_the_update_before),
    CASE(last_two_are_kept_and_latest_names_one),
    CASE(asynchronous_save_ends_at_one_boundary),
    CASE(tools_read_the_blobs_of_the_run),
};

RUN_MAIN(CASES)
