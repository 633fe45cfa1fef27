/* Who of a world's ranks is there, in memory that the ranks of the host share. It outlives the
 * failure of the world, and the processes in it: the survivors agree by it how to go on
 * (survivors.c). A process is alive as long as a thread of it holds its robust lock, which the
 * system marks when the process ends, in whatever way. */
#ifndef SHERDI_COLLECTIVES_ROSTER_H
#define SHERDI_COLLECTIVES_ROSTER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* So often the survivors try to meet: each try may lose a rank more. */
#define ROSTER_MOST_TRIES 16

/* What a rank wants after a failure. */
typedef enum roster_stand {
    ROSTER_NONE = 0, /* it has not said so yet */
    ROSTER_STAYS,
    ROSTER_LEAVES,
    ROSTER_OUT, /* the others went on without it */
} roster_stand;

typedef struct roster_place {
    _Alignas(64) pthread_mutex_t alive;
    atomic_int is_held; /* the rank's process has locked `alive`, and has not ended properly */
    atomic_int is_dead;
    atomic_int stand; /* roster_stand */
} roster_place;

/* After the places follow the proposals: for each try and rank, a bit for each rank. */
typedef struct sherdi_roster {
    uint64_t     key[2];                    /* random: of the meetings of survivors */
    atomic_int   chosen[ROSTER_MOST_TRIES]; /* whose proposal holds: index + 1; 0: none yet */
    roster_place places[];
} sherdi_roster;

/** Returns the bytes of a roster of `count` ranks. */
size_t sherdi_roster_bytes(int count);
/** Draws the key. One rank calls it, before the others can see the roster. */
void sherdi_roster_init(sherdi_roster *roster);
/** Say that this rank is alive, as long as the calling thread is; and that it ends properly. The same
 *  thread calls both. */
void sherdi_roster_enter(sherdi_roster *roster, int me);
void sherdi_roster_leave(sherdi_roster *roster, int me);
/** Returns whether the process of a rank has ended without sherdi_roster_leave. Any thread may call
 *  it. */
int sherdi_roster_is_dead(sherdi_roster *roster, int index);
/** Returns the proposal of a rank for a try. */
uint64_t *sherdi_roster_proposal(sherdi_roster *roster, int count, int try_number, int index);

#endif
