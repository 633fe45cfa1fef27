/* The handle of a checkpoint that a tool reads; tools.c, tools_text.c and tools_export.c share
 * it. */
#ifndef SHERDI_ENGINE_CHECKPOINT_TOOLS_H
#define SHERDI_ENGINE_CHECKPOINT_TOOLS_H

#include "engine/checkpoint/reader.h"
#include "sherd_tools.h"

struct sherd_checkpoint {
    sherdi_mem            mem;
    char                 *dir;
    sherd_checkpoint_info info;
    sherdi_ioq           *queue;
    unsigned char        *slots;
    sherdi_reader        *reader;
};

#endif
