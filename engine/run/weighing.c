/* Micro-batches with weights, and ranks without data. The mean of a window is
 *
 *   sum of weight * gradient / sum of weights     over all ranks and micro-batches
 *
 * A gradient is multiplied by weight / most_weight, its factor, where it is added up: in the
 * reduction of a micro-batch, for which the ranks tell each other their weights before the first
 * gradient; or, where a rank adds up whole gradients of the window, by the rank itself. The weights
 * of a window are integers, whose sum the ranks find at its end, and it becomes a part of
 * sherdi_optimizer_unscale. docs/numerics.md has the formulas. */
#include "engine/run/weighing.h"

#include "base/checked.h"
#include "engine/modules.h"
#include "engine/run/agree.h"
#include "engine/run/failure.h"
#include "engine/run/fill.h"
#include "engine/run/kernels.h"
#include "engine/run/loop.h"
#include "engine/run/needs.h"

/* The greatest weight of a micro-batch, which is also that of one to which none was given. */
static uint64_t most_of(const sherd_engine *engine)
{
    return sherdi_max_size(engine->settings.batch.most_weight, 1);
}

static uint64_t own_weight(const sherd_engine *engine)
{
    return engine->window.weighing.is_given ? engine->window.weighing.own : most_of(engine);
}

/* ------------------------------------------------------------------ telling -- */

/* Whether gradients are multiplied in the reduction. */
static int is_in_reduction(const sherdi_plan *plan)
{
    return plan->settings.batch.most_weight > 0 &&
           (plan->layout.has_slices || !plan->layout.has_transient);
}

/* The factors of this rank's replica. */
static size_t first_factor(const sherd_engine *engine)
{
    return (size_t)engine->plan->replica * (size_t)engine->plan->world_size;
}

sherd_status sherdi_weighing_open(sherd_engine *engine)
{
    double *factors;

    if (!is_in_reduction(engine->plan)) {
        return SHERD_OK;
    }
    factors = sherdi_alloc_array(&engine->mem, SHERDI_MEM_CONTROL, (size_t)engine->world_size,
                                 sizeof(*factors));
    if (factors == NULL) {
        return SHERD_E_NOMEM;
    }
    engine->exchange.factors = factors + first_factor(engine);
    return SHERD_OK;
}

void sherdi_weighing_close(sherd_engine *engine)
{
    if (engine->exchange.factors != NULL) {
        sherdi_free(engine->exchange.factors - first_factor(engine));
        engine->exchange.factors = NULL;
    }
}

static sherd_status weighing_check(sherd_engine *engine)
{
    if (engine->settings.batch.most_weight > 0 && engine->settings.numerics.vendor_reduction) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd.most_weight is set, and sherd.vendor_reduction adds gradients up "
                           "without weights; remove one of the two keys");
    }
    if (is_in_reduction(engine->plan) && engine->plan->machine.has_device &&
        engine->plan->world_size > SHERDI_DEVICE_WEIGHTS) {
        return sherdi_fail(SHERD_E_NOTSUP,
                           "sherd.most_weight is set, and %d ranks reduce gradients on a device, "
                           "which takes weights of %d ranks at most; let fewer ranks share a copy "
                           "(sherd.shard_size)",
                           engine->plan->world_size, SHERDI_DEVICE_WEIGHTS);
    }
    return SHERD_OK;
}

/* Fixes the weight of this micro-batch, and tells it where the reductions of other ranks need it.
 * The reductions of the micro-batch before have read the factors when this is done. */
static sherd_status weight_tell(sherd_engine *engine)
{
    sherdi_weighing *own     = &engine->window.weighing;
    double          *factors = engine->exchange.factors;
    double           most    = (double)most_of(engine);

    if (engine->settings.batch.most_weight == 0 || own->is_told) {
        return SHERD_OK;
    }
    if (factors != NULL) {
        sherdi_world_drain(engine->shards);
        SHERDI_TRY(sherdi_agree_word(engine, SHERDI_EXCHANGE_WEIGHT, SHERD_OK, own_weight(engine),
                                     "before it told its weight"));
        for (int r = 0; r < engine->world_size; r++) {
            factors[(size_t)r - first_factor(engine)] =
                (double)sherdi_agree_word_of(engine, r) / most;
        }
    }
    own->factor  = (double)own_weight(engine) / most;
    own->is_told = 1;
    return SHERD_OK;
}

