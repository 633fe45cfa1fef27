/* The variables of launchers, and their precedence:
 *
 *   explicit  SHERD_RANK, SHERD_WORLD_SIZE, SHERD_RENDEZVOUS has precedence over all
 *   torchrun  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK, LOCAL_WORLD_SIZE has
 *             precedence over mpirun and srun
 *   mpirun    OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE,
 *             OMPI_COMM_WORLD_LOCAL_RANK                                the ranks meet through MPI
 *   srun      SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID,
 *             SLURM_STEP_NODELIST or SLURM_JOB_NODELIST only inside a step of several tasks
 *   mpiexec   PMI_RANK, PMI_SIZE, MPI_LOCALRANKID of MPICH and Intel MPI, which name no address to
 *             meet at: MASTER_ADDR and a port as under torchrun; has precedence over srun if srun
 *             counts other tasks (the daemons)
 *
 * Each launcher gives the job a name, and ranks that meet compare it (job.h): SHERD_JOB_SECRET,
 * else TORCHELASTIC_RUN_ID, or SLURM_JOB_ID and the step. Under mpirun rank 0 draws a random key,
 * and MPI takes it to the others.
 *
 * SHERD_PORT changes the port at which the ranks meet under torchrun and mpiexec (default
 * MASTER_PORT + 1, because torchrun's agent itself listens on MASTER_PORT) and under srun (by
 * default computed from job and step). */
#include "collectives/procs.h"

#include "base/absent.h"
#include "base/log.h"
#include "collectives/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct env_launch {
    const char *scheme;
    int         rank;
    int         world_size;
    int         local_rank; /* -1: unknown */
    int         is_mpi;
    const char *job_name; /* the variable that names the job; NULL: none */
    char        job[256];
    char        address[320];
} env_launch;

static const char *env_text(const char *name)
{
    const char *text = getenv(name);

    return text == NULL || text[0] == '\0' ? NULL : text;
}

/* Reads a whole number in [least, most]. Leaves *out alone when the variable is not set. */
static sherd_status env_int(const char *name, long least, long most, int *out)
{
    const char *text = env_text(name);
    char       *end;
    long        value;

    if (text == NULL) {
        return SHERD_OK;
    }
    value = strtol(text, &end, 10);
    if (*end != '\0' || value < least || value > most) {
        return sherdi_fail(SHERD_E_INVAL, "%s is \"%s\", not a number from %ld to %ld", name, text,
                           least, most);
    }
    *out = (int)value;
    return SHERD_OK;
}

static sherd_status env_int_needed(const char *scheme, const char *name, long least, long most,
                                   int *out)
{
    if (env_text(name) == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "%s has set only some of its variables: %s is missing",
                           scheme, name);
    }
    return env_int(name, least, most, out);
}

/* Reads rank and world size from the named variables, and checks that the rank is below the
 * size. */
static sherd_status env_launch_read(env_launch *launch, const char *scheme, const char *rank_name,
                                    const char *size_name, const char *local_name)
{
    launch->scheme     = scheme;
    launch->local_rank = -1;
    SHERDI_TRY(env_int_needed(scheme, size_name, 1, 1 << 20, &launch->world_size));
    SHERDI_TRY(env_int_needed(scheme, rank_name, 0, 1 << 20, &launch->rank));
    if (launch->rank >= launch->world_size) {
        return sherdi_fail(SHERD_E_INVAL, "%s is %d but %s is %d: ranks count from 0", rank_name,
                           launch->rank, size_name, launch->world_size);
    }
    if (local_name != NULL) {
        SHERDI_TRY(env_int(local_name, 0, 1 << 20, &launch->local_rank));
    }
    return SHERD_OK;
}

