/* Steps whose update is queued, a step in two parts, windows that the trainer ends or drops, and
 * evaluation in many passes: calls of the modules "queued" and "steps". sherd.h includes this header, and has the conventions. */
#ifndef SHERD_H
#include "sherd.h"
#elif !defined(SHERD_STEPS_H)
#define SHERD_STEPS_H

/** Does the same as sherd_step, but returns when the ranks have agreed on the norm. The update is
 *  queued. A device makes its part during the next micro-batch. A thread of the engine updates the
 *  blocks that are updated on the host, with their transfers and their commit. sherd_step_wait
 *  returns the report. An acquire, also for EVAL, waits for the update of its unit on all ranks.
 *  Below stage 3 on a device it also waits for all blocks that the device updates. docs/calls.md
 *  lists the calls that wait for the whole update, and docs/offload.md the updates that cannot be
 *  queued. For these updates, and on a CPU without offload, the call waits as sherd_step does.
 *
 *  All ranks end a window by the same call: sherd_step, _queue or _prepare. Otherwise the window is
 *  dropped, and E_STATE names two ranks that differ. Collective. Errors: those of sherd_step. A
 *  failure in the update is returned by an acquire that waits for the unit (E_IO; also on the other
 *  ranks of the host), by the next call in which the ranks wait for each other, or by a call that
 *  waits for the update. After the failure the engine refuses calls until sherd_step_undo or
 *  sherd_checkpoint_load. sherd_engine_destroy then preserves the files of the state, and logs a
 *  failure that no call has returned. */
SHERD_CALL sherd_step_queue(sherd_engine *engine);
/** Returns the complete report of the last boundary. The report of sherd_step lacks only the times
 *  of work that a device has not finished yet ("wall_clock_breakdown", SHERD_TRACE). These times
 *  count for the next report, unless this call, which waits for the work, is made before the next
 *  micro-batch. Available on every rank. Between sherd_step_queue and the next boundary, the call
 *  also waits for the update and adds its fingerprint to the report; the first call is then
 *  collective. In all other cases the call is local. At stages 1 and 2, work that is enqueued on
 *  the compute stream after this call (on the CPU: code after it) finds the new values at
 *  sherd_param_address, without an acquire. Errors: E_STATE (before seal), E_INVAL, E_PEER_LOST,
 *  E_DEVICE. */
SHERD_CALL sherd_step_wait(sherd_engine *engine, sherd_step_report *out);

typedef struct sherd_step_params {
    size_t struct_size;
    /* norm to clip by, from the trainer; NaN: the engine's own norm */
    double grad_norm;
    double clip_coefficient; /* coefficient to clip with; NaN: computed from the norm */
    /* 1: treat the step as an overflow, even if this world saw none */
    int           overflow;
    int           group_count; /* length of each of the lists below */
    const double *group_lr;    /* rate per group, in order of creation; NULL: the schedule's;
                                       a NaN entry: the schedule's for that group */
    /* The same, for schedules that change more than rates. NULL, or a NaN entry: the group's own
     * value. */
    const double *group_beta1;        /* the first beta, or the momentum: below 1 */
    const double *group_weight_decay; /* the weight decay */
    int           is_queued;          /* 1: return when the update is queued */
    int           reserved;           /* keeps the layout; zero */
} sherd_step_params;
SHERD_API void sherd_step_params_init(sherd_step_params *params);

/** Begins a step in two parts. If the call is not a boundary, it only counts (report: is_boundary
 *  0), and no second part follows. At a boundary the trainer chooses the second part:
 *  sherd_step_apply or sherd_step_discard must follow. */
SHERD_CALL sherd_step_prepare(sherd_engine *engine, sherd_step_report *out);
/** Makes the update of a prepared step. Before anything is written, the ranks compare their
 *  choices. If `params` differ (E_INVAL), or another rank discards (E_STATE), the step stays
 *  prepared: call apply again, or discard. After a later failure (E_IO) the engine is poisoned.
 *  With `is_queued` the call returns when the update is queued; the comment of sherd_step_queue
 *  describes the calls that follow. */
SHERD_CALL sherd_step_apply(sherd_engine *engine, const sherd_step_params *params);
/** Drops the window. Its gradients are lost. Every unit that this rank still has acquired, for any
 *  pass, counts as released, and its memory must not be used any more. Nothing else changes.
 *  Training continues from the first micro-batch of the window as if the window had not begun.
 *  micro_step has the value that it had before the window; after a prepared boundary it does not
 *  change, because all ranks have seen the window.
 *
 *  Call it instead of sherd_step_apply, or at any other time after seal. It is the right call after
 *  an exception in forward, backward or an evaluation, and after an acquire or release that failed.
 *
 *  Collective, blocking: it returns when all ranks have called it, independently of where each of
 *  them stopped. A rank that does not know of the discard continues to its next synchronizing call
 *  (a gather or a reduction in which ranks wait for each other, a step, or a call of the world).
 *  The call fails with E_STATE and says that the window was dropped, and the rank must call
 *  sherd_step_discard too. With nccl, and with mpi over several hosts, a collective that some ranks
 *  have begun cannot be cancelled. All ranks must then have acquired and released the same units;
 *  otherwise the world is lost, with a message that names a rank or at the time limit. If one world
 *  has several engines, synchronizing calls of the other engines fail too.
 *
 *  Errors: E_STATE (before seal; after the failure of an update was reported on all ranks: call
 *  sherd_step_undo), E_PEER_LOST. After a queued step, the call does not affect the update in
 *  flight. */
