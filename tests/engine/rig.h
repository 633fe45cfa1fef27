/* A rig: one engine with a model that the test declares itself, driven in short words. Gradients are
 * a plain function of (micro-batch, parameter, element, weight), as the toy's are. Every word fails
 * the test when a call does. */
#ifndef TESTS_ENGINE_RIG_H
#define TESTS_ENGINE_RIG_H

#include "sherd.h"

#define RIG_UNITS  8
#define RIG_PARAMS 16

typedef struct rig_options {
    int         stage;
    int         accumulation; /* 0: 1 */
    int         micro_batch;  /* 0: 1 */
    sherd_dtype dtype;
    double      clip;
    const char *zero;          /* more keys of zero_optimization, ", \"key\": value" */
    const char *top;           /* and of the top level */
    const char *optimizer;     /* NULL: AdamW */
    const char *params;        /* more keys of optimizer.params, ", \"key\": value" */
    int         backward_uses; /* of every unit: 0 or SHERD_USES_ANY */
    int         retain_grads;  /* of every unit */
    int has_matrices; /* parameters that say nothing of their shape are one column, not vectors */
    unsigned wide;    /* bit p: parameter p is declared as fp32 */
} rig_options;

typedef struct rig_param_info {
    sherd_param handle;
    int         unit; /* index into units */
    size_t      elems;
    int         is_frozen;
    sherd_dtype dtype; /* in which it is read */
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
    int64_t        micro; /* micro-batches of this rank so far */
} rig;

/** The configuration as JSON, in a static buffer of the calling thread. AdamW, lr 0.01, betas 0.9 and
 *  0.95, decay 0.1, persistence threshold 0. */
const char *rig_json(const rig_options *options);
/** Keys of the block "sherd" for the state of bf16 engines, as the environment gives them to a test (SHERD_TEST_STATE, such as
 *  "master_encoding": "bf16_beside"), with the block around them: what a configuration has beside `top`. Empty where
 *  nothing is given, the engine is no bf16 one or `top` has the block. */
const char *rig_state_keys(sherd_dtype dtype, const char *top);
/** Parses and creates; the status of create. */
sherd_status rig_create(sherd_world *world, const char *json, sherd_engine **out);

void rig_open(rig *r, sherd_world *world, const rig_options *options);
void rig_close(rig *r);
/** All return the index in the rig. */
int rig_unit(rig *r, const char *name);
/** With what the other fields of params say; name and struct_size are set here. */
int rig_unit_as(rig *r, const char *name, sherd_unit_params *params);
int rig_param(rig *r, int unit, const char *name, size_t elems);
/** Units a, b and c with a parameter each, of `elems` elements and of 641 more for each. */
void rig_three(rig *r, size_t elems);
/** With what the other fields of params say; name and struct_size are given here, the shape where params have none, and the
 *  type of wide ones. */
int rig_param_as(rig *r, int unit, const char *name, size_t elems,
                 const sherd_param_params *params);
/** Seals and fills every parameter. */
void rig_seal(rig *r);
/** Values by parameter number and index; ctx is the number cast to a pointer. */
sherd_status rig_fill(void *ctx, size_t first_elem, size_t count_elems, float *out);

void rig_acquire(rig *r, int unit, sherd_pass pass);
void rig_release(rig *r, int unit, sherd_pass pass);
/** Reads the parameter where it is acquired; its sum. */
double rig_read(rig *r, int param);
/** Adds the micro-batch's gradient, times `share`, where it is acquired for backward. */
void rig_touch(rig *r, int param, float share);
/** Writes one value into the gradient. */
void rig_poke(rig *r, int param, size_t index, float value);
/** Acquire, read or touch all its trainable parameters, release. */
void rig_forward(rig *r, int unit, sherd_pass pass);
void rig_backward(rig *r, int unit);
/** Forward through all units in their order, backward in reverse. */
void rig_micro_batch(rig *r);
/** sherd_step, and counts the micro-batch. */
sherd_step_report rig_step(rig *r);
/** `count` micro-batches, each with its step; the last report. */
sherd_step_report rig_train(rig *r, int count);
uint64_t          rig_fingerprint(rig *r);
/** All values of a parameter by EVAL. */
void rig_values(rig *r, int param, float *out);

#endif
