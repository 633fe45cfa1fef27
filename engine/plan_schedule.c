/* Schedule: when units are gathered and let go, and every collective with its bytes. Gathers start ahead
 * of use, as far as the wire needs and as prefetch_bucket_size and max_live_parameters allow. Units are
 * packed from their lifetimes (plan_pack.c), so the pool's size is the peak and does not depend on timing. */
#include "engine/plan.h"

#include "base/checked.h"
#include "collectives/world.h"

#include <string.h>

#define GROW(plan, array, count, capacity)                                                         \
    sherdi_grow((plan)->mem, SHERDI_MEM_CONTROL, (void **)&(array), &(capacity), (count) + 1,      \
                sizeof(*(array)))

/* ------------------------------------------------------------ sequences -- */

static sherd_status sequence_make(sherdi_plan *plan, const sherdi_model *model,
                                  sherdi_sequence *sequence, const sherd_pass *passes,
                                  size_t num_passes)
{
    size_t total = 0;

    for (size_t p = 0; p < num_passes; p++) {
        total += sherdi_model_order_len(model, passes[p]);
    }
    sequence->steps =
        sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, total, sizeof(*sequence->steps));
    if (sequence->steps == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t p = 0; p < num_passes; p++) {
        size_t len = sherdi_model_order_len(model, passes[p]);

        for (size_t i = 0; i < len; i++) {
            size_t at   = sequence->num_steps++;
            size_t held = sherdi_min_size(sherdi_model_held(model, passes[p], i), total - 1 - at);

            sequence->steps[at] = (sherdi_step_of_pass){
                .unit = sherdi_model_order(model, passes[p], i),
                .pass = passes[p],
                .last = at + held,
            };
            sequence->most_held = sherdi_max_size(sequence->most_held, held);
        }
    }
    return SHERD_OK;
}

/* The n-th unit that an acquire of `unit` needs: itself, then those it reads; -1: no more. */
static int needed_unit(const sherdi_model *model, int unit, size_t n)
{
    if (n == 0) {
        return unit;
    }
    return n <= model->units[unit].num_reads ? model->units[unit].reads[n - 1] : -1;
}

static int step_needs(const sherdi_model *model, const sherdi_step_of_pass *step, int unit)
{
    for (size_t n = 0;; n++) {
        int needed = needed_unit(model, step->unit, n);

        if (needed < 0 || needed == unit) {
            return needed == unit;
        }
    }
}

/* The first acquire that may be released after that at `position`, when its `last` is that. */
static size_t first_released(const sherdi_sequence *sequence, size_t position)
{
    return position - sherdi_min_size(position, sequence->most_held);
}

static size_t gathered_elems(const sherdi_plan *plan, int unit)
{
    return plan->units[unit].gather_bytes / sherd_dtype_bytes(plan->settings.compute_dtype);
}

/* ------------------------------------------------- gathers and their stays - */

/* What the next acquire needs is gathered ahead, whatever its size; more only while less than this is ahead.
 * An acquire starts the next gather before it waits for its own, so with one unit ahead the wire has its next
 * transfer when one is over. A second one hides the start of a call (launch, meeting of the ranks) where
 * transfers are short: 100 us at 50 GB/s between hosts are 5 MB, 20 us at 400 GB/s inside one are 8 MB. Larger
 * units cover that by themselves; more of them ahead take memory and save no time. */
#define AHEAD_BYTES ((size_t)8 << 20)

/* A unit during the walk. */
typedef struct walk_unit {
    size_t open;     /* index of its current stay plus 1; 0: not gathered */
    size_t held;     /* acquires that reach it, not yet released */
    int    is_ahead; /* gathered before its use, and not used yet */
} walk_unit;

/* Walk of a sequence as the engine will walk it. */
typedef struct walk {
    const sherdi_model *model;
    sherdi_plan        *plan;
    sherdi_sequence    *sequence;
    walk_unit          *units;
    size_t              live_elems;  /* gathered now */
    size_t              ahead_elems; /* of these, not used yet */
} walk;

static sherd_status stay_open(walk *w, int unit, size_t position)
{
    sherdi_sequence *sequence = w->sequence;

    SHERDI_TRY(GROW(w->plan, sequence->stays, sequence->num_stays, sequence->cap_stays));
    sequence->stays[sequence->num_stays++] =
        (sherdi_stay){.unit  = unit,
                      .first = position,
                      .last  = position,
                      .bytes = w->plan->units[unit].gather_bytes};
    w->units[unit].open = sequence->num_stays;
    w->live_elems += gathered_elems(w->plan, unit);
    sequence->steps[position].num_starts++;
    return SHERD_OK;
}

