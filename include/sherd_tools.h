/* Calls of tools, in addition to those of trainers: plans for described machines, their predicted
 * times and their checks; state files and checkpoints on a drive; the reference page of the keys;
 * the features of a build. The conventions are those of sherd.h. */
#ifndef SHERD_TOOLS_H
#define SHERD_TOOLS_H

#include "sherd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------- simulation ---- */

/* The machine of a simulated rank, for which the plan is made. */
typedef struct sherd_simulate_params {
    size_t struct_size;
    /* backend whose memory layout is planned: "cpu" (NULL) or "cuda", with NCCL */
    const char *backend;
    int         ranks_per_host; /* 0: all ranks on one host */
    /* Memory that a rank may use on its device; 0: unknown. On "cpu", device and host share one
     * memory: set host_bytes */
    size_t device_bytes;
    size_t host_bytes; /* memory that all ranks of a host together may use; 0: unknown */
} sherd_simulate_params;
SHERD_API void sherd_simulate_params_init(sherd_simulate_params *params);
/** Does the same as sherd_world_simulate, for the described machine. Engines in this world compute
 *  on the CPU, whatever machine the plan is for, so they can be sealed only with "cpu". Errors:
 *  E_INVAL (no such backend, a negative number). */
SHERD_CALL sherd_world_simulate_with(int rank, int world_size, const sherd_simulate_params *params,
                                     sherd_world **out);

/* --------------------------------------------------------------- plans --- */

/* Rates at which one rank moves data, in bytes per second, and multiplies matrices. Work with a
 * rate of 0 takes no time. */
typedef struct sherd_rates {
    size_t struct_size;
    double wire;                  /* sent inside a host, while all ranks send */
    double down, up;              /* link, device to host and host to device */
    double nvme_read, nvme_write; /* this rank's share of its host's drives */
    double device, host;          /* memory of the update's kernels */
    double compute_s;             /* seconds of the trainer's own work in a micro-batch */
    double products;              /* FLOP/s of matrix products in an update (Muon) */
    /* Sent to other hosts, while all ranks of the host send to others; 0: as `wire` */
    double between;
} sherd_rates;
SHERD_API void sherd_rates_init(sherd_rates *rates);

/* Predicted seconds of a step that follows the plan: step_s = accumulation * micro_s +
 * boundary_s. */
typedef struct sherd_prediction {
    size_t struct_size;
    double micro_s, boundary_s, step_s;
    double exposed_s; /* the part of step_s that is not the trainer's own work */
    /* The same for a step of sherd_step_queue: the duration of the step, the duration of its update
     * up to its commit, and the time for which the trainer's thread waits for the update. If the
     * update cannot be queued: step_s, 0 and 0 */
    double queued_s, beside_s, wait_update_s;
} sherd_prediction;
SHERD_API void sherd_prediction_init(sherd_prediction *prediction);
/** Predicts the time of a step. It simulates the operations of the step with these rates: each
 *  operation starts on its lane after the operations that it depends on. Work that overlaps with
 *  the trainer's work therefore costs no time. Before or after seal. Local. E_INVAL (a rate below 0
 *  or not a number). */
SHERD_CALL sherd_engine_predict(sherd_engine *engine, const sherd_rates *rates,
                                sherd_prediction *out);

/* One part of an optimizer's state in one encoding, on this rank, in one generation. */
typedef struct sherd_state_part {
    size_t      struct_size;
    const char *optimizer; /* "AdamW"; optimizer, part and encoding are in static storage */
    /* "exp_avg"; "parameter": the parameter's value, which state on storage contains if the master
     * is encoded without it */
    const char *part;
    /* "fp32", "bf16_beside", "bf16", "fp8"; "parameter": an fp32 parameter is its own master, which
     * has no bytes here */
    const char *encoding;
    size_t      elems; /* with padding */
    size_t      bytes; /* with scales and planes of chunks, without gaps between blocks */
} sherd_state_part;

/** Receives one part, borrowed for the call. A return other than SHERD_OK ends
 *  sherd_engine_state_parts, which returns it. */
typedef sherd_status (*sherd_state_part_fn)(void *ctx, const sherd_state_part *part);
/** Calls `fn` for each optimizer, part and encoding that the plan has on this rank. Before or after
 *  seal. Local. */
SHERD_CALL sherd_engine_state_parts(sherd_engine *engine, sherd_state_part_fn fn, void *ctx);

