/* A private folder on a drive for the rows of `sherd test` that store data there. It is created,
 * its name is sent to the ranks of a job, and it is removed when the test ends or is interrupted. A
 * process has at most one. */
#ifndef SHERD_CLI_SCRATCH_H
#define SHERD_CLI_SCRATCH_H

#include "sherd.h"

/* The longest name of a folder that the engine accepts. */
#define SCRATCH_PATH_BYTES 256

typedef struct scratch_folder {
    char path[SCRATCH_PATH_BYTES];      /* absolute; "" if there is no folder */
    char why[SCRATCH_PATH_BYTES + 160]; /* then the reason, as a message */
} scratch_folder;

/** From this call on, SIGINT, SIGTERM and SIGHUP remove the folder before they end the program. It
 *  must come before the program starts a second thread. Returns 0, or -1 with errno. */
int scratch_guard_begin(void);
/** Restores the signals. */
void scratch_guard_end(void);

/** Makes the folder on a drive with `need_bytes` of free space: in `parent`, which must exist; if
 *  parent is NULL, in the current folder, else in $TMPDIR. If `world` is not NULL, it is
 *  collective: all ranks of a host get the same folder, and either all ranks get one or none does.
 *  Returns 0, or -1 with the reason in *out. */
int scratch_make(sherd_world *world, const char *parent, uint64_t need_bytes, scratch_folder *out);
/** Removes the folder with its content; does nothing if there is none. Collective as above. */
void scratch_remove(sherd_world *world);

#endif
