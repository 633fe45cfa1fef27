/* See ghost.h. */
#include "engine/elastic/ghost.h"

#include "base/checked.h"
#include "collectives/host_memory.h"
#include "engine/elastic/image.h"
#include "engine/elastic/room.h"
#include "engine/run/scalars.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------- the plan -- */

sherd_status sherdi_ghost_plan(const sherdi_plan *like, const sherdi_model *model, int rank,
                               sherdi_mem *mem, sherdi_plan **out)
{
    sherdi_settings settings = like->settings;
    sherdi_machine  machine  = like->machine;

    if (settings.redundancy == SHERDI_REDUNDANCY_PEER) {
        settings.redundancy = SHERDI_REDUNDANCY_NONE; /* a copy has no copy */
    }
    settings.elastic[0] = settings.elastic[1] = 0;
    if (settings.sharding.stage < 3) {
        settings.sharding.persistence_threshold = 0; /* there, all parameters are resident */
        settings.offload.params.tier            = &sherdi_tier_device;
        settings.offload.params.space           = SHERDI_SPACE_DEVICE;
    }
    settings.sharding.stage            = 3;
    settings.offload.activations.tier  = &sherdi_tier_device;
    settings.offload.activations.space = SHERDI_SPACE_DEVICE;
    settings.fingerprints.file[0]      = '\0';
    machine.has_device                 = 0;
    machine.is_on_lane                 = 0;
    machine.has_receive                = 0;
    return sherdi_plan_create(model, &settings, rank, like->world_size, &machine, mem, out);
}

static int segments_fit(const sherdi_plan *one_plan, const sherdi_plan *other_plan)
{
    int fits = one_plan->layout.num_segments == other_plan->layout.num_segments &&
               one_plan->scalars.inputs == other_plan->scalars.inputs &&
               one_plan->scalars.shared_bytes == other_plan->scalars.shared_bytes;

    for (size_t s = 0; s < one_plan->layout.num_segments && fits; s++) {
        const sherdi_segment *one   = &one_plan->layout.segments[s];
        const sherdi_segment *other = &other_plan->layout.segments[s];

        fits = one->slice_elems == other->slice_elems && one->types.grad == other->types.grad &&
               one->types.compute == other->types.compute && one->has_master == other->has_master &&
               one->ties_part == other->ties_part && one->optimizer == other->optimizer &&
               memcmp(one->encodings, other->encodings, sizeof(one->encodings)) == 0;
    }
    for (size_t b = 0; b < one_plan->layout.num_blocks && fits; b++) {
        const sherdi_block *one   = &one_plan->layout.blocks[b];
        const sherdi_block *other = &other_plan->layout.blocks[b];

        fits = one_plan->layout.num_blocks == other_plan->layout.num_blocks &&
               one->segment == other->segment && one->offset_elems == other->offset_elems &&
               one->elems == other->elems;
    }
    return fits;
}

sherd_status sherdi_ghost_check(sherd_engine *engine)
{
    sherdi_plan *other;
    int          fits;

    if (!sherdi_keeps_apart(engine->plan)) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_ghost_plan(engine->plan, &engine->model, engine->rank, &engine->mem, &other));
    fits = segments_fit(engine->plan, other);
    sherdi_plan_destroy(other);
    return fits
               ? SHERD_OK
               : sherdi_fail(SHERD_E_NOTSUP,
                             "sherd.redundancy: what is kept of a lost rank would have other "
                             "slices or types than this engine, which adds gradients up in another "
                             "type before it reduces them; choose stage 2 or 3");
}

/* ---------------------------------------------------------------- open and close -- */

void sherdi_ghost_close(sherdi_ghost *ghost)
{
    sherd_engine *engine = ghost->engine;

    if (engine == NULL) {
        return;
    }
    sherdi_blobs_fini(&ghost->blobs);
    sherdi_run_close(engine);
    sherdi_ledger_close(engine);
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        sherdi_free(ghost->own[b]);
    }
    sherdi_plan_destroy(engine->plan);
    free(engine);
    memset(ghost, 0, sizeof(*ghost));
}

