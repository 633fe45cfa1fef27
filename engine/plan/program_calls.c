/* See program_calls.h. */
#include "engine/plan/program_calls.h"

sherd_status sherdi_event_run(const sherdi_program *program, const sherdi_event *event)
{
    switch (event->kind) {
    case SHERDI_EVENT_PLAIN:
        return event->plain(program);
    case SHERDI_EVENT_EXCHANGE:
        return sherdi_program_exchange(program, (sherdi_exchange_kind)event->what);
    case SHERDI_EVENT_SETTLE:
        sherdi_progress_forget(program->progress, (sherdi_ring)event->what);
        return SHERD_OK;
    case SHERDI_EVENT_FILL:
        return sherdi_program_fill(program, (size_t)event->what, 1);
    case SHERDI_EVENT_FINGERPRINT:
        return sherdi_program_fingerprint(program, &event->values);
    case SHERDI_EVENT_PUT:
        return sherdi_program_put(program, &event->values);
    case SHERDI_EVENT_GET:
        return sherdi_program_get(program, &event->values);
    case SHERDI_EVENT_NORM:
        return sherdi_program_param_norm(program, event->values.param);
    case SHERDI_EVENT_ACQUIRE:
        return sherdi_program_acquire(program, event->what, event->pass);
    case SHERDI_EVENT_RELEASE:
        return sherdi_program_release(program, event->what, event->pass);
    case SHERDI_EVENT_BEGIN:
        return sherdi_program_gradient_begin(program, event->what);
    case SHERDI_EVENT_GENERATION:
        return sherdi_program_generation(program, (sherdi_op_kind)event->what);
    case SHERDI_EVENT_TELL:
        return sherdi_program_scalars_tell(program, (sherdi_op_kind)event->what);
    case SHERDI_EVENT_WALK:
        return sherdi_program_walk(program, (sherdi_walk)event->what);
    }
    return SHERD_OK;
}

/* ------------------------------------------------------------------ events -- */

static sherd_status event_tell(const sherdi_calls *calls, sherdi_event event)
{
    return calls->fn(calls->ctx, &event);
}

sherd_status sherdi_calls_plain(const sherdi_calls *calls, sherdi_plain_fn plain)
{
    return event_tell(calls, (sherdi_event){.plain = plain});
}

sherd_status sherdi_calls_exchange(const sherdi_calls *calls, sherdi_exchange_kind kind)
{
    return event_tell(calls, (sherdi_event){.kind = SHERDI_EVENT_EXCHANGE, .what = (int)kind});
}

sherd_status sherdi_calls_settle(const sherdi_calls *calls, sherdi_ring ring)
{
    return event_tell(calls, (sherdi_event){.kind = SHERDI_EVENT_SETTLE, .what = (int)ring});
}

sherd_status sherdi_calls_generation(const sherdi_calls *calls, sherdi_op_kind kind)
{
    return event_tell(calls, (sherdi_event){.kind = SHERDI_EVENT_GENERATION, .what = (int)kind});
}

/* ------------------------------------------------------------------- calls -- */

/* As in fill.c and value_calls.c. */
sherd_status sherdi_calls_filled(const sherdi_calls *calls)
{
    SHERDI_TRY(sherdi_calls_plain(calls, sherdi_program_fill_end));
    SHERDI_TRY(sherdi_calls_settle(calls, SHERDI_RING_STATE));
    SHERDI_TRY(sherdi_calls_settle(calls, SHERDI_RING_PARAMS));
    return sherdi_calls_generation(calls, SHERDI_OP_COMMIT);
}

/* As in update.c. A walk that writes drops parameters that were read ahead: they are about to change. */
sherd_status sherdi_calls_walk(const sherdi_calls *calls, sherdi_walk walk)
{
    int is_written = walk != SHERDI_WALK_FINGERPRINT && walk != SHERDI_WALK_SAVE;

    if (is_written) {
        SHERDI_TRY(sherdi_calls_settle(calls, SHERDI_RING_PARAMS));
    }
    SHERDI_TRY(event_tell(calls, (sherdi_event){.kind = SHERDI_EVENT_WALK, .what = (int)walk}));
    SHERDI_TRY(sherdi_calls_settle(calls, SHERDI_RING_STATE));
    if (is_written) {
        SHERDI_TRY(sherdi_calls_settle(calls, SHERDI_RING_PARAMS));
        SHERDI_TRY(sherdi_calls_settle(calls, SHERDI_RING_GRADS));
    }
    return sherdi_calls_plain(calls, sherdi_program_collect);
}

/* As in step.c. */
sherd_status sherdi_calls_prepare(const sherdi_calls *calls)
{
    SHERDI_TRY(sherdi_calls_exchange(calls, SHERDI_EXCHANGE_USES));
    SHERDI_TRY(sherdi_calls_plain(calls, sherdi_program_window_end));
    SHERDI_TRY(sherdi_calls_plain(calls, sherdi_program_norm));
    SHERDI_TRY(sherdi_calls_settle(calls, SHERDI_RING_GRADS));
    SHERDI_TRY(sherdi_calls_exchange(calls, SHERDI_EXCHANGE_NORM));
    return sherdi_calls_plain(calls, sherdi_program_forget);
}

static sherd_status scalars_tell(const sherdi_calls *calls, sherdi_op_kind kind)
{
    return event_tell(calls, (sherdi_event){.kind = SHERDI_EVENT_TELL, .what = (int)kind});
}

/* The first sweep: the ranks exchange how it went, and sum the norms of all tensors. */
static sherd_status measure(const sherdi_calls *calls)
{
    if (!sherdi_plan_is_measured(calls->plan)) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_calls_walk(calls, SHERDI_WALK_MEASURE));
    SHERDI_TRY(sherdi_calls_exchange(calls, SHERDI_EXCHANGE_STATUS));
    SHERDI_TRY(sherdi_calls_plain(calls, sherdi_program_sum));
    return scalars_tell(calls, SHERDI_OP_RATIOS);
}

sherd_status sherdi_calls_apply(const sherdi_calls *calls)
{
    SHERDI_TRY(scalars_tell(calls, SHERDI_OP_COEFFS));
    SHERDI_TRY(measure(calls));
    SHERDI_TRY(sherdi_calls_walk(calls, SHERDI_WALK_UPDATE));
    SHERDI_TRY(sherdi_calls_generation(calls, SHERDI_OP_COMMIT));
    SHERDI_TRY(sherdi_calls_exchange(calls, SHERDI_EXCHANGE_OUTCOME));
    return sherdi_calls_plain(calls, sherdi_program_publish);
}
