/* The worlds of an engine in addition to that of all ranks. With replicas (sherd.shard_size): of the
 * ranks that share one copy, which gather and reduce, and of those that have the same slices, which
 * add these up. With second copies (zero_hpz_partition_size): of the ranks that share one. All ranks
 * together agree, exchange messages, and send what one of them has. See program_replicas.c and
 * program_copies.c. */
#include "collectives/group.h"
#include "collectives/sums.h"
#include "engine/engine.h"
#include "engine/modules.h"
#include "engine/run/agree.h"
#include "engine/run/kernels.h"

/* A run that changes its number of ranks may come to one that the size does not divide. */
static int is_out(const sherd_engine *engine, int size)
{
    return engine->world_size % size != 0 && engine->settings.elastic[1] > 0;
}

/* Refuses a number of ranks that share a copy, the value of `key`, if they would not be on one host
 * each. */
static sherd_status size_check(const sherd_engine *engine, int size, const char *key)
{
    sherdi_machine machine;

    if (is_out(engine, size)) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_machine_detect(engine->world, &machine));
    if (engine->world_size % size != 0 || machine.local_size % size != 0) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "%s is %d, and rank %d is one of %d ranks, %d of them on its host; choose "
            "a number that divides both, or give sherd.elastic",
            key, size, engine->rank, engine->world_size, machine.local_size);
    }
    return machine.local_rank % size == engine->rank % size
               ? SHERD_OK
               : sherdi_fail(
                     SHERD_E_INVAL,
                     "%s is %d, and rank %d is number %d on its host: the ranks of a host do "
                     "not follow one another; start them host by host (mpirun --map-by slot, "
                     "srun --distribution=block)",
                     key, size, engine->rank, machine.local_rank);
}

static sherd_status shard_size_check(const sherd_engine *engine)
{
    const sherdi_settings *settings = &engine->settings;
    int                    size     = settings->sharding.shard_size;

    if (settings->sharding.stage == 0) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "sherd.shard_size is %d at stage 0, which shards nothing; remove the key "
            "or choose a stage from 1 to 3",
            size);
    }
    if (settings->copy_ranks > 1) {
        return sherdi_fail(SHERD_E_INVAL,
                           "sherd.shard_size has all that is sharded on each host, and "
                           "zero_optimization.zero_hpz_partition_size a second copy of the "
                           "parameters; remove one of the two keys");
    }
    SHERDI_TRY(size_check(engine, size, "sherd.shard_size"));
    return settings->numerics.deterministic && engine->backend->device->is_async
               ? sherdi_fail(SHERD_E_NOTSUP, "sherd.shard_size with deterministic on a device: its "
                                             "integers are added up in host memory only")
               : SHERD_OK;
}

/* The ranks of this one's replica, and those with the same slices. */
static sherd_status replicas_make(sherd_engine *engine)
{
    int          size   = engine->settings.sharding.shard_size;
    int          place  = engine->rank % size;
    sherd_world *shards = NULL;

    SHERDI_TRY(sherdi_agree_world(engine->world, shard_size_check(engine)));
    if (size == engine->world_size || is_out(engine, size)) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_world_group(engine->world, engine->rank - place, 1, size, &shards));
    sherd_world_destroy(engine->shards);
    engine->shards = shards;
    return sherdi_world_group(engine->world, place, size, engine->world_size / size,
                              &engine->group);
}

/* The ranks that share a second copy. */
static sherd_status neighbours_make(sherd_engine *engine)
{
    int size = engine->settings.copy_ranks;

    SHERDI_TRY(sherdi_agree_world(
        engine->world, size_check(engine, size, "zero_optimization.zero_hpz_partition_size")));
    return size == engine->world_size || is_out(engine, size)
               ? SHERD_OK
               : sherdi_world_group(engine->world, engine->rank - engine->rank % size, 1, size,
                                    &engine->group);
}

static sherd_status worlds_make(sherd_engine *engine)
{
    const sherdi_settings *settings = &engine->settings;

    if (settings->sharding.shard_size > 0) {
        return replicas_make(engine);
    }
    return settings->copy_ranks > 1 && settings->sharding.stage == 3 ? neighbours_make(engine)
                                                                     : SHERD_OK;
}

