/* How processes find each other: all connect to rank 0, say who they are, and get the list of
 * all. The connections stay open, for the monitor. Moving data is somebody else's business.
 *
 * Ranks prove to rank 0, and it to them, that they know the job's key (job.h), by a keyed hash over nonces of both: it
 * never travels. What follows is neither hidden nor signed: who listens on the network, or changes what passes there,
 * is not kept out. It is meant for the inside of a cluster, like the launchers that set it. */
#ifndef SHERDI_COLLECTIVES_RENDEZVOUS_H
#define SHERDI_COLLECTIVES_RENDEZVOUS_H

#include "collectives/job.h"
#include "collectives/net.h"

/* Devices of a process that are told apart by more than their number. */
#define RENDEZVOUS_DEVICES 16

/* What a rank says of itself; goes over the wire as it is. */
typedef struct rendezvous_card {
    uint64_t magic; /* also tells byte order and version */
    int32_t  rank;
    int32_t  world_size;
    int32_t  local_rank; /* as the launcher says; -1: it does not */
    int32_t  process;    /* pid, for sentences */
    uint64_t host;       /* equal for ranks that can share memory */
    uint64_t cores;      /* equal for ranks that may run on the same cores */
    char     host_name[64];
    char     transport[16];
    char     backend[8];  /* kind of device: "cpu", "cuda" */
    char     channel[80]; /* address that takes and gives descriptors */
    /* Of the device and NCCL; nccl_choice.c. */
    int32_t  device;                         /* as asked for; -1: by local rank */
    int32_t  device_count;                   /* that this process can use */
    uint64_t device_ids[RENDEZVOUS_DEVICES]; /* equal for one device that two processes see */
    int32_t  nccl_version;                   /* 0: cannot be loaded, because */
    int32_t  nccl_shares;                    /* it was told to hold several ranks on one device */
    char     nccl_why[120];
} rendezvous_card;

/* What rank 0 says to who connects, and what a rank says then. */
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
    const char            *address;  /* or several, separated by spaces: tried in turn */
    int                    listener; /* rank 0: listens there already, or -1; taken */
    const job_key         *key;
    int64_t                limit_ns; /* longest wait for the others to come */
    sherd_world           *world;    /* its failure ends the waits; may be NULL */
} rendezvous_params;

typedef struct rendezvous {
    int              rank;
    int              world_size;
    rendezvous_card *cards; /* [world_size] by rank */
    int             *fds; /* rank 0: [world_size] by rank, -1 for itself; others: [1], to rank 0 */
    uint64_t         session;      /* random, the same on all: who belongs to this world */
    int              desk;         /* rank 0: still listens; -1 elsewhere and after */
    char             address[256]; /* where it does, as this rank knows it */
} rendezvous;

/** Equal for processes that can share memory. */
uint64_t sherdi_rendezvous_host(void);
/** This process's card: host, cores and channel name filled; the backend is the CPU until changed. */
void sherdi_rendezvous_card_fill(rendezvous_card *card, int rank, int world_size,
                                 const sherd_world_params *params, const char *transport);

/** Meets the others. Blocks until all are there; a rank that found rank 0 waits as long as rank 0 does, and gets
 *  its verdict. Errors: E_INVAL (ranks contradict each other, or have different keys), E_PEER_LOST (ranks that never
 *  came or died, by number). Fini takes it half-built. */
sherd_status sherdi_rendezvous_meet(rendezvous *meeting, sherdi_mem *mem,
                                    const rendezvous_params *params);
/** Whether no rank below this one is on its host. */
int sherdi_rendezvous_is_first(const rendezvous *meeting, int rank);
/** Fills in the proof of a call whose card and nonce are there. */
void sherdi_rendezvous_sign(rendezvous_call *call, const rendezvous_greeting *greeting,
                            const job_key *key);
/** A second connection of every rank with rank 0, for control data: *lines_out as `fds`, the caller's to close
 *  and to free. All ranks call it, or sherdi_rendezvous_close_desk, after they have met. `world`: its failure
 *  ends the wait. */
sherd_status sherdi_rendezvous_lines(rendezvous *meeting, sherd_world *world, int **lines_out);
/** Nobody will connect any more. */
void sherdi_rendezvous_close_desk(rendezvous *meeting);
/** Closes what the monitor did not take. */
void sherdi_rendezvous_fini(rendezvous *meeting);

#endif
