/* Parts of blocks as they are stored. */
#ifndef SHERDI_ENGINE_RUN_ENCODED_H
#define SHERDI_ENGINE_RUN_ENCODED_H

#include "engine/run/kernels.h"
#include "kernels/codecs.h"

/** Returns a part of the state of the operation's block, as it is stored. */
sherdi_encoded sherdi_run_encoded_part(const sherd_engine *engine, const sherdi_op *op, int part);

#endif
