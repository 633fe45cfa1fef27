/* The functions of a module in the life of an engine, a line each: the name, the parameters, and the
 * arguments. Those that are tried return a status, and the core goes on if all return SHERD_OK;
 * those that are called return nothing. modules.h makes the table and the calls from this list. */

/* The engine's object was made, and has its settings: makes the module's state. E_NOMEM. */
SHERDI_TRIED(create, (sherd_engine * engine), (engine))
/* The object is about to be freed. Also after a `create` that failed or was not made. */
SHERDI_CALLED(destroy, (sherd_engine * engine), (engine))
/* The machine of this rank was measured: corrects it, and says what memory is free. Collective. */
SHERDI_TRIED(machine, (sherd_world * world, sherdi_machine *machine), (world, machine))
/* The model is declared, or a plan of what was declared so far is asked for: completes the
 * model. A second call changes nothing. */
SHERDI_TRIED(declared, (sherd_engine * engine), (engine))
/* The segments of a plan and their slices are known, and nothing is laid out yet: checks or changes
 * them. */
SHERDI_TRIED(segments_made, (sherdi_plan * plan, const sherdi_model *model), (plan, model))
/* The blocks of a plan are known, and nothing of them is laid out: says which of them do not rest
 * on the device, and lays those out. E_NOMEM. */
SHERDI_TRIED(blocks_made, (sherdi_plan * plan, const sherdi_model *model), (plan, model))
/* Units, segments and schedule of a plan are known: checks them, and lays out what the module
 * adds. */
SHERDI_TRIED(lay_out, (sherdi_plan * plan, const sherdi_model *model), (plan, model))
/* The schedule of a plan comes to an acquire, whose own gathers are started: starts others. */
SHERDI_TRIED(gather_ahead, (struct sherdi_schedule_walk * walk, size_t position), (walk, position))
/* A plan, which may be incomplete, is about to be freed. */
SHERDI_CALLED(plan_destroyed, (sherdi_plan * plan), (plan))
/* The progress of a program begins, and is about to be freed. E_NOMEM. */
SHERDI_TRIED(progress_open,
             (struct sherdi_progress * progress, const sherdi_plan *plan, const sherdi_model *model,
              sherdi_mem *mem),
             (progress, plan, model, mem))
SHERDI_CALLED(progress_close, (struct sherdi_progress * progress), (progress))
/* A plan was made: adds the module's numbers to it. E_NOMEM. */
SHERDI_TRIED(planned, (sherdi_plan * plan, const sherdi_model *model), (plan, model))
/* All ranks have made their engines, and then have declared their models: compare the settings, and
 * the models. Collective. */
SHERDI_TRIED(created, (sherd_engine * engine), (engine))
SHERDI_TRIED(sealing, (sherd_engine * engine), (engine))
/* A window ends, and its gradients are about to be reduced: takes the outcome of a queued update;
 * whether the ranks have used the same units. Collective. */
SHERDI_TRIED(window_ending, (sherd_engine * engine), (engine))
/* The gradients of a window were reduced: emits the operations that follow. */
SHERDI_TRIED(window_reduced, (const struct sherdi_program *program), (program))
/* The engine is about to carry its plan out: whether it may. */
SHERDI_TRIED(check, (sherd_engine * engine), (engine))
/* Makes the module's objects for the time in which the engine is sealed. */
SHERDI_TRIED(open, (sherd_engine * engine), (engine))
/* The engine has its plan: gives it marks of times, and then lanes. E_NOMEM, E_DEVICE, E_IO. */
SHERDI_TRIED(times_open, (sherd_engine * engine), (engine))
SHERDI_TRIED(lanes_open, (sherd_engine * engine), (engine))
/* The engine's memory was made: gives it storage, and then an updater, if its plan needs them.
 * Collective. */
SHERDI_TRIED(storage_open, (sherd_engine * engine), (engine))
SHERDI_TRIED(updater_open, (sherd_engine * engine), (engine))
/* The engine is sealed. */
SHERDI_CALLED(sealed, (sherd_engine * engine), (engine))
/* A parameter was filled from its source; and all are, and the training begins. The second is
 * collective. */
SHERDI_TRIED(param_filled, (sherd_engine * engine, struct sherdi_fill_source *source),
             (engine, source))
SHERDI_TRIED(filled, (sherd_engine * engine), (engine))
/* Other values have replaced those of the state, on all ranks. Collective. */
SHERDI_TRIED(replaced, (sherd_engine * engine), (engine))
/* A unit is about to be acquired, was acquired, and is about to be released. */
SHERDI_TRIED(unit_acquiring, (sherd_engine * engine, int unit, sherd_pass pass),
             (engine, unit, pass))
SHERDI_TRIED(unit_acquired, (sherd_engine * engine, int unit, sherd_pass pass),
             (engine, unit, pass))
SHERDI_TRIED(unit_releasing, (sherd_engine * engine, int unit, sherd_pass pass),
             (engine, unit, pass))
/* The outermost acquire of a unit for a pass is about to end, by a release or otherwise. */
SHERDI_CALLED(unit_let_go, (sherd_engine * engine, int unit, sherd_pass pass), (engine, unit, pass))
/* A unit was released: emits the operations of the module that follow. */
SHERDI_TRIED(unit_released, (const struct sherdi_program *program, int unit, sherd_pass pass),
             (program, unit, pass))
/* Nobody reads a range of a unit's memory any more: emits the operations of the module. */
SHERDI_TRIED(range_left,
             (const struct sherdi_program *program, int unit, const struct sherdi_range *range),
             (program, unit, range))
