/* What a checkpoint says of itself: manifest.json, which is written last. It has the whole model and how the ranks that
 * saved it shared it, so that a reader finds every element without a look at the data files. docs/checkpoint-format.md
 * is the page for other readers. */
#ifndef SHERDI_ENGINE_CHECKPOINT_MANIFEST_H
#define SHERDI_ENGINE_CHECKPOINT_MANIFEST_H

#include "base/mem.h"
#include "engine/optimizers/scaler.h"
#include "engine/plan/plan.h"

#define SHERDI_CHECKPOINT_FORMAT 1
/* What a frozen parameter has: its values in its compute type. */
#define SHERDI_FROZEN_PART "compute"
/* Most parts of the state of an element, the master weight included. */
#define SHERDI_CHECKPOINT_PARTS           16
#define SHERDI_CHECKPOINT_OPTIMIZERS      16
#define SHERDI_CHECKPOINT_OPTIMIZER_BYTES 32
#define SHERDI_CHECKPOINT_NAME_BYTES      256

/* A rank's two data files. What is frozen does not change and stands apart: a later checkpoint has the same file. */
typedef enum sherdi_data_file {
    SHERDI_DATA_STATE = 0, /* master weights and the other parts, blobs */
    SHERDI_DATA_FROZEN,
    SHERDI_DATA_FILES,
} sherdi_data_file;

typedef struct sherdi_manifest_file {
    uint64_t bytes;           /* 0: there is none, the rank has nothing for it */
    uint64_t header_checksum; /* of the 8 + N first bytes, which have the checksums of the rest */
} sherdi_manifest_file;

typedef struct sherdi_manifest_param {
    char       *name;
    int         ndim;
    size_t      shape[SHERD_MAX_NDIM];
    size_t      elems;
    int         is_frozen;
    sherd_dtype dtype;                 /* of a frozen one's values */
    size_t      segment, offset_elems; /* it begins there in its segment */
} sherdi_manifest_param;

/* Rank r saved the elements [r * slice_elems, (r + 1) * slice_elems) of the segment. */
typedef struct sherdi_manifest_segment {
    size_t slice_elems;
    int    is_frozen;
    int    optimizer; /* which of the manifest's; not of what is frozen */
} sherdi_manifest_segment;

/* What updated parameters. */
typedef struct sherdi_manifest_optimizer {
    char     name[SHERDI_CHECKPOINT_OPTIMIZER_BYTES];
    unsigned parts; /* bit i: its parameters have part i of the manifest's */
} sherdi_manifest_optimizer;

typedef struct sherdi_manifest {
    sherdi_mem *mem;
    char        version[64]; /* of the library that wrote it */
    char        tag[SHERDI_CHECKPOINT_NAME_BYTES];
    int         world_size, stage;
    sherd_dtype compute_dtype; /* the engine's; parameters may have another */
    /* Of one the head speaks for all segments; of several each says its own, and the head has the first. */
    sherdi_manifest_optimizer optimizers[SHERDI_CHECKPOINT_OPTIMIZERS];
    int                       num_optimizers;
    int                       num_parts;
    char                      parts[SHERDI_CHECKPOINT_PARTS][32]; /* the first is "master" */
    const char
        *held[SHERDI_CHECKPOINT_PARTS]; /* by part: the name of the encoding that the run had it
                                                  in (kernels/encoding.h), of several the one that
                                                  drops most; files have fp32. Static storage */

    int64_t       step, micro_step, skipped_steps;
    int           accumulation, micro_batch_size;
    char          run_text[256];
    sherdi_scaler scaler;
    uint64_t      fingerprint;           /* of all parameters, frozen ones included */
    uint64_t      frozen_fingerprint;    /* of these alone */
    int           has_state_fingerprint; /* 0: some of the state was kept, and not looked at */
    uint64_t      state_fingerprint;     /* of the parts behind the master; numerics.md */
    uint64_t      data_bytes;            /* of all data files */
    int64_t       saved_s;               /* seconds since 1970 */
    uint64_t      checksum;              /* of its text; of one that was read */

    sherdi_manifest_param   *params;
    size_t                   num_params, cap_params;
    sherdi_manifest_segment *segments;
    size_t                   num_segments, cap_segments;
    sherdi_manifest_file (*files)[SHERDI_DATA_FILES]; /* by rank */
} sherdi_manifest;

void sherdi_manifest_init(sherdi_manifest *manifest, sherdi_mem *mem);
void sherdi_manifest_fini(sherdi_manifest *manifest);

/** The encoding that a run had a part in. */
static inline const char *sherdi_manifest_held(const sherdi_manifest *manifest, int part)
{
    return manifest->held[part] == NULL ? sherdi_encoding_name(SHERDI_ENCODING_F32)
                                        : manifest->held[part];
}

/** The number of a part; -1: it has none of that name. */
int sherdi_manifest_find_part(const sherdi_manifest *manifest, const char *name);

/** What updated a parameter of it; NULL: it is frozen. */
static inline const sherdi_manifest_optimizer *sherdi_manifest_optimizer_of(
    const sherdi_manifest *manifest, size_t param)
{
    const sherdi_manifest_segment *segment = &manifest->segments[manifest->params[param].segment];

    return segment->is_frozen ? NULL : &manifest->optimizers[segment->optimizer];
}

/** Whether a parameter of it has that part; what is frozen has its values as part 0. */
static inline int sherdi_manifest_has_part(const sherdi_manifest *manifest, size_t param, int part)
{
    const sherdi_manifest_optimizer *optimizer = sherdi_manifest_optimizer_of(manifest, param);

    return optimizer == NULL ? part == 0 : (int)(optimizer->parts >> part & 1);
}

/** "AdamW, Lamb", as much as there is room for. */
void sherdi_manifest_optimizers(const sherdi_manifest *manifest, char *text, size_t len_bytes);

/** As text with its own checksum at the end, in memory that the caller gives to sherdi_manifest_text_free. E_NOMEM. */
sherd_status sherdi_manifest_text(const sherdi_manifest *manifest, char **text_out,
                                  size_t *len_bytes_out);
void         sherdi_manifest_text_free(char *text);
/** From text; `path` is for messages. Everything that it says is held against the rest: what comes back can be
 *  relied on. Memory is at most 200 bytes for each byte of text. E_INVAL (damaged, hostile, or of another format),
 *  E_NOMEM. On failure *manifest is empty. */
sherd_status sherdi_manifest_parse(sherdi_manifest *manifest, sherdi_mem *mem, const char *path,
                                   const char *text, size_t len_bytes);

/** Its data file of a rank: "rank-00003-of-00008.safetensors", "frozen-...". */
void sherdi_data_file_name(sherdi_data_file which, int rank, int world_size,
                           char out[SHERDI_CHECKPOINT_NAME_BYTES]);
/** A tag may be the name of a folder: E_INVAL when it is empty, begins with a dot, has a slash or a control character, or is
 *  too long. */
sherd_status sherdi_tag_check(const char *tag);

#endif
