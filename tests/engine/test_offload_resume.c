/* State files that outlive an engine, in one folder or striped over several. An engine resumes from
 * the files that fit it, and from no others; several engines may share a folder. A resumed run
 * trains to the same numbers as a run that was never interrupted. */
#include "engine/run/engine_impl.h"
#include "engine/run/store.h"
#include "tests/collectives/ranks.h"
#include "tests/engine/rig.h"
#include "sherd_tools.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ELEMS        3000
#define MOST_STEPS   8
#define MOST_FILES   8
#define MOST_FOLDERS 3

/* Environment of a process that a test starts: where its state is, and the ends of its pipes. */
#define FOLDER_VARIABLE "SHERD_TEST_FOLDER"
#define HOLD_VARIABLE   "SHERD_TEST_HOLD"
#define REPORT_VARIABLE "SHERD_TEST_REPORT"
#define GUARD_SECONDS   60

/* ---------------------------------------------------------------- folders -- */

static const char *scratch(void)
{
    const char *given = getenv(FOLDER_VARIABLE);

    return given != NULL ? given : test_scratch();
}

/* Makes the first `count` of the folders "f0", "f1", "f2" of this case, and returns their list as
 * JSON. */
static const char *folders_make(int count)
{
    static _Thread_local char lists[MOST_FOLDERS + 1][512];
    char                     *json = lists[count];
    size_t                    len  = 0;

    for (int i = 0; i < count; i++) {
        char path[256];

        (void)snprintf(path, sizeof(path), "%s/f%d", scratch(), i);
        (void)mkdir(path, 0700);
        len += (size_t)snprintf(json + len, sizeof(lists[0]) - len, "%s\"%s\"", i == 0 ? "[" : ", ",
                                path);
    }
    (void)snprintf(json + len, sizeof(lists[0]) - len, "]");
    return json;
}

static const char *folder_path(int index)
{
    static _Thread_local char path[256];

    (void)snprintf(path, sizeof(path), "%s/f%d", scratch(), index);
    return path;
}

/* Counts the files in a folder that have at least `least_bytes` bytes. */
static int files_in(int index, off_t least_bytes)
{
    DIR           *dir = opendir(folder_path(index));
    struct dirent *entry;
    int            count = 0;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        struct stat info;

        count += entry->d_name[0] != '.' && fstatat(dirfd(dir), entry->d_name, &info, 0) == 0 &&
                 info.st_size >= least_bytes;
    }
    (void)closedir(dir);
    return count;
}

typedef struct state_list {
    sherd_state_file files[MOST_FILES];
    int              count;
} state_list;

static sherd_status state_add(void *ctx, const sherd_state_file *file)
{
    state_list *list = ctx;

    CHECK(list->count < MOST_FILES);
    list->files[list->count++] = *file;
    return SHERD_OK;
}

static state_list states(void)
{
    state_list list = {.count = 0};

    CHECK_OK(sherd_state_files_find(folder_path(0), state_add, &list));
    return list;
}

/* Checks that the same files are there and that nobody has written to them since. */
static void expect_untouched(const state_list *before)
{
    state_list after = states();

    CHECK_INT(before->count, after.count);
    for (int i = 0; i < after.count; i++) {
        CHECK(strcmp(before->files[i].path, after.files[i].path) == 0);
        CHECK_INT(before->files[i].generation, after.files[i].generation);
        CHECK_INT(before->files[i].step, after.files[i].step);
        CHECK_INT(0, after.files[i].is_locked);
        CHECK_INT(1, after.files[i].is_valid);
    }
}

static void states_remove(void)
{
    state_list list = states();

    for (int i = 0; i < list.count; i++) {
        CHECK_OK(sherd_state_file_remove(list.files[i].path));
    }
}

/* Makes the folders and removes old state; skips the case in a build without state files. */
static void case_begin(void)
{
    state_list list = {.count = 0};

    (void)folders_make(MOST_FOLDERS);
    if (sherd_state_files_find(folder_path(0), state_add, &list) == SHERD_E_NOTSUP) {
        test_skip("%s", sherd_last_error());
    }
    states_remove();
}

/* -------------------------------------------------------------------- log -- */

static char warned[4096];

static void warning_keep(void *ctx, sherd_log_level level, const char *line)
{
    size_t len = strlen(warned);

    (void)ctx;
    if (level <= SHERD_LOG_WARN) {
        (void)snprintf(warned + len, sizeof(warned) - len, "%s\n", line);
    }
}

