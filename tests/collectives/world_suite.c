#include "tests/collectives/world_suite.h"

#include "base/checked.h"
#include "base/hash.h"
#include "collectives/bounce.h"
#include "collectives/follow.h"
#include "collectives/host_memory.h"
#include "collectives/regroup.h"
#include "collectives/room.h"
#include "collectives/sums.h"
#include "kernels/fixed.h"
#include "tests/collectives/split_suite.h"
#include "tests/lib/check.h"

#include <stdlib.h>
#include <string.h>

const int    WORLD_SIZES[]     = {1, 2, 3, 4, 7, 8};
const size_t WORLD_SIZES_COUNT = sizeof(WORLD_SIZES) / sizeof(WORLD_SIZES[0]);

/* ------------------------------------------------- what every rank is known to have -- */

/* Elements begin anew after so many, a prime: what is long is filled and checked quickly. */
#define KNOWN_ELEMS ((size_t)16381)

/* Element i of rank r: magnitudes over 2^-6 .. 2^6, so that sums round. */
static float known_value(int rank, size_t i)
{
    uint64_t bits = sherdi_mix64((uint64_t)rank * 0x9e3779b97f4a7c15u + i % KNOWN_ELEMS);
    uint32_t f32  = (uint32_t)(bits & 0x807fffffu) | (uint32_t)(121 + (bits >> 40) % 12) << 23;

    return sherdi_f32_from_bits(f32);
}

/* Through memcpy: the buffers hold elements of any type. */
static float elem_load(const void *data, size_t i, sherd_dtype dtype)
{
    uint16_t half;
    float    value;

    if (dtype == SHERD_F32) {
        memcpy(&value, (const unsigned char *)data + i * 4, 4);
        return value;
    }
    memcpy(&half, (const unsigned char *)data + i * 2, 2);
    return dtype == SHERD_BF16 ? sherdi_cast_bf16_f32(half) : sherdi_cast_f16_f32(half);
}

static void elem_store(void *data, size_t i, sherd_dtype dtype, float value)
{
    uint16_t half = dtype == SHERD_BF16 ? sherdi_cast_f32_bf16(value) : sherdi_cast_f32_f16(value);

    if (dtype == SHERD_F32) {
        memcpy((unsigned char *)data + i * 4, &value, 4);
    } else {
        memcpy((unsigned char *)data + i * 2, &half, 2);
    }
}

static float round_to(sherd_dtype dtype, float value)
{
    unsigned char held[4];

    elem_store(held, 0, dtype, value);
    return elem_load(held, 0, dtype);
}

/* Eight bytes from one hash, so that long buffers are filled and checked quickly. */
static uint64_t known_word(int rank, size_t i)
{
    return sherdi_mix64((uint64_t)rank << 40 | i / 8);
}

static unsigned char word_byte(uint64_t word, size_t i)
{
    return (unsigned char)(word >> i % 8 * 8);
}

/* ------------------------------------------------------- memory of the world's backend -- */

static sherdi_backend *lane_of(const sherd_world *world)
{
    return (sherdi_backend *)(uintptr_t)sherdi_world_backend(world);
}

int suite_is_on_device(const sherd_world *world)
{
    return sherdi_world_backend(world) != sherdi_world_host(world);
}

void *suite_alloc(sherd_world *world, size_t len_bytes)
{
    sherdi_backend *lane   = lane_of(world);
    void           *memory = NULL;

    if (!suite_is_on_device(world)) {
        memory = malloc(len_bytes);
        CHECK(memory != NULL);
        return memory;
    }
    CHECK_OK(lane->device->alloc(lane, lane->mem, SHERDI_MEM_CONTROL, len_bytes, &memory));
    return memory;
}

void suite_free(sherd_world *world, void *memory)
{
    sherdi_backend *lane = lane_of(world);

    if (!suite_is_on_device(world)) {
        free(memory);
        return;
    }
    (void)sherdi_lane_wait(lane);
    lane->device->free(lane, memory);
}

void suite_put(sherd_world *world, void *dst, const void *src, size_t len_bytes)
{
    const sherdi_backend *lane = sherdi_world_backend(world);

    if (len_bytes > 0) {
        lane->kernels->copy(lane, dst, src, len_bytes);
        CHECK_OK(sherdi_lane_wait(lane));
    }
}

void suite_get(sherd_world *world, void *dst, const void *src, size_t len_bytes)
{
    suite_put(world, dst, src, len_bytes);
}

void suite_fill(sherd_world *world, void *dst, int byte, size_t len_bytes)
{
    const sherdi_backend *lane = sherdi_world_backend(world);

    lane->device->fill(lane, dst, byte, len_bytes);
    CHECK_OK(sherdi_lane_wait(lane));
}

static void *host_room(size_t len_bytes)
{
    void *room = malloc(len_bytes + 1);

    CHECK(room != NULL);
    return room;
}

/* Behind its first KNOWN_ELEMS elements the array has the same ones again, to `count` in all. */
static void elems_repeat(void *data, size_t count, size_t elem_bytes)
{
    unsigned char *at = data;

    for (size_t done = KNOWN_ELEMS; done < count; done += KNOWN_ELEMS) {
        memcpy(at + done * elem_bytes, at, sherdi_min_size(KNOWN_ELEMS, count - done) * elem_bytes);
    }
}

/* What is filled and checked in the memory of the backend goes through these. */
static void put_elems(sherd_world *world, void *data, int rank, size_t count, sherd_dtype dtype)
{
    unsigned char *room = host_room(count * 4);

    for (size_t i = 0; i < count && i < KNOWN_ELEMS; i++) {
        elem_store(room, i, dtype, known_value(rank, i));
    }
    elems_repeat(room, count, sherd_dtype_bytes(dtype));
    suite_put(world, data, room, count * sherd_dtype_bytes(dtype));
    free(room);
}

