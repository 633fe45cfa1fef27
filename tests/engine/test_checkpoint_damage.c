/* Checkpoints that are damaged, that belong to another model, or that an attacker prepared. They
 * are refused with the name of what is wrong, and nothing outside of the folder is read or
 * changed. */
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/linked.h"
#include "engine/checkpoint/safetensors.h"
#include "offload/checksum.h"
#include "sherd_tools.h"
#include "tests/engine/saved.h"
#include "tests/lib/check.h"
#include "engine/plan/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAG "one"

static const rig_options OPTIONS = {.stage = 3, .dtype = SHERD_BF16, .clip = 1};

typedef struct job {
    char        dir[256];
    uint64_t    fingerprint; /* of the state that was saved */
    const char *tag;
    int         more_steps; /* steps beyond two */
    const char *zero, *top; /* further keys of the engine that saves */
} job;

static void save_body(sherd_world *world, void *raw)
{
    job        *j       = raw;
    rig_options options = OPTIONS;
    rig         r;
    uint64_t    fingerprint;

    options.zero = j->zero;
    options.top  = j->top;
    saved_open(&r, world, &options);
    saved_fill(&r);
    saved_train(&r, 2 + j->more_steps);
    CHECK_OK(sherd_checkpoint_save(r.engine, j->dir, j->tag == NULL ? TAG : j->tag, NULL));
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        j->fingerprint = fingerprint;
    }
    rig_close(&r);
}

/* Lets two ranks save to a folder of that name. */
static job saved(const char *name)
{
    job j = {.fingerprint = 0};

    saved_need_checksums();
    (void)saved_dir(name, j.dir);
    test_world(2, save_body, &j);
    return j;
}

/* --------------------------------------------------------------- flipped bits -- */

typedef struct target {
    char                name[64];
    char                path[512];
    size_t              bytes;
    sherdi_safetensors *header; /* of a data file; else NULL */
} target;

typedef struct flips {
    job       *job;
    sherdi_mem mem;
    target     targets[16];
    size_t     num_targets;
} flips;

static void target_add(flips *f, const char *folder, const char *name)
{
    target     *t = &f->targets[f->num_targets++];
    struct stat at;

    CHECK(f->num_targets <= 16);
    (void)snprintf(t->name, sizeof(t->name), "%s", name);
    (void)snprintf(t->path, sizeof(t->path), "%s/%s", folder, name);
    CHECK(lstat(t->path, &at) == 0);
    t->bytes = (size_t)at.st_size;
    if (strstr(name, ".safetensors") != NULL) {
        CHECK_OK(sherdi_safetensors_open(&f->mem, t->path, NULL, &t->header));
    }
}

static void targets_find(flips *f)
{
    char           folder[300];
    DIR           *open;
    struct dirent *entry;

    (void)snprintf(folder, sizeof(folder), "%s/" TAG, f->job->dir);
    open = opendir(folder);
    CHECK(open != NULL);
    while ((entry = readdir(open)) != NULL) {
        if (entry->d_name[0] != '.') {
            target_add(f, folder, entry->d_name);
        }
    }
    (void)closedir(open);
    target_add(f, f->job->dir, "latest");
}

static void bit_flip(const char *path, size_t bit)
{
    int           fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;

    CHECK(fd >= 0 && pread(fd, &byte, 1, (off_t)(bit / 8)) == 1);
    byte ^= (unsigned char)(1u << bit % 8);
    CHECK(pwrite(fd, &byte, 1, (off_t)(bit / 8)) == 1 && close(fd) == 0);
}

/* Returns the tensor that has the byte; NULL: the byte is not data. */
static const char *tensor_at(const target *t, size_t byte)
{
    if (t->header == NULL || byte < t->header->data_at) {
        return NULL;
    }
    for (size_t i = 0; i < t->header->num_tensors; i++) {
        if (byte - t->header->data_at < t->header->tensors[i].end) {
            return t->header->tensors[i].name;
        }
    }
    return NULL;
}

/* Returns the tensor that the checksum of an extent can name, which is the first one that has bytes
 * there. */
static const char *tensor_named(const target *t, size_t byte)
{
    size_t extent = t->header == NULL || byte < t->header->data_at
                        ? 0
                        : (byte - t->header->data_at) / SHERDI_CHECKPOINT_EXTENT_BYTES;

    return tensor_at(t, byte) == NULL
               ? NULL
               : tensor_at(t, t->header->data_at + extent * SHERDI_CHECKPOINT_EXTENT_BYTES);
}

typedef struct told {
    const char *tensor, *file; /* the damage that should be reported */
    int         is_told, others;
} told;

static void damage_note(void *ctx, const sherd_checkpoint_damage *damage)
{
    told *t       = ctx;
    int   is_file = strstr(damage->file, t->file) != NULL;

    CHECK(strlen(damage->what) > 10);
    t->is_told |= is_file && (t->tensor == NULL ||
                              (damage->tensor != NULL && strcmp(damage->tensor, t->tensor) == 0));
    t->others += !is_file;
}

