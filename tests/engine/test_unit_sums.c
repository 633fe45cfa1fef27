/* The fingerprints of units that sherd.fingerprints writes: they add up to those that the engine
 * gives otherwise, they are the same in every layout, and a bit that changes shows in its unit and
 * on its rank. */
#include "engine/run/engine_impl.h"
#include "kernels/formulas.h"
#include "tests/engine/rig.h"
#include "tests/engine/unit_lines.h"
#include "tests/engine/ways.h"
#include "tests/lib/check.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define UNITS          4
#define STEPS          3
#define COUNT_OF(list) (sizeof(list) / sizeof((list)[0]))

static const char *path_of(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", test_scratch(), name);
    return path;
}

/* Skips a case where the engine computes on a device, which has no fingerprints of units. */
static int is_on_device(void)
{
    const char *backend = getenv("SHERD_BACKEND");

    return backend != NULL && strcmp(backend, "cpu") != 0;
}

static void need_cpu(void)
{
    if (is_on_device()) {
        test_skip("fingerprints of units are made on the CPU");
    }
}

/* The key, with all state of all units in each step. */
static const char *key_of(const char *path, int interval, const char *more)
{
    static _Thread_local char top[512];

    (void)snprintf(top, sizeof(top),
                   ", \"sherd\": {\"fingerprints\": {\"file\": \"%s\", \"state_interval\": %d}%s}",
                   path, interval, more);
    return top;
}

/* A training whose layout the cases change. */
typedef struct training {
    const char *name;
    int         ranks, stage, accumulation;
    sherd_dtype dtype;
    const char *zero, *top, *sherd, *optimizer; /* %s in `zero` is the scratch folder */
    int         is_queued;
    double      clip;
    const char *path; /* of the file */
    int         interval, has_parts;
} training;

static void train_open(rig *r, sherd_world *world, const training *t)
{
    char        zero[512] = "", top[1024];
    rig_options options   = {.stage        = t->stage,
                             .accumulation = t->accumulation == 0 ? 1 : t->accumulation,
                             .dtype        = t->dtype,
                             .optimizer    = t->optimizer,
                             .has_matrices = 1,
                             .zero         = zero,
                             .top          = top,
                             .clip         = t->clip};

    if (t->zero != NULL) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        (void)snprintf(zero, sizeof(zero), t->zero, test_scratch());
#pragma GCC diagnostic pop
    }
    (void)snprintf(top, sizeof(top), "%s%s",
                   key_of(t->path, t->interval, t->sherd == NULL ? "" : t->sherd),
                   t->top == NULL ? "" : t->top);
    ways_declare_layers(r, world, &options);
    rig_seal(r);
}

static void step_make(rig *r, const training *t)
{
    int micro_batches = t->accumulation == 0 ? 1 : t->accumulation;

    for (int k = 0; k < micro_batches; k++) {
        rig_micro_batch(r);
        if (t->is_queued) {
            CHECK_OK(sherd_step_queue(r->engine));
            r->micro++;
        } else {
            (void)rig_step(r);
        }
    }
    if (t->is_queued) {
        CHECK_OK(sherd_step_wait(r->engine, NULL));
    }
}

/* ------------------------------------------------------------ they add up -- */

/* Returns the fingerprint of a part of a parameter, element by element. */
static uint64_t part_fingerprint(rig *r, int param, const char *part)
{
    static _Thread_local float values[1024];
    size_t                     elems = r->params[param].elems;
    uint64_t                   sum   = 0;

    CHECK(elems <= COUNT_OF(values));
    CHECK_OK(sherd_param_read(r->engine, r->params[param].handle, part, 0, elems, values));
    for (size_t i = 0; i < elems; i++) {
        sum += sherdi_mix_element(r->engine->model.params[param].first_index + i, values[i]);
    }
    return sum;
}

/* Compares the line of the last step with what calls of the engine give. Every rank makes the
 * calls. */
