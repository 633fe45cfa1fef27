/* What an engine carries out is what a dry engine of the same plan says, in every kind of window:
 * the operations that are printed, counted, played against rates and proved, one by one, with their
 * lanes, ranges and bytes. */
#include "engine/proof/dry.h"
#include "engine/run/agree.h"
#include "engine/run/engine_impl.h"
#include "engine/run/restore.h"
#include "engine/run/update.h"
#include "engine/run/updater.h"
#include "tests/engine/op_list.h"
#include "tests/engine/rig.h"
#include "tests/engine/tier_rows.h"
#include "tests/engine/toy.h"
#include "tests/lib/check.h"
#include "engine/plan/activations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the trainer's thread gives, and what the updater gives. */
typedef struct two_lists {
    op_list of[2];
} two_lists;

/* Stands before the engine's own function. */
typedef struct recorder {
    two_lists    lists;
    sherdi_op_fn fn;
    void        *ctx;
} recorder;

static sherd_status op_sort(two_lists *lists, const sherdi_op *op)
{
    return op_list_add(&lists->of[(op->flags & SHERDI_OP_QUEUED) != 0], op);
}

static sherd_status op_tell(void *ctx, const sherdi_op *op)
{
    return op_sort(ctx, op);
}

static sherd_status op_record(void *ctx, const sherdi_op *op)
{
    recorder *recorder = ctx;
    int       depth    = sherdi_mem_forbid_set(0);

    SHERDI_TRY(op_sort(&recorder->lists, op));
    (void)sherdi_mem_forbid_set(depth);
    return recorder->fn(recorder->ctx, op);
}

static void record_begin(recorder *recorder, sherd_engine *engine)
{
    int             count      = engine->updater.own == NULL ? 1 : 2;
    sherdi_program *programs[] = {&engine->run.program,
                                  count == 1 ? NULL : &engine->updater.own->program};

    recorder->lists = (two_lists){0};
    recorder->fn    = programs[0]->fn;
    recorder->ctx   = programs[0]->ctx;
    for (int i = 0; i < count; i++) {
        programs[i]->fn  = op_record;
        programs[i]->ctx = recorder;
        programs[i]->is_posted =
            NULL; /* whether a unit is gathered ahead depends on how fast the updater is */
    }
}

static void lists_compare(const op_list *told, const op_list *done, const char *what)
{
    char text[2][160];

    for (size_t i = 0; i < told->count || i < done->count; i++) {
        if (i >= told->count || i >= done->count || !op_is_same(&told->ops[i], &done->ops[i])) {
            test_fail(__FILE__, __LINE__, "%s: told is %s; carried out is %s", what,
                      op_list_text(told, i, text[0]), op_list_text(done, i, text[1]));
            return;
        }
    }
}

/* ---------------------------------------------------------------- windows -- */

typedef struct one_case {
    rig_options        options;
    const char        *name;
    int                world_size;
    int                is_beside;
    const char *const *activations; /* the device of each unit's; NULL: there are none */
} one_case;

/* An engine and its dry one, which are called alike. */
typedef struct both {
    rig           r;
    sherdi_dry   *dry;
    sherd_engine *engines[2];
    recorder      done;
    two_lists     told;
    float         values[3000];
} both;

typedef sherd_status (*call_fn)(both *b, sherd_engine *engine);

static void call(both *b, call_fn fn)
{
    sherd_status status = fn(b, b->engines[0]);

    CHECK_OK(status);
    CHECK_STATUS(status, fn(b, b->engines[1]));
}

/* A use of a unit by both: the engine's acquire, the trainer's work, and its activation if it has
 * one. */
static void use(both *b, int u, sherd_pass pass)
{
    int has_activation = b->engines[0]->plan->layout.units[u].activation != SHERDI_NO_ACTIVATION;

    rig_acquire(&b->r, u, pass);
    CHECK_OK(sherd_unit_acquire(b->engines[1], u, pass));
    for (int e = 0; e < 2 && has_activation; e++) {
        void *memory;

        CHECK_OK(pass == SHERD_FORWARD ? sherd_activation_put(b->engines[e], u, &memory)
                                       : sherd_activation_get(b->engines[e], u, &memory));
    }
    if (pass == SHERD_BACKWARD) {
        rig_touch(&b->r, u, 1);
    }
    rig_release(&b->r, u, pass);
    CHECK_OK(sherd_unit_release(b->engines[1], u, pass));
}

