/* Groups of parameters with optimizers of their own in one engine. The engine gives the bits of the
 * same training on whole arrays, at every stage and place. Also tested are what a checkpoint says
 * of groups, which checkpoints are refused, and which state the first sweep of LAMB reads if there
 * are other optimizers too. */
#include "base/checked.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/manifest.h"
#include "engine/run/engine_impl.h"
#include "engine/report.h"
#include "offload/checksum.h"
#include "sherd_tools.h"
#include "tests/engine/elements.h"
#include "tests/engine/places.h"
#include "tests/engine/plain.h"
#include "tests/engine/rig.h"
#include "tests/engine/saved.h"
#include "tests/engine/sgd.h"
#include "tests/lib/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS  3
#define PARAMS 7

enum { BY_ADAMW = 0, BY_SGD, BY_LAMB, GROUPS };

/* The last parameter is frozen, in the group of LAMB. */
static const struct {
    int    unit, group;
    size_t elems;
} MODEL[PARAMS] = {{0, BY_ADAMW, 3001}, {0, BY_SGD, 64},    {0, BY_LAMB, 700}, {1, BY_SGD, 5000},
                   {1, BY_ADAMW, 200},  {2, BY_LAMB, 4000}, {2, BY_LAMB, 130}};

static int is_frozen(int param)
{
    return param == PARAMS - 1;
}

static const place PLACES[] = {
    {"", 0, 0},
    {PLACE_OF_STATE("1024", ", \"device\": \"cpu\""), 1, 0},
    {PLACE_OF_STATE("1024", ", \"device\": \"nvme\", \"buffer_size\": 4096, \"buffer_count\": 2"),
     1, 1},
    {PLACE_OF_STATE("1024",
                    ", \"device\": \"nvme\", \"gradients\": \"nvme\", \"buffer_size\": 4096"),
     2, 1},
    {PLACE_OF_STATE("1024", ", \"device\": \"nvme\", \"ratio\": 0.4"), 1, 1},
};
#define NUM_PLACES (sizeof(PLACES) / sizeof(PLACES[0]))

/* --------------------------------------------------------------- the engine -- */

static sherd_group group_add(rig *r, const char *name, const char *optimizer, double lr,
                             double beta1)
{
    sherd_group_params params;
    sherd_group        group;

    sherd_group_params_init(&params);
    params.name      = name;
    params.optimizer = optimizer;
    params.lr        = lr;
    params.beta1     = beta1;
    CHECK_OK(sherd_group_add(r->engine, &params, &group));
    return group;
}

/* Declares the model; `lamb` is the optimizer that the group of LAMB names. */
static void model_declare_as(rig *r, const char *lamb)
{
    sherd_group groups[GROUPS] = {SHERD_GROUP_DEFAULT};
    char        name[8];

    groups[BY_SGD]  = group_add(r, "plain", "heavyball", 0.02, 0.8);
    groups[BY_LAMB] = group_add(r, "tensors", lamb, NAN, NAN);
    for (int u = 0; u < 3; u++) {
        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)rig_unit(r, name);
    }
    for (int p = 0; p < PARAMS; p++) {
        sherd_param_params params;

        sherd_param_params_init(&params);
        params.group  = groups[MODEL[p].group];
        params.frozen = is_frozen(p);
        (void)snprintf(name, sizeof(name), "p%d", p);
        (void)rig_param_as(r, MODEL[p].unit, name, MODEL[p].elems, &params);
    }
}

static void model_declare(rig *r)
{
    model_declare_as(r, "LAMB");
}

/* ------------------------------------------------------------ without one -- */

/* Returns the gradient of a rank's micro-batch. */
static float gradient(int step, int rank, int param, size_t i)
{
    uint64_t state = (((uint64_t)step * 16 + (uint64_t)rank) * PARAMS + (uint64_t)param) << 32 | i;

    return test_random_float(&state);
}

