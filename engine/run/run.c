/* The executor: executes the operations that the program emits (run.h). op_run, near the end, is
 * the loop's body. Kernels, which are queued on a lane, are in kernels.c; the calls, which can fail
 * at once, are above it. */
#include "engine/run/engine_impl.h"

#include "base/checked.h"
#include "engine/run/fill.h"
#include "engine/run/kernels.h"
#include "engine/run/lanes.h"
#include "engine/run/loop.h"
#include "engine/modules.h"

#include <string.h>

/* ------------------------------------------------------------------- lanes -- */

static const sherdi_backend *lane_of(const sherd_engine *engine, sherdi_lane_id lane)
{
    switch (lane) {
    case SHERDI_LANE_COMPUTE:
        return engine->backend;
    case SHERDI_LANE_UPDATE:
        return engine->lanes.update;
    case SHERDI_LANE_UP:
        return engine->lanes.up;
    case SHERDI_LANE_DOWN:
        return engine->lanes.down;
    case SHERDI_LANE_WIRE:
        return sherdi_world_backend(engine->world);
    default:
        return engine->host;
    }
}

sherdi_user sherdi_run_user(const sherd_engine *engine)
{
    return engine->updater.ops->is_here(engine) ? SHERDI_USER_UPDATER : SHERDI_USER_TRAINER;
}

static int is_host(sherdi_lane_id lane)
{
    return lane == SHERDI_LANE_HOST || lane == SHERDI_LANE_DRIVE;
}

/* Whether work on the lane may continue after the call that gave it has returned. */
static int is_async(const sherd_engine *engine, sherdi_lane_id lane)
{
    return lane == SHERDI_LANE_WIRE || lane == SHERDI_LANE_DRIVE ||
           (lane != SHERDI_LANE_HOST && sherdi_has_device(engine));
}

static sherdi_event *event_of(const sherd_engine *engine, sherdi_lane_id lane, uint64_t number)
{
    return engine->run.events[lane][number % SHERDI_RUN_EVENTS];
}

static sherd_status lane_host_wait(sherd_engine *engine, sherdi_lane_id lane, uint64_t number)
{
    switch (lane) {
    case SHERDI_LANE_WIRE:
        return sherdi_world_wait(engine->world, number);
    case SHERDI_LANE_COMPUTE: /* waits for the trainer's work since then too */
        return sherdi_lane_wait(engine->backend);
    default:
        return engine->backend->device->event_wait(event_of(engine, lane, number));
    }
}

/* The order drops accesses that are over. */
sherd_status sherdi_run_lane_wait(sherd_engine *engine, sherdi_lane_id lane, uint64_t number)
{
    if (lane == SHERDI_LANE_DRIVE) {
        return engine->storage.ops->wait(engine, number);
    }
    SHERDI_TRY(lane_host_wait(engine, lane, number));
    (void)pthread_mutex_lock(&engine->run.lock);
    /* the wait for the compute lane was for all of its operations */
    sherdi_order_forget(&engine->run.order, lane, lane == SHERDI_LANE_COMPUTE ? 0 : number);
    (void)pthread_mutex_unlock(&engine->run.lock);
    return SHERD_OK;
}

int sherdi_run_lane_is_over(const sherd_engine *engine, sherdi_lane_id lane, uint64_t number)
{
    switch (lane) {
    case SHERDI_LANE_WIRE:
        return sherdi_world_is_done(engine->world, number);
    case SHERDI_LANE_COMPUTE:
        return 0;
    default:
        return engine->backend->device->event_is_done(event_of(engine, lane, number));
    }
}

/* Makes `lane` continue only after an operation of `other`. */
static sherd_status lane_follow(sherd_engine *engine, sherdi_lane_id lane, sherdi_lane_id other,
                                uint64_t number)
{
    const sherdi_backend *backend = lane_of(engine, lane);

    if (is_host(lane) || other == SHERDI_LANE_DRIVE) {
        return sherdi_run_lane_wait(engine, other, number);
    }
    if (other == SHERDI_LANE_WIRE) {
        return sherdi_world_follow(engine->world, backend, number);
    }
    if (other == SHERDI_LANE_COMPUTE) {
        sherdi_lane_follow(backend, engine->backend);
        return SHERD_OK;
    }
    backend->device->lane_follow_event(backend, event_of(engine, other, number));
    return SHERD_OK;
}

