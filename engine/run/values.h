/* Values of parameters and of their state: any range of any part, of what this rank holds, in fp32. All is local but the
 * calls of the API, which are made of it (value_calls.c). What saves and loads whole engines is built on it too. */
#ifndef SHERDI_ENGINE_RUN_VALUES_H
#define SHERDI_ENGINE_RUN_VALUES_H

#include "engine/plan/program.h"

/** Gives values of elements [first, first + count) of the parameter, or is given them: they lie in the buffer of first
 *  values, valid until it returns. `part` as in sherdi_values.parts. What it returns ends the call. */
typedef sherd_status (*sherdi_values_fn)(void *ctx, int part, size_t first, size_t count,
                                         float *values);

/* Who gives values or is given them, in the event under way. */
typedef struct sherdi_values_call {
    sherdi_values_fn fn;
    void            *ctx;
    float            scale; /* of what is told; 0: as it is */
} sherdi_values_call;

/** Before the first get or put between two steps: what is read ahead for others is dropped, the first failure of it
 *  returned. */
sherd_status sherdi_values_begin(sherd_engine *engine);
/** Behind the last: what was put is on its way to where it rests no more, and slots of rings hold nothing. E_IO:
 *  something of it is not there; the state's generation is to be abandoned. */
sherd_status sherdi_values_end(sherd_engine *engine);

/**
 * What this rank owns of a range goes to `fn`: of trainable parameters and their state its slice (at stage 0 all of
 * it), of frozen ones the same. Ascending, in portions of at most plan->fill_elems; of several parts each portion is
 * told part by part. Consecutive calls read an extent of a drive once, if they keep to an order of the plan.
 *
 * Blocking  yes. Between begin and end. Nothing of the parameter's unit is acquired.
 * Errors    what `fn` returns; E_IO
 */
sherd_status sherdi_values_get(sherd_engine *engine, const sherdi_values *values,
                               sherdi_values_fn fn, void *ctx);
/** ... of the compute type all that rests here: at stages 0 to 2 the whole range. */
sherd_status sherdi_values_get_here(sherd_engine *engine, const sherdi_values *values,
                                    sherdi_values_fn fn, void *ctx);
/** The gradient of a prepared step, as sherdi_values_get: the mean over the window, loss scale taken out, before
 *  clipping. values->parts is SHERDI_VALUES_GRADIENT. */
sherd_status sherdi_values_get_gradient(sherd_engine *engine, const sherdi_values *values,
                                        sherdi_values_fn fn, void *ctx);
/**
 * What this rank holds of a range comes from `fn`: master weights (or SHERDI_VALUES_COMPUTE: rounded to the compute
 * type) go to the state and to every copy that rests here, parts of the state to where this rank updates them. Asked
 * for as get tells; of weights all that rests here, so at stages 0 to 2 the whole range on every rank. Before the first
 * acquire too. Gathered copies are not refreshed: see sherdi_program_forget.
 *
 * Blocking  yes. Between begin and end.
 * Errors    what `fn` returns; E_IO. Some of the range is written then.
 */
sherd_status sherdi_values_put(sherd_engine *engine, const sherdi_values *values,
                               sherdi_values_fn fn, void *ctx);
/** What this rank has of the fingerprint of what was put since this was zero: kept where sherdi_program_put says. */
uint64_t *sherdi_values_share(sherd_engine *engine);

/** [*first, *first + *count) of a parameter's elements: what a rank owns of it; at stage 0 all of it. */
void sherdi_values_owned(const sherd_engine *engine, size_t param, int rank, size_t *first,
                         size_t *count);
/** ... what lies in its slice, at every stage. */
void sherdi_values_slice(const sherd_engine *engine, size_t param, int rank, size_t *first,
                         size_t *count);
/** The part that a value's name means for a parameter, as in sherdi_values.parts. E_INVAL, with the names that there
 *  are. */
sherd_status sherdi_values_part(const sherd_engine *engine, size_t param, sherd_value value,
                                int *out);

/** The first value that a part of a segment's state cannot have: a negative one, where the part is stored without its
 *  sign. `count`: all can be stored. */
size_t sherdi_values_find_refused(const sherdi_segment *segment, int part, size_t count,
                                  const float *values);

/** Values were asked for by an operation (SHERDI_OP_FILL), or are told (SHERDI_OP_TAKE). */
sherd_status sherdi_values_ask(sherd_engine *engine, const sherdi_op *op, float *values);
sherd_status sherdi_values_tell(sherd_engine *engine, const sherdi_op *op, float *values);

#endif
