/* What outlives a training run: descriptions, generations of state on NVMe, blobs, checkpoints,
 * weights in and out. Calls of the modules "offload", "blobs", "checkpoints" and "weights". sherd.h
 * includes this header, and has the conventions. */
#ifndef SHERD_H
#include "sherd.h"
#elif !defined(SHERD_CHECKPOINTS_H)
#define SHERD_CHECKPOINTS_H

/** Describes this training run with a text of the trainer's choice, for example the seed and the
 *  data, which the engine does not know. Every commit of state on NVMe stores the text, together
 *  with the accumulation and the micro-batch size. If an engine resumes state that was stored with
 *  other values, it logs a warning, sets sherd_engine_info.resume_differs, and continues. The
 *  trainer may refuse to continue. At most 255 bytes; copied. Local, before seal. Errors: E_INVAL
 *  (longer), E_STATE. */
SHERD_CALL sherd_engine_describe_run(sherd_engine *engine, const char *text);
/** Restores the state before the last update, including parameters and counters. After an update
 *  that failed, it restores the state before the failed update, and the engine is usable again. The
 *  call restores a commit; filling and updates make commits. Steps that were skipped for an
 *  overflow since the commit are undone too, in the counters and the loss scale. The call works
 *  once, because it uses up the spare generation; the next update makes a new one. Collective.
 *  Errors: E_NOTSUP (no spare generation exists; one exists if all state is on NVMe), E_STATE (no
 *  update yet; already undone; a checkpoint since the update took the space of the spare
 *  generation, as the first checkpoint after sherd_param_write may), E_IO (a drive failed). If some
 *  ranks may have restored the state when E_IO is returned, the engine accepts only another undo,
 *  which restores it on all ranks, or destroy. A run that resumes then continues from one of the
 *  two states. */
SHERD_CALL sherd_step_undo(sherd_engine *engine);
/** Decides whether the state files on NVMe remain after a clean end (like "keep" of
 *  offload_optimizer). For a program that was asked to stop and is to continue later. No effect if
 *  no state is on NVMe. Local; if one rank preserves its state, all ranks do. E_STATE before
 *  seal. */
SHERD_CALL sherd_engine_keep_state(sherd_engine *engine, int is_kept);

/* --------------------------------------------------------------- blobs --- */

/* Blobs: bytes of the trainer that are saved with the state, such as its position in the data or
 * the state of its random numbers. */
#define SHERD_BLOB_KEY_BYTES 127 /* most bytes of a key; printable ASCII */
/* Most bytes of all small blobs of a rank, including keys and 24 bytes for each. On ranks other
 * than 0, the blobs of the run, which are rank 0's, do not count. */
#define SHERD_BLOB_MAX_BYTES (1024 * 1024)

typedef struct sherd_blob_params {
    size_t struct_size;
    int    is_per_rank; /* 0: one blob for the run, rank 0's; 1: each rank has its own */
    int    rank;        /* for sherd_blob_get with is_per_rank; below 0, the default: this rank */
    /* for sherd_blob_set; 1: of any size, and saved only by checkpoints, not by commits of state on
     * NVMe */
    int is_large;
} sherd_blob_params;
SHERD_API void sherd_blob_params_init(sherd_blob_params *params);

/** Stores a copy of data[0 .. len_bytes) under the key, and replaces an earlier copy; data NULL
 *  (and len_bytes 0) removes the blob. A checkpoint saves the blob, and so does a commit of state
 *  on NVMe. The first acquire of a training run makes a commit of the filled values, and each
 *  boundary makes one. So set a blob that describes the state after a step just before its
 *  sherd_step. sherd_step_undo and a resume restore the committed blobs and do not change large
 *  ones. If a blob is not per rank, each rank has the copy that it set itself, but only rank 0's is
 *  saved, and all ranks find rank 0's after a load. Local; at any time after create. Errors:
 *  E_INVAL (key, too many bytes of small blobs), E_NOMEM; the earlier blob then remains. */
SHERD_CALL sherd_blob_set(sherd_engine *engine, const char *key, const void *data, size_t len_bytes,
                          const sherd_blob_params *params);
