/* What the files of one rank's training share. */
#ifndef LLM_TRAINER_IMPL_H
#define LLM_TRAINER_IMPL_H

#include "trainer.h"

#include "passes.h"
#include "pool.h"
#include "report.h"
#include "saves.h"
#include "speed.h"

#define VALIDATION_BATCHES 16 /* over all ranks */

/* The values that the ranks sum after a step. */
typedef struct step_sums {
    double losses, stopping, off_plan;
    double ranks; /* that are wanted, as rank 0 says; 0: as many as there are */
    double counted[REPORT_MEDIA], planned[REPORT_MEDIA];
} step_sums;

/* A step whose last micro-batch and update are queued. On a GPU, and if the host's update overlaps
 * with the passes, a step is reported after the passes of the next step's first micro-batch, so
 * that nothing waits between two steps. */
typedef struct queued_step {
    int                  is_untold;
    int                  is_recovered; /* a rank was lost in its update; see trainer_recover */
    long                 step;
    uint64_t             sequences;
    sherd_traffic_report before, after; /* the window; after sherd_step_wait it is complete */
    sherd_step_report    report;
    step_sums            sums; /* this rank's terms */
} queued_step;

/* For --elastic. */
typedef struct trainer_place {
    sherd_world *first_world; /* of a thread, whose caller destroys it; else NULL */
    int          wanted;      /* ranks; 0: as many as there are */
    int          has_left;    /* the others go on without this rank */
    int          is_new;      /* a process for which the others have just made a turn */
    /* Of processes: the loss of the last window, summed over the ranks before the update. If a rank
     * dies in the update, its part is not lost with it. */
    double         losses;
    long           told;    /* the last step that is reported and, where it was due, saved */
    int64_t        updates; /* of the run until that step */
    saves_position anchor;  /* some position of the run; others follow from it */
    int tried_size, tries;  /* to go on after a loss, with as many ranks; 0: it has succeeded */
} trainer_place;

typedef struct trainer {
    trainer_job      *job;
    options           o;             /* the job's; with --minutes, `steps` are those that fit */
    double            start_s;       /* when this rank began */
    double            until_first_s; /* from then to its first step */
    double            seal_s;        /* of that, making and touching the memory */
    double            trial_step_s;  /* duration of a step in the trial; 0: there was no trial */
    sherd_world      *world;
    trainer_place     place;
    int               rank, world_size;
    sherd_engine     *engine;
    sherd_engine_info info;
    pool             *threads;
    passes           *passes;
    /* 1: the host updates blocks, overlapping with the passes */
    int      is_host_updating;
    report  *r; /* rank 0; NULL elsewhere */
    saves    saved;
    char     run[256];   /* describes what must be the same when a run is resumed */
    int      is_resumed; /* resumed from a checkpoint or from state on NVMe */
    order    data;
    int32_t *tokens;       /* inputs and targets of a micro-batch */
    size_t   stage0_bytes; /* what a rank would hold at stage 0; on rank 0 only */

    long     step;
    uint64_t sequences; /* on which all ranks together have trained in this run */
    /* The same two when this program began; not 0 if it resumed. */
    long        first_step;
    uint64_t    first_sequences;
    double      first_loss, last_loss, first_validation, last_validation;
    queued_step queued;
    double      memory_asked_s; /* when; 0: not yet */
    /* traffic of this rank in a window that belongs to the step before it, or to its report */
    uint64_t       reported[REPORT_MEDIA];
    int            is_stopping; /* some rank was asked to stop */
    double         since_s;     /* time when the step that is reported next began */
    int            has_batch;   /* the next micro-batch's tokens are set */
    double         seconds;     /* of the steps */
    speed_times    times;
    uint64_t       fingerprint;
    report_figures figures; /* of the last step */
} trainer;

/* ---- trainer.c */

/** Declares units, parameters and activations. */
sherd_status trainer_declare(const trainer *t, sherd_engine *engine);
/** Starts the threads of a sealed engine, and makes the model with its memory. */
sherd_status trainer_model_open(trainer *t);
/** Trains to the last step, from an engine that has its values. */
sherd_status trainer_go_on(trainer *t);
/** Keeps the failure of a rank for the job, and ends the rank. */
void trainer_end(trainer *t, sherd_status status);
/** Notes the sentence of a failure of this program; printf-like. Returns `status`. */
sherd_status trainer_fail(sherd_status status, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/** Notes that tokens cannot be read. Returns E_IO. */
sherd_status trainer_data_fail(const trainer *t);
/** Notes what a checkpoint that fails has to say. Returns `status`. */
sherd_status trainer_saves_checked(const trainer *t, sherd_status status);
/** Returns the tokens of a rank's micro-batch. */
size_t trainer_micro_tokens(const trainer *t);
/** Returns the tokens per second at the peak of all ranks' GPUs; 0: not known. */
double trainer_peak_rate(const trainer *t);
/** Prints the memory of the ranks, on rank 0, if it was asked for. */
void trainer_memory_say(const trainer *t, const char *when);
/** Opens the report of a rank that becomes rank 0 in the middle of the run; its log goes on. */
sherd_status trainer_report_take(trainer *t);
/** Describes the run to the engine, before seal. */
sherd_status trainer_run_describe(trainer *t);
/** Begins the checkpoints of a sealed engine. */
void trainer_saves_init(trainer *t);
/** Returns whether the ranks are processes that may be lost, come and leave. */
int trainer_has_turns(const trainer *t);
/** Goes on in the world to which the engine has moved. */
sherd_status trainer_place_take(trainer *t, sherd_world *world);

/* ---- loop.c. Collective */

/** Trains for a window, up to its queued update. */
sherd_status trainer_window_run(trainer *t);
/** Waits for the last window, and gives the sum of its losses on this rank. */
sherd_status trainer_losses_take(trainer *t, double *sum_out);
/** Makes the steps that are left. */
sherd_status trainer_loop_run(trainer *t);
/** Returns whether the last checkpoint could not be saved. */
int trainer_is_unsaved(const trainer *t);

/* ---- ending.c */

/** Prints the summary, on rank 0. */
void trainer_summary_say(const trainer *t);
/** Exports the weights. Collective. E_IO. */
sherd_status trainer_weights_leave(trainer *t);
/** Samples, and prints it on rank 0. Collective. */
sherd_status trainer_sample_say(trainer *t);

/* ---- resize.c and turns.c */

/** Tells the user of a move, and the log. */
sherd_status trainer_resize_tell(trainer *t, const sherd_move_report *move);

/** Moves the training to as many ranks as are wanted: some of them leave, or newcomers start.
 *  Collective. t->has_left says that this rank is one of those that leave. */
sherd_status trainer_resize(trainer *t);
/** The same for processes, as the launcher wants it. */
sherd_status trainer_turn(trainer *t);
/** Goes on without the ranks that are lost, after a call has returned E_PEER_LOST. Collective over
 *  the others. A step that the state does not have is made again; one that it has and that is not
 *  reported becomes the queued one. */
sherd_status trainer_recover(trainer *t);

#endif