static void warnings_begin(void)
{
    warned[0] = '\0';
    sherd_log_set(warning_keep, NULL, SHERD_LOG_WARN);
}

static void expect_warned(const char *words)
{
    sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
    test_check_contains(__FILE__, __LINE__, warned, words);
}

/* --------------------------------------------------------------- sessions -- */

/* One run of an engine, from its creation to its end. */
typedef struct session {
    const char *paths; /* a list as JSON; NULL: all is in memory */
    const char *state; /* further keys of offload_optimizer */
    const char *zero;  /* more keys of zero_optimization; NULL: the block size */
    size_t      elems; /* about the size of a parameter; 0: ELEMS */
    int         stage;
    int         accumulation;
    sherd_dtype dtype;
    unsigned    wide; /* bit p: parameter p stays fp32 */
    int         steps;
    int         more_micros;                  /* micro-batches after the last step */
    int         is_kept;                      /* the program asks to keep the files at the end */
    int         is_resumed;                   /* from here on results, those of rank 0 */
    int64_t     first;                        /* the step at which it began */
    int64_t     first_micro;                  /* the micro-batch at which it began */
    uint64_t    run;                          /* the run to which its files belong */
    uint64_t    fingerprints[MOST_STEPS + 1]; /* after step `first` and each step that it did */
    float       scales[MOST_STEPS + 1];       /* the loss scale at those steps */
    int         files[MOST_FOLDERS];          /* files in each folder, before the end */
} session;

/* Declares parameters of several kinds: large, frozen, small and kept whole, some in one unit. */
static void session_declare(rig *r, size_t elems)
{
    sherd_param_params frozen;

    sherd_param_params_init(&frozen);
    frozen.frozen = 1;
    (void)rig_unit(r, "a");
    (void)rig_unit(r, "b");
    (void)rig_unit(r, "c");
    (void)rig_param(r, 0, "a.w", elems);
    (void)rig_param(r, 1, "b.w", elems + 641);
    (void)rig_param_as(r, 1, "b.fixed", 777, &frozen);
    (void)rig_param(r, 1, "b.bias", 5);
    (void)rig_param(r, 2, "c.w", elems / 2);
}

static void session_open(const session *s, sherd_world *world, rig *r)
{
    char        keys[2048];
    rig_options options = {.stage        = s->stage,
                           .accumulation = s->accumulation,
                           .dtype        = s->dtype,
                           .wide         = s->wide,
                           .clip         = 1,
                           .zero         = keys};
    int         len;

    len = snprintf(keys, sizeof(keys), ", \"stage3_param_persistence_threshold\": 8%s",
                   s->zero == NULL ? ", \"sub_group_size\": 2048" : s->zero);
    if (s->paths != NULL) {
        (void)snprintf(keys + len, sizeof(keys) - (size_t)len,
                       ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": %s,"
                       " \"durable\": false%s}, \"offload_param\": {\"device\": \"%s\","
                       " \"nvme_path\": %s, \"max_in_cpu\": 0}",
                       s->paths, s->state == NULL ? "" : s->state, s->stage == 3 ? "nvme" : "none",
                       s->paths);
    }
    rig_open(r, world, &options);
    session_declare(r, s->elems == 0 ? ELEMS : s->elems);
}

static sherd_engine_info engine_info(const rig *r)
{
    sherd_engine_info info;

    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r->engine, &info));
    return info;
}

/* Notes the first steps; a run that is to be killed may go further. */
static void session_note(session *s, const rig *r, int64_t step, uint64_t fingerprint)
{
    if (step <= MOST_STEPS) {
        s->fingerprints[step] = fingerprint;
        s->scales[step]       = sherd_loss_scale(r->engine);
    }
}

/* Opens, seals and fills the engine, and notes where it begins. */
static void session_begin(session *s, sherd_world *world, rig *r)
{
    sherd_engine_info info;
    uint64_t          fingerprint;

    session_open(s, world, r);
    rig_seal(r);
    info        = engine_info(r);
    fingerprint = rig_fingerprint(r);
    r->micro    = info.micro_step;
    if (sherd_world_rank(world) == 0) {
        s->is_resumed  = info.is_resumed;
        s->first       = info.step;
        s->first_micro = info.micro_step;
        s->run         = info.state_run;
        session_note(s, r, info.step, fingerprint);
    }
}

