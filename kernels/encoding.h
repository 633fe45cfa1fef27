/* How a part of an optimizer's state may be stored in fewer bits than fp32, per element, written once as
 * formulas.h is and under its rules: plain operations on integers, the same bits from every compiler.
 *
 *   F32           4 bytes, the value itself
 *   BF16          2 bytes, rounded; in an update at random (sherdi_round_random)
 *   BESIDE        2 bytes of a master weight beside its bf16 parameter, which lose nothing: what the parameter
 *                 lacks. A tie of round to nearest even takes one bit more: the sign of a part that is never
 *                 negative
 *   BESIDE_PLANE  the same where no part has a free sign: 2 bytes, and for each chunk of 64 elements 64 bits behind
 *   FP8, UFP8     1 byte: a small float with 3 bits of fraction and 4 of exponent beside its sign, or 5 where a
 *                 part is never negative; for each chunk a power of two behind, by which its floats are multiplied
 *
 * A chunk is 64 elements of one parameter by its row-major index. Slices and blocks are whole chunks, so no world
 * and no layout changes what shares a scale. NaN is stored as one NaN, 0x7fc00000; a chunk of FP8 that has a NaN or
 * an Inf is NaN as a whole. */
#ifndef SHERDI_KERNELS_ENCODING_H
#define SHERDI_KERNELS_ENCODING_H

#include "kernels/formulas.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

typedef enum sherdi_encoding {
    SHERDI_ENCODING_F32 = 0,
    SHERDI_ENCODING_BF16,
    SHERDI_ENCODING_BESIDE,
    SHERDI_ENCODING_BESIDE_PLANE,
    SHERDI_ENCODING_FP8,
    SHERDI_ENCODING_UFP8,
    SHERDI_ENCODINGS,
} sherdi_encoding;

/* Bytes of a chunk. */
#define SHERDI_CHUNK_BF16_BYTES  ((size_t)2 * SHERD_CHUNK_ELEMS)
#define SHERDI_CHUNK_PLANE_BYTES (SHERDI_CHUNK_BF16_BYTES + SHERD_CHUNK_ELEMS / 8)
#define SHERDI_CHUNK_FP8_BYTES   (SHERD_CHUNK_ELEMS + sizeof(float))

/** Bytes of SHERD_CHUNK_ELEMS elements, with what belongs to the chunk as a whole. */
static inline size_t sherdi_encoding_chunk_bytes(sherdi_encoding encoding)
{
    static const size_t CHUNK_BYTES[SHERDI_ENCODINGS] = {
        SHERD_CHUNK_ELEMS * sizeof(float), /* F32 */
        SHERDI_CHUNK_BF16_BYTES,           /* BF16 */
        SHERDI_CHUNK_BF16_BYTES,           /* BESIDE */
        SHERDI_CHUNK_PLANE_BYTES,          /* BESIDE_PLANE */
        SHERDI_CHUNK_FP8_BYTES,            /* FP8 */
        SHERDI_CHUNK_FP8_BYTES,            /* UFP8 */
    };

    return CHUNK_BYTES[encoding];
}

/** Bytes of an element, without what belongs to its chunk as a whole. */
static inline size_t sherdi_encoding_elem_bytes(sherdi_encoding encoding)
{
    return sherdi_encoding_chunk_bytes(encoding) / SHERD_CHUNK_ELEMS;
}

/** Whether something belongs to a chunk as a whole. */
static inline int sherdi_encoding_has_chunks(sherdi_encoding encoding)
{
    return sherdi_encoding_chunk_bytes(encoding) !=
           sherdi_encoding_elem_bytes(encoding) * SHERD_CHUNK_ELEMS;
}

/** Bytes of `elems` elements: whole chunks, or any number where an element has bytes of its own alone. */
static inline size_t sherdi_encoding_bytes(sherdi_encoding encoding, size_t elems)
{
    size_t chunk = sherdi_encoding_chunk_bytes(encoding);

    assert(elems % SHERD_CHUNK_ELEMS == 0 || chunk % SHERD_CHUNK_ELEMS == 0);
    return elems / SHERD_CHUNK_ELEMS * chunk +
           elems % SHERD_CHUNK_ELEMS * sherdi_encoding_elem_bytes(encoding);
}

/** As the configuration and manifests have it: "fp32", "bf16", "bf16_beside" (either of them) or "fp8" (either). */
static inline const char *sherdi_encoding_name(sherdi_encoding encoding)
{
    static const char *const NAMES[SHERDI_ENCODINGS] = {"fp32",        "bf16", "bf16_beside",
                                                        "bf16_beside", "fp8",  "fp8"};

    return NAMES[encoding];
}

