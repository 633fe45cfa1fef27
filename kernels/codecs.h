/* The formulas of the encodings (encoding.h), each written once, per element, under the rules of
 * formulas.h: plain operations, mostly on integers, that give the same bits with every compiler.
 * The kernels of all backends use them.
 *
 *   F32           4 bytes: the value itself.
 *   BF16          2 bytes: rounded to nearest, or at random in an update (sherdi_round_random).
 *   BESIDE        2 bytes of a master weight. The bf16 parameter is the master rounded, and these
 *                 bytes have what it lacks, so nothing is lost. Where rounding to nearest even met
 *                 a tie, one more bit is needed: the sign of another part, one that is never
 *                 negative.
 *   BESIDE_PLANE  the same where no part has a free sign. Behind the 2-byte values of each chunk
 *                 follows a plane: 64 bits, one for each element.
 *   FP8, UFP8     1 byte: a small float with 3 bits of fraction. FP8 has a sign and 4 bits of
 *                 exponent; UFP8, for parts that are never negative, has 5 bits of exponent. Behind
 *                 the floats of each chunk follows its scale, a power of two.
 *
 * A chunk is 64 elements of one parameter by its row-major index. Slices and blocks are whole
 * chunks, so elements share a scale in the same way in every world and layout. NaN is stored as one
 * fixed NaN, 0x7fc00000. If a chunk of FP8 or UFP8 has a NaN or an Inf, the whole chunk becomes
 * NaN. */
#ifndef SHERDI_KERNELS_CODECS_H
#define SHERDI_KERNELS_CODECS_H

#include "kernels/backend.h"

/* A part of the state as it is stored, from the block's start on. */
struct sherdi_encoded {
    sherdi_encoding encoding;
    void           *data;
    /* F32, BF16: its signs are the ties of a BESIDE master. They are masked when it is read, and
     * kept when it is written */
    int has_ties;
    /* Of a BESIDE or BESIDE_PLANE master: the bf16 parameter, read and written */
    uint16_t       *param;
    void           *ties;          /* of a BESIDE master: the part whose signs are its ties */
    sherdi_encoding ties_encoding; /* the encoding of that part: F32 or BF16 */
};

/* The kernels decode and encode read elements [first, first + count_elems) of a part as fp32, and
 * write them, rounded to nearest. Where a chunk has a plane or a scale, all of the chunk has to be
 * there, and its other elements stay as they are. NaN becomes 0x7fc00000 where bits are lost or
 * gained. A part whose chunks have a plane starts at a multiple of 8 bytes, one with scales at a
 * multiple of 4. */

/** Returns the address of a part's element `first`. */
static inline void *sherdi_encoded_at(const void *data, sherdi_encoding encoding, size_t first)
{
    return (unsigned char *)data +
           first / SHERD_CHUNK_ELEMS * sherdi_encoding_chunk_bytes(encoding) +
           first % SHERD_CHUNK_ELEMS * sherdi_encoding_elem_bytes(encoding);
}

/** Returns whether a chunk has a plane or a scale. */
static inline int sherdi_encoding_has_chunks(sherdi_encoding encoding)
{
    return sherdi_encoding_chunk_bytes(encoding) !=
           sherdi_encoding_elem_bytes(encoding) * SHERD_CHUNK_ELEMS;
}

/** Returns whether the signs of a part are the ties of the master. */
static inline int sherdi_update_has_ties(const sherdi_update_args *args, int part)
{
    return args->encodings[0] == SHERDI_ENCODING_BESIDE && part > 0 && part == args->ties_part;
}

/** Reads elements [first, first + count_elems) of a part in host memory as fp32, without a backend:
 *  on the calling thread, plainly. */
void sherdi_encoded_read(float *dst, const sherdi_encoded *part, size_t first, size_t count_elems);

/* ------------------------------------------------------ random rounding -- */

/* The random bits of an element of a part are a hash of the step, the part and the element's global
 * index, so every layout draws the same bits. The seed is made once per step; the key is
 * sherdi_mix_key(index). The mix is lowbias32 (Wellons 2018), a permutation of 32-bit numbers. */
