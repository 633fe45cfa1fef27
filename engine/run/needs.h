/* The preconditions of a call of the trainer: each is checked, with its message, in one place. */
#ifndef SHERDI_ENGINE_RUN_NEEDS_H
#define SHERDI_ENGINE_RUN_NEEDS_H

#include "base/api.h"

/* Bits; they are checked in this order. */
typedef enum sherdi_need {
    SHERDI_NEED_OPEN         = 1 << 0, /* not sealed yet */
    SHERDI_NEED_SEALED       = 1 << 1,
    SHERDI_NEED_STEPS        = 1 << 2, /* the engine trains: it has an optimizer */
    SHERDI_NEED_STARTED      = 1 << 3, /* the filling is over */
    SHERDI_NEED_PREPARED     = 1 << 4, /* a step is prepared */
    SHERDI_NEED_UNPREPARED   = 1 << 5, /* none is */
    SHERDI_NEED_NO_EVAL      = 1 << 6, /* not between sherd_eval_begin and sherd_eval_end */
    SHERDI_NEED_RELEASED     = 1 << 7, /* no unit is acquired */
    SHERDI_NEED_NO_GRADIENTS = 1 << 8, /* the window has had no backward pass */
    SHERDI_NEED_NO_WINDOW    = 1 << 9, /* nor a forward pass, if there are windows at all */
} sherdi_need;

/* The preconditions of a call that changes values or counters. */
#define SHERDI_NEEDS_TO_WRITE                                                                      \
    (SHERDI_NEED_UNPREPARED | SHERDI_NEED_NO_EVAL | SHERDI_NEED_RELEASED | SHERDI_NEED_NO_WINDOW)

/** Checks the engine as sherdi_engine_check_alive does. Then returns E_STATE for the first of
 *  `needs` (an OR of sherdi_need) that does not hold; the message begins with `call`. A call with
 *  SHERDI_NEED_STEPS or a later need must also have SHERDI_NEED_SEALED. */
sherd_status sherdi_engine_need(const sherd_engine *engine, const char *call, unsigned needs);
#endif
