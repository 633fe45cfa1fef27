/* See lanes_impl.h. The lanes are compute (the trainer's), update, up and down the link. Collectives
 * use the world's lane. The dependencies of each operation are derived from the bytes that it
 * accesses. On the CPU all of them are one lane, and nothing waits. */
#include "engine/run/lanes_impl.h"

#include "collectives/follow.h"
#include "engine/modules.h"
#include "engine/run/kernels.h"

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
    case SHERDI_LANE_GROUP:
        return sherdi_world_backend(sherdi_world_of(engine, lane));
    default:
        return engine->host;
    }
}

static int is_host(sherdi_lane_id lane)
{
    return lane == SHERDI_LANE_HOST || lane == SHERDI_LANE_DRIVE;
}

/* Whether work on the lane may continue after the call that gave it has returned. */
static int is_async(const sherd_engine *engine, sherdi_lane_id lane)
{
    return sherdi_lane_is_wire(lane) || lane == SHERDI_LANE_DRIVE ||
           (lane != SHERDI_LANE_HOST && engine->backend->device->is_async);
}

static sherdi_event *event_of(const sherd_engine *engine, sherdi_lane_id lane, uint64_t number)
{
    return engine->lanes.own->events[lane][number % SHERDI_RUN_EVENTS];
}

static sherd_status lane_host_wait(sherd_engine *engine, sherdi_lane_id lane, uint64_t number)
{
    switch (lane) {
    case SHERDI_LANE_WIRE:
    case SHERDI_LANE_GROUP:
        return sherdi_world_wait(sherdi_world_of(engine, lane), number);
    case SHERDI_LANE_COMPUTE: /* waits for the trainer's work since then too */
        return sherdi_lane_wait(engine->backend);
    default:
        return sherdi_lanes_of(engine->backend)->event_wait(event_of(engine, lane, number));
    }
}

/* The order drops accesses that are over. */
sherd_status sherdi_run_lane_wait(sherd_engine *engine, sherdi_lane_id lane, uint64_t number)
{
    if (lane == SHERDI_LANE_DRIVE) {
        return engine->lanes.own->transfers->wait(engine, number);
    }
    SHERDI_TRY(lane_host_wait(engine, lane, number));
    (void)pthread_mutex_lock(&engine->lanes.own->lock);
    /* the wait for the compute lane was for all of its operations */
    sherdi_order_forget(&engine->lanes.own->order, lane, lane == SHERDI_LANE_COMPUTE ? 0 : number);
    (void)pthread_mutex_unlock(&engine->lanes.own->lock);
    return SHERD_OK;
}

int sherdi_run_lane_is_over(const sherd_engine *engine, sherdi_lane_id lane, uint64_t number)
{
    switch (lane) {
    case SHERDI_LANE_WIRE:
    case SHERDI_LANE_GROUP:
        return sherdi_world_is_done(sherdi_world_of(engine, lane), number);
    case SHERDI_LANE_COMPUTE:
        return 0;
    default:
        return sherdi_lanes_of(engine->backend)->event_is_done(event_of(engine, lane, number));
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
    if (sherdi_lane_is_wire(other)) {
        return sherdi_world_follow(sherdi_world_of(engine, other), backend, number);
    }
    if (other == SHERDI_LANE_COMPUTE) {
        sherdi_lane_follow(backend, engine->backend);
        return SHERD_OK;
    }
    sherdi_lanes_of(backend)->lane_follow_event(backend, event_of(engine, other, number));
    return SHERD_OK;
}

static sherd_status op_follow(sherd_engine *engine, const sherdi_backend *lane_of_trainer,
                              const sherdi_op *op, void *raw)
{
    const sherdi_follows *follows = raw;

    (void)lane_of_trainer;
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        if (follows->last[lane] != 0) {
            SHERDI_TRY(lane_follow(engine, op->lane, (sherdi_lane_id)lane, follows->last[lane]));
        }
    }
    return engine->lanes.own->transfers == NULL
               ? SHERD_OK
               : engine->lanes.own->transfers->follow(engine, op, follows);
}

