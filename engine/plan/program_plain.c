/* The plain run of a program: every acquire comes where the plan expects it, and the step updates. `sherd plan` prints this run,
 * and the bytes that the plan promises to move are its sums. */
#include "engine/plan/program_calls.h"

#include "base/checked.h"
#include "base/hash.h"
#include "collectives/world.h"

typedef struct plain_run {
    sherdi_program    program; /* its callback calls `fn` */
    sherdi_told_fn    fn;
    void             *ctx;
    sherdi_phase_name phase;
} plain_run;

static sherd_status op_tell(void *ctx, const sherdi_op *op)
{
    plain_run *run = ctx;

    return run->fn(run->ctx, run->phase, op);
}

const char *sherdi_phase_name_text(sherdi_phase_name phase)
{
    static const char *const NAMES[] = {"forward", "backward", "boundary", "eval", "fill"};

    return NAMES[phase];
}

/* Releases the units that are held until this acquire, the latest one first. */
static sherd_status held_release(plain_run *run, const sherdi_sequence *sequence, size_t position)
{
    for (size_t back = 0; back <= position && back <= sequence->most_held; back++) {
        const sherdi_step_of_pass *step = &sequence->steps[position - back];

        if (step->last == position) {
            SHERDI_TRY(sherdi_program_release(&run->program, step->unit, step->pass));
        }
    }
    return SHERD_OK;
}

static sherd_status pass_run(plain_run *run, const sherdi_sequence *sequence)
{
    static const sherdi_phase_name PHASES[] = {SHERDI_IN_FORWARD, SHERDI_IN_BACKWARD,
                                               SHERDI_IN_EVAL};

    for (size_t p = 0; p < sequence->num_steps; p++) {
        const sherdi_step_of_pass *step = &sequence->steps[p];

        run->phase = PHASES[step->pass];
        SHERDI_TRY(sherdi_program_acquire(&run->program, step->unit, step->pass));
        SHERDI_TRY(held_release(run, sequence, p));
    }
    return SHERD_OK;
}

static sherd_status micro_batch_run(plain_run *run)
{
    run->phase = SHERDI_IN_FORWARD;
    SHERDI_TRY(sherdi_program_fetch_ahead(&run->program));
    SHERDI_TRY(pass_run(run, &run->program.plan->train));
    run->phase = SHERDI_IN_BACKWARD;
    if (run->program.plan->num_open_ended > 0) {
        SHERDI_TRY(sherdi_program_exchange(&run->program, SHERDI_EXCHANGE_USED));
    }
    SHERDI_TRY(sherdi_program_micro_batch_end(&run->program));
    return sherdi_program_staged_drain(&run->program); /* listed with what was staged */
}

static sherd_status event_tell(void *ctx, const sherdi_event *event)
{
    const plain_run *run = ctx;

    return sherdi_event_run(&run->program, event);
}

static sherd_status boundary_run(plain_run *run)
{
    sherdi_calls calls = {run->program.plan, event_tell, run};

    run->phase = SHERDI_IN_BOUNDARY;
    SHERDI_TRY(sherdi_calls_prepare(&calls));
    SHERDI_TRY(sherdi_calls_apply(&calls));
    return sherdi_program_window_begin(&run->program);
}

/* First values, in the order of the model. */
static sherd_status fill_run(plain_run *run)
{
    sherdi_calls calls = {run->program.plan, event_tell, run};

    run->phase = SHERDI_IN_FILL;
    for (size_t p = 0; p < calls.plan->num_params; p++) {
        SHERDI_TRY(sherdi_program_fill(&run->program, p, 1));
    }
    return sherdi_calls_filled(&calls);
}

/* Tells the first micro-batch, the second if all parts are wanted, the boundary and a pass of EVAL. An inference engine has no
 * windows: it tells one micro-batch, and no boundary. */
static sherd_status plain_run_all(plain_run *run, sherdi_told_parts parts)
{
    const sherdi_settings *settings = &run->program.plan->settings;
    int                    micro = settings->optimizer->is_inference ? 1 : settings->accumulation;

    if (parts == SHERDI_TELL_FIRST) {
        SHERDI_TRY(fill_run(run));
    }
    for (int m = 0; m < micro && (m == 0 || parts == SHERDI_TELL_ALL); m++) {
        SHERDI_TRY(micro_batch_run(run));
        if (m == 1) { /* all later micro-batches are like the second */
            break;
        }
    }
    if (!settings->optimizer->is_inference) {
        SHERDI_TRY(boundary_run(run));
    }
    run->phase = SHERDI_IN_EVAL;
    return pass_run(run, &run->program.plan->eval);
}

