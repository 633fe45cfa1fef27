/* The operations for values of the module values, and of differences. */
#ifndef SHERDI_ENGINE_PROGRAM_VALUES_API_H
#define SHERDI_ENGINE_PROGRAM_VALUES_API_H

#include "engine/program/program.h"

enum {
    SHERDI_VALUE_GRADIENT = SHERDI_VALUE_COMPUTE + 1, /* reduced, while a step is prepared; as it is
                                                         stored, in fp32 */
    SHERDI_VALUE_PARTS,
};

#define SHERDI_VALUES_MASTER   1u
#define SHERDI_VALUES_COMPUTE  (1u << SHERDI_VALUE_COMPUTE)
#define SHERDI_VALUES_GRADIENT (1u << SHERDI_VALUE_GRADIENT)

/* A range of a parameter's elements, of one part or of several. */
typedef struct sherdi_values {
    size_t   param;
    size_t   first, count;
    unsigned parts; /* bit i: part i of the optimizer's state, or SHERDI_VALUES_... */
} sherdi_values;

/** Puts values of a range, from who gives them (SHERDI_OP_FILL): as much of it as this rank holds,
 *  in ascending portions, and in each portion by part. Parts of the state go where this rank
 *  updates it. With the master weights, or with SHERDI_VALUE_COMPUTE of a trainable parameter,
 *  which is put as both, all copies of the parameter that rest here are set. Adds this rank's share
 *  of their fingerprint, in the stored form, for values with a running fingerprint: frozen
 *  parameters, and state with generations. */
sherd_status sherdi_program_put(const sherdi_program *program, const sherdi_values *values);
/** Returns values of a range to the caller (SHERDI_OP_TAKE), in the same order: of the state and
 *  the gradient the elements that this rank updates (of the integers of the deterministic mode its
 *  slice), of the compute type all elements that rest on this rank. */
sherd_status sherdi_program_get(const sherdi_program *program, const sherdi_values *values);
/** Brings this rank's share of the fingerprint of a range to the host; the parts of `values` do not
 *  matter. */
sherd_status sherdi_program_fingerprint(const sherdi_program *program, const sherdi_values *values);
/** Does what sherdi_program_norm does for one parameter's gradient, while a step is prepared. */
sherd_status sherdi_program_param_norm(const sherdi_program *program, size_t param);

#endif