static void fill_bytes(unsigned char *data, int rank, size_t first, size_t len_bytes)
{
    size_t i = 0;

    for (; i < len_bytes && (first + i) % 8 != 0; i++) {
        data[i] = word_byte(known_word(rank, first + i), first + i);
    }
    for (; i + 8 <= len_bytes; i += 8) {
        uint64_t word = known_word(rank, first + i);

        memcpy(data + i, &word, 8);
    }
    for (; i < len_bytes; i++) {
        data[i] = word_byte(known_word(rank, first + i), first + i);
    }
}

static void put_bytes(sherd_world *world, void *data, int rank, size_t first, size_t len_bytes)
{
    unsigned char *room = host_room(len_bytes);

    fill_bytes(room, rank, first, len_bytes);
    suite_put(world, data, room, len_bytes);
    free(room);
}

static void check_bytes(const unsigned char *data, int rank, size_t first, size_t len_bytes)
{
    unsigned char *want = host_room(len_bytes);

    fill_bytes(want, rank, first, len_bytes);
    for (size_t i = 0; memcmp(data, want, len_bytes) != 0; i++) {
        if (data[i] != want[i]) {
            test_fail(__FILE__, __LINE__, "byte %zu of rank %d is %02x, not %02x", first + i, rank,
                      data[i], want[i]);
        }
    }
    free(want);
}

static void check_bytes_of(sherd_world *world, const void *data, int rank, size_t first,
                           size_t len_bytes)
{
    unsigned char *room = host_room(len_bytes);

    suite_get(world, room, data, len_bytes);
    check_bytes(room, rank, first, len_bytes);
    free(room);
}

/* The reduction of element i over all ranks, as world.h defines it. */
/* Weights of ranks: of every other length. */
static const double WEIGHTS[] = {0.7, 1, 0, 1.0 / 3, 0x1p-9, 0.9, 0.11, 1};

static const double *weights_of(const sherd_world *world, size_t slice)
{
    return slice % 2 == 0 || (size_t)sherd_world_size(world) > sizeof(WEIGHTS) / sizeof(WEIGHTS[0])
               ? NULL
               : WEIGHTS;
}

static float known_sum(const sherd_world *world, size_t i, const sherdi_reduction_args *args)
{
    float sum = 0;

    for (int r = 0; r < sherd_world_size(world); r++) {
        float weight = args->weights == NULL ? 1 : (float)args->weights[r];
        float value  = round_to(args->send_dtype, known_value(r, i)) * weight;

        sum = r == 0 ? value : sum + value;
    }
    return round_to(args->comm_dtype, sum * args->scale);
}

/* ------------------------------------------------------------- memory of both kinds -- */

enum { MEMORY_OF_WORLD = 0, MEMORY_ORDINARY = 1, MEMORY_MIXED = 2, MEMORY_KINDS = 3 };

typedef struct buffer {
    sherd_world   *world;
    int            is_of_world;
    unsigned char *data;
    unsigned char *start;
} buffer;

/* MIXED: even ranks have world memory, odd ones ordinary; allocation is collective all the
 * same. Ordinary memory is the backend's, aligned to its elements and no better. */
static buffer buffer_make(sherd_world *world, int kind, size_t len_bytes)
{
    buffer made = {0};
    void  *memory;

    if (kind != MEMORY_ORDINARY) {
        CHECK_OK(sherdi_world_alloc(world, len_bytes, &memory));
        if (kind == MEMORY_OF_WORLD || sherd_world_rank(world) % 2 == 0) {
            return (buffer){.world = world, .is_of_world = 1, .data = memory, .start = memory};
        }
        sherdi_world_free(world, memory);
    }
    made.world = world;
    made.start = suite_alloc(world, len_bytes + 16);
    suite_fill(world, made.start, 0xa5, len_bytes + 16);
    made.data = made.start + 4;
    return made;
}

static void buffer_drop(buffer *made)
{
    if (made->is_of_world) {
        sherdi_world_free(made->world, made->start);
    } else {
        suite_free(made->world, made->start);
    }
}

/* ------------------------------------------------------------------------ all-gather -- */

static void gather_once(sherd_world *world, int kind, size_t slice_bytes, int is_in_place,
                        uint32_t flags)
{
    int                    rank = sherd_world_rank(world);
    int                    size = sherd_world_size(world);
    buffer                 recv = buffer_make(world, kind, slice_bytes * (size_t)size);
    buffer                 send = buffer_make(world, kind, slice_bytes);
    void                  *mine = is_in_place ? recv.data + (size_t)rank * slice_bytes : send.data;
    sherdi_all_gather_args args = {
        .send        = mine,
        .recv        = recv.data,
        .slice_bytes = slice_bytes,
        .flags       = flags,
    };

    put_bytes(world, mine, rank, 0, slice_bytes);
    if (flags & SHERDI_COLL_STABLE) {
        CHECK_OK(sherd_world_barrier(world));
    }
    CHECK_OK(sherdi_world_all_gather(world, &args, NULL));
    for (int r = 0; r < size; r++) {
        check_bytes_of(world, recv.data + (size_t)r * slice_bytes, r, 0, slice_bytes);
    }
    if (flags & SHERDI_COLL_STABLE) {
        CHECK_OK(sherd_world_barrier(world));
    } else {
        suite_fill(world, mine, 0xee, slice_bytes); /* the send buffer is the caller's again */
        CHECK_OK(sherd_world_barrier(world));
    }
    buffer_drop(&send);
    buffer_drop(&recv);
}

static void all_gather_collects_every_slice(sherd_world *world, void *ctx)
{
    const size_t lens[] = {
        0, 1, 63, 256, PEERS_MAIL_BYTES, PEERS_MAIL_BYTES + 1, 5000, 2 * PEERS_HALF_BYTES + 77};

    (void)ctx;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        for (int kind = 0; kind < MEMORY_KINDS; kind++) {
            gather_once(world, kind, lens[i], 0, 0);
            gather_once(world, kind, lens[i], 1, 0);
        }
    }
}