static void plain_step(plain_param *param, int group, int t)
{
    const plain_rule rule = {.kind      = group == BY_LAMB ? PLAIN_LAMB : PLAIN_ADAMW,
                             .beta1     = 0.9,
                             .beta2     = 0.95,
                             .eps       = 1e-8,
                             .max_coeff = 10};
    const sgd_coeffs sgd  = {.grad_scale = 1, .momentum = 0.8f, .decay = 0.1f, .neg_lr = -0.02f};

    if (group != BY_SGD) {
        plain_update(param, &rule, 1, t);
        return;
    }
    for (size_t i = 0; i < param->elems; i++) {
        sgd_element(&sgd, param->grad[i], &param->master[i], &param->m[i]);
    }
}

static uint64_t plain_train(int world_size, sherd_dtype dtype)
{
    plain_param params[PARAMS];
    uint64_t    fingerprint;

    for (int p = 0; p < PARAMS; p++) {
        plain_param_init(&params[p], MODEL[p].elems);
        params[p].dtype     = dtype;
        params[p].is_frozen = is_frozen(p);
        params[p].lr        = 0.01;
        params[p].decay     = 0.1;
        CHECK_OK(rig_fill((void *)(uintptr_t)p, 0, MODEL[p].elems, params[p].master));
        for (size_t i = 0; i < MODEL[p].elems; i++) {
            params[p].weight[i] = plain_round(params[p].master[i], dtype);
        }
    }
    for (int step = 0; step < STEPS; step++) {
        for (int p = 0; p < PARAMS - 1; p++) {
            for (size_t i = 0; i < MODEL[p].elems; i++) {
                float g[8];

                for (int r = 0; r < world_size; r++) {
                    g[r] = plain_round(gradient(step, r, p, i), dtype);
                }
                params[p].grad[i] = plain_mean(g, world_size, dtype);
            }
            plain_step(&params[p], MODEL[p].group, step + 1);
        }
    }
    fingerprint = plain_fingerprint(params, PARAMS);
    for (int p = 0; p < PARAMS; p++) {
        plain_param_fini(&params[p]);
    }
    return fingerprint;
}

/* ------------------------------------------------------------------ cases -- */

static void backward(rig *r, int step, int unit)
{
    rig_acquire(r, unit, SHERD_BACKWARD);
    for (int p = 0; p < PARAMS - 1; p++) {
        void *grad =
            MODEL[p].unit == unit ? sherd_param_grad(r->engine, r->params[p].handle) : NULL;

        for (size_t i = 0; grad != NULL && i < MODEL[p].elems; i++) {
            store(grad, i, r->dtype, gradient(step, sherd_world_rank(r->world), p, i));
        }
    }
    rig_release(r, unit, SHERD_BACKWARD);
}

static sherd_step_report train(rig *r)
{
    sherd_step_report report = {0};

    for (int step = 0; step < STEPS; step++) {
        for (int u = 0; u < 3; u++) {
            rig_forward(r, u, SHERD_FORWARD);
        }
        for (int u = 2; u >= 0; u--) {
            backward(r, step, u);
        }
        report = rig_step(r);
    }
    return report;
}

/* Checks that a step moved what was planned, and that the first sweep reads those extents that have
 * a block of LAMB and no others. */
static void bytes_check(const rig *r, const sherd_step_report *report)
{
    const sherdi_plan *plan     = r->engine->plan;
    uint64_t           measured = 0, all = 0;

    for (size_t e = 0; e < plan->rings[SHERDI_RING_STATE].num_extents; e++) {
        size_t len     = plan->rings[SHERDI_RING_STATE].extents[e].len_bytes;
        int    is_lamb = 0;

        for (size_t b = 0; b < plan->layout.num_blocks; b++) {
            const sherdi_block *block = &plan->layout.blocks[b];

            is_lamb |= block->space == SHERDI_SPACE_STORAGE && block->extent == e &&
                       sherdi_segment_is_measured(&plan->layout.segments[block->segment]);
        }
        all += len;
        measured += is_lamb ? len : 0;
    }
    if (all > 0 && plan->rings[SHERDI_RING_GRADS].num_extents == 0) {
        CHECK_INT(all + measured, sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_READ]);
        CHECK_INT(sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_READ], report->nvme_read_bytes);
        CHECK_INT(sherdi_plan_moves_of(plan)->step[SHERDI_MOVES_WRITTEN],
                  report->nvme_written_bytes);
        CHECK(measured < all);
    }
}

