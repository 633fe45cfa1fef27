/* The executor: executes the operations that the program emits (run.h). Kernels are in kernels.c;
 * the calls, which can fail at once, are here. */
#include "engine/run/engine_impl.h"

#include "base/absent.h"
#include "base/checked.h"
#include "engine/run/kernels.h"
#include "engine/modules.h"

#include <stdlib.h>

const sherdi_program *sherdi_run_program(const sherd_engine *engine)
{
    return SHERDI_IF(updater, program, (engine), &engine->run.program);
}

sherdi_user sherdi_run_user(const sherd_engine *engine)
{
    return sherdi_run_program(engine) == &engine->run.program ? SHERDI_USER_TRAINER
                                                              : SHERDI_USER_UPDATER;
}

/* ------------------------------------------------------------------- calls -- */

sherd_status sherdi_call_gather(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_all_gather_args args = {
        .send        = sherdi_run_address(engine, op, SHERDI_USE_SRC),
        .recv        = sherdi_run_address(engine, op, SHERDI_USE_DST),
        .slice_bytes = op->elems * sherd_dtype_bytes(op->to),
        .flags       = op->flags & SHERDI_OP_STABLE ? SHERDI_COLL_STABLE : 0,
        .what        = sherdi_run_subject(engine, op),
        .observer    = engine->times.observer,
    };

    if (op->flags & SHERDI_OP_ALONE) { /* it publishes the values of a queued update */
        engine->updater.published_bytes +=
            sherdi_wire_all_gather(engine->plan->world_size, args.slice_bytes);
    }
    return sherdi_world_all_gather(sherdi_world_of(engine, op->lane), &args, number_out);
}

static sherdi_reduction_args reduction_of(sherd_engine *engine, const sherdi_op *op)
{
    const sherdi_fixed_sink *fixed = NULL;

    if (op->uses[SHERDI_USE_SCALARS].where != SHERDI_AT_NOWHERE) {
        sherdi_modules_fixed_sink(engine, &fixed);
    }
    return (sherdi_reduction_args){
        .recv        = sherdi_run_address(engine, op, SHERDI_USE_DST),
        .send        = sherdi_run_address(engine, op, SHERDI_USE_SRC),
        .slice_elems = op->elems,
        .send_dtype  = op->from,
        .comm_dtype  = engine->plan->layout.segments[op->segment].types.comm,
        .recv_dtype  = op->to,
        .scale       = (float)(1.0 / engine->world_size),
        .accumulate  = (op->flags & SHERDI_OP_ADDS) != 0,
        .weights     = engine->exchange.factors,
        .fixed       = fixed,
        .flags       = (engine->settings.numerics.vendor_reduction ? SHERDI_COLL_VENDOR_SUM : 0) |
                 (engine->settings.numerics.host_sums ? SHERDI_COLL_HOST_SUM : 0),
        .what     = sherdi_run_subject(engine, op),
        .observer = engine->times.observer,
    };
}

sherd_status sherdi_call_reduce(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_reduction_args args = reduction_of(engine, op);

    return sherdi_world_reduce_scatter(engine->shards, &args, number_out);
}

sherd_status sherdi_call_all_reduce(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_reduction_args args = reduction_of(engine, op);

    args.send = args.recv;
    return sherdi_world_all_reduce(engine->shards, &args, number_out);
}

sherd_status sherdi_run_answer(sherd_engine *engine, const sherdi_op *op)
{
    SHERDI_TRY(sherdi_modules_exchanging(engine));
    if (engine->run.all_messages == NULL) {
        return sherdi_world_tell(engine->world, engine->run.own_message, op->elems,
                                 engine->run.message_name, &engine->run.messages);
    }
    engine->run.messages = (sherdi_messages){engine->run.all_messages, op->elems};
    return sherdi_world_exchange(engine->world, engine->run.own_message, engine->run.all_messages,
                                 op->elems, engine->run.message_name);
}

sherd_status sherdi_call_exchange(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    *number_out = 0; /* no ticket: the exchange is done when the call returns */
    return sherdi_run_answer(engine, op);
}

/* --------------------------------------------------------------- the loop -- */

static const sherdi_call_fn CALLS[SHERDI_OP_KINDS] = {
#define SHERDI_CALL(kind, call) [SHERDI_OP_##kind] = (call),
#include "engine/run/call_list.h"
#undef SHERDI_CALL
};

static sherd_status op_execute(sherd_engine *engine, const sherdi_backend *lane,
                               const sherdi_op *op, void *number)
{
    if (CALLS[op->kind] != NULL) {
        return CALLS[op->kind](engine, op, number);
    }
    SHERDI_IF(sums, run, (engine, lane, op), sherdi_run_kernel(engine, lane, op));
    return SHERD_OK;
}

sherd_status sherdi_run_op(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                           uint64_t *number)
{
    if (sherdi_op_is_trainers(op->kind)) {
        return SHERD_OK;
    }
    return SHERDI_IF(times, timed, (engine, lane, op, 0, op_execute, number),
                     op_execute(engine, lane, op, number));
}

/* Without lanes an operation is over when this returns. */
static sherd_status op_run(void *ctx, const sherdi_op *op)
{
    sherd_engine *engine = ctx;
    uint64_t      number = 0;

    return sherdi_run_op(engine, engine->backend, op, &number);
}

sherd_status sherdi_run_exchange(sherd_engine *engine, sherdi_exchange_kind kind, const void *mine,
                                 void *all, const char *what)
{
    engine->run.own_message  = mine;
    engine->run.all_messages = all;
    engine->run.message_name = what != NULL ? what : sherdi_exchange_name(kind);
    return sherdi_program_exchange(&engine->run.program, kind);
}

/* -------------------------------------------------------------- open, close -- */

sherd_status sherdi_lanes_open(sherd_engine *engine)
{
    const char *trace = getenv("SHERD_TRACE");

    SHERDI_TRY(sherdi_modules_times_open(engine));
    if (engine->times.ops == NULL && trace != NULL && trace[0] != '\0') {
        return sherdi_absent("trace", "SHERD_TRACE");
    }
    return sherdi_modules_lanes_open(engine);
}

void sherdi_lanes_close(sherd_engine *engine)
{
    if (engine->backend == NULL) {
        return;
    }
    sherdi_world_drain(engine->shards); /* the observer and the marks end */
    if (engine->group != NULL) {
        sherdi_world_drain(engine->group);
    }
    SHERDI_TELL(times, close, engine);
    SHERDI_TELL(lanes, close, engine);
}

sherd_status sherdi_run_open(sherd_engine *engine)
{
    sherdi_run *run = &engine->run;

    SHERDI_TRY(sherdi_progress_open(&run->progress, engine->plan, &engine->model, &engine->mem));
    run->program = (sherdi_program){
        .plan     = engine->plan,
        .model    = &engine->model,
        .progress = &run->progress,
        .fn       = engine->lanes.run == NULL ? op_run : engine->lanes.run,
        .ctx      = engine,
    };
    return SHERD_OK;
}

void sherdi_run_close(sherd_engine *engine)
{
    sherdi_run *run = &engine->run;

    if (engine->backend == NULL) {
        return;
    }
    run->program = (sherdi_program){0};
    SHERDI_TELL(storage, stop, engine);
    sherdi_progress_close(&run->progress);
}
