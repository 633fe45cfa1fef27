/* A rank is lost in the middle of its update, with sherd.redundancy "host": a survivor ends it, or all
 * undo one that they make together. They have the values of a training that nobody has disturbed, also
 * without the deterministic mode, and where the ranks compute on a device. */
#include "engine/elastic/ledger.h"
#include "tests/collectives/ranks.h"
#include "tests/engine/mover.h"
#include "tests/engine/rig.h"
#include "tests/lib/check.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 3
#define STEPS 3
#define LOST  1

/* ---------------------------------------------------------------------- a rank -- */

static int has_matrices(void)
{
    return strcmp(getenv("TEST_OPTIMIZER"), "Muon") == 0;
}

/* Two matrices, and then what another optimizer updates: a long time after the ranks have met. */
static void matrices_declare(rig *r)
{
    sherd_group_params group;
    sherd_param_params params;

    sherd_group_params_init(&group);
    group.name      = "others";
    group.optimizer = "AdamW";
    group.lr        = 0.01;
    sherd_param_params_init(&params);
    CHECK_OK(sherd_group_add(r->engine, &group, &params.group));
    params.ndim     = 1;
    params.shape[0] = 600000;
    (void)rig_unit(r, "a");
    (void)rig_param(r, 0, "a.w", 400);
    (void)rig_unit(r, "b");
    (void)rig_param(r, 1, "b.w", 1041);
    (void)rig_unit(r, "c");
    (void)rig_param_as(r, 2, "c.w", 600000, &params);
}

/* An engine with what TEST_STAGE, TEST_DTYPE, TEST_ZERO, TEST_TOP and TEST_OPTIMIZER say. */
static void engine_open(rig *r, sherd_world *world)
{
    rig_options options = {.stage        = ranks_variable("TEST_STAGE"),
                           .dtype        = (sherd_dtype)ranks_variable("TEST_DTYPE"),
                           .clip         = 1,
                           .train_batch  = RANKS,
                           .zero         = getenv("TEST_ZERO"),
                           .top          = getenv("TEST_TOP"),
                           .optimizer    = getenv("TEST_OPTIMIZER"),
                           .has_matrices = has_matrices()};

    rig_open(r, world, &options);
    if (has_matrices()) {
        matrices_declare(r);
    } else {
        rig_three(r, 600000);
    }
    rig_seal(r);
}

static sherd_status step_make(rig *r, int step)
{
    r->is_given = 1;
    r->stride   = 3;
    r->number   = (int64_t)step * RANKS + sherd_world_rank(r->world);
    rig_micro_batch(r);
    return ranks_variable("TEST_QUEUED") ? sherd_step_queue(r->engine)
                                         : sherd_step(r->engine, NULL);
}

/* Ends the process as soon as its last update has begun and is not complete. */
static void *dies_in_its_update(void *raw)
{
    sherdi_ledger *ledger = raw;
    sherdi_pieces *pieces = sherdi_ledger_pieces(ledger, STEPS);

    while (ledger->version < STEPS || pieces->done == 0) {
    }
    if (pieces->done < pieces->total) {
        (void)raise(SIGKILL);
    }
    return NULL;
}

static void lost(rig *r)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, dies_in_its_update, sherdi_ledger_of(r->engine)) == 0);
    (void)step_make(r, STEPS - 1);
    (void)pthread_join(thread, NULL);
    ranks_note_leave("late"); /* its update was complete */
    (void)raise(SIGKILL);
}

static void life(void)
{
    sherd_move_report report;
    sherd_status      status;
    sherd_world      *world;
    sherd_world      *next            = NULL;
    uint64_t          want[STEPS + 1] = {0};
    rig               r;

    CHECK_OK(sherd_world_from_env(NULL, &world));
    engine_open(&r, world);
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(step_make(&r, step));
        CHECK_OK(sherd_step_wait(r.engine, NULL));
        want[step + 1] = mover_values(&r);
    }
    rig_close(&r);
    engine_open(&r, world);
    for (int step = 0; step < STEPS - 1; step++) {
        CHECK_OK(step_make(&r, step));
    }
    if (sherd_world_rank(world) == LOST) {
        lost(&r);
    }
    status = step_make(&r, STEPS - 1);
    CHECK(status == SHERD_OK || status == SHERD_E_PEER_LOST);
    while (sherd_world_barrier(world) == SHERD_OK) {
    }
    CHECK_OK(sherd_world_shrink(world, &next));
    CHECK_OK(sherd_engine_move(r.engine, next));
    sherd_world_destroy(world);
    r.world = next;
    sherd_move_report_init(&report);
    CHECK_OK(sherd_move_query(r.engine, &report));
    CHECK(report.step == STEPS || (has_matrices() && report.step == STEPS - 1));
    CHECK(mover_values(&r) == want[report.step]);
    rig_close(&r);
    sherd_world_destroy(next);
}

/* ------------------------------------------------------------------- the cases -- */

static int torn; /* updates in whose middle a rank was lost */

static void number_set(const char *name, int value)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "%d", value);
    CHECK(setenv(name, text, 1) == 0);
}

static int is_queued;

static void loss_run(int stage, sherd_dtype dtype, const char *optimizer, const char *zero,
                     const char *top)
{
    number_set("TEST_QUEUED", is_queued);
    number_set("TEST_STAGE", stage);
    number_set("TEST_DTYPE", (int)dtype);
    CHECK(setenv("TEST_ZERO", zero, 1) == 0 && setenv("TEST_TOP", top, 1) == 0 &&
          setenv("TEST_OPTIMIZER", optimizer, 1) == 0);
    ranks_run_part(RANKS, "life", LOST);
    torn += !ranks_note_is_there("late");
}