static sherd_status op_follow(sherd_engine *engine, const sherdi_op *op,
                              const sherdi_follows *follows)
{
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        if (follows->last[lane] != 0) {
            SHERDI_TRY(lane_follow(engine, op->lane, (sherdi_lane_id)lane, follows->last[lane]));
        }
    }
    return engine->storage.ops->follow(engine, op, follows);
}

/* ------------------------------------------------------------------- calls -- */

static sherd_status op_gather(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
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
        engine->updater.published_bytes += op->moves[SHERDI_MOVES_WIRE];
    }
    return sherdi_world_all_gather(engine->world, &args, number_out);
}

/* Whether the transport sums by itself: the configuration asks for it, and the transport can. */
static int is_vendors(const sherd_engine *engine)
{
    return engine->settings.numerics.vendor_reduction && engine->world_size > 1 &&
           (sherdi_world_caps(engine->world) & SHERDI_WORLD_VENDOR_SUMS) != 0;
}

/* Where a deterministic reduction puts integers. The loss scale is constant inside a window, so the
 * sink is not written while the world's thread may read it. */
static const sherdi_fixed_sink *fixed_sink(sherd_engine *engine)
{
    double multiplier = ldexp(1, engine->plan->layout.fixed_shift) / engine->scaler.scale;

    if (engine->window.fixed_sink.multiplier != multiplier) {
        engine->window.fixed_sink = (sherdi_fixed_sink){
            .multiplier = multiplier,
            .limit      = ldexp(SHERDI_FIXED_RANGE, engine->plan->layout.fixed_shift),
            .counts     = &engine->kernel_data.device.head->counts,
        };
    }
    return &engine->window.fixed_sink;
}

static sherdi_reduction_args reduction_of(sherd_engine *engine, const sherdi_op *op)
{
    return (sherdi_reduction_args){
        .recv        = sherdi_run_address(engine, op, SHERDI_USE_DST),
        .send        = sherdi_run_address(engine, op, SHERDI_USE_SRC),
        .slice_elems = op->elems,
        .send_dtype  = op->from,
        .comm_dtype  = engine->plan->layout.segments[op->segment].types.comm,
        .recv_dtype  = op->to,
        .scale       = (float)(1.0 / engine->world_size),
        .accumulate  = (op->flags & SHERDI_OP_ADDS) != 0,
        .fixed =
            op->uses[SHERDI_USE_SCALARS].where == SHERDI_AT_NOWHERE ? NULL : fixed_sink(engine),
        .flags    = is_vendors(engine) ? SHERDI_COLL_VENDOR_SUM : 0,
        .what     = sherdi_run_subject(engine, op),
        .observer = engine->times.observer,
    };
}

static sherd_status op_reduce(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_reduction_args args = reduction_of(engine, op);

    return sherdi_world_reduce_scatter(engine->world, &args, number_out);
}

static sherd_status op_all_reduce(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_reduction_args args = reduction_of(engine, op);

    args.send = args.recv;
    return sherdi_world_all_reduce(engine->world, &args, number_out);
}

static sherd_status op_fill(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return sherdi_values_ask(engine, op, sherdi_run_address(engine, op, SHERDI_USE_DST));
}

sherd_status sherdi_run_answer(sherd_engine *engine, const sherdi_op *op)
{
    if (engine->run.given_all == NULL) {
        return sherdi_world_tell(engine->world, engine->run.given_mine, op->elems,
                                 engine->run.given_what, &engine->run.told);
    }
    engine->run.told = (sherdi_told){engine->run.given_all, op->elems};
    return sherdi_world_exchange(engine->world, engine->run.given_mine, engine->run.given_all,
                                 op->elems, engine->run.given_what);
}

static sherd_status op_exchange(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    *number_out = 0; /* no ticket: the exchange is done when the call returns */
    return sherdi_run_answer(engine, op);
}

/* --------------------------------------------------------------- the loop -- */

