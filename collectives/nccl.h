/* Ranks with a GPU each, which move device memory by NCCL: nccl_*.c (or nccl_none.c), and nccl_choice.c,
 * which says whether a world can be one of them. */
#ifndef SHERDI_COLLECTIVES_NCCL_H
#define SHERDI_COLLECTIVES_NCCL_H

#include "collectives/procs.h"

/** The version of the NCCL that this process can load (22809: 2.28.9); 0 with one sentence in `why`. */
int sherdi_nccl_version(char *why, size_t why_bytes);

/** What this rank says of its devices and its NCCL. */
void sherdi_nccl_card_fill(rendezvous_card *card, const char *backend);
/** Whether the ranks that have met can be a world over NCCL: 1, or 0 with the reason; the same on all. */
int sherdi_nccl_is_possible(const rendezvous *meeting, char *why, size_t why_bytes);

/** Makes the ranks that have met, and have their devices, a world over NCCL: its control lines, its communicator,
 *  which is `comm` where that is not NULL: an ncclComm_t, the trainer's. On failure the caller closes. Collective. */
sherd_status sherdi_nccl_open(sherdi_procs *procs, void *comm);

/** Ends what sherdi_nccl_open made, half-made too: sherdi_procs_close calls it first. */
void sherdi_nccl_close(sherdi_procs *procs);

extern const sherdi_world_ops sherdi_nccl_ops;

#endif