SHERD_CALL sherd_step_discard(sherd_engine *engine);
/** Makes the next sherd_step or _prepare a boundary even if the window is short. The mean is taken
 *  over the micro-batches that the window contains. With sherd.open_windows a window ends only in
 *  this way. The next step may end a micro-batch; or, if the data have ended, it may follow the
 *  previous step without another backward. All ranks must make this call at the same time of the
 *  window. */
SHERD_CALL sherd_step_close_window(sherd_engine *engine);

/* ---------------------------------------- weights of micro-batches --- */

/** Takes part in a micro-batch for which this rank has no data, in place of the forward and the
 *  backward pass: acquires and releases the units in the order of the plan, and leaves the gradients
 *  zero. sherd_step follows, as on the other ranks. The mean of the window is taken over the
 *  micro-batches that had data. The ranks with data must use the units as the passes are declared.
 *  An open-ended unit (SHERD_USES_ANY) gets no gradient from this rank.
 *
 *  Local, but other ranks may wait for it as for an acquire or a release. Errors: E_STATE (the
 *  micro-batch has begun, a unit is acquired), and those of sherd_unit_acquire and _release; after
 *  one of these call sherd_step_discard. If no rank has data in a window, its last sherd_step fails
 *  (E_STATE) and drops the window. */
SHERD_CALL sherd_micro_batch_skip(sherd_engine *engine);
/** Gives the weight of this rank's part of a micro-batch, such as its number of tokens: at most
 *  sherd.most_weight, which must be set. Called before the first acquire for BACKWARD of the
 *  micro-batch. The mean of the window is then
 *
 *      sum of weight * gradient / sum of weights     over all ranks and micro-batches,
 *
 *  where a gradient is the mean over its part. A micro-batch to which no weight is given has
 *  sherd.most_weight. The weight 0 counts nothing, but an Inf or a NaN in the gradient is still an
 *  overflow. Local. Errors: E_STATE (the key is not set, backward has begun), E_INVAL (the weight is
 *  above sherd.most_weight). If all weights of a window are 0, its last sherd_step fails (E_STATE)
 *  and drops the window. */
SHERD_CALL sherd_micro_batch_weight(sherd_engine *engine, uint64_t weight);

/** Returns the learning rate that the configuration sets for a group in update number `step`, which
 *  counts from 1: the rate of the schedule, or the group's own rate without a schedule. Rates that
 *  a trainer passed to sherd_step_apply are ignored. NaN for an engine, group or step that does not
 *  exist, and for an engine without updates (optimizer.type none). Local. */
SHERD_API double sherd_group_lr(const sherd_engine *engine, sherd_group group, int64_t step);

/* -------------------------------------------------- evaluation --- */

typedef struct sherd_eval_params {
    size_t struct_size;
    /* Number of units that stay gathered when they are released, at most sherd.eval_keep_units;
     * SIZE_MAX, the default: sherd.eval_keep_units */
    size_t keep_units;
} sherd_eval_params;
SHERD_API void sherd_eval_params_init(sherd_eval_params *params);

/** Begins an evaluation in many passes over parameters that do not change, such as the generation
 *  of text. Until sherd_eval_end, the following calls return E_STATE: a step, sherd_param_write,
 *  sherd_import_safetensors, sherd_import_raw, sherd_engine_set_step, sherd_step_undo and
 *  sherd_checkpoint_load.
 *
 *  At stage 3, the first `keep_units` units that the order of EVAL gathers stay gathered when they
 *  are released, so that their next acquire moves no data. sherd.eval_keep_units makes the plan
 *  reserve places for them that no other unit of EVAL uses. An acquire for another pass may take
 *  one of these places; the unit is then gathered again. Below stage 3, `keep_units` has no
 *  effect. Passes of EVAL are legal without this call too; they gather each unit each time.
 *
 *  Collective, blocking, with the same keep_units on every rank. No unit may be acquired and no
 *  step prepared; a window may be open. sherd_step_discard also ends the evaluation.
 *
 *  Errors     E_STATE, E_INVAL (keep_units is larger than the number of reserved places; the ranks'
 *             arguments differ). If no unit was acquired before, also the errors of the first
 *             acquire.
 */
SHERD_CALL sherd_eval_begin(sherd_engine *engine, const sherd_eval_params *params);
/** Ends the evaluation and drops the units that stayed gathered. Collective, blocking; no unit may
 *  be acquired. E_STATE. */
SHERD_CALL sherd_eval_end(sherd_engine *engine);

#endif