SHERDI_FN uint32_t sherdi_random_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* The source of the random bits of a part in a step. The two moments, parts 1 and 2, share one
 * hash; part 2 takes it with its halves exchanged. Rounding uses the upper bits. For bf16 these are
 * 16 bits, so each moment has a half of its own. For fp8 they are 20 bits, and the 4 lowest of each
 * moment are the 4 highest of the other. */
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

/* Drops the `dropped` lowest bits of an fp32 number. It rounds up with a probability that is the
 * dropped fraction, so the expected value is the value itself. Values that fit exactly stay. A NaN
 * has to be canonical (sherdi_canonical_f32). */
SHERDI_FN uint32_t sherdi_round_random(uint32_t bits, unsigned dropped, uint32_t random)
{
    return (bits + (random >> (32 - dropped))) >> dropped;
}

/* Does the same, rounding to nearest, ties to even. */
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

/* --------------------------------------------------------- split master -- */

/* bits(master) = (bits(parameter) << 16) + rest modulo 2^32. The parameter is the master rounded to
 * nearest even, and the rest is signed. At an even parameter two ties meet: the masters half a unit
 * below it and half a unit above. Both have the rest -2^15 modulo 2^16, so `is_up` says that it is
 * the one with the larger bits. */
#define SHERDI_BESIDE_TIE (-0x8000)

typedef struct sherdi_beside {
    uint16_t param;
    int16_t  rest;
    int      is_up; /* 1 at ties only */
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

/* Returns the master; for a tie, the one with the smaller bits. sherdi_beside_up makes the other
 * one of it, whose bits are 2^16 more. */
SHERDI_FN float sherdi_beside_decode(uint16_t param, int16_t rest)
{
    return sherdi_f32_from_bits(((uint32_t)param << 16) + (uint32_t)(int32_t)rest);
}

SHERDI_FN float sherdi_beside_up(float master)
{
    return sherdi_f32_from_bits(sherdi_bits_f32(master) + 0x10000u);
}

/* ------------------------------------------------------------------ fp8 -- */

/* A code stands for a magnitude from 0 to 1, relative to the scale: an exponent and 3 bits of
 * fraction, with denormals. DROPPED: the bits that the fraction of fp32 has more than the code's.
 * BIAS: what the exponent of fp32 is larger by than the code's. */
#define SHERDI_FP8_DROPPED 20
#define SHERDI_FP8_BIAS    112u /* smallest normal magnitude: 2^-14; smallest: 2^-17 */
#define SHERDI_UFP8_BIAS   96u  /* 2^-30 and 2^-33 */

/* Returns the scale of a chunk: the smallest power of two from 2^-126 to 2^126 that is not below
 * its largest magnitude. For larger magnitudes it is 2^126, and codes saturate. `magnitude_bits`
 * are the largest bits in the chunk, without sign. The scale is zero if all elements are zero, and
 * NaN if one is NaN or Inf. */
SHERDI_FN float sherdi_fp8_scale(uint32_t magnitude_bits)
{
    uint32_t exponent = (magnitude_bits + 0x7fffffu) >> 23;

    if (magnitude_bits >= 0x7f800000u) {
        return sherdi_f32_from_bits(0x7fc00000u);
    }
    return sherdi_f32_from_bits((exponent > 253 ? 253 : exponent) << 23);
}

/* Returns 1 / scale, exactly, of a scale from sherdi_fp8_scale. NaN gives 0, so that all codes are
 * 0. Zero gives 2^127, by which only zeros are multiplied. */
SHERDI_FN float sherdi_fp8_inverse(float scale)
{
    uint32_t exponent = sherdi_bits_f32(scale) >> 23;

    return sherdi_f32_from_bits(exponent == 255 ? 0 : (254 - exponent) << 23);
}

/* Returns fp32 bits that, when DROPPED bits are rounded off, are the code plus *less. Below the
 * smallest normal magnitude that magnitude is added first, so that the upper bits of the fraction
 * are those of the denormal code. */
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

/* Returns the code of x in a chunk; `inverse` is sherdi_fp8_inverse of the chunk's scale. `random`
 * is used where is_random. */
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

/* Does the same for a part that is never negative. An element that is not zero never becomes zero,
 * since optimizers divide by it. */
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

/* Returns the magnitude of a code, relative to the scale. */
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
