/* A queued update, which overlaps with the trainer's calls. The updater, a thread of the engine's
 * own, walks over the blocks in the order of the units, and says after each unit that its
 * parameters are new. An acquire waits for its own unit, and for nothing else:
 *
 *     trainer   queue | acquire 0, use | acquire 1, use | ... | backward 1 ... | the next boundary
 *     updater         | unit 0 | unit 1 | unit 2 | ... | writes | commit |
 *
 * Where ranks read each other's slices in place, an acquire waits for its unit on all of them;
 * elsewhere its gather meets. Parameters that are whole on every rank are published by the acquire
 * that needs them first.
 *
 * The first gradient waits for the end of the walk: gradients come to where the walk reads them,
 * and through the same buffers. So does the first acquire at all if parameters pass through a ring.
 * Writes of the state, and its commit, go on until the next boundary. */
#include "engine/program/program_rings.h"
#include "engine/program/program_walk.h"

static int segment_is_trained(const sherdi_segment *segment)
{
    return segment->kind != SHERDI_SEGMENT_FROZEN && segment->slice_elems > 0;
}

/* Whether the ranks read this rank's slices in place, without a meeting. */
static int unit_is_read(const sherdi_program *program, int unit)
{
    const sherdi_plan *plan = program->plan;

    for (size_t s = 0; s < plan->layout.units[unit].num_segments; s++) {
        const sherdi_segment *segment = sherdi_unit_segment(plan, unit, s);

        if (segment_is_trained(segment) && plan->layout.is_sliced && !plan->machine.has_device &&
            (segment->is_resident || segment->param_space == SHERDI_SPACE_DEVICE)) {
            return 1;
        }
    }
    return 0;
}

/* Whether a gather of the unit meets the other ranks, so that all give it at the same place. */
static int unit_meets(const sherdi_program *program, int unit)
{
    const sherdi_plan *plan = program->plan;

    for (size_t s = 0; s < plan->layout.units[unit].num_segments; s++) {
        const sherdi_segment *segment = sherdi_unit_segment(plan, unit, s);

        if (plan->layout.is_sliced && plan->world_size > 1 && !segment->is_resident &&
            (plan->machine.has_device || segment->param_space != SHERDI_SPACE_DEVICE)) {
            return 1;
        }
    }
    return 0;
}

void sherdi_program_queued_begin(const sherdi_program *program, const sherdi_program *updater)
{
    const sherdi_plan *plan = program->plan;

    for (size_t u = 0; u < plan->layout.num_units; u++) {
        sherdi_unit_state *state      = sherdi_program_unit(program, (int)u);
        int                is_trained = 0;
        int                is_whole   = 0;

        for (size_t s = 0; s < plan->layout.units[u].num_segments; s++) {
            const sherdi_segment *segment = sherdi_unit_segment(plan, (int)u, s);

            is_trained |= segment_is_trained(segment);
            is_whole |= sherdi_segment_is_published(plan, segment);
        }
        sherdi_program_unit(updater, (int)u)->uses = state->uses;
        state->is_updating                         = is_trained;
        state->is_unpublished =
            is_whole && !(plan->settings.batch.skips_unused && state->uses.runs == 0);
    }
    program->progress->is_queued = program->progress->is_walking = 1;
}

static sherd_status await_emit(const sherdi_program *program, sherdi_post post, int unit,
                               uint32_t flags)
{
    sherdi_op op = sherdi_op_of(SHERDI_OP_AWAIT, SHERDI_LANE_HOST);

    op.unit  = unit;
    op.part  = (int)post;
    op.flags = SHERDI_OP_ALONE | flags;
    return sherdi_program_emit(program, &op);
}

static sherd_status unit_publish(const sherdi_program *program, int unit)
{
    uint32_t     before = sherdi_program_flag(program, SHERDI_OP_ALONE);
    sherd_status status = SHERD_OK;

    for (size_t s = 0; s < program->plan->layout.units[unit].num_segments && status == SHERD_OK;
         s++) {
        status = sherdi_segment_publish(program, sherdi_unit_segment(program->plan, unit, s),
                                        program->plan->schedule.publishes_early);
    }
    program->progress->flags = before;
    return status;
}

/* Where a publish meets the other ranks, a rank whose update has failed takes part too. Its data
 * does not matter. */
