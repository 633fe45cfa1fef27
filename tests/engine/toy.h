/* A toy trainer for tests: a few units of odd sizes (a tied embedding, a frozen matrix, small
 * parameters), gradients that are a plain function of (micro-batch number, element, weight), and
 * the same training written without any sharding, in the arithmetic that docs/numerics.md states. */
#ifndef TESTS_ENGINE_TOY_H
#define TESTS_ENGINE_TOY_H

#include "sherd.h"
#include "tests/engine/plain.h"

#define TOY_UNITS  4
#define TOY_PARAMS 9
#define TOY_STEPS  3

/* Parameters that are declared as fp32: of units that have others too, a frozen one, one without shape, the tied
 * embedding; and all of them. */
#define TOY_SOME_WIDE 0x2du
#define TOY_ALL_WIDE  ((1u << TOY_PARAMS) - 1)

typedef struct toy_options {
    int         stage;
    int         accumulation;
    sherd_dtype dtype;
    const char *zero_extra;    /* more keys of zero_optimization, ", \"key\": value" */
    const char *top_extra;     /* more keys at the top level, likewise */
    int         is_bound;      /* parameters in the trainer's own memory */
    int         is_off_plan;   /* backward visits the layers in another order than declared */
    int         has_eval;      /* an EVAL pass after every step */
    int         has_recompute; /* forward again inside backward */
    int         short_window;  /* the last step sees one micro-batch only */
    int         skips_unit;    /* a unit's backward never comes */
    double      clip;          /* gradient_clipping */
    double      loss_scale;    /* of fp16, static; 0: 64, dynamic */
    int         lamb; /* 0: AdamW; 1: LAMB in DeepSpeed's form, 2: in the paper's; the group of
                                  biases excludes parameters of one dimension */
    plain_kind  kind; /* of an optimizer, unless it is LAMB */
    int         tells_params; /* fill param_fingerprints of the result, at some cost */
    const char *comm;         /* communication_data_type; NULL: not given */
    unsigned    wide;         /* bit p: parameter p is declared as fp32; TOY_ALL_WIDE: all are */
} toy_options;

typedef struct toy_result {
    uint64_t            param_fingerprints[TOY_STEPS][TOY_PARAMS];
    uint64_t            fingerprint;
    double              grad_norm[TOY_STEPS];
    sherd_memory_report memory;
    uint64_t            sent_bytes;
} toy_result;

/** Whether a matrix shall have this number of ranks: on an emulated device, which takes a hundred times as long,
 *  3 alone, but for the long list; on a real one 1 and 3. */
int toy_takes_ranks(int world_size);
/** Whether the row of that number shall have this stage, of those from `least`: one of them, which changes from row to
 *  row, but for the long list and a real device. So rows that are layouts and numbers of ranks have every pair. */
int toy_takes_stage(int stage, int least, int row);

/** Trains on one rank of `world`; the result is the same on every rank. Fails the test on error. */
void toy_train(sherd_world *world, const toy_options *options, toy_result *out);

/** The same on `world_size` ranks as threads; rank 0's result. */
void toy_train_threads(int world_size, const toy_options *options, toy_result *out);

/** Written plainly: whole arrays, no engine. */
void toy_reference(int world_size, const toy_options *options, toy_result *out);

/** Where two results with tells_params first differ: "step 2, unit layer1, parameter layer1.b". */
void toy_difference(const toy_result *want, const toy_result *got, char *text, size_t len_bytes);

/** The configuration as JSON, in a static buffer of the calling thread. */
const char *toy_json(const toy_options *options);

/** An engine with the toy's model declared, not sealed. */
void toy_declare(sherd_engine *engine, sherd_unit *units, sherd_param *params);
/** ... with the parameters of `wide` declared as fp32. */
void toy_declare_wide(sherd_engine *engine, unsigned wide, sherd_unit *units, sherd_param *params);
/** Its fill function; ctx is the parameter's number cast to a pointer. */
sherd_status toy_fill(void *ctx, size_t first_elem, size_t count_elems, float *out);

#endif