/* A layout and the fingerprint that its training must give. */
typedef struct wanted {
    rig_options options;
    uint64_t    fingerprint;
} wanted;

static void rank_train(sherd_world *world, void *ctx)
{
    const wanted       *what = ctx;
    sherd_memory_report memory;
    sherd_step_report   report;
    rig                 r;

    rig_open(&r, world, &what->options);
    model_declare(&r);
    CHECK_OK(sherd_engine_check_plans(r.engine));
    rig_seal(&r);
    report = train(&r);
    CHECK_INT(what->fingerprint, rig_fingerprint(&r));
    bytes_check(&r, &report);
    sherd_memory_report_init(&memory);
    CHECK_OK(sherd_engine_memory(r.engine, &memory));
    CHECK_INT(memory.total_planned, memory.total_held);
    rig_close(&r);
}

static void groups_equal_unsharded(void)
{
    static const int RANKS[] = {1, 2, 3, 7};
    char             keys[PLACE_KEYS_BYTES];

    for (int n = 0; n < 4; n++) {
        const uint64_t fingerprints[] = {[SHERD_F32]  = plain_train(RANKS[n], SHERD_F32),
                                         [SHERD_BF16] = plain_train(RANKS[n], SHERD_BF16)};

        for (size_t i = 0; i < NUM_PLACES; i++) {
            wanted what = {.options = {.zero = keys}};

            place_keys(&PLACES[i], keys);
            what.options.stage = place_first_stage(&PLACES[i]);
            for (; what.options.stage <= 3; what.options.stage++) {
                what.options.dtype = (n + what.options.stage) % 2 == 0 ? SHERD_BF16 : SHERD_F32;
                what.fingerprint   = fingerprints[what.options.dtype];
                test_world(RANKS[n], rank_train, &what);
            }
        }
    }
}

/* ---------------------------------------------------------- one training -- */

typedef struct layout {
    rig_options options;
    const char *dir;
    uint64_t    fingerprint; /* result */
} layout;

#define WINDOWS 2

/* Opens an engine whose window has as many micro-batches as a world of six ranks with one each. */
static void deterministic_open(rig *r, sherd_world *world, layout *what)
{
    what->options.accumulation = 6 / sherd_world_size(world);
    what->options.top          = ", \"deterministic\": true";
    rig_open(r, world, &what->options);
    model_declare(r);
}

static void windows_train(rig *r, layout *what, int count)
{
    (void)rig_train(r, count * what->options.accumulation);
}

static void rank_train_fixed(sherd_world *world, void *ctx)
{
    layout own = *(layout *)ctx; /* a copy, because the ranks are threads and share ctx */
    rig    r;

    deterministic_open(&r, world, &own);
    rig_seal(&r);
    windows_train(&r, &own, WINDOWS);
    if (own.dir != NULL) {
        CHECK_OK(sherd_checkpoint_save(r.engine, own.dir, "t", NULL));
    }
    windows_train(&r, &own, WINDOWS);
    if (sherd_world_rank(world) == 0) {
        ((layout *)ctx)->fingerprint = rig_fingerprint(&r);
    } else {
        (void)rig_fingerprint(&r);
    }
    rig_close(&r);
}

static void rank_load_fixed(sherd_world *world, void *ctx)
{
    layout own = *(layout *)ctx;
    rig    r;

    deterministic_open(&r, world, &own);
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_OK(sherd_checkpoint_load(r.engine, own.dir, "t", NULL));
    r.micro = WINDOWS * own.options.accumulation;
    windows_train(&r, &own, WINDOWS);
    CHECK_INT(own.fingerprint, rig_fingerprint(&r));
    rig_close(&r);
}

