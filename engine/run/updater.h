/* The updater: a thread of the engine's own that carries out an update beside the trainer's calls
 * (program_beside.c): the walk, the writes and the commit. It has its own program and progress. The
 * trainer's thread and the updater share the order and the drive under a lock, and wait for each
 * other by a board of numbers (collectives/board.h), one for each unit. */
#ifndef SHERDI_ENGINE_RUN_UPDATER_H
#define SHERDI_ENGINE_RUN_UPDATER_H

#include "collectives/board.h"
#include "engine/program/program.h"
#include "engine/run/store.h"

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

typedef struct sherdi_updater {
    int                  is_open;   /* there is an updater */
    int                  is_acting; /* a dry engine, which has none, carries out its operations */
    pthread_t            thread;
    pthread_mutex_t      lock; /* of the next fields */
    pthread_cond_t       changed;
    sherdi_updater_state state;
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
    int      is_queued;       /* an update was queued, and its outcome was not taken */
    int      was_asked;       /* to read ahead; nobody has waited for it */
    int      is_heard;        /* the trainer was told of a failure */
    uint64_t published_bytes; /* of this update, sent so far */
    /* A failure of the update, on this rank or another, as far as this thread knows of it; with the
     * way out */
    sherdi_outcome seen;
    /* of the last update that was joined */
    int                  has_moved; /* and no report has it */
    sherdi_updater_times times;
    sherdi_io_traffic    moved;
    sherdi_link          moved_link;
} sherdi_updater;

/** Makes the updater where updates can be queued. Collective. E_NOMEM. */
sherd_status sherdi_updater_open(sherd_engine *engine);
/** Makes its program alone, for a dry engine. E_NOMEM. */
sherd_status sherdi_updater_open_program(sherd_engine *engine);
/** Returns whether updates can be queued beside the trainer's calls. */
static inline int sherdi_updater_is_there(const sherdi_updater *updater)
{
    return updater->program.plan != NULL;
}
/** Waits for the update, and ends the thread. The engine is lost where the update has failed, so
 *  that its files stay; a failure that nobody was told is logged. Accepts an engine that has
 *  none. */
void sherdi_updater_close(sherd_engine *engine);
/** Returns whether the calling thread is the updater. */
int sherdi_updater_is_here(const sherd_engine *engine);
/** Says that the update makes progress, where the calling thread is the updater. */
void sherdi_updater_beat(sherd_engine *engine);
/** Returns the program of the calling thread. */
const sherdi_program *sherdi_updater_program(const sherd_engine *engine);

/** Returns the account (sherdi_io_account) of a transfer. */
int sherdi_updater_account(const sherd_engine *engine, const sherdi_op *op);
/** Takes what the trainer's calls have moved since the last call, and what was read ahead for an
 *  update that was not queued. */
sherdi_io_traffic sherdi_updater_traffic_take(sherd_engine *engine);
/** Returns all that was moved; of an update under way it has nothing. Waits for the rest to be
 *  over. */
sherdi_io_traffic sherdi_updater_traffic(sherd_engine *engine);
/** Queues the update: sherdi_run_commit_note has noted what its commit records. Local. */
void sherdi_updater_begin(sherd_engine *engine);
/** Waits for the update that was queued, if there is one, and takes its outcome: all rings are the
 *  trainer's again, and parameters are published. Local. Returns a failure of the update, again
 *  until sherdi_updater_forget. */
sherd_status sherdi_updater_join(sherd_engine *engine);
/** Returns a failure of the last update that this rank knows of, its own or another's, until
 *  sherdi_updater_forget. Local. */
sherd_status sherdi_updater_check(sherd_engine *engine);
/** Adds to the report of a boundary what its update, which was joined, has moved, and how long it
 *  took; once. */
void sherdi_updater_report(sherd_engine *engine, sherd_step_report *report);
/** Forgets the failure of an update: the state was loaded, or taken back. */
void sherdi_updater_forget(sherd_engine *engine);
/** Reads the state ahead for the next update, now or behind the commit that is under way. */
sherd_status sherdi_updater_read_ahead(sherd_engine *engine);

/** Waits until the updater has begun to read ahead, if it was asked to. */
void sherdi_updater_settle_ahead(sherd_engine *engine);
/** Makes the rings the trainer's again that the updater does not need any more. */
void sherdi_updater_take(sherd_engine *engine, sherdi_post post);
/** Carry out SHERDI_OP_POST and SHERDI_OP_AWAIT. */
sherd_status sherdi_updater_post(sherd_engine *engine, const sherdi_op *op);
sherd_status sherdi_updater_await(sherd_engine *engine, const sherdi_op *op);
/** sherdi_program.is_posted of the trainer's program. */
int sherdi_updater_is_posted(void *ctx, int unit);

#endif
