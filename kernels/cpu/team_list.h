/* What makes the threads of a CPU backend: one table, or none. team.h declares it from this list, and
 * backend.c takes the first. A build has the lines of its modules (modules.txt). */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_TEAMS
SHERDI_TEAM(sherdi_team_of_threads)
#endif
