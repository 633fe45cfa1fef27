/* The options of the trainer, as the command line gives them. train.c reads them once; all ranks of
 * the process share them. */
#ifndef LLM_OPTIONS_H
#define LLM_OPTIONS_H

#include "compute.h"
#include "models/arch.h"
#include "models/places.h"

#include <stddef.h>
#include <stdint.h>

typedef enum options_precision {
    PRECISION_CONFIG = 0, /* as the configuration says */
    PRECISION_FP32,
    PRECISION_BF16,
    PRECISION_FP16,
} options_precision;

typedef struct options {
    arch        sizes;       /* complete and fitting together */
    const char *config_path; /* NULL: the built-in default.json */
    const char *data_path;
    const char *log_path; /* NULL: no log */
    const char *prompt;   /* NULL: the start of the validation text */
    size_t      length;   /* tokens of a sequence */
    long        steps;
    double      minutes; /* NaN: as long as the steps take */
    uint64_t    seed;
    /* If set, they override the configuration. Below 0 or NaN: not set. */
    double            lr;
    int               batch, accumulation, stage;
    options_precision precision;
    int               ranks; /* as threads; 0: the launcher's, else DEFAULT_RANKS */
    int               least_ranks, most_ranks; /* between which signals change them; 0: none do */
    int               threads;                 /* per rank; 0: cores / ranks */
    long              eval_every;              /* steps; 0: only at the end */
    int               is_first_validated;
    long              sample; /* tokens to write at the end */
    layer_places      places; /* of activations */
    int               is_resumed;
    const char *init_path;   /* first weights; NULL: drawn from the seed. --model sets it, too */
    const char *export_path; /* trained weights; NULL: not written */
    options_precision export_precision;  /* not set: fp32 */
    size_t            export_file_bytes; /* most data of one file; 0: as transformers */
    const char       *resume_from;       /* a checkpoint's own folder; NULL: none */
    const char       *save_dir;          /* folder of checkpoints; NULL: none are saved */
    long              save_every;        /* steps; 0: only at the end */
    int               keep; /* checkpoints to keep; below 0: as the configuration says */
    const char       *offload, *offload_params, *nvme_path; /* NULL: as the configuration says */
    const char       *backend;     /* "cpu" or "cuda"; NULL: SHERD_BACKEND, else the CPU */
    compute_choices   choices;     /* for a GPU */
    double            peak_tflops; /* of the GPU; NaN: found by its name */
    int               is_quiet;
} options;

#define OPTIONS_DEFAULT_RANKS 4
#define OPTIONS_MOST_RANKS    1024 /* of --elastic */

/** Reads the command line. Returns 0 if the program continues; 1 after --help, with nothing more to
 *  do; 2 on a mistake, with a message on standard error. */
int options_parse(int argc, char **argv, options *out);

#endif
