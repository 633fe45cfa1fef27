/* How processes find each other: all connect to rank 0, say who they are, and get the list of all
 * ranks. The connections stay open for the monitor. No other data moves here.
 *
 * Each rank proves to rank 0, and rank 0 to it, that it knows the job's key (job.h), by a keyed
 * hash over nonces of both sides. The key itself never travels. Later messages are neither
 * encrypted nor signed, so this does not protect against someone who listens on the network or
 * changes its traffic. It is meant for the inside of a cluster, like the launchers that set the
 * key. */
#ifndef SHERDI_COLLECTIVES_RENDEZVOUS_H
#define SHERDI_COLLECTIVES_RENDEZVOUS_H

#include "collectives/job.h"
#include "collectives/net.h"

/* Most devices of a process that a card identifies by more than their number. */
#define RENDEZVOUS_DEVICES 16

/* The description of a rank; sent as these bytes. */
typedef struct rendezvous_card {
    uint64_t magic; /* also identifies byte order and version */
    int32_t  rank;
    int32_t  world_size;
    int32_t  local_rank; /* from the launcher; -1: unknown */
    int32_t  process;    /* pid, for messages */
    uint64_t host;       /* equal for ranks that can share memory */
    uint64_t cores;      /* equal for ranks that may run on the same cores */
    char     host_name[64];
    char     transport[16];
    char     backend[8];  /* kind of device: "cpu", "cuda" */
    char     channel[80]; /* address of the desk where descriptors are passed */
    /* About the device and NCCL; nccl_choice.c. */
    int32_t  device;                         /* as asked for; -1: chosen by local rank */
    int32_t  device_count;                   /* devices that this process can use */
    uint64_t device_ids[RENDEZVOUS_DEVICES]; /* the same for a device that two processes see */
    int32_t  nccl_version;                   /* 0: NCCL cannot be loaded; see nccl_why */
    int32_t  nccl_shares; /* NCCL is configured to allow several ranks on one device */
    char     nccl_why[120];
} rendezvous_card;

/* The message of rank 0 to a process that connects, and the answer of a rank. */
typedef struct rendezvous_greeting {
    uint64_t magic;
    uint64_t nonce;
} rendezvous_greeting;

typedef struct rendezvous_call {
    rendezvous_card card;
    uint64_t        nonce;
    uint64_t        proof; /* sherdi_rendezvous_sign */
} rendezvous_call;

typedef struct rendezvous_params {
    const rendezvous_card *card;
    /* one address, or several to try in turn, separated by spaces */
    const char *address;
    /* rank 0: a socket that listens there, which is taken; or -1 */
    int            listener;
    const job_key *key;
    int64_t        limit_ns; /* longest wait for the other ranks */
    sherd_world   *world;    /* its failure ends the waits; may be NULL */
} rendezvous_params;

typedef struct rendezvous {
    int              rank;
    int              world_size;
    rendezvous_card *cards; /* [world_size] by rank */
    int             *fds; /* rank 0: [world_size] by rank, -1 for itself; others: [1], to rank 0 */
    uint64_t         session;      /* random, the same on all ranks of this world, and only there */
    int              desk;         /* rank 0: listening socket; -1 elsewhere and afterwards */
    char             address[256]; /* where it listens, as this rank knows it */
} rendezvous;

/** Returns a number that is equal for processes that can share memory. */
uint64_t sherdi_rendezvous_host(void);
/** Fills in this process's card with host, cores and channel name. The backend is the CPU until the
 *  caller changes it. */
void sherdi_rendezvous_card_fill(rendezvous_card *card, int rank, int world_size,
                                 const sherd_world_params *params, const char *transport);

/** Meets the other ranks. Collective; blocks until all have come. A rank that has found rank 0
 *  waits as long as rank 0 does, and gets its result. Errors: E_INVAL (ranks contradict each other,
 *  or have different keys), E_PEER_LOST (the message lists the ranks that never came, or names one
 *  that died). sherdi_rendezvous_fini accepts the object after a failure. */
sherd_status sherdi_rendezvous_meet(rendezvous *meeting, sherdi_mem *mem,
                                    const rendezvous_params *params);
/** Returns whether no lower rank is on the rank's host. */
int sherdi_rendezvous_is_first(const rendezvous *meeting, int rank);
/** Fills in the proof of a call whose card and nonce are set. */
void sherdi_rendezvous_sign(rendezvous_call *call, const rendezvous_greeting *greeting,
                            const job_key *key);
/** Opens a second connection between every rank and rank 0, for control data. *lines_out is laid
 *  out like `fds`; the caller closes and frees it. After the meeting all ranks call either this
 *  function or sherdi_rendezvous_close_desk. A failure of `world` ends the wait. */
sherd_status sherdi_rendezvous_lines(rendezvous *meeting, sherd_world *world, int **lines_out);
/** Stops listening: nobody will connect any more. */
void sherdi_rendezvous_close_desk(rendezvous *meeting);
/** Frees the object and closes the connections that the monitor did not take. */
void sherdi_rendezvous_fini(rendezvous *meeting);

#endif
