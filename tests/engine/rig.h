/* A rig is one engine with a model that the test itself declares, and short functions that drive
 * it. Gradients are a plain function of (micro-batch, parameter, element, weight), as in toy.h.
 * Every function fails the test if a call fails. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

#include "sherd.h"

#define RIG_UNITS  8
#define RIG_PARAMS 16

typedef struct rig_options {
    int         stage;
    int         accumulation; /* 0 means 1 */
    int         train_batch;  /* not 0: given in place of the accumulation */
    int         micro_batch;  /* 0 means 1 */
    sherd_dtype dtype;
    double      clip;
    const char *zero;          /* further keys of zero_optimization, ", \"key\": value" */
    const char *top;           /* further keys at the top level, likewise */
    const char *optimizer;     /* NULL: AdamW */
    const char *params;        /* further keys of optimizer.params, ", \"key\": value" */
    int         backward_uses; /* of every unit: 0 or SHERD_USES_ANY */
    int         retain_grads;  /* of every unit */
    int      has_matrices; /* parameters without a shape are matrices of one column, not vectors */
    unsigned wide;         /* bit p: parameter p is declared as fp32 */
} rig_options;

typedef struct rig_param_info {
    sherd_param handle;
    int         unit; /* index into units */
    size_t      elems;
    int         is_frozen;
    sherd_dtype dtype; /* the type in which the trainer reads it */
} rig_param_info;

typedef struct rig {
    sherd_world   *world;
    sherd_engine  *engine;
    sherd_dtype    dtype;
    int            backward_uses, retain_grads, has_matrices;
    unsigned       wide;
    sherd_unit     units[RIG_UNITS];
    int            num_units;
    rig_param_info params[RIG_PARAMS];
    int            num_params;
    int64_t        micro;    /* micro-batches of this rank so far */
    int            is_given; /* 1: `number` is that of the micro-batch, of all ranks */
    int64_t        number;
    size_t         stride; /* of elements that are read, and that get a gradient; 0: 1 */
} rig;

/** Returns the configuration as JSON, in a static buffer of the calling thread. It has AdamW, lr
 * 0.01, betas 0.9 and 0.95, decay 0.1, persistence threshold 0, where the options say nothing
 * else. */
const char *rig_json(const rig_options *options);
/** Returns the keys of a configuration in addition to `top`: the block "sherd", with the keys for
 * encoded state that the environment gives to a test of bf16 engines (SHERD_TEST_STATE, such as
 * "master_encoding": "bf16_beside"). Returns "" if the environment gives none, the engine does not
 * compute in bf16, or `top` already has the block. */
const char *rig_state_keys(sherd_dtype dtype, const char *top);
/** Parses the configuration and creates the engine; returns the status of the creation. */
sherd_status rig_create(sherd_world *world, const char *json, sherd_engine **out);

void rig_open(rig *r, sherd_world *world, const rig_options *options);
void rig_close(rig *r);
/** This function and the others that add a unit or a parameter return its index in the rig. */
int rig_unit(rig *r, const char *name);
/** Adds a unit with the fields of params; name and struct_size are set here. */
int rig_unit_as(rig *r, const char *name, sherd_unit_params *params);
int rig_param(rig *r, int unit, const char *name, size_t elems);
/** Adds the units a, b and c with one parameter each: the first has `elems` elements, and each next
 *  one 641 more. */
void rig_three(rig *r, size_t elems);
/** Adds a parameter with the fields of params. Name and struct_size are set here, also the shape if
 * params have none, and the type of wide parameters. */
int rig_param_as(rig *r, int unit, const char *name, size_t elems,
                 const sherd_param_params *params);
/** Seals and fills every parameter. */
void rig_seal(rig *r);
/** Fills a range of a parameter with values that depend on the parameter's number and the index;
 * ctx is the number cast to a pointer. */
sherd_status rig_fill(void *ctx, size_t first_elem, size_t count_elems, float *out);

void rig_acquire(rig *r, int unit, sherd_pass pass);
void rig_release(rig *r, int unit, sherd_pass pass);
/** Reads a parameter that is acquired, and returns the sum of its values. */
double rig_read(rig *r, int param);
/** Adds the micro-batch's gradient, times `share`, to that of a parameter that is acquired for
 *  backward. */
void rig_touch(rig *r, int param, float share);
/** Writes one value into the gradient. */
void rig_poke(rig *r, int param, size_t index, float value);
/** Acquires the unit, reads its parameters, or adds the gradients of its trainable ones, and
 *  releases it. */
void rig_forward(rig *r, int unit, sherd_pass pass);
void rig_backward(rig *r, int unit);
/** Does a forward pass through all units in their order and a backward pass in reverse. */
void rig_micro_batch(rig *r);
/** Calls sherd_step and counts the micro-batch. */
sherd_step_report rig_step(rig *r);
/** Trains for `count` micro-batches, each with its call of sherd_step; returns the last report. */
sherd_step_report rig_train(rig *r, int count);
uint64_t          rig_fingerprint(rig *r);
/** Return the bytes that the scalars of kernels move in a step, from the device and to it; 0 where
 *  there is none. */
size_t rig_scalars_down(const rig *r);
size_t rig_scalars_up(const rig *r);
/** Reads all values of a parameter in an EVAL pass. */
void rig_values(rig *r, int param, float *out);

#endif