/* A segment is about to be gathered to *whole: brings it there otherwise, and sets *is_taken. */
SHERDI_TRIED(gather_take,
             (const struct sherdi_program *program, const sherdi_segment *segment,
              const struct sherdi_range *whole, int *is_taken),
             (program, segment, whole, is_taken))
/* Emit operations of the module: a unit is used, its gradient was begun, is about to be complete, and
 * is, a segment was updated; and those that move values of a bound parameter. */
SHERDI_TRIED(unit_used, (const struct sherdi_program *program, int unit, int is_backward),
             (program, unit, is_backward))
SHERDI_TRIED(gradient_begun, (const struct sherdi_program *program, int unit), (program, unit))
SHERDI_TRIED(gradient_completing, (const struct sherdi_program *program, int unit), (program, unit))
SHERDI_TRIED(gradient_completed, (const struct sherdi_program *program, int unit), (program, unit))
SHERDI_TRIED(segment_updated, (const struct sherdi_program *program, const sherdi_segment *segment),
             (program, segment))
SHERDI_TRIED(bound_move, (const struct sherdi_value_range *values), (values))
/* Moves values of a part of a block's state that is encoded; the state is at *state, and the
 * parameter's half of a split master at *half. */
SHERDI_TRIED(encoded_move,
             (const struct sherdi_value_range *values, const sherdi_block *block,
              const struct sherdi_range *state, const struct sherdi_range *half),
             (values, block, state, half))
/* An update is about to begin: makes what it measures first, and writes no state. Collective. */
SHERDI_TRIED(measuring, (sherd_engine * engine), (engine))
/* A walk that reads the gradient of a segment comes to it (sherdi_walk): emits the operations of the
 * module that come first. */
SHERDI_TRIED(segment_update,
             (const struct sherdi_program *program, int walk, const sherdi_segment *segment),
             (program, walk, segment))
/* A walk reads a block's gradient, which is at *gradient: brings it to a place where it is fp32, or
 * says what the walk reads instead. */
SHERDI_TRIED(gradient_take,
             (const struct sherdi_program *program, int walk, const sherdi_segment *segment,
              const sherdi_block *block, struct sherdi_range *gradient),
             (program, walk, segment, block, gradient))
/* Gradients are integers (settings.numerics.deterministic): adds the squares of a slice to the
 * norm. */
SHERDI_TRIED(fixed_norm, (const struct sherdi_program *program, const sherdi_segment *segment),
             (program, segment))
/* A call returns a failure, which is the last error. */
SHERDI_CALLED(call_failed, (sherd_engine * engine, sherd_status status), (engine, status))
/* An operation failed on this rank. It ends its step with a failure before the ranks meet in it;
 * `meets`: the others do. Whether they wait for this rank's discard: a collective call of this rank
 * would meet the one in which they wait (E_STATE). The engine is about to be destroyed. */
SHERDI_CALLED(failed_alone, (sherd_engine * engine, sherd_status status, const char *text),
              (engine, status, text))
SHERDI_CALLED(left, (sherd_engine * engine, const struct sherdi_outcome *why, int meets),
              (engine, why, meets))
SHERDI_TRIED(left_check, (const sherd_engine *engine), (engine))
SHERDI_CALLED(give_up, (sherd_engine * engine), (engine))
/* A micro-batch is about to end. Collective. */
SHERDI_TRIED(micro_batch_ending, (sherd_engine * engine), (engine))
/* A micro-batch has ended, or was dropped. */
SHERDI_CALLED(micro_batch_over, (const struct sherdi_program *program), (program))
/* A boundary has ended; its report may not be complete. */
SHERDI_CALLED(boundary, (sherd_engine * engine), (engine))
/* Gives where a deterministic reduction puts integers. What was counted in the gradient of a window:
 * E_NUMERIC if it cannot be updated with. */
SHERDI_CALLED(fixed_sink, (sherd_engine * engine, const sherdi_fixed_sink **out), (engine, out))
SHERDI_TRIED(gradient_check, (const sherdi_fixed_counts *counts), (counts))
/* A group's rate (`lr`), or its betas, of an optimizer step are asked for; the other pointer is
 * NULL: changes them. */
SHERDI_CALLED(scheduled,
              (const sherd_engine *engine, int group, int64_t step, double *lr, double *betas),
              (engine, group, step, lr, betas))
/* A boundary ends the window, with or without an overflow: updates its scaler. E_NUMERIC. */
SHERDI_TRIED(scaler_update, (struct sherdi_scaler * scaler, int had_overflow),
             (scaler, had_overflow))
/* The ranks are about to exchange messages. Not on the calling thread alone. */
SHERDI_TRIED(exchanging, (sherd_engine * engine), (engine))
/* The ranks have exchanged their shares of the fingerprint of new state: checks that they agree. */
SHERDI_TRIED(outcome_agreed, (const sherd_engine *engine), (engine))
/* The step of a boundary is over. Collective. */
SHERDI_TRIED(stepped, (sherd_engine * engine), (engine))
/* The report of the last boundary is complete, or will not be. */
SHERDI_CALLED(reported, (sherd_engine * engine), (engine))
/* The window is dropped: numbers of the last boundary that were not written are discarded. */
SHERDI_CALLED(dropped, (sherd_engine * engine), (engine))
/* Abandon work in progress, before transfers are waited for; and end, before the engine's
 * memory is freed. Both are called after an `open` that failed or was not made, too. */
SHERDI_CALLED(abandon, (sherd_engine * engine), (engine))
SHERDI_CALLED(close, (sherd_engine * engine), (engine))
