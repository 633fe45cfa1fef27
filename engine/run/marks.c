/* See marks.h. Marks on a device take slots of a ring in order, and are read in that order, oldest
 * first. */
#include "engine/run/marks.h"

#include "base/clock.h"
#include "base/log.h"
#include "collectives/follow.h"
#include "engine/modules.h"
#include "engine/run/kernels.h"

#include <stdlib.h>
#include <string.h>

typedef struct kind_info {
    const char       *name;
    sherdi_trace_lane lane;
} kind_info;

static const kind_info KINDS[SHERDI_MARK_KINDS] = {
    [SHERDI_MARK_FORWARD]         = {"compute", SHERDI_TRACE_COMPUTE},
    [SHERDI_MARK_BACKWARD]        = {"compute", SHERDI_TRACE_COMPUTE},
    [SHERDI_MARK_EVAL]            = {"compute", SHERDI_TRACE_COMPUTE},
    [SHERDI_MARK_WAIT_GATHER]     = {"wait for parameters", SHERDI_TRACE_WAIT},
    [SHERDI_MARK_WAIT_REDUCE]     = {"wait for gradients", SHERDI_TRACE_WAIT},
    [SHERDI_MARK_WAIT_ACTIVATION] = {"wait for an activation", SHERDI_TRACE_WAIT},
    [SHERDI_MARK_WAIT_UPDATE]     = {"wait for the update", SHERDI_TRACE_WAIT},
    [SHERDI_MARK_GATHER]          = {"gather", SHERDI_TRACE_GATHER},
    [SHERDI_MARK_REDUCE]          = {"reduce", SHERDI_TRACE_REDUCE},
    [SHERDI_MARK_DOWN]            = {"down", SHERDI_TRACE_DOWN},
    [SHERDI_MARK_UP]              = {"up", SHERDI_TRACE_UP},
    [SHERDI_MARK_NORM]            = {"norm", SHERDI_TRACE_UPDATE},
    [SHERDI_MARK_UPDATE]          = {"update", SHERDI_TRACE_UPDATE},
    [SHERDI_MARK_STEP]            = {"step", SHERDI_TRACE_STEP},
};

static void sum_add(sherdi_mark_sum *sum, uint64_t bytes, int64_t ns)
{
    (void)atomic_fetch_add_explicit(&sum->count, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&sum->bytes, bytes, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&sum->ns, ns, memory_order_relaxed);
}

/* Logs a transfer; only rank 0 has logs_transfers set. */
static void transfer_log(sherdi_mark_kind kind, const char *what, uint64_t bytes, int64_t ns)
{
    if (kind == SHERDI_MARK_GATHER || kind == SHERDI_MARK_REDUCE) {
        sherdi_log(SHERD_LOG_INFO, 0,
                   "comm op: %s %s | time (ms): %.2f | msg size: %.2f MB | Gbps: %.2f",
                   kind == SHERDI_MARK_GATHER ? "all_gather" : "reduce_scatter",
                   what == NULL ? "" : what, (double)ns * 1e-6, (double)bytes / 0x1p20,
                   ns == 0 ? 0 : 8 * (double)bytes / (double)ns);
    }
}

/* Whether this thread is an updater. */
static _Thread_local int is_queued_here;

static void interval_add(sherdi_marks *marks, const sherdi_mark *mark, int64_t start_ns,
                         int64_t end_ns)
{
    sherdi_mark_kind kind = mark->kind;

    (void)atomic_fetch_add_explicit(&marks->spent_ns[mark->is_queued][kind], end_ns - start_ns,
                                    memory_order_relaxed);
    sum_add(&marks->sums[kind], mark->bytes, end_ns - start_ns);
    if (marks->logs_transfers) {
        transfer_log(kind, mark->what, mark->bytes, end_ns - start_ns);
    }
    sherdi_trace_interval(marks->trace, KINDS[kind].lane, KINDS[kind].name, mark->what, mark->bytes,
                          start_ns, end_ns);
}

void sherdi_marks_add(sherd_engine *engine, sherdi_mark_kind kind, const char *what, uint64_t bytes,
                      int64_t start_ns, int64_t end_ns)
{
    const sherdi_mark mark = {
        .kind = kind, .what = what, .bytes = bytes, .is_queued = is_queued_here};

    interval_add(engine->times.own, &mark, start_ns, end_ns);
}