static void line_check(rig *r, const training *t, long long step, uint64_t before[UNITS])
{
    const char *line = NULL;
    uint64_t    all = 0, fingerprint = rig_fingerprint(r);

    if (sherd_world_rank(r->world) == 0) {
        line = unit_lines_step(unit_lines_read(t->path), step);
    }
    for (int u = 0; u < UNITS; u++) {
        uint64_t weights = 0, part = 0, word;

        for (int p = 0; p < r->num_params; p++) {
            uint64_t share;

            CHECK_OK(sherd_param_fingerprint(r->engine, r->params[p].handle, &share));
            all += r->params[p].unit == u ? share : 0;
            if (r->params[p].unit == u && !r->params[p].is_frozen) {
                weights += share;
                part += t->has_parts ? part_fingerprint(r, p, "exp_avg_sq") : 0;
            }
        }
        if (line != NULL) {
            CHECK_INT(weights, unit_lines_word(line, "weights", u, 0));
            if (unit_lines_word(line, "gradients", u, 0) == 0) {
                test_fail(__FILE__, __LINE__, "%s, stage %d, step %lld: unit %d has no gradient",
                          t->name, t->stage, step, u);
            }
            CHECK(unit_lines_state(line, u, 0, 0, &word));
            CHECK(step == 1 || word == before[u]);
            if (t->has_parts) { /* the second of two parts */
                CHECK(unit_lines_state(line, u, 2, 0, &word));
                CHECK_INT(part, word);
            }
        }
        before[u] = weights;
    }
    CHECK_INT(all, fingerprint);
}

static void sums_check(sherd_world *world, void *ctx)
{
    const training *t             = ctx;
    uint64_t        before[UNITS] = {0};
    rig             r;

    train_open(&r, world, t);
    for (int step = 1; step <= STEPS; step++) {
        step_make(&r, t);
        line_check(&r, t, step, before);
    }
    rig_close(&r);
}

#define ON_CPU  ", \"offload_optimizer\": {\"device\": \"cpu\"}%.0s"
#define ON_NVME ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"

static const training KINDS[] = {
    {.name = "fp32", .dtype = SHERD_F32, .has_parts = 1},
    {.name = "bf16", .dtype = SHERD_BF16, .clip = 1, .has_parts = 1},
    {.name = "blocks", .dtype = SHERD_BF16, .has_parts = 1, .zero = ", \"sub_group_size\": 64%.0s"},
    {.name = "accumulated", .dtype = SHERD_BF16, .accumulation = 2, .has_parts = 1},
    {.name         = "deterministic",
     .dtype        = SHERD_F32,
     .top          = ", \"deterministic\": true",
     .accumulation = 2,
     .has_parts    = 1},
    {.name = "host", .dtype = SHERD_BF16, .zero = ON_CPU, .has_parts = 1},
    {.name = "nvme", .dtype = SHERD_BF16, .zero = ON_NVME, .has_parts = 1},
    {.name = "queued", .dtype = SHERD_BF16, .is_queued = 1, .has_parts = 1},
    {.name = "queued host", .dtype = SHERD_BF16, .zero = ON_CPU, .is_queued = 1, .has_parts = 1},
    {.name = "queued nvme", .dtype = SHERD_BF16, .zero = ON_NVME, .is_queued = 1, .has_parts = 1},
    {.name      = "encoded",
     .dtype     = SHERD_BF16,
     .has_parts = 1,
     .sherd     = ", \"master_encoding\": \"bf16_beside\", \"moment_encoding\": \"fp8\""},
    {.name      = "rounded",
     .dtype     = SHERD_BF16,
     .has_parts = 1,
     .sherd     = ", \"master_encoding\": \"bf16\", \"moment_encoding\": \"bf16\""},
    {.name      = "copies",
     .dtype     = SHERD_BF16,
     .ranks     = 4,
     .has_parts = 1,
     .sherd     = ", \"shard_size\": 2"},
    {.name = "LAMB", .dtype = SHERD_BF16, .optimizer = "Lamb", .has_parts = 1},
    {.name = "Muon", .dtype = SHERD_BF16, .optimizer = "Muon"},
    {.name = "SGD", .dtype = SHERD_F32, .optimizer = "SGD"},
};

