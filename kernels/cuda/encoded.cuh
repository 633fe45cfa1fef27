/* Decodes and encodes parts of a state (kernels/encoding.h). A thread has four elements at a time,
 * and 16 neighbouring threads have a chunk of 64 elements. These 16 threads make the values of the
 * whole chunk (the largest magnitude, the plane of ties) by shuffles, and the thread with the first
 * element stores it. encoded.cu and lamb.cu use this.
 *
 * Like element types (elements.cuh), encodings are known at run time and are the same for all
 * threads. Part 0 is never FP8, and the other parts are never BESIDE, so less code is compiled.
 *
 * For a whole vector in aligned arrays, each part takes one load and one store: 16 bytes of fp32, 8
 * of a 16-bit encoding, 4 of FP8, whose chunks of 68 bytes allow no more. Otherwise elements are
 * loaded and stored one by one. */
#ifndef SHERDI_KERNELS_CUDA_ENCODED_CUH
#define SHERDI_KERNELS_CUDA_ENCODED_CUH

#include "kernels/codecs.h"
#include "kernels/cuda/packed.cuh"
#include "kernels/cuda/spans.cuh"

#define CHUNK_THREADS (SHERD_CHUNK_ELEMS / VECTOR_ELEMS)
/* A thread has one vector of a tile. */
#define ENCODED_TILE_ELEMS ((size_t)BLOCK_THREADS * VECTOR_ELEMS)

static_assert(CHUNK_THREADS == 16, "half a warp has a chunk");

/* A part as it is stored, or no part. */
typedef struct encoded_part {
    unsigned char  *data; /* NULL: no part */
    sherdi_encoding encoding;
    unsigned        width;    /* bytes of an element */
    unsigned        more;     /* bytes of the plane or scale after a chunk's elements */
    /* its signs are the ties of part 0: masked when it is read, preserved when it is written
     * alone */
    int             has_ties;
    sherdi_random   random;   /* for rounding */
} encoded_part;

/* The parts of a state and its other arrays, as a kernel takes them. */
typedef struct encoded_arrays {
    const void  *grad; /* may be NULL */
    sherd_dtype  grad_dtype;
    encoded_part parts[SHERDI_UPDATE_MOST_PARTS];
    uint16_t    *beside; /* the parameter, where parts[0] is BESIDE or BESIDE_PLANE; else NULL */
    void        *param;  /* otherwise the parameter, which is rounded from parts[0]; may be NULL */
    sherd_dtype  param_dtype;
    int          is_random; /* 1: round at random; 0: to nearest */
    int          is_vector;
} encoded_arrays;

/* A thread's vector: its bits as they are stored. */
template <int PARTS> struct encoded_vector {
    unsigned mine; /* bit i: element i of the four is in the range */
    packed4  grad;
    packed4  parts[PARTS]; /* FP8: the codes and the chunk's scale; BESIDE: the rests and the
                              parameter */
};

/* ----------------------------------------------------------- host -- */

static inline encoded_part encoded_part_of(const void *data, sherdi_encoding encoding)
{
    encoded_part part = {};

    part.data     = (unsigned char *)data;
    part.encoding = encoding;
    part.width    = (unsigned)sherdi_encoding_elem_bytes(encoding);
    part.more = (unsigned)(sherdi_encoding_chunk_bytes(encoding) - part.width * SHERD_CHUNK_ELEMS);
    return part;
}

/* FP8 chunks are whole words. fp32 after a plane of ties may lie at an odd multiple of eight
 * bytes. */
static inline int encoded_part_is_vector(const encoded_part *part)
{
    return (uintptr_t)part->data % (part->width == 1 ? 4 : 8) == 0;
}

static inline void encoded_arrays_finish(encoded_arrays *a)
{
    a->is_vector = is_vector_start(a->grad, a->grad_dtype) &&
                   is_vector_start(a->param, a->param_dtype) &&
                   is_vector_start(a->beside, SHERD_BF16);
    for (int i = 0; i < SHERDI_UPDATE_MOST_PARTS; i++) {
        a->is_vector = a->is_vector && encoded_part_is_vector(&a->parts[i]);
    }
}

/* The arrays of an update, or of LAMB's norms. */
static inline encoded_arrays encoded_arrays_of(const sherdi_update_args *args, int num_parts)
{
    encoded_arrays a = {};

    a.grad       = args->grad;
    a.grad_dtype = args->grad_dtype;
    a.is_random  = 1;
    for (int i = 0; i < num_parts; i++) {
        a.parts[i]      = encoded_part_of(args->parts[i], args->encodings[i]);
        a.parts[i].random = sherdi_random_of(args->step, (unsigned)i);
        a.parts[i].has_ties = sherdi_update_has_ties(args, i);
    }
    if (sherdi_encoding_is_beside(args->encodings[0])) {
        a.beside = (uint16_t *)args->param;
    } else {
        a.param       = args->param;
        a.param_dtype = args->param_dtype;
    }
    encoded_arrays_finish(&a);
    return a;
}

