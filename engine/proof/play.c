/* Simulates the plain sequence of calls with rates, to predict its time. Every operation takes the
 * seconds of the bytes that it moves, on its lane; it begins when its lane, the operations that it
 * follows and its thread allow it. Exposed is the time for which the trainer's lane waits, and the
 * boundary.
 *
 * What collectives move inside a host and what they send to others are different resources. Inside,
 * the two lanes of collectives overlap, as the work of their worlds does. To other hosts there is
 * one wire, which both lanes share: the later one waits for it.
 *
 * A sequence with queued steps has two threads. All operations of a queued update are simulated
 * when it begins, on the updater's clock. On the CPU its kernels take the cores, and the work of
 * the calling thread fills the time that they leave. */
#include "engine/proof/emit.h"

#include "base/checked.h"
#include "engine/program/order.h"
#include "engine/program/program_rings.h"
#include "engine/proof/moves.h"

/* When the operations of a lane end, by number. */
typedef struct ends {
    double *at;
    size_t  count, capacity;
} ends;

/* A queued update. */
typedef struct beside {
    int     is_on; /* the last operation was the updater's */
    double  clock; /* of the updater */
    double  begun;
    double *posts;           /* [units], then walk, end: when it was posted */
    double *kernels;         /* begin and end of each kernel, in their order */
    size_t  count, capacity; /* numbers of them: two for a kernel */
    size_t  passed;          /* kernels that ended before the calling thread's clock */
    double  waits
        [2 * SHERDI_EMIT_WINDOWS]; /* of the calling thread, by the micro-batches that have ended */
} beside;

typedef struct play {
    const sherdi_plan  *plan;
    const sherdi_model *model;
    const sherd_rates  *rates;
    sherdi_order       *order;
    double              clocks[SHERDI_LANES]; /* of what does one operation after the other */
    ends                ends[SHERDI_LANES];
    double              between; /* when the wire to other hosts is free */
    double              host;    /* the calling thread's clock */
    double compute_elems;        /* elements of all uses in a micro-batch; backward counts twice */
    double marks[2 * SHERDI_EMIT_WINDOWS]; /* ends of the micro-batches */
    int    num_micros;
    beside beside;
    sherdi_phase_name phase;
    int               has_begun;
} play;

static int is_host_work(const play *p, sherdi_lane_id lane)
{
    if (lane == SHERDI_LANE_DRIVE) {
        return 0;
    }
    if (sherdi_lane_is_wire(lane)) {
        return !p->plan->settings.sharding.overlap_comm && !p->plan->machine.has_device;
    }
    return lane == SHERDI_LANE_HOST || !p->plan->machine.has_device;
}

static sherdi_lane_id resource_of(const play *p, sherdi_lane_id lane)
{
    return is_host_work(p, lane) ? SHERDI_LANE_HOST : lane;
}

/* ----------------------------------------------------------------- seconds -- */

static double seconds_at(uint64_t count, double rate)
{
    return rate > 0 ? (double)count / rate : 0;
}

static double use_elems(const play *p, sherdi_phase_name phase, const sherdi_op *op)
{
    double elems;

    if (op->segment < 0) {
        return 0; /* an activation: its unit's parameters count */
    }
    elems = (double)p->plan->layout.segments[op->segment].padded_elems;
    if (op->param >= 0) { /* one of several parameters in the segment */
        elems = (double)op->uses[SHERDI_USE_SRC].bytes;
    }
    return phase == SHERDI_IN_BACKWARD ? 2 * elems : elems;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Returns the seconds of a collective that begins at `start`: what stays on the host, then what the
 * wire to other hosts takes. */
static double wire_seconds(play *p, double start, const uint64_t moves[SHERDI_MEDIA])
{
    uint64_t between = moves[SHERDI_MOVES_BETWEEN];
    uint64_t wire    = moves[SHERDI_MOVES_WIRE];
    double   inside  = seconds_at(wire > between ? wire - between : 0, p->rates->wire);

    if (between == 0) {
        return inside;
    }
    p->between = later(p->between, start + inside) +
                 seconds_at(between, p->rates->between > 0 ? p->rates->between : p->rates->wire);
    return p->between - start;
}

/* Returns the seconds of an operation that begins at `start`. */
static double seconds_of(play *p, double start, const sherdi_op *op)
{
    const sherd_rates *r                   = p->rates;
    uint64_t           moves[SHERDI_MEDIA] = {0};

    if (op->kind == SHERDI_OP_USE) {
        return p->compute_elems == 0 ? 0
                                     : r->compute_s * use_elems(p, p->phase, op) / p->compute_elems;
    }
    sherdi_op_moves_add(p->plan, p->model, op, moves);
    return wire_seconds(p, start, moves) + seconds_at(moves[SHERDI_MOVES_DOWN], r->down) +
           seconds_at(moves[SHERDI_MOVES_UP], r->up) +
           seconds_at(moves[SHERDI_MOVES_READ], r->nvme_read) +
           seconds_at(moves[SHERDI_MOVES_WRITTEN], r->nvme_write) +
           seconds_at(moves[SHERDI_MOVES_DEVICE], r->device) +
           seconds_at(moves[SHERDI_MOVES_HOST], r->host) +
           seconds_at(moves[SHERDI_MOVES_FLOPS], r->products);
}

/* ------------------------------------------------------------------ playing -- */

static double end_of(const play *p, sherdi_lane_id lane, uint64_t number)
{
    return p->ends[lane].at[number - 1];
}

static double follows_end(const play *p, const sherdi_follows *follows)
{
    double end = 0;

    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        if (follows->last[lane] != 0) {
            end = later(end, end_of(p, (sherdi_lane_id)lane, follows->last[lane]));
        }
    }
    for (size_t i = 0; i < follows->num_drives; i++) {
        end = later(end, end_of(p, SHERDI_LANE_DRIVE, follows->drives[i]));
    }
    if (follows->is_all_drives) {
        end = later(end, p->clocks[SHERDI_LANE_DRIVE]);
    }
    return end;
}

