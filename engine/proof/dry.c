#include "engine/proof/dry.h"

#include "base/mem.h"
#include "collectives/simulated.h"
#include "engine/run/agree.h"
#include "engine/program/program_rings.h"
#include "engine/run/blobs.h"
#include "engine/run/differences.h"
#include "engine/run/fill.h"
#include "engine/run/queue.h"
#include "engine/run/store.h"
#include "engine/run/uses.h"
#include "engine/run/weighing.h"
#include "engine/run/updater.h"

#include <string.h>
#include <unistd.h>

struct sherdi_dry {
    sherd_engine        engine;
    sherdi_op_fn        fn;
    void               *ctx;
    sherdi_scalars_head head; /* the engine's on_host */
    sherdi_backend      nothing;
    uint64_t           *joined; /* [plan->layout.used_words] */
    sherdi_storage_ops  storage;
    sherdi_blobs        blobs; /* none */
};

/* ----------------------------------------------------------------- device -- */

/* Devices that do nothing: their memory is not there. */

static sherd_status nothing_wait(const sherdi_backend *lane)
{
    (void)lane;
    return SHERD_OK;
}

/* By whether the device's memory is its own. */
static const sherdi_device_ops NOTHING[] = {
    {.name = "dry", .is_async = 0, .lane_wait = nothing_wait},
    {.name = "dry", .is_async = 1, .lane_wait = nothing_wait},
};

/* ------------------------------------------------------------- operations -- */

static void used_join(sherdi_dry *dry)
{
    uint64_t *used  = dry->engine.exchange.used;
    size_t    count = dry->engine.plan->layout.used_words;

    for (size_t i = 0; i < count; i++) {
        used[i] |= dry->joined[i];
        dry->joined[i] = 0;
    }
}

static void generation_change(sherd_engine *engine, sherdi_op_kind kind)
{
    sherdi_store     *store = engine->storage.store;
    sherdi_dry_state *state = &store->dry;

    if (!engine->plan->has_generations || kind == SHERDI_OP_ABANDON) {
        return;
    }
    if (kind == SHERDI_OP_COMMIT) {
        state->previous     = state->record;
        state->record       = store->record;
        state->has_previous = state->live > 0;
        state->live++;
    } else {
        store->record = state->record = state->previous;
        state->has_previous           = 0;
        state->live--;
    }
}

/* The effects of an operation on the fields of the engine that calls read. */
static sherd_status op_answer(sherdi_dry *dry, const sherdi_op *op)
{
    sherd_engine *engine = &dry->engine;
    sherdi_op     told;

    switch (op->kind) {
    case SHERDI_OP_EXCHANGE:
        told = *op;
        if (op->part == SHERDI_EXCHANGE_OUTCOME) { /* a dry engine has no words of units */
            told.elems = sizeof(sherdi_word_message);
        }
        SHERDI_TRY(sherdi_run_answer(engine, &told));
        if (op->part == SHERDI_EXCHANGE_USED) {
            used_join(dry);
        }
        return SHERD_OK;
    case SHERDI_OP_AWAIT:
        sherdi_updater_take(engine, (sherdi_post)op->part);
        return SHERD_OK;
    case SHERDI_OP_COMMIT:
    case SHERDI_OP_ABANDON:
    case SHERDI_OP_ROLLBACK:
        generation_change(engine, op->kind);
        return SHERD_OK;
    default:
        return SHERD_OK;
    }
}

static sherd_status op_take(void *ctx, const sherdi_op *op)
{
    sherdi_dry  *dry   = ctx;
    int          depth = sherdi_mem_forbid_set(0);
    sherd_status status;

    status = dry->fn(dry->ctx, op);
    (void)sherdi_mem_forbid_set(depth);
    return status == SHERD_OK ? op_answer(dry, op) : status;
}

/* Generations are numbers, and nothing is transferred. */
static sherdi_storage_ops storage_of(void)
{
    return (sherdi_storage_ops){
        .note           = sherdi_storage_drive.note,
        .commit         = sherdi_storage_drive.commit,
        .commit_written = sherdi_storage_drive.commit_written,
        .agreed         = sherdi_storage_drive.agreed,
        .restore        = sherdi_storage_drive.restore,
        .stored_step    = sherdi_storage_drive.stored_step,
    };
}

/* ------------------------------------------------------------ open, close -- */

/* It says nothing, and writes nothing. */
static void settings_still(sherdi_settings *settings)
{
    settings->watch.wall_clock_breakdown = 0;
    settings->watch.logs_comms           = 0;
    settings->watch.memory_breakdown     = 0;
    settings->steps_per_print            = 0;
    settings->is_debug                   = 0;
}

