/* The kernels of a state that is stored in encodings: element-wise updates, decoding to fp32 and
 * encoding, the fingerprint. encoded.cuh has the conversions and the assignment of elements to
 * threads; LAMB's norms are in lamb.cu.
 *
 * update_encoded_kernel  256 threads with one vector each. The formulas load the processors more
 *                        than the memory, so many threads hide latencies here, rather than loads
 *                        ahead.
 * No kernel here reads elements that no span covers. */
#include "kernels/cuda/encoded.cuh"
#include "kernels/cuda/updates.cuh"

/* Thread blocks on a processor. */
#define ENCODED_BLOCKS(parts) ((parts) < 3 ? 4 : 3) /* as many as registers allow */
#define VALUES_BLOCKS         4

/* --------------------------------------------------------------- updates -- */

/* The operation of the walk, like `update` in update.cu. */
template <typename Rule> struct update_encoded {
    typedef typename Rule::coeffs coeffs;

    const encoded_arrays &arrays;
    const coeffs         *groups;
    const float          *ratios; /* may be NULL */
    coeffs                c;      /* of the span at hand */
    bin_t                 fingerprint;

    __device__ void span(const span_view &view)
    {
        c = span_coeffs(groups, ratios, view);
    }

    __device__ void range(const span_view &view, size_t tile_first, size_t low, size_t high)
    {
        range_chunks(*this, view, tile_first, low, high);
    }

    __device__ void elements(float4 grad, float (*values)[VECTOR_ELEMS]) const
    {
        float grads[VECTOR_ELEMS] = {grad.x, grad.y, grad.z, grad.w};

#pragma unroll
        for (int i = 0; i < VECTOR_ELEMS; i++) {
            float element[Rule::PARTS];

#pragma unroll
            for (int part = 0; part < Rule::PARTS; part++) {
                element[part] = values[part][i];
            }
            Rule::element(&c, grads[i], element);
#pragma unroll
            for (int part = 0; part < Rule::PARTS; part++) {
                values[part][i] = element[part];
            }
        }
    }

    /* Makes the parameter and the fingerprint of the master as it is stored. */
    __device__ void finish(const span_view &view, size_t at, unsigned mine, const float *master)
    {
        if (arrays.param != NULL && mine == 15 && arrays.is_vector) {
            vector_store(arrays.param, arrays.param_dtype, at,
                         make_float4(master[0], master[1], master[2], master[3]));
        }
#pragma unroll
        for (int i = 0; i < VECTOR_ELEMS; i++) {
            if (mine >> i & 1) {
                if (arrays.param != NULL && !(mine == 15 && arrays.is_vector)) {
                    element_store(arrays.param, arrays.param_dtype, at + i, master[i]);
                }
                fingerprint += sherdi_mix_element(view.index + at + i, master[i]);
            }
        }
    }

    /* Stores the master first, since this gives the new signs of another part. So the bits of each
     * part live only a short time. */
    __device__ void vector(unsigned mine, const span_view &view, size_t at)
    {
        encoded_vector<Rule::PARTS> x;
        float                       values[Rule::PARTS][VECTOR_ELEMS];
        unsigned                    ups;

        encoded_load(arrays, at, mine, &x);
        encoded_decode(arrays, at, x, values);
        elements(packed_widen(x.grad, arrays.grad_dtype), values);
        ups = master_store(arrays, at, view.index + at, values[0], mine, packed_zero());
        finish(view, at, mine, values[0]);
#pragma unroll
        for (int part = 1; part < Rule::PARTS; part++) {
            moment_store(arrays, arrays.parts[part], at, view.index + at, values[part], mine,
                         signs_set(packed_zero(), arrays.parts[part].width, ups));
        }
    }
};

template <typename Rule>
static void __global__ __launch_bounds__(BLOCK_THREADS, ENCODED_BLOCKS(Rule::PARTS))
    update_encoded_kernel(const __grid_constant__ encoded_arrays arrays,
                          const typename Rule::coeffs *groups, const float *ratios,
                          const sherdi_span *spans, size_t num_spans, bin_t *fingerprint)
{
    update_encoded<Rule> op = {arrays, groups, ratios, {}, 0};

    spans_walk(spans, num_spans, ENCODED_TILE_ELEMS, op);
    block_sum(op.fingerprint, fingerprint);
}