static void all_gather_of_stable_memory_collects_every_slice(sherd_world *world, void *ctx)
{
    const size_t lens[] = {0, 1, 256, 100001};

    (void)ctx;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        gather_once(world, MEMORY_OF_WORLD, lens[i], 0, SHERDI_COLL_STABLE);
        gather_once(world, MEMORY_OF_WORLD, lens[i], 1, SHERDI_COLL_STABLE);
    }
}

/* ------------------------------------------------------------------------ reductions -- */

typedef struct reduction_types {
    sherd_dtype send, comm, recv;
} reduction_types;

static const reduction_types REDUCTION_TYPES[] = {
    {SHERD_F32, SHERD_F32, SHERD_F32}, {SHERD_BF16, SHERD_BF16, SHERD_BF16},
    {SHERD_F16, SHERD_F16, SHERD_F16}, {SHERD_BF16, SHERD_F32, SHERD_F32},
    {SHERD_F16, SHERD_F32, SHERD_F32}, {SHERD_BF16, SHERD_BF16, SHERD_F32},
    {SHERD_F16, SHERD_F16, SHERD_F32},
};

static void check_sums(sherd_world *world, const void *at, size_t first, size_t count,
                       const sherdi_reduction_args *args, float before)
{
    size_t         elem = sherd_dtype_bytes(args->recv_dtype);
    unsigned char *got  = host_room(count * elem);
    unsigned char *want = host_room(count * elem);

    suite_get(world, got, at, count * elem);
    for (size_t i = 0; i < count && i < KNOWN_ELEMS; i++) {
        float sum = known_sum(world, first + i, args);

        elem_store(want, i, args->recv_dtype, args->accumulate ? before + sum : sum);
    }
    elems_repeat(want, count, elem);
    for (size_t i = 0; memcmp(got, want, count * elem) != 0; i++) {
        if (memcmp(got + i * elem, want + i * elem, elem) != 0) {
            test_fail(__FILE__, __LINE__,
                      "sum %zu of %zu (%s, %s, %s, accumulate %d) is %a, not %a", i, count,
                      sherd_dtype_name(args->send_dtype), sherd_dtype_name(args->comm_dtype),
                      sherd_dtype_name(args->recv_dtype), args->accumulate,
                      (double)elem_load(got, i, args->recv_dtype),
                      (double)elem_load(want, i, args->recv_dtype));
        }
    }
    free(want);
    free(got);
}

static void put_constant(sherd_world *world, void *data, size_t count, sherd_dtype dtype,
                         float value)
{
    unsigned char *room = host_room(count * 4);

    for (size_t i = 0; i < count; i++) {
        elem_store(room, i, dtype, value);
    }
    suite_put(world, data, room, count * sherd_dtype_bytes(dtype));
    free(room);
}

static void scatter_once(sherd_world *world, int kind, const reduction_types *types, size_t slice,
                         int is_in_place, int accumulate)
{
    int                   rank       = sherd_world_rank(world);
    size_t                size       = (size_t)sherd_world_size(world);
    size_t                send_bytes = sherd_dtype_bytes(types->send);
    buffer                send       = buffer_make(world, kind, size * slice * send_bytes);
    buffer                recv = buffer_make(world, kind, slice * sherd_dtype_bytes(types->recv));
    sherdi_reduction_args args = {
        .send        = send.data,
        .recv        = is_in_place ? send.data + (size_t)rank * slice * send_bytes : recv.data,
        .slice_elems = slice,
        .send_dtype  = types->send,
        .comm_dtype  = types->comm,
        .recv_dtype  = types->recv,
        .scale       = 1.0f / (float)size,
        .accumulate  = accumulate,
        .weights     = weights_of(world, slice),
    };

    put_elems(world, send.data, rank, size * slice, types->send);
    if (!is_in_place) {
        put_constant(world, recv.data, slice, types->recv, 0.75f);
    }
    CHECK_OK(sherdi_world_reserve(world, size * slice * send_bytes));
    CHECK_OK(sherdi_world_reduce_scatter(world, &args, NULL));
    check_sums(world, args.recv, (size_t)rank * slice, slice, &args, 0.75f);
    buffer_drop(&recv);
    buffer_drop(&send);
}

/* More than two portions of the bounce buffer, and an odd end. */
static size_t long_elems(const sherd_world *world, sherd_dtype dtype)
{
    return 2 * PEERS_HALF_BYTES / (size_t)sherd_world_size(world) / sherd_dtype_bytes(dtype) + 77;
}

static void reduce_scatter_sums_in_the_order_of_ranks(sherd_world *world, void *ctx)
{
    (void)ctx;
    for (size_t t = 0; t < sizeof(REDUCTION_TYPES) / sizeof(REDUCTION_TYPES[0]); t++) {
        const reduction_types *types  = &REDUCTION_TYPES[t];
        const size_t           lens[] = {0, 1, 64, 333};

        for (int kind = 0; kind < MEMORY_KINDS; kind++) {
            for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
                scatter_once(world, kind, types, lens[i], 0, 0);
                scatter_once(world, kind, types, lens[i], 0, 1);
                if (types->send == types->recv) {
                    scatter_once(world, kind, types, lens[i], 1, 0);
                }
            }
        }
    }
}

static void reduce_scatter_longer_than_the_bounce_buffer(sherd_world *world, void *ctx)
{
    (void)ctx;
    for (int kind = 0; kind < MEMORY_KINDS; kind++) {
        scatter_once(world, kind, &REDUCTION_TYPES[0], long_elems(world, SHERD_F32), 1, 0);
        scatter_once(world, kind, &REDUCTION_TYPES[1], long_elems(world, SHERD_BF16), 0, 0);
        scatter_once(world, kind, &REDUCTION_TYPES[5], long_elems(world, SHERD_BF16), 0, 1);
    }
}