static void verify_refuses(const flips *f, const target *t, size_t byte)
{
    told                t_ = {.tensor = tensor_at(t, byte), .file = t->name};
    sherd_verify_params params;
    sherd_checkpoint   *c;
    int                 is_latest = strcmp(t->name, "latest") == 0;
    sherd_status        status    = sherd_checkpoint_open(f->job->dir, is_latest ? NULL : TAG, &c);

    if (status != SHERD_OK) {
        CHECK_INT(SHERD_E_INVAL, status);
        CHECK(t->header == NULL);
        CHECK_ERROR_SAYS(t->name);
        return;
    }
    sherd_verify_params_init(&params);
    params.damage     = damage_note;
    params.damage_ctx = &t_;
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_verify(c, &params));
    CHECK(t_.is_told && t_.others == 0);
    sherd_checkpoint_close(c);
}

static void load_refuses(rig *r, const flips *f, const target *t, size_t byte)
{
    const char *tag    = strcmp(t->name, "latest") == 0 ? NULL : TAG;
    const char *tensor = tensor_named(t, byte);

    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r->engine, f->job->dir, tag, NULL));
    CHECK_ERROR_SAYS(t->name);
    if (strncmp(t->name, "slots", 5) == 0) {
        CHECK_ERROR_SAYS("does not match its checksum; tensor unit");
    }
    if (tensor != NULL) {
        CHECK_ERROR_SAYS(tensor);
        CHECK_ERROR_SAYS("rank ");
    }
}

/* Flips one bit, lets a load and a verification refuse it, and flips it back. One time in four the
 * bit is in a file that is drawn, so that small files have their share; otherwise it may be any bit
 * of all files. */
static void flip_one(rig *r, const flips *f, uint64_t *seed)
{
    const target *t    = &f->targets[test_random(seed) % f->num_targets];
    size_t        left = 0;
    size_t        bit;

    if (test_random(seed) % 4 != 0) {
        for (size_t i = 0; i < f->num_targets; i++) {
            left += f->targets[i].bytes;
        }
        left = test_random(seed) % left;
        for (t = f->targets; left >= t->bytes; t++) {
            left -= t->bytes;
        }
    }
    bit = test_random(seed) % (t->bytes * 8);
    bit_flip(t->path, bit);
    load_refuses(r, f, t, bit / 8);
    verify_refuses(f, t, bit / 8);
    bit_flip(t->path, bit);
}

static void flips_body(sherd_world *world, void *raw)
{
    flips   *f    = raw;
    uint64_t seed = 20261122;
    rig      r;

    saved_open(&r, world, &OPTIONS);
    for (int i = 0; i < (test_is_long() ? 1000 : 60); i++) {
        flip_one(&r, f, &seed);
    }
    CHECK_OK(sherd_checkpoint_load(r.engine, f->job->dir, NULL, NULL));
    CHECK_INT(f->job->fingerprint, rig_fingerprint(&r));
    saved_train(&r, 1);
    rig_close(&r);
}

static void flipped_bits_are_refused(job j)
{
    flips f = {.job = &j};

    sherdi_mem_init(&f.mem);
    targets_find(&f);
    CHECK_INT(j.zero == NULL ? 6 : 8, f.num_targets);
    test_world(1, flips_body, &f);
    for (size_t i = 0; i < f.num_targets; i++) {
        sherdi_safetensors_destroy(f.targets[i].header);
    }
    CHECK_INT(0, sherdi_mem_held_all(&f.mem));
}

/* The files are two data files of each rank, the manifest and latest. */
static void a_flipped_bit_is_refused_by_the_name_of_its_tensor_or_file(void)
{
    flipped_bits_are_refused(saved("flips"));
}

/* The files are these and, for each rank, the slots of its state as they lay on the drive. */
static void a_flipped_bit_in_state_that_was_kept_is_refused(void)
{
    static const char *const STORED[] = {NULL,
                                         ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}"};
    char                     keys[512];

    saved_need_checksums();
    (void)snprintf(keys, sizeof(keys),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
                   test_scratch());
    for (size_t i = 0; i < sizeof(STORED) / sizeof(STORED[0]); i++) {
        job j = {.zero = keys, .top = STORED[i]};

        (void)saved_dir(i == 0 ? "kept" : "encoded", j.dir);
        test_world(2, save_body, &j);
        flipped_bits_are_refused(j);
    }
}

typedef struct counted {
    int flipped, shorter, longer, gone;
} counted;

static void damage_count(void *ctx, const sherd_checkpoint_damage *damage)
{
    counted *c = ctx;

    c->flipped += strstr(damage->file, "/rank-00000") != NULL;
    c->shorter += strstr(damage->file, "/frozen-00000") != NULL;
    c->longer += strstr(damage->file, "/rank-00001") != NULL;
    c->gone += strstr(damage->file, "/frozen-00001") != NULL;
}

static sherd_status info_take(void *ctx, const sherd_checkpoint_info *info)
{
    *(sherd_checkpoint_info *)ctx = *info;
    return SHERD_OK;
}

