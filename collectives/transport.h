/* The transports by name: which ranks each can hold, and how a world over it is made. What it does once it is there is
 * sherdi_world_ops. One table each, all named in transport_list.h. */
#ifndef SHERDI_COLLECTIVES_TRANSPORT_H
#define SHERDI_COLLECTIVES_TRANSPORT_H

#include "sherd.h"

#include <stddef.h>
#include <stdint.h>

struct procs_params;

/* What ranks may be. */
#define SHERDI_TRANSPORT_ALONE     1u  /* one rank */
#define SHERDI_TRANSPORT_PROCESSES 2u  /* processes of one host */
#define SHERDI_TRANSPORT_HOSTS     4u  /* ... or of several */
#define SHERDI_TRANSPORT_MPI       8u  /* processes that MPI started: it does the meeting */
#define SHERDI_TRANSPORT_DEVICES   16u /* each has a device of its own, whose memory NCCL moves */

typedef struct sherdi_transport {
    const char *name;
    uint32_t    holds;
    int         is_built; /* 0: `create` says what this build lacks */

    /* One rank among processes, or alone. Collective. NULL: its ranks are neither. */
    sherd_status (*create)(const struct procs_params *params, sherd_world **out);
    /* All ranks, as threads of this process; `params` are checked. NULL: they cannot be. */
    sherd_status (*create_threads)(int world_size, const sherd_world_params *params,
                                   sherd_world **worlds_out);
} sherdi_transport;

#define SHERDI_TRANSPORT(table) extern const sherdi_transport table;
#include "collectives/transport_list.h"
#undef SHERDI_TRANSPORT

/** NULL when there is none of that name, or `name` is NULL. */
const sherdi_transport *sherdi_transport_find(const char *name);
/** Whether ranks over the transport of that name have a device each; 0 for NULL. */
int sherdi_transport_wants_device(const char *name);
/** NULL past the last. */
const sherdi_transport *sherdi_transport_at(size_t index);
/** "self, threads, ...": those that this build has. */
void sherdi_transport_names(char *text, size_t len_bytes);

#endif
