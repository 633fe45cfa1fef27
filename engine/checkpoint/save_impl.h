/* A save that runs; shared by save.c, which is what the ranks do together, and save_data.c, which is what each writes. */
#ifndef SHERDI_ENGINE_CHECKPOINT_SAVE_IMPL_H
#define SHERDI_ENGINE_CHECKPOINT_SAVE_IMPL_H

#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/save.h"
#include "engine/checkpoint/writer.h"

#include <pthread.h>
#include <stdatomic.h>

/* What a rank tells the others: of its arguments, then of its files. */
typedef struct sherdi_save_message {
    uint64_t             status;
    uint64_t             arguments; /* hash */
    uint64_t             bytes;     /* that it is going to write */
    sherdi_manifest_file files[SHERDI_DATA_FILES];
    uint64_t             fingerprint, state_fingerprint;
    uint64_t             is_kept; /* its state is a link, and was not looked at */
} sherdi_save_message;

struct sherdi_save {
    sherd_engine     *engine;
    sherd_save_params params;
    char              dir[SHERDI_CHECKPOINT_PATH_BYTES];
    char              tag[SHERDI_CHECKPOINT_NAME_BYTES];
    char              folder[SHERDI_CHECKPOINT_PATH_BYTES]; /* the partial one */
    int               is_async;

    sherdi_ioq                 *queue;
    unsigned char              *slots; /* NULL: the snapshot is used */
    sherdi_safetensors_builder *headers[SHERDI_DATA_FILES];
    const char                 *header_bytes[SHERDI_DATA_FILES];
    size_t                      header_len[SHERDI_DATA_FILES];
    sherdi_writer               writers[SHERDI_DATA_FILES];
    sherdi_save_message         mine;
    sherdi_save_message        *all;
    sherdi_fingerprints         known;        /* when the state was copied */
    size_t                      copied_bytes; /* of an asynchronous one: values in the snapshot */
    unsigned char              *blobs;        /* ... and the rank's blobs, one behind the other */
    size_t                      blobs_bytes;
    sherdi_manifest             manifest;
    uint64_t                    done_bytes, all_bytes;
    int64_t                     start_ns;

    pthread_t    thread; /* of an asynchronous one */
    int          has_thread;
    atomic_int   is_over; /* the thread has done its work */
    sherd_status thread_status;
    char         thread_text[SHERDI_ERROR_BYTES];
};

/** The header of this rank's file, which has data; its length is known, its checksums are not. E_NOMEM. */
sherd_status sherdi_save_header_make(sherdi_save *save, sherdi_data_file which);
/** The file, with room for all of it. E_IO, E_NOMEM. */
sherd_status sherdi_save_writer_make(sherdi_save *save, sherdi_data_file which);
/** All that the trainer has to stand still for: the files are whole, or the state is copied. Only this rank's. E_IO, E_NOMEM,
 *  E_NUMERIC (a fingerprint is not what the last step left). */
sherd_status sherdi_save_data(sherdi_save *save);
/** Writes the copy on a thread; save->is_over tells its end, also where there was nothing to do or no thread to have. */
void sherdi_save_thread_start(sherdi_save *save);
/** Waits for it; what its outcome was. OK without one. */
sherd_status sherdi_save_thread_join(sherdi_save *save);

#endif
