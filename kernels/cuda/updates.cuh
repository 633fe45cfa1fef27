/* Shared by the kernels of updates: the updates as types (adam_rule and so on), which are the
 * arguments of the kernels' templates, and the arrays of a state in fp32. */
#ifndef SHERDI_KERNELS_CUDA_UPDATES_CUH
#define SHERDI_KERNELS_CUDA_UPDATES_CUH

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/spans.cuh"
#include "kernels/updates/updates.h"

#define SHERDI_UPDATE(name, num_parts)                                                             \
    struct name##_rule {                                                                           \
        enum { PARTS = num_parts };                                                                \
        typedef sherdi_##name##_coeffs coeffs;                                                     \
                                                                                                   \
        static __device__ void element(const coeffs *c, float grad, float *x)                      \
        {                                                                                          \
            sherdi_##name##_element(c, grad, x);                                                   \
        }                                                                                          \
    };
#include "kernels/updates/rows.h"

/* Returns the coefficients of a span: its group's, with the step times the parameter's ratio.
 * `ratios`, by parameter, may be NULL. */
template <typename Coeffs>
static inline __device__ Coeffs span_coeffs(const Coeffs *groups, const float *ratios, const span_view &view)
{
    Coeffs c = groups[view.group];

    if (ratios != NULL) {
        c.neg_step_size = c.neg_step_size * ratios[view.param];
    }
    return c;
}

/* The arrays of an update, with as many parts as the update has. */
typedef struct update_arrays {
    const void *grad;
    float      *parts[SHERDI_UPDATE_MOST_PARTS];
    void       *param; /* may be NULL */
    sherd_dtype grad_dtype, param_dtype;
    int         is_vector;
} update_arrays;

template <int PARTS> struct update_loaded {
    packed4 grad;
    float4  parts[PARTS];
};

template <int PARTS>
static inline __device__ void update_load(const update_arrays &a, size_t at,
                                          update_loaded<PARTS> *x)
{
    x->grad = packed_load(a.grad, a.grad_dtype, at);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        x->parts[part] = *(const float4 *)(a.parts[part] + at);
    }
}

static inline update_arrays update_arrays_of(const sherdi_update_args *args, int num_parts)
{
    update_arrays arrays = {};

    arrays.grad        = args->grad;
    arrays.grad_dtype  = args->grad_dtype;
    arrays.param       = args->param;
    arrays.param_dtype = args->param_dtype;
    arrays.is_vector   = is_vector_start(args->grad, args->grad_dtype) &&
                       is_vector_start(args->param, args->param_dtype);
    for (int part = 0; part < num_parts; part++) {
        arrays.parts[part] = args->parts[part];
        arrays.is_vector   = arrays.is_vector && is_vector_start(args->parts[part], SHERD_F32);
    }
    return arrays;
}

#endif
