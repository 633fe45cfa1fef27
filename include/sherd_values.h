/* Values of parameters, of gradients and of the optimizer's state by name: calls of the module
 * "values". sherd.h includes this header, and has the conventions. */
#ifndef SHERD_H
#include "sherd.h"
#elif !defined(SHERD_VALUES_H)
#define SHERD_VALUES_H

/** Fills `param` when only one rank has the values. The call runs `fill` on rank `root` only, in
 *  ascending ranges of 64 Ki elements, and sends the values to all ranks. `fill` and `ctx` of the
 *  other ranks are ignored. Collective, blocking. Errors: those of sherd_param_fill, on all ranks;
 *  E_INVAL (the ranks' arguments differ), E_NOMEM. */
SHERD_CALL sherd_param_fill_from(sherd_engine *engine, sherd_param param, int root,
                                 sherd_fill_fn fill, void *ctx);
/** Writes the L2 norm of each parameter's gradient to out[0 .. count), by parameter number; `count`
 *  is the number of parameters. Like grad_norm of the report, it is the norm of the mean over the
 *  window, unscaled, before clipping, from an exact sum: the same bits in every layout of the
 *  parameter. 0 for a frozen parameter. NaN for a gradient with an Inf or a NaN; with
 *  "deterministic", one of them makes all norms NaN. Call it between sherd_step_prepare at a
 *  boundary and sherd_step_apply or _discard. Allocates nothing; reads the gradient once.
 *  Collective, blocking. Errors: E_INVAL (count), E_STATE (nothing is prepared), E_IO. After an
 *  error `out` is undefined. */
SHERD_CALL sherd_grad_norms(sherd_engine *engine, double *out, size_t count);
/** Computes the contribution of one parameter to the fingerprint, which shows where two training
 *  runs differ. Collective; takes as long as reading the parameter once. */
SHERD_CALL sherd_param_fingerprint(sherd_engine *engine, sherd_param param, uint64_t *out);

/* -------------------------------------------------------------- values --- */

/* The values of a parameter that a sealed engine has, by name; see docs/values.md. The other parts
 * of the optimizer's state are values too: "exp_avg" and "exp_avg_sq" for AdamW, Adam and LAMB. */
typedef const char *sherd_value;
#define SHERD_MASTER  "master" /* the weights that the optimizer updates, fp32 */
/* the weights that passes read, in the compute type; the only value of a frozen parameter */
#define SHERD_COMPUTE "compute"
#define SHERD_GRAD    "grad" /* of a prepared step: the mean gradient, unscaled, before clipping */

/** Reads elements [first_elem, first_elem + count_elems) of a parameter, row-major, into out[0 ..
 *  count_elems), as exact fp32, wherever they are stored. Collective, blocking: every rank passes
 *  the same arguments, except that `out` may be NULL on a rank that does not need the values.
 *  Values that only one rank stores are sent in portions of 256 KiB.
 *
 *  No unit may be acquired, and all parameters must be filled. Otherwise the call may be made at
 *  any time after seal, also in a window. Like the first acquire, it ends the filling. SHERD_GRAD
 *  can be read between sherd_step_prepare at a boundary and sherd_step_apply or _discard. Errors:
 *  E_INVAL (no such value or range; the ranks' arguments differ), E_STATE (a unit is acquired; a
 *  frozen parameter has only SHERD_COMPUTE; nothing is prepared), E_NOMEM, E_IO. After an error
 *  `out` is undefined. */
SHERD_CALL sherd_param_read(sherd_engine *engine, sherd_param param, sherd_value value,
                            size_t first_elem, size_t count_elems, float *out);
/** Writes the values `in` to a range of a parameter, in all copies at once. SHERD_MASTER writes the
 *  master weights and, rounded, the weights that passes read, on all ranks and in bound memory.
 *  SHERD_COMPUTE writes the rounded values to both, so that both are equal. The name of a part of
 *  the state writes only this part. Any fp32 value is accepted, including NaN. Later updates use
 *  the new state, and the fingerprint changes with it.
 *
 *  Collective, blocking, with the same arguments and values on every rank (compared). Called at a
 *  boundary: no unit is acquired, and the next window has not begun. State on NVMe is committed as
 *  a new generation, so sherd_step_undo is impossible until the next update. Errors: those of
 *  sherd_param_read. After E_IO, if all state is on NVMe, no rank has written anything; otherwise,
 *  and for a frozen parameter, the engine is lost. */
SHERD_CALL sherd_param_write(sherd_engine *engine, sherd_param param, sherd_value value,
                             size_t first_elem, size_t count_elems, const float *in);
/** Returns the range of a parameter whose values and state this rank owns. At stages 1 to 3 no
 *  other rank owns a part of it, and it may be empty (count 0); at stage 0 it is the whole
 *  parameter on every rank. For programs that write files of their own. Local. Called after
 *  seal. */
SHERD_CALL sherd_param_local(sherd_engine *engine, sherd_param param, size_t *first_elem_out,
                             size_t *count_elems_out);
/** Does the same as sherd_param_read, for a range inside the owned range, on this rank only. Local,
 *  blocking. Called after the first acquire. Errors: those of sherd_param_read; E_INVAL if this
 *  rank does not own the range. */
SHERD_CALL sherd_param_read_local(sherd_engine *engine, sherd_param param, sherd_value value,
                                  size_t first_elem, size_t count_elems, float *out);
/** Sets the counters of a training run that continues in this engine: updates done, which schedules
 *  and bias corrections use, and micro-batches seen. Collective. Called after seal, either before
 *  the first acquire or at a boundary. At a boundary the call makes a commit, as sherd_param_write
 *  does. Errors: E_INVAL (below 0; the ranks' arguments differ), E_STATE, E_IO. */
SHERD_CALL sherd_engine_set_step(sherd_engine *engine, int64_t step, int64_t micro_step);

#endif
