/* The training of one rank, from an empty world to the summary. */
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
    const volatile sig_atomic_t *is_stopping; /* set by Ctrl-C: finish the step and sum up */
    void (*on_loop)(void);                    /* called by every rank when its steps begin */

    pthread_mutex_t lock;
    sherd_status    status; /* the first failure that is not another rank's; under `lock` */
    char            why[1024];
} trainer_job;

/** A ranks_fn; ctx is a trainer_job. A rank that fails aborts the world. */
void trainer_run(sherd_world *world, void *ctx);

#endif