/* Elements of the acquires between `position` and the next use of `unit`; SIZE_MAX: no use. */
static size_t reuse_distance(const walk *w, int unit, size_t position)
{
    size_t distance = 0;

    for (size_t p = position + 1; p < w->sequence->num_steps; p++) {
        if (step_needs(w->model, &w->sequence->steps[p], unit)) {
            return distance;
        }
        distance += gathered_elems(w->plan, w->sequence->steps[p].unit);
    }
    return SIZE_MAX;
}

static sherd_status prefetch(walk *w, size_t position)
{
    const sherdi_settings *settings = &w->plan->settings;
    size_t                 enough   = AHEAD_BYTES / sherd_dtype_bytes(settings->compute_dtype);

    for (size_t p = position + 1; p < w->sequence->num_steps; p++) {
        if (p > position + 1 && w->ahead_elems >= enough) {
            return SHERD_OK;
        }
        for (size_t n = 0;; n++) {
            int    unit = needed_unit(w->model, w->sequence->steps[p].unit, n);
            size_t elems;

            if (unit < 0) {
                break;
            }
            elems = gathered_elems(w->plan, unit);
            if (elems == 0 || w->units[unit].open != 0) {
                continue;
            }
            if (elems > settings->prefetch_bucket_size - w->ahead_elems ||
                w->live_elems + elems > settings->max_live_parameters) {
                return SHERD_OK;
            }
            SHERDI_TRY(stay_open(w, unit, position));
            w->units[unit].is_ahead = 1;
            w->ahead_elems += elems;
        }
    }
    return SHERD_OK;
}

/* The release of what the acquire of `step` reached. */
static void walk_release(walk *w, const sherdi_step_of_pass *step)
{
    int unit;

    for (size_t n = 0; (unit = needed_unit(w->model, step->unit, n)) >= 0; n++) {
        walk_unit *state = &w->units[unit];
        size_t     distance;

        if (state->open == 0 || --state->held > 0) {
            continue;
        }
        w->sequence->stays[state->open - 1].last = step->last;
        distance                                 = reuse_distance(w, unit, step->last);
        if (distance == SIZE_MAX || distance > w->plan->settings.max_reuse_distance) {
            state->open = 0;
            w->live_elems -= gathered_elems(w->plan, unit);
        }
    }
}

static sherd_status walk_step(walk *w, size_t position)
{
    sherdi_step_of_pass *step = &w->sequence->steps[position];

    step->first_start = w->sequence->num_stays;
    for (size_t n = 0;; n++) {
        int unit = needed_unit(w->model, step->unit, n);

        if (unit < 0) {
            break;
        }
        if (gathered_elems(w->plan, unit) == 0) {
            continue;
        }
        if (w->units[unit].open == 0) {
            SHERDI_TRY(stay_open(w, unit, position));
        } else if (w->units[unit].is_ahead) {
            w->ahead_elems -= gathered_elems(w->plan, unit);
        }
        w->units[unit].is_ahead = 0;
        w->units[unit].held++;
    }
    SHERDI_TRY(prefetch(w, position));
    for (size_t p = first_released(w->sequence, position); p <= position; p++) {
        if (w->sequence->steps[p].last == position) {
            walk_release(w, &w->sequence->steps[p]);
        }
    }
    return SHERD_OK;
}

static sherd_status gathers_schedule(sherdi_plan *plan, const sherdi_model *model,
                                     sherdi_sequence *sequence)
{
    walk         w      = {.model = model, .plan = plan, .sequence = sequence};
    sherd_status status = SHERD_OK;

    w.units = sherdi_alloc_array(plan->mem, SHERDI_MEM_CONTROL, model->num_units, sizeof(*w.units));
    if (w.units == NULL) {
        return SHERD_E_NOMEM;
    }
    for (size_t p = 0; p < sequence->num_steps && status == SHERD_OK; p++) {
        status = walk_step(&w, p);
    }
    sherdi_free(w.units);
    return status;
}

/* A transient gradient stays from the first backward use of the unit to the release of its last, and one
 * position longer when its reduction overlaps with the next unit. */
static sherd_status transients_schedule(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t u = 0; u < plan->num_units; u++) {
        sherdi_stay stay = {.unit = (int)u, .bytes = plan->units[u].transient_bytes};

        for (size_t p = 0; p < plan->train.num_steps; p++) {
            const sherdi_step_of_pass *step = &plan->train.steps[p];

            if (step->pass != SHERD_BACKWARD || !step_needs(model, step, (int)u)) {
                continue;
            }
            if (plan->units[u].backward_uses++ == 0) {
                stay.first = p;
            }
            stay.last =
                sherdi_max_size(stay.last, step->last + (plan->settings.overlap_comm ? 1 : 0));
        }
        if (stay.bytes > 0 && plan->units[u].backward_uses > 0) {
            SHERDI_TRY(GROW(plan, plan->transients, plan->num_transients, plan->cap_transients));
            plan->transients[plan->num_transients++] = stay;
        }
    }
    return SHERD_OK;
}

