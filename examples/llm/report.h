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

typedef struct report_params {
    const char *log_path;     /* NULL: none */
    long        steps;        /* planned */
    long        print_every;  /* 0: chosen by the output */
    size_t      memory_bytes; /* per rank, engine and activations */
    int         is_quiet;
    int         is_appended;  /* the log goes on after what it holds */
    uint64_t    first_tokens; /* seen before this program began */
    double      peak_rate;    /* tokens/s of all ranks at the peak of their GPUs; 0: not known */
} report_params;

/** NULL with a message on standard error: no memory, or the log cannot be written. */
report *report_open(const report_params *params);
/** Writes the log line, and progress when it is time. Returns -1 when the log cannot be written. */
int report_write(report *r, const report_step *step);
/** Ends the progress line and closes the log; -1 when that fails. Accepts NULL. */
int report_close(report *r);
/** A line above the progress line; printf-like. Nothing when quiet. */
void report_say(report *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** "12.3 MiB" and "1:05:09", written to `out` and returned. */
const char *report_bytes(size_t bytes, char out[32]);
const char *report_duration(double seconds, char out[32]);

#endif