static const char *file_of(const job *j, const char *kind, int rank, char path[512])
{
    (void)snprintf(path, 512, "%s/" TAG "/%s-%05d-of-00002.safetensors", j->dir, kind, rank);
    return path;
}

static void verification_goes_on_behind_the_first_damage(void)
{
    job                   j = saved("several");
    counted               c = {.flipped = 0};
    sherd_verify_params   params;
    sherd_checkpoint_info info;
    sherd_checkpoint     *open;
    char                  path[512];
    struct stat           at;

    CHECK(stat(file_of(&j, "rank", 0, path), &at) == 0);
    bit_flip(path, (size_t)(at.st_size - 1) * 8);
    CHECK(stat(file_of(&j, "frozen", 0, path), &at) == 0 && truncate(path, at.st_size - 1) == 0);
    CHECK(stat(file_of(&j, "rank", 1, path), &at) == 0 && truncate(path, at.st_size + 1) == 0);
    CHECK(unlink(file_of(&j, "frozen", 1, path)) == 0);
    sherd_verify_params_init(&params);
    params.damage     = damage_count;
    params.damage_ctx = &c;
    CHECK_OK(sherd_checkpoint_open(j.dir, NULL, &open));
    CHECK(!sherd_checkpoint_describe(open)->is_complete);
    for (int again = 0; again < 2; again++) { /* damaged files are still damaged */
        memset(&c, 0, sizeof(c));
        CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_verify(open, &params));
        CHECK(c.flipped >= 1 && c.shorter == 1 && c.longer == 1 && c.gone == 1);
    }
    sherd_checkpoint_close(open);
    CHECK_OK(sherd_checkpoints_find(j.dir, info_take, &info));
    CHECK(!info.is_complete && info.is_latest && strlen(info.problem) > 10);
}

static void a_manifest_that_is_gone_or_cut_is_told_of_in_the_list(void)
{
    job                   j = saved("cut");
    sherd_checkpoint_info info;
    char                  path[512];

    (void)snprintf(path, sizeof(path), "%s/" TAG "/manifest.json", j.dir);
    for (off_t len = 0; len < 2000; len += 333) {
        CHECK(truncate(path, len) == 0);
        CHECK_OK(sherd_checkpoints_find(j.dir, info_take, &info));
        CHECK(info.step == -1 && !info.is_complete && strstr(info.problem, "manifest") != NULL);
    }
}

/* Makes the checksum fit, as an attacker would. */
static void manifest_seal(char *text, size_t len_bytes)
{
    char digits[17];

    (void)snprintf(digits, sizeof(digits), "%016" PRIx64, sherdi_checksum(text, len_bytes - 19));
    memcpy(text + len_bytes - 19, digits, 16);
}

/* Replaces every byte in turn. The result must be a manifest that can be read, or an error that
 * begins with the path. */
static void forged_manifests_are_read_or_refused(void)
{
    static const char BYTES[] = {'"', '[', '{', '}', '9', '-', 'X', ','};
    job               j       = saved("forged");
    char              path[512];
    char             *text;
    size_t            len;
    sherdi_mem        mem;

    sherdi_mem_init(&mem);
    (void)snprintf(path, sizeof(path), "%s/" TAG "/manifest.json", j.dir);
    CHECK_OK(sherdi_checkpoint_get(&mem, path, 1 << 20, &text, &len));
    for (size_t at = 0; at < (len - 19) * sizeof(BYTES); at += test_is_long() ? 1 : 7) {
        char            was = text[at / sizeof(BYTES)];
        sherdi_manifest m;

        text[at / sizeof(BYTES)] = BYTES[at % sizeof(BYTES)];
        manifest_seal(text, len);
        if (sherdi_manifest_parse(&m, &mem, "forged", text, len) == SHERD_OK) {
            sherdi_manifest_fini(&m);
        } else {
            CHECK(strncmp(sherd_last_error(), "forged", 6) == 0);
        }
        text[at / sizeof(BYTES)] = was;
    }
    sherdi_free(text);
    CHECK_INT(0, sherdi_mem_held_all(&mem));
}

#define ENCODED(tensor)                                                                            \
    ", \"extents\": [[0, 4096, \"0000000000000001\"]], \"tensors\": [], \"encoded\": "             \
    "[[\"a\", " tensor "]]"