/* ----------------------------------------------------------- collectives -- */

static sherd_status op_add(sherdi_plan *plan, sherdi_plan_op_kind kind, const char *phase, int segment,
                           uint64_t sent_bytes)
{
    SHERDI_TRY(GROW(plan, plan->ops, plan->num_ops, plan->cap_ops));
    plan->ops[plan->num_ops++] = (sherdi_plan_op){
        .kind = kind, .phase = phase, .segment = segment, .sent_bytes = sent_bytes};
    return SHERD_OK;
}

static uint64_t peers_bytes(const sherdi_plan *plan, size_t elems, sherd_dtype dtype)
{
    return sherdi_wire_all_gather(plan->world_size, elems * sherd_dtype_bytes(dtype));
}

static const char *phase_name(sherd_pass pass)
{
    return pass == SHERD_FORWARD ? "forward" : pass == SHERD_BACKWARD ? "backward" : "eval";
}

/* The gathers that start with one step of a sequence. */
static sherd_status gather_ops(sherdi_plan *plan, const sherdi_sequence *sequence,
                               const sherdi_step_of_pass *step)
{
    for (size_t i = 0; i < step->num_starts; i++) {
        const sherdi_stay *stay = &sequence->stays[step->first_start + i];

        for (int kind = 0; kind < SHERDI_SEGMENT_KINDS; kind++) {
            int s = plan->units[stay->unit].segments[kind];

            if (s >= 0 && plan->segments[s].gather_offset != SHERDI_NO_OFFSET) {
                SHERDI_TRY(op_add(plan, SHERDI_PLAN_GATHER, phase_name(step->pass), s,
                                  peers_bytes(plan, plan->segments[s].slice_elems,
                                              plan->settings.compute_dtype)));
            }
        }
    }
    return SHERD_OK;
}

static sherd_status reduce_op(sherdi_plan *plan, const char *phase, int s)
{
    uint64_t bytes = peers_bytes(plan, plan->segments[s].slice_elems, plan->wire_dtype);

    if (plan->settings.stage == 0 && !plan->has_slices) {
        return op_add(plan, SHERDI_PLAN_ALL_REDUCE, phase, s, 2 * bytes);
    }
    return op_add(plan, SHERDI_PLAN_REDUCE_SCATTER, phase, s, bytes);
}

/* Whether no backward use of `unit` is released after that of the acquire at `position`. */
static int is_last_backward(const sherdi_plan *plan, const sherdi_model *model, size_t position,
                            int unit)
{
    const sherdi_step_of_pass *steps = plan->train.steps;
    size_t                     last  = steps[position].last;

    for (size_t p = first_released(&plan->train, position); p < plan->train.num_steps; p++) {
        if (steps[p].pass == SHERD_BACKWARD && step_needs(model, &steps[p], unit) &&
            (steps[p].last > last || (steps[p].last == last && p > position))) {
            return 0;
        }
    }
    return steps[position].pass == SHERD_BACKWARD;
}

/* Stages 2 and 3: the gradients that are complete when the acquire at `position` is released. */
static sherd_status reduce_ops(sherdi_plan *plan, const sherdi_model *model, size_t position)
{
    int unit;

    for (size_t n = 0; (unit = needed_unit(model, plan->train.steps[position].unit, n)) >= 0; n++) {
        if (!is_last_backward(plan, model, position, unit)) {
            continue;
        }
        for (int kind = 0; kind < SHERDI_SEGMENT_KINDS; kind++) {
            int s = plan->units[unit].segments[kind];

            if (s >= 0 && plan->segments[s].has_gradient) {
                SHERDI_TRY(reduce_op(plan, "backward", s));
            }
        }
    }
    return SHERD_OK;
}

static sherd_status exchange_op(sherdi_plan *plan, size_t len_bytes)
{
    return op_add(plan, SHERDI_PLAN_EXCHANGE, "boundary", -1,
                  sherdi_wire_all_gather(plan->world_size, len_bytes));
}

/* New values of the segments that are whole on every rank; bound ones travel before the ranks have
 * exchanged the fingerprint, the others after. */
static sherd_status publish_ops(sherdi_plan *plan, int is_bound)
{
    for (size_t s = 0; s < plan->num_segments && plan->is_sliced; s++) {
        const sherdi_segment *segment = &plan->segments[s];

        if (segment->kind != SHERDI_SEGMENT_FROZEN && segment->is_resident &&
            segment->is_bound == is_bound) {
            SHERDI_TRY(
                op_add(plan, SHERDI_PLAN_PUBLISH, "boundary", (int)s,
                       peers_bytes(plan, segment->slice_elems, plan->settings.compute_dtype)));
        }
    }
    return SHERD_OK;
}