static void unit_sums_add_up_to_those_of_calls(void)
{
    need_cpu();
    for (size_t k = 0; k < COUNT_OF(KINDS); k++) {
        int least = KINDS[k].zero != NULL || KINDS[k].ranks > 0;

        for (int stage = least; stage <= 3; stage++) {
            training t = KINDS[k];

            t.stage    = stage;
            t.path     = path_of("added");
            t.interval = 1;
            (void)unlink(t.path);
            test_world(t.ranks > 0 ? t.ranks : 2 + (int)(k % 2), sums_check, &t);
        }
    }
}

/* ------------------------------------------------- they are of all layouts -- */

static void train(sherd_world *world, void *ctx)
{
    const training *t = ctx;
    rig             r;

    train_open(&r, world, t);
    for (int step = 1; step <= STEPS; step++) {
        step_make(&r, t);
    }
    rig_close(&r);
}

/* The words of a step of all ranks: of each unit its gradient, its weights, and what rested. */
typedef struct told {
    uint64_t words[STEPS][UNITS][5];
} told;

static void told_read(const char *path, told *out)
{
    const char *text = unit_lines_read(path);

    for (int step = 1; step <= STEPS; step++) {
        const char *line = unit_lines_step(text, step);

        for (int u = 0; u < UNITS; u++) {
            uint64_t *words = out->words[step - 1][u];

            words[0] = unit_lines_word(line, "gradients", u, 0);
            words[1] = unit_lines_word(line, "weights", u, 0);
            for (int item = 0; item < 3; item++) {
                CHECK(unit_lines_state(line, u, item, 0, &words[2 + item]));
            }
        }
    }
}

static void training_tell(training t, int ranks, int stage, told *out)
{
    t.stage    = stage;
    t.path     = path_of("layouts");
    t.interval = 1;
    (void)unlink(t.path);
    test_world(ranks, train, &t);
    told_read(t.path, out);
}

static void same_check(const training *t, int ranks, int stage, const told *want, const told *got)
{
    for (int i = 0; i < STEPS * UNITS * 5; i++) {
        const uint64_t *a = &want->words[0][0][0], *b = &got->words[0][0][0];

        if (a[i] != b[i]) {
            test_fail(__FILE__, __LINE__,
                      "%s, %d ranks, stage %d: step %d, unit %d, word %d is %llx, not %llx",
                      t->name, ranks, stage, i / (UNITS * 5) + 1, i / 5 % UNITS, i % 5,
                      (unsigned long long)b[i], (unsigned long long)a[i]);
        }
    }
}

static void unit_sums_are_the_same_at_every_stage_and_place(void)
{
    static const training LAYOUTS[] = {
        {.name = "memory"},
        {.name = "blocks", .zero = ", \"sub_group_size\": 64%.0s"},
        {.name = "host", .zero = ON_CPU},
        {.name = "nvme", .zero = ON_NVME},
        {.name = "queued nvme", .zero = ON_NVME, .is_queued = 1},
    };

    need_cpu();
    for (int ranks = 1; ranks <= 3; ranks++) {
        told want, got;

        training_tell((training){.dtype = SHERD_BF16}, ranks, 0, &want);
        for (size_t k = 0; k < COUNT_OF(LAYOUTS); k++) {
            for (int stage = 1; stage <= 3; stage++) {
                training t = LAYOUTS[k];

                t.dtype = SHERD_BF16;
                training_tell(t, ranks, stage, &got);
                same_check(&t, ranks, stage, &want, &got);
            }
        }
    }
}

static void unit_sums_are_the_same_on_all_ranks_in_the_deterministic_mode(void)
{
    training t = {.name = "deterministic", .dtype = SHERD_BF16, .top = ", \"deterministic\": true"};
    told     want, got;

    need_cpu();
    t.accumulation = 6;
    training_tell(t, 1, 0, &want);
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int stage = 0; stage <= 3; stage++) {
            t.accumulation = 6 / ranks;
            training_tell(t, ranks, stage, &got);
            same_check(&t, ranks, stage, &want, &got);
        }
    }
}

