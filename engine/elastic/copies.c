/* See copies.h. */
#include "engine/elastic/copies.h"

#include "base/checked.h"
#include "base/thread.h"
#include "engine/elastic/lost.h"
#include "engine/elastic/room.h"
#include "engine/program/program_walk.h"
#include "kernels/cpu/roles.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Elements that a rank sends before the next one does: several portions fit a slot of the wire. */
#define PORTION_ELEMS ((size_t)64 << 10)

struct sherdi_copies {
    sherdi_ghost ghost;
    sherdi_mem   mem;
    int          of_rank;
    int          is_valid;                           /* it has all values */
    uint64_t     moved_bytes, sent_bytes, got_bytes; /* when they were taken: of all ranks, ... */
    int          is_due; /* the gradient of an update is here, and the update is not made */
    int          has_thread, is_working, shall_end;
    pthread_t    thread;
    pthread_mutex_t lock;
    pthread_cond_t  changed;
};

static int has_copies(const sherdi_plan *plan)
{
    return plan->settings.redundancy == SHERDI_REDUNDANCY_PEER;
}

static int before(int rank, int size)
{
    return (rank + size - 1) % size;
}

/* -------------------------------------------------------------------- the plan -- */

sherd_status sherdi_copies_lay_out(sherdi_plan *plan, const sherdi_model *model)
{
    sherdi_plan_buffer *room = &plan->packing.buffers[SHERDI_BUFFER_REDUNDANCY];
    sherdi_plan_buffer *copy = &plan->packing.buffers[SHERDI_BUFFER_SECOND];
    sherdi_plan        *other;

    if (!has_copies(plan) || plan->world_size == 1) {
        return SHERD_OK;
    }
    SHERDI_TRY(
        sherdi_ghost_plan(plan, model, before(plan->rank, plan->world_size), plan->mem, &other));
    sherdi_plan_buffer_name(plan, SHERDI_BUFFER_REDUNDANCY, "gradients for a second copy",
                            SHERDI_MEM_STAGING, 1);
    sherdi_plan_buffer_name(plan, SHERDI_BUFFER_SECOND, "second copy of a rank", SHERDI_MEM_STATE,
                            1);
    room->is_shared = sherdi_ledger_sharing(plan);
    room->is_pinned = plan->machine.has_device;
    room->bytes     = sherdi_ledger_bytes(plan) + sherdi_room_bytes(plan);
    copy->bytes     = sherdi_ledger_head_bytes();
    for (int b = 0; b < SHERDI_BUFFERS; b++) {
        if (sherdi_ghost_has(b)) {
            copy->bytes += sherdi_round_up(other->packing.buffers[b].bytes, SHERD_ALIGN_BYTES);
        }
    }
    sherdi_plan_destroy(other);
    return SHERD_OK;
}

/* The buffer begins with a copy of the other rank's ledger and blobs. */
static unsigned char *head_of(const sherd_engine *engine)
{
    return engine->memory.buffers[SHERDI_BUFFER_SECOND];
}

/* ------------------------------------------------------------------ the gradient -- */

sherd_status sherdi_copies_gradient(sherd_engine *engine)
{
    sherdi_copies *copies = engine->elastic == NULL ? NULL : engine->elastic->copies;
    uint64_t       moved;

    SHERDI_TRY(sherdi_room_fill(engine));
    if (copies == NULL) { /* also a dry engine, or a simulated world */
        return SHERD_OK;
    }
    sherdi_copies_join(engine);
    sherdi_ledger_skips(engine);
    moved = sherdi_room_take(engine, copies->of_rank, &copies->ghost.holding);
    sherdi_pass_count(engine->world, moved, moved);
    copies->is_due = 1;
    sherdi_ledger_blobs_copy(sherdi_ledger_memory_of(engine, copies->of_rank), head_of(engine));
    return SHERD_OK;
}

/* -------------------------------------------------------------------- the update -- */

