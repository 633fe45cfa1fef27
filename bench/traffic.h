/* The limits that kernels are held against: loops with the same loads and stores and no arithmetic.
 * Arrays that are read and written in place have the same bits afterwards, so kernels and limits
 * may take turns on the same arrays. */
#ifndef BENCH_TRAFFIC_H
#define BENCH_TRAFFIC_H

#include <stddef.h>
#include <stdint.h>

/* The accesses of an optimizer's update, in bytes of 64 elements: a gradient that is read, up to
 * three parts that are read and written, and a parameter. A row is
 *   TRAFFIC_SHAPE(name, gradient, part 0, part 1, part 2, parameter, what happens to the parameter)
 */
#define TRAFFIC_SHAPES                                                                             \
    TRAFFIC_SHAPE(F32_3, 256, 256, 256, 256, 0, TRAFFIC_NO_PARAM)                                  \
    TRAFFIC_SHAPE(F32_2, 256, 256, 256, 0, 0, TRAFFIC_NO_PARAM)                                    \
    TRAFFIC_SHAPE(F32_1, 256, 256, 0, 0, 0, TRAFFIC_NO_PARAM)                                      \
    TRAFFIC_SHAPE(MIXED_3, 128, 256, 256, 256, 128, TRAFFIC_WRITES_PARAM)                          \
    TRAFFIC_SHAPE(MIXED_2, 128, 256, 256, 0, 128, TRAFFIC_WRITES_PARAM)                            \
    TRAFFIC_SHAPE(MIXED_1, 128, 256, 0, 0, 128, TRAFFIC_WRITES_PARAM)                              \
    TRAFFIC_SHAPE(BESIDE_F32, 128, 128, 256, 256, 128, TRAFFIC_UPDATES_PARAM)                      \
    TRAFFIC_SHAPE(BESIDE_BF16, 128, 128, 128, 128, 128, TRAFFIC_UPDATES_PARAM)                     \
    TRAFFIC_SHAPE(PLANE_FP8, 128, 136, 68, 68, 128, TRAFFIC_UPDATES_PARAM)                         \
    TRAFFIC_SHAPE(PLANE_F32, 128, 136, 256, 0, 128, TRAFFIC_UPDATES_PARAM)                         \
    TRAFFIC_SHAPE(BF16_F32, 128, 128, 256, 256, 128, TRAFFIC_WRITES_PARAM)                         \
    TRAFFIC_SHAPE(F32_BF16, 128, 256, 128, 128, 128, TRAFFIC_WRITES_PARAM)                         \
    TRAFFIC_SHAPE(F32_FP8, 128, 256, 68, 68, 128, TRAFFIC_WRITES_PARAM)                            \
    TRAFFIC_SHAPE(READ_F32, 256, 256, 256, 256, 0, TRAFFIC_READS)                                  \
    TRAFFIC_SHAPE(READ_MIXED, 128, 256, 256, 256, 0, TRAFFIC_READS)

typedef enum traffic_kind {
    TRAFFIC_NO_PARAM,
    TRAFFIC_WRITES_PARAM,  /* around the caches */
    TRAFFIC_UPDATES_PARAM, /* reads it too */
    TRAFFIC_READS,         /* parts too are only read: LAMB's norms */
} traffic_kind;

enum { TRAFFIC_MOST_PARTS = 3 };

typedef enum traffic_shape_id {
#define TRAFFIC_SHAPE(name, grad, part0, part1, part2, param, kind) TRAFFIC_##name,
    TRAFFIC_SHAPES
#undef TRAFFIC_SHAPE
        TRAFFIC_NUM_SHAPES,
} traffic_shape_id;

typedef struct traffic_shape {
    size_t       grad_bytes;
    size_t       part_bytes[TRAFFIC_MOST_PARTS];
    size_t       param_bytes;
    traffic_kind kind;
} traffic_shape;

/** Of traffic_shape_id. */
extern const traffic_shape TRAFFIC_TABLE[TRAFFIC_NUM_SHAPES];

/** Bytes that a chunk moves, each way counted. */
size_t traffic_shape_bytes(const traffic_shape *shape);

typedef struct traffic_arrays {
    unsigned char *grad; /* only read */
    unsigned char *parts[TRAFFIC_MOST_PARTS];
    unsigned char *param;
} traffic_arrays;

/** The loop of a shape over chunks [first, end). It fills the caches `ahead_bytes` ahead (0: not);
 *  machines differ in which is faster. Returns some sum of the arrays that are only read. */
typedef uint64_t (*traffic_fn)(const traffic_arrays *arrays, size_t first, size_t end,
                               size_t ahead_bytes);

/** One set for each instruction set; the plain one is for scalar. */
typedef struct traffic_loops {
    traffic_fn updates[TRAFFIC_NUM_SHAPES];
    /** A copy around the caches, one stream; multiples of 64 bytes, aligned to 64. */
    void (*copy)(void *dst, const void *src, size_t len_bytes);
} traffic_loops;

const traffic_loops *traffic_loops_find(const char *isa);

#endif