static sherd_status own_make(sherdi_ghost *ghost, int buffer, size_t bytes)
{
    ghost->own[buffer] =
        sherdi_alloc(&ghost->engine->mem, SHERDI_MEM_CONTROL, sherdi_max_size(bytes, 64));
    ghost->engine->memory.buffers[buffer] = ghost->own[buffer];
    return ghost->own[buffer] == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

/* The memory of the rank where all ranks have it, and new memory for what a walk needs besides. */
static sherd_status memory_share(sherdi_ghost *ghost, const sherd_engine *of, int rank)
{
    sherd_engine *engine = ghost->engine;
    int           is_own = sherdi_keeps_apart(of->plan);

    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        const sherdi_plan_buffer *seen  = &of->plan->packing.buffers[b];
        size_t                    bytes = engine->plan->packing.buffers[b].bytes;

        if (bytes > 0 && seen->bytes > 0 && seen->is_shared == sherdi_ledger_sharing(of->plan)) {
            engine->memory.buffers[b] =
                sherdi_world_host_of(of->shards, rank, of->memory.buffers[b], seen->bytes);
        } else if (b == SHERDI_BUFFER_BOUNCE || b == SHERDI_BUFFER_HOST_SCALARS ||
                   (is_own && bytes > 0 && sherdi_ghost_has(b))) {
            SHERDI_TRY(own_make(ghost, b, bytes));
        }
    }
    return SHERD_OK;
}

static void memory_carve(sherdi_ghost *ghost, unsigned char *memory)
{
    sherd_engine *engine = ghost->engine;

    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        if (sherdi_ghost_has(b) && engine->plan->packing.buffers[b].bytes > 0) {
            engine->memory.buffers[b] = memory;
            memory += sherdi_round_up(engine->plan->packing.buffers[b].bytes, SHERD_ALIGN_BYTES);
        }
    }
}

/* Begins a ghost: the engine's object, without anything that is at work in it. */
static sherd_status engine_make(sherdi_ghost *ghost, sherd_engine *of, int rank)
{
    sherd_engine *engine = aligned_alloc(64, sherdi_round_up(sizeof(*engine), 64));

    if (engine == NULL) {
        return SHERD_E_NOMEM;
    }
    memcpy(engine, of, sizeof(*engine));
    sherdi_mem_init(&engine->mem);
    ghost->engine       = engine;
    engine->plan        = NULL;
    engine->rank        = rank;
    engine->backend     = (sherdi_backend *)(uintptr_t)of->host;
    engine->lanes       = (sherdi_lanes){0};
    engine->queue       = (sherdi_queue){0};
    engine->updater     = (sherdi_updater){0};
    engine->storage     = (sherdi_storage){0};
    engine->times       = (sherdi_times){0};
    engine->kernel_data = (sherdi_kernel_data){0};
    engine->run         = (sherdi_run){0};
    engine->sums        = (sherdi_sums){0};
    engine->elastic     = &ghost->elastic;
    engine->blobs       = &ghost->blobs;
    sherdi_blobs_init(&ghost->blobs, &of->mem);
    return SHERD_OK;
}

/* Opens what a walk over the blocks of the plan needs. */
static sherd_status walk_open(sherdi_ghost *ghost, sherd_engine *of)
{
    sherd_engine  *engine = ghost->engine;
    unsigned char *memory;

    if (engine->memory.buffers[SHERDI_BUFFER_SCALARS] == engine->memory.nothing) {
        SHERDI_TRY(own_make(ghost, SHERDI_BUFFER_SCALARS, engine->plan->scalars.bytes));
    }
    memory                      = engine->memory.buffers[SHERDI_BUFFER_SCALARS];
    engine->kernel_data.device  = sherdi_scalars_at(engine->plan, memory);
    engine->kernel_data.on_host = engine->kernel_data.device;
    SHERDI_TRY(sherdi_run_open(engine));
    SHERDI_TRY(sherdi_ledger_open(engine));
    sherdi_ghost_coeffs(ghost, of);
    ghost->holding = (sherdi_holding){
        .plan = engine->plan, .model = &of->model, .buffers = engine->memory.buffers};
    return SHERD_OK;
}

