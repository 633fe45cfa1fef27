/* First values: parameters are filled after seal, until the engine starts. */
#ifndef SHERDI_ENGINE_RUN_FILL_H
#define SHERDI_ENGINE_RUN_FILL_H

#include "engine/run/engine_impl.h"

/* When a rank fails at the start: for the messages of the others. */
#define SHERDI_FILL_BEGINS "while it began with its first values"

/* Where the values of a parameter come from. */
typedef struct sherdi_fill_source {
    sherd_engine *engine;
    const char   *call;
    size_t        param;
    sherd_fill_fn fn; /* NULL: from the trainer's own memory, which is bound */
    void         *ctx;
} sherdi_fill_source;

/** Passes the values of an operation to the caller's function, which gives or takes them. */
sherd_status sherdi_values_pass(sherd_engine *engine, const sherdi_op *op, float *values);
/** Asks a source, its context, for values: a sherdi_values_fn. */
sherd_status sherdi_fill_ask(void *source, int part, size_t at, size_t count, float *values);
/** Check a call that fills: whether it may, and its function. */
sherd_status sherdi_fill_check(const sherd_engine *engine, const char *call, sherd_param param);
sherd_status sherdi_fill_check_function(const sherd_engine *engine, sherd_param param,
                                        sherd_fill_fn fill);
/** Returns whether the parameter already has values from the state of an earlier run, or from a
 *  checkpoint. */
int sherdi_fill_is_kept(const sherd_engine *engine, sherd_param param);
/** Allocates the tables of the filling; call it after the plan was made. E_NOMEM. */
sherd_status sherdi_fill_open(sherd_engine *engine);
void         sherdi_fill_close(sherd_engine *engine);
/** Fills a parameter on this rank; `fn` NULL: from the trainer's own memory. */
sherd_status sherdi_fill_param(sherd_engine *engine, size_t param, sherd_fill_fn fn, void *ctx);
/** Ends the filling and starts the engine, if it has not started: at the first acquire, or in an
 *  earlier call that needs it. Checks that every parameter is filled (fills bound ones from their
 *  own memory), that parameters that are whole on every rank are equal, and that the ranks agree on
 *  which are whole. Collective. */
sherd_status sherdi_fill_finish(sherd_engine *engine);
/** Returns this rank's share of the fingerprint, of frozen or of trainable parameters. */
uint64_t sherdi_fill_fingerprint(const sherd_engine *engine, int is_frozen);
#endif
