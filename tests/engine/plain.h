/* The arithmetic of docs/numerics.md, written plainly on whole arrays and without an engine. The
 * trainings of toy.c and of tests/campaign are compared with it, bit for bit. */
#ifndef TESTS_ENGINE_PLAIN_H
#define TESTS_ENGINE_PLAIN_H

#include "sherd.h"

typedef enum plain_kind {
    PLAIN_ADAMW,
    PLAIN_ADAM,       /* the decay is added to the gradient */
    PLAIN_LAMB,       /* in DeepSpeed's form */
    PLAIN_LAMB_PAPER, /* in the paper's form */
    PLAIN_LION,
    PLAIN_SGD,      /* without momentum */
    PLAIN_MOMENTUM, /* momentum 0.9, dampening 0.5 */
    PLAIN_NESTEROV, /* momentum 0.9 */
    PLAIN_ADAGRAD,  /* lr_decay 0.1, initial_accumulator_value 0.25 */
    PLAIN_KINDS,
    PLAIN_MUON = PLAIN_KINDS, /* for matrices only, so a training needs another kind in addition */
} plain_kind;

/* Muon's settings, as optimizer.params have them. */
typedef struct plain_muon {
    double momentum;
    int    is_nesterov, steps, matches_rms;
} plain_muon;

/** Returns what follows "type": in the block "optimizer", up to the place for further params:
 * "\"Lion\", \"params\": {". */
const char *plain_type(plain_kind kind);

/* What all parameters of a training share. */
typedef struct plain_rule {
    plain_kind kind;
    double     beta1, beta2, eps;
    double     max_coeff; /* of LAMB: the largest trust ratio; the smallest is 0.01 */
    plain_muon muon;
} plain_rule;

typedef struct plain_param {
    size_t      elems;
    size_t      cols;  /* for Muon: the columns of the matrix */
    sherd_dtype dtype; /* type of the weights that the trainer reads */
    int         is_frozen;
    double      lr, decay;
    int         has_no_ratio;   /* of LAMB: the trust ratio is 1 */
    float      *master, *m, *v; /* parts of the state, in this order; the last ones may be unused */
    float      *weight;         /* the master, rounded to dtype */
    float      *grad;           /* of the window; in the deterministic mode the sum of integers */
} plain_param;

/** Allocates `elems` elements of each array, all zero; the test fails if there is no memory. */
void plain_param_init(plain_param *param, size_t elems);
void plain_param_fini(plain_param *param);

float plain_round(float value, sherd_dtype dtype);
/** Reduces one element over the ranks. */
float plain_mean(const float *g, int world_size, sherd_dtype comm);
/** Returns the shift of the deterministic mode, whose integers are multiples of 2^-shift. */
int     plain_fixed_shift(int global_batch);
int64_t plain_fixed(float g, float loss_scale, int shift, double factor);

/** Returns the sum of squares of all gradients; NaN if one is Inf or NaN. */
double plain_sumsq(const plain_param *params, size_t num_params);
/** Makes the t-th update (from 1) of one parameter; gradients are multiplied by `scale`. */
void plain_update(plain_param *param, const plain_rule *rule, double scale, int t);

/** Returns the share of parameter p in the fingerprint of all parameters. */
uint64_t plain_param_fingerprint(const plain_param *params, size_t p);
uint64_t plain_fingerprint(const plain_param *params, size_t num_params);

#endif
