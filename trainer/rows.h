/* The operations that go element by element or along one row, as a table. rows.c is compiled three
 * times: for any machine, for AVX2 and for AVX-512. All three tables give the same bits, because
 * sums run in a fixed number of lanes and the compiler contracts nothing to fused multiply-adds.
 * Nothing here uses threads: compute_cpu.c splits the work. */
#ifndef LLM_ROWS_H
#define LLM_ROWS_H

#include "sherd.h"

#include <stddef.h>
#include <stdint.h>

/* Arrays must not overlap, except where a comment allows it. */
typedef struct rows_ops {
    const char *name;

    /* dst[i] = src[i] as fp32. */
    void (*widen)(sherd_dtype dtype, const void *src, float *dst, size_t n);
    /* dst[i] = src[i] in bf16. dst may begin where src does. */
    void (*narrow)(const float *src, uint16_t *dst, size_t n);
    /* dst[i] = dst[i] + src[i], rounded once to dst's type. */
    void (*accumulate)(sherd_dtype dtype, const float *src, void *dst, size_t n);
    /* y[i] += x[i]. */
    void (*add)(const float *x, float *y, size_t n);

    /* GELU in its tanh form (Hendrycks and Gimpel 2016), as in GPT-2. */
    void (*gelu)(const float *x, float *y, size_t n);
    /* d[i] = d[i] * gelu'(x[i]). */
    void (*gelu_back)(const float *x, float *d, size_t n);
    /* y = silu(gate) * up (Shazeer 2020). */
    void (*swiglu)(const float *gate, const float *up, float *y, size_t n);
    /* d is the gradient of y on entry, and of `up` on return. */
    void (*swiglu_back)(const float *gate, const float *up, float *d, float *dgate, size_t n);

    /* LayerNorm (Ba et al. 2016) of one row. */
    void (*layer_norm)(const float *x, const float *weight, const float *bias, float *y, size_t n,
                       float eps);
    /* dx += the gradient of x; the row's share is added to dweight and dbias. */
    void (*layer_norm_back)(const float *x, const float *weight, const float *dy, float *dx,
                            float *dweight, float *dbias, size_t n, float eps);
    /* RMSNorm (Zhang and Sennrich 2019) of one row. y may be x. */
    void (*rms_norm)(const float *x, const float *weight, float *y, size_t n, float eps);
    void (*rms_norm_back)(const float *x, const float *weight, const float *dy, float *dx,
                          float *dweight, size_t n, float eps);
    /* Rotates the pairs (x[i], x[i + n / 2]) by angles with the cosines and sines [n / 2].
     * `direction` is 1, or -1 in backward (Su et al. 2021, half-split). */
    void (*rotate)(float *x, const float *cosines, const float *sines, float direction, size_t n);

    /* s = softmax(scale * s) over the first `seen` entries, and 0 in the rest. Returns
     * log(sum(exp(scale * s))). */
    float (*softmax)(float *s, size_t seen, size_t n, float scale);
    /* Computes the same softmax again, from the logarithm that softmax has returned. */
    void (*softmax_again)(float *s, size_t seen, size_t n, float scale, float log_sum);
    /* dp is the gradient of p on entry and of s on return, with 0 from entry `seen` on. */
    void (*softmax_back)(const float *p, float *dp, size_t seen, size_t n, float scale);
    /* Returns the loss -log(softmax(x)[target]); x becomes the gradient of the loss times
     * `scale`. */
    double (*cross_entropy)(float *x, size_t n, size_t target, float scale);
    /* Returns the loss and leaves x as it is. */
    double (*cross_entropy_value)(const float *x, size_t n, size_t target);
} rows_ops;

#define ROWS_MOST_TABLES 3

/** Returns the tables that this machine can run, fastest first and the plain one last. Returns
 *  their number. */
size_t rows_tables(const rows_ops *out[ROWS_MOST_TABLES]);
/** Returns the fastest table. */
const rows_ops       *rows_best(void);
extern const rows_ops rows_ops_plain; /* for any machine */
extern const rows_ops rows_ops_avx2;
extern const rows_ops rows_ops_avx512;

#endif
