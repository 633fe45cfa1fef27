/* The updater: a thread of the engine that executes a queued update while the trainer continues
 * (program_queued.c): the walk, the writes and the commit. It has its own program and progress. The
 * trainer's thread and the updater share the order and the drive under a lock, and wait for each
 * other by a board of numbers (collectives/board.h), one for each unit. */
#ifndef SHERDI_ENGINE_RUN_UPDATER_H
#define SHERDI_ENGINE_RUN_UPDATER_H

#include "collectives/board.h"
#include "engine/run/engine_impl.h"
#include "offload/io.h"

#include <pthread.h>

typedef enum sherdi_updater_state {
    SHERDI_UPDATER_IDLE = 0,
    SHERDI_UPDATER_WORKING,
    SHERDI_UPDATER_OVER, /* the updater has ended; the trainer's thread has not taken its outcome */
} sherdi_updater_state;

/* How long an update took; ns. */
typedef struct sherdi_updater_times {
    int64_t all_ns;            /* from beginning to commit */
    int64_t read_ns, write_ns; /* of it the waits of the updater */
    double  waited_s;          /* by the trainer's thread */
    double  update_s, copy_s;  /* of it its kernels and its copies */
} sherdi_updater_times;

struct sherdi_updater_own {
    int                  is_open;   /* there is a thread */
    int                  is_acting; /* a dry engine, which has none, carries out its operations */
    pthread_t            thread;
    pthread_mutex_t      lock; /* of the next fields */
    pthread_cond_t       changed;
    sherdi_updater_state state;
    int                  has_begun; /* from now on the thread waits for work */
    int                  shall_end;
    int                  wants_ahead; /* the state shall be read ahead when the commit is over */
    /* of the updater while it works, else of the trainer's thread */
    sherdi_board   *board;
    uint64_t        number; /* of the update */
    sherdi_progress progress;
    sherdi_program  program;
    sherdi_outcome  outcome;
    int64_t         begun_ns, walked_ns, ended_ns;
    /* of the trainer's thread */
    int was_asked; /* to read ahead; nobody has waited for it */
    int is_heard;  /* a failure was reported to the trainer */
    /* A failure of the update, on this rank or another, as far as this thread knows of it; with the
     * way out */
    sherdi_outcome seen;
    /* of the last update that was joined */
    int                  has_moved; /* and no report has it */
    sherdi_updater_times times;
    sherdi_io_traffic    moved;
    sherdi_link          moved_link;
};
typedef struct sherdi_updater_own sherdi_updater_own;

extern const sherdi_updater_ops sherdi_updater_thread;
/** Makes the updater's program alone, for a dry engine, and ends it. E_NOMEM. */
sherd_status sherdi_updater_open_program(sherd_engine *engine);
void         sherdi_updater_close_program(sherd_engine *engine);
/** Returns the account (sherdi_io_account) of a transfer. */
int sherdi_updater_account(const sherd_engine *engine, const sherdi_op *op);
/** What the trainer's calls have moved since the last call, and sherdi_storage_ops.traffic. */
sherdi_file_traffic sherdi_updater_traffic_take(sherd_engine *engine);
sherdi_file_traffic sherdi_updater_traffic(sherd_engine *engine);
/** Makes the rings the trainer's again that the updater does not need any more. */
void sherdi_updater_take(sherd_engine *engine, sherdi_post post);

#endif
