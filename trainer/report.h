/* The output of rank 0: a line of progress on standard output, and a log with one JSON object per
 * step. trainer.c and saves.c call it; only rank 0 has a report. */
#ifndef LLM_REPORT_H
#define LLM_REPORT_H

#include "sherd.h"

#include <stddef.h>
#include <stdint.h>

typedef struct report report;

/* The media over which ranks move bytes; the bytes of a step are counted and planned for each. */
typedef enum report_medium {
    REPORT_WIRE = 0, /* sent to other ranks */
    REPORT_DOWN,     /* link, device to host */
    REPORT_UP,       /* link, host to device */
    REPORT_READ,     /* NVMe */
    REPORT_WRITTEN,
    REPORT_BETWEEN, /* of what is sent to other ranks, to other hosts */
    REPORT_MEDIA
} report_medium;

typedef struct report_figures {
    /* Bytes of a step, summed over the ranks: as the engines counted them, and as they had planned
     * them */
    uint64_t          counted[REPORT_MEDIA], planned[REPORT_MEDIA];
    int               ranks_off_plan;              /* ranks whose counts differ from their plan */
    size_t            memory_planned, memory_held; /* of the engine of rank 0 */
    sherd_step_report engine;                      /* of the engine of rank 0 */
} report_figures;

/* One optimizer step. NaN: not known; it is null in the log. */
typedef struct report_step {
    long           step;            /* optimizer steps so far, this one included */
    double         loss;            /* mean over the global batch */
    double         validation_loss; /* NaN unless it was measured after this step */
    uint64_t       tokens;          /* trained on so far, over all ranks */
    double         seconds;         /* duration of this step */
    report_figures figures;
} report_step;

/* A checkpoint that was saved or loaded, by all ranks. */
typedef struct report_checkpoint {
    const char *what; /* "checkpoint" or "resumed" */
    const char *tag;
    long        step;
    uint64_t    bytes, kept_bytes; /* written or read; linked from an earlier checkpoint */
    double      blocked_s, all_s;  /* while training stood still; until it was complete */
    const char *failed;            /* name of the status; NULL: it is complete */
} report_checkpoint;

typedef struct report_params {
    const char *log_path;     /* NULL: none */
    long        steps;        /* planned */
    long        print_every;  /* steps; 0: by time, depending on the output */
    size_t      memory_bytes; /* per rank, engine and activations */
    int         is_quiet;
    int         is_appended; /* append to an existing log */
    int         is_taken;    /* ... of a process that has died in the middle of this run */
    double      peak_rate;   /* tokens/s of all ranks at the peak of their GPUs; 0: not known */
} report_params;

/** Returns NULL, with a message on standard error, if there is no memory or the log cannot be
 *  written. */
report *report_open(const report_params *params);
/** Sets the number of tokens of the run before this program began. */
void report_start_at(report *r, uint64_t tokens);
/** Writes the line of the log, unless the log has one of this step, and the progress line when it is
 *  due. Returns -1 if the log cannot be written. */
int report_write(report *r, const report_step *step);
/** Returns the last step of the log, written here or, after is_taken, before; 0: none. */
long report_last_step(const report *r);
/** Ends the progress line and closes the log; returns -1 if that fails. Accepts NULL. */
int report_close(report *r);
/** Prints a line above the progress line; printf-like. Prints nothing when quiet. */
void report_say(report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Prints a line on standard error, quiet or not; printf-like. Accepts NULL, because ranks other
 *  than 0 may have a message. */
void report_warn(report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Shows how far a long operation is, when a progress line is due. Prints nothing when quiet. */
void report_progress(report *r, const char *what, uint64_t done_bytes, uint64_t all_bytes);
/** Names the checkpoint that is being saved asynchronously, for the progress line; NULL: none.
 *  `tag` is borrowed. */
void report_saving(report *r, const char *tag);
/** Writes a line of the log; returns -1 if that fails. */
int report_checkpoint_write(report *r, const report_checkpoint *checkpoint);

/** Writes a line of the log about a move to another number of ranks; returns -1 if that fails. */
int report_resize_write(report *r, long step, const sherd_move_report *move);

/* Ranks that were lost while the others went on. */
typedef struct report_loss {
    int               before, after; /* ranks */
    const char       *lost;          /* those that are lost: "1, 3" */
    long              step;          /* the last one that the state has */
    sherd_move_report move;
    double            all_s; /* from the end of the call that noticed it to the next step */
} report_loss;

/** Writes a line of the log about it; returns -1 if that fails. */
int report_loss_write(report *r, const report_loss *loss);

/** Write "12.3 MiB" and "1:05:09" to `out` and return it. */
const char *report_bytes(size_t bytes, char out[32]);
const char *report_duration(double seconds, char out[32]);

#endif
