/* What the files of the transport nccl share: the communicator of a world, and how its calls are made and watched
 * (nccl_comm.c). */
#ifndef SHERDI_COLLECTIVES_NCCL_IMPL_H
#define SHERDI_COLLECTIVES_NCCL_IMPL_H

#include "collectives/nccl.h"
#include "collectives/nccl_library.h"
#include "collectives/star.h"

/* nccl_options.c; the same on all ranks. */
typedef struct sherdi_nccl_options {
    int has_all_to_all, has_windows, is_unregistered;
    int policy;    /* 0: default, 1: efficiency, 2: zero */
    int most_ctas; /* 0: as many as NCCL likes */
} sherdi_nccl_options;

/** What the environment asks for. E_INVAL, or E_NOTSUP where the library lacks it. */
sherd_status sherdi_nccl_options_read(sherdi_nccl_options *out);
void         sherdi_nccl_options_apply(const sherdi_nccl_options *options, ncclConfig_t *config);
void         sherdi_nccl_options_log(const sherdi_nccl_options *options, int rank);

struct sherdi_nccl {
    sherdi_procs       *procs;
    pthread_mutex_t     lock; /* guards comm and every call with it; has_news */
    pthread_cond_t      has_news;
    ncclComm_t          comm;   /* NULL: not yet, or aborted */
    void               *window; /* what NCCL writes when it has registered one, whenever that is */
    int                 is_foreign;     /* the trainer's: it goes on without us */
    int                 is_abort_asked; /* and its owner was told to end it */
    int                 is_stopping;
    int                 is_watched;
    pthread_t           watch;
    sherdi_star         star;
    sherdi_nccl_options options;
    /* of ticket t at [(t - 1) % WORLD_EVENTS]: for the sentence about one that hangs */
    struct {
        world_call_kind kind;
        char            what[48];
    } calls[WORLD_EVENTS];
};

static inline struct sherdi_nccl *sherdi_nccl_of(sherd_world *world)
{
    return ((sherdi_procs *)world)->nccl;
}

/** What NCCL says of a result; valid until its next call. */
const char *sherdi_nccl_result_text(struct sherdi_nccl *nccl, ncclResult_t result);
/** Under the lock: `result` of a call, once NCCL has made up its mind. An error is the world's. */
sherd_status sherdi_nccl_settle(struct sherdi_nccl *nccl, ncclResult_t result, const char *what);

/** Takes the lock, and leaves it taken on success: a call on the lane, the next ticket, may be made. */
sherd_status sherdi_nccl_call_begin(sherd_world *world, world_call_kind kind, const char *what);
/** Ends that with what NCCL returned. */
sherd_status sherdi_nccl_call_end(sherd_world *world, ncclResult_t result, world_call_kind kind);

/** Takes back the registration of device memory; nothing for NULL. */
void sherdi_nccl_deregister(sherd_world *world, void *handle);

#endif