/* Each description has another mistake. None may make the reader reach for what is not there. */
static void descriptions_of_kept_state_that_do_not_hold_together_are_refused(void)
{
    static const char *const MORE[] = {
        "",
        ", \"extents\": []",
        ", \"tensors\": []",
        ", \"extents\": 3, \"tensors\": []",
        ", \"extents\": [3], \"tensors\": []",
        ", \"extents\": [[0]], \"tensors\": []",
        ", \"extents\": [[0, 4096]], \"tensors\": []",
        ", \"extents\": [[0, 4096, \"12\"]], \"tensors\": []",
        ", \"extents\": [[0, 12288, \"0000000000000001\"]], \"tensors\": []",
        ", \"extents\": [[8, 4096, \"0000000000000001\"]], \"tensors\": []",
        ", \"extents\": [], \"tensors\": [[\"a:master:0\", 1, 0, 0]]",
        ", \"extents\": [[0, 4096, \"0000000000000001\"]], \"tensors\": [[\"a\", 1025, 0, 0]]",
        ", \"extents\": [[0, 4096, \"0000000000000001\"]], \"tensors\": [[\"a\", 1, 0, 4096]]",
        ", \"extents\": [[0, 4096, \"0000000000000001\"]], \"tensors\": [[\"a\", 1, 0]]",
        ", \"extents\": [[0, 4096, \"0000000000000001\"]], \"tensors\": [[1, 1, 0, 0]]",
        ENCODED("1, 0, 0"),
        ENCODED("1, 0, 0, \"F16\""),
        ENCODED("1, 0, 0, \"BESIDE\""),
        ENCODED("1, 0, 0, \"BESIDE\", 1, 0, 2048, \"F32\""),
        ENCODED("1, 0, 0, \"BESIDE\", 0, 4096, 2048, \"F32\""),
        ENCODED("1, 0, 0, \"BESIDE\", 0, 128, 2048"),
        ENCODED("1, 0, 0, \"BESIDE\", 0, 128, 4096, \"F32\""),
        ENCODED("1, 0, 0, \"BESIDE\", 0, 128, 2048, \"FP8\""),
        ENCODED("1, 0, 4032, \"FP8\""),
        ENCODED("1, 0, 2, \"UFP8\""),
        ENCODED("1920, 0, 0, \"BESIDE_PLANE\", 0, 3968"),
        ENCODED("1, 0, 1, \"BF16\""),
    };
    sherdi_mem     mem;
    sherdi_linked *kept;

    sherdi_mem_init(&mem);
    CHECK_STATUS(SHERD_E_INVAL, sherdi_linked_parse(&mem, "kept", "{}", &kept));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_linked_parse(&mem, "kept", "[]", &kept));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_linked_parse(&mem, "kept", "", &kept));
    for (size_t i = 0; i < sizeof(MORE) / sizeof(MORE[0]); i++) {
        char text[512];

        (void)snprintf(text, sizeof(text),
                       "{\"bytes\": 8192, \"stripe_bytes\": 4096, \"stripes\": 1%s}", MORE[i]);
        CHECK_STATUS(SHERD_E_INVAL, sherdi_linked_parse(&mem, "kept", text, &kept));
        CHECK_INT(0, sherdi_mem_held_all(&mem));
    }
}

/* ------------------------------------------------------------------ another model -- */

typedef struct other {
    job         *job;
    saved_change change;
    const char  *name; /* of the parameter that the refusal must name */
} other;

static const char *const ALL[] = {"head", "unit?.[24]"};

static void other_body(sherd_world *world, void *raw)
{
    const other      *o = raw;
    sherd_load_params params;
    uint64_t          before;
    rig               r;

    saved_open_changed(&r, world, &OPTIONS, o->change);
    saved_fill(&r);
    before = rig_fingerprint(&r);
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r.engine, o->job->dir, TAG, NULL));
    CHECK_ERROR_SAYS(o->name);
    CHECK_INT(before, rig_fingerprint(&r));
    sherd_load_params_init(&params);
    if (o->change == SAVED_THAWED) {
        params.weights_only = 1;
    } else {
        params.may_miss = params.may_be_extra = ALL;
        params.num_may_miss = params.num_may_be_extra = 2;
    }
    CHECK_OK(sherd_checkpoint_load(r.engine, o->job->dir, TAG, &params));
    CHECK(before != rig_fingerprint(&r));
    saved_train(&r, 1);
    rig_close(&r);
}

static void another_model_is_refused_and_may_be_allowed_by_name(void)
{
    job   j         = saved("others");
    other OTHERS[4] = {{&j, SAVED_MISSING, "unit1.4"},
                       {&j, SAVED_EXTRA, "head"},
                       {&j, SAVED_SHAPE, "unit0.2"},
                       {&j, SAVED_THAWED, "unit0.3"}};

    for (size_t i = 0; i < 4; i++) {
        test_world(3, other_body, &OTHERS[i]);
    }
}

/* After the load only a head that the checkpoint does not have is filled. */
static void head_body(sherd_world *world, void *raw)
{
    const job        *j = raw;
    sherd_load_params params;
    uint64_t          share;
    uint64_t          head;
    rig               r;

    saved_open_changed(&r, world, &OPTIONS, SAVED_EXTRA);
    sherd_load_params_init(&params);
    params.may_miss     = ALL;
    params.num_may_miss = 1;
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, TAG, &params));
    saved_fill(&r);
    CHECK_OK(sherd_param_fingerprint(r.engine, r.params[SAVED_PARAMS].handle, &head));
    share = rig_fingerprint(&r) - head;
    CHECK_INT(j->fingerprint, share);
    saved_train(&r, 1);
    rig_close(&r);
}