/** Copies the blob to `data`, which has room for *len_bytes_inout bytes, and sets *len_bytes_inout
 *  to the blob's length. It sets the length also if `data` is NULL, and if the room is too small
 *  (E_INVAL). After a load of a checkpoint that another number of ranks saved, rank r has the blobs
 *  of the saved ranks r, r + world_size and so on. Local. E_INVAL: no blob has that key. */
SHERD_CALL sherd_blob_get(sherd_engine *engine, const char *key, void *data,
                          size_t *len_bytes_inout, const sherd_blob_params *params);

/* --------------------------------------------------------- checkpoints --- */

/* A checkpoint is a folder DIR/TAG with one data file of each rank (safetensors) and a manifest; it
 * is complete or does not exist. DIR/latest names the newest one. Engines may save different tags
 * into one folder at the same time. docs/checkpoints.md is the page for users,
 * docs/checkpoint-format.md the page for programs that read the files. */

/** Receives the progress of this rank, in bytes, on the calling thread. */
typedef void (*sherd_progress_fn)(void *ctx, uint64_t done_bytes, uint64_t all_bytes);

typedef struct sherd_save_params {
    size_t struct_size;
    /* 1: the call returns when the state is copied in memory, and a thread of this rank writes it;
     * 0: the call returns when all of the state is on the medium; below 0, the default: the value
     * of checkpoint.async */
    int is_async;
    /* Number of complete checkpoints that remain in the folder, including this one; 0: all; below
     * 0, the default: the value of checkpoint.keep_last */
    int               keep_last;
    sherd_progress_fn progress; /* may be NULL */
    void             *progress_ctx;
    /* 1: the call may be made inside a window, too. The checkpoint then contains the state after
     * the last update, and its micro_step is that of the last update. The gradients of the window
     * are not saved, and remain in the engine */
    int may_be_in_window;
} sherd_save_params;
SHERD_API void sherd_save_params_init(sherd_save_params *params);

/** Saves parameters, optimizer state, counters, loss scaler and blobs to DIR/TAG (NULL: "step-" and
 *  the number of updates, six digits). Creates missing folders, and replaces a checkpoint of the
 *  same name atomically. Every rank writes its own part; nothing is gathered. If hosts do not share
 *  DIR, each has the part of its ranks there. Collective: all ranks pass the same names, and the
 *  checkpoint is complete for all or for none. is_async says how long
 *  the call blocks. It first waits for an earlier asynchronous save. Call it between steps: no unit
 *  is acquired, and, without may_be_in_window, the window has had no backward pass and no
 *  sherd_step. A failure does not affect earlier checkpoints, and training may continue. Errors:
 *  E_STATE (a window is open; another engine is saving this tag), E_INVAL (tag, ranks that differ),
 *  E_IO (too little space, with the number of missing bytes; a folder that a rank cannot make; a
 *  file or folder of this name that is no checkpoint; a failure of the drive), E_NOTSUP
 *  (asynchronous without checkpoint.async, a build without libxxhash), E_NOMEM. */
SHERD_CALL sherd_checkpoint_save(sherd_engine *engine, const char *dir, const char *tag,
                                 const sherd_save_params *params);

/* Report of the last save or load of this rank. */
typedef struct sherd_checkpoint_report {
    size_t   struct_size;
    int      is_running; /* 1: an asynchronous save has not ended */
    int      reserved;   /* keeps the layout; zero */
    int64_t  step;       /* number of updates that the checkpoint contains */
    double   blocked_s;  /* time for which the trainer was blocked */
    double   all_s;      /* time until the checkpoint was complete */
    uint64_t bytes;      /* of this rank's data, read or written */
    uint64_t kept_bytes; /* already in an earlier checkpoint: linked, not written again */
    /* of the parameters of all ranks that were saved or loaded; 0 until it is complete */
    uint64_t fingerprint;
} sherd_checkpoint_report;
SHERD_API void sherd_checkpoint_report_init(sherd_checkpoint_report *report);
/** Waits until an asynchronous save is complete, and returns its failure if it had one. A boundary
 *  that finds the save complete or failed ends it too, and continues. The failure is then returned
 *  by this call, or by the next save or load, which does nothing else. `out` may be NULL.
 *  Collective while a save is in progress. E_IO. */