template <typename Rule>
static void update_encoded_launch(const sherdi_backend *backend, const sherdi_update_args *args)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);
    encoded_arrays     arrays = encoded_arrays_of(args, Rule::PARTS);

    kernel_launch(update_encoded_kernel<Rule>,
                  blocks_of_machine(target, ENCODED_BLOCKS(Rule::PARTS)), target, arrays,
                  (const typename Rule::coeffs *)args->coeffs, args->ratios, args->spans,
                  args->num_spans, (bin_t *)args->fingerprint);
}

extern "C" void sherdi_cuda_update_encoded(const sherdi_backend *backend, sherdi_update_id update,
                                           const sherdi_update_args *args)
{
    static void (*const LAUNCHES[])(const sherdi_backend *, const sherdi_update_args *) = {
#define SHERDI_UPDATE(name, num_parts) update_encoded_launch<name##_rule>,
#include "kernels/updates/rows.h"
    };

    LAUNCHES[update](backend, args);
}

/* ---------------------------------------------------------------- values -- */

/* The arrays for one part alone, with the part that has its ties, if any. FP8 is never part 0 here
 * (encoded.cuh). */
static encoded_arrays values_arrays(const sherdi_encoded *part)
{
    int is_fp8 = part->encoding == SHERDI_ENCODING_FP8 || part->encoding == SHERDI_ENCODING_UFP8;
    encoded_arrays arrays = {};

    arrays.parts[is_fp8]          = encoded_part_of(part->data, part->encoding);
    arrays.parts[is_fp8].has_ties = part->has_ties;
    if (sherdi_encoding_is_beside(part->encoding)) {
        arrays.beside = part->param;
    }
    if (part->encoding == SHERDI_ENCODING_BESIDE) {
        arrays.parts[1]          = encoded_part_of(part->ties, part->ties_encoding);
        arrays.parts[1].has_ties = 1;
    }
    encoded_arrays_finish(&arrays);
    return arrays;
}

#define VALUES_PARTS 2

/* values[0] is element `first` of the part. */
static void __global__ __launch_bounds__(BLOCK_THREADS, VALUES_BLOCKS)
    decode_kernel(const __grid_constant__ encoded_arrays arrays, float *values, size_t first,
                  size_t count, int is_vector)
{
    const bool is_second = arrays.parts[0].data == NULL;

    for (size_t at = first / ENCODED_TILE_ELEMS * ENCODED_TILE_ELEMS +
                     ((size_t)blockIdx.x * BLOCK_THREADS + threadIdx.x) * VECTOR_ELEMS;
         at < first + count; at += (size_t)gridDim.x * ENCODED_TILE_ELEMS) {
        const unsigned               mine = mine_of(at, first, first + count);
        encoded_vector<VALUES_PARTS> x;
        float                        all[VALUES_PARTS][VECTOR_ELEMS];

        encoded_load(arrays, at, mine, &x);
        encoded_decode(arrays, at, x, all);
        packed_store_mine((unsigned char *)(values + at) - first * sizeof(float), 4,
                          is_second ? packed_of(all[1]) : packed_of(all[0]), mine,
                          mine == 15 && is_vector);
    }
}

/* Returns which elements of a vector are written. Where chunks have a plane or a scale, these are
 * all elements of each chunk that is touched; elements outside the range keep their values. */
static inline __device__ unsigned written_of(const encoded_arrays &arrays, size_t at, size_t first,
                                             size_t last)
{
    size_t chunk = at / SHERD_CHUNK_ELEMS * SHERD_CHUNK_ELEMS;

    if (arrays.parts[0].more == 0 && arrays.parts[1].more == 0) {
        return mine_of(at, first, last);
    }
    return chunk < last && chunk + SHERD_CHUNK_ELEMS > first ? 15 : 0;
}

static inline __device__ void values_store(const encoded_arrays &arrays, size_t at,
                                           const encoded_vector<VALUES_PARTS> &x, float *values)
{
    unsigned ups;

    if (arrays.parts[0].data == NULL) {
        moment_store(arrays, arrays.parts[1], at, 0, values, x.mine, x.parts[1]);
        return;
    }
    ups = master_store(arrays, at, 0, values, x.mine, x.parts[0]);
    if (arrays.parts[1].data != NULL) {
        part_store(arrays, arrays.parts[1], at, x.mine,
                   signs_set(x.parts[1], arrays.parts[1].width, ups));
    }
}