static void address_write(env_launch *launch, const char *host, int port)
{
    const char *format = strchr(host, ':') != NULL ? "tcp://[%s]:%d" : "tcp://%s:%d";

    /* `format` is one of the two literals above. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(launch->address, sizeof(launch->address), format, host, port);
#pragma GCC diagnostic pop
}

/* Reads the launcher's name for the job, which is the same on all ranks. */
static void job_name_read(env_launch *launch, const char *name, const char *step)
{
    const char *job = env_text(name);

    if (job != NULL) {
        launch->job_name = name;
        (void)snprintf(launch->job, sizeof(launch->job), "%s.%s", job, step);
    }
}

/* ------------------------------------------------------------ the schemes -- */

static sherd_status explicit_read(env_launch *launch)
{
    const char *address = env_text("SHERD_RENDEZVOUS");

    SHERDI_TRY(env_launch_read(launch, "SHERD_*", "SHERD_RANK", "SHERD_WORLD_SIZE", NULL));
    if (launch->world_size == 1) {
        return SHERD_OK;
    }
    if (address == NULL) {
        return sherdi_fail(SHERD_E_INVAL,
                           "SHERD_WORLD_SIZE is %d but SHERD_RENDEZVOUS is not set; set it to "
                           "tcp://host:port or unix:///path",
                           launch->world_size);
    }
    (void)snprintf(launch->address, sizeof(launch->address), "%s", address);
    return sherdi_net_address_check(launch->address);
}

/* If mpirun starts a program for which torch's variables were set by hand, the two must agree. */
static sherd_status torchrun_compare_mpirun(const env_launch *launch)
{
    int mpi_rank = -1;
    int mpi_size = -1;

    SHERDI_TRY(env_int("OMPI_COMM_WORLD_RANK", 0, 1 << 20, &mpi_rank));
    SHERDI_TRY(env_int("OMPI_COMM_WORLD_SIZE", 1, 1 << 20, &mpi_size));
    if (mpi_size == launch->world_size && mpi_rank >= 0 && mpi_rank != launch->rank) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "RANK is %d but OMPI_COMM_WORLD_RANK is %d (each of %d ranks); unset the wrong one",
            launch->rank, mpi_rank, mpi_size);
    }
    return SHERD_OK;
}

/* Reads MASTER_ADDR and a port. */
static sherd_status master_address_read(env_launch *launch)
{
    int port = 0;

    SHERDI_TRY(env_int("SHERD_PORT", 1, 65535, &port));
    if (port == 0) {
        SHERDI_TRY(env_int_needed(launch->scheme, "MASTER_PORT", 1, 65534, &port));
        port++;
    }
    address_write(launch, env_text("MASTER_ADDR"), port);
    return SHERD_OK;
}

static sherd_status torchrun_read(env_launch *launch)
{
    int local_size = 1 << 20;

    SHERDI_TRY(env_launch_read(launch, "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"));
    SHERDI_TRY(env_int("LOCAL_WORLD_SIZE", 1, 1 << 20, &local_size));
    if (launch->local_rank >= local_size) {
        return sherdi_fail(SHERD_E_INVAL, "LOCAL_RANK is %d but LOCAL_WORLD_SIZE is %d",
                           launch->local_rank, local_size);
    }
    if (env_text("LOCAL_WORLD_SIZE") != NULL && local_size > launch->world_size) {
        return sherdi_fail(SHERD_E_INVAL, "LOCAL_WORLD_SIZE is %d but WORLD_SIZE is %d", local_size,
                           launch->world_size);
    }
    SHERDI_TRY(torchrun_compare_mpirun(launch));
    job_name_read(launch, "TORCHELASTIC_RUN_ID", "");
    if (launch->world_size == 1) {
        return SHERD_OK;
    }
    if (env_text("MASTER_ADDR") == NULL) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "RANK and WORLD_SIZE are set but MASTER_ADDR is not; set it to the host of rank 0");
    }
    return master_address_read(launch);
}

