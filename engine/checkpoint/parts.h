/* A load whose ranks do not all find what they need: hosts may have only their parts of a checkpoint,
 * or nothing of it. The ranks that have a file send it to the hosts that lack it. If no rank has it,
 * the load fails before anything is loaded, on all ranks with the same message. load.c uses this. */
#ifndef SHERDI_ENGINE_CHECKPOINT_PARTS_H
#define SHERDI_ENGINE_CHECKPOINT_PARTS_H

#include "engine/checkpoint/reader.h"
#include "engine/run/agree.h"

/* A text of one rank. */
typedef struct sherdi_shared_text {
    const char *text;
    size_t      len_bytes;
    char       *copy; /* the memory of the text on other ranks, which the caller frees */
} sherdi_shared_text;

/** Gives the text of the root to all ranks, if `own` is OK on all of them. Collective. E_NOMEM. */
sherd_status sherdi_text_share(sherd_engine *engine, sherd_status own, int root,
                               sherdi_shared_text *shared);

/** Gives the manifest of the root to the ranks that have none; `is_other`: this rank has none, or not
 *  one with this checksum. First, parts that an interrupted save has left prepared are completed.
 *  Collective. E_IO, E_NOMEM. */
sherd_status sherdi_parts_adopt(sherd_engine *engine, const char *dir, const char *tag, int root,
                                uint64_t checksum, int is_other);

/* The files that a load reads. */
typedef struct sherdi_parts {
    sherd_engine  *engine;
    sherdi_reader *reader;
    const char    *dir, *tag;
    unsigned char (*needs)[SHERDI_DATA_FILES]; /* by rank and kind: this rank reads it */
    int            needs_blobs;                /* of the run, which the file of rank 0 has */
    unsigned char *buffer;                     /* no slot of the reader is in use */
    size_t         buffer_bytes;
    sherdi_blobs  *blobs;     /* out: those of the run, if has_blobs */
    int            has_blobs; /* out: a rank without the file got them from another */
} sherdi_parts;

/** Brings every file that a rank needs to it. `own` is the outcome of this rank so far. Collective.
 *  E_IO (nobody has a file, or it cannot be written), E_INVAL (a damaged file), E_NOMEM. */
sherd_status sherdi_parts_complete(sherdi_parts *parts, sherd_status own);

#endif