/* Records the time that a transport measured itself; called on the thread that ran the transfer. */
static void transfer_tell(void *ctx, int is_reduction, const char *what, uint64_t bytes,
                          int64_t start_ns, int64_t end_ns)
{
    sherdi_marks_add(ctx, is_reduction ? SHERDI_MARK_REDUCE : SHERDI_MARK_GATHER, what, bytes,
                     start_ns, end_ns);
}

static sherd_status slots_open(sherd_engine *engine)
{
    sherdi_marks          *marks  = engine->times.own;
    const sherdi_lane_ops *device = sherdi_lanes_of(engine->backend);

    marks->slots = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, SHERDI_MARK_SLOTS,
                                      sizeof(*marks->slots));
    if (marks->slots == NULL) {
        return SHERD_E_NOMEM;
    }
    for (int i = 0; i < SHERDI_MARK_SLOTS; i++) {
        SHERDI_TRY(device->event_create(engine->backend, 1, &marks->slots[i].start));
        SHERDI_TRY(device->event_create(engine->backend, 1, &marks->slots[i].end));
    }
    return SHERD_OK;
}

static sherd_status marks_open(sherd_engine *engine)
{
    sherdi_marks *marks = sherdi_alloc(&engine->mem, SHERDI_MEM_CONTROL, sizeof(*marks));
    const char   *path  = getenv("SHERD_TRACE");
    int is_timed = engine->settings.watch.wall_clock_breakdown || engine->settings.watch.logs_comms;

    if (marks == NULL) {
        return SHERD_E_NOMEM;
    }
    memset(marks, 0, sizeof(*marks));
    (void)pthread_mutex_init(&marks->lock, NULL);
    marks->timer = (sherdi_world_timer){{sherdi_world_observe}, transfer_tell, engine};
    engine->times =
        (sherdi_times){.ops = &sherdi_times_marks, .own = marks, .observer = &marks->timer.common};
    marks->units = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, engine->model.num_units,
                                      sizeof(*marks->units));
    if (marks->units == NULL) {
        return SHERD_E_NOMEM;
    }
    if (path != NULL && path[0] != '\0') {
        SHERDI_TRY(
            sherdi_trace_open(path, engine->rank, engine->world_size, &engine->mem, &marks->trace));
        is_timed = 1;
    }
    return is_timed && engine->backend->device->is_async ? slots_open(engine) : SHERD_OK;
}

static void marks_close(sherd_engine *engine)
{
    sherdi_marks          *marks  = engine->times.own;
    const sherdi_lane_ops *device = sherdi_lanes_of(engine->backend);

    if (marks->slots != NULL) {
        sherdi_marks_resolve(engine);
        for (int i = 0; i < SHERDI_MARK_SLOTS; i++) {
            device->event_destroy(marks->slots[i].start);
            device->event_destroy(marks->slots[i].end);
        }
    }
    sherdi_free(marks->slots);
    sherdi_free(marks->units);
    sherdi_trace_close(marks->trace);
    sherdi_free(marks);
    engine->times.own = NULL;
}

/* Returns the oldest mark that was not read; NULL: there is none, or it has not ended. */
static sherdi_mark_slot *oldest(const sherdi_marks *marks)
{
    sherdi_mark_slot *slot = &marks->slots[marks->resolved % SHERDI_MARK_SLOTS];

    return marks->resolved < marks->begun && slot->mark.slot > 0 ? slot : NULL;
}

/* Adds the time of a mark that the device has passed. */
static void slot_resolve(sherdi_marks *marks, const sherdi_backend *lane,
                         const sherdi_mark_slot *slot)
{
    interval_add(marks, &slot->mark, sherdi_lanes_of(lane)->event_ns(slot->start),
                 sherdi_lanes_of(lane)->event_ns(slot->end));
    marks->resolved++;
}

static void oldest_resolve(sherdi_marks *marks, const sherdi_backend *lane)
{
    const sherdi_mark_slot *slot;

    while ((slot = oldest(marks)) != NULL && sherdi_lanes_of(lane)->event_is_done(slot->end)) {
        slot_resolve(marks, lane, slot);
    }
}