#define HOST          "\"sherd\": {\"redundancy\": \"host\"}"
#define DETERMINISTIC ", \"deterministic\": true, " HOST
#define DEFAULT       ", " HOST
#define STATE         ", \"offload_optimizer\": {\"device\": \"cpu\"}"
#define PINNED        ", \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}"
#define ALL           STATE ", \"offload_param\": {\"device\": \"cpu\"}"

/* A busy machine may let each rank end its update before it is killed; then all begin again. */
static void update_of_a_lost_rank_is_ended(void)
{
    torn = 0;
    for (int tries = 0; tries < 10 && torn == 0; tries++) {
        for (int stage = 1; stage <= 3; stage++) {
            loss_run(stage, SHERD_BF16, "AdamW", STATE, DETERMINISTIC);
            loss_run(stage, SHERD_BF16, "AdamW", PINNED, DEFAULT);
        }
        loss_run(2, SHERD_F32, "AdamW", STATE, DETERMINISTIC);
        loss_run(3, SHERD_F32, "AdamW", ALL, DETERMINISTIC);
        loss_run(3, SHERD_F16, "AdamW", ALL, DEFAULT);
        is_queued = 1;
        loss_run(2, SHERD_BF16, "AdamW", STATE, DETERMINISTIC);
        loss_run(3, SHERD_BF16, "AdamW", STATE, DEFAULT);
        is_queued = 0;
    }
    CHECK(torn > 0);
}

#define BLOCKS              ", \"sub_group_size\": 6400"
#define BESIDE              ", \"sherd\": {\"redundancy\": \"host\", \"master_encoding\": \"bf16_beside\"}"
#define SOME_ARE_PERSISTENT ALL BLOCKS ", \"stage3_param_persistence_threshold\": 500"

/* Products of an emulated device are slow: few runs there. */
static void update_that_the_ranks_make_together_is_undone(void)
{
    torn = 0;
    for (int tries = 0; tries < 10 && torn == 0; tries++) {
        is_queued = 1;
        loss_run(3, SHERD_BF16, "Muon", STATE BLOCKS, DETERMINISTIC);
        is_queued = 0;
        loss_run(3, SHERD_BF16, "Muon", SOME_ARE_PERSISTENT, BESIDE);
#ifndef TEST_EMULATED
        loss_run(1, SHERD_BF16, "Muon", "", DETERMINISTIC);
        loss_run(2, SHERD_F32, "Muon", BLOCKS, DEFAULT);
        loss_run(2, SHERD_BF16, "Muon", STATE, DETERMINISTIC);
        loss_run(3, SHERD_BF16, "Muon", ALL, DETERMINISTIC);
#endif
    }
    CHECK(torn > 0);
}

#ifdef TEST_EMULATED

/* An engine on a device that seal has to refuse: what its memory alone would have. */
typedef struct refusal {
    rig_options options;
    int         has_frozen;
    const char *why; /* NULL: it is taken */
} refusal;

static void refusal_body(sherd_world *world, void *ctx)
{
    const refusal     *of = ctx;
    sherd_param_params params;
    rig                r;

    rig_open(&r, world, &of->options);
    rig_three(&r, 4000);
    if (of->has_frozen) {
        sherd_param_params_init(&params);
        params.frozen = 1;
        (void)rig_param_as(&r, 0, "fixed", 777, &params);
    }
    CHECK_STATUS(of->why == NULL ? SHERD_OK : SHERD_E_NOTSUP, sherd_engine_seal(r.engine));
    if (of->why != NULL) {
        CHECK_ERROR_SAYS(of->why);
    }
    rig_close(&r);
}

#define BESIDE ", \"sherd\": {\"redundancy\": \"host\", \"master_encoding\": \"bf16_beside\"}"
#define HALF                                                                                       \
    ", \"sub_group_size\": 1280, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.5}"

static void what_ends_with_its_device_is_refused(void)
{
    static const char on_device[] = "has state on a device";
    static const char frozen[]    = "slices of frozen parameters";
    refusal           refusals[]  = {
                   {{.stage = 2, .dtype = SHERD_BF16, .top = DEFAULT}, 0, on_device},
                   {{.stage = 2, .dtype = SHERD_BF16, .top = DEFAULT, .zero = HALF}, 0, on_device},
                   {{.stage = 2, .dtype = SHERD_BF16, .top = DEFAULT, .zero = STATE}, 1, NULL},
                   {{.stage = 3, .dtype = SHERD_BF16, .top = DEFAULT, .zero = STATE}, 0, NULL},
                   {{.stage = 3, .dtype = SHERD_BF16, .top = DEFAULT, .zero = STATE}, 1, frozen},
                   {{.stage = 3, .dtype = SHERD_BF16, .top = DEFAULT, .zero = ALL}, 1, NULL},
                   {{.stage = 1, .dtype = SHERD_F32, .top = DEFAULT, .zero = STATE}, 1, NULL},
                   {{.stage = 3, .dtype = SHERD_BF16, .top = BESIDE, .zero = ALL}, 0, NULL},
    };

    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        test_world(2, refusal_body, &refusals[i]);
    }
}

#endif

static const test_case CASES[] = {
    CASE(update_of_a_lost_rank_is_ended),
    CASE(update_that_the_ranks_make_together_is_undone),
#ifdef TEST_EMULATED
    CASE(what_ends_with_its_device_is_refused),
#endif
};
static const rank_part PARTS[] = {PART(life)};

RANKS_MAIN(CASES, PARTS)
