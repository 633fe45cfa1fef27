/* Looking inside an engine: its plan, its memory, its traffic, and files of its numbers. Calls of
 * the modules "reports", "proof" and "monitors". sherd.h includes this header, and has the
 * conventions. */
#ifndef SHERD_H
#include "sherd.h"
#elif !defined(SHERD_REPORTS_H)
#define SHERD_REPORTS_H

typedef enum sherd_plan_format {
    SHERD_PLAN_TABLE = 0,
    SHERD_PLAN_JSON  = 1,
} sherd_plan_format;
/** Writes the plan of this rank. Before seal the plan is made from the declarations so far, and
 *  nothing else is allocated, so the call works on a simulated world of any size. */
SHERD_CALL sherd_engine_plan(sherd_engine *engine, sherd_plan_format format, sherd_write_fn write,
                             void *ctx);

/* Bytes of this rank, by purpose. `planned`: the bytes in the plan; `held`: the bytes that are
 * allocated now. */
typedef struct sherd_memory_report {
    size_t struct_size;
    size_t params_planned, params_held;       /* slices, or whole below stage 3; frozen included */
    size_t grads_planned, grads_held;         /* resident gradients and accumulators */
    size_t state_planned, state_held;         /* master weights and optimizer state */
    size_t gather_planned, gather_held;       /* gathered units */
    size_t transient_planned, transient_held; /* gradients of units in backward */
    size_t staging_planned, staging_held;     /* wire, bound memory, gradients in transfer */
    size_t total_planned, total_held;         /* device and host */
    /* offloaded, in host memory; parts of the total */
    size_t host_params_planned, host_params_held;
    size_t host_grads_planned, host_grads_held;
    size_t host_state_planned, host_state_held;
    size_t host_staging_planned, host_staging_held; /* bounce buffers, rings of NVMe */
    size_t pinned_planned, pinned_held;             /* a part of the host's */
    size_t nvme_planned;                            /* files, with both sets of state */
    /* parts of nvme_planned; the state counts twice if it has a spare generation */
    size_t nvme_params_planned, nvme_grads_planned, nvme_state_planned;
    int    has_spare_state; /* 1: nvme_state_planned has two generations */
    int    reserved;        /* keeps the layout; zero */
    /* not in the total: memory of the world, for all its engines */
    size_t receive_planned, receive_held; /* room for reductions, device */
    size_t transport_held;                /* allocated by the transport, host */
    size_t padding_elems;                 /* of all segments of all ranks together */
    size_t nvme_index_planned;            /* index of the state; not in nvme_planned */
    size_t checkpoint_planned;            /* host, not in the total: only during a save or load */
    size_t transport_device_held; /* like transport_held, on device; measured at its first calls */
    /* Memory of this rank's GPU that is not this engine's, measured by this call: contexts of CUDA,
     * libraries, the trainer, other engines and processes; 0 on the CPU */
    size_t device_outside_held;
    /* Control data, host, not in the total: handles, tables and names of this engine, and its
     * largest parts */
    size_t control_held;
    size_t control_model;   /* the declarations and the configuration */
    size_t control_plan;    /* blocks, extents, schedules */
    size_t control_run;     /* progress, transfers in flight, timers, and the engine's object */
    size_t control_store;   /* requests in flight, and the index of the state on NVMe */
    size_t control_updater; /* added by queued steps: the updater's progress and board */
    size_t activations_planned, activations_held; /* places of activations on the device */
    /* activations in host memory: stored there, or in transfer from and to NVMe */
    size_t host_activations_planned, host_activations_held;
    size_t nvme_activations_planned; /* a part of nvme_planned */
} sherd_memory_report;
SHERD_API void sherd_memory_report_init(sherd_memory_report *report);
/** Fills the report. Before seal the planned bytes are filled too, and the held bytes are 0. Local.
 *  The call asks the GPU for its free memory, which takes microseconds on most machines and
 *  milliseconds on some. The planned bytes do not change after seal. */
SHERD_CALL sherd_engine_memory(sherd_engine *engine, sherd_memory_report *out);

/* Bytes that this rank moves between media. A queued update (sherd_step_queue) counts when a call
 * has waited for it. The planned bytes are those of a trainer that follows the plan: `micro` per
 * micro-batch and, in addition, `step` per boundary, so a step moves accumulation * micro + step. A
 * window of another length is counted but not planned. The engine counts from seal on; the counts
 * are zero before. Two things are counted but not planned, both in the first acquire after a fill,
 * load or resume: the bytes by which the ranks compare the values (some hundred bytes for each
 * rank), and the commit of state on NVMe. */
typedef struct sherd_traffic_report {
    size_t struct_size;
    int    accumulation; /* micro-batches of a step */
    int    reserved;     /* keeps the layout; zero */
    /* bytes sent to other ranks; the same number is received */
    uint64_t wire_micro_planned, wire_step_planned;
    uint64_t down_micro_planned, down_step_planned; /* link, device to host */
    uint64_t up_micro_planned, up_step_planned;     /* link, host to device */
    uint64_t read_micro_planned, read_step_planned; /* NVMe */
    uint64_t written_micro_planned, written_step_planned;
    uint64_t wire_counted, down_counted, up_counted, read_counted, written_counted;
    /* memory that a boundary's kernels (norm, update) read and write, by where they run; planned
     * only */
    uint64_t update_device_planned, update_host_planned;
    /* Days until the ranks of the host have written the number of bytes that the drive is rated
     * for, at `wear_step_s` per step; 0: nothing is written. wear_step_s: aio.step_seconds, else
     * the time of only the drive's traffic at 2 GB/s */
    double   wear_days;
    double   wear_step_s;
    uint64_t update_flops_planned; /* of this rank's matrix products at a boundary (Muon) */
    /* What of the bytes on the wire goes to other hosts. Counted over MPI alone: other transports
     * do not know what they send between hosts */
    uint64_t between_micro_planned, between_step_planned, between_counted;
} sherd_traffic_report;
SHERD_API void sherd_traffic_report_init(sherd_traffic_report *report);
/** Reports this rank's traffic; before seal only the planned numbers. The wire counts all engines
 *  of the world. Local. The call waits for the transfers of the drive that are in flight, including
 *  reads ahead, so between steps the counts do not depend on the drive's speed. */
SHERD_CALL sherd_engine_traffic(sherd_engine *engine, sherd_traffic_report *out);

/** Writes a number of the trainer's own, such as the loss, to the files of the configuration's
 *  csv_monitor and tensorboard. It is written under `tag` ("Train/Samples/train_loss"; 1 to 127
 *  printable ASCII characters). Its x value is the number of samples that all ranks have seen so
 *  far, like that of the numbers of the last boundary. Does nothing on ranks other than 0, before
 *  seal, and if no monitor is on. A failure to write is reported in the log. Local; writes a file.
 *  Errors: E_INVAL, E_STATE. */
SHERD_CALL sherd_monitor_write(sherd_engine *engine, const char *tag, double value);

#endif
