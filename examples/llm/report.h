/* What rank 0 tells: a line of progress, a log with one JSON object a step. */
#ifndef LLM_REPORT_H
#define LLM_REPORT_H

#include "sherd.h"

#include <stddef.h>
#include <stdint.h>

typedef struct report report;

/* Bytes that all ranks moved in a step, as the engines counted and as they had planned. */
typedef enum report_medium {
    REPORT_WIRE = 0, /* sent to other ranks */
    REPORT_DOWN,     /* link, device to host */
    REPORT_UP,       /* link, host to device */
    REPORT_READ,     /* NVMe */
    REPORT_WRITTEN,
    REPORT_MEDIA
} report_medium;

typedef struct report_figures {
    uint64_t          counted[REPORT_MEDIA], planned[REPORT_MEDIA];
    int               ranks_off_plan;              /* whose counts are not their plan's */
    size_t            memory_planned, memory_held; /* of the engine of rank 0 */
    sherd_step_report engine;                      /* what it said of the step, on rank 0 */
} report_figures;

/* One optimizer step. NaN: not known, null in the log. */
typedef struct report_step {
    long           step;            /* optimizer steps so far, this one included */
    double         loss;            /* mean over the global batch */
    double         validation_loss; /* NaN unless it was measured after this step */
    uint64_t       tokens;          /* trained on so far, over all ranks */
    double         seconds;         /* that this step took */
    report_figures figures;
} report_step;

/* A checkpoint that was saved or loaded, by all ranks. */
typedef struct report_checkpoint {
    const char *what; /* "checkpoint" or "resumed" */
    const char *tag;
    long        step;
    uint64_t    bytes, kept_bytes; /* written or read; of an earlier checkpoint, kept by links */
    double      blocked_s, all_s;  /* that training stood still; until it was complete */
    const char *failed;            /* the status' name; NULL: it is complete */
} report_checkpoint;

typedef struct report_params {
    const char *log_path;     /* NULL: none */
    long        steps;        /* planned */
    long        print_every;  /* 0: chosen by the output */
    size_t      memory_bytes; /* per rank, engine and activations */
    int         is_quiet;
    int         is_appended; /* the log goes on after what it holds */
    double      peak_rate;   /* tokens/s of all ranks at the peak of their GPUs; 0: not known */
} report_params;

/** NULL with a message on standard error: no memory, or the log cannot be written. */
report *report_open(const report_params *params);
/** Tokens that were seen before this program began. */
void report_start_at(report *r, uint64_t tokens);
/** Writes the log line, and progress when it is time. Returns -1 when the log cannot be written. */
int report_write(report *r, const report_step *step);
/** Ends the progress line and closes the log; -1 when that fails. Accepts NULL. */
int report_close(report *r);
/** A line above the progress line; printf-like. Nothing when quiet. */
void report_say(report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** A line on standard error, quiet or not; printf-like. Accepts NULL: other ranks than 0 may have to tell too. */
void report_warn(report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** How far something is that takes a while, when it is time. Nothing when quiet. */
void report_progress(report *r, const char *what, uint64_t done_bytes, uint64_t all_bytes);
/** What is saved beside the training from now on, for the line of progress; NULL: nothing. Borrowed. */
void report_saving(report *r, const char *tag);
/** A line of the log; -1 when it cannot be written. */
int report_checkpoint_write(report *r, const report_checkpoint *told);

/** "12.3 MiB" and "1:05:09", written to `out` and returned. */
const char *report_bytes(size_t bytes, char out[32]);
const char *report_duration(double seconds, char out[32]);

#endif
