/* The transport nccl, for ranks with a GPU each: NCCL moves their device memory. nccl_*.c implement
 * it (nccl_none.c in a build without it); nccl_choice.c says whether given ranks can use it. Read
 * nccl_impl.h next. */
#ifndef SHERDI_COLLECTIVES_NCCL_H
#define SHERDI_COLLECTIVES_NCCL_H

#include "collectives/procs.h"

/** Returns the version of the NCCL that this process can load (22809 is 2.28.9), or 0 with one
 *  sentence in `why`. */
int sherdi_nccl_version(char *why, size_t why_bytes);

/** Fills in what a card says about this rank's devices and its NCCL. */
void sherdi_nccl_card_fill(rendezvous_card *card, const char *backend);
/** Returns 1 if the ranks that have met can be a world over NCCL, else 0 with the reason. The
 *  result is the same on all ranks. */
int sherdi_nccl_is_possible(const rendezvous *meeting, char *why, size_t why_bytes);

/** Completes a world over NCCL for ranks that have met and have opened their devices: opens its
 *  control lines and its communicator. A `comm` that is not NULL is the trainer's ncclComm_t, which
 *  is used instead of a new one. Collective. After a failure the caller closes. */
sherd_status sherdi_nccl_open(sherdi_procs *procs, void *comm);

/** Ends what sherdi_nccl_open made, also if that failed midway. sherdi_procs_close calls it
 *  first. */
void sherdi_nccl_close(sherdi_procs *procs);

extern const sherdi_world_ops sherdi_nccl_ops;

#endif