/* The integers of this rank's slice, on top of what was there, and what was counted of it. */
static void known_integers(const sherd_world *world, size_t slice, sherd_dtype dtype,
                           const double *weights, const sherdi_fixed_sink *sink, int64_t *sums,
                           sherdi_fixed_counts *counts)
{
    float *values = host_room(slice * sizeof(*values));

    for (int r = 0; r < sherd_world_size(world); r++) {
        for (size_t i = 0; i < slice && i < KNOWN_ELEMS; i++) {
            values[i] =
                round_to(dtype, known_value(r, (size_t)sherd_world_rank(world) * slice + i));
        }
        elems_repeat(values, slice, sizeof(*values));
        for (size_t i = 0; i < slice; i++) {
            sums[i] += sherdi_fixed_element(values[i],
                                            sink->multiplier * (weights == NULL ? 1 : weights[r]),
                                            sink->limit, counts);
        }
    }
    free(values);
}

/* A rank may count for others: the counts of all ranks together are known. */
static void counts_check(sherd_world *world, const sherdi_fixed_counts *want,
                         const sherdi_fixed_counts *got)
{
    double sums[] = {(double)want->nonfinite, (double)want->out_of_range, (double)got->nonfinite,
                     (double)got->out_of_range};

    CHECK_OK(sherd_world_sum_f64(world, sums, 4));
    CHECK(sums[0] == sums[2]);
    CHECK(sums[1] == sums[3]);
}

static void integers_once(sherd_world *world, int kind, sherd_dtype dtype, size_t slice,
                          int accumulate)
{
    size_t                size       = (size_t)sherd_world_size(world);
    size_t                send_bytes = size * slice * sherd_dtype_bytes(dtype);
    buffer                send       = buffer_make(world, kind, send_bytes);
    int64_t              *recv       = suite_alloc(world, slice * sizeof(*recv) + 8);
    int64_t              *want       = host_room(slice * sizeof(*want));
    int64_t              *got        = host_room(slice * sizeof(*got));
    sherdi_fixed_counts   counted[2] = {{5, 7}, {5, 7}}; /* added to */
    sherdi_fixed_counts  *counts     = suite_alloc(world, sizeof(*counts));
    sherdi_fixed_sink     sink       = {.multiplier = 0x1p40, .limit = 0x1p44, .counts = counts};
    sherdi_reduction_args args       = {.send        = send.data,
                                        .recv        = recv,
                                        .slice_elems = slice,
                                        .send_dtype  = dtype,
                                        .accumulate  = accumulate,
                                        .weights     = weights_of(world, slice),
                                        .fixed       = &sink};

    for (size_t i = 0; i < slice; i++) {
        want[i] = 1000 - (int64_t)i;
    }
    put_elems(world, send.data, sherd_world_rank(world), size * slice, dtype);
    suite_put(world, recv, want, slice * sizeof(*want));
    suite_put(world, counts, &counted[0], sizeof(*counts));
    if (!accumulate) {
        memset(want, 0, slice * sizeof(*want));
    }
    known_integers(world, slice, dtype, args.weights, &sink, want, &counted[0]);
    CHECK_OK(sherdi_world_reserve(world, send_bytes));
    CHECK_OK(sherdi_world_reduce_scatter(world, &args, NULL));
    suite_get(world, got, recv, slice * sizeof(*got));
    suite_get(world, &counted[1], counts, sizeof(*counts));
    CHECK_BYTES_EQUAL(want, got, slice * sizeof(*want));
    counts_check(world, &counted[0], &counted[1]);
    CHECK(slice < 300 || counted[0].out_of_range > 7);
    suite_free(world, counts);
    suite_free(world, recv);
    free(got);
    free(want);
    buffer_drop(&send);
}

static void reduce_scatter_of_integers_is_exact(sherd_world *world, void *ctx)
{
    const size_t lens[] = {0, 1, 333, long_elems(world, SHERD_F16)};

    (void)ctx;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        integers_once(world, MEMORY_OF_WORLD, SHERD_F32, lens[i], 0);
        integers_once(world, MEMORY_OF_WORLD, SHERD_F16, lens[i], 1);
        integers_once(world, MEMORY_MIXED, SHERD_BF16, lens[i], 1);
    }
}

static void all_reduce_once(sherd_world *world, int kind, sherd_dtype dtype, size_t slice,
                            int is_in_place)
{
    size_t                whole = slice * (size_t)sherd_world_size(world);
    size_t                bytes = sherd_dtype_bytes(dtype);
    buffer                send  = buffer_make(world, kind, whole * bytes);
    buffer                recv  = buffer_make(world, kind, whole * bytes);
    sherdi_reduction_args args  = {
         .send        = send.data,
         .recv        = is_in_place ? send.data : recv.data,
         .slice_elems = slice,
         .send_dtype  = dtype,
         .comm_dtype  = dtype,
         .recv_dtype  = dtype,
         .scale       = 0.3f,
         .weights     = weights_of(world, slice),
    };

    put_elems(world, send.data, sherd_world_rank(world), whole, dtype);
    CHECK_OK(sherdi_world_reserve(world, whole * bytes));
    CHECK_OK(sherdi_world_all_reduce(world, &args, NULL));
    check_sums(world, args.recv, 0, whole, &args, 0);
    buffer_drop(&recv);
    buffer_drop(&send);
}

static void all_reduce_leaves_the_sum_on_every_rank(sherd_world *world, void *ctx)
{
    const sherd_dtype dtypes[] = {SHERD_F32, SHERD_BF16, SHERD_F16};

    (void)ctx;
    for (int d = 0; d < 3; d++) {
        const size_t lens[] = {0, 1, 64, 333};

        for (int kind = 0; kind < MEMORY_KINDS; kind++) {
            for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
                all_reduce_once(world, kind, dtypes[d], lens[i], 0);
                all_reduce_once(world, kind, dtypes[d], lens[i], 1);
            }
        }
    }
}

