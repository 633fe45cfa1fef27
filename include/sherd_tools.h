/* What tools ask beside trainers: plans for machines that are described, their times and proofs, the reference page,
 * state files on a drive, what a build has. Conventions as in sherd.h. */
#ifndef SHERD_TOOLS_H
#define SHERD_TOOLS_H

#include "sherd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------- simulation ---- */

/* What a simulated rank stands for: the machine that is planned for. */
typedef struct sherd_simulate_params {
    size_t      struct_size;
    const char *backend; /* whose memory layout is planned: "cpu" (NULL) or "cuda", with NCCL */
    int         ranks_per_host; /* 0: all ranks on one host */
    size_t
        device_bytes;  /* that a rank may take of its device; 0: not known. On "cpu" device and host
                                       are one memory: give host_bytes */
    size_t host_bytes; /* of each host, for all its ranks; 0: not known */
} sherd_simulate_params;
SHERD_API void sherd_simulate_params_init(sherd_simulate_params *params);
/** sherd_world_simulate for a machine that is described. Its engines compute on the CPU whatever is planned for, so they
 *  can be sealed only with "cpu". Errors: E_INVAL (no such backend, a negative number). */
SHERD_API SHERD_MUST_USE sherd_status sherd_world_simulate_with(int rank, int world_size,
                                                                const sherd_simulate_params *params,
                                                                sherd_world                **out);

/* --------------------------------------------------------------- plans --- */

/* What moves bytes for one rank, bytes a second; a rate of 0 makes what it moves take no time. */
typedef struct sherd_rates {
    size_t struct_size;
    double wire;                  /* sent, all ranks at it */
    double down, up;              /* link, device to host and host to device */
    double nvme_read, nvme_write; /* this rank's share of its host's drives */
    double device, host;          /* memory of the update's kernels */
    double compute_s;             /* the trainer's own seconds of a micro-batch */
} sherd_rates;
SHERD_API void sherd_rates_init(sherd_rates *rates);

/* Seconds of a step that follows the plan: step_s = accumulation * micro_s + boundary_s. */
typedef struct sherd_prediction {
    size_t struct_size;
    double micro_s, boundary_s, step_s;
    double exposed_s; /* of step_s, what is not the trainer's own */
} sherd_prediction;
SHERD_API void sherd_prediction_init(sherd_prediction *prediction);
/** Plays the operations of a step against rates, each on its lane behind what it follows, so that what runs beside the
 *  trainer's work costs nothing. Before seal or after. Local. E_INVAL (a rate below 0 or no number). */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_predict(sherd_engine      *engine,
                                                           const sherd_rates *rates,
                                                           sherd_prediction  *out);

/** What seal would say of the memory: SHERD_OK, or E_NOMEM with what is missing and the nearest setting that
 *  would fit in sherd_last_error(). Allocates nothing of the model's size. Before seal. Collective. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_fits(sherd_engine *engine);

/** Makes the plans of all ranks of the engine's world, one after the other, from what is declared, and checks
 *  each and all together: slices are equal and lie one behind the other, every element of every parameter is
 *  updated by the ranks that its stage says (one, or all at stage 0), no two things share bytes of a buffer at
 *  the same time, all ranks have the same collectives. And that no operation touches bytes that another one still
 *  writes, or writes what it reads, in windows of every end behind every end: rank 0's operations beside those of
 *  rank 1, of the last and of each whose blocks are not like another's. Pure: nothing moves, works for simulated
 *  worlds of any size. Local. E_STATE with the rank and the rule that is broken, or the two operations: a bug of
 *  sherd's. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_check_plans(sherd_engine *engine);

/* --------------------------------------------------------- state files --- */

/* Optimizer state on a drive that a run left behind, or uses: one file per rank. */
typedef struct sherd_state_file {
    size_t   struct_size;
    char     path[1024];
    uint64_t run; /* the same in all files of a run */
    int      rank, world_size;
    uint64_t generation; /* counts the commits; 0: nothing was committed */
    int64_t  step;       /* updates done; -1: nothing was committed, or the file does not say */
    int      is_locked;  /* a process has it open */
    int      is_valid;   /* its index is whole */
    uint64_t held_bytes; /* on the drive, its sets of slots included */
    int64_t  changed_s;  /* last written, in seconds since 1970 */
} sherd_state_file;
SHERD_API void sherd_state_file_init(sherd_state_file *file);

/** Receives one file, borrowed for the call; a return other than SHERD_OK ends the search and is
 *  what it returns. */
typedef sherd_status (*sherd_state_file_fn)(void *ctx, const sherd_state_file *file);
/** Calls `fn` for every state file in `folder`, in order of name. Opens them to read only; the files of
 *  runs that go on are among them. E_IO, E_NOTSUP (a build without libxxhash). */
SHERD_API SHERD_MUST_USE sherd_status sherd_state_files_find(const char         *folder,
                                                             sherd_state_file_fn fn, void *ctx);
/** Removes one, with its stripes in other folders. E_STATE when a process has it open, E_INVAL when it is
 *  not named like a state file, E_IO. */
SHERD_API SHERD_MUST_USE sherd_status sherd_state_file_remove(const char *path);

/* -------------------------------------------------- build and reference -- */

/** The reference page of all keys (name, type, default, range, meaning), Markdown. */
SHERD_API SHERD_MUST_USE sherd_status sherd_config_reference(sherd_write_fn write, void *ctx);
/** What this build and this machine have, one "name: value" line each. */
SHERD_API SHERD_MUST_USE sherd_status sherd_env_write(sherd_plan_format format,
                                                      sherd_write_fn write, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