/* --------------------------------------------------------- what they find -- */

/* Changes one bit of the gradient of a parameter on rank 1, in step 2. */
static void train_flipped(sherd_world *world, void *ctx)
{
    const training *t = ctx;
    rig             r;

    train_open(&r, world, t);
    for (int step = 1; step <= STEPS; step++) {
        for (int u = 0; u < UNITS; u++) {
            rig_forward(&r, u, SHERD_FORWARD);
        }
        for (int u = UNITS - 1; u >= 0; u--) {
            rig_acquire(&r, u, SHERD_BACKWARD);
            rig_touch(&r, 2 * u, 1);
            rig_touch(&r, 2 * u + 1, 1);
            if (u == 2 && step == 2 && sherd_world_rank(world) == 1) {
                uint32_t *grad = sherd_param_grad(r.engine, r.params[4].handle);

                grad[3] ^= 1u << 22; /* the first bit of the fraction */
            }
            rig_release(&r, u, SHERD_BACKWARD);
        }
        (void)rig_step(&r);
    }
    rig_close(&r);
}

static void unit_sums_show_a_bit_of_a_gradient_in_its_unit_and_on_its_rank(void)
{
    need_cpu();
    for (int stage = 0; stage <= 3; stage++) {
        training    t = {.dtype = SHERD_F32, .interval = 1, .stage = stage};
        told        want, got;
        const char *line;

        training_tell(t, 2, stage, &want);
        t.path = path_of("flipped");
        (void)unlink(t.path);
        test_world(2, train_flipped, &t);
        told_read(t.path, &got);
        CHECK_BYTES_EQUAL(&want.words[0], &got.words[0], sizeof(want.words[0]));
        for (int u = 0; u < UNITS; u++) {
            CHECK((u == 2) == (want.words[1][u][0] != got.words[1][u][0]));
        }
        line = unit_lines_step(unit_lines_read(t.path), 2);
        if (stage > 0) { /* element 3 is rank 0's; rank 1 has the rest */
            CHECK(unit_lines_word(line, "gradients", 2, 1) != 0);
            CHECK(unit_lines_word(line, "gradients", 2, 2) != 0);
        } else {
            CHECK_INT(unit_lines_word(line, "gradients", 2, 1),
                      unit_lines_word(line, "gradients", 2, 2));
        }
    }
}

/* Writes one element of a part of the state between two steps. */
static void train_written(sherd_world *world, void *ctx)
{
    const training *t = ctx;
    float           value;
    rig             r;

    train_open(&r, world, t);
    for (int step = 1; step <= STEPS; step++) {
        step_make(&r, t);
        if (step == 1) {
            CHECK_OK(sherd_param_read(r.engine, r.params[2].handle, t->name, 5, 1, &value));
            value *= 1.5f;
            CHECK_OK(sherd_param_write(r.engine, r.params[2].handle, t->name, 5, 1, &value));
        }
    }
    rig_close(&r);
}

static void unit_sums_show_a_change_of_what_rests_in_the_step_after_it(void)
{
    static const char *const PARTS[] = {"master", "exp_avg", "exp_avg_sq"};

    need_cpu();
    for (size_t part = 0; part < COUNT_OF(PARTS); part++) {
        training t = {.name = PARTS[part], .dtype = SHERD_BF16, .interval = 1, .stage = 2};
        told     want, got;

        training_tell(t, 2, 2, &want);
        t.path = path_of("written");
        (void)unlink(t.path);
        test_world(2, train_written, &t);
        told_read(t.path, &got);
        CHECK_BYTES_EQUAL(&want.words[0], &got.words[0], sizeof(want.words[0]));
        for (int u = 0; u < UNITS; u++) {
            int item = part == 0 ? 2 : 2 + (int)part;

            CHECK((u == 1) == (want.words[1][u][item] != got.words[1][u][item]));
            CHECK((u == 1) == (want.words[1][u][1] != got.words[1][u][1]));
        }
    }
}