static void all_reduce_longer_than_the_bounce_buffer(sherd_world *world, void *ctx)
{
    (void)ctx;
    for (int kind = 0; kind < MEMORY_KINDS; kind++) {
        all_reduce_once(world, kind, SHERD_F32, long_elems(world, SHERD_F32) / 2, 1);
        all_reduce_once(world, kind, SHERD_BF16, long_elems(world, SHERD_BF16) / 2, 0);
    }
}

/* ------------------------------------------------------- sums, broadcast, control -- */

/* Sums wrap, and are the same on all ranks. */
static void sum_u64_adds_on_all_ranks(sherd_world *world, void *ctx)
{
    const size_t counts[] = {0, 1, 7, 5000};
    uint64_t     size     = (uint64_t)sherd_world_size(world);
    uint64_t    *values   = malloc(5000 * sizeof(*values));

    (void)ctx;
    CHECK(values != NULL);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        for (size_t i = 0; i < counts[c]; i++) {
            values[i] = (uint64_t)sherd_world_rank(world) + (i << 60) + i;
        }
        CHECK_OK(sherdi_world_sum_u64(world, values, counts[c]));
        for (size_t i = 0; i < counts[c]; i++) {
            CHECK(values[i] == size * (size - 1) / 2 + size * ((i << 60) + i));
        }
    }
    free(values);
}

/* Host memory, whatever the backend: on a device the world's would be something else. */
static void broadcast_once(sherd_world *world, int kind, size_t len_bytes, int root)
{
    buffer         data  = {0};
    unsigned char *bytes = NULL;

    if (suite_is_on_device(world)) {
        bytes = host_room(len_bytes);
    } else {
        data  = buffer_make(world, kind, len_bytes);
        bytes = data.data;
    }
    if (sherd_world_rank(world) == root) {
        fill_bytes(bytes, root, 0, len_bytes);
    }
    CHECK_OK(sherd_world_broadcast(world, bytes, len_bytes, root));
    check_bytes(bytes, root, 0, len_bytes);
    if (suite_is_on_device(world)) {
        free(bytes);
    } else {
        buffer_drop(&data);
    }
}

static void broadcast_reaches_all_from_each_root(sherd_world *world, void *ctx)
{
    const size_t lens[] = {0, 1, 777, 2 * PEERS_HALF_BYTES + 5};

    (void)ctx;
    for (int root = 0; root < sherd_world_size(world); root++) {
        for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
            for (int kind = 0; kind < (i == 3 && root > 0 ? 1 : MEMORY_KINDS); kind++) {
                broadcast_once(world, kind, lens[i], root);
            }
        }
    }
}

static void exchange_gives_every_rank_what_each_gave(sherd_world *world, void *ctx)
{
    const size_t   lens[] = {1, 8, 24, 4000};
    int            size   = sherd_world_size(world);
    unsigned char *mine   = malloc(4000);
    unsigned char *all    = malloc(4000 * (size_t)size);

    (void)ctx;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        fill_bytes(mine, sherd_world_rank(world), i, lens[i]);
        CHECK_OK(sherdi_world_exchange(world, mine, all, lens[i], "data"));
        for (int r = 0; r < size; r++) {
            check_bytes(all + (size_t)r * lens[i], r, i, lens[i]);
        }
    }
    free(all);
    free(mine);
}

/* Also on a world of one rank, and after another call has used the world's memory. */
static void tell_keeps_what_every_rank_has_told(sherd_world *world, void *ctx)
{
    const size_t    lens[] = {1, 8, 24, SHERDI_TOLD_BYTES};
    unsigned char  *mine   = malloc(SHERDI_TOLD_BYTES);
    sherdi_messages told;

    (void)ctx;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        fill_bytes(mine, sherd_world_rank(world), i, lens[i]);
        CHECK_OK(sherdi_world_tell(world, mine, lens[i], "data", &told));
        memset(mine, 0, lens[i]);
        for (int r = 0; r < sherd_world_size(world); r++) {
            check_bytes(sherdi_message_of(&told, r), r, i, lens[i]);
        }
    }
    CHECK_STATUS(SHERD_E_INVAL,
                 sherdi_world_tell(world, mine, SHERDI_TOLD_BYTES + 1, "data", &told));
    free(mine);
}

static void sum_f64_adds_in_the_order_of_ranks(sherd_world *world, void *ctx)
{
    double values[130];

    (void)ctx;
    for (size_t i = 0; i < 130; i++) {
        values[i] = 1.0 / (double)(3 + i) * known_value(sherd_world_rank(world), i);
    }
    CHECK_OK(sherd_world_sum_f64(world, values, 130));
    for (size_t i = 0; i < 130; i++) {
        double want = 1.0 / (double)(3 + i) * known_value(0, i);

        for (int r = 1; r < sherd_world_size(world); r++) {
            want += 1.0 / (double)(3 + i) * known_value(r, i);
        }
        CHECK_BYTES_EQUAL(&want, &values[i], sizeof(want));
    }
    CHECK_OK(sherd_world_sum_f64(world, NULL, 0));
}

static void barrier_can_follow_barrier(sherd_world *world, void *ctx)
{
    (void)ctx;
    for (int i = 0; i < 200; i++) {
        CHECK_OK(sherd_world_barrier(world));
    }
}

/* Where all ranks have made the same calls there is nothing to take back, and what was queued is
 * done. */
