/* safetensors files, of which checkpoints, exports and imports consist. A file has 8 bytes with the
 * length of the header (little-endian), a header of JSON that names each tensor with its type,
 * shape and range of bytes, and then the data. The format:
 * https://github.com/huggingface/safetensors#format.
 *
 * Reading is strict. It accepts what the safetensors library accepts, and also comments and
 * superfluous commas, which base/json.h allows and which do no harm. A file may come from anywhere,
 * so every number in it is checked, and memory is limited by the length of the header, which is
 * read in full before it is parsed. */
#ifndef SHERDI_CHECKPOINT_SAFETENSORS_H
#define SHERDI_CHECKPOINT_SAFETENSORS_H

#include "base/mem.h"

/* The longest header; the limit is that of the safetensors library. */
#define SHERDI_SAFETENSORS_MAX_HEADER_BYTES ((size_t)100000000)
/* The bytes of the length in front of the header. */
#define SHERDI_SAFETENSORS_PREFIX_BYTES ((size_t)8)

/* Types: the name in a file, and the bytes of an element. */
#define SHERDI_TENSOR_DTYPE_LIST(X)                                                                \
    X(F64, 8)                                                                                      \
    X(F32, 4)                                                                                      \
    X(F16, 2)                                                                                      \
    X(BF16, 2)                                                                                     \
    X(I64, 8)                                                                                      \
    X(I32, 4)                                                                                      \
    X(I16, 2)                                                                                      \
    X(I8, 1)                                                                                       \
    X(U64, 8)                                                                                      \
    X(U32, 4)                                                                                      \
    X(U16, 2)                                                                                      \
    X(U8, 1)                                                                                       \
    X(BOOL, 1)                                                                                     \
    X(F8_E5M2, 1)                                                                                  \
    X(F8_E4M3, 1)

typedef enum sherdi_tensor_dtype {
#define SHERDI_TENSOR_ENUM(name, bytes) SHERDI_TENSOR_##name,
    SHERDI_TENSOR_DTYPE_LIST(SHERDI_TENSOR_ENUM)
#undef SHERDI_TENSOR_ENUM
        SHERDI_TENSOR_DTYPES
} sherdi_tensor_dtype;

const char *sherdi_tensor_dtype_name(sherdi_tensor_dtype dtype);
size_t      sherdi_tensor_dtype_bytes(sherdi_tensor_dtype dtype);
/** Returns the type of this name; SHERDI_TENSOR_DTYPES: there is none. */
sherdi_tensor_dtype sherdi_tensor_dtype_of(const char *name);

/** The order of two names, for qsort and bsearch over pointers to structs that begin with one. */
int sherdi_named_order(const void *a, const void *b);

typedef struct sherdi_tensor {
    const char         *name;
    sherdi_tensor_dtype dtype;
    int                 ndim; /* 0: one element */
    size_t              shape[SHERD_MAX_NDIM];
    size_t              elems;
    size_t              begin, end; /* bytes, from the first byte of the data */
} sherdi_tensor;

typedef struct sherdi_tensor_note {
    const char *key, *value;
} sherdi_tensor_note;

/* ---- reading ---- */

/* The header of a file, which owns all its strings. */
typedef struct sherdi_safetensors {
    const sherdi_tensor      *tensors; /* in the order of their data */
    size_t                    num_tensors;
    const sherdi_tensor_note *metadata; /* in the order of the file */
    size_t                    num_metadata;
    size_t                    data_at;    /* where the data begins in the file */
    size_t                    data_bytes; /* from there to the end of the file */
    const char               *label;      /* name of the file, for messages */
} sherdi_safetensors;

/**
 *  Parses the header of a file of `file_bytes` bytes: `text` is the header after the length, and
 *  `len_bytes` is that length.
 *
 *  Refuses    unknown types, more than SHERD_MAX_NDIM dimensions, ranges that do not fit type and
 *             shape, holes, overlaps, data that is not exactly the rest of the file, the same name
 *             twice, metadata that is not a string.
 *  Memory     at most 100 bytes for each byte of header while it parses (for lists of small
 *             numbers; 12 for headers as they are usually written), then at most 2.
 *  Ownership  `text` and `label` (for messages) are copied. The account must outlive *out.
 *  Errors     E_INVAL with label and tensor, E_NOMEM.
 */
sherd_status sherdi_safetensors_parse(sherdi_mem *mem, const char *label, const char *text,
                                      size_t len_bytes, size_t file_bytes,
                                      sherdi_safetensors **out);
/** Does the same for the file at `path`, and closes it. If fd_out is not NULL, the file stays open
 *  and the caller owns *fd_out. */
sherd_status sherdi_safetensors_open(sherdi_mem *mem, const char *path, int *fd_out,
                                     sherdi_safetensors **out);
/** Accepts NULL. */
void sherdi_safetensors_destroy(sherdi_safetensors *file);

/** Finds a tensor by name, in logarithmic time; NULL: there is none. */
const sherdi_tensor *sherdi_safetensors_find(const sherdi_safetensors *file, const char *name);
/** Returns the value of a metadata key; NULL: there is none. */
const char *sherdi_safetensors_note(const sherdi_safetensors *file, const char *key);

/* ---- writing ---- */

typedef struct sherdi_safetensors_builder sherdi_safetensors_builder;

/**
 *  Starts a header. The data of tensors follows without holes, in the order in which they are
 *  added. Add wide types first, so that each tensor begins at a multiple of its element.
 *
 *  @align_bytes   the data will begin at a multiple of this: a power of two, at least 8
 */
sherd_status sherdi_safetensors_begin(sherdi_mem *mem, size_t align_bytes,
                                      sherdi_safetensors_builder **out);
/** Adds a tensor. *offset_out (offset_out may be NULL) is where its bytes begin, from the first
 *  byte of the data. The name is copied. E_INVAL (a shape with too many elements; a name that is
 *  not UTF-8, or is "__metadata__"), E_NOMEM. */
sherd_status sherdi_safetensors_add(sherdi_safetensors_builder *builder, const char *name,
                                    sherdi_tensor_dtype dtype, int ndim, const size_t *shape,
                                    size_t *offset_out);
/** Adds a string to the metadata; key and value are copied. */
sherd_status sherdi_safetensors_metadata(sherdi_safetensors_builder *builder, const char *key,
                                         const char *value);
/** Does the same for a value that is known only after the data was written: it reserves room for up
 *  to `value_bytes` bytes. The value is "" until sherdi_safetensors_set. */
sherd_status sherdi_safetensors_reserve(sherdi_safetensors_builder *builder, const char *key,
                                        size_t value_bytes);
/** Finishes the header: the first bytes of the file, whose number is a multiple of align_bytes. The
 *  builder owns them. Call it once. E_INVAL (two tensors or two keys of one name, a header longer
 *  than the format allows), E_NOMEM. */
sherd_status sherdi_safetensors_finish(sherdi_safetensors_builder *builder, const char **bytes_out,
                                       size_t *len_bytes_out);
/** Returns the bytes of all tensors together. */
size_t sherdi_safetensors_data_bytes(const sherdi_safetensors_builder *builder);
/** Sets a reserved value in the finished bytes, whose number does not change. The value must have
 *  no character that JSON would escape. E_INVAL (longer than its room, a control character, no such
 *  key). */
sherd_status sherdi_safetensors_set(sherdi_safetensors_builder *builder, const char *key,
                                    const char *value);
/** Accepts NULL. */
void sherdi_safetensors_builder_destroy(sherdi_safetensors_builder *builder);

#endif