/* ------------------------------------------------------------------ the file -- */

static void unit_sums_count_what_rests_of_each_unit_once_in_an_interval(void)
{
    training t = {.dtype = SHERD_F32, .interval = 2, .stage = 1, .path = path_of("interval")};

    need_cpu();
    (void)unlink(t.path);
    test_world(2, train, &t);
    for (int step = 1; step <= STEPS; step++) {
        const char *line = unit_lines_step(unit_lines_read(t.path), step);
        uint64_t    word;

        for (int u = 0; u < UNITS; u++) {
            CHECK_INT(u % 2 == step % 2, unit_lines_state(line, u, 0, 0, &word));
        }
    }
    t.interval = 0;
    (void)unlink(t.path);
    test_world(2, train, &t);
    CHECK(strstr(unit_lines_read(t.path), "\"state\": []") != NULL);
}

static int layouts_of(const char *text)
{
    int count = 0;

    for (; (text = strstr(text, "{\"sherd_fingerprints\": 1, ")) != NULL; text++) {
        count++;
    }
    return count;
}

static void unit_sums_are_appended_behind_the_last_whole_line(void)
{
    training t = {.dtype = SHERD_F32, .stage = 3, .path = path_of("new/folder/appended")};
    FILE    *file;

    need_cpu();
    test_world(2, train, &t);
    CHECK_INT(1, layouts_of(unit_lines_read(t.path)));
    file = fopen(t.path, "ab");
    CHECK(file != NULL && fputs("{\"step\": 4, \"skip", file) >= 0 && fclose(file) == 0);
    test_world(3, train, &t);
    CHECK_INT(2, layouts_of(unit_lines_read(t.path)));
    CHECK(strstr(unit_lines_read(t.path), "\"skip{") == NULL);
    CHECK(strstr(unit_lines_read(t.path), "\"ranks\": 3") != NULL);
}

/* Step 2 has an Inf on rank 1. */
static void train_skipped(sherd_world *world, void *ctx)
{
    const training *t = ctx;
    rig             r;

    train_open(&r, world, t);
    for (int step = 1; step <= STEPS; step++) {
        for (int u = 0; u < UNITS; u++) {
            rig_forward(&r, u, SHERD_FORWARD);
        }
        for (int u = UNITS - 1; u >= 0; u--) {
            rig_acquire(&r, u, SHERD_BACKWARD);
            rig_touch(&r, 2 * u, 1);
            rig_touch(&r, 2 * u + 1, 1);
            if (u == 3 && step == 2 && sherd_world_rank(world) == 1) {
                rig_poke(&r, 6, 11, INFINITY);
            }
            rig_release(&r, u, SHERD_BACKWARD);
        }
        CHECK_INT(step != 2, rig_step(&r).was_updated);
    }
    rig_close(&r);
}

static void unit_sums_have_a_line_of_a_step_that_was_skipped(void)
{
    training    t = {.dtype = SHERD_F32, .stage = 2, .path = path_of("skipped"), .interval = 1};
    const char *line;

    need_cpu();
    (void)unlink(t.path);
    test_world(2, train_skipped, &t);
    line = unit_lines_last(unit_lines_read(t.path),
                           "{\"step\": 1, \"skipped\": 1, \"was_updated\": false, ");
    CHECK(line != NULL && strstr(line, "\"gradients\": [") < strchr(line, '\n'));
    CHECK(unit_lines_last(unit_lines_read(t.path),
                          "{\"step\": 2, \"skipped\": 1, \"was_updated\": true, ") != NULL);
}

static void seal_refused(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 1, .top = ctx};
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, 100);
    CHECK_STATUS(SHERD_E_IO, sherd_engine_seal(r.engine));
    rig_close(&r);
}