void sherdi_marks_resolve(sherd_engine *engine)
{
    sherdi_marks *marks = engine->times.own;

    if (marks != NULL && marks->slots != NULL) { /* a dry engine has none */
        (void)pthread_mutex_lock(&marks->lock);
        oldest_resolve(marks, engine->backend);
        (void)pthread_mutex_unlock(&marks->lock);
    }
}

/* Returns the end of the oldest mark before `until` that was not read; NULL: there is none, or it
 * has not ended. */
static sherdi_event *oldest_end(sherdi_marks *marks, uint64_t until)
{
    const sherdi_mark_slot *slot;

    (void)pthread_mutex_lock(&marks->lock);
    slot = marks->resolved < until ? oldest(marks) : NULL;
    (void)pthread_mutex_unlock(&marks->lock);
    return slot == NULL ? NULL : slot->end;
}

static sherdi_mark mark_begin(sherd_engine *engine, sherdi_mark_kind kind,
                              const sherdi_backend *lane, const char *what, uint64_t bytes)
{
    sherdi_marks          *marks  = engine->times.own;
    const sherdi_lane_ops *device = sherdi_lanes_of(engine->backend);
    sherdi_mark mark = {.kind = kind, .what = what, .bytes = bytes, .is_queued = is_queued_here};

    if (device->range_begin != NULL) {
        mark.range = device->range_begin(what == NULL ? KINDS[kind].name : what);
    }
    if (lane == NULL || !lane->device->is_async) {
        mark.start_ns = sherdi_now_ns();
        return mark;
    }
    if (marks->slots == NULL) {
        return mark;
    }
    (void)pthread_mutex_lock(&marks->lock);
    if (marks->begun - marks->resolved == SHERDI_MARK_SLOTS) {
        oldest_resolve(marks, lane);
    }
    if (marks->begun - marks->resolved < SHERDI_MARK_SLOTS) { /* else this one is not timed */
        sherdi_mark_slot *slot = &marks->slots[marks->begun % SHERDI_MARK_SLOTS];

        slot->mark.slot = 0; /* until it ends */
        mark.slot       = 1 + (int)(marks->begun++ % SHERDI_MARK_SLOTS);
        sherdi_lanes_of(lane)->event_record(slot->start, lane);
    }
    (void)pthread_mutex_unlock(&marks->lock);
    return mark;
}

static void mark_end(sherd_engine *engine, const sherdi_backend *lane, const sherdi_mark *mark)
{
    sherdi_marks *marks = engine->times.own;

    if (mark->range != 0) {
        sherdi_lanes_of(engine->backend)->range_end(mark->range);
    }
    if (mark->slot > 0) {
        (void)pthread_mutex_lock(&marks->lock);
        sherdi_lanes_of(lane)->event_record(marks->slots[mark->slot - 1].end, lane);
        marks->slots[mark->slot - 1].mark = *mark;
        (void)pthread_mutex_unlock(&marks->lock);
    } else if (mark->start_ns != 0) {
        interval_add(marks, mark, mark->start_ns, sherdi_now_ns());
    }
}

/* The lane of a part of a step; NULL: it is timed by the host's clock. */
static const sherdi_backend *part_lane(const sherd_engine *engine, sherdi_timed_part part)
{
    return part == SHERDI_TIMED_STEP ? engine->backend : NULL;
}

static void part_begin(sherd_engine *engine, sherdi_timed_part part)
{
    engine->times.own->parts[part] =
        mark_begin(engine, part == SHERDI_TIMED_STEP ? SHERDI_MARK_STEP : SHERDI_MARK_NORM,
                   part_lane(engine, part), NULL, 0);
}

static void part_end(sherd_engine *engine, sherdi_timed_part part)
{
    mark_end(engine, part_lane(engine, part), &engine->times.own->parts[part]);
    engine->times.own->parts[part] = (sherdi_mark){0};
}

/* ------------------------------------------------------------- operations -- */

/* The marks of an operation, on its lane, and of the host's wait in it. */
typedef struct op_marks {
    sherdi_mark mark, wait;
} op_marks;

