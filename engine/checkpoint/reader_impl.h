/* The reader's data, which reader.c and reader_verify.c share. */
#ifndef SHERDI_ENGINE_CHECKPOINT_READER_IMPL_H
#define SHERDI_ENGINE_CHECKPOINT_READER_IMPL_H

#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/linked.h"
#include "engine/checkpoint/reader.h"
#include "engine/checkpoint/safetensors.h"

#define SHERDI_READER_IN_FILE SIZE_MAX

/* Elements of a part of a parameter in a data file, or in its linked state. */
typedef struct sherdi_reader_found {
    size_t param;
    int    part;
    size_t first, count;
    size_t at;     /* bytes from the start of the data */
    size_t linked; /* the tensor of linked state; SHERDI_READER_IN_FILE: in the data file itself */
} sherdi_reader_found;

/* A data file, and its header after it was read. */
typedef struct sherdi_reader_file {
    sherdi_file         *open; /* NULL: closed at present */
    uint64_t             used; /* time of the last use; higher is later */
    int                  is_known;
    sherdi_safetensors  *header;
    const char          *checksums;
    sherdi_linked       *linked; /* the linked state of the file; NULL: none */
    int                  is_linked_open;
    sherdi_reader_found *tensors; /* sorted by parameter, part, first */
    size_t               num_tensors;
} sherdi_reader_file;

typedef struct sherdi_reader_slot {
    sherdi_reader_file *file; /* NULL: empty */
    size_t              number;
    int                 is_checked;
    int                 is_damaged; /* its checksums do not match */
    uint64_t            used;       /* time of the last use; higher is later */
    sherdi_io           io;
} sherdi_reader_slot;

typedef struct sherdi_reader_name {
    const char *name; /* first, so that sherdi_text_order compares these */
    size_t      param;
} sherdi_reader_name;

struct sherdi_reader {
    sherdi_reader_params params;
    sherdi_manifest      manifest;
    sherdi_reader_name  *names; /* sorted */
    sherdi_reader_file (*files)[SHERDI_DATA_FILES];
    sherdi_reader_file *current; /* the file of the last sherdi_reader_use */
    int                 num_open;
    sherdi_reader_slot  slots[SHERDI_CHECKPOINT_SLOTS];
    uint64_t            clock;
    uint64_t            read_bytes;
    int                *damage; /* of sherdi_reader_tolerate */
};

/** For a data file: write its path; return its entry in the manifest; open it, make it the current
 *  file, and read its header the first time. */
sherd_status sherdi_reader_path(const sherdi_reader *reader, const sherdi_reader_file *file,
                                char out[SHERDI_CHECKPOINT_PATH_BYTES]);
const sherdi_manifest_file *sherdi_reader_said(const sherdi_reader      *reader,
                                               const sherdi_reader_file *file);
sherd_status                sherdi_reader_use(sherdi_reader *reader, sherdi_reader_file *file);

#define SHERDI_READER_ELSEWHERE_BYTES 256
/** Returns whether a file is missing in a checkpoint of several hosts; the text then says where it
 *  may be. */
int sherdi_reader_is_elsewhere(const sherdi_reader *reader, const sherdi_reader_file *file,
                               char *text, size_t len_bytes);

/** Returns slot `number` of the current file, and starts reading the slots that follow.
 *  *is_new_out: its checksums have not been checked. */
sherd_status sherdi_reader_fetch(sherdi_reader *reader, size_t number, sherdi_reader_slot **out,
                                 int *is_new_out);
size_t       sherdi_reader_slot_len(const sherdi_reader *reader, const sherdi_reader_file *file,
                                    size_t number);
/** Returns whether the extent at byte `at` of the linked file matches its checksum; *len_bytes_out
 *  receives its length. */
int sherdi_reader_extent_is_whole(const sherdi_reader *reader, const sherdi_reader_slot *s,
                                  size_t at, size_t *len_bytes_out);
/** Returns an extent of linked state, checked; valid until the next call. */
sherd_status sherdi_reader_extent(sherdi_reader *reader, sherdi_reader_file *file, size_t extent,
                                  const unsigned char **out);

/** Reads the name "NAME:PART:FIRST" of a tensor, of any type, and returns 1 if it belongs to a
 *  parameter of the manifest. Returns 0 for others, such as blobs. */
int sherdi_reader_take(sherdi_reader *reader, const sherdi_tensor *tensor, sherdi_data_file which,
                       char *text, sherdi_reader_found *out);
/** Returns whether a parameter of the manifest has values of this type in this kind of file. */
int sherdi_reader_dtype_fits(const sherdi_reader *reader, sherdi_data_file which, size_t param,
                             sherdi_tensor_dtype dtype);
/** Returns the key of a blob of this kind, and whether it is large; NULL: the tensor is no blob of
 *  this kind. */
const char *sherdi_reader_blob_key(const sherdi_tensor *tensor, sherdi_blob_kind kind,
                                   int *is_large_out);
/** Returns the tensor of a file that has the element; NULL: none has. */
const sherdi_reader_found *sherdi_reader_tensor(const sherdi_reader_file *file, size_t param,
                                                int part, size_t first);

#endif
