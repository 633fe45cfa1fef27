/* safetensors files: 8 bytes that say how long the header is (little-endian), a header of JSON that names each tensor
 * with its type, shape and range of bytes, then the data. What checkpoints, exports and imports are made of.
 * The format: https://github.com/huggingface/safetensors#format.
 *
 * Reading is strict: what is taken is what the safetensors library takes too, but for comments and commas too many,
 * which base/json.h allows and which do no harm. A file may come from anywhere: every number in it is checked, and memory
 * follows from the length of the header, which is there in full before it is parsed. */
#ifndef SHERDI_CHECKPOINT_SAFETENSORS_H
#define SHERDI_CHECKPOINT_SAFETENSORS_H

#include "base/mem.h"

/* Longest header, as the safetensors library has it. */
#define SHERDI_SAFETENSORS_MAX_HEADER_BYTES ((size_t)100000000)
/* Of the length in front of the header. */
#define SHERDI_SAFETENSORS_PREFIX_BYTES ((size_t)8)

/* Name in a file, bytes of an element. */
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
/** SHERDI_TENSOR_DTYPES where no type has this name. */
sherdi_tensor_dtype sherdi_tensor_dtype_of(const char *name);

typedef struct sherdi_tensor {
    const char         *name;
    sherdi_tensor_dtype dtype;
    int                 ndim; /* 0: one element */
    size_t              shape[SHERD_MAX_NDIM];
    size_t              elems;
    size_t              begin, end; /* bytes, counted from the first byte of data */
} sherdi_tensor;

typedef struct sherdi_tensor_note {
    const char *key, *value;
} sherdi_tensor_note;

/* ---- reading ---- */

/* The header of a file. Strings belong to it. */
typedef struct sherdi_safetensors {
    const sherdi_tensor      *tensors; /* in the order of their data */
    size_t                    num_tensors;
    const sherdi_tensor_note *metadata; /* in the order of the file */
    size_t                    num_metadata;
    size_t                    data_at;    /* where the data begin in the file */
    size_t                    data_bytes; /* from there to its end */
    const char               *label;      /* the file's, for messages */
} sherdi_safetensors;

/**
 * The header of a file of `file_bytes` bytes: `text` is what stands behind the length, `len_bytes` what the length says.
 *
 * Refuses    unknown types, more than SHERD_MAX_NDIM dimensions, ranges that do not fit type and shape, holes, overlaps,
 *            data that are not the file's rest, the same name twice, metadata that are no strings.
 * Memory     while it parses at most 100 bytes for each byte of header (lists of small numbers; for headers as
 *            they are written 12), then at most 2.
 * Ownership  `text` and `label` (for messages) are copied. The account must outlive *out.
 * Errors     E_INVAL with label and tensor, E_NOMEM.
 */
sherd_status sherdi_safetensors_parse(sherdi_mem *mem, const char *label, const char *text,
                                      size_t len_bytes, size_t file_bytes,
                                      sherdi_safetensors **out);
/** Reads the header of an open file of `file_bytes` bytes; its offset is neither used nor moved. Blocks. E_IO, E_INVAL,
 *  E_NOMEM. */
sherd_status sherdi_safetensors_read(sherdi_mem *mem, const char *label, int fd, size_t file_bytes,
                                     sherdi_safetensors **out);
/** The same of the file at `path`, which is closed again: with *fd_out not NULL it stays open, and is the caller's. */
sherd_status sherdi_safetensors_open(sherdi_mem *mem, const char *path, int *fd_out,
                                     sherdi_safetensors **out);
/** Accepts NULL. */
void sherdi_safetensors_destroy(sherdi_safetensors *file);

/** By name, in logarithmic time; NULL: there is none. */
const sherdi_tensor *sherdi_safetensors_find(const sherdi_safetensors *file, const char *name);
/** The value of a key of the metadata; NULL: there is none. */
const char *sherdi_safetensors_note(const sherdi_safetensors *file, const char *key);

/* ---- writing ---- */

typedef struct sherdi_safetensors_builder sherdi_safetensors_builder;

/**
 * Starts a header. The data of the tensors follow each other without holes in the order in which they are added; so that
 * each begins at a multiple of its element, wide types come first.
 *
 * @align_bytes   the data will begin at a multiple of it: a power of two, at least 8
 */
sherd_status sherdi_safetensors_begin(sherdi_mem *mem, size_t align_bytes,
                                      sherdi_safetensors_builder **out);
/** One tensor more; *offset_out (may be NULL) is where its bytes begin, counted from the first byte of data. The name is
 *  copied. E_INVAL (shape that has too many elements, name that is not UTF-8 or "__metadata__"), E_NOMEM. */
sherd_status sherdi_safetensors_add(sherdi_safetensors_builder *builder, const char *name,
                                    sherdi_tensor_dtype dtype, int ndim, const size_t *shape,
                                    size_t *offset_out);
/** A string of the metadata; both are copied. */
sherd_status sherdi_safetensors_metadata(sherdi_safetensors_builder *builder, const char *key,
                                         const char *value);
/** The same with a value that is known only when the data have been written: room for one of up to `value_bytes` bytes.
 *  Until it is set it is "". */
sherd_status sherdi_safetensors_reserve(sherdi_safetensors_builder *builder, const char *key,
                                        size_t value_bytes);
/** Lays the header out. The bytes, a multiple of align_bytes in number and the first of the file, are the builder's.
 *  E_INVAL (two tensors or two keys of one name, a header longer than the format allows), E_NOMEM. */
sherd_status sherdi_safetensors_finish(sherdi_safetensors_builder *builder, const char **bytes_out,
                                       size_t *len_bytes_out);
/** Of all tensors together. */
size_t sherdi_safetensors_data_bytes(const sherdi_safetensors_builder *builder);
/** Sets a reserved value in the finished bytes, whose number stays. The value has no character that JSON would escape.
 *  E_INVAL (longer than its room, such a character, no such key). */
sherd_status sherdi_safetensors_set(sherdi_safetensors_builder *builder, const char *key,
                                    const char *value);
/** Accepts NULL. */
void sherdi_safetensors_builder_destroy(sherdi_safetensors_builder *builder);

#endif