static void session_train(session *s, rig *r, int steps)
{
    for (int i = 0; i < steps; i++) {
        sherd_step_report report = rig_train(r, s->accumulation);

        CHECK(report.is_boundary);
        if (sherd_world_rank(r->world) == 0) {
            session_note(s, r, report.step, report.fingerprint);
        }
    }
}

static void session_run(sherd_world *world, void *ctx)
{
    session *s = ctx;
    rig      r;

    session_begin(s, world, &r);
    session_train(s, &r, s->steps);
    (void)rig_train(&r, s->more_micros);
    CHECK_OK(sherd_world_barrier(world));
    if (sherd_world_rank(world) == 0 && s->paths != NULL) {
        for (int i = 0; i < MOST_FOLDERS; i++) {
            s->files[i] = files_in(i, 1);
        }
    }
    CHECK_OK(sherd_world_barrier(world));
    if (s->is_kept) {
        CHECK_OK(sherd_engine_keep_state(r.engine, 1));
    }
    rig_close(&r);
}

/* Runs the same session in memory and from the start. */
static session reference_run(int world_size, const session *of)
{
    session plain = *of;

    plain.paths       = NULL;
    plain.steps       = MOST_STEPS;
    plain.more_micros = 0;
    test_world(world_size, session_run, &plain);
    return plain;
}

/* Checks that all steps that it did have the reference's numbers. */
static void expect_steps(const session *want, const session *got)
{
    for (int64_t step = got->first; step <= got->first + got->steps; step++) {
        CHECK_INT(want->fingerprints[step], got->fingerprints[step]);
        CHECK_CLOSE((double)want->scales[step], (double)got->scales[step], 0);
    }
}

static const session BASE = {.stage = 2, .accumulation = 1, .dtype = SHERD_BF16, .steps = 3};

static session session_of(int stage, const char *state)
{
    session s = BASE;

    s.stage = stage;
    s.paths = folders_make(1);
    s.state = state;
    return s;
}

/* ---------------------------------------------------------------- stripes -- */

/* Checks that every folder has its part of every rank's file, and that the files are gone after a
 * run has resumed from them. */
static void expect_striped(int world_size, int num_folders, int stage)
{
    session kept  = session_of(stage, ", \"keep\": true, \"gradients\": \"nvme\"");
    session again = kept;
    session want;

    kept.elems =
        (size_t)(world_size * num_folders) * 96000; /* at least a stripe for each rank and folder */
    kept.zero   = ", \"sub_group_size\": 65536";
    kept.paths  = folders_make(num_folders);
    again       = kept;
    again.state = ", \"resume\": true, \"gradients\": \"nvme\", \"verify_reads\": true";
    again.steps = 2;
    want        = reference_run(world_size, &kept);
    test_world(world_size, session_run, &kept);
    CHECK_INT(0, kept.is_resumed);
    for (int i = 0; i < num_folders; i++) {
        /* An index and two slot files; in further folders slot files only. */
        CHECK_INT(world_size * (i == 0 ? 3 : 2), kept.files[i]);
        CHECK_INT(world_size * 2, test_files(folder_path(i), ".slots-"));
    }
    expect_steps(&want, &kept);
    test_world(world_size, session_run, &again);
    CHECK_INT(1, again.is_resumed);
    CHECK_INT(kept.run, again.run);
    CHECK_INT(3, again.first);
    expect_steps(&want, &again);
    for (int i = 0; i < num_folders; i++) {
        CHECK_INT(0, files_in(i, 0));
    }
}

static void stripes_are_filled_kept_and_gone_on_from(void)
{
    case_begin();
    for (int world_size = 1; world_size <= 2; world_size++) {
        for (int num_folders = 1; num_folders <= MOST_FOLDERS; num_folders++) {
            expect_striped(world_size, num_folders, 3);
        }
    }
    expect_striped(2, 2, 1);
    expect_striped(1, 3, 2);
}

