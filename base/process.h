/* Which process this is. */
#ifndef SHERDI_BASE_PROCESS_H
#define SHERDI_BASE_PROCESS_H

#include <sys/types.h>

/** Returns this process's number, without asking the system each time: it changes in a child that
 *  the program forks, and nowhere else. */
pid_t sherdi_process(void);

#endif
