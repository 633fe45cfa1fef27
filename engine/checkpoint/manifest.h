/* The manifest: the description of a checkpoint in manifest.json, which is written last. It has the
 * whole model and says how the ranks that saved it divided it. So a reader knows which file has an
 * element without opening the data files. docs/checkpoint-format.md describes it for other
 * programs. */
#ifndef SHERDI_ENGINE_CHECKPOINT_MANIFEST_H
#define SHERDI_ENGINE_CHECKPOINT_MANIFEST_H

#include "base/mem.h"
#include "engine/optimizers/scaler.h"
#include "engine/plan/plan.h"
#include "kernels/encoding_names.h"

#define SHERDI_CHECKPOINT_FORMAT 1
/* The one part of a frozen parameter: its values in its compute type. */
#define SHERDI_FROZEN_PART "compute"
/* The most parts that an element's state has, the master weight included. */
#define SHERDI_CHECKPOINT_PARTS           16
#define SHERDI_CHECKPOINT_OPTIMIZERS      16
#define SHERDI_CHECKPOINT_OPTIMIZER_BYTES 32
#define SHERDI_CHECKPOINT_NAME_BYTES      256
#define SHERDI_CHECKPOINT_HOST_BYTES      64

/* The two data files of a rank. Frozen parameters do not change and have a file of their own, which
 * later checkpoints share. */
typedef enum sherdi_data_file {
    SHERDI_DATA_STATE = 0, /* master weights and the other parts, blobs */
    SHERDI_DATA_FROZEN,
    SHERDI_DATA_FILES,
} sherdi_data_file;

typedef struct sherdi_manifest_file {
    uint64_t bytes;           /* 0: there is no file, since the rank has nothing to put into it */
    uint64_t header_checksum; /* of the first 8 + N bytes, which have the checksums of the rest */
} sherdi_manifest_file;

typedef struct sherdi_manifest_param {
    char       *name;
    int         ndim;
    size_t      shape[SHERD_MAX_NDIM];
    size_t      elems;
    int         is_frozen;
    int         has_dtype;             /* its type is written, since it is not the engine's */
    sherd_dtype dtype;                 /* of the values of a frozen parameter */
    size_t      segment, offset_elems; /* its segment, and where it begins there */
} sherdi_manifest_param;

/* An optimizer that updated parameters. */
typedef struct sherdi_manifest_optimizer {
    char     name[SHERDI_CHECKPOINT_OPTIMIZER_BYTES];
    unsigned parts; /* bit i: its parameters have part i of the manifest's */
} sherdi_manifest_optimizer;

/* Rank r saved the elements [r * slice_elems, (r + 1) * slice_elems) of the segment. */
typedef struct sherdi_manifest_segment {
    size_t                    slice_elems;
    int                       is_frozen;
    int                       has_optimizer; /* its optimizer is written, since there are several */
    sherdi_manifest_optimizer optimizer;     /* unused if is_frozen */
    int                       named[SHERDI_CHECKPOINT_PARTS]; /* its parts as they are written */
    int                       num_named;
} sherdi_manifest_segment;

/* A part of the state. */
typedef struct sherdi_manifest_part {
    char name[32];
    /* The encoding in which the run had it; of several, the one that loses most; -1: no parameter
     * had it. Files have fp32. */
    int held;
} sherdi_manifest_part;

typedef struct sherdi_manifest {
    sherdi_mem *mem;
    char        version[64]; /* of the library that wrote it */
    char        tag[SHERDI_CHECKPOINT_NAME_BYTES];
    int         world_size, stage;
    sherd_dtype compute_dtype; /* the engine's; parameters may have another */
    /* With one optimizer, the head of the manifest names it for all segments. With several, each
     * segment names its own, and the head names the first. */
    sherdi_manifest_optimizer optimizers[SHERDI_CHECKPOINT_OPTIMIZERS];
    int                       num_optimizers;
    int                       num_parts;
    sherdi_manifest_part      parts[SHERDI_CHECKPOINT_PARTS]; /* the first is "master" */

    int64_t       step, micro_step, skipped_steps;
    int64_t       samples; /* of all micro-batches and ranks */
    int           accumulation, micro_batch_size;
    char          run_text[256];
    sherdi_scaler scaler;
    uint64_t      fingerprint;           /* of all parameters, frozen ones included */
    uint64_t      frozen_fingerprint;    /* of frozen parameters only */
    int           has_state_fingerprint; /* 0: some state was linked and not read */
    uint64_t      state_fingerprint;     /* of the parts after the master; see numerics.md */
    uint64_t      data_bytes;            /* of all data files */
    int64_t       saved_s;               /* seconds since 1970 */
    uint64_t      checksum;              /* of its text; only in a manifest that was read */

    sherdi_manifest_param   *params;
    size_t                   num_params, cap_params;
    sherdi_manifest_segment *segments;
    size_t                   num_segments, cap_segments;
    sherdi_manifest_file (*files)[SHERDI_DATA_FILES]; /* by rank */
    /* The host that has a rank's files, by rank; "": unknown. NULL: one folder has all. */
    char (*hosts)[SHERDI_CHECKPOINT_HOST_BYTES];
} sherdi_manifest;

