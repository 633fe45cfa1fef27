/* State that is gone on from in another way than it was written: what may change without a word
 * (rates), what is reported (accumulation, the micro-batch, the trainer's own description), what is
 * refused with a word (an older format). */
#include "offload/checksum.h"
#include "offload/state_file.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"
#include "sherd_tools.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STEPS 2

/* How a run begins, and the report about it. */
typedef struct start {
    const char *keys;        /* of offload_optimizer */
    const char *description; /* NULL: none */
    double      rate;        /* of the second group; its decay and betas go with it */
    int         accumulation;
    int         micro_batch;
    int         backward_uses, retain_grads, is_bound;
    int         is_resumed;  /* out, as the rest */
    uint64_t    fingerprint; /* at the end */
    int64_t     step, samples;
    char        differs[1024];
} start;

static char warned[4096];

#define ELEMS_W 3000
#define ELEMS_B 700

static void warning_keep(void *ctx, sherd_log_level level, const char *line)
{
    size_t len = strlen(warned);

    (void)ctx;
    (void)level;
    (void)snprintf(warned + len, sizeof(warned) - len, "%s\n", line);
}

static void run(sherd_world *world, void *ctx)
{
    start             *s = ctx;
    char               zero[1024];
    rig_options        options = {.stage         = 2,
                                  .accumulation  = s->accumulation,
                                  .micro_batch   = s->micro_batch,
                                  .dtype         = SHERD_BF16,
                                  .zero          = zero,
                                  .backward_uses = s->backward_uses,
                                  .retain_grads  = s->retain_grads};
    uint16_t           data[ELEMS_W + ELEMS_B], grad[ELEMS_W + ELEMS_B]; /* of bound parameters */
    sherd_group_params group;
    sherd_param_params params;
    sherd_engine_info  info;
    uint64_t           fingerprint;
    rig                r;

    (void)snprintf(zero, sizeof(zero),
                   ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\","
                   " \"durable\": false%s}",
                   test_scratch(), s->keys);
    rig_open(&r, world, &options);
    sherd_group_params_init(&group);
    group.lr           = s->rate;
    group.weight_decay = s->rate / 10;
    group.beta1        = 1 - s->rate;
    sherd_param_params_init(&params);
    CHECK_OK(sherd_group_add(r.engine, &group, &params.group));
    (void)rig_unit(&r, "a");
    (void)rig_param(&r, 0, "a.w", ELEMS_W);
    (void)rig_param_as(&r, 0, "a.b", ELEMS_B, &params);
    for (int p = 0; p < 2 && s->is_bound; p++) {
        size_t first = p == 0 ? 0 : ELEMS_W;

        CHECK_OK(sherd_param_bind(r.engine, r.params[p].handle, data + first, grad + first));
    }
    if (s->description != NULL) {
        CHECK_OK(sherd_engine_describe_run(r.engine, s->description));
    }
    rig_seal(&r);
    sherd_engine_info_init(&info);
    CHECK_OK(sherd_engine_query(r.engine, &info));
    (void)rig_train(&r, STEPS * s->accumulation);
    CHECK_STATUS(SHERD_E_STATE, sherd_engine_describe_run(r.engine, "too late"));
    fingerprint = rig_fingerprint(&r);
    if (sherd_world_rank(world) == 0) {
        s->is_resumed  = info.is_resumed;
        s->fingerprint = fingerprint;
        s->step        = info.step;
        s->samples     = info.samples;
        (void)snprintf(s->differs, sizeof(s->differs), "%s", info.resume_differs);
    }
    rig_close(&r);
}

static const start BASE = {
    .keys = ", \"keep\": true", .rate = 0.01, .accumulation = 1, .micro_batch = 1};

static start resumed_from(const start *from)
{
    start s = *from;

    s.keys = ", \"resume\": true, \"keep\": true";
    return s;
}

static sherd_status remove_one(void *ctx, const sherd_state_file *file)
{
    (void)ctx;
    return sherd_state_file_remove(file->path);
}

/* Skips the case in a build without state files. */
static void case_begin(void)
{
    if (sherd_state_files_find(test_scratch(), remove_one, NULL) == SHERD_E_NOTSUP) {
        test_skip("%s", sherd_last_error());
    }
    warned[0] = '\0';
}

static void run_and_listen(int world_size, start *s)
{
    sherd_log_set(warning_keep, NULL, SHERD_LOG_WARN);
    test_world(world_size, run, s);
    sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
}

static void rates_may_change(void)
{
    start kept = BASE;
    start again;

    case_begin();
    test_world(2, run, &kept);
    again      = resumed_from(&kept);
    again.rate = 0.02;
    run_and_listen(2, &again);
    CHECK_INT(1, again.is_resumed);
    CHECK_INT(STEPS, again.step);
    CHECK(again.differs[0] == '\0' && warned[0] == '\0');
}