static sherdi_mark wait_begin(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    sherdi_mark_kind kind = op->kind == SHERDI_OP_USE    ? SHERDI_MARK_WAIT_GATHER
                            : op->kind == SHERDI_OP_ZERO ? SHERDI_MARK_WAIT_REDUCE
                                                         : SHERDI_MARK_WAIT_ACTIVATION;

    return sherdi_op_is_trainers(op->kind) ||
                   (op->kind == SHERDI_OP_ZERO && op->lane == SHERDI_LANE_COMPUTE)
               ? mark_begin(engine, kind, lane, engine->model.units[op->unit].name, 0)
               : (sherdi_mark){0};
}

/* A collective has two times: the host may wait in the call, and the transfer itself takes time on
 * a lane. A transport that runs on the host reports that time itself. */
static op_marks transfer_begin(sherd_engine *engine, const sherdi_backend *lane,
                               const sherdi_op *op)
{
    int         is_reduction = op->kind == SHERDI_OP_REDUCE;
    const char *what         = sherdi_run_subject(engine, op);
    size_t      slice_bytes  = op->elems * sherd_dtype_bytes(op->from);
    op_marks    marks        = {0};

    marks.wait = mark_begin(
        engine, is_reduction ? SHERDI_MARK_WAIT_REDUCE : SHERDI_MARK_WAIT_GATHER, NULL, what, 0);
    if (lane->device->is_async && (engine->plan->world_size == 1 ||
                                   sherdi_world_caps(engine->world) & SHERDI_WORLD_ON_LANE)) {
        marks.mark =
            mark_begin(engine, is_reduction ? SHERDI_MARK_REDUCE : SHERDI_MARK_GATHER, lane, what,
                       sherdi_wire_all_gather(engine->plan->world_size, slice_bytes));
    }
    return marks;
}

static op_marks op_begin(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                         int is_wait)
{
    op_marks            marks = {0};
    const sherdi_range *dst   = &op->uses[SHERDI_USE_DST];

    if (is_wait) {
        marks.mark = wait_begin(engine, lane, op);
    } else if (op->kind == SHERDI_OP_GATHER || op->kind == SHERDI_OP_REDUCE) {
        marks = transfer_begin(engine, lane, op);
    } else if (op->kind == SHERDI_OP_COPY &&
               (op->lane == SHERDI_LANE_DOWN || op->lane == SHERDI_LANE_UP)) {
        marks.mark =
            mark_begin(engine, op->lane == SHERDI_LANE_DOWN ? SHERDI_MARK_DOWN : SHERDI_MARK_UP,
                       lane, NULL, dst->bytes);
    } else if (op->kind == SHERDI_OP_UPDATE ||
               (op->kind == SHERDI_OP_MATRIX && dst->where != SHERDI_AT_NOWHERE)) {
        marks.mark =
            mark_begin(engine, SHERDI_MARK_UPDATE, lane, sherdi_run_subject(engine, op), 0);
    }
    return marks;
}

static sherd_status op_timed(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op,
                             int is_wait, sherdi_timed_fn fn, void *ctx)
{
    const op_marks     marks  = op_begin(engine, lane, op, is_wait);
    const sherd_status status = fn(engine, lane, op, ctx);

    mark_end(engine, lane, &marks.mark);
    mark_end(engine, NULL, &marks.wait);
    return status;
}

/* -------------------------------------------------------------------- sums -- */

static double spent_take(sherdi_marks *marks, int is_queued, sherdi_mark_kind kind)
{
    return marks == NULL ? 0
                         : (double)atomic_exchange_explicit(&marks->spent_ns[is_queued][kind], 0,
                                                            memory_order_relaxed) *
                               1e-9;
}

double sherdi_marks_take(sherd_engine *engine, sherdi_mark_kind kind)
{
    return spent_take(engine->times.own, 0, kind);
}

double sherdi_marks_take_queued(sherd_engine *engine, sherdi_mark_kind kind)
{
    return spent_take(engine->times.own, 1, kind);
}

void sherdi_marks_queued(void)
{
    is_queued_here = 1;
}

/* ----------------------------------------------------------------- reports -- */

