/* First weights from a file, trained weights to one: Hugging Face's formats, or that of llm.c where the name ends in
 * ".bin". Collective; every rank gives the same. */
#ifndef LLM_WEIGHTS_H
#define LLM_WEIGHTS_H

#include "models/arch.h"
#include "sherd.h"

/** Fills all parameters from `path`: safetensors (a file, an index, or a folder, whose config.json has to describe this
 *  model), or a model file of llm.c. What fails is in `why` where it is not the engine's ("": it is in
 *  sherd_last_error()). After seal, before the first acquire. */
sherd_status weights_import(const arch *sizes, sherd_engine *engine, const char *path, char *why,
                            size_t why_bytes);
typedef struct weights_target {
    const char         *
        path; /* a folder: safetensors with a config.json, as transformers loads them; one file where it ends
                         in ".safetensors" or ".bin" */
    sherd_dtype dtype;
    size_t      file_bytes; /* most data of a file in a folder; 0: 5 GB */
} weights_target;
/** Writes them. Rank 0 does. Between steps. */
sherd_status weights_export(const arch *sizes, sherd_engine *engine, int rank,
                            const weights_target *target, char *why, size_t why_bytes);

#endif
