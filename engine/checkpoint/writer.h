/* Writes a data file: bytes come in order, go through a few slots, are checksummed and written with several requests in
 * flight past the page cache. */
#ifndef SHERDI_ENGINE_CHECKPOINT_WRITER_H
#define SHERDI_ENGINE_CHECKPOINT_WRITER_H

#include "base/mem.h"
#include "offload/io.h"

/* Writes that are on their way at once. */
#define SHERDI_WRITER_DEPTH 16

/** Called as bytes are written; may be NULL. */
typedef void (*sherdi_writer_progress_fn)(void *ctx, size_t more_bytes);

typedef struct sherdi_writer_params {
    sherdi_ioq               *queue;
    sherdi_mem               *mem;
    const char               *folder, *name;
    unsigned char            *memory; /* [num_slots * slot_bytes], aligned; borrowed until close */
    size_t                    slot_bytes; /* a multiple of SHERDI_CHECKPOINT_EXTENT_BYTES */
    size_t                    num_slots;
    size_t                    header_bytes, data_bytes; /* the data begins behind the header */
    sherdi_writer_progress_fn progress;
    void                     *progress_ctx;
} sherdi_writer_params;

typedef struct sherdi_writer {
    sherdi_writer_params params;
    sherdi_file         *file;
    sherdi_io            ios[SHERDI_WRITER_DEPTH]; /* of the slots with that remainder */
    size_t               taken_bytes;              /* of the data, so far */
    size_t               started;                  /* slots that are written, or on their way */
    size_t               waited;                   /* ... whose write is over */
    char                *checksums;                /* hex, of every extent; ends with a zero */
    sherd_status         status;                   /* the first failure */
} sherdi_writer;

/** Makes the file with room for all of it. E_IO (with what is missing), E_NOMEM. On failure nothing is left. */
sherd_status sherdi_writer_open(sherdi_writer *writer, const sherdi_writer_params *params);
/** Where the next bytes go; *room_out is how many fit there, at least 1 while data is to come. Waits for a slot. E_IO. */
sherd_status sherdi_writer_reserve(sherdi_writer *writer, unsigned char **out, size_t *room_out);
/** So many bytes are there; a slot that is full is checksummed and written. */
void sherdi_writer_advance(sherdi_writer *writer, size_t len_bytes);
/** Behind all of the data: the header [header_bytes], then all of it is on the medium. E_IO. */
sherd_status sherdi_writer_finish(sherdi_writer *writer, const char *header);
/** Waits for what is in flight; closes. The file stays. Accepts one that was not opened. */
void sherdi_writer_close(sherdi_writer *writer);

#endif
