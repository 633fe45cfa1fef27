/* What people watch: the files of csv_monitor and tensorboard, lines of the log, and a drive that
 * is full. */
#include "base/mem.h"
#include "tests/engine/rig.h"
#include "tests/engine/saved.h"
#include "tests/lib/check.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define TEXT_BYTES 8192

/* ---- files ---- */

static const char *folder_of(const char *name)
{
    static char folder[256];

    (void)snprintf(folder, sizeof(folder), "%s/%s", test_scratch(), name);
    return folder;
}

/* Returns the text of a file, in a static buffer; "" if there is no file. */
static const char *text_of(const char *folder, const char *name)
{
    static char text[TEXT_BYTES];
    char        path[1024];
    FILE       *file;
    size_t      bytes = 0;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = fopen(path, "rb");
    if (file != NULL) {
        bytes = fread(text, 1, sizeof(text) - 1, file);
        (void)fclose(file);
    }
    text[bytes] = '\0';
    return text;
}

static void check_text(const char *want, const char *got)
{
    if (strcmp(want, got) != 0) {
        test_fail(__FILE__, __LINE__, "a file has\n%s\nnot\n%s", got, want);
    }
}

/* Counts the files of the folder that have `part` in their names, and adds up their bytes. */
static int count_files(const char *folder, const char *part, size_t *bytes_out)
{
    DIR           *files = opendir(folder);
    struct dirent *entry;
    struct stat    at;
    char           path[1024];
    int            count = 0;

    *bytes_out = 0;
    while (files != NULL && (entry = readdir(files)) != NULL) {
        if (strstr(entry->d_name, part) != NULL) {
            (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
            CHECK(stat(path, &at) == 0);
            *bytes_out += (size_t)at.st_size;
            count++;
        }
    }
    if (files != NULL) {
        (void)closedir(files);
    }
    return count;
}

static const char *monitors_in(const char *folder, const char *more)
{
    static _Thread_local char top[2048];

    (void)snprintf(top, sizeof(top),
                   ", \"csv_monitor\": {\"enabled\": true, \"output_path\": \"%s\", \"job_name\": "
                   "\"a/b\"}, \"tensorboard\": {\"enabled\": true, \"output_path\": \"%s\", "
                   "\"job_name\": \"b\"}%s",
                   folder, folder, more);
    return top;
}

/* ---- the log ---- */

typedef struct heard {
    char text[TEXT_BYTES];
    int  lines, warnings;
} heard;

static void hear(void *ctx, sherd_log_level level, const char *line)
{
    heard *into = ctx;

    (void)strncat(into->text, line, sizeof(into->text) - strlen(into->text) - 2);
    (void)strncat(into->text, "\n", 2);
    into->lines++;
    into->warnings += level == SHERD_LOG_WARN;
}

static int heard_times(const heard *log, const char *sentence)
{
    int count = 0;

    for (const char *at = log->text; (at = strstr(at, sentence)) != NULL; at++) {
        count++;
    }
    return count;
}

/* ---- cases ---- */

static uint64_t after_second; /* fingerprint of the second step of the last training */

static void train(sherd_world *world, void *ctx)
{
    rig_options options = {
        .stage = 2, .clip = 1, .accumulation = 2, .micro_batch = 3, .dtype = SHERD_F16, .top = ctx};
    rig r;

    rig_open(&r, world, &options);
    rig_three(&r, 1000);
    rig_seal(&r);
    for (int step = 0; step < 3; step++) {
        uint64_t fingerprint = rig_train(&r, 2).fingerprint;

        if (step == 1 && sherd_world_rank(world) == 0) {
            after_second = fingerprint;
        }
        CHECK_OK(sherd_monitor_write(r.engine, "Train/Samples/train loss", 0.1 + step));
    }
    rig_close(&r);
}

/* Ten samples a micro-batch on each of three ranks, after what a checkpoint of two ranks of three
 * samples has. */
typedef struct elastic_job {
    const char *top, *dir;
    int         stage, is_second;
} elastic_job;

static int64_t samples_now(const rig *r)
{
    sherd_engine_info info;

    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r->engine, &info));
    return info.samples;
}