/* A count without a list, and a list without a pattern. */
static void lists_body(sherd_world *world, void *raw)
{
    static const char *const NONE[] = {NULL};
    const job               *j      = raw;
    rig                      r;

    saved_open(&r, world, &OPTIONS);
    for (int which = 0; which < 4; which++) {
        const char *const  *list = which < 2 ? NULL : NONE;
        size_t              miss = which % 2 == 0, extra = which % 2;
        sherd_load_params   load;
        sherd_import_params import;

        sherd_load_params_init(&load);
        sherd_import_params_init(&import);
        load.may_miss = load.may_be_extra = import.may_miss = import.may_be_extra = list;
        load.num_may_miss = import.num_may_miss = miss;
        load.num_may_be_extra = import.num_may_be_extra = extra;
        CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r.engine, j->dir, TAG, &load));
        test_check_contains(__FILE__, __LINE__, sherd_last_error(),
                            miss ? "may_miss" : "may_be_extra");
        CHECK_STATUS(SHERD_E_INVAL, sherd_import_safetensors(r.engine, "/nowhere", &import));
        test_check_contains(__FILE__, __LINE__, sherd_last_error(),
                            miss ? "may_miss" : "may_be_extra");
    }
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, TAG, NULL));
    rig_close(&r);
}

static void a_list_that_is_not_there_is_refused(void)
{
    job j = saved("lists");

    test_world(2, lists_body, &j);
}

static void a_new_head_is_filled_behind_the_load(void)
{
    job j = saved("head");

    test_world(2, head_body, &j);
}

static void weights_body(sherd_world *world, void *raw)
{
    const job        *j = raw;
    sherd_load_params params;
    sherd_engine_info info;
    rig_options       options = OPTIONS;
    rig               r;

    options.optimizer = "LAMB";
    saved_open(&r, world, &options);
    sherd_load_params_init(&params);
    params.weights_only = 1;
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, TAG, &params));
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    CHECK_INT(0, info.step);
    CHECK_INT(j->fingerprint, rig_fingerprint(&r));
    saved_train(&r, 1);
    rig_close(&r);
}

static void weights_alone_begin_a_run_anew(void)
{
    job j = saved("weights");

    test_world(3, weights_body, &j);
}

/* --------------------------------------------------------------------- when, who -- */

static void window_body(sherd_world *world, void *raw)
{
    const job  *j       = raw;
    rig_options options = OPTIONS;
    rig         r;

    options.accumulation = 2;
    saved_open(&r, world, &options);
    saved_fill(&r);
    rig_acquire(&r, 0, SHERD_EVAL);
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_load(r.engine, j->dir, TAG, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_save(r.engine, j->dir, "two", NULL));
    rig_release(&r, 0, SHERD_EVAL);
    rig_micro_batch(&r);
    (void)rig_step(&r);
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_load(r.engine, j->dir, TAG, NULL));
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_save(r.engine, j->dir, "two", NULL));
    rig_micro_batch(&r);
    (void)rig_step(&r);
    CHECK_OK(sherd_checkpoint_load(r.engine, j->dir, TAG, NULL));
    CHECK_INT(j->fingerprint, rig_fingerprint(&r));
    rig_close(&r);
}

static void in_a_window_nothing_is_loaded_or_saved(void)
{
    job j = saved("window");

    test_world(2, window_body, &j);
}

/* Checks that both ranks get the error, and that the engine is unchanged. */
static void differs_body(sherd_world *world, void *raw)
{
    const job        *j    = raw; /* two folders, one for each rank */
    int               rank = sherd_world_rank(world);
    sherd_load_params params;
    sherd_save_params save;
    uint64_t          before;
    rig               r;

    saved_open(&r, world, &OPTIONS);
    saved_fill(&r);
    before = rig_fingerprint(&r);
    sherd_load_params_init(&params);
    params.weights_only = rank == 1;
    sherd_save_params_init(&save);
    save.keep_last = rank;
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_checkpoint_load(r.engine, j[0].dir, rank == 0 ? TAG : NULL, NULL));
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_checkpoint_load(r.engine, j[0].dir, rank == 0 ? TAG : "none", NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r.engine, j[0].dir, TAG, &params));
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r.engine, j[rank].dir, TAG, NULL));
    CHECK_ERROR_SAYS("rank 1");
    CHECK_STATUS(SHERD_E_INVAL,
                 sherd_checkpoint_save(r.engine, j[0].dir, rank == 0 ? "a" : "b", NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_save(r.engine, j[rank].dir, "a", NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_save(r.engine, j[0].dir, "a", &save));
    CHECK_INT(before, rig_fingerprint(&r));
    rig_close(&r);
}

static void ranks_that_differ_are_told(void)
{
    job      j[2] = {saved("this"), {.more_steps = 1}};
    uint64_t before;

    (void)saved_dir("that", j[1].dir);
    test_world(2, save_body, &j[1]);
    before = saved_bytes(j[0].dir);
    test_world(2, differs_body, j);
    CHECK_INT(before, saved_bytes(j[0].dir));
    CHECK_INT(0, saved_left_behind(j[0].dir));
}

/* The working directory of rank 1 is another one, as on another host that shares no files, and
 * nobody can make a folder there. */
static void unseen_body(sherd_world *world, void *raw)
{
    int rank = sherd_world_rank(world);
    rig r;

    (void)raw;
    CHECK(unshare(CLONE_FS) == 0);
    CHECK(chdir(rank == 0 ? test_scratch() : "/proc") == 0);
    saved_open(&r, world, &OPTIONS);
    saved_fill(&r);
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_save(r.engine, "unseen", "a", NULL));
    CHECK_ERROR_SAYS(rank == 0 ? "rank 1" : "cannot make the folder unseen");
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_load(r.engine, "this", TAG, NULL));
    CHECK_ERROR_SAYS(rank == 0 ? "rank 1" : "this");
    saved_train(&r, 1);
    rig_close(&r);
}