/* All layouts are one training, and a checkpoint of one layout goes on in another. */
static void groups_deterministic_are_one_training(void)
{
    char     keys[NUM_PLACES][PLACE_KEYS_BYTES];
    char     dir[256];
    layout   first = {.options = {.stage = 3, .dtype = SHERD_BF16, .zero = keys[0]}};
    layout   other;
    uint64_t want;

    for (size_t i = 0; i < NUM_PLACES; i++) {
        place_keys(&PLACES[i], keys[i]);
    }
    test_world(2, rank_train_fixed, &first);
    want = first.fingerprint;
    for (size_t i = 0; i < NUM_PLACES && place_is_built(&PLACES[i]); i++) {
        for (int ranks = 1; ranks <= 3; ranks++) {
            int stage = place_some_stage(&PLACES[i], i, ranks);

            other = (layout){.options = {.stage = stage, .dtype = SHERD_BF16, .zero = keys[i]}};
            test_world(ranks, rank_train_fixed, &other);
            CHECK_INT(want, other.fingerprint);
        }
    }
    saved_need_checksums();
    for (size_t i = 0; i < 3; i++) {
        /* saved at one place, and loaded at the next one and in memory */
        other = (layout){.options = {.stage = 3, .dtype = SHERD_BF16, .zero = keys[i]},
                         .dir     = saved_dir(i == 0   ? "s0"
                                              : i == 1 ? "s1"
                                                       : "s2",
                                          dir)};
        test_world(3, rank_train_fixed, &other);
        CHECK_INT(want, other.fingerprint);
        CHECK_INT(WINDOWS, saved_verify(dir, "t"));
        other.options.zero  = keys[(i + 1) % 3];
        other.options.stage = 1;
        test_world(2, rank_load_fixed, &other);
        other.options.zero  = keys[0];
        other.options.stage = 0;
        test_world(1, rank_load_fixed, &other);
    }
}

/* ------------------------------------------------------------------ refusals -- */

static void rank_names(sherd_world *world, void *ctx)
{
    rig_options        options = {.stage = 2};
    sherd_group_params params;
    sherd_group        group;
    rig                r;

    (void)ctx;
    rig_open(&r, world, &options);
    sherd_group_params_init(&params);
    params.name      = "head";
    params.optimizer = "SDG";
    CHECK_STATUS(SHERD_E_NOTSUP, sherd_group_add(r.engine, &params, &group));
    CHECK_ERROR_SAYS("head: optimizer SDG is not known; known: AdamW|Adam|");
    params.optimizer = "none";
    CHECK_STATUS(SHERD_E_INVAL, sherd_group_add(r.engine, &params, &group));
    CHECK_ERROR_SAYS("group head has optimizer none, but optimizer.type is AdamW");
    rig_close(&r);
    options.optimizer = "none";
    rig_open(&r, world, &options);
    params.optimizer = "AdamW";
    CHECK_STATUS(SHERD_E_INVAL, sherd_group_add(r.engine, &params, &group));
    CHECK_ERROR_SAYS("group head has optimizer AdamW, but optimizer.type is none");
    rig_close(&r);
}

static void groups_name_known_optimizers(void)
{
    test_world(1, rank_names, NULL);
}

static void rank_disagrees(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 1};
    rig         r;

    (void)ctx;
    rig_open(&r, world, &options);
    model_declare_as(&r, sherd_world_rank(world) == 1 ? "AdamW" : "Lamb");
    CHECK_STATUS(SHERD_E_INVAL, sherd_engine_seal(r.engine));
    CHECK_ERROR_SAYS("group tensors");
    rig_close(&r);
}

static void ranks_name_the_same_optimizers(void)
{
    test_world(3, rank_disagrees, NULL);
}

/* Checks that the parts of a parameter are those of its optimizer. */
static void rank_values(sherd_world *world, void *ctx)
{
    float v[4] = {0};
    rig   r;

    rig_open(&r, world, ctx);
    model_declare(&r);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_param_read(r.engine, r.params[0].handle, "exp_avg", 1, 3, v));
    CHECK(v[0] != 0);
    CHECK_OK(sherd_param_read(r.engine, r.params[3].handle, "buffer", 2000, 3, v));
    CHECK(v[0] != 0);
    v[1] = 4;
    CHECK_OK(sherd_param_write(r.engine, r.params[3].handle, "buffer", 2000, 3, v));
    CHECK_OK(sherd_param_read(r.engine, r.params[3].handle, "buffer", 2001, 1, v));
    CHECK_INT(4, (int)v[0]);
    CHECK_STATUS(SHERD_E_INVAL, sherd_param_read(r.engine, r.params[3].handle, "exp_avg", 0, 3, v));
    CHECK_ERROR_SAYS(
        "there is no value \"exp_avg\" of parameter p3, which HeavyBall updates; there "
        "are \"master\", \"buffer\"");
    rig_close(&r);
}