static double all_clocks(const play *p)
{
    double end = p->host;

    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        end = later(end, p->clocks[lane]);
    }
    return end;
}

/* Enters another part of the sequence, and stores the end of the last one. */
static void phase_enter(play *p, sherdi_phase_name phase)
{
    int is_new_micro = p->has_begun && phase == SHERDI_IN_FORWARD && p->phase == SHERDI_IN_BACKWARD;

    if (is_new_micro || (phase == SHERDI_IN_BOUNDARY && p->phase != SHERDI_IN_BOUNDARY)) {
        p->marks[p->num_micros++] = later(p->host, p->clocks[SHERDI_LANE_COMPUTE]);
    }
    p->has_begun = 1;
    p->phase     = phase;
}

static sherd_status end_add(play *p, sherdi_lane_id lane, double end)
{
    ends *all = &p->ends[lane];

    SHERDI_TRY(sherdi_grow(p->plan->mem, SHERDI_MEM_CONTROL, (void **)&all->at, &all->capacity,
                           all->count + 1, sizeof(*all->at)));
    all->at[all->count++] = end;
    return SHERD_OK;
}

/* Enters the updater's operations, or leaves them. */
static void thread_enter(play *p, int is_queued)
{
    beside *b = &p->beside;

    if (is_queued && !b->is_on) {
        b->begun = b->clock = p->host;
        b->count = b->passed = 0;
    }
    b->is_on = is_queued;
}

static sherd_status kernel_add(play *p, double start, double end)
{
    beside *b = &p->beside;

    SHERDI_TRY(sherdi_grow(p->plan->mem, SHERDI_MEM_CONTROL, (void **)&b->kernels, &b->capacity,
                           b->count + 2, sizeof(*b->kernels)));
    b->kernels[b->count++] = start;
    b->kernels[b->count++] = end;
    return SHERD_OK;
}

/* Returns when work of the calling thread ends that begins at `start` and takes the time between
 * the updater's kernels. */
static double work_end(play *p, double start, double seconds)
{
    beside *b = &p->beside;

    for (; 2 * b->passed < b->count; b->passed++) {
        const double *kernel = &b->kernels[2 * b->passed];

        if (kernel[0] >= start + seconds) {
            break;
        }
        seconds -= kernel[0] > start ? kernel[0] - start : 0;
        start = later(start, kernel[1]);
    }
    return start + seconds;
}

static double *post_of(play *p, const sherdi_op *op)
{
    return &p->beside.posts[op->part == SHERDI_POST_UNIT
                                ? (size_t)op->unit
                                : p->plan->layout.num_units + (op->part == SHERDI_POST_END)];
}

/* The threads wait for each other. */
static void post_play(play *p, const sherdi_op *op)
{
    beside *b = &p->beside;

    if (op->kind == SHERDI_OP_POST) {
        *post_of(p, op) = b->clock;
    } else if (op->kind == SHERDI_OP_AWAIT && *post_of(p, op) > p->host) {
        b->waits[p->num_micros] += *post_of(p, op) - p->host;
        p->host = *post_of(p, op);
    }
}

static sherd_status updater_play(play *p, const sherdi_op *op, double follows, double *end)
{
    double *clock = op->lane == SHERDI_LANE_HOST ? &p->beside.clock : &p->clocks[op->lane];
    double  start = later(later(*clock, p->beside.clock), follows);

    *clock = *end = start + seconds_of(p, start, op);
    if (op->flags & SHERDI_OP_WAITS) {
        p->beside.clock = *end;
    }
    return op->lane == SHERDI_LANE_HOST && *end > start && !p->plan->machine.has_device
               ? kernel_add(p, start, *end)
               : SHERD_OK;
}

static void caller_play(play *p, const sherdi_op *op, double follows, double *end)
{
    sherdi_lane_id where   = resource_of(p, op->lane);
    double        *clock   = &p->clocks[where];
    double         start   = later(later(*clock, p->host), follows);
    double         seconds = seconds_of(p, start, op);

    *end   = where == SHERDI_LANE_HOST ? work_end(p, start, seconds) : start + seconds;
    *clock = *end;
    if (where == SHERDI_LANE_HOST || op->flags & SHERDI_OP_WAITS) {
        p->host = *end;
    }
}

