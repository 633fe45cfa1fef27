/* Writes a data file of a checkpoint. Bytes are passed in order and copied to a few slots, which
 * are checksummed and written past the page cache, with several requests in flight. save_data.c and
 * tools_import.c use it. */
#ifndef SHERDI_ENGINE_CHECKPOINT_WRITER_H
#define SHERDI_ENGINE_CHECKPOINT_WRITER_H

#include "base/mem.h"
#include "offload/io.h"
#include "engine/plan/checkpoint.h"

/* The most writes that are in flight at once. */
#define SHERDI_WRITER_DEPTH 16

/** Called when bytes have been written; may be NULL. */
typedef void (*sherdi_writer_progress_fn)(void *ctx, size_t more_bytes);

typedef struct sherdi_writer_params {
    sherdi_ioq               *queue;
    sherdi_mem               *mem;
    const char               *folder, *name;
    unsigned char            *memory; /* [num_slots * slot_bytes], aligned; borrowed until close */
    size_t                    slot_bytes; /* a multiple of SHERDI_CHECKPOINT_EXTENT_BYTES */
    size_t                    num_slots;
    size_t                    header_bytes, data_bytes; /* the data begins after the header */
    sherdi_writer_progress_fn progress;
    void                     *progress_ctx;
} sherdi_writer_params;

typedef struct sherdi_writer {
    sherdi_writer_params params;
    sherdi_file         *file;
    sherdi_io            ios[SHERDI_WRITER_DEPTH]; /* slots take the requests in turn */
    size_t               taken_bytes;              /* of the data, so far */
    size_t               started;                  /* slots whose write has begun */
    size_t               waited;                   /* slots whose write is over */
    char                *checksums;                /* hex digits, of every extent; ends with NUL */
    sherd_status         status;                   /* the first failure */
} sherdi_writer;

/** Makes the file, with room for all its bytes. E_IO (the message says how much space is missing),
 *  E_NOMEM. On failure no file remains. */
sherd_status sherdi_writer_open(sherdi_writer *writer, const sherdi_writer_params *params);
/** Gives the memory for the next bytes. *room_out says how many fit there: at least 1 until all
 *  data was taken. Waits for a slot. E_IO. */
sherd_status sherdi_writer_reserve(sherdi_writer *writer, unsigned char **out, size_t *room_out);
/** Says that the caller has put `len_bytes` bytes there. A full slot is checksummed, and its write
 *  starts. */
void sherdi_writer_advance(sherdi_writer *writer, size_t len_bytes);
/** Call it after all data: writes the header [header_bytes] and waits until the whole file is on
 *  the medium. E_IO. */
sherd_status sherdi_writer_finish(sherdi_writer *writer, const char *header);
/** Waits for writes in flight and closes the file, which stays. Accepts a writer that was not
 *  opened. */
void sherdi_writer_close(sherdi_writer *writer);

#endif