/* Deterministic stage 0: every rank updates everything and collects the others' sums. */
static sherd_status collect_ops(sherdi_plan *plan)
{
    for (size_t s = 0; s < plan->num_segments && plan->is_fixed && !plan->is_sliced; s++) {
        if (plan->segments[s].has_gradient) {
            SHERDI_TRY(op_add(plan, SHERDI_PLAN_GATHER, "boundary", (int)s,
                              peers_bytes(plan, plan->segments[s].slice_elems, SHERD_F32)));
        }
    }
    return SHERD_OK;
}

/* A first sweep: how it went, and the norms of all tensors. */
static sherd_status norms_ops(sherdi_plan *plan)
{
    size_t words = (plan->numbers.results_bytes - plan->numbers.norms) / sizeof(uint64_t);

    SHERDI_TRY(collect_ops(plan));
    SHERDI_TRY(exchange_op(plan, SHERDI_AGREE_STATUS_WORDS * sizeof(double)));
    return plan->is_sliced ? op_add(plan, SHERDI_PLAN_SUM, "boundary", -1,
                                    sherdi_wire_sum_u64(plan->world_size, words))
                           : SHERD_OK;
}

static sherd_status boundary_ops(sherdi_plan *plan)
{
    SHERDI_TRY(exchange_op(plan, sizeof(sherdi_agree_message)));
    for (size_t s = 0; s < plan->num_segments && !plan->has_slices; s++) {
        const sherdi_segment *segment = &plan->segments[s];

        if (segment->has_gradient && plan->units[segment->unit].backward_uses > 0) {
            SHERDI_TRY(reduce_op(plan, "boundary", (int)s));
        }
    }
    SHERDI_TRY(exchange_op(plan, sizeof(sherdi_norm_message)));
    if (sherdi_plan_sweeps(plan) > 1) {
        SHERDI_TRY(norms_ops(plan));
    }
    SHERDI_TRY(collect_ops(plan));
    SHERDI_TRY(publish_ops(plan, 1));
    if (plan->publishes_early) {
        SHERDI_TRY(publish_ops(plan, 0));
        return exchange_op(plan, sizeof(sherdi_publish_message));
    }
    SHERDI_TRY(exchange_op(plan, sizeof(sherdi_publish_message)));
    return publish_ops(plan, 0);
}

static sherd_status ops_list(sherdi_plan *plan, const sherdi_model *model)
{
    for (size_t p = 0; p < plan->train.num_steps; p++) {
        SHERDI_TRY(gather_ops(plan, &plan->train, &plan->train.steps[p]));
        for (size_t q = first_released(&plan->train, p); q <= p && plan->has_slices; q++) {
            if (plan->train.steps[q].last == p) {
                SHERDI_TRY(reduce_ops(plan, model, q));
            }
        }
    }
    SHERDI_TRY(boundary_ops(plan));
    for (size_t p = 0; p < plan->eval.num_steps; p++) {
        SHERDI_TRY(gather_ops(plan, &plan->eval, &plan->eval.steps[p]));
    }
    return SHERD_OK;
}

static void wire_count(sherdi_plan *plan)
{
    for (size_t i = 0; i < plan->num_ops; i++) {
        const sherdi_plan_op *op = &plan->ops[i];

        if (strcmp(op->phase, "boundary") == 0) {
            plan->wire_boundary_bytes += op->sent_bytes;
        } else if (strcmp(op->phase, "eval") != 0) {
            plan->wire_micro_bytes += op->sent_bytes;
        }
    }
}

sherd_status sherdi_plan_schedule(sherdi_plan *plan, const sherdi_model *model)
{
    static const sherd_pass TRAIN[] = {SHERD_FORWARD, SHERD_BACKWARD};
    static const sherd_pass EVAL[]  = {SHERD_EVAL};

    SHERDI_TRY(sequence_make(plan, model, &plan->train, TRAIN, 2));
    SHERDI_TRY(sequence_make(plan, model, &plan->eval, EVAL, 1));
    SHERDI_TRY(gathers_schedule(plan, model, &plan->train));
    SHERDI_TRY(gathers_schedule(plan, model, &plan->eval));
    SHERDI_TRY(transients_schedule(plan, model));
    SHERDI_TRY(sherdi_plan_pack(plan, model));
    SHERDI_TRY(sherdi_plan_fetches(plan));
    SHERDI_TRY(ops_list(plan, model));
    wire_count(plan);
    sherdi_plan_count_moves(plan);
    return SHERD_OK;
}