static void regroup_is_the_end_of_what_was_queued(sherd_world *world, void *ctx)
{
    size_t         size   = (size_t)sherd_world_size(world);
    unsigned char *send   = suite_alloc(world, 4096);
    unsigned char *recv   = suite_alloc(world, 4096 * size);
    sherdi_ticket  ticket = 0;

    (void)ctx;
    for (int i = 0; i < 3; i++) {
        sherdi_all_gather_args args = {.send = send, .recv = recv, .slice_bytes = 4096};

        put_bytes(world, send, sherd_world_rank(world), 0, 4096);
        CHECK_OK(sherdi_world_all_gather(world, &args, &ticket));
        CHECK_OK(sherdi_world_regroup(world));
        CHECK_OK(sherdi_world_wait(world, ticket));
        for (size_t r = 0; r < size; r++) {
            check_bytes_of(world, recv + r * 4096, (int)r, 0, 4096);
        }
        CHECK_OK(sherd_world_barrier(world));
    }
    suite_free(world, recv);
    suite_free(world, send);
}

/* The others hear of it in the call in which they wait, a queued one too, and each in its own. */
static void a_rank_that_fails_is_heard_in_the_next_call(sherd_world *world, void *ctx)
{
    int            rank   = sherd_world_rank(world);
    size_t         size   = (size_t)sherd_world_size(world);
    unsigned char *send   = suite_alloc(world, 4096);
    unsigned char *recv   = suite_alloc(world, 4096 * size);
    sherdi_ticket  ticket = 0;

    (void)ctx;
    for (int failing = 0; failing < (int)size && sherdi_world_takes_back(world) && size > 1;
         failing++) {
        sherdi_all_gather_args args = {.send = send, .recv = recv, .slice_bytes = 4096};

        CHECK_OK(sherdi_world_all_gather(world, &args, &ticket));
        if (rank == failing) {
            CHECK_OK(sherdi_world_interrupt(world, SHERD_E_IO, "the drive is wet"));
        } else if ((rank + failing) % 2 == 0) {
            CHECK_STATUS(SHERD_E_STATE, sherd_world_barrier(world));
            CHECK_ERROR_SAYS("the drive is wet");
        } else { /* it fails where it is made or where it is waited for */
            sherd_status status = sherdi_world_all_gather(world, &args, &ticket);

            CHECK_STATUS(SHERD_E_STATE,
                         status == SHERD_OK ? sherdi_world_wait(world, ticket) : status);
            CHECK_ERROR_SAYS("has failed while rank");
        }
        CHECK_OK(sherdi_world_regroup(world));
        CHECK_OK(sherd_world_barrier(world));
    }
    suite_free(world, recv);
    suite_free(world, send);
}

/* --------------------------------------------------------------------- world memory -- */

static void world_memory_is_zeroed_aligned_and_ends_with_its_owner(sherd_world *world, void *ctx)
{
    const size_t   lens[] = {0, 1, 4096, 100001};
    void          *kept[4];
    unsigned char *room = host_room(100001);

    (void)ctx;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 4; i++) {
            CHECK_OK(sherdi_world_alloc(world, lens[i], &kept[i]));
            CHECK(kept[i] != NULL && (uintptr_t)kept[i] % SHERD_ALIGN_BYTES == 0);
            suite_get(world, room, kept[i], lens[i]);
            for (size_t b = 0; b < lens[i]; b++) {
                CHECK(room[b] == 0);
            }
            suite_fill(world, kept[i], 0xff, lens[i]);
        }
        for (int i = 0; i < 4; i++) {
            sherdi_world_free(world, kept[(i + round) % 4]);
        }
    }
    sherdi_world_free(world, NULL);
    free(room);
}

/* Ranks of one host write each other's, and it outlives its owner's part in it. */
static void host_memory_is_the_same_bytes_on_the_ranks_of_a_host(sherd_world *world, void *ctx)
{
    int            size = sherd_world_size(world), rank = sherd_world_rank(world);
    unsigned char *memory = NULL;
    sherd_status   status = sherdi_world_alloc_host(world, 5000, (void **)&memory);

    (void)ctx;
    if (status == SHERD_E_NOTSUP) {
        CHECK_ERROR_SAYS("nccl");
        return;
    }
    CHECK_OK(status);
    CHECK_INT(0, (uintptr_t)memory % SHERD_ALIGN_BYTES);
    for (int i = 0; i < 5000; i++) {
        CHECK_INT(0, memory[i]);
    }
    CHECK_OK(sherd_world_barrier(world));
    for (int r = 0; r < size; r++) {
        unsigned char *its = sherdi_world_host_of(world, r, memory, 5000);

        CHECK(its != NULL || sherdi_world_local_size(world) < size);
        if (its != NULL) {
            its[rank]        = (unsigned char)(1 + rank);
            its[4999 - rank] = (unsigned char)(101 + r);
        }
    }
    CHECK_OK(sherd_world_barrier(world));
    for (int r = 0; r < size; r++) {
        int is_here = sherdi_world_host_of(world, r, memory, 5000) != NULL;

        CHECK_INT(is_here ? 1 + r : 0, memory[r]);
        CHECK_INT(is_here ? 101 + rank : 0, memory[4999 - r]);
    }
    CHECK_OK(sherd_world_barrier(world));
    if (rank > 0) {
        sherdi_world_free_host(world, memory);
        memory = NULL;
    }
    CHECK_OK(sherd_world_barrier(world));
    for (int r = 0; r < size && rank == 0; r++) {
        const unsigned char *its = sherdi_world_host_of(world, r, memory, 5000);

        CHECK_INT(1, its == NULL ? 1 : its[0]);
    }
    sherdi_world_free_host(world, memory);
}