/* They say how the trainer works with gradients and parameters, and nothing of the state. */
static void uses_and_memory_may_change(void)
{
    start plain = {.fingerprint = 0};

    for (int kind = 0; kind < 4; kind++) {
        start kept = BASE;
        start again;

        case_begin();
        test_world(2, run, &kept);
        again               = resumed_from(&kept);
        again.backward_uses = kind == 1 ? SHERD_USES_ANY : 0;
        again.retain_grads  = kind == 2;
        again.is_bound      = kind == 3;
        run_and_listen(2, &again);
        CHECK_INT(1, again.is_resumed);
        plain = kind == 0 ? again : plain;
        CHECK_INT(plain.fingerprint, again.fingerprint);
        CHECK(again.differs[0] == '\0' && warned[0] == '\0');
    }
}

static void what_a_step_means_is_told(void)
{
    start kept = BASE;
    start again;

    case_begin();
    kept.accumulation = 4;
    test_world(2, run, &kept);
    again              = resumed_from(&kept);
    again.accumulation = 2;
    again.micro_batch  = 3;
    run_and_listen(2, &again);
    CHECK_INT(1, again.is_resumed);
    CHECK(strstr(again.differs, "gradient_accumulation_steps was 4 and is 2") != NULL);
    CHECK(strstr(again.differs, "train_micro_batch_size_per_gpu was 1 and is 3") != NULL);
    CHECK(strstr(warned, again.differs) != NULL);
    warned[0] = '\0';
    run_and_listen(2, &again); /* the state is this run's by now */
    CHECK_INT(2 * STEPS, again.step);
    CHECK_INT(2 * STEPS * (4 * 1 + 2 * 3), again.samples); /* of two ranks in both runs */
    CHECK(again.differs[0] == '\0' && warned[0] == '\0');
}

static void the_trainers_words_are_told(void)
{
    start kept = BASE;
    start again;
    char  longest[256];

    case_begin();
    memset(longest, 'x', sizeof(longest));
    longest[255]     = '\0';
    kept.description = "seed 1, data a.txt";
    test_world(2, run, &kept);
    again = resumed_from(&kept);
    run_and_listen(2, &again);
    CHECK(again.differs[0] == '\0' && warned[0] == '\0');
    again.description = longest;
    run_and_listen(2, &again);
    CHECK(strstr(again.differs, "\"seed 1, data a.txt\"") != NULL);
    CHECK(strstr(again.differs, longest) != NULL);
    CHECK(strstr(warned, "is resumed with other settings") != NULL);
    again.description = NULL;
    run_and_listen(2, &again);
    CHECK(strstr(again.differs, "and is \"\"") != NULL);
}

static void a_description_has_a_length(void)
{
    sherd_world *world;
    rig          r;
    rig_options  options = {.stage = 2, .dtype = SHERD_BF16, .zero = ""};
    char         long_text[300];

    memset(long_text, 'x', sizeof(long_text));
    long_text[256] = '\0';
    CHECK_OK(sherd_world_self(&world));
    rig_open(&r, world, &options);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_describe_run(r.engine, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_describe_run(r.engine, long_text));
    CHECK_ERROR_SAYS("at most 255 are kept");
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_describe_run(NULL, "seed"));
    CHECK_OK(sherd_engine_describe_run(r.engine, long_text + 1));
    rig_close(&r);
    sherd_world_destroy(world);
}

/* As a version before this one wrote it. */
static sherd_status age(void *ctx, const sherd_state_file *file)
{
    sherdi_state_header header;
    int                 fd = open(file->path, O_RDWR | O_CLOEXEC);

    (void)ctx;
    CHECK(fd >= 0 && pread(fd, &header, sizeof(header), 0) == sizeof(header));
    header.version  = 1;
    header.checksum = sherdi_checksum(&header, offsetof(sherdi_state_header, checksum));
    CHECK(pwrite(fd, &header, sizeof(header), 0) == sizeof(header) && fsync(fd) == 0);
    (void)close(fd);
    return SHERD_OK;
}

static void an_older_format_is_named(void)
{
    start kept = BASE;
    start again;

    case_begin();
    test_world(2, run, &kept);
    CHECK_OK(sherd_state_files_find(test_scratch(), age, NULL));
    again = resumed_from(&kept);
    run_and_listen(2, &again);
    CHECK_INT(0, again.is_resumed);
    CHECK(strstr(warned, "have format 1, and this version of sherd reads 3") != NULL);
}

static const test_case CASES[] = {
    CASE(rates_may_change),           CASE(uses_and_memory_may_change),
    CASE(what_a_step_means_is_told),  CASE(the_trainers_words_are_told),
    CASE(a_description_has_a_length), CASE(an_older_format_is_named),
};

RUN_MAIN(CASES)