/* ----------------------------------------------------------- parts -- */

static inline __device__ unsigned char *part_at(const encoded_part &part, size_t at)
{
    return part.data + at * part.width + at / SHERD_CHUNK_ELEMS * part.more;
}

/* Returns the address of the chunk's plane or scale. */
static inline __device__ unsigned char *part_chunk_at(const encoded_part &part, size_t at)
{
    size_t chunk = at / SHERD_CHUNK_ELEMS;

    return part.data + (chunk + 1) * (SHERD_CHUNK_ELEMS * part.width) + chunk * part.more;
}

static inline __device__ bool part_is_fp8(const encoded_part &part)
{
    return part.encoding == SHERDI_ENCODING_FP8 || part.encoding == SHERDI_ENCODING_UFP8;
}

static inline __device__ bool is_whole(const encoded_arrays &a, size_t at, unsigned mine)
{
    return mine == 15 && at % VECTOR_ELEMS == 0 && a.is_vector;
}

/* Loads the elements of a vector that `mine` names; the other bits are zero. */
template <int PARTS>
static inline __device__ void encoded_load(const encoded_arrays &a, size_t at, unsigned mine,
                                           encoded_vector<PARTS> *x)
{
    bool whole = is_whole(a, at, mine);

    x->mine = mine;
    x->grad = packed_zero();
    if (a.grad != NULL) {
        unsigned width = a.grad_dtype == SHERD_F32 ? 4 : 2;

        x->grad =
            packed_load_mine((const unsigned char *)a.grad + at * width, width, x->mine, whole);
    }
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        x->parts[i] = packed_zero();
        if (a.parts[i].data != NULL) {
            x->parts[i] = packed_load_mine(part_at(a.parts[i], at), a.parts[i].width, mine, whole);
        }
        if (i > 0 && mine != 0 && part_is_fp8(a.parts[i])) {
            x->parts[i].y = *(const uint32_t *)part_chunk_at(a.parts[i], at);
        }
    }
    if (a.beside != NULL) {
        packed4 param = packed_load_mine((const unsigned char *)(a.beside + at), 2, mine, whole);

        x->parts[0].z = param.x;
        x->parts[0].w = param.y;
    }
}

/* Stores one part of a vector; the thread with a chunk's first element also stores an FP8 scale. */
static inline __device__ void part_store(const encoded_arrays &a, const encoded_part &part,
                                         size_t at, unsigned mine, packed4 x)
{
    packed_store_mine(part_at(part, at), part.width, x, mine, is_whole(a, at, mine));
    if (part_is_fp8(part) && mine != 0 && at % SHERD_CHUNK_ELEMS == 0) {
        *(uint32_t *)part_chunk_at(part, at) = x.y;
    }
}

/* ----------------------------------------------------------- ties -- */

/* Returns which of four rests are ties, as bits. */
static inline __device__ unsigned ties_of(packed4 x)
{
    unsigned ties = 0;

#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        ties |= (unsigned)(packed_get(x, 2, i) == (SHERDI_BESIDE_TIE & 0xffff)) << i;
    }
    return ties;
}

/* Returns the four bits of a chunk's plane that belong to a thread's elements. */
static inline __device__ unsigned plane_get(const encoded_part &part, size_t at)
{
    return part_chunk_at(part, at)[at % SHERD_CHUNK_ELEMS / 8] >> at % 8 & 15u;
}

/* Stores a chunk's plane. All threads of the warp call it. */
static inline __device__ void plane_set(const encoded_part &part, size_t at, unsigned mine,
                                        unsigned ups)
{
    bin_t plane = (bin_t)ups << at % SHERD_CHUNK_ELEMS;

    for (int by = CHUNK_THREADS / 2; by > 0; by /= 2) {
        plane |= __shfl_xor_sync(ALL_LANES, plane, by);
    }
    if (mine != 0 && at % SHERD_CHUNK_ELEMS == 0) {
        *(bin_t *)part_chunk_at(part, at) = plane;
    }
}