static void elastic_train(sherd_world *world, void *ctx)
{
    const elastic_job *job     = ctx;
    rig_options        options = {
               .stage = job->stage, .micro_batch = job->is_second ? 10 : 3, .top = job->top};
    rig r;

    rig_open(&r, world, &options);
    rig_three(&r, 1000);
    rig_seal(&r);
    if (job->is_second) {
        CHECK_OK(sherd_checkpoint_load(r.engine, job->dir, "a", NULL));
        CHECK_INT(12, samples_now(&r));
    }
    (void)rig_train(&r, 2);
    CHECK_INT(job->is_second ? 12 + 60 : 12, samples_now(&r));
    CHECK_OK(sherd_checkpoint_save(r.engine, job->dir, job->is_second ? "b" : "a", NULL));
    if (job->is_second) { /* back: the place in the data is the checkpoint's */
        CHECK_OK(sherd_checkpoint_load(r.engine, job->dir, "b", NULL));
        CHECK_INT(72, samples_now(&r));
        CHECK_OK(sherd_engine_set_step(r.engine, 0, 1));
        CHECK_INT(30, samples_now(&r));
    }
    rig_close(&r);
}

static void the_axis_goes_on_in_another_layout(void)
{
    char        csv[600], dir[600];
    elastic_job job = {.top = monitors_in(folder_of("elastic"), ""), .dir = dir, .stage = 1};

    saved_need_checksums();
    (void)snprintf(csv, sizeof(csv), "%s/a/b", folder_of("elastic"));
    (void)snprintf(dir, sizeof(dir), "%s/saved", folder_of("elastic"));
    test_world(2, elastic_train, &job);
    job.is_second = 1;
    job.stage     = 3;
    test_world(3, elastic_train, &job);
    check_text("step,lr\n6,0.01\n12,0.01\n42,0.01\n72,0.01\n",
               text_of(csv, "Train_Samples_lr.csv"));
}

static void monitors_write_what_deepspeed_writes(void)
{
    const char *folder = folder_of("both");
    char        csv[600], board[600];
    size_t      bytes;

    (void)snprintf(csv, sizeof(csv), "%s/a/b", folder);
    (void)snprintf(board, sizeof(board), "%s/b", folder);
    for (int run = 0; run < 2; run++) {
        test_world(2, train, (void *)(uintptr_t)monitors_in(folder, ""));
    }
    /* A step has 2 ranks of 2 micro-batches of 3 samples. A second run appends to the same
     * files. */
    check_text("step,lr\n12,0.01\n24,0.01\n36,0.01\n12,0.01\n24,0.01\n36,0.01\n",
               text_of(csv, "Train_Samples_lr.csv"));
    check_text("step,train loss\n12,0.1\n24,1.1\n36,2.1\n12,0.1\n24,1.1\n36,2.1\n",
               text_of(csv, "Train_Samples_train_loss.csv"));
    CHECK(strncmp("step,loss_scale\n12,16\n", text_of(csv, "Train_Samples_loss_scale.csv"), 22) ==
          0);
    CHECK(strncmp("step,grad_norm\n12,", text_of(csv, "Train_Samples_grad_norm.csv"), 18) == 0);
    CHECK_INT(4, count_files(csv, "Train_", &bytes));
    CHECK_INT(2, count_files(board, "events.out.tfevents.", &bytes)); /* one of each run */
}

static void lines_come_as_often_as_they_are_wanted(void)
{
    heard log = {0};
    char  fingerprint[64];

    sherd_log_set(hear, &log, SHERD_LOG_INFO);
    test_world(
        2, train,
        ", \"steps_per_print\": 1, \"memory_breakdown\": true, \"wall_clock_breakdown\": true, "
        "\"comms_logger\": {\"enabled\": true, \"verbose\": true}");
    sherd_log_set(NULL, NULL, SHERD_LOG_INFO);
    CHECK_INT(2, heard_times(&log, "samples/s")); /* not in the first line */
    test_check_contains(__FILE__, __LINE__, log.text, "step 2: skipped 0, lr 0.01, gradient norm");
    test_check_contains(__FILE__, __LINE__, log.text, "loss scale 16, fingerprint 0x");
    (void)snprintf(fingerprint, sizeof(fingerprint), "fingerprint 0x%016llx, 24 samples",
                   (unsigned long long)after_second);
    test_check_contains(__FILE__, __LINE__, log.text, fingerprint);
    CHECK_INT(
        4, heard_times(&log, "memory (MiB): parameters"));  /* one at seal and one for each step */
    CHECK_INT(6, heard_times(&log, "time (ms) | forward")); /* one of every rank in every step */
    CHECK_INT(4, heard_times(&log, "comms: reduce_scatter: count")); /* steps and the end */
    CHECK(heard_times(&log, "comm op: reduce_scatter") > 6);
}