SHERD_CALL sherd_checkpoint_wait(sherd_engine *engine, sherd_checkpoint_report *out);
/** Returns the same report without waiting; is_running says whether a save is in progress. A save
 *  ends at a boundary, on all ranks at the same boundary. sherd_checkpoint_wait returns its
 *  failure. Local. */
SHERD_CALL sherd_checkpoint_query(const sherd_engine *engine, sherd_checkpoint_report *out);

typedef struct sherd_load_params {
    size_t struct_size;
    /* 1: parameters only; other state begins at zero, and counters do not change */
    int weights_only;
    int reserved; /* keeps the layout; zero */
    /* Patterns of names, as in a shell (fnmatch). may_miss: parameters of this model that the
     * checkpoint may lack; their values do not change, or they are filled afterwards. may_be_extra:
     * parameters of the checkpoint that this model may lack. A parameter whose shape differs counts
     * as both missing and extra. */
    const char *const *may_miss;
    size_t             num_may_miss;
    const char *const *may_be_extra;
    size_t             num_may_be_extra;
    sherd_progress_fn  progress; /* may be NULL */
    void              *progress_ctx;
} sherd_load_params;
SHERD_API void sherd_load_params_init(sherd_load_params *params);

/** Loads the checkpoint DIR/TAG (NULL: the one that DIR/latest names) and continues from it. The
 *  training run that saved it may have had any world size, stage, tier, device and precision. Every
 *  rank reads the elements that it stores and compares them with the checksums. Files that a host
 *  lacks come from a host that has them, and stay there. At the end the
 *  fingerprints must equal those of the manifest. Called after seal instead of filling, or later
 *  between steps; also for an engine whose update failed in the middle. Collective, blocking.
 *  Errors: E_STATE (a window is open), E_IO (no checkpoint of this name, or no rank has one of its
 *  files), E_INVAL (another model,
 *  or a damaged file: the message names the tensor and the rank), E_PEER_LOST. A failure before the
 *  first value is written does not change the engine. After a later failure it accepts only load,
 *  undo if a spare generation exists, or destroy. */
SHERD_CALL sherd_checkpoint_load(sherd_engine *engine, const char *dir, const char *tag,
                                 const sherd_load_params *params);

/* -------------------------------------------------- weights in and out ---- */

/* A tensor in a file of weights, and the location of its elements: a parameter of the engine, or
 * memory of the caller. (Memory of the caller is for a buffer of a module that is in the file but
 * not in the engine, such as the statistics of a BatchNorm.) Calls take an array of them, all with
 * the struct_size of the first. */
typedef struct sherd_tensor_map {
    size_t      struct_size;
    const char *name;  /* in the file, required */
    const char *param; /* the parameter's name; NULL: data, or zeros, which only raw files have */
    const char *value; /* a part of the optimizer's state by its name; NULL: the weights */
    size_t      first_elem;            /* element of the parameter at which the tensor begins */
    int         ndim;                  /* 0 .. SHERD_MAX_NDIM; 0: one element */
    size_t      shape[SHERD_MAX_NDIM]; /* in the file; row-major, as in the parameter */
    int is_transposed; /* 2 dimensions: [i][j] of the file is [j][i] of a matrix in the parameter */
    /* For a tensor that belongs to no parameter, in safetensors only. data_dtype: its type as
     * safetensors names it ("F32", "I64", "BOOL" ...); NULL: no data. data: elements in host
     * memory, row-major, valid for the call. An export writes the elements of rank 0, an import
     * writes those of every rank. */
    const char *data_dtype;
    void       *data;
} sherd_tensor_map;
SHERD_API void sherd_tensor_map_init(sherd_tensor_map *map);

