/* Reads files of the form of models.json (make_cases.py makes some of its cases): cases of a model
 * with what its loss, gradients and ten AdamW steps have to be, and makes the weights and tokens
 * that the cases start from. */
#ifndef TESTS_EXAMPLES_CASES_H
#define TESTS_EXAMPLES_CASES_H

#include "models/arch.h"

#include <stddef.h>
#include <stdint.h>

#define CASE_FIRST 4
#define CASE_LAST  2

typedef struct case_param {
    char   name[ARCH_NAME_BYTES];
    size_t k, elems;
    double grad_l2;
    double grad_first[CASE_FIRST], grad_last[CASE_LAST];
    size_t num_first, num_last; /* fewer than the arrays hold for tiny parameters */
    /* The product with what case_dot_weights gives, in which every element counts; has_dot 0: the
     * file has none. */
    double grad_dot;
    int    has_dot;
} case_param;

typedef struct model_case {
    char        name[64];
    arch        sizes;
    size_t      batch, length; /* a sequence is length + 1 tokens: the last is a target alone */
    double      scale, lr;
    double      loss, grad_norm;
    case_param *params; /* [num_params] */
    size_t      num_params;
    double     *losses; /* of the AdamW steps [num_losses] */
    size_t      num_losses;
} model_case;

/** Reads all cases. Returns 0; -1 with a sentence in `text` when the file is not of this form. */
int  cases_load(const char *path, model_case **out, size_t *count_out, char *text,
                size_t text_bytes);
void cases_free(model_case *cases, size_t count);

/** out[0 .. count): the initial values of parameter k of a case from element `first` on. */
void case_weights(const model_case *c, size_t k, size_t first, size_t count, float *out);
/** out[0 .. count): by what the gradient of parameter k is multiplied for grad_dot, from element
 *  `first` on. */
void case_dot_weights(size_t k, size_t first, size_t count, double *out);
/** Inputs and targets [batch, length] of a case. */
void case_tokens(const model_case *c, int32_t *inputs, int32_t *targets);

/** Returns the larger of two errors; a NaN is worse than anything. */
double case_worse(double a, double b);
/** Returns how far `got` is from `want`, relative to it or to `least`, whichever is larger. */
double case_relative(double got, double want, double least);
/** Returns the worst relative error of a parameter's gradient, row-major as arch.h has the
 *  parameter. */
double case_grad_error(const case_param *want, const float *grad);

#endif
