/* The element-wise updates (kernels/updates/): one pass over a block's gradient and parts of the
 * state, which also writes the new parameters and adds up the fingerprint. spans.cuh says which
 * thread owns which element. One template gives each formula a kernel of its own.
 *
 * update_kernel   256 threads, 64 registers: four thread blocks on a processor. Each thread has two
 *                 vectors of four elements in flight (56 bytes each, with three parts and a 16-bit
 *                 gradient). 64 bytes of shared memory.
 *
 * Vectors need the parts at multiples of 16 bytes, and grad and param at multiples of four
 * elements; the slices of a block are there. Otherwise elements are loaded one by one. */
#include "kernels/cuda/encoded.cuh"
#include "kernels/cuda/updates.cuh"

#define UPDATE_BLOCKS 4 /* thread blocks on a processor */

static inline __device__ bin_t mix_vector(uint64_t index, float4 x)
{
    return sherdi_mix_element(index, x.x) + sherdi_mix_element(index + 1, x.y) +
           sherdi_mix_element(index + 2, x.z) + sherdi_mix_element(index + 3, x.w);
}

/* The operation of the walk. Rule is an update: its coefficients, its number of parts, and its
 * formula for one element. */
template <typename Rule> struct update {
    typedef update_loaded<Rule::PARTS> loaded;
    typedef typename Rule::coeffs      coeffs;

    const update_arrays &arrays;
    const coeffs        *groups;
    const float         *ratios; /* may be NULL */
    coeffs               c;      /* of the current span */
    bin_t                fingerprint;

    __device__ void span(const span_view &view)
    {
        c = span_coeffs(groups, ratios, view);
    }

    __device__ void range(const span_view &view, size_t tile_first, size_t low, size_t high)
    {
        range_update(*this, view, tile_first, low, high, arrays.is_vector);
    }

    __device__ void load(size_t at, loaded *x)
    {
        update_load(arrays, at, x);
    }

    /* Updates one of the four elements of a vector. */
    template <float float4::*LANE> __device__ void lane(loaded &x, float grad) const
    {
        float element[Rule::PARTS];

#pragma unroll
        for (int part = 0; part < Rule::PARTS; part++) {
            element[part] = x.parts[part].*LANE;
        }
        Rule::element(&c, grad, element);
#pragma unroll
        for (int part = 0; part < Rule::PARTS; part++) {
            x.parts[part].*LANE = element[part];
        }
    }

    __device__ void vector(loaded &x, const span_view &view, size_t at)
    {
        float4 grad = packed_widen(x.grad, arrays.grad_dtype);

        lane<&float4::x>(x, grad.x);
        lane<&float4::y>(x, grad.y);
        lane<&float4::z>(x, grad.z);
        lane<&float4::w>(x, grad.w);
#pragma unroll
        for (int part = 0; part < Rule::PARTS; part++) {
            *(float4 *)(arrays.parts[part] + at) = x.parts[part];
        }
        if (arrays.param != NULL) {
            vector_store(arrays.param, arrays.param_dtype, at, x.parts[0]);
        }
        fingerprint += mix_vector(view.index + at, x.parts[0]);
    }

    __device__ void element(const span_view &view, size_t at)
    {
        float element[Rule::PARTS];

        for (int part = 0; part < Rule::PARTS; part++) {
            element[part] = arrays.parts[part][at];
        }
        Rule::element(&c, element_load(arrays.grad, arrays.grad_dtype, at), element);
        for (int part = 0; part < Rule::PARTS; part++) {
            arrays.parts[part][at] = element[part];
        }
        if (arrays.param != NULL) {
            element_store(arrays.param, arrays.param_dtype, at, element[0]);
        }
        fingerprint += sherdi_mix_element(view.index + at, element[0]);
    }
};

template <typename Rule>
static void __global__ __launch_bounds__(BLOCK_THREADS, UPDATE_BLOCKS)
    update_kernel(const __grid_constant__ update_arrays arrays, const typename Rule::coeffs *groups,
                  const float *ratios, const sherdi_span *spans, size_t num_spans,
                  bin_t *fingerprint)
{
    update<Rule> op = {arrays, groups, ratios, {}, 0};

    spans_walk(spans, num_spans, TILE_ELEMS, op);
    block_sum(op.fingerprint, fingerprint);
}

template <typename Rule>
static void update_launch(const sherdi_backend *backend, const sherdi_update_args *args)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    kernel_launch(update_kernel<Rule>, blocks_of_machine(target, UPDATE_BLOCKS), target,
                  update_arrays_of(args, Rule::PARTS), (const typename Rule::coeffs *)args->coeffs,
                  args->ratios, args->spans, args->num_spans, (bin_t *)args->fingerprint);
}

extern "C" void sherdi_cuda_update(const sherdi_backend *backend, sherdi_update_id update,
                                   const sherdi_update_args *args)
{
    static void (*const LAUNCHES[])(const sherdi_backend *, const sherdi_update_args *) = {
#define SHERDI_UPDATE(name, num_parts) update_launch<name##_rule>,
#include "kernels/updates/rows.h"
    };

    if (sherdi_has_encoded(args->encodings, SHERDI_UPDATE_MOST_PARTS)) {
        sherdi_cuda_update_encoded(backend, update, args);
    } else {
        LAUNCHES[update](backend, args);
    }
}

extern "C" cudaError_t sherdi_cuda_probe(void)
{
    cudaFuncAttributes attributes;

    return cudaFuncGetAttributes(&attributes, update_kernel<adam_rule>);
}