/** Returns the status that seal would return for the memory: SHERD_OK, or E_NOMEM;
 *  sherd_last_error() then says how much memory is missing and names the nearest setting that would
 *  fit. Allocates nothing of the model's size. Before seal. Collective. */
SHERD_CALL sherd_engine_fits(sherd_engine *engine);

/** Makes the plans of all ranks of the engine's world, one after the other, from the declarations,
 *  and checks each plan and all plans together:
 *   - slices are equal and contiguous;
 *   - every element of every parameter is updated by the ranks that its stage demands (one rank, or
 *     all at stage 0);
 *   - no two objects use the same bytes of a buffer at the same time;
 *   - all ranks have the same collectives;
 *   - no operation accesses bytes that a concurrent operation writes, or writes bytes that a
 *     concurrent operation reads. This is proved for windows that end in every possible way, after
 *     windows that ended in every possible way. The operations of rank 0 are compared with those of
 *     rank 1, of the last rank, and of each rank whose blocks differ from those of the others.
 *  The call moves no data, and works for simulated worlds of any size. Local. E_STATE with the rank
 *  and the violated rule, or with the two operations, means a bug in sherd. */
SHERD_CALL sherd_engine_check_plans(sherd_engine *engine);

/* --------------------------------------------------------- state files --- */

/* A file of optimizer state on a drive, which a training run left behind or still uses: one file
 * per rank. */
typedef struct sherd_state_file {
    size_t   struct_size;
    char     path[1024];
    uint64_t run; /* the same in all files of a run */
    int      rank, world_size;
    uint64_t generation; /* number of commits; 0: nothing was committed */
    int64_t  step;       /* updates done; -1: nothing was committed, or the file does not say */
    int      is_locked;  /* 1: a process has it open */
    int      is_valid;   /* 1: its index is intact */
    uint64_t held_bytes; /* on the drive, including both sets of stripes */
    int64_t  changed_s;  /* last written, in seconds since 1970 */
} sherd_state_file;
SHERD_API void sherd_state_file_init(sherd_state_file *file);

/** Receives one file, borrowed for the call. A return other than SHERD_OK ends the search, which
 *  returns it. */
typedef sherd_status (*sherd_state_file_fn)(void *ctx, const sherd_state_file *file);
/** Calls `fn` for every state file in `folder`, in order of name, including the files of active
 *  training runs. The files are opened only for reading. Errors: E_IO, E_NOTSUP (a build without
 *  libxxhash). */
SHERD_CALL sherd_state_files_find(const char *folder, sherd_state_file_fn fn, void *ctx);
/** Removes a state file, with its stripes in other folders. Errors: E_STATE when a process has it
 *  open, E_INVAL when its name is not that of a state file, E_IO. */
SHERD_CALL sherd_state_file_remove(const char *path);

/* --------------------------------------------------------- checkpoints --- */

/* Checkpoints in a folder, without an engine and without the model's code; sherd.h has the calls
 * that save and load them. No file outside the folder is opened: neither a path in a file nor a
 * symbolic link is followed. */

/* Properties of a checkpoint that are known without reading its data. */
typedef struct sherd_checkpoint_info {
    size_t struct_size;
    char   tag[256];
    char   problem[512];  /* the reason why it is incomplete, a sentence; "" if it is complete */
    char   version[64];   /* of the library that wrote it */
    char   optimizer[32]; /* several as "AdamW, Lamb", truncated to the field */
    /* updates; -1: the manifest cannot be read, and all fields from `version` on are empty */
    int64_t     step;
    int64_t     saved_s; /* in seconds since 1970 */
    int         world_size, stage;
    sherd_dtype compute_dtype;
    int         is_latest; /* 1: DIR/latest names it */
    int      is_complete;  /* 1: the manifest is intact, and each file exists and has its length */
    int      reserved;     /* keeps the layout; zero */
    uint64_t num_params, num_elems;
    uint64_t fingerprint, state_fingerprint; /* of the parameters; of the state's other parts */
    uint64_t data_bytes;                     /* length of its data files */
    uint64_t held_bytes;                     /* on the drive, including the manifest */
    /* The part of held_bytes in files that another checkpoint shares: removing this checkpoint does
     * not free them */
    uint64_t shared_bytes;
} sherd_checkpoint_info;

/** Receives one checkpoint, borrowed for the call. A return other than SHERD_OK ends the search,
 *  which returns it. */