static void passes(both *b, int backwards)
{
    for (int u = 0; u < b->r.num_units; u++) {
        use(b, u, SHERD_FORWARD);
    }
    for (int u = b->r.num_units - 1; u >= b->r.num_units - backwards; u--) {
        use(b, u, SHERD_BACKWARD);
    }
}

static void evaluation(both *b)
{
    for (int u = 0; u < b->r.num_units; u++) {
        rig_forward(&b->r, u, SHERD_EVAL);
        CHECK_OK(sherd_unit_acquire(b->engines[1], u, SHERD_EVAL));
        CHECK_OK(sherd_unit_release(b->engines[1], u, SHERD_EVAL));
    }
}

static sherd_status step_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherd_step(engine, NULL);
}

static sherd_status queue_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherd_step_queue(engine);
}

static sherd_status wait_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherd_step_wait(engine, NULL);
}

static sherd_status prepare_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherd_step_prepare(engine, NULL);
}

static sherd_status apply_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherd_step_apply(engine, NULL);
}

static sherd_status skip_call(both *b, sherd_engine *engine)
{
    sherd_step_params params;

    (void)b;
    sherd_step_params_init(&params);
    params.overflow = 1;
    return sherd_step_apply(engine, &params);
}

static sherd_status discard_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherd_step_discard(engine);
}

static sherd_status undo_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherd_step_undo(engine);
}

static sherd_status norms_call(both *b, sherd_engine *engine)
{
    double norms[16];

    return sherd_grad_norms(engine, norms, (size_t)b->r.num_params);
}

static sherd_status read_call(both *b, sherd_engine *engine)
{
    SHERDI_TRY(sherd_param_read(engine, 0, SHERD_COMPUTE, 0, 3000, b->values));
    return sherd_param_read(engine, 1, "master", 100, 2000, b->values);
}

static sherd_status write_call(both *b, sherd_engine *engine)
{
    memset(b->values, 0, sizeof(b->values));
    return sherd_param_write(engine, 1, "master", 0, 3000, b->values);
}

static sherd_status fingerprint_call(both *b, sherd_engine *engine)
{
    uint64_t unused;

    (void)b;
    SHERDI_TRY(sherd_param_fingerprint(engine, 1, &unused));
    return sherd_engine_fingerprint(engine, &unused);
}

static sherd_status nothing_done(void *ctx, const sherdi_op *op)
{
    (void)ctx, (void)op;
    return SHERD_OK;
}

static sherd_status save_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherdi_restore_save(engine, nothing_done, NULL);
}

static sherd_status nothing_loaded(void *ctx)
{
    (void)ctx;
    return SHERD_OK;
}

static sherd_status walk_load(sherd_engine *engine, sherdi_walk walk)
{
    const sherdi_load_parts parts = {nothing_loaded, nothing_done, nothing_loaded, nothing_loaded,
                                     NULL};

    return sherdi_restore_load(engine, walk, &parts);
}

static sherd_status load_call(both *b, sherd_engine *engine)
{
    (void)b;
    return walk_load(engine, SHERDI_WALK_LOAD);
}

static sherd_status load_some_call(both *b, sherd_engine *engine)
{
    (void)b;
    return walk_load(engine, SHERDI_WALK_LOAD_SOME);
}

/* In windows whose length the trainer gives. */
static sherd_status close_call(both *b, sherd_engine *engine)
{
    (void)b;
    return engine->settings.batch.opens_windows ? sherd_step_close_window(engine) : SHERD_OK;
}

static sherd_status eval_begin_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherd_eval_begin(engine, NULL);
}

static sherd_status eval_end_call(both *b, sherd_engine *engine)
{
    (void)b;
    return sherd_eval_end(engine);
}

/* The micro-batches of a window, but for the call that ends the last. */
static void micro_batches(both *b, int accumulation)
{
    for (int m = 0; m + 1 < accumulation; m++) {
        passes(b, b->r.num_units);
        call(b, step_call);
        call(b, save_call);
    }
    call(b, close_call);
    passes(b, b->r.num_units);
}

