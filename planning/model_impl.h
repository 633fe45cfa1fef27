/* How a model is made: every source of a model (built-in, counted or read) adds units and
 * parameters to a maker, which checks them in one place. Only the model files of this folder use
 * it. */
#ifndef PLANNING_MODEL_IMPL_H
#define PLANNING_MODEL_IMPL_H

#include "models/hf.h"
#include "planning/model.h"

#include <jansson.h>
#include <stdio.h>

/* Most parameters; no model has more. */
#define PLANNING_MOST_PARAMS ((size_t)1 << 17)
/* Most elements of a model, as in the engine: the bytes of a model of this size fit a size_t. */
#define PLANNING_MOST_ELEMS (SIZE_MAX / 64)
/* Largest JSON text that is read, also as a safetensors header (where it is the format's own
 * limit). */
#define PLANNING_MOST_JSON_BYTES ((size_t)100 << 20)

typedef struct planning_maker {
    planning_model *model;
    size_t          cap_units, cap_params, cap_reads;
    const char     *origin; /* a path, with which every message begins; NULL: none */
    char           *why;    /* the caller's buffer for the message */
    size_t          why_bytes;
} planning_maker;

/* Functions that can fail return 0, or -1 with a message in `why`. */

int planning_maker_init(planning_maker *maker, const char *origin, char *why, size_t why_bytes);
/** Writes the message, "origin: ..."; returns -1. */
int planning_maker_fail(planning_maker *maker, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int planning_maker_no_memory(planning_maker *maker);
int planning_maker_set_label(planning_maker *maker, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/** Makes room for one more element after `count`. */
int planning_array_grow(planning_maker *maker, void **array, size_t count, size_t *capacity,
                        size_t elem_bytes);
int planning_maker_add_unit(planning_maker *maker, const char *name);
/** Adds a parameter to the unit that was added last. */
int planning_maker_add_param(planning_maker *maker, const char *name, int ndim, const size_t *shape,
                             int is_frozen);
int planning_maker_add_read(planning_maker *maker, size_t unit, size_t param);
/** Adds all units of an architecture whose sizes are known to fit together. */
int planning_maker_add_units(planning_maker *maker, const arch *sizes);
/** The same for an architecture that the trainer computes; checks its sizes first. */
int planning_maker_add_arch(planning_maker *maker, const arch *sizes);

/** Ends the making. Returns the model, or NULL where `result` is not 0 or the parts are no valid
 *  model. */
planning_model *planning_maker_finish(planning_maker *maker, int result);

/* A regular file, open for reading. */
typedef struct planning_file {
    FILE  *stream;
    size_t len_bytes;
} planning_file;

int  planning_file_open(planning_maker *maker, const char *path, planning_file *out);
void planning_file_close(planning_file *file);
/** Reads exactly `len_bytes` bytes from an offset. */
int planning_file_read(planning_maker *maker, const planning_file *file, size_t offset_bytes,
                       void *bytes, size_t len_bytes);
/** Parses JSON text of the file. Returns NULL with a message. */
json_t *planning_file_json(planning_maker *maker, const planning_file *file, size_t offset_bytes,
                           size_t len_bytes);
/** Returns the little-endian number in `count` bytes. */
size_t planning_bytes_size(const unsigned char *bytes, size_t count);
/** Returns an allocated text; NULL with a message. */
char *planning_text(planning_maker *maker, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int planning_name_ends(const char *name, const char *end);

/** Reads `value` as a size between `least` and `most`; `where` names it in the message. */
int planning_json_size(planning_maker *maker, const json_t *value, const char *where, size_t least,
                       size_t most, size_t *out);

/* The tensors of files, before they are sorted into units. */
typedef struct planning_tensor planning_tensor;
typedef struct planning_tensors {
    planning_tensor *tensors;
    size_t           count, capacity;
    /* of tensors that are read, and of the others, which are no parameters */
    size_t float_elems, integer_elems;
} planning_tensors;

/** Adds a tensor. `shape` has at least the first SHERD_MAX_NDIM sizes. */
int planning_tensors_append(planning_maker *maker, planning_tensors *list, const char *name,
                            int ndim, const size_t *shape);
/** Sorts the tensors, and adds them as units and parameters. */
int  planning_tensors_add(planning_maker *maker, planning_tensors *list);
void planning_tensors_fini(planning_tensors *list);

/* Readers of the formats; `name` is the file in the label. */
int planning_read_config(planning_maker *maker, const json_t *root, const char *name);
int planning_read_units(planning_maker *maker, const json_t *root, const char *name);
int planning_read_index(planning_maker *maker, const json_t *root, const char *name);
int planning_read_safetensors(planning_maker *maker, const planning_file *file, const char *name);
int planning_read_bin(planning_maker *maker, const planning_file *file, const char *name);

#endif