/* Adds to the report the times of the marks that the device has passed since the last call. */
static void times_add(sherd_engine *engine, sherd_step_report *report)
{
    double forward_s  = sherdi_marks_take(engine, SHERDI_MARK_FORWARD);
    double backward_s = sherdi_marks_take(engine, SHERDI_MARK_BACKWARD);
    double waits;
    double moves;

    engine->times.own->forward_s += forward_s;
    engine->times.own->backward_s += backward_s;
    report->update_s += sherdi_marks_take(engine, SHERDI_MARK_UPDATE);
    report->norm_s += sherdi_marks_take(engine, SHERDI_MARK_NORM);
    report->gather_s += sherdi_marks_take(engine, SHERDI_MARK_GATHER);
    report->reduce_s += sherdi_marks_take(engine, SHERDI_MARK_REDUCE);
    report->copy_s +=
        sherdi_marks_take(engine, SHERDI_MARK_DOWN) + sherdi_marks_take(engine, SHERDI_MARK_UP);
    report->wait_gather_s += sherdi_marks_take(engine, SHERDI_MARK_WAIT_GATHER);
    report->wait_activation_s += sherdi_marks_take(engine, SHERDI_MARK_WAIT_ACTIVATION);
    report->wait_reduce_s += sherdi_marks_take(engine, SHERDI_MARK_WAIT_REDUCE);
    report->step_s += sherdi_marks_take(engine, SHERDI_MARK_STEP);
    report->compute_s += forward_s + backward_s + sherdi_marks_take(engine, SHERDI_MARK_EVAL);
    waits             = report->wait_gather_s + report->wait_reduce_s;
    moves             = report->gather_s + report->reduce_s;
    report->exposed_s = waits + report->wait_activation_s + report->wait_param_s +
                        report->wait_update_s + report->step_s;
    report->hidden_s = moves > waits ? moves - waits : 0;
}

static void marks_boundary(sherd_engine *engine)
{
    sherdi_marks *marks = engine->times.own;

    marks->boundary_begun = marks->begun;
    marks->forward_s = marks->backward_s = 0;
    sherdi_marks_resolve(engine);
    times_add(engine, &engine->report);
}

/* Waits for the wire's calls of that boundary first: a rank that is lost ends that wait. Later
 * calls may follow work that takes as long as a step. A mark that has not ended ends the other. */
static sherd_status marks_wait(sherd_engine *engine)
{
    sherdi_marks *marks = engine->times.own;
    sherdi_event *end;

    if (marks->resolved >= marks->boundary_begun) {
        return SHERD_OK;
    }
    SHERDI_TRY(sherdi_world_wait(engine->shards, engine->times.boundary_wire));
    while (marks->slots != NULL && (end = oldest_end(marks, marks->boundary_begun)) != NULL) {
        SHERDI_TRY(sherdi_lanes_of(engine->backend)->event_wait(end));
        sherdi_marks_resolve(engine);
    }
    times_add(engine, &engine->boundary);
    return SHERD_OK;
}

const sherdi_times_ops sherdi_times_marks = {
    .close    = marks_close,
    .begin    = part_begin,
    .end      = part_end,
    .timed    = op_timed,
    .boundary = marks_boundary,
    .wait     = marks_wait,
};

/* ------------------------------------------------------- the trainer's time -- */

static sherd_status pass_begin(sherd_engine *engine, int unit, sherd_pass pass)
{
    static const sherdi_mark_kind OF_PASS[] = {[SHERD_FORWARD]  = SHERDI_MARK_FORWARD,
                                               [SHERD_BACKWARD] = SHERDI_MARK_BACKWARD,
                                               [SHERD_EVAL]     = SHERDI_MARK_EVAL};

    if (engine->times.own != NULL && sherdi_unit_of(engine, unit)->acquired[pass] == 1) {
        engine->times.own->units[unit].pass[pass] =
            mark_begin(engine, OF_PASS[pass], engine->backend, engine->model.units[unit].name, 0);
    }
    return SHERD_OK;
}

static void pass_end(sherd_engine *engine, int unit, sherd_pass pass)
{
    if (engine->times.own != NULL) {
        mark_end(engine, engine->backend, &engine->times.own->units[unit].pass[pass]);
    }
}

const sherdi_module sherdi_module_times = {
    .times_open = marks_open, .unit_acquired = pass_begin, .unit_let_go = pass_end};
