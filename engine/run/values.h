/* Values of parameters and of their state, in fp32: any range of any part, as far as this rank
 * holds it. All calls here are local. The collective calls of the API (value_calls.c), and the code
 * that saves and loads whole engines, are built on them. */
#ifndef SHERDI_ENGINE_RUN_VALUES_H
#define SHERDI_ENGINE_RUN_VALUES_H

#include "engine/program/values.h"
#include "engine/run/fill.h"

/** Call it after the last one. Waits until all put values are written to the space where they rest;
 *  the slots of the rings are empty then. E_IO: a part of it could not be written, and the caller
 *  abandons the state's generation. */
sherd_status sherdi_values_end(sherd_engine *engine);

/**
 *  Gives `fn` the values of a range that this rank owns: of every parameter, trainable or frozen,
 *  and of its state the slice; at stage 0 all of it. The elements come in ascending order, in
 *  portions of at most plan->packing.fill_elems; with several parts, each portion comes part by
 *  part. Consecutive calls read each extent on a drive once if they follow the order of the plan.
 *
 *  Blocking  yes. Between begin and end. Nothing of the parameter's unit is acquired.
 *  Errors    what `fn` returns; E_IO
 */
sherd_status sherdi_values_get(sherd_engine *engine, const sherdi_values *values,
                               sherdi_values_fn fn, void *ctx);
/** The same, but of the compute type gives all that rests here: at stages 0 to 2 the whole
 *  range. */
sherd_status sherdi_values_get_here(sherd_engine *engine, const sherdi_values *values,
                                    sherdi_values_fn fn, void *ctx);
/** Gives the gradient of a prepared step, in the same way: the mean over the window, without the
 *  loss scale, before clipping. values->parts must be SHERDI_VALUES_GRADIENT. */
sherd_status sherdi_values_get_gradient(sherd_engine *engine, const sherdi_values *values,
                                        sherdi_values_fn fn, void *ctx);
/**
 *  Asks `fn` for the values of a range that this rank holds, and stores them. Master weights (or
 *  SHERDI_VALUES_COMPUTE, rounded to the compute type) go to the state and to every copy of the
 *  parameter that rests here; parts of the state go where this rank updates them. Order and
 *  portions are those of sherdi_values_get; of weights it asks for all that rests here, so at
 *  stages 0 to 2 every rank asks for the whole range. It may be called before the first acquire. It
 *  does not refresh gathered copies: see sherdi_program_forget.
 *
 *  Blocking  yes. Between begin and end.
 *  Errors    what `fn` returns; E_IO. Then some of the range has been written.
 */
sherd_status sherdi_values_put(sherd_engine *engine, const sherdi_values *values,
                               sherdi_values_fn fn, void *ctx);
/** Returns this rank's share of the fingerprint of the put values, in their stored form, since the
 *  caller set it to 0; sherdi_program_put says for which values it is computed. */
uint64_t *sherdi_values_share(sherd_engine *engine);

/** Gives the range of a parameter's elements that a rank owns, [*first, *first + *count); at stage
 *  0 all of them. */
void sherdi_values_owned(const sherd_engine *engine, size_t param, int rank, size_t *first,
                         size_t *count);
/** Gives the range that lies in the rank's slice, at every stage. */
void sherdi_values_slice(const sherd_engine *engine, size_t param, int rank, size_t *first,
                         size_t *count);

/** Returns the index of the first value that a part of a segment's state cannot store: a negative
 *  one, where the part is stored without its sign. `count`: all can be stored. */
size_t sherdi_values_find_refused(const sherdi_segment *segment, int part, size_t count,
                                  const float *values);

/** Does what sherd_param_write does after the ranks have agreed on the call. Collective. */
sherd_status sherdi_values_write(sherd_engine *engine, size_t param, int part, size_t first,
                                 size_t count, const float *in);
/** Gives this rank's share of the fingerprint of a range of one parameter, frozen or not. Local.
 *  E_IO. */
sherd_status sherdi_update_range_fingerprint(sherd_engine *engine, const sherdi_values *values,
                                             uint64_t *out);

#endif