typedef struct sherd_export_params {
    size_t struct_size;
    /* In the order of the file; NULL: every parameter by its own name and shape */
    const sherd_tensor_map *tensors;
    size_t                  num_tensors;
    sherd_dtype             dtype;    /* of the file; default SHERD_F32 */
    size_t            max_file_bytes; /* most data in one file of a folder; 0: 5,000,000,000 */
    sherd_progress_fn progress;       /* may be NULL */
    void             *progress_ctx;
} sherd_export_params;
SHERD_API void sherd_export_params_init(sherd_export_params *params);

/** Writes the weights as safetensors: master weights, rounded once to `dtype`; frozen parameters
 *  from their compute type. A path that ends in ".safetensors" is one file. Any other path is a
 *  folder with model.safetensors; the folder is created if it is missing. If the data exceed
 *  max_file_bytes, the folder gets model-00001-of-00003.safetensors and so on, and
 *  model.safetensors.index.json, as transformers writes them. A tensor is never split: a tensor
 *  that is larger gets a file of its own.
 *
 *  New files are written next to the old ones, synced and renamed. A reader of the folder finds the
 *  files of an earlier export until the new ones are complete, or finds none. Rank 0 writes; during
 *  the call it holds 8 MiB, plus one whole tensor if a tensor is transposed.
 *
 *  Only regular files are replaced. If a link, a device, a pipe, a socket or a folder has the name
 *  of a file, the call fails before anything is written.
 *
 *  Collective, blocking, between steps.
 *
 *  Errors     E_INVAL (a map that does not fit the model), E_IO with the path, E_NUMERIC (a finite
 *             value is too large for `dtype`), E_STATE, E_NOMEM. The files of an earlier export
 *             then remain unchanged.
 */
SHERD_CALL sherd_export_safetensors(sherd_engine *engine, const char *path,
                                    const sherd_export_params *params);
/** Writes the weights to one file of another format: `header` (may be NULL if header_bytes is 0),
 *  then the tensors in sequence without gaps. The names in the map are used only in messages. */
SHERD_CALL sherd_export_raw(sherd_engine *engine, const char *path, const void *header,
                            size_t header_bytes, const sherd_export_params *params);

typedef struct sherd_import_params {
    size_t                  struct_size;
    const sherd_tensor_map *tensors; /* NULL: every parameter by its own name and shape */
    size_t                  num_tensors;
    /* Patterns of names, as in a shell (fnmatch). may_miss: tensors of the map that the file may
     * lack. may_be_extra: tensors of the file that the map does not name. Any other missing or
     * extra tensor is an error. */
    const char *const *may_miss;
    size_t             num_may_miss;
    const char *const *may_be_extra;
    size_t             num_may_be_extra;
    const char *optional_prefix; /* of the map's names; the file's may all lack it; may be NULL */
    sherd_progress_fn progress;  /* may be NULL */
    void             *progress_ctx;
} sherd_import_params;
SHERD_API void sherd_import_params_init(sherd_import_params *params);

/** Reads weights from safetensors of fp64, fp32, bf16 or fp16. `path` is a file, an index (*.json),
 *  or a folder with model.safetensors, its index, or a single file of this kind. The file must be
 *  the same on every rank.
 *
 *  Before the first acquire the call fills parameters, and each rank reads only the elements that
 *  it stores. Elements of a parameter that are in no tensor of the map start as 0. If the file
 *  lacks all tensors of a parameter, the parameter has to be filled by sherd_param_fill. Between
 *  steps the call writes values like sherd_param_write; values that the file lacks do not change,
 *  and each rank holds 4 MiB during the call.
 *
 *  Collective, blocking.
 *
 *  Errors     E_INVAL (tensors missing, extra, of another shape or type, by name; a damaged file),
 *             E_IO, E_STATE, E_NOMEM. Values that were written before a failure stay written.
 */
SHERD_CALL sherd_import_safetensors(sherd_engine *engine, const char *path,
                                    const sherd_import_params *params);
/** Reads weights from a file with a header of `header_bytes` bytes. After the header, the tensors
 *  of the map (required) follow each other in `dtype` up to the end of the file. */
SHERD_CALL sherd_import_raw(sherd_engine *engine, const char *path, size_t header_bytes,
                            sherd_dtype dtype, const sherd_import_params *params);

#endif