/* A rank that has said that it has no data makes no micro-batch until its step. */
static sherd_status data_check(sherd_engine *engine, int unit, sherd_pass pass)
{
    (void)unit;
    return pass == SHERD_EVAL || !engine->window.weighing.is_without_data
               ? SHERD_OK
               : sherdi_fail(SHERD_E_STATE,
                             "sherd_unit_acquire: this rank has no data in this micro-batch "
                             "(sherd_micro_batch_skip); call sherd_step before the next one");
}

/* The first acquire for backward that all ranks make. Gradients of open-ended units are reduced when
 * the micro-batch ends. */
static sherd_status backward_begins(sherd_engine *engine, int unit, sherd_pass pass)
{
    return pass == SHERD_BACKWARD && !engine->plan->layout.units[unit].is_open_ended
               ? weight_tell(engine)
               : SHERD_OK;
}

void sherdi_kernel_weighed(sherd_engine *engine, const sherdi_backend *lane, const sherdi_op *op)
{
    const void              *srcs[] = {sherdi_run_address(engine, op, SHERDI_USE_SRC)};
    const sherdi_reduce_args args   = {
          .srcs        = srcs,
          .num_srcs    = 1,
          .src_dtype   = op->from,
          .comm_dtype  = op->kind == SHERDI_OP_CAST ? op->to : SHERD_F32,
          .dst         = sherdi_run_address(engine, op, SHERDI_USE_DST),
          .dst_dtype   = op->to,
          .count_elems = op->elems,
          .scale       = (float)engine->window.weighing.factor,
          .accumulate  = op->kind == SHERDI_OP_ACCUMULATE,
    };

    lane->kernels->reduce(lane, &args);
}

/* ----------------------------------------------------------------- counting -- */

/* Whether the step ends a window after its last micro-batch, without one of its own. */
static int is_end_alone(const sherdi_window *window)
{
    return window->is_closing && window->micro_seen > 0 && !window->has_begun &&
           !window->has_backward;
}

static sherd_status weight_count(sherd_engine *engine)
{
    sherdi_weighing *own = &engine->window.weighing;

    if (!is_end_alone(&engine->window)) {
        own->sum += own_weight(engine);
    }
    own->is_given = own->is_told = own->is_without_data = 0;
    return SHERD_OK;
}

/* Says how many micro-batches of the full weight the window is worth, on all ranks together: what its
 * gradients are divided by. */
static sherd_status window_weigh(sherd_engine *engine)
{
    uint64_t total = engine->window.weighing.total;

    if (total == 0) {
        return sherdi_fail(SHERD_E_STATE,
                           "no rank had data in the %d micro-batches of this window: each was "
                           "without data (sherd_micro_batch_skip), or its weight was 0; the window "
                           "was dropped, nothing was updated; end the training before such a "
                           "window",
                           engine->window.micro_seen);
    }
    engine->window.counted = (double)total / (double)most_of(engine);
    return SHERD_OK;
}

/* -------------------------------------------------------------------- calls -- */

static sherd_status micro_batch_check(const sherd_engine *engine, const char *call)
{
    return sherdi_engine_need(engine, call,
                              SHERDI_NEED_SEALED | SHERDI_NEED_STEPS | SHERDI_NEED_UNPREPARED |
                                  SHERDI_NEED_NO_EVAL);
}