/* Limits the size of files, which has the effect of a full drive for this process alone. */
static void files_limit(rlim_t bytes)
{
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void train_on_a_full_drive(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 1, .top = ctx};
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, 100);
    rig_seal(&r);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    files_limit(26); /* one and a half rows of the rates */
    CHECK_INT(1, rig_train(&r, 6).was_updated);
    files_limit(RLIM_INFINITY);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

static void full_drive_is_told_and_training_goes_on(void)
{
    const char *folder = folder_of("full");
    heard       log    = {0};
    char        csv[600], board[600];
    size_t      bytes;

    (void)snprintf(csv, sizeof(csv), "%s/a/b", folder);
    (void)snprintf(board, sizeof(board), "%s/b", folder);
    (void)signal(SIGXFSZ, SIG_IGN);
    sherd_log_set(hear, &log, SHERD_LOG_WARN);
    test_world(1, train_on_a_full_drive, (void *)(uintptr_t)monitors_in(folder, ""));
    sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
    (void)signal(SIGXFSZ, SIG_DFL);
    CHECK_INT(2, log.warnings); /* one for each of the two monitors */
    test_check_contains(__FILE__, __LINE__, log.text, "tensorboard: cannot write");
    test_check_contains(__FILE__, __LINE__, log.text, "training goes on without it");
    check_text("step,lr\n1,0.01\n2,0.01\n8,0.01\n", text_of(csv, "Train_Samples_lr.csv"));
    CHECK_INT(1, count_files(board, "events", &bytes));
    /* the head of the file, and the rate and the norm of two boundaries */
    CHECK_INT(40 + 2 * (54 + 61), bytes);
}

static void train_once(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 1, .top = ctx};
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, 100);
    rig_seal(&r);
    CHECK_INT(1, rig_train(&r, 1).was_updated);
    rig_close(&r);
}

/* Rows are appended, and one that was cut off is truncated: to files alone. */
static void what_is_no_file_gets_no_rows(void)
{
    const char *folder = folder_of("odd");

    for (int odd = 0; odd < TEST_ODDS; odd++) {
        heard log = {0};
        char  path[700];

        (void)snprintf(path, sizeof(path), "%s/a", folder);
        CHECK((mkdir(folder, 0700) == 0 || errno == EEXIST) &&
              (mkdir(path, 0700) == 0 || errno == EEXIST));
        (void)snprintf(path, sizeof(path), "%s/a/b", folder);
        CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
        (void)snprintf(path, sizeof(path), "%s/a/b/Train_Samples_lr.csv", folder);
        if (test_odd_make(path, (test_odd)odd)) {
            sherd_log_set(hear, &log, SHERD_LOG_WARN);
            test_world(1, train_once, (void *)(uintptr_t)monitors_in(folder, ""));
            sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
            CHECK_INT(1, log.warnings);
            test_check_contains(__FILE__, __LINE__, log.text, "only a regular file is replaced");
            test_odd_remove(path, (test_odd)odd);
        }
    }
}

/* What a run that ended in the middle of a row has left; the last one is whole, and a title alone
 * may be cut, too. */
