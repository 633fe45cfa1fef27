/* A model as units and parameters, whatever it was described by: a built-in family, a file, or a mere
 * count of parameters. `sherd plan` and the memory benchmark declare it on engines. Read next: row.h. */
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

/* Units in the order of forward; their parameters lie together. */
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
    /* Sizes of the trainer's architecture that is this or computes like this, for activations, the hidden size
     * of "auto" values and arithmetic; has_arch 0: not known. */
    int  has_arch;
    int  has_wide_heads; /* heads * their width is not hidden: the trainer has no such, nor its activations */
    arch sizes;
} planning_model;

/** A built-in architecture. NULL with a sentence in `why`: out of memory, sizes that do not fit together. */
planning_model *planning_model_from_arch(const arch *sizes, const char *preset, char *why,
                                         size_t why_bytes);

/** From a file, told apart by its content:
 *    JSON with "model_type"         Hugging Face config.json: gpt2; llama, mistral, qwen2, qwen3, minimind
 *    JSON with "units"              {"units": [{"name": "...", "params": [{"name": "...", "shape": [n, m],
 *                                   "frozen": false}], "reads": ["name of a parameter"]}]}
 *    JSON with "weight_map"         index of safetensors files in the same folder
 *    safetensors                    its header; tensors of one layer become one unit
 *    llm.c's model .bin             its header (GPT-2, fp32 or bf16, padded vocabulary)
 *    a folder                       its config.json, else its index, else its only .safetensors
 *  NULL with a sentence in `why` that names the file, what is wrong, and where. Nothing but headers is read. */
planning_model *planning_model_from_file(const char *path, char *why, size_t why_bytes);

/** So many parameters and nothing more: units like a decoder's layers, whose number grows with the size. */
planning_model *planning_model_from_count(size_t elems, char *why, size_t why_bytes);

/** "7.5B", "124M", "1T", "1e9", "64000": K, M, B (or G), T are powers of 1000. 0: not such a text. */
size_t planning_count_parse(const char *text);

void planning_model_destroy(planning_model *model); /* accepts NULL */

/** Declares the model on an engine without units; passes keep their default orders. Unit u gets handle u,
 *  parameter k handle k. */
SHERD_MUST_USE sherd_status planning_model_declare(const planning_model *model,
                                                   sherd_engine         *engine);

/** Arithmetic of a token, forward and backward: 6 per weight of a product, attention too where the architecture
 *  is known (speed_flops_per_token of the trainer); else 6 per parameter. */
double planning_model_flops_per_token(const planning_model *model, size_t length);

#endif
