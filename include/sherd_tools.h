/* What tools ask beside trainers: plans for machines that are described, their times and proofs, the reference page,
 * state files and checkpoints on a drive, what a build has. Conventions as in sherd.h. */
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

/* What moves bytes for one rank, bytes a second, and what multiplies matrices; a rate of 0 makes what it does take no time. */
typedef struct sherd_rates {
    size_t struct_size;
    double wire;                  /* sent, all ranks at it */
    double down, up;              /* link, device to host and host to device */
    double nvme_read, nvme_write; /* this rank's share of its host's drives */
    double device, host;          /* memory of the update's kernels */
    double compute_s;             /* the trainer's own seconds of a micro-batch */
    double
        products; /* operations of floating point a second, of an update by whole matrices (Muon) */
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

/* What a rank has of one part of an optimizer's state in one encoding, of one generation. */
typedef struct sherd_state_part {
    size_t      struct_size;
    const char *optimizer; /* "AdamW"; this and the next two in static storage */
    const char *part; /* "exp_avg"; "parameter": the value that state on storage has beside what
                              its master lacks */
    const char
          *encoding; /* "fp32", "bf16_beside", "bf16", "fp8"; "parameter": an fp32 parameter is its
                             own master, which has no bytes here */
    size_t elems;    /* padding with them */
    size_t bytes;    /* scales and planes of chunks with them, what lies between blocks without */
} sherd_state_part;

/** Receives one, borrowed for the call; a return other than SHERD_OK ends the call and is what it returns. */
typedef sherd_status (*sherd_state_part_fn)(void *ctx, const sherd_state_part *part);
/** Calls `fn` for each optimizer, part and encoding that the plan has on this rank. Before seal or after. Local. */
SHERD_API SHERD_MUST_USE sherd_status sherd_engine_state_parts(sherd_engine       *engine,
                                                               sherd_state_part_fn fn, void *ctx);

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

/* --------------------------------------------------------- checkpoints --- */

/* Checkpoints as they lie in a folder, without an engine and without the model's code. What saves and loads them is in
 * sherd.h. Nothing is followed out of the folder: neither a path that a file gives nor a symbolic link. */

/* What is known of one without reading its data. */
typedef struct sherd_checkpoint_info {
    size_t  struct_size;
    char    tag[256];
    char    problem[512];  /* why it is not complete, a sentence; "" where it is */
    char    version[64];   /* of the library that wrote it */
    char    optimizer[32]; /* of several "AdamW, Lamb", as far as there is room */
    int64_t step; /* updates; -1: the manifest cannot be read, and all from `version` on is empty */
    int64_t saved_s; /* in seconds since 1970 */
    int     world_size, stage;
    sherd_dtype compute_dtype;
    int         is_latest;   /* DIR/latest names it */
    int         is_complete; /* the manifest is whole, and each file is there and has its length */
    int         reserved;    /* keeps the layout; zero */
    uint64_t    num_params, num_elems;
    uint64_t    fingerprint, state_fingerprint; /* of the parameters; of the state's other parts */
    uint64_t    data_bytes;                     /* of its data files */
    uint64_t    held_bytes;                     /* on the drive, manifest and all */
    uint64_t
        shared_bytes; /* of these, in files that another checkpoint has too: removing this one does not free
                                  them */
} sherd_checkpoint_info;

/** Receives one, borrowed for the call; a return other than SHERD_OK ends the search and is what it returns. */
typedef sherd_status (*sherd_checkpoint_fn)(void *ctx, const sherd_checkpoint_info *info);
/** Calls `fn` for every checkpoint in `dir`, the oldest first, those that are not complete among them. Local. E_IO,
 *  E_NOMEM, E_NOTSUP (a build without libxxhash). */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoints_find(const char         *dir,
                                                             sherd_checkpoint_fn fn, void *ctx);
/** Removes DIR/TAG. Where it was the newest, DIR/latest names the one before, or goes. What is begun is ended by the next
 *  save, if the process dies in between. E_IO (not there, a symbolic link), E_INVAL (no tag). */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_remove(const char *dir, const char *tag);

/* One that is read. One thread at a time. */
typedef struct sherd_checkpoint sherd_checkpoint;
/** Reads the manifest of DIR/TAG (NULL: what DIR/latest names); data is read when it is asked for. E_IO (not there), E_INVAL
 *  (damaged, hostile, of another format), E_NOMEM, E_NOTSUP (a build without libxxhash). */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_open(const char *dir, const char *tag,
                                                            sherd_checkpoint **out);
/** Accepts NULL. */
SHERD_API void sherd_checkpoint_close(sherd_checkpoint *checkpoint);
/** Valid until close. NULL of NULL. */
SHERD_API const sherd_checkpoint_info *sherd_checkpoint_describe(
    const sherd_checkpoint *checkpoint);

/* A parameter as it was saved. */
typedef struct sherd_checkpoint_param {
    size_t      struct_size;
    const char *name; /* the checkpoint's */
    int         ndim, is_frozen;
    size_t      shape[SHERD_MAX_NDIM];
    size_t      elems;
} sherd_checkpoint_param;
SHERD_API void sherd_checkpoint_param_init(sherd_checkpoint_param *param);
/** The parameter number `index` of info.num_params, in the order in which they were declared. E_INVAL (no such number). */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_param_at(const sherd_checkpoint *checkpoint,
                                                                size_t                  index,
                                                                sherd_checkpoint_param *out);
/** Elements [first, first + count) of a part of a parameter, as fp32: "master" (also of a frozen one, which was
 *  saved in the compute type), or a part of the optimizer's state by name. Bytes are held against their checksums before
 *  they come. Reading forward is fast. On failure `out` is undefined. E_INVAL (no such parameter, part or range; damaged:
 *  which tensor of which rank), E_IO, E_NOMEM. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_read(sherd_checkpoint *checkpoint,
                                                            const char *param, const char *part,
                                                            size_t first, size_t count, float *out);
/** All that the manifest says, for people or as JSON: the model with its shapes, parts, counters, files. What `write`
 *  returns other than SHERD_OK ends it. E_NOMEM. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_write(const sherd_checkpoint *checkpoint,
                                                             sherd_plan_format       format,
                                                             sherd_write_fn write, void *ctx);

/** sherd_export_safetensors (sherd.h) of a checkpoint, without an engine: its weights, whoever saved them, as files that others
 *  read. Errors as of sherd_checkpoint_read, and E_INVAL (a map that does not fit), E_NUMERIC. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_export(sherd_checkpoint          *checkpoint,
                                                              const char                *path,
                                                              const sherd_export_params *params);

/**
 * Makes DIR/TAG of weights that others have written, without an engine: a checkpoint of master weights alone, at step 0, as
 * one rank would have saved it. Every engine of that model loads it with `weights_only`.
 *
 * @path    as of sherd_import_safetensors (sherd.h): a file, an index or a folder
 * @dir     made where it is missing; the new checkpoint is its latest. One of the name `tag` is refused, not replaced
 * @model   parameters in the order of declaration (name, ndim, shape; elems is not read, none is frozen); NULL: each tensor of the
 *          file but those in may_be_extra, under its own name
 * @params  names, and what may be missing or extra, as of sherd_import_safetensors; a parameter that the file lacks is
 *          not in the checkpoint either. NULL: tensors have the parameters' names
 *
 * Local, blocking; holds 8 MiB, whatever the sizes. On failure the folder is as before. E_INVAL (tensors, by name;
 * damaged; the tag is taken), E_IO, E_NOMEM, E_NOTSUP (a build without libxxhash).
 */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_import(const char *path, const char *dir,
                                                              const char                   *tag,
                                                              const sherd_checkpoint_param *model,
                                                              size_t                     num_params,
                                                              const sherd_import_params *params);

/* Something that is damaged. */
typedef struct sherd_checkpoint_damage {
    size_t      struct_size;
    const char *file; /* its path */
    const char         *
        tensor; /* NAME:PART:FIRST as in the file, or the parameter's name; NULL: no tensor's in particular */
    uint64_t    begin, len_bytes; /* in the file; 0 and 0 where it is not bytes that are wrong */
    const char *what;             /* a sentence */
} sherd_checkpoint_damage;

typedef struct sherd_verify_params {
    size_t            struct_size;
    sherd_progress_fn progress; /* may be NULL */
    void             *progress_ctx;
    void (*damage)(
        void                          *ctx,
        const sherd_checkpoint_damage *damage); /* of each, borrowed for the call; may be NULL */
    void *damage_ctx;
} sherd_verify_params;
SHERD_API void sherd_verify_params_init(sherd_verify_params *params);
/** Reads every byte of every data file and holds it against its checksum, the files against the manifest, and the tensors in
 *  them against the parameters: each element of each part is there once. Does not end at the first that is wrong. `params`
 *  may be NULL. Blocks. E_INVAL (damaged: how often, and the first), E_NOMEM. */
SHERD_API SHERD_MUST_USE sherd_status sherd_checkpoint_verify(sherd_checkpoint          *checkpoint,
                                                              const sherd_verify_params *params);

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