static sherd_status unit_await(const sherdi_program *program, int unit)
{
    sherdi_unit_state *state  = sherdi_program_unit(program, unit);
    sherd_status       status = SHERD_OK;

    if (state->is_updating) {
        status             = await_emit(program, SHERDI_POST_UNIT, unit,
                            unit_is_read(program, unit) ? SHERDI_OP_STABLE : 0);
        state->is_updating = status != SHERD_OK;
    }
    if (state->is_unpublished && (status == SHERD_OK || program->plan->schedule.publishes_early)) {
        const sherdi_outcome here = sherdi_outcome_of(status);

        status                = unit_publish(program, unit);
        state->is_unpublished = status != SHERD_OK;
        status                = here.status == SHERD_OK ? status : sherdi_outcome_end(&here);
    }
    return status;
}

sherd_status sherdi_queued_await(const sherdi_program *program, sherdi_post post, int unit)
{
    sherdi_progress *progress = program->progress;

    if (post == SHERDI_POST_UNIT) {
        return unit_await(program, unit);
    }
    if (post == SHERDI_POST_WALK ? progress->is_walking : progress->is_queued) {
        SHERDI_TRY(await_emit(program, post, -1, 0));
        progress->is_walking = 0;
        progress->is_queued &= post != SHERDI_POST_END;
    }
    return SHERD_OK;
}

sherd_status sherdi_queued_post(const sherdi_program *updater, sherdi_post post, int unit)
{
    sherdi_op op = sherdi_op_of(SHERDI_OP_POST, SHERDI_LANE_HOST);

    if ((updater->progress->flags & SHERDI_OP_QUEUED) == 0) {
        return SHERD_OK;
    }
    op.unit = unit;
    op.part = (int)post;
    return sherdi_program_emit(updater, &op);
}

int sherdi_queued_holds_up(const sherdi_program *program, int unit)
{
    const sherdi_unit_state *state = sherdi_program_unit(program, unit);

    return state->is_updating && (unit_meets(program, unit) || program->is_posted == NULL ||
                                  !program->is_posted(program->ctx, unit));
}

sherd_status sherdi_program_queued_end(const sherdi_program *program)
{
    sherdi_outcome all = sherdi_outcome_of(sherdi_queued_await(program, SHERDI_POST_END, -1));

    for (size_t u = 0; u < program->plan->layout.num_units; u++) {
        if (all.status == SHERD_OK || program->plan->schedule.publishes_early) {
            sherdi_outcome_add(&all, unit_await(program, (int)u));
        }
    }
    return sherdi_outcome_end(&all);
}

void sherdi_program_queued_forget(const sherdi_program *program)
{
    program->progress->is_queued = program->progress->is_walking = 0;
    for (size_t u = 0; u < program->plan->layout.num_units; u++) {
        sherdi_program_unit(program, (int)u)->is_updating    = 0;
        sherdi_program_unit(program, (int)u)->is_unpublished = 0;
    }
}

/* Whether the update of a segment gathers in mid-walk, or changes memory that is the trainer's
 * own. */
static int segment_stays(const sherdi_plan *plan, const sherdi_segment *segment)
{
    return segment_is_trained(segment) &&
           (segment->is_bound || sherdi_segment_has_matrices(segment) ||
            (plan->layout.is_deterministic && !plan->layout.is_sliced));
}

int sherdi_program_has_loose_publish(const sherdi_plan *plan)
{
    for (size_t u = 0; u < plan->layout.num_units && plan->world_size > 1; u++) {
        for (size_t s = 0;
             s < plan->layout.units[u].num_segments && plan->layout.units[u].is_open_ended; s++) {
            if (sherdi_segment_is_published(plan, sherdi_unit_segment(plan, (int)u, s))) {
                return 1;
            }
        }
    }
    return 0;
}

int sherdi_program_can_be_queued(const sherdi_plan *plan)
{
    int has_host = 0;

    for (size_t s = 0; s < plan->layout.num_segments; s++) {
        if (segment_stays(plan, &plan->layout.segments[s])) {
            return 0;
        }
    }
    for (size_t b = 0; b < plan->layout.num_blocks; b++) {
        has_host |= !sherdi_is_on_device(plan->layout.blocks[b].space);
    }
    return has_host && !(plan->machine.has_device && sherdi_program_has_loose_publish(plan));
}

sherd_status sherdi_progress_open_queued(sherdi_progress *progress, const sherdi_progress *of,
                                         const sherdi_plan *plan, sherdi_mem *mem)
{
    progress->flags = SHERDI_OP_QUEUED;
    progress->apart = of->apart;
    progress->rings = of->rings;
    progress->units = sherdi_alloc_array(mem, SHERDI_MEM_CONTROL, plan->layout.num_units,
                                         sizeof(*progress->units));
    return progress->units == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

void sherdi_progress_close_queued(sherdi_progress *progress)
{
    sherdi_free(progress->units);
    *progress = (sherdi_progress){0};
}