static void fewer_folders_are_an_error_that_says_so(void)
{
    session      kept = session_of(2, ", \"keep\": true");
    session      other;
    state_list   before;
    sherd_world *world;
    rig          r;

    case_begin();
    kept.paths = folders_make(2);
    test_world(1, session_run, &kept);
    before      = states();
    other       = kept;
    other.paths = folders_make(1);
    other.state = ", \"resume\": true";
    CHECK_OK(sherd_world_self(&world));
    session_open(&other, world, &r);
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("lies in 2 folders, and nvme_path names 1");
    rig_close(&r);
    sherd_world_destroy(world);
    expect_untouched(&before);
    states_remove();
    CHECK_INT(0, files_in(1, 0)); /* the second stripe is removed with the first */
}

/* ----------------------------------------------------------------- resume -- */

static void a_kept_run_is_gone_on_from(void)
{
    case_begin();
    for (int stage = 1; stage <= 3; stage++) {
        for (int world_size = 1; world_size <= 3; world_size++) {
            session kept  = session_of(stage, ", \"keep\": true");
            session again = session_of(stage, ", \"resume\": true, \"keep\": true");
            session last  = session_of(stage, ", \"resume\": true");
            session want  = reference_run(world_size, &kept);

            kept.steps = 2;
            last.steps = 2;
            test_world(world_size, session_run, &kept);
            test_world(world_size, session_run, &again);
            test_world(world_size, session_run, &last);
            CHECK_INT(2, again.first);
            CHECK_INT(5, last.first);
            CHECK_INT(kept.run, last.run);
            expect_steps(&want, &kept);
            expect_steps(&want, &again);
            expect_steps(&want, &last);
            CHECK_INT(0, files_in(0, 0));
        }
    }
}

static void a_program_keeps_what_its_file_does_not(void)
{
    session kept  = session_of(2, "");
    session again = session_of(2, ", \"resume\": true");
    session want  = reference_run(2, &kept);

    case_begin();
    kept.is_kept = 1;
    test_world(2, session_run, &kept);
    test_world(2, session_run, &again);
    CHECK_INT(kept.first + kept.steps, again.first);
    expect_steps(&want, &again);
    CHECK_INT(0, files_in(0, 0));
}

/* Keeps the state of a step by links, as a checkpoint does. */
static void state_link(const rig *r, int64_t step)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "kept-%lld-%d", (long long)step, sherd_world_rank(r->world));
    CHECK_OK(sherdi_state_keep(r->engine->storage.store->state, folder_path(2), name));
}

/* Keeps each step, undoes it, does it again and keeps it again; the last one is left for another
 * run. */
static void linked_run(sherd_world *world, void *ctx)
{
    session *s = ctx;
    rig      r;

    session_begin(s, world, &r);
    for (int step = 1; step <= s->steps; step++) {
        session_train(s, &r, 1);
        state_link(&r, s->first + step);
        CHECK_OK(sherd_step_undo(r.engine));
        CHECK_INT(s->first + step - 1, engine_info(&r).step);
        r.micro -= s->accumulation;
        session_train(s, &r, 1);
        state_link(&r, 1000 + s->first + step);
    }
    CHECK_OK(sherd_engine_keep_state(r.engine, s->is_kept));
    rig_close(&r);
}

static void a_run_whose_state_is_linked_goes_on_as_ever(void)
{
    for (int stage = 1; stage <= 3; stage++) {
        session kept  = session_of(stage, "");
        session again = session_of(stage, ", \"resume\": true");
        session want;

        case_begin();
        (void)folders_make(3);
        kept.steps   = 3;
        kept.is_kept = 1;
        want         = reference_run(2, &kept);
        test_world(2, linked_run, &kept);
        test_world(2, linked_run, &again);
        CHECK_INT(3, again.first);
        CHECK_INT(kept.run, again.run);
        expect_steps(&want, &kept);
        expect_steps(&want, &again);
        CHECK_INT(0, files_in(0, 0));
        CHECK_INT(2 * 2 * (3 + again.steps), files_in(2, 1)); /* each step of each rank twice */
        test_files_remove(folder_path(2), "kept-");
    }
}

/* No file has what was accumulated, so the window begins again. */
static void half_a_window_is_done_again(void)
{
    session kept = session_of(3, ", \"keep\": true");
    session again, want;

    case_begin();
    kept.accumulation = 2;
    kept.more_micros  = 1;
    again             = kept;
    again.state       = ", \"resume\": true";
    want              = reference_run(2, &kept);
    test_world(2, session_run, &kept);
    test_world(2, session_run, &again);
    CHECK_INT(3, again.first);
    CHECK_INT(6, again.first_micro);
    expect_steps(&want, &again);
}

