/* Which launcher has started this process. The core sees it too, so that ranks that a build cannot
 * connect get an error and do not train alone. collectives/env.c reads the variables. */
#include "sherd.h"

#include <stdlib.h>

static int is_set(const char *name)
{
    const char *text = getenv(name);

    return text != NULL && text[0] != '\0';
}

/* Returns a number of ranks; 0 if it is not set, or if another variable is not. */
static long size_of(const char *name, int is_seen)
{
    return is_seen && is_set(name) ? strtol(getenv(name), NULL, 10) : 0;
}

/* Slurm's variables are also set in shells inside an allocation, so only a step with several tasks
 * counts. Inside an allocation mpiexec lets srun start its daemons, and the ranks inherit srun's
 * variables. */
const char *sherd_launcher(void)
{
    long srun = size_of(is_set("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
                        is_set("SLURM_STEP_ID") && is_set("SLURM_PROCID"));
    long mpiexec = size_of("PMI_SIZE", is_set("PMI_RANK"));

    return is_set("SHERD_RANK") || is_set("SHERD_WORLD_SIZE") || is_set("SHERD_RENDEZVOUS")
               ? "SHERD_*"
           : is_set("TORCHELASTIC_RUN_ID") || (is_set("RANK") && is_set("WORLD_SIZE")) ? "torchrun"
           : is_set("OMPI_COMM_WORLD_SIZE")                                            ? "mpirun"
           : mpiexec > 1 && mpiexec != srun                                            ? "mpiexec"
           : srun > 1                                                                  ? "srun"
                                                                                       : NULL;
}
