/* Checkpoints of a run: when one is saved, what a run goes on from, and what is told of both. docs/checkpoints.md is
 * the user's page. All calls are collective where nothing else is said. */
#ifndef LLM_SAVES_H
#define LLM_SAVES_H

#include "options.h"
#include "report.h"
#include "sherd.h"

#define SAVES_TAG_BYTES 256

/* How far a run is, whatever its layout. */
typedef struct saves_position {
    long     step;      /* of the optimizer, skipped ones counted */
    uint64_t sequences; /* that all ranks together have trained on */
} saves_position;

typedef struct saves {
    const options *o;
    sherd_world   *world;
    sherd_engine  *engine; /* sealed */
    report        *r;      /* rank 0; NULL elsewhere */
    const char    *run;    /* what makes this run this run: seed, data, batch; without quotes */

    int  is_running; /* an asynchronous save that has not ended */
    long step;       /* of the last save */
    char tag[SAVES_TAG_BYTES];
    int  is_complete; /* ... it is one */

    /* of all that were complete */
    long     count;
    uint64_t bytes, kept_bytes; /* of the last one, all ranks */
    double   written_bytes, all_s, blocked_s;

    char why[1024]; /* a failure that is not the engine's; else "" */
} saves;

/** Makes the folder of --save, and finds out whether it can be written to: nobody wants to know that after the first
 *  thousand steps. E_IO. */
SHERD_MUST_USE sherd_status saves_open(saves *s);

/** Goes on from what --resume-from names; with --resume from the latest checkpoint in the folder of --save or from
 *  state on NVMe, whichever is further; else leaves `position`, which is what the counters
 *  of the engine say. What is done is told.
 *  `is_loaded_out`: the parameters have their values. Errors: as sherd_checkpoint_load. */
SHERD_MUST_USE sherd_status saves_resume(saves *s, saves_position *position, int *is_loaded_out);

/** Before each step: where the run will be behind it, which rides with every checkpoint and every commit on NVMe. Local. */
SHERD_MUST_USE sherd_status saves_mark(saves *s, const saves_position *position);

/** After each step: saves where it is time, or where the run ends here. A save that fails is told, and is no failure of
 *  the training. Errors: those that end the training. */
SHERD_MUST_USE sherd_status saves_step(saves *s, const saves_position *position, int is_last);

/** Whether the run ended with a complete checkpoint of `step`. Local. */
int saves_has(const saves *s, long step);
/** Whether the sentence of a failure says no more than that another rank failed. Local. */
int saves_is_hearsay(const char *why);
/** A line of the summary; rank 0. */
void saves_say(const saves *s);

#endif