static void seal_of_two(sherd_world *world, void *ctx)
{
    const training *t       = ctx;
    rig_options     options = {.stage = 1, .top = key_of(t->path, 1, "")};
    rig             first, second;

    train_open(&first, world, t);
    rig_open(&second, world, &options);
    rig_three(&second, 100);
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(second.engine));
    if (sherd_world_rank(world) == 0) {
        CHECK_ERROR_SAYS("another engine writes");
    }
    rig_close(&second);
    rig_close(&first);
}

static void unit_sums_refuse_a_file_of_another_engine(void)
{
    training t = {.dtype = SHERD_F32, .stage = 1, .path = path_of("two")};

    need_cpu();
    test_world(2, seal_of_two, &t);
}

static void unit_sums_refuse_a_file_that_is_none(void)
{
    char top[512];

    need_cpu();
    (void)snprintf(top, sizeof(top), "%s", key_of(test_scratch(), 1, ""));
    test_world(2, seal_refused, top);
}

/* Limits the size of files, which has the effect of a full drive for this process alone. */
static void files_limit(rlim_t bytes)
{
    struct rlimit limit;

    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static int warnings;

static void hear(void *ctx, sherd_log_level level, const char *line)
{
    (void)ctx;
    warnings += level == SHERD_LOG_WARN && strstr(line, "sherd.fingerprints: cannot write") != NULL;
}

static void train_on_a_full_drive(sherd_world *world, void *ctx)
{
    const training *t = ctx;
    rig             r;

    train_open(&r, world, t);
    step_make(&r, t);
    files_limit(strlen(unit_lines_read(t->path)) + 10);
    step_make(&r, t);
    step_make(&r, t);
    files_limit(RLIM_INFINITY);
    step_make(&r, t);
    rig_close(&r);
}

static void unit_sums_that_cannot_be_written_are_told_once(void)
{
    training t = {.dtype = SHERD_F32, .path = path_of("full")};

    need_cpu();
    (void)signal(SIGXFSZ, SIG_IGN);
    sherd_log_set(hear, NULL, SHERD_LOG_WARN);
    test_world(1, train_on_a_full_drive, &t);
    sherd_log_set(NULL, NULL, SHERD_LOG_WARN);
    CHECK_INT(1, warnings);
    (void)unit_lines_step(unit_lines_read(t.path), 1);
    (void)unit_lines_step(unit_lines_read(t.path), 4);
    CHECK(strstr(unit_lines_read(t.path), "{\"step\": 2,") == NULL);
}

static void seal_not_supported(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 1, .top = ctx};
    rig         r;

    rig_open(&r, world, &options);
    rig_three(&r, 100);
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("sherd.fingerprints: the fingerprints of units are made on the CPU only");
    rig_close(&r);
}

static void unit_sums_are_refused_on_a_device(void)
{
    char top[512];

    if (!is_on_device()) {
        test_skip("this engine computes on the CPU");
    }
    (void)snprintf(top, sizeof(top), "%s", key_of(path_of("device"), 1, ""));
    test_world(1, seal_not_supported, top);
}

static const test_case CASES[] = {
    CASE(unit_sums_add_up_to_those_of_calls),
    CASE(unit_sums_are_the_same_at_every_stage_and_place),
    CASE(unit_sums_are_the_same_on_all_ranks_in_the_deterministic_mode),
    CASE(unit_sums_show_a_bit_of_a_gradient_in_its_unit_and_on_its_rank),
    CASE(unit_sums_show_a_change_of_what_rests_in_the_step_after_it),
    CASE(unit_sums_count_what_rests_of_each_unit_once_in_an_interval),
    CASE(unit_sums_are_appended_behind_the_last_whole_line),
    CASE(unit_sums_have_a_line_of_a_step_that_was_skipped),
    CASE(unit_sums_refuse_a_file_of_another_engine),
    CASE(unit_sums_refuse_a_file_that_is_none),
    CASE(unit_sums_that_cannot_be_written_are_told_once),
    CASE(unit_sums_are_refused_on_a_device),
};

RUN_MAIN(CASES)
