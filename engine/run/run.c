/* The executor: carries out the operations that the program hands over (run.h). op_run, near the end, is the loop's body; above
 * it are the functions for the kinds of operations: kernels, which are queued on a lane, and calls, which can fail at once. */
#include "engine/run/updater.h"
#include "engine/run/engine_impl.h"

#include "base/checked.h"
#include "engine/run/lanes.h"
#include "engine/run/loop.h"
#include "engine/run/optimizer.h"
#include "engine/run/scalars.h"

#include <assert.h>
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

static sherdi_user user_of(const sherd_engine *engine)
{
    return sherdi_updater_is_here(engine) ? SHERDI_USER_UPDATER : SHERDI_USER_TRAINER;
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

/* Blocks the host until the operation is over. Then nothing has to follow it any more, and the order forgets it. */
static sherd_status host_wait(void *ctx, sherdi_lane_id lane, uint64_t number)
{
    sherd_engine *engine = ctx;

    if (lane == SHERDI_LANE_DRIVE) {
        return sherdi_drive_wait(&engine->run.drive, number);
    }
    SHERDI_TRY(lane_host_wait(engine, lane, number));
    (void)pthread_mutex_lock(&engine->run.lock);
    /* the wait for the compute lane was for all of its operations */
    sherdi_order_forget(&engine->run.order, lane, lane == SHERDI_LANE_COMPUTE ? 0 : number);
    (void)pthread_mutex_unlock(&engine->run.lock);
    return SHERD_OK;
}

static int lane_is_over(void *ctx, sherdi_lane_id lane, uint64_t number)
{
    sherd_engine *engine = ctx;

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
        return host_wait(engine, other, number);
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

/* Returns the failure of a ring whose buffer the operation uses. */
static sherd_status rings_check(const sherd_engine *engine, const sherdi_op *op)
{
    static const int BUFFERS[SHERDI_RINGS] = {SHERDI_BUFFER_STATE_RING, SHERDI_BUFFER_PARAM_RING,
                                              SHERDI_BUFFER_GRAD_RING};

    for (int ring = 0; ring < SHERDI_RINGS; ring++) {
        for (int role = 0; role < SHERDI_USES; role++) {
            if (op->uses[role].where == BUFFERS[ring]) {
                SHERDI_TRY(sherdi_drive_status(&engine->run.drive, (sherdi_ring)ring));
            }
        }
    }
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
    for (size_t i = 0; i < follows->num_drives; i++) {
        SHERDI_TRY(sherdi_drive_wait(&engine->run.drive, follows->drives[i]));
    }
    if (follows->is_all_drives) {
        SHERDI_TRY(sherdi_drive_wait_all(&engine->run.drive, user_of(engine)));
    }
    return rings_check(engine, op);
}

/* Follows, and marks the time that the trainer's lane waits for. */
static sherd_status op_follow_marked(sherd_engine *engine, const sherdi_op *op,
                                     const sherdi_follows *follows)
{
    sherdi_mark  mark;
    sherd_status status;

    if (op->kind != SHERDI_OP_USE &&
        (op->kind != SHERDI_OP_ZERO || op->lane != SHERDI_LANE_COMPUTE)) {
        return op_follow(engine, op, follows);
    }
    mark   = sherdi_mark_begin(&engine->marks,
                             op->kind == SHERDI_OP_USE ? SHERDI_MARK_WAIT_GATHER
                                                         : SHERDI_MARK_WAIT_REDUCE,
                               engine->backend, engine->model.units[op->unit].name, 0);
    status = op_follow(engine, op, follows);
    sherdi_mark_end(&engine->marks, engine->backend, &mark);
    return status;
}

/* --------------------------------------------------------------- addresses -- */

static void *address_of(const sherd_engine *engine, const sherdi_op *op, int role)
{
    const sherdi_range *range = &op->uses[role];

    switch (range->where) {
    case SHERDI_AT_NOWHERE:
        return NULL;
    case SHERDI_AT_TRAINER_DATA:
        return (unsigned char *)engine->model.params[op->param].bound_data +
               (range->offset -
                sherdi_trainer_offset(engine->plan, &engine->model, (size_t)op->param));
    case SHERDI_AT_TRAINER_GRAD:
        return engine->model.params[op->param].bound_grad;
    default:
        assert(range->where < SHERDI_BUFFERS &&
               range->offset + range->bytes <= engine->plan->buffers[range->where].bytes);
        return engine->memory.buffers[range->where] + range->offset;
    }
}

static const char *subject_of(const sherd_engine *engine, const sherdi_op *op)
{
    return op->unit < 0 ? NULL : engine->model.units[op->unit].name;
}

/* ----------------------------------------------------------------- kernels -- */

/* Zeroes what no parameter covers of a block. */
static void gaps_zero(const sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                      unsigned char *target)
{
    size_t elem = sherd_dtype_bytes(op->to);
    size_t at   = 0;

    for (size_t i = 0; i <= op->block->num_spans; i++) {
        const sherdi_span *span =
            i < op->block->num_spans ? &engine->plan->spans[op->block->first_span + i] : NULL;
        size_t end = span == NULL ? op->block->elems : span->offset_elems;

        lane->kernels->zero(lane, target + at * elem, (end - at) * elem);
        at = span == NULL ? end : span->offset_elems + span->count_elems;
    }
}

static void op_zero(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    unsigned char *dst = address_of(engine, op, SHERDI_USE_DST);

    if (op->flags & SHERDI_OP_GAPS) {
        gaps_zero(engine, lane, op, dst);
    } else {
        lane->kernels->zero(lane, dst, op->uses[SHERDI_USE_DST].bytes);
    }
}

/* As many elements as are still in a cache of the cores when their squares are summed. */
#define MEASURED_ELEMS ((size_t)128 * 1024)

typedef void (*make_fn)(const sherdi_backend *lane, const sherdi_op *op, void *dst, const void *src,
                        size_t elems);

/* Makes a gradient, and adds its squares to the norm. */
static void make_measured(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                          make_fn make)
{
    sherdi_norm_acc     *norm  = &sherdi_space_scalars(engine, op->space)->head->norm;
    unsigned char       *dst   = address_of(engine, op, SHERDI_USE_DST);
    const unsigned char *src   = address_of(engine, op, SHERDI_USE_SRC);
    size_t               elems = op->uses[SHERDI_USE_DST].bytes / sherd_dtype_bytes(op->to);
    size_t               from  = op->uses[SHERDI_USE_SRC].bytes / sherdi_max_size(elems, 1);

    for (size_t at = 0, count; at < elems; at += count) {
        unsigned char *made = dst + at * sherd_dtype_bytes(op->to);

        count = sherdi_min_size(MEASURED_ELEMS, elems - at);
        make(lane, op, made, src + at * from, count);
        lane->kernels->sumsq(lane, made, op->to, count, norm);
    }
}

static void copy_make(const sherdi_backend *lane, const sherdi_op *op, void *dst, const void *src,
                      size_t elems)
{
    lane->kernels->copy(lane, dst, src, elems * sherd_dtype_bytes(op->to));
}

static void op_copy(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    size_t      bytes = op->uses[SHERDI_USE_DST].bytes;
    void       *dst   = address_of(engine, op, SHERDI_USE_DST);
    const void *src   = address_of(engine, op, SHERDI_USE_SRC);
    sherdi_mark mark;

    engine->store.links[user_of(engine)].down_bytes += op->moves[SHERDI_MOVES_DOWN];
    engine->store.links[user_of(engine)].up_bytes += op->moves[SHERDI_MOVES_UP];
    if (op->lane != SHERDI_LANE_DOWN && op->lane != SHERDI_LANE_UP) {
        lane->kernels->copy(lane, dst, src, bytes);
        return;
    }
    mark = sherdi_mark_begin(&engine->marks,
                             op->lane == SHERDI_LANE_DOWN ? SHERDI_MARK_DOWN : SHERDI_MARK_UP, lane,
                             NULL, bytes);
    if (op->flags & SHERDI_OP_MEASURES) {
        make_measured(engine, lane, op, copy_make);
    } else {
        lane->kernels->copy(lane, dst, src, bytes);
    }
    sherdi_mark_end(&engine->marks, lane, &mark);
}

static void cast_make(const sherdi_backend *lane, const sherdi_op *op, void *dst, const void *src,
                      size_t elems)
{
    lane->kernels->cast(lane, dst, op->to, src, op->from, elems);
}

static void accumulate_make(const sherdi_backend *lane, const sherdi_op *op, void *dst,
                            const void *src, size_t elems)
{
    lane->kernels->accumulate(lane, dst, op->to, src, op->from, elems);
}

static void make(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                 make_fn make)
{
    if (op->flags & SHERDI_OP_MEASURES) {
        make_measured(engine, lane, op, make);
    } else {
        make(lane, op, address_of(engine, op, SHERDI_USE_DST),
             address_of(engine, op, SHERDI_USE_SRC), op->elems);
    }
}

static void op_cast(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    make(engine, lane, op, cast_make);
}

static void op_accumulate(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    make(engine, lane, op, accumulate_make);
}

static void op_widen(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->kernels->fixed_to_f32(lane, address_of(engine, op, SHERDI_USE_DST),
                                address_of(engine, op, SHERDI_USE_SRC), op->elems);
}

static void op_norm(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->kernels->sumsq(lane, address_of(engine, op, SHERDI_USE_SRC), op->from, op->elems,
                         &sherdi_space_scalars(engine, op->space)->head->norm);
}

/* A part of a block's state, as it is stored. */
static sherdi_encoded encoded_part(const sherd_engine *engine, const sherdi_op *op, int part)
{
    const sherdi_plan    *plan    = engine->plan;
    const sherdi_segment *segment = &plan->segments[op->segment];
    unsigned char        *state   = address_of(engine, op, SHERDI_USE_STATE);
    int                   ties    = segment->ties_part;

    return (sherdi_encoded){
        .encoding      = segment->encodings[part],
        .data          = state + sherdi_plan_part_offset(plan, op->block, part, 0),
        .has_ties      = part > 0 && part == ties,
        .param         = (uint16_t *)address_of(engine, op, SHERDI_USE_PARAM),
        .ties          = state + sherdi_plan_part_offset(plan, op->block, ties, 0),
        .ties_encoding = segment->encodings[ties],
    };
}

/* Sums the fingerprint of a block; of consecutive elements, if the operation has no block. */
static void op_fingerprint(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const sherdi_scalars *scalars = sherdi_space_scalars(engine, op->space);
    const sherdi_span     run     = {.count_elems = op->elems, .first_index = op->index};

    if (op->uses[SHERDI_USE_STATE].where != SHERDI_AT_NOWHERE) {
        sherdi_encoded master = encoded_part(engine, op, 0);

        lane->kernels->fingerprint_encoded(lane, scalars->spans + op->block->first_span,
                                           op->block->num_spans, &master,
                                           &scalars->head->fingerprint);
        return;
    }
    lane->kernels->fingerprint(lane,
                               op->block == NULL ? &run : scalars->spans + op->block->first_span,
                               op->block == NULL ? 1 : op->block->num_spans,
                               address_of(engine, op, SHERDI_USE_SRC), &scalars->head->fingerprint);
}

/* What a sweep needs of a block. The master lies with the other parts of the state, or is the parameter itself. */
static sherdi_sweep_args sweep_args(const sherd_engine *engine, const sherdi_op *op)
{
    const sherdi_scalars    *scalars = sherdi_space_scalars(engine, op->space);
    unsigned char           *state   = address_of(engine, op, SHERDI_USE_STATE);
    unsigned char           *param   = address_of(engine, op, SHERDI_USE_PARAM);
    const sherdi_segment    *segment = &engine->plan->segments[op->segment];
    sherdi_optimizer_scalars own     = sherdi_scalars_of_optimizer(
            scalars, sherdi_plan_optimizer_of(engine->plan, segment->optimizer));
    sherdi_sweep_args args = {
        .spans       = scalars->spans + op->block->first_span,
        .num_spans   = op->block->num_spans,
        .coeffs      = own.coeffs,
        .grad        = address_of(engine, op, SHERDI_USE_SRC),
        .grad_dtype  = segment->types.grad,
        .parts       = {segment->has_master ? state : param},
        .encodings   = segment->encodings,
        .ties_part   = segment->ties_part,
        .step        = (uint64_t)engine->run.coeffs.step,
        .direction   = address_of(engine, op, SHERDI_USE_DST),
        .param       = segment->has_master ? param : NULL,
        .param_dtype = segment->types.compute,
        .fingerprint = &scalars->head->fingerprint,
        .norms       = own.norms,
        .ratios      = own.ratios,
    };

    for (int i = 1; i < sherdi_segment_parts(segment); i++) {
        args.parts[i] = state + sherdi_plan_part_offset(engine->plan, op->block, i, 0);
    }
    return args;
}

static void op_update(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_sweep_args args = sweep_args(engine, op);
    sherdi_mark       mark =
        sherdi_mark_begin(&engine->marks, SHERDI_MARK_UPDATE, lane, subject_of(engine, op), 0);

    engine->plan->segments[op->segment].optimizer->sweeps[op->sweep].run(lane, &args);
    sherdi_mark_end(&engine->marks, lane, &mark);
}

static void op_matrix(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const size_t *shape = engine->model.params[op->param].shape;
    sherdi_mark   mark;

    if (op->uses[SHERDI_USE_DST].where == SHERDI_AT_NOWHERE) {
        return; /* another rank makes this matrix */
    }
    mark = sherdi_mark_begin(&engine->marks, SHERDI_MARK_UPDATE, lane, subject_of(engine, op), 0);

    engine->plan->segments[op->segment].optimizer->matrix(
        lane, &engine->settings,
        &(sherdi_matrix_args){
            .matrix    = address_of(engine, op, SHERDI_USE_DST),
            .rows      = shape[0],
            .cols      = shape[1],
            .workspace = address_of(engine, op, SHERDI_USE_STATE),
        });
    sherdi_mark_end(&engine->marks, lane, &mark);
}

static void op_clear(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const sherdi_range   *range = &op->uses[SHERDI_USE_DST];
    const sherdi_scalars *side =
        range->where == SHERDI_BUFFER_SCALARS ? &engine->device : &engine->on_host;

    lane->device->fill(lane, side->memory + range->offset, 0, range->bytes);
}

static void op_coeffs(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    (void)lane, (void)op;
    sherdi_optimizer_coeffs(engine);
}

static void op_ratios(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    (void)lane, (void)op;
    sherdi_scalars_ratios(engine);
}

static void op_collect(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    (void)lane;
    if (op->uses[SHERDI_USE_SCALARS].bytes == engine->plan->scalars.results_bytes) {
        sherdi_scalars_collect(engine, &engine->results);
    } else {
        engine->results.fingerprint = sherdi_scalars_fingerprint(engine);
    }
}

/* Fills with 0xff bytes: NaN in every float type. */
static void op_poison(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    lane->device->fill(lane, address_of(engine, op, SHERDI_USE_DST), 0xff,
                       op->uses[SHERDI_USE_DST].bytes);
}

/* ------------------------------------------------------------------- calls -- */

/* A collective has two times: the host may wait in the call, and the transfer itself takes time on a lane. */
typedef struct transfer_marks {
    sherdi_mark wait, transfer;
} transfer_marks;

static transfer_marks marks_begin(sherd_engine *engine, const sherdi_op *op, int is_reduction)
{
    const char    *what = subject_of(engine, op);
    transfer_marks marks;

    marks.wait = sherdi_mark_begin(&engine->marks,
                                   is_reduction ? SHERDI_MARK_WAIT_REDUCE : SHERDI_MARK_WAIT_GATHER,
                                   NULL, what, 0);
    marks.transfer =
        sherdi_collective_mark(engine, is_reduction ? SHERDI_MARK_REDUCE : SHERDI_MARK_GATHER, what,
                               op->elems * sherd_dtype_bytes(op->from));
    return marks;
}

static void marks_end(sherd_engine *engine, const transfer_marks *marks)
{
    sherdi_collective_mark_end(engine, &marks->transfer);
    sherdi_mark_end(&engine->marks, NULL, &marks->wait);
}

static sherd_status op_gather(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_all_gather_args args = {
        .send        = address_of(engine, op, SHERDI_USE_SRC),
        .recv        = address_of(engine, op, SHERDI_USE_DST),
        .slice_bytes = op->elems * sherd_dtype_bytes(op->to),
        .flags       = op->flags & SHERDI_OP_STABLE ? SHERDI_COLL_STABLE : 0,
        .what        = subject_of(engine, op),
        .observer    = &engine->observer,
    };
    transfer_marks marks  = marks_begin(engine, op, 0);
    sherd_status   status = sherdi_world_all_gather(engine->world, &args, number_out);

    if (op->flags & SHERDI_OP_ALONE) { /* it publishes what an update beside the calls has made */
        engine->updater.published_bytes += op->moves[SHERDI_MOVES_WIRE];
    }
    marks_end(engine, &marks);
    return status;
}

/* Whether the transport sums by itself: the configuration asks for it, and the transport can. */
static int is_vendors(const sherd_engine *engine)
{
    return engine->settings.vendor_reduction && engine->world_size > 1 &&
           (sherdi_world_caps(engine->world) & SHERDI_WORLD_VENDOR_SUMS) != 0;
}

/* Where a deterministic reduction puts integers. The loss scale is constant inside a window, so the sink is not written while the
 * world's thread may read it. */
static const sherdi_fixed_sink *fixed_sink(sherd_engine *engine)
{
    double multiplier = ldexp(1, engine->plan->fixed_shift) / engine->scaler.scale;

    if (engine->window.fixed_sink.multiplier != multiplier) {
        engine->window.fixed_sink = (sherdi_fixed_sink){
            .multiplier = multiplier,
            .limit      = ldexp(SHERDI_FIXED_RANGE, engine->plan->fixed_shift),
            .counts     = &engine->device.head->counts,
        };
    }
    return &engine->window.fixed_sink;
}

static sherdi_reduction_args reduction_of(sherd_engine *engine, const sherdi_op *op)
{
    return (sherdi_reduction_args){
        .recv        = address_of(engine, op, SHERDI_USE_DST),
        .send        = address_of(engine, op, SHERDI_USE_SRC),
        .slice_elems = op->elems,
        .send_dtype  = op->from,
        .comm_dtype  = engine->plan->segments[op->segment].types.comm,
        .recv_dtype  = op->to,
        .scale       = (float)(1.0 / engine->world_size),
        .accumulate  = (op->flags & SHERDI_OP_ADDS) != 0,
        .fixed =
            op->uses[SHERDI_USE_SCALARS].where == SHERDI_AT_NOWHERE ? NULL : fixed_sink(engine),
        .flags    = is_vendors(engine) ? SHERDI_COLL_VENDOR_SUM : 0,
        .what     = subject_of(engine, op),
        .observer = &engine->observer,
    };
}

static sherd_status op_reduce(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_reduction_args args   = reduction_of(engine, op);
    transfer_marks        marks  = marks_begin(engine, op, 1);
    sherd_status          status = sherdi_world_reduce_scatter(engine->world, &args, number_out);

    marks_end(engine, &marks);
    return status;
}

static sherd_status op_all_reduce(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    sherdi_reduction_args args = reduction_of(engine, op);

    args.send = args.recv;
    return sherdi_world_all_reduce(engine->world, &args, number_out);
}

static sherd_status op_hash(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return sherdi_loop_param_hash(engine, (size_t)op->param, &engine->run.hash);
}

static sherd_status op_fill(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return sherdi_values_ask(engine, op, address_of(engine, op, SHERDI_USE_DST));
}

static sherd_status op_take(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return sherdi_values_tell(engine, op, address_of(engine, op, SHERDI_USE_SRC));
}

static sherd_status op_block(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return engine->run.block_fn(engine->run.block_ctx, op);
}

/* The address of an element of a part of a block; the master may be the parameter itself. */
static unsigned char *block_part(const sherd_engine *engine, const sherdi_op *op, int part,
                                 size_t offset_elems)
{
    int            has_master = engine->plan->segments[op->segment].has_master;
    unsigned char *base =
        address_of(engine, op, part == 0 && !has_master ? SHERDI_USE_PARAM : SHERDI_USE_STATE);

    return base + sherdi_plan_part_offset(engine->plan, op->block, part, offset_elems);
}

static void op_encode(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_encoded part = encoded_part(engine, op, op->part);

    lane->kernels->encode(lane, &part, (size_t)op->index, address_of(engine, op, SHERDI_USE_SRC),
                          op->elems);
}

static void op_decode(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_encoded part = encoded_part(engine, op, op->part);

    lane->kernels->decode(lane, address_of(engine, op, SHERDI_USE_DST), &part, (size_t)op->index,
                          op->elems);
}

/* Returns the fill buffer, which a device's kernels reach, and sets *some to as many elements as fit: whole chunks, where more
 * than a chunk fits. */
static float *values_reached(const sherd_engine *engine, size_t left, size_t *some)
{
    size_t room = engine->plan->fill_elems;

    room  = room < SHERD_CHUNK_ELEMS ? room : room / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;
    *some = sherdi_min_size(left, room);
    return (float *)(void *)engine->memory.buffers[SHERDI_BUFFER_FILL];
}

static int is_apart(const sherd_engine *engine, sherdi_space space)
{
    return space == SHERDI_SPACE_DEVICE && sherdi_has_device(engine);
}

static sherd_status encoded_get(sherd_engine *engine, const sherdi_op *op, int part, size_t first,
                                size_t count, float *out)
{
    sherdi_encoded        encoded = encoded_part(engine, op, part);
    const sherdi_backend *lane    = engine->backend;

    if (!is_apart(engine, op->space)) {
        engine->host->kernels->decode(engine->host, out, &encoded, first, count);
        return SHERD_OK;
    }
    for (size_t done = 0, some; done < count; done += some) {
        float *values = values_reached(engine, count - done, &some);

        lane->kernels->decode(lane, values, &encoded, first + done, some);
        SHERDI_TRY(sherdi_lane_wait(lane));
        memcpy(out + done, values, some * sizeof(*values));
    }
    return SHERD_OK;
}

/* A failure of the device is returned by the next wait. */
static void encoded_put(sherd_engine *engine, const sherdi_op *op, int part, size_t first,
                        size_t count, const float *values)
{
    sherdi_encoded        encoded = encoded_part(engine, op, part);
    const sherdi_backend *lane    = engine->backend;

    if (!is_apart(engine, op->space)) {
        engine->host->kernels->encode(engine->host, &encoded, first, values, count);
        return;
    }
    for (size_t done = 0, some; done < count; done += some) {
        float *to = values_reached(engine, count - done, &some);

        (void)sherdi_lane_wait(lane); /* the device may still read the buffer */
        memcpy(to, values + done, some * sizeof(*values));
        lane->kernels->encode(lane, &encoded, first + done, to, some);
    }
}

sherd_status sherdi_run_block_get(sherd_engine *engine, const sherdi_op *op, int part,
                                  size_t offset_elems, size_t count, float *out)
{
    if (sherdi_segment_part_is_encoded(&engine->plan->segments[op->segment], part)) {
        return encoded_get(engine, op, part, offset_elems, count, out);
    }
    return sherdi_space_get(engine, op->space, out, block_part(engine, op, part, offset_elems),
                            count * sizeof(*out));
}

void sherdi_run_block_put(sherd_engine *engine, const sherdi_op *op, int part, size_t offset_elems,
                          size_t count, const float *values)
{
    if (sherdi_segment_part_is_encoded(&engine->plan->segments[op->segment], part)) {
        encoded_put(engine, op, part, offset_elems, count, values);
        return;
    }
    sherdi_space_put(engine, op->space, block_part(engine, op, part, offset_elems), values,
                     count * sizeof(*values));
}

static sherd_status op_sum(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    *number_out = 0; /* no ticket: the sum is done when the call returns */
    return sherdi_world_sum_u64(engine->world, (uint64_t *)(void *)engine->on_host.norms,
                                op->elems);
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

static sherd_status op_post(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return sherdi_updater_post(engine, op);
}

static sherd_status op_await(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return sherdi_updater_await(engine, op);
}

static sherd_status op_generation(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out)
{
    (void)number_out;
    return sherdi_store_generation(engine, op->kind, &engine->run.record);
}

/* ------------------------------------------------------------------- drive -- */

static uint64_t transfer_give(sherd_engine *engine, const sherdi_op *op,
                              const sherdi_follows *follows)
{
    int             is_write = op->kind == SHERDI_OP_WRITE;
    sherdi_transfer transfer = {
        .tier     = engine->store.tiers[op->ring],
        .memory   = address_of(engine, op, is_write ? SHERDI_USE_SRC : SHERDI_USE_DST),
        .extent   = op->extent,
        .ring     = op->ring,
        .is_write = is_write,
        .follows  = *follows,
    };

    return sherdi_drive_give(&engine->run.drive, &transfer);
}

/* --------------------------------------------------------------- the loop -- */

/* An operation that is queued on a lane, and runs in the lane's order. */
typedef void (*kernel_fn)(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op);

static const kernel_fn KERNELS[SHERDI_OP_KINDS] = {
    [SHERDI_OP_ZERO] = op_zero,     [SHERDI_OP_COPY] = op_copy,
    [SHERDI_OP_CAST] = op_cast,     [SHERDI_OP_ACCUMULATE] = op_accumulate,
    [SHERDI_OP_WIDEN] = op_widen,   [SHERDI_OP_NORM] = op_norm,
    [SHERDI_OP_UPDATE] = op_update, [SHERDI_OP_FINGERPRINT] = op_fingerprint,
    [SHERDI_OP_ENCODE] = op_encode, [SHERDI_OP_DECODE] = op_decode,
    [SHERDI_OP_CLEAR] = op_clear,   [SHERDI_OP_POISON] = op_poison,
    [SHERDI_OP_MATRIX] = op_matrix, [SHERDI_OP_COEFFS] = op_coeffs,
    [SHERDI_OP_RATIOS] = op_ratios, [SHERDI_OP_COLLECT] = op_collect,
};

/* An operation that can fail at once. *number_out is the lane's next number; a collective replaces it by its ticket, or by 0 if
 * it is done. */
typedef sherd_status (*call_fn)(sherd_engine *engine, const sherdi_op *op, uint64_t *number_out);

static const call_fn CALLS[SHERDI_OP_KINDS] = {
    [SHERDI_OP_GATHER]     = op_gather,
    [SHERDI_OP_REDUCE]     = op_reduce,
    [SHERDI_OP_ALL_REDUCE] = op_all_reduce,
    [SHERDI_OP_EXCHANGE]   = op_exchange,
    [SHERDI_OP_SUM]        = op_sum,
    [SHERDI_OP_COMMIT]     = op_generation,
    [SHERDI_OP_ABANDON]    = op_generation,
    [SHERDI_OP_ROLLBACK]   = op_generation,
    [SHERDI_OP_FILL]       = op_fill,
    [SHERDI_OP_HASH]       = op_hash,
    [SHERDI_OP_TAKE]       = op_take,
    [SHERDI_OP_SAVE]       = op_block,
    [SHERDI_OP_LOAD]       = op_block,
    [SHERDI_OP_POST]       = op_post,
    [SHERDI_OP_AWAIT]      = op_await,
};

/* An operation that was given to a lane which works by itself: later operations follow it. Under the lock. */
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

/* Gives a transfer to the drive. */
static sherd_status drive_give(sherd_engine *engine, const sherdi_op *op,
                               const sherdi_follows *follows)
{
    sherdi_run *run    = &engine->run;
    uint64_t    number = transfer_give(engine, op, follows);

    (void)pthread_mutex_lock(&run->lock);
    sherdi_order_enter(&run->order, op, number);
    (void)pthread_mutex_unlock(&run->lock);
    sherdi_drive_poll(&run->drive, user_of(engine));
    return op->kind == SHERDI_OP_WRITE && !engine->settings.pipeline_write
               ? sherdi_drive_wait(&run->drive, number)
               : SHERD_OK;
}

/* Makes a call, which may block. */
static sherd_status call_give(sherd_engine *engine, const sherdi_op *op)
{
    sherdi_run *run = &engine->run;
    uint64_t    number =
        run->given[op->lane] + 1; /* of the wire; the trainer's thread alone uses it */

    SHERDI_TRY(CALLS[op->kind](engine, op, &number));
    if (is_async(engine, op->lane)) {
        (void)pthread_mutex_lock(&run->lock);
        op_record(engine, op, number);
        (void)pthread_mutex_unlock(&run->lock);
    }
    return SHERD_OK;
}

static void kernel_run(sherd_engine *engine, const sherdi_op *op)
{
    if (op->kind != SHERDI_OP_USE) { /* a USE is the trainer's own work */
        KERNELS[op->kind](engine, lane_of(engine, op->lane), op);
    }
}

/* Runs a kernel here, or queues it on a lane, where both threads may queue. */
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
    sherd_engine  *engine = ctx;
    sherdi_run    *run    = &engine->run;
    sherdi_follows follows;

    sherdi_drive_poll(&run->drive, user_of(engine));
    (void)pthread_mutex_lock(&run->lock);
    sherdi_order_follows(&run->order, op, &follows);
    (void)pthread_mutex_unlock(&run->lock);
    if (op->lane == SHERDI_LANE_DRIVE) {
        return drive_give(engine, op, &follows);
    }
    SHERDI_TRY(op_follow_marked(engine, op, &follows));
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
    return sherdi_program_generation(sherdi_updater_program(engine), kind);
}

static void commit_note(sherd_engine *engine, int64_t step, const sherdi_scaler *scaler,
                        int is_written)
{
    sherdi_state_note *note = &engine->run.record.note;

    memset(&engine->run.record, 0, sizeof(engine->run.record));
    note->step             = step;
    note->micro_step       = engine->micro_step;
    note->skipped_steps    = engine->skipped_steps;
    note->scaler           = *scaler;
    note->accumulation     = engine->settings.accumulation;
    note->micro_batch_size = engine->settings.micro_batch_size;
    memcpy(note->run_text, engine->identity.run_text, sizeof(note->run_text));
    note->is_written = is_written;
    note->samples    = sherdi_samples_seen(engine);
    sherdi_store_note(engine, &engine->run.record);
}

void sherdi_run_commit_note(sherd_engine *engine, int64_t step, const sherdi_scaler *scaler)
{
    commit_note(engine, step, scaler, 0);
}

sherd_status sherdi_run_commit_noted(sherd_engine *engine, uint64_t fingerprint)
{
    engine->run.record.note.fingerprint = fingerprint;
    return sherdi_run_generation(engine, SHERDI_OP_COMMIT);
}

sherd_status sherdi_run_commit(sherd_engine *engine, int64_t step, uint64_t fingerprint,
                               const sherdi_scaler *scaler)
{
    commit_note(engine, step, scaler, 0);
    return sherdi_run_commit_noted(engine, fingerprint);
}

sherd_status sherdi_run_commit_written(sherd_engine *engine)
{
    commit_note(engine, engine->step, &engine->scaler, 1);
    return sherdi_run_commit_noted(engine, engine->fingerprints.own);
}

sherd_status sherdi_run_drain(sherd_engine *engine)
{
    return sherdi_world_wait(engine->world, engine->run.given[SHERDI_LANE_WIRE]);
}

sherd_status sherdi_run_quiet(sherd_engine *engine)
{
    SHERDI_TRY(host_wait(engine, SHERDI_LANE_WIRE, engine->run.given[SHERDI_LANE_WIRE]));
    return sherdi_has_device(engine) ? host_wait(engine, SHERDI_LANE_COMPUTE, 0) : SHERD_OK;
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
    sherdi_run         *run    = &engine->run;
    sherdi_drive_others others = {lane_is_over, host_wait, engine};

    (void)pthread_mutex_init(&run->lock, NULL);
    SHERDI_TRY(sherdi_progress_open(&run->progress, engine->plan, &engine->model, &engine->mem));
    SHERDI_TRY(sherdi_drive_open(&run->drive, sherdi_program_transfers(engine->plan), &run->order,
                                 &run->lock, &others, &engine->mem));
    SHERDI_TRY(events_open(engine));
    run->program = (sherdi_program){
        .plan      = engine->plan,
        .model     = &engine->model,
        .progress  = &run->progress,
        .fn        = op_run,
        .ctx       = engine,
        .is_posted = sherdi_updater_is_posted,
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
    sherdi_drive_close(&run->drive);
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

    if (engine->run.drive.users[ring] != user_of(engine)) { /* an update has the ring */
        SHERDI_TRY(sherdi_program_await(&engine->run.program, SHERDI_POST_END, -1));
    }
    status = sherdi_drive_settle(&engine->run.drive, ring);
    sherdi_progress_forget(&engine->run.progress, ring);
    return status;
}

sherd_status sherdi_run_drop(sherd_engine *engine)
{
    sherd_status status;

    sherdi_updater_forget(engine);
    engine->fingerprints.is_untold = 0;
    for (int ring = 0; ring < SHERDI_RINGS;
         ring++) { /* failures of what is dropped do not matter */
        (void)sherdi_run_settle(engine, (sherdi_ring)ring);
    }
    status = sherdi_program_forget(&engine->run.program);
    return status == SHERD_OK ? sherdi_run_generation(engine, SHERDI_OP_ABANDON) : status;
}
