/* See lost.h. A ghost is an engine for a lost rank: this rank's own, but with the plan and the
 * memory of the other one. It makes the rest of the lost rank's update with the functions that every
 * update has, and with this rank's coefficients, which are the same on all ranks. */
#include "engine/elastic/lost.h"

#include "base/checked.h"
#include "base/log.h"
#include "collectives/host_memory.h"
#include "engine/modules.h"
#include "engine/run/optimizer.h"
#include "engine/run/scalars.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------- the state's update -- */

sherd_status sherdi_step_note(sherd_engine *engine)
{
    if (engine->elastic == NULL) { /* a dry engine */
        return SHERD_OK;
    }
    engine->elastic->step = (sherdi_step_begun){.is_open     = 1,
                                                .counters    = engine->counters,
                                                .first_micro = engine->window.first_micro,
                                                .scaler      = engine->scaler,
                                                .version     = sherdi_ledger_of(engine)->version};
    if (engine->blobs->changes != engine->elastic->noted.blob_changes) {
        sherdi_ledger_blobs_put(engine, engine->blobs);
    }
    return SHERD_OK;
}

void sherdi_step_forget(sherd_engine *engine)
{
    if (engine->elastic != NULL) {
        engine->elastic->step.is_open = 0;
    }
}

/* Every meeting of the ranks is complete for all survivors or for none of them, and an update begins
 * after a meeting. So all survivors have made the same updates when they have ended theirs. */
static sherd_status state_find(sherd_engine *engine, sherdi_standing *out)
{
    const sherdi_step_begun *step    = &engine->elastic->step;
    sherdi_ledger           *ledger  = sherdi_ledger_of(engine);
    int                      is_made = step->is_open && ledger->version == step->version + 1;

    *out = (sherdi_standing){.version = ledger->version,
                             .step    = engine->counters.step,
                             .skipped = engine->counters.skipped_steps,
                             .micro   = engine->window.first_micro,
                             .scaler  = engine->scaler};
    if (step->is_open) {
        out->step    = step->counters.step + is_made;
        out->skipped = step->counters.skipped_steps;
        out->micro   = is_made ? step->counters.micro_step : step->first_micro;
        out->scaler  = step->scaler;
    }
    if (is_made) {
        SHERDI_TRY(sherdi_modules_scaler_update(&out->scaler, 0));
    }
    if (!sherdi_ledger_is_complete(ledger) ||
        (engine->failure.why.status != SHERD_OK && !step->is_open)) {
        return sherdi_fail(SHERD_E_STATE,
                           SHERDI_MOVE_CALL ": the state of rank %d is not whole: %s; load a "
                                            "checkpoint",
                           engine->rank, engine->failure.why.text);
    }
    return SHERD_OK;
}

sherd_status sherdi_lost_rest(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    if (engine->phase == SHERDI_PHASE_SEALED) {
        return sherdi_fail(SHERD_E_STATE, SHERDI_MOVE_CALL
                           ": a rank was lost before the training began, and its first values "
                           "with it; make a new engine, and fill it");
    }
    m->report.dropped_micro_batches = engine->window.micro_seen + engine->window.has_begun;
    (void)SHERDI_ASK(updater, join, engine); /* what fails in it, fails by the lost rank */
    sherdi_modules_abandon(engine);
    SHERDI_TELL(lanes, drain, engine);
    return state_find(engine, &m->hello.at);
}

/* ------------------------------------------------------------------------ ghosts -- */

struct sherdi_ghost {
    sherd_engine         *engine; /* NULL: none */
    struct sherdi_elastic elastic;
    sherdi_holding        holding;
    sherdi_blobs          blobs;
    unsigned char        *own[SHERDI_BUFFERS]; /* memory that is no rank's */
};

int sherdi_lost_giver(const sherdi_move *m, int old_rank)
{
    int next = old_rank;

    do {
        next = (next + 1) % m->old_size;
    } while (m->goes[next] < 0 && next != old_rank);
    return m->goes[next];
}

const sherdi_holding *sherdi_lost_holding(const sherdi_move *m, int old_rank)
{
    return m->ghosts == NULL || m->ghosts[old_rank].engine == NULL ? NULL
                                                                   : &m->ghosts[old_rank].holding;
}