static void __global__ __launch_bounds__(BLOCK_THREADS, VALUES_BLOCKS)
    encode_kernel(const __grid_constant__ encoded_arrays arrays, const float *values, size_t first,
                  size_t count, int is_vector)
{
    const bool   is_second = arrays.parts[0].data == NULL;
    const size_t last      = first + count;

    /* the loop's condition is the same for all threads of a warp */
    for (size_t tile = first / ENCODED_TILE_ELEMS * ENCODED_TILE_ELEMS +
                       (size_t)blockIdx.x * ENCODED_TILE_ELEMS;
         tile < last; tile += (size_t)gridDim.x * ENCODED_TILE_ELEMS) {
        size_t                       at   = tile + threadIdx.x * VECTOR_ELEMS;
        unsigned                     mine = mine_of(at, first, last);
        encoded_vector<VALUES_PARTS> x;
        float                        all[VALUES_PARTS][VECTOR_ELEMS];
        float                        wide[VECTOR_ELEMS];

        f32_decode({},
                   packed_load_mine((const unsigned char *)(values + at) - first * sizeof(float), 4,
                                    mine, mine == 15 && is_vector),
                   wide);
        encoded_load(arrays, at, written_of(arrays, at, first, last), &x);
        encoded_decode(arrays, at, x, all);
#pragma unroll
        for (int i = 0; i < VECTOR_ELEMS; i++) {
            wide[i] = mine >> i & 1 ? wide[i] : is_second ? all[1][i] : all[0][i];
        }
        values_store(arrays, at, x, wide);
    }
}

/* Returns whether `values`, which begin at element `first` of the part, are aligned where the
 * part's vectors are. */
static int values_are_vector(const float *values, size_t first)
{
    return ((uintptr_t)values - first * sizeof(float)) % 16 == 0;
}

static size_t values_blocks(sherdi_cuda_target target, size_t first, size_t count)
{
    return blocks_of(target, VALUES_BLOCKS, first % ENCODED_TILE_ELEMS + count, ENCODED_TILE_ELEMS);
}

extern "C" void sherdi_cuda_decode(const sherdi_backend *backend, float *dst,
                                   const sherdi_encoded *part, size_t first, size_t count_elems)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    if (count_elems > 0) {
        kernel_launch(decode_kernel, values_blocks(target, first, count_elems), target,
                      values_arrays(part), dst, first, count_elems, values_are_vector(dst, first));
    }
}

extern "C" void sherdi_cuda_encode(const sherdi_backend *backend, const sherdi_encoded *part,
                                   size_t first, const float *src, size_t count_elems)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    if (count_elems > 0) {
        kernel_launch(encode_kernel, values_blocks(target, first, count_elems), target,
                      values_arrays(part), src, first, count_elems, values_are_vector(src, first));
    }
}

/* ----------------------------------------------------------- fingerprint -- */

typedef struct fingerprint_encoded_op {
    const encoded_arrays &arrays;
    bin_t                 sum;

    __device__ void span(const span_view &view)
    {
        (void)view;
    }

    __device__ void range(const span_view &view, size_t tile_first, size_t low, size_t high)
    {
        range_chunks(*this, view, tile_first, low, high);
    }

    __device__ void vector(unsigned mine, const span_view &view, size_t at)
    {
        encoded_vector<VALUES_PARTS> x;
        float                        all[VALUES_PARTS][VECTOR_ELEMS];

        encoded_load(arrays, at, mine, &x);
        encoded_decode(arrays, at, x, all);
#pragma unroll
        for (int i = 0; i < VECTOR_ELEMS; i++) {
            sum += mine >> i & 1 ? sherdi_mix_element(view.index + at + i, all[0][i]) : 0;
        }
    }
} fingerprint_encoded_op;

static void __global__ __launch_bounds__(BLOCK_THREADS, VALUES_BLOCKS)
    fingerprint_encoded_kernel(const __grid_constant__ encoded_arrays arrays,
                               const sherdi_span *spans, size_t num_spans, bin_t *sum)
{
    fingerprint_encoded_op op = {arrays, 0};

    spans_walk(spans, num_spans, ENCODED_TILE_ELEMS, op);
    block_sum(op.sum, sum);
}

extern "C" void sherdi_cuda_fingerprint_encoded(const sherdi_backend *backend,
                                                const sherdi_span *spans, size_t num_spans,
                                                const sherdi_encoded *master, uint64_t *sum)
{
    sherdi_cuda_target target = sherdi_cuda_target_of(backend);

    kernel_launch(fingerprint_encoded_kernel, blocks_of_machine(target, VALUES_BLOCKS), target,
                  values_arrays(master), spans, num_spans, (bin_t *)sum);
}
