/* A board: numbers that a rank raises at any time, and that the ranks of its host read. So a rank
 * waits for what another rank has done without meeting it. Where ranks do not read each other's
 * memory (several hosts, devices), a rank sees its own numbers alone. */
#ifndef SHERDI_COLLECTIVES_BOARD_H
#define SHERDI_COLLECTIVES_BOARD_H

#include "collectives/world.h"

typedef struct sherdi_board sherdi_board;

/* A number that is never reached: the rank has failed. */
#define SHERDI_BOARD_FAILED UINT64_MAX

/** Opens a board of `places` numbers for each rank, all 0. Collective, blocking, with equal
 *  `places` on all ranks. E_NOMEM on all ranks. */
sherd_status sherdi_board_open(sherd_world *world, size_t places, sherdi_mem *mem,
                               sherdi_board **out);
/** Closes a board; accepts NULL. Other ranks may still read the memory of this rank. */
void sherdi_board_close(sherdi_board *board);
/** Returns the bytes that a board takes on a rank. */
size_t sherdi_board_bytes(size_t places);
/** Returns whether this rank sees the numbers of all ranks. */
int sherdi_board_is_shared(const sherdi_board *board);

/** Sets a number of this rank, and wakes who waits for it. A thread that sees the number also sees
 *  the earlier writes of this thread. Never blocks. */
void sherdi_board_post(sherdi_board *board, size_t place, uint64_t number);
/** Returns whether this rank, or with is_all every rank that is seen, has reached `number` or
 *  failed. Never blocks. */
int sherdi_board_has(const sherdi_board *board, size_t place, uint64_t number, int is_all);
/** Says that this rank makes progress: a rank that waits for it counts the world's time limit from
 *  here. Never blocks. */
void sherdi_board_beat(sherdi_board *board);
/** Waits until that is so. Local. `what` is for the message of another rank that makes no progress
 *  within the world's time limit: "the update of unit a". Errors: E_IO, a rank has failed:
 *  *failed_out is its rank; else as for every call of the world. */
sherd_status sherdi_board_wait(sherdi_board *board, size_t place, uint64_t number, int is_all,
                               const char *what, int *failed_out);

#endif