sherd_status sherdi_program_tell(const sherdi_plan *plan, const sherdi_model *model,
                                 sherdi_told_parts parts, sherdi_told_fn fn, void *ctx)
{
    sherdi_progress progress = {0};
    plain_run       run      = {.fn = fn, .ctx = ctx};
    sherd_status    status   = sherdi_progress_open(&progress, plan, model, plan->mem);

    run.program = (sherdi_program){plan, model, &progress, op_tell, &run};
    if (status == SHERD_OK) {
        status = plain_run_all(&run, parts);
    }
    sherdi_progress_close(&progress);
    return status;
}

/* ---------------------------------------------------------------- counting -- */

typedef struct counts {
    uint64_t micro[2][SHERDI_MEDIA]; /* the first micro-batch, and a later one */
    uint64_t step[SHERDI_MEDIA];
    int      micro_seen; /* index into `micro` */
    int      was_micro;
    size_t   num_collectives;
    uint64_t hash;
} counts;

static void collective_count(counts *c, sherdi_phase_name phase, const sherdi_op *op)
{
    uint64_t what[] = {(uint64_t)phase, (uint64_t)op->kind, (uint64_t)op->segment, op->elems,
                       op->moves[SHERDI_MOVES_WIRE]};

    if (op->lane == SHERDI_LANE_WIRE) {
        c->num_collectives++;
        c->hash = sherdi_hash_bytes(c->hash, what, sizeof(what));
    }
}

static sherd_status op_count(void *ctx, sherdi_phase_name phase, const sherdi_op *op)
{
    counts   *c        = ctx;
    int       is_micro = phase == SHERDI_IN_FORWARD || phase == SHERDI_IN_BACKWARD;
    uint64_t *sums     = c->step;

    collective_count(c, phase, op);
    if (phase == SHERDI_IN_EVAL) {
        return SHERD_OK;
    }
    if (phase == SHERDI_IN_FORWARD && c->was_micro == SHERDI_IN_BACKWARD + 1) {
        c->micro_seen = 1;
    }
    c->was_micro = (int)phase + 1;
    if (is_micro) {
        sums = c->micro[c->micro_seen];
    }
    for (int medium = 0; medium < SHERDI_MEDIA; medium++) {
        sums[medium] += op->moves[medium];
    }
    return SHERD_OK;
}

/* Reports every micro-batch as moving what the first one moves; what the later ones move beyond that is added to the step. */
static void counts_spread(counts *c, int accumulation)
{
    for (int medium = 0; medium < SHERDI_MEDIA && accumulation > 1 && c->micro_seen; medium++) {
        c->step[medium] +=
            (c->micro[1][medium] - c->micro[0][medium]) * (uint64_t)(accumulation - 1);
    }
}

sherd_status sherdi_plan_count(sherdi_plan *plan, const sherdi_model *model)
{
    counts             c     = {0};
    sherdi_plan_moves *moves = &plan->moves;
    const uint64_t    *micro = c.micro[0];

    SHERDI_TRY(sherdi_program_tell(plan, model, SHERDI_TELL_ALL, op_count, &c));
    counts_spread(&c, plan->settings.accumulation);
    if (sherdi_plan_has_generations(plan)) {
        moves->nvme_index_bytes =
            sherdi_state_commit_bytes(sherdi_plan_stored(plan), SHERDI_STATE_NOTE_FRONT);
    }
    plan->wire_micro_bytes          = micro[SHERDI_MOVES_WIRE];
    plan->wire_boundary_bytes       = c.step[SHERDI_MOVES_WIRE];
    moves->down_micro_bytes         = micro[SHERDI_MOVES_DOWN];
    moves->down_step_bytes          = c.step[SHERDI_MOVES_DOWN];
    moves->up_micro_bytes           = micro[SHERDI_MOVES_UP];
    moves->up_step_bytes            = c.step[SHERDI_MOVES_UP];
    moves->nvme_read_micro_bytes    = micro[SHERDI_MOVES_READ];
    moves->nvme_read_step_bytes     = c.step[SHERDI_MOVES_READ];
    moves->nvme_written_micro_bytes = micro[SHERDI_MOVES_WRITTEN];
    moves->nvme_written_step_bytes  = c.step[SHERDI_MOVES_WRITTEN] + moves->nvme_index_bytes;
    moves->update_device_bytes      = c.step[SHERDI_MOVES_DEVICE];
    moves->update_host_bytes        = c.step[SHERDI_MOVES_HOST];
    moves->update_flops             = c.step[SHERDI_MOVES_FLOPS];
    plan->num_collectives           = c.num_collectives;
    plan->collectives_hash          = c.hash;
    return SHERD_OK;
}
