/* Reads first weights from a file and writes trained weights to one: in Hugging Face's formats, or
 * in llm.c's if the name ends in ".bin". The calls are collective, and every rank gives the same
 * arguments (except `rank`). */
#ifndef LLM_WEIGHTS_H
#define LLM_WEIGHTS_H

#include "models/arch.h"
#include "sherd.h"

/** Fills all parameters from `path`: safetensors (a file, an index, or a folder, whose config.json
 *  has to describe this model), or a model file of llm.c. Call it after seal and before the first
 *  acquire. On failure `why` has the sentence; if `why` is "", the engine failed and
 *  sherd_last_error() has it. */
sherd_status weights_import(const arch *sizes, sherd_engine *engine, const char *path, char *why,
                            size_t why_bytes);
/** Reads the description of a model of transformers from its folder, whose weights weights_import
 *  takes, or from a config.json alone. Refuses by name features that the trainer does not
 *  compute. */
sherd_status weights_model_read(const char *path, arch *out, int *is_folder_out, char *why,
                                size_t why_bytes);
typedef struct weights_target {
    /* A file if it ends in ".safetensors" or ".bin"; else a folder for safetensors and a
     * config.json, as transformers loads them. */
    const char *path;
    sherd_dtype dtype;
    size_t      file_bytes; /* most data of a file in a folder; 0: 5 GB */
} weights_target;
/** Checks before the training that files can be written at these paths: existing files are regular
 *  files. Otherwise sherd_last_error() has the reason. */
sherd_status weights_export_check(const char *path);
/** Writes all parameters; rank 0 writes the files. Call it between steps. Failures are reported as
 *  by weights_import. */
sherd_status weights_export(const arch *sizes, sherd_engine *engine, int rank,
                            const weights_target *target, char *why, size_t why_bytes);

#endif