/* Corrects the masters at ties; one element in 2^16 is a tie. */
template <int PARTS>
static inline __device__ void ties_decode(const encoded_arrays &a, size_t at,
                                          const encoded_vector<PARTS> &x, float *master)
{
    unsigned ups = ties_of(x.parts[0]) & x.mine;

    if (ups == 0) {
        return;
    }
    if (a.parts[0].encoding == SHERDI_ENCODING_BESIDE_PLANE) {
        ups &= plane_get(a.parts[0], at);
    } else {
#pragma unroll
        for (int i = 1; i < PARTS; i++) {
            ups &= a.parts[i].has_ties ? signs_get(x.parts[i], a.parts[i].width) : ups;
        }
    }
#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        master[i] = ups >> i & 1 ? sherdi_beside_up(master[i]) : master[i];
    }
}

/* ----------------------------------------------------------- values -- */

static inline __device__ void f32_decode(const encoded_part &part, packed4 x, float *out)
{
    uint32_t mask = part.has_ties ? 0x7fffffffu : 0xffffffffu;

#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        out[i] = sherdi_f32_from_bits(packed_get(x, 4, i) & mask);
    }
}

static inline __device__ void bf16_decode(const encoded_part &part, packed4 x, float *out)
{
    uint32_t mask = part.has_ties ? 0x7fffu : 0xffffu;

#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        out[i] = sherdi_cast_bf16_f32((uint16_t)(packed_get(x, 2, i) & mask));
    }
}

static inline __device__ void fp8_decode(const encoded_part &part, packed4 x, float *out)
{
    float scale = sherdi_f32_from_bits(x.y);

#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        uint8_t code = (uint8_t)packed_get(x, 1, i);

        out[i] = part.encoding == SHERDI_ENCODING_FP8 ? sherdi_fp8_decode(code, scale)
                                                      : sherdi_ufp8_decode(code, scale);
    }
}

static inline __device__ void beside_decode(packed4 x, float *out)
{
    packed4 param = make_uint4(x.z, x.w, 0, 0);

#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        out[i] =
            sherdi_beside_decode((uint16_t)packed_get(param, 2, i), (int16_t)packed_get(x, 2, i));
    }
}

/* Decodes all parts to fp32. */
template <int PARTS>
static inline __device__ void encoded_decode(const encoded_arrays &a, size_t at,
                                             const encoded_vector<PARTS> &x,
                                             float (*out)[VECTOR_ELEMS])
{
    if (a.beside != NULL) {
        beside_decode(x.parts[0], out[0]);
        ties_decode(a, at, x, out[0]);
    } else if (a.parts[0].encoding == SHERDI_ENCODING_BF16) {
        bf16_decode(a.parts[0], x.parts[0], out[0]);
    } else {
        f32_decode(a.parts[0], x.parts[0], out[0]);
    }
#pragma unroll
    for (int i = 1; i < PARTS; i++) {
        if (part_is_fp8(a.parts[i])) {
            fp8_decode(a.parts[i], x.parts[i], out[i]);
        } else if (a.parts[i].encoding == SHERDI_ENCODING_BF16) {
            bf16_decode(a.parts[i], x.parts[i], out[i]);
        } else {
            f32_decode(a.parts[i], x.parts[i], out[i]);
        }
    }
}

static inline __device__ uint32_t random_of(const encoded_part &part, uint64_t index)
{
    return sherdi_random_bits(part.random, sherdi_mix_key(index));
}

/* Takes the bits of `old` where `kept` is set, else those of `bits`. */
static inline __device__ uint32_t blend(uint32_t old, uint32_t bits, uint32_t kept)
{
    return (old & kept) | (bits & ~kept);
}

static inline __device__ packed4 f32_encode(const encoded_part &part, const float *x, packed4 old)
{
    uint32_t kept = part.has_ties ? 0x80000000u : 0;

    return make_uint4(
        blend(old.x, sherdi_bits_f32(x[0]), kept), blend(old.y, sherdi_bits_f32(x[1]), kept),
        blend(old.z, sherdi_bits_f32(x[2]), kept), blend(old.w, sherdi_bits_f32(x[3]), kept));
}

static inline __device__ packed4 bf16_encode(const encoded_part &part, const float *x,
                                             uint64_t index, bool is_random, packed4 old)
{
    uint32_t kept = part.has_ties ? 0x80008000u : 0;
    uint16_t codes[VECTOR_ELEMS];

#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        codes[i] = is_random ? sherdi_bf16_encode_random(x[i], random_of(part, index + i))
                             : sherdi_bf16_encode(x[i]);
    }
    return make_uint4(blend(old.x, pair_of(codes[0], codes[1]), kept),
                      blend(old.y, pair_of(codes[2], codes[3]), kept), 0, 0);
}