void sherdi_manifest_init(sherdi_manifest *manifest, sherdi_mem *mem);
void sherdi_manifest_fini(sherdi_manifest *manifest);

/** Returns the host on which a rank's files were written; "": one folder had all files. */
static inline const char *sherdi_manifest_host(const sherdi_manifest *manifest, int rank)
{
    return manifest->hosts == NULL ? "" : manifest->hosts[rank];
}

/** Returns the name of the encoding in which the run had a part. */
static inline const char *sherdi_manifest_held(const sherdi_manifest *manifest, int part)
{
    return sherdi_encoding_name((sherdi_encoding)manifest->parts[part].held);
}

/** Returns the number of a part; -1: there is none of this name. */
int sherdi_manifest_find_part(const sherdi_manifest *manifest, const char *name);

/** Returns the optimizer that updated a parameter; NULL: the parameter is frozen. */
static inline const sherdi_manifest_optimizer *sherdi_manifest_optimizer_of(
    const sherdi_manifest *manifest, size_t param)
{
    const sherdi_manifest_segment *segment = &manifest->segments[manifest->params[param].segment];

    return segment->is_frozen ? NULL : &segment->optimizer;
}

/** Returns whether a parameter has a part; the values of a frozen parameter are its part 0. */
static inline int sherdi_manifest_has_part(const sherdi_manifest *manifest, size_t param, int part)
{
    const sherdi_manifest_optimizer *optimizer = sherdi_manifest_optimizer_of(manifest, param);

    return optimizer == NULL ? part == 0 : (int)(optimizer->parts >> part & 1);
}

/** Writes the names of the optimizers, like "AdamW, Lamb", as many as there is room for. */
void sherdi_manifest_optimizers(const sherdi_manifest *manifest, char *text, size_t len_bytes);

/** Writes the manifest as text with its own checksum at the end. The caller frees the text with
 *  sherdi_manifest_text_free. E_NOMEM. */
sherd_status sherdi_manifest_text(const sherdi_manifest *manifest, char **text_out,
                                  size_t *len_bytes_out);
void         sherdi_manifest_text_free(char *text);
/** Reads a manifest from text; `path` is for messages. It checks every value against the others, so
 *  callers can rely on the result. It takes at most 200 bytes of memory for each byte of text.
 *  E_INVAL (damaged, hostile, or of another format), E_NOMEM. On failure *manifest is empty. */
sherd_status sherdi_manifest_parse(sherdi_manifest *manifest, sherdi_mem *mem, const char *path,
                                   const char *text, size_t len_bytes);

/* Its first key: the format. */
#define SHERDI_MANIFEST_KEY "sherd_checkpoint"

/** Writes the name of a rank's data file: "rank-00003-of-00008.safetensors", "frozen-...". */
void sherdi_data_file_name(sherdi_data_file which, int rank, int world_size,
                           char out[SHERDI_CHECKPOINT_NAME_BYTES]);
/** Goes on to the next data file that has bytes, from -1 on; returns whether there is one. `*at` is
 *  then its rank * SHERDI_DATA_FILES + its kind. */
int sherdi_manifest_next_file(const sherdi_manifest *manifest, int *at,
                              char name[SHERDI_CHECKPOINT_NAME_BYTES]);
/** Returns whether it is the name of a data file, of any rank. */
int sherdi_is_data_file_name(const char *name);
/** Checks that a tag can be the name of a folder. E_INVAL: it is empty or too long, begins with a
 *  dot, or has a slash or a control character. */
sherd_status sherdi_tag_check(const char *tag);

#endif
