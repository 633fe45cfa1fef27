/* A model as units and parameters, however it was described: as a built-in family, by a file, or by
 * a mere count of parameters. `sherd plan` and the memory benchmark declare it on engines. Read
 * row.h next. */
#ifndef SHERD_PLANNING_MODEL_H
#define SHERD_PLANNING_MODEL_H

#include "models/arch.h"
#include "sherd.h"

#include <stddef.h>

typedef struct planning_param {
    char  *name;
    int    ndim;
    size_t shape[SHERD_MAX_NDIM];
    size_t elems;
    int    is_frozen;
} planning_param;

/* Units in the order of forward; the parameters of a unit follow each other. */
typedef struct planning_unit {
    char  *name;
    size_t first_param, num_params;
} planning_unit;

/* A unit that reads a parameter of another, for example a tied head. */
typedef struct planning_read {
    size_t unit, param;
} planning_read;

typedef struct planning_model {
    char          *label; /* for headings: "gpt2 1558m", "config.json (qwen3)", "7.5B parameters" */
    planning_unit *units;
    size_t         num_units;
    planning_param *params;
    size_t          num_params;
    planning_read  *reads;
    size_t          num_reads;
    size_t          elems; /* of all parameters */
    /* The trainer's architecture that is this model: for activations, the hidden size of "auto"
     * values, and the count of operations. has_arch 0: not known. */
    int  has_arch;
    arch sizes;
} planning_model;

/** Makes a model of a built-in architecture. Returns NULL with a sentence in `why`: no memory, or
 *  sizes that do not fit together. */
planning_model *planning_model_from_arch(const arch *sizes, const char *preset, char *why,
                                         size_t why_bytes);

/** Reads a model from a file, whose content decides the format:
 *      JSON with "model_type"    Hugging Face config.json: gpt2; llama, mistral, qwen2, qwen3,
 *                                minimind
 *      JSON with "units"         {"units": [{"name": "...", "params": [{"name": "...",
 *                                "shape": [n, m], "frozen": false}],
 *                                "reads": ["name of a parameter"]}]}
 *      JSON with "weight_map"    index of safetensors files in the same folder
 *      safetensors               its header; tensors of one layer become one unit
 *      llm.c's model .bin        its header (GPT-2, fp32 or bf16, padded vocabulary)
 *      a folder                  its config.json, else its index, else its only .safetensors
 *  Returns NULL with a sentence in `why` that names the file, what is wrong, and where. Reads
 *  nothing but headers. */
planning_model *planning_model_from_file(const char *path, char *why, size_t why_bytes);

/** Makes a model of a number of parameters. Its units are like a decoder's layers, whose number
 *  grows with the size. */
planning_model *planning_model_from_count(size_t elems, char *why, size_t why_bytes);

/** Reads a count: "7.5B", "124M", "1T", "1e9", "64000". K, M, B (or G) and T are powers of 1000.
 *  Returns 0 for other texts. */
size_t planning_count_parse(const char *text);

void planning_model_destroy(planning_model *model); /* accepts NULL */

/** Declares the model on an engine without units; passes keep their default orders. Unit u gets
 *  handle u, and parameter k gets handle k. */
SHERD_MUST_USE sherd_status planning_model_declare(const planning_model *model,
                                                   sherd_engine         *engine);

/** Returns the operations of one token, forward and backward: 6 for each weight that takes part in
 *  a product, and those of attention, where the architecture is known (as the trainer's
 *  speed_flops_per_token); else 6 per parameter. */
double planning_model_flops_per_token(const planning_model *model, size_t length);

#endif
