/* A toy trainer for tests: a few units of odd sizes (a tied embedding, a frozen matrix, small
 * parameters), whose gradients are a plain function of (micro-batch number, element, weight). It
 * also has the same training without any sharding, in the arithmetic that docs/numerics.md
 * states. */
#ifndef TESTS_ENGINE_TOY_H
#define TESTS_ENGINE_TOY_H

#include "sherd.h"
#include "tests/engine/plain.h"

#define TOY_UNITS  4
#define TOY_PARAMS 9
#define TOY_STEPS  3

/* Sets of parameters that are declared as fp32. SOME has parameters of units that have others too,
 * a frozen one, one without shape and the tied embedding. */
#define TOY_SOME_WIDE 0x2du
#define TOY_ALL_WIDE  ((1u << TOY_PARAMS) - 1)

typedef struct toy_options {
    int         stage;
    int         accumulation;
    sherd_dtype dtype;
    const char *zero_extra;    /* further keys of zero_optimization, ", \"key\": value" */
    const char *top_extra;     /* further keys at the top level, likewise */
    int         is_bound;      /* parameters are bound to the trainer's own memory */
    int         is_off_plan;   /* backward visits the layers in another order than declared */
    int         has_eval;      /* an EVAL pass after every step */
    int         has_recompute; /* a second forward pass of each unit right before its backward */
    int         short_window;  /* the last step has one micro-batch only */
    int         skips_unit;    /* one unit has no backward */
    double      clip;          /* the key gradient_clipping */
    double      loss_scale;    /* static scale of fp16; 0: dynamic, starts at 64 */
    int         lamb; /* 0: no LAMB; 1: LAMB in DeepSpeed's form, 2: in the paper's; the group
                                  of biases excludes parameters of one dimension */
    plain_kind  kind; /* the optimizer if lamb is 0 */
    int         tells_params; /* fills param_fingerprints of the result, which takes time */
    const char *comm;         /* the key communication_data_type; NULL: not set */
    unsigned    wide;         /* bit p: parameter p is declared as fp32; TOY_ALL_WIDE: all are */
} toy_options;

typedef struct toy_result {
    uint64_t            param_fingerprints[TOY_STEPS][TOY_PARAMS];
    uint64_t            fingerprint;
    double              grad_norm[TOY_STEPS];
    sherd_memory_report memory;
    uint64_t            sent_bytes;
} toy_result;

/** Whether a test that runs with several numbers of ranks shall run with this one. On an emulated
 * device, which takes a hundred times as long, only 3 ranks run, and on a real one 1 and 3; on the
 * CPU and in the long list all run. */
int toy_takes_ranks(int world_size);
/** Whether row number `row` of a table of tests shall run at this stage. In the long list and on a
 * real device it runs at all stages. Otherwise it runs at one stage from `least` to 3, which
 * changes from row to row. So rows that are layouts and numbers of ranks have every pair. */
int toy_takes_stage(int stage, int least, int row);

/** Trains on one rank of `world`; the result is the same on every rank. Fails the test if a call
 *  fails. */
void toy_train(sherd_world *world, const toy_options *options, toy_result *out);

/** Does the same on `world_size` ranks, which are threads, and gives rank 0's result. */
void toy_train_threads(int world_size, const toy_options *options, toy_result *out);

/** Does the same training on whole arrays, without an engine. */
void toy_reference(int world_size, const toy_options *options, toy_result *out);

/** Writes where two results with tells_params first differ: "step 2, unit layer1, parameter
 *  layer1.b". */
void toy_difference(const toy_result *want, const toy_result *got, char *text, size_t len_bytes);

/** Returns the configuration as JSON, in a static buffer of the calling thread. */
const char *toy_json(const toy_options *options);

/** Declares the toy's model in an engine, which is not sealed. */
void toy_declare(sherd_engine *engine, sherd_unit *units, sherd_param *params);
/** Does the same, with the parameters of `wide` declared as fp32. */
void toy_declare_wide(sherd_engine *engine, unsigned wide, sherd_unit *units, sherd_param *params);
/** The fill function of the toy's parameters; ctx is the parameter's number cast to a pointer. */
sherd_status toy_fill(void *ctx, size_t first_elem, size_t count_elems, float *out);

#endif
