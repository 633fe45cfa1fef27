/* Plays the plain run of a program against rates, to predict its time. Every operation takes the seconds of what it moves, on its
 * lane; it begins when its lane, what it follows and the calling thread allow it. Exposed is the time for which the trainer's
 * lane waits, and the boundary. */
#include "engine/dry/tell.h"

#include "base/checked.h"
#include "engine/plan/order.h"

/* When the operations of a lane end, by number. */
typedef struct ends {
    double *at;
    size_t  count, capacity;
} ends;

typedef struct play {
    const sherdi_plan *plan;
    const sherd_rates *rates;
    sherdi_order      *order;
    double             clocks[SHERDI_LANES]; /* of what does one operation after the other */
    ends               ends[SHERDI_LANES];
    double             host; /* the calling thread's clock */
    double compute_elems;    /* elements of all uses in a micro-batch; backward counts twice */
    double marks[2];         /* end of the first micro-batch, of the second */
    int    num_micros;
    sherdi_phase_name phase;
    int               has_begun;
} play;

static int is_host_work(const play *p, sherdi_lane_id lane)
{
    if (lane == SHERDI_LANE_DRIVE) {
        return 0;
    }
    if (lane == SHERDI_LANE_WIRE) {
        return !p->plan->settings.overlap_comm && !p->plan->machine.has_device;
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
    double elems = (double)p->plan->segments[op->segment].padded_elems;

    if (op->param >= 0) { /* one of several parameters in the segment */
        elems = (double)op->uses[SHERDI_USE_SRC].bytes;
    }
    return phase == SHERDI_IN_BACKWARD ? 2 * elems : elems;
}

static double seconds_of(const play *p, const sherdi_op *op)
{
    const sherd_rates *r = p->rates;

    if (op->kind == SHERDI_OP_USE) {
        return p->compute_elems == 0 ? 0
                                     : r->compute_s * use_elems(p, p->phase, op) / p->compute_elems;
    }
    return seconds_at(op->moves[SHERDI_MOVES_WIRE], r->wire) +
           seconds_at(op->moves[SHERDI_MOVES_DOWN], r->down) +
           seconds_at(op->moves[SHERDI_MOVES_UP], r->up) +
           seconds_at(op->moves[SHERDI_MOVES_READ], r->nvme_read) +
           seconds_at(op->moves[SHERDI_MOVES_WRITTEN], r->nvme_write) +
           seconds_at(op->moves[SHERDI_MOVES_DEVICE], r->device) +
           seconds_at(op->moves[SHERDI_MOVES_HOST], r->host) +
           seconds_at(op->moves[SHERDI_MOVES_FLOPS], r->products);
}

/* ------------------------------------------------------------------ playing -- */

static double later(double a, double b)
{
    return a > b ? a : b;
}

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

/* Enters another part of the run, and keeps the end of the last one. */
static void phase_enter(play *p, sherdi_phase_name phase)
{
    int is_new_micro = p->has_begun && phase == SHERDI_IN_FORWARD && p->phase == SHERDI_IN_BACKWARD;

    if (is_new_micro || (phase == SHERDI_IN_BOUNDARY && p->phase != SHERDI_IN_BOUNDARY)) {
        double end = later(p->host, p->clocks[SHERDI_LANE_COMPUTE]);

        p->num_micros++;
        p->marks[p->num_micros == 1 ? 0 : 1] = end;
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

static sherd_status op_play(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    play          *p       = ctx;
    sherdi_lane_id where   = resource_of(p, op->lane);
    double        *clock   = &p->clocks[where];
    double         seconds = 0;
    double         start;
    sherdi_follows follows;

    if (phase == SHERDI_IN_EVAL) {
        return SHERD_OK;
    }
    if ((phase != p->phase || !p->has_begun) &&
        (op->flags & (SHERDI_OP_AHEAD | SHERDI_OP_LATE)) == 0) {
        phase_enter(p, phase);
    }
    sherdi_order_follows(p->order, op, &follows);
    seconds = seconds_of(p, op);
    start   = later(later(*clock, p->host), follows_end(p, &follows));
    *clock  = start + seconds;
    if (where == SHERDI_LANE_HOST || op->flags & SHERDI_OP_WAITS) {
        p->host = *clock;
    }
    SHERDI_TRY(end_add(p, op->lane, *clock));
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
    double micros      = p->plan->settings.accumulation;
    int    is_all      = p->plan->settings.optimizer->is_inference; /* no boundary */
    double first       = is_all ? all_clocks(p) : p->marks[0];
    double later_micro = p->num_micros > 1 ? p->marks[1] - p->marks[0] : first;

    out->micro_s    = p->num_micros > 1 ? (first + later_micro * (micros - 1)) / micros : first;
    out->boundary_s = is_all ? 0 : all_clocks(p) - (p->num_micros > 1 ? p->marks[1] : p->marks[0]);
    out->step_s     = micros * out->micro_s + out->boundary_s;
    out->exposed_s  = out->step_s - micros * p->rates->compute_s;
}

sherd_status sherdi_dry_play(const sherdi_plan *plan, const sherdi_model *model,
                             const sherd_rates *rates, sherd_prediction *out)
{
    play         p = {.plan = plan, .rates = rates};
    sherd_status status;

    p.order = sherdi_alloc(plan->mem, SHERDI_MEM_CONTROL, sizeof(*p.order));
    if (p.order == NULL) {
        return SHERD_E_NOMEM;
    }
    status = sherdi_dry_tell(plan, model, SHERDI_TELL_ONE, uses_sum, &p);
    if (status == SHERD_OK) {
        status = sherdi_dry_tell(plan, model, SHERDI_TELL_ALL, op_play, &p);
    }
    if (status == SHERD_OK) {
        prediction_fill(&p, out);
    }
    for (int lane = 0; lane < SHERDI_LANES; lane++) {
        sherdi_free(p.ends[lane].at);
    }
    sherdi_free(p.order);
    return status;
}
