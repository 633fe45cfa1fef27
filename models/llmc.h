/* The model files of llm.c (https://github.com/karpathy/llm.c): 256 integers of 32 bits, then
 * GPT-2's tensors, each for all layers one after the other, either all fp32 (version 3) or all bf16
 * (version 5). */
#ifndef SHERD_MODELS_LLMC_H
#define SHERD_MODELS_LLMC_H

#include "models/maps.h"

#define LLMC_HEADER_BYTES 1024

/** Returns the rows of the token table in the file: the vocabulary, rounded up to a multiple of
 *  128. */
size_t llmc_padded_vocab(const arch *model);

/** Makes the header of a file of this model. Returns NULL, or a sentence that says why the format
 *  cannot hold it (not GPT-2, another inner width, fp16). */
const char *llmc_header_make(const arch *model, sherd_dtype dtype,
                             unsigned char out[LLMC_HEADER_BYTES], char *why, size_t why_bytes);
/** Reads a header, which may come from anywhere. Returns NULL, or a sentence; then no result was
 *  written. The sizes pass arch_check. */
const char *llmc_header_read(const unsigned char bytes[LLMC_HEADER_BYTES], arch *model_out,
                             size_t *padded_vocab_out, sherd_dtype *dtype_out, char *why,
                             size_t why_bytes);

/** Lists the tensors in the order of the file, for sherd_export_raw and sherd_import_raw. Returns
 *  -1 when there is no memory. */
int llmc_maps_open(const arch *model, size_t padded_vocab, maps *out);

#endif