static void a_folder_that_a_rank_cannot_make_is_refused(void)
{
    char dir[256];

    (void)saved("this");
    test_world(2, unseen_body, NULL);
    CHECK_INT(0, test_files(saved_dir("unseen", dir), ""));
    CHECK_INT(0, saved_left_behind(dir));
}

/* ------------------------------------------------------------------------- links -- */

/* Makes a folder with files that must not be read as those of a checkpoint, nor removed. */
static uint64_t outside_make(job *out)
{
    char path[512];
    int  fd;

    *out = saved("outside");
    (void)snprintf(path, sizeof(path), "%s/precious", out->dir);
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, "precious", 8) == 8 && close(fd) == 0);
    return saved_bytes(out->dir);
}

static void link_make(const char *to, const char *dir, const char *name)
{
    char path[1024];

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)unlink(path);
    CHECK(symlink(to, path) == 0);
}

static void load_body(sherd_world *world, void *raw)
{
    const job *j = raw;
    rig        r;

    saved_open(&r, world, &OPTIONS);
    CHECK(sherd_checkpoint_load(r.engine, j->dir, j->tag, NULL) != SHERD_OK);
    rig_close(&r);
}

static sherd_status count_one(void *ctx, const sherd_checkpoint_info *info)
{
    (void)info;
    ++*(int *)ctx;
    return SHERD_OK;
}

static void file_make(const char *path)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);

    CHECK(fd >= 0 && write(fd, "mine", 4) == 4 && close(fd) == 0);
}

static void replace_body(sherd_world *world, void *raw)
{
    rig r;

    (void)raw;
    saved_open(&r, world, &OPTIONS);
    saved_fill(&r);
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_save(r.engine, test_scratch(), "data", NULL));
    CHECK_ERROR_SAYS(sherd_world_rank(world) == 0 ? "data exists and is no checkpoint" : "rank 0");
    saved_train(&r, 1);
    rig_close(&r);
}

/* What is no checkpoint is not removed, not listed, and not replaced by one. */
static void only_checkpoints_are_removed_and_replaced(void)
{
    job      j = saved("runs");
    char     path[512];
    char     data[256];
    uint64_t before;
    int      count = 0;

    /* a folder of checkpoints: the tag was forgotten */
    before = saved_bytes(j.dir);
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_remove(test_scratch(), "runs"));
    CHECK_ERROR_SAYS("folder of checkpoints");
    CHECK_ERROR_SAYS("runs/" TAG);
    CHECK_INT(before, saved_bytes(j.dir));

    /* files of somebody's, with a manifest.json of its own kind */
    (void)snprintf(data, sizeof(data), "%s/data", test_scratch());
    CHECK(mkdir(data, 0700) == 0);
    (void)snprintf(path, sizeof(path), "%s/thesis.txt", data);
    file_make(path);
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_remove(test_scratch(), "data"));
    CHECK_ERROR_SAYS("no checkpoint");
    (void)snprintf(path, sizeof(path), "%s/manifest.json", data);
    file_make(path);
    before = saved_bytes(data);
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_remove(test_scratch(), "data"));
    CHECK_OK(sherd_checkpoints_find(test_scratch(), count_one, &count));
    CHECK_INT(0, count);
    test_world(2, replace_body, NULL);
    CHECK_INT(before, saved_bytes(data));
    CHECK_INT(0, saved_left_behind(test_scratch()));

    /* a checkpoint that somebody's folder is in; without that it goes, damaged or not */
    (void)snprintf(path, sizeof(path), "%s/" TAG "/notes", j.dir);
    CHECK(mkdir(path, 0700) == 0);
    before = saved_bytes(j.dir);
    CHECK_STATUS(SHERD_E_STATE, sherd_checkpoint_remove(j.dir, TAG));
    CHECK_ERROR_SAYS("holds a folder");
    CHECK_INT(before, saved_bytes(j.dir));
    CHECK(rmdir(path) == 0);
    (void)snprintf(path, sizeof(path), "%s/" TAG "/manifest.json", j.dir);
    file_make(path);
    CHECK_OK(sherd_checkpoint_remove(j.dir, TAG));
    CHECK_INT(0, test_files(j.dir, ""));
}

