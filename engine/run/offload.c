/* See offload.h: the tables that do nothing, and the choice of a table. */
#include "engine/run/offload.h"

#include "engine/run/engine_impl.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

/* Functions of each form; their results mean that nothing is to be done. */
static sherd_status none_do(sherd_engine *engine)
{
    return SHERD_OK;
}

static void none_end(sherd_engine *engine)
{
}

static int none_is(const sherd_engine *engine)
{
    return 0;
}

static size_t none_bytes(const sherd_engine *engine)
{
    return 0;
}

static sherd_status none_op(sherd_engine *engine, const sherdi_op *op)
{
    return SHERD_OK;
}

/* ---------------------------------------------------------------- storage -- */

static sherd_status none_submit(sherd_engine *engine, const sherdi_op *op,
                                const sherdi_follows *follows)
{
    return SHERD_OK;
}

static sherd_status none_wait(sherd_engine *engine, uint64_t number)
{
    return SHERD_OK;
}

static sherd_status none_status(const sherd_engine *engine, sherdi_ring ring)
{
    return SHERD_OK;
}

static sherd_status none_settle(sherd_engine *engine, sherdi_ring ring)
{
    return SHERD_OK;
}

static void none_drop(sherd_engine *engine, sherdi_ring ring)
{
}

static sherdi_storage_waits none_waits(sherd_engine *engine, sherdi_user user, sherdi_ring ring)
{
    return (sherdi_storage_waits){0};
}

static sherdi_file_traffic none_traffic(sherd_engine *engine)
{
    return (sherdi_file_traffic){0};
}

static sherd_status none_generation(sherd_engine *engine, sherdi_op_kind kind)
{
    return SHERD_OK;
}

static void none_note(sherd_engine *engine, int64_t step, const sherdi_scaler *scaler,
                      int is_written)
{
}

static sherd_status none_commit(sherd_engine *engine, uint64_t fingerprint)
{
    return SHERD_OK;
}

static int64_t none_stored_step(sherd_engine *engine)
{
    return -1;
}

static void none_verify(sherd_engine *engine, int is_on)
{
}

const sherdi_storage_ops sherdi_storage_none = {
    .open         = none_do,
    .resume       = none_do,
    .stop         = none_end,
    .close        = none_end,
    .submit       = none_submit,
    .poll         = none_end,
    .wait         = none_wait,
    .wait_all     = none_do,
    .status       = none_status,
    .settle       = none_settle,
    .drop         = none_drop,
    .waits_take   = none_waits,
    .traffic_take = none_traffic,
    .traffic      = none_traffic,
    .generation   = none_generation,
    .begin        = none_do,
    .note         = none_note,
    .commit       = none_commit,
    .agreed       = none_end,
    .restore      = none_do,
    .stored_step  = none_stored_step,
    .verify       = none_verify,
    .blob_bytes   = none_bytes,
};

/* ---------------------------------------------------------------- updater -- */

static const sherdi_program *none_program(const sherd_engine *engine)
{
    return &engine->run.program;
}

static void none_report(sherd_engine *engine, sherd_step_report *report)
{
}

static sherd_status none_read_ahead(sherd_engine *engine)
{
    return sherdi_program_read_ahead(&engine->run.program);
}

const sherdi_updater_ops sherdi_updater_none = {
    .open         = none_do,
    .close        = none_end,
    .is_here      = none_is,
    .beat         = none_end,
    .program      = none_program,
    .queue        = none_do,
    .join         = none_do,
    .check        = none_do,
    .report       = none_report,
    .forget       = none_end,
    .read_ahead   = none_read_ahead,
    .settle_ahead = none_end,
    .post         = none_op,
    .await        = none_op,
};

/* ----------------------------------------------------------------- choice -- */

/* The last row stands for a build without the module. */
static const struct {
    const sherdi_storage_ops *storage;
    const sherdi_updater_ops *updater;
} TABLE[] = {
#define SHERDI_OFFLOAD(storage, updater) {&(storage), &(updater)},
#include "engine/run/offload_list.h"
#undef SHERDI_OFFLOAD
    {&sherdi_storage_none, &sherdi_updater_none},
};

sherd_status sherdi_storage_open(sherd_engine *engine)
{
    const sherdi_plan *plan   = engine->plan;
    size_t             stored = sherdi_plan_stored(plan) + plan->offload.num_pieces +
                    plan->offload.num_grad_extents + plan->offload.num_activation_extents;

    return stored > 0 ? TABLE[0].storage->open(engine) : SHERD_OK;
}

sherd_status sherdi_updater_open(sherd_engine *engine)
{
    return TABLE[0].updater->open(engine);
}

void sherdi_offload_clear(sherd_engine *engine)
{
    engine->storage = (sherdi_storage){.ops = &sherdi_storage_none};
    engine->updater = (sherdi_updater){.ops = &sherdi_updater_none};
}
