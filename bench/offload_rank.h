/* One rank of the C trainer with its state in one place, in a process of its own: offload_trainer.c
 * asks it for turns of steps. The steps are the trainer's, of passes.h and as trainer.c queues
 * them. */
#ifndef BENCH_OFFLOAD_RANK_H
#define BENCH_OFFLOAD_RANK_H

#include "bench/drive.h"

#include "models/arch.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define OFFLOAD_EXIT_SKIP 77 /* status of a rank that has no device */

typedef struct offload_setup {
    arch        sizes;
    const char *backend;   /* "cpu" or "cuda" */
    const char *place;     /* of the optimizer state: "none", "cpu" or "nvme" */
    const char *precision; /* "fp32" or "bf16" */
    bench_drive drive;
    int         stage, threads;
    /* As the trainer's option: where activations wait; NULL: on the device. Some other place needs
     * the shape of the micro-batches, which is then the only one. */
    const char *activations;
    int         activation_buffers; /* 0: the engine's number */
    size_t      batch, length;
} offload_setup;

typedef enum offload_ask {
    /* the micro-batches that follow have `batch` sequences of `length` tokens; one step of either
     * kind warms up */
    OFFLOAD_SHAPE,
    OFFLOAD_QUEUED, /* steps whose updates overlap with the passes that follow */
    OFFLOAD_WAITED, /* steps that wait for their updates */
    /* transfers to and from the drive alone: a step's of the state, a micro-batch's of
     * activations */
    OFFLOAD_DRIVE,
    OFFLOAD_LINK, /* a step's transfers between host and device alone */
} offload_ask;

/* An answer; of a turn the means over its steps. */
typedef struct offload_turn {
    double   step_s, forward_s, backward_s; /* of a GPU the two are known of waited steps alone */
    double   first_wait_s;                  /* see passes_first_wait_s */
    double   wait_s; /* the trainer's thread stood still for the update: a part of step_s */
    double   update_s, norm_s; /* kernels */
    double   beside_s; /* the update, from its beginning to the end of its commit; queued steps */
    double   read_s, write_s; /* the update waited for the drive */
    double   alone_s;         /* OFFLOAD_DRIVE, OFFLOAD_LINK */
    uint64_t drive_bytes;     /* bytes that a step reads and writes */
    uint64_t hidden_bytes;    /* what of it was moved while backward ran */
    uint64_t param_elems;
} offload_turn;

typedef struct offload_rank {
    pid_t process;
    int   to, from;
} offload_rank;

/** Starts the process; its files are open when the first answer arrives. Call it before this
 *  process has threads or a device. */
void offload_rank_start(const offload_setup *setup, offload_rank *out);
/** Asks, without waiting for the answer. `count` is of steps, 0 where there are none; OFFLOAD_SHAPE
 *  takes both numbers. */
void offload_rank_ask(const offload_rank *rank, offload_ask what, size_t count, size_t length);
/** Waits for the answer. Ends this process, with the status of the rank's, if that has ended. */
offload_turn offload_rank_answer(const offload_rank *rank);
/** Ends the process and waits until it has removed its files. */
void offload_rank_stop(offload_rank *rank);

#endif