static void world_memory_that_one_rank_lacks_fails_on_all(sherd_world *world, void *ctx)
{
    void *kept[40];
    void *memory = NULL;
    int   last   = sherd_world_size(world) - 1;
    int   count  = 0;

    (void)ctx;
    /* Fill the table of segments to where it grows, so that there is an allocation to fail. */
    for (; count < 8; count++) {
        CHECK_OK(sherdi_world_alloc(world, 10, &kept[count]));
    }
    for (; count < 40; count++) {
        sherd_status status;

        if (sherd_world_rank(world) == last) {
            (void)sherdi_mem_fail_nth(1);
        }
        status = sherdi_world_alloc(world, 10, &memory);
        (void)sherdi_mem_fail_nth(0);
        if (status != SHERD_OK) {
            CHECK_STATUS(SHERD_E_NOMEM, status);
            CHECK_ERROR_SAYS("no memory");
            break;
        }
        kept[count] = memory;
    }
    CHECK(count < 40);
    CHECK_OK(sherdi_world_alloc(world, 10, &kept[count])); /* the world goes on */
    for (int i = 0; i <= count; i++) {
        sherdi_world_free(world, kept[i]);
    }
    CHECK_STATUS(SHERD_E_NOMEM, sherdi_world_alloc(world, SIZE_MAX / 2, &memory));
}

/* ------------------------------------------------------------------ tickets and order -- */

enum { TICKET_CALLS = 150, TICKET_SLICE = 600 };

static void tickets_end_in_the_order_of_calls(sherd_world *world)
{
    size_t         size = (size_t)sherd_world_size(world);
    int            rank = sherd_world_rank(world);
    unsigned char *send = suite_alloc(world, TICKET_CALLS * TICKET_SLICE);
    unsigned char *recv = suite_alloc(world, TICKET_CALLS * TICKET_SLICE * size);
    sherdi_ticket  tickets[TICKET_CALLS];
    double         one     = 1;
    int            on_lane = (sherdi_world_caps(world) & SHERDI_WORLD_ON_LANE) != 0;

    put_bytes(world, send, rank, 0, TICKET_CALLS * TICKET_SLICE);
    for (size_t i = 0; i < TICKET_CALLS; i++) {
        sherdi_all_gather_args args = {.send        = send + i * TICKET_SLICE,
                                       .recv        = recv + i * TICKET_SLICE * size,
                                       .slice_bytes = TICKET_SLICE};

        CHECK_OK(sherdi_world_all_gather(world, &args, &tickets[i]));
        if (i == TICKET_CALLS / 2) { /* a blocking call among them */
            CHECK_OK(sherd_world_sum_f64(world, &one, 1));
            CHECK(one == (double)size);
            /* On a lane control data does not wait for what is queued there. */
            CHECK(on_lane || sherdi_world_is_done(world, tickets[i]));
        }
    }
    CHECK_OK(sherdi_world_wait(world, tickets[TICKET_CALLS - 1]));
    for (size_t i = 0; i < TICKET_CALLS; i++) {
        CHECK(sherdi_world_is_done(world, tickets[i]));
        CHECK_OK(sherdi_world_wait(world, tickets[i]));
        for (size_t r = 0; r < size; r++) {
            check_bytes_of(world, recv + (i * size + r) * TICKET_SLICE, (int)r, i * TICKET_SLICE,
                           TICKET_SLICE);
        }
    }
    CHECK_OK(sherdi_world_wait(world, 0));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_world_wait(world, tickets[TICKET_CALLS - 1] + 1));
    suite_free(world, recv);
    suite_free(world, send);
}

static void tickets_keep_the_order_with_and_without_overlap(sherd_world *world, void *ctx)
{
    (void)ctx;
    tickets_end_in_the_order_of_calls(world);
    CHECK_OK(sherdi_world_overlap(world));
    CHECK_OK(sherdi_world_overlap(world));
    tickets_end_in_the_order_of_calls(world);
}

static void overlapped_calls_of_every_kind_give_the_same_bits(sherd_world *world, void *ctx)
{
    size_t                size  = (size_t)sherd_world_size(world);
    size_t                slice = 1000;
    buffer                send  = buffer_make(world, MEMORY_OF_WORLD, size * slice * 4);
    buffer                recv  = buffer_make(world, MEMORY_OF_WORLD, size * slice * 4);
    buffer                other = buffer_make(world, MEMORY_ORDINARY, size * slice * 4);
    sherdi_ticket         tickets[3];
    sherdi_reduction_args args = {
        .send        = send.data,
        .recv        = recv.data,
        .slice_elems = slice,
        .send_dtype  = SHERD_F32,
        .comm_dtype  = SHERD_F32,
        .recv_dtype  = SHERD_F32,
        .scale       = 0.5f,
    };
    sherdi_reduction_args  whole  = args;
    sherdi_all_gather_args gather = {
        .send = send.data, .recv = other.data, .slice_bytes = slice * 4};

    (void)ctx;
    whole.recv = other.data;
    put_elems(world, send.data, sherd_world_rank(world), size * slice, SHERD_F32);
    CHECK_OK(sherdi_world_reserve(world, size * slice * 4));
    CHECK_OK(sherdi_world_overlap(world));
    CHECK_OK(sherdi_world_reduce_scatter(world, &args, &tickets[0]));
    CHECK_OK(sherdi_world_all_gather(world, &gather, &tickets[1]));
    CHECK_OK(sherdi_world_all_reduce(world, &whole, &tickets[2]));
    CHECK_OK(sherdi_world_wait(world, tickets[2]));
    check_sums(world, recv.data, (size_t)sherd_world_rank(world) * slice, slice, &args, 0);
    check_sums(world, other.data, 0, size * slice, &whole, 0);
    buffer_drop(&other);
    buffer_drop(&recv);
    buffer_drop(&send);
}

/* ---------------------------------------------------------------- counters and checks -- */

