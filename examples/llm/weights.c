/* Finds and writes the files of weights. models/ says which tensor is which parameter. See weights.h. */
#include "weights.h"

#include "models/hf.h"
#include "models/llmc.h"
#include "sherd_tools.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_EXTRA        8
#define MOST_CONFIG_BYTES ((size_t)1 << 20)

static int ends_with(const char *path, const char *end)
{
    size_t len = strlen(path), end_len = strlen(end);

    return len >= end_len && strcmp(path + len - end_len, end) == 0;
}

static sherd_status no_memory(char *why, size_t why_bytes)
{
    (void)snprintf(why, why_bytes, "out of memory");
    return SHERD_E_NOMEM;
}

/* ---- llm.c ---- */

static sherd_status llmc_header_load(const char *path, unsigned char bytes[LLMC_HEADER_BYTES],
                                     char *why, size_t why_bytes)
{
    FILE  *file = fopen(path, "rb");
    size_t got  = file == NULL ? 0 : fread(bytes, 1, LLMC_HEADER_BYTES, file);

    if (got != LLMC_HEADER_BYTES) {
        (void)snprintf(why, why_bytes, "%s: %s", path,
                       file == NULL || ferror(file) ? strerror(errno)
                                                    : "it is too short for a model of llm.c");
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return got == LLMC_HEADER_BYTES ? SHERD_OK : SHERD_E_IO;
}

static sherd_status llmc_check(const arch *sizes, const arch *file, const char *path, char *why,
                               size_t why_bytes)
{
    if (sizes->kind == ARCH_GPT2 && file->hidden == sizes->hidden &&
        file->layers == sizes->layers && file->heads == sizes->heads &&
        file->vocab == sizes->vocab && file->max_length == sizes->max_length &&
        file->inner == sizes->inner) {
        return SHERD_OK;
    }
    (void)snprintf(why, why_bytes,
                   "%s is gpt2 with hidden %zu, %zu layers, %zu heads, vocabulary %zu and %zu "
                   "positions, which this model is not",
                   path, file->hidden, file->layers, file->heads, file->vocab, file->max_length);
    return SHERD_E_INVAL;
}

static sherd_status llmc_import(const arch *sizes, sherd_engine *engine, const char *path,
                                char *why, size_t why_bytes)
{
    unsigned char       header[LLMC_HEADER_BYTES];
    char                text[256];
    sherd_import_params params;
    size_t              padded;
    sherd_dtype         dtype;
    arch                file;
    maps                list;
    sherd_status        status = llmc_header_load(path, header, why, why_bytes);

    if (status != SHERD_OK) {
        return status;
    }
    if (llmc_header_read(header, &file, &padded, &dtype, text, sizeof(text)) != NULL) {
        (void)snprintf(why, why_bytes, "%s: %s", path, text);
        return SHERD_E_INVAL;
    }
    status = llmc_check(sizes, &file, path, why, why_bytes);
    if (status != SHERD_OK) {
        return status;
    }
    if (llmc_maps_open(&file, padded, &list) != 0) {
        return no_memory(why, why_bytes);
    }
    sherd_import_params_init(&params);
    params.tensors     = list.tensors;
    params.num_tensors = list.count;
    status             = sherd_import_raw(engine, path, LLMC_HEADER_BYTES, dtype, &params);
    maps_close(&list);
    return status;
}

static sherd_status llmc_export(const arch *sizes, sherd_engine *engine,
                                const weights_target *target, char *why, size_t why_bytes)
{
    unsigned char       header[LLMC_HEADER_BYTES];
    sherd_export_params params;
    maps                list;
    sherd_status        status;

    if (llmc_header_make(sizes, target->dtype, header, why, why_bytes) != NULL) {
        return SHERD_E_INVAL;
    }
    if (llmc_maps_open(sizes, llmc_padded_vocab(sizes), &list) != 0) {
        return no_memory(why, why_bytes);
    }
    sherd_export_params_init(&params);
    params.tensors     = list.tensors;
    params.num_tensors = list.count;
    params.dtype       = target->dtype;
    status             = sherd_export_raw(engine, target->path, header, sizeof(header), &params);
    maps_close(&list);
    return status;
}

/* ---- Hugging Face ---- */

/* Checks that a folder's config.json describes this model. A file, or a folder without a config.json, has nothing to check here. */
static sherd_status config_check(const arch *sizes, const char *folder, char *why, size_t why_bytes)
{
    const hf_constants constants = hf_constants_of(sizes);
    char               path[4096], text[256];
    char              *config = NULL;
    FILE              *file;
    size_t             len_bytes;
    sherd_status       status = SHERD_OK;

    (void)snprintf(path, sizeof(path), "%s/config.json", folder);
    file = fopen(path, "rb");
    if (file == NULL) {
        return SHERD_OK;
    }
    config    = malloc(MOST_CONFIG_BYTES);
    len_bytes = config == NULL ? 0 : fread(config, 1, MOST_CONFIG_BYTES, file);
    (void)fclose(file);
    if (config == NULL) {
        return no_memory(why, why_bytes);
    }
    if (hf_config_check(sizes, &constants, config, len_bytes, text, sizeof(text)) != NULL) {
        (void)snprintf(why, why_bytes, "%s: %s", path, text);
        status = SHERD_E_INVAL;
    }
    free(config);
    return status;
}

static sherd_status hf_import(const arch *sizes, sherd_engine *engine, const char *path, char *why,
                              size_t why_bytes)
{
    const char         *extra[MOST_EXTRA];
    sherd_import_params params;
    maps                list;
    sherd_status        status = config_check(sizes, path, why, why_bytes);

    if (status != SHERD_OK) {
        return status;
    }
    if (hf_maps_open(sizes, &list) != 0) {
        return no_memory(why, why_bytes);
    }
    sherd_import_params_init(&params);
    params.tensors         = list.tensors;
    params.num_tensors     = list.count;
    params.may_be_extra    = extra;
    params.optional_prefix = hf_prefix(sizes);
    while (params.num_may_be_extra < MOST_EXTRA &&
           (extra[params.num_may_be_extra] = hf_extra(sizes, params.num_may_be_extra)) != NULL) {
        params.num_may_be_extra++;
    }
    status = sherd_import_safetensors(engine, path, &params);
    maps_close(&list);
    return status;
}

/* Writes config.json whole or not at all, like the weights beside it. */
static sherd_status config_write(const arch *sizes, sherd_dtype dtype, const char *folder)
{
    const hf_constants constants = hf_constants_of(sizes);
    char               text[4096], path[4096];
    size_t             len_bytes = hf_config_write(sizes, &constants, dtype, text, sizeof(text));

    (void)snprintf(path, sizeof(path), "%s/config.json", folder);
    return sherd_output_write(path, text, len_bytes);
}

static sherd_status hf_export(const arch *sizes, sherd_engine *engine, int rank,
                              const weights_target *target, char *why, size_t why_bytes)
{
    sherd_export_params params;
    maps                list;
    sherd_status        status;

    if (hf_maps_open(sizes, &list) != 0) {
        return no_memory(why, why_bytes);
    }
    sherd_export_params_init(&params);
    params.tensors        = list.tensors;
    params.num_tensors    = list.count;
    params.dtype          = target->dtype;
    params.max_file_bytes = target->file_bytes;
    status                = sherd_export_safetensors(engine, target->path, &params);
    maps_close(&list);
    if (status == SHERD_OK && rank == 0 && !ends_with(target->path, ".safetensors")) {
        status = config_write(sizes, target->dtype, target->path);
    }
    return status;
}

/* ---- either ---- */

sherd_status weights_import(const arch *sizes, sherd_engine *engine, const char *path, char *why,
                            size_t why_bytes)
{
    why[0] = '\0';
    return ends_with(path, ".bin") ? llmc_import(sizes, engine, path, why, why_bytes)
                                   : hf_import(sizes, engine, path, why, why_bytes);
}

sherd_status weights_export_check(const char *path)
{
    static const char *const NAMES[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    char                     name[4096];

    if (ends_with(path, ".bin") || ends_with(path, ".safetensors")) {
        return sherd_output_check(path);
    }
    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        sherd_status status;

        (void)snprintf(name, sizeof(name), "%s/%s", path, NAMES[i]);
        status = sherd_output_check(name);
        if (status != SHERD_OK) {
            return status;
        }
    }
    return SHERD_OK;
}

sherd_status weights_export(const arch *sizes, sherd_engine *engine, int rank,
                            const weights_target *target, char *why, size_t why_bytes)
{
    why[0] = '\0';
    return ends_with(target->path, ".bin") ? llmc_export(sizes, engine, target, why, why_bytes)
                                           : hf_export(sizes, engine, rank, target, why, why_bytes);
}