const sherdi_blobs *sherdi_lost_blobs(const sherdi_move *m, int old_rank)
{
    return m->ghosts == NULL || m->ghosts[old_rank].engine == NULL ? NULL
                                                                   : &m->ghosts[old_rank].blobs;
}

static void ghost_close(sherdi_ghost *ghost)
{
    sherd_engine *engine = ghost->engine;

    if (engine == NULL) {
        return;
    }
    sherdi_blobs_fini(&ghost->blobs);
    if (engine->run.program.fn != NULL) {
        sherdi_run_close(engine);
    }
    sherdi_ledger_close(engine);
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        sherdi_free(ghost->own[b]);
    }
    sherdi_plan_destroy(engine->plan);
    free(engine);
    ghost->engine = NULL;
}

/* The memory of a lost rank where all ranks have it, and new memory for what a walk needs besides. */
static sherd_status ghost_memory(sherdi_ghost *ghost, const sherd_engine *of, int old_rank)
{
    sherd_engine *engine = ghost->engine;

    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        const sherdi_plan_buffer *buffer = &engine->plan->packing.buffers[b];

        engine->memory.buffers[b] = engine->memory.nothing;
        if (buffer->bytes > 0 && buffer->is_shared) {
            engine->memory.buffers[b] =
                sherdi_world_host_of(of->shards, old_rank, of->memory.buffers[b], buffer->bytes);
        } else if (b == SHERDI_BUFFER_BOUNCE || b == SHERDI_BUFFER_SCALARS ||
                   b == SHERDI_BUFFER_HOST_SCALARS) {
            ghost->own[b] =
                sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sherdi_max_size(buffer->bytes, 64));
            if (ghost->own[b] == NULL) {
                return SHERD_E_NOMEM;
            }
            engine->memory.buffers[b] = ghost->own[b];
        }
    }
    return SHERD_OK;
}

/* Gives the ghost the coefficients of this rank's last update. */
static sherd_status ghost_scalars(sherdi_ghost *ghost, const sherd_engine *of)
{
    sherd_engine  *engine = ghost->engine;
    unsigned char *memory = engine->memory.buffers[SHERDI_BUFFER_SCALARS];

    if (engine->plan->packing.buffers[SHERDI_BUFFER_SCALARS].bytes == 0) {
        sherdi_free(ghost->own[SHERDI_BUFFER_SCALARS]);
        ghost->own[SHERDI_BUFFER_SCALARS] =
            sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, engine->plan->scalars.shared_bytes);
        memory = ghost->own[SHERDI_BUFFER_SCALARS];
        if (memory == NULL) {
            return SHERD_E_NOMEM;
        }
    }
    memcpy(memory, of->kernel_data.on_host.memory, engine->plan->scalars.shared_bytes);
    engine->kernel_data = (sherdi_kernel_data){.device  = sherdi_scalars_at(engine->plan, memory),
                                               .on_host = sherdi_scalars_at(engine->plan, memory)};
    return SHERD_OK;
}

/* Opens the ghost of a rank; the plan differs from this rank's in nothing but the rank. */
static sherd_status ghost_open(sherdi_ghost *ghost, sherd_engine *of, int old_rank)
{
    sherd_engine *engine = aligned_alloc(64, sherdi_round_up(sizeof(*engine), 64));

    if (engine == NULL) {
        return SHERD_E_NOMEM;
    }
    memcpy(engine, of, sizeof(*engine));
    sherdi_mem_init(&engine->mem);
    ghost->engine   = engine;
    engine->plan    = NULL;
    engine->rank    = old_rank;
    engine->lanes   = (sherdi_lanes){0};
    engine->queue   = (sherdi_queue){0};
    engine->updater = (sherdi_updater){0};
    engine->storage = (sherdi_storage){0};
    engine->times   = (sherdi_times){0};
    engine->run     = (sherdi_run){.coeffs = of->run.coeffs};
    engine->elastic = &ghost->elastic;
    engine->blobs   = &ghost->blobs;
    engine->sums    = (sherdi_sums){0};
    sherdi_blobs_init(&ghost->blobs, &of->mem);
    SHERDI_TRY(sherdi_plan_create(&of->model, &of->settings, old_rank, of->world_size,
                                  &of->plan->machine, &engine->mem, &engine->plan));
    SHERDI_TRY(ghost_memory(ghost, of, old_rank));
    SHERDI_TRY(ghost_scalars(ghost, of));
    SHERDI_TRY(sherdi_run_open(engine));
    SHERDI_TRY(sherdi_ledger_open(engine));
    for (size_t u = 0; u < engine->plan->layout.num_units; u++) { /* all ranks have used the same */
        sherdi_unit_of(engine, (int)u)->uses.runs = !of->elastic->noted.skipped[u];
    }
    ghost->holding = (sherdi_holding){
        .plan = engine->plan, .model = &of->model, .buffers = engine->memory.buffers};
    return SHERD_OK;
}