static void counters_say_what_goes_on_the_wire(sherd_world *world, void *ctx)
{
    uint64_t               others = (uint64_t)sherd_world_size(world) - 1;
    uint64_t               before[2];
    uint64_t               after[2];
    float                 *data      = suite_alloc(world, 4096 * sizeof(*data));
    float                 *more      = suite_alloc(world, 4096 * sizeof(*more));
    char                   text[100] = {0};
    sherdi_all_gather_args gather    = {.send = data, .recv = more, .slice_bytes = 12};
    sherdi_reduction_args  reduction = {
         .send        = data,
         .recv        = more,
         .slice_elems = 5,
         .send_dtype  = SHERD_BF16,
         .comm_dtype  = SHERD_F32,
         .recv_dtype  = SHERD_F32,
         .scale       = 1,
    };
    sherdi_reduction_args whole = {.send = data, .recv = more, .slice_elems = 7, .scale = 1};

    (void)ctx;
    suite_fill(world, data, 0, 4096 * sizeof(*data));
    CHECK_OK(sherdi_world_reserve(world, 4096));
    sherd_world_traffic(world, &before[0], &before[1]);
    CHECK_OK(sherdi_world_all_gather(world, &gather, NULL));
    CHECK_OK(sherdi_world_reduce_scatter(world, &reduction, NULL));
    CHECK_OK(sherdi_world_all_reduce(world, &whole, NULL));
    CHECK_OK(sherd_world_barrier(world));
    sherd_world_traffic(world, &after[0], &after[1]);
    CHECK_INT(others * (12 + 5 * 2 + 7 * 4 * 2), after[0] - before[0]);
    CHECK_INT(after[0] - before[0], after[1] - before[1]);
    CHECK_OK(sherd_world_broadcast(world, text, 100, 0));
    sherd_world_traffic(world, &before[0], &before[1]);
    CHECK_INT(sherd_world_rank(world) == 0 ? others * 100 : 0, before[0] - after[0]);
    CHECK_INT(sherd_world_rank(world) == 0 ? 0 : 100, before[1] - after[1]);
    suite_free(world, more);
    suite_free(world, data);
}

static void bad_arguments_are_refused_without_meeting(sherd_world *world, void *ctx)
{
    int                    size       = sherd_world_size(world);
    float                  data[2048] = {0};
    sherdi_all_gather_args gather     = {.send = (char *)data + 1, .recv = data, .slice_bytes = 64};
    sherdi_reduction_args  part   = {.send = data, .recv = data + 1, .slice_elems = 8, .scale = 1};
    sherdi_reduction_args  narrow = {
         .send = data, .recv = data + 1024, .slice_elems = 8, .comm_dtype = SHERD_BF16, .scale = 1};

    (void)ctx;
    (void)size;
    CHECK_STATUS(SHERD_E_INVAL, sherdi_world_all_gather(world, &gather, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_world_reduce_scatter(world, &part, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_world_all_reduce(world, &part, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherdi_world_reduce_scatter(world, &narrow, NULL));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_broadcast(world, data, 4, size));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_broadcast(world, data, 4, -1));
    CHECK_STATUS(SHERD_E_INVAL, sherd_world_broadcast(world, NULL, 4, 0));
    gather.send = NULL;
    CHECK_STATUS(SHERD_E_INVAL, sherdi_world_all_gather(world, &gather, NULL));
    narrow.send_dtype = (sherd_dtype)9;
    CHECK_STATUS(SHERD_E_INVAL, sherdi_world_reduce_scatter(world, &narrow, NULL));
    CHECK_OK(sherd_world_barrier(world));
}

static void world_knows_its_ranks(sherd_world *world, void *ctx)
{
    (void)ctx;
    CHECK(sherd_world_rank(world) >= 0 && sherd_world_rank(world) < sherd_world_size(world));
    CHECK(sherd_world_local_rank(world) < sherdi_world_local_size(world));
    CHECK(sherdi_world_backend(world)->threads >= 1);
    CHECK(sherdi_world_retain(world) == world);
    sherd_world_destroy(world); /* the owner of the retain; the world lives on */
    CHECK_OK(sherdi_world_status(world));
}

#define WORLD_CASE(function)                                                                       \
    {                                                                                              \
#function, function                                                                        \
    }

const world_case WORLD_SUITE[] = {
    WORLD_CASE(world_knows_its_ranks),
    WORLD_CASE(all_gather_collects_every_slice),
    WORLD_CASE(all_gather_of_stable_memory_collects_every_slice),
    WORLD_CASE(reduce_scatter_sums_in_the_order_of_ranks),
    WORLD_CASE(reduce_scatter_longer_than_the_bounce_buffer),
    WORLD_CASE(reduce_scatter_of_integers_is_exact),
    WORLD_CASE(all_reduce_leaves_the_sum_on_every_rank),
    WORLD_CASE(all_reduce_longer_than_the_bounce_buffer),
    WORLD_CASE(sum_u64_adds_on_all_ranks),
    WORLD_CASE(broadcast_reaches_all_from_each_root),
    WORLD_CASE(exchange_gives_every_rank_what_each_gave),
    WORLD_CASE(tell_keeps_what_every_rank_has_told),
    WORLD_CASE(sum_f64_adds_in_the_order_of_ranks),
    WORLD_CASE(barrier_can_follow_barrier),
    WORLD_CASE(regroup_is_the_end_of_what_was_queued),
    WORLD_CASE(a_rank_that_fails_is_heard_in_the_next_call),
    WORLD_CASE(world_memory_is_zeroed_aligned_and_ends_with_its_owner),
    WORLD_CASE(host_memory_is_the_same_bytes_on_the_ranks_of_a_host),
    WORLD_CASE(world_memory_that_one_rank_lacks_fails_on_all),
    WORLD_CASE(counters_say_what_goes_on_the_wire),
    WORLD_CASE(bad_arguments_are_refused_without_meeting),
    WORLD_CASE(tickets_keep_the_order_with_and_without_overlap),
    WORLD_CASE(overlapped_calls_of_every_kind_give_the_same_bits),
    WORLD_CASE(split_groups_have_their_ranks_in_order),
    WORLD_CASE(split_of_a_split_knows_its_ranks),
    WORLD_CASE(split_comes_after_calls_that_are_queued),
    WORLD_CASE(split_that_fails_on_one_rank_fails_on_all),
};
const size_t WORLD_SUITE_COUNT = sizeof(WORLD_SUITE) / sizeof(WORLD_SUITE[0]);