/** Of an encoding by its name how much it drops, to be compared; 0: nothing. -1: no such name. */
static inline int sherdi_encoding_loss(const char *name)
{
    static const char *const NAMES[]  = {"fp32", "bf16_beside", "bf16", "fp8"};
    static const int         LOSSES[] = {0, 0, 1, 2};

    for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
        if (strcmp(NAMES[i], name) == 0) {
            return LOSSES[i];
        }
    }
    return -1;
}

/* ------------------------------------------------------ random rounding -- */

/* The random bits of an element of a part: a hash of the step, the part and the element's global index, so that
 * every layout draws the same. The seed is made once for a step, the key is sherdi_mix_key(index). The mix is
 * lowbias32 of Wellons 2018, a permutation of 32-bit numbers. */
SHERDI_FN uint32_t sherdi_random_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* Where the random bits of a part come from in a step. Two moments share a hash, parts 1 and 2: the second has its halves
 * exchanged. bf16 takes one half of it each; fp8 takes 20 bits, of which the 8 lowest of one moment are the 8 highest of
 * the other. */
typedef struct sherdi_random {
    uint32_t seed;
    int      is_turned;
} sherdi_random;

SHERDI_FN sherdi_random sherdi_random_of(uint64_t step, unsigned part)
{
    unsigned      pair = (part + 1) / 2;
    sherdi_random out;

    out.seed =
        sherdi_random_mix((uint32_t)step ^ sherdi_random_mix((uint32_t)(step >> 32) + pair + 1));
    out.is_turned = part != 0 && part % 2 == 0;
    return out;
}

SHERDI_FN uint32_t sherdi_random_bits(sherdi_random random, uint32_t key)
{
    uint32_t bits = sherdi_random_mix(key ^ random.seed);

    return random.is_turned ? bits << 16 | bits >> 16 : bits;
}

/* Bits of fp32 with the `dropped` lowest gone: up with the probability of what is dropped, so that the expected
 * value is the value. Exact values stay; a NaN has to be canonical. */
SHERDI_FN uint32_t sherdi_round_random(uint32_t bits, unsigned dropped, uint32_t random)
{
    return (bits + (random >> (32 - dropped))) >> dropped;
}

/* To nearest, ties to even. */
SHERDI_FN uint32_t sherdi_round_nearest(uint32_t bits, unsigned dropped)
{
    return (bits + ((1u << (dropped - 1)) - 1) + (bits >> dropped & 1)) >> dropped;
}

/* ----------------------------------------------------------------- bf16 -- */

SHERDI_FN uint16_t sherdi_bf16_encode(float x)
{
    return (uint16_t)sherdi_round_nearest(sherdi_bits_f32(sherdi_canonical_f32(x)), 16);
}

SHERDI_FN uint16_t sherdi_bf16_encode_random(float x, uint32_t random)
{
    return (uint16_t)sherdi_round_random(sherdi_bits_f32(sherdi_canonical_f32(x)), 16, random);
}

/* --------------------------------------------------------------- beside -- */

/* bits(master) = (bits(parameter) << 16) + rest modulo 2^32, where the parameter is the master rounded to nearest
 * even and the rest is signed. Both ties, half a unit up and down, meet at an even parameter; they are -2^15
 * modulo 2^16, and `is_up` tells the one with the larger bits. */
#define SHERDI_BESIDE_TIE (-0x8000)

typedef struct sherdi_beside {
    uint16_t param;
    int16_t  rest;
    int      is_up; /* 0 but at a tie */
} sherdi_beside;

SHERDI_FN sherdi_beside sherdi_beside_encode(float master)
{
    uint32_t      bits  = sherdi_bits_f32(sherdi_canonical_f32(master));
    uint32_t      param = sherdi_round_nearest(bits, 16);
    uint32_t      rest  = bits - (param << 16);
    sherdi_beside out;

    out.param = (uint16_t)param;
    out.rest  = (int16_t)(uint16_t)rest;
    out.is_up = rest == 0x8000u;
    return out;
}

/* As if a tie were the one with the smaller bits; the other has 2^16 more. */
SHERDI_FN float sherdi_beside_decode(uint16_t param, int16_t rest)
{
    return sherdi_f32_from_bits(((uint32_t)param << 16) + (uint32_t)(int32_t)rest);
}

SHERDI_FN float sherdi_beside_up(float master)
{
    return sherdi_f32_from_bits(sherdi_bits_f32(master) + 0x10000u);
}

/* ------------------------------------------------------------------ fp8 -- */

/* Codes of magnitudes from 0 to 1: exponent and 3 bits of fraction, with denormals. What the exponent of fp32 has
 * more than the code's. */