static sherd_status op_play(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    play          *p         = ctx;
    int            is_queued = (op->flags & SHERDI_OP_QUEUED) != 0;
    double         end;
    sherdi_follows follows;

    if (phase == SHERDI_IN_EVAL) {
        return SHERD_OK;
    }
    if ((phase != p->phase || !p->has_begun) &&
        (op->flags & (SHERDI_OP_AHEAD | SHERDI_OP_LATE | SHERDI_OP_QUEUED)) == 0) {
        phase_enter(p, phase);
    }
    thread_enter(p, is_queued);
    post_play(p, op);
    sherdi_order_follows(p->order, op, &follows);
    if (is_queued) {
        SHERDI_TRY(updater_play(p, op, follows_end(p, &follows), &end));
    } else {
        caller_play(p, op, follows_end(p, &follows), &end);
    }
    SHERDI_TRY(end_add(p, op->lane, end));
    sherdi_order_enter(p->order, op, p->ends[op->lane].count);
    return SHERD_OK;
}

static sherd_status uses_sum(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    play *p = ctx;

    if (op->kind == SHERDI_OP_USE && phase != SHERDI_IN_EVAL) {
        p->compute_elems += use_elems(p, phase, op);
    }
    return SHERD_OK;
}

static void prediction_fill(const play *p, sherd_prediction *out)
{
    double micros      = p->plan->settings.batch.accumulation;
    int    is_all      = p->plan->settings.update.optimizer->is_inference; /* no boundary */
    double first       = is_all ? all_clocks(p) : p->marks[0];
    double later_micro = p->num_micros > 1 ? p->marks[1] - p->marks[0] : first;

    out->micro_s    = p->num_micros > 1 ? (first + later_micro * (micros - 1)) / micros : first;
    out->boundary_s = is_all ? 0 : all_clocks(p) - (p->num_micros > 1 ? p->marks[1] : p->marks[0]);
    out->step_s     = micros * out->micro_s + out->boundary_s;
    out->exposed_s  = out->step_s - micros * p->rates->compute_s;
    out->queued_s   = out->step_s;
}

/* A queued step is what lies between two ends of a window's last micro-batch. A device works on
 * while the thread that gives it work waits, so the update is waited for no longer than the
 * trainer's work stands still. */
static void prediction_queue(const play *p, sherd_prediction *out)
{
    double micros  = p->plan->settings.batch.accumulation;
    int    emitted = p->num_micros / SHERDI_EMIT_WINDOWS; /* micro-batches of a window, 1 or 2 */
    int    last    = p->num_micros - 1;
    double waited  = 0;
    double exposed;

    out->queued_s = p->marks[last] - p->marks[last - emitted];
    if (micros > emitted) {
        out->queued_s += (micros - emitted) * (p->marks[last] - p->marks[last - 1]);
    }
    for (int micro = last - emitted + 1; micro <= last; micro++) {
        waited += p->beside.waits[micro];
    }
    exposed            = out->queued_s - micros * p->rates->compute_s;
    out->beside_s      = p->beside.clock - p->beside.begun;
    out->wait_update_s = waited < exposed ? waited : exposed;
}

static sherd_status play_open(play *p)
{
    size_t posts = p->plan->layout.num_units + 2;

    p->order = sherdi_alloc(p->plan->mem, SHERDI_MEM_CONTROL, sizeof(*p->order));
    p->beside.posts =
        sherdi_alloc_array(p->plan->mem, SHERDI_MEM_CONTROL, posts, sizeof(*p->beside.posts));
    return p->order == NULL || p->beside.posts == NULL ? SHERD_E_NOMEM : SHERD_OK;
}

static void play_close(play *p)
{
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        sherdi_free(p->ends[lane].at);
    }
    sherdi_free(p->beside.kernels);
    sherdi_free(p->beside.posts);
    sherdi_free(p->order);
}

/* Simulates the sequence of these parts; `fill` takes the results. */
static sherd_status play_run(const sherdi_plan *plan, const sherdi_model *model,
                             const sherd_rates *rates, sherdi_emit_parts parts,
                             void (*fill)(const play *p, sherd_prediction *out),
                             sherd_prediction *out)
{
    play         p      = {.plan = plan, .model = model, .rates = rates};
    sherd_status status = play_open(&p);

    if (status == SHERD_OK) {
        status = sherdi_dry_emit(plan, model, SHERDI_EMIT_ONE, uses_sum, &p);
    }
    if (status == SHERD_OK) {
        status = sherdi_dry_emit(plan, model, parts, op_play, &p);
    }
    if (status == SHERD_OK) {
        fill(&p, out);
    }
    play_close(&p);
    return status;
}

sherd_status sherdi_dry_play(const sherdi_plan *plan, const sherdi_model *model,
                             const sherd_rates *rates, sherd_prediction *out)
{
    SHERDI_TRY(play_run(plan, model, rates, SHERDI_EMIT_ALL, prediction_fill, out));
    return sherdi_program_can_be_queued(plan)
               ? play_run(plan, model, rates, SHERDI_EMIT_QUEUED, prediction_queue, out)
               : SHERD_OK;
}