/* An operation that was submitted to an asynchronous lane: later operations follow it. Under the
 * lock. */
static void op_record(sherd_engine *engine, const sherdi_op *op, uint64_t number)
{
    const sherdi_backend *lane = lane_of(engine, op->lane);

    if (!sherdi_lane_is_wire(op->lane) && engine->lanes.own->events[op->lane][0] != NULL) {
        sherdi_lanes_of(lane)->event_record(event_of(engine, op->lane, number), lane);
    }
    if (number != 0) {
        sherdi_order_enter(&engine->lanes.own->order, op, number);
        engine->run.submitted[op->lane] = number;
    }
}

/* Counts the bytes of a copy that passes over the link between host and device. */
static void link_count(sherd_engine *engine, const sherdi_op *op)
{
    size_t         bytes = op->uses[SHERDI_USE_DST].bytes;
    sherdi_link   *link  = &engine->run.links[sherdi_run_user(engine)];
    sherdi_lane_id way   = sherdi_copy_way(op);

    link->down_bytes += way == SHERDI_LANE_DOWN ? bytes : 0;
    link->up_bytes += way == SHERDI_LANE_UP ? bytes : 0;
}

/* Whether operations of this kind are kernels, not calls, which can fail at once. */
static int is_kernel(sherdi_op_kind kind)
{
    switch (kind) {
#define SHERDI_CALL(of, call) case SHERDI_OP_##of:
#include "engine/run/call_list.h"
#undef SHERDI_CALL
        return 0;
    default:
        return 1;
    }
}

/* Executes an operation, or enqueues it on its lane. Kernels come from both threads, and their
 * order on an asynchronous lane is that of their numbers; calls, which may block, are the trainer's
 * alone. */
static sherd_status op_give(sherd_engine *engine, const sherdi_op *op)
{
    sherdi_lanes_impl    *own   = engine->lanes.own;
    const sherdi_backend *lane  = lane_of(engine, op->lane);
    int                   locks = is_async(engine, op->lane) && is_kernel(op->kind);
    sherd_status          status;
    uint64_t              number;

    if (op->kind == SHERDI_OP_COPY) {
        link_count(engine, op);
    }
    if (!is_async(engine, op->lane)) {
        number = 0;
        return sherdi_run_op(engine, lane, op, &number);
    }
    if (locks) {
        (void)pthread_mutex_lock(&own->lock);
    }
    number = engine->run.submitted[op->lane] + 1;
    status = sherdi_run_op(engine, lane, op, &number);
    if (!locks) {
        (void)pthread_mutex_lock(&own->lock);
    }
    if (status == SHERD_OK) {
        op_record(engine, op, number);
    }
    (void)pthread_mutex_unlock(&own->lock);
    return status;
}

static sherd_status op_run(void *ctx, const sherdi_op *op)
{
    sherd_engine      *engine = ctx;
    sherdi_lanes_impl *own    = engine->lanes.own;
    sherdi_follows     follows;

    SHERDI_TELL(updater, beat, engine);
    if (own->transfers != NULL) {
        own->transfers->poll(engine);
    }
    (void)pthread_mutex_lock(&own->lock);
    sherdi_order_follows(&own->order, op, &follows);
    (void)pthread_mutex_unlock(&own->lock);
    if (op->lane == SHERDI_LANE_DRIVE) {
        return own->transfers->submit(engine, op, &follows);
    }
    SHERDI_TRY(SHERDI_IF(times, timed, (engine, engine->backend, op, 1, op_follow, &follows),
                         op_follow(engine, engine->backend, op, &follows)));
    return op_give(engine, op);
}

sherd_status sherdi_run_quiet(sherd_engine *engine)
{
    if (engine->lanes.own == NULL) { /* a dry engine enqueues nothing */
        return SHERD_OK;
    }
    SHERDI_TRY(
        sherdi_run_lane_wait(engine, SHERDI_LANE_WIRE, engine->run.submitted[SHERDI_LANE_WIRE]));
    return engine->backend->device->is_async ? sherdi_run_lane_wait(engine, SHERDI_LANE_COMPUTE, 0)
                                             : SHERD_OK;
}