static const sherdi_call_fn CALLS[SHERDI_OP_KINDS] = {
    [SHERDI_OP_GATHER]     = op_gather,
    [SHERDI_OP_REDUCE]     = op_reduce,
    [SHERDI_OP_ALL_REDUCE] = op_all_reduce,
    [SHERDI_OP_EXCHANGE]   = op_exchange,
    [SHERDI_OP_FILL]       = op_fill,
#define SHERDI_CALL(kind, call) [SHERDI_OP_##kind] = (call),
#include "engine/run/call_list.h"
#undef SHERDI_CALL
};

/* An operation that was submitted to an asynchronous lane: later operations follow it. Under the
 * lock. */
static void op_record(sherd_engine *engine, const sherdi_op *op, uint64_t number)
{
    const sherdi_backend *lane = lane_of(engine, op->lane);

    if (op->lane != SHERDI_LANE_WIRE && engine->run.events[op->lane][0] != NULL) {
        lane->device->event_record(event_of(engine, op->lane, number), lane);
    }
    if (number != 0) {
        sherdi_order_enter(&engine->run.order, op, number);
        engine->run.given[op->lane] = number;
    }
}

/* Makes a call, which may block. */
static sherd_status call_give(sherd_engine *engine, const sherdi_op *op)
{
    sherdi_run *run = &engine->run;
    uint64_t    number =
        run->given[op->lane] + 1; /* of the wire; the trainer's thread alone uses it */
    sherdi_op_marks marks  = engine->times.ops->op_begin(engine, lane_of(engine, op->lane), op, 0);
    sherd_status    status = CALLS[op->kind](engine, op, &number);

    engine->times.ops->op_end(engine, &marks);
    SHERDI_TRY(status);
    if (is_async(engine, op->lane)) {
        (void)pthread_mutex_lock(&run->lock);
        op_record(engine, op, number);
        (void)pthread_mutex_unlock(&run->lock);
    }
    return SHERD_OK;
}

static void kernel_run(sherd_engine *engine, const sherdi_op *op)
{
    const sherdi_backend *lane = lane_of(engine, op->lane);
    sherdi_op_marks       marks;

    if (!sherdi_op_is_trainers(op->kind)) {
        marks = engine->times.ops->op_begin(engine, lane, op, 0);
        sherdi_run_kernel(engine, lane, op);
        engine->times.ops->op_end(engine, &marks);
    }
}

/* Executes a kernel, or enqueues it on a lane, on which both threads may enqueue. */
static void kernel_give(sherd_engine *engine, const sherdi_op *op)
{
    sherdi_run *run = &engine->run;

    if (!is_async(engine, op->lane)) {
        kernel_run(engine, op);
        return;
    }
    (void)pthread_mutex_lock(&run->lock);
    kernel_run(engine, op);
    op_record(engine, op, run->given[op->lane] + 1);
    (void)pthread_mutex_unlock(&run->lock);
}

static sherd_status op_run(void *ctx, const sherdi_op *op)
{
    sherd_engine   *engine = ctx;
    sherdi_run     *run    = &engine->run;
    sherdi_follows  follows;
    sherdi_op_marks marks;
    sherd_status    status;

    engine->updater.ops->beat(engine);
    engine->storage.ops->poll(engine);
    (void)pthread_mutex_lock(&run->lock);
    sherdi_order_follows(&run->order, op, &follows);
    (void)pthread_mutex_unlock(&run->lock);
    if (op->lane == SHERDI_LANE_DRIVE) {
        return engine->storage.ops->submit(engine, op, &follows);
    }
    marks  = engine->times.ops->op_begin(engine, engine->backend, op, 1);
    status = op_follow(engine, op, &follows);
    engine->times.ops->op_end(engine, &marks);
    SHERDI_TRY(status);
    if (CALLS[op->kind] != NULL) {
        return call_give(engine, op);
    }
    kernel_give(engine, op);
    return SHERD_OK;
}

sherd_status sherdi_run_exchange(sherd_engine *engine, sherdi_exchange_kind kind, const void *mine,
                                 void *all, const char *what)
{
    engine->run.given_mine = mine;
    engine->run.given_all  = all;
    engine->run.given_what = what != NULL ? what : sherdi_exchange_row_of(kind)->name;
    return sherdi_program_exchange(&engine->run.program, kind);
}

sherd_status sherdi_run_generation(sherd_engine *engine, sherdi_op_kind kind)
{
    return sherdi_program_generation(engine->updater.ops->program(engine), kind);
}