static void values_are_of_the_parameters_optimizer(void)
{
    char        keys[PLACE_KEYS_BYTES];
    rig_options options = {.stage = 2, .dtype = SHERD_BF16, .zero = keys};

    for (size_t i = 0; i < 3 && place_is_built(&PLACES[i]); i++) {
        place_keys(&PLACES[i], keys);
        test_world(2, rank_values, &options);
    }
}

/* SGD with momentum and SGD without it have one name and other parts. */
static void rank_momentums(sherd_world *world, void *ctx)
{
    static const char CONFIG[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 2}, "
        "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"momentum\": 0.9}}, "
        "\"sherd\": {\"groups\": [{\"name\": \"g\", \"matching\": [\"b\"], "
        "\"params\": {\"momentum\": 0}}]}}";
    rig_options options = {.stage = 2};
    uint64_t    mark    = 0;

    for (int is_next = 0; is_next < 2; is_next++) {
        sherd_config *config;
        rig           r;

        rig_open(&r, world, &options);
        sherd_engine_destroy(r.engine);
        CHECK_OK(sherd_config_parse(CONFIG, strlen(CONFIG), &config));
        CHECK_OK(sherd_engine_create(world, config, &r.engine));
        sherd_config_destroy(config);
        (void)rig_param(&r, rig_unit(&r, "one"), "a", 300);
        (void)rig_param(&r, rig_unit(&r, "two"), "b", 200);
        if (is_next) {
            CHECK_OK(sherd_engine_seal(r.engine));
            CHECK_OK(sherd_checkpoint_load(r.engine, ctx, "m", NULL));
            CHECK_INT(mark, rig_fingerprint(&r));
        } else {
            rig_seal(&r);
            (void)rig_train(&r, 2);
            mark = rig_fingerprint(&r);
            CHECK_OK(sherd_checkpoint_save(r.engine, ctx, "m", NULL));
        }
        rig_close(&r);
    }
}

static void one_name_may_be_two_optimizers_of_a_checkpoint(void)
{
    char dir[300];

    if (sherdi_checksum_check_built() != SHERD_OK) {
        test_skip("%s", sherd_last_error());
    }
    (void)snprintf(dir, sizeof(dir), "%s/momentums", test_scratch());
    test_world(2, rank_momentums, dir);
}

static void rank_save(sherd_world *world, void *ctx)
{
    rig_options options = {.stage = 2};
    rig         r;

    rig_open(&r, world, &options);
    model_declare(&r);
    rig_seal(&r);
    (void)rig_train(&r, 1);
    CHECK_OK(sherd_checkpoint_save(r.engine, ctx, "t", NULL));
    rig_close(&r);
}

static void rank_load_changed(sherd_world *world, void *ctx)
{
    rig_options       options = {.stage = 3};
    sherd_load_params params;
    rig               r;

    rig_open(&r, world, &options);
    model_declare_as(&r, "adam");
    CHECK_OK(sherd_engine_seal(r.engine));
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_load(r.engine, ctx, "t", NULL));
    CHECK_ERROR_SAYS("parameter p2 was updated by Lamb there, and is updated by AdamW here");
    sherd_load_params_init(&params);
    params.weights_only = 1;
    CHECK_OK(sherd_checkpoint_load(r.engine, ctx, "t", &params));
    rig_close(&r);
}

static sherd_status text_add(void *ctx, const char *text, size_t len_bytes)
{
    strncat(ctx, text, len_bytes < 4000 ? len_bytes : 4000);
    return SHERD_OK;
}

/* Manifests in which the first `was` after `after` is replaced by `is`, a text of the same length;
 * the checksum is made to fit. */
