/* Files of weights, written from any source and read by ranges. export.c and import.c use this with
 * an engine; tools_export.c and tools_import.c use it with a checkpoint. A file is safetensors (one
 * file, or several with an index), or "raw": of another format, whose tensors follow a header of
 * its own. */
#ifndef SHERDI_CHECKPOINT_WEIGHTS_H
#define SHERDI_CHECKPOINT_WEIGHTS_H

#include "base/mem.h"
#include "engine/checkpoint/safetensors.h"
#include "sherd.h"

/* The elements that are read and written at once. */
#define SHERDI_WEIGHTS_PORTION_ELEMS ((size_t)1 << 20)
/* The most data of one file of a folder, if the caller gives no limit; the number is that of
 * transformers. */
#define SHERDI_WEIGHTS_FILE_BYTES ((size_t)5000000000)

/* ---- maps ---- */

/* A parameter of the model against which maps are checked. */
typedef struct sherdi_weights_param {
    const char   *name;
    int           ndim;
    const size_t *shape;
    size_t        elems;
} sherdi_weights_param;

static inline sherdi_weights_param sherdi_weights_param_of(const char *name, int ndim,
                                                           const size_t *shape, size_t elems)
{
    return (sherdi_weights_param){.name = name, .ndim = ndim, .shape = shape, .elems = elems};
}

/** Returns whether a parameter was found, and gives its number; `found` below 0: it was not. */
static inline int sherdi_weights_found(int64_t found, size_t *param_out)
{
    *param_out = found < 0 ? 0 : (size_t)found;
    return found >= 0;
}

/* A copied list of maps. Its structs have the size of this library's version, independently of the
 * caller's size. */
typedef struct sherdi_weights_maps {
    sherd_tensor_map *tensors;
    size_t            num_tensors;
} sherdi_weights_maps;

/** Returns the elements of a checked map. */
size_t sherdi_weights_map_elems(const sherd_tensor_map *map);
/** Return the type of a checked map's elements in the caller's memory, and the bytes of all of
 *  them. */
sherdi_tensor_dtype sherdi_weights_data_dtype(const sherd_tensor_map *map);
size_t              sherdi_weights_data_bytes(const sherd_tensor_map *map);
/**
 *  A model: `get` returns a parameter by number, `find` by name. sherdi_weights_maps_open copies
 *  the caller's maps (their strings are borrowed) and checks each of them: its shape, and that its
 *  elements lie inside its parameter. If `given` is NULL, it makes one map for each of the
 *  `num_params` parameters. E_INVAL with the tensor, E_NOMEM. */
typedef struct sherdi_weights_model {
    const void *ctx;
    size_t      num_params;
    sherdi_weights_param (*get)(const void *ctx, size_t param);
    int (*find)(const void *ctx, const char *name, size_t *param_out);
} sherdi_weights_model;
sherd_status sherdi_weights_maps_open(sherdi_mem *mem, const sherdi_weights_model *model,
                                      const sherd_tensor_map *given, size_t num_given,
                                      sherdi_weights_maps *out);
void         sherdi_weights_maps_close(sherdi_weights_maps *maps);

/* ---- writing ---- */

/* A source of values. If it belongs to several ranks, every rank makes the same calls in the same
 * order. */
typedef struct sherdi_weights_source {
    void *ctx;
    int   is_writer; /* this rank writes; the others only take part in read and agree */
    /* Reads elements [first_elem, first_elem + count_elems) of a parameter's `value` (NULL: the
     * weights). `out` is NULL on ranks that do not write. All ranks return the same. */
    sherd_status (*read)(void *ctx, const char *param, const char *value, size_t first_elem,
                         size_t count_elems, float *out);
    /* Returns OK if `own` is OK on all ranks, else what failed. NULL: there is only one rank. */
    sherd_status (*agree)(void *ctx, sherd_status own);
} sherdi_weights_source;

typedef struct sherdi_weights_writing {
    sherdi_mem                  *mem;
    const sherdi_weights_source *source;
    const sherd_tensor_map      *tensors; /* checked */
    size_t                       num_tensors;
    sherd_dtype                  dtype;
    size_t                       max_file_bytes;
    const void                  *raw_header; /* NULL: safetensors */
    size_t                       raw_header_bytes;
    sherd_progress_fn            progress; /* may be NULL */
    void                        *progress_ctx;
} sherdi_weights_writing;

/** Writes the files under partial names, syncs and renames them, as sherd.h says of exports.
 *  Collective if the source has several ranks. */
sherd_status sherdi_weights_write(const char *path, const sherdi_weights_writing *writing);

/* ---- reading ---- */

typedef struct sherdi_weights_file sherdi_weights_file;

/* A tensor of a file of weights. */
typedef struct sherdi_weights_tensor {
    const sherdi_tensor *about;
    size_t               shard;
    size_t               number; /* among all tensors of all shards */
} sherdi_weights_tensor;

/* A file of another format: the tensors of `maps`, one after the other, behind a header. */
typedef struct sherdi_weights_raw {
    size_t                     header_bytes;
    sherd_dtype                dtype;
    const sherdi_weights_maps *maps;
} sherdi_weights_raw;

/** Opens a file, an index, or a folder that has one of them; with `raw`, a file of another format.
 *  E_INVAL (also: a raw file has another size), E_IO, E_NOMEM. */
sherd_status sherdi_weights_open(sherdi_mem *mem, const char *path, const sherdi_weights_raw *raw,
                                 sherdi_weights_file **out);
/** Accepts NULL. */
void sherdi_weights_close(sherdi_weights_file *file);

/** Finds a tensor by name and returns 1; 0: there is none. */
int sherdi_weights_find(const sherdi_weights_file *file, const char *name,
                        sherdi_weights_tensor *out);
/** Stores tensor number i and returns 1; 0: i is too large. */
int sherdi_weights_get(const sherdi_weights_file *file, size_t i, sherdi_weights_tensor *out);

/** Fills the caller's memory of a checked map. If the file's type is another, values are converted;
 *  both must be floats then. E_IO. */
sherd_status sherdi_weights_data_read(const sherdi_weights_file *file, sherdi_weights_tensor tensor,
                                      const sherd_tensor_map *map);

/** Returns whether values of this type can be read as fp32; true for fp64, fp32, bf16 and fp16. */
int sherdi_weights_is_readable(sherdi_tensor_dtype dtype);
/** Reads elements [first, first + count) of a tensor of this type, in the order of the file. It
 *  reads no other bytes. E_IO. */
sherd_status sherdi_weights_read(const sherdi_weights_file *file, sherdi_weights_tensor tensor,
                                 size_t first_elem, size_t count_elems, float *out);
/** Does the same in the order of the transposed matrix. */
sherd_status sherdi_weights_read_transposed(const sherdi_weights_file *file,
                                            sherdi_weights_tensor tensor, size_t first_elem,
                                            size_t count_elems, float *out);

#endif
