/* Shared by the files of the transport nccl: the communicator of a world, and how calls are made on
 * it and watched (nccl_comm.c). */
#ifndef SHERDI_COLLECTIVES_NCCL_IMPL_H
#define SHERDI_COLLECTIVES_NCCL_IMPL_H

#include "collectives/device.h"
#include "collectives/listeners.h"
#include "collectives/nccl.h"
#include "collectives/nccl_library.h"
#include "collectives/star.h"

/* Options from the environment (nccl_options.c); they are the same on all ranks. */
typedef struct sherdi_nccl_options {
    int has_all_to_all, has_windows, is_unregistered;
    int policy;    /* 0: default, 1: efficiency, 2: zero */
    int most_ctas; /* 0: NCCL decides */
} sherdi_nccl_options;

/** Reads the options from the environment. Errors: E_INVAL, or E_NOTSUP where the library lacks an
 *  option. */
sherd_status sherdi_nccl_options_read(sherdi_nccl_options *out);
void         sherdi_nccl_options_apply(const sherdi_nccl_options *options, ncclConfig_t *config);
void         sherdi_nccl_options_log(const sherdi_nccl_options *options, int rank);

/* The lock of the communicator, which guards it and all calls on it. The program may destroy its own
 * communicator as soon as a failure is returned. So a world that fails waits for the lock, for a
 * second at most: only the program may be able to end a call that is stuck in it. The holder fails no
 * world and asks for no status. */
typedef struct sherdi_nccl_users {
    world_listener  common; /* first; the world frees the object */
    pthread_mutex_t lock;
} sherdi_nccl_users;

struct sherdi_nccl {
    sherdi_procs       *procs;
    sherdi_nccl_users  *users;
    pthread_cond_t      has_news;
    ncclComm_t          comm;           /* NULL: not created yet, or aborted */
    void               *window;         /* NCCL writes a window here once it has registered it */
    int                 is_foreign;     /* comm is the trainer's, and outlives this world */
    int                 is_abort_asked; /* its owner was asked to end it */
    int                 is_stopping;
    int                 is_watched;
    pthread_t           watch;
    sherdi_star         star;
    sherdi_nccl_options options;
    /* The call of ticket t is at [(t - 1) % WORLD_EVENTS]; for the message about a call that
     * hangs. */
    struct {
        world_call_kind kind;
        char            what[48];
    } calls[WORLD_EVENTS];
};

static inline struct sherdi_nccl *sherdi_nccl_of(sherd_world *world)
{
    return ((sherdi_procs *)world)->moving;
}

/** Takes the lock of the communicator. Returns 0, without the lock, where there is no communicator
 *  that may be used: it has ended, or the world has failed. */
int  sherdi_nccl_enter(struct sherdi_nccl *nccl);
void sherdi_nccl_leave(struct sherdi_nccl *nccl);

/** Returns NCCL's text for a result; valid until NCCL's next call. */
const char *sherdi_nccl_result_text(struct sherdi_nccl *nccl, ncclResult_t result);
/** Waits until NCCL reports the final result of a call that returned `result`. An error fails the
 *  world. Call it under the lock. */
sherd_status sherdi_nccl_settle(struct sherdi_nccl *nccl, ncclResult_t result, const char *what);

/** Takes the lock and, on success, keeps it: the caller may then make one call on the lane, which
 *  gets the next ticket. */
sherd_status sherdi_nccl_call_begin(sherd_world *world, world_call_kind kind, const char *what);
/** Ends a call of NCCL, with the result that NCCL returned. */
sherd_status sherdi_nccl_call_end(sherd_world *world, ncclResult_t result, world_call_kind kind);

/** Undoes the registration of device memory. Does nothing for NULL. */
void sherdi_nccl_deregister(sherd_world *world, void *handle);

#endif
