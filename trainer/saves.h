/* Checkpoints of a run: when one is saved, what a run resumes from, and the messages about both.
 * trainer.c calls it. All calls are collective unless their comment says "local".
 * docs/checkpoints.md is the user's page. */
#ifndef LLM_SAVES_H
#define LLM_SAVES_H

#include "options.h"
#include "report.h"
#include "sherd.h"

#define SAVES_TAG_BYTES 256

#define SAVES_ADVICE_BYTES 512
/** Returns what a user can do whose run cannot go on: the newest checkpoint and its age. `out` is
 *  room for it. */
const char *saves_advice(const options *o, char out[SAVES_ADVICE_BYTES]);

/* How far a run is, whatever its layout. */
typedef struct saves_position {
    long     step;      /* steps of the optimizer, skipped ones included */
    uint64_t sequences; /* on which all ranks together have trained */
} saves_position;

typedef struct saves {
    const options *o;
    sherd_world   *world;
    sherd_engine  *engine; /* sealed */
    report        *r;      /* rank 0; NULL elsewhere */
    const char    *run;    /* what identifies this run: seed, data, batch; without quotes */

    int  is_running;           /* an asynchronous save is under way */
    long step;                 /* of the last save */
    char tag[SAVES_TAG_BYTES]; /* of the last save */
    int  is_complete;          /* the last save is complete */

    /* Of the complete saves: their number, the bytes of the last one over all ranks, and the sums
     * of all. */
    long     count;
    uint64_t bytes, kept_bytes;
    double   written_bytes, all_s, blocked_s;

    char why[1024]; /* a failure that is not the engine's; else "" */
} saves;

/** Makes the folder of --save and checks that it can be written to, so that a mistake shows before
 *  the first step and not at the first save. Local: rank 0 alone does something. Returns E_IO if it
 *  cannot. */
SHERD_MUST_USE sherd_status saves_open(saves *s);

/** Resumes from the checkpoint that --resume-from names; with --resume, from the latest checkpoint
 *  in the folder of --save or from state on NVMe, whichever is further; else it loads nothing. On
 *  entry `position` has the engine's counters; it becomes the position of the resumed run.
 *  `is_loaded_out`: a checkpoint was loaded, so the parameters have their values. Prints messages
 *  for the user. Errors: as sherd_checkpoint_load. */
SHERD_MUST_USE sherd_status saves_resume(saves *s, saves_position *position, int *is_loaded_out);

/** Call it just before each sherd_step that ends a window, with the position after that step: every
 *  checkpoint and every commit on NVMe carries it. Does nothing before saves_open, as in a trial.
 *  Local. */
SHERD_MUST_USE sherd_status saves_mark(saves *s, const saves_position *position);

/** Reads a position that came with the state: that of saves_mark, or of a checkpoint. It is of some
 *  window of the run, perhaps of one that was dropped. Unchanged, if there is none. Local. */
SHERD_MUST_USE sherd_status saves_mark_read(saves *s, saves_position *position);

/** Returns whether saves_step has something to do after this step: it saves then, or a save is
 *  under way. The same on all ranks. */
int saves_is_due(const saves *s, long step);

/** Call it after each step for which saves_is_due, and after the last one: saves if it is time for
 *  a save, or if this step is the last. A save that fails is reported to the user; the training
 *  continues. Errors: only those that end the training. */
SHERD_MUST_USE sherd_status saves_step(saves *s, const saves_position *position, int is_last);

/** Waits for the save that is under way, if there is one. Errors: as saves_step. */
SHERD_MUST_USE sherd_status saves_settle(saves *s);
/** Forgets the save that is under way: a rank was lost with its part of it. Local. */
void saves_drop(saves *s);
/** Returns whether the last save is complete and is of `step`. Local. */
int saves_has(const saves *s, long step);
/** Returns whether the sentence of a failure says only that another rank failed. Local. */
int saves_is_hearsay(const char *why);
/** Prints the line of the summary about checkpoints. Local; only rank 0 calls it. */
void saves_say(const saves *s);

#endif