#define SHERDI_FP8_DROPPED 20
#define SHERDI_FP8_BIAS    112u /* 2^-14 is the smallest normal one, 2^-17 the smallest */
#define SHERDI_UFP8_BIAS   96u  /* 2^-30 and 2^-33 */

/* The smallest power of two that no magnitude of the chunk is above; `magnitude_bits` are the largest bits
 * without sign. Zero where all are zero, NaN where there is a NaN or an Inf. */
SHERDI_FN float sherdi_fp8_scale(uint32_t magnitude_bits)
{
    uint32_t exponent = (magnitude_bits + 0x7fffffu) >> 23;

    if (magnitude_bits >= 0x7f800000u) {
        return sherdi_f32_from_bits(0x7fc00000u);
    }
    return sherdi_f32_from_bits((exponent > 253 ? 253 : exponent) << 23);
}

/* 1 / scale, exactly, for what the above gives; 0 for NaN, so that all codes are 0. */
SHERDI_FN float sherdi_fp8_inverse(float scale)
{
    uint32_t exponent = sherdi_bits_f32(scale) >> 23;

    return sherdi_f32_from_bits(exponent == 255 ? 0 : (254 - exponent) << 23);
}

/* A magnitude in fp32's bits whose fraction's upper bits are the code's, and what is to be taken from them: below
 * the smallest normal one a sum has the denormal's bits there. */
SHERDI_FN uint32_t sherdi_fp8_bits(float magnitude, uint32_t bias, uint32_t *less)
{
    float smallest = sherdi_f32_from_bits((bias + 1) << 23);
    int   is_small = magnitude < smallest;

    *less = (bias + (is_small ? 1 : 0)) << 3;
    return sherdi_bits_f32(is_small ? magnitude + smallest : magnitude);
}

SHERDI_FN uint32_t sherdi_fp8_most(uint32_t code, uint32_t most)
{
    return code < most ? code : most;
}

/* x of a chunk with that inverse scale; a chunk with a NaN gives 0. */
SHERDI_FN uint8_t sherdi_fp8_encode(float x, float inverse, uint32_t random, int is_random)
{
    uint32_t bits      = sherdi_bits_f32(x);
    float    magnitude = inverse > 0 ? sherdi_f32_from_bits(bits & 0x7fffffffu) * inverse : 0.0f;
    uint32_t less;
    uint32_t wide = sherdi_fp8_bits(magnitude, SHERDI_FP8_BIAS, &less);
    uint32_t code = is_random ? sherdi_round_random(wide, SHERDI_FP8_DROPPED, random)
                              : sherdi_round_nearest(wide, SHERDI_FP8_DROPPED);

    return (uint8_t)(sherdi_fp8_most(code - less, 127) | (bits >> 24 & 0x80u));
}

/* Of a part that is never negative. What is not zero does not become zero: it is divided by. */
SHERDI_FN uint8_t sherdi_ufp8_encode(float x, float inverse, uint32_t random, int is_random)
{
    uint32_t bits      = sherdi_bits_f32(x) & 0x7fffffffu;
    float    magnitude = inverse > 0 ? sherdi_f32_from_bits(bits) * inverse : 0.0f;
    uint32_t less;
    uint32_t wide  = sherdi_fp8_bits(magnitude, SHERDI_UFP8_BIAS, &less);
    uint32_t code  = is_random ? sherdi_round_random(wide, SHERDI_FP8_DROPPED, random)
                               : sherdi_round_nearest(wide, SHERDI_FP8_DROPPED);
    uint32_t least = bits != 0 && inverse > 0;

    code = sherdi_fp8_most(code - less, 255);
    return (uint8_t)(code > least ? code : least);
}

/* The magnitude of a code, from 0 to 1. */
SHERDI_FN float sherdi_fp8_magnitude(uint32_t code, uint32_t bias)
{
    float normal = sherdi_f32_from_bits((code << SHERDI_FP8_DROPPED) + (bias << 23));
    float more   = sherdi_f32_from_bits((code << SHERDI_FP8_DROPPED) + ((bias + 1) << 23));

    return code < 8 ? more - sherdi_f32_from_bits((bias + 1) << 23) : normal;
}

SHERDI_FN float sherdi_fp8_decode(uint8_t code, float scale)
{
    float magnitude = sherdi_fp8_magnitude(code & 0x7fu, SHERDI_FP8_BIAS) * scale;

    return sherdi_canonical_f32(
        sherdi_f32_from_bits(sherdi_bits_f32(magnitude) | (uint32_t)(code & 0x80u) << 24));
}

SHERDI_FN float sherdi_ufp8_decode(uint8_t code, float scale)
{
    return sherdi_canonical_f32(sherdi_fp8_magnitude(code, SHERDI_UFP8_BIAS) * scale);
}

#endif
