/* Shared by benchmarks of state on a drive: how its buffers and requests are set, and its transfers
 * alone. */
#ifndef BENCH_DRIVE_H
#define BENCH_DRIVE_H

#include "engine/run/engine_impl.h"

#include <stddef.h>

/* 0: as the engine chooses */
typedef struct bench_drive {
    const char *folder;
    const char *engine; /* "auto", "io_uring" or "threads" */
    size_t      buffer_elems, request_bytes;
    int         buffers, depth;
    int         is_durable; /* commits reach the medium */
} bench_drive;

/** Sets the keys of a configuration whose state rests on the drive, all but nvme_path, without
 *  which none is parsed. */
SHERD_MUST_USE sherd_status bench_drive_set(const bench_drive *drive, sherd_config *config);

/** Reads and writes every extent through the buffers, as an update does, commits, and computes
 *  nothing: between two steps. */
SHERD_MUST_USE sherd_status bench_drive_run(sherd_engine *engine, double *seconds_out);

/** Moves the activations of a micro-batch out and back, and computes nothing: between two steps. */
SHERD_MUST_USE sherd_status bench_activations_run(sherd_engine *engine, double *seconds_out);

#endif
