/* The arithmetic of docs/numerics.md written plainly, on whole arrays and without an engine: what the trainings of
 * toy.c and of tests/campaign are compared with, bit for bit. */
#ifndef TESTS_ENGINE_PLAIN_H
#define TESTS_ENGINE_PLAIN_H

#include "sherd.h"

typedef enum plain_kind {
    PLAIN_ADAMW,
    PLAIN_ADAM,       /* decay is added to the gradient */
    PLAIN_LAMB,       /* DeepSpeed's form */
    PLAIN_LAMB_PAPER, /* the paper's */
    PLAIN_LION,
    PLAIN_SGD,      /* without momentum */
    PLAIN_MOMENTUM, /* 0.9, dampening 0.5 */
    PLAIN_NESTEROV, /* 0.9 */
    PLAIN_ADAGRAD,  /* lr_decay 0.1, initial_accumulator_value 0.25 */
    PLAIN_KINDS,
    PLAIN_MUON = PLAIN_KINDS, /* of matrices alone, so a training has another kind beside it */
} plain_kind;

/* As optimizer.params have it. */
typedef struct plain_muon {
    double momentum;
    int    is_nesterov, steps, matches_rms;
} plain_muon;

/** Behind "type": in the block "optimizer", up to where further params follow: "\"Lion\", \"params\": {". */
const char *plain_type(plain_kind kind);

/* What all parameters of a training share. */
typedef struct plain_rule {
    plain_kind kind;
    double     beta1, beta2, eps;
    double     max_coeff; /* LAMB: largest trust ratio; the smallest is 0.01 */
    plain_muon muon;
} plain_rule;

typedef struct plain_param {
    size_t      elems;
    size_t      cols;  /* Muon: of the matrix */
    sherd_dtype dtype; /* of the weights that the trainer sees */
    int         is_frozen;
    double      lr, decay;
    int         has_no_ratio;   /* LAMB: the trust ratio is 1 */
    float      *master, *m, *v; /* those of the state that the optimizer has, in this order */
    float      *weight;         /* rounded to that type */
    float      *grad;           /* of the window; the sum of integers in the deterministic mode */
} plain_param;

/** Takes memory for elems elements of each array, all zero; the test ends when there is none. */
void plain_param_init(plain_param *param, size_t elems);
void plain_param_fini(plain_param *param);

float plain_round(float value, sherd_dtype dtype);
/** One element's reduction over the ranks. */
float plain_mean(const float *g, int world_size, sherd_dtype comm);
/** Of the deterministic mode: integers are multiples of 2^-shift. */
int     plain_fixed_shift(int global_batch);
int64_t plain_fixed(float g, float loss_scale, int shift);

/** Of all gradients; NaN where one is Inf or NaN. */
double plain_sumsq(const plain_param *params, size_t num_params);
/** The t-th update (from 1) of one parameter, gradients multiplied by `scale`. */
void plain_update(plain_param *param, const plain_rule *rule, double scale, int t);

/** The share of parameter p in the fingerprint of all. */
uint64_t plain_param_fingerprint(const plain_param *params, size_t p);
uint64_t plain_fingerprint(const plain_param *params, size_t num_params);

#endif
