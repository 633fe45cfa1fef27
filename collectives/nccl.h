/* The transport nccl, for ranks with a GPU each: NCCL moves their device memory. nccl_*.c implement
 * it (nccl_none.c in a build without it); nccl_choice.c says whether a set of ranks can use it.
 * Read nccl_impl.h next. */
#ifndef SHERDI_COLLECTIVES_NCCL_H
#define SHERDI_COLLECTIVES_NCCL_H

#include "collectives/procs.h"

/** Returns the version of the NCCL that this process can load (22809 is 2.28.9), or 0 with one
 *  sentence in `why`. */
int sherdi_nccl_version(char *why, size_t why_bytes);
/** Returns it as text, "2.28.9", or that sentence; valid until the next call on this thread. */
const char *sherdi_nccl_text(void);

/** The functions of this transport for worlds of processes. */
extern const procs_mover sherdi_nccl_mover;

/* Slots of the mover that nccl.c and nccl_none.c have. */
sherd_status                  sherdi_nccl_open(sherdi_procs *procs, void *comm);
void                          sherdi_nccl_close(sherdi_procs *procs);
extern const sherdi_world_ops sherdi_nccl_ops;

#endif