sherd_status sherd_micro_batch_weight(sherd_engine *engine, uint64_t weight)
{
    const char *call = "sherd_micro_batch_weight";

    SHERDI_TRY(micro_batch_check(engine, call));
    if (engine->settings.batch.most_weight == 0) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s: the engine has no weights; set sherd.most_weight to the greatest "
                           "weight that a micro-batch can have",
                           call);
    }
    if (weight > most_of(engine)) {
        return sherdi_fail(SHERD_E_INVAL, "%s: the weight is %llu, and sherd.most_weight is %llu",
                           call, (unsigned long long)weight, (unsigned long long)most_of(engine));
    }
    if (engine->window.weighing.is_told || engine->window.has_backward) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s: the backward pass of this micro-batch has begun; give the weight "
                           "before its first acquire for SHERD_BACKWARD",
                           call);
    }
    engine->window.weighing.own      = weight;
    engine->window.weighing.is_given = 1;
    return SHERD_OK;
}

/* Whether a rank that has no data leaves a use of a unit out: a unit that is held for backward already
 * cannot be acquired once more. */
static int is_left_out(const sherd_engine *engine, const sherdi_step_of_pass *step)
{
    return step->pass == SHERD_BACKWARD && !engine->plan->layout.units[step->unit].is_open_ended &&
           sherdi_unit_of(engine, step->unit)->acquired[SHERD_BACKWARD] > 0;
}

static sherd_status step_release(sherd_engine *engine, const sherdi_step_of_pass *step)
{
    sherdi_unit_state *state = sherdi_unit_of(engine, step->unit);

    if (state->acquired[step->pass] == 0) {
        return SHERD_OK; /* it was left out */
    }
    SHERDI_TRY(sherd_unit_release(engine, step->unit, step->pass));
    if (engine->plan->layout.units[step->unit].is_open_ended && state->held_backward == 0) {
        state->has_gradient = 0; /* unless another rank has one: uses.c */
    }
    return SHERD_OK;
}

/* Acquires and releases the units in the plan's order. Those that end together are released the
 * latest one first. */
static sherd_status units_play(sherd_engine *engine)
{
    const sherdi_sequence *train = &engine->plan->schedule.train;

    for (size_t p = 0; p < train->num_steps; p++) {
        const sherdi_step_of_pass *step = &train->steps[p];

        if (!is_left_out(engine, step)) {
            SHERDI_TRY(sherd_unit_acquire(engine, step->unit, step->pass));
        }
        for (size_t back = 0; back <= p && back <= train->most_held; back++) {
            if (train->steps[p - back].last == p) {
                SHERDI_TRY(step_release(engine, &train->steps[p - back]));
            }
        }
    }
    return SHERD_OK;
}

sherd_status sherd_micro_batch_skip(sherd_engine *engine)
{
    const char *call = "sherd_micro_batch_skip";

    SHERDI_TRY(micro_batch_check(engine, call));
    SHERDI_TRY(sherdi_engine_need(engine, call, SHERDI_NEED_RELEASED));
    if (engine->window.has_begun) {
        return sherdi_fail(SHERD_E_STATE,
                           "%s: this micro-batch has begun; a rank without data calls it in place "
                           "of the forward and the backward pass",
                           call);
    }
    SHERDI_TRY(sherdi_modules_left_check(engine));
    SHERDI_TRY(sherdi_fill_finish(engine));
    engine->window.weighing.own      = 0;
    engine->window.weighing.is_given = 1;
    engine->window.has_begun         = 1;
    SHERDI_TRY(units_play(engine));
    engine->window.weighing.is_without_data = 1;
    return SHERD_OK;
}

/* Before the ranks tell which open-ended units they used, and after they have compared what they
 * did. */
const sherdi_module sherdi_module_weighing = {.check              = weighing_check,
                                              .open               = sherdi_weighing_open,
                                              .close              = sherdi_weighing_close,
                                              .unit_acquiring     = data_check,
                                              .unit_acquired      = backward_begins,
                                              .micro_batch_ending = weight_tell};
const sherdi_module sherdi_module_weighed  = {.micro_batch_ending = weight_count,
                                              .window_ending      = window_weigh};
