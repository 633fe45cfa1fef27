/* Files of weights, written from any source and read by ranges: what export.c and import.c do with an engine, and what
 * reads them from a checkpoint. No engine here. Files are safetensors, one or several with an index, or of another format
 * whose tensors follow a header of its own ("raw"). */
#ifndef SHERDI_CHECKPOINT_WEIGHTS_H
#define SHERDI_CHECKPOINT_WEIGHTS_H

#include "base/mem.h"
#include "engine/checkpoint/safetensors.h"
#include "sherd.h"

/* Elements that are read and written at once. */
#define SHERDI_WEIGHTS_PORTION_ELEMS ((size_t)1 << 20)
/* Most data of a file of a folder, where nobody says more: as transformers has it. */
#define SHERDI_WEIGHTS_FILE_BYTES ((size_t)5000000000)

/* ---- maps ---- */

/* A parameter of the model that a map is held against. */
typedef struct sherdi_weights_param {
    const char   *name;
    int           ndim;
    const size_t *shape;
    size_t        elems;
} sherdi_weights_param;

/* A list of maps of its own: sizes are those of this library, whatever the caller's are. */
typedef struct sherdi_weights_maps {
    sherd_tensor_map *tensors;
    size_t            num_tensors;
} sherdi_weights_maps;

/** Elements of a checked map. */
size_t sherdi_weights_map_elems(const sherd_tensor_map *map);
/** The type of a checked map's elements in the caller's memory, whose bytes are its elements' in this type. */
sherdi_tensor_dtype sherdi_weights_data_dtype(const sherd_tensor_map *map);
size_t              sherdi_weights_data_bytes(const sherd_tensor_map *map);
/**
 * Copies the caller's maps (their strings are borrowed) and checks each: shape, and that its elements are in the
 * parameter that `find` gives for a name (NULL: there is none). With `given` NULL there is one map for each of
 * `num_params` parameters, which `get` gives by number.
 * E_INVAL with the tensor, E_NOMEM.
 */
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

/* Where values come from. With ranks behind it every rank makes the same calls in the same order. */
typedef struct sherdi_weights_source {
    void *ctx;
    int   is_writer; /* this rank writes; the others only take part in read and agree */
    /* Values [first_elem, first_elem + count_elems) of a parameter, or of the part `value` of its state (NULL: the
     * weights). `out` is NULL where this rank does not write. All ranks return the same. */
    sherd_status (*read)(void *ctx, const char *param, const char *value, size_t first_elem,
                         size_t count_elems, float *out);
    /* OK when it is OK on all ranks; else what failed. NULL: there is one. */
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

/** Files beside, synced and renamed, as sherd.h says of exports. */
sherd_status sherdi_weights_write(const char *path, const sherdi_weights_writing *writing);

/* ---- reading ---- */

typedef struct sherdi_weights_file sherdi_weights_file;

/* A tensor of the file at hand. */
typedef struct sherdi_weights_tensor {
    const sherdi_tensor *about;
    size_t               shard;
    size_t               number; /* among all of the file */
} sherdi_weights_tensor;

/** A file, an index, or a folder with one of them. E_INVAL, E_IO, E_NOMEM. */
sherd_status sherdi_weights_open(sherdi_mem *mem, const char *path, sherdi_weights_file **out);
/** A raw file with the tensors of `maps` behind `header_bytes` bytes. E_INVAL where it has another size. */
sherd_status sherdi_weights_open_raw(sherdi_mem *mem, const char *path, size_t header_bytes,
                                     sherd_dtype dtype, const sherdi_weights_maps *maps,
                                     sherdi_weights_file **out);
/** Accepts NULL. */
void sherdi_weights_close(sherdi_weights_file *file);

/** 0 when there is none of that name. */
int sherdi_weights_find(const sherdi_weights_file *file, const char *name,
                        sherdi_weights_tensor *out);
/** All tensors, by number from 0 on; 0 past the last. */
int sherdi_weights_get(const sherdi_weights_file *file, size_t i, sherdi_weights_tensor *out);

/** Fills the caller's memory of a checked map; a type of the file that is another is converted, if both are of floats. E_IO. */
sherd_status sherdi_weights_data_read(const sherdi_weights_file *file, sherdi_weights_tensor tensor,
                                      const sherd_tensor_map *map);

/** Whether values of this type can be read as fp32: fp64, fp32, bf16 and fp16. */
int sherdi_weights_is_readable(sherdi_tensor_dtype dtype);
/** Elements [first, first + count) of a tensor of such a type, in the order of the file. Reads what it gives and no more. E_IO. */
sherd_status sherdi_weights_read(const sherdi_weights_file *file, sherdi_weights_tensor tensor,
                                 size_t first_elem, size_t count_elems, float *out);
/** The same in the order of the transposed matrix. */
sherd_status sherdi_weights_read_transposed(const sherdi_weights_file *file,
                                            sherdi_weights_tensor tensor, size_t first_elem,
                                            size_t count_elems, float *out);

#endif
