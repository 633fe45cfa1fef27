/* What makes the threads of a CPU backend: the table of a module, or NULL in a build without it. */
#include "sherd_build.h"

#ifdef SHERDI_MODULE_TEAMS
extern const struct sherdi_team_ops sherdi_team_of_threads;
#define SHERDI_TEAM (&sherdi_team_of_threads)
#else
#define SHERDI_TEAM NULL
#endif