static void links_are_not_followed_out_of_the_folder(void)
{
    job               outside;
    uint64_t          before = outside_make(&outside);
    job               j      = saved("links");
    sherd_checkpoint *open;
    char              to[512];
    char              path[512];
    int               count = 0;

    /* a link in place of a tag */
    (void)snprintf(to, sizeof(to), "%s/" TAG, outside.dir);
    link_make(to, j.dir, "linked");
    j.tag = "linked";
    test_world(1, load_body, &j);
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_open(j.dir, "linked", &open));
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_remove(j.dir, "linked"));
    CHECK_OK(sherd_checkpoints_find(j.dir, count_one, &count));
    CHECK_INT(1, count);
    CHECK_INT(before, saved_bytes(outside.dir));

    /* links in place of what a save clears away */
    link_make(outside.dir, j.dir, ".linked.partial");
    link_make(to, j.dir, ".other.removed");
    link_make("/nowhere", j.dir, ".latest.partial");
    j.tag = "two";
    test_world(2, save_body, &j);
    CHECK_INT(0, saved_left_behind(j.dir));
    CHECK_INT(before, saved_bytes(outside.dir));
    CHECK_INT(2, saved_verify(j.dir, NULL));

    /* links in place of latest, the manifest and a data file */
    (void)snprintf(to, sizeof(to), "%s/latest", outside.dir);
    link_make(to, j.dir, "latest");
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_open(j.dir, NULL, &open));
    j.tag = NULL;
    test_world(1, load_body, &j);
    (void)snprintf(to, sizeof(to), "%s/" TAG "/rank-00000-of-00002.safetensors", outside.dir);
    (void)snprintf(path, sizeof(path), "%s/two", j.dir);
    link_make(to, path, "rank-00000-of-00002.safetensors");
    CHECK_OK(sherd_checkpoint_open(j.dir, "two", &open));
    CHECK(!sherd_checkpoint_describe(open)->is_complete);
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_verify(open, NULL));
    CHECK_ERROR_SAYS("symbolic link");
    sherd_checkpoint_close(open);
    j.tag = "two";
    test_world(1, load_body, &j);
    (void)snprintf(to, sizeof(to), "%s/" TAG "/manifest.json", outside.dir);
    link_make(to, path, "manifest.json");
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_open(j.dir, "two", &open));
    CHECK_INT(before, saved_bytes(outside.dir));
}

/* A reader that opened such a pipe would wait for ever. */
typedef struct half_load {
    int  is_bound, is_loading;
    char dir[256];
} half_load;

/* Rank 1 cannot read its file. All ranks fail, the world stays, and another checkpoint is
 * loaded. */
static void half_load_body(sherd_world *world, void *raw)
{
    static float      data[2][3][2304], grads[2][3][2304];
    const half_load  *half    = raw;
    const rig_options options = {.stage = 2, .dtype = SHERD_F32};
    uint64_t          fingerprint;
    int               rank = sherd_world_rank(world);
    rig               r;

    rig_open(&r, world, &options);
    rig_three(&r, 1000);
    for (int p = 0; p < r.num_params && half->is_bound; p++) {
        CHECK_OK(sherd_param_bind(r.engine, r.params[p].handle, data[rank][p], grads[rank][p]));
    }
    rig_seal(&r);
    if (half->is_loading) {
        fingerprint = rig_fingerprint(&r);
        CHECK_OK(sherd_checkpoint_save(r.engine, half->dir, "whole", NULL));
        CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r.engine, half->dir, TAG, NULL));
        CHECK_OK(sherd_world_barrier(world));
        CHECK_OK(sherd_checkpoint_load(r.engine, half->dir, "whole", NULL));
        CHECK_INT(fingerprint, rig_fingerprint(&r));
    } else {
        (void)rig_train(&r, 1);
        CHECK_OK(sherd_checkpoint_save(r.engine, half->dir, TAG, NULL));
    }
    rig_close(&r);
}

static void a_file_that_one_rank_cannot_read_loses_nobody(void)
{
    for (int is_bound = 0; is_bound < 2; is_bound++) {
        half_load   half = {.is_bound = is_bound};
        char        path[512];
        struct stat found;

        (void)saved_dir(is_bound ? "half-bound" : "half", half.dir);
        test_world(2, half_load_body, &half);
        (void)snprintf(path, sizeof(path), "%s/" TAG "/rank-00001-of-00002.safetensors", half.dir);
        CHECK(stat(path, &found) == 0);
        bit_flip(path, 8 * (size_t)(found.st_size - 10));
        half.is_loading = 1;
        test_world(2, half_load_body, &half);
    }
}

static void pipes_in_the_place_of_files_are_refused(void)
{
    static const char *const FILES[] = {"latest", TAG "/manifest.json",
                                        TAG "/rank-00001-of-00002.safetensors"};
    job                      j       = saved("pipes");
    char                     path[1024];

    for (size_t i = 3; i-- > 0;) {
        (void)snprintf(path, sizeof(path), "%s/%s", j.dir, FILES[i]);
        CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
        j.tag = i == 0 ? NULL : TAG;
        test_world(1, load_body, &j);
    }
}