static void scale_undone(sherd_world *world, void *ctx)
{
    const session *want = ctx;
    session        s    = session_of(2, "");
    rig            r;

    s.dtype = SHERD_F16;
    s.wide  = want->wide;
    session_begin(&s, world, &r);
    for (int step = 1; step <= MOST_STEPS; step++) {
        session_train(&s, &r, 1);
        CHECK_OK(sherd_step_undo(r.engine));
        CHECK_CLOSE((double)want->scales[step - 1], (double)sherd_loss_scale(r.engine), 0);
        r.micro--;
        session_train(&s, &r, 1);
    }
    rig_close(&r);
    if (sherd_world_rank(world) == 0) {
        s.steps = MOST_STEPS;
        expect_steps(want, &s);
    }
}

/* Uses fp16 with a scale that grows every second step; some parameters stay fp32. */
static void the_loss_scale_is_gone_on_from(void)
{
    session kept = session_of(2, ", \"keep\": true");
    session again, want;

    case_begin();
    kept.dtype  = SHERD_F16;
    kept.wide   = 0x2b;
    again       = kept;
    again.state = ", \"resume\": true";
    want        = reference_run(2, &kept);
    CHECK(want.scales[3] > want.scales[0]);
    test_world(2, session_run, &kept);
    test_world(2, session_run, &again);
    CHECK_INT(3, again.first);
    expect_steps(&want, &again);
    test_world(2, scale_undone, &want);
}

/* Checks that a run which resumes nothing begins anew, warns so, and leaves the files that are
 * there as they were. */
static void expect_anew(int world_size, session *other, const char *words)
{
    session    want   = reference_run(world_size, other);
    state_list before = states();

    warnings_begin();
    test_world(world_size, session_run, other);
    expect_warned(words);
    CHECK_INT(0, other->is_resumed);
    CHECK_INT(0, other->first);
    expect_steps(&want, other);
    expect_untouched(&before);
}

static void another_layout_begins_anew(void)
{
    static const char NOTHING_FITS[] = "fits this model, configuration and number of ranks";
    session           kept           = session_of(2, ", \"keep\": true");
    session           want, other;

    case_begin();
    want = reference_run(2, &kept);
    test_world(2, session_run, &kept);

    other = session_of(2, ", \"resume\": true");
    expect_anew(1, &other, NOTHING_FITS);
    expect_anew(3, &other, NOTHING_FITS);
    other.elems = ELEMS + 64;
    expect_anew(2, &other, NOTHING_FITS);
    other      = session_of(2, ", \"resume\": true");
    other.zero = ", \"sub_group_size\": 1024";
    expect_anew(2, &other, NOTHING_FITS);
    other = session_of(1, ", \"resume\": true");
    expect_anew(2, &other, NOTHING_FITS);
    other       = session_of(2, ", \"resume\": true");
    other.dtype = SHERD_F32;
    expect_anew(2, &other, NOTHING_FITS);

    /* A run that does not ask to resume begins anew too, and the files are reported. */
    other = session_of(2, "");
    expect_anew(2, &other, "holds 2 state files of earlier runs");

    /* The files can still be resumed. */
    other = session_of(2, ", \"resume\": true");
    test_world(2, session_run, &other);
    CHECK_INT(3, other.first);
    CHECK_INT(kept.run, other.run);
    expect_steps(&want, &other);
}

/* Where the file of one rank is missing, nothing of the run is resumed. */
static void a_run_without_a_rank_begins_anew(void)
{
    session    kept  = session_of(2, ", \"keep\": true");
    session    other = session_of(2, ", \"resume\": true");
    state_list list;

    case_begin();
    test_world(3, session_run, &kept);
    list = states();
    CHECK_INT(3, list.count);
    CHECK_OK(sherd_state_file_remove(list.files[1].path));
    expect_anew(3, &other, "state starts anew, unless a checkpoint is loaded");
    states_remove();
}

/* ----------------------------------------------------------------- filling -- */

static sherd_status fill_count(void *ctx, size_t first_elem, size_t count_elems, float *out)
{
    int *calls = ctx;

    (void)first_elem;
    (*calls)++;
    memset(out, 0, count_elems * sizeof(*out));
    return SHERD_OK;
}

