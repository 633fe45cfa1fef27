/* Ranks with a GPU each, which move device memory by NCCL: nccl.c, or nccl_none.c. */
#ifndef SHERDI_COLLECTIVES_NCCL_H
#define SHERDI_COLLECTIVES_NCCL_H

#include "collectives/procs.h"

/** The world of processes, on one host or many; meets as procs.h says, control data goes over the sockets of
 *  the meeting. */
sherd_status sherdi_world_nccl_create(const procs_params *params, sherd_world **out);

#endif