/* Returns the scale of the thread's chunk. All threads of the warp call it. */
static inline __device__ float chunk_scale(const float *x, unsigned mine)
{
    uint32_t most = 0;

#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        uint32_t magnitude = mine >> i & 1 ? sherdi_bits_f32(x[i]) & 0x7fffffffu : 0;

        most = magnitude > most ? magnitude : most;
    }
    for (int by = CHUNK_THREADS / 2; by > 0; by /= 2) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, most, by);

        most = other > most ? other : most;
    }
    return sherdi_fp8_scale(most);
}

/* All threads of the warp call it. */
static inline __device__ packed4 fp8_encode(const encoded_part &part, const float *x,
                                            uint64_t index, bool is_random, unsigned mine)
{
    float    scale   = chunk_scale(x, mine);
    float    inverse = sherdi_fp8_inverse(scale);
    uint32_t codes   = 0;

#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        uint32_t random = random_of(part, index + i);
        uint8_t  code   = part.encoding == SHERDI_ENCODING_FP8
                              ? sherdi_fp8_encode(x[i], inverse, random, is_random)
                              : sherdi_ufp8_encode(x[i], inverse, random, is_random);

        codes |= (uint32_t)code << i * 8;
    }
    return make_uint4(codes, sherdi_bits_f32(scale), 0, 0);
}

/* *ups: which of the four elements are ties with the larger bits (sherdi_beside.is_up). */
static inline __device__ packed4 beside_encode(const float *x, unsigned *ups)
{
    sherdi_beside beside[VECTOR_ELEMS];

    *ups = 0;
#pragma unroll
    for (unsigned i = 0; i < VECTOR_ELEMS; i++) {
        beside[i] = sherdi_beside_encode(x[i]);
        *ups |= (unsigned)beside[i].is_up << i;
    }
    return make_uint4(pair_of((uint16_t)beside[0].rest, (uint16_t)beside[1].rest),
                      pair_of((uint16_t)beside[2].rest, (uint16_t)beside[3].rest),
                      pair_of(beside[0].param, beside[1].param),
                      pair_of(beside[2].param, beside[3].param));
}

/* Encodes and stores part 0; x becomes the values as they are stored. `index` is the first
 * element's global index, and `old` has the signs that are preserved. Returns which elements set
 * their sign in the part that has the ties. All threads of the warp call it. */
static inline __device__ unsigned master_store(const encoded_arrays &a, size_t at, uint64_t index,
                                               float *x, unsigned mine, packed4 old)
{
    const encoded_part &part = a.parts[0];
    unsigned            ups  = 0;

    if (a.beside != NULL) {
        old = beside_encode(x, &ups);
        packed_store_mine((unsigned char *)(a.beside + at), 2, make_uint4(old.z, old.w, 0, 0), mine,
                          is_whole(a, at, mine));
    } else if (part.encoding == SHERDI_ENCODING_BF16) {
        old = bf16_encode(part, x, index, a.is_random, old);
        bf16_decode(part, old, x);
    } else {
        old = f32_encode(part, x, old);
    }
    part_store(a, part, at, mine, old);
    if (part.encoding == SHERDI_ENCODING_BESIDE_PLANE) {
        plane_set(part, at, mine, ups & mine);
    }
    return ups;
}

/* Encodes and stores another part. All threads of the warp call it. */
static inline __device__ void moment_store(const encoded_arrays &a, const encoded_part &part,
                                           size_t at, uint64_t index, const float *x, unsigned mine,
                                           packed4 old)
{
    if (part_is_fp8(part)) {
        old = fp8_encode(part, x, index, a.is_random, mine);
    } else if (part.encoding == SHERDI_ENCODING_BF16) {
        old = bf16_encode(part, x, index, a.is_random, old);
    } else {
        old = f32_encode(part, x, old);
    }
    part_store(a, part, at, mine, old);
}

/* ----------------------------------------------------------- ranges -- */

/* Does a range of a tile of ENCODED_TILE_ELEMS, with one vector for each thread. Whole warps call
 * op.vector(mine, view, at), including threads without an element of the range (mine is 0). */
template <typename Op>
static inline __device__ void range_chunks(Op &op, const span_view &view, size_t tile_first,
                                           size_t low, size_t high)
{
    size_t at   = tile_first + threadIdx.x * VECTOR_ELEMS;
    size_t warp = tile_first + threadIdx.x / 32 * 32 * VECTOR_ELEMS;

    if (warp < high && warp + 32 * VECTOR_ELEMS > low) {
        op.vector(mine_of(at, low, high), view, at);
    }
}

#endif