static void resumed_fill(sherd_world *world, void *ctx)
{
    session *s     = ctx;
    int      calls = 0;
    rig      r;

    session_open(s, world, &r);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK(engine_info(&r).is_resumed);
    for (int p = 0; p < r.num_params; p++) {
        if (!r.params[p].is_frozen) {
            CHECK_OK(sherd_param_fill(r.engine, r.params[p].handle, fill_count, &calls));
        }
    }
    CHECK_INT(0, calls);
    CHECK_STATUS(SHERD_E_STATE, sherd_unit_acquire(r.engine, r.units[0], SHERD_FORWARD));
    if (sherd_world_size(world) == 1) {
        CHECK_ERROR_SAYS("parameter b.fixed was never filled");
    }
    rig_close(&r);
}

/* No state file has frozen parameters; nothing else has to be filled again. */
static void trainable_parameters_keep_their_values_frozen_ones_are_filled(void)
{
    case_begin();
    for (int stage = 1; stage <= 3; stage++) {
        for (int world_size = 1; world_size <= 2; world_size++) {
            session kept  = session_of(stage, ", \"keep\": true");
            session look  = session_of(stage, ", \"resume\": true, \"keep\": true");
            session again = session_of(stage, ", \"resume\": true");
            session want  = reference_run(world_size, &kept);

            test_world(world_size, session_run, &kept);
            test_world(world_size, resumed_fill, &look);
            test_world(world_size, session_run, &again);
            CHECK_INT(3, again.first);
            expect_steps(&want, &again);
            CHECK_INT(0, files_in(0, 0));
        }
    }
}

/* ------------------------------------------------------- several at a time -- */

static void two_engines_take_turns_in_one_folder(void)
{
    session      one = session_of(3, ", \"keep\": true");
    session      two = session_of(2, ", \"keep\": true, \"gradients\": \"nvme\"");
    session      want_one, want_two;
    sherd_world *worlds[2];
    rig          first, second;

    case_begin();
    want_one = reference_run(1, &one);
    want_two = reference_run(1, &two);
    CHECK_OK(sherd_world_self(&worlds[0]));
    CHECK_OK(sherd_world_self(&worlds[1]));
    session_begin(&one, worlds[0], &first);
    session_begin(&two, worlds[1], &second);
    CHECK(one.run != two.run);
    for (int step = 0; step < 3; step++) {
        session_train(&one, &first, 1);
        session_train(&two, &second, 1);
    }
    CHECK_STATUS(SHERD_E_STATE, sherd_state_file_remove(states().files[0].path));
    rig_close(&first);
    rig_close(&second);
    sherd_world_destroy(worlds[0]);
    sherd_world_destroy(worlds[1]);
    expect_steps(&want_one, &one);
    expect_steps(&want_two, &two);
    CHECK_INT(2, states().count);

    /* Each engine finds its own files. */
    one.state = ", \"resume\": true";
    two.state = ", \"resume\": true, \"gradients\": \"nvme\"";
    test_world(1, session_run, &one);
    test_world(1, session_run, &two);
    CHECK_INT(3, one.first);
    CHECK_INT(3, two.first);
    expect_steps(&want_one, &one);
    expect_steps(&want_two, &two);
    CHECK_INT(0, files_in(0, 0));
}

static void job_run(int job, void *ctx)
{
    session *jobs = ctx;

    test_world(2, session_run, &jobs[job]);
}

static void two_jobs_at_once_in_one_folder(void)
{
    session jobs[2] = {session_of(3, ""), session_of(3, "")};
    session want;

    case_begin();
    want = reference_run(2, &jobs[0]);
    for (int round = 0; round < 3; round++) {
        jobs[0].steps = jobs[1].steps = MOST_STEPS;
        test_threads(2, job_run, jobs);
        CHECK(jobs[0].run != jobs[1].run);
        expect_steps(&want, &jobs[0]);
        expect_steps(&want, &jobs[1]);
    }
    CHECK_INT(0, files_in(0, 0));
}