typedef sherd_status (*sherd_checkpoint_fn)(void *ctx, const sherd_checkpoint_info *info);
/** Calls `fn` for every checkpoint in `dir`, the oldest first, incomplete ones included. Local.
 *  Errors: E_IO, E_NOMEM, E_NOTSUP (a build without libxxhash). */
SHERD_CALL sherd_checkpoints_find(const char *dir, sherd_checkpoint_fn fn, void *ctx);
/** Removes DIR/TAG. If it was the newest, DIR/latest then names the one before, or is removed. If
 *  the process dies during the removal, the next save completes it. Errors: E_IO (does not exist, a
 *  symbolic link), E_STATE (a folder that is no checkpoint, or that contains folders; nothing is
 *  removed), E_INVAL (no tag). */
SHERD_CALL sherd_checkpoint_remove(const char *dir, const char *tag);

/* A checkpoint that is open for reading. One thread at a time may use it. */
typedef struct sherd_checkpoint sherd_checkpoint;
/** Opens the checkpoint DIR/TAG (NULL: the one that DIR/latest names) and reads its manifest. Data
 *  is read on demand. Errors: E_IO (does not exist), E_INVAL (damaged, hostile, of another format),
 *  E_NOMEM, E_NOTSUP (a build without libxxhash). */
SHERD_CALL sherd_checkpoint_open(const char *dir, const char *tag, sherd_checkpoint **out);
/** Closes it. Accepts NULL. */
SHERD_API void sherd_checkpoint_close(sherd_checkpoint *checkpoint);
/** Returns the properties of the checkpoint, valid until close; NULL for NULL. */
SHERD_API const sherd_checkpoint_info *sherd_checkpoint_describe(
    const sherd_checkpoint *checkpoint);

/* A parameter as it was saved. `name` belongs to the checkpoint and is valid until close. */
typedef struct sherd_checkpoint_param {
    size_t      struct_size;
    const char *name; /* belongs to the checkpoint */
    int         ndim, is_frozen;
    size_t      shape[SHERD_MAX_NDIM];
    size_t      elems;
} sherd_checkpoint_param;
SHERD_API void sherd_checkpoint_param_init(sherd_checkpoint_param *param);
/** Returns parameter number `index` of info.num_params, in the order of declaration. E_INVAL
 *  (`index` is too large). */
SHERD_CALL sherd_checkpoint_param_at(const sherd_checkpoint *checkpoint, size_t index,
                                     sherd_checkpoint_param *out);
/** Reads elements [first, first + count) of a part of a parameter, as fp32: "master" (also for a
 *  frozen parameter, which was saved in the compute type), or another part of the optimizer's state
 *  by name. The bytes are compared with their checksums before the call returns. Sequential reads
 *  are fast. On failure `out` is undefined. Errors: E_INVAL (no such parameter, part or range;
 *  damaged: which tensor of which rank), E_IO, E_NOMEM. */
SHERD_CALL sherd_checkpoint_read(sherd_checkpoint *checkpoint, const char *param, const char *part,
                                 size_t first, size_t count, float *out);
/** Computes the fingerprint of elements [first, first + count) of a part of a parameter, as
 *  sherd_engine_fingerprint defines it: the sum modulo 2^64 of the mixes of their numbers in the
 *  model and their bits. Over all parameters, that of "master" is info.fingerprint.
 *
 *  @is_damaged_out  1: bytes that were read do not match their checksums, and the fingerprint is
 *                   that of the bytes as they are. NULL: they are an error
 *
 *  Errors: those of sherd_checkpoint_read. */
SHERD_CALL sherd_checkpoint_fingerprint(sherd_checkpoint *checkpoint, const char *param,
                                        const char *part, size_t first, size_t count,
                                        int *is_damaged_out, uint64_t *out);
/** Passes to `write` the bytes of the blob that the training run stored under `key` (sherd_blob_set
 *  without is_per_rank), in one call, after a comparison with their checksums. If the blob does not
 *  exist, *is_there_out is 0 and `write` is not called. A status of `write` other than SHERD_OK is
 *  returned. Errors: E_INVAL (damaged), E_IO, E_NOMEM. */
SHERD_CALL sherd_checkpoint_blob(sherd_checkpoint *checkpoint, const char *key, int *is_there_out,
                                 sherd_write_fn write, void *ctx);
/** Writes the contents of the manifest, for people or as JSON: the model with its shapes, parts,
 *  counters, files. A return of `write` other than SHERD_OK ends it. E_NOMEM. */