static const struct {
    const char *after, *was, *is, *says;
} FORGED[] = {
    {"{", "\"sherd_checkpoint\": 1", "\"sherd_checkpoint\": 2",
     "is of format 2, and this version of sherd reads format 1"},
    {"{", "\"sherd_checkpoint\": 1", "\"sherd_checkpoint\": 0",
     "its sherd_checkpoint is missing or out of range, near line 2;"},
    {"{", "\"stage\"", "\"stags\"", "its stage is missing or out of range, near line 6;"},
    {"{", "\"extent_bytes\": 6", "\"extent_bytes\": 7", "its extent_bytes is missing or out of"},
    {"{", "\"compute_type\"", "\"compute_typo\"",
     "its compute_type is missing or none that this version knows"},
    {"\"fingerprint\"", "\"frozen_fingerprint\"", "\"frozen_fingerprins\"",
     "its frozen_fingerprint is missing or not 16 hex"},
    {"\"parts\"", "\"F32\"", "\"F16\"", "its encoding is missing or none that this version knows"},
    {"\"params\"", "\"frozen\": false", "\"frozen\": 12345",
     "its frozen is missing or neither true"},
    {"\"params\"", "\"shape\"", "\"shard\"", "its shape is missing or no list"},
    {"\"loss_scaler\"", "\"scale\"", "\"scala\"", "its scale is missing or not above zero"},
    {"\"segments\"", "\"buffer\"", "\"buffed\"",
     "its part is missing or none that this version knows, near line"},
    {"\"HeavyBall\"", "\"parts\"", "\"party\"", "a segment has an optimizer and no list of parts"},
    {"\"HeavyBall\"", "\"master\"", "\"buffer\"", "a segment has no master weights"},
    {"\"HeavyBall\"", "\"buffer\"", "\"master\"", "names a part of the state twice"},
    {"\"segments\"", "\"optimizer\": \"HeavyBall\"", "\"optimizer\": 12345678901",
     "its optimizer is missing"},
};

static void forged_optimizers_are_refused(const char *dir)
{
    sherdi_mem mem;
    char       path[512];
    char      *text;
    size_t     len;

    sherdi_mem_init(&mem);
    (void)snprintf(path, sizeof(path), "%s/t/manifest.json", dir);
    CHECK_OK(sherdi_checkpoint_get(&mem, path, 1 << 20, &text, &len));
    for (size_t i = 0; i < sizeof(FORGED) / sizeof(FORGED[0]); i++) {
        char           *at    = strstr(strstr(text, FORGED[i].after), FORGED[i].was);
        size_t          bytes = strlen(FORGED[i].was);
        char            digits[17];
        sherdi_manifest m;

        CHECK(at != NULL && strlen(FORGED[i].is) == bytes);
        memcpy(at, FORGED[i].is, bytes);
        (void)snprintf(digits, sizeof(digits), "%016llx",
                       (unsigned long long)sherdi_checksum(text, len - 19));
        memcpy(text + len - 19, digits, 16);
        CHECK_STATUS(SHERD_E_INVAL, sherdi_manifest_parse(&m, &mem, "forged", text, len));
        CHECK_ERROR_SAYS(FORGED[i].says);
        memcpy(at, FORGED[i].was, bytes);
    }
    sherdi_free(text);
}

static void checkpoint_names_each_optimizer(void)
{
    char              dir[256];
    char              text[16384] = "";
    float             value;
    sherd_checkpoint *saved;

    saved_need_checksums();
    (void)saved_dir("named", dir);
    test_world(2, rank_save, dir);
    CHECK_INT(1, saved_verify(dir, "t"));
    CHECK_OK(sherd_checkpoint_open(dir, "t", &saved));
    CHECK_OK(sherd_checkpoint_write(saved, SHERD_PLAN_TABLE, text_add, text));
    CHECK(strstr(text, "AdamW: master, exp_avg, exp_avg_sq\n") != NULL);
    CHECK(strstr(text, "HeavyBall: master, buffer\n") != NULL);
    CHECK(strstr(text, "Lamb: master, exp_avg, exp_avg_sq\n") != NULL);
    CHECK_OK(sherd_checkpoint_read(saved, "p3", "buffer", 0, 1, &value));
    CHECK_STATUS(SHERD_E_INVAL, sherd_checkpoint_read(saved, "p3", "exp_avg", 0, 1, &value));
    CHECK_ERROR_SAYS("parameter p3 has no part exp_avg");
    sherd_checkpoint_close(saved);
    forged_optimizers_are_refused(dir);
    test_world(3, rank_load_changed, dir);
}