static sherd_status mpirun_read(env_launch *launch)
{
    launch->is_mpi = 1;
    return env_launch_read(launch, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK");
}

static const char *srun_size_name(void)
{
    return env_text("SLURM_STEP_NUM_TASKS") != NULL ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

/* Copies the first host of a list: "node03" of "node[03-07,9],other". */
static void nodelist_first(const char *list, char *host, size_t host_bytes)
{
    size_t at = 0;

    for (; *list != '\0' && *list != ',' && at + 1 < host_bytes; list++) {
        if (*list != '[') {
            host[at++] = *list;
            continue;
        }
        for (list++; *list != '\0' && strchr("-,]", *list) == NULL && at + 1 < host_bytes; list++) {
            host[at++] = *list;
        }
        list += strcspn(list, "]");
        if (*list == '\0') {
            break;
        }
    }
    host[at] = '\0';
}

static sherd_status srun_read(env_launch *launch)
{
    const char *list = env_text("SLURM_STEP_NODELIST");
    char        host[256];
    int         port = 0;

    SHERDI_TRY(env_launch_read(launch, "srun", "SLURM_PROCID", srun_size_name(), "SLURM_LOCALID"));
    list = list != NULL ? list : env_text("SLURM_JOB_NODELIST");
    if (list == NULL) {
        return sherdi_fail(SHERD_E_INVAL, "SLURM_PROCID is set but neither SLURM_STEP_NODELIST nor "
                                          "SLURM_JOB_NODELIST is");
    }
    nodelist_first(list, host, sizeof(host));
    job_name_read(launch, "SLURM_JOB_ID", env_text("SLURM_STEP_ID"));
    SHERDI_TRY(env_int("SHERD_PORT", 1, 65535, &port));
    if (port == 0) {
        const char   *job  = env_text("SLURM_JOB_ID");
        unsigned long seed = job != NULL ? strtoul(job, NULL, 10) : 0;

        port = 20000 + (int)((seed * 64 + strtoul(env_text("SLURM_STEP_ID"), NULL, 10)) % 20000);
    }
    address_write(launch, host, port);
    return SHERD_OK;
}

static sherd_status mpiexec_read(env_launch *launch)
{
    SHERDI_TRY(env_launch_read(launch, "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"));
    if (env_text("MASTER_ADDR") == NULL) {
        return sherdi_fail(
            SHERD_E_INVAL,
            "mpiexec started rank %d of %d (PMI_RANK, PMI_SIZE) and does not say where "
            "ranks meet: set MASTER_ADDR to the host of rank 0 and SHERD_PORT to a free "
            "port there, for example mpiexec -genv MASTER_ADDR 127.0.0.1 -genv "
            "SHERD_PORT 29600; Open MPI's mpirun needs neither",
            launch->rank, launch->world_size);
    }
    return master_address_read(launch);
}

/* ------------------------------------------------------------- the choice -- */

/* By the names of sherd_launcher. */
static const struct {
    const char *name;
    sherd_status (*read)(env_launch *launch);
} SCHEMES[] = {
    {"SHERD_*", explicit_read}, {"torchrun", torchrun_read}, {"mpirun", mpirun_read},
    {"mpiexec", mpiexec_read},  {"srun", srun_read},
};
#define NUM_SCHEMES (sizeof(SCHEMES) / sizeof(SCHEMES[0]))

static sherd_status launch_find(env_launch *launch)
{
    const char *name = sherd_launcher();

    for (size_t i = 0; i < NUM_SCHEMES && name != NULL; i++) {
        if (strcmp(SCHEMES[i].name, name) == 0) {
            return SCHEMES[i].read(launch);
        }
    }
    return SHERD_OK;
}

/* MPI makes the ranks meet that it started. */
static sherd_status launched_create(const procs_params *params, sherd_world **out)
{
    const sherdi_transport *transport = sherdi_transport_holding(SHERDI_TRANSPORT_MEETS);

    return transport == NULL ? sherdi_absent("mpi", "sherd_world_from_env")
                             : transport->create(params, out);
}

sherd_status sherd_world_from_env(const sherd_world_params *params, sherd_world **out)
{
    const sherdi_transport *transport;
    env_launch              launch = {.scheme = NULL};
    sherd_world_params      here;
    job_key                 key;

    SHERDI_TRY(sherdi_api_check_out(out, "sherd_world_from_env"));
    SHERDI_TRY(sherdi_world_params_read(params, &here));
    SHERDI_TRY(launch_find(&launch));
    sherdi_job_key_read(launch.job_name, launch.job_name == NULL ? NULL : launch.job, &key);
    if (launch.scheme == NULL) {
        sherdi_log(SHERD_LOG_INFO, -1, "no launcher seen: one rank, alone");
        return sherdi_world_at(0, 1, NULL, &key, &here, out);
    }
    sherdi_log(SHERD_LOG_INFO, launch.rank, "launched by %s: rank %d of %d%s%s", launch.scheme,
               launch.rank, launch.world_size, launch.address[0] != '\0' ? ", meeting at " : "",
               launch.address);
    if (here.local_rank < 0) {
        here.local_rank = launch.local_rank;
    }
    transport = sherdi_transport_find(here.transport);
    if (launch.is_mpi && (here.transport == NULL ||
                          (transport != NULL && transport->holds & SHERDI_TRANSPORT_MPI))) {
        return launched_create(
            &(procs_params){.world = &here, .rank = launch.rank, .world_size = launch.world_size},
            out);
    }
    return sherdi_world_at(launch.rank, launch.world_size, launch.address, &key, &here, out);
}