static void a_run_that_goes_on_is_not_taken(void)
{
    session      first  = session_of(3, ", \"keep\": true");
    session      second = session_of(3, ", \"resume\": true");
    session      want;
    sherd_world *world;
    rig          r;

    case_begin();
    want = reference_run(1, &first);
    CHECK_OK(sherd_world_self(&world));
    session_begin(&first, world, &r);
    session_train(&first, &r, 2);
    warnings_begin();
    test_world(1, session_run, &second);
    expect_warned("is not resumed, because another process is using it");
    CHECK_INT(0, second.is_resumed);
    CHECK(first.run != second.run);
    expect_steps(&want, &second);
    session_train(&first, &r, 1);
    rig_close(&r);
    sherd_world_destroy(world);
    expect_steps(&want, &first);
    test_world(1, session_run, &second);
    CHECK_INT(first.run, second.run);
    CHECK_INT(3, second.first);
    expect_steps(&want, &second);
}

/* ------------------------------------------------------------------- kill -- */

/* Starts a part as a program of its own, because a child cannot use a device that its parent has
 * used. */
static pid_t part_start(const char *part, const char *io, const int *hold, const int *report)
{
    char       texts[4][512];
    rank_start start = {.part = part, .environment = {texts[0]}};
    int        count = 1;

    (void)snprintf(texts[0], sizeof(texts[0]), FOLDER_VARIABLE "=%s", test_scratch());
    if (io != NULL) {
        (void)snprintf(texts[1], sizeof(texts[1]), "SHERD_IO=%s", io);
        (void)snprintf(texts[2], sizeof(texts[2]), HOLD_VARIABLE "=%d", hold[0]);
        (void)snprintf(texts[3], sizeof(texts[3]), REPORT_VARIABLE "=%d", report[1]);
        for (; count < 4; count++) {
            start.environment[count] = texts[count];
        }
    }
    return ranks_start(&start);
}

/* Trains until it is killed. */
static void part_trains(void)
{
    session      own = session_of(3, "");
    sherd_world *world;
    rig          r;

    (void)alarm(GUARD_SECONDS);
    CHECK_OK(sherd_world_self(&world));
    session_begin(&own, world, &r);
    for (;;) {
        (void)rig_train(&r, 1);
    }
}

/* The kernel keeps the files of a killed process locked a moment longer than the process exists; a
 * run that resumes at once waits for that. */
static void a_killed_run_is_gone_on_from_at_once(void)
{
    session again = session_of(3, ", \"resume\": true");
    pid_t   child;
    int     status;

    case_begin();
    again.steps = 0;
    child       = part_start("part_trains", NULL, NULL, NULL);
    CHECK(child > 0);
    for (;;) {
        state_list list = states();

        if (list.count == 1 && list.files[0].step >= 1) {
            break;
        }
        CHECK(waitpid(child, &status, WNOHANG) == 0);
    }
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    test_world(1, session_run, &again);
    CHECK_INT(1, again.is_resumed);
    CHECK(again.first >= 1);
}

/* Counts the descriptors of this process that belong to the engine's files and rings. */
static int descriptors_held(void)
{
    DIR           *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    int            count = 0;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        char    target[512];
        ssize_t len = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

        if (len > 0) {
            target[len] = '\0';
            count += strstr(target, folder_path(0)) != NULL || strstr(target, "io_uring") != NULL;
        }
    }
    (void)closedir(dir);
    return count;
}

/* Begins a run that will be killed, and trains until its state is on the drive. */
static void part_begin(rig *r)
{
    session      own = session_of(3, "");
    sherd_world *world;

    (void)alarm(GUARD_SECONDS);
    CHECK_OK(sherd_world_self(&world));
    session_begin(&own, world, r);
    session_train(&own, r, 1);
}

/* A run forks a child, as data loaders do, and is killed. The child reports how many descriptors it
 * has, and lives until its `hold` ends. */
static void part_has_a_child(void)
{
    int hold   = ranks_variable(HOLD_VARIABLE);
    int report = ranks_variable(REPORT_VARIABLE);
    rig r;

    part_begin(&r);
    CHECK(descriptors_held() > 0);
    if (fork() == 0) {
        unsigned char held = (unsigned char)descriptors_held();

        _exit(write(report, &held, 1) == 1 && read(hold, &held, 1) == 0 ? 0 : 1);
    }
    for (;;) {
        (void)rig_train(&r, 1);
    }
}

/* Stays in the memory of its parent, with no descriptor of it. It calls the kernel by number,
 * because it also shares the parent's thread-local storage. */