SHERD_CALL sherd_checkpoint_write(const sherd_checkpoint *checkpoint, sherd_plan_format format,
                                  sherd_write_fn write, void *ctx);

/** Does the same as sherd_export_safetensors (sherd.h), for a checkpoint and without an engine:
 *  writes the weights, of any model, as files that other programs read. Errors: those of
 *  sherd_checkpoint_read; E_INVAL (a map that does not fit), E_NUMERIC. */
SHERD_CALL sherd_checkpoint_export(sherd_checkpoint *checkpoint, const char *path,
                                   const sherd_export_params *params);

/** Makes the checkpoint DIR/TAG from weights that other programs have written, without an engine.
 *  It contains only master weights, at step 0, as one rank would have saved them. Every engine of
 *  the same model loads it with `weights_only`.
 *
 *  @path    as in sherd_import_safetensors (sherd.h): a file, an index or a folder
 *  @dir     created if it is missing; the new checkpoint becomes its latest
 *  @tag     an existing checkpoint of this name is refused, not replaced
 *  @model   parameters in the order of declaration (name, ndim, shape; elems is not read, none is
 *           frozen); NULL: each tensor of the file except those in may_be_extra, under its own name
 *  @params  names, and patterns of tensors that may be missing or extra, as in
 *           sherd_import_safetensors; a parameter that the file lacks is not in the checkpoint
 *           either. NULL: tensors have the names of the parameters
 *
 *  Local, blocking; holds 8 MiB, whatever the sizes. A failure does not change the folder. Errors:
 *  E_INVAL (tensors, by name; a damaged file; the tag exists), E_IO, E_NOMEM, E_NOTSUP (a build
 *  without libxxhash). */
SHERD_CALL sherd_checkpoint_import(const char *path, const char *dir, const char *tag,
                                   const sherd_checkpoint_param *model, size_t num_params,
                                   const sherd_import_params *params);

/* One damage that sherd_checkpoint_verify found. */
typedef struct sherd_checkpoint_damage {
    size_t      struct_size;
    const char *file; /* its path */
    /* NAME:PART:FIRST as in the file, or the parameter's name; NULL: the damage concerns no single
     * tensor */
    const char *tensor;
    uint64_t    begin, len_bytes; /* position in the file; 0 and 0 if the damage has no position */
    const char *what;             /* a sentence */
} sherd_checkpoint_damage;

typedef struct sherd_verify_params {
    size_t            struct_size;
    sherd_progress_fn progress; /* may be NULL */
    void             *progress_ctx;
    /* Receives each damage, borrowed for the call; may be NULL */
    void (*damage)(void *ctx, const sherd_checkpoint_damage *damage);
    void *damage_ctx;
} sherd_verify_params;
SHERD_API void sherd_verify_params_init(sherd_verify_params *params);
/** Reads every byte of every data file. Compares the bytes with the checksums, the files with the
 *  manifest, and the tensors in them with the parameters: each element of each part must exist
 *  once. The call does not stop at the first damage. `params` may be NULL. Blocks. Errors: E_INVAL
 *  (damaged: how many damages, and the first one), E_NOMEM. */
SHERD_CALL sherd_checkpoint_verify(sherd_checkpoint *checkpoint, const sherd_verify_params *params);

/* ------------------------------------------------------------- outputs --- */

/** Checks that a new file may be written at this path: the path does not exist, or is a regular
 *  file. sherd makes this check for every file that it writes under a temporary name and renames,
 *  before anything is written. A symbolic link is refused like a folder, a device, a pipe or a
 *  socket: pass the path of its target instead. Errors: E_IO, with the kind of file that exists. */
SHERD_CALL sherd_output_check(const char *path);
/** Writes a file atomically: checks its path, writes to ".NAME.partial" in the same folder, syncs,
 *  and renames. The old file remains until the new file is complete. Blocks. Errors: E_IO; E_INVAL
 *  (the path is too long). */
SHERD_CALL sherd_output_write(const char *path, const void *data, size_t len_bytes);

/* -------------------------------------------------- build and reference -- */

/** Writes the reference page of all keys (name, type, default, range, meaning) as Markdown. */
SHERD_CALL sherd_config_reference(sherd_write_fn write, void *ctx);
/** Writes the features of this build and this machine: one "name: value" line each, or one JSON
 *  object. */
SHERD_CALL sherd_env_write(sherd_plan_format format, sherd_write_fn write, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