static void refused_save_body(sherd_world *world, void *raw)
{
    const job *j = raw;
    rig        r;

    saved_open(&r, world, &OPTIONS);
    saved_fill(&r);
    CHECK_STATUS(SHERD_E_IO, sherd_checkpoint_save(r.engine, j->dir, "two", NULL));
    CHECK_ERROR_SAYS(sherd_world_rank(world) == 0 ? "/latest is "
                                                  : "sherd_checkpoint_save: rank 0 failed: ");
    rig_close(&r);
}

static void a_save_replaces_nothing_but_a_file_by_latest(void)
{
    job  j = saved("odd");
    char path[1024];

    (void)snprintf(path, sizeof(path), "%s/latest", j.dir);
    CHECK(unlink(path) == 0);
    for (int odd = 0; odd < TEST_ODDS; odd++) {
        if (test_odd_make(path, (test_odd)odd)) {
            test_world(2, refused_save_body, &j);
            test_odd_remove(path, (test_odd)odd);
            CHECK_INT(1, test_files(j.dir, ""));
        }
    }
    j.tag = "two";
    test_world(2, save_body, &j);
}

/* A save that was killed while it made DIR/latest leaves a temporary file. */
static void a_file_that_was_left_beside_latest_goes(void)
{
    job  j = saved("beside");
    char path[1024];

    (void)snprintf(path, sizeof(path), "%s/.latest.partial", j.dir);
    CHECK(close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)) == 0);
    j.tag = "two";
    test_world(2, save_body, &j);
    CHECK_INT(0, saved_left_behind(j.dir));
}

/* ------------------------------------------------------------------------- values -- */

static void values_come_by_range(void)
{
    job                    j = saved("values");
    sherd_checkpoint      *open;
    sherd_checkpoint_param param;
    float                 *all  = malloc(9000 * sizeof(*all));
    float                 *some = malloc(9000 * sizeof(*some));
    float                  one;

    CHECK(all != NULL && some != NULL);
    CHECK_OK(sherd_checkpoint_open(j.dir, NULL, &open));
    CHECK_INT(SAVED_PARAMS, sherd_checkpoint_describe(open)->num_params);
    sherd_checkpoint_param_init(&param);
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_param_at(open, SAVED_PARAMS, &param));
    for (size_t p = 0; p < SAVED_PARAMS; p++) {
        CHECK_OK(sherd_checkpoint_param_at(open, p, &param));
        CHECK_OK(sherd_checkpoint_read(open, param.name, "master", 0, param.elems, all));
        for (size_t at = 0; at < param.elems; at += 777) {
            size_t count = param.elems - at < 777 ? param.elems - at : 777;

            CHECK_OK(sherd_checkpoint_read(open, param.name, "master", at, count, some + at));
        }
        CHECK_BYTES_EQUAL(all, some, param.elems * sizeof(*all));
        CHECK_STATUS(SHERD_E_INVAL,
                     sherd_checkpoint_read(open, param.name, "master", param.elems, 1, &one));
        CHECK_STATUS(SHERD_E_INVAL,
                     sherd_checkpoint_read(open, param.name, "master", 1, SIZE_MAX, &one));
        CHECK_INT(param.is_frozen ? SHERD_E_INVAL : SHERD_OK,
                  sherd_checkpoint_read(open, param.name, "exp_avg", 0, 1, &one));
    }
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_read(open, "none", "master", 0, 1, &one));
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_read(open, "unit0.0", "none", 0, 1, &one));
    sherd_checkpoint_close(open);
    free(all);
    free(some);
}

static const test_case CASES[] = {
    CASE(a_flipped_bit_is_refused_by_the_name_of_its_tensor_or_file),
    CASE(a_flipped_bit_in_state_that_was_kept_is_refused),
    CASE(forged_manifests_are_read_or_refused),
    CASE(descriptions_of_kept_state_that_do_not_hold_together_are_refused),
    CASE(verification_goes_on_behind_the_first_damage),
    CASE(a_manifest_that_is_gone_or_cut_is_told_of_in_the_list),
    CASE(another_model_is_refused_and_may_be_allowed_by_name),
    CASE(a_list_that_is_not_there_is_refused),
    CASE(a_new_head_is_filled_behind_the_load),
    CASE(weights_alone_begin_a_run_anew),
    CASE(in_a_window_nothing_is_loaded_or_saved),
    CASE(ranks_that_differ_are_told),
    CASE(a_folder_that_a_rank_cannot_make_is_refused),
    CASE(only_checkpoints_are_removed_and_replaced),
    CASE(links_are_not_followed_out_of_the_folder),
    CASE(a_file_that_one_rank_cannot_read_loses_nobody),
    CASE(pipes_in_the_place_of_files_are_refused),
    CASE(a_save_replaces_nothing_but_a_file_by_latest),
    CASE(a_file_that_was_left_beside_latest_goes),
    CASE(values_come_by_range),
};

RUN_MAIN(CASES)
