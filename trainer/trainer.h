/* The training of one rank: engine, first values, loop, summary, export, sample. train.c calls
 * trainer_run on every rank of this process. The steps of a micro-batch are in passes.h,
 * checkpoints in saves.h, output in report.h. */
#ifndef LLM_TRAINER_H
#define LLM_TRAINER_H

#include "data.h"
#include "options.h"
#include "sherd.h"

#include <pthread.h>
#include <signal.h>

/* Shared by the ranks of this process. */
typedef struct trainer_job {
    const options               *o;
    const corpus                *c;
    sherd_config                *config;      /* rank 0 alone changes it, when all have engines */
    const volatile sig_atomic_t *is_stopping; /* a signal sets it: finish the step, then sum up */
    void (*on_loop)(void);                    /* called by every rank when its steps begin */
    int                          is_elastic;  /* --elastic: the number of ranks may change */
    const volatile sig_atomic_t *wanted;      /* of threads, as signals change it; NULL: it stays */
    struct ranks                *ranks;       /* the threads that are ranks; NULL: processes are */
    const sherd_world_params    *params;      /* of their worlds */
    struct resize               *resize;      /* under way: resize.c; rank 0's */

    pthread_mutex_t lock;
    /* The failure that is printed: the first one that is not only the report of another rank's
     * failure. Under `lock`. */
    sherd_status status;
    char         why[1024]; /* its sentence; under `lock` */
} trainer_job;

/** Trains on this rank. It is a ranks_fn (ranks.h), and ctx is a trainer_job. Collective; blocks
 *  until the training is over. A rank that fails puts its failure into the job and aborts the
 *  world. Of an elastic job whose ranks are processes, it destroys the world. */
void trainer_run(sherd_world *world, void *ctx);
/** Trains in a process that joins the ranks of an elastic job later (sherd_launched_late). It makes
 *  and destroys its worlds. A failure is put into the job. */
void trainer_join(trainer_job *job, const sherd_world_params *params);

#endif