/* ------------------------------------------------------- by the configuration -- */

#define BY_NAME "{\"name\": \"tensors\", \"type\": \"lamb\", \"params\": {}, \"_why\": 1}"
#define BY_MATCH                                                                                   \
    "{\"name\": \"plain\", \"type\": \"HeavyBall\", \"params\": {\"lr\": 0.02, \"betas\": [0.8, "  \
    "0.95]}, "                                                                                     \
    "\"matching\": [\"x*\", \"p[13]\"]}"

/* Declares a model for which the configuration has groups. One group is named by the program, the
 * other is made of the parameters whose names match. */
static void model_declare_few(rig *r)
{
    sherd_group tensors = group_add(r, "tensors", NULL, NAN, NAN);
    char        name[8];

    for (int u = 0; u < 3; u++) {
        (void)snprintf(name, sizeof(name), "u%d", u);
        (void)rig_unit(r, name);
    }
    for (int p = 0; p < PARAMS; p++) {
        sherd_param_params params;

        sherd_param_params_init(&params);
        params.group  = MODEL[p].group == BY_LAMB ? tensors : SHERD_GROUP_DEFAULT;
        params.frozen = is_frozen(p);
        (void)snprintf(name, sizeof(name), "p%d", p);
        (void)rig_param_as(r, MODEL[p].unit, name, MODEL[p].elems, &params);
    }
}

static void rank_train_by_json(sherd_world *world, void *ctx)
{
    rig r;

    rig_open(&r, world, ctx);
    model_declare_few(&r);
    CHECK_OK(sherd_engine_check_plans(r.engine));
    rig_seal(&r);
    train(&r);
    CHECK_INT(plain_train(sherd_world_size(world), SHERD_F32), rig_fingerprint(&r));
    rig_close(&r);
}

static void groups_of_the_configuration_are_the_programs(void)
{
    rig_options options = {.dtype = SHERD_F32,
                           .top   = ", \"sherd\": {\"groups\": [" BY_NAME ", " BY_MATCH "]}"};

    for (options.stage = 0; options.stage <= 3; options.stage++) {
        test_world(2, rank_train_by_json, &options);
    }
}

typedef struct refusal {
    const char  *groups;
    sherd_status status;
    const char  *says;
} refusal;

static const refusal UNREADABLE[] = {
    {"{}", SHERD_E_INVAL, "sherd.groups must be a list of groups"},
    {"[3]", SHERD_E_INVAL, "sherd.groups[0] must be a block in braces"},
    {"[{}]", SHERD_E_INVAL, "sherd.groups[0] has no name"},
    {"[{\"name\": \"\"}]", SHERD_E_INVAL, "sherd.groups[0].name is no text, empty, or too long"},
    {"[{\"name\": \"default\"}]", SHERD_E_INVAL, "sherd.groups[0].name is \"default\""},
    {"[{\"name\": \"a\"}, {\"name\": \"a\"}]", SHERD_E_INVAL,
     "sherd.groups[1] has the name of an earlier one"},
    {"[{\"name\": \"a\", \"type\": \"SDG\"}]", SHERD_E_INVAL,
     "sherd.groups[0].type is \"SDG\"; known: AdamW|Adam|"},
    {"[{\"name\": \"a\", \"type\": \"none\"}]", SHERD_E_INVAL,
     "sherd.groups[0].type is for a whole engine"},
    {"[{\"name\": \"a\", \"params\": {\"lr\": -1}}]", SHERD_E_INVAL,
     "sherd.groups[0].params.lr is -1"},
    {"[{\"name\": \"a\", \"params\": {\"lr\": \"auto\"}}]", SHERD_E_INVAL,
     "sherd.groups[0].params.lr is \"auto\""},
    {"[{\"name\": \"a\", \"params\": {\"rate\": 1}}]", SHERD_E_INVAL,
     "sherd.groups[0].params.rate is not known of a group"},
    {"[{\"name\": \"a\", \"matching\": [\"p*\", 4]}]", SHERD_E_INVAL,
     "sherd.groups[0].matching is no text"},
};