static int memory_hold(void *raw)
{
    const int    *pipes = raw;
    unsigned char held  = 0;

    (void)syscall(SYS_dup3, pipes[0], STDIN_FILENO, 0);
    (void)syscall(SYS_dup3, pipes[1], STDOUT_FILENO, 0);
    (void)syscall(SYS_close_range, 3, ~0u, 0);
    (void)syscall(SYS_write, STDOUT_FILENO, &held, 1);
    (void)syscall(SYS_read, STDIN_FILENO, &held, 1);
    (void)syscall(SYS_exit_group, 0);
    return 0;
}

/* A run whose memory outlives it, mappings of rings included. NVIDIA's driver keeps the memory of a
 * process as long as anybody has the descriptor that UVM_MM_INITIALIZE was called on, and each
 * forked child has it. */
static void part_has_held_memory(void)
{
    static _Alignas(16) unsigned char stack[65536];
    int pipes[2] = {ranks_variable(HOLD_VARIABLE), ranks_variable(REPORT_VARIABLE)};
    rig r;

    part_begin(&r);
    CHECK(clone(memory_hold, stack + sizeof(stack), CLONE_VM | SIGCHLD, pipes) > 0);
    for (;;) {
        (void)rig_train(&r, 1);
    }
}

static void expect_resumed_beside_a_child(const char *part, const char *io)
{
    session       again = session_of(3, ", \"resume\": true");
    unsigned char held  = 255;
    int           hold[2], report[2];
    pid_t         child;
    int           status;

    case_begin();
    again.steps = 1;
    CHECK(setenv("SHERD_IO", io, 1) == 0);
    CHECK(pipe(hold) == 0 && pipe(report) == 0);
    CHECK(fcntl(hold[1], F_SETFD, FD_CLOEXEC) == 0);
    child = part_start(part, io, hold, report);
    CHECK(child > 0);
    (void)close(report[1]);
    CHECK(read(report[0], &held, 1) == 1);
    CHECK_INT(0, held);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitpid(child, &status, 0) == child);
    test_world(1, session_run, &again);
    CHECK_INT(1, again.is_resumed);
    CHECK(again.first >= 1);
    (void)close(hold[0]);
    (void)close(hold[1]);
    (void)close(report[0]);
    (void)unsetenv("SHERD_IO");
}

static int uring_is_here(void)
{
    session      probe = session_of(3, "");
    sherd_world *world;
    sherd_status status;
    rig          r;

    CHECK(setenv("SHERD_IO", "io_uring", 1) == 0);
    CHECK_OK(sherd_world_self(&world));
    session_open(&probe, world, &r);
    status = sherd_engine_seal(r.engine);
    rig_close(&r);
    sherd_world_destroy(world);
    (void)unsetenv("SHERD_IO");
    return status == SHERD_OK;
}

static void a_child_of_a_killed_run_holds_nothing(void)
{
    expect_resumed_beside_a_child("part_has_a_child", "threads");
    if (uring_is_here()) {
        expect_resumed_beside_a_child("part_has_a_child", "io_uring");
    }
}

static void memory_of_a_killed_run_holds_nothing(void)
{
    expect_resumed_beside_a_child("part_has_held_memory", "threads");
    if (uring_is_here()) {
        expect_resumed_beside_a_child("part_has_held_memory", "io_uring");
    }
}

static const test_case CASES[] = {
    CASE(stripes_are_filled_kept_and_gone_on_from),
    CASE(fewer_folders_are_an_error_that_says_so),
    CASE(a_kept_run_is_gone_on_from),
    CASE(a_program_keeps_what_its_file_does_not),
    CASE(a_run_whose_state_is_linked_goes_on_as_ever),
    CASE(half_a_window_is_done_again),
    CASE(the_loss_scale_is_gone_on_from),
    CASE(another_layout_begins_anew),
    CASE(a_run_without_a_rank_begins_anew),
    CASE(trainable_parameters_keep_their_values_frozen_ones_are_filled),
    CASE(two_engines_take_turns_in_one_folder),
    CASE(two_jobs_at_once_in_one_folder),
    CASE(a_run_that_goes_on_is_not_taken),
    CASE(a_killed_run_is_gone_on_from_at_once),
    CASE(a_child_of_a_killed_run_holds_nothing),
    CASE(memory_of_a_killed_run_holds_nothing),
};

static const rank_part PARTS[] = {
    PART(part_trains),
    PART(part_has_a_child),
    PART(part_has_held_memory),
};

RANKS_MAIN(CASES, PARTS)