sherd_status sherdi_run_commit_written(sherd_engine *engine)
{
    engine->storage.ops->note(engine, engine->counters.step, &engine->scaler, 1);
    return engine->storage.ops->commit(engine, engine->fingerprints.own);
}

void sherdi_run_use_ring(sherd_engine *engine, sherdi_ring ring, sherdi_user user)
{
    (void)pthread_mutex_lock(&engine->run.lock);
    engine->run.users[ring] = user;
    (void)pthread_mutex_unlock(&engine->run.lock);
}

sherd_status sherdi_run_drain(sherd_engine *engine)
{
    return sherdi_world_wait(engine->world, engine->run.given[SHERDI_LANE_WIRE]);
}

sherd_status sherdi_run_quiet(sherd_engine *engine)
{
    SHERDI_TRY(sherdi_run_lane_wait(engine, SHERDI_LANE_WIRE, engine->run.given[SHERDI_LANE_WIRE]));
    return sherdi_has_device(engine) ? sherdi_run_lane_wait(engine, SHERDI_LANE_COMPUTE, 0)
                                     : SHERD_OK;
}

/* -------------------------------------------------------------- open, close -- */

static sherd_status events_open(sherd_engine *engine)
{
    static const sherdi_lane_id LANES[] = {SHERDI_LANE_UPDATE, SHERDI_LANE_UP, SHERDI_LANE_DOWN};

    for (size_t l = 0; l < sizeof(LANES) / sizeof(LANES[0]) && sherdi_has_device(engine); l++) {
        for (int i = 0; i < SHERDI_RUN_EVENTS; i++) {
            SHERDI_TRY(engine->backend->device->event_create(engine->backend, 0,
                                                             &engine->run.events[LANES[l]][i]));
        }
    }
    return SHERD_OK;
}

sherd_status sherdi_run_open(sherd_engine *engine)
{
    sherdi_run *run = &engine->run;

    (void)pthread_mutex_init(&run->lock, NULL);
    SHERDI_TRY(sherdi_progress_open(&run->progress, engine->plan, &engine->model, &engine->mem));
    SHERDI_TRY(events_open(engine));
    run->program = (sherdi_program){
        .plan     = engine->plan,
        .model    = &engine->model,
        .progress = &run->progress,
        .fn       = op_run,
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
    engine->storage.ops->stop(engine);
    sherdi_progress_close(&run->progress);
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        for (int i = 0; i < SHERDI_RUN_EVENTS; i++) {
            engine->backend->device->event_destroy(run->events[lane][i]);
            run->events[lane][i] = NULL;
        }
    }
}

sherd_status sherdi_run_settle(sherd_engine *engine, sherdi_ring ring)
{
    sherd_status status;

    if (engine->run.users[ring] != sherdi_run_user(engine)) { /* an update has the ring */
        SHERDI_TRY(sherdi_program_await(&engine->run.program, SHERDI_POST_END, -1));
    }
    status = engine->storage.ops->settle(engine, ring);
    sherdi_progress_forget(&engine->run.progress, ring);
    return status;
}

void sherdi_run_drop_ahead(sherd_engine *engine, sherdi_ring ring)
{
    if (engine->run.users[ring] != sherdi_run_user(engine)) {
        (void)sherdi_program_await(&engine->run.program, SHERDI_POST_END, -1);
    }
    engine->storage.ops->drop(engine, ring);
    sherdi_progress_forget(&engine->run.progress, ring);
}

sherd_status sherdi_run_drop(sherd_engine *engine)
{
    sherd_status status;

    if (engine->updater.ops->join(engine) == SHERD_OK) {
        engine->updater.ops->report(engine, &engine->boundary);
        sherdi_modules_reported(engine);
    }
    sherdi_modules_dropped(engine);
    engine->updater.ops->forget(engine);
    engine->fingerprints.is_untold = 0;
    for (int ring = 0; ring < SHERDI_RINGS;
         ring++) { /* failures of dropped operations do not matter */
        (void)sherdi_run_settle(engine, (sherdi_ring)ring);
    }
    status = sherdi_program_forget(&engine->run.program);
    return status == SHERD_OK ? sherdi_run_generation(engine, SHERDI_OP_ABANDON) : status;
}