static const refusal UNFIT[] = {
    {"[{\"name\": \"head\"}]", SHERD_E_INVAL,
     "sherd.groups has an entry for group head, which does not exist: the program added no group"},
    {"[{\"name\": \"head\", \"matching\": \"q*\"}]", SHERD_E_INVAL,
     "group head, which does not exist: the program added none, and \"matching\" fits no "
     "parameter"},
    {"[{\"name\": \"plain\", \"type\": \"Lamb\"}]", SHERD_E_INVAL,
     "group plain: the program and sherd.groups give different values of optimizer"},
    {"[{\"name\": \"plain\", \"params\": {\"lr\": 3}}]", SHERD_E_INVAL,
     "group plain: the program and sherd.groups give different values of lr"},
};

static void rank_unfit(sherd_world *world, void *ctx)
{
    rig r;

    for (size_t i = 0; i < sizeof(UNFIT) / sizeof(UNFIT[0]); i++) {
        char        top[256];
        rig_options options = {.stage = 1, .top = top};

        (void)ctx;
        (void)snprintf(top, sizeof(top), ", \"sherd\": {\"groups\": %s}", UNFIT[i].groups);
        rig_open(&r, world, &options);
        model_declare(&r);
        CHECK_STATUS(UNFIT[i].status, sherd_engine_check_plans(r.engine));
        CHECK_ERROR_SAYS(UNFIT[i].says);
        CHECK_STATUS(UNFIT[i].status, sherd_engine_seal(r.engine));
        CHECK_ERROR_SAYS(UNFIT[i].says);
        rig_close(&r);
    }
}

static void groups_of_the_configuration_are_checked(void)
{
    for (size_t i = 0; i < sizeof(UNREADABLE) / sizeof(UNREADABLE[0]); i++) {
        char          json[512];
        sherd_config *config;

        (void)snprintf(json, sizeof(json),
                       "{\"optimizer\": {\"type\": \"AdamW\"}, \"sherd\": {\"groups\": %s}}",
                       UNREADABLE[i].groups);
        CHECK_STATUS(UNREADABLE[i].status, sherd_config_parse(json, strlen(json), &config));
        CHECK_ERROR_SAYS(UNREADABLE[i].says);
    }
    test_world(2, rank_unfit, NULL);
}

/* Checks that what is dumped reads back as the same. The program may give what the file gives, and
 * nothing else. */
static void groups_are_dumped(void)
{
    static const char JSON[] =
        "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"max_coeff\": 4}},"
        " \"sherd\": {\"groups\": [" BY_NAME ", " BY_MATCH "]}}";
    char          text[16384] = "";
    char         *at, *end;
    sherd_config *config;

    CHECK_OK(sherd_config_parse(JSON, strlen(JSON), &config));
    /* a group reads max_coeff, so there is no warning */
    CHECK_INT(0, sherd_config_warning_count(config));
    CHECK_OK(sherd_config_dump(config, text_add, text));
    at = strstr(text, "\"sherd.groups\": {\"value\": ");
    CHECK(at != NULL);
    at  = strchr(at, '[');
    end = strstr(at, ", \"origin\"");
    CHECK(end != NULL);
    *end = '\0';
    CHECK_OK(sherd_config_set(config, "sherd.groups", at));
    CHECK_STATUS(SHERD_E_INVAL, sherd_config_set(config, "sherd.groups", "[]"));
    CHECK_OK(sherd_config_set(config, "!sherd.groups", "[]"));
    sherd_config_destroy(config);
}

static const test_case CASES[] = {
    CASE(groups_equal_unsharded),
    CASE(groups_deterministic_are_one_training),
    CASE(groups_name_known_optimizers),
    CASE(ranks_name_the_same_optimizers),
    CASE(one_name_may_be_two_optimizers_of_a_checkpoint),
    CASE(values_are_of_the_parameters_optimizer),
    CASE(checkpoint_names_each_optimizer),
    CASE(groups_of_the_configuration_are_the_programs),
    CASE(groups_of_the_configuration_are_checked),
    CASE(groups_are_dumped),
};

RUN_MAIN(CASES)
