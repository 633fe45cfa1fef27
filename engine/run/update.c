/* The walks over the blocks at a boundary (program_walk.c), and what the ranks exchange about them: whether all have done the
 * same, the sum of the fingerprints, and the norms of all tensors for an optimizer that measures first. */
#include "engine/run/update.h"

#include "engine/run/agree.h"
#include "engine/run/engine_impl.h"
#include "engine/run/lanes.h"

/* Waits for the transfers of a walk. One that only reads leaves alone what was read ahead. */
static void rings_settle(sherd_engine *engine, int is_written, sherdi_outcome *all)
{
    sherdi_outcome_add(all, sherdi_run_settle(engine, SHERDI_RING_STATE));
    if (is_written) {
        sherdi_outcome_add(all, sherdi_run_settle(engine, SHERDI_RING_PARAMS));
        sherdi_outcome_add(all, sherdi_run_settle(engine, SHERDI_RING_GRADS));
    }
}

/* Runs a walk. When it returns, with or without a failure, every transfer of the walk is over, and `head` has the results; with NULL
 * nothing waits for the device. */
static sherd_status walk_run(sherd_engine *engine, sherdi_walk walk, sherdi_scalars_head *head)
{
    sherdi_outcome all        = {.status = SHERD_OK};
    int            is_written = walk != SHERDI_WALK_FINGERPRINT && walk != SHERDI_WALK_SAVE;
    int            is_left;

    engine->fingerprints.is_sent = 0;
    if (is_written) { /* the parameters are about to change */
        sherdi_outcome_add(&all, sherdi_run_settle(engine, SHERDI_RING_PARAMS));
    }
    if (all.status == SHERD_OK) {
        sherdi_outcome_add(&all, sherdi_program_walk(&engine->run.program, walk));
    }
    is_left = all.status != SHERD_OK;
    rings_settle(engine, is_written, &all);
    if (is_left && is_written) {
        sherdi_outcome_add(&all, sherdi_program_walk_leave(&engine->run.program, walk));
        rings_settle(engine, is_written, &all);
    }
    sherdi_lane_follow(engine->lanes.update, engine->lanes.down);
    sherdi_lane_follow(engine->lanes.update, engine->lanes.up);
    if (all.status == SHERD_OK && head != NULL) {
        sherdi_outcome_add(&all, sherdi_program_collect(&engine->run.program));
        *head = engine->results;
    }
    return sherdi_outcome_end(&all);
}

sherd_status sherdi_update_fingerprint(sherd_engine *engine, sherdi_scalars_head *out)
{
    return walk_run(engine, SHERDI_WALK_FINGERPRINT, out);
}

/* Sends what this rank has updated to the others, where the walk has not. */
static sherd_status publish_run(sherd_engine *engine)
{
    sherd_status status = sherdi_program_publish(&engine->run.program);

    sherdi_lanes_join(engine);
    return status;
}

sherd_status sherdi_update_agree(sherd_engine *engine, sherd_status status, uint64_t own,
                                 const char *when, uint64_t *out)
{
    SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_OUTCOME, status, own, when));
    *out = engine->fingerprints.frozen + (engine->plan->is_sliced ? sherdi_agree_sum(engine) : own);
    return SHERD_OK;
}

sherd_status sherdi_update_measure(sherd_engine *engine)
{
    sherdi_scalars_head unused;

    if (!sherdi_plan_is_measured(engine->plan)) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_agree_status(engine, walk_run(engine, SHERDI_WALK_MEASURE, &unused)));
    SHERDI_TRY(sherdi_program_sum(&engine->run.program));
    return sherdi_program_scalars_tell(&engine->run.program, SHERDI_OP_RATIOS);
}

static sherd_status range_run(sherd_engine *engine)
{
    sherdi_scalars_head head   = {0};
    sherdi_scaler       scaler = engine->scaler; /* as a step without overflow leaves it */
    sherd_status        status = walk_run(engine, SHERDI_WALK_UPDATE, &head);

    if (status == SHERD_OK) {
        status = sherdi_scaler_update(&scaler, 0);
    }
    if (status == SHERD_OK) {
        status = sherdi_run_commit(engine, engine->step + 1, head.fingerprint, &scaler);
    }
    SHERDI_TRY(sherdi_update_agree(engine, status, head.fingerprint, "in the middle of the update",
                                   &engine->report.fingerprint));
    sherdi_store_agreed(engine);
    sherdi_store_verify(engine, engine->settings.verify_reads); /* all that was filled was read */
    engine->fingerprints.own     = head.fingerprint;
    engine->fingerprints.has_own = 1;
    return publish_run(engine);
}

/* Of what is on no drive nothing fails but the device, for good. So the ranks need not tell each other how it went. */
static int can_be_queued(const sherd_engine *engine)
{
    return sherdi_has_device(engine) && !sherdi_plan_has_files(engine->plan);
}

static sherd_status range_queue(sherd_engine *engine)
{
    SHERDI_TRY(walk_run(engine, SHERDI_WALK_UPDATE, NULL));
    SHERDI_TRY(sherdi_program_fingerprint_send(&engine->run.program));
    engine->fingerprints.has_own   = 0;
    engine->fingerprints.is_sent   = 1;
    engine->fingerprints.is_untold = 1;
    engine->report.fingerprint     = 0;
    return publish_run(engine);
}

sherd_status sherdi_update_range(sherd_engine *engine, int is_awaited)
{
    return is_awaited || !can_be_queued(engine) ? range_run(engine) : range_queue(engine);
}

/* Makes the parameters from the master weights on all ranks; if one rank fails, all fail. */
static sherd_status masters_publish(sherd_engine *engine, sherdi_walk walk, uint64_t *own_out)
{
    sherdi_scalars_head head   = {0};
    uint64_t            all    = 0;
    sherd_status        status = walk_run(engine, walk, &head);

    SHERDI_TRY(sherdi_update_agree(engine, status, head.fingerprint, "while it read its state back",
                                   &all));
    engine->fingerprints.own     = head.fingerprint;
    engine->fingerprints.has_own = 1;
    *own_out                     = head.fingerprint;
    return publish_run(engine);
}

sherd_status sherdi_update_republish(sherd_engine *engine, uint64_t *own_out)
{
    return masters_publish(engine, SHERDI_WALK_REPUBLISH, own_out);
}

sherd_status sherdi_update_save(sherd_engine *engine, sherdi_block_fn fn, void *ctx)
{
    sherdi_scalars_head unused;

    engine->run.block_fn  = fn;
    engine->run.block_ctx = ctx;
    SHERDI_TRY(sherdi_run_settle(engine, SHERDI_RING_STATE));
    return walk_run(engine, SHERDI_WALK_SAVE, &unused);
}

sherd_status sherdi_update_load(sherd_engine *engine, sherdi_walk walk, sherdi_block_fn fn,
                                void *ctx)
{
    uint64_t unused;

    engine->run.block_fn           = fn;
    engine->run.block_ctx          = ctx;
    engine->fingerprints.is_untold = 0;
    return masters_publish(engine, walk, &unused);
}