static sherd_status dry_open(sherdi_dry *dry, const sherdi_plan *plan, const sherdi_model *model)
{
    sherd_engine *engine = &dry->engine;

    engine->storage.ops = &dry->storage;
    engine->blobs       = &dry->blobs;
    engine->queue.ops   = &sherdi_queue_updates;
    SHERDI_TRY(sherdi_store_create(engine));
    SHERDI_TRY(sherdi_world_dry(sherdi_plan_rank_of_all(plan, plan->rank),
                                sherdi_plan_all_ranks(plan), &engine->world));
    engine->shards  = engine->world;
    dry->nothing    = (sherdi_backend){.name = "dry", .device = &NOTHING[plan->machine.has_device]};
    engine->backend = &dry->nothing;
    engine->host    = &dry->nothing;
    engine->lanes =
        (sherdi_lanes){.update = engine->backend, .up = engine->backend, .down = engine->backend};
    engine->kernel_data.on_host.head = &dry->head;
    engine->rank                     = sherd_world_rank(engine->world);
    engine->world_size               = sherd_world_size(engine->world);
    engine->process                  = getpid();
    engine->settings                 = plan->settings;
    engine->model                    = *model;
    engine->plan                     = (sherdi_plan *)(uintptr_t)plan;
    settings_still(&engine->settings);
    sherdi_scaler_init(&engine->scaler, &engine->settings.numerics.scaler);
    SHERDI_TRY(sherdi_fill_open(engine));
    SHERDI_TRY(sherdi_uses_memory_open(engine));
    SHERDI_TRY(sherdi_uses_open(engine));
    SHERDI_TRY(sherdi_weighing_open(engine));
    SHERDI_TRY(sherdi_progress_open(&engine->run.progress, plan, model, &engine->mem));
    dry->joined = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, plan->layout.used_words,
                                     sizeof(*dry->joined));
    if (dry->joined == NULL) {
        return SHERD_E_NOMEM;
    }
    engine->run.program = (sherdi_program){.plan     = plan,
                                           .model    = &engine->model,
                                           .progress = &engine->run.progress,
                                           .fn       = op_take,
                                           .ctx      = dry};
    engine->phase       = SHERDI_PHASE_SEALED;
    return sherdi_updater_open_program(engine);
}

sherd_status sherdi_dry_create(const sherdi_plan *plan, const sherdi_model *model, sherdi_op_fn fn,
                               void *ctx, sherdi_dry **out)
{
    sherdi_dry  *dry = sherdi_alloc(plan->mem, SHERDI_MEM_CONTROL, sizeof(*dry));
    sherd_status status;

    if (dry == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_mem_init(&dry->engine.mem);
    dry->fn      = fn;
    dry->ctx     = ctx;
    dry->storage = storage_of();
    status       = dry_open(dry, plan, model);
    if (status != SHERD_OK) {
        sherdi_dry_destroy(dry);
        return status;
    }
    *out = dry;
    return SHERD_OK;
}

void sherdi_dry_destroy(sherdi_dry *dry)
{
    if (dry == NULL) {
        return;
    }
    sherdi_updater_close_program(&dry->engine);
    sherdi_store_destroy(&dry->engine);
    sherdi_progress_close(&dry->engine.run.progress);
    sherdi_weighing_close(&dry->engine);
    sherdi_uses_close(&dry->engine);
    sherdi_uses_memory_close(&dry->engine);
    sherdi_fill_close(&dry->engine);
    sherdi_free(dry->joined);
    sherd_world_destroy(dry->engine.world);
    sherdi_free(dry);
}

sherd_status sherdi_dry_start(sherdi_dry *dry)
{
    sherd_engine *engine = &dry->engine;

    for (size_t p = 0; p < engine->model.num_params; p++) {
        engine->fill.is_filled[p] = 1;
    }
    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_STATE);
    sherdi_rings_complete(&engine->run.progress, SHERDI_RING_PARAMS);
    engine->storage.store->dry.live = engine->storage.store->agreed = engine->plan->has_generations;
    engine->phase                                                   = SHERDI_PHASE_RUNNING;
    return sherdi_rings_fetch_ahead(&engine->run.program);
}

static sherd_status nothing_fill(void *ctx, size_t first, size_t count, float *values)
{
    (void)ctx, (void)first;
    memset(values, 0, count * sizeof(*values));
    return SHERD_OK;
}

sherd_status sherdi_dry_fill(sherd_engine *engine, size_t param)
{
    return sherd_param_fill(engine, (sherd_param)param, nothing_fill, NULL);
}

sherd_engine *sherdi_dry_engine(sherdi_dry *dry)
{
    return &dry->engine;
}

void sherdi_dry_join(sherdi_dry *dry, const sherdi_dry *other)
{
    if (dry->engine.plan->layout.used_words > 0) { /* else nobody asks */
        sherdi_uses_note(&other->engine, dry->joined);
    }
}
