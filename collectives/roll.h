/* The roll of an elastic job: a folder in which the launcher and the processes of a host leave each
 * other words, as files whose names say all. A file appears, or gets another name, in one piece, so
 * nobody reads half a word, and of two that want the same file one gets it.
 *
 *   launcher      locked as long as the launcher lives
 *   wanted        of the launcher: the number of ranks that it wants
 *   over          of the launcher: the job is over for those who wait
 *   waits-P       newcomer P is ready; locked as long as it lives
 *   called-P-R-T  the same file, when rank 0 has called P to be rank R in turn T
 *   turn-T        of rank 0: how many ranks meet at the socket meeting-T, and how many losses there were
 *   trains-P      process P is a rank
 *   leaves-P      the same file, when P leaves as was asked
 *   loss-N        of the survivors of the N-th loss: from which world they come
 *
 * P is the number of a process, which the launcher gives it; the launcher removes the files of a
 * process that has ended. turn.c is the ranks' side, cli/launch_elastic.c the launcher's. */
#ifndef SHERDI_COLLECTIVES_ROLL_H
#define SHERDI_COLLECTIVES_ROLL_H

#include "base/status.h"

#define ROLL_ADDRESS_BYTES 192

/* This process's view of the roll. */
typedef struct roll {
    const char *folder;  /* of the environment */
    int         process; /* its number */
} roll;

typedef enum roll_word {
    ROLL_WAIT = 0, /* nothing has changed */
    ROLL_CALLED,
    ROLL_LOST, /* it was called, and the turn has not come about */
    ROLL_OVER, /* it is not needed */
} roll_word;

/* How a newcomer is called. */
typedef struct roll_call {
    int     rank, turn, world_size, losses;
    int64_t called_ns; /* when it saw that it is called; 0: it is not. Set to 0 before it waits */
} roll_call;

/** Returns whether a launcher keeps a roll for this process: SHERD_ELASTIC and SHERD_PROCESS. */
int sherdi_roll_open(roll *out);
/** Writes the address where the ranks of a turn meet. */
void sherdi_roll_address(const roll *roll, int turn, char out[ROLL_ADDRESS_BYTES]);

/* ---- ranks; E_IO: the folder cannot be read or written ---- */

/** Says that this process is a rank. */
sherd_status sherdi_roll_train(const roll *roll);
/** Says that this rank leaves. */
sherd_status sherdi_roll_leave(const roll *roll);
/** Reads how many ranks are wanted. */
sherd_status sherdi_roll_wanted(const roll *roll, int *out);
/** Calls newcomers that wait, as ranks from `from` on and below `to`, after so many losses. Returns
 *  how many, and the number of the turn. */
sherd_status sherdi_roll_call(const roll *roll, int from, int to, int losses, int *count_out,
                              int *turn_out);

/** Claims the job for those who come from the world `session`, after its `number`-th loss. Only the
 *  ranks of one world can: *is_ours_out. */
sherd_status sherdi_roll_claim(const roll *roll, int number, uint64_t session, int *is_ours_out);

/* ---- newcomers ---- */

/** Says that this process waits. *lock_out says that it lives, until it is closed. */
sherd_status sherdi_roll_wait(const roll *roll, int *lock_out);
/** Looks whether this process is called. `limit_ns`: how long after that the turn may take. */
sherd_status sherdi_roll_look(const roll *roll, int64_t limit_ns, roll_call *call,
                              roll_word *word_out);
/** Removes the words that this process waits, and is called. */
void sherdi_roll_forget(const roll *roll);
/** Returns whether the launcher lives. */
int sherdi_roll_has_launcher(const roll *roll);

#endif
