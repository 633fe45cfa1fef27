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

#endif