sherd_status sherdi_ghost_open_shared(sherdi_ghost *ghost, sherd_engine *of, int rank)
{
    sherd_engine *engine;

    SHERDI_TRY(engine_make(ghost, of, rank));
    engine = ghost->engine;
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        engine->memory.buffers[b] = engine->memory.nothing;
    }
    SHERDI_TRY(sherdi_keeps_apart(of->plan)
                   ? sherdi_ghost_plan(of->plan, &of->model, rank, &engine->mem, &engine->plan)
                   : sherdi_plan_create(&of->model, &of->settings, rank, of->world_size,
                                        &of->plan->machine, &engine->mem, &engine->plan));
    engine->settings = engine->plan->settings;
    SHERDI_TRY(memory_share(ghost, of, rank));
    SHERDI_TRY(walk_open(ghost, of));
    (void)sherdi_room_take(of, rank, &ghost->holding);
    return SHERD_OK;
}

sherd_status sherdi_ghost_open_own(sherdi_ghost *ghost, sherd_engine *of, int rank,
                                   sherdi_plan *plan, unsigned char *memory)
{
    sherd_status status = engine_make(ghost, of, rank);

    if (status != SHERD_OK) {
        sherdi_plan_destroy(plan);
        return status;
    }
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        ghost->engine->memory.buffers[b] = ghost->engine->memory.nothing;
    }
    ghost->engine->plan     = plan;
    ghost->engine->settings = plan->settings;
    memory_carve(ghost, memory);
    return walk_open(ghost, of);
}

void sherdi_ghost_coeffs(sherdi_ghost *ghost, const sherd_engine *of)
{
    sherd_engine        *engine = ghost->engine;
    const unsigned char *from   = of->kernel_data.on_host.memory + of->plan->scalars.inputs;

    memcpy(engine->kernel_data.on_host.memory + engine->plan->scalars.inputs, from,
           of->plan->scalars.shared_bytes - of->plan->scalars.inputs);
    engine->run.coeffs = of->run.coeffs;
    for (size_t u = 0; u < engine->plan->layout.num_units; u++) { /* all ranks have used the same */
        sherdi_unit_of(engine, (int)u)->uses.runs = !of->elastic->noted.skipped[u];
    }
}

/* Whether new parameters pass through memory that has gone with the process, on their way to where
 * they rest. */
static int passes_apart(const sherdi_plan *plan)
{
    return plan->layout.offloads_state ||
           plan->settings.offload.params.space != SHERDI_SPACE_DEVICE;
}

/* Makes what is left of the update. Parameters that may not have arrived are made again, from the
 * masters. */
static sherd_status rest_make(sherd_engine *engine, sherdi_ledger *ledger)
{
    if (!sherdi_ledger_is_complete(ledger)) {
        SHERDI_TRY(sherdi_program_walk(&engine->run.program, SHERDI_WALK_UPDATE));
    }
    return passes_apart(engine->plan)
               ? sherdi_program_walk(&engine->run.program, SHERDI_WALK_REPUBLISH)
               : SHERD_OK;
}

sherd_status sherdi_ghost_roll(sherdi_ghost *ghost, uint64_t version, const char **was)
{
    sherd_engine  *engine = ghost->engine;
    sherdi_ledger *ledger = sherdi_ledger_of(engine);

    *was = "whole";
    if (sherdi_image_bytes(engine->plan) > 0) {
        if (ledger->version == version + 1) {
            SHERDI_TRY(sherdi_ledger_undo(engine, ghost->own[SHERDI_BUFFER_PARAMS] == NULL));
            *was = "in or after an update that all undo";
        }
    } else if (ledger->version + 1 == version && sherdi_ledger_is_complete(ledger)) {
        SHERDI_TRY(sherdi_ledger_begin(engine));
        *was = "before its update, which is made now";
    } else if (!sherdi_ledger_is_complete(ledger)) {
        *was = "in the middle of its update, which is ended now";
    }
    if (ledger->version != version) {
        return sherdi_fail(SHERD_E_STATE,
                           SHERDI_MOVE_CALL ": rank %d was lost at update %llu, and the others are "
                                            "at %llu; load a checkpoint into a new engine",
                           engine->rank, (unsigned long long)ledger->version,
                           (unsigned long long)version);
    }
    SHERDI_TRY(rest_make(engine, ledger));
    return sherdi_ledger_is_complete(ledger)
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             SHERDI_MOVE_CALL ": the update of rank %d could not be ended",
                             engine->rank);
}
