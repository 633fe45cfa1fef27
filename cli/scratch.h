/* A private folder on a drive for the rows of `sherd test` that rest there: made, told to the ranks of
 * a job, and removed when the test ends or is interrupted. One per process. */
#ifndef SHERD_CLI_SCRATCH_H
#define SHERD_CLI_SCRATCH_H

#include "sherd.h"

/* As long as the engine takes a folder's name. */
#define SCRATCH_PATH_BYTES 256

typedef struct scratch_folder {
    char path[SCRATCH_PATH_BYTES];      /* absolute; "" when there is none */
    char why[SCRATCH_PATH_BYTES + 160]; /* then the reason, for people */
} scratch_folder;

/** From here on SIGINT, SIGTERM and SIGHUP remove the folder before they end the program. Comes before
 *  the program's first other thread; 0, or -1 with errno when it cannot be done. */
int scratch_guard_begin(void);
/** Signals are as before. */
void scratch_guard_end(void);

/** Makes it, with room for `need_bytes`: in `parent`, which must be there; NULL: in the current folder,
 *  else in $TMPDIR. Collective when `world` is not NULL: all ranks of a host get the same, and all ranks one
 *  or none. 0, or -1 with the reason in *out. */
int scratch_make(sherd_world *world, const char *parent, uint64_t need_bytes, scratch_folder *out);
/** Removes it with what is in it; does nothing where there is none. Collective as above. */
void scratch_remove(sherd_world *world);

#endif
