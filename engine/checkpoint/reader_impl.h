/* What reader.c and reader_verify.c share. */
#ifndef SHERDI_ENGINE_CHECKPOINT_READER_IMPL_H
#define SHERDI_ENGINE_CHECKPOINT_READER_IMPL_H

#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/kept.h"
#include "engine/checkpoint/reader.h"
#include "engine/checkpoint/safetensors.h"

#define SHERDI_READER_IN_FILE SIZE_MAX

/* Elements of a part of a parameter, somewhere in a data file. */
typedef struct sherdi_reader_found {
    size_t param;
    int    part;
    size_t first, count;
    size_t at;   /* bytes from the start of the data */
    size_t kept; /* the tensor of kept state; SHERDI_READER_IN_FILE: in the data file itself */
} sherdi_reader_found;

/* One data file, and its header once that was read. */
typedef struct sherdi_reader_file {
    sherdi_file         *open; /* NULL: not at the moment */
    uint64_t             used; /* the higher the later */
    int                  is_known;
    sherdi_safetensors  *header;
    const char          *checksums;
    sherdi_kept         *kept; /* state that lies beside it as it was on the drive; NULL: none */
    int                  is_kept_open;
    sherdi_reader_found *tensors; /* by parameter, part, first */
    size_t               num_tensors;
} sherdi_reader_file;

typedef struct sherdi_reader_slot {
    sherdi_reader_file *file; /* NULL: empty */
    size_t              number;
    int                 is_checked;
    uint64_t            used; /* the higher the later */
    sherdi_io           io;
} sherdi_reader_slot;

typedef struct sherdi_reader_name {
    const char *name;
    size_t      param;
} sherdi_reader_name;

struct sherdi_reader {
    sherdi_reader_params params;
    sherdi_manifest      manifest;
    sherdi_reader_name  *names; /* sorted */
    sherdi_reader_file (*files)[SHERDI_DATA_FILES];
    sherdi_reader_file *current; /* the one that is read from */
    int                 num_open;
    sherdi_reader_slot  slots[SHERDI_CHECKPOINT_SLOTS];
    uint64_t            clock;
    uint64_t            read_bytes;
};

/** Of a data file: its path, what the manifest says of it, and itself open with its header read, the first time. */
sherd_status sherdi_reader_path(const sherdi_reader *reader, const sherdi_reader_file *file,
                                char out[SHERDI_CHECKPOINT_PATH_BYTES]);
const sherdi_manifest_file *sherdi_reader_said(const sherdi_reader      *reader,
                                               const sherdi_reader_file *file);
sherd_status                sherdi_reader_use(sherdi_reader *reader, sherdi_reader_file *file);

/** A slot of the file that is used, with what follows on its way; *is_new_out: nobody has looked at its checksums yet. */
sherd_status sherdi_reader_fetch(sherdi_reader *reader, size_t number, sherdi_reader_slot **out,
                                 int *is_new_out);
size_t       sherdi_reader_slot_len(const sherdi_reader *reader, const sherdi_reader_file *file,
                                    size_t number);
/** The extent that begins at `at` in the slot; *len_bytes_out is how long it is. */
int sherdi_reader_extent_is_whole(const sherdi_reader *reader, const sherdi_reader_slot *s,
                                  size_t at, size_t *len_bytes_out);
/** An extent of kept state, checked; valid until the next one. */
sherd_status sherdi_reader_extent(sherdi_reader *reader, sherdi_reader_file *file, size_t extent,
                                  const unsigned char **out);

/** "NAME:PART:FIRST" of a parameter of the manifest, whatever its type. Blobs are none: 0. */
int sherdi_reader_take(sherdi_reader *reader, const sherdi_tensor *tensor, sherdi_data_file which,
                       char *text, sherdi_reader_found *out);
/** Whether a parameter of the manifest has values of that type in such a file. */
int sherdi_reader_dtype_fits(const sherdi_reader *reader, sherdi_data_file which, size_t param,
                             sherdi_tensor_dtype dtype);
/** The key of a blob of that kind; NULL: it is none. */
const char *sherdi_reader_blob_key(const sherdi_tensor *tensor, const char *kind);
/** The tensor of the open file that has the element; NULL: none. */
const sherdi_reader_found *sherdi_reader_tensor(const sherdi_reader_file *file, size_t param,
                                                int part, size_t first);

#endif
