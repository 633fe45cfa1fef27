/* The walk over the spans of a block. It goes by tiles of the block's elements, which do not depend
 * on the spans. So a thread block finds the spans of a tile by one search, and usually by none
 * (large parameters have many tiles).
 *
 * A thread block owns whole tiles, numbers blockIdx.x, blockIdx.x + gridDim.x, ...: all thread
 * blocks together move through the arrays as one front. A thread owns the vectors threadIdx.x and
 * threadIdx.x + 256 of a tile. Tiles start at multiples of 2048 elements, so vectors are aligned
 * where the arrays are. A vector that the end of a span cuts is done element by element, and so are
 * all elements where an array is not aligned.
 *
 * Each element is updated by one thread, and sums are sums of integers, so no result depends on the
 * number of thread blocks. */
#ifndef SHERDI_KERNELS_CUDA_SPANS_CUH
#define SHERDI_KERNELS_CUDA_SPANS_CUH

#include "kernels/cuda/elements.cuh"

/* Vectors that a thread loads before it uses the first. */
#define TILE_VECTORS 2
#define TILE_ELEMS   ((size_t)BLOCK_THREADS * VECTOR_ELEMS * TILE_VECTORS)

/* A span, as elements [first, end) of the block. */
typedef struct span_view {
    size_t   first, end;
    uint64_t index; /* plus an element's index in the block: its global index, modulo 2^64 */
    size_t   number;
    int32_t  param, group;
} span_view;

static inline __device__ span_view span_read(const sherdi_span *spans, size_t number)
{
    sherdi_span span = spans[number];
    span_view   view;

    view.first  = span.offset_elems;
    view.end    = span.offset_elems + span.count_elems;
    view.index  = span.first_index - span.offset_elems;
    view.number = number;
    view.param  = span.param;
    view.group  = span.group;
    return view;
}

/* Returns the first span that ends beyond element `first`; num_spans: none does. */
static inline __device__ size_t span_find(const sherdi_span *spans, size_t num_spans, size_t first)
{
    size_t low  = 0;
    size_t high = num_spans;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (spans[middle].offset_elems + spans[middle].count_elems > first) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Calls op.span(view) when the thread block comes to another span, and op.range(view, tile_first,
 * low, high) for the range [low, high) that a span has of a tile. Both calls are the same for all
 * threads of the thread block. */
template <typename Op>
static inline __device__ void spans_walk(const sherdi_span *spans, size_t num_spans,
                                         size_t tile_elems, Op &op)
{
    span_view  now = {0, 0, 0, 0, 0, 0};
    size_t     end;

    if (num_spans == 0) {
        return;
    }
    end = spans[num_spans - 1].offset_elems + spans[num_spans - 1].count_elems;
    for (size_t first = (spans[0].offset_elems / tile_elems + blockIdx.x) * tile_elems; first < end;
         first += (size_t)gridDim.x * tile_elems) {
        size_t last = first + tile_elems;

        if (first < now.first || first >= now.end) {
            now = span_read(spans, span_find(spans, num_spans, first));
            op.span(now);
        }
        for (;;) {
            size_t low  = now.first > first ? now.first : first;
            size_t high = now.end < last ? now.end : last;

            if (low < high) {
                op.range(now, first, low, high);
            }
            if (now.end >= last || now.number + 1 == num_spans) {
                break;
            }
            now = span_read(spans, now.number + 1);
            op.span(now);
        }
    }
}

/* Does a range in vectors or element by element: op.load(at, &loaded) loads what op.vector(loaded,
 * view, at) needs, and op.element(view, at) does one element. */
template <typename Op>
static inline __device__ void range_update(Op &op, const span_view &view, size_t tile_first,
                                           size_t low, size_t high, int is_vector)
{
    /* [low, inner_low) and [inner_high, high) are not whole vectors. */
    size_t inner_low  = (low + VECTOR_ELEMS - 1) / VECTOR_ELEMS * VECTOR_ELEMS;
    size_t inner_high = high / VECTOR_ELEMS * VECTOR_ELEMS;
    unsigned head, edges;

    if (!is_vector || inner_low >= inner_high) {
        inner_low  = high;
        inner_high = high;
    }
    if (inner_low < inner_high) {
        typename Op::loaded x[TILE_VECTORS];
        bool                is_mine[TILE_VECTORS];
        size_t              at = tile_first + threadIdx.x * VECTOR_ELEMS;

#pragma unroll
        for (int i = 0; i < TILE_VECTORS; i++) {
            size_t here = at + (size_t)i * BLOCK_THREADS * VECTOR_ELEMS;

            is_mine[i] = here >= inner_low && here < inner_high;
            if (is_mine[i]) {
                op.load(here, &x[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < TILE_VECTORS; i++) {
            if (is_mine[i]) {
                op.vector(x[i], view, at + (size_t)i * BLOCK_THREADS * VECTOR_ELEMS);
            }
        }
    }
    head  = (unsigned)(inner_low - low);
    edges = head + (unsigned)(high - inner_high);
    for (unsigned i = threadIdx.x; i < edges; i += BLOCK_THREADS) {
        op.element(view, i < head ? low + i : inner_high + (i - head));
    }
}

#endif