static void updated(both *b, int accumulation)
{
    micro_batches(b, accumulation);
    call(b, step_call);
    evaluation(b);
}

static void queued(both *b, int accumulation)
{
    micro_batches(b, accumulation);
    call(b, queue_call);
    call(b, wait_call);
    micro_batches(b, accumulation);
    call(b, queue_call); /* nobody waits for it */
}

static void applied(both *b, int accumulation)
{
    micro_batches(b, accumulation);
    call(b, prepare_call);
    call(b, norms_call);
    call(b, apply_call);
    call(b, read_call);
    call(b, fingerprint_call);
    call(b, save_call);
}

static void skipped(both *b, int accumulation)
{
    micro_batches(b, accumulation);
    call(b, prepare_call);
    call(b, skip_call);
}

static void dropped(both *b, int accumulation)
{
    micro_batches(b, accumulation);
    call(b, prepare_call);
    call(b, discard_call);
    passes(b, 2);
    call(b, discard_call); /* in the middle of backward */
}

static void undone(both *b, int accumulation)
{
    updated(b, accumulation);
    if (b->engines[0]->plan->has_generations) {
        call(b, undo_call);
    }
}

static void changed(both *b, int accumulation)
{
    updated(b, accumulation);
    call(b, load_some_call);
    call(b, eval_begin_call);
    evaluation(b);
    evaluation(b);
    call(b, eval_end_call);
    call(b, load_call);
    call(b, write_call);
}

typedef struct window {
    const char *name;
    void (*run)(both *b, int accumulation);
} window;

static const window WINDOWS[] = {
    {"updated", updated}, {"queued", queued}, {"applied", applied}, {"skipped", skipped},
    {"dropped", dropped}, {"undone", undone}, {"changed", changed},
};

#define NUM_WINDOWS (sizeof(WINDOWS) / sizeof(WINDOWS[0]))

/* Gives each unit an activation on a tier of its own; NULL: none. */
static void activations_add(rig *r, const char *const devices[3])
{
    sherd_activation_params params;

    sherd_activation_params_init(&params);
    for (int u = 0; u < 3 && devices != NULL; u++) {
        params.len_bytes = 10000 + 5000 * (size_t)u;
        params.device    = devices[u];
        CHECK_OK(sherd_activation_add(r->engine, u, &params));
    }
}

static void window_compare(sherd_world *world, void *raw)
{
    const one_case *what = raw;
    both           *b    = calloc(1, sizeof(*b));
    char            name[160];

    CHECK(b != NULL);
    rig_open(&b->r, world, &what->options);
    rig_three(&b->r, 3000);
    activations_add(&b->r, what->activations);
    rig_seal(&b->r);
    b->engines[0] = b->r.engine;
    CHECK_OK(sherdi_dry_create(b->r.engine->plan, &b->r.engine->model, op_tell, &b->told, &b->dry));
    b->engines[1] = sherdi_dry_engine(b->dry);
    for (int p = 0; p < b->r.num_params; p++) { /* as rig_seal does */
        CHECK_OK(sherd_param_fill(b->engines[1], p, rig_fill, (void *)(uintptr_t)p));
    }
    updated(b, what->options.accumulation); /* the first one ends what the fill began */
    record_begin(&b->done, b->engines[0]);
    for (size_t i = 0; i <= NUM_WINDOWS; i++) {
        const window *window = &WINDOWS[i * 3 % NUM_WINDOWS];

        (void)snprintf(name, sizeof(name), "%s, stage %d, %d ranks, rank %d, window %zu, %s",
                       what->name, what->options.stage, what->world_size, sherd_world_rank(world),
                       i, window->name);
        for (int l = 0; l < 2; l++) {
            b->told.of[l].count = b->done.lists.of[l].count = 0;
        }
        window->run(b, what->options.accumulation);
        for (int e = 0; e < 2; e++) {
            sherd_engine *engine = b->engines[e];

            CHECK_OK(SHERDI_ASK(updater, join, engine));
        }
        for (int l = 0; l < 2; l++) {
            lists_compare(&b->told.of[l], &b->done.lists.of[l], name);
        }
    }
    for (int l = 0; l < 2; l++) {
        op_list_free(&b->told.of[l]);
        op_list_free(&b->done.lists.of[l]);
    }
    sherdi_dry_destroy(b->dry);
    rig_close(&b->r);
    free(b);
}