static void worlds_close(sherd_engine *engine)
{
    sherd_world_destroy(engine->group);
}

/* The machine was measured before the plan; it has what the world of all ranks holds. */
static sherd_status held_add(sherd_engine *engine)
{
    size_t *bytes = &engine->plan->machine.transport_bytes;

    if (engine->shards != engine->world) {
        *bytes += sherdi_world_held_of(engine->shards)->overhead_bytes;
    }
    if (engine->group != NULL) {
        *bytes += sherdi_world_held_of(engine->group)->overhead_bytes;
    }
    return SHERD_OK;
}

static sherd_status replicas_open(sherd_engine *engine)
{
    sherd_status status = SHERD_OK;

    if (engine->group != NULL && engine->settings.sharding.overlap_comm) {
        status = sherdi_world_overlap(engine->group);
    }
    return status == SHERD_E_NOTSUP ? SHERD_OK : status; /* the core warns of it */
}

/* What ranks of a replica have enqueued may read each other's memory until they meet: an exchange of
 * all ranks is a meeting when this has ended. */
static sherd_status exchanging(sherd_engine *engine)
{
    if (engine->group != NULL && (sherdi_world_caps(engine->shards) & SHERDI_WORLD_ON_LANE) == 0) {
        sherdi_world_drain(engine->shards);
        return sherdi_world_status(engine->shards);
    }
    return SHERD_OK;
}

sherd_status sherdi_call_across(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    void                       *slice = sherdi_run_address(engine, op, SHERDI_USE_DST);
    const sherdi_reduction_args args  = {
         .send        = slice,
         .recv        = slice,
         .slice_elems = op->elems,
         .send_dtype  = op->from,
         .comm_dtype  = op->from,
         .recv_dtype  = op->from,
         .scale       = 1,
         .add         = engine->plan->layout.is_deterministic ? sherdi_integers_add : NULL,
         .what        = sherdi_run_subject(engine, op),
         .observer    = engine->times.observer,
    };

    return sherdi_world_all_reduce(engine->group, &args, number_out);
}

/* A rank that is lost in one of the smaller worlds is lost to all, who may not have heard of it:
 * the program may end when it sees the failure, and the others would take that for the cause. */
static void lost_tell(sherd_engine *engine, sherd_status status, const char *text)
{
    if (engine->group != NULL && status == SHERD_E_PEER_LOST &&
        sherdi_world_status(engine->world) == SHERD_OK) {
        sherd_world_abort(engine->world, text);
    }
}

static void call_failed(sherd_engine *engine, sherd_status status)
{
    const sherdi_outcome why = sherdi_outcome_of(status);

    lost_tell(engine, status, why.text);
    (void)sherdi_outcome_end(&why);
}

/* Replicas that have parted would never meet again. */
static sherd_status outcome_agreed(const sherd_engine *engine)
{
    const sherdi_plan *plan = engine->plan;
    uint64_t           own  = sherdi_agree_sum(engine, engine->plan->replica);

    for (int k = 0; k < plan->num_replicas && plan->layout.is_sliced; k++) {
        if (sherdi_agree_sum(engine, k) != own) {
            return sherdi_fail(SHERD_E_STATE,
                               "the replicas have parted: the parameters of ranks %d to %d and of "
                               "ranks %d to %d have other fingerprints; load a checkpoint",
                               plan->replica * plan->world_size,
                               (plan->replica + 1) * plan->world_size - 1, k * plan->world_size,
                               (k + 1) * plan->world_size - 1);
        }
    }
    return SHERD_OK;
}

const sherdi_module sherdi_module_replica_worlds = {.created        = worlds_make,
                                                    .destroy        = worlds_close,
                                                    .check          = held_add,
                                                    .open           = replicas_open,
                                                    .failed_alone   = lost_tell,
                                                    .call_failed    = call_failed,
                                                    .exchanging     = exchanging,
                                                    .outcome_agreed = outcome_agreed};
