/* The functions and objects of Open MPI that sherd uses. The library is opened at run time, so that
 * one binary runs with MPI and without it. mpi.h's own names of objects (MPI_COMM_WORLD, MPI_BYTE)
 * would have to be linked; the struct has these objects instead. */
#ifndef SHERDI_COLLECTIVES_MPI_LIBRARY_H
#define SHERDI_COLLECTIVES_MPI_LIBRARY_H

#include <stddef.h>

#include <mpi.h>

/* Each is MPI_<name>, as mpi.h declares it. */
#define MPI_FUNCTIONS(_)                                                                           \
    _(Cancel)                                                                                      \
    _(Comm_free)                                                                                   \
    _(Comm_idup)                                                                                   \
    _(Comm_rank)                                                                                   \
    _(Comm_set_errhandler)                                                                         \
    _(Comm_size)                                                                                   \
    _(Error_string)                                                                                \
    _(Finalize)                                                                                    \
    _(Finalized)                                                                                   \
    _(Get_library_version)                                                                         \
    _(Iallgather)                                                                                  \
    _(Init_thread)                                                                                 \
    _(Initialized)                                                                                 \
    _(Irecv)                                                                                       \
    _(Isend)                                                                                       \
    _(Query_thread)                                                                                \
    _(Request_free)                                                                                \
    _(Request_get_status)                                                                          \
    _(Test)                                                                                        \
    _(Testall)

/* Each is the address of the named symbol, with the type that mpi.h gives it. */
#define MPI_OBJECTS(_)                                                                             \
    _(MPI_Comm, comm_world, "ompi_mpi_comm_world")                                                 \
    _(MPI_Comm, comm_null, "ompi_mpi_comm_null")                                                   \
    _(MPI_Datatype, byte, "ompi_mpi_byte")                                                         \
    _(MPI_Errhandler, errors_return, "ompi_mpi_errors_return")                                     \
    _(MPI_Request, request_null, "ompi_request_null")

typedef struct mpi_api {
#define MEMBER(name) __typeof__(MPI_##name) *name;
    MPI_FUNCTIONS(MEMBER)
#undef MEMBER
#define MEMBER(type, name, symbol) type name;
    MPI_OBJECTS(MEMBER)
#undef MEMBER
} mpi_api;

/** One for the process; constant once sherdi_mpi_load has returned 1. */
extern mpi_api sherdi_mpi_api;

/** Finds the MPI that this process has loaded, or opens one (SHERD_MPI_LIBRARY). Returns 1, or 0
 *  with one sentence in `why`. */
int sherdi_mpi_load(char *why, size_t why_bytes);
/** Returns it as text, "Open MPI v4.1.4, FILE", or "no: " and why; valid until the next call on
 *  this thread. */
const char *sherdi_mpi_text(void);

#endif
