/* The transports by name: which ranks each can connect, and how a world over it is created.
 * sherdi_world_ops has the operations of a transport in a world. Each transport has one table; all
 * are named in transport_list.h. */
#ifndef SHERDI_COLLECTIVES_TRANSPORT_H
#define SHERDI_COLLECTIVES_TRANSPORT_H

#include "sherd.h"

#include <stddef.h>
#include <stdint.h>

struct procs_params;
struct procs_mover;

/* Properties of the ranks of a transport. */
#define SHERDI_TRANSPORT_ALONE     1u  /* one rank */
#define SHERDI_TRANSPORT_PROCESSES 2u  /* processes of one host */
#define SHERDI_TRANSPORT_HOSTS     4u  /* processes of several hosts */
#define SHERDI_TRANSPORT_MPI       8u  /* processes that MPI started; MPI makes them meet */
#define SHERDI_TRANSPORT_DEVICES   16u /* each has a device of its own; see `mover` */
#define SHERDI_TRANSPORT_MEETS     32u /* its library makes the processes meet that it started */

typedef struct sherdi_transport {
    const char *name;
    uint32_t    holds;
    int         is_built; /* 0: `create` says which library this build lacks */

    /* Creates the world of one rank alone. NULL: its ranks are not alone. */
    sherd_status (*create_alone)(const sherd_world_params *params, sherd_world **out);
    /* Creates the world of one rank among processes. Collective. NULL: its ranks are none. */
    sherd_status (*create)(const struct procs_params *params, sherd_world **out);
    /* Checks the parameters that its worlds alone need, and replaces those that the environment
     * sets. NULL: there are none. */
    sherd_status (*params_read)(sherd_world_params *params);
    /* Returns the library that this process can load for the transport, "2.28.9", or why it cannot;
     * valid until the next call on this thread. NULL: it needs none. */
    const char *(*library)(void);
    /* With SHERDI_TRANSPORT_DEVICES: what moves the memory of devices (procs.h). Else NULL. */
    const struct procs_mover *mover;
} sherdi_transport;

#define SHERDI_TRANSPORT(table) extern const sherdi_transport table;
#include "collectives/transport_list.h"
#undef SHERDI_TRANSPORT

/** Checks struct_size and the ranges of a caller's parameters (NULL: the defaults) and copies them
 *  into *out, which has all fields set. The functions of the worlds take parameters in that form.
 *  Errors: E_INVAL. */
sherd_status sherdi_world_params_read(const sherd_world_params *given, sherd_world_params *out);
/** Returns whether ranks over the transport of that name have a device each; 0 for NULL. */
int sherdi_world_wants_device(const char *name);
/** Sets *out to "cpu" or to the kind of device that the parameters ask for: by `backend`, else by
 *  SHERD_BACKEND, else by `device` and transport. The text is in static storage. Errors:
 *  E_INVAL. */
sherd_status sherdi_world_backend_kind(const sherd_world_params *params, const char **out);
/** Returns E_INVAL unless 0 <= rank < world_size. */
sherd_status sherdi_world_rank_check(int rank, int world_size);
/** Returns the transport of that name; NULL when there is none, or `name` is NULL. */
const sherdi_transport *sherdi_transport_find(const char *name);
/** Returns a transport by index; NULL past the last. */
const sherdi_transport *sherdi_transport_at(size_t index);
/** Returns the first transport that holds all of that; NULL: this build has none. */
const sherdi_transport *sherdi_transport_holding(uint32_t what);
/** Returns the library of the transport of that name (see the slot). */
const char *sherdi_transport_library(const char *name);
/** Writes the names of the transports that this build has: "self, threads, ...". */
void sherdi_transport_names(char *text, size_t len_bytes);

/** Return the bytes that this rank has sent; and to other hosts, where the transport knows hosts. */
size_t sherdi_world_sent_bytes(const sherd_world *world);
size_t sherdi_world_between_bytes(const sherd_world *world);

#endif