/* Makes the rest of the update that the survivors have made. */
static sherd_status ghost_roll(sherdi_ghost *ghost, const sherdi_standing *at, const char **how)
{
    sherd_engine  *engine = ghost->engine;
    sherdi_ledger *ledger = sherdi_ledger_of(engine);

    *how = "whole";
    if (ledger->version + 1 == at->version && sherdi_ledger_is_complete(ledger)) {
        SHERDI_TRY(sherdi_ledger_begin(engine)); /* it was lost before it began the update */
    }
    if (ledger->version != at->version) {
        return sherdi_fail(SHERD_E_STATE,
                           SHERDI_MOVE_CALL ": rank %d was lost at update %llu, and the others are "
                                            "at %llu",
                           engine->rank, (unsigned long long)ledger->version,
                           (unsigned long long)at->version);
    }
    if (sherdi_ledger_is_complete(ledger)) {
        return SHERD_OK;
    }
    *how = "in the middle of its update, which is made now";
    SHERDI_TRY(sherdi_program_walk(&engine->run.program, SHERDI_WALK_UPDATE));
    return sherdi_ledger_is_complete(ledger)
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             SHERDI_MOVE_CALL ": the update of rank %d could not be ended",
                             engine->rank);
}

static sherd_status lost_take(sherdi_move *m, int old_rank)
{
    sherdi_ghost *ghost = &m->ghosts[old_rank];
    const char   *how;

    SHERDI_TRY(ghost_open(ghost, m->engine, old_rank));
    SHERDI_TRY(ghost_roll(ghost, &m->hello.at, &how));
    SHERDI_TRY(sherdi_ledger_blobs_get(ghost->engine->memory.buffers[SHERDI_BUFFER_REDUNDANCY],
                                       ghost->engine->plan, &ghost->blobs));
    sherdi_log(SHERD_LOG_INFO, m->engine->rank,
               "rank %d acts for rank %d, which is lost; its state was found %s", m->engine->rank,
               old_rank, how);
    return SHERD_OK;
}

static sherd_status gone_fail(const sherdi_move *m)
{
    char lost[128] = "";

    for (int r = 0; r < m->old_size; r++) {
        size_t len = strlen(lost);

        if (m->goes[r] < 0) {
            (void)snprintf(lost + len, sizeof(lost) - len, "%s%d", len > 0 ? ", " : "", r);
        }
    }
    return sherdi_fail(SHERD_E_STATE,
                       SHERDI_MOVE_CALL ": the state of rank %s is gone with its process, and "
                                        "nothing else has it (sherd.redundancy); load a checkpoint "
                                        "into a new engine",
                       lost);
}

sherd_status sherdi_lost_open(sherdi_move *m)
{
    sherd_engine *engine = m->engine;

    if (m->report.lost_size == 0 || !engine->plan->layout.is_sliced) {
        return SHERD_OK;
    }
    if (sherdi_keeps_nothing(&engine->settings)) {
        return gone_fail(m);
    }
    m->ghosts = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)m->old_size,
                                   sizeof(*m->ghosts));
    if (m->ghosts == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int r = 0; r < m->old_size; r++) {
        if (m->goes[r] < 0 && sherdi_lost_giver(m, r) == sherd_world_rank(m->new_world)) {
            SHERDI_TRY(lost_take(m, r));
        }
    }
    return SHERD_OK;
}

void sherdi_lost_close(sherdi_move *m)
{
    for (int r = 0; m->ghosts != NULL && r < m->old_size; r++) {
        ghost_close(&m->ghosts[r]);
    }
    sherdi_free(m->ghosts);
    m->ghosts = NULL;
}
