/* Worlds that call nobody, so calls.c answers their collectives. `self` has one
 * rank, and simulated worlds stand for one rank of a described machine (simulated.h). */
#ifndef SHERDI_COLLECTIVES_ALONE_H
#define SHERDI_COLLECTIVES_ALONE_H

#include "collectives/world_impl.h"

extern const sherdi_world_ops sherdi_self_ops;

/** Creates the world of one rank, of checked parameters. */
sherd_status sherdi_self_create(const sherd_world_params *params, sherd_world **out);
/** Opens a world in `alone`, the beginning of an object that the caller has zeroed and
 *  sherdi_alone_close frees, also after a failure. */
sherd_status sherdi_alone_open(sherd_world *alone, const sherdi_world_ops *ops, int rank,
                               int world_size, const sherd_world_params *params, sherd_world **out);
/** A slot of that name. */
void sherdi_alone_close(sherd_world *world);

#endif