static void row_that_was_cut_is_taken_out(void)
{
    static const char *const before[] = {"step,lr\n1,0.5\n2,0.0", "step,lr\n1,0.5\n", "step,l"};
    static const char *const after[]  = {"step,lr\n1,0.5\n1,0.01\n", "step,lr\n1,0.5\n1,0.01\n",
                                         "step,lr\n1,0.01\n"};
    const char              *folder   = folder_of("cut");
    char                     csv[600], path[700];

    (void)snprintf(csv, sizeof(csv), "%s/a/b", folder);
    (void)snprintf(path, sizeof(path), "%s/Train_Samples_lr.csv", csv);
    test_world(1, train_once, (void *)(uintptr_t)monitors_in(folder, ""));
    for (size_t i = 0; i < sizeof(before) / sizeof(before[0]); i++) {
        FILE *file = fopen(path, "w");

        CHECK(file != NULL && fputs(before[i], file) >= 0 && fclose(file) == 0);
        test_world(1, train_once, (void *)(uintptr_t)monitors_in(folder, ""));
        check_text(after[i], text_of(csv, "Train_Samples_lr.csv"));
    }
}

static sherd_status sealed_with(sherd_world *world, const char *top)
{
    rig_options  options = {.top = top};
    sherd_status status;
    rig          r;

    rig_open(&r, world, &options);
    rig_three(&r, 100);
    status = sherd_engine_seal(r.engine);
    CHECK_OK(sherd_monitor_write(r.engine, "before or after", 1));
    rig_close(&r);
    return status;
}

/* The error comes before training, on every rank. */
static void seal_without_a_place(sherd_world *world, void *ctx)
{
    CHECK_STATUS(SHERD_E_IO, sealed_with(world, ctx));
    CHECK_STATUS(SHERD_E_IO,
                 sealed_with(world, ", \"tensorboard\": {\"enabled\": true, \"output_path\": "
                                    "\"/dev/null/x\"}"));
}

static void folder_that_cannot_be_is_an_error_at_seal(void)
{
    test_world(2, seal_without_a_place,
               ", \"csv_monitor\": {\"enabled\": true, \"output_path\": \"/proc/none\"}");
}

/* An allocation that fails leaves nothing open, and no memory is lost. */
static void seal_with_little_memory(sherd_world *world, void *ctx)
{
    rig_options  options = {.top = ctx};
    sherd_status status  = SHERD_E_NOMEM;
    size_t       n       = 0;

    while (status != SHERD_OK) {
        rig r;

        CHECK_INT(SHERD_E_NOMEM, status);
        rig_open(&r, world, &options);
        rig_three(&r, 100);
        (void)sherdi_mem_fail_nth(++n);
        status = sherd_engine_seal(r.engine);
        (void)sherdi_mem_fail_nth(0);
        rig_close(&r);
    }
    CHECK(n > 8);
}

static void seal_takes_every_failure_of_memory(void)
{
    test_world(1, seal_with_little_memory, (void *)(uintptr_t)monitors_in(folder_of("little"), ""));
}

static void bad_tags(sherd_world *world, void *ctx)
{
    char long_tag[129];
    rig  r;

    (void)ctx;
    memset(long_tag, 'a', sizeof(long_tag) - 1);
    long_tag[128] = '\0';
    rig_open(&r, world, &(rig_options){0});
    CHECK_STATUS(SHERD_E_INVAL, sherd_monitor_write(r.engine, "", 1));
    CHECK_STATUS(SHERD_E_INVAL, sherd_monitor_write(r.engine, "a\nb", 1));
    CHECK_STATUS(SHERD_E_INVAL, sherd_monitor_write(r.engine, long_tag, 1));
    CHECK_ERROR_SAYS("1 to 127 printable");
    CHECK_OK(sherd_monitor_write(r.engine, long_tag + 1, 1));
    rig_close(&r);
}

static void tags_are_checked(void)
{
    test_world(1, bad_tags, NULL);
}

static const test_case CASES[] = {
    CASE(monitors_write_what_deepspeed_writes),
    CASE(the_axis_goes_on_in_another_layout),
    CASE(lines_come_as_often_as_they_are_wanted),
    CASE(full_drive_is_told_and_training_goes_on),
    CASE(what_is_no_file_gets_no_rows),
    CASE(row_that_was_cut_is_taken_out),
    CASE(folder_that_cannot_be_is_an_error_at_seal),
    CASE(seal_takes_every_failure_of_memory),
    CASE(tags_are_checked),
};

RUN_MAIN(CASES)