static void *copies_main(void *raw)
{
    sherdi_copies *copies = raw;

    (void)pthread_setname_np(pthread_self(), "sherd-copies");
    sherdi_backend_cpu_keep(copies->ghost.engine->host, SHERDI_CPU_ROLE_UPDATES,
                            copies->ghost.engine->rank);
    sherdi_mem_forbid_begin();
    (void)pthread_mutex_lock(&copies->lock);
    while (!copies->shall_end || copies->is_working) {
        if (!copies->is_working) {
            (void)pthread_cond_wait(&copies->changed, &copies->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&copies->lock);
        /* nothing in it can fail: a walk over memory of the host */
        (void)sherdi_program_walk(&copies->ghost.engine->run.program, SHERDI_WALK_UPDATE);
        (void)pthread_mutex_lock(&copies->lock);
        copies->is_working = 0;
        (void)pthread_cond_broadcast(&copies->changed);
    }
    (void)pthread_mutex_unlock(&copies->lock);
    sherdi_mem_forbid_end();
    return NULL;
}

void sherdi_copies_begin(sherd_engine *engine)
{
    sherdi_copies *copies = engine->elastic == NULL ? NULL : engine->elastic->copies;

    if (copies == NULL || !copies->is_due) {
        return;
    }
    copies->is_due = 0;
    sherdi_ghost_coeffs(&copies->ghost, engine);
    (void)sherdi_ledger_begin(copies->ghost.engine);
    (void)pthread_mutex_lock(&copies->lock);
    copies->is_working = 1;
    (void)pthread_cond_broadcast(&copies->changed);
    (void)pthread_mutex_unlock(&copies->lock);
}

void sherdi_copies_join(sherd_engine *engine)
{
    sherdi_copies *copies = engine->elastic->copies;

    if (copies == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&copies->lock);
    while (copies->is_working) {
        (void)pthread_cond_wait(&copies->changed, &copies->lock);
    }
    (void)pthread_mutex_unlock(&copies->lock);
}

/* ---------------------------------------------------------------- open and close -- */

void sherdi_copies_close(sherd_engine *engine)
{
    sherdi_copies *copies = engine->elastic == NULL ? NULL : engine->elastic->copies;

    if (copies == NULL) {
        return;
    }
    if (copies->has_thread) {
        (void)pthread_mutex_lock(&copies->lock);
        copies->shall_end = 1;
        (void)pthread_cond_broadcast(&copies->changed);
        (void)pthread_mutex_unlock(&copies->lock);
        (void)pthread_join(copies->thread, NULL);
    }
    (void)pthread_cond_destroy(&copies->changed);
    (void)pthread_mutex_destroy(&copies->lock);
    sherdi_ghost_close(&copies->ghost);
    free(copies);
    engine->elastic->copies = NULL;
}

static sherd_status copies_open(sherd_engine *engine)
{
    sherdi_copies *copies = calloc(1, sizeof(*copies));
    sherdi_plan   *plan;

    if (copies == NULL) {
        return SHERD_E_NOMEM;
    }
    sherdi_mem_init(&copies->mem);
    (void)pthread_mutex_init(&copies->lock, NULL);
    (void)pthread_cond_init(&copies->changed, NULL);
    engine->elastic->copies = copies;
    copies->of_rank         = before(engine->rank, engine->world_size);
    SHERDI_TRY(
        sherdi_ghost_plan(engine->plan, &engine->model, copies->of_rank, &copies->mem, &plan));
    SHERDI_TRY(sherdi_ghost_open_own(&copies->ghost, engine, copies->of_rank, plan,
                                     head_of(engine) + sherdi_ledger_head_bytes()));
    if (sherdi_thread_start(&copies->thread, 0, copies_main, copies) != 0) {
        return sherdi_fail(SHERD_E_NOMEM, "no thread for the update of a second copy");
    }
    copies->has_thread = 1;
    return SHERD_OK;
}

/* Sends a portion of what each rank has of a parameter to the rank behind it. Returns whether any rank
 * has more. */
static int portions_send(sherd_engine *engine, sherdi_move_wire *wire, sherdi_move_range range,
                         size_t at, sherd_status *status)
{
    const sherdi_plan *plan = engine->plan;
    int                more = 0;

    for (range.from = 0; range.from < plan->world_size && *status == SHERD_OK; range.from++) {
        size_t begin;
        size_t end;

        sherdi_move_held(plan, &engine->model, range.param, range.what, 1, range.from, &begin,
                         &end);
        range.to    = (range.from + 1) % plan->world_size;
        range.first = begin + at;
        range.count = end > range.first ? sherdi_min_size(end - range.first, PORTION_ELEMS) : 0;
        more |= end > range.first + range.count;
        if (range.count > 0) {
            *status = sherdi_move_wire_range(wire, &range);
        }
    }
    return more && *status == SHERD_OK;
}

/* Each rank's slices go to the rank behind it, in portions, so that all ranks send at the same time. */
static sherd_status slices_send(sherd_engine *engine, sherdi_move_wire *wire, int segment)
{
    const sherdi_plan       *plan   = engine->plan;
    const sherdi_segment    *of     = &plan->layout.segments[segment];
    const sherdi_model_unit *unit   = &engine->model.units[of->unit];
    sherd_status             status = SHERD_OK;

    if (of->kind == SHERDI_SEGMENT_FROZEN && of->is_resident) {
        return SHERD_OK; /* every rank has them */
    }
    for (size_t i = 0; i < unit->num_params; i++) {
        size_t param = (size_t)unit->params[i];

        for (int what = 0;
             what < SHERDI_MOVE_WHATS && plan->layout.params[param].segment == segment; what++) {
            sherdi_move_range range = {.param = param, .what = (sherdi_move_what)what};
            size_t            at    = 0;

            while (portions_send(engine, wire, range, at, &status)) {
                at += PORTION_ELEMS;
            }
        }
    }
    return status;
}

static sherd_status values_take(sherd_engine *engine, const int *same, sherdi_holding *from,
                                sherd_status here)
{
    const sherdi_move_plans plans = {.old_plan = engine->plan,
                                     .new_plan = engine->plan,
                                     .model    = &engine->model,
                                     .stayed   = same,
                                     .lost     = same}; /* slices alone */
    sherdi_move_wire        wire  = {.plans  = &plans,
                                     .world  = engine->world,
                                     .from   = from,
                                     .old_at = same,
                                     .new_at = same,
                                     .lane = engine->backend->device->is_async ? engine->backend : NULL};
    sherd_status            status;

    if (here == SHERD_OK) {
        wire.to            = engine->elastic->copies->ghost.holding;
        from[engine->rank] = (sherdi_holding){.plan    = engine->plan,
                                              .model   = &engine->model,
                                              .buffers = engine->memory.buffers,
                                              .lane    = wire.lane};
    }
    status = sherdi_move_wire_open(&wire, &engine->mem, here);
    for (size_t s = 0; s < engine->plan->layout.num_segments && status == SHERD_OK; s++) {
        status = slices_send(engine, &wire, (int)s);
    }
    if (status == SHERD_OK) {
        status = sherdi_move_wire_finish(&wire);
    }
    if (engine->elastic->copies != NULL) {
        engine->elastic->copies->moved_bytes = wire.moved_bytes;
        engine->elastic->copies->sent_bytes  = wire.own_sent_bytes;
        engine->elastic->copies->got_bytes   = wire.own_got_bytes;
    }
    sherdi_move_wire_close(&wire);
    return status;
}

sherd_status sherdi_copies_take(sherd_engine *engine)
{
    sherdi_holding *from;
    int            *same;
    sherd_status    status = SHERD_OK;

    if (engine->elastic == NULL || !has_copies(engine->plan) || engine->world_size == 1 ||
        (sherdi_world_caps(engine->world) & SHERDI_WORLD_SIMULATES) != 0) {
        return SHERD_OK;
    }
    if (engine->elastic->copies == NULL) {
        status = copies_open(engine);
    }
    sherdi_copies_join(engine);
    if (engine->elastic->copies != NULL) {
        engine->elastic->copies->is_valid = 0;
    }
    from = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)engine->world_size,
                              sizeof(*from));
    same = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)engine->world_size,
                              sizeof(*same));
    if (from == NULL || same == NULL) {
        status = SHERD_E_NOMEM;
    }
    for (int r = 0; same != NULL && r < engine->world_size; r++) {
        same[r] = r;
    }
    SHERDI_TELL(lanes, drain, engine); /* the values are where the copy takes them */
    status = values_take(engine, same, from, status);
    if (status == SHERD_OK) {
        engine->elastic->copies->is_due   = 0;
        engine->elastic->copies->is_valid = 1;
        sherdi_ledger_set(engine->elastic->copies->ghost.engine, sherdi_ledger_of(engine)->version);
        sherdi_ledger_blobs_copy(sherdi_ledger_memory_of(engine, engine->elastic->copies->of_rank),
                                 head_of(engine));
    }
    sherdi_free(from);
    sherdi_free(same);
    return status;
}

sherdi_ghost *sherdi_copies_ghost(const sherd_engine *engine, int rank)
{
    sherdi_copies *copies = engine->elastic->copies;

    return copies != NULL && copies->of_rank == rank && copies->is_valid ? &copies->ghost : NULL;
}

sherd_status sherdi_copies_blobs(const sherd_engine *engine, sherdi_blobs *out)
{
    return sherdi_ledger_blobs_get(head_of(engine), out);
}

sherdi_copies *sherdi_copies_set(sherd_engine *engine, sherdi_copies *copies)
{
    sherdi_copies *was = engine->elastic->copies;

    engine->elastic->copies = copies;
    return was;
}

void sherdi_copies_report(const sherd_engine *engine, sherd_move_report *report)
{
    const sherdi_copies *copies = engine->elastic->copies;

    if (copies != NULL) {
        report->moved_bytes += copies->moved_bytes;
        report->sent_bytes += copies->sent_bytes;
        report->received_bytes += copies->got_bytes;
    }
}