/* -------------------------------------------------------------- open, close -- */

static sherd_status events_open(sherd_engine *engine)
{
    static const sherdi_lane_id LANES[] = {SHERDI_LANE_UPDATE, SHERDI_LANE_UP, SHERDI_LANE_DOWN};

    for (size_t l = 0; l < sizeof(LANES) / sizeof(LANES[0]) && engine->backend->device->is_async;
         l++) {
        for (int i = 0; i < SHERDI_RUN_EVENTS; i++) {
            SHERDI_TRY(
                sherdi_lanes_of(engine->backend)
                    ->event_create(engine->backend, 0, &engine->lanes.own->events[LANES[l]][i]));
        }
    }
    return SHERD_OK;
}

static sherd_status lanes_open(sherd_engine *engine)
{
    sherdi_backend          *compute = engine->backend;
    const sherdi_device_ops *device  = compute->device;

    engine->lanes.own = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*engine->lanes.own));
    if (engine->lanes.own == NULL) {
        return SHERD_E_NOMEM;
    }
    engine->lanes.ops = &sherdi_lanes_table;
    engine->lanes.run = op_run;
    (void)pthread_mutex_init(&engine->lanes.own->lock, NULL);
    SHERDI_TRY(device->lane_create(compute, "update", NULL, &engine->lanes.update));
    SHERDI_TRY(device->lane_create(compute, "up", NULL, &engine->lanes.up));
    SHERDI_TRY(device->lane_create(compute, "down", NULL, &engine->lanes.down));
    return events_open(engine);
}

static void lanes_close(sherd_engine *engine)
{
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        for (int i = 0; i < SHERDI_RUN_EVENTS; i++) {
            sherdi_lanes_of(engine->backend)->event_destroy(engine->lanes.own->events[lane][i]);
        }
    }
    sherdi_backend_destroy(engine->lanes.update);
    sherdi_backend_destroy(engine->lanes.up);
    sherdi_backend_destroy(engine->lanes.down);
    (void)pthread_mutex_destroy(&engine->lanes.own->lock);
    sherdi_free(engine->lanes.own);
    engine->lanes = (sherdi_lanes){0};
}

/* At stage 3 an acquire follows only the operations that gather its unit, so the updates of later
 * units overlap with the forward of the first ones. */
static void lanes_join(sherd_engine *engine)
{
    if (engine->settings.sharding.stage == 3) {
        return;
    }
    sherdi_lane_follow(engine->backend, engine->lanes.update);
    sherdi_lane_follow(engine->backend, engine->lanes.up);
}

static void walk_over(sherd_engine *engine)
{
    sherdi_lane_follow(engine->lanes.update, engine->lanes.down);
    sherdi_lane_follow(engine->lanes.update, engine->lanes.up);
}

static sherd_status wire_wait(sherd_engine *engine)
{
    if (engine->group != NULL) {
        SHERDI_TRY(sherdi_world_wait(engine->group, engine->run.submitted[SHERDI_LANE_GROUP]));
    }
    return sherdi_world_wait(engine->shards, engine->run.submitted[SHERDI_LANE_WIRE]);
}

static void lanes_drain(sherd_engine *engine)
{
    (void)wire_wait(engine);
    if (engine->lanes.down == NULL) { /* opening failed */
        return;
    }
    (void)sherdi_lane_wait(engine->backend);
    (void)sherdi_lane_wait(engine->lanes.update);
    (void)sherdi_lane_wait(engine->lanes.up);
    (void)sherdi_lane_wait(engine->lanes.down);
}

const sherdi_lanes_ops sherdi_lanes_table = {
    .close     = lanes_close,
    .join      = lanes_join,
    .walk_over = walk_over,
    .wire_wait = wire_wait,
    .drain     = lanes_drain,
};

const sherdi_module sherdi_module_lanes = {.lanes_open = lanes_open};
