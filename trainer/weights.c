/* Finds and writes the files of weights. models/ says which tensor is which parameter. See
 * weights.h. */
#include "weights.h"

#include "models/hf.h"
#include "models/llmc.h"
#include "sherd_tools.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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

/* Reads a file whole; NULL, with errno, if it cannot be read. The caller frees it. */
static char *text_load(const char *path, size_t *len_out)
{
    FILE *file = fopen(path, "rb");
    char *text;

    if (file == NULL) {
        return NULL;
    }
    text = malloc(MOST_CONFIG_BYTES);
    if (text != NULL) {
        errno    = 0;
        *len_out = fread(text, 1, MOST_CONFIG_BYTES, file);
        if (ferror(file)) {
            free(text);
            text = NULL;
        }
    }
    (void)fclose(file);
    return text;
}

/* Checks that a folder's config.json describes this model. A file, or a folder without a
 * config.json, has nothing to check here. */
static sherd_status config_check(const arch *sizes, const char *folder, char *why, size_t why_bytes)
{
    char         path[4096], reason[256];
    size_t       len_bytes;
    char        *text;
    sherd_status status = SHERD_OK;

    (void)snprintf(path, sizeof(path), "%s/config.json", folder);
    text = text_load(path, &len_bytes);
    if (text == NULL) {
        return errno == ENOMEM ? no_memory(why, why_bytes) : SHERD_OK;
    }
    if (hf_config_check(sizes, text, len_bytes, reason, sizeof(reason)) != NULL) {
        (void)snprintf(why, why_bytes, "%s: %s", path, reason);
        status = SHERD_E_INVAL;
    }
    free(text);
    return status;
}

sherd_status weights_model_read(const char *path, arch *out, int *is_folder_out, char *why,
                                size_t why_bytes)
{
    char        name[4096], reason[256];
    struct stat info;
    hf_config   config;
    size_t      len_bytes;
    char       *text;
    int         result;

    *is_folder_out = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    (void)snprintf(name, sizeof(name), "%s%s", path, *is_folder_out ? "/config.json" : "");
    text = text_load(name, &len_bytes);
    if (text == NULL) {
        (void)snprintf(why, why_bytes, "%s: %s", name, strerror(errno));
        return SHERD_E_IO;
    }
    result = hf_config_parse(text, len_bytes, &config, reason, sizeof(reason));
    free(text);
    if (result != 0 || config.not_computed[0] != '\0') {
        (void)snprintf(why, why_bytes, "%s: %s", name, result != 0 ? reason : config.not_computed);
        return SHERD_E_INVAL;
    }
    *out = config.sizes;
    return SHERD_OK;
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

/* Writes config.json whole or not at all, like the weights in the same folder. */
static sherd_status config_write(const arch *sizes, sherd_dtype dtype, const char *folder)
{
    char   text[4096], path[4096];
    size_t len_bytes = hf_config_write(sizes, dtype, text, sizeof(text));

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
