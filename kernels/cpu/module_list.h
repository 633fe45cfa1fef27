/* What modules add to a CPU backend, or NULL in a build without the module. */
#include "sherd_build.h"

/* The threads: a table. */
#ifdef SHERDI_MODULE_TEAMS
extern const struct sherdi_team_ops sherdi_team_of_threads;
#define SHERDI_TEAM (&sherdi_team_of_threads)
#else
#define SHERDI_TEAM NULL
#endif

/* The kernels with vector registers: a function that returns those of an instruction set, or with
 * NULL the best ones; NULL: this machine cannot run them. */
#ifdef SHERDI_MODULE_AVX
const sherdi_kernel_ops *sherdi_kernels_of_vectors(const char *isa);
#define SHERDI_VECTORS sherdi_kernels_of_vectors
#else
#define SHERDI_VECTORS NULL
#endif