static void rows_compare(one_case what)
{
    static const int WORLDS[] = {1, 2, 3};
    char             zero[512];

    for (size_t i = 0; i < NUM_TIER_ROWS; i++) {
        if (what.is_beside && strstr(TIER_ROWS[i].name, "state cpu") != NULL) {
            continue;
        }
        (void)snprintf(zero, sizeof(zero), TIER_ROWS[i].zero, test_scratch(), test_scratch());
        what.name         = TIER_ROWS[i].name;
        what.options.zero = zero;
        for (int stage = TIER_ROWS[i].least_stage; stage <= 3; stage++) {
            for (size_t w = 0; w < 3; w++) {
                if (!toy_takes_ranks(WORLDS[w])) {
                    continue;
                }
                what.options.stage = stage;
                what.world_size    = WORLDS[w];
                test_world(what.world_size, window_compare, &what);
            }
        }
    }
}

static void one_micro_batch(void)
{
    rows_compare((one_case){.options = {.dtype = SHERD_BF16, .accumulation = 1, .clip = 1}});
}

static void two_micro_batches(void)
{
    rows_compare((one_case){.options = {.dtype = SHERD_F32, .accumulation = 2}});
}

/* Those of the first units leave the device: there is one place for each tier. */
static void activations_of_every_tier(void)
{
    static const char *const DEVICES[][3] = {
        {"cpu", "cpu", "cpu"}, {"nvme", "nvme", "nvme"}, {"cpu", "none", "nvme"}};
    char top[512];

    (void)snprintf(top, sizeof(top),
                   ", \"sherd\": {\"activations\": {\"nvme_path\": \"%s\", \"buffer_count\": 1}}",
                   test_scratch());
    for (size_t i = 0; i < sizeof(DEVICES) / sizeof(DEVICES[0]); i++) {
        test_world(2, window_compare,
                   &(one_case){.name        = "activations",
                               .options     = {.stage        = 3 - (int)i % 2,
                                               .dtype        = SHERD_BF16,
                                               .accumulation = 2,
                                               .top          = top},
                               .world_size  = 2,
                               .activations = DEVICES[i]});
    }
}

static void norms_of_whole_tensors(void)
{
    rows_compare((one_case){
        .options = {.dtype = SHERD_BF16, .accumulation = 2, .clip = 1, .optimizer = "Lamb"}});
}

/* An emulated device takes minutes for the products of matrices. */
static void whole_matrices(void)
{
    if (getenv("SHERD_BACKEND") != NULL && !test_is_long()) {
        return;
    }
    rows_compare((one_case){
        .options = {
            .dtype = SHERD_BF16, .accumulation = 2, .optimizer = "Muon", .has_matrices = 1}});
}

static void windows_of_any_length(void)
{
    rows_compare((one_case){.options = {.dtype        = SHERD_F32,
                                        .accumulation = 2,
                                        .top          = ", \"sherd\": {\"open_windows\": true}"}});
}

static void in_one_order_of_sums(void)
{
    rows_compare((one_case){
        .options = {.dtype = SHERD_BF16, .accumulation = 2, .top = ", \"deterministic\": true"}});
}

static void units_of_any_uses(void)
{
    rows_compare((one_case){
        .options = {.dtype = SHERD_BF16, .accumulation = 2, .backward_uses = SHERD_USES_ANY}});
}

/* Of the rows where a parameter rests with its state, or the state on a drive. */
static void masters_beside_parameters(void)
{
    rows_compare(
        (one_case){.options   = {.dtype        = SHERD_BF16,
                                 .accumulation = 2,
                                 .top = ", \"sherd\": {\"master_encoding\": \"bf16_beside\"}"},
                   .is_beside = 1});
}

static const test_case CASES[] = {
    CASE(one_micro_batch),        CASE(two_micro_batches), CASE(activations_of_every_tier),
    CASE(norms_of_whole_tensors), CASE(whole_matrices),    CASE(windows_of_any_length),
    CASE(in_one_order_of_sums),   CASE(units_of_any_uses), CASE(masters_beside_parameters),
};

RUN_MAIN(CASES)
